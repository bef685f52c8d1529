"""Archiving: a task takes its part of a micro-batch from the brokers to Parquet files.

A file is written where its messages arrive, and nothing but its name goes on to the driver. Through
Spark's own writer the same rows would pass its JVM, and take three times the CPU time.

    <folder>/topic=OrderTopic/hour=2026-11-15T19/00003-7f2c51d0-0.parquet
                                                 task, attempt, number

A file has messages of one topic and one hour (UTC), in the order of their queues and offsets.
Tasks are repeated, and attempts go on though nobody waits for them: a file counts only if the
attempt that Spark takes has named it. It is on the disk before it is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import StoreUnreadable
from .catalogue import ArchivedFile, sync, sync_tree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from .source import Plan, Split

_NAMED = "path string, topic string, rows bigint, bytes bigint"
_HOUR_US = 3_600_000_000
_GROUP_BYTES = 32 << 20  # Of a row group, before it is compressed.
_OPEN_MAX = 8  # Files at a time; a queue's messages go from one hour to the next.
_ONE_PATH = "driver and workers must see the directory of an archive under one path"
_LEVEL = 1  # Of zstd: more takes several times as long, and saves a few per cent.


def write_files(
    spark: SparkSession, plan: Plan, splits: Sequence[Split], root: Path, folder: Path
) -> list[ArchivedFile]:
    """Let tasks write what splits hold below a folder of their own; all of it is on the disk."""
    if not splits:
        return []

    def write(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            for task in batch.column(0).to_pylist():
                yield _as_rows(_write_split(plan, splits[task], root, folder, task))

    count = len(splits)
    rows = spark.range(0, count, 1, count).mapInArrow(write, _NAMED).collect()
    files = [ArchivedFile(row.path, row.topic, row.rows, row.bytes) for row in rows]
    settle(root, folder, files)
    return sorted(files, key=lambda file: file.path)


def settle(root: Path, folder: Path, files: Sequence[ArchivedFile]) -> None:
    """Have these files on the disk, and no others in their folder. Raises StoreUnreadable."""
    counted = {file.path for file in files}
    for path in folder.rglob("*.parquet"):
        if str(path.relative_to(root)) not in counted:
            path.unlink(missing_ok=True)  # Of an attempt that failed, or was one too many.
    if folder.exists():
        sync_tree(folder, root)
    for name in sorted(counted):
        if not (root / name).exists():
            raise StoreUnreadable(
                str(root / name),
                "has been removed before it could count, or a worker has written it where nobody "
                f"else sees it: {_ONE_PATH}",
            )


def _write_split(
    plan: Plan, split: Split, root: Path, folder: Path, task: int
) -> list[ArchivedFile]:
    """In a task: all messages of a split."""
    if not root.is_dir():  # The driver has made it: this is another machine, and its own disk.
        raise StoreUnreadable(str(root), f"is not there on {gethostname()}: {_ONE_PATH}")
    files = SplitFiles(root, folder, task)
    for batch in plan.read(split):
        if batch.num_rows:
            at = batch.schema.get_field_index("topic")
            files.write(batch.column(at)[0].as_py(), batch.remove_column(at))
    return files.close()


def _as_rows(files: Sequence[ArchivedFile]) -> pa.RecordBatch:
    import pyarrow as pa

    names = ("path", "topic", "rows", "bytes")
    kinds = (pa.string(), pa.string(), pa.int64(), pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.array([getattr(file, name) for file in files], kind)
            for name, kind in zip(names, kinds, strict=True)
        ],
        names=list(names),
    )


@dataclass
class _OpenFile:
    """A file that is being written."""

    path: str  # Below the root of the archive.
    topic: str
    writer: Any
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0

    def write_group(self) -> None:
        """Write what waits, as a group of rows that are read together."""
        import pyarrow as pa

        if self.waiting:
            table = pa.Table.from_batches(self.waiting)
            self.writer.write_table(table, row_group_size=table.num_rows)
            self.waiting.clear()


class SplitFiles:
    """The files of one attempt of one task."""

    def __init__(self, root: Path, folder: Path, task: int) -> None:
        self._root = root
        self._folder = folder
        self._name = f"{task:05d}-{os.urandom(4).hex()}"
        self._open: dict[tuple[str, int], _OpenFile] = {}  # The one used last comes last.
        self._done: list[ArchivedFile] = []

    def write(self, topic: str, batch: pa.RecordBatch) -> None:
        """Add messages of one topic, in their order."""
        for hour, part in _by_hour(batch):
            file = self._open.pop((topic, hour), None) or self._make(topic, hour, part.schema)
            self._open[topic, hour] = file
            file.waiting.append(part)
            file.rows += part.num_rows
            if sum(one.nbytes for one in file.waiting) >= _GROUP_BYTES:
                file.write_group()

    def close(self) -> list[ArchivedFile]:
        """All files, once they are on the disk."""
        for place in list(self._open):
            self._finish(place)
        return self._done

    def _make(self, topic: str, hour: int, schema: pa.Schema) -> _OpenFile:
        import pyarrow.parquet as parquet

        if len(self._open) >= _OPEN_MAX:
            self._finish(next(iter(self._open)))
        folder = self._folder / f"topic={quote(topic, safe='')}" / f"hour={_name_of(hour)}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._name}-{len(self._done) + len(self._open)}.parquet"
        writer = parquet.ParquetWriter(path, schema, compression="zstd", compression_level=_LEVEL)
        return _OpenFile(str(path.relative_to(self._root)), topic, writer)

    def _finish(self, place: tuple[str, int]) -> None:
        file = self._open.pop(place)
        file.write_group()
        file.writer.close()
        path = self._root / file.path
        sync(path)
        self._done.append(ArchivedFile(file.path, file.topic, file.rows, path.stat().st_size))


def _by_hour(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each hour in which some were stored, in their order."""
    import numpy as np
    import pyarrow as pa

    stored = batch.column(batch.schema.get_field_index("store_time"))
    hours = stored.cast("int64").to_numpy(zero_copy_only=False) // _HOUR_US
    first = int(hours[0])
    if (hours == first).all():
        yield first, batch
        return
    for hour in np.unique(hours):
        yield int(hour), batch.take(pa.array(np.flatnonzero(hours == hour)))


def _name_of(hour: int) -> str:
    from datetime import UTC, datetime, timedelta

    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour):%Y-%m-%dT%H}"
