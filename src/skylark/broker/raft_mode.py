"""RaftMode: what a broker is while it is a member of a Raft group, and what changes with its role.

    role                             broker id      does
    no leader was ever known         -1             is registered nowhere
    follower, candidate              its number +1  answers reads of what is agreed
    leader that does not serve yet   its number +1  the same
    leader that serves               0              takes writes; delivers; checks transactions

A leader serves when all that was agreed before is readable and it surely is the only one
(RaftGroup.is_serving). It loses that at once, in the middle of whatever is under way: sends that
wait are answered with an error, and what it had delivered or ended and the group did not agree on
is forgotten. Services begin and end with each turn; what they know is read from the log again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, Protocol

from ..clock import Clock
from ..errors import BrokerError, StoreError
from ..protocol.codes import ResponseCode
from ..replication.raft_group import RaftConfig, RaftGroup, RaftQuorum
from ..store import MessageStore
from .config import BrokerConfig, LiveConfig
from .delay import DelayService
from .identity import Identity
from .raft_members import find_member, read_members
from .staging import StagingService
from .state_log import StateLog
from .timers import TimerService
from .transactions import TransactionService

logger = logging.getLogger(__name__)

TRANSFER_TIMEOUT_MS: Final = 3_000
PREFERENCE_LOOK_MS: Final = 5_000
NEAR_BYTES: Final = 1 << 20
BEGIN_AGAIN_MS: Final = 500


class Scope(Protocol):
    """What runs tasks; net.tasks.TaskScope does."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


def raft_config(config: BrokerConfig) -> RaftConfig:
    """What a group needs of the broker's settings."""
    members = read_members(config.d_leger_peers)
    return RaftConfig(
        group=config.raft_group,
        self_id=config.d_leger_self_id,
        peers={
            member.name: (member.address.rpartition(":")[0].strip("[]"), member.port)
            for member in members
        },
        listen_host=config.listen_host,
        heartbeat_ms=config.raft_heartbeat_interval_ms,
        election_ms=config.raft_election_timeout_ms,
        key=config.ha_cluster_key.encode() or None,
    )


