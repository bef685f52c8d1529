"""Name servers, brokers that come and go, and traffic that must not notice; on virtual time.

Traffic is our own client with its own retries. Invariants, by the numbers of the reference:

    I34   no send fails, nothing sent is lost
    I38   no topic is without a route for longer than a heartbeat
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

from skylark.admin import AdminClient
from skylark.admin import connect as connect_admin
from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig
from skylark.broker.parts import Parts
from skylark.client import Client
from skylark.client.connect import connect
from skylark.errors import SkylarkError
from skylark.model.message import Message
from skylark.nameserver import NameServer, NameServerConfig
from skylark.testing import SimNode
from skylark.testing.checks import eventually
from skylark.testing.cluster import SimCluster
from skylark.testing.files import SimFiles
from skylark.testing.transport import LinkConfig

PORT = 10911
TOPIC = "Orders"
WIRE = LinkConfig(delay_ms=0.3, jitter_ms=0.2, spike_chance=0, split_chance=0, merge_chance=0)
SETTINGS: dict[str, Any] = {
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 2_000,
    "mapped_file_size_timer_log": 32 << 10,
    "max_hash_slot_num": 100,
    "max_index_num": 5_000,
    "max_message_size": 64 << 10,
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "flush_interval_consume_queue": 60_000,
    "broker_config_path": "/conf/broker.conf",
    "listen_port": PORT,
    "advertised_address_check": False,
    "ha_send_heartbeat_interval": 1_000,
    "ha_housekeeping_interval": 4_000,
}


class Fleet:
    """One run."""

    def __init__(self, seed: int, *, name_servers: int = 2, **name_server_settings: Any) -> None:
        self.cluster = SimCluster(seed, link=WIRE, shuffle=False)
        self.clock = self.cluster.clock
        self.app = self.cluster.network.host("10.9.9.9", "app")
        self.addresses = ";".join(f"10.9.0.{n}:9876" for n in range(1, name_servers + 1))
        self._name_server_settings = name_server_settings
        self._settings: dict[str, dict[str, Any]] = {}
        self._brokers: dict[str, tuple[int, Broker]] = {}
        self._clients = 0
        for number in range(1, name_servers + 1):
            address = f"10.9.0.{number}"
            node = self.cluster.add_node(f"ns-{number}", address=address, files=SimFiles())
            node.start(self._name_server)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.cluster.run(scenario(), until_ms=4 * 3_600_000)

    # Servers.

    async def _name_server(self, node: SimNode) -> None:
        assert node.files is not None
        config = NameServerConfig(
            listen_host=node.address,
            kv_config_path="/kv/kvConfig.json",
            config_store_path="/kv/namesrv.properties",
            order_message_enable=True,
            **self._name_server_settings,
        )
        async with NameServer(
            config, clock=node.clock, network=node.network, files=node.files
        ) as server:
            await server.serve()

    def add(self, machine: str, broker_name: str, **settings: Any) -> SimNode:
        """Put up a machine with a broker, and start it."""
        files = SimFiles(page_bytes=4096, now_ms=self.clock.now_ms)
        node = self.cluster.add_node(machine, address=f"10.1.0.{len(self._settings) + 1}",
                                     files=files)  # fmt: skip
        self._settings[machine] = {
            **SETTINGS, "broker_name": broker_name, "namesrv_addr": self.addresses, **settings
        }  # fmt: skip
        node.start(self._broker)
        return node

    async def _broker(self, node: SimNode) -> None:
        assert node.files is not None
        settings = dict(self._settings[node.name])
        path = str(settings["broker_config_path"])
        if node.files.exists(path):  # What requests have changed, as a start with -c reads it.
            for line in node.files.read(path).decode().splitlines():
                if line.startswith("brokerPermission="):
                    settings["broker_permission"] = int(line.partition("=")[2])
        broker = Broker(
            BrokerConfig(**settings),
            clock=node.clock,
            network=node.network,
            files=node.files,
            rng=random.Random(node.rng.random()),
            host_ip=node.address,
        )
        async with broker:
            self._brokers[node.name] = node.starts, broker
            await broker.serve()

    def parts(self, machine: str) -> Parts | None:
        """What is inside of a broker that serves."""
        node = self.cluster.nodes[machine]
        starts, broker = self._brokers.get(machine, (0, None))
        if broker is None or not node.is_running or starts != node.starts:
            return None
        return broker.parts

    async def serving(self, *machines: str) -> None:
        """Wait until brokers serve, and replicas follow."""

        def all_serve() -> bool:
            for machine in machines or self._settings:
                parts = self.parts(machine)
                if parts is None:
                    return False
                if parts.raft is not None:
                    if not parts.raft.group.leader_id:
                        return False
                elif parts.replication.is_replica and not parts.replication.is_following:
                    return False
            return True

        await eventually(all_serve, within_ms=60_000, every_ms=50, what="all brokers serve")

    def machine_at(self, address: str) -> SimNode:
        """The machine with a broker's address."""
        host = address.rpartition(":")[0]
        return next(node for node in self.cluster.nodes.values() if node.address == host)

    async def restart(self, member: Any) -> None:
        """Restart a broker as SIGTERM and its service manager do."""
        await self.machine_at(member.address).restart()

    # Clients.

    def client(self, **settings: Any) -> Client:
        self._clients += 1
        return connect(
            self.addresses, network=self.app, clock=self.clock, env={},
            rng=self.cluster.rng(f"client/{self._clients}"),
            client_ip="10.9.9.9", instance_name=f"app-{self._clients}", **settings,
        )  # fmt: skip

    def admin(self, **settings: Any) -> AdminClient:
        return connect_admin(
            self.addresses, network=self.app, clock=self.clock, env={},
            rng=self.cluster.rng("admin"), client_ip="10.9.9.9", instance_name="admin", **settings,
        )  # fmt: skip


