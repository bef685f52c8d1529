"""SkylarkDataSource: topics as DataFrames, for Spark's `format("skylark")`.

Spark makes one of these in the driver for every read and write, and pickles what it makes to the
workers, so nothing here holds a connection: planning opens one and closes it, a task opens its own
and keeps it for the next task of the same worker.

    in the driver     options → queues → offsets → splits (offsets.py)
    in a task         pulls, one ahead → Arrow batches (columns.py)
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import ConfigError, InvalidExpression
from ..filter import parse_tags
from .cluster import SETTLING_S_MAX, Cluster
from .columns import Layout
from .offsets import (
    DataLoss,
    Offsets,
    QueueKey,
    Range,
    admit,
    begin_in,
    begun_at,
    describe_loss,
    from_json,
    lost,
    ranges,
    split,
    to_json,
)
from .options import (
    Access,
    FilterType,
    Guarantee,
    ReadFrom,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)
from .pulls import RangeReader
from .schema import arrow_schema, check_sink_schema, checked_columns, default_schema
from .segments import SegmentReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

_SAMPLE_MESSAGES = 16  # Looked at to know how large messages are.
_COMMIT_ALL_S = 5.0
_CLOCK_MS = 300_000  # So far a broker's clock may have gone back, and times narrow nothing wrongly.

_clusters: dict[Access, Cluster] = {}  # Of this worker, kept from task to task.


class SkylarkDataSource(DataSource):
    """What `format("skylark")` stands for."""

    @classmethod
    def name(cls) -> str:
        return "skylark"

    def schema(self) -> str:
        # Streams and batches have the same columns; which one this is, Spark does not say here.
        return default_schema(read_options(_only_common(self.options), is_stream=False))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, is_stream=False)
        kind = PushdownReader if options.pushdown else SkylarkReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SkylarkStreamReader(read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from .sink import make_writer

        return make_writer(self._checked_sink(schema, overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from .sink import make_stream_writer

        return make_stream_writer(self._checked_sink(schema, overwrite, is_stream=True))

    def _checked_sink(
        self, schema: StructType, overwrite: bool, *, is_stream: bool
    ) -> WriteOptions:
        if overwrite:
            raise ConfigError(
                "a topic cannot be overwritten, only appended to: write with mode('append'), or "
                "outputMode('append')"
            )
        options = write_options(self.options, is_stream=is_stream)
        check_sink_schema(
            schema,
            has_topic=options.topic is not None,
            at_once=options.guarantee is Guarantee.EXACTLY_ONCE,
        )
        if options.topic is not None:
            cluster = Cluster(options.access)
            try:
                # Better to hear it now than from a task. Of a stream it is asked with every batch,
                # and none ends because a broker restarts.
                cluster.writable_queues(
                    options.topic, settling_s=SETTLING_S_MAX if is_stream else 0.0
                )
            finally:
                cluster.close()
        return options


def _only_common(options: Mapping[str, str]) -> dict[str, str]:
    either = {
        "endingoffsets", "endingtimestamp", "pushdown", "maxmessagespertrigger",
        "maxbytespertrigger", "commitoffsets",
    }  # fmt: skip
    return {name: value for name, value in options.items() if name.lower() not in either}


@dataclass
class Split(InputPartition):
    """What one task reads."""

    ranges: list[Range]


class Plan:
    """What readers of both kinds have in common: options, columns, and how to read a split."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.layout = Layout(
            tuple(checked_columns(schema, options)),
            options.body_format,
            _exact_tags(options),
            options.body_mode,
        )

    def queues(
        self, cluster: Cluster, topics: Iterable[str], known: Collection[QueueKey] = ()
    ) -> list[QueueKey]:
        """The queues of some topics, as name servers know them now; those known are waited for."""
        return cluster.queues(
            topics,
            known,
            of_pattern=self.options.topics_pattern is not None,
            may_be_gone=not self.options.fail_on_data_loss,
        )

    def splits(self, cluster: Cluster, wanted: Sequence[Range]) -> list[Split]:
        """Tasks for some ranges."""
        found = split(
            wanted,
            bytes_per_message=_bytes_per_message(cluster, self.options, wanted),
            split_bytes=self.options.split_bytes,
            partitions_min=self.options.partitions_min,
        )
        return [Split(part) for part in found]

    def between(self, cluster: Cluster, first: Offsets, last: Offsets) -> list[Split]:
        """Tasks for what lies between two places of a stream; raises DataLoss.

        A queue without a first place, or with one that is behind its last, is read from its start:
        it is new, or was made anew.
        """
        moved = {queue for queue, end in last.items() if first.get(queue, -1) != end}
        topics = sorted({queue.topic for queue in moved})
        found = set(self.queues(cluster, topics, moved))
        for queue in sorted(moved - found):
            self._lose(f"{queue} was to be read up to {last[queue]} and is not there any more")
        last = {queue: end for queue, end in last.items() if queue in found}
        first = {
            queue: first[queue] if first.get(queue, end + 1) <= end else cluster.min_offset(queue)
            for queue, end in last.items()
        }
        wanted = ranges(first, last)
        there = {one.queue: cluster.first_offset(one.queue, one.start) for one in wanted}
        self.note_lost([one for one in lost(first, there) if last[one.queue] > one.start])
        wanted = [
            replace(one, start=min(one.end, max(one.start, there[one.queue]))) for one in wanted
        ]
        return self.splits(cluster, [one for one in wanted if one.count])

    def _lose(self, problem: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{problem}; set failOnDataLoss=false to go on without it")
        logger.warning("lost: %s", problem)

    def note_lost(self, gone: Sequence[Range]) -> None:
        """What retention has removed is an error, or a line in the log."""
        if not gone:
            return
        if self.options.fail_on_data_loss:
            raise DataLoss(describe_loss(gone))
        logger.warning("lost: %s", describe_loss(gone))

    def read(self, partition: Split) -> Iterator[pa.RecordBatch]:
        """In a task: the messages of a split, as Arrow batches."""
        schema = arrow_schema(self.schema)
        cluster = _worker_cluster(self.options.access)
        for one in partition.ranges:
            kind = SegmentReader if self._reads_files() else RangeReader
            yield from kind(cluster, self.options, self.layout, schema, one).batches()

    def _reads_files(self) -> bool:
        options = self.options
        if options.read_from is ReadFrom.AUTO:
            # A condition costs a task far more than the broker, whose scanner is compiled.
            return options.filter_type is not FilterType.SQL92
        return options.read_from is ReadFrom.FILES


def _exact_tags(options: ReadOptions) -> frozenset[str] | None:
    if options.filter_type is not FilterType.TAG:
        return None
    return frozenset(parse_tags(options.filter)) or None


def _worker_cluster(access: Access) -> Cluster:
    found = _clusters.get(access)
    if found is None:
        # Spark's workers collect garbage after every task; what is imported by now can stay.
        gc.collect()
        gc.freeze()
        found = _clusters[access] = Cluster(access)
    return found


def _bytes_per_message(cluster: Cluster, options: ReadOptions, wanted: Sequence[Range]) -> float:
    """About how large the messages are: a look at the end of the longest range, which is there.

    It is also the first pull of a query, so what brokers refuse is said here, in the driver.
    """
    for one in sorted(wanted, key=lambda one: -one.count)[:1]:
        offset = one.end - min(one.count, _SAMPLE_MESSAGES)
        answer = cluster.pull_some(options, one.queue, offset, _SAMPLE_MESSAGES, "*", "TAG")
        if options.filter_type is FilterType.SQL92 and options.read_from is not ReadFrom.FILES:
            cluster.pull_some(options, one.queue, offset, 1, options.filter, options.filter_type)
        if answer is not None:
            size, following = answer
            return size / max(1, following - offset)
    return 1_024.0


class SkylarkReader(DataSourceReader):
    """A batch: everything between two offsets."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.plan = Plan(options, schema)
        self.narrowed: dict[str, Any] = {}

    def partitions(self) -> Sequence[InputPartition]:
        options = self.plan.options
        cluster = Cluster(options.access)
        try:
            found = self.plan.queues(cluster, cluster.topics(options))
            if not found:
                raise ConfigError(
                    f"option topicsPattern={options.topics_pattern!r}: no topic at "
                    f"{options.access.namesrv} that may be read matches with its whole name"
                )
            start = cluster.bound(options, "startingOffsets", found)
            end = cluster.bound(options, "endingOffsets", found)
            queues = [queue for queue in found if self._has(queue)]
            start, end = ({one: side[one] for one in queues} for side in (start, end))
            first = {queue: cluster.first_offset(queue, start[queue]) for queue in queues}
            self.plan.note_lost([one for one in lost(start, first) if end[one.queue] > one.start])
            start = {queue: max(offset, first[queue]) for queue, offset in start.items()}
            start, end = self._narrow(cluster, start, end)
            splits = self.plan.splits(cluster, ranges(start, end))
        finally:
            cluster.close()
        return splits or [Split([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return self.plan.read(partition)

    def _has(self, queue: QueueKey) -> bool:
        return True

    def _narrow(self, cluster: Cluster, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        return start, end


class PushdownReader(SkylarkReader):
    """A batch whose filters decide what is read at all; Spark applies them again to be sure."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for one in filters:
            self._take(one)
            yield one
        self._ask_for_tags()

    def _ask_for_tags(self) -> None:
        """Let brokers filter by the tags that the query asks for, where an option does not."""
        tags, options = self.narrowed.get("tag"), self.plan.options
        if not tags or not all(tags) or options.filter != "*" or options.filter_type != "TAG":
            return
        text = " || ".join(sorted(tags))
        with contextlib.suppress(
            InvalidExpression
        ):  # Too many for one filter: Spark has it anyway.
            if set(parse_tags(text)) == tags:  # Not so with blanks and bars in them.
                self.plan = Plan(replace(options, filter=text), self.plan.schema)

    def _take(self, one: Filter) -> None:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        value: Any = getattr(one, "value", None)
        if len(column) != 1:
            return
        name = column[0]
        bounds = self.narrowed.setdefault("offset", [None, None])
        times = self.narrowed.setdefault("time", [None, None])
        if name in ("topic", "broker", "queue_id", "tag") and isinstance(one, EqualTo | In):
            allowed = {value} if isinstance(one, EqualTo) else set(value or ())
            known = self.narrowed.get(name)
            self.narrowed[name] = allowed if known is None else known & allowed
        elif name == "queue_offset" and isinstance(value, int):
            _tighten(bounds, one, value)
        elif name == "store_time" and hasattr(value, "timestamp"):
            _tighten(times, one, value.timestamp() * 1_000)

    def _has(self, queue: QueueKey) -> bool:
        return all(
            self.narrowed.get(name) is None or part in self.narrowed[name]
            for name, part in zip(("topic", "broker", "queue_id"), queue, strict=True)
        )

    def _narrow(self, cluster: Cluster, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        least, beyond = self.narrowed.get("offset", (None, None))
        from_ms, to_ms = self.narrowed.get("time", (None, None))
        group = self.plan.options.group
        for queue in start:
            if least is not None:
                start[queue] = max(start[queue], least)
            if beyond is not None:
                end[queue] = min(end[queue], beyond)
            if from_ms is not None:
                at_ms = int(from_ms) - _CLOCK_MS
                start[queue] = max(start[queue], cluster.offset_at(queue, at_ms, group))
            if to_ms is not None:
                at_ms = int(to_ms) + 1 + _CLOCK_MS
                end[queue] = min(end[queue], cluster.offset_at(queue, at_ms, group))
        return start, end


def _ends(cluster: Cluster, queues: Iterable[QueueKey]) -> Offsets:
    return {queue: cluster.max_offset(queue) for queue in queues}


def _tighten(bounds: list[Any], one: Filter, value: Any) -> None:
    """Bounds as [from, beyond): never narrower than the filter itself."""
    low, high = bounds
    if isinstance(one, EqualTo):
        bounds[:] = [_larger(low, value), _smaller(high, value + 1)]
    elif isinstance(one, GreaterThan | GreaterThanOrEqual):
        bounds[0] = _larger(low, value)
    elif isinstance(one, LessThan | LessThanOrEqual):
        bounds[1] = _smaller(high, value + 1)


def _larger(one: Any, other: Any) -> Any:
    return other if one is None else max(one, other)


def _smaller(one: Any, other: Any) -> Any:
    return other if one is None else min(one, other)


class SkylarkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: micro-batches from offset to offset, with progress committed for a group."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.plan = Plan(options, schema)
        self._is_bounded = False  # It reads what is there at its start, and ends.
        self._target: Offsets | None = None
        self._known: frozenset[QueueKey] = frozenset()  # What has been read from, or will be.
        self._there: frozenset[QueueKey] = frozenset()  # And what was there at the last look.
        self._begins: list[dict[str, Any]] = []  # What Spark was told that the stream begins with.
        self._committed: Offsets = {}
        self._committed_s = time.monotonic()

    def _cluster(self) -> Cluster:
        # One Python process in the driver keeps this reader for the life of the query.
        return _worker_cluster(self.plan.options.access)

    def initialOffset(self) -> dict[str, Any]:
        options, cluster = self.plan.options, self._cluster()
        queues = self.plan.queues(cluster, cluster.topics(options))
        start = self._remembered(cluster, queues)
        if start is None:
            start = cluster.bound(options, "startingOffsets", queues)
            if options.group is not None and options.commit_offsets and options.starting.moves:
                cluster.commit(_initial(options.group), start)
        self._begins.append(to_json(start))
        return self._begins[-1]

    def _remembered(self, cluster: Cluster, queues: list[QueueKey]) -> Offsets | None:
        """Where this query began: Spark asks again after a crash before the first micro-batch.

        Only `latest` means something else by then. A group that has come further belongs to a
        query whose checkpoint was thrown away, and the next one begins as it is asked to.
        """
        options = self.plan.options
        group = options.group
        if group is None or not options.commit_offsets or not options.starting.moves or not queues:
            return None
        found: Offsets = {}
        for queue in queues:
            # Of a group that never committed, brokers say 0 while a queue is young.
            if _initial(group) not in cluster.groups_of(queue):
                continue
            began = cluster.committed(_initial(group), queue)
            if began is None:
                continue
            if (cluster.committed(group, queue) or 0) > began:
                return None
            found[queue] = began
        if not found:
            return None
        # Others have come since then, and are read from their first messages.
        return {q: found[q] if q in found else cluster.min_offset(q) for q in queues}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.plan.options.messages_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        # What the target is, latestOffset says: it knows which queues there must be.
        self._is_bounded = True

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        cluster = self._cluster()
        begin = {} if start is None else from_json(start)
        queues = self.plan.queues(cluster, self._checked_topics(cluster, begin), begin.keys())
        self._check_queues(queues, begin)
        self._known, self._there = frozenset(begin), frozenset(queues)
        self._commit(cluster, {queue: begin[queue] for queue in queues if queue in begin})
        if self._is_bounded and self._target is None:
            self._target = _ends(cluster, queues)
        if self._target is not None:
            # Known to this query: its broker was away when the target was set.
            late = [queue for queue in queues if queue in begin and queue not in self._target]
            self._target.update(_ends(cluster, late))
        newest = self._target if self._target is not None else _ends(cluster, queues)
        new = [queue for queue in queues if queue not in begin]
        for queue in new:  # One that appears later is read from its first message.
            begin[queue] = cluster.min_offset(queue)
        shorter = self._shorter(cluster, begin, newest)
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = self.plan.options.bytes_per_trigger_max
        if bytes_max is not None and not isinstance(limit, ReadAllAvailable):
            size = _bytes_per_message(cluster, self.plan.options, ranges(begin, newest))
            by_bytes = max(1, int(bytes_max / max(1.0, size)))
            count_max = by_bytes if count_max is None else min(count_max, by_bytes)
        end = to_json({**admit(begin, newest, count_max), **shorter})
        if start is None:
            return end
        if new or start in self._begins:
            # Spark plans the first one also where there is nothing in it.
            return begun_at(end, to_json(begin))
        self._begins.clear()  # It goes on behind the first.
        return start if end["q"] == start["q"] else end

    def _checked_topics(self, cluster: Cluster, begin: Offsets) -> tuple[str, ...]:
        """The topics to read; refuses a checkpoint that another query has made."""
        known = {queue.topic for queue in begin}
        topics = cluster.topics(self.plan.options, known)
        foreign = known - set(topics)
        if not foreign or (foreign != known and not self.plan.options.fail_on_data_loss):
            return topics
        raise ConfigError(
            f"option checkpointLocation: the checkpoint is of topic {', '.join(sorted(foreign))}, "
            "which this query does not read; give a new checkpointLocation, or the topic"
        )

    def _check_queues(self, queues: list[QueueKey], begin: Offsets) -> None:
        for queue in begin.keys() - set(queues) if self.plan.options.fail_on_data_loss else ():
            raise DataLoss(
                f"{queue} has been read up to {begin[queue]} and is not there any more; set "
                "failOnDataLoss=false to go on without it"
            )

    def _shorter(self, cluster: Cluster, begin: Offsets, newest: Offsets) -> Offsets:
        """Queues that end before the place where they were read to: they were made anew.

        A replica that lags behind its master says nothing of the kind, nor does a new master
        that has yet to learn what its group agrees on.
        """
        found: Offsets = {}
        for queue, offset in begin.items():
            if offset > newest.get(queue, offset) and cluster.has_master(queue):
                newest[queue] = cluster.settled_end(queue, offset)
                if offset > newest[queue]:
                    found[queue] = newest[queue]
        for queue in found if self.plan.options.fail_on_data_loss else ():
            raise DataLoss(
                f"{queue} has been read up to {begin[queue]} and ends at {newest[queue]}: it has "
                "lost messages, or is another one of that name. Set failOnDataLoss=false to read "
                "what it has now"
            )
        return found

    def _newest(self) -> Offsets:
        cluster = self._cluster()
        topics = cluster.topics(self.plan.options)
        return _ends(cluster, self.plan.queues(cluster, topics, self._known))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        cluster = self._cluster()
        first, last = from_json(begin_in(end) or start), from_json(end)
        self._checked_topics(cluster, first)
        return self.plan.between(cluster, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return self.plan.read(partition)

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self._newest())

    def commit(self, end: dict[str, Any]) -> None:
        found = from_json(end)
        self._commit(self._cluster(), {q: found[q] for q in found if q in self._there})

    def _commit(self, cluster: Cluster, offsets: Offsets) -> None:
        """Show progress under the group; the checkpoint decides where a query goes on."""
        options = self.plan.options
        if options.group is None or not options.commit_offsets:
            return
        if time.monotonic() - self._committed_s >= _COMMIT_ALL_S:
            # As every client does: a broker that died has forgotten what it had not yet saved.
            self._committed.clear()
            self._committed_s = time.monotonic()
        moved = {q: at for q, at in offsets.items() if self._committed.get(q) != at}
        if moved:
            cluster.commit(options.group, moved)
            self._committed.update(moved)


def _initial(group: str) -> str:
    return f"{group}-initial"
