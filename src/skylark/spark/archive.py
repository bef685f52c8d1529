"""The archive: topics as Parquet, and archive and live log as one table.

A stream reads the topics under a group of its own, and each micro-batch becomes files and one entry
of the catalogue. A batch that is repeated, because the driver died, writes its folder anew and the
same entry: nothing is missing and nothing doubled. The group's progress is committed after the
entry is there, so a broker with `retentionWaitsForGroup` keeps what is not archived yet.

Reading takes one snapshot of the catalogue, and the live log from where that ends: no gap at the
seam and nothing twice, however both move meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import ConfigError
from .catalogue import ArchivedFile, Catalogue, Entry
from .cluster import Cluster
from .offsets import Offsets, QueueKey, to_json
from .options import read_options
from .schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

ARCHIVE_GROUP = "skylark-archive"
COMPACT_BYTES = 128 << 20


def archive(
    spark: SparkSession,
    root: str | os.PathLike[str],
    topics: Sequence[str],
    *,
    namesrv: str,
    group: str = ARCHIVE_GROUP,
    once: bool = False,
    trigger: str = "1 minute",
    messages_max: int = 1_000_000,
) -> StreamingQuery:
    """Start archiving topics; with once, the query ends when it has what is there now."""
    catalogue = Catalogue(root)
    catalogue.root.mkdir(parents=True, exist_ok=True)
    frame = (
        spark.readStream.format("skylark")
        .option("namesrv", namesrv)
        .option("topic", ",".join(topics))
        .option("startingOffsets", "earliest")
        .option("group", group)
        .option("maxMessagesPerTrigger", messages_max)
        .load()
    )

    def write(batch: DataFrame, number: int) -> None:
        _write_batch(catalogue, batch, number)

    writer = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(catalogue.root / "checkpoint"))
        .queryName(f"archive {' '.join(topics)}"[:120])
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)
    return writer.start()


def _write_batch(catalogue: Catalogue, batch: DataFrame, number: int) -> None:
    """In the driver: one micro-batch, as files and an entry."""
    if catalogue.has(number):
        return  # The driver died after the entry was there, and before Spark had noted it.
    folder = catalogue.root / "data" / f"batch={number:012d}"
    shutil.rmtree(folder, ignore_errors=True)  # Of a try that was not finished.
    (
        batch.selectExpr("*", "date_format(store_time, \"yyyy-MM-dd'T'HH\") as hour")
        .sortWithinPartitions("broker", "queue_id", "queue_offset")
        .write.partitionBy("topic", "hour")
        .option("compression", "zstd")
        .parquet(str(folder))
    )
    files = _files_in(catalogue.root, folder)
    ends = catalogue.ends()
    if files:
        found = _table(batch.sparkSession, catalogue, [file.path for file in files])
        for row in (
            found.groupBy("topic", "broker", "queue_id")
            .agg({"queue_offset": "max"})
            .withColumnRenamed("max(queue_offset)", "last")
            .collect()
        ):
            ends[QueueKey(row["topic"], row["broker"], row["queue_id"])] = row["last"] + 1
    catalogue.add(Entry(number, number, tuple(files), ends))


def _files_in(root: Path, folder: Path) -> list[ArchivedFile]:
    import pyarrow.parquet as parquet

    found = []
    for path in sorted(folder.rglob("*.parquet")):
        topic = next(
            unquote(part.removeprefix("topic=")) for part in path.parts if part.startswith("topic=")
        )
        rows = parquet.read_metadata(path).num_rows
        found.append(ArchivedFile(str(path.relative_to(root)), topic, rows, path.stat().st_size))
    return found


def _table(spark: SparkSession, catalogue: Catalogue, paths: Sequence[str]) -> DataFrame:
    """Files of the archive as a table with the columns of the source."""
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "topic")
    # Topic and hour are in the names of the folders, and only there.
    by_base: dict[str, list[str]] = {}
    for path in paths:
        full = catalogue.root / path
        base = next(parent for parent in full.parents if parent.name.startswith("batch="))
        by_base.setdefault(str(base), []).append(str(full))
    frames = [
        spark.read.schema(f"{schema}, topic string, hour string")
        .option("basePath", base)
        .parquet(*files)
        .select(*COLUMNS)
        for base, files in sorted(by_base.items())
    ]
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionByName(frame)
    return found


def table(
    spark: SparkSession,
    root: str | os.PathLike[str] | None,
    topic: str,
    *,
    namesrv: str,
    live: bool = True,
) -> DataFrame:
    """A topic from its first archived message to its newest, as one table."""
    frames: list[DataFrame] = []
    ends: Offsets = {}
    if root is not None:
        catalogue = Catalogue(root).require()
        entries = catalogue.entries()  # One snapshot; what is archived from now on is read live.
        paths = [file.path for entry in entries for file in entry.files if file.topic == topic]
        if entries:
            ends = {queue: end for queue, end in entries[-1].ends.items() if queue.topic == topic}
        if paths:
            frames.append(_table(spark, catalogue, paths))
    if live:
        frames.append(_live(spark, topic, ends, namesrv))
    if not frames:
        raise ConfigError(f"topic {topic} is not in the archive {root}")
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionByName(frame)
    return found


def _live(spark: SparkSession, topic: str, ends: Offsets, namesrv: str) -> DataFrame:
    reader = spark.read.format("skylark").option("namesrv", namesrv).option("topic", topic)
    cluster = Cluster(read_options({"namesrv": namesrv, "topic": topic}, is_stream=False).access)
    try:
        there = set(cluster.queues([topic]))
    finally:
        cluster.close()
    known = {queue: end for queue, end in ends.items() if queue in there}
    if known:
        reader = reader.option("startingOffsets", json.dumps(to_json(known)["q"]))
    return reader.load()


def sql(
    spark: SparkSession,
    query: str,
    topics: Sequence[str],
    *,
    namesrv: str,
    root: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Run SQL over topics, each of them a table under its name, archive and live log in one."""
    for topic in topics:
        table(spark, root, topic, namesrv=namesrv).createOrReplaceTempView(f"`{topic}`")
    return spark.sql(query)


