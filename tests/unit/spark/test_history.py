"""An archive as a stream: where its live part begins while brokers are away."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from skylark.spark.catalogue import Catalogue, Entry
from skylark.spark.offsets import QueueKey
from skylark.spark.pipelines import Pipeline, RunDirectory, Spec, history
from skylark.spark.pipelines.checkpoints import Checkpoint

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


# What a start leaves that was refused.


def spec_of(root: Path, checkpoint: Path) -> Spec:
    pipeline = Pipeline("p", checkpoint=str(checkpoint), namesrv="ns:1")
    pipeline.source("past", archive=str(root), topic="T")
    return pipeline.sink("out", format="noop").spec(environment={})


def test_a_start_after_a_refused_one_asks_anew_who_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder, runs = tmp_path / "lake", tmp_path / "state", RunDirectory(tmp_path / "runs")
    spec = spec_of(root, folder)
    catalogue = Catalogue(root)

    def seam(*there: QueueKey) -> tuple[Any, Any]:
        monkeypatch.setattr(history, "Cluster", brokers_of(*there))
        ends = history.take_snapshot(spec.sources[0], folder)
        return ends, history._away_at_first(folder / "past.away.json", ends, OPTIONS)

    catalogue.add(Entry(0, 0, (), {A: 10, B: 20}))
    checkpoint = Checkpoint.take(spec, runs)
    assert seam(A) == ({A: 10, B: 20}, {B: 20})
    checkpoint.release()  # It was refused: nobody has claimed the folder.
    # The broker is back, and what it has is archived further than that.
    catalogue.add(Entry(1, 1, (), {A: 10, B: 50}))
    checkpoint = Checkpoint.take(spec, runs)
    assert seam(A, B) == ({A: 10, B: 50}, {}), "20 to 50 are in the archive already"
    checkpoint.claim(spec)
    checkpoint.release()
    # From now on queries may have read by it.
    catalogue.add(Entry(2, 2, (), {A: 10, B: 60}))
    Checkpoint.take(spec, runs).release()
    assert seam(A) == ({A: 10, B: 50}, {})


def test_nothing_of_a_refused_start_stays(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    (folder / "past.history" / "topic=T").mkdir(parents=True)
    for name in ("past.history.json", "past.away.json", "past.away.0a0a0a0a.draft"):
        (folder / name).touch()
    (folder / "mine.json").touch()
    Checkpoint.take(spec_of(tmp_path / "lake", folder), RunDirectory(tmp_path / "runs")).release()
    assert sorted(path.name for path in folder.iterdir()) == ["mine.json", "pipeline.lock"]


def test_a_claim_is_on_the_disk_before_a_query_reads_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path / "lake", tmp_path / "state")
    checkpoint = Checkpoint.take(spec, RunDirectory(tmp_path / "runs"))
    synced: list[str] = []
    fsync = os.fsync

    def noting(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noting)
    checkpoint.claim(spec)
    checkpoint.release()
    note, names = synced
    assert note.startswith("pipeline.")
    assert names == "state"
    assert (tmp_path / "state" / "pipeline.json").exists()
