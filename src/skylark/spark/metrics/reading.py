"""read_metrics: what a metrics table says of some time, one figure for each span, topic and group.

Plain pyarrow: a console or a notebook reads it while the job writes. One look at the catalogue
decides which files there are; those that are replaced meanwhile stay for an hour.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from . import histogram
from .rows import MINUTE_MS, Latency, Metric, added, schema
from .table import MINUTES, require

if TYPE_CHECKING:
    import pyarrow as pa


_KNOWN = frozenset(Metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What happened in one span of time; what a metric does not have is None."""

    at_ms: int  # Where the span begins.
    span_ms: int
    metric: Metric
    topic: str
    group: str
    detail: str
    count: int
    bytes: int | None = None
    p50_ms: int | None = None
    p90_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None
    mean_ms: float | None = None

    @property
    def per_second(self) -> float:
        """How many a second; of lag it means nothing."""
        return self.count * 1_000 / self.span_ms


def read_metrics(
    path: str | os.PathLike[str],
    since_ms: int,
    until_ms: int,
    *,
    metric: Metric | str | None = None,
    topic: str | None = None,
    group: str | None = None,
    step_ms: int = MINUTE_MS,
) -> list[Figure]:
    """Figures from since_ms up to until_ms, exclusive, by time; raises ConfigError."""
    if step_ms < MINUTE_MS or step_ms % MINUTE_MS:
        raise ConfigError(f"step_ms={step_ms}: whole minutes are allowed, {MINUTE_MS} at least")
    wanted: dict[str, str | None] = {"metric": metric, "topic": topic, "group": group}
    found = _load(path, since_ms, until_ms, {k: str(v) for k, v in wanted.items() if v is not None})
    if not found.num_rows:
        return []
    spans: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in added(_in_steps(found, step_ms)).to_pylist():
        if row["metric"] not in _KNOWN:
            continue  # Of a newer version.
        at_ms = round(row["minute"].timestamp() * 1_000)
        key = (at_ms, row["metric"], row["topic"], row["group"], row["detail"])
        spans.setdefault(key, []).append(row)
    return [_figure(key, rows, step_ms) for key, rows in spans.items()]


def _load(
    path: str | os.PathLike[str], since_ms: int, until_ms: int, wanted: dict[str, str]
) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    catalogue = require(path)
    first, last = _moment("since_ms", since_ms), _moment("until_ms", until_ms)
    days = (f"data/day={first:%Y-%m-%d}", f"data/day={last:%Y-%m-%d}")
    condition = (compute.field("minute") >= pa.scalar(first, pa.timestamp("ms", tz="UTC"))) & (
        compute.field("minute") < pa.scalar(last, pa.timestamp("ms", tz="UTC"))
    )
    for name, value in wanted.items():
        condition &= compute.field(name) == value
    tables = [
        parquet.ParquetFile(catalogue.root / file.path).read().filter(condition)
        for entry in catalogue.entries()
        for file in entry.files
        if file.topic == MINUTES and days[0] <= os.path.dirname(file.path) <= days[1]
    ]
    return pa.concat_tables(tables) if tables else schema().empty_table()


def _moment(name: str, at_ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{name}={at_ms}: milliseconds since 1970 are allowed, up to the year 9999"
        ) from error


def _in_steps(table: pa.Table, step_ms: int) -> pa.Table:
    import pyarrow.compute as compute

    minutes = compute.cast(table["minute"], "int64")
    starts = compute.multiply(compute.divide(minutes, step_ms), step_ms)
    moments = compute.cast(starts, schema().field("minute").type)
    return table.set_column(0, schema().field("minute"), moments)


def _figure(key: tuple[Any, ...], rows: list[dict[str, Any]], step_ms: int) -> Figure:
    at_ms, metric, topic, group, detail = key
    values: dict[str, Any] = {}
    count = sum(row["count"] for row in rows)
    if metric == Metric.MESSAGES:
        values["bytes"] = sum(row["sum"] for row in rows)
    elif metric == Metric.LAG:
        values["max_ms"] = max(row["max"] for row in rows)
    elif metric == Metric.LATENCY and detail != Latency.UNMATCHED:
        counts = {row["bucket"]: row["count"] for row in rows}
        most = max(row["max"] for row in rows)
        values["max_ms"] = most
        values["mean_ms"] = sum(row["sum"] for row in rows) / max(1, count)
        for name, fraction in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)):
            values[name] = min(most, round(histogram.quantile(counts, fraction)))
    return Figure(
        at_ms=at_ms, span_ms=step_ms, metric=Metric(metric), topic=topic, group=group,
        detail=detail, count=count, **values,
    )  # fmt: skip
