"""MemoryServers: a name server and brokers in memory and virtual time; what MemoryBroker stands on.

Every server has a machine on one simulated network, and so has `app`, where the test runs. Nothing
waits for real time: when everybody sleeps, the clock jumps to the next who wakes. Between two runs
time stands still. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..broker.app import Broker
from ..broker.config import BrokerConfig
from ..broker.parts import Parts
from ..client.connect import connect
from ..client.facade import Client
from ..model.message import StoredMessage
from ..model.topic import dlq_topic
from ..nameserver.app import NameServer
from ..nameserver.config import NameServerConfig
from ..protocol.record import decode_records
from .clock import SimClock
from .cluster import SimCluster, SimNode
from .files import SimFiles
from .network import Partition, SimNetwork
from .timeline import SimulationError
from .transport import LinkConfig

T = TypeVar("T")

NAME_SERVER, BROKER, APP = "namesrv", "broker", "app"
_NAME_SERVER_HOST, _APP_HOST = "10.0.0.1", "10.0.0.3"
NAME_SERVER_PORT, BROKER_PORT = 9876, 10911

# Small files are cheap to make in memory; the disk of a test is never full.
SETTINGS: Final = {
    "broker_name": "broker-a",
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 1_000,
    "mapped_file_size_timer_log": 32 << 10,
    "max_hash_slot_num": 500,
    "max_index_num": 5_000,
    "max_message_size": 256 << 10,
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    # What looks around twice a second in vain costs most of the time that a jump of hours takes.
    # Flushes happen at sends instead, so that even a power cut loses nothing acknowledged.
    "flush_disk_type": "SYNC_FLUSH",
    "flush_interval_consume_queue": 60_000,
}
_WIRE: Final = LinkConfig(delay_ms=0.1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)


class VirtualTime(SimClock):
    """The test's clock."""

    async def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> None:
        """Let virtual time pass; everybody does meanwhile what they would do in that time."""
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
        if span < timedelta(0):
            raise ValueError("time does not go back; jump_ms() moves the wall clock alone")
        await asyncio.sleep(span.total_seconds())

    async def wait_for(
        self, condition: Callable[[], object], *, limit: timedelta = timedelta(hours=24)
    ) -> None:
        """Let time pass until something is so; raises TimeoutError after the limit."""
        end_ms = self.monotonic_ms() + limit / timedelta(milliseconds=1)
        step_ms = 1
        while not condition():
            if self.monotonic_ms() >= end_ms:
                raise TimeoutError(f"it was not so within {limit} of virtual time")
            await self.sleep_ms(step_ms)
            # Fine steps where an answer is near, coarse ones where it takes hours.
            step_ms = min(step_ms * 2, 1_000)


class Faults:
    """Switches for what goes wrong; machines are called namesrv, app, and as the brokers are."""

    def __init__(self, network: SimNetwork, nodes: dict[str, SimNode]) -> None:
        self._network = network
        self._nodes = nodes

    def kill(self, name: str = BROKER) -> None:
        """End a server as kill -9 does: peers see resets, its files stay as they are."""
        self._node(name).crash(reset=True)

    def cut_power(self, name: str = BROKER) -> None:
        """End a server with its machine: peers see nothing, what was not synced may be lost."""
        self._node(name).crash()

    async def stop(self, name: str = BROKER) -> None:
        """End a server as SIGTERM does."""
        await self._node(name).stop()

    def start(self, name: str = BROKER) -> None:
        """Start a server that was ended; it serves after some milliseconds of virtual time."""
        self._node(name).start()

    async def restart(self, name: str = BROKER) -> None:
        """Stop a server if it runs, and start it again."""
        await self._node(name).restart()

    def pause(self, name: str = BROKER) -> None:
        """Stop a server in its tracks, as SIGSTOP or a long collection does."""
        self._node(name).pause()

    def resume(self, name: str = BROKER) -> None:
        """Let a paused server go on."""
        self._node(name).resume()

    def partition(self, left: str = APP, right: str = BROKER) -> Partition:
        """Let nothing pass between two machines, until `heal()` of what is returned, or of ours."""
        return self._network.partition(left, right)

    def slow(self, extra_ms: float, name: str = BROKER) -> None:
        """Let everything to and from a machine take longer; 0 ends it."""
        self._network.slow(name, extra_ms)

    def heal(self) -> None:
        """End all partitions and all slowness."""
        self._network.heal()

    def _node(self, name: str) -> SimNode:
        node = self._nodes.get(name)
        if node is None:
            raise ValueError(f"no server {name!r}; there are {', '.join(self._nodes)}")
        return node


