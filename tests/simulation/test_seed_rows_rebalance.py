"""Rows RB and OR of the seeds' checklist that no other test shows, on the real servers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from group_world import GROUP, TOPIC, GroupWorld, Member

from skylark.admin.client import AdminClient
from skylark.client.producer import Producer
from skylark.client.received import ReceivedMessage
from skylark.errors import ClientError
from skylark.model.message import Message
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import Command


class Wire:
    """Notes when which request goes out."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self.sent: list[tuple[int, int, Command]] = []

    def before_request(self, address: str, request: Command) -> None:
        self.sent.append((self.world.now_ms, request.code, request))

    def after_response(self, address: str, request: Command, response: Command) -> None:
        pass

    def times(self, code: int) -> list[int]:
        return [at for at, sent, _ in self.sent if sent == code]


async def fill(producer: Producer, count: int, **properties: Any) -> None:
    await asyncio.gather(
        *(producer.send(Message(TOPIC, b"%d" % number), **properties) for number in range(count))
    )


def test_a_member_looks_at_the_group_every_twenty_seconds() -> None:
    """RB-01, and RB-17: a change is followed by a heartbeat at once."""
    with GroupWorld() as world:

        async def scenario() -> None:
            member = world.join()
            await world.until(world.is_shared)
            assert member.session is not None
            wire = Wire(world)
            member.session.channels.hooks.append(wire)
            begun_ms = world.now_ms
            await world.sleep(101)
            looks = wire.times(Code.GET_CONSUMER_LIST_BY_GROUP)
            assert len(looks) == 5
            assert all(abs(later - at - 20_000) < 100 for at, later in pairwise(looks))
            beats = wire.times(Code.HEART_BEAT)
            assert all(29_000 < later - at < 31_000 for at, later in pairwise(beats))
            assert begun_ms < looks[0]
            versions = [one.version for one in member.consumer._subscriptions.values()]  # type: ignore[union-attr]
            world.join()
            await world.until(world.is_shared, seconds=1)
            changed_ms = world.now_ms
            await world.sleep(0.2)
            assert any(abs(at - changed_ms) < 200 for at in wire.times(Code.HEART_BEAT))
            after = [one.version for one in member.consumer._subscriptions.values()]  # type: ignore[union-attr]
            assert min(after) > max(versions)

        world.run(scenario)


def test_the_first_message_comes_within_a_second_of_the_start() -> None:
    """RB-02."""
    with GroupWorld() as world:

        async def scenario() -> None:
            async with world.connect() as mq, mq.producer("makers") as producer:
                await fill(producer, 8)
                begun_ms = world.now_ms
                world.join()
                await world.until(lambda: len(world.bodies()) == 8, seconds=1)
                assert world.handled[0].begun_ms - begun_ms < 1_000

        world.run(scenario)


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_the_queues_of_a_member_that_goes_are_taken_over_within_a_second(way: str) -> None:
    """CO-45 and RB-04; a killed process is noticed by its connections."""
    with GroupWorld() as world:

        async def scenario() -> None:
            members = [world.join() for _ in range(3)]
            await world.until(world.is_shared, seconds=2)
            await world.sleep(1)
            gone = members[1]
            if way == "stop":
                await gone.stop()
            else:
                gone.kill()
            took_ms = await world.until(world.is_shared, seconds=1)
            assert took_ms < 1_000
            assert not gone.queues()

        world.run(scenario)


def test_a_topic_that_grows_or_shrinks_is_shared_anew() -> None:
    """RB-05 and CO-07."""
    with GroupWorld() as world:

        async def scenario() -> None:
            world.join()
            world.join()
            await world.until(world.is_shared, seconds=2)
            async with world.connect() as mq:
                admin = AdminClient(mq)
                for count in (12, 3):
                    await admin.create_topic(TOPIC, read_queues=count, write_queues=count)
                    world._queues = count
                    await world.until(world.is_shared, seconds=32)
                    assert {queue.queue_id for queue in world.owners()} == set(range(count))

        world.run(scenario)


