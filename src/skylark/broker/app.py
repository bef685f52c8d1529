"""Broker: opens the store, has its parts made and runs them in order.

start                                       stop, the same backwards
lock, open and recover the store            flush, checkpoint, no mark of a crash
get back from replicas what was lost        close connections
read the tables                             save the tables
flush, deliver delayed messages, retain     no more of it
listen, for replicas as well                refuse sends, finish what is under way
register with the name servers              unregister
ready
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Final, Self

from ..clock import Clock
from ..errors import BrokerError, StoreError, TransportError
from ..model.addresses import AddressList
from ..model.topic import TopicConfig
from ..net.channel import Channels
from ..net.config import NetConfig
from ..net.listener import Listener
from ..net.network import Network
from ..net.switchboard import AnyHandler, BatchHandler, Handler, RawHandler, Switchboard
from ..net.tasks import TaskScope, to_the_end
from ..protocol.bodies import ConsumerOffsetTable, HeartbeatData
from ..protocol.codes import RequestCode
from ..protocol.command import Command
from ..protocol.exchange import Peer
from ..protocol.registration_proof import RegistrationKey
from ..remote import RemoteBroker, RemoteNameServer
from ..remote.addresses import (
    DOMAIN_PROPERTY,
    SUBGROUP_PROPERTY,
    AddressBook,
    HttpFetch,
)
from ..replication import EpochTable
from ..replication.raft_store import require_no_group
from ..sandbox import Workers
from ..store import Files, MessageStore
from ..store.flusher import Flusher
from . import handlers
from .assembly import Assembly, Outside
from .config import FAST_PORT_STEP, BrokerConfig, LiveConfig
from .observer import Observer
from .parts import Parts
from .processors.heartbeat import HeartbeatProcessor
from .refill import KnownReplicas, Refill, replica_addresses
from .registration import Registration
from .replication import make_secret
from .slave_sync import SlaveSync
from .stats import SAMPLE_MS

logger = logging.getLogger(__name__)

SELF_CHECK_TIMEOUT_MS: Final = 3_000
KNOW_REPLICAS_MS: Final = 3_000
SAVE_FILTERS_MS: Final = 10_000
_NOT_ON_THE_FAST_PORT: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Broker:
    """A broker; it serves from entering the block until leaving it.

    async with Broker(config, clock=clock, network=network, files=files, rng=rng) as broker:
        await broker.serve()
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        network: Network,
        files: Files,
        rng: random.Random,
        host_ip: str = "127.0.0.1",
        observer: Observer | None = None,
        on_config: Callable[[BrokerConfig], None] = lambda config: None,
        random_bytes: Callable[[int], bytes] | None = None,
        workers: Workers | None = None,
    ) -> None:
        """host_ip is this machine's own address, for where the config names none.

        random_bytes is what keys are proved with; the default is as good as rng. Without workers
        there are no predicates.
        """
        if not config.broker_name:
            config = config.replace(broker_name="broker-a")
        self._live = LiveConfig(config)
        self._permission = config.broker_permission
        self._clock = clock
        self._network = network
        self._files = files
        self._rng = rng
        self._outside = Outside(
            clock=clock,
            network=network,
            files=files,
            rng=rng,
            random_bytes=rng.randbytes if random_bytes is None else random_bytes,
            host_ip=host_ip,
            observer=observer,
            workers=workers,
        )
        self._on_config = on_config
        self._known_replicas: KnownReplicas | None = None
        self._registration_key = (
            RegistrationKey(config.registration_key) if config.registration_key else None
        )
        self._parts = contextlib.AsyncExitStack()
        self._listener: Listener | None = None
        self._registration: Registration | None = None
        self._self_check_seen = ""
        self.parts: Parts | None = None

    @property
    def address(self) -> str:
        """Where clients are told to connect."""
        assert self.parts is not None, "the broker is not open"
        return self.parts.identity.address

    @property
    def name(self) -> str:
        """Its name."""
        return self._live.current.broker_name

    @property
    def has_failed(self) -> bool:
        """Whether the store has stopped writing for good."""
        return self.parts is not None and self.parts.store.failure is not None

    @property
    def is_member(self) -> bool:
        """Whether it belongs to a Raft group."""
        return self._live.current.is_raft

    @property
    def is_serving(self) -> bool:
        """Whether it takes writes and is known to do so: any broker but a member that follows."""
        raft = None if self.parts is None else self.parts.raft
        return raft is None or (raft.is_serving and raft.is_registered)

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._listener is not None, "the broker is not open"
        return self._listener.address[1]

    @property
    def boot_line(self) -> str:
        """What a process says when it is ready; scripts look for it."""
        config = self._live.current
        known = () if self._registration is None else self._registration.addresses
        addresses = config.namesrv_addr or ";".join(known)
        servers = f" and name server is {addresses}" if addresses else ""
        return (
            f"The broker[{config.broker_name}, {self.address}] boot success. "
            f"serializeType=JSON{servers}"
        )

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as parts:
            await self._open(parts)
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._parts.__aexit__(kind, error, traceback)

    async def serve(self) -> None:
        """Wait until cancelled, or until something fails that must not."""
        assert self._listener is not None
        await self._listener.serve()

    # Building.

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        config, clock = self._live.current, self._clock
        if not config.is_raft:
            require_no_group(config.store_path_root_dir, self._files)
        store = stack.enter_context(
            MessageStore.open(
                config.store_config(),
                self._files,
                clock,
                progress=_report_recovery,
                is_member=config.is_raft,
            )
        )
        store.mark_open()
        channels = await stack.enter_async_context(
            Channels(
                self._network,
                clock,
                self._rng,
                switchboard=Switchboard({}, on_disconnect=self._server_lost),
            )
        )
        offsets = await self._refill(store, channels)
        flusher = Flusher(store, clock)
        assembly = Assembly(
            self._live,
            self._outside,
            store,
            flusher,
            remote=lambda address: RemoteBroker(channels, address),
        )
        parts = self.parts = assembly.build(on_config=self._config_changed, announce=self._announce)
        if offsets is not None:
            moved = parts.offsets.merge_forward(offsets)
            logger.info("%d committed offsets were further on at a replica", moved)
        stack.callback(_save, parts)
        await stack.enter_async_context(flusher.running())
        await stack.enter_async_context(_as_it_was_raised(parts.retention.running()))
        scope = await stack.enter_async_context(TaskScope())
        await stack.enter_async_context(_as_it_was_raised(parts.predicates.running()))
        await stack.enter_async_context(_keeping_time(parts, scope))
        if not store.is_replica and parts.raft is None:
            # What a replica delivered would be in its log, and not in its master's.
            await stack.enter_async_context(_delivering(parts, scope))
            stack.callback(scope.spawn(parts.transactions.run()).cancel)
            stack.callback(scope.spawn(parts.staging.run()).cancel)
        for timer in (
            scope.spawn(self._save_offsets(parts)),
            scope.spawn(self._save_filters(parts)),
            scope.spawn(self._drop_expired(parts)),
            scope.spawn(self._sample_stats(parts)),
        ):
            stack.callback(timer.cancel)
        # Before the port for clients, and so closed after it: their last sends need replicas.
        if parts.raft is None:
            replicas = parts.replication.listening(config.replication_port)
        else:
            for warning in config.raft_warnings():
                logger.warning("config: %s", warning)
            replicas = parts.raft.running(scope)
        await stack.enter_async_context(_as_it_was_raised(replicas))
        await self._listen(stack, parts)
        self._registration = registration = Registration(
            self._live,
            parts.identity,
            parts.topics,
            [self._name_server(channels, address) for address in config.name_servers],
            clock,
            self._rng,
        )
        parts.topics.on_change = registration.topics_changed
        if parts.raft is None:
            registration.on_master = parts.replication.master_seen
            parts.replication.ask_again = registration.register_soon
        else:
            parts.raft.on_role = registration.role_changed
        stack.push_async_callback(self._stop_serving, parts)
        if config.advertised_address_check:
            await self._check_advertised(channels, parts)
        stack.push_async_callback(registration.leave)
        if config.fetch_namesrv_addr_by_address_server and not config.name_servers:
            book = self._address_book(config, channels, registration)
            await book.refresh()
            stack.callback(scope.spawn(book.watch()).cancel)
        await registration.register()
        keeping = scope.spawn(registration.keep())
        stack.callback(keeping.cancel)
        if parts.raft is not None:
            stack.push_async_callback(parts.raft.transfer)
            return
        if config.broker_role == "SYNC_MASTER" and config.name_servers:
            servers = [self._name_server(channels, address) for address in config.name_servers]
            stack.callback(scope.spawn(self._know_replicas(parts, servers)).cancel)
        if store.is_replica:
            for task in (parts.replication.follow(), self._slave_sync(parts).run()):
                stack.callback(scope.spawn(task).cancel)

    def _name_server(self, channels: Channels, address: str) -> RemoteNameServer:
        return RemoteNameServer(channels, address, key=self._registration_key)

    async def _refill(self, store: MessageStore, channels: Channels) -> ConsumerOffsetTable | None:
        """Let a master get back what only its replicas have; return their committed offsets."""
        config = self._live.current
        if config.is_replica or config.is_raft:
            store.is_replica = True
            return None
        known = self._known_replicas = KnownReplicas(store.config.store_path_root_dir, self._files)
        known.load()
        if not config.ha_recover_from_slave or not config.name_servers:
            return None
        path = os.path.join(store.config.store_path_root_dir, "config", "epochs.json")
        epochs = EpochTable(path, self._files)
        epochs.load()
        return await Refill(
            config,
            store,
            self._files,
            self._clock,
            self._network,
            remote=lambda address: RemoteBroker(channels, address),
            name_servers=[self._name_server(channels, address) for address in config.name_servers],
            secret=make_secret(config, epochs, self._outside.random_bytes),
            known=known,
        ).run()

    async def _know_replicas(self, parts: Parts, servers: list[RemoteNameServer]) -> None:
        """Keep on the disk where the replicas are, for the next start of a SYNC_MASTER."""
        known = self._known_replicas
        assert known is not None
        while True:
            if parts.replication.master.is_followed:
                found = await replica_addresses(servers, parts.identity.name)
                if found:
                    try:
                        known.note(found)
                    except StoreError as error:
                        logger.error("places of replicas not saved: %s", error)
            await self._clock.sleep_ms(KNOW_REPLICAS_MS)

    def _slave_sync(self, parts: Parts) -> SlaveSync:
        return SlaveSync(
            parts.replication.remote_master,
            self._clock,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            delay=parts.delay,
            interval_ms=lambda: self._live.current.slave_sync_interval_ms,
            is_following=lambda: parts.replication.is_following,
            known_queues=lambda: parts.store.queues.names,
        )

    def _address_book(
        self, config: BrokerConfig, channels: Channels, registration: Registration
    ) -> AddressBook:
        """Where the name servers are, asked of the address service."""

        def changed(found: AddressList) -> None:
            addresses = map(str, found.addresses)
            registration.replace_servers([self._name_server(channels, one) for one in addresses])

        return AddressBook(
            clock=self._clock,
            fetch=HttpFetch(self._network),
            properties={
                DOMAIN_PROPERTY: config.namesrv_domain,
                SUBGROUP_PROPERTY: config.namesrv_domain_subgroup,
            },
            env={},
            on_change=changed,
        )

    async def _listen(self, stack: contextlib.AsyncExitStack, parts: Parts) -> None:
        heartbeats = HeartbeatProcessor(
            self._live,
            topics=parts.topics,
            groups=parts.groups,
            clients=parts.clients,
            filters=parts.filters,
        )
        heartbeats.on_client = self._client_seen
        table = handlers.build(parts, heartbeats)
        config = NetConfig.of(self._live.current)
        self._listener = await stack.enter_async_context(
            Listener(config, _switchboard(table, parts), self._network)
        )
        parts.identity.bind(self._listener.address[1], (parts.raft or parts.replication).port)
        if config.listen_port:
            # Old clients send to this port, so that no pull is ever in their way.
            fast = dataclasses.replace(config, listen_port=config.listen_port + FAST_PORT_STEP)
            board = _switchboard(table, parts, without=_NOT_ON_THE_FAST_PORT)
            await stack.enter_async_context(Listener(fast, board, self._network))

    # While it runs.

    async def _save_offsets(self, parts: Parts) -> None:
        while True:
            await self._clock.sleep_ms(self._live.current.flush_consumer_offset_interval)
            try:
                # Two syncs take long on a busy disk, and the loop has other things to do.
                if parts.raft is not None:
                    save = parts.raft.state.take_changed()
                    if save is not None:
                        await to_the_end(save)
                    continue
                content = parts.offsets.take_changed()
                if content is not None:
                    await to_the_end(parts.offsets.write, content)
            except StoreError as error:
                logger.error("consumer offsets not saved, tried again: %s", error)

    async def _save_filters(self, parts: Parts) -> None:
        while True:
            await self._clock.sleep_ms(SAVE_FILTERS_MS)
            content = parts.filters.take_changed()
            if content is None:
                continue
            try:
                await to_the_end(parts.filters.write, content)
            except StoreError as error:
                logger.error("consumer filters not saved, tried again: %s", error)

    async def _drop_expired(self, parts: Parts) -> None:
        while True:
            await self._clock.sleep_ms(self._live.current.client_scan_interval_ms)
            parts.clients.drop_expired()
            try:
                parts.locks.drop_expired()
            except BrokerError as error:
                logger.warning("locks that have run out are dropped later: %s", error.remark)

    async def _sample_stats(self, parts: Parts) -> None:
        while True:
            await self._clock.sleep_ms(SAMPLE_MS)
            for _ in parts.stats.sampling():
                await self._clock.sleep_ms(0)

    def _config_changed(self, config: BrokerConfig) -> None:
        self._on_config(config)
        if self.parts is not None:
            self.parts.retention.reconfigure(config.store_config())
            self.parts.topics.reconfigure(config)
        if self._registration is not None and config.broker_permission != self._permission:
            self._registration.register_soon()  # It is part of every topic's registration.
        self._permission = config.broker_permission

    async def _announce(self, topics: Iterable[TopicConfig]) -> None:
        if self.parts is not None and self.parts.raft is not None:
            await self.parts.raft.state.settled()  # What is not agreed is nobody's to know.
        if self._registration is not None:
            await self._registration.announce(topics)

    def _server_lost(self, peer: Peer) -> None:
        if self._registration is not None:
            self._registration.connection_lost(peer)

    # The advertised address.

    async def _check_advertised(self, channels: Channels, parts: Parts) -> None:
        """Dial the address that clients are told, and say where it does not lead here."""
        address = parts.identity.address
        word = f"self-check@{self._rng.getrandbits(64):016x}"
        problem = None
        try:
            await channels.call(
                address,
                Command.request(RequestCode.HEART_BEAT, body=HeartbeatData(word).to_json()),
                SELF_CHECK_TIMEOUT_MS,
            )
        except TransportError as error:
            problem = f"cannot be reached from here: {error.problem}"
        else:
            if self._self_check_seen != word:
                problem = "leads to another server"
        channels.drop(address)
        if problem is not None:
            logger.warning(
                "clients are told to connect to %s, which %s; set brokerIP1 to an address of this "
                "broker that clients can reach, and check port mappings and firewalls",
                address, problem,
            )  # fmt: skip

    def _client_seen(self, client_id: str) -> None:
        if client_id.startswith("self-check@"):
            self._self_check_seen = client_id

    # Stopping.

    async def _stop_serving(self, parts: Parts) -> None:
        """Refuse sends for a moment, so that producers turn to another broker, and let pulls go."""
        parts.flow.is_stopping = True
        assert self._listener is not None
        if any(link.has_spoken for link in self._listener.links):
            await self._clock.sleep_ms(self._live.current.stop_grace_ms)
        parts.arrivals.close()


