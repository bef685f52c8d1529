"""A name server, a master, its replicas and a sender, on one virtual timeline; and their judge.

Invariants, by the numbers of the reference:

    I09   what was acknowledged with SEND_OK under SYNC_MASTER survives the loss of a machine
    I10   a replica's log is a part of its master's, byte for byte
    I19   committed offsets never go back, and never beyond the end of their queue
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig
from skylark.broker.parts import Parts
from skylark.errors import BrokerError, SkylarkError, TransportError
from skylark.nameserver.app import NameServer
from skylark.nameserver.config import NameServerConfig
from skylark.net.channel import Channels
from skylark.protocol.headers import SendMessageRequestV2
from skylark.protocol.record import decode_records
from skylark.remote import RemoteBroker, SendStatus
from skylark.store import MessageStore
from skylark.testing import SimNode
from skylark.testing.checks import eventually
from skylark.testing.cluster import SimCluster
from skylark.testing.files import SimFiles
from skylark.testing.transport import LinkConfig

NAME_SERVER = "10.0.9.1:9876"
PORT = 10911
TOPIC = "Replicated"
QUEUES = 2

SETTINGS: dict[str, Any] = {
    "broker_name": "broker-a",
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 16 << 10,
    "mapped_file_size_consume_queue": 20 * 200,
    "max_hash_slot_num": 100,
    "max_index_num": 1_000,
    "max_message_size": 8 << 10,
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "file_reserved_time": 10_000,
    "flush_interval_consume_queue": 10_000,
    "default_topic_queue_nums": QUEUES,
    "namesrv_addr": NAME_SERVER,
    "listen_port": PORT,
    "advertised_address_check": False,
    "slave_sync_interval_ms": 2_000,
    "ha_send_heartbeat_interval": 1_000,
    "ha_housekeeping_interval": 4_000,
    "ha_transfer_batch_size": 700,  # Records come in pieces.
    "stop_grace_ms": 10,
}
CALM = LinkConfig(spike_chance=0, split_chance=0.2, merge_chance=0.2)


class ReplicaWorld:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        role: str = "SYNC_MASTER",
        replicas: int = 1,
        link: LinkConfig = CALM,
        disk_latency_ms: int = 0,
        **settings: Any,
    ) -> None:
        self.cluster = SimCluster(seed, link=link, executor_latency_us=disk_latency_ms * 1000)
        self.role = role
        self.settings = settings
        self.rng = self.cluster.rng("world")
        self.brokers: dict[str, Broker] = {}
        self.started: dict[str, int] = {}
        self.acked: dict[bytes, tuple[int, int]] = {}  # Body → queue, offset.
        self.statuses: dict[str, int] = {}
        self.sent = 0
        server = self.cluster.add_node("ns", address="10.0.9.1", files=SimFiles())
        server.start(self._name_server)
        self.master = self.cluster.add_node("m", address="10.0.1.1", files=new_disk())
        self.replicas = [
            self.cluster.add_node(f"s{number}", address=f"10.0.2.{number}", files=new_disk())
            for number in range(1, replicas + 1)
        ]
        self.ids = {"m": 0} | {node.name: n for n, node in enumerate(self.replicas, 1)}
        self.app = self.cluster.network.host("10.0.9.9", "app")
        self.master.start(self._broker)
        for node in self.replicas:
            node.start(self._broker)

    def close(self) -> None:
        self.cluster.close()

    def __enter__(self) -> ReplicaWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, scenario: Any) -> Any:
        return self.cluster.run(scenario(self), until_ms=3_600_000)

    # Servers.

    async def _name_server(self, node: SimNode) -> None:
        assert node.files is not None
        config = NameServerConfig(
            listen_host=node.address,
            listen_port=9876,
            kv_config_path="/kv/kvConfig.json",
            config_store_path="/kv/namesrv.properties",
        )
        async with NameServer(
            config, clock=node.clock, network=node.network, files=node.files
        ) as server:
            await server.serve()

    def config(self, name: str) -> BrokerConfig:
        broker_id = self.ids[name]
        role = self.role if broker_id == 0 else "SLAVE"
        return BrokerConfig(
            **{**SETTINGS, "broker_id": broker_id, "broker_role": role, **self.settings}
        )

    async def _broker(self, node: SimNode) -> None:
        assert node.files is not None
        broker = Broker(
            self.config(node.name),
            clock=node.clock,
            network=node.network,
            files=node.files,
            rng=random.Random(node.rng.random()),
            host_ip=node.address,
        )
        async with broker:
            self.brokers[node.name], self.started[node.name] = broker, node.starts
            await broker.serve()

    def is_serving(self, node: SimNode) -> bool:
        return node.is_running and self.started.get(node.name) == node.starts

    def parts(self, node: SimNode) -> Parts:
        assert self.is_serving(node), f"{node.name} is down"
        parts = self.brokers[node.name].parts
        assert parts is not None
        return parts

    def store(self, node: SimNode) -> MessageStore:
        return self.parts(node).store

    async def wait_serving(self, *nodes: SimNode) -> None:
        wanted = nodes or (self.master, *self.replicas)
        await eventually(
            lambda: all(self.is_serving(node) for node in wanted), within_ms=60_000, what="serving"
        )

    async def wait_following(self, within_ms: int = 60_000) -> None:
        """Until all replicas follow."""

        def follow() -> bool:
            return (
                self.is_serving(self.master)
                and all(self.is_serving(node) for node in self.replicas)
                and sum(f.asked >= 0 for f in self.parts(self.master).replication.master.followers)
                >= len(self.replicas)
                and all(self.parts(node).replication.is_following for node in self.replicas)
            )

        await eventually(follow, within_ms=within_ms, what="all replicas follow")

    def is_level(self) -> bool:
        """Whether all logs are equally long."""
        return all(self.is_serving(n) for n in (self.master, *self.replicas)) and all(
            self.store(node).log.appended == self.store(self.master).log.appended
            for node in self.replicas
        )

    async def wait_level(self, within_ms: int = 60_000) -> None:
        await eventually(self.is_level, within_ms=within_ms, what="logs are level")

    # Faults that a plan does not have.

    def lose_disk(self, node: SimNode) -> None:
        """Give a machine that is down a new, empty disk."""
        assert not node.is_running
        node._files = new_disk()

    # The sender.

    @contextlib.asynccontextmanager
    async def sender(self) -> Any:
        clock = self.cluster.clock
        async with Channels(self.app, clock, self.cluster.rng("channels")) as channels:
            yield RemoteBroker(channels, f"{self.master.address}:{PORT}")

    async def send(self, broker: RemoteBroker, *, size: int = 0) -> str:
        """Send one message; note what became of it, and return the status."""
        number = self.sent
        self.sent += 1
        queue_id = number % QUEUES
        body = f"{number:06d}".encode() + bytes(
            self.rng.randrange(256) for _ in range(size or self.rng.randrange(10, 900))
        )
        header = SendMessageRequestV2(
            producer_group="P",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties=f"KEYS\x01k{number:04d}\x02",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        try:
            answer = await broker.send(header, body, timeout_ms=10_000)
        except (TransportError, BrokerError) as error:
            status = type(error).__name__
        else:
            status = str(answer.status)
            if answer.status is SendStatus.SEND_OK:
                self.acked[body] = answer.queue_id, answer.queue_offset
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status

    async def send_for_ever(self, broker: RemoteBroker, gap_ms: int = 20) -> None:
        while True:
            await self.send(broker)
            await self.cluster.clock.sleep_ms(self.rng.randrange(1, 2 * gap_ms))

    # The judge.

    def held(self, store: MessageStore) -> dict[bytes, tuple[int, int]]:
        """All messages of the topic in a store: body → queue, offset."""
        found: dict[bytes, tuple[int, int]] = {}
        for queue_id in range(QUEUES):
            offset = store.min_offset(TOPIC, queue_id)
            while (page := store.get(TOPIC, queue_id, offset, 32)).message_count:
                for record in decode_records(page.body):
                    found[record.body] = queue_id, record.queue_offset
                offset = page.next_offset
        return found

    def check_nothing_lost(self, node: SimNode) -> None:
        """I09: everything acknowledged is there, at its place."""
        held = self.held(self.store(node))
        lost = [body[:6] for body, place in self.acked.items() if held.get(body) != place]
        assert not lost, f"{len(lost)} of {len(self.acked)} lost at {node.name}: {lost[:5]}"

    def check_prefix(self) -> None:
        """I10: what a replica has is what the master has."""
        if not self.is_serving(self.master):
            return
        master = self.store(self.master).log
        for node in self.replicas:
            if not self.is_serving(node):
                continue
            replica = self.store(node).log
            at = max(master.start, replica.start)
            end = min(master.committed, replica.committed)
            while at < end:
                size = min(end - at, 1024, (16 << 10) - at % (16 << 10))
                theirs, ours = master.read(at, size), replica.read(at, size)
                assert theirs is not None
                assert ours is not None
                assert bytes(theirs) == bytes(ours), (
                    f"{node.name} differs between {at} and {at + size}"
                )
                at += size


def new_disk() -> SimFiles:
    return SimFiles(page_bytes=512)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, SkylarkError):
        await task
