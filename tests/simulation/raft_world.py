"""Raft members, a network that delays, drops, doubles and cuts, disks that keep what was synced.

One list of events in virtual milliseconds, all chance from one seed. The invariants of the paper
are looked at after every event; a failing seed is the bug report. A sync takes its time; a power
cut takes what was not synced, or a part of it.

Messages may overtake each other, and outlive whoever sent or awaited them, which no connection lets
them do. Where disks are lost, two things that connections do are kept, and relied upon (ADR 0026):
once a member has heard of a process, nothing of its predecessor reaches it any more, and nothing
that was sent to a process reaches its successor.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from skylark.replication.raft import Raft, Role
from skylark.replication.raft_log import HardState, Kind, MemoryLog, Message, Record

TICK_MS = 100


class Node:
    """One machine: what is on its disk, and the process, if it runs."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.raft: Raft | None = None
        self.hard_state: HardState | None = None
        self.disk: list[Record] = []
        self.has_lost_disk = False
        self.applied = 0  # How many records.
        self.starts = 0
        self.heard: dict[str, int] = {}  # The newest process of each member that was heard of.
        self.is_syncing = False


class SimLog(MemoryLog):
    """A log whose cuts are durable at once."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.disk)
        self._node = node
        self.cuts = 0

    def truncate(self, position: int) -> None:
        super().truncate(position)
        self.cuts += 1
        self._node.disk = self._node.disk[: len(self.items)]


class RaftWorld:
    """One run of a group."""

    def __init__(self, seed: int, size: int, *, make: Callable[..., Raft] | None = None) -> None:
        self.rng = random.Random(f"{seed}/{size}")
        self.seed = seed
        self._make = make or Raft
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = {f"n{number}": Node(f"n{number}") for number in range(1, size + 1)}
        self.cuts: set[tuple[str, str]] = set()
        self.loss = 0.02
        self.late = 0.03  # Messages that arrive when nobody expects them any more.
        self.delay_ms = self.rng.choice((5, 20, 60))
        self.sync_ms = self.rng.choice((0, 5, 40, 600))
        self.may_lose_power = False
        self.loses_disks = seed % 4 == 0
        self.answers_before_sync: set[str] = set()  # For planted bugs.
        # What was ever true, for the judge.
        self.agreed: list[Record] = []
        self.agreed_in: list[int] = []  # The term in which each was, or a later one.
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.terms: dict[str, int] = {}
        self.proposed = 0
        self.acked: list[tuple[int, int, bytes]] = []
        self._waiting: dict[tuple[str, int, int], bytes] = {}
        self.events_total = 0
        self.disks_lost = self.readmitted = 0
        self._touched: set[Node] = set()
        for number in self.nodes:
            self.start(number)
            self.at(self.rng.randrange(TICK_MS), self._ticker(number))

    # Time.

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._count, what))

    def run_until(self, end_ms: int, *, judge: bool = True) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, what = heapq.heappop(self._events)
            what()
            self.events_total += 1
            if judge:
                self.check()
        self.now_ms = end_ms

    def _ticker(self, number: str) -> Callable[[], None]:
        def tick() -> None:
            node = self.nodes[number]
            if node.raft is not None:
                node.raft.tick()
                self.work(node)
            self.at(TICK_MS, tick)

        return tick

    # Machines.

    def start(self, number: str) -> None:
        node = self.nodes[number]
        assert node.raft is None
        node.starts += 1
        node.heard = {}
        node.is_syncing = False
        node.raft = self._make(
            number,
            self.nodes,
            SimLog(node),
            random.Random(self.rng.random()),
            hard_state=node.hard_state,
            election_ticks=5,
        )
        node.applied = 0
        self._touched.add(node)

    def crash(self, number: str) -> None:
        """Power cut: of what was not synced, a part may be there."""
        node = self.nodes[number]
        if node.raft is not None:
            log: Any = node.raft.log
            kept = len(node.disk)
            if len(log.items) > kept:
                kept = self.rng.choice((kept, self.rng.randint(kept, len(log.items))))
            node.disk = list(log.items[:kept])
        node.raft = None

    def lose_disk(self, number: str) -> None:
        node = self.nodes[number]
        assert node.raft is None
        node.hard_state, node.disk, node.has_lost_disk = None, [], True
        # What it had promised is forgotten; the judge of votes goes by what others were told.
        self.terms.pop(number, None)

    def work(self, node: Node) -> None:
        """Do what is ready, in order; the power may go at any point of it."""
        self._touched.add(node)
        raft = node.raft
        assert raft is not None
        ready = raft.ready()
        if self._power_goes(node):
            return
        if ready.hard_state is not None:
            before, node.hard_state = node.hard_state, ready.hard_state
            if before is not None and ready.hard_state.may_vote > before.may_vote:
                self.readmitted += 1
        if self._power_goes(node):
            return
        for message in ready.messages:
            self.send(message, node.starts)
        self._apply(node, ready.committed)
        raft.advance(ready)
        self._acknowledge(node)
        if len(node.disk) < len(raft.log.items) and not node.is_syncing:  # type: ignore[attr-defined]
            self._sync(node)

    def _sync(self, node: Node) -> None:
        raft = node.raft
        assert raft is not None
        log: Any = raft.log
        cuts, count, position, starts = log.cuts, len(log.items), log.last, node.starts
        if node.number in self.answers_before_sync:
            raft.synced(position)

        def done() -> None:
            if node.raft is None or node.starts != starts:
                return
            node.is_syncing = False
            # A sync that was under way while the log was cut says nothing.
            if log.cuts == cuts:
                node.disk = list(log.items[:count])
                raft.synced(position)
            self.work(node)

        node.is_syncing = True
        self.at(self.rng.randrange(self.sync_ms + 1), done)

    def _power_goes(self, node: Node) -> bool:
        if self.may_lose_power and self.rng.random() < 0.0005:
            self.crash(node.number)
            self.at(self.rng.randrange(100, 5_000), lambda: self._restart(node.number))
            return True
        return False

    def _restart(self, number: str) -> None:
        if self.nodes[number].raft is None:
            self.start(number)

    # The network.

    def send(self, message: Message, starts: int) -> None:
        if message.kind is Kind.VOTE_ANSWER and message.ok:
            given = self.votes.setdefault((message.source, message.term), message.target)
            assert given == message.target, f"{message.source} votes twice in {message.term}"
        if self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < 0.02 else 1):
            delay = int(self.rng.expovariate(1 / self.delay_ms)) + (
                self.rng.randrange(3_000) if self.rng.random() < self.late else 0
            )
            self.at(1 + delay, self._arrival(message, starts))

    def _arrival(self, message: Message, starts: int) -> Callable[[], None]:
        sent_to = self.nodes[message.target].starts
        return lambda: self._arrive(message, starts, sent_to)

    def _arrive(self, message: Message, starts: int, sent_to: int) -> None:
        node = self.nodes[message.target]
        if node.raft is None or (message.source, message.target) in self.cuts:
            return
        if self.loses_disks:
            if starts < node.heard.get(message.source, 0) or sent_to != node.starts:
                return
            node.heard[message.source] = starts
        node.raft.step(message)
        self.work(node)

    def cut(self, left: set[str], right: set[str], *, one_way: bool = False) -> None:
        self.cuts |= {(a, b) for a in left for b in right if a != b}
        if not one_way:
            self.cuts |= {(b, a) for a in left for b in right if a != b}

    def heal(self) -> None:
        self.cuts.clear()

    # Users.

    def propose(self) -> bool:
        """Ask whoever believes to lead."""
        leaders = [n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        if not leaders:
            return False
        node = self.rng.choice(leaders)
        raft = node.raft
        assert raft is not None
        if raft.is_transferring:
            return False
        self.proposed += 1
        data = b"%d" % self.proposed + bytes(self.rng.choice((0, 3, 100)))
        log: Any = raft.log
        self._waiting[node.number, raft.term, log.add(raft.term, data)] = data
        raft.grew()
        self.work(node)
        return True

    def _acknowledge(self, node: Node) -> None:
        raft = node.raft
        if raft is None or not self._waiting:
            return
        log: Any = raft.log
        for key in [k for k in self._waiting if k[0] == node.number and k[2] <= raft.committed]:
            data = self._waiting.pop(key)
            record = log.items[log.place(key[2]) - 1]
            if (record.end, record.term, record.data) == (key[2], key[1], data):
                self.acked.append((key[2], key[1], data))

    # The judge.

    def _apply(self, node: Node, committed: int) -> None:
        assert node.raft is not None
        log: Any = node.raft.log
        if committed <= (self.agreed[node.applied - 1].end if node.applied else 0):
            return
        end = log.place(committed)
        for place in range(node.applied, end):
            record = log.items[place]
            if place < len(self.agreed):
                assert self.agreed[place] == record, f"state machines differ at {record.start}"
            else:
                self.agreed.append(record)
                self.agreed_in.append(node.raft.term)
        node.applied = end

    def check(self) -> None:
        """The invariants that can be looked at in one moment, of whom this event has touched."""
        touched, self._touched = self._touched, set()
        for node in touched:
            raft = node.raft
            if raft is None:
                continue
            assert raft.committed <= raft.log.last, "commit beyond the log"
            assert raft.term >= self.terms.get(node.number, 0), "a term was forgotten"
            self.terms[node.number] = raft.term
            if raft.is_leader:
                if self.leaders.get(raft.term) != node.number:
                    assert raft.term not in self.leaders, f"two leaders in term {raft.term}"
                    self.leaders[raft.term] = node.number
                    self._check_complete(node)
                self._check_lease()

    def _check_complete(self, node: Node) -> None:
        """A new leader has everything that was agreed in former terms.

        Not in later ones: votes that come late may make one a leader whose term is over already.
        """
        raft = node.raft
        assert raft is not None
        log: Any = raft.log
        count = bisect_left(self.agreed_in, raft.term)
        assert len(log.items) >= count, "a leader lacks what was agreed"
        first = max(0, count - 50)
        assert log.items[first:count] == self.agreed[first:count], "a leader differs"

    def _check_lease(self) -> None:
        """Where one member is sure to lead, no other one is."""
        leaders = [n.raft for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]
        if len(leaders) > 1:
            sure = [raft.id for raft in leaders if raft.lease_ticks > 0]
            assert len(sure) <= 1, f"{sure} are sure to lead"

    def check_logs_match(self) -> None:
        """Where two logs have the same term at the same position, all before it is the same."""
        logs: list[Any] = [n.raft.log for n in self.nodes.values() if n.raft is not None]
        for number, one in enumerate(logs):
            for other in logs[number + 1 :]:
                ends = {(item.end, item.term) for item in one.items}
                place = len(other.items)
                while place and (other.items[place - 1][:2]) not in ends:
                    place -= 1
                assert one.items[:place] == other.items[:place], "logs do not match"

    def check_nothing_lost(self) -> None:
        ends = [record.end for record in self.agreed]
        for position, term, data in self.acked:
            record = self.agreed[bisect_right(ends, position) - 1]
            found = (record.end, record.term, record.data)
            assert found == (position, term, data), f"acknowledged {data!r} is lost"

    @property
    def leader(self) -> Node | None:
        found = [
            n for n in self.nodes.values() if n.raft is not None and n.raft.role is Role.LEADER
        ]
        return max(found, key=lambda n: n.raft.term if n.raft else 0, default=None)


FAULTS = (
    "crash", "crash", "cut", "cut", "one way", "isolate leader", "loss", "crash all", "pause",
    "transfer",
)  # fmt: skip


def trouble(world: RaftWorld, end_ms: int) -> None:
    """Draw faults over a span; all of them are over at its end."""
    rng = world.rng
    numbers = list(world.nodes)
    at = 1_000 + rng.randrange(2_000)
    while at < end_ms:
        lasts = min(rng.randrange(100, 3_000), end_ms - at)
        world.at(at - world.now_ms, _fault(world, rng.choice(FAULTS), numbers, lasts))
        at += rng.randrange(200, 2_000)
    if world.loses_disks:
        for _ in range(4):
            number = rng.choice(numbers)
            world.at(
                rng.randrange(3_000, end_ms - 5_000),
                lambda number=number: _replace_disk(world, number),  # type: ignore[misc]
            )
    world.at(end_ms - world.now_ms, lambda: _over(world))


def _replace_disk(world: RaftWorld, number: str) -> None:
    # One at a time: with two of them lost, what was agreed may be lost as well.
    for node in world.nodes.values():
        if node.number != number and (node.hard_state is None or not node.hard_state.may_vote):
            return
    world.disks_lost += 1
    world.crash(number)
    world.lose_disk(number)
    world.at(world.rng.randrange(1, 4_000), lambda: world._restart(number))


def _over(world: RaftWorld) -> None:
    world.heal()
    world.loss = world.late = 0.0
    world.delay_ms = 5
    world.sync_ms = 5
    world.may_lose_power = False
    for number, node in world.nodes.items():
        if node.raft is None:
            world.start(number)


def _fault(world: RaftWorld, kind: str, numbers: list[str], lasts: int) -> Callable[[], None]:
    def begin() -> None:
        rng = world.rng
        if kind == "crash":
            number = rng.choice(numbers)
            world.crash(number)
            world.at(lasts, lambda: world._restart(number))
        elif kind == "crash all":
            for number in numbers:
                world.crash(number)
                world.at(rng.randrange(1, 1_000), lambda number=number: world._restart(number))  # type: ignore[misc]
        elif kind in ("cut", "one way"):
            left = set(rng.sample(numbers, rng.randrange(1, len(numbers))))
            world.cut(left, set(numbers) - left, one_way=kind == "one way")
            world.at(lasts, world.heal)
        elif kind == "isolate leader" and world.leader is not None:
            alone = {world.leader.number}
            world.cut(alone, set(numbers) - alone)
            world.at(lasts, world.heal)
        elif kind == "transfer" and world.leader is not None:
            leader = world.leader
            assert leader.raft is not None
            leader.raft.transfer(rng.choice(numbers))
            world.work(leader)
        elif kind == "loss":
            world.loss = rng.choice((0.1, 0.3, 0.6))
            world.at(lasts, lambda: setattr(world, "loss", 0.02))
        elif kind == "pause":
            world.may_lose_power = True
            world.at(lasts, lambda: setattr(world, "may_lose_power", False))

    return begin
