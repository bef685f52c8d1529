"""RocketMQ's official TransactionMQProducer on our broker, and one store under both brokers."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from java_programs import JavaProgram
from our_broker import OurBroker, our_cluster
from peers import ApacheBroker, OurNameServer, Peers, wait_until

import skylark.sync
from skylark import Message, StoredMessage
from skylark.errors import SkylarkError

pytestmark = pytest.mark.interop

COUNT = 20
QUICK = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
SLOW = {"transactionTimeOut": "6000", "transactionCheckInterval": "3600000"}
SIZES = {"maxIndexNum": "20000", "maxHashSlotNum": "5000"}
NAMES = {f"message-{number}" for number in range(COUNT)}


class TransactionPeer(JavaProgram):
    """A producer process; see `java/TransactionPeer.java`."""

    def __init__(
        self, peers: Peers, home: Path, address: str, topic: str, group: str,
        *, count: int = COUNT, executed: str = "commit", checked: str = "unknown",
    ) -> None:  # fmt: skip
        super().__init__(
            peers, "TransactionPeer", "send", address, topic, group, str(count), executed, checked,
            home=home,
        )  # fmt: skip

    def wait_sent(self) -> None:
        self.wait_for_line("sent ", 60)

    @property
    def checked(self) -> list[str]:
        """The bodies it was asked about."""
        return [line.split()[1] for line in self.lines if line.startswith("checked ")]


def seen(address: str, topic: str) -> Counter[str]:
    """Every message of a topic, by its body."""
    found: Counter[str] = Counter()
    with skylark.sync.connect(address) as mq, mq.pull_consumer(f"reader-{topic}") as reader:
        for queue in mq.fetch_queues(topic):
            offset, end = 0, mq.max_offset(queue)
            while offset < end:
                pulled = reader.pull(queue, offset=offset)
                found.update(message.body.decode() for message in pulled.messages)
                offset = pulled.next_begin_offset
    return found


def wait_seen(address: str, topic: str, names: set[str], timeout_s: float = 60) -> None:
    """Wait until exactly these are there, once each."""

    def are_there() -> bool:
        try:
            return set(seen(address, topic)) >= names
        except SkylarkError:
            return not names

    wait_until(are_there, timeout_s=timeout_s, what=f"{len(names)} messages in {topic}")
    assert seen(address, topic) == Counter(dict.fromkeys(names, 1))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, OurBroker]]:
    home = tmp_path_factory.mktemp("transactions")
    with our_cluster(home, **QUICK) as (name_server, broker):
        yield name_server.address, home, broker


@pytest.mark.parametrize("release", ["4", "5"])
def test_a_java_producer_commits(
    peers: Peers, clients5: Peers, place: tuple[str, Path, OurBroker], release: str
) -> None:
    address, home, _ = place
    topic, client = f"Committed-{release}", {"4": peers, "5": clients5}[release]
    with TransactionPeer(client, home / "java", address, topic, f"g-commit-{release}") as java:
        java.wait_sent()
        wait_seen(address, topic, NAMES)
        assert java.checked == []


def test_a_java_producer_rolls_back(peers: Peers, place: tuple[str, Path, OurBroker]) -> None:
    address, home, _ = place
    with TransactionPeer(
        peers, home / "java", address, "RolledBack", "g-rollback", executed="rollback"
    ) as java:
        java.wait_sent()
        java.end_input()
        assert java.wait_ended() == 0
        assert java.checked == []
    with skylark.sync.connect(address) as mq, mq.producer("others") as producer:
        producer.send(Message("RolledBack", b"plain"))
    assert seen(address, "RolledBack") == Counter({"plain": 1})


@pytest.mark.parametrize("release", ["4", "5"])
@pytest.mark.parametrize(("checked", "names"), [("commit", NAMES), ("rollback", set())])
def test_a_java_producer_that_does_not_know_is_asked(
    peers: Peers, clients5: Peers, place: tuple[str, Path, OurBroker],
    checked: str, names: set[str], release: str,
) -> None:  # fmt: skip
    address, home, _ = place
    topic, client = f"Asked-{checked}-{release}", {"4": peers, "5": clients5}[release]
    with TransactionPeer(
        client, home / "java", address, topic, f"g-asked-{checked}-{release}",
        executed="unknown", checked=checked,
    ) as java:  # fmt: skip
        java.wait_sent()
        wait_until(lambda: set(java.checked) == NAMES, timeout_s=60, what="checks")
        wait_seen(address, topic, names)
        assert Counter(java.checked) == Counter(dict.fromkeys(NAMES, 1))
        line = next(line for line in java.lines if line.startswith("checked "))
        assert f"in {topic} queue" in line


def test_another_java_producer_answers_for_one_that_was_killed(
    peers: Peers, place: tuple[str, Path, OurBroker]
) -> None:
    address, home, _ = place
    with TransactionPeer(
        peers, home / "java", address, "Inherited", "g-heirs", executed="unknown"
    ) as java:
        java.wait_sent()
        java.kill()
    with TransactionPeer(
        peers, home / "java", address, "Heir", "g-heirs",
        count=1, executed="unknown", checked="commit",
    ) as heir:  # fmt: skip
        heir.wait_sent()
        wait_seen(address, "Inherited", NAMES)
        assert len(heir.checked) >= COUNT


def test_a_python_process_answers_for_a_java_producer_that_was_killed(
    peers: Peers, place: tuple[str, Path, OurBroker]
) -> None:
    address, home, _ = place
    with TransactionPeer(
        peers, home / "java", address, "Crossed", "g-crossed", executed="unknown"
    ) as java:
        java.wait_sent()
        java.kill()

    def check(half: StoredMessage) -> bool:
        return int(half.keys[0].removeprefix("key-")) % 2 == 0

    with skylark.sync.connect(address) as mq, mq.producer("g-crossed", check=check) as producer:
        producer.send(Message("Crossing", b"so that there is a route"))
        wait_seen(address, "Crossed", {name for name in NAMES if int(name[8:]) % 2 == 0})


def test_half_messages_survive_our_broker(peers: Peers, place: tuple[str, Path, OurBroker]) -> None:
    address, home, broker = place
    with TransactionPeer(
        peers, home / "java", address, "Survived", "g-survivors",
        executed="unknown", checked="commit",
    ) as java:  # fmt: skip
        java.wait_sent()
        broker.kill()
        broker.start()
        broker.wait_ready()
        wait_seen(address, "Survived", NAMES, timeout_s=120)


# One store, two brokers.


@contextmanager
def served_by(
    kind: str, peers: Peers, home: Path, server: OurNameServer, settings: dict[str, str]
) -> Iterator[None]:
    values = {**SIZES, **settings, "storePathRootDir": str(home / "store")}
    values["storePathCommitLog"] = str(home / "store" / "commitlog")
    broker: OurBroker | ApacheBroker
    if kind == "ours":
        del values["storePathCommitLog"]
        broker = OurBroker(
            home / "ours", name="swapped", name_servers=[server.address], settings=values
        )
    else:
        broker = ApacheBroker(
            peers, home / "apache", name="swapped", name_servers=[server.address], settings=values
        )
    with broker:
        if isinstance(broker, ApacheBroker):
            broker.wait_registered([server])
        yield
        broker.stop()


@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
def test_half_messages_of_one_broker_are_ended_by_the_other(
    peers: Peers, tmp_path: Path, first: str, second: str
) -> None:
    with OurNameServer(tmp_path / "namesrv") as server:
        address = server.address
        with served_by(first, peers, tmp_path, server, SLOW):
            for executed in ("commit", "rollback", "unknown"):
                with TransactionPeer(
                    peers, tmp_path / "java", address, f"Swap-{executed}", "g-swap",
                    executed=executed,
                ) as java:  # fmt: skip
                    java.wait_sent()
                    java.end_input()
                    assert java.wait_ended() == 0
            wait_seen(address, "Swap-commit", NAMES)
        shutil.copytree(tmp_path / "store", tmp_path / "kept")
        with (
            served_by(second, peers, tmp_path, server, QUICK),
            TransactionPeer(
                peers, tmp_path / "java", address, "Swap-more", "g-swap",
                executed="unknown", checked="commit",
            ) as java,
        ):  # fmt: skip
            java.wait_sent()
            wait_seen(address, "Swap-unknown", NAMES, timeout_s=120)
            wait_seen(address, "Swap-more", NAMES, timeout_s=120)
            assert seen(address, "Swap-commit") == Counter(dict.fromkeys(NAMES, 1))
            assert seen(address, "Swap-rollback") == Counter()
            # Nobody was asked about what had ended before the swap.
            assert set(Counter(java.checked).values()) == {2}
