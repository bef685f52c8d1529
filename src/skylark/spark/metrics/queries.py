"""What Spark counts: messages, dead letters and traces, grouped by minute.

Everything runs in Spark's own engine, without a Python worker beside the source's. Trace records
come from any client, so every field is taken as one that may be missing or no number, and records
with impossible times are passed over. No latency counts for more than a year, so that no client's
clock makes a sum too large.

    field        1         2    3       4         5     6       7      8       10        13
    Pub          time           group   topic     id                           cost ms   success
    SubBefore    time           group             id    tries
    SubAfter               id           success         code    time   group
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.topic import DLQ_PREFIX
from ..catalogue import unglobbed
from .histogram import bucket_sql
from .rows import MINUTE_MS, NO_BUCKET, Latency, Metric, Row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MESSAGE_COLUMNS = "topic string, body binary, born_time timestamp, store_time timestamp"
LETTER_COLUMNS = (
    "topic string, properties map<string,string>, store_time timestamp, reconsume_times int"
)
TRACE_COLUMNS = "body binary"
REASON_PROPERTY = "DLQ_REASON"
PUBLISHED_SCHEMA = "id string, topic string, sent bigint"
CONSUMED_SCHEMA = "kind string, detail string, group string, id string, at bigint"
FAILURES = {1: "timeout", 2: "exception", 3: "null", 4: "failed"}  # Codes of a SubAfter record.
FAILED = "failed"
TIME_MS_MAX = 253_402_300_799_999  # Of the year 9999, where Python's calendar and our days end.
LATENCY_MS_MAX = 365 * 86_400_000  # 290 million of them fit into one sum of a bucket.


def messages(frame: DataFrame) -> list[Row]:
    """Rates of every topic, and how long its messages took from the producer to the store."""
    timed = frame.selectExpr(
        f"unix_millis(store_time) div {MINUTE_MS} * {MINUTE_MS} as minute",
        "topic",
        "coalesce(length(body), 0) as size",
        f"{_capped('unix_millis(store_time) - unix_millis(born_time)')} as ms",
    )
    found = timed.groupBy("minute", "topic", *_columns(f"{bucket_sql('ms')} as bucket")).agg(
        *_columns("count(1) as count", "sum(size) as bytes", "sum(ms) as sum", "max(ms) as max")
    )
    rows = []
    totals: dict[tuple[int, str], tuple[int, int]] = {}
    for one in found.toArrow().to_pylist():
        key = (one["minute"], one["topic"])
        count, size = totals.get(key, (0, 0))
        totals[key] = (count + one["count"], size + one["bytes"])
        rows.append(
            Row(
                minute_ms=one["minute"], metric=Metric.LATENCY, topic=one["topic"],
                detail=Latency.STORED, bucket=one["bucket"], count=one["count"], sum=one["sum"],
                max=one["max"],
            )
        )  # fmt: skip
    for (minute, topic), (count, size) in totals.items():
        rows.append(
            Row(minute_ms=minute, metric=Metric.MESSAGES, topic=topic, count=count, sum=size)
        )
    return rows


def dead_letters(frame: DataFrame) -> list[Row]:
    """Messages that groups have given up on, by where they came from and why."""
    found = (
        frame.selectExpr(
            f"unix_millis(store_time) div {MINUTE_MS} * {MINUTE_MS} as minute",
            f"substring(topic, {len(DLQ_PREFIX) + 1}) as group",
            "coalesce(properties['RETRY_TOPIC'], '') as topic",
            f"coalesce(properties['{REASON_PROPERTY}'], "
            "concat('after ', reconsume_times, ' tries')) as detail",
        )
        .groupBy("minute", "topic", "group", "detail")
        .count()
    )
    return [
        Row(
            minute_ms=one["minute"], metric=Metric.DEAD_LETTERS, topic=one["topic"],
            group=one["group"], detail=one["detail"], count=one["count"],
        )
        for one in found.toArrow().to_pylist()
    ]  # fmt: skip


def trace_records(frame: DataFrame) -> DataFrame:
    """The records in trace messages: array f of fields each."""
    from pyspark.sql import functions as F

    records = frame.select(F.explode(F.split(F.col("body").cast("string"), "\x02")).alias("record"))
    return records.where("record != ''").select(F.split("record", "\x01").alias("f"))


def published(records: DataFrame) -> DataFrame:
    """When messages had been sent: id, topic, sent."""
    found = records.where("f[0] = 'Pub' and coalesce(get(f, 13), 'true') = 'true'").selectExpr(
        "get(f, 5) as id",
        "get(f, 4) as topic",
        "try_add(try_cast(get(f, 1) as bigint), coalesce(try_cast(get(f, 10) as bigint), 0L))"
        " as sent",
    )
    return _timed(found.where("id != '' and topic != ''"), "sent")


def consumed(records: DataFrame) -> DataFrame:
    """First deliveries, successes and failures: kind, detail, group, id, at."""
    codes = ", ".join(f"'{code}', '{name}'" for code, name in FAILURES.items())
    before = records.where("f[0] = 'SubBefore' and get(f, 6) = '0'").selectExpr(
        f"'{Latency.DELIVERED.value}' as kind",
        "'' as detail",
        "get(f, 3) as group",
        "get(f, 5) as id",
        "try_cast(get(f, 1) as bigint) as at",
    )
    after = records.where("f[0] = 'SubAfter'").selectExpr(
        f"if(get(f, 4) = 'true', '{Latency.HANDLED.value}', '{FAILED}') as kind",
        f"if(get(f, 4) = 'true', '', coalesce(map({codes})[get(f, 6)], '{FAILED}')) as detail",
        "get(f, 8) as group",
        "get(f, 2) as id",
        "try_cast(get(f, 7) as bigint) as at",
    )
    return _timed(before.unionByName(after).where("id != '' and group is not null"), "at")


def newest(sent: DataFrame, done: DataFrame) -> tuple[int, int]:
    """When the newest message was sent, and when the newest consumption was; 0 for none."""
    both = sent.selectExpr("sent", "0L as at").unionByName(done.selectExpr("0L as sent", "at"))
    found = both.agg(*_columns("max(sent) as sent", "max(at) as at")).first()
    assert found is not None
    return int(found["sent"] or 0), int(found["at"] or 0)


def matched(sent: DataFrame, done: DataFrame) -> DataFrame:
    """What consumers did, with topic and ms since it was sent; null where that is not known."""
    # State that an earlier version has left may have times of any kind.
    sent, done = _timed(sent, "sent"), _timed(done, "at")
    once = sent.groupBy("id").agg(*_columns("min(topic) as topic", "min(sent) as sent"))
    return done.join(once, "id", "left").selectExpr(
        "kind", "detail", "group", "id", "at", "topic", f"{_capped('at - sent')} as ms"
    )


def latencies(
    pairs: DataFrame, oldest_ms: int, newest_ms: int = TIME_MS_MAX
) -> tuple[list[Row], int]:
    """How long messages took to their consumers, and how many are to wait for their match."""
    found = (
        pairs.selectExpr(
            "*",
            f"at div {MINUTE_MS} * {MINUTE_MS} as minute",
            f"{waits(oldest_ms, newest_ms)} as waits",
            f"if(topic is null, {NO_BUCKET}, {bucket_sql('ms')}) as bucket",
        )
        .groupBy("waits", "minute", "topic", "group", "kind", "detail", "bucket")
        .agg(*_columns("count(1) as count", "sum(ms) as sum", "max(ms) as max"))
    ).toArrow().to_pylist()  # fmt: skip
    rows = list(_latency_rows(one for one in found if not one["waits"]))
    return rows, sum(one["count"] for one in found if one["waits"])


def waits(oldest_ms: int, newest_ms: int) -> str:
    """The condition of what has no match yet, and may get one."""
    return f"(topic is null and at between {oldest_ms} and {newest_ms})"


def _latency_rows(found: Iterable[dict[str, Any]]) -> Iterator[Row]:
    for one in found:
        place = {"minute_ms": one["minute"], "group": one["group"], "topic": one["topic"] or ""}
        if one["kind"] == FAILED:
            # A bucket does not matter here, and rows that differ in it alone are added up.
            yield Row(metric=Metric.FAILURES, detail=one["detail"], count=one["count"], **place)
        elif one["topic"] is None:
            yield Row(metric=Metric.LATENCY, detail=Latency.UNMATCHED, count=one["count"], **place)
        else:
            yield Row(
                metric=Metric.LATENCY, detail=one["kind"], bucket=one["bucket"],
                count=one["count"], sum=one["sum"], max=one["max"], **place,
            )  # fmt: skip


def read_state(spark: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """What earlier steps have left."""
    if not paths:
        # Not from a list: Spark would start a Python worker to learn that it is empty.
        columns = [part.split() for part in schema.split(", ")]
        return spark.range(0).selectExpr(*(f"cast(null as {kind}) as {n}" for n, kind in columns))
    return spark.read.schema(schema).parquet(*(unglobbed(Path(path)) for path in paths))


def _timed(frame: DataFrame, column: str) -> DataFrame:
    """Rows with a time that can be one; without any they go as well."""
    return frame.where(f"{column} between 0 and {TIME_MS_MAX}")


def _capped(latency: str) -> str:
    """A latency within its bounds: clocks disagree, and clients write what they like."""
    return f"least({LATENCY_MS_MAX}L, greatest(0L, {latency}))"


def _columns(*texts: str) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.expr(text) for text in texts]
