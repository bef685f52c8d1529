"""History: an archive and its topic as one stream, from the first archived message on.

Spark does not put a table and a stream together, so the archive is read as a stream of files, once:
when the pipeline first starts, a snapshot of the catalogue is linked into a folder of its own, and
the live log begins where that snapshot ends. Compaction may replace and remove the archive's files
meanwhile; a link keeps them. No gap at the seam and nothing twice, also over restarts, because the
snapshot is written down before the first micro-batch. A queue whose broker is away at the start is
read live once it is back, and then the source begins at its first message: what is archived of that
is left out.

    <checkpoint>/<source>.history.json     {"ends": offsets, "files": how many}
    <checkpoint>/<source>.away.json        the part of these ends whose brokers were away
    <checkpoint>/<source>.history/topic=…/hour=…/batch-….parquet
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import Catalogue, sync_tree, unglobbed, write_whole
from ..cluster import Cluster
from ..offsets import Offsets, from_json, to_json
from ..options import read_options
from ..schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .spec import Source

logger = logging.getLogger(__name__)

_FILES_PER_TRIGGER = "1000"
_NOTE, _AWAY, _LINKED = "{}.history.json", "{}.away.json", "{}.history"  # Of a source.


def take_snapshot(source: Source, folder: Path) -> Offsets:
    """Link what the archive has of the topic, once; where the live log takes over."""
    note = folder / _NOTE.format(source.name)
    if note.exists():
        return from_json(json.loads(note.read_bytes())["ends"])
    assert source.path is not None
    (topic,) = source.topics
    catalogue = Catalogue(source.path).require()
    entries = catalogue.entries()
    linked = folder / _LINKED.format(source.name)
    shutil.rmtree(linked, ignore_errors=True)  # Of a start that was not finished.
    linked.mkdir(parents=True)
    count = 0
    for entry in entries:
        for file in entry.files:
            if file.topic == topic:
                _link(catalogue.root, file.path, linked, count)
                count += 1
    ends = dict(entries[-1].ends) if entries else {}
    ends = {queue: end for queue, end in ends.items() if queue.topic == topic}
    sync_tree(linked, folder)
    write_whole(note, json.dumps({"ends": to_json(ends), "files": count}).encode())
    return ends


def forget(source: Source, folder: Path) -> None:
    """Remove all that was noted for a source, so that its next start begins anew."""
    # First the note that the others belong to: where it is, all of them are.
    for name in (_NOTE, _AWAY):
        (folder / name.format(source.name)).unlink(missing_ok=True)
    for draft in folder.glob(f"{source.name}.*.draft"):  # Of a process that was killed.
        draft.unlink(missing_ok=True)
    shutil.rmtree(folder / _LINKED.format(source.name), ignore_errors=True)


def _link(root: Path, path: str, folder: Path, number: int) -> None:
    # Topic and hour are in the names of the folders below the root, and only there.
    parts = [part for part in Path(path).parts[:-1] if part.startswith(("topic=", "hour="))]
    target = folder.joinpath(*parts, f"{number:09d}.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(root / path, target)
    except OSError:  # Another file system.
        shutil.copyfile(root / path, target)


def stream(
    spark: SparkSession, source: Source, folder: Path | None, options: dict[str, str]
) -> DataFrame:
    """The whole topic as one stream; without a folder only its columns matter."""
    live = spark.readStream.format("skylark")
    if folder is None:
        return live.options(**options).load()
    ends = take_snapshot(source, folder)
    away = _away_at_first(folder / _AWAY.format(source.name), ends, options)
    served = {queue: end for queue, end in ends.items() if queue not in away}
    start: dict[str, Any] = to_json(served)["q"]
    options = {**options, "startingOffsets": json.dumps(start) if start else "earliest"}
    frame = _beyond(live.options(**options).load(), away)
    linked = folder / _LINKED.format(source.name)
    if not any(linked.rglob("*.parquet")):
        return frame
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "topic")
    past = (
        spark.readStream.schema(f"{columns}, topic string, hour string")
        .option("maxFilesPerTrigger", _FILES_PER_TRIGGER)
        .option("basePath", str(linked))  # Of topic and hour; Spark takes none from a pattern.
        .parquet(unglobbed(linked))
        .select(*COLUMNS)
    )
    return past.unionByName(frame)


def _away_at_first(note: Path, ends: Offsets, options: dict[str, str]) -> Offsets:
    """The ends of queues that nobody served when the stream began, which is written down."""
    if note.exists():
        return from_json(json.loads(note.read_bytes()))
    cluster = Cluster(read_options(options, is_stream=True).access)
    try:
        there = set(cluster.queues({queue.topic for queue in ends}))
    finally:
        cluster.close()
    away = {queue: end for queue, end in ends.items() if queue not in there}
    for queue in sorted(away):
        logger.warning(
            "no broker serves %s: it is read beyond %d once one does", queue, ends[queue]
        )
    write_whole(note, json.dumps(to_json(away)).encode())
    return away


def _beyond(frame: DataFrame, ends: Offsets) -> DataFrame:
    """The rows of a stream that lie at these ends or beyond, and all of other queues."""
    from pyspark.sql import functions as F

    for queue, end in sorted(ends.items()):
        is_queue = (F.col("broker") == queue.broker) & (F.col("queue_id") == queue.queue_id)
        frame = frame.where(~(is_queue & (F.col("queue_offset") < end)))
    return frame
