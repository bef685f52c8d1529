"""Assembly: makes the parts of a broker, each with those that it needs, and reads their files.

tables     topics, groups, committed offsets, locks; in a Raft group also the log that agrees
clients    who is connected, and what they want to see
services   what delivers later: delay levels, timers, transactions, staged rows
the rest   replication, flow control, retention
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..model.topic import TopicConfig
from ..remote import RemoteBroker
from ..replication.links import Network
from ..replication.raft_group import RaftGroup
from ..sandbox import Workers
from ..store import Files, MessageStore
from ..store.flusher import Flusher
from ..store.retention import Retention
from .archived import Archived
from .arrivals import Arrivals
from .clients import Clients
from .config import BrokerConfig, LiveConfig
from .delay import DelayService
from .durability import AgreedWaiter, FlushWaiter
from .filter_server import FilterServer
from .filters import FilterTable
from .flow import FlowControl
from .groups import GroupTable
from .identity import Identity
from .locks import QueueLocks
from .observer import Observer
from .offsets import ConsumerOffsets
from .parts import Parts
from .raft_mode import RaftMode, raft_config
from .replication import Replication
from .staging import StagingService
from .state_log import StateLog
from .stats import Both, BrokerStats
from .timers import TimerService
from .topics import TopicTable
from .transactions import TransactionService

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What comes to a broker from outside."""

    clock: Clock
    network: Network
    files: Files
    rng: random.Random
    random_bytes: Callable[[int], bytes]
    host_ip: str
    observer: Observer | None
    workers: Workers | None


