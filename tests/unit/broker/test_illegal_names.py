"""Names that are none, at every entry: nothing is made of them, in memory or on the disk (S12)."""

from __future__ import annotations

import json

import pytest
from broker_world import BrokerWorld, Client, send_fields

from skylark.model.group import Subscription
from skylark.model.topic import TopicConfig
from skylark.protocol.bodies import ConsumerData, TopicConfigTable
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.codes import ResponseCode

NAMES = [
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "%00/..",
    ".",
    "..",
    " ",
    "a b",
    "Оrders",  # The first letter is Cyrillic.
    "ä",
    "x" * 300,
    "a\x1b[31m",
]


async def try_everything(client: Client, name: str) -> list[tuple[str, int]]:
    """Use a name wherever one may stand; returns which entry answered with which code."""
    queue = {"topic": name, "brokerName": "broker-a", "queueId": 0}
    good_queue = {**queue, "topic": "Good"}
    group_fields = {
        "groupName": name, "consumeEnable": True, "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True,
    }  # fmt: skip
    requests: list[tuple[str, int, dict[str, object], bytes]] = [
        ("send", Code.SEND_MESSAGE_V2, dict(send_fields(name)), b"x"),
        ("reply", Code.SEND_REPLY_MESSAGE_V2, dict(send_fields(name)), b"x"),
        (
            "topic", Code.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
                "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            }, b"",
        ),
        (
            "group", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {},
            json.dumps(group_fields).encode(),
        ),
        (
            "commit, group", Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": name, "topic": "Good", "queueId": 0, "commitOffset": 0}, b"",
        ),
        (
            "commit, topic", Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "good", "topic": name, "queueId": 0, "commitOffset": 0}, b"",
        ),
        (
            "lock", Code.LOCK_BATCH_MQ, {},
            json.dumps(
                {"consumerGroup": name, "clientId": client.client_id, "mqSet": [good_queue]}
            ).encode(),
        ),
        (
            "send back", Code.CONSUMER_SEND_MSG_BACK,
            {"offset": 0, "group": name, "delayLevel": 0, "originTopic": "Good"}, b"",
        ),
        (
            "clone", Code.CLONE_GROUP_OFFSET,
            {"srcGroup": "good", "destGroup": name, "topic": "Good", "offline": True}, b"",
        ),
    ]  # fmt: skip
    answers = []
    for entry, code, fields, body in requests:
        answers.append((entry, (await client.call(code, fields, body)).code))
    for entry, topic, group in (("pull, topic", name, "good"), ("pull, group", "Good", name)):
        answers.append((entry, (await client.pull(topic, group=group)).code))
    beat = ConsumerData(name, subscriptions=(Subscription(topic="Good"),))
    answers.append(("heartbeat", (await client.heartbeat(beat)).code))
    return answers


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_is_refused_everywhere_and_nothing_comes_of_it(
    world: BrokerWorld, name: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            assert (await client.send("Good")).code == 0
            await client.heartbeat(
                ConsumerData("good", subscriptions=(Subscription(topic="Good"),))
            )
            topics = set(world.parts.topics.topics)
            groups = set(world.parts.groups.groups)
            directories = set(world.files._directories)
            for entry, code in await try_everything(client, name):
                assert code != ResponseCode.SUCCESS, entry
            assert set(world.parts.topics.topics) == topics
            assert set(world.parts.groups.groups) == groups
            assert not any(name in pair for pair in world.parts.offsets.pairs())
            assert set(world.files._directories) == directories

    world.run(main)


@pytest.mark.parametrize("count", [65, 10_000])
def test_a_message_has_at_most_64_keys(world: BrokerWorld, count: int) -> None:
    async def main() -> None:
        async with world.serving() as client:
            keys = " ".join(f"{n:x}" for n in range(count))
            answer = await client.send("T", properties={"KEYS": keys})
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            fine = " ".join(f"{n:x}" for n in range(64))
            assert (await client.send("T", properties={"KEYS": fine})).code == 0

    world.run(main)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "x" * 128, "", "a\nb"])
def test_a_table_with_a_name_that_is_none_is_not_believed(world: BrokerWorld, name: str) -> None:
    """Files are data from outside as well: of a restored backup, say, or of another broker."""

    async def main() -> None:
        async with world.serving() as client:
            await client.send("Good")
        path = "/store/config/topics.json"
        table = json.loads(world.files.read(path))
        table["topicConfigTable"][name] = {
            **table["topicConfigTable"]["Good"],
            "topicName": name,
        }
        for file in (path, f"{path}.bak"):
            world.files.replace(file, json.dumps(table).encode())
        async with world.serving() as client:
            assert name not in world.parts.topics.topics
            assert (await client.send("Good")).code == 0
            assert (await client.send(name)).code != 0
        assert not any(".." in one for one in world.files._directories)

    world.run(main)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd"])
def test_a_table_of_a_master_with_such_a_name_is_not_believed_either(
    world: BrokerWorld, name: str
) -> None:
    async def main() -> None:
        async with world.serving():
            topics = world.parts.topics
            table = topics.body()
            bad = TopicConfig(name, 1, 1)
            later = table.data_version.next(world.clock.now_ms())
            assert topics.take_over(TopicConfigTable({**table.topics, name: bad}, later))
            assert name not in topics.topics

    world.run(main)
