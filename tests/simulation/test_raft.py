"""The Raft core: by hand, under drawn faults, and with bugs planted in it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from raft_world import TICK_MS, RaftWorld, trouble

from skylark.errors import RemoteProtocolError
from skylark.replication.raft import Raft, Role
from skylark.replication.raft_log import (
    Chunk,
    HardState,
    Kind,
    MemoryLog,
    Message,
    Record,
    Terms,
)

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
    behind = {n.raft.log.last - n.raft.committed for n in world.nodes.values() if n.raft}
    assert max(behind) < 3_000, "somebody does not catch up"
    assert all(n.raft.may_vote for n in world.nodes.values() if n.raft), "one is never readmitted"
    return world


@pytest.mark.parametrize("part", range(10))
def test_the_invariants_hold_and_the_group_comes_back(part: int) -> None:
    acked = 0
    for seed in range(part, SEEDS, 10):
        try:
            acked += len(run(seed, 5 if seed % 3 == 0 else 3).acked)
        except (AssertionError, RemoteProtocolError) as error:
            error.add_note(f"seed {seed}")
            raise
    assert acked > SEEDS


def test_one_may_come_to_lead_a_term_that_is_over() -> None:
    """Votes that come late elect it; it need not have what was agreed after its term."""
    world = run(100_002_626, 3)
    assert list(world.leaders).index(4) < list(world.leaders).index(3)


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
    assert all(n.applied == len(world.agreed) for n in world.nodes.values())


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
    assert len({n.raft.committed for n in world.nodes.values() if n.raft}) == 1


def test_a_leader_without_a_majority_steps_down() -> None:
    world = calm()
    leader = world.leader
    assert leader is not None
    world.cut({leader.number}, set(world.nodes) - {leader.number})
    world.run_until(world.now_ms + 30 * TICK_MS)
    assert leader.raft is not None
    assert leader.raft.role is not Role.LEADER
    assert leader.raft.lease_ticks == 0


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
    assert not world.propose(), "what is proposed now could be lost"
    assert leader.raft.lease_ticks == 0, "others may vote at once"
    world.work(leader)
    began_ms = world.now_ms
    while world.leader is None or world.leader.number != to:
        world.run_until(world.now_ms + 10)
        assert world.now_ms - began_ms < 5 * TICK_MS, "it waited for a time-out"
    assert world.propose()
    world.run_until(world.now_ms + 1_000)
    world.check_nothing_lost()


def test_a_leader_whose_successor_is_not_heard_of_is_elected_anew() -> None:
    """The leave that it gave may arrive late, and is good in its old term: it needs a new one."""
    world = calm()
    leader = world.leader
    assert leader is not None
    raft = leader.raft
    assert raft is not None
    to = next(number for number in world.nodes if number != leader.number)
    term = raft.term
    raft.transfer(to)
    world.cuts.add((leader.number, to))
    world.work(leader)
    began_ms = world.now_ms
    while raft.lease_ticks == 0:
        world.run_until(world.now_ms + 10)
        assert world.now_ms - began_ms < 10 * TICK_MS, "it waited for a time-out"
    assert (world.leader, raft.term) == (leader, term + 1)
    world.heal()
    assert world.propose()
    world.run_until(world.now_ms + 1_000)
    world.check_nothing_lost()
    assert world.leader is leader


@pytest.mark.parametrize("seed", [30_000_004_463, 30_000_005_399, 40_000_003_918, 40_000_007_300])
def test_leave_to_lead_that_arrives_late_makes_no_second_lease(seed: int) -> None:
    run(seed, 5 if seed % 3 == 0 else 3)


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


def test_a_member_that_lost_its_disk_gives_no_vote_before_it_has_all_again() -> None:
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
    assert world.leader is None, "two members without the record have made a leader"
    raft = world.nodes[lost].raft
    assert raft is not None
    assert not raft.may_vote
    world.start(leader.number)
    world.run_until(world.now_ms + 10_000)
    world.propose()
    world.run_until(world.now_ms + 3_000)
    assert len(world.agreed) > agreed
    assert world.nodes[lost].applied == len(world.agreed)
    world.check_nothing_lost()
    state = world.nodes[lost].hard_state
    assert state is not None
    assert state.may_vote, "it has everything, and all others have spoken: it may vote again"


def test_what_an_earlier_life_confirmed_does_not_count() -> None:
    """A leader's own disk is slow; the copy that it counted on is gone meanwhile."""

    def lead(make: Callable[..., Raft]) -> None:
        raft = leading(make)
        raft.log.add(raft.term, b"x")  # type: ignore[attr-defined]
        end = raft.log.last
        raft.step(Message(Kind.APPEND_ANSWER, "n2", "n1", 1, end, commit=end, ok=True))
        raft.step(Message(Kind.GREET, "n2", "n1", 0, beat=7))
        raft.synced(end)
        assert raft.committed == 0, "nobody else has it"

    lead(Raft)
    with pytest.raises(AssertionError):
        lead(KeepsWhatAnEarlierLifeConfirmed)


