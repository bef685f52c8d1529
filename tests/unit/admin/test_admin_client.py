"""AdminClient: two brokers, their name server and real consumers, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from skylark.admin import NEWEST, AdminClient, TopicKind, TrackState, connect
from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig
from skylark.client import Client
from skylark.client.connect import connect as connect_client
from skylark.errors import BrokerError, ClientError, InvalidName, NoRoute
from skylark.model.group import SubscriptionGroupConfig
from skylark.model.message import Message
from skylark.model.topic import retry_topic
from skylark.nameserver import NameServer, NameServerConfig
from skylark.testing import LinkConfig, SimClock, SimLoop, SimNetwork
from skylark.testing.files import SimFiles

WIRE = LinkConfig(delay_ms=0.1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)
NAMESRV = "10.0.0.1:9876"
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 << 10,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 64,
    "max_index_num": 2_048,
    "max_message_size": 16 << 10,
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "store_path_root_dir": "/store",
}


class World:
    """A cluster of two brokers."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(1), config=WIRE)
        self.clock = SimClock(self.loop)
        self.client_host = self.network.host("10.0.0.9")
        self.brokers: list[Broker] = []

    def client(self, instance: str = "one") -> Client:
        return connect_client(
            NAMESRV, network=self.client_host, clock=self.clock, rng=random.Random(5), env={},
            client_ip="10.0.0.9", instance_name=instance,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[AdminClient]:
        async with contextlib.AsyncExitStack() as stack:
            server = NameServer(
                NameServerConfig(listen_port=9876, order_message_enable=True),
                clock=self.clock,
                network=self.network.host("10.0.0.1"),
                files=SimFiles(),
            )
            await stack.enter_async_context(server)
            for number, name in ((2, "broker-a"), (3, "broker-b")):
                host = self.network.host(f"10.0.0.{number}")
                broker = Broker(
                    BrokerConfig(**SMALL, broker_name=name, namesrv_addr=NAMESRV),
                    clock=self.clock,
                    network=host,
                    files=SimFiles(),
                    rng=random.Random(number),
                    host_ip=host.address,
                )
                self.brokers.append(await stack.enter_async_context(broker))
            admin = connect(
                NAMESRV, network=self.client_host, clock=self.clock, rng=random.Random(6), env={},
                client_ip="10.0.0.9", instance_name="admin",
            )  # fmt: skip
            yield await stack.enter_async_context(admin)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run(main())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


async def _send(world: World, topic: str, count: int, **changes: Any) -> list[str]:
    async with world.client("producer") as mq, mq.producer("producers") as producer:
        ids = []
        for number in range(count):
            message = Message(topic, b"body-%d" % number, keys=[f"key-{number}"], **changes)
            ids.append((await producer.send(message)).message_id)
        return ids


def test_a_topic_is_made_everywhere_known_at_once_and_deleted(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            made = await admin.create_topic("Orders", read_queues=2, write_queues=2)
            assert made == ["10.0.0.2:10911", "10.0.0.3:10911"]
            # No wait: the name server knows it when the broker answers.
            topic = await admin.topic("Orders")
            assert [place.broker for place in topic.places] == ["broker-a", "broker-b"]
            assert (len(topic.queues), topic.message_count, topic.groups) == (4, 0, ())
            (listed,) = await admin.topics()
            assert (listed.name, listed.read_queues, listed.kind) == ("Orders", 4, TopicKind.NORMAL)
            kinds = {one.name: one.kind for one in await admin.topics(with_system=True)}
            assert kinds["TBW102"] is kinds["broker-a"] is TopicKind.SYSTEM
            await admin.delete_topic("Orders")
            assert await admin.topics() == []
            with pytest.raises(NoRoute, match="no broker has a topic 'Orders'"):
                await admin.topic("Orders")

    world.run(main)


def test_a_topic_may_be_made_on_one_broker_and_be_ordered(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("One", write_queues=3, broker="broker-b", order=True)
            topic = await admin.topic("One")
            assert [place.broker for place in topic.places] == ["broker-b"]
            assert topic.order_conf == "broker-b:3"
            with pytest.raises(NoRoute, match="clusters are: DefaultCluster"):
                await admin.create_topic("Two", cluster="nowhere")
            with pytest.raises(InvalidName):
                await admin.create_topic("../x")
            with pytest.raises(BrokerError, match="system topic"):
                await admin.create_topic("TBW102")

    world.run(main)


def test_a_group_is_described_with_members_progress_and_disagreement(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders", read_queues=2, write_queues=2)
            await _send(world, "Orders", 8, tag="A")

            async def handle(message: object) -> None:
                return None

            async with world.client("c1") as one, world.client("c2") as two:
                first = one.consumer("billing", {"Orders": "A"}, handle, consume_from="first")
                second = two.consumer("billing", {"Orders": "B"}, handle, consume_from="first")
                async with first:
                    await world.clock.sleep_ms(10_000)
                    group = await admin.group("billing")
                    assert (len(group.members), group.lag, group.mismatches) == (1, 0, ())
                    assert group.subscriptions["Orders"] == "A"
                    assert group.members[0].language == "PYTHON"
                    assert sum(q.consumer_offset for q in group.queues if q.topic == "Orders") == 8
                    async with second:
                        await world.clock.sleep_ms(1_000)
                        group = await admin.group("billing")
                        assert len(group.members) == 2
                        (sentence,) = group.mismatches
                        assert "topic Orders" in sentence
                        assert "give all members the same" in sentence
                summaries = {one.name: one for one in await admin.groups()}
                assert set(summaries) == {"billing"}
                assert (summaries["billing"].members, summaries["billing"].lag) == (0, 0)
            with pytest.raises(BrokerError, match="no broker knows a group 'nobody'"):
                await admin.group("nobody")

    world.run(main)


def test_a_group_without_members_is_rewound_from_here(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders", read_queues=1, write_queues=1)
            await _send(world, "Orders", 6)
            middle_ms = world.clock.now_ms()
            await world.clock.sleep_ms(60_000)
            await _send(world, "Orders", 6)
            for broker in world.brokers:
                assert broker.parts is not None
                end = broker.parts.store.max_offset("Orders", 0)
                broker.parts.offsets.commit("Orders", "g", 0, end, may_go_back=True)
            assert sum(queue.lag for queue in await admin.lag("g")) == 0
            changes = await admin.rewind("g", "Orders", middle_ms + 59_000)
            assert {(one.before, one.after) for one in changes} == {(6, 3)}
            changes = await admin.rewind("g", "Orders", NEWEST, force=False)
            assert {(one.before, one.after) for one in changes} == {(3, 3)}
            await admin.clone_offsets("g", "copy", "Orders")
            assert sum(queue.lag for queue in await admin.lag("copy", "Orders")) == 6
            await admin.rewind("g", "Orders", NEWEST)
            assert sum(queue.lag for queue in await admin.lag("g")) == 0

    world.run(main)


def test_a_group_that_is_online_is_rewound_by_its_broker_and_consumes_again(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders", read_queues=2, write_queues=2)
            await _send(world, "Orders", 8)
            seen: list[bytes] = []

            async def handle(message: Any) -> None:
                seen.append(message.body)

            async with (
                world.client("c1") as mq,
                mq.consumer("billing", {"Orders": "*"}, handle, consume_from="first"),
            ):
                await world.clock.sleep_ms(10_000)
                assert len(seen) == 8
                changes = await admin.rewind("billing", "Orders", 0)
                assert {(one.before, one.after) for one in changes} == {(2, 0)}
                await world.clock.sleep_ms(30_000)
                assert sorted(seen) == sorted([b"body-%d" % n for n in range(8)] * 2)
                assert sum(queue.lag for queue in await admin.lag("billing", "Orders")) == 0

    world.run(main)


def test_messages_are_found_by_key_and_id_with_what_became_of_them(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders", read_queues=1, write_queues=1)
            ids = await _send(world, "Orders", 4, tag="A")
            (found,) = await admin.messages("Orders", "key-2")
            assert (found.body, found.message.unique_id) == (b"body-2", ids[2])
            by_id = await admin.message(ids[2], "Orders")
            assert (by_id.message, by_id.tracks) == (found.message, ())
            assert (await admin.message(found.message.offset_id)).message == found.message
            assert (await admin.message(found.message.offset_id, "Orders")).body == b"body-2"

            async def handle(message: object) -> None:
                return None

            async with (
                world.client("c1") as one,
                world.client("c2") as two,
                one.consumer("reads", {"Orders": "A"}, handle, consume_from="first"),
                two.consumer("filters", {"Orders": "B"}, handle, consume_from="first"),
            ):
                await world.clock.sleep_ms(40_000)
                tracks = {track.group: track.state for track in await admin.tracks(found.message)}
                assert tracks == {"reads": TrackState.CONSUMED, "filters": TrackState.FILTERED}
            tracks = {track.group: track.state for track in await admin.tracks(found.message)}
            assert set(tracks.values()) == {TrackState.OFFLINE}

    world.run(main)


@pytest.mark.parametrize(
    ("message_id", "topic"),
    [
        ("0A0000090000115C0000000000000000", None),  # A host that is no broker of the cluster.
        ("7F000001000000160000000000000000", "Orders"),
        ("nonsense", None),
        ("nonsense", "Orders"),
        ("F" * 32, None),
        ("", None),
    ],
)
def test_an_id_of_no_message_dials_nobody_and_says_what_next(
    world: World, message_id: str, topic: str | None
) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders", read_queues=1, write_queues=1)
            dialled: list[str] = []
            original = admin._remote

            def noting(address: str) -> Any:
                dialled.append(address)
                return original(address)

            admin._remote = noting  # type: ignore[method-assign]
            with pytest.raises(ClientError, match=r"no message .*has the id"):
                await admin.message(message_id, topic)
            assert set(dialled) <= {"10.0.0.2:10911", "10.0.0.3:10911"}

    world.run(main)


def test_one_member_consumes_one_message_on_demand(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders", read_queues=1, write_queues=1, broker="broker-a")
            await _send(world, "Orders", 1)
            (found,) = await admin.messages("Orders", "key-0")
            seen: list[bytes] = []

            async def handle(message: Any) -> None:
                seen.append(message.body)

            async with (
                world.client("c1") as mq,
                mq.consumer("billing", {"Orders": "*"}, handle, consume_from="first"),
            ):
                await world.clock.sleep_ms(5_000)
                (member,) = (await admin.group("billing")).members
                result = await admin.consume_directly(
                    "billing", member.client_id, found.message.offset_id
                )
                assert result == "CR_SUCCESS"
                assert seen == [b"body-0", b"body-0"]
            with pytest.raises(ClientError, match="names no broker here"):
                await admin.consume_directly("billing", "x", "7F00000100002A9F0000000000000000")

    world.run(main)


def test_a_group_is_made_and_deleted_with_its_retry_topic(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.put_group(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
            group = await admin.group("g")
            assert {one.retry_max_times for one in group.settings.values()} == {3}
            assert (group.members, group.queues, group.consume_type) == ((), (), None)
            await admin.create_topic(retry_topic("g"), read_queues=1, write_queues=1)
            await admin.delete_group("g")
            names = {topic.name for topic in await admin.topics(with_system=True)}
            assert retry_topic("g") not in names
            with pytest.raises(BrokerError):
                await admin.group("g")

    world.run(main)


def test_brokers_show_their_figures_and_take_settings(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            await admin.create_topic("Orders")
            await _send(world, "Orders", 10)
            figures = await admin.broker_figures()
            assert [one.name for one in figures] == ["broker-a", "broker-b"]
            assert sum(one.put_total for one in figures) == 10
            assert {one.version for one in figures} == {"V4_9_8"}
            assert all(one.earliest_message_at_ms for one in figures)
            await admin.update_broker_settings({"traceOn": "false"}, broker="broker-b")
            assert (await admin.broker_settings("broker-b"))["traceOn"] == "false"
            assert (await admin.broker_settings("broker-a"))["traceOn"] == "true"
            with pytest.raises(BrokerError) as refused:
                await admin.update_broker_settings({"storePathRootDir": "/x"})
            assert refused.value.code == 16
            await admin.clean()

    world.run(main)


def test_many_groups_are_asked_about_a_few_at_a_time(world: World) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            for number in range(100):
                await admin.put_group(
                    SubscriptionGroupConfig(group_name=f"g{number:03d}"), broker="broker-a"
                )
            under_way = most = 0
            original = admin._connections

            async def counting(*arguments: Any) -> Any:
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                try:
                    return await original(*arguments)
                finally:
                    under_way -= 1

            admin._connections = counting  # type: ignore[method-assign,assignment]
            groups = await asyncio.wait_for(admin.groups(), 60)
            assert [group.name for group in groups] == [f"g{n:03d}" for n in range(100)]
            assert most <= 32

    world.run(main)


def test_a_name_server_that_hangs_delays_a_topic_for_a_moment_and_hears_of_it_later(
    world: World,
) -> None:
    async def main() -> None:
        async with world.serving() as admin:
            brokers = await admin.brokers()
            assert len(brokers) == 2
            cut = world.network.partition("10.0.0.1", ["10.0.0.2", "10.0.0.3"])
            begun_ms = world.clock.monotonic_ms()
            await admin.create_topic("Late", broker="broker-a")
            assert 2_900 < world.clock.monotonic_ms() - begun_ms < 4_900
            begun_ms = world.clock.monotonic_ms()
            await admin.create_topic("Later", broker="broker-a")  # Nobody waits a second time.
            assert world.clock.monotonic_ms() - begun_ms < 100
            cut.heal()
            await world.clock.sleep_ms(10_000)
            assert [place.broker for place in (await admin.topic("Late")).places] == ["broker-a"]
            assert [place.broker for place in (await admin.topic("Later")).places] == ["broker-a"]

    world.run(main)
