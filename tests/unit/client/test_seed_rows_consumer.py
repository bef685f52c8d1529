"""Rows CO of the seeds' checklist that no other test shows, mostly against a scripted broker."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_broker import BROKER_NAME, World

from skylark.client.consumer_config import ENDLESS, RECONSUME_TIMES_MAX, ConsumerConfig
from skylark.client.group_member import State
from skylark.client.pull_consumer import PullConsumer
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.client.verdicts import RetryLater, Suspend
from skylark.errors import ClientError
from skylark.model.message import Message
from skylark.model.queue import MessageQueue
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import Command
from skylark.protocol.record import decode_records
from skylark.testing import MemoryBroker


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.loop.set_debug(False)  # It makes a run thirty times slower.
    yield world
    world.loop.close()


class Wire:
    """Notes requests and answers of a session."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.sent: list[Command] = []
        self.answered: list[tuple[Command, Command]] = []
        self.pending = Counter[tuple[str, str]]()
        self.most_pending = 0

    def before_request(self, address: str, request: Command) -> None:
        self.codes.append(request.code)
        self.sent.append(request)
        if request.code == Code.PULL_MESSAGE:
            place = (request.fields["topic"], request.fields["queueId"])
            self.pending[place] += 1
            self.most_pending = max(self.most_pending, self.pending[place])

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.answered.append((request, response))
        if request.code == Code.PULL_MESSAGE:
            self.pending[request.fields["topic"], request.fields["queueId"]] -= 1


class Handler:
    """Notes what it gets and when; fails by a rule."""

    def __init__(self, world: World, problem: Any = None) -> None:
        self.world = world
        self.got: list[ReceivedMessage] = []
        self.times: list[int] = []
        self.problem = problem

    async def __call__(self, message: ReceivedMessage) -> None:
        self.got.append(message)
        self.times.append(self.world.clock.monotonic_ms())
        problem = self.problem(message) if self.problem is not None else None
        if problem is not None:
            raise problem

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


def consumer(session: Any, handler: Any, **settings: Any) -> PushConsumer:
    return PushConsumer(
        session,
        settings.pop("group", "billing"),
        settings.pop("topics", {"Orders": "*"}),
        handler,
        batch_handler=settings.pop("batch_handler", None),
        consume_from=settings.pop("consume_from", "first"),
        config=ConsumerConfig(**settings),
    )


def test_every_message_comes_in_the_answer_to_a_pull_and_the_next_pull_follows_at_once(
    world: World,
) -> None:
    """CO-03: push is built on pull; no frame of the broker brings a message unasked."""

    async def main() -> None:
        for number in range(100):
            world.broker.put("Orders", 0, b"%d" % number)
        handler, wire = Handler(world), Wire()
        async with world.session() as session:
            session.channels.hooks.append(wire)
            async with consumer(session, handler):
                await world.until(lambda: len(handler.got) == 100, seconds=1)
        brought = [
            record.body
            for request, answer in wire.answered
            if request.code == Code.PULL_MESSAGE and answer.code == 0
            for record in decode_records(answer.body)
        ]
        assert sorted(brought) == sorted(handler.bodies)
        full = [pull for pull in world.broker.pulls if pull.topic == "Orders" and not pull.queue_id]
        assert [pull.queue_offset for pull in full[:5]] == [0, 32, 64, 96, 100]

    world.run(main)


def test_each_queue_has_one_pull_under_way(world: World) -> None:
    """CO-43, and CO-09: the pull of an idle queue waits at the broker."""

    async def main() -> None:
        handler, wire = Handler(world), Wire()
        async with world.session() as session:
            session.channels.hooks.append(wire)
            async with consumer(session, handler) as one:
                for round_ in range(50):
                    world.broker.put("Orders", round_ % 4, b"x")
                    await world.sleep(0.05)
                await world.until(lambda: len(handler.got) == 50)
                await world.sleep(1)
                assert len(one.assignment) == 5  # With the retry topic's.
                assert sum(wire.pending.values()) == 5
        assert wire.most_pending == 1

    world.run(main)


def test_a_pull_consumer_hears_of_scale_out_and_pulls_nothing_by_itself(world: World) -> None:
    """CO-07 and RB-16."""

    async def main() -> None:
        heard: list[tuple[int, int]] = []
        world.broker.put("Orders", 0, b"x")
        async with (
            world.session() as one,
            world.session() as two,
            PullConsumer(one, "audit", ["Orders"]) as first,
        ):
            first.add_queue_listener(
                lambda topic, every, mine: heard.append((len(every), len(mine)))
            )
            async with PullConsumer(two, "audit", ["Orders"]):
                await world.until(lambda: heard == [(4, 2)], seconds=2)
                world.broker.topics["Orders"] = 6
                await world.until(lambda: heard[-1] == (6, 3), seconds=31)
        assert world.broker.pulls == []

    world.run(main)


