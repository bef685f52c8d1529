"""The Raft core: by hand, under drawn faults, and with bugs planted in it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from raft_world import TICK_MS, RaftWorld, trouble

from skylark.replication.raft import Entry, HardState, Kind, MemoryLog, Message, Raft, Role

SEEDS = int(os.environ.get("SKYLARK_SEEDS", "300"))
FAULTS_MS = 45_000
END_MS = 60_000


def run(seed: int, size: int, make: Callable[..., Raft] | None = None) -> RaftWorld:
    """A minute of a group's life: three quarters of trouble, then it must come back."""
    world = RaftWorld(seed, size, make=make)
    trouble(world, FAULTS_MS)

    def user() -> None:
        for _ in range(world.rng.choice((1, 1, 4))):
            world.propose()
        world.at(world.rng.randrange(20, 300), user)

    user()
    while world.now_ms < END_MS:
        world.run_until(min(END_MS, world.now_ms + 3_000))
        world.check_logs_match()
    # Trouble has been over for 15 s: all are equal, and something new is agreed on.
    before = len(world.acked)
    world.run_until(END_MS + 3_000)
    assert len(world.acked) > before, "no agreement after the faults were over"
    leader = world.leader
    assert leader is not None
    world.run_until(world.now_ms + 2_000)
    world.check_nothing_lost()
    ends = {n.raft.log.last_index - n.raft.applied for n in world.nodes.values() if n.raft}
    assert max(ends) < 30, "somebody does not catch up"
    return world


@pytest.mark.parametrize("part", range(10))
def test_the_invariants_hold_and_the_group_comes_back(part: int) -> None:
    acked = 0
    for seed in range(part, SEEDS, 10):
        try:
            acked += len(run(seed, 5 if seed % 3 == 0 else 3).acked)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert acked > SEEDS


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = run(4, 3), run(4, 3)
    assert one.agreed == two.agreed
    assert one.events_total == two.events_total


# By hand.


def calm(size: int = 3, make: Callable[..., Raft] | None = None) -> RaftWorld:
    world = RaftWorld(1, size, make=make)
    world.loss = world.late = 0.0
    world.delay_ms = 5
    world.run_until(5_000)
    assert world.leader is not None
    return world


def test_a_group_finds_one_leader_and_agrees() -> None:
    world = calm()
    for _ in range(50):
        assert world.propose()
    world.run_until(6_000)
    assert len(world.acked) == 50
    assert len({n.raft.term for n in world.nodes.values() if n.raft}) == 1
    assert all(len(n.applied) == len(world.agreed) for n in world.nodes.values())


def test_one_that_was_cut_off_for_long_comes_back_without_unseating_the_leader() -> None:
    """R4: ten minutes away; with pre-vote its term does not grow."""
    world = calm()
    leader = world.leader
    assert leader is not None
    term = leader.raft.term if leader.raft else 0
    alone = next(number for number in world.nodes if number != leader.number)
    world.cut({alone}, set(world.nodes) - {alone})
    world.run_until(world.now_ms + 600_000)
    world.propose()
    world.heal()
    world.run_until(world.now_ms + 5_000)
    assert world.leader is leader
    assert {n.raft.term for n in world.nodes.values() if n.raft} == {term}
    assert len({n.raft.applied for n in world.nodes.values() if n.raft}) == 1


def test_a_leader_without_a_majority_steps_down() -> None:
    world = calm()
    leader = world.leader
    assert leader is not None
    world.cut({leader.number}, set(world.nodes) - {leader.number})
    world.run_until(world.now_ms + 30 * TICK_MS)
    assert leader.raft is not None
    assert leader.raft.role is not Role.LEADER
    assert leader.raft.propose(b"x") is None


def test_failover_takes_seconds() -> None:
    world = calm(5)
    for _ in range(5):
        leader = world.leader
        assert leader is not None
        world.propose()
        world.run_until(world.now_ms + 200)
        world.crash(leader.number)
        died_ms = world.now_ms
        while world.leader is None or not world.propose():
            world.run_until(world.now_ms + 50)
            assert world.now_ms - died_ms < 10_000
        world.start(leader.number)
        world.run_until(world.now_ms + 3_000)
    world.check_nothing_lost()


