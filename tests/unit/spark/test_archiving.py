"""The Parquet files that a task of the archive writes."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as parquet

from skylark.errors import StoreUnreadable
from skylark.spark import archiving
from skylark.spark.archiving import SplitFiles

HOUR_S = 3_600
START = datetime.datetime(2026, 11, 15, 23, 59, 59, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("queue_offset", pa.int64()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("store_time", pa.timestamp("us", "UTC")),
    ]
)


def batch(first: int, seconds: Sequence[float]) -> pa.RecordBatch:
    """Messages of one queue, stored so many seconds after the start."""
    rows = [
        {
            "queue_offset": first + number,
            "body": b"%d" % (first + number),
            "properties": [("n", str(first + number))],
            "store_time": START + datetime.timedelta(seconds=after),
        }
        for number, after in enumerate(seconds)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def read(root: Path, files: Sequence[archiving.ArchivedFile]) -> dict[str, list[int]]:
    """The offsets in each hour's files, in the order of the files."""
    found: dict[str, list[int]] = {}
    for file in files:
        # As a file, not as a folder of partitions.
        table = parquet.ParquetFile(root / file.path).read()
        assert table.num_rows == file.rows
        assert (root / file.path).stat().st_size == file.bytes
        assert table.column("body").to_pylist() == [
            b"%d" % offset for offset in table.column("queue_offset").to_pylist()
        ]
        hour = Path(file.path).parts[-2].removeprefix("hour=")
        found.setdefault(hour, []).extend(table.column("queue_offset").to_pylist())
    return found


def test_messages_lie_by_topic_and_hour_in_their_order(tmp_path: Path) -> None:
    files = SplitFiles(tmp_path, tmp_path / "data", 7)
    files.write("T", batch(0, [0, 0.999999, 1, 2]))
    files.write("T", batch(4, [1_800, HOUR_S, HOUR_S + 1]))
    files.write("Other", batch(100, [0]))
    done = files.close()
    assert read(tmp_path, [file for file in done if file.topic == "T"]) == {
        "2026-11-15T23": [0, 1],
        "2026-11-16T00": [2, 3, 4, 5],
        "2026-11-16T01": [6],
    }
    (other,) = [file for file in done if file.topic == "Other"]
    assert other.path.startswith("data/topic=Other/hour=2026-11-15T23/00007-")
    assert len({file.path for file in done}) == len(done) == 4


def test_clocks_that_went_back_lose_and_mix_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    files = SplitFiles(tmp_path, tmp_path, 0)
    wanted: dict[int, list[int]] = {}
    for number in range(60):
        seconds = [rng.uniform(0, 40 * HOUR_S) for _ in range(rng.randrange(1, 9))]
        files.write("T", batch(number * 10, seconds))
        for place, after in enumerate(seconds):
            hour = int((START.timestamp() + after) // HOUR_S)
            wanted.setdefault(hour, []).append(number * 10 + place)
    done = files.close()
    assert len(done) > len(wanted), "no file was closed early"
    found = read(tmp_path, done)
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, wanted.values()))
    for file in done:
        offsets = parquet.ParquetFile(tmp_path / file.path).read().column("queue_offset")
        assert offsets.to_pylist() == sorted(offsets.to_pylist())


def test_no_more_files_are_open_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_OPEN_MAX", 2)
    files = SplitFiles(tmp_path, tmp_path, 0)
    for number in range(6):
        files.write("T", batch(number, [number * HOUR_S]))
        assert len(files._open) <= 2
    assert len(files.close()) == 6


def test_rows_are_grouped_whatever_batches_they_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SplitFiles(tmp_path, tmp_path, 0)
    for number in range(50):
        files.write("T", batch(number * 20, [1] * 20))
    (file,) = files.close()
    assert parquet.ParquetFile(tmp_path / file.path).num_row_groups == 1
    monkeypatch.setattr(archiving, "_GROUP_BYTES", 1)
    files = SplitFiles(tmp_path, tmp_path, 0)
    for number in range(5):
        files.write("T", batch(number * 20, [1] * 20))
    (file,) = files.close()
    assert parquet.ParquetFile(tmp_path / file.path).num_row_groups == 5


def test_a_topic_with_a_percent_sign_is_named_as_spark_names_it(tmp_path: Path) -> None:
    files = SplitFiles(tmp_path, tmp_path, 0)
    files.write("%RETRY%a|b", batch(0, [0]))
    (file,) = files.close()
    assert file.topic == "%RETRY%a|b"
    assert file.path.startswith("topic=%25RETRY%25a%7Cb/")


def test_files_that_are_gone_before_they_count_end_a_batch(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "batch=0"
    files = SplitFiles(tmp_path, folder, 0)
    files.write("T", batch(0, [0.0, 2.0]))
    written = files.close()
    assert len(written) == 2
    archiving.settle(tmp_path, folder, written)
    (tmp_path / written[0].path).unlink()
    with pytest.raises(StoreUnreadable, match=f"{written[0].path}: has been removed before"):
        archiving.settle(tmp_path, folder, written)


def test_a_worker_that_does_not_see_the_archive_makes_none_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "mnt" / "lake"
    rows = batch(0, [0.0])
    rows = rows.add_column(0, "topic", pa.array(["T"]))
    plan: Any = SimpleNamespace(read=lambda split: [rows])
    split: Any = None
    with pytest.raises(StoreUnreadable, match=f"{root}: is not there on .* under one path"):
        archiving._write_split(plan, split, root, root / "data" / "batch=0", 0)
    assert not list(tmp_path.iterdir())
    root.mkdir(parents=True)
    (file,) = archiving._write_split(plan, split, root, root / "data" / "batch=0", 0)
    assert (root / file.path).exists()


def test_files_of_attempts_that_do_not_count_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "batch=0"
    files, failed = SplitFiles(tmp_path, folder, 0), SplitFiles(tmp_path, folder, 0)
    failed.write("T", batch(0, [0.0]))
    failed.close()
    files.write("T", batch(0, [0.0]))
    (kept,) = files.close()
    archiving.settle(tmp_path, folder, [kept])
    assert [str(path.relative_to(tmp_path)) for path in folder.rglob("*.parquet")] == [kept.path]
