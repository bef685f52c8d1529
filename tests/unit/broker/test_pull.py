"""Pulls: what they return, what they wait for, and what is refused."""

from __future__ import annotations

import asyncio

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.model.group import MessageModel, Subscription, SubscriptionGroupConfig
from skylark.model.topic import TopicConfig
from skylark.protocol.bodies import ConsumerData, OffsetMovedEvent
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.hashes import tag_hash


async def _fill(client: Client, count: int, tag: str | None = None, topic: str = "T") -> None:
    for number in range(count):
        properties = {} if tag is None else {"TAGS": tag}
        assert (await client.send(topic, b"m%d" % number, properties=properties)).code == 0


def test_the_answer_says_where_to_go_on(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 5)
            answer = await client.pull("T", offset=1, count=2)
            assert answer.remark == "FOUND"
            assert answer.fields == {
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": "3",
                "minOffset": "0",
                "maxOffset": "5",
            }
            assert [message.body for message in records(answer)] == [b"m1", b"m2"]

    world.run(main)


@pytest.mark.parametrize(
    ("offset", "code", "remark", "goes_on"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "2"),
        (3, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "2"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
        (-(2**62), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
    ],
)
def test_an_offset_that_is_not_there_is_corrected(
    world: BrokerWorld, offset: int, code: int, remark: str, goes_on: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 2)
            answer = await client.pull("T", offset=offset)
            assert (answer.code, answer.remark) == (code, remark)
            assert answer.fields["nextBeginOffset"] == goes_on

    world.run(main)


@pytest.mark.parametrize(("committed", "goes_on"), [(None, "0"), (1, "1"), (3, "3")])
def test_a_push_consumer_beyond_the_end_goes_back_to_what_its_group_has_committed(
    world: BrokerWorld, committed: int | None, goes_on: str
) -> None:
    """It has read offsets of a log that was lost; what is stored since then, nobody has read."""

    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 3)
            wanted = (Subscription(topic="T"),)
            await client.heartbeat(ConsumerData("group", subscriptions=wanted))
            if committed is not None:
                world.parts.offsets.commit("T", "group", 0, committed, may_go_back=False)
            answer = await client.pull("T", offset=9, sysFlag=1 | 4, commitOffset=9)
            assert (answer.code, answer.remark) == (21, "OFFSET_OVERFLOW_BADLY")
            assert answer.fields["nextBeginOffset"] == goes_on
            assert world.parts.offsets.get("T", "group", 0) == committed

    world.run(main)


