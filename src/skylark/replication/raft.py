"""Raft: who leads, and what is agreed; no sockets, no disk, no clock.

    raft.tick()                    some time has passed
    raft.step(message)             a message came
    raft.propose(data)             the leader's user wants something agreed
    ready = raft.ready()           then: what is to be done, in this order:
        1. make ready.hard_state and the log up to ready.sync durable
        2. send ready.messages
        3. apply ready.committed
        raft.advance(ready)        done

Nothing is promised before it is durable, because promises are messages, and messages come second.
The leader counts itself among those who have an entry only after its own disk has it.

    # applied <= committed <= last; committed never goes back, and nothing below it is ever cut.

Beyond the paper:

    pre-vote        a candidate first asks whether it would win, without a new term; so one that was
                    cut off for long comes back without unseating anybody
    stickiness      who has heard of a leader within an election time-out gives no vote
    check quorum    a leader that hears of no majority within an election time-out steps down
    transfer        a leader that stops hands over to one that has everything
    lost disks      a member that has lost its log follows and counts, and gives no vote: it cannot
                    know what it once promised, and a vote of its former life may still be on its
                    way; readmit() is for when that cannot be any more

Time is counted in ticks, which come from a monotonic clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

ENTRIES_MAX = 64  # In one message.
UNCONFIRMED_MAX = 1024  # Entries on the way to one peer.


class Role(Enum):
    """What a member is."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Kind(Enum):
    """What a message is."""

    PRE_VOTE = "pre-vote"
    PRE_VOTE_ANSWER = "pre-vote answer"
    VOTE = "vote"
    VOTE_ANSWER = "vote answer"
    APPEND = "append"
    APPEND_ANSWER = "append answer"
    TIMEOUT_NOW = "timeout now"


class Entry(NamedTuple):
    """One thing to agree on; without data it marks the beginning of a term."""

    at: int  # Its index; the first one has 1.
    term: int
    data: bytes


class HardState(NamedTuple):
    """What must be on the disk before a message says so."""

    term: int
    vote: int | None
    may_vote: bool


class Message(NamedTuple):
    """Between two members; fields that a kind does not use are left alone."""

    kind: Kind
    source: int
    target: int
    term: int
    at: int = 0  # An index. Votes: the last. Append: the one before. Answer: match, or a hint.
    log_term: int = 0  # Of that entry.
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    ok: bool = False
    is_transfer: bool = False


class RaftLog(Protocol):
    """The entries; what append() and truncate() did is durable when ready.sync has been."""

    @property
    def last_index(self) -> int:
        """0 where there is none."""
        ...

    def term_at(self, index: int) -> int:
        """The term of an entry; 0 at index 0."""
        ...

    def entries(self, first: int, last: int) -> Sequence[Entry]:
        """Those from first to last, both included."""
        ...

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries behind the last one."""
        ...

    def truncate(self, first: int) -> None:
        """Drop all from an index on."""
        ...


class MemoryLog:
    """A RaftLog in memory."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.items = list(entries)

    @property
    def last_index(self) -> int:
        return len(self.items)

    def term_at(self, index: int) -> int:
        return self.items[index - 1].term if index else 0

    def entries(self, first: int, last: int) -> Sequence[Entry]:
        return self.items[first - 1 : last]

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            assert entry.at == len(self.items) + 1
            self.items.append(entry)

    def truncate(self, first: int) -> None:
        del self.items[first - 1 :]


class Ready(NamedTuple):
    """What is to be done, in this order."""

    hard_state: HardState | None
    sync: int | None  # Make the log durable up to here; None if it is.
    sync_term: int  # The term of that entry.
    messages: list[Message]
    committed: Sequence[Entry]


@dataclass(slots=True)
class _Peer:
    """What a leader knows of another member."""

    next: int  # The entry to send next.
    match: int = 0  # It has everything up to here, for certain.
    is_probing: bool = True  # One message at a time, until it is known where logs agree.
    was_heard: bool = True  # Since the last look.