class Assembly:
    """Makes the parts of one broker around an open store."""

    def __init__(
        self,
        live: LiveConfig,
        outside: Outside,
        store: MessageStore,
        flusher: Flusher,
        *,
        remote: Callable[[str], RemoteBroker],
    ) -> None:
        self._live = live
        self._outside = outside
        self._store = store
        self._flusher = flusher
        self._remote = remote
        self._folder = os.path.join(store.config.store_path_root_dir, "config")

    def build(
        self,
        *,
        on_config: Callable[[BrokerConfig], None],
        announce: Callable[[Iterable[TopicConfig]], Awaitable[None]],
    ) -> Parts:
        """All of them, with what their files say; raises StoreError."""
        live, outside, store, flusher = self._live, self._outside, self._store, self._flusher
        clock, files, config = outside.clock, outside.files, live.current
        files.make_directory(self._folder)
        topics = TopicTable(config, self._path("topics.json"), files, clock)
        groups = GroupTable(
            self._path("subscriptionGroup.json"),
            files,
            clock,
            may_create=lambda: live.current.auto_create_subscription_group,
        )
        offsets = ConsumerOffsets(
            self._path("consumerOffset.json"), files, clock, max_offset=store.max_offset
        )
        locks = QueueLocks(clock, lease_ms=lambda: live.current.queue_lock_lease_ms)
        arrivals = Arrivals(store, clock)
        store.set_on_arrivals(arrivals.arrived)
        stats = BrokerStats(clock, cluster=config.broker_cluster_name)
        observer = stats if outside.observer is None else Both(stats, outside.observer)
        group = self._raft_group() if config.is_raft else None
        waiter: FlushWaiter = flusher if group is None else AgreedWaiter(store, group.quorum)
        delay = DelayService(
            store,
            arrivals,
            waiter,
            clock,
            self._path("delayOffset.json"),
            files,
            save_interval_ms=config.flush_delay_offset_interval,
            observer=observer,
        )
        identity = Identity(live, ip=outside.host_ip, port=config.listen_port)
        state: StateLog | None = None
        if group is not None:
            state = StateLog(
                store,
                arrivals,
                identity,
                clock,
                self._path("raftState.json"),
                files,
                topics=topics,
                groups=groups,
                offsets=offsets,
                locks=locks,
                delay=delay,
            )
        for table in (topics, groups, offsets, delay):
            table.load()
        if state is not None:
            state.load()
        flow = FlowControl(live, store, clock)
        replication = self._replication(offsets, flow)
        clients = self._clients(groups)
        filters, predicates = self._filters(clients)
        transactions = TransactionService(
            live,
            identity,
            topics=topics,
            clients=clients,
            offsets=offsets,
            store=store,
            arrivals=arrivals,
            flusher=waiter,
            clock=clock,
            observer=observer,
        )
        transactions.load()
        staging = StagingService(
            identity,
            store=store,
            clock=clock,
            timeout_ms=config.staged_rows_timeout_hours * 3_600_000,
        )
        staging.load()
        timers = TimerService(
            live,
            identity,
            store=store,
            arrivals=arrivals,
            flusher=waiter,
            clock=clock,
            files=files,
            observer=observer,
        )
        timers.load()
        archived = Archived(live, offsets, store)
        keepers: list[_Keeper] = [delay, timers, transactions, staging, archived]
        raft: RaftMode | None = None
        if group is not None and state is not None:
            raft = RaftMode(
                live,
                identity,
                store,
                group,
                state,
                clock,
                delay=delay,
                timers=timers,
                transactions=transactions,
                staging=staging,
            )
            flow.not_leading = raft.refusal
            keepers.append(state)
        return Parts(
            live=live,
            identity=identity,
            topics=topics,
            groups=groups,
            clients=clients,
            offsets=offsets,
            locks=locks,
            arrivals=arrivals,
            delay=delay,
            timers=timers,
            transactions=transactions,
            staging=staging,
            filters=filters,
            predicates=predicates,
            flow=flow,
            replication=replication,
            raft=raft,
            observer=observer,
            stats=stats,
            store=store,
            flusher=flusher,
            waiter=waiter,
            retention=Retention(store, clock, undelivered_from=lambda: _oldest(keepers)),
            archived=archived,
            files=files,
            clock=clock,
            rng=outside.rng,
            booted_at_ms=clock.now_ms(),
            on_config=on_config,
            announce=announce,
        )

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _raft_group(self) -> RaftGroup:
        outside = self._outside
        return RaftGroup(
            raft_config(self._live.current),
            self._store,
            self._flusher,
            files=outside.files,
            clock=outside.clock,
            network=outside.network,
            rng=outside.rng,
            random_bytes=outside.random_bytes,
        )

    def _clients(self, groups: GroupTable) -> Clients:
        live = self._live

        def may_notify(name: str) -> bool:
            group = groups.get(name)
            return live.current.notify_consumer_ids_changed_enable and (
                group is None or group.notify_consumer_ids_changed_enable
            )

        return Clients(
            self._outside.clock,
            expiry_ms=lambda: live.current.client_expiry_ms,
            may_notify=may_notify,
        )

    def _filters(self, clients: Clients) -> tuple[FilterTable, FilterServer]:
        live, outside = self._live, self._outside
        filters = FilterTable(live, self._path("consumerFilter.json"), outside.files, outside.clock)
        filters.load()
        predicates = filters.predicates = FilterServer(
            live,
            self._path("filterPredicates.json"),
            outside.files,
            outside.clock,
            outside.workers,
        )
        predicates.load()
        clients.on_group_gone = filters.unregister
        self._store.dispatcher.bitmap_of = filters.bitmap_of
        return filters, predicates

    def _replication(self, offsets: ConsumerOffsets, flow: FlowControl) -> Replication:
        outside = self._outside
        replication = Replication(
            self._live,
            self._store,
            self._flusher,
            outside.files,
            outside.clock,
            outside.network,
            remote=self._remote,
            random_bytes=outside.random_bytes,
        )
        replication.on_truncated = offsets.cut_to_ends

        def replaced(epoch: int) -> None:
            flow.replaced_by = epoch
            logger.critical("a master of epoch %d has taken our place; no more writes", epoch)

        replication.on_replaced = replaced
        return replication


class _Keeper(Protocol):
    def undelivered_from(self) -> int | None: ...


def _oldest(keepers: Iterable[_Keeper]) -> int | None:
    """The first physical offset that any of them still needs."""
    needed = (keeper.undelivered_from() for keeper in keepers)
    return min((offset for offset in needed if offset is not None), default=None)
