"""Reports: one micro-batch of a query as a record, and those who want to know of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from ..errors import ConfigError
from .offsets import Offsets, QueueKey, from_json

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryReport:
    """One micro-batch of a query, and what is left to read after it."""

    query: str  # Its name, or its id where it has none.
    batch: int
    rows: int
    input_per_s: float
    rows_per_s: float
    batch_ms: int
    lags: Mapping[QueueKey, int] = field(default_factory=dict)
    error: str | None = None
    is_active: bool = True

    @property
    def lag(self) -> int | None:
        """Messages behind, over all queues; None where no source is a topic."""
        return sum(self.lags.values()) if self.lags else None

    def lag_by_topic(self) -> dict[str, int]:
        """Messages behind in each topic."""
        found: dict[str, int] = {}
        for queue, lag in self.lags.items():
            found[queue.topic] = found.get(queue.topic, 0) + lag
        return found


class Reporter(Protocol):
    """Somebody who wants to know."""

    def __call__(self, report: QueryReport, /) -> object:
        """Take a report."""
        ...


def report_of(progress: Mapping[str, Any]) -> QueryReport:
    """What Spark says of a micro-batch, in our words."""
    lags: dict[QueueKey, int] = {}
    passed = 0
    for source in progress["sources"]:
        start, end = _offsets(source.get("startOffset")), _offsets(source["endOffset"])
        latest = _offsets(source["latestOffset"])
        if end is not None and latest is not None:
            lags.update({queue: max(0, at - end.get(queue, 0)) for queue, at in latest.items()})
        if end is not None and start is not None:
            passed += sum(max(0, at - start.get(queue, at)) for queue, at in end.items())
    rows = int(progress["numInputRows"])
    rate = float(progress["processedRowsPerSecond"] or 0.0)
    batch_ms = int(progress["durationMs"].get("triggerExecution", 0))
    if not rows and passed:
        # Spark has seen no row of them: tasks of the archive take them to files by themselves.
        rows, rate = passed, passed * 1_000 / max(1, batch_ms)
    return QueryReport(
        query=str(progress["name"] or progress["id"]),
        batch=int(progress["batchId"]),
        rows=rows,
        input_per_s=float(progress["inputRowsPerSecond"] or 0.0),
        rows_per_s=rate,
        batch_ms=batch_ms,
        lags=lags,
    )


def _offsets(given: Any) -> Offsets | None:
    """Offsets of ours; None for those of another source."""
    try:
        return from_json(json.loads(given) if isinstance(given, str) else given)
    except (ConfigError, ValueError, TypeError):
        return None


class LogReporter:
    """Writes a line for every micro-batch."""

    def __call__(self, report: QueryReport) -> None:
        """Take a report."""
        if report.error is not None:
            logger.error("query=%s failed: %s", report.query, report.error)
        elif not report.is_active:
            logger.info("query=%s ended after batch %d", report.query, report.batch)
        else:
            logger.info(
                "query=%s batch=%d rows=%d in %d ms, %.0f a second, lag %s",
                report.query, report.batch, report.rows, report.batch_ms, report.rows_per_s,
                "unknown" if report.lag is None else report.lag,
            )  # fmt: skip


class PrometheusReporter:
    """Keeps gauges and counters; a query that ends takes its gauges away."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"skylark_pipeline_{name}", text, ["query", *labels], registry=registry)

        place = ("topic", "broker", "queue")
        self._lag = gauge("lag_messages", "Messages not read yet.", *place)
        self._input = gauge("input_rows_per_second", "Rows that came, a second.")
        self._rate = gauge("rows_per_second", "Rows handled, a second of work.")
        self._seconds = gauge("batch_seconds", "How long the last micro-batch took.")
        self._rows = Counter("skylark_pipeline_rows", "Rows handled.", ["query"], registry=registry)
        self._queues: dict[str, set[QueueKey]] = {}

    def __call__(self, report: QueryReport) -> None:
        """Take a report."""
        if not report.is_active:
            self._forget(report.query)
            return
        for queue in self._queues.get(report.query, set()) - set(report.lags):
            self._lag.remove(report.query, *map(str, queue))
        for queue, lag in report.lags.items():
            self._lag.labels(report.query, *map(str, queue)).set(lag)
        self._queues[report.query] = set(report.lags)
        self._input.labels(report.query).set(report.input_per_s)
        self._rate.labels(report.query).set(report.rows_per_s)
        self._seconds.labels(report.query).set(report.batch_ms / 1_000)
        self._rows.labels(report.query).inc(report.rows)

    def _forget(self, query: str) -> None:
        """Of a query that has ended only the count stays."""
        known = self._queues.pop(query, None)
        if known is None:
            return  # It has never done anything.
        for queue in known:
            self._lag.remove(query, *map(str, queue))
        for one in (self._input, self._rate, self._seconds):
            one.remove(query)


_reporters: WeakKeyDictionary[CollectorRegistry, PrometheusReporter] = WeakKeyDictionary()


def prometheus_reporter(registry: CollectorRegistry | None = None) -> PrometheusReporter:
    """The one reporter of a registry: a name can be registered there only once."""
    from prometheus_client import REGISTRY

    chosen = REGISTRY if registry is None else registry
    found = _reporters.get(chosen)
    if found is None:
        found = _reporters[chosen] = PrometheusReporter(chosen)
    return found
