"""Streams of Spark go on while the leader of a Raft group is killed, and nothing is lost by it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_chain import ends, read_archive, read_topic
from spark_servers import RaftServers
from spark_world import SPARKS_WARNINGS

from skylark.spark import archive as archives
from skylark.spark import start
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access, write_options
from skylark.spark.sink import Sender

pytestmark = SPARKS_WARNINGS
SOURCE, SINK = "GroupFrom", "GroupTo"
FAILOVERS = 2


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RaftServers]:
    with RaftServers(tmp_path / "group") as group:
        yield group


class Feed:
    """Sends rows of its own numbers all the time; what fails is sent again, perhaps twice."""

    def __init__(self, group: RaftServers) -> None:
        self._group = group
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: list[int] = []
        self.problems: list[Exception] = []

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        given = {"namesrv": self._group.address, "topic": SOURCE}
        cluster = Cluster(Access(self._group.address))
        try:
            sender = Sender(write_options(given, is_stream=False), cluster)
            while not self._over.wait(0.02):
                numbers = range(len(self.sent), len(self.sent) + 5)
                sender.send(pa.record_batch({"body": [b"%d" % number for number in numbers]}))
                sender.flush()
                self.sent += numbers
        except Exception as error:
            self.problems.append(error)
        finally:
            cluster.close()


def test_a_running_query_survives_the_failover_of_a_raft_group(
    spark: Any, group: RaftServers, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Feed(group) as feed:
        wait_for(lambda: feed.sent != [] or feed.problems != [])
        copying = copy(spark, group, tmp_path / "checkpoint")
        archiving = archives.archive(
            spark, lake, [SOURCE], namesrv=group.address, trigger="0.2 seconds"
        )
        queries = [copying, archiving]
        try:
            killed = []
            for _ in range(FAILOVERS):
                await_more(queries)
                killed.append(group.kill_leader())
                await_more(queries)
            assert feed.problems == []
            feed.stop()
            wait_for(lambda: have_all(group) or not all(query.isActive for query in queries))
            assert [query.exception() for query in queries] == [None, None]
            archiving.processAllAvailable()
        finally:
            for query in queries:
                query.stop()
    assert group.deaths >= FAILOVERS, f"killed {killed}"
    sent = read_topic(group.address, SOURCE)
    assert {int(row.body) for row in sent} == set(feed.sent)
    assert Counter(row.body for row in read_topic(group.address, SINK)) == Counter(
        row.body for row in sent
    )
    assert Counter(read_archive(lake)) == Counter(sent)


def copy(spark: Any, group: RaftServers, checkpoint: Path) -> Any:
    """Topic to topic, exactly once."""
    writer = (
        spark.readStream.format("skylark")
        .option("namesrv", group.address)
        .option("topic", SOURCE)
        .option("startingOffsets", "earliest")
        .load()
        .select("body")
        .writeStream.format("skylark")
        .option("namesrv", group.address)
        .option("topic", SINK)
        .option("deliveryGuarantee", "exactly_once")
        .trigger(processingTime="0.2 seconds")
    )
    return start(spark, writer, str(checkpoint))


def have_all(group: RaftServers) -> bool:
    """Whether as many messages are in the second topic as in the first."""
    cluster = Cluster(Access(group.address))
    try:
        sent, copied = (sum(ends(cluster, topic).values()) for topic in (SOURCE, SINK))
        return 0 < sent <= copied
    finally:
        cluster.close()


def await_more(queries: list[Any]) -> None:
    """Until each query has done two micro-batches more, the second planned after this call."""
    before = [batches_done(query) for query in queries]
    wait_for(
        lambda: all(
            batches_done(query) >= number + 2 or not query.isActive
            for query, number in zip(queries, before, strict=True)
        )
    )
    assert [query.exception() for query in queries] == [None] * len(queries)


def batches_done(query: Any) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "not within 90 s"
        time.sleep(0.05)
