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

    broker sends                      goes to
    39 CHECK_TRANSACTION_STATE        a producer of the message's group
    40 NOTIFY_CONSUMER_IDS_CHANGED    the consumer of that group
    220, 221, 307, 309                the consumer of that group
    326 PUSH_REPLY_MESSAGE            whoever waits for the reply

A group has one consumer in a session, since a client id is one member of it; a second member needs
a session of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ..clock import Clock, SystemClock
from ..errors import BrokerError, ClientClosed, ClientError, NoRoute, TransportError
from ..model.message import Property, StoredMessage
from ..model.queue import MessageQueue
from ..model.route import MASTER_ID, BrokerData, TopicRoute
from ..net import AsyncioNetwork, Handler, Network, Switchboard
from ..net.tasks import TaskScope
from ..protocol import headers
from ..protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    HeartbeatData,
    ResetOffsetBody,
)
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.exchange import Peer, Request, Response
from ..protocol.message_id import UniqueIdGenerator
from ..protocol.record import decode_record
from ..remote import NameServers, RemoteBroker
from ..remote.addresses import AddressBook, AddressList, HttpFetch
from . import namespaces
from .channels import ClientChannels
from .config import DEFAULT_INSTANCE_NAME, ClientConfig
from .hooks import RpcHook
from .request_reply import ReplyTable
from .routes import TOPICS_MAX, RouteCache

logger = logging.getLogger(__name__)

HEARTBEAT_RETRY_MS: Final = 2_000  # While a broker is out of reach.
HEARTBEAT_SETTLE_MS: Final = 20  # Changes that come together share a heartbeat.
ROUTE_DOUBT_MS: Final = 1_000  # A route that failed is asked for again at most this often.
VIP_PORT_STEP: Final = 2

FindIp = Callable[[AddressList], Awaitable[str]]
"""Finds our own address, as the name servers of a list would see it."""


class ProducerMember(Protocol):
    """What a session asks of a producer."""

    @property
    def group(self) -> str:
        """Its group, as brokers know it."""
        ...

    async def check_transaction(
        self, header: headers.CheckTransactionStateRequest, half: StoredMessage, address: str
    ) -> bool:
        """A broker asks how a half message of this group shall end; False if that is unknown."""
        ...