def test_one_hot_queue_stays_with_one_member() -> None:
    """RB-20 and RB-18."""
    with GroupWorld(queues=2) as world:

        async def scenario() -> None:
            world.join()
            world.join()
            await world.until(world.is_shared, seconds=2)
            async with world.connect() as mq, mq.producer("makers") as producer:
                hot = (await mq.fetch_queues(TOPIC))[0]
                await fill(producer, 200, queue=hot)
                await world.until(lambda: len(world.bodies()) == 200)
            assert len({call.member for call in world.handled}) == 1

        world.run(scenario)


def test_no_member_takes_the_queues_of_another_and_none_is_left_over() -> None:
    """RB-07: members work their shares out alone, from the same sorted lists."""
    with GroupWorld(brokers=2, queues=5) as world:

        async def scenario() -> None:
            for count in range(1, 9):
                world.join()
                await world.until(world.is_shared, seconds=2)
                sizes = sorted(len(member.queues()) for member in world.members)
                assert sizes[-1] - sizes[0] <= 1, (count, sizes)

        world.run(scenario)


# Order.


def test_the_events_of_each_order_are_handled_in_their_order() -> None:
    """OR-01: 1,000 orders with 3 events each, of the same order to the same queue."""
    with GroupWorld() as world:

        async def scenario() -> None:
            async with world.connect() as mq, mq.producer("makers", linger_ms=1) as producer:

                async def place(order: int) -> None:
                    for event in (b"created", b"paid", b"sent"):
                        message = Message(TOPIC, b"%d/%s" % (order, event))
                        await producer.send(message, key=f"order-{order}")

                await asyncio.gather(*map(place, range(1_000)))
                for _ in range(2):
                    world.join(orderly=True)
                await world.until(lambda: len(world.bodies()) == 3_000, step=0.1)

        world.run(scenario)
        events: dict[bytes, list[bytes]] = defaultdict(list)
        for call in world.handled:
            order, _, event = call.body.partition(b"/")
            events[order].append(event)
        assert len(events) == 1_000
        assert {tuple(each) for each in events.values()} == {(b"created", b"paid", b"sent")}


def test_one_queue_and_one_handler_keep_the_order_of_ten_thousand() -> None:
    """OR-02."""
    with GroupWorld(queues=1) as world:

        async def scenario() -> None:
            async with world.connect() as mq, mq.producer("makers") as producer:
                for start in range(0, 10_000, 500):
                    batch = [Message(TOPIC, b"%d" % n) for n in range(start, start + 500)]
                    await producer.send_batch(batch)
                world.join(orderly=True, concurrency=1, pull_batch_size=500)
                await world.until(lambda: len(world.handled) >= 10_000, step=0.1)

        world.run(scenario)
        assert [call.body for call in world.handled] == [b"%d" % n for n in range(10_000)]


def test_without_order_asked_for_there_is_none() -> None:
    """OR-03: many queues and many handlers at a time."""
    with GroupWorld() as world:

        async def linger(message: ReceivedMessage, member: Member) -> None:
            await member.node.clock.sleep_ms(world.rng.randrange(20))

        async def scenario() -> None:
            async with world.connect() as mq, mq.producer("makers") as producer:
                for number in range(100):
                    await producer.send(Message(TOPIC, b"%d" % number))
                world.join(decide=linger)
                await world.until(lambda: len(world.bodies()) == 100)

        world.run(scenario)
        done = sorted(world.handled, key=lambda call: call.ended_ms or 0)
        assert [call.body for call in done] != [b"%d" % n for n in range(100)]
        assert Counter(call.body for call in done).most_common(1)[0][1] == 1


