"""What Spark's tasks and drivers ask of brokers that come and go; Spark itself is not needed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType
from spark_servers import Servers

from skylark.errors import ConfigError, TransportError
from skylark.protocol.codes import RequestCode
from skylark.spark import source
from skylark.spark.cluster import Cluster, pull_fields
from skylark.spark.options import Access, read_options, write_options
from skylark.spark.sink import Sender
from skylark.spark.source import SkylarkStreamReader
from skylark.spark.transactions import BatchName, Decisions, Staged

REPLICAS = {"haClusterKey": "of this test", "slaveSyncIntervalMs": "200"}
SCHEMA = StructType().add("queue_id", IntegerType()).add("queue_offset", LongType())
SCHEMA = SCHEMA.add("body", BinaryType())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


_asking: list[Cluster] = []


def asked(servers: Servers, retry_ms: int = 30_000) -> Cluster:
    _asking.append(Cluster(Access(servers.address, retry_ms=retry_ms)))
    return _asking[-1]


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    """Close what a test has opened, and a reader has kept as a worker does."""
    yield
    hang_up_all()


def hang_up_all() -> None:
    for cluster in [*_asking, *source._clusters.values()]:
        cluster.close()
    _asking.clear()
    source._clusters.clear()


def fill(servers: Servers, topic: str, count: int) -> None:
    cluster = asked(servers)
    options = write_options({"namesrv": servers.address, "topic": topic}, is_stream=False)
    sender = Sender(options, cluster)
    queues = len(cluster.writable_queues(topic))
    sender.send(
        pa.record_batch(
            {
                "body": [b"%d" % number for number in range(count)],
                "queue_id": [number % queues for number in range(count)],
            }
        )
    )
    sender.flush()
    deadline = time.monotonic() + 30
    while not is_at_all_brokers(cluster, topic):
        assert time.monotonic() < deadline, "the topic is not known at all brokers"
        time.sleep(0.02)


def is_at_all_brokers(cluster: Cluster, topic: str) -> bool:
    """Whether the name server has heard of a new topic from every broker."""
    try:
        return {queue.broker for queue in cluster.queues([topic])} == set(cluster.brokers())
    except ConfigError:
        return False


def stream(servers: Servers, topic: str, **options: str) -> SkylarkStreamReader:
    given = {"namesrv": servers.address, "startingOffsets": "earliest", **options}
    if "topicsPattern" not in given:
        given["topic"] = topic
    return SkylarkStreamReader(read_options(given, is_stream=True), SCHEMA)


def read(reader: SkylarkStreamReader, parts: object) -> list[int]:
    return sorted(
        int(row["body"])
        for part in parts  # type: ignore[attr-defined]
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


def test_decisions_are_asked_of_one_broker_also_while_it_is_away(servers: Servers) -> None:
    assert asked(servers).coordinator() == "broker-a"
    take_away(servers, "broker-a")
    try:
        assert asked(servers).broker_names() == ["broker-b"]
        # The next by name knows nothing of what broker-a has decided.
        assert asked(servers).coordinator() == "broker-a"
        with pytest.raises(TransportError, match="keeps the decisions of exactly-once sinks"):
            Decisions(asked(servers, retry_ms=200)).find(BatchName("sink", 0, 0))
    finally:
        servers.away.clear()
    servers.wait_serving()
    assert Decisions(asked(servers)).find(BatchName("sink", 0, 0)) is None


def take_away(servers: Servers, name: str) -> None:
    """Kill a broker, and wait until the name server does not know it any more."""
    servers.away.add(name)
    (broker,) = [one for one in servers.brokers if one.name == name]
    deadline = time.monotonic() + 30
    with contextlib.suppress(ProcessLookupError):  # It may be between two lives.
        os.kill(int(broker.pid_file.read_text()), signal.SIGKILL)
    while name in servers.registered():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_decision_that_a_task_has_found_is_never_replaced_by_an_empty_one(
    servers: Servers,
) -> None:
    decisions = Decisions(asked(servers))
    with pytest.raises(TransportError, match="does not know any more"):
        # One task found the batch decided; then a power cut took the decision with it.
        decisions.decide([Staged("lost", 3, 0, "", {}), Staged("lost", 3, 1, "other", {})])
    assert decisions.find(BatchName("lost", 3, 0)) is None


@pytest.mark.parametrize("by", [{}, {"topicsPattern": "Restarts[B]yPattern"}])
def test_a_reader_goes_on_while_brokers_restart(servers: Servers, by: dict[str, str]) -> None:
    topic = "RestartsByPattern" if by else "Restarts"
    fill(servers, topic, 400)
    reader = stream(servers, topic, group="restarts", minPartitions="4", pullCount="20", **by)
    start = reader.initialOffset()
    deaths = servers.deaths
    for away in (["broker-a"], ["broker-a", "broker-b"]):
        for name in away:
            take_away(servers, name)
        threading.Timer(0.5, servers.away.clear).start()
        hang_up_all()  # As after a restart of the query, in a process that has seen nothing yet.
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert read(reader, reader.partitions(start, end)) == list(range(400))
        reader.commit(end)
    assert servers.deaths >= deaths + 2
    servers.wait_serving()
    cluster = asked(servers)
    for queue in cluster.queues([topic]):
        assert cluster.committed("restarts", queue) == cluster.max_offset(queue)


def test_progress_that_a_broker_has_forgotten_is_committed_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(servers, "Forgotten", 40)
    reader = stream(servers, "Forgotten", group="forgotten")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.commit(end)
    cluster = asked(servers)
    queues = cluster.queues(["Forgotten"])
    for queue in queues:  # As after a crash: nothing of it was on the disk yet.
        fields = {"consumerGroup": "forgotten", "commitOffset": "0", "reset": "true"}
        cluster.ask_queue(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert {cluster.committed("forgotten", queue) for queue in queues} == {0}
    reader.latestOffset(end, reader.getDefaultReadLimit())
    assert {cluster.committed("forgotten", queue) for queue in queues} == {0}
    monkeypatch.setattr(source, "_COMMIT_ALL_S", 0.0)
    reader.latestOffset(end, reader.getDefaultReadLimit())  # With nothing new to read.
    assert {cluster.committed("forgotten", queue) for queue in queues} == {10}


def test_a_reader_goes_on_at_the_replica_of_a_master_that_is_gone(tmp_path: Path) -> None:
    with Servers(tmp_path, 1, replicas=True, settings=REPLICAS) as servers:
        fill(servers, "Failover", 200)
        reader = stream(servers, "Failover", group="failover", minPartitions="3", pullCount="20")
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        parts = reader.partitions(start, end)
        cluster = asked(servers)
        replica = cluster.brokers()["broker-a"].addresses[1]
        deadline = time.monotonic() + 30
        while not has_caught_up(servers, replica, 200):
            assert time.monotonic() < deadline, "the replica does not follow"
            time.sleep(0.05)
        servers.kill("broker-a")
        assert read(reader, parts) == list(range(200))
        # A new micro-batch is planned there too, and nothing seems lost.
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def has_caught_up(servers: Servers, replica: str, count: int) -> bool:
    """Whether a replica has all messages, and the topic they are of."""
    cluster = asked(servers)
    wire = cluster.wire(replica)
    found = 0
    for queue in cluster.queues(["Failover"]):
        wire.ask(RequestCode.PULL_MESSAGE, pull_fields(queue, 0, 1_000, 1 << 20))
        answer = wire.answer()
        found += int(answer.fields["nextBeginOffset"]) if answer.code == 0 else 0
    return found == count
