"""The official Java clients, 4.9.8 and 5.3.3, in every way to send and consume, on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from our_broker import ClientSession, OurBroker, our_cluster
from peers import JavaClient, Peers

pytestmark = pytest.mark.interop

COUNT = 10_000
SENT = [f"sent {COUNT} failed 0"]
RECEIVED = f"received {COUNT} duplicates 0"


@dataclass
class Place:
    """A running cluster of ours, and one process that holds the official client."""

    peers: Peers
    address: str
    broker: OurBroker
    client: ClientSession
    home: Path

    def run(self, *arguments: str | int) -> list[str]:
        """Run one command of the Java program and return what it says."""
        command, *rest = arguments
        return self.client.run(str(command), *rest)


@pytest.fixture(
    scope="module",
    params=["4.9.8-ASYNC_FLUSH", "5.3.3-ASYNC_FLUSH", "4.9.8-SYNC_FLUSH"],
)
def place(
    request: pytest.FixtureRequest,
    peers: Peers,
    clients5: Peers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    version, _, flush = request.param.partition("-")
    chosen = {one.version: one for one in (peers, clients5)}[version]
    home = tmp_path_factory.mktemp("place")
    settings = {"flushDiskType": flush, "messageDelayLevel": "1s 1s 1s 1s 2s"}
    with (
        our_cluster(home, **settings) as (name_server, broker),
        ClientSession(chosen, home / "client", name_server.address) as client,
    ):
        yield Place(chosen, name_server.address, broker, client, home)


@pytest.mark.parametrize("kind", ["sync", "async", "oneway", "batch"])
def test_what_is_sent_in_any_way_is_consumed_once(place: Place, kind: str) -> None:
    assert place.run(kind, f"Sent-{kind}", "producers", COUNT) == SENT
    got = place.run("consume", f"Sent-{kind}", f"consumers-{kind}", COUNT, 60)
    assert got == [RECEIVED]


def test_one_queue_for_each_key_is_consumed_in_order(place: Place) -> None:
    assert place.run("select", "Ordered", "producers", COUNT) == SENT
    got = place.run("orderly", "Ordered", "in-order", COUNT, 90)
    assert got == [f"received {COUNT} inversions 0"]


def test_every_member_of_a_broadcast_gets_every_message(place: Place) -> None:
    assert place.run("batch", "Cast", "producers", COUNT) == SENT
    assert place.run("broadcast", "Cast", "casters", COUNT, 60) == [RECEIVED] * 2


def test_a_lite_pull_consumer_reads_commits_and_seeks(place: Place) -> None:
    assert place.run("batch", "Lite", "producers", COUNT) == SENT
    got = place.run("lite", "Lite", "lite", COUNT, 60)
    assert got == [RECEIVED, f"committed {COUNT}", "sought 7"]


def test_a_pull_consumer_reads_commits_and_searches(place: Place) -> None:
    assert place.run("batch", "Pulled", "producers", COUNT) == SENT
    got = place.run("pull", "Pulled", "pullers", COUNT)
    assert got == [RECEIVED, f"committed {COUNT}", "since 4 of 4"]


def test_a_message_that_always_fails_is_retried_and_then_dead(place: Place) -> None:
    place.run("batch", "Poison", "producers", 1)
    *tries, done = place.run("failing", "Poison", "failers", 2, 60)
    assert done == "done"
    assert [line.split()[1] for line in tries] == ["0", "1", "2"]
    assert len({line.split()[3] for line in tries}) == 1  # The same id each time.
    assert {line.split()[5] for line in tries} == {"Poison"}
    got = place.run("consume", "%DLQ%failers", "morgue", 1, 30)
    assert got == ["received 1 duplicates 0"]


def test_a_delayed_message_arrives_later(place: Place) -> None:
    place.run("delayed", "Later", "producers", 5)
    assert place.run("consume", "Later", "patient", 1, 30) == ["received 1 duplicates 0"]


def test_messages_are_found_by_their_ids_and_by_key(place: Place) -> None:
    found = place.run("lookup", "Found", "finders", 20)
    assert found == ["found 20 by offset id, 20 by unique id, 20 by key"]


def test_requests_are_answered_each_by_its_own_reply(place: Place) -> None:
    place.run("batch", "Asked", "producers", 1)  # So that the topic has a route.
    assert place.run("request", "Asked", "repliers", 20) == ["answered 20"]


def test_a_message_leaves_a_trace_of_its_sending_and_its_handling(place: Place) -> None:
    assert place.run("trace", "Traced", "tracers", 30) == ["traced Pub SubAfter SubBefore"]


def test_members_that_come_and_go_miss_nothing(place: Place) -> None:
    assert place.run("async", "Shared", "producers", COUNT) == SENT
    (line,) = place.run("share", "Shared", "sharers", COUNT, 60)
    assert line.startswith(f"received {COUNT} ")


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


def test_the_broker_stops_cleanly_after_all_that(place: Place) -> None:
    assert place.broker.stop() == 0
    assert not (place.broker.home / "store" / "abort").exists()
    place.broker.start()