def test_an_orderly_consumer_uses_as_many_handlers_as_configured(world: World) -> None:
    """CO-16 for orderly handlers."""

    async def main() -> None:
        world.broker.topics["Orders"] = 8
        running = most = done = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await world.sleep(0.1)
            running -= 1
            done += 1

        for number in range(40):
            world.broker.put("Orders", number % 8, b"")
        async with (
            world.session() as session,
            consumer(session, handle, orderly=True, concurrency=3),
        ):
            await world.until(lambda: done == 40)
        assert most == 3

    world.run(main)


def test_an_open_batch_holds_the_commit_at_its_first_offset(world: World) -> None:
    """CO-22: task 1 has 10 to 19 and is open, task 2 has 20 to 29 and is done."""

    async def main() -> None:
        release = asyncio.Event()
        done: list[int] = []

        async def handle(messages: list[ReceivedMessage]) -> None:
            if messages[0].queue_offset == 10:
                await release.wait()
            done.append(messages[0].queue_offset)

        for _ in range(30):
            world.broker.put("Orders", 0, b"")
        async with (
            world.session() as session,
            consumer(session, None, batch_handler=handle, consume_batch_size=10),
        ):
            await world.until(lambda: sorted(done) == [0, 20])
            await world.sleep(6)
            assert world.broker.offsets["billing", "Orders", 0] == 10
            release.set()
            await world.sleep(6)
            assert world.broker.offsets["billing", "Orders", 0] == 30

    world.run(main)


def test_clustering_keeps_its_progress_at_the_broker_and_no_file(
    world: World, tmp_path: Path
) -> None:
    """CO-24; the broadcasting half is beside the other tests of broadcasting."""

    async def main() -> None:
        world.broker.put("Orders", 0, b"x")
        handler = Handler(world)
        async with (
            world.session() as session,
            consumer(session, handler, offsets_folder=str(tmp_path)),
        ):
            await world.until(lambda: handler.got)
        assert world.broker.offsets["billing", "Orders", 0] == 1

    world.run(main)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["epoch", "datetime", "text"])
def test_a_new_group_begins_at_a_time_given_in_any_form(world: World, form: str) -> None:
    """CO-29; text is Java's yyyyMMddHHmmss, in local time."""

    async def main() -> None:
        for number in range(5):
            world.broker.put("Orders", 0, b"%d" % number)
            await world.sleep(10 - world.clock.now_ms() / 1000 % 1)  # On to a full second.
            if number == 2:
                at_ms = world.clock.now_ms()
        at = datetime.datetime.fromtimestamp(at_ms / 1000)
        given: Any = {"epoch": at_ms, "datetime": at, "text": at.strftime("%Y%m%d%H%M%S")}[form]
        handler = Handler(world)
        async with world.session() as session, consumer(session, handler, consume_from=given):
            await world.until(lambda: len(handler.got) == 2)
            await world.sleep(1)
        assert handler.bodies == [b"3", b"4"]

    world.run(main)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [({"concurrency": 1}, 20), ({"concurrency": 4}, 5), ({"concurrency": 20}, 1)],
)
def test_more_handlers_at_a_time_are_done_sooner(
    world: World, settings: dict[str, int], seconds: int
) -> None:
    """CO-36, as far as handlers wait for something else."""

    async def main() -> None:
        async def handle(message: ReceivedMessage) -> None:
            await world.sleep(0.1)
            times.append(world.clock.monotonic_ms())

        times: list[int] = []
        for number in range(200):
            world.broker.put("Orders", number % 4, b"")
        async with world.session() as session, consumer(session, handle, **settings):
            started_ms = world.clock.monotonic_ms()
            await world.until(lambda: len(times) == 200)
        assert (times[-1] - started_ms) / 1000 == pytest.approx(seconds, rel=0.1, abs=0.1)

    world.run(main)


