"""Handlers and callers that behave badly: cancelled, returning nonsense, giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_broker import World

from skylark.client.consumer_config import ConsumerConfig
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.client.verdicts import RetryLater
from skylark.protocol.codes import RequestCode as Code


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.loop.set_debug(False)  # It makes a run thirty times slower.
    yield world
    world.loop.close()


def consumer(session: Any, handler: Any = None, **settings: Any) -> PushConsumer:
    return PushConsumer(
        session,
        "billing",
        "Orders",
        handler,
        batch_handler=settings.pop("batch_handler", None),
        hooks=settings.pop("hooks", ()),
        consume_from="first",
        config=ConsumerConfig(**settings),
    )


class NoHook:
    def before_consume(self, context: object) -> None: ...

    def after_consume(self, context: object) -> None: ...


@pytest.mark.parametrize("hooks", [(), (NoHook(),)], ids=["plain", "watched"])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_handler_that_is_cancelled_from_inside_has_failed_and_its_worker_goes_on(
    world: World, orderly: bool, hooks: tuple[Any, ...]
) -> None:
    async def main() -> None:
        done: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"bad" and not message.reconsume_times:
                raise asyncio.CancelledError  # What it waited for was cancelled by somebody.
            done.append(message.body)

        world.broker.put("Orders", 0, b"bad")
        world.broker.put("Orders", 0, b"good")
        async with (
            world.session() as session,
            consumer(session, handle, concurrency=1, orderly=orderly, hooks=hooks),
        ):
            await world.until(lambda: sorted(done) == [b"bad", b"good"], seconds=5)
        assert world.broker.offsets["billing", "Orders", 0] == 2

    world.run(main)


@pytest.mark.parametrize("value", [True, 0, "CONSUME_SUCCESS", object()])
def test_whatever_a_handler_returns_but_a_verdict_means_done(world: World, value: object) -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> Any:
            got.append(message.body)
            return value

        for number in range(3):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, consumer(session, handle, concurrency=1):
            await world.until(lambda: len(got) == 3)
        assert world.broker.offsets["billing", "Orders", 0] == 3
        assert world.broker.sent_back == []

    world.run(main)


@pytest.mark.parametrize("orderly", [False, True])
def test_one_who_stops_waiting_for_his_turn_leaves_the_message_to_the_next(
    world: World, orderly: bool
) -> None:
    async def main() -> None:
        for number in range(4):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session:
            async with consumer(session, rate_max=1, orderly=orderly) as one:
                got = [await one.take()]
                one.acknowledge(got[0])
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await one.take()
                while len(got) < 4:
                    got.append(await one.take())
                    one.acknowledge(got[-1])
            assert [message.body for message in got] == [b"0", b"1", b"2", b"3"]
            assert world.broker.offsets["billing", "Orders", 0] == 4

    world.run(main)


def test_one_who_stops_waiting_for_the_close_hears_it_and_what_is_done_is_committed(
    world: World,
) -> None:
    async def main() -> None:
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"stuck":
                await asyncio.Event().wait()

        world.broker.put("Orders", 0, b"done")
        world.broker.put("Orders", 0, b"stuck")
        async with world.session() as session:
            one = consumer(session, handle)
            await one.start()
            await world.sleep(1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await one.close()
            assert world.broker.offsets["billing", "Orders", 0] == 1
            assert world.broker.unregistered == [(session.client_id, "billing")]
            await one.close()

    world.run(main)


def test_who_closes_second_waits_for_the_first(world: World) -> None:
    async def main() -> None:
        ended: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            await world.sleep(3)
            ended.append("handler")

        async def close(name: str) -> None:
            await one.close()
            ended.append(name)

        world.broker.put("Orders", 0, b"x")
        async with world.session() as session:
            one = consumer(session, handle)
            await one.start()
            await world.sleep(1)
            await asyncio.gather(close("first"), close("second"))
        assert ended[0] == "handler"
        assert sorted(ended[1:]) == ["first", "second"]

    world.run(main)


def test_a_message_that_fails_while_it_is_given_back_for_its_slowness_goes_back_once(
    world: World,
) -> None:
    async def main() -> None:
        limit_ms = 60_000

        async def handle(message: ReceivedMessage) -> None:
            if not message.reconsume_times:
                # Fails just when the watch has sent it back and waits for the answer.
                await world.clock.sleep_ms(limit_ms - (world.clock.monotonic_ms() - begun_ms))
                raise RetryLater

        begun_ms = world.clock.monotonic_ms()
        world.broker.put("Orders", 0, b"slow")
        async with (
            world.session() as session,
            consumer(session, handle, consume_timeout_ms=30_000),
        ):
            await world.sleep(120)
        assert world.broker.asked[Code.CONSUMER_SEND_MSG_BACK] == 1
        assert world.broker.offsets["billing", "Orders", 0] == 1

    world.run(main)


@pytest.mark.parametrize("orderly", [False, True])
def test_giving_up_a_close_at_any_moment_leaves_nothing_behind(orderly: bool) -> None:
    """However far it has come: no member, no lock, no commit of what was not done."""
    for steps in range(0, 80, 5):
        world = World({"Orders": 2})
        world.loop.set_debug(False)

        async def main(world: World = world, steps: int = steps) -> None:
            done: set[tuple[int, int]] = set()

            async def handle(message: ReceivedMessage) -> None:
                await world.clock.sleep_ms(3)
                done.add((message.queue_id, message.queue_offset))

            for number in range(40):
                world.broker.put("Orders", number % 2, b"%d" % number)
            async with world.session() as session:
                one = consumer(session, handle, orderly=orderly, concurrency=2)
                await one.start()
                await world.clock.sleep_ms(10)
                closing = asyncio.ensure_future(one.close())
                for _ in range(steps):
                    await asyncio.sleep(0.0005)
                if not closing.done():
                    closing.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await closing
                await one.close()
                await world.clock.sleep_ms(50)
                assert not session.has_consumer("billing"), steps
                assert not world.broker.members.get("billing"), steps
                assert world.broker.locks == {}, steps
            for queue_id in range(2):
                committed = world.broker.offsets.get(("billing", "Orders", queue_id), 0)
                assert {(queue_id, offset) for offset in range(committed)} <= done, steps

        world.run(main)
        world.loop.close()
