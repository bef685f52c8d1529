"""One store, two brokers: what ours wrote Apache's serves, and the other way round.

What must be equal after a rebuild of a store that Apache wrote:

    consume queues   every file that holds an entry, byte for byte, under its own name
    index            every file, byte for byte: header with its store times and offsets, slots,
                     entries; by order, as the names are the times at which files were made
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from java_programs import JavaProgram
from our_broker import OurBroker
from peers import (
    ApacheBroker,
    OurNameServer,
    PeerError,
    Peers,
    free_broker_port,
    wait_until,
)
from wire import Probe

from skylark.clock import SystemClock
from skylark.errors import StoreLocked
from skylark.protocol.properties import encode_properties
from skylark.protocol.record import decode_record, decode_records, pack_host
from skylark.store import MessageStore, OsFiles, PutMessage, PutStatus
from skylark.store.tools import check_store, detect_config, rebuild_store
from skylark.testing.stores import read_all

pytestmark = pytest.mark.interop

TOPICS = ("SwapA", "SwapB", "SwapC")
QUEUES = 4
# Both brokers must be told the sizes with which a store was written.
SIZES = {
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 40),
    "maxHashSlotNum": "101",
    "maxIndexNum": "300",
}


class StorePeer(JavaProgram):
    """Our Java program over the official client; see `java/StorePeer.java`."""

    def __init__(self, peers: Peers, home: Path, *arguments: str) -> None:
        super().__init__(peers, "StorePeer", *arguments, home=home)

    @classmethod
    def run(cls, peers: Peers, home: Path, *arguments: str) -> list[str]:
        """Run one command to its end and return its lines."""
        with cls(peers, home, *arguments) as process:
            assert process.wait_ended(120) == 0, process.tail()
            return list(process.lines)


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[OurNameServer]:
    with OurNameServer(tmp_path / "namesrv") as server:
        yield server


def sizes_of(root: Path):
    """What our tools find out by themselves must be what the broker was told."""
    config = detect_config(str(root))
    assert config.mapped_file_size_commit_log == int(SIZES["mappedFileSizeCommitLog"])
    assert config.consume_queue_file_bytes == int(SIZES["mappedFileSizeConsumeQueue"])
    return config


# Ours to Apache's.


def write_our_store(root: Path, port: int) -> dict[str, list[PutMessage]]:
    """3 topics of 4 queues: singles, batches, IPv6 producers, tags, keys, several files of all."""
    from dataclasses import replace

    from skylark.store import StoreConfig

    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=int(SIZES["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(SIZES["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(SIZES["maxHashSlotNum"]),
        max_index_num=int(SIZES["maxIndexNum"]),
    )
    config = replace(config, max_message_size=32 << 10)
    store_host = pack_host("127.0.0.1", port)
    hosts = (pack_host("127.0.0.1", 50_000), pack_host("2001:db8::17", 50_001))
    sent: dict[str, list[PutMessage]] = {topic: [] for topic in TOPICS}
    with MessageStore.open(config, OsFiles(), SystemClock()) as store:
        store.mark_open()
        number = 0
        while number < 900:
            group = []
            for _ in range(4 if number % 12 == 0 else 1):
                topic = TOPICS[number // 4 % 3]
                host = hosts[number % 5 == 0]
                properties = encode_properties(
                    {
                        "KEYS": f"key-{number} shared-{number % 7}",
                        "UNIQ_KEY": f"7F00000100{number:022X}",
                        "TAGS": f"Tag{number % 3}",
                        "CLUSTER": "interop",
                    }
                )
                group.append(
                    PutMessage(
                        topic,
                        number // 12 % QUEUES,
                        f"message-{number} ".encode() + bytes(range(256)) * (number % 3),
                        properties,
                        1_700_000_000_000 + number,
                        host,
                        store_host,
                        flag=number,
                    )
                )
                number += 1
            results = store.put_group(group) if len(group) > 1 else store.put(group)
            assert all(result.status is PutStatus.PUT_OK for result in results)
            for message in group:
                sent[message.topic].append(message)
    topics = {
        topic: {
            "order": False,
            "perm": 6,
            "readQueueNums": QUEUES,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": QUEUES,
        }
        for topic in TOPICS
    }
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": topics})
    )
    assert len(list((root / "commitlog").iterdir())) > 5
    assert len(list((root / "index").iterdir())) > 5
    return sent


@pytest.mark.parametrize("queues_are_there", [True, False])
def test_apache_serves_every_message_of_our_store(
    peers: Peers, tmp_path: Path, name_server: OurNameServer, queues_are_there: bool
) -> None:
    home = tmp_path / "apache"
    broker = ApacheBroker(
        peers, home, name="broker-a", name_servers=[name_server.address], settings=SIZES
    )
    sent = write_our_store(home / "store", broker.port)
    if not queues_are_there:
        for name in ("consumequeue", "index", "checkpoint"):
            place = home / "store" / name
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    with broker:
        broker.wait_registered([name_server])
        for topic, messages in sent.items():
            lines = StorePeer.run(
                peers, tmp_path / "client", "drain", name_server.address, topic, f"g-{topic}",
                str(len(messages)),
            )  # fmt: skip
            got = [line.split() for line in lines if line.startswith("message ")]
            assert f"received {len(messages)}" in lines, broker.tail()
            expected = []
            next_offset = dict.fromkeys(range(QUEUES), 0)
            for message in messages:
                offset = next_offset[message.queue_id]
                next_offset[message.queue_id] += 1
                number = message.flag
                host = "2001:db8:0:0:0:0:0:17" if number % 5 == 0 else "127.0.0.1"
                expected.append(
                    [
                        "message", str(message.queue_id), str(offset), host, f"Tag{number % 3}",
                        f"key-{number},shared-{number % 7}",
                        base64.b64encode(bytes(message.body)).decode(),
                    ]
                )  # fmt: skip
            assert sorted(got) == sorted(expected)
        messages = sent["SwapB"]
        keys = [f"key-{message.flag}" for message in messages[::40]]
        lines = StorePeer.run(
            peers, tmp_path / "client", "query", name_server.address, "SwapB", *keys, "shared-3"
        )
        found = {line.split()[1]: line.split()[2:] for line in lines if line.startswith("key ")}
        for message in messages[::40]:
            body = base64.b64encode(bytes(message.body)).decode()
            assert found[f"key-{message.flag}"] == ["1", body], broker.tail()
        assert int(found["shared-3"][0]) == sum(message.flag % 7 == 3 for message in messages)
        assert broker.stop(60) in (0, 143)
    # And back again: Apache has stopped cleanly, and what it left is sound.
    assert [str(finding) for finding in check_store(sizes_of(home / "store")).findings] == []


# Apache's to ours.


def pull_all(address: str, topic: str, queue_id: int) -> bytes:
    """Every record of a queue, as the broker sends them."""
    records = b""
    offset = 0
    with Probe(address) as probe:
        while True:
            answer = probe.call(
                11,
                {
                    "consumerGroup": "SELF_TEST_C_GROUP",
                    "topic": topic,
                    "queueId": str(queue_id),
                    "queueOffset": str(offset),
                    "maxMsgNums": "32",
                    "sysFlag": "4",
                    "commitOffset": "0",
                    "suspendTimeoutMillis": "0",
                    "subscription": "*",
                    "subVersion": "0",
                    "expressionType": "TAG",
                },
            )
            if answer.code != 0:
                assert answer.code in (19, 21), (answer.code, answer.remark)
                return records
            records += answer.body
            offset = int(answer.fields["nextBeginOffset"])


def all_records(address: str) -> dict[tuple[str, int], bytes]:
    return {
        (topic, queue_id): pull_all(address, topic, queue_id)
        for topic in TOPICS
        for queue_id in range(QUEUES)
    }


def derived(root: Path) -> dict[str, bytes]:
    """Queues by name, index files by order."""
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("consumequeue/*/*/*"))
        if path.read_bytes().strip(b"\0")
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        found[f"index/{number}"] = path.read_bytes()
    return found


def send_traffic(peers: Peers, home: Path, address: str, first: int, count: int) -> None:
    for topic in TOPICS:
        lines = StorePeer.run(
            peers, home, "traffic", address, topic, "swap", str(first), str(count)
        )
        assert f"sent {count}" in lines


def judge_apache_store(
    root: Path, expected: dict[tuple[str, int], bytes], *, was_killed: bool
) -> None:
    """Open a copy with ours: every message is there; a rebuild gives Apache's own bytes."""
    config = sizes_of(root)
    report = check_store(config)
    assert [str(finding) for finding in report.findings] == []
    before = derived(root)
    assert len(list((root / "commitlog").iterdir())) > 3
    assert sum(name.startswith("index/") for name in before) > 3

    rebuilt = root.with_name(root.name + "-rebuilt")
    shutil.copytree(root, rebuilt)
    rebuild_store(sizes_of(rebuilt), OsFiles(), SystemClock())
    after = derived(rebuilt)
    assert after.keys() == before.keys()
    for name in before:
        assert after[name] == before[name], name

    for place in (rebuilt, root):
        with MessageStore.open(sizes_of(place), OsFiles(), SystemClock()) as store:
            assert store.recovery.was_clean is (place is rebuilt or not was_killed)
            for (topic, queue_id), records in expected.items():
                assert b"".join(read_all(store, topic, queue_id)) == records
                for message in decode_records(records):
                    record = store.get_by_physical_offset(message.physical_offset)
                    assert record is not None
                    assert len(record) == message.size_bytes
            with_key = [
                message.physical_offset
                for (topic, _), records in expected.items()
                for message in decode_records(records)
                if topic == "SwapA" and "shared-3" in (message.properties.get("KEYS") or "").split()
            ]
            found = store.query("SwapA", "shared-3", count_max=64, begin_ms=0, end_ms=2**62)
            offsets = [decode_record(record).physical_offset for record in found.records]
            assert offsets == sorted(with_key)[-64:]
            assert len(offsets) > 40
    assert [str(finding) for finding in check_store(sizes_of(root)).findings] == []


