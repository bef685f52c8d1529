"""FaultPlan: drawn, printed, replayed, minimised."""

import random

import pytest

from skylark.testing import Fault, FaultPlan, minimise
from skylark.testing.faults import WEIGHTS

NODES = [f"node-{number}" for number in range(7)]


def draw(seed: int) -> FaultPlan:
    return FaultPlan.draw(
        random.Random(seed), NODES, start_ms=10_000, end_ms=3_600_000, gap_ms=5_000
    )


def test_the_same_seed_draws_the_same_plan() -> None:
    assert draw(1) == draw(1) != draw(2)


def test_a_plan_is_read_back_from_its_text() -> None:
    plan = draw(1)
    assert FaultPlan.parse(str(plan)) == plan
    assert len(str(plan).splitlines()) == len(plan) > 500


def test_all_kinds_are_drawn_within_the_span_and_end_in_it() -> None:
    plan = draw(1)
    assert {fault.kind for fault in plan} == set(WEIGHTS)
    assert all(10_000 <= fault.at_ms < 3_600_000 for fault in plan)
    assert plan.end_ms <= 3_600_000
    assert [fault.at_ms for fault in plan] == sorted(fault.at_ms for fault in plan)


def test_sides_of_a_cut_do_not_overlap() -> None:
    for fault in draw(3):
        assert not set(fault.nodes) & set(fault.others)
        assert fault.nodes
        if fault.kind in ("partition", "one_way"):
            assert set(fault.nodes) | set(fault.others) == set(NODES)


def test_weights_choose_the_kinds() -> None:
    plan = FaultPlan.draw(
        random.Random(1), NODES, start_ms=0, end_ms=10**6, gap_ms=1000, weights={"pause": 1}
    )
    assert {fault.kind for fault in plan} == {"pause"}


def test_a_plan_for_two_nodes_can_be_drawn() -> None:
    plan = FaultPlan.draw(random.Random(1), ["a", "b"], start_ms=0, end_ms=10**6, gap_ms=1000)
    assert {fault.kind for fault in plan} == set(WEIGHTS)


def test_what_is_not_a_fault_is_refused_with_the_line() -> None:
    with pytest.raises(ValueError, match="no fault 'meteor'"):
        Fault(0, 1, "meteor", ("a",))
    with pytest.raises(ValueError, match="not a fault: '1 2 crash'"):
        FaultPlan.parse("1 2 crash")


def test_minimising_keeps_exactly_the_faults_that_matter() -> None:
    plan = draw(1)
    culprits = {plan.faults[17], plan.faults[300], plan.faults[301]}
    runs = 0

    def fails(candidate: FaultPlan) -> bool:
        nonlocal runs
        runs += 1
        return culprits <= set(candidate)

    assert set(minimise(plan, fails)) == culprits
    assert runs < 200


def test_minimising_a_failure_that_needs_no_fault_ends_with_none() -> None:
    assert len(minimise(draw(1), lambda plan: True)) == 0


def test_a_plan_that_does_not_fail_cannot_be_minimised() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        minimise(draw(1), lambda plan: False)
