"""An archive as a stream: where its live part begins while brokers are away."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from skylark.spark.offsets import QueueKey
from skylark.spark.pipelines import history

A, B = QueueKey("T", "a", 0), QueueKey("T", "b", 0)
ENDS = {A: 10, B: 20}
OPTIONS = {"namesrv": "ns:1", "topic": "T"}


def brokers_of(*there: QueueKey) -> Any:
    """Takes the place of Cluster."""

    class Brokers:
        def __init__(self, access: Any) -> None:
            pass

        def queues(self, topics: Iterable[str]) -> list[QueueKey]:
            return list(there)

        def close(self) -> None:
            """Nothing is open."""

    return Brokers


def test_who_was_away_at_the_first_start_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    note = tmp_path / "past.away.json"
    monkeypatch.setattr(history, "Cluster", brokers_of(A))
    assert history._away_at_first(note, ENDS, OPTIONS) == {B: 20}
    assert "no broker serves T/b/0: it is read beyond 20 once one does" in caplog.text
    # Spark's checkpoint has been begun without it, and no restart changes that.
    monkeypatch.setattr(history, "Cluster", brokers_of(A, B))
    assert history._away_at_first(note, ENDS, OPTIONS) == {B: 20}


def test_nobody_is_away_where_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "past.away.json"
    monkeypatch.setattr(history, "Cluster", brokers_of(A, B))
    assert history._away_at_first(note, ENDS, OPTIONS) == {}
    monkeypatch.setattr(history, "Cluster", brokers_of(A))
    assert history._away_at_first(note, ENDS, OPTIONS) == {}