def test_ours_reads_what_apache_wrote_after_a_stop_and_after_a_kill(
    peers: Peers, tmp_path: Path, name_server: OurNameServer
) -> None:
    home = tmp_path / "apache"
    broker = ApacheBroker(
        peers,
        home,
        name="broker-a",
        name_servers=[name_server.address],
        settings={**SIZES, "defaultTopicQueueNums": str(QUEUES)},
    )
    with broker:
        broker.wait_registered([name_server])
        send_traffic(peers, tmp_path / "client", name_server.address, 0, 350)
        stopped = all_records(broker.address)
        assert sum(len(decode_records(records)) for records in stopped.values()) == 3 * 350
        # While it runs, too.
        live = check_store(sizes_of(home / "store"), wait=lambda: time.sleep(0.1))
        assert (str(live.state), [str(f) for f in live.findings]) == ("running", [])
        assert live.record_count >= 3 * 350
        broker.stop(60)
        shutil.copytree(home / "store", tmp_path / "stopped")

        broker.start()
        broker.wait_registered([name_server])
        send_traffic(peers, tmp_path / "client", name_server.address, 1000, 150)
        killed = all_records(broker.address)
        broker.kill()
        shutil.copytree(home / "store", tmp_path / "killed")
    judge_apache_store(tmp_path / "stopped", stopped, was_killed=False)
    judge_apache_store(tmp_path / "killed", killed, was_killed=True)

    # Our broker on the very directory that Apache's left behind.
    ours = OurBroker(
        home, name="broker-a", name_servers=[name_server.address], settings=SIZES,
    )  # fmt: skip
    with ours:
        assert all_records(ours.address) == killed
        lines = StorePeer.run(
            peers, tmp_path / "client", "drain", name_server.address, "SwapC", "reader", "500"
        )
        assert "received 500" in lines