def test_leadership_is_handed_over_to_one_that_has_everything() -> None:
    world = calm()
    leader = world.leader
    assert leader is not None
    to = next(number for number in world.nodes if number != leader.number)
    world.propose()
    assert leader.raft is not None
    leader.raft.transfer(to)
    assert leader.raft.propose(b"x") is None, "what is proposed now could be lost"
    world.work(leader)
    began_ms = world.now_ms
    while world.leader is None or world.leader.number != to:
        world.run_until(world.now_ms + 10)
        assert world.now_ms - began_ms < 5 * TICK_MS, "it waited for a time-out"
    assert world.propose()
    world.run_until(world.now_ms + 1_000)
    world.check_nothing_lost()


def test_all_lose_power_at_once_and_nothing_agreed_is_lost() -> None:
    world = calm(5)
    for _ in range(3):
        for _ in range(20):
            world.propose()
        world.run_until(world.now_ms + 137)
        for number in world.nodes:
            world.crash(number)
        for number in world.nodes:
            world.start(number)
        world.run_until(world.now_ms + 6_000)
        world.propose()
        world.run_until(world.now_ms + 2_000)
        world.check_nothing_lost()
        world.check_logs_match()
    assert len(world.acked) > 20


def test_a_member_that_lost_its_disk_follows_and_gives_no_vote() -> None:
    """It may have promised, and acknowledged, what it does not know any more."""
    lose_a_disk(Raft)
    with pytest.raises(AssertionError):
        lose_a_disk(VotesWithoutItsDisk)


def lose_a_disk(make: Callable[..., Raft]) -> None:
    world = calm(make=make)
    leader = world.leader
    assert leader is not None
    lost, other = (number for number in world.nodes if number != leader.number)
    world.cut({other}, set(world.nodes) - {other})  # Agreement is between leader and lost.
    world.propose()
    world.run_until(world.now_ms + 500)
    agreed = len(world.agreed)
    world.crash(lost)
    world.lose_disk(lost)
    world.crash(leader.number)
    world.start(lost)
    world.heal()
    world.run_until(world.now_ms + 60_000)
    assert world.leader is None, "two members without the entry have made a leader"
    world.start(leader.number)
    world.run_until(world.now_ms + 10_000)
    world.propose()
    world.run_until(world.now_ms + 3_000)
    assert len(world.agreed) > agreed
    assert len(world.nodes[lost].applied) == len(world.agreed)
    world.check_nothing_lost()
    raft = world.nodes[lost].raft
    assert raft is not None
    assert not raft.may_vote
    raft.readmit()
    world.work(world.nodes[lost])
    assert world.nodes[lost].hard_state is not None
    assert world.nodes[lost].hard_state.may_vote


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.APPEND, 9, 1, 99),
        Message(Kind.VOTE, 2, 3, 99),
        Message(Kind.APPEND_ANSWER, 2, 1, 0, 10**9, ok=True),
        Message(Kind.PRE_VOTE, 2, 1, 10**9, 0, 0),
    ],
)
def test_messages_of_strangers_of_the_past_and_of_boasters_change_nothing(
    message: Message,
) -> None:
    log = MemoryLog([Entry(1, 1, b"x")])
    raft = Raft(1, (1, 2, 3), log, random.Random(1))
    raft.step(message)
    assert (raft.term, raft.vote, raft.committed, raft.leader) == (0, None, 0, None)
    assert not any(answer.ok for answer in raft.ready().messages)


def lead_with_old_entries(make: Callable[..., Raft]) -> None:
    """Figure 8 of the paper: a majority has an entry of a former term, and that is not enough."""
    log = MemoryLog([Entry(1, 1, b"a"), Entry(2, 2, b"b")])
    raft = make(1, range(1, 6), log, random.Random(1), hard_state=HardState(3, None, True))
    while raft.role is not Role.PRE_CANDIDATE:
        raft.tick()
    for kind in (Kind.PRE_VOTE_ANSWER, Kind.VOTE_ANSWER):
        for member in (2, 3):
            raft.step(Message(kind, member, 1, 4, ok=True))
    assert raft.is_leader
    assert raft.term == 4
    raft.advance(raft.ready())
    for member in (2, 3):
        raft.step(Message(Kind.APPEND_ANSWER, member, 1, 4, 2, ok=True))
    assert raft.committed == 0, "an entry of term 2 is committed by counting in term 4"
    for member in (2, 3):
        raft.step(Message(Kind.APPEND_ANSWER, member, 1, 4, 3, ok=True))
    assert raft.committed == 3