def compact(
    spark: SparkSession, root: str | os.PathLike[str], *, bytes_max: int = COMPACT_BYTES
) -> int:
    """Put small batches together, in order, up to a size; how many batches were."""
    catalogue = Catalogue(root).require()
    done = 0
    group: list[Entry] = []
    for entry in [*catalogue.entries(), None]:
        size = sum(file.bytes for one in group for file in one.files)
        more = 0 if entry is None else sum(file.bytes for file in entry.files)
        if entry is not None and size + more <= bytes_max:
            group.append(entry)
            continue
        if len(group) > 1:
            _merge(spark, catalogue, group)
            done += len(group)
        group = [] if entry is None else [entry]
    catalogue.sweep(time.time())
    return done


def _merge(spark: SparkSession, catalogue: Catalogue, group: Sequence[Entry]) -> None:
    first, last = group[0].first, group[-1].last
    folder = catalogue.root / "data" / f"batch={first:012d}-{last:012d}"
    shutil.rmtree(folder, ignore_errors=True)
    paths = [file.path for entry in group for file in entry.files]
    files: list[ArchivedFile] = []
    if paths:
        (
            _table(spark, catalogue, paths)
            .selectExpr("*", "date_format(store_time, \"yyyy-MM-dd'T'HH\") as hour")
            .repartition("topic", "hour")
            .sortWithinPartitions("broker", "queue_id", "queue_offset")
            .write.partitionBy("topic", "hour")
            .option("compression", "zstd")
            .parquet(str(folder))
        )
        files = _files_in(catalogue.root, folder)
    before = sum(file.rows for entry in group for file in entry.files)
    after = sum(file.rows for file in files)
    assert before == after, f"{before} rows were to be put together, {after} were"
    catalogue.replace(group, Entry(first, last, tuple(files), dict(group[-1].ends)))


def status(root: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What an archive holds, topic by topic."""
    entries = Catalogue(root).require().entries()
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for file in entry.files:
            row = found.setdefault(
                file.topic, {"topic": file.topic, "rows": 0, "bytes": 0, "files": 0}
            )
            row["rows"] += file.rows
            row["bytes"] += file.bytes
            row["files"] += 1
    if entries:
        for queue, end in entries[-1].ends.items():
            row = found.setdefault(
                queue.topic, {"topic": queue.topic, "rows": 0, "bytes": 0, "files": 0}
            )
            row.setdefault("ends", {})[f"{queue.broker}/{queue.queue_id}"] = end
    return [found[topic] for topic in sorted(found)]
