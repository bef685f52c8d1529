"""Exactly once: drivers, workers and brokers die at each step; every row is there, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_chain import RANDOMLY, Chain, Kill
from spark_faults import IN_QUERIES, IN_TASKS

ROWS = 1_500
# Every step of source and sink with a worker and a broker in turn; a driver costs seconds, so it
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
    Kill("broker-b", RANDOMLY),
    Kill("broker-b", "compact-entry"),
    Kill("broker-a", RANDOMLY),
]
DRIVERS = [kill for kill in KILLS if kill.victim == "driver"]


def test_every_step_of_tasks_and_queries_is_among_the_kills() -> None:
    assert {*IN_TASKS, *IN_QUERIES, "archive-files", "archive-entry", "compact-entry"} <= {
        kill.step for kill in KILLS
    }


def test_chains_under_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = Chain(tmp_path, seed=1).run(KILLS, ROWS)
    assert outcome["findings"] == []
    assert outcome["rows"] >= ROWS
    assert outcome["kills"] >= 20
    assert outcome["kills_of_drivers"] == len(DRIVERS)
    assert outcome["kills_of_brokers"] >= 8
    assert outcome["kills_of_workers"] >= 5
    assert outcome["steps_not_reached"] == 0
    # Only processes of a query itself end it: brokers come back, and tasks are done again.
    own = [kill for kill in KILLS if kill.victim == "worker" and kill.step not in IN_TASKS]
    assert outcome["query_restarts"] <= len(own), outcome["failures"]


def test_two_drivers_with_one_checkpoint_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = Chain(tmp_path, seed=2).run_two(400)
    assert outcome["findings"] == []
    assert outcome["failures"], "nobody noticed the other"
