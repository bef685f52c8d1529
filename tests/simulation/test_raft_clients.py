"""Our own producer and consumer with a Raft group: they follow whoever leads."""

from __future__ import annotations

import pytest
from broker_group_world import NAME_SERVER, QUEUES, BrokerGroupWorld

from skylark import Client, Message, MessageQueue, ReceivedMessage, connect
from skylark.model.topic import TopicConfig
from skylark.testing.checks import eventually

TOPIC = "Followed"


def client(world: BrokerGroupWorld) -> Client:
    return connect(
        NAME_SERVER,
        network=world.app,
        clock=world.clock,
        rng=world.cluster.rng("client"),
        client_ip="10.0.9.9",
        instance_name="app",
        env={},
    )


async def ready(world: BrokerGroupWorld, mq: Client) -> None:
    """Until there is a leader with the topic, and the route names it."""
    leader = await world.wait_leader()
    await world.clock.sleep_ms(500)
    broker = mq.session.broker(f"{leader.address}:10911")
    await broker.put_topic(TopicConfig(TOPIC, QUEUES, QUEUES))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_send_that_meets_an_election_succeeds_within_its_time(how: str) -> None:
    async def scenario(world: BrokerGroupWorld) -> None:
        async with client(world) as mq, mq.producer("P") as producer:
            await ready(world, mq)
            for _ in range(4):
                await producer.send(Message(TOPIC, b"before"))
            leader = await world.wait_leader()
            if how == "kill":
                leader.crash(reset=True)
            else:
                await leader.stop()
            began_ms = world.clock.monotonic_ms()
            free = await producer.send(Message(TOPIC, b"any queue"), timeout_ms=6_000)
            ordered = await producer.send(
                Message(TOPIC, b"this queue"),
                queue=MessageQueue(TOPIC, "group-a", 1),
                timeout_ms=6_000,
            )
            assert world.clock.monotonic_ms() - began_ms < 6_000
            assert free.queue.broker_name == "group-a"
            assert ordered.queue.queue_id == 1
            assert (await world.wait_leader()) is not leader

    with BrokerGroupWorld(400) as world:
        world.run(scenario)


def test_a_group_goes_on_where_it_was_and_its_offsets_reach_the_new_leader() -> None:
    async def scenario(world: BrokerGroupWorld) -> None:
        got: list[bytes] = []

        def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with client(world) as mq, mq.producer("P") as producer:
            await ready(world, mq)
            async with mq.consumer("G", TOPIC, handle, consume_from="first"):
                sent: list[bytes] = []
                for number in range(90):
                    if number in (30, 60):
                        leader = await world.wait_leader()
                        leader.crash(reset=True)
                        await world.clock.sleep_ms(100)
                        leader.start()
                    body = b"%03d" % number
                    await producer.send(Message(TOPIC, body), timeout_ms=8_000)
                    sent.append(body)
                await eventually(lambda: set(sent) <= set(got), within_ms=60_000)

                def committed() -> int:
                    node = world.leader()
                    if node is None:
                        return 0
                    return sum(world.parts(node).offsets.of(TOPIC, "G").values())

                # Idle from here on: what was committed before a failover is said again.
                await eventually(lambda: committed() >= len(sent), within_ms=60_000)
            doubles = len(got) - len(set(got))
            assert doubles <= 40, "it went back"

    with BrokerGroupWorld(401) as world:
        world.run(scenario)
