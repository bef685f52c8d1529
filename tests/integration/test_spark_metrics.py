"""Metrics, logs and change streams on Spark: one session and one cluster for all."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from prometheus_client import CollectorRegistry, generate_latest
from spark_world import SPARKS_WARNINGS, Cluster
from test_spark_archive import send_damaged

import skylark
from skylark.model.message import Message
from skylark.model.topic import TRACE_TOPIC
from skylark.spark import QueryReport, watch
from skylark.spark.catalogue import Catalogue
from skylark.spark.changes import ChangeTable
from skylark.spark.metrics import Figure, MetricsJob, histogram, queries, read_metrics
from skylark.spark.metrics.matching import match
from skylark.spark.metrics.rows import added, to_table
from skylark.spark.metrics.table import MetricTable
from skylark.spark.pipelines import RunDirectory, running

EXAMPLES = Path(__file__).parents[2] / "examples"
# What is run here of examples/: the first two by themselves, the others by what imports them.
SHIPPER, CHANGES = EXAMPLES / "pipelines/logs/ship.py", EXAMPLES / "pipelines/cdc/cdc_demo.py"
JAVA_SENT_MS = 1_794_727_891_894
# As RocketMQ 4.9.8's client writes them, the first captured from it; and two that nobody should.
JAVAS_TRACES = (
    f"Pub\x01{JAVA_SENT_MS}\x01DefaultRegion\x01pg_tr\x01TopicTest\x017F0000010001\x01TagA\x01trk"
    "\x01127.0.0.1:20911\x011\x0111\x010\x017F000001000051AF0000000000000000\x01true\x02"
    f"SubBefore\x01{JAVA_SENT_MS + 211}\x01null\x01cg_tr\x01R1\x017F0000010001\x010\x01trk\x02",
    "Pub\x01soon\x01\x02SubAfter\x02\x02SubBefore\x01\x01\x01g\x01\x01x\x010\x02",
    "no trace at all",
)
IMPORTED = ("pipelines/logs/minutes.py", "pipelines/cdc/change_log.py")

pytestmark = SPARKS_WARNINGS


async def produce(address: str, count: int) -> None:
    """Orders, each traced."""
    async with (
        skylark.connect(address) as mq,
        mq.producer("shop", enable_msg_trace=True) as producer,
    ):
        for number in range(count):
            await producer.send(Message("MetricOrders", b"order %d" % number))


async def consume(address: str, count: int) -> None:
    """A group that handles all but two: one fails for good, one at its first try."""
    done = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        if message.body == b"order 0":
            raise skylark.ToDlq("no such customer")
        if message.body == b"order 1":
            raise ValueError("the first try fails")
        seen.append(message.body)
        if len(seen) == count - 2:
            done.set()

    async with (
        skylark.connect(address) as mq,
        mq.consumer(
            "billing", {"MetricOrders": "*"}, handle, consume_from="first", enable_msg_trace=True
        ),
    ):
        await asyncio.wait_for(done.wait(), 30)


def figures(root: Path, metric: str, **wanted: str) -> dict[tuple[str, str, str], Figure]:
    now = time.time_ns() // 1_000_000
    found = read_metrics(
        root, now - 3_600_000, now + 60_000, metric=metric, step_ms=86_400_000, **wanted
    )
    return {(one.topic, one.group, one.detail): one for one in found}


def test_every_message_is_counted_once_and_timed_to_its_consumer(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "metrics [1]" / "day=*"  # Spark sees patterns and columns in such names.

    def run_once() -> None:
        MetricsJob(spark, root, namesrv=cluster.address, topics="Metric.*").run(once=True)

    asyncio.run(produce(cluster.address, 50))
    cluster.send([Message(TRACE_TOPIC, text.encode()) for text in JAVAS_TRACES])
    run_once()
    orders = figures(root, "messages")[("MetricOrders", "", "")]
    assert orders.count == 50
    assert orders.bytes == sum(len(b"order %d" % number) for number in range(50))
    assert set(figures(root, "latency")) == {("MetricOrders", "", "stored")}
    (java,) = read_metrics(root, 0, JAVA_SENT_MS + 60_000, group="cg_tr")
    assert (java.topic, java.detail, java.count, java.max_ms) == ("TopicTest", "delivered", 1, 200)

    # A step that dies before its entry is there has counted nothing, and is done again.
    asyncio.run(consume(cluster.address, 50))
    cluster.send([Message("MetricOrders", b"late") for _ in range(7)])
    commit = MetricTable.commit

    def dies(self: MetricTable, number: int, minutes: Any, *rest: Any) -> None:
        commit.__globals__["_write"](self.root, number, number, minutes)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MetricTable, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            run_once()
    assert figures(root, "messages")[("MetricOrders", "", "")].count == 50
    run_once()
    assert figures(root, "messages")[("MetricOrders", "", "")].count == 57

    # What was sent in the first step is matched with what was consumed before the last one.
    latency = figures(root, "latency")
    assert latency[("MetricOrders", "", "stored")].count == 57
    delivered = latency[("MetricOrders", "billing", "delivered")]
    assert delivered.count == 50
    assert 0 < delivered.p50_ms <= delivered.p99_ms <= delivered.max_ms < 600_000
    assert latency[("MetricOrders", "billing", "handled")].count == 48
    assert {key: one.count for key, one in figures(root, "dead_letters").items()} == {
        ("MetricOrders", "billing", "after 1 tries"): 1
    }
    assert {key: one.count for key, one in figures(root, "failures").items()} == {
        ("MetricOrders", "billing", "exception"): 1,
        ("MetricOrders", "billing", "failed"): 1,
    }
    assert figures(root, "lag")[("MetricOrders", "billing", "")].count == 7


def test_the_buckets_that_spark_counts_in_are_those_that_are_read(spark: Any) -> None:
    import pyarrow as pa

    rng = random.Random(11)
    edges = [int(histogram.GROWTH**n) + more for n in range(1_400) for more in (-1, 0, 1, 2)]
    values = [-(2**63), -1, *range(5_000), *edges, *(rng.randrange(2**41) for _ in range(5_000))]
    found = spark.createDataFrame(pa.table({"ms": pa.array(values, pa.int64())})).selectExpr(
        "ms", f"{histogram.bucket_sql('ms')} as bucket"
    )
    table = found.toArrow()
    assert table["ms"].to_pylist() == values
    assert table["bucket"].to_pylist() == [histogram.bucket_of(value) for value in values]


KNOWN_MS = 1_794_830_400_000  # 2026-11-16T12:00Z
TOOK_MS = [3 * number for number in range(1, 1_001)]  # Shuffled below: nothing hangs on order.


def test_percentiles_are_those_of_latencies_that_are_known(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa

    took = random.Random(5).sample(TOOK_MS, len(TOOK_MS))
    messages = spark.createDataFrame(
        pa.table({"took": pa.array(took, pa.int64())})
    ).selectExpr(
        "'T' as topic", "binary('12345') as body",
        f"timestamp_millis({KNOWN_MS}) as born_time",
        f"timestamp_millis({KNOWN_MS} + took) as store_time",
    )  # fmt: skip
    records = [
        f"Pub\x01{KNOWN_MS}\x01R\x01p\x01T\x01{number}\x01\x01\x01\x01\x01{took_ms}\x01\x01\x01true\x02"
        f"SubBefore\x01{KNOWN_MS + 3 * took_ms}\x01R\x01g\x01r\x01{number}\x010\x01\x02"
        for number, took_ms in enumerate(took)
    ]
    bodies = pa.array([text.encode() for text in records], pa.binary())
    traces = queries.trace_records(spark.createDataFrame(pa.table({"body": bodies})))
    pairs = queries.matched(queries.published(traces), queries.consumed(traces))
    rows, waiting = queries.latencies(pairs, 0)
    assert waiting == 0
    with MetricTable(tmp_path) as table:
        table.commit(0, added(to_table([*queries.messages(messages), *rows])), [], {})
    latency = {
        one.detail: one
        for one in read_metrics(
            tmp_path, KNOWN_MS, KNOWN_MS + 60_000, metric="latency", step_ms=60_000
        )
    }
    assert set(latency) == {"stored", "delivered"}
    # Sent after `took`, delivered after three times that: twice of it on the way.
    for detail, times in (("stored", 1), ("delivered", 2)):
        one = latency[detail]
        assert (one.count, one.max_ms, one.mean_ms) == (1_000, 3_000 * times, 1_501.5 * times)
        assert one.p50_ms == pytest.approx(1_500 * times, rel=0.01)
        assert one.p90_ms == pytest.approx(2_700 * times, rel=0.01)
        assert one.p99_ms == pytest.approx(2_970 * times, rel=0.01)


def sent(at: object, message_id: str, took: object = 0) -> str:
    """A producer's record of a trace; here and below as clients of 4.9 write them."""
    fields = ("Pub", at, "R", "p", "T", message_id, "", "", "", "", took, "", "", "true")
    return "\x01".join(map(str, fields))


