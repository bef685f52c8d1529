"""The archive: topics as Parquet, and archive and live log as one table.

A stream reads the topics under a group of its own, and each micro-batch becomes files and one entry
of the catalogue. What counts is offsets, not numbers of batches: of a batch that is repeated,
because the driver died or its checkpoint is an old copy, only what lies beyond the last entry is
written. So nothing is missing and nothing doubled. The group's progress is committed once the
entry is there, so a broker with `retentionWaitsForGroup` keeps what is not archived yet. Topics may
go, deleted or left out: the others go on.

Reading takes one snapshot of the catalogue, and the live log from where that ends (seam.py): no gap
and nothing twice, however both move meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import ConfigError, StoreUnreadable
from ..model.group import ARCHIVE_GROUP
from . import streams
from .archiving import write_files
from .catalogue import ArchivedFile, Catalogue, Entry, files_in, unglobbed
from .cluster import Cluster
from .lake_notes import forget_lake, require_no_lake
from .offsets import Offsets, QueueKey, Range, from_json, lost, to_json
from .options import Access, access_to, read_options, whole_topic_options
from .own_properties import make_known
from .planned import settle_plan
from .schema import COLUMNS, in_sql
from .seam import Extent, Gap, additions, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .source import Plan

logger = logging.getLogger(__name__)

COMPACT_BYTES = 128 << 20
_GAPS_SHOWN = 8
_VIEWS = "skylark.views"  # Of a session: the topics that sql() has given a name in it.


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
    gone: Collection[str] = (),
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start archiving topics; with once, the query ends when it has what is there now.

    Of brokers that are gone for good, which are named, the archive keeps what it has.

    Options are bodyMode, and those of account and patience: accessKey, secretKey, timeoutMs,
    retryMs.
    """
    from .source import Plan

    catalogue = require_place(root)
    catalogue.make()
    _require_both(catalogue)
    forget_lake(catalogue.root)
    reading = {
        **whole_topic_options(options),
        "namesrv": namesrv,
        "topic": ",".join(topics),
        "startingOffsets": "earliest",
        "group": group,
        "maxMessagesPerTrigger": str(messages_max),
    }
    access = read_options(reading, is_stream=True).access
    _require_gone(access, gone)
    reading["topic"] = ",".join(_begin(access, group, catalogue.ends(), topics, gone))
    # Whether messages are lost is for _write_batch to say, which knows topics that may go, and what
    # is archived, which is what it commits.
    own = {"failOnDataLoss": "false", "commitOffsets": "false"}
    frame = spark.readStream.format("skylark").options(**reading, **own).load()
    source = Plan(read_options(reading, is_stream=True), frame.schema)

    def write(batch: DataFrame, number: int) -> None:
        _write_batch(batch.sparkSession, catalogue, source, number, gone)

    writer = frame.writeStream.foreachBatch(write).queryName(f"archive {' '.join(topics)}"[:120])
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)
    return streams.start(spark, writer, str(_checkpoint(catalogue)))


def require_place(root: str | os.PathLike[str]) -> Catalogue:
    """The catalogue of a directory that nothing else is kept in; raises ConfigError."""
    catalogue = Catalogue(root)
    catalogue.require_kind()
    require_no_lake(catalogue.root)
    return catalogue


def _require_both(catalogue: Catalogue) -> None:
    """Refuse to go on with a part of an archive; raises ConfigError."""
    checkpoint = _checkpoint(catalogue)
    is_begun = bool(catalogue.entries())
    if is_begun and not (checkpoint / "metadata").exists():
        raise ConfigError(
            f"archive {catalogue.root}: its folder `checkpoint` is gone, which says how far it has "
            "read; restore it, or archive to another directory"
        )
    if not is_begun and any((checkpoint / "commits").glob("[0-9]*")):
        raise ConfigError(
            f"archive {catalogue.root}: its folder `catalogue` is gone, which says what it has; "
            "restore it, or archive to another directory"
        )


def _begin(
    access: Access,
    group: str,
    archived: Offsets,
    topics: Sequence[str],
    gone: Collection[str] = (),
) -> list[str]:
    """Those of some topics that are there; of others the archive keeps what it has.

    Of these the group says how far it is, since retention waits for a group that has begun.
    """
    for topic in sorted({queue.topic for queue in archived} - set(topics)):
        logger.warning(
            "topic %s is left out: the archive keeps what it has of it, and brokers that wait for "
            "archives keep what comes", topic,
        )  # fmt: skip
    found = []
    cluster = Cluster(access)
    try:
        for topic in topics:
            known = {queue: end for queue, end in archived.items() if queue.topic == topic}
            queues = _there(cluster, topic, known, gone)
            if not queues:
                logger.warning("topic %s is gone: the archive keeps what it has of it", topic)
                continue
            found.append(topic)
            new = {queue: cluster.min_offset(queue) for queue in queues if queue not in known}
            cluster.commit(group, {queue: {**known, **new}[queue] for queue in queues})
    finally:
        cluster.close()
    if not found:
        raise ConfigError(f"topic {topics[0]} is gone, and there is no other to archive")
    return found


