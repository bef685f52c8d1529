"""Metrics, logs and change streams on Spark: one session and one cluster for all."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from prometheus_client import CollectorRegistry, generate_latest
from spark_world import Cluster, start_spark

import skylark
from skylark.model.message import Message
from skylark.spark import QueryReport, watch
from skylark.spark.catalogue import Catalogue
from skylark.spark.changes import ChangeTable
from skylark.spark.metrics import Figure, MetricsJob, read_metrics
from skylark.spark.metrics.table import MetricTable
from skylark.spark.pipelines import RunDirectory, running

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
    def run_once() -> None:
        MetricsJob(spark, tmp_path, namesrv=cluster.address, topics="Metric.*").run(once=True)

    asyncio.run(produce(cluster.address, 50))
    run_once()
    orders = figures(tmp_path, "messages")[("MetricOrders", "", "")]
    assert orders.count == 50
    assert orders.bytes == sum(len(b"order %d" % number) for number in range(50))
    assert set(figures(tmp_path, "latency")) == {("MetricOrders", "", "stored")}

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
    assert figures(tmp_path, "messages")[("MetricOrders", "", "")].count == 50
    run_once()
    assert figures(tmp_path, "messages")[("MetricOrders", "", "")].count == 57

    # What was sent in the first step is matched with what was consumed before the last one.
    latency = figures(tmp_path, "latency")
    assert latency[("MetricOrders", "", "stored")].count == 57
    delivered = latency[("MetricOrders", "billing", "delivered")]
    assert delivered.count == 50
    assert 0 < delivered.p50_ms <= delivered.p99_ms <= delivered.max_ms < 600_000
    assert latency[("MetricOrders", "billing", "handled")].count == 48
    assert {key: one.count for key, one in figures(tmp_path, "dead_letters").items()} == {
        ("MetricOrders", "billing", "after 1 tries"): 1
    }
    assert {key: one.count for key, one in figures(tmp_path, "failures").items()} == {
        ("MetricOrders", "billing", "exception"): 1,
        ("MetricOrders", "billing", "failed"): 1,
    }
    assert figures(tmp_path, "lag")[("MetricOrders", "billing", "")].count == 7


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
    reports: list[QueryReport] = []
    registry = CollectorRegistry()
    directory = RunDirectory(tmp_path / "run")
    watched = watch(spark, reports.append, registry=registry, state="cdc", directory=directory)
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

    # The listener has heard of every micro-batch that was done, and of every end.
    wait_for(lambda: len([one for one in reports if not one.is_active]) == 3)
    watched.stop()
    assert sum(report.rows for report in reports) == 210
    first = reports[0]
    assert (first.query, first.rows, first.lag) == ("changes LakeChanges", 70, 140)
    assert {queue.topic for queue in first.lags} == {"LakeChanges"}
    assert [one.error is None for one in reports if not one.is_active] == [False, False, True]
    assert b'skylark_pipeline_rows_total{query="changes LakeChanges"} 210.0' in generate_latest(
        registry
    )
    assert directory.read("cdc").sinks["changes LakeChanges"].rows == 210

    broken = spark.sql(
        "select 'LakeChanges' as topic, 'a' as broker, 0 as queue_id, 7L as queue_offset, "
        """binary('{"op": "insert", "seq": 9}') as body"""
    )
    with pytest.raises(Exception, match="LakeChanges/a/0 offset 7 is no change"):
        table.apply(broken)


def wait_for(condition: Callable[[], bool]) -> None:
    """Spark tells its listeners on a thread of its own, a moment later."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "nobody told"
        time.sleep(0.02)
