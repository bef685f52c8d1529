"""watch: how far Spark's streams over topics are behind, and how fast they go.

    import skylark.spark
    skylark.spark.watch(spark)                         logs, and metrics for Prometheus
    skylark.spark.watch(spark, print)                  and whatever you do with each report
    skylark.spark.watch(spark, state="nightly")        and `skylark pipeline status` shows it

Spark calls a listener after every micro-batch, on a thread of its own. Sources that are not topics
have rates, and no lag.

    metric                                   labels
    skylark_pipeline_lag_messages            query, topic, broker, queue
    skylark_pipeline_rows_total              query
    skylark_pipeline_input_rows_per_second   query
    skylark_pipeline_rows_per_second         query
    skylark_pipeline_batch_seconds           query
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from .pipelines.causes import one_line
from .reports import LogReporter, QueryReport, Reporter, prometheus_reporter, report_of
from .watched_state import StateReporter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession

    from .pipelines.state import RunDirectory

logger = logging.getLogger(__name__)


class Watch(StreamingQueryListener):
    """Tells reporters about every query of a session; stop() ends it."""

    def __init__(self, spark: SparkSession, reporters: list[Reporter]) -> None:
        self._session = spark
        self._reporters = reporters
        self._names: dict[str, str] = {}
        self.latest: dict[str, QueryReport] = {}  # By query, of those that run.

    def stop(self) -> None:
        """Hear no more."""
        self._session.streams.removeListener(self)
        for reporter in self._reporters:
            if isinstance(reporter, StateReporter):
                reporter.close()

    def _tell(self, report: QueryReport) -> None:
        for reporter in self._reporters:
            try:
                reporter(report)
            except Exception:  # A user's own; Spark would drop it without a word.
                logger.exception("query=%s a reporter failed", report.query)

    def onQueryStarted(self, event: Any) -> None:
        """Learn its name: idle and ended queries are told of by id alone."""
        self._names[str(event.id)] = str(event.name or event.id)

    def onQueryProgress(self, event: Any) -> None:
        """A micro-batch is done."""
        report = report_of(event.progress)
        self._names[str(event.progress.id)] = report.query
        self.latest[report.query] = report
        self._tell(report)

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing new: it is not behind."""
        before = self.latest.get(self._names.get(str(event.id), ""))
        if before is not None and (before.lag or before.input_per_s or before.rows_per_s):
            report = replace(
                before, rows=0, input_per_s=0.0, rows_per_s=0.0, lags=dict.fromkeys(before.lags, 0)
            )
            self.latest[report.query] = report
            self._tell(report)

    def onQueryTerminated(self, event: Any) -> None:
        """It has ended, by itself or by an error."""
        name = self._names.pop(str(event.id), str(event.id))
        before = self.latest.pop(name, None) or QueryReport(name, -1, 0, 0.0, 0.0, 0)
        error = None if event.exception is None else one_line(Exception(event.exception))
        self._tell(replace(before, rows=0, error=error, is_active=False))


def watch(
    spark: SparkSession,
    report: Callable[[QueryReport], object] | None = None,
    *,
    log: bool = True,
    prometheus: bool = True,
    registry: CollectorRegistry | None = None,
    state: str | None = None,
    directory: RunDirectory | None = None,
) -> Watch:
    """Report lag and rates of all queries of a session, from now on."""
    reporters: list[Reporter] = []
    if log:
        reporters.append(LogReporter())
    if prometheus:
        reporters.append(prometheus_reporter(registry))
    if state is not None:
        reporters.append(StateReporter(state, directory))
    if report is not None:
        reporters.append(report)
    found = Watch(spark, reporters)
    spark.streams.addListener(found)
    return found
