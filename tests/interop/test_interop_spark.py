"""Spark's rows are what the official Java consumer reads, byte for byte, from network and files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_programs import JavaProgram
from our_broker import our_cluster
from peers import ApacheNameServer, Peers, wait_until
from test_python_producer import GuardedBroker, GuardedPeers

pytest.importorskip("pyspark")

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from spark_contract import (
    BatchReading,
    BatchWriting,
    StreamReading,
    StreamWriting,
    forget_connections,
)
from spark_world import start_spark

from skylark.errors import BrokerError, ConfigError
from skylark.protocol.compression import CompressionType, with_compression
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access

pytestmark = [
    pytest.mark.interop,
    # Spark's own Python leaves sockets to the collector; none of that is ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC, GROUP = "SparkOfficial", "official"
TEXTS = frozenset(
    ["topic", "broker", "tag", "keys", "message_id", "born_host", "store_host", "offset_message_id"]
)
# The Java client puts these into every message it hands out; they are not stored.
CLIENTS_OWN = frozenset({"MIN_OFFSET", "MAX_OFFSET"})
SCHEMA = (
    "topic string, broker string, queue_id int, queue_offset bigint, body binary, tag string, "
    "keys string, properties map<string,string>, message_id string, born_time timestamp, "
    "store_time timestamp, reconsume_times int, flag int, sys_flag int, physical_offset bigint, "
    "born_host string, store_host string, offset_message_id string"
)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = start_spark(tmp_path_factory.mktemp("warehouse"))
    yield found
    found.stop()


def text_of(value: str) -> str | None:
    return None if value == "-" else bytes.fromhex(value).decode()


def official_row(line: str) -> dict[str, Any]:
    """What the Java consumer printed of one message, as a row has it."""
    found: dict[str, Any] = dict(word.split("=", 1) for word in line.split(" ")[2:])
    for name, value in found.items():
        if name in TEXTS:
            found[name] = text_of(value)
        elif name == "body":
            found[name] = bytes.fromhex(value)
        elif name == "properties":
            words = [text_of(word) for word in value.split(".")]
            pairs = dict(zip(words[::2], words[1::2], strict=True))
            found[name] = {key: pairs[key] for key in pairs if key not in CLIENTS_OWN}
        else:
            found[name] = int(value)
    return found


def spark_row(row: Any) -> dict[str, Any]:
    found = row.asDict()
    found["body"] = bytes(found["body"])
    for name in ("born_time", "store_time"):
        found[name] = round(found[name].timestamp() * 1_000)
    return found


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["topic"], row["queue_id"], row["queue_offset"]


def test_rows_are_what_the_official_consumer_reads(
    peers: Peers, spark: Any, tmp_path: Path
) -> None:
    with our_cluster(tmp_path, messageDelayLevel="1s 1s 1s 1s") as (name_server, _):
        with JavaProgram(
            peers, "SparkPeer", name_server.address, TOPIC, GROUP, home=tmp_path
        ) as program:
            program.wait_for_line("> done", timeout_s=90)
            lines = [line for line in program.lines if line.startswith("> ")]
        expected = sorted((official_row(line) for line in lines if " row " in line), key=place)
        assert f"> read {TOPIC} 38 of 38" in lines
        assert f"> read %RETRY%{GROUP} 1 of 1" in lines
        (store,) = Path(tmp_path).glob("**/commitlog")
        files = {"readFrom": "files", "storePath": str(store.parent)}
        for number, more in enumerate(({}, files)):
            options = {
                "namesrv": name_server.address, "topic": f"{TOPIC},%RETRY%{GROUP}",
                "startingOffsets": "earliest", **more,
            }  # fmt: skip
            batch = spark.read.format("skylark").schema(SCHEMA).options(**options).load()
            stream = spark.readStream.format("skylark").schema(SCHEMA).options(**options).load()
            writer = stream.writeStream.format("memory").queryName(f"rows_{number}")
            assert writer.trigger(availableNow=True).start().awaitTermination(120)
            for frame in (batch, spark.table(f"rows_{number}")):
                rows = [spark_row(row) for row in frame.collect()]
                assert sorted(rows, key=place) == expected
    compressed = {with_compression(1, kind) for kind in CompressionType}
    assert {row["sys_flag"] for row in expected} >= {0, *compressed}
    assert {row["reconsume_times"] for row in expected} == {0, 1}
    assert max(len(row["body"]) for row in expected) == 300_000


ACCOUNT = {"accessKey": "spark-1", "secretKey": "very-secret"}


@pytest.fixture
def guarded(peers: Peers, tmp_path: Path) -> Iterator[str]:
    """A name server and a broker of Apache's that asks for signatures."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses: []\n"
        "accounts:\n"
        f"- accessKey: {ACCOUNT['accessKey']}\n"
        f"  secretKey: {ACCOUNT['secretKey']}\n"
        "  defaultTopicPerm: PUB|SUB\n"
        "  defaultGroupPerm: PUB|SUB\n"
    )
    name_server = ApacheNameServer(peers, tmp_path / "ns")
    broker = GuardedBroker(
        GuardedPeers(peers.folder, tmp_path / "services"),
        tmp_path,
        name="guarded",
        name_servers=[name_server.address],
        settings={"aclEnable": "true"},
    )
    with name_server, broker:
        wait_until(lambda: broker.is_known_to(name_server), timeout_s=30, what="the broker")
        yield name_server.address
        forget_connections()


def test_apaches_brokers_are_read_and_written_at_least_once_by_an_account(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tasks freeze what their process has imported; this process has more to do.
    monkeypatch.setattr("gc.freeze", lambda: None)
    at_least_once = {**ACCOUNT, "topic": "ByAccount", "deliveryGuarantee": "at_least_once"}
    bodies = []
    for writing in (BatchWriting(guarded), StreamWriting(guarded)):
        for column in ({}, {"queue_id": 2}, {"sharding_key": "k"}, {"keys": ["a", "b"]}):
            rows = [{"body": b"%d" % (len(bodies) + n), **column} for n in range(50)]
            writing.write(rows, **at_least_once)
            bodies += [row["body"] for row in rows]
    for reading in (BatchReading(guarded), StreamReading(guarded)):
        options = {**ACCOUNT, "topic": "ByAccount", "group": "spark", "pullCount": 40}
        assert sorted(row["body"] for row in reading.rows(**options)) == sorted(bodies)
        with pytest.raises(BrokerError, match="signature"):
            reading.rows(**{**options, "secretKey": "guessed"})
    cluster = Cluster(Access(guarded, access_key="spark-1", secret_key="very-secret"))
    try:
        queues = cluster.queues(["ByAccount"])
        assert sum(cluster.committed("spark", queue) or 0 for queue in queues) == len(bodies)
    finally:
        cluster.close()
    for writing in (BatchWriting(guarded), StreamWriting(guarded)):
        with pytest.raises(ConfigError, match="exactly_once is not possible with these brokers"):
            writing.write(
                [{"body": b"x"}],
                **{**at_least_once, "deliveryGuarantee": "exactly_once", "sinkId": "s"},
            )
