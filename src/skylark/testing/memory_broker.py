"""MemoryBroker: the real name server and broker, in memory and virtual time, for users' tests.

    with MemoryBroker() as mq:

        async def scenario() -> None:
            async with mq.connect() as client, client.producer("orders") as producer:
                await producer.send(Message("Orders", b"..."))
            await mq.clock.advance(hours=4, minutes=46)

        mq.run(scenario)

Three machines on one simulated network: `namesrv`, `broker` and `app`, where the test runs. Nothing
waits for real time: when everybody sleeps, the clock jumps to the next who wakes. Between two runs
time stands still. The same seed gives the same run.

What the test does must stay in there: asyncio.sleep and skylark's clients live in virtual time;
threads and real sockets do not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
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
_HOSTS: Final = {NAME_SERVER: "10.0.0.1", BROKER: "10.0.0.2", APP: "10.0.0.3"}
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
    """Switches for what goes wrong; machines are named namesrv, broker and app."""

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


class MemoryBroker:
    """A name server and a broker that a test has for itself; a context manager."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        """Start both and wait until they serve; settings are those of BrokerConfig."""
        self._config = BrokerConfig(
            **{
                **SETTINGS,
                "listen_port": BROKER_PORT,
                "namesrv_addr": f"{_HOSTS[NAME_SERVER]}:{NAME_SERVER_PORT}",
                **settings,
            }
        )
        self._cluster = cluster = SimCluster(seed, link=_WIRE, shuffle=False)
        self.clock = VirtualTime(cluster.loop)
        self._app = cluster.network.host(_HOSTS[APP], APP)
        server, self._node = (
            cluster.add_node(
                name,
                address=_HOSTS[name],
                files=SimFiles(page_bytes=4096, now_ms=self.clock.now_ms),
            )
            for name in (NAME_SERVER, BROKER)
        )
        self.address = f"{server.address}:{NAME_SERVER_PORT}"  # Of the name server.
        self.broker_address = f"{self._node.address}:{self._config.listen_port}"
        self.faults = Faults(cluster.network, cluster.nodes)
        self._broker: Broker | None = None
        self._broker_start = 0  # Which start of the node that broker belongs to.
        self._clients = 0
        try:
            server.start(self._run_name_server)
            self._node.start(self._run_broker)
            self.run(self.wait_ready)
        except BaseException:
            cluster.close()
            raise

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
        """End both servers."""
        self._cluster.close()

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function to its end in virtual time; returns what it returns.

        Raises what it raises, and whatever a server left unhandled.
        """
        return self._cluster.run(main())

    async def wait_ready(self) -> None:
        """Wait until the broker serves, after a restart say."""
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

    # What the broker holds, seen from outside: no consumer is needed, and nothing is committed.

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, by queue and offset."""
        parts = self._parts()
        config = parts.topics.get(topic)
        found: list[StoredMessage] = []
        for queue_id in range(config.read_queue_nums if config is not None else 0):
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
        parts = self._parts()
        config = parts.topics.get(topic)
        return sum(
            parts.store.max_offset(topic, queue_id)
            - (parts.offsets.get(topic, group, queue_id) or 0)
            for queue_id in range(config.read_queue_nums if config is not None else 0)
        )

    @property
    def pending_transactions(self) -> int:
        """How many half messages are neither committed nor rolled back."""
        return len(self._parts().transactions)

    @property
    def is_serving(self) -> bool:
        """Whether the broker is up."""
        # A killed process cannot say that it is gone; its node knows.
        return self._node.is_running and self._broker_start == self._node.starts

    def _parts(self) -> Parts:
        parts = None if self._broker is None else self._broker.parts
        if parts is None or not self.is_serving:
            raise SimulationError("the broker is down; faults.start() starts it")
        return parts

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
            self._config,
            clock=node.clock,
            network=node.network,
            files=node.files,
            rng=random.Random(node.rng.random()),
            host_ip=node.address,
        )
        async with broker:
            self._broker, self._broker_start = broker, node.starts
            await broker.serve()