def test_a_member_of_a_new_group_votes_only_when_all_others_are_new_as_well() -> None:
    raft = Raft("n1", ("n1", "n2", "n3"), MemoryLog(), random.Random(1))
    life = greeting_of(raft)
    raft.step(Message(Kind.GREET_ANSWER, "n2", "n1", 0, beat=life))
    assert not raft.may_vote
    raft.step(Message(Kind.GREET_ANSWER, "n3", "n1", 0, beat=life + 1))
    assert not raft.may_vote, "that was an answer to an earlier life"
    raft.step(Message(Kind.GREET_ANSWER, "n3", "n1", 0, beat=life))
    assert raft.may_vote
    assert raft.ready().hard_state == HardState(0, None)


def test_a_group_begins_from_the_one_store_that_has_a_log() -> None:
    world = RaftWorld(1, 3)
    seed = world.nodes["n2"]
    seed.raft = None
    seed.disk = [Record(120, 0, b"old", 0), Record(300, 0, b"older", 120)]
    world.start("n2")
    world.run_until(6_000)
    assert world.leader is seed
    assert world.agreed[:2] == seed.disk[:2]
    assert all(n.applied == len(world.agreed) for n in world.nodes.values())


def test_two_stores_with_a_log_each_make_no_group() -> None:
    world = RaftWorld(1, 3)
    for number in ("n1", "n2"):
        world.nodes[number].raft = None
        world.nodes[number].disk = [Record(120, 0, number.encode(), 0)]
        world.start(number)
    world.run_until(20_000)
    assert world.leader is None
    for node in world.nodes.values():
        assert node.raft is not None
        assert "n1 and n2 have a log each" in node.raft.problem
        assert "start the group from one store and empty others" in node.raft.problem
        assert node.hard_state is None


def test_a_store_with_a_log_of_its_own_is_refused_by_a_group_that_lives() -> None:
    world = calm()
    world.propose()
    world.run_until(world.now_ms + 500)
    leader = world.leader
    assert leader is not None
    number = next(number for number in world.nodes if number != leader.number)
    world.crash(number)
    world.lose_disk(number)
    world.nodes[number].disk = [Record(5_000, 0, b"of another life", 0)]
    world.start(number)
    world.run_until(world.now_ms + 10_000)
    raft = world.nodes[number].raft
    assert raft is not None
    assert "start the group from one store and empty others" in raft.problem
    assert raft.log.last == 5_000, "nothing of it is touched"
    assert world.nodes[number].hard_state is None
    assert world.propose(), "the others go on"


def test_an_empty_member_begins_where_the_leader_keeps_its_log() -> None:
    world = calm()
    for _ in range(20):
        world.propose()
    world.run_until(world.now_ms + 500)
    leader = world.leader
    assert leader is not None
    assert leader.raft is not None
    log: Any = leader.raft.log
    start, term = log.items[9].end, log.items[9].term
    raft = Raft("n9", ("n1", "n9"), MemoryLog(), random.Random(1), hard_state=HardState(0, None))
    chunk = Chunk(start, log.last, term, tuple(log.items[10:]))
    append = Message(Kind.APPEND, "n1", "n9", term, start, term, chunk, log.last, is_base=True)
    raft.step(append)
    assert raft.log.start == start
    assert raft.log.last == raft.committed == log.last
    assert raft.log.term_at(start) == term
    assert raft.ready().messages == [], "not on its disk yet"
    raft.synced(raft.log.last)
    assert raft.ready().messages[-1].at == log.last