def test_a_batch_handler_that_shares_its_cost_is_five_times_as_fast(world: World) -> None:
    """CO-37: one order takes a second, ten together take two."""

    async def main() -> None:
        took: dict[str, float] = {}
        done: list[int] = []
        for number in range(100):
            world.broker.put("Orders", 0, b"%d" % number)

        async def one(message: ReceivedMessage) -> None:
            await world.sleep(1)
            done.append(1)

        async def ten(messages: list[ReceivedMessage]) -> None:
            await world.sleep(2)
            done.extend(1 for _ in messages)

        for name, handler, batch in (("one", one, None), ("ten", None, ten)):
            done.clear()
            size = 10 if batch else 1
            async with (
                world.session() as session,
                consumer(
                    session,
                    handler,
                    group=name,
                    batch_handler=batch,
                    concurrency=1,
                    consume_batch_size=size,
                    pull_batch_size=100,
                ),
            ):
                started_ms = world.clock.monotonic_ms()
                await world.until(lambda: len(done) == 100, seconds=120)
                took[name] = (world.clock.monotonic_ms() - started_ms) / 1000
        assert took["one"] / took["ten"] == pytest.approx(5, rel=0.02)

    world.run(main)


def test_a_consumer_skips_a_backlog_by_how_far_it_is_behind(world: World) -> None:
    """CO-38: what is more than so many messages old is passed over, the rest is handled."""

    async def main() -> None:
        handled: list[int] = []
        seen = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal seen
            seen += 1
            if message.max_offset - message.queue_offset > 100:
                return
            await world.sleep(1)
            handled.append(message.queue_offset)

        for _ in range(5_000):
            world.broker.put("Orders", 0, b"")
        async with world.session() as session, consumer(session, handle, concurrency=100):
            await world.until(lambda: seen == 5_000, seconds=60)
            await world.until(lambda: len(handled) == 100, seconds=5)
        assert sorted(handled) == list(range(4_900, 5_000))
        assert world.broker.offsets["billing", "Orders", 0] == 5_000

    world.run(main)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*", b"abcd"),
        (None, b"abcd"),
        ("", b"abcd"),
        ("TagA||TagB||TagC", b"abc"),
        ("TagA || TagB", b"ab"),
        ("TagA", b"a"),
    ],
)
def test_every_form_of_a_tag_expression(
    world: World, expression: str | None, expected: bytes
) -> None:
    """CO-41 and FI-01."""

    async def main() -> None:
        for tag, body in (("TagA", b"a"), ("TagB", b"b"), ("TagC", b"c"), (None, b"d")):
            world.broker.put("Orders", 0, body, tag=tag)
        handler = Handler(world)
        async with (
            world.session() as session,
            consumer(session, handler, topics={"Orders": expression}),
        ):
            await world.until(lambda: len(handler.got) == len(expected))
            await world.sleep(1)
        assert b"".join(sorted(handler.bodies)) == expected

    world.run(main)


def test_a_start_goes_from_the_route_to_the_first_pull_in_order(world: World) -> None:
    """CO-42, RB-02 and RB-06: queues from the name server, members from a broker, then offsets."""

    async def main() -> None:
        world.broker.put("Orders", 0, b"x")
        handler, wire = Handler(world), Wire()
        async with world.session() as session:
            session.channels.hooks.append(wire)
            started_ms = world.clock.monotonic_ms()
            async with consumer(session, handler):
                await world.until(lambda: handler.got, seconds=1)
                assert handler.times[0] - started_ms < 1_000
        order = list(dict.fromkeys(wire.codes))
        steps = [
            Code.GET_ROUTEINFO_BY_TOPIC,
            Code.HEART_BEAT,
            Code.GET_CONSUMER_LIST_BY_GROUP,
            Code.QUERY_CONSUMER_OFFSET,
            Code.PULL_MESSAGE,
        ]
        assert [code for code in order if code in steps] == steps

    world.run(main)


def test_a_consumer_whose_start_failed_is_not_started_again(world: World) -> None:
    """CO-42 and CO-46."""

    async def main() -> None:
        async with world.session() as session:
            taken = consumer(session, Handler(world))
            one = consumer(session, Handler(world))
            assert one.state is State.CREATE_JUST
            await taken.start()
            with pytest.raises(ClientError, match="has a consumer in this session already"):
                await one.start()
            assert one.state is State.START_FAILED
            with pytest.raises(ClientError, match="created before, and failed") as caught:
                await one.start()
            assert "make another" in str(caught.value)
            assert one.state is State.START_FAILED
            await one.close()
            assert taken.state is State.RUNNING
            await taken.close()
            assert taken.state is State.SHUTDOWN_ALREADY

    world.run(main)