class Traffic:
    """A producer and groups of consumers, and what they saw."""

    def __init__(self, fleet: Fleet, *gaps_ms: int) -> None:
        """A producer for each gap; one that sends rarely hears late of what changes."""
        self._fleet = fleet
        self._gaps_ms = gaps_ms or (100,)
        self.sent: dict[bytes, str] = {}  # Body → the broker that took it.
        self.failures: list[str] = []
        self.statuses: dict[str, int] = {}
        self.seen: dict[str, dict[bytes, int]] = {}
        self._number = 0

    @contextlib.asynccontextmanager
    async def flowing(self, *groups: str) -> AsyncIterator[None]:
        """Let messages flow through the block, and after it until all have been read."""
        async with contextlib.AsyncExitStack() as stack:
            for group in groups:
                client = await stack.enter_async_context(self._fleet.client())
                consumer = client.consumer(
                    group, {TOPIC: "*"}, self._handler(group), consume_from="first"
                )
                await stack.enter_async_context(consumer)
            async with contextlib.AsyncExitStack() as producers:
                sending = []
                for gap_ms in self._gaps_ms:
                    client = await producers.enter_async_context(self._fleet.client())
                    producer = await producers.enter_async_context(client.producer("P"))
                    sending.append(asyncio.create_task(self._send(producer, gap_ms)))
                try:
                    yield
                finally:
                    for task in sending:
                        task.cancel()
                    await asyncio.wait(sending)
                    for task in sending:
                        if not task.cancelled() and (error := task.exception()) is not None:
                            raise error
            await eventually(
                lambda: all(len(self.seen[group]) == len(self.sent) for group in groups),
                within_ms=120_000,
                every_ms=200,
                what="every group has read everything",
            )

    def _handler(self, group: str) -> Any:
        seen = self.seen.setdefault(group, {})

        async def handle(message: Any) -> None:
            seen[message.body] = seen.get(message.body, 0) + 1

        return handle

    async def _send(self, producer: Any, gap_ms: int) -> None:
        while True:
            self._number += 1
            body = b"%06d" % self._number
            try:
                receipt = await producer.send(Message(TOPIC, body))
            except SkylarkError as error:
                self.failures.append(f"{body.decode()}: {error}")
            else:
                self.sent[body] = receipt.queue.broker_name
                status = str(receipt.status)
                self.statuses[status] = self.statuses.get(status, 0) + 1
            await self._fleet.clock.sleep_ms(gap_ms)

    def brokers_since(self, number: int) -> set[str]:
        """Which brokers took messages after the first so many."""
        return set(list(self.sent.values())[number:])

    def check(self) -> None:
        """Nothing failed, and every group has everything that was sent."""
        assert self.failures == []
        for group, seen in self.seen.items():
            assert seen.keys() == self.sent.keys(), f"{group} misses messages"
