"""Session: what all producers and consumers of one client share.

One connection to each broker and one to a name server, the routes of the topics in use, heartbeats,
and the requests that brokers send to us. Producers and consumers join as members:

    async with Session(config) as session:
        session.join_producer(member)
        ...
        await session.leave_producer(member)

    every                what
    30 s                 routes of all topics in use, asked again (RouteCache)
    30 s, and at once    heartbeats: to masters for producers, to all brokers if there are
    after a change       consumers; a broker that comes back hears from us within 2 s

A group has one consumer in a session, since a client id is one member of it; a second member needs
a session of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from ..clock import Clock, SystemClock
from ..errors import BrokerError, ClientClosed, ClientError, NoRoute, TransportError
from ..model.addresses import AddressList
from ..model.queue import MessageQueue
from ..model.route import MASTER_ID, BrokerData, TopicRoute
from ..net import AsyncioNetwork, Network, Switchboard
from ..net.tasks import TaskScope
from ..protocol.command import Command
from ..protocol.exchange import Peer
from ..protocol.message_id import UniqueIdGenerator
from ..remote import NameServers, RemoteBroker
from ..remote.addresses import AddressBook, HttpFetch
from . import namespaces
from .broker_requests import BrokerRequests
from .channels import ClientChannels
from .client_identity import ClientIdentity
from .config import ClientConfig
from .heartbeats import Heartbeats
from .hooks import RpcHook
from .members import ConsumerMember as ConsumerMember
from .members import Members
from .members import ProducerMember as ProducerMember
from .request_reply import ReplyTable
from .routes import TOPICS_MAX, RouteCache

logger = logging.getLogger(__name__)

ROUTE_DOUBT_MS: Final = 1_000  # A route that failed is asked for again at most this often.
VIP_PORT_STEP: Final = 2

FindIp = Callable[[AddressList], Awaitable[str]]
"""Finds our own address, as the name servers of a list would see it."""


class Session:
    """Connections, routes, heartbeats and members; an async context manager."""

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        env: Mapping[str, str] | None = None,
        pid: int | None = None,
        hooks: Iterable[RpcHook] = (),
        find_ip: FindIp | None = None,
    ) -> None:
        """Look for name server addresses; raises ConfigError where they are malformed.

        Where the config has no client_ip, find_ip is asked for one when the session is opened.
        """
        self.config = config = config or ClientConfig()
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()
        self.network: Network = network or AsyncioNetwork()
        self._book = AddressBook(
            clock=self.clock,
            fetch=HttpFetch(self.network),
            code=config.namesrv_addr,
            properties=config.properties,
            env=env,
            unit_name=config.unit_name,
            on_change=self._addresses_changed,
        )
        self.namespace = config.namespace or self._book.current.namespace
        self._find_ip = find_ip
        self._identity = ClientIdentity(config, self.clock, self.rng, pid)
        self._members = Members()
        self.replies = ReplyTable(self.clock, self.rng)
        self.channels = ClientChannels(
            self.network,
            self.clock,
            self.rng,
            switchboard=Switchboard(
                BrokerRequests(self._members, self.replies).handlers(),
                on_connect=self._connected,
                on_disconnect=self._disconnected,
            ),
            tls=config.tls,
            access_key=config.access_key,
            secret_key=config.secret_key,
            security_token=config.security_token,
            hooks=hooks,
        )
        self.name_servers = NameServers(
            self.channels, map(str, self._book.current.addresses), self.rng
        )
        self.routes = RouteCache(
            self.name_servers,
            self.clock,
            refresh_interval_ms=config.poll_name_server_interval_ms,
            on_change=self._route_changed,
        )
        self._brokers: dict[str, BrokerData] = {}  # By name, out of all routes.
        self._doubted_ms: dict[str, int] = {}
        self._heartbeats = Heartbeats(
            config,
            self.clock,
            self._identity,
            self._members,
            brokers=lambda: self._brokers.values(),
            remote=self.broker,
        )
        self._tasks = TaskScope()
        self._parts = AsyncExitStack()
        self._is_open = False

    # Opening and closing.

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self.channels)
            if not self._book.current:
                await self._book.refresh()
            if self.config.client_ip is None and self._find_ip is not None:
                self._identity.set_ip(await self._find_ip(self._book.current))
            parts.push_async_exit(self._leave)
            self._tasks = await parts.enter_async_context(TaskScope())
            await parts.enter_async_context(self.routes.running())
            for background in (self._book.watch(), self._heartbeats.run()):
                parts.callback(self._tasks.spawn(background).cancel)
            self._parts = parts.pop_all()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A consumer that was not closed would go on for ever, and this would wait for it.
        for member in list(self._members.consumers.values()):
            await member.close()
        self._is_open = False
        await self._parts.__aexit__(kind, error, traceback)

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Members have mostly left by themselves; whoever has not must not linger at the brokers.
        producers, consumers = list(self._members.producers), list(self._members.consumers)
        self._members.producers.clear()
        self._members.consumers.clear()
        await asyncio.gather(
            *(self._unregister(producer_group=group) for group in producers),
            *(self._unregister(consumer_group=group) for group in consumers),
        )

    @property
    def is_open(self) -> bool:
        """Whether it has been entered and not yet left."""
        return self._is_open

    def require_open(self) -> None:
        """Raise ClientClosed unless it is open."""
        if not self._is_open:
            raise ClientClosed(
                "the client is not open", hint="use it inside `async with skylark.connect(...)`"
            )

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a member's background work; it ends at the latest with the session."""
        return self._tasks.spawn(coroutine)

    # Names.

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._identity.client_id

    @property
    def client_ip(self) -> str:
        """The address in that id."""
        return self._identity.client_ip

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        """Ids for messages; to be asked for each time, since a fork changes it."""
        return self._identity.unique_ids

    def wrap(self, name: str) -> str:
        """Return the name of a topic or group as brokers know it."""
        return namespaces.wrap(self.namespace, name)

    def unwrap(self, name: str) -> str:
        """Return the name of a topic or group as the application knows it."""
        return namespaces.unwrap(self.namespace, name)

    # Members.

    def join_producer(self, member: ProducerMember) -> None:
        """Keep a producer's group alive at the brokers, and hand it what they ask."""
        self.require_open()
        self._members.add_producer(member)
        self.want_heartbeat()

    async def leave_producer(self, member: ProducerMember) -> None:
        """A producer closes; the last of its group is unregistered at once."""
        if self._members.remove_producer(member):
            await self._unregister(producer_group=member.group)

    def join_consumer(self, member: ConsumerMember) -> None:
        """Make this session a member of a consumer group."""
        self.require_open()
        if member.group in self._members.consumers:
            raise ClientError(
                f"group {member.group!r} has a consumer in this session already",
                hint="connect once more for a second member of the group",
            )
        self._members.consumers[member.group] = member
        self.want_heartbeat()

    async def leave_consumer(self, member: ConsumerMember) -> None:
        """A consumer closes and is unregistered at once, so that the others take its queues."""
        if self._members.remove_consumer(member):
            await self._unregister(consumer_group=member.group)

    def has_consumer(self, group: str) -> bool:
        """Whether this session is a member of a consumer group."""
        return group in self._members.consumers

    # Brokers.

    def broker(self, address: str) -> RemoteBroker:
        """The calls to a broker at an address."""
        return RemoteBroker(self.channels, address)

    async def broker_of_cluster(self, address: str) -> RemoteBroker:
        """The calls to a broker whose address came from outside, such as with a message id.

        Only brokers that the name servers know are ever dialled for it; raises NoRoute for others.
        """
        if address not in self._addresses():
            info = await self.name_servers.get_cluster_info()
            if not any(address in data.addresses.values() for data in info.brokers.values()):
                raise NoRoute(
                    f"no broker of this cluster is at {address}",
                    hint="check id and namesrv_addr; with a producer's id give the topic too",
                )
        return self.broker(address)

    def broker_data(self, broker_name: str) -> BrokerData | None:
        """What the routes say of a broker name."""
        return self._brokers.get(broker_name)

    def master_address(self, broker_name: str) -> str | None:
        """Where writes to a broker name go; None where no master is known."""
        data = self._brokers.get(broker_name)
        return None if data is None else data.master_address

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Where reads go: the member of that id if there is one, else the master, else any."""
        data = self._brokers.get(broker_name)
        if data is None:
            return None
        return data.addresses.get(broker_id) or data.any_address()

    def broker_version(self, address: str) -> int | None:
        """The version that a broker gave in its last heartbeat answer."""
        return self._heartbeats.versions.get(address)

    def send_address(self, address: str) -> str:
        """Where to send to a broker: its fast port where that is wanted."""
        if not self.config.vip_channel_enabled:
            return address
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) - VIP_PORT_STEP}"

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send any request to a server and return its answer; raises TransportError."""
        return await self.channels.call(address, command, timeout_ms)

    # Routes.

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic (as brokers know it); raises NoRoute or TransportError."""
        try:
            return await self.routes.get(topic)
        except BrokerError as error:
            raise NoRoute(
                f"no broker serves topic {topic!r} ({error.remark or error.code})",
                hint="create the topic, or check the name and namesrv_addr",
                code=error.code,
            ) from error

    async def read_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that consumers may read; raises NoRoute or TransportError."""
        route = await self.route(topic)
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queues
            if data.is_readable
            for queue_id in range(data.read_queue_nums)
        ]

    def doubt_route(self, topic: str) -> None:
        """Something is wrong with a topic's route: ask for it again soon, not at the next round."""
        now_ms = self.clock.monotonic_ms()
        doubted_ms = self._doubted_ms.get(topic)
        if not self._is_open or (doubted_ms is not None and now_ms - doubted_ms < ROUTE_DOUBT_MS):
            return
        if len(self._doubted_ms) >= TOPICS_MAX:
            self._doubted_ms.clear()
        self._doubted_ms[topic] = now_ms
        self.spawn(self._refresh_route(topic))

    async def _refresh_route(self, topic: str) -> None:
        await self.routes.refresh(topic)

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        before = self._addresses()
        self._brokers.clear()
        # Routes may differ in what they say of a broker: one has failed over since. The last is
        # right.
        for known in self.routes.by_age():
            self._brokers.update((data.broker_name, data) for data in known.brokers)
        after = self._addresses()
        for address in before - after:
            # No route mentions it any more. What is under way on it would not be answered well.
            if address not in self.name_servers.addresses:
                self.channels.drop(address)
                self._heartbeats.versions.pop(address, None)
        if after - before:
            self.want_heartbeat()
        for member in list(self._members.consumers.values()):
            member.route_changed(topic, route)

    def _addresses(self) -> set[str]:
        return {address for data in self._brokers.values() for address in data.addresses.values()}

    def _addresses_changed(self, found: AddressList) -> None:
        self.name_servers.update(map(str, found.addresses))

    # Heartbeats.

    def want_heartbeat(self) -> None:
        """Something changed that brokers should know soon."""
        self._heartbeats.want()

    async def heartbeat(self) -> bool:
        """Send a heartbeat to every broker that should have one; False if one did not get it."""
        return await self._heartbeats.send()

    def heartbeat_addresses(self) -> list[str]:
        """The brokers that hear from us: masters, and replicas too if there are consumers."""
        return self._heartbeats.addresses()

    def _connected(self, peer: Peer) -> None:
        # A broker forgets its clients with their connections; a new one needs a heartbeat first.
        if peer.address not in self.name_servers.addresses:
            self.want_heartbeat()

    def _disconnected(self, peer: Peer) -> None:
        if self._is_open and peer.address not in self.name_servers.addresses:
            self.want_heartbeat()
            for member in list(self._members.consumers.values()):
                member.broker_lost(peer.address)

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        addresses = [
            address
            for address in sorted(self._addresses())
            if self.channels.to(address).is_connected
        ]

        async def leave(address: str) -> None:
            try:
                await self.broker(address).unregister_client(
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout_ms=self.config.api_timeout_ms,
                )
            except (TransportError, BrokerError) as error:
                # The broker notices by itself when the connection goes.
                logger.info("broker=%s not told of the leave: %s", address, error)

        await asyncio.gather(*(leave(address) for address in addresses))
