"""`skylark pipeline metrics`, as far as no Spark is needed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from skylark.cli import pipeline_metrics
from skylark.cli.main import main
from skylark.errors import ConfigError
from skylark.spark.metrics.rows import MINUTE_MS, Metric, Row, added, to_table
from skylark.spark.metrics.table import MetricTable


def test_the_table_is_shown_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    minute = int(time.time() * 1_000) // MINUTE_MS * MINUTE_MS
    row = Row(minute_ms=minute, metric=Metric.MESSAGES, topic="T", count=3, sum=30)
    with MetricTable(tmp_path) as table:
        table.commit(0, added(to_table([row])), [], {})
    pipeline_metrics.metrics(str(tmp_path), show=True, since="1h", step="1m", json=True)
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["metric"], shown["topic"], shown["count"], shown["bytes"]) == (
        "messages",
        "T",
        3,
        30,
    )
    with pytest.raises(ConfigError, match="allowed are messages, latency"):
        pipeline_metrics.metrics(str(tmp_path), show=True, metric="speed", since="1h")


def test_help_names_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "metrics", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [one.value for one in Metric if one.value not in shown] == []


def test_spans_are_numbers_with_a_unit() -> None:
    assert pipeline_metrics.span_ms("30s", "--every") == 30_000
    assert pipeline_metrics.span_ms("2h", "--step") == 7_200_000
    for text in ("", "s", "0m", "-1m", "5", "1w", "1.5h"):
        with pytest.raises(ConfigError, match="--every"):
            pipeline_metrics.span_ms(text, "--every")
    for text in ("366d", "99999999999999999999d"):
        with pytest.raises(ConfigError, match=r"--step '.*': 365d is the longest"):
            pipeline_metrics.span_ms(text, "--step")


def test_what_is_shown_begins_in_the_past() -> None:
    now_ms = 1_800_000_000_000
    assert pipeline_metrics._since_ms("last", now_ms) == now_ms
    assert pipeline_metrics._since_ms("1m", now_ms) == now_ms - 60_000
    with pytest.raises(ConfigError, match="--since '999999999999999' is to come"):
        pipeline_metrics._since_ms("999999999999999", now_ms)
    with pytest.raises(ConfigError, match="--since: time 'soon' is not understood"):
        pipeline_metrics._since_ms("soon", now_ms)
    with pytest.raises(ConfigError, match="--step '90s': whole minutes are needed"):
        pipeline_metrics._show("t", "1h", None, "90s", as_json=False)
