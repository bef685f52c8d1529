"""I04, I15, I17: 20,000 states that a crash could leave, each opened and judged."""

import pytest
from crash_script import SCRIPTS
from crash_states import sweep

STATES_EACH = 670  # Times two page sizes and fifteen scripts: 20,100 in all.
PAGE_BYTES = (512, 2048)  # One sector: any mix of sectors. Four: pages lost and torn as a whole.


@pytest.mark.parametrize("page_bytes", PAGE_BYTES)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_state_that_a_crash_leaves_opens_to_a_prefix_with_all_that_was_promised(
    name, page_bytes
):
    tally = sweep(name, seed=1, page_bytes=page_bytes, states=STATES_EACH)
    assert [str(finding) for finding in tally.findings] == []
    assert tally.states >= STATES_EACH


def test_the_states_add_up_to_what_is_promised():
    assert STATES_EACH * len(PAGE_BYTES) * len(SCRIPTS) >= 20_000
