"""Test the tests: every planted bug is caught by its checker, and the real code by none."""

import pytest
from planted_bugs import BUGS, CHECKERS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug):
    with bug.plant():
        found = CHECKERS[bug.checker]()
    assert found is not None, f"{bug.checker} did not notice: {bug.name}"


@pytest.mark.parametrize("name", CHECKERS)
def test_the_checkers_are_silent_without_a_planted_bug(name):
    assert CHECKERS[name]() is None
