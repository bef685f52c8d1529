"""What operators do with topics."""

from __future__ import annotations

from typing import Any

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.model.group import Subscription
from skylark.model.queue import MessageQueue
from skylark.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig
from skylark.protocol.bodies import (
    ConsumerData,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupList,
    TopicConfigBody,
    TopicConfigTable,
    TopicList,
    TopicStatsBody,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command


async def put(client: Client, topic: str = "T", **changes: Any) -> Command:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **changes,
    }
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def delete(client: Client, topic: str) -> Command:
    return await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


async def all_topics(client: Client) -> TopicConfigTable:
    answer = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    return TopicConfigTable.from_json(answer.body)


def test_a_topic_is_made_changed_and_listed_with_a_new_version_each_time(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            before = await all_topics(client)
            assert (await put(client)).code == ResponseCode.SUCCESS
            made = await all_topics(client)
            assert made.topics["T"] == TopicConfig("T", 4, 4)
            assert made.data_version.counter == before.data_version.counter + 1
            assert (await put(client, perm=4, readQueueNums=8)).code == ResponseCode.SUCCESS
            assert (await all_topics(client)).topics["T"] == TopicConfig("T", 8, 4, 4)

    world.run(main)


def test_an_order_flag_that_the_name_server_gave_stays(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await put(client)
            world.parts.topics.apply_order_conf({"T": "broker-a:4"})
            await put(client, perm=4)
            assert (await all_topics(client)).topics["T"].order is True

    world.run(main)


NOT_THE_OPERATORS = ("TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "rmq_sys_x")
NO_NAMES = ("", "../x", "/etc/passwd", "a b", "a\x00", "a\n", ".", "x" * 128, "ｔopic", "%00;")


@pytest.mark.parametrize("topic", [*NOT_THE_OPERATORS, *NO_NAMES])
def test_names_that_are_no_names_or_the_systems_are_refused_and_nothing_is_made(
    world: BrokerWorld, topic: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            topics, files = await all_topics(client), set(world.files.list_names("/store"))
            for answer in (await put(client, topic, perm=2), await delete(client, topic)):
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert answer.remark
            assert await all_topics(client) == topics
            assert set(world.files.list_names("/store")) == files

    world.run(main)


@pytest.mark.parametrize(
    "changes",
    [
        {"readQueueNums": 0}, {"writeQueueNums": -1}, {"readQueueNums": 2**31 - 1}, {"perm": -1},
        {"perm": 16}, {"topicFilterType": "x"}, {"readQueueNums": "many"}, {"perm": 2**40},
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(world: BrokerWorld, changes: dict[str, Any]) -> None:
    async def main() -> None:
        async with world.serving() as client:
            assert (await put(client, **changes)).code == ResponseCode.SYSTEM_ERROR
            assert "T" not in (await all_topics(client)).topics

    world.run(main)


def test_a_deleted_topic_takes_its_queues_offsets_and_counters_and_begins_anew(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await put(client, "T")
            for number in range(3):
                await client.send("T", b"%d" % number)
            await client.call(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3},
            )
            assert (await delete(client, "T")).code == ResponseCode.SUCCESS
            assert (await delete(client, "T")).code == ResponseCode.SUCCESS
            assert "T" not in (await all_topics(client)).topics
            assert world.parts.stats.view("TOPIC_PUT_NUMS", "T") is None
            assert world.parts.offsets.get("T", "g", 0) is None
            await put(client, "T")
            sent = await client.send("T", b"new")
            assert sent.fields["queueOffset"] == "0"
            assert [m.body for m in records(await client.pull("T"))] == [b"new"]

    world.run(main)


def test_the_queues_of_a_topic_are_told_with_their_ends_and_last_times(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await put(client, "T", writeQueueNums=2, readQueueNums=3)
            await client.send("T", queue_id=1)
            now_ms = world.clock.now_ms()
            answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
            offsets = TopicStatsBody.from_json(answer.body).offsets
            assert len(offsets) == 2
            empty, full = (offsets[MessageQueue("T", "broker-a", number)] for number in (0, 1))
            assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
            assert (full.min_offset, full.max_offset) == (0, 1)
            assert 0 <= now_ms - full.last_update_timestamp < 10
            answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Nobody"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    world.run(main)


def test_one_topic_is_shown_as_tools_of_5_x_ask(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await put(client, perm=4, readQueueNums=8)
            answer = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": "true"})
            assert TopicConfigBody.from_json(answer.body).topic == TopicConfig("T", 8, 4, 4)
            answer = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "Nobody"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    world.run(main)


def test_the_groups_of_a_topic_are_those_online_and_those_with_offsets(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await put(client, "T")
            wanted = Subscription(topic="T")
            await client.heartbeat(ConsumerData("online", subscriptions=(wanted,)))
            world.parts.offsets.commit("T", "gone", 0, 0, may_go_back=True)
            answer = await client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
            assert set(GroupList.from_json(answer.body).groups) == {"online", "gone"}

    world.run(main)


def test_system_topics_are_listed_and_the_tables_for_replicas_are_answered(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            topics = set(TopicList.from_json(answer.body).topics)
            assert topics >= {
                "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "DefaultCluster", "broker-a",
                "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "DefaultCluster_REPLY_TOPIC",
            }  # fmt: skip
            await put(client, "T")
            await client.send("T")
            world.parts.offsets.commit("T", "g", 0, 1, may_go_back=True)
            answer = await client.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert ConsumerOffsetTable.from_json(answer.body).offsets == {"T@g": {0: 1}}
            await client.send("T", properties={"DELAY": "1"})
            await world.clock.sleep_ms(1_500)
            answer = await client.call(RequestCode.GET_ALL_DELAY_OFFSET)
            assert DelayOffsetTable.from_json(answer.body).offsets == {1: 1}

    world.run(main)


def test_queues_of_topics_that_are_not_in_the_table_are_cleaned_on_request(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await put(client, "Kept")
            await put(client, "Gone")
            for topic in ("Kept", "Gone"):
                await client.send(topic)
            await client.send("Kept", properties={"DELAY": "18"})
            world.parts.topics.delete("Gone")
            answer = await client.call(RequestCode.CLEAN_UNUSED_TOPIC)
            assert answer.code == ResponseCode.SUCCESS
            names = {topic for topic, _ in world.parts.store.queues.names}
            # The queues of timers, delayed and half messages are the broker's own.
            assert names == {"Kept", SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC}

    world.run(main)
