"""Name server, brokers and members of a group, each on a machine of its own, from one seed.

The real servers and the real consumer run in virtual time. Every call of a handler is noted with
its begin and end, so that a test can ask who had what when.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig
from skylark.broker.parts import Parts
from skylark.client.config import ClientConfig
from skylark.client.connect import connect
from skylark.client.consumer_config import ConsumerConfig
from skylark.client.facade import Client
from skylark.client.group_member import State
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.client.session import Session
from skylark.model.queue import MessageQueue
from skylark.model.topic import TopicConfig
from skylark.nameserver.app import NameServer
from skylark.nameserver.config import NameServerConfig
from skylark.testing import SimNode
from skylark.testing.cluster import SimCluster
from skylark.testing.files import SimFiles
from skylark.testing.memory_servers import SETTINGS
from skylark.testing.transport import LinkConfig

GROUP, TOPIC = "billing", "Orders"
CALM = LinkConfig(delay_ms=0.2, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)


@dataclass
class Handling:
    """One call of a handler."""

    member: str
    queue: MessageQueue
    offset: int
    body: bytes
    tries: int
    begun_ms: int
    ended_ms: int | None = None  # None while it runs, and for ever if its member died or it failed.
    failed_ms: int | None = None
    topic: str = TOPIC


Decide = Callable[[ReceivedMessage, "Member"], Coroutine[Any, Any, Any]]


@dataclass
class Member:
    """A consumer on its machine."""

    world: GroupWorld
    node: SimNode
    topics: dict[str, Any]
    settings: dict[str, Any]
    decide: Decide | None = None
    consumer: PushConsumer | None = None
    session: Session | None = None

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_running(self) -> bool:
        one = self.consumer
        return self.node.is_running and one is not None and one.state is State.RUNNING

    def queues(self, topic: str = TOPIC) -> set[MessageQueue]:
        """What it holds now."""
        if not self.is_running:
            return set()
        assert self.consumer is not None
        return {queue for queue in self.consumer.assignment if queue.topic == topic}

    async def main(self, node: SimNode) -> None:
        world = self.world
        self.session = Session(
            ClientConfig(
                namesrv_addr=world.address,
                client_ip=node.address,
                instance_name=f"{node.name}-{node.starts}",
            ),
            network=node.network,
            clock=node.clock,
            rng=node.rng,
            env={},
        )
        async with self.session as session:
            self.consumer = PushConsumer(
                session,
                GROUP,
                self.topics,
                self._handle,
                config=ConsumerConfig(**self.settings),
                consume_from="first",
            )
            async with self.consumer:
                await asyncio.Event().wait()

    async def _handle(self, message: ReceivedMessage) -> Any:
        world = self.world
        call = Handling(
            self.name,
            message.queue,
            message.queue_offset,
            message.body,
            message.reconsume_times,
            world.now_ms,
            topic=message.topic,
        )
        world.handled.append(call)
        try:
            said = await self.decide(message, self) if self.decide is not None else None
        except Exception:
            call.failed_ms = world.now_ms
            raise
        if self.node.is_running:  # Not a word of the dead.
            call.ended_ms = world.now_ms
        return said

    async def stop(self) -> None:
        """As SIGTERM does."""
        await self.node.stop()

    def kill(self, *, reset: bool = True) -> None:
        """As kill -9 does; without reset as a power cut, of which nobody hears."""
        self.node.crash(reset=reset)


class GroupWorld:
    """A cluster from one seed; a context manager."""

    def __init__(
        self,
        seed: int = 1,
        *,
        brokers: int = 1,
        queues: int = 8,
        link: LinkConfig = CALM,
        shuffle: bool = False,
        **settings: Any,
    ) -> None:
        self.cluster = SimCluster(seed, link=link, shuffle=shuffle)
        self.rng = self.cluster.rng("scenario")
        self.handled: list[Handling] = []
        self.members: list[Member] = []
        self._queues = queues
        self._settings = settings
        self._stores: dict[str, int] = {}
        self._running: dict[str, tuple[int, Broker]] = {}
        self._clients = 0
        self._host = self.cluster.network.host("10.1.0.1", "scenario")
        server = self.cluster.add_node(
            "namesrv", self._name_server, address="10.0.0.1", files=SimFiles(page_bytes=4096)
        )
        self.address = f"{server.address}:9876"
        self.broker_names = [f"broker-{letter}" for letter in "abcdef"[:brokers]]
        for number, name in enumerate(self.broker_names):
            self.cluster.add_node(
                name,
                self._broker,
                address=f"10.0.0.{number + 2}",
                files=SimFiles(page_bytes=4096),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.close()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]], *, seconds: int = 0) -> None:
        """Start the servers, make the topic, and run a scenario."""

        async def whole() -> None:
            self.start("namesrv")
            await self.sleep(0.1)
            for name in self.broker_names:
                self.start(name)
            for name in self.broker_names:
                await self.serving(name)
                self.parts(name).topics.put(TopicConfig(TOPIC, self._queues, self._queues))
            await self.sleep(0.1)
            await scenario()

        limit_ms = seconds * 1000 or 3_600_000
        self.cluster.run(whole(), until_ms=limit_ms)

    # Time.

    @property
    def now_ms(self) -> int:
        return self.cluster.clock.monotonic_ms()

    async def sleep(self, seconds: float) -> None:
        await self.cluster.clock.sleep_ms(int(seconds * 1000))

    async def until(
        self, condition: Callable[[], object], *, seconds: float = 60, step: float = 0.01
    ) -> int:
        """Wait for something; how many milliseconds that took."""
        begun_ms = self.now_ms
        while not condition():
            waited_ms = self.now_ms - begun_ms
            assert waited_ms < seconds * 1000, f"not within {seconds} s: {self.describe()}"
            await self.sleep(step)
        return self.now_ms - begun_ms

    def describe(self) -> str:
        """Where everybody stands, for a failure."""
        held = {one.name: sorted(q.queue_id for q in one.queues()) for one in self.members}
        return f"t={self.now_ms} handled={len(self.handled)} held={held}"

    # Servers.

    def start(self, name: str, *, empty: bool = False) -> None:
        """Start a server again, on its files or on none."""
        if empty:
            self._stores[name] = self._stores.get(name, 0) + 1
        self.cluster.nodes[name].start()

    async def stop(self, name: str) -> None:
        await self.cluster.nodes[name].stop()

    def kill(self, name: str, *, reset: bool = True) -> None:
        self.cluster.nodes[name].crash(reset=reset)

    def is_serving(self, name: str) -> bool:
        node = self.cluster.nodes[name]
        return node.is_running and self._running.get(name, (0, None))[0] == node.starts

    async def serving(self, name: str) -> None:
        await self.until(lambda: self.is_serving(name), seconds=60)

    def parts(self, name: str = "broker-a") -> Parts:
        """What a running broker is made of."""
        parts = self._running[name][1].parts
        assert parts is not None
        return parts

    def committed(self, queue_id: int, name: str = "broker-a", topic: str = TOPIC) -> int:
        return int(self.parts(name).offsets.get(topic, GROUP, queue_id) or 0)

    async def _name_server(self, node: SimNode) -> None:
        assert node.files is not None
        server = NameServer(
            NameServerConfig(
                listen_host=node.address,
                listen_port=9876,
                kv_config_path="/namesrv/kvConfig.json",
                config_store_path="/namesrv/namesrv.properties",
                order_message_enable=True,
            ),
            clock=node.clock,
            network=node.network,
            files=node.files,
        )
        async with server:
            await server.serve()

    async def _broker(self, node: SimNode) -> None:
        assert node.files is not None
        generation = self._stores.get(node.name, 0)
        broker = Broker(
            BrokerConfig(
                **{
                    **SETTINGS,
                    "broker_name": node.name,
                    "listen_port": 10911,
                    "namesrv_addr": self.address,
                    "store_path_root_dir": f"/store-{generation}",
                    **self._settings,
                }
            ),
            clock=node.clock,
            network=node.network,
            files=node.files,
            rng=random.Random(node.rng.random()),
            host_ip=node.address,
        )
        async with broker:
            self._running[node.name] = (node.starts, broker)
            await broker.serve()

    # Clients.

    def connect(self, **settings: Any) -> Client:
        """A client of the scenario's own, on a machine that no fault touches."""
        self._clients += 1
        return connect(
            self.address,
            network=self._host,
            clock=self.cluster.clock,
            rng=self.cluster.rng(f"client/{self._clients}"),
            **{
                "client_ip": self._host.address,
                "instance_name": f"scenario-{self._clients}",
                **settings,
            },
        )

    def join(
        self,
        *,
        topics: dict[str, Any] | None = None,
        decide: Decide | None = None,
        **settings: Any,
    ) -> Member:
        """Start a member on a machine of its own."""
        number = len(self.members) + 1
        node = self.cluster.add_node(f"m-{number}", address=f"10.2.0.{number}")
        member = Member(self, node, topics or {TOPIC: "*"}, settings, decide)
        self.members.append(member)
        node.start(member.main)
        return member

    # Questions.

    def owners(self) -> Counter[MessageQueue]:
        """How many live members hold each queue of the topic."""
        return Counter(queue for member in self.members for queue in member.queues())

    def is_shared(self) -> bool:
        """Whether every queue has exactly one owner, and everybody has come who will."""
        if any(one.node.is_running and not one.is_running for one in self.members):
            return False
        found = self.owners()
        return len(found) == self._queues * len(self.broker_names) and set(found.values()) == {1}

    def bodies(self) -> set[bytes]:
        """All that was handled to its end at least once."""
        return {call.body for call in self.handled if call.ended_ms is not None}