def given(at: object, message_id: str) -> str:
    return "\x01".join(map(str, ("SubBefore", at, "R", "g", "r", message_id, 0, "")))


def handled(at: object, message_id: str) -> str:
    return "\x01".join(map(str, ("SubAfter", "r", message_id, 1, "true", "", 0, at, "g")))


ODD_TIMES = (-60_000, -(10**15), 253_402_300_800_000, 10**15, 2**63 - 1, -(2**63), 2**63, "soon")


def test_odd_times_of_clients_are_passed_over_and_long_ones_cut(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa

    records = [sent(KNOWN_MS, "good", 5), given(KNOWN_MS + 12, "good"), handled(KNOWN_MS, "good")]
    for number, odd in enumerate(ODD_TIMES):
        records += [sent(odd, f"sent {number}", 1), given(KNOWN_MS, f"sent {number}")]
        records += [given(odd, f"given {number}"), handled(odd, f"given {number}")]
        records += [sent(KNOWN_MS, f"given {number}")]
    records += [sent(KNOWN_MS, "slow", 2**63 - 1), given(KNOWN_MS, "slow")]
    last_ms = 253_402_300_799_999
    records += [sent(0, "old"), given(KNOWN_MS, "old"), sent(1, "last"), given(last_ms, "last")]
    traces = spark.createDataFrame(pa.table({"body": ["\x02".join(records).encode()]}))
    messages = spark.sql(
        "select 'T' as topic, binary('12345') as body, timestamp_millis(ms) as born_time, "
        f"timestamp_millis({KNOWN_MS}L) as store_time from values (0L), ({KNOWN_MS - 3}L) as t(ms)"
    )
    with MetricTable(tmp_path) as table:
        rows, state = match(spark, table, 0, traces)
        table.commit(0, added(to_table([*queries.messages(messages), *rows])), state, {})
    found = {
        (one.at_ms, one.detail): (one.count, one.max_ms, one.mean_ms)
        for one in read_metrics(tmp_path, 0, last_ms, metric="latency")
    }
    year_ms = queries.LATENCY_MS_MAX
    last_minute_ms = last_ms // 60_000 * 60_000
    assert found == {
        (KNOWN_MS, "stored"): (2, year_ms, (year_ms + 3) / 2),
        (KNOWN_MS, "delivered"): (2, year_ms, (year_ms + 7) / 2),
        (KNOWN_MS, "handled"): (1, 0, 0),
        (KNOWN_MS, "unmatched"): (len(ODD_TIMES) + 1, None, None),
        (last_minute_ms, "delivered"): (1, year_ms, year_ms),
    }


def test_a_client_whose_clock_is_ahead_spoils_no_latency_of_others(
    spark: Any, tmp_path: Path
) -> None:
    import pyarrow as pa

    day_ms, last_ms = 86_400_000, 253_402_300_799_999
    steps = [
        [sent(KNOWN_MS, "early"), given(KNOWN_MS + day_ms, "ahead 1"), given(last_ms, "ahead 2")],
        [given(KNOWN_MS + 60_007, "early"), given(KNOWN_MS + 60_000, "late"),
         sent(KNOWN_MS + 60_000 + day_ms, "ahead 3"), given(KNOWN_MS + 60_000 + day_ms, "ahead 3")],
        [sent(KNOWN_MS + 59_000, "late")],
    ]  # fmt: skip
    with MetricTable(tmp_path) as table:
        for number, records in enumerate(steps):
            bodies = pa.table({"body": ["\x02".join(records).encode()]})
            traces = spark.createDataFrame(bodies)
            now_ms = KNOWN_MS + (number + 1) * 60_000
            rows, state = match(spark, table, number, traces, now_ms=now_ms)
            table.commit(number, added(to_table(rows)), state, {})
    found: Counter[tuple[int, str]] = Counter()
    for one in read_metrics(tmp_path, 0, last_ms, metric="latency"):
        found[one.at_ms, one.detail] += one.count
    assert found == {
        (KNOWN_MS + 60_000, "delivered"): 2,
        (KNOWN_MS + day_ms, "unmatched"): 1,
        (KNOWN_MS + day_ms + 60_000, "delivered"): 1,
        (last_ms // 60_000 * 60_000, "unmatched"): 1,
    }


def test_what_nobody_should_have_sent_stops_no_metrics(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    cluster.send([Message("DamagedOrders", b"12345") for _ in range(3)])
    good = [sent(now_ms, "id", 5), given(now_ms + 12, "id")]
    odd = [sent(now_ms, "odd"), given(-(10**15), "odd")]
    cluster.send([Message("DamagedTrace", "\x02".join(part).encode()) for part in (odd, good)])
    for topic in ("DamagedOrders", "DamagedTrace"):
        send_damaged(cluster, topic)
    MetricsJob(
        spark, tmp_path, namesrv=cluster.address, topics="DamagedO.*", trace_topic="DamagedTrace"
    ).run(once=True)
    orders = figures(tmp_path, "messages")[("DamagedOrders", "", "")]
    assert (orders.count, orders.bytes) == (4, 15)
    latency = figures(tmp_path, "latency")
    stored, delivered = latency[("DamagedOrders", "", "stored")], latency[("T", "g", "delivered")]
    assert (stored.count, stored.max_ms) == (4, queries.LATENCY_MS_MAX), "it was born in 1970"
    assert (delivered.count, delivered.max_ms) == (1, 7)


def test_log_lines_are_shipped_oneway_and_counted_by_minute_and_level(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
    monkeypatch.setenv("LOG_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    done = subprocess.run([sys.executable, SHIPPER], capture_output=True, text=True, check=True)
    assert done.stdout == "1000 lines shipped, 0 dropped\n"
    cluster.consume("LogTopic", 1_000, "arrived")  # Nobody confirms a oneway message.
    with running(SHIPPER.parent / "logs.yaml", spark, once=True) as run:
        run.wait()
    import pyarrow.parquet as parquet

    counts = {"ERROR": 0, "INFO": 0}
    for row in parquet.read_table(tmp_path / "lake" / "minutes.parquet").to_pylist():
        counts[row["level"]] += row["lines"]
        assert row["minute"].second == 0
    assert counts == {"ERROR": 100, "INFO": 900}


def test_a_table_equals_its_source_whatever_comes_twice_and_whenever_it_dies(
    spark: Any,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Two rounds of random changes in SQLite; the second ships all of the first once more.
    monkeypatch.syspath_prepend(str(CHANGES.parent))
    import cdc_demo

    replace, calls = Catalogue.replace, []

    def dies(self: Catalogue, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("dies before the entry is there")
        replace(self, *arguments)
        if len(calls) == 3:
            raise OSError("dies after it")

    deaths: list[str] = []

    def catch_up(table: Any, spark: Any, address: str) -> None:
        while True:
            try:
                cdc_demo.follow(table, spark, address)
                return
            except Exception as error:
                deaths.append(str(error))
                if "dies" not in deaths[-1]:
                    raise

    reports: list[QueryReport] = []
    registry, directory = CollectorRegistry(), RunDirectory(tmp_path / "run")
    watched = watch(spark, reports.append, registry=registry, state="cdc", directory=directory)
    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "replace", dies)
        cdc_demo.run(spark, cluster.address, tmp_path, catch_up=catch_up)
    assert len(deaths) == 2
    assert "both tables are the same" in capsys.readouterr().out

    # The listener has heard of every micro-batch that was done, and of every end.
    wait_for(lambda: len([one for one in reports if not one.is_active]) == 4)
    watched.stop()
    assert sum(report.rows for report in reports) == 450
    name = "changes CustomerChanges"
    assert {report.query for report in reports} == {name}
    assert reports[0].lag == 0
    assert {queue.topic for queue in reports[0].lags} == {"CustomerChanges"}
    assert [one.error is None for one in reports if not one.is_active].count(False) == 2
    text = generate_latest(registry).decode()
    assert f'skylark_pipeline_rows_total{{query="{name}"}} 450.0' in text
    assert directory.read("cdc").sinks[name].rows == 450

    broken = spark.sql(
        "select 'CustomerChanges' as topic, 'a' as broker, 0 as queue_id, 7L as queue_offset, "
        """binary('{"op": "insert", "seq": 9}') as body"""
    )
    table = ChangeTable(tmp_path / "customers [1]", key="id", columns="id int, name string")
    with pytest.raises(Exception, match="topic CustomerChanges broker a queue 0 offset 7 is no"):
        table.apply(broken)


def wait_for(condition: Callable[[], bool]) -> None:
    """Spark tells its listeners on a thread of its own, a moment later."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "nobody told"
        time.sleep(0.02)
