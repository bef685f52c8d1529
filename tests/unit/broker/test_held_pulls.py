"""Pulls that wait: how many one peer may have, and what they may queue up when it does not read."""

from __future__ import annotations

import asyncio

from broker_world import BrokerWorld, records

from skylark.model.topic import TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.frame import FrameDecoder, encode_frames

QUEUES = 64
BODY = bytes(15 << 10)


class DeafPeer(asyncio.Protocol):
    """Sends what it is given, and reads only while it is told to."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.decoder = FrameDecoder()
        self.answers: list[Command] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answers += self.decoder.feed(data)


def pull_of(queue_id: int, opaque: int) -> Command:
    command = Command.request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "group",
            "topic": "Wide",
            "queueId": str(queue_id),
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "20000",
            "subscription": "*",
            "subVersion": "0",
        },
    )
    command.opaque = opaque
    return command


def test_one_peer_may_have_only_so_many_pulls_waiting(world: BrokerWorld) -> None:
    async def main() -> None:
        async with (
            world.serving(held_pulls_per_peer_max=3) as client,
            world.connected("b") as other,
        ):
            await client.send("T")
            held = []
            for _ in range(3):
                held.append(asyncio.create_task(client.pull("T", offset=1, suspend_ms=20_000)))
                await world.clock.sleep_ms(5)
            refused = await client.pull("T", offset=1, suspend_ms=20_000)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "heldPullsPerPeerMax" in (refused.remark or "")
            # Others are not concerned, and what needs not wait is answered.
            waits = asyncio.create_task(other.pull("T", offset=1, suspend_ms=20_000))
            assert len(records(await client.pull("T", offset=0, suspend_ms=20_000))) == 1
            await world.clock.sleep_ms(5)
            assert len(world.parts.arrivals) == 4
            await client.send("T")
            for task in (*held, waits):
                assert len(records(await task)) == 1
            # Those that were answered count no more.
            again = asyncio.create_task(client.pull("T", offset=2, suspend_ms=20_000))
            await world.clock.sleep_ms(5)
            await client.send("T")
            assert len(records(await again)) == 1

    world.run(main)


def test_pulls_of_a_peer_that_hung_up_count_no_more(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(held_pulls_per_peer_max=2) as client:
            await client.send("T")
            for _ in range(3):
                async with world.connected("brief") as brief:
                    pulls = [
                        asyncio.create_task(brief.pull("T", offset=1, suspend_ms=20_000))
                        for _ in range(2)
                    ]
                    await world.clock.sleep_ms(5)
                    assert len(world.parts.arrivals) == 2
                    for pull in pulls:
                        pull.cancel()
                await world.clock.sleep_ms(5)
                assert len(world.parts.arrivals) == 0

    world.run(main)


def test_messages_for_a_peer_that_does_not_read_stay_in_the_store(world: BrokerWorld) -> None:
    async def main() -> None:
        limit = 128 << 10
        async with world.serving(unsent_bytes_max=limit) as client:
            world.parts.topics.put(TopicConfig("Wide", QUEUES, QUEUES))
            deaf = DeafPeer()
            await world.client.connect(lambda: deaf, world.server.address, 10911)
            assert deaf.transport is not None
            pulls = [pull_of(number, number + 1) for number in range(QUEUES)]
            deaf.transport.write(encode_frames(pulls))
            await world.clock.sleep_ms(50)
            assert len(world.parts.arrivals) == QUEUES
            deaf.transport.pause_reading()
            most = 0
            assert world.broker is not None
            assert world.broker._listener is not None
            for _ in range(4):
                for queue_id in range(QUEUES):
                    await client.send("Wide", BODY, queue_id=queue_id)
                    unsent = [link.unsent_bytes for link in world.broker._listener.links]
                    most = max(most, *unsent)
            # Some of it waits for the peer, most of it where it was.
            assert len(BODY) < most <= limit + 2 * len(BODY)
            assert not any(link.is_closed for link in world.broker._listener.links)
            deaf.transport.resume_reading()
            await world.clock.sleep_ms(1_000)
            codes = [answer.code for answer in deaf.answers]
            assert len(codes) == QUEUES
            assert set(codes) == {
                ResponseCode.SUCCESS,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            }
            for answer in deaf.answers:
                if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                    assert answer.fields["nextBeginOffset"] == "0"
                    assert answer.body == b""
            # Asked again, it gets what it had not got.
            late = next(a for a in deaf.answers if a.code == ResponseCode.PULL_RETRY_IMMEDIATELY)
            deaf.transport.write(encode_frames([pull_of(late.opaque - 1, 1_000)]))
            await world.clock.sleep_ms(50)
            assert deaf.answers[-1].code == ResponseCode.SUCCESS
            deaf.transport.close()

    world.run(main)