@contextlib.asynccontextmanager
async def _as_it_was_raised(
    part: contextlib.AbstractAsyncContextManager[object],
) -> AsyncIterator[None]:
    """Let a single error out of a task group as it went in."""
    try:
        async with part:
            yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None


def _save(parts: Parts) -> None:
    try:
        if parts.raft is not None:
            parts.raft.state.save()
        else:
            parts.offsets.save()
    except StoreError as error:
        logger.error("consumer offsets not saved: %s", error)
    try:
        parts.filters.save()
    except StoreError as error:
        logger.error("consumer filters not saved: %s", error)


@contextlib.asynccontextmanager
async def _keeping_time(parts: Parts, scope: TaskScope) -> AsyncIterator[None]:
    tasks = scope.spawn(parts.timers.run()), scope.spawn(parts.timers.save_for_ever())
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if parts.store.failure is None:
            await parts.timers.save()
        parts.timers.close()


@contextlib.asynccontextmanager
async def _delivering(parts: Parts, scope: TaskScope) -> AsyncIterator[None]:
    tasks = scope.spawn(parts.delay.run()), scope.spawn(parts.delay.save_for_ever())
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if parts.store.failure is None:
            await parts.delay.save()


def _switchboard(
    table: handlers.Handlers, parts: Parts, *, without: frozenset[int] = frozenset()
) -> Switchboard:
    entries: dict[int, AnyHandler] = {
        code: Handler(header, handle) for code, (header, handle) in table.typed.items()
    }
    entries |= {code: RawHandler(handle) for code, handle in table.raw.items()}
    entries |= {code: BatchHandler(handle) for code, handle in table.batches.items()}

    def gone(peer: Peer) -> None:
        parts.clients.connection_lost(peer)
        parts.identity.connection_lost(peer)

    return Switchboard(
        {code: entry for code, entry in entries.items() if code not in without},
        on_disconnect=gone,
    )


def _report_recovery(what: str, done: int, total: int) -> None:
    logger.info("recovery: %s, %d of %d", what, done, total)
