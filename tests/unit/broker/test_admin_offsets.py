"""How far groups are, and offsets given to another group."""

from __future__ import annotations

from broker_world import BrokerWorld, Client

from skylark.model.group import Subscription
from skylark.model.queue import MessageQueue
from skylark.protocol.bodies import (
    BrokerConsumeStatsBody,
    ConsumeOffset,
    ConsumerData,
    ConsumeStatsBody,
    CorrectionOffsetBody,
    QueryConsumeTimeSpanBody,
)
from skylark.protocol.codes import RequestCode, ResponseCode

T0, T1 = (MessageQueue("TopicTest", "broker-a", number) for number in (0, 1))


async def _fill(world: BrokerWorld, client: Client) -> list[int]:
    """Three messages in queue 0, a second apart; the times at which they were stored."""
    times = []
    for _ in range(3):
        await client.send()
        times.append(world.parts.store.last_stored_ms)
        await world.clock.sleep_ms(1_000)
    return times


async def _consume_stats(client: Client, **fields: object) -> ConsumeStatsBody:
    answer = await client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **fields})
    assert answer.code == ResponseCode.SUCCESS
    return ConsumeStatsBody.from_json(answer.body)


def test_progress_is_shown_for_every_queue_of_the_topics_that_a_group_reads(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            times = await _fill(world, client)
            assert (await _consume_stats(client)).offsets == {}
            assert (await _consume_stats(client, topic="Nobody")).offsets == {}
            shown = await _consume_stats(client, topic="TopicTest")
            assert shown.offsets[T0] == ConsumeOffset(3, 0, 0)
            world.parts.offsets.commit("TopicTest", "g", 0, 2, may_go_back=True)
            shown = await _consume_stats(client)
            assert len(shown.offsets) == 4
            assert shown.offsets[T0] == ConsumeOffset(3, 2, times[1])
            assert shown.offsets[T1] == ConsumeOffset(0, 0, 0)
            await client.pull(group="g")
            assert (await _consume_stats(client)).consume_tps > 0

    world.run(main)


def test_a_topic_that_an_online_group_no_longer_wants_is_left_out(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(world, client)
            world.parts.offsets.commit("TopicTest", "g", 0, 2, may_go_back=True)
            other = Subscription(topic="Other")
            await client.heartbeat(ConsumerData("g", subscriptions=(other,)))
            assert (await _consume_stats(client)).offsets == {}

    world.run(main)


def test_the_progress_of_all_groups_adds_up(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(world, client)
            for group, offset in (("g1", 1), ("g2", 3)):
                world.parts.groups.require(group)
                world.parts.offsets.commit("TopicTest", group, 0, offset, may_go_back=True)
            code = RequestCode.GET_BROKER_CONSUME_STATS
            body = BrokerConsumeStatsBody.from_json((await client.call(code)).body)
            shown = {name: stats for one in body.groups for name, stats in one.items()}
            assert shown["g1"][0].offsets[T0].consumer_offset == 1
            assert shown["TOOLS_CONSUMER"] == ()
            assert (body.total_diff, body.broker_addr) == (2, world.address)
            ordered = await client.call(code, {"isOrder": True})
            body = BrokerConsumeStatsBody.from_json(ordered.body)
            assert body.total_diff == 0
            world.parts.topics.apply_order_conf({"TopicTest": "broker-a:4"})
            ordered = await client.call(code, {"isOrder": True})
            assert BrokerConsumeStatsBody.from_json(ordered.body).total_diff == 2

    world.run(main)


def test_time_spans_say_between_which_times_a_group_stands(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            times = await _fill(world, client)
            world.parts.offsets.commit("TopicTest", "g", 0, 2, may_go_back=True)
            code = RequestCode.QUERY_CONSUME_TIME_SPAN
            answer = await client.call(code, {"topic": "TopicTest", "group": "g"})
            now_ms = world.clock.now_ms()
            first, empty = QueryConsumeTimeSpanBody.from_json(answer.body).spans[:2]
            assert (first.queue, first.min_timestamp, first.max_timestamp) == (
                T0,
                times[0],
                times[2],
            )
            assert first.consume_timestamp == times[1]
            assert 0 <= now_ms - times[2] - first.delay_time < 10
            assert first.min_timestamp_text is not None
            assert first.min_timestamp_text.endswith(f":{times[0] % 1000:03d}")
            assert (empty.min_timestamp, empty.max_timestamp, empty.delay_time) == (-1, -1, 0)
            answer = await client.call(code, {"topic": "Nobody", "group": "g"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    world.run(main)


def test_the_least_offset_of_other_groups_is_told_and_no_offset_is_harmed(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(world, client)
            for group, offset in (("slow", 1), ("fast", 3), ("middle", 2)):
                world.parts.offsets.commit("TopicTest", group, 0, offset, may_go_back=True)

            async def ask(**fields: object) -> dict[int, int]:
                answer = await client.call(
                    RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "TopicTest", **fields}
                )
                return dict(CorrectionOffsetBody.from_json(answer.body).offsets)

            assert await ask(compareGroup="fast") == {0: 1}
            assert await ask(compareGroup="fast", filterGroups="slow,x") == {0: 2}
            assert await ask(compareGroup="slow", filterGroups="slow") == {0: 2**63 - 1}
            assert await ask(compareGroup="nobody") == {0: 1}
            assert world.parts.offsets.get("TopicTest", "slow", 0) == 1

    world.run(main)


def test_a_group_gets_the_offsets_of_another(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await _fill(world, client)
            world.parts.offsets.commit("TopicTest", "g", 0, 2, may_go_back=True)
            code = RequestCode.CLONE_GROUP_OFFSET
            fields = {"srcGroup": "g", "destGroup": "copy", "offline": False}
            assert (await client.call(code, fields)).code == ResponseCode.SUCCESS
            assert world.parts.offsets.get("TopicTest", "copy", 0) == 2

            other = Subscription(topic="Other")
            await client.heartbeat(ConsumerData("g", subscriptions=(other,)))
            fields["destGroup"] = "second"
            await client.call(code, {**fields, "topic": "TopicTest"})
            assert world.parts.offsets.get("TopicTest", "second", 0) is None
            await client.call(code, {**fields, "topic": "TopicTest", "offline": True})
            assert world.parts.offsets.get("TopicTest", "second", 0) == 2
            answer = await client.call(code, {**fields, "destGroup": "../x"})
            assert answer.code == ResponseCode.SYSTEM_ERROR

    world.run(main)
