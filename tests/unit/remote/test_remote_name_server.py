"""NameServers and the brokers that register: choice, failover, silence, heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from skylark.errors import BrokerError, TransportError
from skylark.model.topic import TopicConfig
from skylark.model.version import DataVersion
from skylark.nameserver import NameServer, NameServerConfig
from skylark.nameserver.route_table import RouteTable
from skylark.net.channel import Channels
from skylark.remote import NameServers, RemoteNameServer
from skylark.testing import SimNode
from skylark.testing.broker import SimulatedBroker
from skylark.testing.cluster import SimCluster
from skylark.testing.files import SimFiles

Scene = Callable[[SimNode], Awaitable[Any]]


class World:
    """Some name servers, and a machine to act from."""

    def __init__(self, servers: int = 2) -> None:
        self.cluster = SimCluster(seed=1)
        self.tables: dict[str, RouteTable] = {}
        self.names = [f"ns-{i}" for i in range(servers)]
        for name in self.names:
            self.cluster.add_node(name, self.serve, files=SimFiles()).start()
        self.nodes = [self.cluster.nodes[name] for name in self.names]
        self.addresses = [f"{node.address}:9876" for node in self.nodes]
        self.machine = self.cluster.add_node("machine", self.idle)
        self.machine.start()

    async def serve(self, node: SimNode) -> None:
        assert node.files is not None
        config = NameServerConfig(kv_config_path="/kv/kv.json", config_store_path="/kv/conf")
        server = NameServer(config, clock=node.clock, network=node.network, files=node.files)
        async with server:
            self.tables[node.name] = server.routes
            await server.serve()

    async def idle(self, node: SimNode) -> None:
        await asyncio.Event().wait()

    def play(self, scene: Scene) -> None:
        async def run() -> None:
            await self.cluster.clock.sleep_ms(100)
            await self.machine.call(scene)  # type: ignore[arg-type]

        self.cluster.run(run(), until_ms=3_600_000)

    def broker(self, node: SimNode, **options: Any) -> SimulatedBroker:
        defaults = {"address": f"{node.address}:10911", "topics": [TopicConfig("T", 4, 4)]}
        return SimulatedBroker(
            options.pop("name_servers", self.addresses),
            network=node.network,
            clock=node.clock,
            rng=node.rng,
            **(defaults | options),
        )


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.cluster.close()


def channels_of(node: SimNode) -> Channels:
    return Channels(node.network, node.clock, node.rng)


# Which name server is asked.


def test_clients_spread_over_the_name_servers() -> None:
    world = World(3)

    async def scene(node: SimNode) -> None:
        async with channels_of(node) as channels:
            chosen = Counter(
                NameServers(channels, world.addresses, random.Random(seed)).chosen
                for seed in range(60)
            )
        assert len(chosen) == 3
        assert min(chosen.values()) >= 10

    world.play(scene)
    world.cluster.close()


def test_a_client_stays_with_its_name_server_and_goes_on_with_the_next(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with channels_of(node) as channels:
            servers = NameServers(channels, world.addresses, random.Random(1))
            first = servers.chosen
            for _ in range(5):
                await servers.get_topics()
            assert servers.chosen == first
            world.nodes[world.addresses.index(str(first))].crash(reset=True)
            await servers.get_topics()
            second = servers.chosen
            assert second != first
            world.nodes[world.addresses.index(str(first))].start()
            await servers.get_topics()
            assert servers.chosen == second

    world.play(scene)


def test_a_dead_address_in_the_list_does_no_harm(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with channels_of(node) as channels:
            for seed in range(6):
                addresses = ["10.0.99.99:1", world.addresses[0]]
                servers = NameServers(channels, addresses, random.Random(seed))
                assert await servers.get_topics() == ()

    world.play(scene)


def test_when_all_are_gone_the_error_names_them(world: World) -> None:
    async def scene(node: SimNode) -> None:
        for server in world.nodes:
            server.crash(reset=True)
        async with channels_of(node) as channels:
            servers = NameServers(channels, world.addresses, random.Random(1))
            with pytest.raises(TransportError) as caught:
                await servers.get_topics()
            assert all(address in str(caught.value) for address in world.addresses)
            with pytest.raises(TransportError, match="set namesrvAddr"):
                await NameServers(channels, [], random.Random(1)).get_topics()

    world.play(scene)


def test_a_refusal_is_an_answer_and_no_reason_to_ask_another(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with channels_of(node) as channels:
            servers = NameServers(channels, world.addresses, random.Random(1))
            chosen = servers.chosen
            with pytest.raises(BrokerError) as caught:
                await servers.get_route("T")
            assert (caught.value.code, caught.value.address) == (17, chosen)
            assert servers.chosen == chosen

    world.play(scene)


def test_an_empty_list_changes_nothing_and_a_new_one_keeps_the_choice_if_it_can(
    world: World,
) -> None:
    async def scene(node: SimNode) -> None:
        async with channels_of(node) as channels:
            servers = NameServers(channels, world.addresses, random.Random(1))
            chosen = str(servers.chosen)
            servers.update([])
            servers.update(["", " "])
            assert servers.chosen == chosen
            for seed in range(5):
                servers.update([f"10.0.50.{seed}:1", *world.addresses])
                assert servers.chosen == chosen
            servers.update([world.addresses[0], world.addresses[0]])
            assert servers.addresses == (world.addresses[0],)
            assert [server.address for server in servers.each()] == [world.addresses[0]]

    world.play(scene)


def test_a_route_that_one_does_not_know_yet_is_found_at_another(world: World) -> None:
    async def scene(node: SimNode) -> None:
        registered = world.broker(node, name_servers=world.addresses[:1])
        async with registered, channels_of(node) as channels:
            for seed in range(6):
                servers = NameServers(channels, world.addresses, random.Random(seed))
                assert (await servers.find_route("T")).queues
                with pytest.raises(BrokerError):
                    await servers.find_route("nowhere")

    world.play(scene)


# How brokers register.


def test_a_silent_name_server_holds_a_broker_up_only_until_the_time_out(world: World) -> None:
    async def scene(node: SimNode) -> None:
        world.nodes[0].pause()
        began_ms = node.clock.monotonic_ms()
        async with world.broker(node) as broker:
            assert node.clock.monotonic_ms() - began_ms <= 6_100
            assert world.tables["ns-1"].topics() == ["T"]
            assert list(broker.confirmed_ms) == [world.addresses[1]]
            world.nodes[0].resume()

    world.play(scene)


def test_a_broker_keeps_one_connection_to_each_name_server(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node):
            await node.clock.sleep_ms(300_000)
            remote = [to for here, to in world.cluster.network.connections() if _of(node, here)]
            assert sorted(remote) == sorted(world.addresses)

    world.play(scene)


def _of(node: SimNode, address: str) -> bool:
    return address.startswith(f"{node.address}:")


@pytest.mark.parametrize(
    ("period_ms", "expected_ms"), [(1, 10_000), (30_000, 30_000), (900_000, 60_000)]
)
def test_heartbeats_come_every_30_s_and_never_below_10_or_above_60(
    world: World, period_ms: int, expected_ms: int
) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node, period_ms=period_ms) as broker:
            first_ms = broker.confirmed_ms[world.addresses[0]]
            await node.clock.sleep_ms(5 * expected_ms + 100)
            last_ms = broker.confirmed_ms[world.addresses[0]]
            assert (last_ms - first_ms) == pytest.approx(5 * expected_ms, abs=100)

    world.play(scene)


def test_a_changed_topic_is_known_everywhere_at_once(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node, compressed=True) as broker:
            await broker.put_topic(TopicConfig("NEW", 2, 2))
            for table in world.tables.values():
                assert table.topics() == ["NEW", "T"]
                assert table.data_version(broker.address) == broker.data_version

    world.play(scene)


def test_an_eager_broker_is_back_seconds_after_a_name_server_restarts(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node):
            world.nodes[0].crash(reset=True)
            await node.clock.sleep_ms(1_000)
            world.nodes[0].start()
            await node.clock.sleep_ms(5_000)
            assert world.tables["ns-0"].topics() == ["T"]

    world.play(scene)


def test_a_broker_like_rocketmqs_is_back_with_its_next_heartbeat(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node, eager=False):
            world.nodes[0].crash(reset=True)
            await node.clock.sleep_ms(1_000)
            world.nodes[0].start()
            await node.clock.sleep_ms(20_000)
            assert world.tables["ns-0"].topics() == []
            await node.clock.sleep_ms(10_000)
            assert world.tables["ns-0"].topics() == ["T"]

    world.play(scene)


def test_a_broker_that_asks_first_registers_only_when_something_changed(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node, force_register=False) as broker:
            await node.clock.sleep_ms(200_000)  # Beyond the expiry: questions keep it alive.
            assert world.tables["ns-0"].topics() == ["T"]
            world.tables["ns-0"].wipe_write_perm(broker.name)
            await node.clock.sleep_ms(60_000)
            assert not world.tables["ns-0"].route("T").queues[0].is_writable  # type: ignore[union-attr]
            await broker.put_topic(TopicConfig("T", 8, 8))
            assert world.tables["ns-0"].route("T").queues[0].is_writable  # type: ignore[union-attr]

    world.play(scene)


def test_a_hung_broker_is_dropped_though_its_connection_is_open(world: World) -> None:
    """NS-18: SIGSTOP a broker; TCP stays up and the route goes after the expiry."""

    async def hold(node: SimNode) -> None:
        async with world.broker(node):
            await asyncio.Event().wait()

    hung = world.cluster.add_node("hung", hold)
    hung.start()

    async def scene(node: SimNode) -> None:
        await node.clock.sleep_ms(1_000)
        assert world.tables["ns-0"].topics() == ["T"]
        hung.pause()
        await node.clock.sleep_ms(100_000)
        assert world.tables["ns-0"].topics() == ["T"]
        await node.clock.sleep_ms(35_000)
        assert world.tables["ns-0"].topics() == []

    world.play(scene)


def test_a_replica_learns_its_master(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node, ha_address=f"{node.address}:10912") as master:
            options = {"broker_id": 1, "address": f"{node.address}:20911"}
            async with world.broker(node, **options) as replica:
                assert replica.master_address == master.address

    world.play(scene)


def test_a_broker_that_leaves_unregisters_everywhere(world: World) -> None:
    async def scene(node: SimNode) -> None:
        async with world.broker(node):
            pass
        assert [table.live for table in world.tables.values()] == [[], []]

    world.play(scene)


def test_a_broker_that_fails_does_not_claim_to_leave_in_order(world: World) -> None:
    async def scene(node: SimNode) -> None:
        with contextlib.suppress(ZeroDivisionError):
            async with world.broker(node):
                raise ZeroDivisionError
        await node.clock.sleep_ms(1_000)
        assert [table.live for table in world.tables.values()] == [[], []]  # By the close alone.

    world.play(scene)


def test_a_oneway_registration_and_a_question_about_versions(world: World) -> None:
    async def scene(node: SimNode) -> None:
        who: dict[str, Any] = {
            "cluster": "c",
            "broker_name": "b",
            "broker_id": 0,
            "address": "10.0.0.9:1",
        }
        async with channels_of(node) as channels:
            server = RemoteNameServer(channels, world.addresses[0])
            assert await server.query_data_version(DataVersion(), **who) == (True, None)
            await server.register_broker(**who, body=b"", oneway=True)
            await node.clock.sleep_ms(100)
            known = await server.query_data_version(DataVersion(), **who)
            assert known == (False, DataVersion())
            await server.unregister_broker(**who)

    world.play(scene)
