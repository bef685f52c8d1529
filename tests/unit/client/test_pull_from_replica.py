"""CO-32 to CO-34, the consumer's half: who is asked when a broker has a replica."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_broker import BROKER, BROKER_NAME, FakeBroker, World

from skylark.client.consumer_config import ConsumerConfig
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.model.route import BrokerData, QueueData, TopicRoute
from skylark.net import Listener, NetConfig, Switchboard
from skylark.protocol import headers
from skylark.protocol.bodies import TopicRouteBody
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response

REPLICA = "10.0.0.3:10911"


class Paired(FakeBroker):
    """A broker with a replica; both have the same messages."""

    suggests = 0
    has_master = True

    def _route(self, request: AnyRequest, peer: Peer) -> Response:
        addresses = {0: BROKER, 1: REPLICA} if self.has_master else {1: REPLICA}
        count = self.topics.get(request.header.topic)
        if count is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, "no route")
        route = TopicRoute(
            brokers=(BrokerData("c", BROKER_NAME, addresses),),
            queues=(QueueData(BROKER_NAME, count, count, 6),),
        )
        return Response(body=TopicRouteBody(route).to_json())

    def _answer(  # type: ignore[override]
        self, code: ResponseCode, next_offset: int, low: int, high: int
    ) -> Response:
        return Response(
            code,
            header=headers.PullMessageResponse(
                suggest_which_broker_id=self.suggests,
                next_begin_offset=next_offset,
                min_offset=low,
                max_offset=high,
            ),
        )


class Wire:
    def __init__(self) -> None:
        self.pulls: list[str] = []
        self.beats: set[str] = set()

    def before_request(self, address: str, request: Command) -> None:
        if request.code == Code.PULL_MESSAGE and request.fields["topic"] == "Orders":
            self.pulls.append(address)
        if request.code == Code.HEART_BEAT:
            self.beats.add(address)

    def after_response(self, address: str, request: Command, response: Command) -> None: ...


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"Orders": 1})
    world.loop.set_debug(False)  # It makes a run thirty times slower.
    world.broker = Paired(world, {"Orders": 1})
    yield world
    world.loop.close()


def run(world: World, scenario: Any) -> None:
    async def main() -> None:
        broker = world.broker
        board = Switchboard(broker.handlers(), on_disconnect=broker.disconnected)
        host = world.network.host("10.0.0.3")
        async with (
            Listener(NetConfig(listen_port=10911), board, host),
            world.session() as session,
        ):
            wire, got = Wire(), []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)

            session.channels.hooks.append(wire)
            async with PushConsumer(
                session, "billing", "Orders", handle, consume_from="first", config=ConsumerConfig()
            ):
                await scenario(broker, wire, got)

    world.run(main)


def test_the_next_pull_goes_where_the_master_suggests_and_heartbeats_go_to_both(
    world: World,
) -> None:
    async def scenario(broker: Paired, wire: Wire, got: list[bytes]) -> None:
        await world.sleep(1)
        assert wire.beats == {BROKER, REPLICA}
        assert set(wire.pulls) == {BROKER}
        broker.suggests = 1
        broker.put("Orders", 0, b"a")
        await world.until(lambda: got == [b"a"])
        broker.put("Orders", 0, b"b")
        await world.until(lambda: got == [b"a", b"b"])
        assert wire.pulls[-1] == REPLICA
        broker.suggests = 0
        broker.put("Orders", 0, b"c")
        await world.until(lambda: len(got) == 3)
        await world.sleep(0.1)
        assert wire.pulls[-1] == BROKER

    run(world, scenario)


def test_consumption_goes_on_from_the_replica_when_the_master_is_gone(world: World) -> None:
    async def scenario(broker: Paired, wire: Wire, got: list[bytes]) -> None:
        broker.put("Orders", 0, b"a")
        await world.until(lambda: got == [b"a"])
        cut = world.network.partition("10.0.1.1", "10.0.0.2")
        world.network.reset("10.0.0.2")
        broker.put("Orders", 0, b"b")
        await world.until(lambda: len(got) == 2, seconds=5)
        assert wire.pulls[-1] == REPLICA
        broker.has_master = False  # The name server has noticed too.
        await world.sleep(31)
        broker.put("Orders", 0, b"c")
        await world.until(lambda: len(got) == 3, seconds=2)
        broker.has_master = True
        cut.heal()
        await world.sleep(40)
        broker.put("Orders", 0, b"d")
        await world.until(lambda: len(got) == 4, seconds=2)
        assert wire.pulls[-1] == BROKER

    run(world, scenario)
