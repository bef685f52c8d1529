"""SimulatedBroker: a broker as name servers see one. It registers, and stores nothing.

Registration is that of a real broker: with all name servers at once, at the start, at every change
of a topic and every 30 seconds, over one long connection to each; a name server that is silent
holds nobody up. Leaving the block unregisters.

An eager broker also registers again as soon as a connection is lost or a registration has failed,
as ours do; one that is not waits for its next heartbeat, as RocketMQ's do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ..clock import Clock
from ..errors import BrokerError, TransportError
from ..model.topic import TopicConfig
from ..model.version import DataVersion
from ..net.channel import Channels
from ..net.network import Network
from ..net.switchboard import Switchboard
from ..net.tasks import TaskScope
from ..protocol.bodies import RegisterBrokerBody, TopicConfigTable
from ..protocol.exchange import Peer
from ..remote import REGISTER_TIMEOUT_MS, RemoteNameServer

PERIOD_MS_MIN, PERIOD_MS_MAX = 10_000, 60_000
RETRY_MS = 2_000


class SimulatedBroker:
    """Keeps name servers informed, from entering the block until leaving it."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        network: Network,
        clock: Clock,
        rng: random.Random,
        address: str,
        cluster: str = "DefaultCluster",
        name: str = "broker-a",
        broker_id: int = 0,
        ha_address: str | None = None,
        topics: Iterable[TopicConfig] = (),
        period_ms: int = 30_000,
        force_register: bool = True,
        compressed: bool = False,
        eager: bool = True,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.broker_id = broker_id
        self.address = address
        self.ha_address = ha_address
        self.topics = {topic.name: topic for topic in topics}
        self.data_version = DataVersion(timestamp=clock.now_ms())
        self.period_ms = max(PERIOD_MS_MIN, min(period_ms, PERIOD_MS_MAX))
        self.force_register = force_register
        self.compressed = compressed
        self._body = self._encode()
        # Name server → when the last registration was sent that it has taken.
        self.confirmed_ms: dict[str, int] = {}
        self.master_address: str | None = None
        self._clock = clock
        self._rng = rng
        self._eager = eager
        self._lost = {address: asyncio.Event() for address in name_servers}
        self._channels = Channels(
            network, clock, rng, switchboard=Switchboard({}, on_disconnect=self._connection_lost)
        )
        self._servers = [RemoteNameServer(self._channels, address) for address in name_servers]
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self._channels)
            parts.push_async_exit(self._leave)
            scope = await parts.enter_async_context(TaskScope())
            due_ms = self._clock.monotonic_ms() + self.period_ms
            await self.register()
            for server in self._servers:
                parts.callback(scope.spawn(self._keep(server, due_ms)).cancel)
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._parts.__aexit__(kind, error, traceback)

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await asyncio.gather(*(self._unregister(server) for server in self._servers))

    async def register(self) -> None:
        """Tell all name servers at once; those that cannot be reached hear it next time."""
        await asyncio.gather(*(self._register(server) for server in self._servers))

    async def put_topic(self, topic: TopicConfig) -> None:
        """Create or change a topic, and make it known."""
        self.topics[topic.name] = topic
        self.data_version = self.data_version.next(self._clock.now_ms())
        self._body = self._encode()
        await self.register()

    async def _keep(self, server: RemoteNameServer, due_ms: int) -> None:
        """Register with one name server, heartbeat by heartbeat."""
        lost = self._lost[server.address]
        while True:
            try:
                async with asyncio.timeout(max(0, due_ms - self._clock.monotonic_ms()) / 1000):
                    await lost.wait()
            except TimeoutError:
                pass  # The time of a heartbeat.
            else:
                # All brokers lose a name server in the same moment, and must not all come at once.
                await self._clock.sleep_ms(self._rng.randint(0, RETRY_MS // 2))
            lost.clear()
            due_ms = self._clock.monotonic_ms() + self.period_ms
            if not await self._register(server) and self._eager:
                due_ms = self._clock.monotonic_ms() + RETRY_MS

    def _connection_lost(self, peer: Peer) -> None:
        if self._eager and peer.address in self._lost:
            self._lost[peer.address].set()

    async def _register(self, server: RemoteNameServer) -> bool:
        sent_ms = self._clock.monotonic_ms()
        try:
            if not self.force_register and not await self._is_due(server):
                self.confirmed_ms[server.address] = sent_ms
                return True
            answer, _ = await server.register_broker(
                cluster=self.cluster,
                broker_name=self.name,
                broker_id=self.broker_id,
                address=self.address,
                ha_address=self.ha_address,
                body=self._body,
                compressed=self.compressed,
                timeout_ms=REGISTER_TIMEOUT_MS,
            )
        except (TransportError, BrokerError):
            return False
        self.confirmed_ms[server.address] = sent_ms
        self.master_address = answer.master_addr or self.master_address
        return True

    def _encode(self) -> bytes:
        body = RegisterBrokerBody(TopicConfigTable(dict(self.topics), self.data_version))
        return body.to_compressed() if self.compressed else body.to_json()

    async def _is_due(self, server: RemoteNameServer) -> bool:
        changed, _ = await server.query_data_version(
            self.data_version,
            cluster=self.cluster,
            broker_name=self.name,
            broker_id=self.broker_id,
            address=self.address,
        )
        return changed

    async def _unregister(self, server: RemoteNameServer) -> None:
        try:
            await server.unregister_broker(
                cluster=self.cluster,
                broker_name=self.name,
                broker_id=self.broker_id,
                address=self.address,
            )
        except (TransportError, BrokerError):
            return  # It will find out by itself.
