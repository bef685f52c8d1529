"""LitePullConsumer, PullConsumer and PullSchedule against a scripted broker, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_broker import BROKER_NAME, World

from skylark.client.lite_pull_consumer import LitePullConfig, LitePullConsumer
from skylark.client.pull_consumer import PullConsumer
from skylark.client.pull_schedule import PullSchedule, PullTurn
from skylark.client.session import Session
from skylark.errors import ClientClosed, ClientError, ConfigError, NoRoute
from skylark.model.queue import MessageQueue
from skylark.protocol.codes import RequestCode as Code
from skylark.remote import PullStatus


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


def place(queue_id: int = 0) -> MessageQueue:
    return MessageQueue("Orders", BROKER_NAME, queue_id)


def lite(session: Session, topics: Any = "Orders", **settings: Any) -> LitePullConsumer:
    return LitePullConsumer(
        session,
        "reports",
        topics,
        config=LitePullConfig(**settings),
        consume_from=settings.pop("consume_from", "first"),
    )


# Lite pull.


def test_polls_return_everything_and_commit_what_the_next_poll_follows(world: World) -> None:
    async def main() -> None:
        for number in range(40):
            world.broker.put("Orders", number % 4, b"%d" % number)
        got: list[bytes] = []
        async with world.session() as session, lite(session) as consumer:
            while len(got) < 40:
                batch = await consumer.poll()
                assert 0 < len(batch) <= 10
                got += [message.body for message in batch]
            last = batch[0].queue_id
            await world.sleep(6)
            committed = [world.broker.offsets.get(("reports", "Orders", n)) for n in range(4)]
            assert committed == [0 if n == last else 10 for n in range(4)]
            assert await consumer.poll(100) == []
        assert sorted(got) == sorted(b"%d" % number for number in range(40))
        assert [world.broker.offsets["reports", "Orders", n] for n in range(4)] == [10] * 4
        pull = world.broker.pulls[0]
        assert (pull.sys_flag, pull.max_msg_nums, pull.suspend_timeout_millis) == (22, 10, 20_000)
        assert not any(one.sys_flag & 1 for one in world.broker.pulls)

    world.run(main)


def test_an_empty_poll_ends_in_time_and_a_message_ends_it_sooner(world: World) -> None:
    async def main() -> None:
        async with world.session() as session, lite(session) as consumer:
            started_ms = world.clock.monotonic_ms()
            assert await consumer.poll(700) == []
            assert world.clock.monotonic_ms() - started_ms == 700
            polling = asyncio.ensure_future(consumer.poll())
            await world.sleep(0.1)
            world.broker.put("Orders", 1, b"x")
            (message,) = await polling
            assert (message.body, message.topic) == (b"x", "Orders")
            assert world.clock.monotonic_ms() - started_ms < 1_000

    world.run(main)


def test_without_auto_commit_only_commit_makes_progress(world: World) -> None:
    async def main() -> None:
        for _ in range(20):
            world.broker.put("Orders", 0, b"x")
        async with world.session() as session, lite(session, auto_commit=False) as consumer:
            await consumer.poll()
            await consumer.poll()
            await world.sleep(20)
            assert world.broker.commits == []
            await consumer.commit()
            assert world.broker.offsets["reports", "Orders", 0] == 20
            assert await consumer.committed(place()) == 20
            await consumer.commit({place(3): 7})
            assert await consumer.committed(place(3)) == 7
        assert world.broker.offsets["reports", "Orders", 3] == 7

    world.run(main)


def test_seeking_moves_on_and_back(world: World) -> None:
    async def main() -> None:
        middle_ms = 0
        for number in range(30):
            await world.sleep(1)
            if number == 12:
                middle_ms = world.clock.now_ms()
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, lite(session, None) as consumer:
            await consumer.assign([place()])
            assert (await consumer.poll())[0].body == b"0"
            await consumer.seek(place(), 20)
            assert consumer.position(place()) == 20
            assert (await consumer.poll())[0].body == b"20"
            await consumer.seek_to_begin(place())
            assert (await consumer.poll())[0].body == b"0"
            await consumer.seek_to_time(place(), middle_ms)
            assert (await consumer.poll())[0].body == b"12"
            assert await consumer.offset_for_time(place(), middle_ms + 1) == 13
            await consumer.seek_to_end(place())
            assert await consumer.poll(100) == []
            world.broker.put("Orders", 0, b"new")
            assert (await consumer.poll())[0].body == b"new"
            with pytest.raises(ClientError, match="choose one of 0 to 31"):
                await consumer.seek(place(), 32)
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.seek(place(3), 0)

    world.run(main)


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_place_that_was_sought_outlives_a_lost_connection(
    world: World, auto_commit: bool
) -> None:
    async def main() -> None:
        for number in range(30):
            world.broker.put("Orders", 0, b"%d" % number)
        async with (
            world.session() as session,
            lite(session, None, auto_commit=auto_commit) as consumer,
        ):
            await consumer.assign([place()])
            await consumer.commit({place(): 20})
            await consumer.seek(place(), 5)
            world.network.reset("10.0.0.2")
            await world.sleep(3)
            assert (await consumer.poll())[0].body == b"5"

    world.run(main)


def test_paused_queues_return_nothing_until_they_are_resumed(world: World) -> None:
    async def main() -> None:
        async with world.session() as session, lite(session) as consumer:
            consumer.pause([place(0)])
            for queue_id in (0, 1):
                world.broker.put("Orders", queue_id, b"%d" % queue_id)
            assert [message.body for message in await consumer.poll(300)] == [b"1"]
            assert await consumer.poll(300) == []
            consumer.resume_queues([place(0)])
            assert [message.body for message in await consumer.poll(300)] == [b"0"]

    world.run(main)


def test_assigned_consumers_read_the_same_queue_without_asking_each_other(world: World) -> None:
    async def main() -> None:
        world.broker.put("Orders", 2, b"x")
        async with (
            world.session() as one,
            world.session() as two,
            lite(one, None) as first,
            lite(two, None) as second,
        ):
            for consumer in (first, second):
                await consumer.assign([place(2)])
                assert consumer.assignment == {place(2)}
                assert [message.body for message in await consumer.poll()] == [b"x"]
            await first.assign([place(1), place(3)])
            assert first.assignment == {place(1), place(3)}
        assert world.broker.asked[Code.GET_CONSUMER_LIST_BY_GROUP] == 0

    world.run(main)


def test_a_subscribed_consumer_is_not_assigned_and_members_share(world: World) -> None:
    async def main() -> None:
        async with (
            world.session() as one,
            world.session() as two,
            lite(one) as first,
            lite(two) as second,
        ):
            with pytest.raises(ClientError, match="subscribes"):
                await first.assign([place()])
            await world.until(
                lambda: len(first.assignment) == len(second.assignment) == 2, seconds=2
            )
            assert not first.assignment & second.assignment

    world.run(main)


def test_reading_ahead_stops_at_the_limit_over_all_queues(world: World) -> None:
    async def main() -> None:
        for number in range(400):
            world.broker.put("Orders", number % 4, b"")
        async with (
            world.session() as session,
            lite(session, pull_threshold_for_all=100) as consumer,
        ):
            await world.sleep(5)
            assert 100 <= consumer.stats.of("Orders").pulled <= 140
            got = 0
            while got < 400:
                got += len(await consumer.poll(1000))
            assert got == 400

    world.run(main)


def test_small_polls_cut_what_was_read(world: World) -> None:
    async def main() -> None:
        for number in range(5):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, lite(session) as consumer:
            sizes = [len(await consumer.poll(500, count_max=2)) for _ in range(3)]
            assert sizes == [2, 2, 1]

    world.run(main)


def test_topic_listeners_hear_of_new_queues(world: World) -> None:
    async def main() -> None:
        heard: list[int] = []
        async with world.session() as session, lite(session) as consumer:
            consumer.add_topic_listener("Orders", lambda topic, queues: heard.append(len(queues)))
            world.broker.topics["Orders"] = 6
            await world.until(lambda: heard == [6], seconds=31)
            await world.until(lambda: len(consumer.assignment) == 6, seconds=1)

    world.run(main)


def test_a_closed_lite_pull_consumer_says_so(world: World) -> None:
    async def main() -> None:
        async with world.session() as session:
            consumer = lite(session)
            with pytest.raises(ClientClosed):
                await consumer.poll()

    world.run(main)
    with pytest.raises(ConfigError, match="orderly is for push"):
        LitePullConfig(orderly=True)
    with pytest.raises(ConfigError, match="pull_threshold_for_all"):
        LitePullConfig(pull_threshold_for_all=0)


# Pull.


def test_a_pull_returns_what_is_there_and_where_to_go_on(world: World) -> None:
    async def main() -> None:
        for number in range(12):
            world.broker.put("Orders", 0, b"%d" % number, tag="AB"[number % 2])
        async with world.session() as session, PullConsumer(session, "audit") as consumer:
            queues = await consumer.fetch_queues("Orders")
            assert queues == [place(n) for n in range(4)]
            found = await consumer.pull(place(), offset=2, count_max=10)
            assert found.status is PullStatus.FOUND
            assert [message.body for message in found.messages] == [b"%d" % n for n in range(2, 12)]
            assert (found.next_begin_offset, found.min_offset, found.max_offset) == (12, 0, 12)
            only = await consumer.pull(place(), "A", offset=0, count_max=4)
            assert [message.body for message in only.messages] == [b"0", b"2"]
            assert only.next_begin_offset == 4
            none = await consumer.pull(place(), offset=12)
            assert (none.status, none.messages) == (PullStatus.NO_NEW_MSG, [])
            beyond = await consumer.pull(place(), offset=99)
            assert beyond.status is PullStatus.OFFSET_ILLEGAL
            assert beyond.next_begin_offset == 12
            assert [one.sys_flag for one in world.broker.pulls] == [4] * 4

    world.run(main)


def test_a_pull_that_may_wait_returns_as_soon_as_a_message_comes(world: World) -> None:
    async def main() -> None:
        async with world.session() as session, PullConsumer(session, "audit") as consumer:
            pulling = asyncio.ensure_future(consumer.pull_or_wait(place(), offset=0))
            await world.sleep(5)
            assert not pulling.done()
            world.broker.put("Orders", 0, b"x")
            assert [message.body for message in (await pulling).messages] == [b"x"]
            empty = await consumer.pull_or_wait(place(), offset=1)
            assert empty.status is PullStatus.NO_NEW_MSG
            assert world.clock.monotonic_ms() >= 25_000

    world.run(main)


def test_a_pull_consumer_keeps_its_offsets_and_commits_them(world: World) -> None:
    async def main() -> None:
        async with world.session() as session, PullConsumer(session, "audit") as consumer:
            assert await consumer.fetch_offset(place()) is None
            await consumer.update_offset(place(), 5)
            assert await consumer.fetch_offset(place()) == 5
            assert await consumer.fetch_offset(place(), from_store=True) is None
            await world.sleep(6)
            assert world.broker.offsets["audit", "Orders", 0] == 5
            await consumer.commit(place(1), 3)
            assert world.broker.offsets["audit", "Orders", 1] == 3

    world.run(main)


def test_a_pull_consumer_asks_about_queues(world: World) -> None:
    async def main() -> None:
        for _ in range(3):
            await world.sleep(1)
            world.broker.put("Orders", 0, b"")
        async with world.session() as session, PullConsumer(session, "audit") as consumer:
            assert (await consumer.min_offset(place()), await consumer.max_offset(place())) == (
                0,
                3,
            )
            at_ms = world.clock.now_ms() - 1_000
            assert await consumer.search_offset(place(), at_ms - 100) == 1
            assert await consumer.offset_since(place(), at_ms - 900) == 1
            with pytest.raises(NoRoute):
                await consumer.pull(MessageQueue("Orders", "nobody", 0), offset=0)
            with pytest.raises(ClientError, match="at least one"):
                await consumer.pull(place(), offset=-1)

    world.run(main)


def test_a_message_is_sent_back_by_hand(world: World) -> None:
    async def main() -> None:
        world.broker.put("Orders", 0, b"x")
        async with world.session() as session, PullConsumer(session, "audit") as consumer:
            (message,) = (await consumer.pull(place(), offset=0)).messages
            await consumer.send_back(message, 3)
        assert [one.delay_level for one in world.broker.sent_back] == [3]

    world.run(main)


def test_a_schedule_calls_for_each_queue_of_the_share_and_no_other(world: World) -> None:
    async def main() -> None:
        calls: list[tuple[int, int, int]] = []

        def task(number: int) -> Any:
            async def pull(queue: MessageQueue, turn: PullTurn) -> None:
                calls.append((number, queue.queue_id, world.clock.monotonic_ms()))
                turn.next_delay_ms = 500
                if queue.queue_id == 0:
                    raise ClientError("never mind", hint="go on")

            return pull

        async with (
            world.session() as one,
            world.session() as two,
            PullConsumer(one, "audit", ["Orders"]) as first,
            PullConsumer(two, "audit", ["Orders"]) as second,
        ):
            schedules = [PullSchedule(first), PullSchedule(second)]
            for number, schedule in enumerate(schedules):
                schedule.register("Orders", task(number))
            async with schedules[0], schedules[1]:
                await world.sleep(2)
                calls.clear()
                await world.sleep(5)
        by_queue = {(number, queue_id) for number, queue_id, _ in calls}
        assert len(by_queue) == 4
        assert {queue_id for _, queue_id in by_queue} == {0, 1, 2, 3}
        assert len({number for number, _ in by_queue}) == 2
        assert 36 <= len(calls) <= 44

    world.run(main)
