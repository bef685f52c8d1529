"""Members of a group that come, go and share queues, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from fake_broker import BROKER_NAME, World

from skylark.client.allocation import Sticky
from skylark.client.consumer_config import ConsumerConfig
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.client.session import Session
from skylark.client.verdicts import Fate, RetryLater, Suspend, ToDlq, Verdict
from skylark.model.queue import MessageQueue
from skylark.protocol.codes import RequestCode as Code


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"Orders": 8})
    yield world
    world.loop.close()


class Member:
    """One consumer on a machine of its own, and what its handler saw."""

    def __init__(self, world: World, *, work_ms: int = 0, **settings: Any) -> None:
        self.world = world
        self.work_ms = work_ms
        self.got: list[tuple[int, bytes]] = []  # When, and which.
        self.topics = settings.pop("topics", {"Orders": "*"})
        self.settings = settings
        self._parts = AsyncExitStack()
        self.verdict: Any = None

    async def __aenter__(self) -> Member:
        self.session: Session = await self._parts.enter_async_context(self.world.session())
        self.consumer = await self._parts.enter_async_context(
            PushConsumer(
                self.session,
                "billing",
                self.topics,
                self._handle,
                config=ConsumerConfig(**self.settings),
                consume_from="first",
            )
        )
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._parts.aclose()

    async def _handle(self, message: ReceivedMessage) -> Any:
        self.got.append((self.world.clock.monotonic_ms(), message.body))
        if self.work_ms:
            await self.world.clock.sleep_ms(self.work_ms)
        outcome = self.verdict(message) if self.verdict is not None else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def queues(self) -> set[MessageQueue]:
        return {one for one in self.consumer.assignment if one.topic == "Orders"}

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.got]


def owners(members: list[Member]) -> Counter[MessageQueue]:
    return Counter(queue for member in members for queue in member.queues)


def is_shared(members: list[Member], count: int = 8) -> bool:
    """Whether every queue has exactly one owner."""
    found = owners(members)
    return len(found) == count and set(found.values()) == {1}


def test_members_that_come_and_go_share_all_queues_within_a_second(world: World) -> None:
    async def main() -> None:
        members: list[Member] = []
        for number in range(8):
            member = Member(world)
            await member.__aenter__()
            members.append(member)
            await world.until(lambda: is_shared(members), seconds=1)
            sizes = sorted(len(one.queues) for one in members)
            assert sizes[-1] - sizes[0] <= 1, (number, sizes)
        while len(members) > 1:
            await members.pop(len(members) // 2).__aexit__()
            await world.until(lambda: is_shared(members), seconds=1)
        await members[0].__aexit__()

    world.run(main)


def test_without_notices_the_share_is_right_within_twenty_seconds(world: World) -> None:
    async def main() -> None:
        world.broker.notices = False
        async with Member(world) as first:
            await world.sleep(5)
            async with Member(world) as second:
                await world.until(lambda: is_shared([first, second]), seconds=20)
                assert world.clock.monotonic_ms() > 10_000

    world.run(main)


def test_more_members_than_queues_leave_some_idle(world: World) -> None:
    async def main() -> None:
        world.broker.topics["Orders"] = 3
        async with AsyncExitStack() as parts:
            members = [await parts.enter_async_context(Member(world)) for _ in range(4)]
            await world.until(lambda: is_shared(members, 3), seconds=1)
            assert sorted(len(one.queues) for one in members) == [0, 1, 1, 1]

    world.run(main)


def test_new_queues_of_a_topic_are_taken_at_the_next_look_at_the_route(world: World) -> None:
    async def main() -> None:
        async with Member(world) as first, Member(world) as second:
            heard: list[int] = []
            first.consumer.add_queue_listener(
                lambda topic, every, mine: heard.append(len(every)) if topic == "Orders" else None
            )
            world.broker.topics["Orders"] = 12
            await world.until(lambda: is_shared([first, second], 12), seconds=31)
            assert heard[-1] == 12

    world.run(main)


def test_nothing_is_lost_and_little_comes_twice_while_members_come_leave_and_die(
    world: World,
) -> None:

    async def main() -> None:
        sent = 0
        stopped = False

        async def send() -> None:
            nonlocal sent
            while not stopped:
                for queue_id in range(8):
                    world.broker.put("Orders", queue_id, b"%d" % sent)
                    sent += 1
                await world.sleep(0.1)

        rng = random.Random(7)
        members = [Member(world, work_ms=5, strategy=Sticky())]
        everyone = list(members)
        await members[0].__aenter__()
        sending = asyncio.ensure_future(send())
        for _ in range(14):
            if len(members) < 8 and (len(members) == 1 or rng.random() < 0.6):
                member = Member(world, work_ms=5, strategy=Sticky())
                await member.__aenter__()
                members.append(member)
                everyone.append(member)
            else:
                member = members.pop(rng.randrange(len(members)))
                if rng.random() < 0.5:
                    # Killed: its connections go, nothing is committed and nobody is told by it.
                    world.network.partition(member.session.client_ip, ["10.0.0.1", "10.0.0.2"])
                    peer = world.broker.members["billing"].get(member.session.client_id)
                    if peer is not None:
                        peer.close()
                        world.broker.disconnected(peer)
                else:
                    await member.__aexit__()
            await world.until(lambda: is_shared(members), seconds=1.2)
            await world.sleep(rng.uniform(0.2, 2))
        stopped = True
        await sending
        await world.until(
            lambda: len({body for one in everyone for body in one.bodies}) == sent, seconds=10
        )
        seen = Counter(body for one in everyone for body in one.bodies)
        assert len(seen) == sent
        assert sum(seen.values()) - sent < sent * 0.05, "more than one in twenty came twice"
        for member in members:
            await member.__aexit__()

    world.run(main, seconds=600)


def test_no_handler_of_a_queue_that_stays_waits_while_others_join(world: World) -> None:
    async def main() -> None:
        stopped = False

        async def send() -> None:
            number = 0
            while not stopped:
                for queue_id in range(8):
                    world.broker.put("Orders", queue_id, b"%d" % queue_id)
                number += 1
                await world.sleep(0.02)

        async with AsyncExitStack() as parts:
            first = await parts.enter_async_context(Member(world))
            sending = asyncio.ensure_future(send())
            await world.sleep(2)
            for _ in range(5):
                await parts.enter_async_context(Member(world))
                await world.sleep(2)
            stopped = True
            await sending
            kept = {b"%d" % queue.queue_id for queue in first.queues}
            assert kept
            for body in kept:
                times = [at for at, got in first.got if got == body]
                gaps = [later - at for at, later in pairwise(times)]
                assert max(gaps) < 100, "a pause in a queue that did not move"

    world.run(main)


def test_a_queue_changes_hands_without_a_message_coming_twice(world: World) -> None:
    async def main() -> None:
        for number in range(4000):
            world.broker.put("Orders", number % 8, b"%d" % number)
        async with Member(world, work_ms=20, concurrency=4) as first:
            await world.sleep(1)
            async with Member(world, work_ms=20, concurrency=4) as second:
                await world.until(lambda: is_shared([first, second]), seconds=1)
                await world.until(lambda: len({*first.bodies, *second.bodies}) == 4000, seconds=60)
            counts = Counter([*first.bodies, *second.bodies])
            assert max(counts.values()) == 1
            assert len(second.got) > 1000

    world.run(main)


def test_a_handler_that_outlasts_the_handover_has_its_message_come_twice_and_not_committed(
    world: World,
) -> None:
    async def main() -> None:
        for queue_id in range(8):
            world.broker.put("Orders", queue_id, b"%d" % queue_id)
        async with Member(world, work_ms=5_000) as first:
            await world.sleep(1)
            async with Member(world, work_ms=5_000) as second:
                await world.until(lambda: is_shared([first, second]), seconds=1)
                lost = {b"%d" % queue.queue_id for queue in second.queues}
                await world.until(lambda: len(second.got) == 4, seconds=1)
                await world.sleep(4.5)  # The first member is done, and the second is not.
                for queue in second.queues:
                    key = ("billing", "Orders", queue.queue_id)
                    assert world.broker.offsets.get(key, 0) == 0
        assert set(second.bodies) == lost

    world.run(main)


def test_a_broker_that_restarts_does_not_make_the_first_to_return_take_everything(
    world: World,
) -> None:
    async def main() -> None:
        async with Member(world) as first, Member(world) as second:
            await world.until(lambda: is_shared([first, second]), seconds=2)
            before = (first.queues, second.queues)
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, len(first.queues), len(second.queues))
                    await world.sleep(0.01)

            watching = asyncio.ensure_future(watch())
            cut = world.network.partition("10.0.1.2", ["10.0.0.1", "10.0.0.2"])
            world.network.reset("10.0.0.2")
            world.broker.members.clear()
            await world.sleep(1.5)
            cut.heal()
            await world.sleep(20)
            watching.cancel()
            assert most == 4
            assert (first.queues, second.queues) == before

    world.run(main)


def test_members_with_different_subscriptions_are_warned(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world.broker.topics["Other"] = 1
        async with (
            Member(world, topics={"Orders": "Paid"}) as first,
            Member(world, topics={"Orders": "Refund", "Other": "*"}) as second,
        ):
            await world.sleep(25)
            conflicts = {**first.consumer.subscription_conflicts}
            conflicts |= second.consumer.subscription_conflicts
            assert conflicts["Orders"] in ("Paid", "Refund")
            assert first.consumer.subscription_conflicts["Other"] == "*"

    world.run(main)
    assert "members subscribe differently" in caplog.text


def test_a_member_reads_by_its_own_filter_whatever_the_group_says(world: World) -> None:
    async def main() -> None:
        async with (
            Member(world, topics={"Orders": "Paid"}),
            Member(world, topics={"Orders": "Refund"}),
        ):
            await world.sleep(20)
        by_subscription = Counter(
            (pull.subscription, bool(pull.sys_flag & 4))
            for pull in world.broker.pulls
            if pull.topic == "Orders"
        )
        assert set(by_subscription) == {("Paid", True), ("Refund", True)}

    world.run(main)


def test_subscriptions_change_while_it_runs(world: World) -> None:
    async def main() -> None:
        world.broker.topics["More"] = 1
        async with Member(world) as member:
            await member.consumer.subscribe("More", "A || B")
            world.broker.put("More", 0, b"a", tag="A")
            world.broker.put("More", 0, b"c", tag="C")
            await world.until(lambda: member.bodies == [b"a"], seconds=2)
            await member.consumer.unsubscribe("Orders")
            assert {queue.topic for queue in member.consumer.assignment} == {
                "More",
                "%RETRY%billing",
            }
            await world.sleep(1)
            topics = {one.topic for one in world.broker.heartbeats[-1].consumers[0].subscriptions}
            assert topics == {"More", "%RETRY%billing"}

    world.run(main)


# Orderly.


def test_an_orderly_queue_is_handled_one_by_one_and_queues_in_parallel(world: World) -> None:
    async def main() -> None:
        for number in range(80):
            world.broker.put("Orders", number % 8, b"%d/%d" % (number % 8, number // 8))
        running: Counter[int] = Counter()
        most = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal most
            running[message.queue_id] += 1
            assert running[message.queue_id] == 1
            most = max(most, sum(running.values()))
            order[message.queue_id].append(message.queue_offset)
            await world.sleep(0.05)
            running[message.queue_id] -= 1

        order: dict[int, list[int]] = {queue_id: [] for queue_id in range(8)}
        async with (
            world.session() as session,
            PushConsumer(
                session,
                "billing",
                "Orders",
                handle,
                config=ConsumerConfig(orderly=True),
                consume_from="first",
            ),
        ):
            await world.until(lambda: sum(map(len, order.values())) == 80)
        assert all(offsets == list(range(10)) for offsets in order.values())
        assert most == 8

    world.run(main)


@pytest.mark.parametrize(
    ("problem", "pause_ms"),
    [(Suspend(), 1000), (ValueError("no"), 1000), (Suspend(3), 3000), (RetryLater(0.001), 10)],
)
def test_an_orderly_failure_holds_its_own_queue_up_and_comes_again(
    world: World, problem: Exception, pause_ms: int
) -> None:
    async def main() -> None:
        async with Member(world, orderly=True) as member:
            member.verdict = lambda message: (
                problem if message.body == b"bad" and message.reconsume_times < 3 else None
            )
            for body in (b"bad", b"after"):
                world.broker.put("Orders", 0, body)
            world.broker.put("Orders", 1, b"other")
            await world.until(lambda: b"after" in member.bodies)
        times = [at for at, body in member.got if body == b"bad"]
        gaps = [later - at for at, later in pairwise(times)]
        assert gaps == [pytest.approx(pause_ms, abs=5)] * 3
        assert member.bodies.index(b"other") < 3
        assert world.broker.sent_back == []
        assert world.broker.offsets["billing", "Orders", 0] == 2

    world.run(main)


def test_an_orderly_message_is_given_up_after_the_tries_configured(world: World) -> None:
    async def main() -> None:
        async with Member(world, orderly=True, max_reconsume_times=2) as member:
            member.verdict = lambda message: ValueError() if message.body == b"bad" else None
            for body in (b"bad", b"after"):
                world.broker.put("Orders", 0, body)
            await world.until(lambda: b"after" in member.bodies)
        assert member.bodies == [b"bad"] * 3 + [b"after"]
        assert [one.delay_level for one in world.broker.sent_back] == [-1]
        assert world.broker.offsets["billing", "Orders", 0] == 2

    world.run(main)


def test_an_orderly_handler_sends_a_hopeless_message_to_the_dead_letters(world: World) -> None:
    async def main() -> None:
        async with Member(world, orderly=True) as member:
            member.verdict = lambda message: ToDlq("bad") if message.body == b"bad" else None
            for body in (b"bad", b"after"):
                world.broker.put("Orders", 0, body)
            await world.until(lambda: b"after" in member.bodies, seconds=0.5)
        assert member.bodies == [b"bad", b"after"]

    world.run(main)


def test_an_orderly_handler_commits_and_rolls_back_by_hand(world: World) -> None:
    async def main() -> None:
        async with Member(world, orderly=True) as member:
            fates = iter([Fate.HOLD, Fate.HOLD, Fate.ROLL_BACK, Fate.HOLD, Fate.HOLD, Fate.COMMIT])
            member.verdict = lambda message: Verdict(next(fates, Fate.HOLD))
            for number in range(5):
                world.broker.put("Orders", 0, b"%d" % number)
            await world.until(lambda: len(member.got) == 8)
            await world.sleep(6)
            assert member.bodies == [b"0", b"1", b"2", b"0", b"1", b"2", b"3", b"4"]
            assert world.broker.offsets["billing", "Orders", 0] == 3
        assert world.broker.offsets["billing", "Orders", 0] == 3

    world.run(main)


def test_an_orderly_queue_moves_only_when_its_handler_is_done(world: World) -> None:
    async def main() -> None:
        for queue_id in range(8):
            for number in range(3):
                world.broker.put("Orders", queue_id, b"%d/%d" % (queue_id, number))
        async with Member(world, work_ms=5_000, orderly=True) as first:
            await world.sleep(1)
            async with Member(world, work_ms=100, orderly=True) as second:
                await world.sleep(3)
                assert len(first.queues) == 8
                assert second.got == []
                await world.until(lambda: is_shared([first, second]), seconds=4)
                await world.until(lambda: len(second.got) == 8, seconds=3)
                # The first of each was handled by the old owner, and only there.
                assert all(body.endswith((b"/1", b"/2")) for body in second.bodies)
        assert world.broker.locks == {}

    world.run(main)


def test_locks_are_refreshed_and_a_lapsed_one_stops_the_queue(world: World) -> None:
    async def main() -> None:
        async with Member(world, orderly=True) as member:
            await world.sleep(61)
            assert world.broker.asked[Code.LOCK_BATCH_MQ] >= 3
            world.broker.put("Orders", 0, b"a")
            await world.until(lambda: member.bodies == [b"a"], seconds=1)
            world.broker.refusals[Code.LOCK_BATCH_MQ] = (1, "no locks today")
            await world.sleep(41)
            world.broker.put("Orders", 0, b"b")
            await world.sleep(5)
            assert member.bodies == [b"a"]
            world.broker.refusals.clear()
            await world.until(lambda: member.bodies == [b"a", b"b"], seconds=25)

    world.run(main)


def test_an_orderly_queue_that_another_holds_is_not_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        place = MessageQueue("Orders", BROKER_NAME, 3)
        world.broker.locks["billing", place] = ("someone@else", 10_000)
        world.broker.put("Orders", 3, b"held")
        async with Member(world, orderly=True) as member:
            await world.sleep(5)
            assert place not in member.queues
            assert member.got == []
            await world.until(lambda: member.bodies == [b"held"], seconds=6)

    world.run(main)
    assert "because lock failed" in caplog.text