class RaftMode:
    """Takes the place of Replication."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        store: MessageStore,
        group: RaftGroup,
        state: StateLog,
        clock: Clock,
        *,
        delay: DelayService,
        timers: TimerService,
        transactions: TransactionService,
        staging: StagingService,
    ) -> None:
        config = live.current
        members = read_members(config.d_leger_peers)
        self._number = find_member(members, config.d_leger_self_id, "dLegerSelfId").number
        self._self_id = config.d_leger_self_id
        self._preferred = config.preferred_leader_id
        self._identity = identity
        self._store = store
        self._clock = clock
        self.group = group
        self.state = state
        self._delay = delay
        self._timers = timers
        self._transactions = transactions
        self._staging = staging
        self._is_leading = False
        self._is_stopping = False
        self._has_seen_leader = False
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._turns = 0  # How often this member began to lead.
        # Told when the broker's id has changed, so that name servers hear of it.
        self.on_role: Callable[[], None] = lambda: None
        identity.broker_id = -1
        state.may_write = lambda: self.is_serving
        group.on_role = self._role_changed

    # What others ask.

    @property
    def is_serving(self) -> bool:
        """Whether this broker takes writes now."""
        return self._is_leading and self.group.is_serving

    @property
    def is_registered(self) -> bool:
        """Whether it goes by the id of a master."""
        return self._identity.broker_id == 0

    @property
    def sync_quorum(self) -> RaftQuorum:
        """What answers to sends wait for."""
        return self.group.quorum

    @property
    def port(self) -> int:
        """Where the other members connect."""
        return self.group.port

    def has_near_replica(self) -> bool:
        """Readers stay with the leader: followers' ids change, and clients ask for id 1."""
        return False

    def refusal(self) -> str | None:
        """Why nothing is written here; None where it is."""
        if self.is_serving:
            return None
        leader = self.group.leader_id
        if leader is None or leader == self._self_id:
            return "the Raft group has no leader now, try again in a moment"
        return f"this member of the Raft group follows {leader}: ask for the route, and send there"

    def require_serving(self) -> None:
        """Raise BrokerError unless this broker takes writes."""
        refusal = self.refusal()
        if refusal is not None:
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, f"[NOT_LEADER]{refusal}")

    # Running.

    @contextlib.asynccontextmanager
    async def running(self, scope: Scope) -> AsyncIterator[None]:
        """Take part in the group, and be what it makes of this broker."""
        try:
            async with self.group.running():
                following = scope.spawn(self._follow_role(scope))
                tasks = (following, scope.spawn(self.state.run()), scope.spawn(self._prefer()))
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
        finally:
            # Nobody took over: the group has ended, and the store takes no more writes.
            if self._is_leading:
                self._end_leading()
            await self._end_tasks()

    async def transfer(self) -> None:
        """Let somebody else lead before this broker stops."""
        self._is_stopping = True
        if not self.group.is_leader:
            return
        if await self.group.transfer(TRANSFER_TIMEOUT_MS):
            logger.info("leadership handed over to %s", self.group.leader_id)
        else:
            logger.warning("nobody took leadership over within %d ms", TRANSFER_TIMEOUT_MS)

    async def _prefer(self) -> None:
        """Let the preferred member lead once it has nearly everything."""
        while True:
            await self._clock.sleep_ms(PREFERENCE_LOOK_MS)
            if not self.is_serving or self._preferred in ("", self._self_id):
                continue
            for member in self.group.members():
                lag = self._store.log.appended - member.position
                if member.id == self._preferred and member.is_voter and lag < NEAR_BYTES:
                    logger.info("member=%s is preferred, and has caught up", member.id)
                    await self.group.transfer(TRANSFER_TIMEOUT_MS, to=member.id)

    def _role_changed(self) -> None:
        """Called by the group, on the loop, at any time."""
        if self.group.leader_id is not None:
            self._has_seen_leader = True
        if self._is_leading and not self.group.is_serving:
            self._end_leading()
        if not self._is_leading:
            self._be(self._number + 1 if self._has_seen_leader else -1)
        self._wake.set()

    def _be(self, broker_id: int) -> None:
        term = self.group.term if broker_id == 0 else None
        if (broker_id, term) != (self._identity.broker_id, self._identity.leader_term):
            self._identity.broker_id, self._identity.leader_term = broker_id, term
            self.on_role()

    async def _follow_role(self, scope: Scope) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._is_leading:
                await self._end_tasks()
                if await self._may_begin():
                    self._begin_leading(scope)
            if self.is_serving and not self.is_registered:
                try:
                    await self.state.begun()
                except BrokerError as error:
                    logger.warning("term=%d not begun: %s", self.group.term, error.remark)
                    await self._clock.sleep_ms(BEGIN_AGAIN_MS)
                    self._wake.set()
                else:
                    self._be(0)

    async def _may_begin(self) -> bool:
        """Find what is staged; whether this broker then leads, in the term in which it began.

        Where much is staged that takes seconds, in which heartbeats have to go on.
        """
        if not self.group.is_serving or self._is_stopping:
            return False
        term = self.group.term
        try:
            for _ in self._staging.loading():
                await self._clock.sleep_ms(0)
                if not self.group.is_serving or self.group.term != term:
                    break
        except (BrokerError, StoreError) as error:
            logger.error("term=%d begins with a problem: %s", term, error)
        may = self.group.is_serving and self.group.term == term and not self._is_stopping
        if not may:
            self._staging.clear()
        return may

    def _begin_leading(self, scope: Scope) -> None:
        self._is_leading = True
        self._turns += 1
        logger.info("term=%d begins, this broker leads", self.group.term)
        self.state.begin_leading()
        try:
            self._transactions.load()
        except (BrokerError, StoreError) as error:
            # The disk is full, say: reads go on, and writes are refused for that reason.
            logger.error("term=%d begins with a problem: %s", self.group.term, error)
        self._timers.begin_leading()
        self._tasks = [
            scope.spawn(self._delay.run()),
            scope.spawn(self._transactions.run()),
            scope.spawn(self._staging.run()),
        ]

    def _end_leading(self) -> None:
        """Take back what is not agreed; the tasks end a moment later."""
        self._is_leading = False
        logger.info("this broker does not lead any more")
        for task in self._tasks:
            task.cancel()
        # They forget what they know, since the store is a replica's now.
        assert self._store.is_replica
        self.state.end_leading()
        self._transactions.load()
        self._staging.clear()
        self._timers.read_again()

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # For operators.

    def figures(self) -> dict[str, str]:
        """The state of the group, as part of the runtime information."""
        return {
            **self.group.figures(),
            "haRole": "RAFT_LEADER" if self.is_serving else "RAFT_FOLLOWER",
            "raftBrokerId": str(self._identity.broker_id),
            "raftTurnsAsLeader": str(self._turns),
            "raftStateApplied": str(self.state.applied),
        }
