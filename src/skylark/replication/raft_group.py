"""RaftGroup: one member of a group that agrees on a commit log.

    group = RaftGroup(config, store, flusher, files=…, clock=…, network=…, rng=…, random_bytes=…)
    async with group.running():
        …

The store must be open with SYNC_FLUSH and `is_member=True` (MessageStore.open), the flusher must
run before the group does and until after it. While there is a group it owns `store.is_replica`:
puts are possible only while `is_serving`. It sets `store.on_grew`, so nobody needs to call grew().

    appended ──▶ sent to the others, while our own disk syncs ──▶ agreed ──▶ visible, acknowledged

Everything happens on the loop, and nothing waits but one thing: a log is cut while no flush is
under way, so messages that would cut it stand in line until then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

from ..clock import Clock
from ..errors import (
    ConfigError,
    CorruptRecord,
    LocalProtocolError,
    RemoteProtocolError,
    StoreError,
    StoreFull,
)
from ..protocol.record import pack_host
from ..store import Files, MessageStore
from .raft import Raft, Role
from .raft_config import HEARTBEAT_TICKS
from .raft_config import RaftConfig as RaftConfig
from .raft_links import LinkSettings, Network, RaftLinks
from .raft_log import HardState, Message
from .raft_quorum import RaftQuorum as RaftQuorum
from .raft_store import MemberState, StoreLog
from .raft_wire import FRAME_BYTES_MAX, HEAD_BYTES

logger = logging.getLogger(__name__)

_ELECTION_TICKS_MIN: Final = 5
_FULL_RETRY_MS: Final = 60_000
_SHOW_BYTES: Final = 4 << 20


class FlushWaiter(Protocol):
    """What is asked of the flusher."""

    def flushed(self, offset: int) -> asyncio.Future[bool]: ...

    def paused(self) -> AbstractAsyncContextManager[None]: ...


class Member(NamedTuple):
    """What is known of one member."""

    id: str
    address: str
    position: int  # How far its log is known to agree; -1 if this member does not know.
    is_voter: bool
    heard_ms: int  # How long ago it was heard of; 0 for oneself, -1: never.


class _Status(NamedTuple):
    role: Role
    term: int
    leader: str | None
    is_serving: bool


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
        """Read what is on the disk; raises StoreError where it does not fit, ConfigError."""
        assert store.agreed is not None, "the store is not that of a member"
        if store.config.record_bytes_max > FRAME_BYTES_MAX - HEAD_BYTES:
            raise ConfigError(
                f"maxMessageSize: a Raft group takes at most {FRAME_BYTES_MAX >> 20} MiB"
            )
        self.config = config
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._member = MemberState(
            store.config.store_path_root_dir, files, group=config.group, own_id=config.self_id
        )
        own_host, own_port = config.peers[config.self_id]
        self.log = StoreLog(
            store,
            files,
            store_host=_packed(own_host, own_port),
            now_ms=clock.now_ms,
            tail_bytes_max=config.diverged_bytes_max,
        )
        self.log.before_cut = self._member.lower
        self.raft = Raft(
            config.self_id,
            config.peers,
            self.log,
            rng,
            hard_state=self._load_state(),
            committed=min(store.agreed, self.log.last),
            election_ticks=max(_ELECTION_TICKS_MIN, config.election_ms // config.tick_ms),
            heartbeat_ticks=HEARTBEAT_TICKS,
        )
        self.links = RaftLinks(
            LinkSettings(
                group=config.group,
                own_id=config.self_id,
                peers=config.peers,
                listen_host=config.listen_host,
                key=config.key,
                silence_ms=config.silence_ms,
            ),
            network,
            clock,
            random_bytes,
            self._heard,
        )
        self.quorum = RaftQuorum(self.raft)
        # Called on the loop whenever role, leader, term or is_serving has changed.
        self.on_role: Callable[[], None] = lambda: None
        self._inbox: deque[Message] = deque()
        self._wants_pause = asyncio.Event()
        self._is_pausing = False
        self._is_growing = False
        self._is_showing = False
        self._flushing: asyncio.Future[bool] | None = None
        self._flush_end = 0
        self._ticked_ms = clock.monotonic_ms()
        self._serve_from = 0  # Everything below must be visible before puts are possible.
        self._is_leaving = False
        self._is_running = False
        self._changed = asyncio.Event()
        self._led_term = 0  # The term in which those who wait have put.
        self._status = _Status(Role.FOLLOWER, self.raft.term, None, is_serving=False)
        self._failure = ""
        self._disk_problem = ""
        self._full_until_ms = 0
        self.elections_total = 0
        store.is_replica = True

    def _load_state(self) -> HardState | None:
        state = self._member.load()
        log, lost = self.log, self._store.recovery.lost_flushed_bytes
        root = self._store.config.store_path_root_dir
        if state is None:
            if log.has_terms and not log.is_empty and log.terms.numbers[-1] > 0:
                raise CorruptRecord(
                    f"{root}/config has raftTerms.json and no raftMember.json: move this store "
                    "away and start with an empty one; or remove the first as well, to begin a new "
                    "group from this store"
                )
            return None
        if not log.has_terms:
            log.find_terms()
        if state.may_vote and (lost or log.last < self._member.log_end):
            logger.error(
                "the log ends at %d and was longer: this member gives no vote until it has all "
                "again", log.last,
            )  # fmt: skip
            state = state._replace(may_vote=False)
            self._member.save(state, log.last)
        return state

    # Running.

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RaftGroup]:
        """Listen, connect, take part."""
        self._is_running = True
        self._ticked_ms = self._clock.monotonic_ms()
        self._store.on_grew = self.grew
        try:
            async with self.links.running(), asyncio.TaskGroup() as duties:
                tasks = [
                    duties.create_task(self._tick_for_ever(), name="raft ticks"),
                    duties.create_task(self._cut_for_ever(), name="raft cuts"),
                ]
                self._work()
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()
        except BaseExceptionGroup as errors:
            # Errors of the body come out as they went in.
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from None
        finally:
            self._is_running = False
            self._store.on_grew = None
            self._store.is_replica = True
            self.quorum.advance(is_lost=True)

    async def _tick_for_ever(self) -> None:
        tick_ms = self.config.tick_ms
        while True:
            await self._clock.sleep_ms(tick_ms)
            count = (self._clock.monotonic_ms() - self._ticked_ms) // tick_ms
            self._ticked_ms += count * tick_ms
            if self._store.failure is not None:
                self._fail(str(self._store.failure))
            if not self.raft.is_leader:
                # One that stood still has heard nobody for that reason.
                count = min(count, HEARTBEAT_TICKS)
            for _ in range(count):
                self._do(self.raft.tick)
            self._leave_if_full()
            self._work()

    def _leave_if_full(self) -> None:
        """A leader without room lets one lead that may have some; now and then, if none has."""
        now_ms = self._clock.monotonic_ms()
        if self.is_leader and self._store.is_disk_full and now_ms >= self._full_until_ms:
            self._full_until_ms = now_ms + _FULL_RETRY_MS
            if (to := self._successor(None)) is not None:
                self._do(lambda: self.raft.transfer(to))

    def _do(self, what: Callable[[], None]) -> None:
        """Let the core do something that may write."""
        if self._failure:
            return
        try:
            what()
        except StoreFull as error:
            self._disk_problem = str(error)
        except StoreError as error:
            self._fail(str(error))
        except AssertionError as error:
            self._fail(f"a broken invariant: {error}")
            raise

    def _fail(self, problem: str) -> None:
        """Take no part any more: what this member says could not be relied upon."""
        if not self._failure:
            self._failure = problem
            logger.error("this member leaves its group alone from now on: %s", problem)
            self._inbox.clear()
            self._note_status()

    # Messages.

    def _heard(self, source: str, messages: list[Message]) -> None:
        """Members have said something; raises RemoteProtocolError for what none says."""
        if self._failure:
            return
        try:
            for message in messages:
                if message.chunk is not None:
                    message = message._replace(chunk=self.log.check(message.chunk))
                self._inbox.append(message)
        finally:
            if not self._is_pausing:
                self._drain()

    def _drain(self) -> None:
        """Take what is in the inbox, up to what would cut the log."""
        inbox = self._inbox
        while inbox:
            if self.raft.needs_cut(inbox[0]):
                self._is_pausing = True
                self._wants_pause.set()
                break
            self._step(inbox.popleft())
        self._work()

    def _step(self, message: Message) -> None:
        try:
            self._do(lambda: self.raft.step(message))
        except RemoteProtocolError as error:
            self.links.refuse(message.source, str(error))

    async def _cut_for_ever(self) -> None:
        """Step what cuts the log, while no flush is under way."""
        while True:
            await self._wants_pause.wait()
            self._wants_pause.clear()
            async with self._flusher.paused():
                if self._inbox:
                    self._step(self._inbox.popleft())
                if self._flush_end > self._store.log.appended:
                    self._flushing = None  # That place will not be reached.
            self._is_pausing = False
            self._drain()

    def grew(self) -> None:
        """The leader's store has appended; the store calls this by itself."""
        if not self._is_growing and self.raft.is_leader:
            self._is_growing = True
            asyncio.get_running_loop().call_soon(self._grew)

    def _grew(self) -> None:
        self._is_growing = False
        if self._is_running:
            self._do(self.raft.grew)
            self._work()

    # What is to be done.

    def _work(self) -> None:
        """Do what is ready: save, send, show."""
        if self._failure:
            return
        raft, store = self.raft, self._store
        ready = raft.ready()
        try:
            if ready.hard_state is not None:
                if not self.log.has_terms:
                    self.log.save_terms()
                self._member.save(ready.hard_state, min(self.log.last, store.log.flushed))
        except StoreFull as error:
            # Nothing was promised, since nothing is sent; the next tick tries again.
            self._disk_problem = str(error)
            return
        except StoreError as error:
            self._fail(str(error))
            return
        if ready.hard_state is not None:
            self._disk_problem = ""
        self.links.send(ready.messages)
        raft.advance(ready)
        self._watch_disk()
        self._show()
        self._note_status()
        self.quorum.advance()

    def _show(self) -> None:
        """Make visible what is agreed; much of it at once only in steps, between which others run.

        After a restart of all members that may be a minute's worth of messages.
        """
        store = self._store
        assert store.agreed is not None
        end = min(self.raft.committed, store.agreed + _SHOW_BYTES)
        if end > store.agreed:
            self._do(lambda: store.agree(end))
            if end < self.raft.committed and not self._is_showing:
                self._is_showing = True
                asyncio.get_running_loop().call_soon(self._show_more)

    def _show_more(self) -> None:
        self._is_showing = False
        if self._is_running:
            self._work()

    def _watch_disk(self) -> None:
        """Have the core told when our own disk has more of the log."""
        log = self._store.log
        if self._flushing is None and log.appended > log.flushed:
            self._flush_end = log.appended
            self._flushing = self._flusher.flushed(log.appended)
            self._flushing.add_done_callback(self._flushed)

    def _flushed(self, done: asyncio.Future[bool]) -> None:
        if done is not self._flushing:
            return
        self._flushing = None
        if done.cancelled() or not self._is_running:
            return
        error = done.exception()
        if error is not None:
            self._fail(str(error))
            return
        self._disk_problem = ""
        self._do(lambda: self.raft.synced(self._store.log.flushed))
        self._work()

    # Roles.

    def _note_status(self) -> None:
        """Find out what has changed, and say so."""
        raft, before = self.raft, self._status
        is_leader = raft.is_leader and not self._failure
        if is_leader and self._led_term != raft.term:
            self._led_term = raft.term
            self._serve_from = self._store.log.appended
            self.elections_total += 1
        serves = (
            is_leader
            and not self._is_leaving
            and raft.lease_ticks > 0
            and self._store.dispatcher.position >= self._serve_from
        )
        if before.is_serving and not serves:
            # What was put and is not agreed must be, before anybody reads what to continue.
            self._serve_from = self._store.log.appended
        self._store.is_replica = not serves
        role = Role.FOLLOWER if self._failure else raft.role
        leader = None if self._failure else raft.leader
        self._status = _Status(role, raft.term, leader, serves)
        if before.role is Role.LEADER and (role is not Role.LEADER or raft.term != before.term):
            self.quorum.advance(is_lost=True)
        if self._status != before:
            if (role, leader, raft.term) != (before.role, before.leader, before.term):
                logger.info("term=%d role=%s leader=%s", raft.term, role.value, leader)
            self._changed.set()
            self._changed = asyncio.Event()
            self.on_role()

    @property
    def role(self) -> str:
        """leader, follower, candidate or pre-candidate."""
        return self._status.role.value

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._status.role is Role.LEADER

    @property
    def is_serving(self) -> bool:
        """Whether it leads, surely nobody else does, and all that was agreed before is readable."""
        if not self._status.is_serving:
            return False
        # This process may have stood still.
        late_ms = self._clock.monotonic_ms() - self._ticked_ms
        return late_ms // self.config.tick_ms < self.raft.lease_ticks

    @property
    def leader_id(self) -> str | None:
        """Who leads, as far as known."""
        return self._status.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self.raft.term

    @property
    def committed(self) -> int:
        """The physical offset up to which the log is agreed, as far as known here."""
        return self.raft.committed

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.links.port

    @property
    def problem(self) -> str:
        """What keeps this member from taking part, for operators; empty if nothing does."""
        refused = "; ".join(f"{who}: {why}" for who, why in sorted(self.links.refused_by.items()))
        return self._failure or self.raft.problem or self._disk_problem or refused

    @property
    def last_refusal(self) -> str:
        """Who was sent away last, and why."""
        return self.links.last_refusal

    # Handing over.

    async def transfer(self, timeout_ms: int, *, to: str | None = None) -> bool:
        """Hand leadership over, to the member that has most unless told; whether another leads now.

        True at once where this member does not lead. No put is possible from the call on, unless
        nobody takes over.
        """
        if not self.is_leader:
            return True
        self._is_leaving = True
        self._note_status()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.is_leader or self.leader_id is None:
                    changed = self._changed
                    if self.is_leader and not self.raft.is_transferring:
                        next_one = self._successor(to)
                        if next_one is None:
                            return False
                        self._do(lambda to=next_one: self.raft.transfer(to))  # type: ignore[misc]
                        self._work()
                    await _first(changed, self._clock.sleep_ms(self.config.heartbeat_ms))
            return True
        except TimeoutError:
            return False
        finally:
            self._is_leaving = False
            self._note_status()

    def _successor(self, wanted: str | None) -> str | None:
        """The member that is wanted, or that has most of the log; it must be reachable."""
        found = [
            (peer.match, name)
            for name, peer in self.raft.peers.items()
            if peer.is_voter and not peer.is_probing and self.links.is_linked(name)
            if wanted in (None, name)
        ]
        return max(found)[1] if found else None

    # For operators.

    def members(self) -> list[Member]:
        """All members, this one included, in order of their ids."""
        now_ms = self._clock.monotonic_ms()
        found = []
        for name, (host, port) in sorted(self.config.peers.items()):
            if name == self.config.self_id:
                found.append(Member(name, f"{host}:{port}", self.log.last, self.raft.may_vote, 0))
                continue
            peer = self.raft.peers.get(name)
            heard_ms = self.links.heard_ms.get(name)
            found.append(
                Member(
                    name,
                    f"{host}:{port}",
                    -1 if peer is None else peer.match,
                    peer is None or peer.is_voter,
                    -1 if heard_ms is None else now_ms - heard_ms,
                )
            )
        return found

    def figures(self) -> dict[str, str]:
        """The state of the group, as part of the runtime information."""
        items = {
            "raftGroup": self.config.group,
            "raftSelfId": self.config.self_id,
            "raftRole": self.role,
            "raftTerm": str(self.term),
            "raftLeader": self.leader_id or "",
            "raftIsServing": "true" if self.is_serving else "false",
            "raftMayVote": "true" if self.raft.may_vote else "false",
            "raftCommitted": str(self.committed),
            "raftLogEnd": str(self.log.last),
            "raftElections": str(self.elections_total),
            "raftSentBytes": str(self.links.sent_bytes),
            "raftRefused": str(self.links.refused_total),
            "raftMembers": ", ".join(
                f"{m.id}={m.address} at {m.position}" + ("" if m.is_voter else " (no vote)")
                for m in self.members()
            ),
        }
        for name, peer in sorted(self.raft.peers.items()):
            if peer.problem:
                items[f"raftProblem-{name}"] = peer.problem
        if self.problem:
            items["raftProblem"] = self.problem
        if self.last_refusal:
            items["raftLastRefusal"] = self.last_refusal
        return items


async def _first(changed: asyncio.Event, sleeping: Coroutine[Any, Any, None]) -> None:
    """Wait for a change, or for as long as a sleep takes."""
    tasks = {asyncio.ensure_future(changed.wait()), asyncio.ensure_future(sleeping)}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _packed(host: str, port: int) -> bytes:
    """An address as records of ours hold it: IPv4; any other one is of no use there."""
    try:
        packed = pack_host(host, port)
    except LocalProtocolError:  # A name.
        packed = b""
    return packed if len(packed) == 8 else pack_host("127.0.0.1", port)
