"""Master and replicas under faults."""

from __future__ import annotations

import pytest
from replica_world import NAME_SERVER, PORT, TOPIC, ReplicaWorld

from skylark.client.connect import connect
from skylark.client.received import ReceivedMessage
from skylark.model.group import SubscriptionGroupConfig
from skylark.model.queue import MessageQueue
from skylark.model.topic import TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.remote import RemoteBroker
from skylark.testing.checks import eventually

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def test_a_replica_has_the_same_log_queues_and_index() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            for _ in range(100):
                assert await world.send(broker) == "SEND_OK"
        await world.wait_level(5_000)
        world.check_prefix()
        (replica,) = world.replicas
        world.check_nothing_lost(replica)
        found = world.store(replica).query(
            "Replicated", "k0007", count_max=8, begin_ms=0, end_ms=2**62
        )
        assert len(found.records) == 1

    with ReplicaWorld(1) as world:
        world.run(scenario)


# What answers say.


def test_without_a_replica_a_sync_master_stores_and_says_so() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_serving(world.master)
        async with world.sender() as broker:
            assert await world.send(broker) == "SLAVE_NOT_AVAILABLE"
            assert len(world.held(world.store(world.master))) == 1

    with ReplicaWorld(2, replicas=0) as world:
        world.run(scenario)


def test_a_replica_that_stands_still_costs_the_time_allowed_and_is_said() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            assert await world.send(broker) == "SEND_OK"
            world.replicas[0].pause()
            began_ms = world.cluster.clock.monotonic_ms()
            assert await world.send(broker) == "FLUSH_SLAVE_TIMEOUT"
            assert 3_000 <= world.cluster.clock.monotonic_ms() - began_ms < 3_500
            # After haHousekeepingInterval of silence it counts as gone.
            await world.cluster.clock.sleep_ms(3_000)
            assert await world.send(broker) == "SLAVE_NOT_AVAILABLE"
            world.replicas[0].resume()
            await world.wait_following()
            assert await world.send(broker) == "SEND_OK"
        await world.wait_level()
        world.check_prefix()

    with ReplicaWorld(3) as world:
        world.run(scenario)


def test_an_async_master_does_not_wait() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        world.replicas[0].pause()
        async with world.sender() as broker:
            assert await world.send(broker) == "SEND_OK"
        world.replicas[0].resume()
        await world.wait_level()

    with ReplicaWorld(4, role="ASYNC_MASTER") as world:
        world.run(scenario)


def test_a_replica_that_is_far_behind_counts_as_not_there() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        world.replicas[0].pause()
        async with world.sender() as broker:
            seen = [await world.send(broker, size=2_000) for _ in range(3)]
        assert seen == ["FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE", "SLAVE_NOT_AVAILABLE"]

    with ReplicaWorld(5, ha_slave_fallbehind_max=4_000) as world:
        world.run(scenario)


