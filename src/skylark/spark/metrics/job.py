"""MetricsJob: counts what has come since the last step, and writes it down, step by step.

A step asks the brokers how far the topics reach, has Spark count from where the last entry of the
catalogue ends up to there, and commits rows, state and new ends with one entry. There is no other
progress: a step that dies is done again from the same offsets, so every message is counted once.

Messages are counted in the minute of their store time, consumption in the minute of its trace,
however late they come; only matching.py has an end to its patience.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...clock import Clock, SystemClock
from ...errors import BrokerError, ConfigError, SkylarkError, TransportError
from ...model.topic import TRACE_TOPIC
from ..catalogue import ArchivedFile
from ..cluster import Cluster
from ..offsets import Offsets, QueueKey, admit, to_json
from ..options import read_options
from ..pipelines.causes import is_java_gone, one_line
from . import queries
from .matching import REMEMBERED_MS, match, nothing_new
from .rows import Row, added, to_table
from .sampling import Sample, sample
from .table import MetricTable

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

METRICS_GROUP = "skylark-metrics"
MESSAGES_MAX = 1_000_000
EVERY_MS = 60_000


class SparkFailed(SkylarkError):
    """A job of Spark's has failed; the text is its first cause."""


class Stop(Protocol):
    """Whether somebody has said stop; an Event of threading's is one."""

    def is_set(self) -> bool:
        """Whether somebody has."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until somebody has, or so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What one step has done."""

    number: int
    messages: int
    behind: int  # Messages that are left for the next one.


@dataclass(frozen=True, slots=True)
class _Plan:
    """From where to where a step counts."""

    queues: tuple[QueueKey, ...]
    begin: Offsets
    end: Offsets
    newest: Offsets

    @property
    def moved(self) -> set[str]:
        """Topics with something new."""
        return {queue.topic for queue in self.queues if self.end[queue] > self.begin[queue]}


