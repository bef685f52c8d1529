"""Parts: what a broker is made of, for the processors that need many of them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ..clock import Clock
from ..model.topic import TopicConfig
from ..store import Files, MessageStore
from ..store.flusher import Flusher
from ..store.retention import Retention
from .archived import Archived
from .arrivals import Arrivals
from .clients import Clients
from .config import BrokerConfig, LiveConfig
from .delay import DelayService
from .durability import FlushWaiter
from .filter_server import FilterServer
from .filters import FilterTable
from .flow import FlowControl
from .groups import GroupTable
from .identity import Identity
from .locks import QueueLocks
from .observer import Observer
from .offsets import ConsumerOffsets
from .raft_mode import RaftMode
from .replication import Replication
from .staging import StagingService
from .stats import BrokerStats
from .timers import TimerService
from .topics import TopicTable
from .transactions import TransactionService


@dataclass(slots=True)
class Parts:
    """All state of a broker; one loop owns it."""

    live: LiveConfig
    identity: Identity
    topics: TopicTable
    groups: GroupTable
    clients: Clients
    offsets: ConsumerOffsets
    locks: QueueLocks
    arrivals: Arrivals
    delay: DelayService
    timers: TimerService
    transactions: TransactionService
    staging: StagingService
    filters: FilterTable
    predicates: FilterServer
    flow: FlowControl
    replication: Replication
    raft: RaftMode | None  # In a Raft group, and replication is idle.
    observer: Observer
    stats: BrokerStats
    store: MessageStore
    flusher: Flusher
    waiter: FlushWaiter  # What answers wait for: the flusher, or the agreement of a Raft group.
    retention: Retention
    archived: Archived
    files: Files
    clock: Clock
    rng: random.Random
    booted_at_ms: int
    # Told of settings that changed while the broker runs.
    on_config: Callable[[BrokerConfig], None]
    # Tells the name servers of topics, and returns when they know them.
    announce: Callable[[Iterable[TopicConfig]], Awaitable[None]]
