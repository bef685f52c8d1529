"""The official Java client, in every way to send and to consume, against our broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from our_broker import BrokerPeer, OurBroker
from peers import JavaClient, OurNameServer, Peers

pytestmark = pytest.mark.interop

COUNT = 10_000


@dataclass
class Place:
    """A running name server and broker of ours."""

    peers: Peers
    address: str
    broker: OurBroker
    home: Path

    def run(self, *arguments: str, line: str, timeout_s: float = 120) -> str:
        """Run one Java command against the broker, and return the line that it ends with."""
        command, *rest = arguments
        home = self.home / command
        with BrokerPeer(self.peers, home, command, self.address, *rest) as client:
            found = client.wait_for_line(line, timeout_s)
            assert client.wait_ended() == 0
        return found


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def place(
    request: pytest.FixtureRequest, peers: Peers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("place")
    settings = {"flushDiskType": request.param, "messageDelayLevel": "1s 1s 1s 1s 2s"}
    with (
        OurNameServer(home / "namesrv") as name_server,
        OurBroker(
            home / "broker", name="broker-a", name_servers=[name_server.address], settings=settings
        ) as broker,
    ):
        yield Place(peers, name_server.address, broker, home)


@pytest.mark.parametrize("kind", ["async", "oneway", "batch"])
def test_what_is_sent_in_any_way_is_consumed_once(place: Place, kind: str) -> None:
    topic = f"Sent-{kind}"
    sent = place.run(kind, topic, "producers", str(COUNT), line="sent")
    assert sent == f"sent {COUNT} failed 0"
    got = place.run("consume", topic, f"consumers-{kind}", str(COUNT), "60", line="received")
    assert got == f"received {COUNT} duplicates 0"


def test_one_queue_for_each_key_is_consumed_in_order(place: Place) -> None:
    sent = place.run("select", "Ordered", "producers", str(COUNT), line="sent")
    assert sent == f"sent {COUNT} failed 0"
    got = place.run("orderly", "Ordered", "in-order", str(COUNT), "90", line="received")
    assert got == f"received {COUNT} inversions 0"


def test_every_member_of_a_broadcast_gets_every_message(place: Place) -> None:
    place.run("batch", "Cast", "producers", "1000", line="sent")
    arguments = ("broadcast", place.address, "Cast", "casters", "1000", "60")
    with (
        BrokerPeer(place.peers, place.home / "one", *arguments) as one,
        BrokerPeer(place.peers, place.home / "two", *arguments) as two,
    ):
        for client in (one, two):
            assert client.wait_for_line("received", 90) == "received 1000 duplicates 0"


def test_a_message_that_always_fails_is_retried_and_then_dead(place: Place) -> None:
    place.run("batch", "Poison", "producers", "1", line="sent")
    arguments = ("failing", place.address, "Poison", "failers", "2", "60")
    with BrokerPeer(place.peers, place.home / "failing", *arguments) as client:
        client.wait_for_line("done", 90)
        tries = [line for line in client.lines if line.startswith("try")]
        client.wait_ended()
    assert [line.split()[1] for line in tries] == ["0", "1", "2"]
    assert len({line.split()[3] for line in tries}) == 1  # The same id each time.
    assert {line.split()[5] for line in tries} == {"Poison"}
    got = place.run("consume", "%DLQ%failers", "morgue", "1", "30", line="received")
    assert got == "received 1 duplicates 0"


def test_a_delayed_message_arrives_later(place: Place) -> None:
    place.run("delayed", "Later", "producers", "5", line="sent")
    got = place.run("consume", "Later", "patient", "1", "30", line="received")
    assert got == "received 1 duplicates 0"


def test_members_that_join_and_leave_miss_nothing(place: Place) -> None:
    place.run("async", "Shared", "producers", str(COUNT), line="sent")
    arguments = ("consume", place.address, "Shared", "sharers", str(COUNT), "15")
    with (
        BrokerPeer(place.peers, place.home / "a", *arguments) as one,
        BrokerPeer(place.peers, place.home / "b", *arguments) as two,
    ):
        lines = [client.wait_for_line("received", 60) for client in (one, two)]
    received = sum(int(line.split()[1]) for line in lines)
    assert received >= COUNT


def test_binary_headers_are_served_as_well(place: Place) -> None:
    binary = ("-Drocketmq.serialize.type=ROCKETMQ",)
    with JavaClient(
        place.peers, place.home / "bin", "produce", place.address, "Binary", "p", "500",
        java_options=binary,
    ) as producer:  # fmt: skip
        assert producer.wait_for_line("sent", 60) == "sent 500 failed 0"
    with JavaClient(
        place.peers, place.home / "bin", "consume", place.address, "Binary", "c", "500", "30",
        java_options=binary,
    ) as consumer:  # fmt: skip
        assert consumer.wait_for_line("received", 60) == "received 500 duplicates 0"


def test_a_request_is_answered_by_a_reply(place: Place) -> None:
    place.run("batch", "Asked", "producers", "1", line="sent")  # So that the topic has a route.
    arguments = (place.address, "Asked", "repliers", "replying")
    with JavaClient(place.peers, place.home / "replier", "listen", *arguments) as replier:
        replier.wait_for_line("ready", 30)
        arguments = ("request", place.address, "Asked", "askers")
        with JavaClient(place.peers, place.home / "asker", *arguments) as asker:
            assert asker.wait_for_line("answered", 60)
            assert asker.wait_ended() == 0


def test_the_broker_stops_cleanly_after_all_that(place: Place) -> None:
    assert place.broker.stop() == 0
    assert not (place.broker.home / "store" / "abort").exists()
    place.broker.start()