def test_an_empty_queue_is_not_found_from_the_start_and_moved_from_elsewhere(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            answer = await client.pull("T", queue_id=1)
            assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
            assert (await client.pull("T", queue_id=1, offset=7)).code == 21

    world.run(main)


def test_an_offset_that_moved_leaves_an_event_now_and_then(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 2)
            for _ in range(3):
                await client.pull("T", offset=9)
            events = records(await client.pull("OFFSET_MOVED_EVENT", group="TOOLS_CONSUMER"))
            assert len(events) == 1
            event = OffsetMovedEvent.from_json(events[0].body)
            assert (event.offset_request, event.offset_new) == (9, 2)
            assert event.queue.broker_name == "broker-a"
            assert events[0].tag == "group"
            await world.clock.sleep_ms(10_000)
            await client.pull("T", offset=9)
            events = records(await client.pull("OFFSET_MOVED_EVENT", group="TOOLS_CONSUMER"))
            assert len(events) == 2

    world.run(main)


def test_a_held_pull_is_answered_as_soon_as_a_message_arrives(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, world.connected("other") as other:
            await _fill(client, 1)
            started = world.clock.monotonic_ms()
            waiting = asyncio.create_task(client.pull("T", offset=1, suspend_ms=15_000))
            await world.clock.sleep_ms(3_000)
            assert not waiting.done()
            await other.send("T", b"news")
            answer = await waiting
            assert [message.body for message in records(answer)] == [b"news"]
            assert world.clock.monotonic_ms() - started <= 3_002
            assert len(world.parts.arrivals) == 0

    world.run(main)


def test_a_held_pull_is_answered_when_its_time_is_up(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            started = world.clock.monotonic_ms()
            answer = await client.pull("T", offset=1, suspend_ms=15_000)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert 15_000 <= world.clock.monotonic_ms() - started <= 15_101

    world.run(main)


@pytest.mark.parametrize("asked", [2**63 - 1, 10**9])
def test_no_pull_is_held_longer_than_half_a_minute(world: BrokerWorld, asked: int) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            started = world.clock.monotonic_ms()
            answer = await client.pull("T", offset=1, suspend_ms=asked)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert world.clock.monotonic_ms() - started <= 30_101

    world.run(main)


def test_without_long_polling_a_pull_waits_a_second(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(long_polling_enable=False) as client:
            await _fill(client, 1)
            started = world.clock.monotonic_ms()
            assert (await client.pull("T", offset=1, suspend_ms=15_000)).code == 19
            assert 1_000 <= world.clock.monotonic_ms() - started <= 1_101

    world.run(main)


def test_foreign_tags_do_not_wake_a_pull_and_its_own_do(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, world.connected("other") as other:
            await _fill(client, 1, "A")
            waiting = asyncio.create_task(
                client.pull("T", offset=1, tags="B || C", suspend_ms=15_000)
            )
            await world.clock.sleep_ms(1_000)
            await other.send("T", b"a", properties={"TAGS": "A"})
            await world.clock.sleep_ms(1_000)
            assert not waiting.done()
            await other.send("T", b"c", properties={"TAGS": "C"})
            answer = await waiting
            assert [message.body for message in records(answer)] == [b"c"]
            assert answer.fields["nextBeginOffset"] == "3"

    world.run(main)


def test_a_filter_that_matches_nothing_says_so_and_goes_on_after_what_it_saw(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 3, "A")
            answer = await client.pull("T", tags="B")
            assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
            assert answer.fields["nextBeginOffset"] == "3"

    world.run(main)


def test_tags_that_hash_alike_pass_the_broker(world: BrokerWorld) -> None:
    assert tag_hash("Aa") == tag_hash("BB")

    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1, "BB")
            assert [message.tag for message in records(await client.pull("T", tags="Aa"))] == ["BB"]

    world.run(main)


def test_a_pull_whose_peer_is_gone_is_forgotten(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            async with world.connected("brief") as brief:
                waiting = asyncio.create_task(brief.pull("T", offset=1, suspend_ms=15_000))
                await world.clock.sleep_ms(100)
                assert len(world.parts.arrivals) == 1
                waiting.cancel()
            await world.clock.sleep_ms(100)
            assert len(world.parts.arrivals) == 0
            assert world.parts.arrivals.held() == {}

    world.run(main)


def test_held_pulls_do_not_keep_the_same_connection_from_sending(world: BrokerWorld) -> None:
    """Each of a consumer's queues has a pull waiting, and it must still be able to commit."""

    async def main() -> None:
        async with world.serving(in_flight_max=8) as client:
            await _fill(client, 1)
            waiting = [
                asyncio.create_task(client.pull("T", offset=1, suspend_ms=15_000))
                for _ in range(50)
            ]
            await world.clock.sleep_ms(100)
            assert len(world.parts.arrivals) == 50
            assert (await client.send("T", b"wake")).code == 0
            answers = await asyncio.gather(*waiting)
            assert {answer.code for answer in answers} == {0}

    world.run(main)


def test_more_pulls_than_may_wait_are_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(held_pulls_max=2) as client:
            await _fill(client, 1)
            first = [
                asyncio.create_task(client.pull("T", offset=1, suspend_ms=1_000)) for _ in range(2)
            ]
            await world.clock.sleep_ms(10)
            refused = await client.pull("T", offset=1, suspend_ms=1_000)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "heldPullsMax" in (refused.remark or "")
            await asyncio.gather(*first)

    world.run(main)


def test_one_pull_never_returns_more_than_its_limits(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 40)
            assert len(records(await client.pull("T", count=2**31 - 1))) == 32
            for bad in (0, -1):
                assert (await client.pull("T", count=bad)).code == ResponseCode.SYSTEM_ERROR

    world.run(main)


def test_a_bulk_pull_returns_what_it_asks_for(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 120)
            answer = await client.pull("T", count=9_999, maxMsgBytes=str(1 << 20))
            assert len(records(answer)) == 100, "one read stays within a file of the queue"
            assert answer.fields["nextBeginOffset"] == "100"
            answer = await client.pull("T", count=90, maxMsgBytes=str(1 << 20))
            assert len(records(answer)) == 90
            # The limit that the ordinary pull has anyway makes no bulk read.
            answer = await client.pull("T", count=100, maxMsgBytes=str(256 << 10))
            assert len(records(answer)) == 32
            for bad in ("x", "1e9", "", "9" * 12):
                answer = await client.pull("T", count=1, maxMsgBytes=bad)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "maxMsgBytes" in (answer.remark or "")

    world.run(main)


CHECKS = {
    "unknown topic": ({"topic": "Nothing"}, 17),
    "queue beyond the topic": ({"queue_id": 4}, 1),
    "negative queue": ({"queue_id": -1}, 1),
    "unreadable topic": ({"topic": "WriteOnly"}, 16),
    "group that may not consume": ({"group": "disabled"}, 16),
    "illegal group": ({"group": "a b"}, 1),
    "no tag at all": ({"tags": " || "}, 23),
    "expression without end": ({"tags": "x" * 4_097}, 23),
    "sql": ({"expressionType": "SQL92"}, 1),
    "group without members": ({"tags": None}, 24),
}


@pytest.mark.parametrize("case", CHECKS)
def test_a_pull_that_is_not_in_order_is_refused(world: BrokerWorld, case: str) -> None:
    changes, code = CHECKS[case]

    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            world.parts.topics.put(TopicConfig("WriteOnly", 1, 1, 2))
            world.parts.groups.put(
                SubscriptionGroupConfig(group_name="disabled", consume_enable=False)
            )
            answer = await client.pull(**{"topic": "T", **changes})
            assert answer.code == code, answer.remark
            assert answer.remark
            assert not answer.fields

    world.run(main)


def test_without_auto_creation_an_unknown_group_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(auto_create_subscription_group=False) as client:
            await _fill(client, 1)
            assert (await client.pull("T", group="unknown")).code == 26
            assert (await client.pull("T", group="TOOLS_CONSUMER")).code == 0

    world.run(main)


def test_the_subscription_of_the_heartbeat_is_used_and_its_version_checked(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1, "A")
            await _fill(client, 1, "B")
            wanted = Subscription(
                topic="T", expression="B", tags=("B",), codes=(tag_hash("B"),), version=5
            )
            await client.heartbeat(ConsumerData("group", subscriptions=(wanted,)))
            answer = await client.pull("T", tags=None, subVersion=5)
            assert [message.tag for message in records(answer)] == ["B"]
            assert (await client.pull("T", tags=None, subVersion=6)).code == 25
            assert (await client.pull("%RETRY%group", tags=None)).code == 24

    world.run(main)


def test_a_group_that_may_not_broadcast_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            world.parts.groups.put(
                SubscriptionGroupConfig(group_name="group", consume_broadcast_enable=False)
            )
            data = ConsumerData(
                "group",
                message_model=MessageModel.BROADCASTING,
                subscriptions=(Subscription(topic="T"),),
            )
            await client.heartbeat(data)
            assert (await client.pull("T", tags=None)).code == 16

    world.run(main)


def test_lite_pull_is_served_as_pull_is(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 1)
            fields = {
                "consumerGroup": "group", "topic": "T", "queueId": 0, "queueOffset": 0,
                "maxMsgNums": 10, "sysFlag": 22, "commitOffset": 0,
                "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
            }  # fmt: skip
            answer = await client.call(RequestCode.LITE_PULL_MESSAGE, fields)
            assert len(records(answer)) == 1

    world.run(main)


def test_a_commit_that_comes_with_a_pull_is_taken_even_if_the_pull_waits(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(client, 3)
            waiting = asyncio.create_task(
                client.pull("T", offset=3, suspend_ms=5_000, sysFlag=7, commitOffset=2)
            )
            await world.clock.sleep_ms(10)
            assert world.parts.offsets.get("T", "group", 0) == 2
            await waiting

    world.run(main)


def test_a_broker_that_may_not_be_read_refuses_pulls(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(broker_permission=2) as client:
            await client.send("T")
            assert (await client.pull("T")).code == ResponseCode.NO_PERMISSION

    world.run(main)
