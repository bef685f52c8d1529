"""What the sending half promises as a whole: groups, topics, queues, ids, defaults."""

from __future__ import annotations

import asyncio
from collections import Counter

from send_world import TOPIC, World

from skylark.client.config import ClientConfig
from skylark.model.message import Message
from skylark.model.topic import TopicConfig
from skylark.protocol.message_id import UniqueIdGenerator


def test_two_producers_of_one_group_send_side_by_side_and_one_survives_the_other() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect(instance_name="one") as one, one.producer("shop") as first:
            async with world.connect(instance_name="two") as two, two.producer("shop") as second:
                await asyncio.gather(
                    *(first.send(Message(TOPIC, b"1 %d" % n)) for n in range(1_000)),
                    *(second.send(Message(TOPIC, b"2 %d" % n)) for n in range(1_000)),
                )
                assert one.client_id != two.client_id
            await first.send(Message(TOPIC, b"still here"))
        bodies = world.brokers[0].messages(TOPIC)
        assert len(bodies) == len(set(bodies)) == 2_001

    world.run(scenario)


def test_one_producer_sends_to_many_topics() -> None:
    topics = ("Orders", "Payments", "Parcels")
    world = World(brokers=2, topics=[TopicConfig(name, 4, 4) for name in topics])

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", linger_ms=1) as producer:
            await asyncio.gather(
                *(producer.send(Message(topics[n % 3], b"%d" % n)) for n in range(300))
            )
        counts = Counter(one.header.topic for broker in world.brokers for one in broker.stored)
        assert counts == dict.fromkeys(topics, 100)

    world.run(scenario)


def test_a_topic_with_so_many_queues_uses_so_many() -> None:
    world = World(brokers=1, topics=[TopicConfig(TOPIC, 7, 7)])

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            receipts = [await producer.send(Message(TOPIC, b"x")) for _ in range(21)]
        assert {receipt.queue.queue_id for receipt in receipts} == set(range(7))
        assert all(0 <= receipt.queue_offset < 3 for receipt in receipts)

    world.run(scenario)


def test_ids_of_eight_processes_on_one_machine_do_not_repeat() -> None:
    world = World(brokers=1)
    makers = [
        UniqueIdGenerator(world.clock, ip="10.0.0.1", pid=1_000 + n, process_mark=n * 77)
        for n in range(8)
    ]
    count = (
        60_000  # In one millisecond of virtual time, just below what the counter can tell apart.
    )
    ids = {maker.next() for maker in makers for _ in range(count)}
    assert len(ids) == 8 * count
    world.loop.close()


def test_the_common_settings_have_the_defaults_of_4_9_8() -> None:
    config = ClientConfig()
    assert config.namesrv_addr is None
    assert config.instance_name == "DEFAULT"
    assert config.poll_name_server_interval_ms == 30_000
    assert config.heartbeat_broker_interval_ms == 30_000
    assert config.persist_consumer_offset_interval_ms == 5_000
    assert config.api_timeout_ms == 3_000
    assert config.vip_channel_enabled is False


def test_a_producer_s_steps_come_in_the_order_of_the_original() -> None:
    world = World(brokers=1)
    steps: list[str] = []

    class Hook:
        def check_forbidden(self, context: object) -> None:
            steps.append("forbidden")

        def before_send(self, context: object) -> None:
            steps.append("before")

        def after_send(self, context: object) -> None:
            steps.append("after")

    async def scenario() -> None:
        hook = Hook()
        async with (
            world.connect() as mq,
            mq.producer("shop", send_hooks=[hook], forbidden_hooks=[hook]) as producer,
        ):
            await producer.send(Message(TOPIC, b"x"))
            await producer.send_oneway(Message(TOPIC, b"x"))
            await producer.send_batch([Message(TOPIC, b"x")])
        assert steps == ["forbidden", "before", "after"] * 3

    world.run(scenario)
