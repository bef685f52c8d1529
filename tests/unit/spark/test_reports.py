"""What Spark says of a query: as a report, as metrics, and as the state of a session."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from prometheus_client import CollectorRegistry, generate_latest

from skylark.errors import ConfigError
from skylark.spark.listener import Watch
from skylark.spark.offsets import QueueKey, to_json
from skylark.spark.pipelines.state import RunDirectory
from skylark.spark.reports import QueryReport, prometheus_reporter, report_of
from skylark.spark.watched_state import StateReporter

FIRST, SECOND = QueueKey("T", "a", 0), QueueKey("T", "a", 1)


def progress(**changes: object) -> dict[str, object]:
    return {
        "name": "orders", "id": "0-1", "batchId": 3, "numInputRows": 20,
        "inputRowsPerSecond": 10.0, "processedRowsPerSecond": 40.0,
        "durationMs": {"triggerExecution": 500},
        "sources": [
            {
                "endOffset": json.dumps(to_json({FIRST: 5, SECOND: 7})),
                "latestOffset": json.dumps(to_json({FIRST: 9, SECOND: 7})),
            },
            {"endOffset": "12", "latestOffset": None},
        ],
        **changes,
    }  # fmt: skip


def test_lag_is_what_lies_between_the_end_of_a_batch_and_that_of_its_queues() -> None:
    report = report_of(progress())
    assert report.lags == {FIRST: 4, SECOND: 0}
    assert (report.lag, report.lag_by_topic()) == (4, {"T": 4})
    assert (report.query, report.rows, report.batch_ms) == ("orders", 20, 500)


def test_messages_that_go_past_spark_count_by_their_offsets() -> None:
    (source, other) = progress()["sources"]  # type: ignore[misc]
    source["startOffset"] = json.dumps(to_json({FIRST: 1}))
    report = report_of(
        progress(sources=[source, other], numInputRows=0, processedRowsPerSecond=0.0)
    )
    assert (report.rows, report.rows_per_s) == (4, 8.0), "a new queue's first offset is not known"
    assert report_of(progress(sources=[source, other])).rows == 20


def test_a_query_without_topics_has_rates_and_no_lag() -> None:
    report = report_of(progress(name=None, sources=[], inputRowsPerSecond=None))
    assert (report.query, report.lag, report.input_per_s) == ("0-1", None, 0.0)


def test_prometheus_sees_every_queue_until_the_query_ends() -> None:
    registry = CollectorRegistry()
    reporter = prometheus_reporter(registry)
    assert prometheus_reporter(registry) is reporter, "a second watch shares it"
    reporter(report_of(progress()))
    reporter(report_of(progress()))
    text = generate_latest(registry).decode()
    place = 'broker="a",query="orders",queue="0",topic="T"'
    assert f"skylark_pipeline_lag_messages{{{place}}} 4.0" in text
    assert 'skylark_pipeline_rows_total{query="orders"} 40.0' in text
    assert 'skylark_pipeline_input_rows_per_second{query="orders"} 10.0' in text
    assert 'skylark_pipeline_rows_per_second{query="orders"} 40.0' in text
    assert 'skylark_pipeline_batch_seconds{query="orders"} 0.5' in text
    reporter(QueryReport("orders", 3, 0, 0.0, 0.0, 0, is_active=False))
    reporter(QueryReport("never ran", -1, 0, 0.0, 0.0, 0, error="no", is_active=False))
    text = generate_latest(registry).decode()
    assert "queue=" not in text
    assert "batch_seconds{" not in text
    assert "rows_per_second{" not in text
    assert 'skylark_pipeline_rows_total{query="orders"} 40.0' in text, "what was done stays"


def event(**facts: object) -> Any:
    return SimpleNamespace(id="0-1", **facts)


class Progress(dict[str, object]):
    """As Spark hands it over: a mapping whose id is an attribute as well."""

    id = "0-1"


def test_a_query_that_waits_is_not_behind_and_is_not_busy() -> None:
    reports: list[QueryReport] = []
    watched = Watch(None, [reports.append])  # type: ignore[arg-type]
    watched.onQueryStarted(event(name="orders"))
    watched.onQueryIdle(event())
    assert reports == [], "it has done nothing yet"
    watched.onQueryProgress(event(progress=Progress(progress())))
    watched.onQueryIdle(event())
    busy, idle = reports
    assert (busy.lag, busy.rows, busy.input_per_s, busy.rows_per_s) == (4, 20, 10.0, 40.0)
    assert idle.lags == {FIRST: 0, SECOND: 0}
    assert (idle.rows, idle.input_per_s, idle.rows_per_s) == (0, 0.0, 0.0)
    assert (idle.query, idle.batch, idle.is_active) == ("orders", 3, True)
    assert watched.latest == {"orders": idle}
    watched.onQueryIdle(event())
    assert reports == [busy, idle], "it is said once"


def test_a_query_that_had_caught_up_is_not_busy_when_it_waits() -> None:
    reports: list[QueryReport] = []
    watched = Watch(None, [reports.append])  # type: ignore[arg-type]
    watched.onQueryProgress(event(progress=Progress(progress())))
    (busy,) = reports
    watched.latest[busy.query] = replace(busy, lags=dict.fromkeys(busy.lags, 0))
    watched.onQueryIdle(event())
    assert (reports[-1].lag, reports[-1].input_per_s, reports[-1].rows_per_s) == (0, 0.0, 0.0)
    assert len(reports) == 2


def test_a_reporter_that_fails_is_logged_and_keeps_nobody_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[QueryReport] = []

    def fails(report: QueryReport) -> None:
        raise ValueError("the dashboard is down")

    watched = Watch(None, [fails, reports.append])  # type: ignore[arg-type]
    watched.onQueryProgress(event(progress=Progress(progress())))
    watched.onQueryTerminated(event(exception=None))
    assert [(report.query, report.is_active) for report in reports] == [
        ("orders", True),
        ("orders", False),
    ]
    said = [(record.name, record.getMessage()) for record in caplog.records]
    assert said == [("skylark.spark.listener", "query=orders a reporter failed")] * 2
    assert "the dashboard is down" in caplog.text


def test_a_session_is_shown_among_the_pipelines(tmp_path) -> None:
    directory = RunDirectory(tmp_path)
    reporter = StateReporter("notebook", directory)
    reporter(report_of(progress()))
    reporter(report_of(progress(batchId=4)))
    with pytest.raises(ConfigError, match="notebook"):
        StateReporter("notebook", directory)
    state = directory.read("notebook")
    assert (state.status, state.kind) == ("running", "session")
    sink = state.sinks["orders"]
    assert (sink.rows, sink.batch, sink.lag, sink.topics) == (40, 4, 4, ["T"])
    reporter.close()
    assert directory.read("notebook").status == "stopped"