def test_failures_are_counted_and_shown_to_operators(world: World) -> None:
    """CO-44: consumerStatus shows failedTPS."""

    async def main() -> None:
        handler = Handler(world, lambda message: RetryLater() if message.body == b"bad" else None)
        async with world.session() as session, consumer(session, handler) as one:
            for number in range(60):
                world.broker.put("Orders", 0, b"bad" if number % 3 == 0 else b"good")
            await world.sleep(50)
            status = one.running_info(jstack=False).statuses["Orders"]
        assert status.consume_failed_msgs == 20
        assert status.consume_failed_tps == pytest.approx(20 / 50, rel=0.05)
        assert status.consume_ok_tps == pytest.approx(40 / 50, rel=0.05)

    world.run(main)


def test_an_orderly_message_that_fails_for_ever_blocks_its_queue_alone_and_shows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """RE-02: it is tried every second without end, and whoever watches can see it."""

    async def main() -> None:
        handler = Handler(world, lambda message: Suspend() if message.body == b"bad" else None)
        for body in (b"bad", b"after"):
            world.broker.put("Orders", 0, body)
        world.broker.put("Orders", 1, b"other")
        async with world.session() as session, consumer(session, handler, orderly=True) as one:
            await world.sleep(120)
            status = one.running_info(jstack=False).statuses["Orders"]
            place = MessageQueue("Orders", BROKER_NAME, 0)
            info = one.running_info(jstack=False).queues[place]
        calls = zip(handler.times, handler.bodies, strict=True)
        tries = [at for at, body in calls if body == b"bad"]
        assert {later - sooner for sooner, later in pairwise(tries)} == {1_000}
        assert len(tries) >= 119
        assert b"other" in handler.bodies
        assert b"after" not in handler.bodies
        assert status.consume_failed_tps == pytest.approx(1, rel=0.1)
        assert (info.commit_offset, info.cached_msg_count) == (0, 2)
        assert world.broker.sent_back == []

    world.run(main)
    warnings = [one for one in caplog.messages if "blocks its queue" in one]
    assert len(warnings) == 2, warnings  # After 10 and after 100 tries.


def test_no_limit_means_sixteen_retries_or_for_ever_in_order() -> None:
    """RE-11."""
    assert ConsumerConfig().reconsume_times_max == RECONSUME_TIMES_MAX == 16
    assert ConsumerConfig(orderly=True).reconsume_times_max == ENDLESS == 2**31 - 1
    assert ConsumerConfig(max_reconsume_times=3, orderly=True).reconsume_times_max == 3


def test_a_queue_that_is_not_pulled_any_more_is_begun_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """RB-13: what two minutes pass without a pull is dropped, and taken again."""

    async def main() -> None:
        handler = Handler(world)
        # This broker forgets the pulls that it holds.
        async with (
            world.session() as session,
            consumer(session, handler, pull_suspend_ms=600_000, pull_timeout_ms=3_600_000) as one,
        ):
            await world.sleep(100)
            assert world.broker.asked[Code.PULL_MESSAGE] == 5
            await world.sleep(50)
            assert world.broker.asked[Code.PULL_MESSAGE] == 10
            assert len(one.assignment) == 5
            world.broker.put("Orders", 0, b"x")
            await world.until(lambda: handler.bodies == [b"x"], seconds=1)
            await world.sleep(1)
        assert handler.bodies == [b"x"]

    world.run(main)
    assert caplog.text.count("is not pulled any more") == 5


def test_a_consumer_rewinds_its_queues_to_a_time_and_the_broker_goes_along() -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with mq.connect() as client:
                async with client.producer("makers") as producer:
                    for number in range(12):
                        await producer.send(Message("Orders", b"%d" % number))
                        await mq.clock.advance(seconds=1)
                        if number == 5:
                            between_ms = mq.clock.now_ms()
                async with client.consumer(
                    "readers", "Orders", handle, consume_from="first"
                ) as consumer:
                    await mq.clock.wait_for(lambda: len(seen) == 12)
                    await mq.clock.advance(seconds=6)
                    assert mq.lag("readers", "Orders") == 0
                    await consumer.rewind("Orders", between_ms)
                    assert mq.lag("readers", "Orders") == 6
                    await mq.clock.wait_for(lambda: len(seen) == 18)
                    assert sorted(map(int, seen[12:])) == list(range(6, 12))
                    await mq.clock.advance(seconds=6)
                    assert mq.lag("readers", "Orders") == 0

        mq.run(scenario)
