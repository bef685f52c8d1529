"""The HA stream between Apache's brokers and ours, both ways; and clients over both copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from our_broker import OurBroker
from peers import ApacheBroker, JavaClient, MqAdmin, OurNameServer, PeerError, Peers, wait_until
from wire import Probe, loads_lenient

pytestmark = pytest.mark.interop

COUNT = 2_000
FILE_BYTES = 64 << 10
SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(20 * 400),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "brokerIP2": "127.0.0.1",
}


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[OurNameServer]:
    with OurNameServer(tmp_path / "namesrv") as server:
        yield server


def log_bytes(broker: ApacheBroker | OurBroker, start: int, end: int) -> bytes:
    """What a broker's files hold of the log; start is the beginning of a file."""
    folder = broker.home / "store" / "commitlog"
    pieces = []
    for offset in range(start, end, FILE_BYTES):
        content = (folder / f"{offset:020d}").read_bytes()
        assert len(content) == FILE_BYTES
        pieces.append(content)
    return b"".join(pieces)[: end - start]


def extent(broker: ApacheBroker | OurBroker) -> tuple[int, int]:
    """Where a broker's log begins and ends."""
    with Probe(broker.address) as probe:
        table = loads_lenient(probe.call(28).body)["table"]
    return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])


def wait_level(master: ApacheBroker | OurBroker, slave: ApacheBroker | OurBroker) -> int:
    """Wait until both logs end at the same place; return it."""

    def is_level() -> int:
        ends = extent(master)[1], extent(slave)[1]
        return ends[0] if ends[0] == ends[1] else 0

    try:
        return wait_until(is_level, timeout_s=40, what="equally long logs", every_s=0.2)
    except PeerError as error:
        raise PeerError(f"{error}: {extent(master)} {extent(slave)}\n{slave.tail(60)}") from None


def produce(peers: Peers, home: Path, name_server: OurNameServer, topic: str) -> None:
    with JavaClient(
        peers, home, "produce", name_server.address, topic, "producers", str(COUNT)
    ) as client:
        assert client.wait_for_line("sent", timeout_s=120) == f"sent {COUNT} failed 0"


def wait_followed(master: OurBroker) -> None:
    wait_until(
        lambda: b'"haFollowerCount":"1"' in _runtime(master),
        timeout_s=30,
        what=f"a slave at {master.name}",
    )


def wait_following(slave: OurBroker) -> None:
    wait_until(
        lambda: b'"haIsFollowing":"true"' in _runtime(slave),
        timeout_s=30,
        what=f"{slave.name} at its master",
    )


def slave_settings() -> dict[str, str]:
    return {**SETTINGS, "brokerRole": "SLAVE", "brokerId": "1"}


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_apaches_slave_follows_our_master_and_holds_the_same_bytes(
    peers: Peers, tmp_path: Path, name_server: OurNameServer, role: str
) -> None:
    servers = [name_server.address]
    master = OurBroker(
        tmp_path / "master",
        name="group-a",
        name_servers=servers,
        settings={**SETTINGS, "brokerRole": role},
    )
    slave = ApacheBroker(
        peers,
        tmp_path / "slave",
        name="group-a",
        name_servers=servers,
        broker_id=1,
        settings=SETTINGS,
    )
    with master, slave:
        slave.wait_registered([name_server])
        wait_followed(master)
        produce(peers, tmp_path / "client", name_server, "Crossed")
        end = wait_level(master, slave)
        slave.stop()
        slave.start()  # It goes on where it was.
        wait_followed(master)
        produce(peers, tmp_path / "client", name_server, "Crossed")
        end = wait_level(master, slave)
        start = extent(slave)[0]
        assert end > 5 * FILE_BYTES
        assert start == 0
        assert log_bytes(slave, start, end) == log_bytes(master, start, end)
        # Its tables are copied every ten seconds.
        wait_until(lambda: _topics(slave) >= {"Crossed"}, timeout_s=30, what="topics at the slave")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_our_slave_follows_apaches_master_and_holds_the_same_bytes(
    peers: Peers, tmp_path: Path, name_server: OurNameServer, flush: str
) -> None:
    servers = [name_server.address]
    master = ApacheBroker(
        peers,
        tmp_path / "master",
        name="group-a",
        name_servers=servers,
        settings={**SETTINGS, "brokerRole": "SYNC_MASTER"},
    )
    slave = OurBroker(
        tmp_path / "slave",
        name="group-a",
        name_servers=servers,
        settings={**slave_settings(), "flushDiskType": flush},
    )
    with master:
        master.wait_registered([name_server])
        with slave:
            wait_following(slave)
            produce(peers, tmp_path / "client", name_server, "Crossed")
            wait_level(master, slave)
            slave.kill()
            slave.start()
            wait_following(slave)
            produce(peers, tmp_path / "client", name_server, "Crossed")
            end = wait_level(master, slave)
            start = extent(slave)[0]
            assert start == 0
            assert log_bytes(slave, start, end) == log_bytes(master, start, end)
            wait_until(
                lambda: _topics(slave) >= {"Crossed"}, timeout_s=30, what="topics at the slave"
            )
            # And a reader finds everything there when the master is gone.
            master.kill()
            with JavaClient(
                peers, tmp_path / "reader", "consume", name_server.address, "Crossed", "readers",
                str(COUNT), "60",
            ) as client:  # fmt: skip
                line = client.wait_for_line("received", timeout_s=90)
            assert line.startswith(f"received {COUNT} "), slave.tail()


