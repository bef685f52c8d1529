"""Three whole brokers in a Raft group, a name server and clients, on one virtual timeline.

Invariants, by the numbers of the reference:

    I09   what was acknowledged survives whatever happens to the machines
    I10   the logs of all members are the same, byte for byte, up to what is agreed
    I19   offsets that were told or acknowledged never go back
    I22   no two clients ever own a queue at the same time
    -     topics and groups that were acknowledged are at every member in the end
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig
from skylark.broker.parts import Parts
from skylark.errors import BrokerError, SkylarkError, TransportError
from skylark.model.queue import MessageQueue
from skylark.model.topic import TopicConfig
from skylark.nameserver.app import NameServer
from skylark.nameserver.config import NameServerConfig
from skylark.net.channel import Channels
from skylark.protocol.headers import SendMessageRequestV2
from skylark.protocol.record import decode_records
from skylark.remote import RemoteBroker, RemoteNameServer, SendStatus
from skylark.store import MessageStore
from skylark.testing import SimNode
from skylark.testing.checks import eventually
from skylark.testing.cluster import SimCluster
from skylark.testing.files import SimFiles
from skylark.testing.transport import LinkConfig

NAME_SERVER = "10.0.9.1:9876"
PORT = 10911
RAFT_PORT = 40911
TOPIC = "Agreed"
QUEUES = 2
LEASE_MS = 4_000
FILE_BYTES = 32 << 10

SETTINGS: dict[str, Any] = {
    "broker_name": "group-a",
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 20 * 400,
    "mapped_file_size_timer_log": 32 << 10,
    "max_hash_slot_num": 100,
    "max_index_num": 1_000,
    "max_message_size": 8 << 10,
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "file_reserved_time": 10_000,
    "flush_interval_consume_queue": 5_000,
    "default_topic_queue_nums": QUEUES,
    "namesrv_addr": NAME_SERVER,
    "listen_port": PORT,
    "advertised_address_check": False,
    "queue_lock_lease_ms": LEASE_MS,
    "stop_grace_ms": 10,
    "enable_d_leger_commit_log": True,
    "d_leger_peers": ";".join(f"n{n}-10.0.1.{n + 1}:{RAFT_PORT}" for n in range(3)),
}
CALM = LinkConfig(spike_chance=0, split_chance=0.1, merge_chance=0.1)


class BrokerGroupWorld:
    """One run."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.cluster = SimCluster(seed, link=CALM, executor_latency_us=500)
        self.clock = self.cluster.clock
        self.rng = self.cluster.rng("world")
        self.settings = settings
        self.brokers: dict[str, tuple[Broker, int]] = {}
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.sent = 0
        self.made: set[str] = set()
        self.deleted: set[str] = set()
        self.told = 0  # The highest offset that anybody was told, or whose commit was answered.
        self.outages: list[int] = []  # Between two sends that succeeded, when more than a second.
        self._last_ok_ms = 0
        self._owned: dict[str, tuple[int, int]] = {}
        self.handovers = 0
        self._traffic: list[asyncio.Task[None]] = []
        server = self.cluster.add_node("ns", address="10.0.9.1", files=SimFiles())
        server.start(self._name_server)
        self.nodes = [
            self.cluster.add_node(f"n{n}", address=f"10.0.1.{n + 1}", files=new_disk())
            for n in range(3)
        ]
        self.app = self.cluster.network.host("10.0.9.9", "app")
        for node in self.nodes:
            node.start(self._broker)

    def __enter__(self) -> BrokerGroupWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def run(self, scenario: Callable[[BrokerGroupWorld], Coroutine[Any, Any, None]]) -> None:
        self.cluster.run(scenario(self), until_ms=3_600_000)

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

    async def _broker(self, node: SimNode) -> None:
        assert node.files is not None
        broker = Broker(
            BrokerConfig(**{**SETTINGS, "d_leger_self_id": node.name, **self.settings}),
            clock=node.clock,
            network=node.network,
            files=node.files,
            rng=random.Random(node.rng.random()),
            host_ip=node.address,
        )
        async with broker:
            self.brokers[node.name] = broker, node.starts
            await broker.serve()

    def is_up(self, node: SimNode) -> bool:
        return node.is_running and self.brokers.get(node.name, (None, -1))[1] == node.starts

    def parts(self, node: SimNode) -> Parts:
        assert self.is_up(node), f"{node.name} is down"
        parts = self.brokers[node.name][0].parts
        assert parts is not None
        return parts

    def store(self, node: SimNode) -> MessageStore:
        return self.parts(node).store

    def leader(self) -> SimNode | None:
        """Who takes writes now; there is never more than one."""
        leading = [
            node
            for node in self.nodes
            if self.is_up(node)
            and not node.is_paused
            and (raft := self.parts(node).raft) is not None
            and raft.is_serving
        ]
        assert len(leading) <= 1, f"two leaders: {leading}"
        return leading[0] if leading else None

    async def wait_leader(self, within_ms: int = 20_000) -> SimNode:
        await eventually(lambda: self.leader() is not None, within_ms=within_ms, what="a leader")
        leader = self.leader()
        assert leader is not None
        return leader

    async def wait_level(self, within_ms: int = 60_000) -> None:
        """Until all members are up, and have applied the same."""

        def is_level() -> bool:
            if not all(self.is_up(node) for node in self.nodes) or self.leader() is None:
                return False
            leader = self.leader()
            assert leader is not None
            end = self.store(leader).log.appended
            return all(
                self.store(node).dispatcher.position == end == self.store(node).agreed
                for node in self.nodes
            )

        await eventually(is_level, within_ms=within_ms, what="all members are level")

    async def wait_readmitted(self, node: SimNode) -> None:
        """Until a member that lost its disk has nearly all of the log, and may vote again."""

        def is_back() -> bool:
            leader = self.leader()
            if leader is None or not self.is_up(node):
                return False
            raft = self.parts(node).raft
            assert raft is not None
            lag = self.store(leader).log.appended - self.store(node).log.appended
            return raft.group.figures()["raftMayVote"] == "true" and lag < 4_096

        await eventually(is_back, within_ms=60_000, what=f"{node.name} is readmitted")

    def lose_disk(self, node: SimNode) -> None:
        """Give a machine that is down a new, empty disk."""
        assert not node.is_running
        node._files = new_disk()

    # Clients.

    @contextlib.asynccontextmanager
    async def channels(self, name: str) -> AsyncIterator[Channels]:
        async with Channels(self.app, self.clock, self.cluster.rng(name)) as channels:
            yield channels

    async def master(self, channels: Channels) -> RemoteBroker | None:
        """The leader, as the name server has it."""
        server = RemoteNameServer(channels, NAME_SERVER)
        try:
            route = await server.get_route("TBW102", timeout_ms=1_000)
        except (TransportError, BrokerError):
            return None
        address = route.brokers[0].master_address
        return None if address is None else RemoteBroker(channels, address)

    async def with_master(
        self, channels: Channels, ask: Callable[..., Awaitable[Any]], *arguments: Any, **rest: Any
    ) -> tuple[bool, Any]:
        """Ask the leader something; whether it was answered, and what."""
        broker = await self.master(channels)
        if broker is None:
            return False, None
        try:
            return True, await ask(broker, *arguments, **rest)
        except (TransportError, BrokerError):
            return False, None

    async def send_for_ever(self, name: str) -> None:
        rng = self.cluster.rng(name)
        async with self.channels(name) as channels:
            while True:
                await self.clock.sleep_ms(rng.randrange(5, 60))
                number, self.sent = self.sent, self.sent + 1
                body = f"{number:06d}".encode() + rng.randbytes(rng.randrange(10, 400))
                header = SendMessageRequestV2(
                    producer_group="P",
                    topic=TOPIC,
                    default_topic="TBW102",
                    default_topic_queue_nums=QUEUES,
                    queue_id=number % QUEUES,
                    sys_flag=0,
                    born_timestamp=1,
                    flag=0,
                    properties="",
                    reconsume_times=0,
                    unit_mode=False,
                    batch=False,
                )
                ok, answer = await self.with_master(
                    channels, RemoteBroker.send, header, body, timeout_ms=2_000
                )
                if ok and answer.status is SendStatus.SEND_OK:
                    self.acked[body] = answer.queue_id, answer.queue_offset
                    now_ms = self.clock.monotonic_ms()
                    if self._last_ok_ms and now_ms - self._last_ok_ms > 1_000:
                        self.outages.append(now_ms - self._last_ok_ms)
                    self._last_ok_ms = now_ms

    async def commit_for_ever(self) -> None:
        """Commit what was acknowledged, and ask how far the group is."""
        rng = self.cluster.rng("commits")
        queue = MessageQueue(TOPIC, "group-a", 0)
        async with self.channels("commits") as channels:
            while True:
                await self.clock.sleep_ms(rng.randrange(20, 150))
                before = self.told
                ok, offset = await self.with_master(
                    channels, RemoteBroker.query_consumer_offset, "g", queue, timeout_ms=2_000
                )
                if ok and offset is not None:
                    assert offset >= before, f"told {before}, and {offset} later"
                    self.told = max(self.told, offset)
                end = max((o + 1 for q, o in self.acked.values() if q == 0), default=0)
                if end <= self.told:
                    continue
                target = rng.randint(self.told, end)
                oneway = rng.random() < 0.5
                ok, _ = await self.with_master(
                    channels,
                    RemoteBroker.update_consumer_offset,
                    "g",
                    queue,
                    target,
                    oneway=oneway,
                    timeout_ms=2_000,
                )
                if ok and not oneway:
                    self.told = max(self.told, target)

    async def make_topics_for_ever(self) -> None:
        """Make topics, and delete some of them again."""
        number = 0
        rng = self.cluster.rng("topics")
        async with self.channels("topics") as channels:
            while True:
                await self.clock.sleep_ms(700)
                number += 1
                if number % 4 == 0 and self.made:
                    name = rng.choice(sorted(self.made))
                    self.made.discard(name)  # From here on nobody knows, until it is answered.
                    ok, _ = await self.with_master(channels, RemoteBroker.delete_topic, name)
                    if ok:
                        self.deleted.add(name)
                    continue
                name = f"Made-{number}"
                topic = TopicConfig(name, 1 + number % 5, 1 + number % 5)
                ok, _ = await self.with_master(
                    channels, RemoteBroker.put_topic, topic, timeout_ms=3_000
                )
                if ok:
                    self.made.add(name)

    async def lock_for_ever(self, client_id: str) -> None:
        """Own a queue for a while, and let it go by word or by silence."""
        rng = self.cluster.rng(client_id)
        queue = MessageQueue(TOPIC, "group-a", 1)
        async with self.channels(client_id) as channels:
            while True:
                await self.clock.sleep_ms(rng.randrange(100, 400))
                if rng.random() < 0.05:
                    self._owned.pop(client_id, None)
                    await self.with_master(
                        channels, RemoteBroker.unlock_queues, client_id, "locked", (queue,)
                    )
                    await self.clock.sleep_ms(rng.randrange(500, 2_000))
                    continue
                if rng.random() < 0.03:
                    await self.clock.sleep_ms(LEASE_MS + rng.randrange(2_000))
                asked_ms = self.clock.monotonic_ms()
                ok, locked = await self.with_master(
                    channels,
                    RemoteBroker.lock_queues,
                    client_id,
                    "locked",
                    (queue,),
                    timeout_ms=1_000,
                )
                if not ok or not locked:
                    continue
                now_ms = self.clock.monotonic_ms()
                self._owned[client_id] = now_ms, asked_ms + LEASE_MS
                for other, (_, until_ms) in self._owned.items():
                    if other != client_id:
                        assert until_ms <= now_ms, f"{client_id} and {other} own {queue}"
                        self.handovers += 1

    @contextlib.asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        tasks = self._traffic = [
            asyncio.get_running_loop().create_task(work)
            for work in (
                self.send_for_ever("sender-1"),
                self.send_for_ever("sender-2"),
                self.commit_for_ever(),
                self.make_topics_for_ever(),
                self.lock_for_ever("one"),
                self.lock_for_ever("two"),
            )
        ]
        try:
            yield
            self.look()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # The judge.

    def look(self) -> None:
        """Raise what a client has found to be wrong so far."""
        for task in self._traffic:
            if task.done():
                task.result()

    def held(self, store: MessageStore) -> dict[bytes, tuple[int, int]]:
        found: dict[bytes, tuple[int, int]] = {}
        for queue_id in range(QUEUES):
            offset = store.min_offset(TOPIC, queue_id)
            while (page := store.get(TOPIC, queue_id, offset, 32)).message_count:
                for record in decode_records(page.body):
                    found[record.body] = queue_id, record.queue_offset
                offset = page.next_offset
        return found

    def judge(self) -> None:
        """Look at all members, which are level."""
        for node in self.nodes:
            held = self.held(self.store(node))
            lost = [body[:6] for body, place in self.acked.items() if held.get(body) != place]
            assert not lost, f"{len(lost)} of {len(self.acked)} lost at {node.name}: {lost[:5]}"
        first, *others = (self.parts(node) for node in self.nodes)
        missing = self.made - first.topics.topics.keys()
        assert not missing, f"topics {missing} are gone"
        there = self.deleted & first.topics.topics.keys()
        assert not there, f"topics {there} are there again"
        assert (first.offsets.get(TOPIC, "g", 0) or 0) >= self.told
        for other in others:
            assert other.topics.body() == first.topics.body()
            assert other.groups.body() == first.groups.body()
            assert other.offsets.body() == first.offsets.body()
            assert other.delay.agreed() == first.delay.agreed()
            assert sorted(other.locks.agreed()) == sorted(first.locks.agreed())
            self._compare_logs(first.store, other.store)

    @staticmethod
    def _compare_logs(first: MessageStore, other: MessageStore) -> None:
        at = max(first.log.start, other.log.start)
        end = min(first.log.appended, other.log.appended)
        while at < end:
            size = min(end - at, FILE_BYTES - at % FILE_BYTES)
            ours, theirs = first.log.read(at, size), other.log.read(at, size)
            assert ours is not None
            assert theirs is not None
            assert bytes(ours) == bytes(theirs), f"logs differ between {at} and {at + size}"
            at += size


def new_disk() -> SimFiles:
    return SimFiles(page_bytes=512)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, SkylarkError):
        await task