def test_normal_order_is_lost_only_while_the_number_of_queues_changes() -> None:
    """OR-04: a broker goes and comes back; keys move to other queues and back again."""
    with GroupWorld(brokers=2, queues=4) as world:

        async def scenario() -> None:
            places: dict[int, list[Any]] = defaultdict(list)  # Round → queue of each key.
            async with world.connect() as mq, mq.producer("makers") as producer:

                async def send_round(number: int) -> None:
                    for key in range(16):
                        for _ in range(20):
                            try:
                                receipt = await producer.send(
                                    Message(TOPIC, b"%d/%d" % (key, number)), key=f"k{key}"
                                )
                                break
                            except ClientError:
                                await world.sleep(0.5)
                        places[number].append(receipt.queue)

                world.join(orderly=True)
                await world.until(world.is_shared, seconds=2)
                await send_round(0)
                await world.sleep(1)
                await send_round(1)
                await world.stop("broker-b")
                await send_round(2)
                world.start("broker-b")
                await world.serving("broker-b")
                await world.sleep(31)  # By then everybody has seen the route.
                await send_round(3)
                await world.sleep(1)
                await send_round(4)
                await world.until(lambda: len(world.bodies()) == 16 * 5)
            assert places[0] == places[1] == places[3] == places[4]
            assert {queue.broker_name for queue in places[2]} == {"broker-a"}
            first: dict[bytes, list[int]] = defaultdict(list)
            for call in world.handled:
                key, _, number = call.body.partition(b"/")
                if int(number) not in first[key]:
                    first[key].append(int(number))
            for numbers in first.values():
                assert [n for n in numbers if n < 2] == [0, 1]
                assert [n for n in numbers if n > 2] == [3, 4]

        world.run(scenario)


def test_strict_order_fails_a_send_rather_than_move_it() -> None:
    """OR-05: an order topic has fixed queues, whichever brokers are there."""
    with GroupWorld(brokers=2, queues=4) as world:

        async def scenario() -> None:
            async with world.connect() as mq, mq.producer("makers") as producer:
                admin = AdminClient(mq)
                await admin.create_topic("Binlog", read_queues=4, write_queues=4, order=True)
                await world.sleep(1)
                places = {}
                for key in range(16):
                    receipt = await producer.send(Message("Binlog", b"x"), key=f"k{key}")
                    places[key] = receipt.queue
                assert {queue.broker_name for queue in places.values()} == {"broker-a", "broker-b"}
                await world.stop("broker-b")
                await world.sleep(31)
                for key, before in places.items():
                    if before.broker_name == "broker-b":
                        with pytest.raises(ClientError):
                            await producer.send(Message("Binlog", b"y"), key=f"k{key}")
                    else:
                        receipt = await producer.send(Message("Binlog", b"y"), key=f"k{key}")
                        assert receipt.queue == before
                world.start("broker-b")
                await world.serving("broker-b")
                await world.sleep(31)
                for key, before in places.items():
                    receipt = await producer.send(Message("Binlog", b"z"), key=f"k{key}")
                    assert receipt.queue == before

        world.run(scenario)


def test_an_orderly_queue_is_locked_at_the_broker_before_it_is_pulled() -> None:
    """OR-07: who has no lock does not pull, and tries again."""
    with GroupWorld(queues=2) as world:

        async def scenario() -> None:
            first = world.join(orderly=True)
            await world.until(world.is_shared, seconds=2)
            locks = world.parts().locks
            assert {lock.client_id for lock in locks.owned().values()} == {
                first.session.client_id  # type: ignore[union-attr]
            }
            # Its machine loses power: nobody is told, and the locks live on for a minute.
            first.kill(reset=False)
            died_ms = world.now_ms
            async with world.connect() as mq, mq.producer("makers") as producer:
                await fill(producer, 4)
            second = world.join(orderly=True)
            await world.sleep(30)
            assert not world.handled
            await world.until(lambda: len(world.bodies()) == 4, seconds=160)
            assert {call.member for call in world.handled} == {second.name}
            assert world.handled[0].begun_ms - died_ms > 60_000 - 20_000

        world.run(scenario)


def test_the_group_has_the_name_that_operators_look_for(caplog: pytest.LogCaptureFixture) -> None:
    """RB-13: each change of a share is a line with members, queues, what is new and what left."""
    caplog.set_level(logging.INFO, "skylark.client.queue_sharer")
    with GroupWorld() as world:

        async def scenario() -> None:
            world.join()
            await world.until(world.is_shared, seconds=2)
            world.join()
            await world.until(world.is_shared, seconds=2)

        world.run(scenario)
    lines = [line for line in caplog.messages if "rebalanced result changed" in line]
    assert f"group={GROUP}" in lines[0]
    assert "allocateMessageQueueStrategyName=AVG members=1 queues=9 new=9 left=0" in lines[0]
    assert any("members=2" in line and "left=" in line for line in lines[1:])