# One at a time.


def test_our_broker_refuses_a_store_that_apache_has_open(
    peers: Peers, tmp_path: Path, name_server: OurNameServer
) -> None:
    home = tmp_path / "apache"
    with ApacheBroker(
        peers, home, name="broker-a", name_servers=[name_server.address], settings=SIZES
    ):
        config = sizes_of(home / "store") if list((home / "store" / "commitlog").glob("0*")) else (
            detect_config(str(home / "store"))
        )  # fmt: skip
        with pytest.raises(StoreLocked, match="another process has the store open"):
            MessageStore.open(config, OsFiles(), SystemClock())
        with pytest.raises(StoreLocked):
            rebuild_store(config, OsFiles(), SystemClock())
        ours = OurBroker(home, name="broker-a", name_servers=[name_server.address], settings=SIZES)
        with pytest.raises(PeerError, match="another process has the store open; stop that broker"):
            ours.start()


def test_apache_refuses_a_store_that_ours_has_open(
    peers: Peers, tmp_path: Path, name_server: OurNameServer
) -> None:
    home = tmp_path / "broker"
    port = free_broker_port()
    with OurBroker(
        home, name="broker-a", name_servers=[name_server.address], port=port, settings=SIZES
    ) as ours:
        apache = ApacheBroker(
            peers, home, name="broker-a", name_servers=[name_server.address], settings=SIZES
        )
        with pytest.raises(PeerError, match="Lock failed"):
            apache.start()
        assert wait_until(lambda: ours.running, timeout_s=1, what="our broker")
        assert os.path.exists(home / "store" / "lock")
        with Probe(ours.address) as probe:
            assert probe.call(28).code == 0
