"""PushConsumer against a scripted broker, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_broker import BROKER_NAME, World

from skylark.client.consume_hooks import ConsumeContext
from skylark.client.consumer_config import ConsumerConfig
from skylark.client.group_consumer import State
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.client.session import Session
from skylark.client.subscriptions import SqlFilter
from skylark.client.verdicts import Fate, RetryLater, Suspend, ToDlq, Verdict
from skylark.errors import BrokerError, ClientClosed, ClientError, ConfigError, InvalidName
from skylark.model.group import MessageModel
from skylark.model.message import SysFlag
from skylark.model.queue import MessageQueue
from skylark.protocol.bodies import ConsumeResult, ResetOffsetBody
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.codes import ResponseCode
from skylark.protocol.compression import compress
from skylark.protocol.record import decode_record, encode_record, pack_host


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


class Handler:
    """Notes what it gets; `verdicts` says for which bodies it raises what."""

    def __init__(self, **verdicts: Any) -> None:
        self.got: list[ReceivedMessage] = []
        self.verdicts = verdicts

    async def __call__(self, message: ReceivedMessage) -> Verdict | None:
        self.got.append(message)
        outcome = self.verdicts.get(message.body.decode())
        if callable(outcome):
            outcome = outcome(message)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


def is_full(got: list[ReceivedMessage], count: int) -> bool:
    return len(got) == count


def consumer(
    session: Session, handler: Any = None, /, *, consume_from: Any = "first", **settings: Any
) -> PushConsumer:
    batch = settings.pop("batch_handler", None)
    hooks = settings.pop("hooks", ())
    topics = settings.pop("topics", {"Orders": "*"})
    return PushConsumer(
        session,
        settings.pop("group", "billing"),
        topics,
        handler,
        batch_handler=batch,
        config=ConsumerConfig(**settings),
        consume_from=consume_from,
        hooks=hooks,
    )


# Starting and where it begins.


def test_a_new_group_gets_history_from_the_first_message_when_asked(world: World) -> None:
    async def main() -> None:
        for number in range(8):
            world.broker.put("Orders", number % 4, b"%d" % number)
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: len(handler.got) == 8)
        assert sorted(handler.bodies) == [b"%d" % number for number in range(8)]

    world.run(main)


def test_a_new_group_begins_at_the_end_unless_told_otherwise(world: World) -> None:
    async def main() -> None:
        world.broker.put("Orders", 0, b"old")
        handler = Handler()
        async with world.session() as session, consumer(session, handler, consume_from="last"):
            world.broker.put("Orders", 0, b"new")
            await world.until(lambda: handler.got)
            await world.sleep(1)
        assert handler.bodies == [b"new"]

    world.run(main)


def test_where_a_group_began_is_committed_before_it_has_read_anything(world: World) -> None:
    """Else messages sent between two starts would be history to the second one."""

    async def main() -> None:
        world.broker.put("Orders", 0, b"old")
        async with world.session() as session, consumer(session, Handler(), consume_from="last"):
            pass
        world.broker.put("Orders", 0, b"between")
        handler = Handler()
        async with world.session() as session, consumer(session, handler, consume_from="last"):
            await world.until(lambda: handler.got)
        assert handler.bodies == [b"between"]

    world.run(main)


def test_a_group_begins_at_a_time_in_all_three_forms(world: World) -> None:
    async def main() -> None:
        world.broker.put("Orders", 0, b"early")
        await world.sleep(10)
        at_ms = world.clock.now_ms()
        world.broker.put("Orders", 0, b"late")
        handler = Handler()
        async with (
            world.session() as session,
            consumer(session, handler, consume_from=at_ms),
        ):
            await world.until(lambda: handler.got)
        assert handler.bodies == [b"late"]

    world.run(main)
    with pytest.raises(ConfigError, match="yyyyMMddHHmmss"):
        PushConsumer(world.session(), "g", "T", consume_from="")
    with pytest.raises(ConfigError, match="not understood"):
        PushConsumer(world.session(), "g", "T", consume_from="yesterday")


def test_a_committed_offset_wins_over_where_to_begin(world: World) -> None:
    async def main() -> None:
        for number in range(5):
            world.broker.put("Orders", 0, b"%d" % number)
        world.broker.offsets["billing", "Orders", 0] = 3
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: len(handler.got) == 2)
            await world.sleep(1)
        assert handler.bodies == [b"3", b"4"]

    world.run(main)


def test_a_failed_offset_lookup_leaves_the_queue_for_later_rather_than_jump(world: World) -> None:
    async def main() -> None:
        world.broker.put("Orders", 0, b"kept")
        world.broker.offsets["billing", "Orders", 0] = 0
        world.broker.refusals[Code.QUERY_CONSUMER_OFFSET] = (ResponseCode.SYSTEM_ERROR, "busy")
        handler = Handler()
        async with (
            world.session() as session,
            consumer(session, handler, consume_from="last") as one,
        ):
            assert not one.assignment
            world.broker.refusals.clear()
            await world.until(lambda: handler.got, seconds=3)
        assert handler.bodies == [b"kept"]

    world.run(main)


def test_a_topic_that_does_not_exist_yet_is_found_when_it_does(world: World) -> None:
    async def main() -> None:
        handler = Handler()
        async with (
            world.session() as session,
            consumer(session, handler, topics={"Later": "*"}),
        ):
            await world.sleep(5)
            world.broker.topics["Later"] = 1
            world.broker.put("Later", 0, b"here")
            await world.until(lambda: handler.got, seconds=5)

    world.run(main)


def test_a_message_that_arrives_reaches_the_handler_at_once(world: World) -> None:
    async def main() -> None:
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.sleep(3)
            world.broker.put("Orders", 2, b"now")
            before_ms = world.clock.monotonic_ms()
            await world.until(lambda: handler.got)
            assert world.clock.monotonic_ms() - before_ms <= 10

    world.run(main)


def test_starting_twice_and_using_it_closed_are_errors_and_starting_again_works(
    world: World,
) -> None:
    async def main() -> None:
        handler = Handler()
        async with world.session() as session:
            one = consumer(session)
            with pytest.raises(ClientClosed, match="CREATE_JUST"):
                aiter(one)
            await one.start()
            with pytest.raises(ClientError, match="started before"):
                await one.start()
            await one.close()
            await one.close()
            assert one.state is State.SHUTDOWN_ALREADY
            with pytest.raises(ClientClosed):
                aiter(one)
            world.broker.put("Orders", 0, b"a")
            await one.start()
            async for message in one:
                handler.got.append(message)
                break
            await one.close()
        assert handler.bodies == [b"a"]

    world.run(main)


def test_a_consumer_that_nobody_closed_ends_with_its_session(world: World) -> None:
    async def main() -> None:
        handler = Handler()
        world.broker.put("Orders", 0, b"a")
        async with world.session() as session:
            one = consumer(session, handler)
            await one.start()
            await world.until(lambda: handler.got)
        assert one.state is State.SHUTDOWN_ALREADY
        assert world.broker.offsets["billing", "Orders", 0] == 1
        assert world.broker.unregistered == [("10.0.1.1@c1", "billing")]

    world.run(main)


def test_bad_names_and_settings_are_refused_when_it_is_made(world: World) -> None:
    session = world.session()
    with pytest.raises(InvalidName):
        PushConsumer(session, "bad group", "Orders")
    with pytest.raises(InvalidName):
        PushConsumer(session, "g", {"no such/topic": "*"})
    with pytest.raises(ConfigError, match="names no tag"):
        PushConsumer(session, "g", {"Orders": "||"})
    with pytest.raises(ConfigError, match="not both"):
        PushConsumer(session, "g", "Orders", Handler(), batch_handler=lambda messages: None)
    with pytest.raises(ConfigError, match="batch_handler"):
        PushConsumer(session, "g", "Orders", Handler(), config=ConsumerConfig(consume_batch_size=2))
    wrong: tuple[tuple[str, Any], ...] = (
        ("concurrency", 0),
        ("pull_batch_size", 1025),
        ("consume_batch_size", 0),
        ("rate_max", 0),
        ("max_reconsume_times", -1),
        ("consume_timeout_ms", 0),
        ("pull_timeout_ms", 15_000),
    )
    for name, value in wrong:
        with pytest.raises(ConfigError, match=name):
            ConsumerConfig(**{name: value})


def test_an_sql_filter_that_the_broker_refuses_fails_the_start(world: World) -> None:
    async def main() -> None:
        world.broker.refusals[Code.CHECK_CLIENT_CONFIG] = (
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "what is this",
        )
        async with world.session() as session:
            one = consumer(session, Handler(), topics={"Orders": SqlFilter("a >")})
            with pytest.raises(BrokerError):
                await one.start()
            assert one.state is State.START_FAILED
            assert not session.has_consumer("billing")

    world.run(main)


# What goes over the wire.


def test_pulls_and_heartbeats_say_what_rocketmq_brokers_expect(world: World) -> None:
    async def main() -> None:
        world.broker.put("Orders", 0, b"a", tag="Paid")
        handler = Handler()
        async with (
            world.session() as session,
            consumer(session, handler, topics={"Orders": "Paid || Refund"}),
        ):
            await world.until(lambda: handler.got)
            await world.sleep(20)
        (beat, *_) = world.broker.heartbeats
        assert beat.client_id == "10.0.1.1@c1"
        (data,) = beat.consumers
        assert (data.group_name, data.consume_type.value) == ("billing", "CONSUME_PASSIVELY")
        assert data.message_model is MessageModel.CLUSTERING
        assert data.consume_from_where.value == "CONSUME_FROM_FIRST_OFFSET"
        topics = {one.topic: one for one in data.subscriptions}
        assert topics.keys() == {"Orders", "%RETRY%billing"}
        assert topics["Orders"].tags == ("Paid", "Refund")
        assert topics["Orders"].codes == (2479852, -1850946664)
        pulls = [one for one in world.broker.pulls if one.topic == "Orders" and not one.queue_id]
        first, second = pulls[:2]
        assert (first.max_msg_nums, first.suspend_timeout_millis) == (32, 15_000)
        assert first.sys_flag == 2 | 4
        assert first.subscription == "Paid || Refund"
        assert (second.queue_offset, second.sys_flag) == (1, 2 | 4)
        # Held for 15 s, then asked again, with the progress since then.
        assert (pulls[2].sys_flag, pulls[2].commit_offset) == (1 | 2 | 4, 1)

    world.run(main)


def test_an_idle_queue_costs_one_pull_in_fifteen_seconds(world: World) -> None:
    async def main() -> None:
        async with world.session() as session, consumer(session, Handler()):
            await world.sleep(60)
            before = len(world.broker.pulls)
            await world.sleep(60)
            assert len(world.broker.pulls) - before == 5 * 4

    world.run(main)


def test_only_exact_tags_reach_the_handler_and_all_are_committed(world: World) -> None:
    """Aa and BB have the same Java hash, so the broker cannot tell them apart."""

    async def main() -> None:
        for body, tag in ((b"1", "Aa"), (b"2", "BB"), (b"3", "Aa"), (b"4", "BB")):
            world.broker.put("Orders", 0, body, tag=tag)
        handler = Handler()
        async with (
            world.session() as session,
            consumer(session, handler, topics={"Orders": "Aa"}),
        ):
            await world.until(lambda: len(handler.got) == 2)
        assert handler.bodies == [b"1", b"3"]
        assert world.broker.offsets["billing", "Orders", 0] == 4

    world.run(main)


def test_a_compressed_body_is_expanded_and_a_damaged_one_is_only_its_own_problem(
    world: World,
) -> None:
    async def main() -> None:
        flag = int(SysFlag.COMPRESSED)
        world.broker.put("Orders", 0, b"not zlib at all", sys_flag=flag)
        world.broker.put("Orders", 0, compress(b"long" * 2000), sys_flag=flag)
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: handler.got and world.broker.sent_back)
            await world.sleep(1)
        assert handler.got[1].body == b"long" * 2000
        assert world.broker.sent_back[0].offset == 0
        assert world.broker.offsets["billing", "Orders", 0] == 2

    world.run(main)


# Handlers.


def test_at_most_as_many_handlers_run_as_configured(world: World) -> None:
    async def main() -> None:
        running = most = done = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await world.sleep(1)
            running -= 1
            done += 1

        for number in range(40):
            world.broker.put("Orders", number % 4, b"")
        async with world.session() as session, consumer(session, handle, concurrency=7):
            await world.until(lambda: done == 40)
        assert most == 7

    world.run(main)


def test_a_blocking_function_runs_as_a_handler(world: World) -> None:
    async def main() -> None:
        got: list[bytes] = []

        def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        for number in range(10):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, consumer(session, handle):
            await world.until(lambda: len(got) == 10)

    world.run(main)


def test_a_pulled_batch_is_cut_into_lists_of_the_size_asked_for(world: World) -> None:
    async def main() -> None:
        sizes: list[int] = []

        async def handle(messages: list[ReceivedMessage]) -> None:
            sizes.append(len(messages))

        for _ in range(32):
            world.broker.put("Orders", 0, b"")
        async with (
            world.session() as session,
            consumer(session, batch_handler=handle, consume_batch_size=10),
        ):
            await world.until(lambda: sum(sizes) == 32)
        assert sizes == [10, 10, 10, 2]

    world.run(main)


def test_a_handler_that_never_waits_does_not_starve_the_others(world: World) -> None:
    async def main() -> None:
        handled = 0
        turns: list[int] = []  # How far it had come whenever another task had its turn.
        tasks: list[asyncio.Task[None]] = []

        async def handle(message: ReceivedMessage) -> None:
            nonlocal handled
            handled += 1
            if handled == 1:
                tasks.append(asyncio.ensure_future(beside()))

        async def beside() -> None:
            while handled < 1000:
                turns.append(handled)
                await asyncio.sleep(0)

        async with (
            world.session() as session,
            consumer(session, handle, pull_batch_size=1000, concurrency=1),
        ):
            await world.sleep(1)
            for _ in range(1000):
                world.broker.put("Orders", 0, b"")
            await world.until(lambda: handled == 1000)
            await tasks[0]
        assert len(set(turns)) > 10

    world.run(main)


def test_bursts_are_spread_out_and_nothing_is_dropped(world: World) -> None:
    async def main() -> None:
        times: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            times.append(world.clock.monotonic_ms())

        for number in range(1000):
            world.broker.put("Orders", number % 4, b"")
        async with world.session() as session, consumer(session, handle, rate_max=100):
            await world.until(lambda: len(times) == 1000)
        assert 9_500 <= times[-1] - times[0] <= 10_500
        assert max(sum(at <= other < at + 1000 for other in times) for at in times[::50]) <= 121

    world.run(main)


def test_hooks_see_every_call_and_their_errors_change_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, Any]] = []

    class Hook:
        def before_consume(self, context: ConsumeContext) -> None:
            seen.append(("before", context.messages[0].body))
            raise RuntimeError("a bad hook")

        def after_consume(self, context: ConsumeContext) -> None:
            assert context.verdict is not None
            seen.append(("after", (context.succeeded, context.verdict.fate, context.error)))

    async def main() -> None:
        problem = ValueError("no")
        handler = Handler(bad=problem)
        world.broker.put("Orders", 0, b"good")
        async with (
            world.session() as session,
            consumer(session, handler, hooks=[Hook()]),
        ):
            await world.until(lambda: handler.got)
            world.broker.put("Orders", 0, b"bad")
            await world.until(lambda: world.broker.sent_back)
        assert seen[:4] == [
            ("before", b"good"),
            ("after", (True, Fate.DONE, None)),
            ("before", b"bad"),
            ("after", (False, Fate.RETRY, problem)),
        ]

    world.run(main)
    assert "a hook failed" in caplog.text


# Offsets.


def test_the_commit_never_passes_a_message_that_is_not_done(world: World) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"3":
                await release.wait()

        for number in range(10):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, consumer(session, handle) as one:
            await world.sleep(6)
            assert world.broker.offsets["billing", "Orders", 0] == 3
            assert one.consumer_status("Orders")[MessageQueue("Orders", BROKER_NAME, 0)] == 3
            release.set()
            await world.sleep(6)
            assert world.broker.offsets["billing", "Orders", 0] == 10

    world.run(main)


def test_offsets_are_committed_every_five_seconds_and_at_the_end(world: World) -> None:
    async def main() -> None:
        handler = Handler()
        async with world.session() as session:
            async with consumer(session, handler):
                await world.sleep(1)
                world.broker.put("Orders", 0, b"a")
                await world.sleep(1)
                assert world.broker.offsets.get(("billing", "Orders", 0), 0) == 0
                await world.sleep(4)
                assert world.broker.offsets["billing", "Orders", 0] == 1
                count = world.broker.asked[Code.UPDATE_CONSUMER_OFFSET]
                await world.sleep(30)
                assert world.broker.asked[Code.UPDATE_CONSUMER_OFFSET] == count
                world.broker.put("Orders", 0, b"b")
                await world.until(lambda: len(handler.got) == 2)
            assert world.broker.offsets["billing", "Orders", 0] == 2

    world.run(main)


def test_closing_waits_for_the_handlers_that_run(world: World) -> None:
    async def main() -> None:
        done: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            await world.sleep(3)
            done.append(message.body)

        for number in range(50):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session:
            async with consumer(session, handle, concurrency=2):
                await world.sleep(1)
            assert len(done) == 2
            assert world.broker.offsets["billing", "Orders", 0] == 2
        assert world.broker.unregistered == [("10.0.1.1@c1", "billing")]

    world.run(main)


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async def handle(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        world.broker.put("Orders", 0, b"stuck")
        async with world.session() as session:
            async with consumer(session, handle, close_timeout_ms=2_000):
                await world.sleep(1)
            assert world.broker.offsets["billing", "Orders", 0] == 0

    world.run(main)
    assert "did not end in 2000 ms" in caplog.text


def test_an_operator_resets_the_group_and_what_was_in_hand_is_forgotten(world: World) -> None:
    async def main() -> None:
        handler = Handler()
        for number in range(5):
            world.broker.put("Orders", 0, b"%d" % number)
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: len(handler.got) == 5)
            peer = world.broker.members["billing"][session.client_id]
            body = ResetOffsetBody({MessageQueue("Orders", BROKER_NAME, 0): 2}).to_json()
            fields = {"topic": "Orders", "group": "billing", "timestamp": "0", "isForce": "true"}
            world.broker.tell(peer, Code.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
            await world.until(lambda: len(handler.got) == 8, seconds=2)
        assert handler.bodies[5:] == [b"2", b"3", b"4"]
        assert world.broker.offsets["billing", "Orders", 0] == 5

    world.run(main)


def test_rewinding_to_a_time_begins_with_the_first_message_since_then(world: World) -> None:
    async def main() -> None:
        at_ms = 0
        for number in range(100):
            await world.sleep(0.01)
            if number == 57:
                at_ms = world.clock.now_ms() - 4  # Nearer to the one before.
            world.broker.put("Orders", 0, b"%d" % number)
        handler = Handler()
        async with world.session() as session, consumer(session, handler) as one:
            await world.until(lambda: len(handler.got) == 100)
            offsets = await one.rewind("Orders", at_ms)
            assert offsets[MessageQueue("Orders", BROKER_NAME, 0)] == 57
            await world.until(lambda: len(handler.got) == 143)
        assert handler.bodies[100] == b"57"

    world.run(main)


def test_an_offset_that_is_gone_moves_to_where_the_broker_says(world: World) -> None:
    async def main() -> None:
        for number in range(10):
            world.broker.put("Orders", 0, b"%d" % number)
        world.broker.offsets["billing", "Orders", 0] = 2
        world.broker.min_offsets["Orders", 0] = 6
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: len(handler.got) == 4, seconds=5)
        assert handler.bodies == [b"6", b"7", b"8", b"9"]

    world.run(main)


def test_an_offset_that_is_gone_is_no_busy_loop_where_the_broker_takes_no_commits(
    world: World,
) -> None:
    async def main() -> None:
        for number in range(10):
            world.broker.put("Orders", 0, b"%d" % number)
        world.broker.offsets["billing", "Orders", 0] = 2
        world.broker.min_offsets["Orders", 0] = 6
        world.broker.refusals[Code.UPDATE_CONSUMER_OFFSET] = (ResponseCode.NO_PERMISSION, "no")
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.sleep(10)
            asked = [one for one in world.broker.pulls if one.topic == "Orders"]
            assert 8 <= len([one for one in asked if not one.queue_id]) <= 24
            world.broker.refusals.clear()
            await world.until(lambda: len(handler.got) == 4, seconds=3)
        assert handler.bodies == [b"6", b"7", b"8", b"9"]

    world.run(main)


# Failures, retries, dead letters.


@pytest.mark.parametrize("problem", [RetryLater(), ValueError("no"), Suspend()])
def test_a_failed_message_goes_back_and_comes_again_under_its_own_topic(
    world: World, problem: Exception
) -> None:
    async def main() -> None:
        handler = Handler(
            bad=lambda message: problem if message.reconsume_times < 2 else None,
        )
        world.broker.put("Orders", 0, b"bad")
        world.broker.put("Orders", 0, b"good")
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: len(handler.got) == 4)
            await world.sleep(1)
        tries = [message for message in handler.got if message.body == b"bad"]
        assert [message.reconsume_times for message in tries] == [0, 1, 2]
        assert {message.topic for message in tries} == {"Orders"}
        assert [message.queue.topic for message in tries] == ["Orders", *["%RETRY%billing"] * 2]
        assert len({message.message_id for message in tries}) == 1
        back = world.broker.sent_back
        assert [(one.delay_level, one.max_reconsume_times) for one in back] == [(0, 16)] * 2
        assert back[0].origin_topic == "Orders"
        assert world.broker.offsets["billing", "Orders", 0] == 2

    world.run(main)


@pytest.mark.parametrize(
    ("signal", "level"),
    [
        (RetryLater(1), 1),
        (RetryLater(61), 6),
        (RetryLater(100_000), 18),
        (RetryLater(level=7), 7),
        (ToDlq("hopeless"), -1),
    ],
)
def test_a_handler_chooses_the_delay(world: World, signal: Exception, level: int) -> None:
    async def main() -> None:
        handler = Handler(bad=lambda message: None if message.reconsume_times else signal)
        world.broker.put("Orders", 0, b"bad")
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: world.broker.sent_back)
        assert world.broker.sent_back[0].delay_level == level

    world.run(main)


def test_a_message_is_tried_as_often_as_configured_and_then_is_dead(world: World) -> None:
    async def main() -> None:
        handler = Handler(bad=RetryLater())
        world.broker.put("Orders", 0, b"bad")
        async with (
            world.session() as session,
            consumer(session, handler, max_reconsume_times=3),
        ):
            await world.until(lambda: ("%DLQ%billing", 0) in world.broker.queues)
            await world.sleep(30)
        assert [message.reconsume_times for message in handler.got] == [0, 1, 2, 3]

    world.run(main)


def test_the_front_of_a_batch_can_be_done_while_the_rest_comes_again(world: World) -> None:
    async def main() -> None:
        calls: list[list[bytes]] = []

        async def handle(messages: list[ReceivedMessage]) -> None:
            calls.append([message.body for message in messages])
            if len(calls) == 1:
                raise RetryLater(acked=2)

        for number in range(4):
            world.broker.put("Orders", 0, b"%d" % number)
        async with (
            world.session() as session,
            consumer(session, batch_handler=handle, consume_batch_size=8),
        ):
            await world.until(lambda: sum(map(len, calls)) == 6)
        assert calls[0] == [b"0", b"1", b"2", b"3"]
        assert sorted(chain(*calls[1:])) == [b"2", b"3"]

    world.run(main)


def test_a_refused_send_back_becomes_a_copy_in_the_retry_topic(world: World) -> None:
    async def main() -> None:
        world.broker.refusals[Code.CONSUMER_SEND_MSG_BACK] = (ResponseCode.SYSTEM_ERROR, "no")
        handler = Handler(bad=lambda message: None if message.reconsume_times else RetryLater())
        world.broker.put("Orders", 0, b"bad", tag="Paid", mine="yes")
        async with world.session() as session, consumer(session, handler):
            await world.until(lambda: len(handler.got) == 2)
        again = handler.got[1]
        assert (again.topic, again.tag, again.reconsume_times) == ("Orders", "Paid", 1)
        assert again.message_id == handler.got[0].message_id
        assert again.properties["mine"] == "yes"
        assert again.properties["DELAY"] == "3"
        assert again.origin_id == handler.got[0].offset_id

    world.run(main)


def test_without_any_broker_to_take_it_a_message_is_tried_here_after_five_seconds(
    world: World,
) -> None:
    async def main() -> None:
        refusal = (ResponseCode.SYSTEM_ERROR, "no")
        world.broker.refusals[Code.CONSUMER_SEND_MSG_BACK] = refusal
        world.broker.refusals[Code.SEND_MESSAGE_V2] = refusal
        times: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            times.append(world.clock.monotonic_ms())
            if message.reconsume_times < 2:
                raise RetryLater

        world.broker.put("Orders", 0, b"bad")
        async with world.session() as session, consumer(session, handle):
            await world.sleep(6)
            assert world.broker.offsets.get(("billing", "Orders", 0), 0) == 0
            await world.until(lambda: len(times) == 3)
        assert [later - sooner for sooner, later in pairwise(times)] == [
            pytest.approx(5000, abs=50)
        ] * 2
        assert world.broker.offsets["billing", "Orders", 0] == 1

    world.run(main)


def test_a_message_that_takes_too_long_is_sent_back_and_its_late_end_ignored(
    world: World,
) -> None:
    async def main() -> None:
        ended: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.reconsume_times == 0:
                await world.sleep(30 * 60)
                ended.append(1)
                raise RetryLater

        world.broker.put("Orders", 0, b"slow")
        async with world.session() as session, consumer(session, handle):
            await world.until(lambda: world.broker.sent_back, seconds=20 * 60)
            assert 15 * 60_000 <= world.clock.monotonic_ms() < 17 * 60_000
            await world.sleep(6)
            assert world.broker.offsets["billing", "Orders", 0] == 1
            await world.until(lambda: ended, seconds=20 * 60)
            await world.sleep(1)
        assert [one.delay_level for one in world.broker.sent_back] == [3]

    world.run(main)


def test_a_slow_handler_is_mentioned_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handle(message: ReceivedMessage) -> None:
            await world.sleep(200)

        world.broker.put("Orders", 0, b"slow")
        async with world.session() as session, consumer(session, handle, close_timeout_ms=0):
            await world.sleep(190)

    world.run(main)
    assert caplog.text.count("its handler runs for") == 1


# Flow control.


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pull_threshold_for_queue": 100}, 100),
        ({"pull_threshold_bytes_for_queue": 50 * 250}, 50),
        ({"consume_concurrently_max_span": 200}, 200),
    ],
)
def test_pulling_waits_while_too_much_is_in_hand(
    world: World, settings: dict[str, int], expected: int
) -> None:
    async def main() -> None:
        release = asyncio.Event()
        handled = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal handled
            if message.queue_offset == 0 or "span" not in next(iter(settings)):
                await release.wait()
            handled += 1

        for _ in range(3000):
            world.broker.put("Orders", 0, b"x" * 100)
        async with world.session() as session, consumer(session, handle, **settings) as one:
            await world.sleep(5)
            pulled = one.stats.of("Orders").pulled
            assert expected <= pulled <= expected + 64
            before = len(world.broker.pulls)
            await world.sleep(5)
            assert len([p for p in world.broker.pulls[before:] if p.queue_id == 0]) == 0
            release.set()
            await world.until(lambda: handled == 3000)

    world.run(main)


def test_a_suspended_consumer_pulls_nothing_until_it_is_resumed(world: World) -> None:
    async def main() -> None:
        handler = Handler()
        async with world.session() as session, consumer(session, handler) as one:
            world.broker.put("Orders", 0, b"a")
            await world.until(lambda: handler.got)
            one.suspend()
            await world.sleep(31)  # The pulls that were held have ended.
            world.broker.put("Orders", 0, b"b")
            await world.sleep(30)
            assert handler.bodies == [b"a"]
            one.resume()
            await world.until(lambda: len(handler.got) == 2, seconds=1)

    world.run(main)


# Trouble.


def test_a_refused_pull_is_tried_again_after_a_second(world: World) -> None:
    async def main() -> None:
        world.broker.refusals[Code.PULL_MESSAGE] = (ResponseCode.SYSTEM_ERROR, "not now")
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            world.broker.put("Orders", 0, b"a")
            await world.sleep(10)
            assert 40 <= world.broker.asked[Code.PULL_MESSAGE] <= 60
            world.broker.refusals.clear()
            await world.until(lambda: handler.got, seconds=1.5)

    world.run(main)


def test_a_broker_that_loses_all_connections_is_served_again_within_five_seconds(
    world: World,
) -> None:
    async def main() -> None:
        handler = Handler()
        async with world.session() as session, consumer(session, handler) as one:
            await world.sleep(1)
            queues = one.assignment
            for round_ in range(10):
                assert world.network.reset("10.0.0.2") > 0
                world.broker.put("Orders", round_ % 4, b"%d" % round_)
                count = round_ + 1
                await world.until(partial(is_full, handler.got, count), seconds=5)
            assert one.assignment == queues

    world.run(main)


def test_an_answer_out_of_order_is_not_believed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        for number in range(3):
            world.broker.put("Orders", 0, b"%d" % number)
        world.broker.queues["Orders", 0][2]["queue_offset"] = 0
        caplog.set_level(logging.INFO)
        handler = Handler()
        async with world.session() as session, consumer(session, handler):
            await world.sleep(3)
            assert handler.got == []
            world.broker.queues["Orders", 0][2]["queue_offset"] = 2
            await world.until(lambda: len(handler.got) == 3, seconds=2)

    world.run(main)
    assert "offset 0 came after 1" in caplog.text


# Operators ask.


def test_operators_see_what_a_consumer_does(world: World) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await release.wait()

        for _ in range(3):
            world.broker.put("Orders", 0, b"x")
        async with world.session() as session, consumer(session, handle) as one:
            await world.sleep(12)
            info = one.running_info(jstack=True)
            release.set()
        queue = info.queues[MessageQueue("Orders", BROKER_NAME, 0)]
        assert (queue.cached_msg_count, queue.cached_msg_min_offset) == (3, 0)
        assert (queue.cached_msg_max_offset, queue.commit_offset) == (2, 0)
        assert abs(queue.last_pull_timestamp - world.clock.now_ms()) < 20_000
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_8"
        assert {one.topic for one in info.subscriptions} == {"Orders", "%RETRY%billing"}
        assert info.statuses["Orders"].pull_tps > 0
        assert info.jstack

    world.run(main)


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (None, ConsumeResult.CR_SUCCESS),
        (RetryLater(), ConsumeResult.CR_LATER),
        (ValueError("broken"), ConsumeResult.CR_THROW_EXCEPTION),
        (Verdict(Fate.COMMIT), ConsumeResult.CR_COMMIT),
        (Verdict(Fate.ROLL_BACK), ConsumeResult.CR_ROLLBACK),
    ],
)
def test_an_operator_has_one_message_consumed_directly(
    world: World, outcome: Any, result: ConsumeResult
) -> None:
    async def main() -> None:
        handler = Handler(it=outcome)
        record = decode_record(
            encode_record(
                topic="%RETRY%billing",
                body=b"it",
                properties=b"RETRY_TOPIC\x01Orders\x02",
                born_host=pack_host("10.0.0.9", 1),
                store_host=pack_host("10.0.0.2", 10911),
            )
        )
        async with world.session() as session, consumer(session, handler) as one:
            found = await one.consume_directly(record, BROKER_NAME)
        assert found.consume_result is result
        assert handler.got[0].topic == "Orders"
        if isinstance(outcome, ValueError):
            assert found.remark == "ValueError: broken"

    world.run(main)


# Broadcasting.


def test_broadcasting_takes_all_queues_and_keeps_its_progress_in_a_file(
    world: World, tmp_path: Path
) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {
            "message_model": MessageModel.BROADCASTING,
            "offsets_folder": str(tmp_path),
        }
        for number in range(8):
            world.broker.put("Orders", number % 4, b"%d" % number)
        handlers = [Handler(), Handler()]
        async with (
            world.session() as first,
            world.session() as second,
            consumer(first, handlers[0], **settings) as one,
            consumer(second, handlers[1], **settings) as two,
        ):
            await world.until(lambda: all(len(handler.got) == 8 for handler in handlers))
            assert len(one.assignment) == len(two.assignment) == 4
            assert not any(queue.topic.startswith("%RETRY%") for queue in one.assignment)
        assert world.broker.commits == []
        path = tmp_path / "10.0.1.1@c1" / "billing" / "offsets.json"
        assert path.exists()
        again = Handler()
        world.broker.put("Orders", 0, b"new")
        async with (
            world.session(client_ip="10.0.1.1", instance_name="c1") as session,
            consumer(session, again, **settings),
        ):
            await world.until(lambda: again.got)
            await world.sleep(1)
        assert again.bodies == [b"new"]

    world.run(main)


def test_broadcasting_does_not_repeat_what_failed(world: World, tmp_path: Path) -> None:
    async def main() -> None:
        handler = Handler(bad=RetryLater())
        world.broker.put("Orders", 0, b"bad")
        async with (
            world.session() as session,
            consumer(
                session,
                handler,
                message_model=MessageModel.BROADCASTING,
                offsets_folder=str(tmp_path),
            ),
        ):
            await world.sleep(60)
        assert handler.bodies == [b"bad"]
        assert world.broker.sent_back == []

    world.run(main)


# Iterating.


def test_an_iteration_commits_a_message_when_it_asks_for_the_next(world: World) -> None:
    async def main() -> None:
        for number in range(5):
            world.broker.put("Orders", 0, b"%d" % number)
        got: list[bytes] = []
        async with world.session() as session:
            async with consumer(session) as one:
                async for message in one:
                    got.append(message.body)
                    if len(got) == 3:
                        break
            assert world.broker.offsets["billing", "Orders", 0] == 2
            async with consumer(session) as one:
                async for message in one:
                    got.append(message.body)
                    message.ack()
                    message.ack()
                    if message.body == b"3":
                        break
            assert world.broker.offsets["billing", "Orders", 0] == 4
        assert got == [b"0", b"1", b"2", b"2", b"3"]

    world.run(main)


def test_a_message_block_commits_or_has_the_message_come_again(world: World) -> None:
    async def main() -> None:
        for body in (b"good", b"later", b"dead", b"wrong"):
            world.broker.put("Orders", 0, body)
        problems = {b"later": RetryLater(5), b"dead": ToDlq(), b"wrong": ValueError("wrong")}

        async def iterate(one: PushConsumer) -> None:
            async for message in one:
                async with message:
                    if message.body in problems:
                        raise problems[message.body]

        async with world.session() as session, consumer(session) as one:
            with pytest.raises(ValueError, match="wrong"):
                await iterate(one)
        assert [back.delay_level for back in world.broker.sent_back] == [2, -1, 0]
        assert world.broker.offsets["billing", "Orders", 0] == 4

    world.run(main)


def test_an_iteration_gives_messages_back_by_hand(world: World) -> None:
    async def main() -> None:
        for body in (b"later", b"dead", b"last"):
            world.broker.put("Orders", 0, body)
        async with world.session() as session, consumer(session) as one:
            async for message in one:
                if message.body == b"later":
                    await message.retry(level=4)
                elif message.body == b"dead":
                    await message.dead_letter()
                else:
                    break
        assert [back.delay_level for back in world.broker.sent_back] == [4, -1]

    world.run(main)


def test_several_tasks_share_an_iteration_and_it_ends_when_the_consumer_closes(
    world: World,
) -> None:
    async def main() -> None:
        got: list[tuple[int, bytes]] = []

        async def iterate(one: PushConsumer, number: int) -> None:
            async for message in one:
                got.append((number, message.body))
                await world.sleep(0.1)

        for number in range(20):
            world.broker.put("Orders", number % 4, b"%d" % number)
        async with world.session() as session:
            async with consumer(session) as one:
                tasks = [asyncio.ensure_future(iterate(one, number)) for number in range(3)]
                await world.until(lambda: len(got) == 20)
                await world.sleep(1)
            await asyncio.gather(*tasks)
        assert {number for number, _ in got} == {0, 1, 2}
        assert len({body for _, body in got}) == 20

    world.run(main)


def test_a_consumer_with_a_handler_is_not_iterated(world: World) -> None:
    async def main() -> None:
        async with world.session() as session, consumer(session, Handler()) as one:
            with pytest.raises(ClientError, match="has a handler"):
                aiter(one)

    world.run(main)


# Traces.


def test_every_handled_message_leaves_two_traces(world: World) -> None:
    async def main() -> None:
        world.broker.topics["RMQ_SYS_TRACE_TOPIC"] = 1
        handler = Handler(bad=lambda message: None if message.reconsume_times else RetryLater())
        async with (
            world.session() as session,
            consumer(session, handler, enable_msg_trace=True),
        ):
            world.broker.put("Orders", 0, b"good", KEYS="k1 k2")
            await world.until(lambda: handler.got)
            world.broker.put("Orders", 0, b"bad", MSG_REGION="r1")
            world.broker.put("Orders", 0, b"untraced", TRACE_ON="false")
            await world.until(lambda: len(handler.got) == 4)
        stored = world.broker.queues["RMQ_SYS_TRACE_TOPIC", 0]
        lines = [
            record.split("\x01")
            for one in stored
            for record in one["body"].decode().split("\x02")
            if record
        ]
        assert [line[0] for line in lines] == ["SubBefore", "SubAfter"] * 3
        before, after = lines[0], lines[1]
        assert (before[2], before[3], before[6], before[7]) == ("null", "billing", "0", "k1 k2")
        assert before[5] == handler.got[0].message_id
        assert (after[1], after[2], after[4]) == (before[4], before[5], "true")
        assert (lines[2][2], lines[3][4], lines[3][6]) == ("r1", "false", "4")
        assert (lines[4][6], lines[5][4]) == ("1", "true")

    world.run(main)