@pytest.mark.parametrize(
    ("code", "fields", "wanted"),
    [
        (RequestCode.SEND_MESSAGE_V2, None, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_replica_takes_no_writes(
    code: int, fields: dict[str, str] | None, wanted: ResponseCode
) -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            replica = RemoteBroker(broker._channels, f"{world.replicas[0].address}:{PORT}")
            if fields is None:
                assert await world.send(replica) == "BrokerError"
                return
            defaults = {
                "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
                "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
            }  # fmt: skip
            answer = await replica.call(Command.request(code, defaults | fields))
            assert answer.code == wanted
            assert "slave" in (answer.remark or "")
        assert world.held(world.store(world.replicas[0])) == {}

    with ReplicaWorld(6) as world:
        world.run(scenario)


# Tables.


def test_topics_groups_and_offsets_reach_the_replica_and_outlive_it() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        async with world.sender() as broker:
            for _ in range(6):
                await world.send(broker)
            await broker.put_topic(TopicConfig("Made", 3, 3))
            await broker.put_group(SubscriptionGroupConfig(group_name="G"))
            await broker.update_consumer_offset("G", QUEUE, 2)
        clock = world.cluster.clock
        await clock.sleep_ms(5_000)
        parts = world.parts(replica)
        assert parts.topics.get("Made") == TopicConfig("Made", 3, 3)
        assert parts.topics.version == world.parts(world.master).topics.version
        assert parts.groups.get("G") == SubscriptionGroupConfig(group_name="G")
        assert parts.offsets.get(TOPIC, "G", 0) == 2
        await replica.restart()
        await world.wait_serving(replica)
        assert world.parts(replica).offsets.get(TOPIC, "G", 0) == 2
        assert world.parts(replica).topics.get("Made") is not None

    with ReplicaWorld(7) as world:
        world.run(scenario)


def test_offsets_committed_at_the_replica_survive_the_masters_return() -> None:
    """RocketMQ's replica is overwritten by the master's older offsets, and groups go back (O1)."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        async with world.sender() as broker:
            for _ in range(20):
                await world.send(broker)
            await broker.update_consumer_offset("G", QUEUE, 3)
            await world.wait_level()
            await world.cluster.clock.sleep_ms(6_000)
            world.master.crash(reset=True)
            other = RemoteBroker(broker._channels, f"{replica.address}:{PORT}")
            await other.update_consumer_offset("G", QUEUE, 8)
            await world.cluster.clock.sleep_ms(10_000)
            world.master.start()
            await world.wait_following()
            # The master asks its replicas before it serves, so nobody ever sees the old value.
            assert world.parts(world.master).offsets.get(TOPIC, "G", 0) == 8
            await world.cluster.clock.sleep_ms(6_000)
            assert world.parts(replica).offsets.get(TOPIC, "G", 0) == 8
            # And a reset at the master reaches the replica.
            world.parts(world.master).offsets.reset(TOPIC, "G", 0, 1)
            await world.cluster.clock.sleep_ms(6_000)
            assert world.parts(replica).offsets.get(TOPIC, "G", 0) == 1

    with ReplicaWorld(8) as world:
        world.run(scenario)


# Reading from a replica.


def test_a_pull_beyond_what_a_lagging_replica_has_waits_and_is_not_corrected() -> None:
    """Corrected, it would send the group back to where the replica is (O2)."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        async with world.sender() as broker:
            for _ in range(4):
                await world.send(broker)
            await world.wait_level()
            await world.cluster.clock.sleep_ms(3_000)
            other = RemoteBroker(broker._channels, f"{replica.address}:{PORT}")
            for offset in (2, 50):
                fields = {
                    "consumerGroup": "G", "topic": TOPIC, "queueId": "0",
                    "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4",
                    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                    "subVersion": "0",
                }  # fmt: skip
                answer = await other.call(Command.request(RequestCode.PULL_MESSAGE, fields))
                assert answer.code == ResponseCode.PULL_NOT_FOUND
                assert answer.fields["nextBeginOffset"] == str(offset)
                assert answer.fields["suggestWhichBrokerId"] == "0"

    with ReplicaWorld(9) as world:
        world.run(scenario)


def test_a_reader_of_old_messages_is_sent_to_a_replica_that_is_near() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            for _ in range(40):
                await world.send(broker)
            await world.wait_level()
            fields = {
                "consumerGroup": "G", "topic": TOPIC, "queueId": "0", "queueOffset": "0",
                "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            }  # fmt: skip
            request = Command.request(RequestCode.PULL_MESSAGE, fields)
            world.store(world.master)._distance = 1_000
            assert (await broker.call(request)).fields["suggestWhichBrokerId"] == "1"
            last = str(world.store(world.master).max_offset(TOPIC, 0) - 1)
            near = Command.request(RequestCode.PULL_MESSAGE, fields | {"queueOffset": last})
            world.store(world.master)._distance = 10_000
            assert (await broker.call(near)).fields["suggestWhichBrokerId"] == "0"
            # Nobody is sent to a replica that is not there.
            world.store(world.master)._distance = 1_000
            world.replicas[0].crash(reset=True)
            await world.cluster.clock.sleep_ms(1_000)
            request = Command.request(RequestCode.PULL_MESSAGE, fields)
            assert (await broker.call(request)).fields["suggestWhichBrokerId"] == "0"

    with ReplicaWorld(10, slave_read_enable=True) as world:
        world.run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_our_consumer_goes_on_at_the_replica_and_back_without_rewind_or_gap(seed: int) -> None:
    """HA-01, HA-10: the master dies with a backlog, its replica serves, the master comes back."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        got: list[bytes] = []
        clock = world.cluster.clock

        def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with (
            world.sender() as broker,
            connect(
                NAME_SERVER,
                network=world.app,
                clock=clock,
                rng=world.cluster.rng("client"),
                client_ip="10.0.9.9",
                instance_name="app",
                poll_name_server_interval_ms=2_000,
            ) as mq,
        ):
            for _ in range(60):
                assert await world.send(broker) == "SEND_OK"
            await clock.sleep_ms(3_000)
            world.master.crash(reset=True)
            # Nobody has read anything yet: the replica is the only one who has it.
            async with mq.consumer("G", TOPIC, handle, consume_from="first"):
                await eventually(lambda: len(set(got)) == 60, within_ms=90_000)
                await clock.sleep_ms(12_000)  # Its offsets are committed, at the replica.
            world.master.start()
            await world.wait_following()
            seen = len(got)
            async with mq.consumer("G", TOPIC, handle, consume_from="first"):
                for _ in range(40):
                    await world.send(broker)
                await eventually(lambda: len(set(got)) >= len(world.acked), within_ms=90_000)
                await clock.sleep_ms(40_000)
                for node in (world.master, *world.replicas):  # CO-32: both list it.
                    assert world.parts(node).clients.consumer_group("G") is not None
            assert not set(got[:seen]) & set(got[seen:]), "it went back"
            assert set(world.acked) <= set(got)

    with ReplicaWorld(60 + seed) as world:
        world.run(scenario)


def test_a_new_topic_reaches_the_replica_with_its_first_messages() -> None:
    """Not with the next copy of the tables: the master's disk may be gone by then."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        await world.cluster.clock.sleep_ms(1_500)
        async with world.sender() as broker:
            assert await world.send(broker) == "SEND_OK"
            await eventually(
                lambda: world.parts(replica).topics.get(TOPIC) is not None, within_ms=1_000
            )

    with ReplicaWorld(70, slave_sync_interval_ms=60_000) as world:
        world.run(scenario)