def test_a_member_that_fell_behind_what_is_kept_is_told_what_to_do() -> None:
    log = MemoryLog([Record(120, 1, b"x", 0)])
    raft = Raft("n1", ("n1", "n2"), log, random.Random(1), hard_state=HardState(1, None))
    raft.step(Message(Kind.APPEND, "n2", "n1", 2, 5_000, 2, is_base=True))
    answer = raft.ready().messages[-1]
    assert not answer.ok
    assert "move this store away" in raft.problem
    assert log.last == 120


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.APPEND, "n9", "n1", 99),
        Message(Kind.VOTE, "n2", "n3", 99),
        Message(Kind.APPEND_ANSWER, "n2", "n1", 0, 10**9, ok=True),
        Message(Kind.PRE_VOTE, "n2", "n1", 10**9, 0, 0),
        Message(Kind.GREET_ANSWER, "n2", "n1", 10**9, 10**9, commit=10**9),
        Message(Kind.GREET, "n2", "n1", 10**9),
    ],
)
def test_messages_of_strangers_of_the_past_and_of_boasters_change_nothing(
    message: Message,
) -> None:
    log = MemoryLog([Record(30, 1, b"x", 0)])
    raft = Raft("n1", ("n1", "n2", "n3"), log, random.Random(1), hard_state=HardState(1, None))
    raft.step(message)
    assert (raft.term, raft.vote, raft.committed, raft.leader) == (1, None, 0, None)
    assert not any(answer.ok for answer in raft.ready().messages)


def test_a_leader_does_not_believe_what_it_never_sent() -> None:
    raft = leading(Raft)
    with pytest.raises(RemoteProtocolError, match="it ends at 20"):
        raft.step(Message(Kind.APPEND_ANSWER, "n2", "n1", 1, 10**9, commit=10**9, ok=True))
    with pytest.raises(RemoteProtocolError, match="leads in term 1 too"):
        raft.step(Message(Kind.APPEND, "n2", "n1", 1))
    assert raft.is_leader
    assert raft.committed == 0


def leading(make: Callable[..., Raft], log: MemoryLog | None = None) -> Raft:
    """The first of three members, leading, with nothing of its term on its disk."""
    log = log or MemoryLog()
    raft = make("n1", ("n1", "n2", "n3"), log, random.Random(1), hard_state=HardState(0, None))
    while raft.role is not Role.PRE_CANDIDATE:
        raft.tick()
    for kind in (Kind.PRE_VOTE_ANSWER, Kind.VOTE_ANSWER):
        raft.step(Message(kind, "n2", "n1", 1, ok=True))
    assert raft.is_leader
    return raft


def greeting_of(raft: Raft) -> int:
    """Let it ask the others; what its answers must have."""
    while True:
        raft.tick()
        for message in raft.ready().messages:
            if message.kind is Kind.GREET:
                return message.beat


def lead_with_old_entries(make: Callable[..., Raft]) -> None:
    """Figure 8 of the paper: a majority has a record of a former term, and that is not enough."""
    log = MemoryLog([Record(30, 1, b"a", 0), Record(60, 2, b"b", 30)])
    members = [f"n{number}" for number in range(1, 6)]
    raft = make("n1", members, log, random.Random(1), hard_state=HardState(3, None))
    while raft.role is not Role.PRE_CANDIDATE:
        raft.tick()
    for kind in (Kind.PRE_VOTE_ANSWER, Kind.VOTE_ANSWER):
        for member in ("n2", "n3"):
            raft.step(Message(kind, member, "n1", 4, ok=True))
    assert raft.is_leader
    assert raft.term == 4
    raft.synced(log.last)
    for member in ("n2", "n3"):
        raft.step(Message(Kind.APPEND_ANSWER, member, "n1", 4, 60, commit=60, ok=True))
    assert raft.committed == 0, "a record of term 2 is committed by counting in term 4"
    for member in ("n2", "n3"):
        raft.step(Message(Kind.APPEND_ANSWER, member, "n1", 4, 80, commit=80, ok=True))
    assert raft.committed == 80