class Raft:
    """One member of a group."""

    def __init__(
        self,
        own_id: int,
        members: Iterable[int],
        log: RaftLog,
        rng: random.Random,
        *,
        hard_state: HardState | None = None,
        election_ticks: int = 10,
        heartbeat_ticks: int = 1,
    ) -> None:
        """Without a hard state it is a member of a new group; see lost_disk() otherwise."""
        self.id = own_id
        self.members = tuple(sorted(members))
        assert own_id in self.members
        self.log = log
        self._rng = rng
        self._election_ticks = election_ticks
        self._heartbeat_ticks = heartbeat_ticks
        state = hard_state or HardState(0, None, True)
        self.term, self.vote, self.may_vote = state
        self._saved = state
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.committed = 0
        self.applied = 0
        self._stable = log.last_index  # Our own disk has the log up to here.
        self._peers: dict[int, _Peer] = {}
        self._votes: set[int] = set()
        self._messages: list[Message] = []
        self._elapsed = 0
        self._quorum_elapsed = 0
        self._timeout = 0
        self._transfer_to: int | None = None
        self._steps = {
            Kind.PRE_VOTE: self._on_pre_vote,
            Kind.PRE_VOTE_ANSWER: self._on_pre_vote_answer,
            Kind.VOTE: self._on_vote,
            Kind.VOTE_ANSWER: self._on_vote_answer,
            Kind.APPEND: self._on_append,
            Kind.APPEND_ANSWER: self._on_append_answer,
            Kind.TIMEOUT_NOW: self._on_timeout_now,
        }
        self._draw_timeout()

    @property
    def majority(self) -> int:
        """How many members decide."""
        return len(self.members) // 2 + 1

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.role is Role.LEADER

    @property
    def last_term(self) -> int:
        """The term of the last entry; not that of the last election."""
        return self.log.term_at(self.log.last_index)

    def lost_disk(self) -> None:
        """This member had a log and lost it; called once, before anything else."""
        assert self.log.last_index == 0
        self.may_vote = False

    def readmit(self) -> None:
        """Let it vote again: whoever calls this knows that no old vote of it can still arrive."""
        self.may_vote = True

    # What is to be done.

    def ready(self) -> Ready:
        """Everything that has to be done now."""
        state = HardState(self.term, self.vote, self.may_vote)
        last = self.log.last_index
        messages, self._messages = self._messages, []
        end = min(self.committed, last)
        committed = self.log.entries(self.applied + 1, end) if end > self.applied else ()
        return Ready(
            state if state != self._saved else None,
            last if last != self._stable else None,
            self.log.term_at(last),
            messages,
            committed,
        )

    def advance(self, ready: Ready) -> None:
        """What ready() said has been done."""
        if ready.hard_state is not None:
            self._saved = ready.hard_state
        if ready.committed:
            self.applied = ready.committed[-1].at
        if ready.sync is not None:
            at = min(ready.sync, self.log.last_index)
            # The log may have been cut meanwhile, and begun anew below.
            if at == ready.sync and self.log.term_at(at) == ready.sync_term:
                self._stable = at
                self._maybe_commit()

    # Events.

    def tick(self) -> None:
        """Some time has passed."""
        self._elapsed += 1
        if self.is_leader:
            self._quorum_elapsed += 1
            if self._quorum_elapsed >= self._election_ticks:
                self._check_quorum()
            if self.is_leader and self._elapsed >= self._heartbeat_ticks:
                self._elapsed = 0
                for peer in self._peers:
                    self._send_append(peer, is_heartbeat=True)
        elif self._elapsed >= self._timeout and self.may_vote:
            self._pre_campaign()

    def propose(self, data: bytes) -> int | None:
        """Let the leader add an entry; return its index, or None if this is not the leader."""
        if not self.is_leader or self._transfer_to is not None:
            return None
        index = self.log.last_index + 1
        self.log.append((Entry(index, self.term, data),))
        for peer in self._peers:
            self._send_append(peer)
        return index

    def transfer(self, to: int) -> None:
        """Hand leadership over; proposals are refused until it has worked, or taken too long."""
        assert to in self.members
        if self.is_leader and to != self.id:
            self._transfer_to = to
            self._quorum_elapsed = 0
            self._maybe_transfer()

    def step(self, message: Message) -> None:
        """A message came."""
        if message.source not in self.members or message.target != self.id:
            return
        kind = message.kind
        if message.term > self.term:
            if kind is Kind.PRE_VOTE or (kind is Kind.PRE_VOTE_ANSWER and message.ok):
                pass  # Of a term that does not exist yet.
            elif kind is Kind.VOTE and self._has_live_leader and not message.is_transfer:
                return
            else:
                leader = message.source if kind is Kind.APPEND else None
                self._become_follower(message.term, leader)
        elif message.term < self.term:
            if kind in (Kind.APPEND, Kind.VOTE, Kind.PRE_VOTE):
                answer = {
                    Kind.APPEND: Kind.APPEND_ANSWER,
                    Kind.VOTE: Kind.VOTE_ANSWER,
                    Kind.PRE_VOTE: Kind.PRE_VOTE_ANSWER,
                }[kind]
                # So that a leader of the past, or one who wants to be, learns of the present.
                self._send(answer, message.source)
            return
        self._steps[kind](message)

    # Elections.

    @property
    def _has_live_leader(self) -> bool:
        if self.is_leader:
            return True  # Its quorum is checked.
        return self.leader is not None and self._elapsed < self._election_ticks

    def _draw_timeout(self) -> None:
        self._timeout = self._election_ticks + self._rng.randrange(self._election_ticks)

    def _become_follower(self, term: int, leader: int | None) -> None:
        if term > self.term:
            self.term, self.vote = term, None
        self.role, self.leader = Role.FOLLOWER, leader
        self._elapsed = 0
        self._transfer_to = None
        self._peers = {}
        self._draw_timeout()

    def _pre_campaign(self) -> None:
        self.role, self.leader = Role.PRE_CANDIDATE, None
        self._elapsed = 0
        self._draw_timeout()
        self._votes = {self.id}
        self._ask_for_votes(Kind.PRE_VOTE, self.term + 1)
        if len(self._votes) >= self.majority:
            self._campaign()

    def _campaign(self, *, is_transfer: bool = False) -> None:
        self.term += 1
        self.vote = self.id
        self.role, self.leader = Role.CANDIDATE, None
        self._elapsed = 0
        self._draw_timeout()
        self._votes = {self.id}
        self._ask_for_votes(Kind.VOTE, self.term, is_transfer=is_transfer)
        if len(self._votes) >= self.majority:
            self._become_leader()

    def _ask_for_votes(self, kind: Kind, term: int, *, is_transfer: bool = False) -> None:
        for member in self.members:
            if member != self.id:
                self._messages.append(
                    Message(
                        kind, self.id, member, term, self.log.last_index, self.last_term,
                        is_transfer=is_transfer,
                    )
                )  # fmt: skip

    def _is_up_to_date(self, message: Message) -> bool:
        """Whether a candidate's log has at least what ours has."""
        return (message.log_term, message.at) >= (self.last_term, self.log.last_index)

    def _on_pre_vote(self, message: Message) -> None:
        ok = (
            message.term > self.term
            and self.may_vote
            and not self._has_live_leader
            and self._is_up_to_date(message)
        )
        self._send(
            Kind.PRE_VOTE_ANSWER, message.source, term=message.term if ok else self.term, ok=ok
        )

    def _on_pre_vote_answer(self, message: Message) -> None:
        if self.role is Role.PRE_CANDIDATE and message.ok and message.term == self.term + 1:
            self._votes.add(message.source)
            if len(self._votes) >= self.majority:
                self._campaign()

    def _on_vote(self, message: Message) -> None:
        ok = (
            self.may_vote
            and self.vote in (None, message.source)
            and self.role is Role.FOLLOWER
            and self._is_up_to_date(message)
        )
        if ok:
            self.vote = message.source
            self._elapsed = 0
        self._send(Kind.VOTE_ANSWER, message.source, ok=ok)

    def _on_vote_answer(self, message: Message) -> None:
        if self.role is Role.CANDIDATE and message.ok:
            self._votes.add(message.source)
            if len(self._votes) >= self.majority:
                self._become_leader()

    def _on_timeout_now(self, message: Message) -> None:
        if self.role is Role.FOLLOWER and self.may_vote:
            self._campaign(is_transfer=True)

    def _become_leader(self) -> None:
        self.role, self.leader = Role.LEADER, self.id
        self._elapsed = self._quorum_elapsed = 0
        self._transfer_to = None
        last = self.log.last_index
        self._peers = {m: _Peer(last + 1) for m in self.members if m != self.id}
        # Entries of former terms are committed through one of this term, never by counting them.
        self.log.append((Entry(last + 1, self.term, b""),))
        for peer in self._peers:
            self._send_append(peer)

    def _check_quorum(self) -> None:
        self._quorum_elapsed = 0
        self._transfer_to = None  # It has taken too long.
        heard = 1 + sum(peer.was_heard for peer in self._peers.values())
        for peer in self._peers.values():
            peer.was_heard = False
        if heard < self.majority:
            self._become_follower(self.term, None)

    # The log, as a leader.

    def _send(
        self, kind: Kind, to: int, *, term: int | None = None, ok: bool = False, index: int = 0
    ) -> None:
        term = self.term if term is None else term
        self._messages.append(Message(kind, self.id, to, term, index, ok=ok))

    def _send_append(self, to: int, *, is_heartbeat: bool = False) -> None:
        peer = self._peers[to]
        last = self.log.last_index
        entries: Sequence[Entry] = ()
        # While probing, only heartbeats and answers set the pace.
        is_free = is_heartbeat or not peer.is_probing or peer.next == last
        if peer.next <= last and is_free and peer.next - peer.match <= UNCONFIRMED_MAX:
            count = 1 if peer.is_probing else ENTRIES_MAX
            entries = self.log.entries(peer.next, min(last, peer.next + count - 1))
        elif not is_heartbeat:
            return
        before = peer.next - 1
        self._messages.append(
            Message(
                Kind.APPEND, self.id, to, self.term, before, self.log.term_at(before),
                tuple(entries), min(self.committed, last),
            )
        )  # fmt: skip
        if not peer.is_probing:
            peer.next += len(entries)

    def _on_append_answer(self, message: Message) -> None:
        if not self.is_leader:
            return
        peer = self._peers[message.source]
        peer.was_heard = True
        if not message.ok:
            if peer.is_probing or peer.match <= message.at < peer.next - 1:
                peer.next = max(peer.match + 1, min(message.at + 1, peer.next))
                peer.is_probing = True
                self._send_append(message.source, is_heartbeat=True)
            return
        peer.is_probing = False
        if message.at > peer.match:
            peer.match = min(message.at, self.log.last_index)
            self._maybe_commit()
        peer.next = max(peer.next, peer.match + 1)
        if peer.next <= self.log.last_index:
            self._send_append(message.source)
        self._maybe_transfer()

    def _maybe_commit(self) -> None:
        if not self.is_leader:
            return
        matches = sorted([self._stable, *(peer.match for peer in self._peers.values())])
        agreed = matches[len(matches) - self.majority]
        if agreed > self.committed and self.log.term_at(agreed) == self.term:
            self.committed = agreed

    def _maybe_transfer(self) -> None:
        to = self._transfer_to
        if to is not None and self._peers[to].match == self.log.last_index:
            self._send(Kind.TIMEOUT_NOW, to)

    # The log, as a follower.

    def _on_append(self, message: Message) -> None:
        assert not self.is_leader, f"two leaders in term {self.term}"
        self.role, self.leader = Role.FOLLOWER, message.source
        self._elapsed = 0
        log = self.log
        before = message.at
        if before < self.committed and before + len(message.entries) <= self.committed:
            self._answer_append(message, self.committed)
            return
        if before > log.last_index or log.term_at(before) != message.log_term:
            self._send(Kind.APPEND_ANSWER, message.source, index=self._hint(message))
            return
        for place, entry in enumerate(message.entries):
            if entry.at > log.last_index:
                log.append(message.entries[place:])
                break
            if log.term_at(entry.at) != entry.term:
                assert entry.at > self.committed, "a committed entry would be cut"
                log.truncate(entry.at)
                self._stable = min(self._stable, entry.at - 1)
                log.append(message.entries[place:])
                break
        matched = before + len(message.entries)
        # Never beyond what is known to be the leader's: the rest of our log may be another's.
        self.committed = max(self.committed, min(message.commit, matched))
        self._answer_append(message, matched)

    def _answer_append(self, message: Message, matched: int) -> None:
        self._send(Kind.APPEND_ANSWER, message.source, ok=True, index=matched)

    def _hint(self, message: Message) -> int:
        """Up to where our log may be the same, at best: whole terms are passed over at once."""
        index = min(message.at - 1, self.log.last_index)
        while index > self.committed and self.log.term_at(index) > message.log_term:
            index -= 1
        return index
