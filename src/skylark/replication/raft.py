"""Raft: who leads, and what is agreed; no sockets, no disk, no clock.

    raft.tick()                    some time has passed
    raft.step(message)             a message came
    raft.grew()                    the leader's log is longer
    raft.synced(position)          our own disk has the log up to here
    ready = raft.ready()           then: what is to be done, in this order:
        1. make ready.hard_state durable
        2. send ready.messages
        3. ready.committed is agreed
        raft.advance(ready)        done

Nothing is promised before it is durable: the answer to records comes out of synced(), and a vote is
a message, which comes second. The leader sends records on before its own disk has them, and counts
itself only when it does.

    # start <= committed <= last; committed never goes back, and nothing below it is ever cut.

Beyond the paper:

    positions       the log is counted in bytes, not in entries; see raft_log.py
    pre-vote        a candidate first asks whether it would win, without a new term; so one that was
                    cut off for long comes back without unseating anybody
    stickiness      who has heard of a leader within an election time-out gives no vote, nor does
                    one that was started within it: it may have heard of one before
    check quorum    a leader that hears of no majority within an election time-out steps down
    lease           as long as a majority has answered what was sent within that time, nobody else
                    can have been elected
    transfer        a leader that stops hands over to one that has everything; if that is not heard
                    of again, it has itself elected anew, as it has given its word away
    lost disks      a member without its state asks all others before it votes; see ADR 0026

Time is counted in ticks, which come from a monotonic clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..errors import RemoteProtocolError
from .raft_log import CHUNK_BYTES_MAX, Chunk, HardState, Kind, Message, RaftLog

UNCONFIRMED_BYTES_MAX = 8 << 20  # On the way to one member.
PROBE_BYTES_MAX = 64 << 10  # Sent on the chance that the logs agree where they should.


class Role(Enum):
    """What a member is."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Ready(NamedTuple):
    """What is to be done, in this order."""

    hard_state: HardState | None
    messages: list[Message]
    committed: int


class Told(NamedTuple):
    """What another member has said of itself since this one came without its state."""

    term: int
    last: int
    committed: int


@dataclass(slots=True)
class Peer:
    """What a leader knows of another member."""

    next: int  # What to send next begins here.
    match: int = 0  # It has everything up to here on its disk, for certain.
    is_probing: bool = True  # One message at a time, until it is known where logs agree.
    beat: int = -1  # When that was sent which it has answered last.
    is_voter: bool = True
    problem: str = ""