def test_an_entry_of_a_former_term_is_not_committed_by_counting() -> None:
    lead_with_old_entries(Raft)
    with pytest.raises(AssertionError):
        lead_with_old_entries(OldTermsByCounting)


def test_the_leader_counts_itself_only_when_its_disk_has_the_entry() -> None:
    def lead(make: Callable[..., Raft]) -> None:
        raft = leading(make)
        raft.step(Message(Kind.APPEND_ANSWER, "n2", "n1", 1, 20, commit=20, ok=True))
        assert raft.committed == 0, "the leader's own disk does not have it"
        raft.synced(20)
        assert raft.committed == 20

    lead(Raft)
    with pytest.raises(AssertionError):
        lead(CountsItselfEarly)


def test_a_follower_answers_for_what_its_disk_has() -> None:
    raft = Raft(
        "n1", ("n1", "n2", "n3"), MemoryLog(), random.Random(1), hard_state=HardState(0, None)
    )
    chunk = Chunk(0, 50, 1, (Record(50, 1, b"x", 0),))
    raft.step(Message(Kind.APPEND, "n2", "n1", 1, 0, 0, chunk))
    assert raft.ready().messages == []
    raft.step(Message(Kind.APPEND, "n2", "n1", 1, 50, 1))
    assert [(m.at, m.commit) for m in raft.ready().messages] == [(0, 50)], "a heartbeat, at once"
    raft.synced(50)
    assert [(m.at, m.commit) for m in raft.ready().messages] == [(50, 50)]


def test_records_go_out_before_the_leaders_own_disk_has_them() -> None:
    raft = leading(Raft)
    raft.step(Message(Kind.APPEND_ANSWER, "n2", "n1", 1, 0, commit=20, ok=True, beat=1))
    raft.ready()
    raft.log.add(1, b"x")  # type: ignore[attr-defined]
    raft.grew()
    sent = [m.chunk for m in raft.ready().messages if m.target == "n2"]
    assert [(chunk.start, chunk.end) for chunk in sent if chunk] == [(20, 41)]


def test_a_lease_lasts_as_long_as_a_majority_has_answered_lately() -> None:
    raft = leading(Raft)
    raft.synced(20)
    assert raft.lease_ticks == 0, "nothing of its own term is agreed"
    beat = raft.ready().messages[-1].beat
    raft.step(Message(Kind.APPEND_ANSWER, "n2", "n1", 1, 20, commit=20, ok=True, beat=beat))
    assert raft.is_settled
    left = raft.lease_ticks
    assert left > 0
    for _ in range(left):
        assert raft.lease_ticks > 0
        raft.tick()
    assert raft.lease_ticks == 0
    assert raft.is_leader
    raft.tick()
    raft.tick()
    assert not raft.is_leader


def test_a_member_that_was_just_started_gives_no_vote_yet() -> None:
    """It may have answered a leader a moment before, who relies on it."""
    raft = Raft(
        "n1", ("n1", "n2", "n3"), MemoryLog(), random.Random(1), hard_state=HardState(3, None)
    )
    for kind in (Kind.PRE_VOTE, Kind.VOTE):
        raft.step(Message(kind, "n2", "n1", 4))
    assert raft.term == 3
    assert not any(message.ok for message in raft.ready().messages)
    for _ in range(10):
        raft.tick()
    raft.step(Message(Kind.VOTE, "n2", "n1", 4))
    assert raft.vote == "n2"


def test_a_term_whose_records_came_to_the_disk_before_it_is_known_after_a_crash() -> None:
    log = MemoryLog([Record(30, 5, b"x", 0)])
    raft = Raft("n1", ("n1",), log, random.Random(1), hard_state=HardState(3, "n1"))
    assert (raft.term, raft.vote) == (5, None)
    while not raft.is_leader:
        raft.tick()
    assert [item.term for item in log.items] == [5, 6]


