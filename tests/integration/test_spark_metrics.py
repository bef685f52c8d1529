"""Metrics, logs and change streams on Spark: one session and one cluster for all."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_world import Cluster, start_spark

import skylark
from skylark.model.message import Message
from skylark.spark import QueryReport, watch
from skylark.spark.catalogue import Catalogue
from skylark.spark.changes import ChangeTable
from skylark.spark.metrics import Figure, MetricsJob, read_metrics
from skylark.spark.metrics.table import MetricTable
from skylark.spark.pipelines import running

EXAMPLES = Path(__file__).parents[2] / "examples"
# What is run here of examples/: the first two by themselves, the others by what imports them.
SHIPPER, CHANGES = EXAMPLES / "pipelines/logs/ship.py", EXAMPLES / "pipelines/cdc/cdc_demo.py"
IMPORTED = ("pipelines/logs/minutes.py", "pipelines/cdc/change_log.py")

# Spark's own Python leaves sockets to the collector; none of that is ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("up"))
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    spark = start_spark(tmp_path_factory.mktemp("warehouse"))
    yield spark
    spark.stop()


async def traffic(address: str, count: int) -> None:
    """Traced orders; a group handles all but two: one fails for good, one at first."""
    done = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        if message.body == b"order 0":
            raise skylark.ToDlq("no such customer")
        if message.body == b"order 1" and message.reconsume_times == 0:
            raise ValueError("the first try fails")
        seen.append(message.body)
        if len(seen) >= count - 2:
            done.set()

    async with skylark.connect(address) as mq:
        async with mq.producer("shop", enable_msg_trace=True) as producer:
            for number in range(count):
                await producer.send(Message("MetricOrders", b"order %d" % number))
        async with mq.consumer(
            "billing", {"MetricOrders": "*"}, handle, consume_from="first", enable_msg_trace=True
        ):
            await asyncio.wait_for(done.wait(), 30)


def figures(root: Path, metric: str, **wanted: str) -> dict[tuple[str, str, str], Figure]:
    now = time.time_ns() // 1_000_000
    found = read_metrics(
        root, now - 3_600_000, now + 60_000, metric=metric, step_ms=86_400_000, **wanted
    )
    return {(one.topic, one.group, one.detail): one for one in found}


def run_once(spark: Any, cluster: Cluster, root: Path, **options: Any) -> None:
    MetricsJob(spark, root, namesrv=cluster.address, topics="Metric.*", **options).run(once=True)


def test_every_message_is_counted_once_and_timed_to_its_consumer(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(traffic(cluster.address, 50))
    run_once(spark, cluster, tmp_path, messages_max=40)
    orders = figures(tmp_path, "messages")[("MetricOrders", "", "")]
    assert orders.count == 50
    assert orders.bytes == sum(len(b"order %d" % number) for number in range(50))
    latency = figures(tmp_path, "latency")
    assert latency[("MetricOrders", "", "stored")].count == 50
    delivered = latency[("MetricOrders", "billing", "delivered")]
    assert delivered.count == 50
    assert 0 <= delivered.p50_ms <= delivered.p99_ms <= delivered.max_ms < 60_000
    assert latency[("MetricOrders", "billing", "handled")].count >= 48
    letters = figures(tmp_path, "dead_letters")
    assert {key: one.count for key, one in letters.items()} == {
        ("MetricOrders", "billing", "after 1 tries"): 1
    }
    failures = figures(tmp_path, "failures")
    assert failures[("MetricOrders", "billing", "exception")].count >= 1
    assert ("MetricOrders", "billing", "") in figures(tmp_path, "lag")

    # A step that dies before its entry is there has counted nothing, and is done again.
    cluster.send([Message("MetricOrders", b"late") for _ in range(7)])
    commit = MetricTable.commit

    def dies(self: MetricTable, number: int, minutes: Any, *rest: Any) -> None:
        commit.__globals__["_write"](self.root, number, number, minutes)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MetricTable, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            run_once(spark, cluster, tmp_path)
    assert figures(tmp_path, "messages")[("MetricOrders", "", "")].count == 50
    run_once(spark, cluster, tmp_path)
    run_once(spark, cluster, tmp_path)
    assert figures(tmp_path, "messages")[("MetricOrders", "", "")].count == 57


def test_log_lines_are_shipped_oneway_and_counted_by_minute_and_level(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
    monkeypatch.setenv("LOG_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    done = subprocess.run([sys.executable, SHIPPER], capture_output=True, text=True, check=True)
    assert done.stdout == "1000 lines shipped, 0 dropped\n"
    lines = spark.read.format("skylark").option("namesrv", cluster.address)
    lines = lines.option("topic", "LogTopic").schema("tag string").load()
    deadline = time.monotonic() + 20
    while lines.count() < 1_000 and time.monotonic() < deadline:
        time.sleep(0.1)  # Nobody confirms a oneway message.
    reports: list[QueryReport] = []
    seen = watch(spark, reports.append, registry=registry(), state="logs")
    try:
        with running(SHIPPER.parent / "logs.yaml", spark, once=True) as run:
            run.wait()
        deadline = time.monotonic() + 10
        while (not reports or reports[-1].is_active) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        seen.stop()
    import pyarrow.parquet as parquet

    counts = {"ERROR": 0, "INFO": 0}
    for row in parquet.read_table(tmp_path / "lake" / "minutes.parquet").to_pylist():
        counts[row["level"]] += row["lines"]
        assert row["minute"].second == 0
    assert counts == {"ERROR": 100, "INFO": 900}

    # The listener has told of the same query.
    assert sum(report.rows for report in reports) == 1_000
    told = next(report for report in reports if report.rows)
    assert (told.query, told.lag) == ("log-minutes/table", 0)
    assert {queue.topic for queue in told.lags} == {"LogTopic"}
    assert not reports[-1].is_active
    shown = json.loads((tmp_path / "run" / "logs.json").read_text())
    assert shown["sinks"]["log-minutes/table"]["rows"] == 1_000


def registry() -> Any:
    from prometheus_client import CollectorRegistry

    return CollectorRegistry()


def test_the_example_of_a_change_stream_ends_with_equal_tables(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CHANGES.parent))
    import cdc_demo

    assert cdc_demo.run(spark, cluster.address, tmp_path) > 50


def test_a_table_equals_its_source_whatever_comes_twice_and_whenever_it_dies(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(31)
    source: dict[int, str | None] = {}
    changes: list[dict[str, Any]] = []
    for seq in range(1, 151):
        key = rng.randrange(25)
        op = "insert" if key not in source else rng.choice(["update", "update", "delete"])
        row = {"id": key, "name": f"name {seq}" if rng.random() < 0.9 else None}
        if op == "delete":
            del source[key]
        else:
            source[key] = row["name"]
        changes.append({"op": op, "seq": seq, "row": row if op != "delete" else {"id": key}})
    again = [changes[rng.randrange(index + 1)] for index in range(60)]  # Old ones, after new ones.
    cluster.send([Message("LakeChanges", json.dumps(one).encode()) for one in [*changes, *again]])
    table = ChangeTable(tmp_path, key="id", columns="id int, name string", buckets=3)
    replace, calls = Catalogue.replace, []

    def dies(self: Catalogue, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("dies before the entry is there")
        replace(self, *arguments)
        if len(calls) == 3:
            raise OSError("dies after it")

    monkeypatch.setattr(Catalogue, "replace", dies)
    deaths: list[str] = []
    while True:
        query = table.follow(
            spark, "LakeChanges", namesrv=cluster.address, group="lake", once=True, messages_max=70
        )
        try:
            query.awaitTermination()
            break
        except Exception as error:
            deaths.append(str(error))
            if "dies" not in deaths[-1]:
                raise
    assert len(deaths) == 2
    assert {row.id: row.name for row in table.read(spark).collect()} == source

    cluster.send([Message("LakeChanges", b'{"op": "insert", "seq": 9}')])
    query = table.follow(spark, "LakeChanges", namesrv=cluster.address, group="lake", once=True)
    with pytest.raises(Exception, match=r"LakeChanges/broker-a/\d offset \d+ is no change"):
        query.awaitTermination()
