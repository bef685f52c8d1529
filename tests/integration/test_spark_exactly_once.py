"""Exactly once: drivers, workers and brokers die at each step; every row is there, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_chain import RANDOMLY, Chain, Kill, plan
from spark_faults import IN_DRIVER, IN_QUERIES, IN_TASKS

ROWS = 1_500
# Every step, those of tasks with a worker and a broker in turn; a driver costs seconds, so it
# dies once, between a decision and Spark's own note of it. What its death between an entry of the
# archive and that note leaves is in test_spark_archive.py, whole pipelines die in
# test_pipeline_kills.py, and the campaign has all combinations.
KILLS = [
    Kill("worker", "staging"),
    Kill("broker-a", "stage"),
    Kill("broker-b", "decide"),
    Kill("worker", "staged"),
    Kill("broker-a", "decided"),
    Kill("driver", "decided"),
    Kill("broker-b", "staging"),
    Kill("worker", "read"),
    Kill("worker", RANDOMLY),
    Kill("broker-a", "commit"),
    Kill("worker", "stage"),
    Kill("broker-a", "archive-files"),
    Kill("broker-b", "split"),
    Kill("broker-a", "staged"),
    Kill("worker", "commit"),
    Kill("broker-b", "plan"),
    Kill("broker-b", RANDOMLY),
    Kill("broker-a", "archive-entry"),
    Kill("worker", "decide"),
    Kill("broker-a", "read"),
    Kill("broker-a", "progress"),
    Kill("broker-a", "compact-files"),
    Kill("broker-b", "compact-note"),
    Kill("broker-b", "compact-entry"),
    Kill("broker-a", RANDOMLY),
]
DRIVERS = [kill for kill in KILLS if kill.victim == "driver"]


def test_every_named_step_is_among_the_kills() -> None:
    assert {kill.step for kill in KILLS} == {*IN_TASKS, *IN_QUERIES, *IN_DRIVER, RANDOMLY}
    for step in IN_TASKS:
        victims = {kill.victim.partition("-")[0] for kill in KILLS if kill.step == step}
        assert victims == {"worker", "broker"}


@pytest.mark.parametrize("first", [1, 7, 61_000])
def test_ten_runs_of_a_campaign_kill_everybody_at_every_step(first: int) -> None:
    plans = [plan(seed, 52, 7) for seed in range(first, first + 10)]
    assert {len(kills) for kills in plans} == {52}
    kills = {kill for kills in plans for kill in kills}
    victims = ("worker", "broker-a", "broker-b")
    steps = (*IN_TASKS, *IN_QUERIES, RANDOMLY)
    assert {Kill(victim, step) for victim in victims for step in steps} <= kills
    drivers = {kill.step for kill in kills if kill.victim == "driver"}
    assert drivers == {*IN_DRIVER, "decide", "decided", "commit", "staged", "plan", RANDOMLY}


def test_chains_under_kills_and_then_two_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = Chain(tmp_path, seed=1).run(KILLS, ROWS, rows_with_rival=400)
    assert outcome["findings"] == []
    assert outcome["failures_with_rival"], "neither of two drivers noticed the other"
    assert outcome["rows"] >= ROWS
    assert outcome["kills"] >= 20
    assert outcome["kills_of_drivers"] == len(DRIVERS)
    assert outcome["kills_of_brokers"] >= 8
    assert outcome["kills_of_workers"] >= 5
    assert outcome["steps_not_reached"] == 0
    # Only processes of a query itself end it: brokers come back, and tasks are done again.
    own = [kill for kill in KILLS if kill.victim == "worker" and kill.step not in IN_TASKS]
    assert outcome["query_restarts"] <= len(own), outcome["failures"]
