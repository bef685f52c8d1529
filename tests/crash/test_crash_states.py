"""I04, I15, I17: 20,000 states that a crash could leave, each opened and judged."""

import pytest
from crash_script import SCRIPTS, record
from crash_states import enumerate_states, sweep

STATES_EACH = 420  # Times three page sizes and sixteen scripts: 20,160 in all.
# One sector: any mix of sectors. Four and eight: pages lost as a whole, and torn at three cuts.
PAGE_BYTES = (512, 2048, 4096)


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


@pytest.mark.parametrize("page_bytes", PAGE_BYTES[1:])
def test_every_dirty_page_is_torn_at_three_cuts_between_sectors(page_bytes):
    cuts: dict[tuple[int, str], set[int]] = {}
    lost: dict[int, set[str]] = {}
    for changes, how, _ in enumerate_states(record("large", seed=1, page_bytes=page_bytes)):
        words = how.split(" torn at ")
        if len(words) == 2:
            cuts.setdefault((changes, words[0]), set()).add(int(words[1]))
        elif how.endswith(") lost"):
            lost.setdefault(changes, set()).add(how.removesuffix(" lost"))
    assert cuts
    for (changes, page), places in cuts.items():
        assert len(places) == 3
        assert all(place % 512 == 0 and 0 < place < page_bytes for place in places)
        assert page in lost[changes], "a page that can be torn can be lost as well"
    assert {place for places in cuts.values() for place in places} == set(
        range(512, page_bytes, 512)
    )


@pytest.mark.parametrize("page_bytes", PAGE_BYTES)
def test_a_record_can_lose_any_page_between_its_first_and_its_last(page_bytes):
    run = record("large", seed=1, page_bytes=page_bytes)
    longest = max(run.history, key=lambda item: item.size_bytes)
    assert longest.size_bytes > 2 * page_bytes
    first, last = longest.physical_offset // page_bytes + 1, longest.end // page_bytes - 1
    lost = {how for _, how, _ in enumerate_states(run) if how.endswith(") lost")}
    in_file = 32768 // page_bytes
    for page in range(first, last + 1):
        assert any(f", {page % in_file})" in how for how in lost)
