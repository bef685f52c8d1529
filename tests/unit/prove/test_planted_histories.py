"""The checkers are tested: 20 of 20 planted bugs are found, and legal histories are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legal_histories import LegalRun
from planted_histories import BUGS, REFERENCE_COUNT, history_with

from skylark.prove.anomalies import KINDS
from skylark.prove.verdict import judge

SEEDS = (1, 7)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_by_its_checker(bug) -> None:
    for seed in SEEDS:
        found = judge(history_with(bug.mutate, seed)).anomalies
        assert (bug.kind, bug.checker) in [(one.kind, one.checker) for one in found], (seed, found)
        first = next(one for one in found if one.kind == bug.kind)
        assert first.count >= 1
        assert first.example


def test_twenty_of_twenty_are_planted_and_every_kind_of_anomaly_occurs() -> None:
    found = 0
    for bug in BUGS[:REFERENCE_COUNT]:
        kinds = {one.kind for one in judge(history_with(bug.mutate, seed=7)).anomalies}
        found += bug.kind in kinds
    assert (found, REFERENCE_COUNT) == (20, 20)
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert set(KINDS) - {bug.kind for bug in BUGS} == {"hole"}  # See test_checkers.py.


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(0, 250),
    queues=st.integers(1, 3),
)
def test_the_checkers_are_silent_over_legal_histories(seed: int, steps: int, queues: int) -> None:
    verdict = judge(LegalRun(seed, steps=steps, queues=queues).history)
    assert [(one.kind, one.example) for one in verdict.anomalies] == []
    assert verdict.figures.lost == 0