def test_an_entry_of_a_former_term_is_not_committed_by_counting() -> None:
    lead_with_old_entries(Raft)
    with pytest.raises(AssertionError):
        lead_with_old_entries(OldTermsByCounting)


def test_the_leader_counts_itself_only_when_its_disk_has_the_entry() -> None:
    def lead(make: Callable[..., Raft]) -> None:
        raft = make(1, (1, 2, 3), MemoryLog(), random.Random(1))
        while raft.role is not Role.PRE_CANDIDATE:
            raft.tick()
        for kind in (Kind.PRE_VOTE_ANSWER, Kind.VOTE_ANSWER):
            raft.step(Message(kind, 2, 1, 1, ok=True))
        raft.ready()  # And the disk takes its time.
        raft.step(Message(Kind.APPEND_ANSWER, 2, 1, 1, 1, ok=True))
        assert raft.committed == 0, "the leader's own disk does not have it"
        raft.advance(raft.ready())
        assert raft.committed == 1

    lead(Raft)
    with pytest.raises(AssertionError):
        lead(CountsItselfEarly)


# Planted bugs.


class EndTermOfTheElection(Raft):
    """R1: the term of the last election is taken for that of the last entry."""

    def _is_up_to_date(self, message: Message) -> bool:
        return (message.log_term, message.at) >= (0, self.log.last_index)

    @property
    def last_term(self) -> int:
        return self.term


class OldTermsByCounting(Raft):
    """An entry of a former term is committed because a majority has it."""

    def _maybe_commit(self) -> None:
        if self.is_leader:
            matches = sorted([self._stable, *(peer.match for peer in self._peers.values())])
            self.committed = max(self.committed, matches[len(matches) - self.majority])

    def _become_leader(self) -> None:
        super()._become_leader()
        self.log.truncate(self.log.last_index)  # Without an entry of its own term.
        self._messages = [m for m in self._messages if m.kind is not Kind.APPEND]


class CommitBeyondTheLog(Raft):
    """R2: the leader's commit is taken as it is."""

    def _on_append(self, message: Message) -> None:
        super()._on_append(message)
        self.committed = max(self.committed, message.commit)


class VotesAgain(Raft):
    """The vote is forgotten at once."""

    def _on_vote(self, message: Message) -> None:
        self.vote = None
        super()._on_vote(message)


class CountsItselfEarly(Raft):
    """The leader's own copy counts before its disk has it, and its disk never does."""

    def _maybe_commit(self) -> None:
        self._stable = self.log.last_index
        super()._maybe_commit()


class CutsWhatWasAgreed(Raft):
    """A follower takes whatever the newest message says."""

    def _on_append(self, message: Message) -> None:
        if message.entries and message.entries[0].at <= self.log.last_index:
            self.log.truncate(max(1, message.entries[0].at - 1))
            self.committed = min(self.committed, self.log.last_index)
        super()._on_append(message)


class VotesWithoutItsDisk(Raft):
    """A lost disk is taken for a new member's."""

    def lost_disk(self) -> None:
        assert self.may_vote


class NoAgreementBefore(Raft):
    """Entries are added without a look at the one before."""

    def _on_append(self, message: Message) -> None:
        if message.at <= self.log.last_index:
            message = message._replace(log_term=self.log.term_at(message.at))
        super()._on_append(message)


BUGS: list[Any] = [
    EndTermOfTheElection,
    CommitBeyondTheLog,
    VotesAgain,
    CutsWhatWasAgreed,
    NoAgreementBefore,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[Raft]) -> None:
    for seed in range(60):
        try:
            run(seed, 5 if seed % 2 else 3, make=bug)
        except (AssertionError, IndexError):
            return
    pytest.fail("nobody noticed")


def test_a_disk_that_forgets_term_and_vote_is_found() -> None:
    """The vote is not persisted: crash, and it votes again in the same term."""

    def forgetful(*arguments: Any, **options: Any) -> Raft:
        return Raft(*arguments, **{**options, "hard_state": None})

    for seed in range(60):
        try:
            run(seed, 3, make=forgetful)
        except AssertionError:
            return
    pytest.fail("nobody noticed")