def _there(cluster: Cluster, topic: str, known: Offsets, gone: Collection[str]) -> list[QueueKey]:
    """The queues of a topic; none of one that was deleted, or was at brokers that are gone."""
    waited_for = _without(gone, known)
    try:
        return cluster.queues([topic], waited_for)
    except ConfigError:
        if waited_for or not known:
            raise
        return []


def _checkpoint(catalogue: Catalogue) -> Path:
    return catalogue.root / "checkpoint"


def _planned(catalogue: Catalogue, number: int) -> Offsets:
    """How far a micro-batch goes: Spark has written it down before it begins."""
    path = _checkpoint(catalogue) / "offsets" / str(number)
    try:
        return from_json(json.loads(path.read_text().splitlines()[2]))
    except (OSError, IndexError, ValueError) as error:
        raise StoreUnreadable(str(path), f"does not say how far a batch goes: {error}") from error


def _require_gone(access: Access, brokers: Collection[str]) -> None:
    """Refuse to give up brokers that are there: their queues would be archived anew."""
    if not brokers:
        return
    cluster = Cluster(access)
    try:
        there = sorted(set(brokers) & set(cluster.broker_names()))
    finally:
        cluster.close()
    if there:
        raise ConfigError(f"broker {there[0]} is not gone, it is registered; leave out --gone")


def _require_still_gone(brokers: Collection[str], queues: Collection[QueueKey]) -> None:
    """End with a broker that is back: it may be another one, and is looked at without --gone."""
    back = sorted({queue.broker for queue in queues} & set(brokers))
    if back:
        raise ConfigError(f"broker {back[0]} is back; archive on without --gone {back[0]}")


def _without(brokers: Collection[str], offsets: Offsets) -> Offsets:
    return {queue: offset for queue, offset in offsets.items() if queue.broker not in brokers}


def _write_batch(
    spark: SparkSession,
    catalogue: Catalogue,
    source: Plan,
    number: int,
    gone: Collection[str] = (),
) -> None:
    """In the driver: what one micro-batch adds, as files and an entry."""
    last = catalogue.last()
    there = {} if last is None else dict(last.ends)
    begins = _planned(catalogue, number - 1) if number else {}
    ends = _without(gone, _planned(catalogue, number))
    cluster = Cluster(source.options.access)
    try:
        queues = cluster.queues(source.options.topics, ends.keys())
        _require_still_gone(gone, queues)
        for topic in sorted(set(source.options.topics) - {queue.topic for queue in queues}):
            logger.warning("topic %s is gone: the archive keeps what it has of it", topic)
        news = additions(there, begins, ends, queues)
        now = {**there, **news}
        # Nothing is new if the driver died after the entry was there, and before Spark noted it.
        if news:
            _require_no_gap(cluster, there, news)
            first = 0 if last is None else last.last + 1
            folder = catalogue.new_folder(first, first)
            splits = source.between(cluster, {**begins, **there}, news)
            files = write_files(spark, source, splits, catalogue.root, folder)
            # An archive without its checkpoint is refused, so what there is of it comes first.
            settle_plan(str(_checkpoint(catalogue)), number)
            catalogue.add(Entry(first, first, tuple(files), now))
        assert source.options.group is not None
        cluster.commit(source.options.group, {q: now[q] for q in queues if q in now})
    finally:
        cluster.close()


def _require_no_gap(cluster: Cluster, there: Offsets, news: Offsets) -> None:
    """Refuse to go on where retention has passed the end of the archive; raises DataLoss."""
    ends = {queue: there[queue] for queue in news if queue in there}
    gone = lost(ends, {queue: cluster.first_offset(queue, end) for queue, end in ends.items()})
    if gone:
        parts = ", ".join(f"{one.queue} {one.start} to {one.end}" for one in gone[:_GAPS_SHOWN])
        raise Gap(
            f"retention has removed messages that were not archived yet: {parts}; an archive has "
            "no gaps, so begin one in another directory, and set retention.wait_for_archive=true "
            "at the brokers"
        )


def _topic_of(path: Path) -> str:
    """The topic that a file is of, by the name of a folder that it is in."""
    names = (part for part in path.parts if part.startswith("topic="))
    return unquote(next(names).removeprefix("topic="))


def _table(
    spark: SparkSession, catalogue: Catalogue, paths: Sequence[str], *more: str
) -> DataFrame:
    """Files of the archive as a table with the columns of the source, and perhaps more."""
    schema = in_sql({name: kind for name, kind in COLUMNS.items() if name != "topic"})
    # Topic and hour are in the names of the folders, and only there.
    return (
        spark.read.schema(f"{schema}, batch string, topic string, hour string")
        .option("basePath", str(catalogue.root / "data"))
        .parquet(*(unglobbed(catalogue.root / path) for path in paths))
        .select(*COLUMNS, *more)
    )


