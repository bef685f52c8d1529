"""Namespaces: names on the wire and names in the application."""

from __future__ import annotations

import pytest
from send_world import World

from skylark.client.namespaces import unwrap, wrap
from skylark.errors import InvalidName
from skylark.model.message import Message
from skylark.model.queue import MessageQueue


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("Orders", "ns%Orders"),
        ("%RETRY%billing", "%RETRY%ns%billing"),
        ("%DLQ%billing", "%DLQ%ns%billing"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel", "rmq_sys_wheel"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names_are_wrapped_once_and_unwrapped_again(name: str, wire: str) -> None:
    assert wrap("ns", name) == wire
    assert wrap("ns", wire) == wire
    assert unwrap("ns", wire) == name
    assert wrap(None, name) == unwrap(None, name) == name


def test_a_namespace_is_seen_by_brokers_and_not_by_the_application() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect(namespace="ns") as mq, mq.producer("shop") as producer:
            receipt = await producer.send(Message("Orders", b"x"))
            assert receipt.queue.topic == "Orders"
            stored = world.brokers[0].stored[0]
            assert stored.header.topic == "ns%Orders"
            assert stored.header.producer_group == "ns%shop"
            assert stored.properties["INSTANCE_ID"] == "ns"
            queues = await producer.fetch_queues("Orders")
            assert {queue.topic for queue in queues} == {"Orders"}
            chosen = MessageQueue("Orders", "broker-a", 1)
            assert (await producer.send(Message("Orders", b"x"), queue=chosen)).queue == chosen
            seen = []

            def select(queues: object, message: object, argument: object) -> MessageQueue:
                assert isinstance(queues, tuple)
                seen.extend(queues)
                return queues[0]  # type: ignore[no-any-return]

            await producer.send(Message("Orders", b"x"), selector=select)
            assert {queue.topic for queue in seen} == {"Orders"}
            await world.clock.sleep_ms(100)
            assert world.brokers[0].heartbeats[-1].producer_groups == ("ns%shop",)

    world.run(scenario)


def test_an_address_may_imply_a_namespace() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        address = "http://MQ_INST_1_x.example.com:80"
        async with world.connect(namesrv_addr=address) as mq:
            assert mq.session.namespace == "MQ_INST_1_x"

    world.run(scenario)


def test_an_illegal_namespace_is_refused() -> None:
    world = World(brokers=1)
    with pytest.raises(InvalidName):
        world.connect(namespace="a b")
    world.loop.close()
