"""History: an archive and its topic as one stream, from the first archived message on.

Spark does not put a table and a stream together, so the archive is read as a stream of files, once:
when the pipeline first starts, a snapshot of the catalogue is linked into a folder of its own, and
the live log begins where that snapshot ends. Compaction may replace and remove the archive's files
meanwhile; a link keeps them. No gap at the seam and nothing twice, also over restarts, because the
snapshot is written down before the first micro-batch.

    <checkpoint>/<source>.history.json     {"ends": offsets, "files": how many}
    <checkpoint>/<source>.history/topic=…/hour=…/batch-….parquet
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import Catalogue
from ..cluster import Cluster
from ..offsets import Offsets, from_json, to_json
from ..options import read_options
from ..schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .spec import Source

_FILES_PER_TRIGGER = "1000"


def take_snapshot(source: Source, folder: Path) -> Offsets:
    """Link what the archive has of the topic, once; where the live log takes over."""
    note = folder / f"{source.name}.history.json"
    if note.exists():
        return from_json(json.loads(note.read_bytes())["ends"])
    assert source.path is not None
    (topic,) = source.topics
    catalogue = Catalogue(source.path).require()
    entries = catalogue.entries()
    linked = folder / f"{source.name}.history"
    shutil.rmtree(linked, ignore_errors=True)  # Of a start that was not finished.
    linked.mkdir(parents=True)
    count = 0
    for entry in entries:
        for file in entry.files:
            if file.topic == topic:
                _link(catalogue.root / file.path, linked, count)
                count += 1
    ends = dict(entries[-1].ends) if entries else {}
    ends = {queue: end for queue, end in ends.items() if queue.topic == topic}
    draft = note.with_suffix(".draft")
    draft.write_text(json.dumps({"ends": to_json(ends), "files": count}), encoding="utf-8")
    draft.replace(note)
    return ends


def _link(path: Path, folder: Path, number: int) -> None:
    # Topic and hour are in the names of the folders, and only there.
    parts = [part for part in path.parts[:-1] if part.startswith(("topic=", "hour="))]
    target = folder.joinpath(*parts, f"{number:09d}.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:  # Another file system.
        shutil.copyfile(path, target)


def stream(
    spark: SparkSession, source: Source, folder: Path | None, options: dict[str, str]
) -> DataFrame:
    """The whole topic as one stream; without a folder only its columns matter."""
    live = spark.readStream.format("skylark")
    if folder is None:
        return live.options(**options).load()
    ends = take_snapshot(source, folder)
    start: dict[str, Any] = to_json(_still_there(ends, options))["q"]
    options = {**options, "startingOffsets": json.dumps(start) if start else "earliest"}
    frame = live.options(**options).load()
    linked = folder / f"{source.name}.history"
    if not any(linked.rglob("*.parquet")):
        return frame
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "topic")
    past = (
        spark.readStream.schema(f"{columns}, topic string, hour string")
        .option("maxFilesPerTrigger", _FILES_PER_TRIGGER)
        .parquet(str(linked))
        .select(*COLUMNS)
    )
    return past.unionByName(frame)


def _still_there(ends: Offsets, options: dict[str, str]) -> Offsets:
    cluster = Cluster(read_options(options, is_stream=True).access)
    try:
        there = set(cluster.queues({queue.topic for queue in ends}))
    finally:
        cluster.close()
    return {queue: end for queue, end in ends.items() if queue in there}