def table(
    spark: SparkSession,
    root: str | os.PathLike[str] | None,
    topic: str,
    *,
    namesrv: str,
    live: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A topic from its first archived message to its newest, as one table.

    Options are bodyMode, and those of account and patience: accessKey, secretKey, timeoutMs,
    retryMs.
    """
    asking = whole_topic_options(options)
    catalogue = None if root is None else Catalogue(root).require()

    def look() -> tuple[list[Entry], Offsets]:
        entries = [] if catalogue is None else catalogue.entries()
        return entries, _ends(entries, topic)

    ranges: list[Range] = []
    if live:
        cluster = Cluster(access_to(namesrv, topic, asking))
        try:
            entries, ranges = plan(look, lambda: _extents(cluster, topic))
            away = _ends(entries, topic).keys() - {one.queue for one in ranges}
            if away:
                logger.warning("no broker serves %s: only what is archived", min(away))
            elif not ranges:
                cluster.route(topic)  # It says that there is no such topic.
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
        frames.append(_live(spark, topic, ranges, {**asking, "namesrv": namesrv}))
    if not frames:
        raise ConfigError(f"topic {topic} is not in the archive {root}")
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionByName(frame)
    return found


def _ends(entries: Sequence[Entry], topic: str) -> Offsets:
    """How far some entries reach in the queues of a topic."""
    ends = entries[-1].ends if entries else {}
    return {queue: end for queue, end in ends.items() if queue.topic == topic}


def _extents(cluster: Cluster, topic: str) -> dict[QueueKey, Extent]:
    """What brokers have of a topic; of those that are away nothing is known, nor waited for."""
    if not cluster.brokers():
        return {}
    try:
        cluster.retried(lambda: cluster.route(topic))
    except ConfigError:
        return {}
    return {
        queue: Extent(cluster.min_offset(queue), cluster.max_offset(queue))
        for queue in cluster.queues([topic])
    }


def _live(
    spark: SparkSession, topic: str, ranges: Sequence[Range], asking: Mapping[str, str]
) -> DataFrame:
    """Just these ranges: what is sent or archived from now on is of the next look.

    So is a queue that is there only now. The source would read it from its first message, which is
    in the archive if its broker was away.
    """
    from pyspark.sql import functions as F

    reader = spark.read.format("skylark").options(**asking).option("topic", topic)
    for option, offsets in (
        ("startingOffsets", {one.queue: one.start for one in ranges}),
        ("endingOffsets", {one.queue: one.end for one in ranges}),
    ):
        if offsets:
            reader = reader.option(option, json.dumps(to_json(offsets)["q"]))
    planned = F.lit(False)
    for broker in sorted({one.queue.broker for one in ranges}):
        numbers = [one.queue.queue_id for one in ranges if one.queue.broker == broker]
        planned |= (F.col("broker") == broker) & F.col("queue_id").isin(numbers)
    return reader.load().where(planned)


def sql(
    spark: SparkSession,
    query: str,
    topics: Sequence[str],
    *,
    namesrv: str,
    root: str | os.PathLike[str] | None = None,
    live: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Run SQL over topics, each of them a table under its name, archive and live log in one.

    Without live they are what is archived, and no broker is asked.
    """
    fold = _fold(spark)
    names: dict[str, str] = {}
    for topic in topics:
        other = names.setdefault(fold(topic), topic)
        if other != topic:
            raise ConfigError(
                f"topics {other} and {topic}: SQL takes them for one name; set "
                "spark.sql.caseSensitive=true, or ask for one at a time"
            )
    for name, topic in names.items():
        frame = table(spark, root, topic, namesrv=namesrv, live=live, options=options)
        _show_as(spark, frame, topic, name)
    make_known(spark)
    return spark.sql(query)


def _fold(spark: SparkSession) -> Callable[[str], str]:
    """What SQL makes of a name."""
    return str if spark.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def _show_as(spark: SparkSession, frame: DataFrame, topic: str, name: str) -> None:
    """Give a topic's table its name, which may be there from an earlier query; raises ConfigError.

    A view of that name that somebody else has made is not replaced.
    """
    from pyspark.errors import AnalysisException

    ours = set((spark.conf.get(_VIEWS, "") or "").split(","))
    if name in ours:
        frame.createOrReplaceTempView(f"`{topic}`")
        return
    try:
        frame.createTempView(f"`{topic}`")
    except AnalysisException as error:
        if error.getCondition() != "TEMP_TABLE_OR_VIEW_ALREADY_EXISTS":
            raise
        raise ConfigError(
            f"topic {topic}: the session has a view of that name; drop it, or give it another"
        ) from error
    spark.conf.set(_VIEWS, ",".join(sorted({*ours, name} - {""})))


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
        files = files_in(catalogue.root, folder, _topic_of)
    before = sum(file.rows for entry in group for file in entry.files)
    after = sum(file.rows for file in files)
    if before != after:  # Nothing has changed yet: the files that were there stay.
        raise StoreUnreadable(
            str(folder), f"has {after} of the {before} rows that were put together there"
        )
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