class MetricsJob:
    """Keeps one metrics table up to date; see the module's docstring."""

    def __init__(
        self,
        spark: SparkSession,
        root: str | os.PathLike[str],
        *,
        namesrv: str,
        topics: str = ".*",
        start: str = "earliest",
        group: str = METRICS_GROUP,
        trace_topic: str = TRACE_TOPIC,
        messages_max: int = MESSAGES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._table = MetricTable(root)
        options = {"namesrv": namesrv, "topicsPattern": topics, "startingOffsets": start}
        checked = read_options({**options, "group": group}, is_stream=False)
        self._access = checked.access
        self._start = checked.starting
        self._pattern = re.compile(topics)
        self._group = group
        self._trace_topic = trace_topic
        self._messages_max = messages_max
        self._clock = clock or SystemClock()

    def run(
        self,
        *,
        once: bool = False,
        every_ms: int = EVERY_MS,
        stop: Stop | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """Go on until stopped; with once, until everything of now is counted.

        Servers that do not answer are asked again at the next step; with once they end it.
        """
        stop = stop or threading.Event()
        target: Offsets | None = None
        with self._table:
            while not stop.is_set():
                began_ms = self._clock.monotonic_ms()
                try:
                    step, newest = self._step(target)
                except (TransportError, BrokerError, SparkFailed) as error:
                    if once:
                        raise
                    logger.warning("metrics=%s a step failed: %s", self._table.root, error)
                else:
                    on_step(step)
                    if step.behind:
                        target = newest if once else None
                        continue
                    if once:
                        return
                passed_ms = self._clock.monotonic_ms() - began_ms
                stop.wait(max(0, every_ms - passed_ms) / 1_000)

    def _step(self, target: Offsets | None) -> tuple[Step, Offsets]:
        now_ms = self._clock.now_ms()
        found = sample(self._access, trace_topic=self._trace_topic, now_ms=now_ms)
        number = self._table.number()
        plan = self._plan(found, target)
        rows, state = self._counted(found, plan, number)
        cluster = Cluster(self._access)
        try:
            self._require_unchanged(cluster, found, plan)
            self._table.commit(number, added(to_table([*found.lags, *rows])), state, plan.end)
            cluster.commit(self._group, {queue: plan.end[queue] for queue in plan.queues})
        finally:
            cluster.close()
        self._table.compact(now_ms / 1_000, remembered_ms=REMEMBERED_MS)
        counted = sum(plan.end[queue] - plan.begin[queue] for queue in plan.queues)
        behind = sum(max(0, at - plan.end[queue]) for queue, at in plan.newest.items())
        return Step(number, counted, behind), plan.newest

    def _require_unchanged(self, cluster: Cluster, found: Sample, plan: _Plan) -> None:
        """Spark has looked between our two looks, and may have seen something else than we."""
        if tuple(_queues(cluster, self._topics(found))) != plan.queues:
            raise TransportError(self._access.namesrv, "queues came or went during the step")
        for queue in plan.queues:
            end = plan.end[queue]
            if end > plan.begin[queue] and (last := cluster.max_offset(queue)) < end:
                # A replica that lags has taken over: Spark may have read as far as it goes.
                raise TransportError(
                    self._access.namesrv, f"{queue} ends at {last}, and was to be counted to {end}"
                )

    # From where to where.

    def _topics(self, found: Sample) -> list[str]:
        own = [name for name in found.topics if self._pattern.fullmatch(name)]
        return [*own, *found.dead_letter_topics, *([self._trace_topic] * found.has_trace)]

    def _plan(self, found: Sample, target: Offsets | None) -> _Plan:
        cluster = Cluster(self._access)
        try:
            queues = _queues(cluster, self._topics(found))
            known = self._table.catalogue.ends()
            if not self._table.catalogue.is_begun():
                known = cluster.resolve(self._start, queues, "startingOffsets")
            # After the beginning, which may be "latest": a queue does not end before it begins.
            bounds = {queue: _bounds(cluster, queue, known.get(queue)) for queue in queues}
        finally:
            cluster.close()
        begin = {queue: first for queue, (first, _) in bounds.items()}
        newest = {queue: last for queue, (_, last) in bounds.items()}
        if target is not None:
            newest = {queue: min(at, target.get(queue, at)) for queue, at in newest.items()}
        # The ends of topics that are gone stay as they are.
        end = {**known, **admit(begin, newest, self._messages_max)}
        return _Plan(tuple(queues), begin, end, newest)

    # What Spark does.

    def _counted(
        self, found: Sample, plan: _Plan, number: int
    ) -> tuple[list[Row], list[ArchivedFile]]:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        rows: list[Row] = []
        own = sorted(plan.moved & set(found.topics))
        letters = sorted(plan.moved & set(found.dead_letter_topics))
        try:
            if own:
                rows += queries.messages(self._read(own, queries.MESSAGE_COLUMNS, plan))
            if letters:
                rows += queries.dead_letters(self._read(letters, queries.LETTER_COLUMNS, plan))
            if self._trace_topic not in plan.moved:
                return rows, nothing_new(self._table)
            traces = self._read([self._trace_topic], queries.TRACE_COLUMNS, plan)
            now_ms = self._clock.now_ms()
            more, state = match(self._spark, self._table, number, traces, now_ms=now_ms)
        except (PySparkException, Py4JError) as error:
            if is_java_gone(error):  # There is no next step.
                raise SkylarkError(one_line(error)) from error
            raise SparkFailed(one_line(error)) from error
        return [*rows, *more], state

    def _read(self, topics: Sequence[str], columns: str, plan: _Plan) -> DataFrame:
        """Exactly the offsets of a plan; every queue is named, or Spark would read all of it."""
        queues = [queue for queue in plan.queues if queue.topic in topics]

        def named(offsets: Offsets) -> str:
            return json.dumps(to_json({queue: offsets[queue] for queue in queues})["q"])

        return (
            self._spark.read.format("skylark")
            .schema(columns)
            .option("namesrv", self._access.namesrv)
            .option("topic", ",".join(topics))
            .option("startingOffsets", named(plan.begin))
            .option("endingOffsets", named(plan.end))
            .option("failOnDataLoss", "false")
            .option("bodyMode", "permissive")  # A damaged message counts as well.
            .load()
        )


def _bounds(cluster: Cluster, queue: QueueKey, known: int | None) -> tuple[int, int]:
    """Where a step begins in a queue, at the last one's end or with its first message, and its end.

    A replica lags behind its master: that a queue ends before what was counted, or begins after it,
    is a master's word alone. Without it nothing is counted there, rather than something twice.
    """
    if known is None:
        return cluster.min_offset(queue), cluster.max_offset(queue)
    newest = cluster.max_offset(queue)
    if newest < known and cluster.has_master(queue):
        newest = cluster.settled_end(queue, known)
    if newest < known and not cluster.has_master(queue):
        logger.warning(
            "queue=%s was counted up to %d and its replica ends at %d: it waits for its master",
            queue, known, newest,
        )  # fmt: skip
        newest = known
    if newest < known:
        begin = cluster.min_offset(queue)
    elif (begin := cluster.first_offset(queue, known)) <= known:
        return known, newest
    logger.warning(
        "queue=%s was counted up to %d and goes on at %d: messages were removed, or it is another "
        "one of that name", queue, known, begin,
    )  # fmt: skip
    return begin, newest


def _queues(cluster: Cluster, topics: Sequence[str]) -> list[QueueKey]:
    found: list[QueueKey] = []
    for topic in topics:
        try:
            found += cluster.queues([topic])
        except ConfigError:
            continue  # Deleted a moment ago.
    return sorted(found)