def test_terms_are_found_by_position() -> None:
    terms = Terms([(0, 0)])
    terms.begin(1, 0)
    terms.begin(3, 340)
    assert [terms.at(p) for p in (0, 120, 340, 400)] == [0, 1, 1, 3]
    assert [terms.after(p) for p in (0, 120, 340, 400)] == [1, 1, 3, 3]
    assert [terms.next_start(p) for p in (0, 339, 340)] == [340, 340, None]
    assert [terms.end_of(t, 620) for t in (0, 1, 2, 3, 9)] == [
        (0, 0), (1, 340), (1, 340), (3, 620), (3, 620)
    ]  # fmt: skip
    assert Terms([(2, 100)]).end_of(1, 500) == (-1, -1)
    assert terms.cut(400) is False
    assert terms.cut(340) is True
    assert terms.entries == [(0, 0), (1, 0)]
    terms.begin(4, 500)
    assert terms.prune(500)
    assert terms.entries == [(1, 0), (4, 500)]
    assert terms.at(500) == 1


# Planted bugs.


class EndTermOfTheElection(Raft):
    """R1: the term of the last election is taken for that of the last entry."""

    def _is_up_to_date(self, message: Message) -> bool:
        return (message.log_term, message.at) >= (0, self.log.last)

    @property
    def last_term(self) -> int:
        return self.term


class OldTermsByCounting(Raft):
    """An entry of a former term is committed because a majority has it."""

    def _maybe_commit(self) -> None:
        if self.is_leader:
            matches = sorted([self._stable, *(peer.match for peer in self.peers.values())])
            self.committed = max(self.committed, matches[len(matches) - self.majority])


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
        self._stable = self.log.last
        super()._maybe_commit()


class CutsWhatWasAgreed(Raft):
    """A follower takes whatever the newest message says."""

    def _on_append(self, message: Message) -> None:
        if message.chunk is not None and message.chunk.start < self.log.last:
            self.log.truncate(message.chunk.start)
            self._stable = min(self._stable, self.log.last)
            self.committed = min(self.committed, self.log.last)
        super()._on_append(message)


class VotesWithoutItsDisk(Raft):
    """A lost disk is taken for a new member's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.is_fresh:
            self.is_fresh, self.may_vote = False, True


class ReadmittedAtOnce(Raft):
    """A member that lost its disk votes as soon as it has heard of a leader."""

    def _maybe_readmit(self) -> None:
        self.may_vote = True


class KeepsWhatAnEarlierLifeConfirmed(Raft):
    """A leader goes on counting a copy that is gone."""

    def _on_greet(self, message: Message) -> None:
        peers = dict(self.peers)
        super()._on_greet(message)
        self.peers = peers


class NoAgreementBefore(Raft):
    """Records are added without a look at what is before."""

    def _on_append(self, message: Message) -> None:
        if message.at <= self.log.last:
            message = message._replace(log_term=self.log.term_at(message.at))
        super()._on_append(message)


class AnswersBeforeItsDisk(Raft):
    """A follower confirms what it has received, whatever its disk has."""

    def _answer_append(self) -> None:
        stable, self._stable = self._stable, self.log.last
        super()._answer_append()
        self._stable = stable


class LeaseForEver(Raft):
    """A leader is sure of itself as long as it has heard nothing else."""

    @property
    def lease_ticks(self) -> int:
        return 1 if self.is_settled else 0

    def _tick_as_leader(self) -> None:
        self._led_since = self._ticks
        super()._tick_as_leader()


BUGS: list[Any] = [
    EndTermOfTheElection,
    CommitBeyondTheLog,
    VotesAgain,
    CutsWhatWasAgreed,
    NoAgreementBefore,
    AnswersBeforeItsDisk,
    CountsItselfEarly,
    VotesWithoutItsDisk,
    ReadmittedAtOnce,
    LeaseForEver,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[Raft]) -> None:
    for seed in range(60):
        try:
            run(seed, 5 if seed % 2 else 3, make=bug)
        except (AssertionError, IndexError, RemoteProtocolError):
            return
    pytest.fail("nobody noticed")


def test_a_disk_that_forgets_term_and_vote_is_found() -> None:
    """The vote is not persisted: crash, and it votes again in the same term."""

    def forgetful(*arguments: Any, **options: Any) -> Raft:
        return Raft(*arguments, **{**options, "hard_state": HardState(0, None)})

    for seed in range(60):
        try:
            run(seed, 3, make=forgetful)
        except (AssertionError, RemoteProtocolError):
            return
    pytest.fail("nobody noticed")