class MemoryServers:
    """A name server and brokers that a test has for itself; a context manager."""

    def __init__(self, brokers: Mapping[str, str], seed: int, settings: Mapping[str, Any]) -> None:
        """Start all and wait until they serve; brokers are broker names by machine."""
        self._cluster = cluster = SimCluster(seed, link=_WIRE, shuffle=False)
        self.clock = VirtualTime(cluster.loop)
        self._app = cluster.network.host(_APP_HOST, APP)
        self.address = f"{_NAME_SERVER_HOST}:{NAME_SERVER_PORT}"  # Of the name server.
        server = self._add(NAME_SERVER, _NAME_SERVER_HOST)
        self._configs: dict[str, BrokerConfig] = {}
        self._running: dict[str, tuple[int, Broker]] = {}  # Of a machine: which start, and what.
        self.faults = Faults(cluster.network, cluster.nodes)
        self._clients = 0
        try:
            server.start(self._run_name_server)
            for number, (machine, name) in enumerate(brokers.items()):
                node = self._add(machine, f"10.0.0.{2 if number == 0 else number + 3}")
                self._configs[machine] = BrokerConfig(
                    **{
                        **SETTINGS,
                        "broker_name": name,
                        "listen_port": BROKER_PORT,
                        "namesrv_addr": self.address,
                        **settings,
                    }
                )
                node.start(self._run_broker)
            self.run(self.wait_ready)
        except BaseException:
            cluster.close()
            raise

    def _add(self, name: str, address: str) -> SimNode:
        files = SimFiles(page_bytes=4096, now_ms=self.clock.now_ms)
        return self._cluster.add_node(name, address=address, files=files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all servers."""
        self._cluster.close()

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function to its end in virtual time; returns what it returns.

        Raises what it raises, and whatever a server left unhandled.
        """
        return self._cluster.run(main())

    async def wait_ready(self) -> None:
        """Wait until every broker serves, after a restart say."""
        await self.clock.wait_for(lambda: self.is_serving, limit=timedelta(minutes=10))

    def connect(self, **settings: Any) -> Client:
        """A client, as skylark.connect gives it: `async with mq.connect() as client`."""
        self._clients += 1
        number = self._clients
        return connect(
            self.address,
            network=self._app,
            clock=self.clock,
            rng=self._cluster.rng(f"client/{number}"),
            **{"client_ip": self._app.address, "instance_name": f"app-{number}", **settings},
        )

    # What the brokers hold, seen from outside: no consumer is needed, and nothing is committed.

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, by broker, queue and offset."""
        found: list[StoredMessage] = []
        for parts, queue_id in self._queues(topic):
            offset = parts.store.min_offset(topic, queue_id)
            while (page := parts.store.get(topic, queue_id, offset, 32)).message_count:
                found += decode_records(page.body)
                offset = page.next_offset
        return found

    def dead_letters(self, group: str) -> list[StoredMessage]:
        """What a group has given up on."""
        return self.messages(dlq_topic(group))

    def lag(self, group: str, topic: str) -> int:
        """How many messages of a topic a group has not committed yet."""
        return sum(
            parts.store.max_offset(topic, queue_id)
            - (parts.offsets.get(topic, group, queue_id) or 0)
            for parts, queue_id in self._queues(topic)
        )

    @property
    def pending_transactions(self) -> int:
        """How many half messages are neither committed nor rolled back."""
        return sum(len(parts.transactions) for parts in self._parts())

    @property
    def is_serving(self) -> bool:
        """Whether every broker is up."""
        return all(map(self._is_serving, self._configs))

    def _is_serving(self, machine: str) -> bool:
        # A killed process cannot say that it is gone; its node knows.
        node = self._cluster.nodes[machine]
        start, _ = self._running.get(machine, (None, None))
        return node.is_running and start == node.starts

    def _parts(self) -> Iterator[Parts]:
        for machine in self._configs:
            parts = self._running[machine][1].parts if self._is_serving(machine) else None
            if parts is None:
                raise SimulationError(f"the broker is down; faults.start({machine!r}) starts it")
            yield parts

    def _queues(self, topic: str) -> Iterator[tuple[Parts, int]]:
        for parts in self._parts():
            config = parts.topics.get(topic)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                yield parts, queue_id

    # The servers.

    async def _run_name_server(self, node: SimNode) -> None:
        assert node.files is not None
        server = NameServer(
            NameServerConfig(
                listen_host=node.address,
                listen_port=NAME_SERVER_PORT,
                kv_config_path="/namesrv/kvConfig.json",
                config_store_path="/namesrv/namesrv.properties",
            ),
            clock=node.clock,
            network=node.network,
            files=node.files,
        )
        async with server:
            await server.serve()

    async def _run_broker(self, node: SimNode) -> None:
        assert node.files is not None
        broker = Broker(
            self._configs[node.name],
            clock=node.clock,
            network=node.network,
            files=node.files,
            rng=random.Random(node.rng.random()),
            host_ip=node.address,
        )
        async with broker:
            self._running[node.name] = (node.starts, broker)
            await broker.serve()
