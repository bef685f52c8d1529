"""A command and the jobs on a real standalone Spark cluster; in the end one of its two workers is
lost in the middle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
sys.path.append(str(Path(__file__).parents[1] / "integration"))

import pyarrow as pa
from spark_chain import ends, read_archive, read_topic
from spark_servers import Servers
from spark_world import SPARKS_WARNINGS, start_spark
from standalone_spark import Standalone

from skylark.spark import archive as archives
from skylark.spark.catalogue import Catalogue
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access, write_options
from skylark.spark.sink import Sender

pytestmark = [pytest.mark.interop, *SPARKS_WARNINGS]
ROWS = 2_000
ROWS_MAX = 100
LIMIT_S = 240.0
CLUSTER_SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as standalone:
        yield standalone


@pytest.fixture(scope="module")
def earlier(standalone: Standalone) -> list[int]:
    """How many executors each worker has started before there was a session of these tests."""
    return [standalone.executors(number) for number in range(2)]


@pytest.fixture(scope="module")
def spark(
    standalone: Standalone, earlier: list[int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    spark = start_spark(
        tmp_path_factory.mktemp("warehouse"),
        standalone.url,
        CLUSTER_SETTINGS,
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


def fill(servers: Servers, topic: str) -> None:
    options = write_options(
        {"namesrv": servers.address, "topic": topic, "batchBytes": "4k"}, is_stream=False
    )
    cluster = Cluster(options.access)
    try:
        queues = len(cluster.writable_queues(topic))
        rows = {
            "body": [b"row %d" % number for number in range(ROWS)],
            "queue_id": [number % queues for number in range(ROWS)],
        }
        sender = Sender(options, cluster)
        sender.send(pa.record_batch(rows))
        sender.flush()
    finally:
        cluster.close()


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_command_runs_on_the_cluster_that_its_master_names(
    standalone: Standalone, servers: Servers, tmp_path: Path
) -> None:
    fill(servers, "Asked")
    before = [standalone.executors(number) for number in range(2)]
    words = ["--master", standalone.url, "-n", servers.address, "--json"]
    for name, value in CLUSTER_SETTINGS.items():
        words += ["--conf", f"{name}={value}"]
    query = "select queue_id, count(distinct body) as bodies from Asked group by queue_id"
    done = subprocess.run(
        [sys.executable, "-m", "skylark.cli", "pipeline", "sql", query, *words],
        env={**os.environ, "SKYLARK_RUN_DIR": str(tmp_path / "run")},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) > 1
    assert sum(row["bodies"] for row in rows) == ROWS
    after = [standalone.executors(number) for number in range(2)]
    assert all(late > early for late, early in zip(after, before, strict=True)), "both workers work"


def test_a_worker_that_is_lost_in_the_middle_changes_nothing(
    spark: Any, standalone: Standalone, earlier: list[int], servers: Servers, tmp_path: Path
) -> None:
    fill(servers, "ClusterFrom")
    lake = tmp_path / "lake"
    into_topic = (
        spark.readStream.format("skylark")
        .option("namesrv", servers.address)
        .option("topic", "ClusterFrom")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", ROWS_MAX)
        .option("minPartitions", 4)
        .load()
        .select("body", "tag")
        .writeStream.format("skylark")
        .option("namesrv", servers.address)
        .option("topic", "ClusterTo")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    into_archive = archives.archive(
        spark, lake, ["ClusterFrom"], namesrv=servers.address, once=True, messages_max=ROWS_MAX
    )
    asking = Cluster(Access(servers.address))
    try:
        wait(
            lambda: copied(asking) >= ROWS // 5 and len(Catalogue(lake).entries()) >= 3,
            "both jobs come to their middle",
        )
        now = [standalone.executors(number) for number in range(2)]
        assert all(late > early for late, early in zip(now, earlier, strict=True)), "both work"
        assert standalone.kill_worker(1) >= 3, "with its executor, and that one's Python"
        assert copied(asking) < ROWS, "it was in the middle"
        assert sum(Catalogue(lake).ends().values()) < ROWS, "and so was the archive"
        for query in (into_topic, into_archive):
            assert query.awaitTermination(int(LIMIT_S))
    finally:
        for query in (into_topic, into_archive):
            query.stop()
        asking.close()
    source = read_topic(servers.address, "ClusterFrom")
    assert len(source) == ROWS
    sink = read_topic(servers.address, "ClusterTo")
    assert Counter(row.body for row in sink) == Counter(row.body for row in source)
    assert Counter(read_archive(lake)) == Counter(source)
    one = archives.table(spark, lake, "ClusterFrom", namesrv=servers.address)
    assert one.count() == ROWS


def copied(asking: Cluster) -> int:
    """How many rows the sink has."""
    return sum(ends(asking, "ClusterTo").values())