class Raft:
    """One member of a group."""

    def __init__(
        self,
        own_id: str,
        members: Iterable[str],
        log: RaftLog,
        rng: random.Random,
        *,
        hard_state: HardState | None = None,
        committed: int = 0,
        election_ticks: int = 10,
        heartbeat_ticks: int = 1,
    ) -> None:
        """Without a hard state it has to find out whether it is new, or has lost its disk."""
        self.id = own_id
        self.members = tuple(sorted(members))
        assert own_id in self.members
        self.others = tuple(member for member in self.members if member != own_id)
        self.log = log
        self._rng = rng
        self._election_ticks = election_ticks
        self._heartbeat_ticks = heartbeat_ticks
        self.is_fresh = hard_state is None
        state = hard_state or HardState(0, None, may_vote=False)
        self.term, self.vote, self.may_vote, self.floor = state
        self._saved = hard_state
        newest = log.term_at(log.last)
        if newest > self.term:
            # The first records of a term were on the disk a moment before the term was.
            self.term, self.vote = newest, None
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.committed = max(committed, log.start)
        self.problem = ""  # Why it takes no part, for its operator.
        self.peers: dict[str, Peer] = {}
        self._stable = log.last  # Our own disk has the log up to here.
        self._matched = 0  # Our log is this term's leader's up to here.
        self._answered = -1
        self._beat = 0  # Of the leader's last message.
        self._votes: set[str] = set()
        self._messages: list[Message] = []
        self._ticks = 0
        self._elapsed = 0
        self._led_since = 0
        self._timeout = 0
        self._transfer_to: str | None = None
        self._transfer_until = 0
        self._has_let_go = False  # Somebody may be elected in spite of us.
        self._life = rng.getrandbits(62)  # Tells our questions from those of an earlier life.
        self._told: dict[str, Told] = {}
        self._steps: dict[Kind, Callable[[Message], None]] = {
            Kind.PRE_VOTE: self._on_pre_vote,
            Kind.PRE_VOTE_ANSWER: self._on_pre_vote_answer,
            Kind.VOTE: self._on_vote,
            Kind.VOTE_ANSWER: self._on_vote_answer,
            Kind.APPEND: self._on_append,
            Kind.APPEND_ANSWER: self._on_append_answer,
            Kind.TIMEOUT_NOW: self._on_timeout_now,
        }
        self._draw_timeout()
        if not self.others:
            self._maybe_found()

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
        """The term of the last record; not that of the last election."""
        return self.log.term_at(self.log.last)

    @property
    def is_settled(self) -> bool:
        """Whether it leads, and everything of former terms is agreed."""
        return self.is_leader and self.log.term_at(self.committed) == self.term

    @property
    def lease_ticks(self) -> int:
        """For how many ticks from now on nobody else can lead; none while it hands over."""
        if not self.is_settled or self._transfer_to is not None or self._has_let_go:
            return 0
        # A tick of those who answer may have begun before ours, and clocks differ a little.
        return max(0, self._election_ticks - 2 - (self._ticks - self._quorum_beat()))

    @property
    def is_transferring(self) -> bool:
        """Whether it is handing over."""
        return self._transfer_to is not None

    # What is to be done.

    def ready(self) -> Ready:
        """Everything that has to be done now."""
        messages, self._messages = self._messages, []
        if self.is_fresh:
            return Ready(None, messages, self.committed)
        state = HardState(self.term, self.vote, self.may_vote, self.floor)
        return Ready(state if state != self._saved else None, messages, self.committed)

    def advance(self, ready: Ready) -> None:
        """What ready() said has been done."""
        if ready.hard_state is not None:
            self._saved = ready.hard_state

    def synced(self, position: int) -> None:
        """Our own disk has the log up to a position."""
        self._stable = min(position, self.log.last)
        if self.is_leader:
            self._maybe_commit()
        elif self.leader is not None and min(self._matched, self._stable) > self._answered:
            self._answer_append()
            self._maybe_readmit()

    # Events.

    def tick(self) -> None:
        """Some time has passed."""
        self._ticks += 1
        self._elapsed += 1
        if self.is_leader:
            self._tick_as_leader()
        elif not self.may_vote:
            # Not by what has elapsed since the leader spoke: it may speak all the time.
            if self._ticks % self._heartbeat_ticks == 0 and len(self._told) < len(self.others):
                self._greet()
        elif self._elapsed >= self._timeout and self._may_campaign:
            self._pre_campaign()

    def _tick_as_leader(self) -> None:
        if self._transfer_to is not None and self._ticks >= self._transfer_until:
            self._transfer_to = None  # It has taken too long.
            if self._has_let_go:
                self._lead_anew()
                return
        if self._ticks - max(self._quorum_beat(), self._led_since) >= self._election_ticks:
            self._become_follower(self.term, None)
        elif self._elapsed >= self._heartbeat_ticks:
            self._elapsed = 0
            for peer in self.peers:
                self._send_append(peer, is_heartbeat=True)

    def _lead_anew(self) -> None:
        """Take leadership back, which takes a term of its own.

        The leave that was given to another one may arrive at any time, and is good in this term.
        """
        if self._may_campaign:
            self._campaign(is_transfer=True)
        else:
            self._become_follower(self.term, None)

    def grew(self) -> None:
        """The leader's log is longer."""
        for peer in self.peers:
            self._send_append(peer)

    def transfer(self, to: str) -> None:
        """Hand leadership over; nothing may be added until it has worked, or taken too long."""
        assert to in self.members
        if self.is_leader and to != self.id:
            self._transfer_to = to
            self._transfer_until = self._ticks + self._election_ticks
            self._maybe_transfer()

    def step(self, message: Message) -> None:
        """A message came; raises RemoteProtocolError for what no member says."""
        if message.source not in self.others or message.target != self.id:
            return
        kind = message.kind
        if kind is Kind.GREET:
            self._on_greet(message)
            return
        if kind is Kind.GREET_ANSWER:
            self._on_greet_answer(message)
            return
        if message.term > self.term:
            if kind is Kind.PRE_VOTE or (kind is Kind.PRE_VOTE_ANSWER and message.ok):
                pass  # Of a term that does not exist yet.
            elif kind is Kind.VOTE and self._has_live_leader and not message.is_transfer:
                return
            elif not self.is_fresh or self._join_as_non_voter():
                leader = message.source if kind is Kind.APPEND else None
                self._become_follower(message.term, leader)
            else:
                return
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
        if self._ticks < self._election_ticks:
            return True  # Before it was started again, it may have answered one.
        return self.leader is not None and self._elapsed < self._election_ticks

    @property
    def _may_campaign(self) -> bool:
        has_floor = (self.last_term, self.log.last) >= (0, self.floor)
        return self.may_vote and has_floor and self.log.may_lead

    def _draw_timeout(self) -> None:
        self._timeout = self._election_ticks + self._rng.randrange(self._election_ticks)

    def _become_follower(self, term: int, leader: str | None) -> None:
        if term > self.term:
            self.term, self.vote = term, None
        self.role, self.leader = Role.FOLLOWER, leader
        self._elapsed = 0
        self._transfer_to = None
        self.peers = {}
        self._matched, self._answered = 0, -1
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
        self._matched, self._answered = 0, -1
        self._draw_timeout()
        self._votes = {self.id}
        self._ask_for_votes(Kind.VOTE, self.term, is_transfer=is_transfer)
        if len(self._votes) >= self.majority:
            self._become_leader()

    def _ask_for_votes(self, kind: Kind, term: int, *, is_transfer: bool = False) -> None:
        last, last_term = self.log.last, self.last_term
        for member in self.others:
            self._messages.append(
                Message(kind, self.id, member, term, last, last_term, is_transfer=is_transfer)
            )

    def _is_up_to_date(self, message: Message) -> bool:
        """Whether a candidate's log has at least what ours has, or should have."""
        ours = max((self.last_term, self.log.last), (0, self.floor))
        return (message.log_term, message.at) >= ours

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
        if self.role is Role.FOLLOWER and self._may_campaign:
            self._campaign(is_transfer=True)

    def _become_leader(self) -> None:
        self.role, self.leader = Role.LEADER, self.id
        self._elapsed = 0
        self._led_since = self._ticks
        self._transfer_to, self._has_let_go = None, False
        last = self.log.last
        self.peers = {member: Peer(last) for member in self.others}
        # Records of former terms are committed through one of this term, never by counting them.
        if not self.log.begin_term(self.term, self.id):
            self._become_follower(self.term, None)
            return
        for peer in self.peers:
            self._send_append(peer, is_heartbeat=True)
        self._maybe_commit()

    def _quorum_beat(self) -> int:
        """The newest beat that a majority has answered, ourselves included."""
        beats = sorted((peer.beat for peer in self.peers.values()), reverse=True)
        return beats[self.majority - 2] if self.majority > 1 else self._ticks

    # The log, as a leader.

    def _send(
        self, kind: Kind, to: str, *, term: int | None = None, ok: bool = False, at: int = 0
    ) -> None:
        self._messages.append(
            Message(
                kind, self.id, to, self.term if term is None else term, at,
                ok=ok, is_voter=self.may_vote,
            )
        )  # fmt: skip

    def _send_append(self, to: str, *, is_heartbeat: bool = False) -> None:
        peer, log = self.peers[to], self.log
        if peer.next < log.start:  # Retention was faster.
            peer.next, peer.is_probing = log.start, True
        while True:
            chunk: Chunk | None = None
            # While probing, only heartbeats and answers set the pace. Later a heartbeat is without
            # records, so that it is answered at once, however slow the other's disk is.
            if (
                peer.next < log.last
                and is_heartbeat == peer.is_probing
                and peer.next - peer.match < UNCONFIRMED_BYTES_MAX
            ):
                chunk = log.read(peer.next, PROBE_BYTES_MAX if peer.is_probing else CHUNK_BYTES_MAX)
            elif not is_heartbeat:
                return
            self._messages.append(
                Message(
                    Kind.APPEND, self.id, to, self.term, peer.next, log.term_at(peer.next), chunk,
                    min(self.committed, log.last), is_base=peer.next == log.start, beat=self._ticks,
                )
            )  # fmt: skip
            if chunk is None or peer.is_probing:
                return
            peer.next = chunk.end

    def _on_append_answer(self, message: Message) -> None:
        if not self.is_leader:
            return
        peer = self.peers[message.source]
        peer.beat = max(peer.beat, min(message.beat, self._ticks))
        peer.is_voter = message.is_voter
        if not message.ok:
            # One that is late speaks of what was asked before.
            is_news = (
                message.commit == peer.next if peer.is_probing else message.commit > peer.match
            )
            if is_news:
                self._step_back(peer, message)
                if peer.next != message.commit:  # Else the next heartbeat asks again.
                    self._send_append(message.source, is_heartbeat=True)
            return
        last = self.log.last
        if message.commit > last or message.at > last:
            raise RemoteProtocolError(
                f"{message.source} has the log up to {message.commit}, and it ends at {last}"
            )
        peer.is_probing, peer.problem = False, ""
        if message.at > peer.match:
            peer.match = message.at
            self._maybe_commit()
        peer.next = max(peer.next, peer.match, message.commit)
        if self.is_leader:
            self._send_append(message.source)
            self._maybe_transfer()

    def _step_back(self, peer: Peer, message: Message) -> None:
        """Find where logs may agree: a whole term at a time."""
        peer.is_probing = True
        log = self.log
        term, end = log.end_of_term(message.log_term)
        at = min(end, message.at) if term == message.log_term else end
        peer.problem = ""
        if at < log.start:
            if message.at:
                peer.problem = (
                    f"its log ends at {message.at}, ours is kept from {log.start} on: move its "
                    "store away and let it copy anew"
                )
            at = log.start  # One that is empty begins there.
        peer.next = max(at, peer.match)

    def _maybe_commit(self) -> None:
        if not self.is_leader:
            return
        matches = sorted([self._stable, *(peer.match for peer in self.peers.values())])
        agreed = matches[len(matches) - self.majority]
        if agreed > self.committed and self.log.term_at(agreed) == self.term:
            self.committed = agreed

    def _maybe_transfer(self) -> None:
        to = self._transfer_to
        if to is not None and self.peers[to].match == self.log.last:
            self._has_let_go = True
            self._send(Kind.TIMEOUT_NOW, to)

    # The log, as a follower.

    def needs_cut(self, message: Message) -> bool:
        """Whether a message may make us drop the end of our log; may say so in vain."""
        chunk = message.chunk
        if message.kind is not Kind.APPEND or message.term < self.term or chunk is None:
            return False
        return self._parting(chunk) < min(chunk.end, self.log.last)

    def _parting(self, chunk: Chunk) -> int:
        """Up to where we have what a chunk has, if we agree on where it begins."""
        log = self.log
        at = max(chunk.start, self.committed)
        if at >= min(chunk.end, log.last):
            return at
        if log.term_after(at) != chunk.term:
            return at
        return min(log.stretch_end(at), chunk.end)

    def _on_append(self, message: Message) -> None:
        if self.is_leader:
            raise RemoteProtocolError(
                f"{message.source} says that it leads in term {self.term} too"
            )
        self.role, self.leader = Role.FOLLOWER, message.source
        self._elapsed = 0
        self._beat = message.beat
        log, chunk, before = self.log, message.chunk, message.at
        if message.is_base and log.is_empty and before > 0:
            log.begin(before, message.log_term)
            self._stable = before
        end = before if chunk is None else chunk.end
        # What is committed is the leader's as well, whoever it is.
        if before > self.committed and (
            before > log.last or log.term_at(before) != message.log_term
        ):
            self._refuse_append(message)
            return
        is_longer = False
        if chunk is not None and end > self.committed:
            at = self._parting(chunk)
            if at < chunk.end:
                if at < log.last:
                    self._cut(at)
                log.append(chunk, at)
                is_longer = True
        self._matched = max(self._matched, end, self.committed)
        self.problem = ""
        # Never beyond what is known to be the leader's: the rest of our log may be another's.
        self.committed = max(self.committed, min(message.commit, self._matched))
        if not is_longer:  # Else the answer comes when the disk has it.
            self._answer_append()
        self._maybe_readmit()

    def _cut(self, position: int) -> None:
        if position < self.committed:
            raise RemoteProtocolError(
                f"{self.leader} would cut the log at {position}, which is agreed up to "
                f"{self.committed}"
            )
        self.log.truncate(position)
        self._stable = min(self._stable, position)

    def _answer_append(self) -> None:
        assert self.leader is not None
        self._answered = min(self._matched, self._stable)
        self._messages.append(
            Message(
                Kind.APPEND_ANSWER, self.id, self.leader, self.term, self._answered,
                commit=self._matched, ok=True, is_voter=self.may_vote, beat=self._beat,
            )
        )  # fmt: skip

    def _refuse_append(self, message: Message) -> None:
        """Say up to where our log may be the same, at best: whole terms are passed over at once."""
        log = self.log
        term, end = log.end_of_term(message.log_term)
        at = min(end, message.at, log.last)
        if at < self.committed:
            term, at = log.term_at(self.committed), self.committed
        if message.is_base and log.last < message.at and not log.is_empty:
            self.problem = (
                f"our log ends at {log.last}, and that of {message.source} is kept from "
                f"{message.at} on: move this store away and start again with an empty one"
            )
        self._messages.append(
            Message(
                Kind.APPEND_ANSWER, self.id, message.source, self.term, at, term,
                commit=message.at, is_voter=self.may_vote, beat=message.beat,
            )
        )  # fmt: skip

    # Members without their state.

    def _greet(self) -> None:
        self._elapsed = 0
        for member in self.others:
            if member not in self._told:
                self._messages.append(
                    Message(Kind.GREET, self.id, member, 0, self.log.last, beat=self._life)
                )

    def _on_greet(self, message: Message) -> None:
        """A member without its state: nothing that it confirmed in an earlier life counts."""
        if self.is_leader:
            beat = self.peers[message.source].beat
            self.peers[message.source] = Peer(self.log.last, beat=beat, is_voter=False)
        self._messages.append(
            Message(
                Kind.GREET_ANSWER, self.id, message.source, self.term, self.log.last,
                commit=self.committed, beat=message.beat,
            )
        )  # fmt: skip

    def _on_greet_answer(self, message: Message) -> None:
        if self.may_vote or message.beat != self._life:
            return
        self._told[message.source] = Told(message.term, message.at, message.commit)
        if not self.is_fresh:
            if message.term > self.term:
                self._become_follower(message.term, None)
            self._maybe_readmit()
        elif message.term > 0:
            self._join_as_non_voter()
        else:
            self._maybe_found()

    def _join_as_non_voter(self) -> bool:
        """The group has lived without us, or with us in an earlier life."""
        if self.log.last > 0:
            self.problem = (
                f"the store has a log up to {self.log.last} and no state of this group, which has "
                "begun without it: start the group from one store and empty others"
            )
            return False
        self.is_fresh = False
        return True

    def _maybe_found(self) -> None:
        """All of us are new: begin, with at most one log that was there before."""
        if len(self._told) < len(self.others):
            return
        ends = {member: told.last for member, told in self._told.items() if told.last}
        if self.log.last > 0:
            ends[self.id] = self.log.last
        if len(ends) > 1:
            self.problem = (
                f"{' and '.join(sorted(ends))} have a log each, and none has a state of this "
                "group: start the group from one store and empty others"
            )
            self._told = {}  # Somebody may do so.
            return
        self.problem = ""
        self.is_fresh, self.may_vote = False, True
        # Who has that one log is the only one to begin with.
        self.floor = sum(ends.values())
        self._elapsed = 0

    def _maybe_readmit(self) -> None:
        """Let it vote again once it cannot do harm; see ADR 0026."""
        if self.may_vote or self.is_fresh or self.leader is None:
            return
        if len(self._told) < len(self.others):
            return
        if self.term < max(told.term for told in self._told.values()):
            return
        needed = max(told.committed for told in self._told.values())
        has_all = min(self.committed, self._matched, self._stable) >= needed
        if has_all and self.log.term_at(min(self.committed, self._stable)) == self.term:
            # It may have voted in this term, in its earlier life: not again.
            self.may_vote, self.vote = True, self.leader
            self._answer_append()
