"""In order, whatever happens to locks and connections: one handler of a queue at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_broker import BROKER_NAME, World

from skylark.client.consumer_config import ConsumerConfig
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.model.queue import MessageQueue

PLACE = MessageQueue("Orders", BROKER_NAME, 0)


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"Orders": 1})
    world.loop.set_debug(False)  # It makes a run thirty times slower.
    yield world
    world.loop.close()


class Handler:
    """Takes a while, and notes whether it is ever in a queue twice."""

    def __init__(self, world: World, work_s: float = 0) -> None:
        self.world = world
        self.work_s = work_s
        self.running = self.most = 0
        self.begun: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.append(message.body)
        try:
            await self.world.sleep(self.work_s)
        finally:
            self.running -= 1


def orderly(session: Any, handler: Any, **settings: Any) -> PushConsumer:
    return PushConsumer(
        session,
        "billing",
        "Orders",
        handler,
        consume_from="first",
        config=ConsumerConfig(orderly=True, **settings),
    )


def test_a_lock_that_another_has_got_stops_the_queue_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        handler = Handler(world)
        async with world.session() as session, orderly(session, handler):
            await world.sleep(1)
            world.broker.locks["billing", PLACE] = ("thief@else", 45_000)
            await world.sleep(20)  # The next refresh is refused.
            world.broker.put("Orders", 0, b"x")
            await world.sleep(5)
            assert handler.begun == []
            await world.until(lambda: handler.begun == [b"x"], seconds=30)
            assert world.clock.monotonic_ms() >= 45_000

    world.run(main)
    assert "its lock is lost" in caplog.text


def test_after_a_lost_connection_nothing_goes_out_before_the_lock_is_confirmed(
    world: World,
) -> None:
    """A broker that restarts has forgotten its locks, and another member may have got one first."""

    async def main() -> None:
        handler = Handler(world)
        for number in range(3):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, orderly(session, handler):
            await world.until(lambda: len(handler.begun) == 3)
            world.broker.locks["billing", PLACE] = ("early@bird", 20_000)
            world.network.reset("10.0.0.2")
            world.broker.put("Orders", 0, b"3")
            await world.sleep(10)
            assert len(handler.begun) == 3
            await world.until(lambda: len(handler.begun) == 4, seconds=15)
            assert world.clock.monotonic_ms() >= 20_000

    world.run(main)


@pytest.mark.parametrize("way", ["reset", "moved"])
def test_a_queue_that_starts_over_waits_for_the_handler_that_still_runs(
    world: World, way: str
) -> None:
    async def main() -> None:
        handler = Handler(world, work_s=4)
        for number in range(4):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, orderly(session, handler) as one:
            await world.until(lambda: handler.begun == [b"0"])
            if way == "reset":
                await one.reset_offsets("Orders", {PLACE: 2})
            else:
                world.broker.min_offsets["Orders", 0] = 2
                one.offset_moved(one._queues[PLACE], 2)
            await world.until(lambda: len(handler.begun) == 2, seconds=6)
            assert handler.begun == [b"0", b"2"]
            await world.until(lambda: len(handler.begun) == 3, seconds=6)
        assert handler.most == 1

    world.run(main)


def test_a_lock_lost_while_a_handler_runs_hands_out_nothing_after_it(world: World) -> None:
    async def main() -> None:
        handler = Handler(world, work_s=30)
        for number in range(3):
            world.broker.put("Orders", 0, b"%d" % number)
        async with (
            world.session() as session,
            orderly(session, handler, close_timeout_ms=0),
        ):
            await world.until(lambda: handler.begun == [b"0"])
            world.broker.locks["billing", PLACE] = ("thief@else", 10**9)
            await world.sleep(120)
            assert handler.begun == [b"0"]

    world.run(main)


def test_cancelling_at_any_await_of_a_start_leaves_the_group_without_us(world: World) -> None:
    """However far a start has come, giving it up leaves no member, no lock and no task."""

    async def main() -> None:
        for number in range(5):
            world.broker.put("Orders", 0, b"%d" % number)
        for steps in range(0, 60, 2):
            async with world.session() as session:
                handler = Handler(world)
                one = orderly(session, handler)
                starting = asyncio.ensure_future(one.start())
                for _ in range(steps):
                    await asyncio.sleep(0.0002)
                if not starting.done():
                    starting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await starting
                await one.close()
                await world.sleep(0.1)
                assert not session.has_consumer("billing"), steps
            await world.sleep(0.1)
            assert not world.broker.members.get("billing"), steps
            assert world.broker.locks == {}, steps

    world.run(main)