class ConsumerMember(Protocol):
    """What a session asks of a consumer."""

    @property
    def group(self) -> str:
        """Its group, as brokers know it."""
        ...

    def heartbeat_data(self) -> ConsumerData:
        """What the group wants, for a heartbeat."""
        ...

    def members_changed(self) -> None:
        """The group has other members than before: share the queues out again."""
        ...

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A topic has other queues or brokers than before."""
        ...

    def broker_lost(self, address: str) -> None:
        """A connection to a broker has ended: it may have forgotten what it knew of us."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator sets the group to other offsets."""
        ...

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far it has come in a topic by its own account."""
        ...

    def running_info(self, *, jstack: bool) -> ConsumerRunningInfo:
        """What it is doing."""
        ...

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Consume one message now, because an operator wants to see how that goes."""
        ...

    async def close(self) -> None:
        """Finish, commit and leave, because the session ends; harmless a second time."""
        ...


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
        self._process_id = pid if pid is not None else os.getpid()
        self._find_ip = find_ip
        self._set_identity(config.client_ip or "127.0.0.1")
        self.replies = ReplyTable(self.clock, self.rng)
        self.channels = ClientChannels(
            self.network,
            self.clock,
            self.rng,
            switchboard=Switchboard(
                self._handlers(), on_connect=self._connected, on_disconnect=self._disconnected
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
        self._versions: dict[str, int] = {}  # What brokers said of themselves, by address.
        self._unheard: dict[str, object] = {}  # Why a broker did not get the last heartbeat.
        self._doubted_ms: dict[str, int] = {}
        self._producers: dict[str, list[ProducerMember]] = {}
        self._consumers: dict[str, ConsumerMember] = {}
        self._heartbeat_due = asyncio.Event()
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
                self._set_identity(await self._find_ip(self._book.current))
            parts.push_async_exit(self._leave)
            self._tasks = await parts.enter_async_context(TaskScope())
            await parts.enter_async_context(self.routes.running())
            for background in (self._book.watch(), self._keep_heartbeats()):
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
        for member in list(self._consumers.values()):
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
        producers, self._producers = list(self._producers), {}
        consumers, self._consumers = list(self._consumers), {}
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
        self._producers.setdefault(member.group, []).append(member)
        self.want_heartbeat()

    async def leave_producer(self, member: ProducerMember) -> None:
        """A producer closes; the last of its group is unregistered at once."""
        members = self._producers.get(member.group, [])
        if member in members:
            members.remove(member)
            if not members:
                del self._producers[member.group]
                await self._unregister(producer_group=member.group)

    def join_consumer(self, member: ConsumerMember) -> None:
        """Make this session a member of a consumer group."""
        self.require_open()
        if member.group in self._consumers:
            raise ClientError(
                f"group {member.group!r} has a consumer in this session already",
                hint="connect once more for a second member of the group",
            )
        self._consumers[member.group] = member
        self.want_heartbeat()

    async def leave_consumer(self, member: ConsumerMember) -> None:
        """A consumer closes and is unregistered at once, so that the others take its queues."""
        if self._consumers.get(member.group) is member:
            del self._consumers[member.group]
            await self._unregister(consumer_group=member.group)

    def has_consumer(self, group: str) -> bool:
        """Whether this session is a member of a consumer group."""
        return group in self._consumers

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
        return self._versions.get(address)

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
        for known_topic in self.routes.topics:
            known = self.routes.known(known_topic)
            if known is not None:
                self._brokers.update((data.broker_name, data) for data in known.brokers)
        after = self._addresses()
        for address in before - after:
            # No route mentions it any more. What is under way on it would not be answered well.
            if address not in self.name_servers.addresses:
                self.channels.drop(address)
                self._versions.pop(address, None)
        if after - before:
            self.want_heartbeat()
        for member in list(self._consumers.values()):
            member.route_changed(topic, route)

    def _addresses(self) -> set[str]:
        return {address for data in self._brokers.values() for address in data.addresses.values()}

    def _addresses_changed(self, found: AddressList) -> None:
        self.name_servers.update(map(str, found.addresses))

    # Heartbeats.

    def want_heartbeat(self) -> None:
        """Something changed that brokers should know soon."""
        self._heartbeat_due.set()

    async def heartbeat(self) -> bool:
        """Send a heartbeat to every broker that should have one; False if one did not get it."""
        addresses = self.heartbeat_addresses()
        if not addresses:
            return True
        body = HeartbeatData(
            self.client_id,
            tuple(self._producers),
            tuple(member.heartbeat_data() for member in self._consumers.values()),
        )
        reached = await asyncio.gather(*(self._beat(address, body) for address in addresses))
        return all(reached)

    def heartbeat_addresses(self) -> list[str]:
        """The brokers that hear from us: masters, and replicas too if there are consumers."""
        if not self._producers and not self._consumers:
            return []
        return [
            address
            for data in self._brokers.values()
            for broker_id, address in data.addresses.items()
            if broker_id == MASTER_ID or self._consumers
        ]

    async def _beat(self, address: str, body: HeartbeatData) -> bool:
        try:
            timeout_ms = self.config.api_timeout_ms
            self._versions[address] = await self.broker(address).heartbeat(
                body, timeout_ms=timeout_ms
            )
        except (TransportError, BrokerError) as error:
            # A refusal is for people to see to; either is worth one line, not one at every try.
            what = (type(error), getattr(error, "code", None))
            level = logging.WARNING if isinstance(error, BrokerError) else logging.INFO
            level = logging.DEBUG if self._unheard.get(address) == what else level
            logger.log(level, "broker=%s heartbeat failed: %s", address, error)
            self._unheard[address] = what
            return False
        self._unheard.pop(address, None)
        return True

    async def _keep_heartbeats(self) -> None:
        while True:
            self._heartbeat_due.clear()
            reached_all = await self.heartbeat()
            pause_ms = self.config.heartbeat_broker_interval_ms
            if not reached_all:
                pause_ms = min(pause_ms, HEARTBEAT_RETRY_MS)
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._heartbeat_due.wait()
            except TimeoutError:
                continue
            await self.clock.sleep_ms(HEARTBEAT_SETTLE_MS)

    def _connected(self, peer: Peer) -> None:
        # A broker forgets its clients with their connections; a new one needs a heartbeat first.
        if peer.address not in self.name_servers.addresses:
            self.want_heartbeat()

    def _disconnected(self, peer: Peer) -> None:
        if self._is_open and peer.address not in self.name_servers.addresses:
            self.want_heartbeat()
            for member in list(self._consumers.values()):
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

    def _set_identity(self, client_ip: str) -> None:
        name = self.config.instance_name
        if name == DEFAULT_INSTANCE_NAME:
            nano = self.clock.monotonic_ms() * 1_000_000 + self.rng.randrange(1_000_000)
            name = f"{self._process_id}#{nano}"
        unit = f"@{self.config.unit_name}" if self.config.unit_name else ""
        self.client_ip = client_ip
        self.client_id = f"{client_ip}@{name}{unit}"
        self.unique_ids = UniqueIdGenerator(
            self.clock,
            ip=client_ip,
            pid=self._process_id,
            process_mark=self.rng.getrandbits(32),
        )

    # What brokers ask of us.

    def _handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.CHECK_TRANSACTION_STATE: Handler(
                headers.CheckTransactionStateRequest, self._check_transaction
            ),
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Handler(
                headers.NotifyConsumerIdsChangedRequest, self._members_changed
            ),
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Handler(
                headers.ResetOffsetRequest, self._reset_offsets
            ),
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Handler(
                headers.GetConsumerStatusRequest, self._consumer_status
            ),
            RequestCode.GET_CONSUMER_RUNNING_INFO: Handler(
                headers.GetConsumerRunningInfoRequest, self._running_info
            ),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Handler(
                headers.ConsumeMessageDirectlyRequest, self._consume_directly
            ),
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Handler(
                headers.PushReplyMessageRequest, self._reply_arrived
            ),
        }

    async def _check_transaction(
        self, request: Request[headers.CheckTransactionStateRequest], peer: Peer
    ) -> None:
        half = decode_record(request.body)
        group = half.properties.get(Property.PGROUP, "")
        members = self._producers.get(group)
        if not members:
            logger.warning("group=%s a check for a group without producer here", group)
            return
        for member in list(members):
            if await member.check_transaction(request.header, half, peer.address):
                return

    def _members_changed(
        self, request: Request[headers.NotifyConsumerIdsChangedRequest], peer: Peer
    ) -> None:
        member = self._consumers.get(request.header.consumer_group)
        if member is not None:
            member.members_changed()

    async def _reset_offsets(
        self, request: Request[headers.ResetOffsetRequest], peer: Peer
    ) -> None:
        member = self._consumers.get(request.header.group)
        if member is not None:
            offsets = ResetOffsetBody.from_json(request.body).offsets
            await member.reset_offsets(request.header.topic, offsets)

    def _consumer_status(
        self, request: Request[headers.GetConsumerStatusRequest], peer: Peer
    ) -> Response:
        member = self._member(request.header.group)
        queues = member.consumer_status(request.header.topic)
        return Response(body=ConsumerStatusBody(queues=queues).to_json())

    def _running_info(
        self, request: Request[headers.GetConsumerRunningInfoRequest], peer: Peer
    ) -> Response:
        member = self._member(request.header.consumer_group)
        return Response(body=member.running_info(jstack=request.header.jstack_enable).to_json())

    async def _consume_directly(
        self, request: Request[headers.ConsumeMessageDirectlyRequest], peer: Peer
    ) -> Response:
        member = self._member(request.header.consumer_group)
        message = decode_record(request.body)
        result = await member.consume_directly(message, request.header.broker_name)
        return Response(body=result.to_json())

    def _reply_arrived(
        self, request: Request[headers.PushReplyMessageRequest], peer: Peer
    ) -> Response:
        self.replies.arrived(request.header, bytes(request.body))
        return Response()

    def _member(self, group: str) -> ConsumerMember:
        member = self._consumers.get(group)
        if member is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{group}> not exist in this consumer",
            )
        return member
