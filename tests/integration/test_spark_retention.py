"""What Spark says of messages that a broker has really deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_servers import Servers
from spark_world import SPARKS_WARNINGS

from skylark.spark import start
from skylark.spark.cluster import Cluster
from skylark.spark.offsets import QueueKey
from skylark.spark.options import Access, write_options
from skylark.spark.sink import Sender

pytestmark = SPARKS_WARNINGS
TOPIC = "Forgetting"
FIRST, COUNT = 20, 400
SETTINGS = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "1000",
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": "200",
    "deleteCommitLogFilesInterval": "10",
    "destroyMapedFileIntervalForcibly": "200",
    "defaultTopicQueueNums": "1",
}


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Servers]:
    """A broker that deletes every file that it has filled."""
    with Servers(tmp_path / "forgetful", 1, settings=SETTINGS) as servers:
        yield servers


def fill(servers: Servers, first: int, end: int) -> None:
    cluster = Cluster(Access(servers.address))
    try:
        sender = Sender(
            write_options({"namesrv": servers.address, "topic": TOPIC}, is_stream=False), cluster
        )
        for number in range(first, end):  # Each by itself: a batch needs a file that holds it.
            sender.send(pa.record_batch({"body": [b"%d" % number + b" " * 500]}))
            sender.flush()
    finally:
        cluster.close()


def wait_deleted(servers: Servers) -> int:
    """The first offset that is left, once all that the stream has not read up to is gone."""
    cluster = Cluster(Access(servers.address))
    try:
        (queue,) = cluster.queues([TOPIC])
        return settled(cluster, queue)
    finally:
        cluster.close()


def settled(cluster: Cluster, queue: QueueKey) -> int:
    deadline = time.monotonic() + 60
    found = 0
    while found <= FIRST or found != cluster.min_offset(queue):
        assert time.monotonic() < deadline, f"the first message that is left is {found}"
        found = cluster.min_offset(queue)
        time.sleep(1.0)  # Several turns of the one who deletes.
    return found


def test_what_was_deleted_before_it_was_read_is_never_passed_over_in_silence(
    spark: Any, forgetful: Servers, tmp_path: Path
) -> None:
    def stream(**options: str) -> Any:
        frame = spark.readStream.format("skylark").option("namesrv", forgetful.address)
        frame = frame.option("topic", TOPIC).option("startingOffsets", "earliest")
        writer = (
            frame.options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .trigger(availableNow=True)
        )
        return start(spark, writer, str(tmp_path / "checkpoint"))

    def batch(**options: str) -> list[int]:
        frame = spark.read.format("skylark").option("namesrv", forgetful.address)
        given = json.dumps({TOPIC: {"broker-a": {"0": 0}}})
        frame = frame.option("topic", TOPIC).option("startingOffsets", given)
        return [row.queue_offset for row in frame.options(**options).load().collect()]

    fill(forgetful, 0, FIRST)
    first = stream()
    assert first.awaitTermination(120)
    fill(forgetful, FIRST, COUNT)
    left = wait_deleted(forgetful)

    with pytest.raises(Exception, match=rf"{TOPIC}/broker-a/0 {FIRST} to {left}") as caught:
        stream().awaitTermination(120)
    assert "failOnDataLoss=false" in str(caught.value)
    with pytest.raises(Exception, match=rf"{TOPIC}/broker-a/0 0 to {left}") as caught:
        batch()
    assert "failOnDataLoss=false" in str(caught.value)

    assert sorted(batch(failOnDataLoss="false")) == list(range(left, COUNT))
    assert stream(failOnDataLoss="false").awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    wanted = [*range(FIRST), *range(left, COUNT)]
    assert sorted(row.queue_offset for row in rows) == wanted
    assert sorted(int(bytes(row.body)) for row in rows) == wanted
