"""The note of a micro-batch in Spark's checkpoint: on the disk, and named by what it says."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from skylark.spark.planned import settle_plan


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def note(checkpoint: Path, batch: int, content: bytes) -> Path:
    path = checkpoint / "offsets" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (checkpoint / "metadata").write_text('{"id":"query"}')
    return path


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_plan_is_named_by_what_its_note_says(tmp_path: Path, scheme: str) -> None:
    checkpoint = tmp_path / "a query"
    place = f"{scheme}{checkpoint}"
    note(checkpoint, 7, b"v1\n{}\n1")
    first = settle_plan(place, 7)
    assert first
    assert settle_plan(place, 7) == first
    note(checkpoint, 7, b"v1\n{}\n2")
    assert settle_plan(place, 7) not in ("", first)


@pytest.mark.parametrize(
    "checkpoint", [None, "hdfs://cluster/checkpoint", "s3a://bucket/checkpoint", "{there}/none"]
)
def test_a_checkpoint_that_is_elsewhere_has_no_plan_that_can_be_seen(
    tmp_path: Path, checkpoint: str | None, synced: list[Path]
) -> None:
    place = None if checkpoint is None else checkpoint.format(there=tmp_path)
    assert settle_plan(place, 0) == ""
    assert synced == []


def test_a_plan_is_on_the_disk_with_the_query_that_it_is_of(
    tmp_path: Path, synced: list[Path]
) -> None:
    checkpoint = tmp_path / "new" / "checkpoint"
    path = note(checkpoint, 0, b"v1\n{}\n0")
    settle_plan(str(checkpoint), 0)
    above = [checkpoint, checkpoint.parent, tmp_path]
    assert {path, path.parent, checkpoint / "metadata", *above} <= set(synced)


def test_a_folder_above_that_may_not_be_listed_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    note(closed / "checkpoint", 0, b"v1\n{}\n0")
    real = os.open

    def refused(path: Any, *rest: Any, **more: Any) -> int:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    assert settle_plan(str(closed / "checkpoint"), 0)


def test_a_later_plan_costs_two_syncs(tmp_path: Path, synced: list[Path]) -> None:
    path = note(tmp_path, 8, b"v1\n{}\n8")
    settle_plan(str(tmp_path), 8)
    assert synced == [path, path.parent]