def _runtime(broker: ApacheBroker | OurBroker) -> bytes:
    with Probe(broker.address) as probe:
        return probe.call(28).body


def _topics(broker: ApacheBroker | OurBroker) -> set[str]:
    with Probe(broker.address) as probe:
        return set(loads_lenient(probe.call(21).body)["topicConfigTable"])


def test_operators_see_both_members_of_the_group(
    peers: Peers, tmp_path: Path, name_server: OurNameServer
) -> None:
    """Two brokers of one name and different ids are one group; mqadmin lists both (BR-04)."""
    servers = [name_server.address]
    master = OurBroker(tmp_path / "master", name="group-a", name_servers=servers, settings=SETTINGS)
    slave = OurBroker(
        tmp_path / "slave", name="group-a", name_servers=servers, settings=slave_settings()
    )
    with master, slave:
        listed = MqAdmin(peers, tmp_path / "admin").run(name_server.address, "clusterList")
        rows = [line.split() for line in listed.splitlines() if "group-a" in line]
        assert sorted(row[2] for row in rows) == ["0", "1"], listed


RATE = 100


def test_consumption_goes_on_at_the_slave_and_back_without_rewind_or_gap(
    peers: Peers, tmp_path: Path, name_server: OurNameServer
) -> None:
    """Two masters with a slave each, the official producer and consumer; one master is killed."""
    servers = [name_server.address]
    brokers: dict[str, OurBroker] = {}
    for name in ("group-a", "group-b"):
        brokers[f"{name}-master"] = OurBroker(
            tmp_path / f"{name}-master",
            name=name,
            name_servers=servers,
            settings={**SETTINGS, "brokerRole": "SYNC_MASTER"},
        )
        brokers[f"{name}-slave"] = OurBroker(
            tmp_path / f"{name}-slave", name=name, name_servers=servers, settings=slave_settings()
        )
    producer = JavaClient(
        peers, tmp_path / "producer", "stream", name_server.address, "Moved", "P", str(RATE)
    )
    consumer = JavaClient(
        peers, tmp_path / "consumer", "listen", name_server.address, "Moved", "G", "concurrent"
    )
    try:
        for broker in brokers.values():
            broker.start()
        for name in ("group-a", "group-b"):
            wait_followed(brokers[f"{name}-master"])
            with Probe(brokers[f"{name}-master"].address) as probe:
                fields = {
                    "topic": "Moved", "defaultTopic": "TBW102", "readQueueNums": "4",
                    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0", "order": "false",
                }  # fmt: skip
                assert probe.call(17, fields).code == 0
        consumer.start()
        consumer.wait_for_line("ready", timeout_s=60)
        producer.start()

        def got() -> list[str]:
            return [line[4:] for line in list(consumer.lines) if line.startswith("got ")]

        wait_until(lambda: len(got()) > 3 * RATE, timeout_s=60, what="consumption")
        victim = brokers["group-a-master"]
        victim.kill()
        # Its slave is the only one left that has the messages of group-a: they arrive all the same.
        at_death = len(got())
        wait_until(lambda: len(got()) > at_death + 5 * RATE, timeout_s=60, what="consumption")
        seen = len(set(got()))
        with JavaClient(
            peers, tmp_path / "other", "consume", name_server.address, "Moved", "H", str(seen), "60"
        ) as other:
            line = other.wait_for_line("received", timeout_s=90)
            assert int(line.split()[1]) >= seen, "a new group does not get all from the slave"
        victim.start()
        wait_followed(victim)
        after = len(got())
        wait_until(lambda: len(got()) > after + 5 * RATE, timeout_s=60, what="consumption again")
        producer.end_input()
        line = producer.wait_for_line("sent", timeout_s=60)
        sent = int(line.split()[1])
        wait_until(lambda: len(set(got())) >= sent, timeout_s=90, what=f"all of {sent} messages")
        received = got()
        doubles = len(received) - len(set(received))
        print(f"{line}; received {len(set(received))}, {doubles} doubles")
        # At least once: what was in flight when the master died may come twice, old ones may not.
        assert doubles <= RATE
        # No rewind: nothing consumed before the death comes again after the return.
        assert not set(received[: at_death - RATE]) & set(received[after:])
    finally:
        for process in (producer, consumer, *brokers.values()):
            process.kill()
