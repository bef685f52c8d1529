"""RaftGroup: one member of a group that agrees on a commit log.

    group = RaftGroup(config, store, flusher, files=…, clock=…, network=…, rng=…, random_bytes=…)
    async with group.running():
        …

The store must be open with SYNC_FLUSH and `is_member=True` (MessageStore.open), the flusher must
run before the group does and until after it. While the group runs it owns `store.is_replica`: puts
are possible only while `is_serving`. It sets `store.on_grew`, so nobody needs to call grew().
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..clock import Clock
from ..store import Files, MessageStore
from .links import Network


class FlushWaiter(Protocol):
    """What is asked of the flusher."""

    def flushed(self, offset: int) -> asyncio.Future[bool]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Who the group is, and how patient; raises ConfigError where that makes no sense."""

    group: str  # dLegerGroup
    self_id: str  # dLegerSelfId, such as n0
    peers: Mapping[str, tuple[str, int]]  # dLegerPeers, this member included: id → host, port
    listen_host: str = ""  # Where to listen; empty: all addresses. The port is that of self_id.
    heartbeat_ms: int = 200
    election_ms: int = 1_500  # Silence of a leader after which others may take over.
    key: bytes | None = None  # The cluster key, which all members prove to each other.
    silence_ms: int = 3_000  # A connection without a sign of life for this long is made anew.
    diverged_bytes_max: int = 1 << 30  # Longer tails are not given up without an operator.


class Member(NamedTuple):
    """What is known of one member."""

    id: str
    address: str
    position: int  # How far its log is known to agree; -1 if this member does not know.
    is_voter: bool
    heard_ms: int  # How long ago it was heard of; 0 for oneself, -1: never.


class RaftQuorum:
    """Those who wait for agreement; for broker/durability.py, in the place of Quorum."""

    def is_available(self, offset: int) -> bool:
        """Whether waiting has a chance: this member leads and hears of a majority."""
        raise NotImplementedError

    def is_replicated(self, offset: int) -> bool:
        """Whether everything below a physical offset is agreed; False on anyone but the leader."""
        raise NotImplementedError

    def replicated(self, offset: int) -> asyncio.Future[bool]:
        """A future: True when the log is agreed up to an offset; False if leadership is lost first.

        False means that nobody knows yet whether the message stays: the sender must be told of an
        error, never SEND_OK. To be called in the same turn of the loop as the put; the caller minds
        the time. It is agreed only when a majority has it on disk, so the flusher need not be
        waited for as well.
        """
        raise NotImplementedError


class RaftGroup:
    """This member, its log, its links and its clock."""

    def __init__(
        self,
        config: RaftConfig,
        store: MessageStore,
        flusher: FlushWaiter,
        *,
        files: Files,
        clock: Clock,
        network: Network,
        rng: random.Random,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.quorum = RaftQuorum()
        # Called on the loop whenever role, leader, term or is_serving has changed.
        self.on_role: Callable[[], None] = lambda: None
        self.problem = ""  # What keeps this member from taking part, for operators.
        self.last_refusal = ""  # Who was sent away last, and why.

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RaftGroup]:
        """Listen, connect, take part."""
        raise NotImplementedError
        yield self

    @property
    def role(self) -> str:
        """leader, follower, candidate or pre-candidate."""
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        raise NotImplementedError

    @property
    def is_serving(self) -> bool:
        """Whether it leads, surely nobody else does, and all that was agreed before is readable."""
        raise NotImplementedError

    @property
    def leader_id(self) -> str | None:
        """Who leads, as far as known."""
        raise NotImplementedError

    @property
    def term(self) -> int:
        """The current term."""
        raise NotImplementedError

    @property
    def committed(self) -> int:
        """The physical offset up to which the log is agreed, as far as known here."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Where it listens."""
        raise NotImplementedError

    def grew(self) -> None:
        """The leader's store has appended; the store calls this by itself."""
        raise NotImplementedError

    async def transfer(self, timeout_ms: int) -> bool:
        """Hand leadership to the member that has most; whether somebody else leads now.

        True at once where this member does not lead. No put is possible from the call on.
        """
        raise NotImplementedError

    def members(self) -> list[Member]:
        """All members, this one included, in order of their ids."""
        raise NotImplementedError

    def figures(self) -> dict[str, str]:
        """The state of the group, as part of the runtime information."""
        raise NotImplementedError
