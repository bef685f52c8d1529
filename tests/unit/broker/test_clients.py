"""Clients: members come and go, are told of each other, and are compared."""

from __future__ import annotations

import logging

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.model.group import Subscription, SubscriptionGroupConfig
from skylark.protocol.bodies import CheckClientConfigBody, ConsumerData, ConsumerList, KVTable
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.hashes import tag_hash


def _wants(topic: str, *tags: str, version: int = 1) -> Subscription:
    return Subscription(
        topic=topic,
        expression=" || ".join(tags) or "*",
        tags=tags,
        codes=tuple(tag_hash(tag) for tag in tags),
        version=version,
    )


async def _members(client: Client, group: str = "g") -> list[str]:
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code != 0:
        return []
    return sorted(ConsumerList.from_json(answer.body).client_ids)


def test_a_member_is_listed_and_everybody_is_told_including_itself(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            data = ConsumerData("g", subscriptions=(_wants("T"),))
            assert (await one.heartbeat(data)).version == 409
            await world.clock.sleep_ms(10)
            assert len(one.told) == 1
            await two.heartbeat(data)
            await world.clock.sleep_ms(10)
            assert (len(one.told), len(two.told)) == (2, 1)
            assert one.told[0].fields == {"consumerGroup": "g"}
            assert await _members(one) == ["client-1", "client-2"]
            # A heartbeat that brings nothing new tells nobody.
            await two.heartbeat(data)
            await world.clock.sleep_ms(10)
            assert (len(one.told), len(two.told)) == (2, 1)

    world.run(main)


def test_a_member_that_leaves_or_hangs_up_is_gone_at_once(world: BrokerWorld) -> None:
    async def main() -> None:
        data = ConsumerData("g", subscriptions=(_wants("T"),))
        async with world.serving() as one:
            await one.heartbeat(data)
            async with world.connected("client-2") as two, world.connected("client-3") as three:
                await two.heartbeat(data)
                await three.heartbeat(data)
                leave = {"clientID": "client-2", "consumerGroup": "g"}
                assert (await two.call(RequestCode.UNREGISTER_CLIENT, leave)).code == 0
                assert await _members(one) == ["client-1", "client-3"]
                told = len(one.told)
            await world.clock.sleep_ms(10)
            assert await _members(one) == ["client-1"]
            assert len(one.told) == told + 1

    world.run(main)


def test_a_stranger_cannot_make_a_member_leave(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("stranger") as stranger:
            await one.heartbeat(ConsumerData("g", subscriptions=(_wants("T"),)))
            leave = {"clientID": "client-1", "consumerGroup": "g"}
            await stranger.call(RequestCode.UNREGISTER_CLIENT, leave)
            assert await _members(one) == ["client-1"]

    world.run(main)


def test_a_silent_member_expires_by_the_monotonic_clock(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            data = ConsumerData("g", subscriptions=(_wants("T"),))
            await one.heartbeat(data)
            await two.heartbeat(data)
            world.clock.jump_ms(10**9)  # The wall clock has no say in this.
            for _ in range(5):
                await world.clock.sleep_ms(30_000)
                await one.heartbeat(data)
            assert await _members(one) == ["client-1"]

    world.run(main)


def test_the_group_and_its_retry_topic_are_made_by_the_first_heartbeat(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.heartbeat(ConsumerData("g", subscriptions=(_wants("T"),)))
            assert "g" in world.parts.groups.groups
            retry = world.parts.topics.get("%RETRY%g")
            assert retry is not None
            assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)

    world.run(main)


def test_without_auto_creation_an_unknown_group_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(auto_create_subscription_group=False) as client:
            answer = await client.heartbeat(ConsumerData("g"), producers=("p",))
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert await _members(client) == []
            # The rest of the heartbeat counts all the same.
            assert list(world.parts.clients.producer_groups()) == ["p"]

    world.run(main)


@pytest.mark.parametrize("name", ["../x", "a b", "", "x" * 256, "%00\x00"])
def test_names_that_are_none_are_refused_in_heartbeats(world: BrokerWorld, name: str) -> None:
    async def main() -> None:
        async with world.serving() as client:
            before = set(world.parts.topics.topics), set(world.parts.groups.groups)
            for answer in (
                await client.heartbeat(ConsumerData(name)),
                await client.heartbeat(ConsumerData("g", subscriptions=(_wants(name),))),
                await client.heartbeat(producers=(name,)),
            ):
                assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (set(world.parts.topics.topics), set(world.parts.groups.groups)) == before

    world.run(main)


def test_a_heartbeat_that_is_no_json_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for body in (b"", b"{", b"[]", b'{"clientID":""}', b"[" * 100_000):
                answer = await client.call(RequestCode.HEART_BEAT, body=body)
                assert answer.code == ResponseCode.SYSTEM_ERROR

    world.run(main)


def test_members_that_want_different_things_are_reported_and_both_served(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            for tag in ("A", "B"):
                await one.send("T", tag.encode(), properties={"TAGS": tag})
            await one.heartbeat(ConsumerData("g", subscriptions=(_wants("T", "A"),)))
            with caplog.at_level(logging.WARNING, "skylark.broker.clients"):
                other = (_wants("T", "B", version=9), _wants("U"))
                await two.heartbeat(ConsumerData("g", subscriptions=other))
            clients = world.parts.clients
            assert {item.topic for item in clients.mismatches()} == {"T", "U"}
            assert clients.mismatches_total == 2
            info = (await one.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body
            figures = KVTable.from_json(info).table
            assert figures["subscriptionMismatches"] == "2"
            assert figures["subscriptionMismatchesTotal"] == "2"
            assert "client-1 subscribes 'A', client-2 'B'" in caplog.text
            # The first is not cut off by the second, as it would be by RocketMQ's broker.
            for client, body in ((one, b"A"), (two, b"B")):
                answer = await client.pull("T", group="g", tags=None, subVersion=1)
                assert [m.body for m in records(answer)] == [body]
            await two.heartbeat(ConsumerData("g", subscriptions=(_wants("T", "A", version=10),)))
            assert clients.mismatches() == []

    world.run(main)


def test_the_same_tags_in_another_order_are_no_difference(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as one, world.connected("client-2") as two:
            await one.heartbeat(ConsumerData("g", subscriptions=(_wants("T", "A", "B"),)))
            await two.heartbeat(ConsumerData("g", subscriptions=(_wants("T", "B", "A"),)))
            assert world.parts.clients.mismatches() == []

    world.run(main)


def test_notices_can_be_switched_off_for_a_group(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            world.parts.groups.put(
                SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
            )
            await client.heartbeat(ConsumerData("g"))
            await world.clock.sleep_ms(10)
            assert client.told == []

    world.run(main)


def test_a_client_that_reconnects_is_listed_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as old, world.connected("client-1") as new:
            await old.heartbeat(ConsumerData("g"))
            await new.heartbeat(ConsumerData("g"))
            assert await _members(new) == ["client-1"]

    world.run(main)


def test_a_subscription_can_be_checked_before_the_start(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for wanted, code in (
                (_wants("T", "A"), 0),
                (Subscription(topic="T", expression=" || "), 23),
                (Subscription(topic="T", expression="a > 1", expression_type="SQL92"), 1),
            ):
                body = CheckClientConfigBody("c", "g", wanted).to_json()
                answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
                assert answer.code == code

    world.run(main)


def test_a_group_without_members_is_answered_with_an_error(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await client.call(38, {"consumerGroup": "nobody"})
            assert (answer.code, "no consumer" in (answer.remark or "")) == (1, True)

    world.run(main)
