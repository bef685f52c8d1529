"""Rows of the metrics table, as docs/formats/metrics.md has them: sums that can be added.

One minute, topic and group may have several rows, of several micro-batches; whoever reads adds them
up, and gets the same whatever was late, and however files were put together meanwhile.

    metric         topic    group   detail                          count      sum      max
    messages       yes              ""                              messages   bytes
    latency        yes      yes     stored, delivered, handled      messages   ms       ms
    latency                 yes     unmatched                       records
    failures       yes      yes     timeout, exception, null, …     tries
    dead_letters   yes      yes     why                             messages
    lag            yes      yes     ""                              messages            ms

Lag is a sample, not a sum: of several in one minute the last counts, by `at`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

MINUTE_MS = 60_000
KEYS = ("minute", "metric", "topic", "group", "detail", "bucket")
NO_BUCKET = 0  # In rows that are no histogram.


class Metric(StrEnum):
    """What a row counts."""

    MESSAGES = "messages"
    LATENCY = "latency"
    FAILURES = "failures"
    DEAD_LETTERS = "dead_letters"
    LAG = "lag"


class Latency(StrEnum):
    """From where to where: `detail` of latency."""

    STORED = "stored"  # Made by the producer → stored by the broker.
    DELIVERED = "delivered"  # Sent → given to a handler for the first time.
    HANDLED = "handled"  # Sent → handled with success.
    UNMATCHED = "unmatched"  # Consumed, and nobody has traced how it was sent.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row."""

    minute_ms: int
    metric: Metric
    topic: str = ""
    group: str = ""
    detail: str = ""
    bucket: int = NO_BUCKET
    count: int = 0
    sum: int = 0
    max: int = 0
    at_ms: int | None = None


def schema() -> pa.Schema:
    """The columns of every file."""
    arrow = _arrow()
    moment = arrow.timestamp("ms", tz="UTC")
    return arrow.schema(
        [
            arrow.field("minute", moment, nullable=False),
            arrow.field("metric", arrow.string(), nullable=False),
            arrow.field("topic", arrow.string(), nullable=False),
            arrow.field("group", arrow.string(), nullable=False),
            arrow.field("detail", arrow.string(), nullable=False),
            arrow.field("bucket", arrow.int32(), nullable=False),
            arrow.field("count", arrow.int64(), nullable=False),
            arrow.field("sum", arrow.int64(), nullable=False),
            arrow.field("max", arrow.int64(), nullable=False),
            arrow.field("at", moment),
        ]
    )


def to_table(rows: Iterable[Row]) -> pa.Table:
    """Rows as Arrow has them."""
    found = list(rows)
    columns: Mapping[str, Sequence[Any]] = {
        "minute": [row.minute_ms for row in found],
        "metric": [row.metric.value for row in found],
        "topic": [row.topic for row in found],
        "group": [row.group for row in found],
        "detail": [row.detail for row in found],
        "bucket": [row.bucket for row in found],
        "count": [row.count for row in found],
        "sum": [row.sum for row in found],
        "max": [row.max for row in found],
        "at": [row.at_ms for row in found],
    }
    return _arrow().table(columns, schema=schema())


def added(table: pa.Table) -> pa.Table:
    """One row for each key: sums added, samples replaced by later ones; in the order of keys."""
    import pyarrow.compute as compute

    is_sample = compute.equal(table["metric"], Metric.LAG.value)
    sums = table.filter(compute.invert(is_sample)).group_by(list(KEYS), use_threads=False)
    sums = sums.aggregate([("count", "sum"), ("sum", "sum"), ("max", "max"), ("at", "max")])
    samples = table.filter(is_sample).sort_by("at").group_by(list(KEYS), use_threads=False)
    samples = samples.aggregate(
        [("count", "last"), ("sum", "last"), ("max", "last"), ("at", "max")]
    )
    names = [*KEYS, "count", "sum", "max", "at"]
    parts = [one.rename_columns(names).cast(schema()) for one in (sums, samples)]
    return _arrow().concat_tables(parts).sort_by([(key, "ascending") for key in KEYS])


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError("pyarrow is not installed: pip install 'skylarkmq[spark]'") from error
    return pyarrow
