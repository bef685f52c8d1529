"""The archive: topics as Parquet, and archive and live log as one table.

A stream reads the topics under a group of its own, and each micro-batch becomes files and one entry
of the catalogue. What counts is offsets, not numbers of batches: of a batch that is repeated,
because the driver died or its checkpoint is an old copy, only what lies beyond the last entry is
written. So nothing is missing and nothing doubled. The group's progress is committed after the
entry is there, so a broker with `retentionWaitsForGroup` keeps what is not archived yet.

Reading takes one snapshot of the catalogue, and the live log from where that ends (seam.py): no gap
and nothing twice, however both move meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import ConfigError, StoreUnreadable
from ..model.group import ARCHIVE_GROUP
from .archiving import write_files
from .catalogue import ArchivedFile, Catalogue, Entry, sync_tree
from .cluster import Cluster
from .offsets import DataLoss, Offsets, QueueKey, Range, from_json, to_json
from .options import read_options
from .schema import COLUMNS
from .seam import Extent, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .source import Plan

logger = logging.getLogger(__name__)

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
    from .source import Plan

    catalogue = Catalogue(root)
    catalogue.make()
    if catalogue.entries() and not (_checkpoint(catalogue) / "metadata").exists():
        raise ConfigError(
            f"archive {catalogue.root}: its folder `checkpoint` is gone, which says how far it has "
            "read; restore it, or archive to another directory"
        )
    options = {
        "namesrv": namesrv,
        "topic": ",".join(topics),
        "startingOffsets": "earliest",
        "group": group,
        "maxMessagesPerTrigger": str(messages_max),
    }
    frame = spark.readStream.format("skylark").options(**options).load()
    source = Plan(read_options(options, is_stream=True), frame.schema)

    def write(batch: DataFrame, number: int) -> None:
        _write_batch(batch.sparkSession, catalogue, source, number)

    writer = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(_checkpoint(catalogue)))
        .queryName(f"archive {' '.join(topics)}"[:120])
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)
    return writer.start()


def _checkpoint(catalogue: Catalogue) -> Path:
    return catalogue.root / "checkpoint"


def _planned(catalogue: Catalogue, number: int) -> Offsets:
    """How far a micro-batch goes: Spark has written it down before it begins."""
    path = _checkpoint(catalogue) / "offsets" / str(number)
    try:
        return from_json(json.loads(path.read_text().splitlines()[2]))
    except (OSError, IndexError, ValueError) as error:
        raise StoreUnreadable(str(path), f"does not say how far a batch goes: {error}") from error


def _write_batch(spark: SparkSession, catalogue: Catalogue, source: Plan, number: int) -> None:
    """In the driver: what one micro-batch adds, as files and an entry."""
    entries = catalogue.entries()
    there = dict(entries[-1].ends) if entries else {}
    begins = _planned(catalogue, number - 1) if number else {}
    ends = _planned(catalogue, number)
    missing = [q for q, end in there.items() if q in begins and begins[q] > end]
    if missing:
        raise DataLoss(
            f"{missing[0]}: the archive reaches to {there[missing[0]]}, and the checkpoint goes on "
            f"at {begins[missing[0]]}: it belongs to another archive"
        )
    news = {queue: end for queue, end in ends.items() if end > there.get(queue, -1)}
    if not news:
        return  # The driver died after the entry was there, and before Spark had noted it.
    cluster = Cluster(source.options.access)
    try:
        splits = source.between(cluster, {**begins, **there}, news)
    finally:
        cluster.close()
    first = entries[-1].last + 1 if entries else 0
    folder = catalogue.new_folder(first, first)
    files = write_files(spark, source, splits, catalogue.root, folder)
    catalogue.add(Entry(first, first, tuple(files), {**there, **news}))


def _files_in(root: Path, folder: Path) -> list[ArchivedFile]:
    """The files of a folder, once all of them are on the disk."""
    import pyarrow.parquet as parquet

    if folder.exists():
        sync_tree(folder)
    found = []
    for path in sorted(folder.rglob("*.parquet")):
        topic = next(
            unquote(part.removeprefix("topic=")) for part in path.parts if part.startswith("topic=")
        )
        rows = parquet.read_metadata(path).num_rows
        found.append(ArchivedFile(str(path.relative_to(root)), topic, rows, path.stat().st_size))
    return found


def _table(
    spark: SparkSession, catalogue: Catalogue, paths: Sequence[str], *more: str
) -> DataFrame:
    """Files of the archive as a table with the columns of the source, and perhaps more."""
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "topic")
    # Topic and hour are in the names of the folders, and only there.
    return (
        spark.read.schema(f"{schema}, batch string, topic string, hour string")
        .option("basePath", str(catalogue.root / "data"))
        .parquet(*(str(catalogue.root / path) for path in paths))
        .select(*COLUMNS, *more)
    )


def table(
    spark: SparkSession,
    root: str | os.PathLike[str] | None,
    topic: str,
    *,
    namesrv: str,
    live: bool = True,
) -> DataFrame:
    """A topic from its first archived message to its newest, as one table."""
    catalogue = None if root is None else Catalogue(root).require()

    def look() -> tuple[list[Entry], Offsets]:
        entries = [] if catalogue is None else catalogue.entries()
        ends = entries[-1].ends if entries else {}
        return entries, {queue: end for queue, end in ends.items() if queue.topic == topic}

    ranges: list[Range] = []
    if live:
        cluster = Cluster(
            read_options({"namesrv": namesrv, "topic": topic}, is_stream=False).access
        )
        try:
            entries, ranges = plan(look, lambda: _extents(cluster, topic))
            away = look()[1].keys() - {one.queue for one in ranges}
            if away:
                logger.warning("no broker serves %s: only what is archived", min(away))
        finally:
            cluster.close()
    else:
        entries, _ = look()
    frames = []
    paths = [file.path for entry in entries for file in entry.files if file.topic == topic]
    if paths:
        assert catalogue is not None
        frames.append(_table(spark, catalogue, paths))
    if live and (not paths or any(one.count for one in ranges)):
        frames.append(_live(spark, topic, ranges, namesrv))
    if not frames:
        raise ConfigError(f"topic {topic} is not in the archive {root}")
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionByName(frame)
    return found


def _extents(cluster: Cluster, topic: str) -> dict[QueueKey, Extent]:
    return {
        queue: Extent(cluster.min_offset(queue), cluster.max_offset(queue))
        for queue in cluster.queues([topic])
    }


def _live(spark: SparkSession, topic: str, ranges: Sequence[Range], namesrv: str) -> DataFrame:
    """Just these ranges: what is sent or archived from now on is of the next look."""
    reader = spark.read.format("skylark").option("namesrv", namesrv).option("topic", topic)
    for option, offsets in (
        ("startingOffsets", {one.queue: one.start for one in ranges}),
        ("endingOffsets", {one.queue: one.end for one in ranges}),
    ):
        if offsets:
            reader = reader.option(option, json.dumps(to_json(offsets)["q"]))
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
    with catalogue.alone(waits=False):
        done = 0
        for group in _together(catalogue.entries(), bytes_max):
            _merge(spark, catalogue, group)
            done += len(group)
        catalogue.sweep(time.time())
    return done


def _together(entries: Sequence[Entry], bytes_max: int) -> list[list[Entry]]:
    """Entries after each other that make one of that size; those that stay alone are left out."""
    found: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        more = sum(file.bytes for file in entry.files)
        if found[-1] and size + more > bytes_max:
            found.append([])
            size = 0
        found[-1].append(entry)
        size += more
    return [group for group in found if len(group) > 1]


def _merge(spark: SparkSession, catalogue: Catalogue, group: Sequence[Entry]) -> None:
    first, last = group[0].first, group[-1].last
    folder = catalogue.new_folder(first, last)
    paths = [file.path for entry in group for file in entry.files]
    files: list[ArchivedFile] = []
    if paths:
        (
            _table(spark, catalogue, paths, "hour")
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
