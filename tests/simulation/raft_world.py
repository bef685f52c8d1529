"""Raft members, a network that delays, drops, doubles and cuts, disks that keep what was synced.

One list of events in virtual milliseconds, all chance from one seed. The invariants of the paper
are looked at after every event; a failing seed is the bug report.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from skylark.replication.raft import Entry, HardState, Kind, MemoryLog, Message, Raft, Role

TICK_MS = 100


class Node:
    """One machine: what is on its disk, and the process, if it runs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.raft: Raft | None = None
        self.hard_state: HardState | None = None
        self.disk: list[Entry] = []
        self.has_lost_disk = False
        self.applied: list[Entry] = []
        self.starts = 0


class RaftWorld:
    """One run of a group."""

    make: Callable[..., Raft] = Raft

    def __init__(self, seed: int, size: int, *, make: Callable[..., Raft] | None = None) -> None:
        self.rng = random.Random(f"{seed}/{size}")
        self.seed = seed
        self._make = make or Raft
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = {number: Node(number) for number in range(1, size + 1)}
        self.cuts: set[tuple[int, int]] = set()
        self.loss = 0.02
        self.late = 0.03  # Messages that arrive when nobody expects them any more.
        self.delay_ms = self.rng.choice((5, 20, 60))
        self.syncs_slowly = False
        self.skips_sync: set[int] = set()  # For planted bugs.
        # What was ever true, for the judge.
        self.agreed: list[Entry] = []
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.terms: dict[int, int] = {}
        self.proposed = 0
        self.acked: list[tuple[int, int, bytes]] = []
        self._waiting: dict[tuple[int, int, int], bytes] = {}
        self.events_total = 0
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

    def _ticker(self, number: int) -> Callable[[], None]:
        def tick() -> None:
            node = self.nodes[number]
            if node.raft is not None:
                node.raft.tick()
                self.work(node)
            self.at(TICK_MS, tick)

        return tick

    # Machines.

    def start(self, number: int) -> None:
        node = self.nodes[number]
        assert node.raft is None
        node.starts += 1
        node.raft = self._make(
            number,
            self.nodes,
            MemoryLog(node.disk),
            random.Random(self.rng.random()),
            hard_state=node.hard_state,
            election_ticks=5,
        )
        if node.has_lost_disk and node.hard_state is None:
            node.raft.lost_disk()
        node.applied = []

    def crash(self, number: int) -> None:
        """Power cut: what was not synced is gone."""
        self.nodes[number].raft = None

    def lose_disk(self, number: int) -> None:
        node = self.nodes[number]
        assert node.raft is None
        node.hard_state, node.disk, node.has_lost_disk = None, [], True

    def work(self, node: Node) -> None:
        """Do what is ready, in order; the power may go at any point of it."""
        raft = node.raft
        assert raft is not None
        ready = raft.ready()
        if self._power_goes(node):
            return
        if node.number not in self.skips_sync:
            if ready.hard_state is not None:
                node.hard_state = ready.hard_state
            log: Any = raft.log
            if ready.sync is not None:
                node.disk = list(log.items[: ready.sync])
            elif len(node.disk) > log.last_index:
                node.disk = list(log.items)
        if self._power_goes(node):
            return
        for message in ready.messages:
            self.send(message)
        for entry in ready.committed:
            self._apply(node, entry)
        raft.advance(ready)
        self._acknowledge(node)

    def _power_goes(self, node: Node) -> bool:
        if self.syncs_slowly and self.rng.random() < 0.0005:
            node.raft = None
            self.at(self.rng.randrange(100, 5_000), lambda: self._restart(node.number))
            return True
        return False

    def _restart(self, number: int) -> None:
        if self.nodes[number].raft is None:
            self.start(number)

    # The network.

    def send(self, message: Message) -> None:
        if message.kind is Kind.VOTE_ANSWER and message.ok:
            given = self.votes.setdefault((message.source, message.term), message.target)
            assert given == message.target, f"{message.source} votes twice in {message.term}"
        if self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < 0.02 else 1):
            delay = int(self.rng.expovariate(1 / self.delay_ms)) + (
                self.rng.randrange(3_000) if self.rng.random() < self.late else 0
            )
            self.at(1 + delay, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        node = self.nodes[message.target]
        if node.raft is not None and (message.source, message.target) not in self.cuts:
            node.raft.step(message)
            self.work(node)

    def cut(self, left: set[int], right: set[int], *, one_way: bool = False) -> None:
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
        assert node.raft is not None
        self.proposed += 1
        data = b"%d" % self.proposed
        index = node.raft.propose(data)
        if index is not None:
            self._waiting[node.number, node.raft.term, index] = data
            self.work(node)
        return index is not None

    def _acknowledge(self, node: Node) -> None:
        raft = node.raft
        if raft is None or not self._waiting:
            return
        for key in [k for k in self._waiting if k[0] == node.number and k[2] <= raft.applied]:
            data = self._waiting.pop(key)
            entry = node.applied[key[2] - 1]
            if entry.term == key[1] and entry.data == data:
                self.acked.append((key[2], key[1], data))

    # The judge.

    def _apply(self, node: Node, entry: Entry) -> None:
        assert entry.at == len(node.applied) + 1, "applied out of order"
        node.applied.append(entry)
        if entry.at <= len(self.agreed):
            assert self.agreed[entry.at - 1] == entry, f"state machines differ at {entry.at}"
        else:
            assert entry.at == len(self.agreed) + 1
            self.agreed.append(entry)

    def check(self) -> None:
        """The invariants that can be looked at in one moment."""
        for node in self.nodes.values():
            raft = node.raft
            if raft is None:
                continue
            assert raft.applied <= raft.committed <= raft.log.last_index, "commit beyond the log"
            if not node.has_lost_disk:
                assert raft.term >= self.terms.get(node.number, 0), "a term was forgotten"
                self.terms[node.number] = raft.term
            if raft.is_leader and self.leaders.get(raft.term) != node.number:
                assert raft.term not in self.leaders, f"two leaders in term {raft.term}"
                self.leaders[raft.term] = node.number
                self._check_complete(node)

    def _check_complete(self, node: Node) -> None:
        """A new leader has everything that was ever agreed."""
        raft = node.raft
        assert raft is not None
        assert raft.log.last_index >= len(self.agreed), "a leader lacks what was agreed"
        for entry in self.agreed[-50:]:
            assert raft.log.term_at(entry.at) == entry.term, "a leader has other entries"

    def check_logs_match(self) -> None:
        """Where two logs have an entry of the same index and term, all before it are the same."""
        logs: list[Any] = [n.raft.log for n in self.nodes.values() if n.raft is not None]
        for number, one in enumerate(logs):
            for other in logs[number + 1 :]:
                last = min(one.last_index, other.last_index)
                while last and one.term_at(last) != other.term_at(last):
                    last -= 1
                assert one.items[:last] == other.items[:last], "logs do not match"

    def check_nothing_lost(self) -> None:
        for index, term, data in self.acked:
            entry = self.agreed[index - 1]
            assert (entry.term, entry.data) == (term, data), f"acknowledged {data!r} is lost"

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
    if world.seed % 4 == 0:
        # One disk only: with two of them lost, what was agreed may be lost as well.
        number = rng.choice(numbers)
        world.at(rng.randrange(3_000, end_ms - 5_000), lambda: _replace_disk(world, number))
    world.at(end_ms - world.now_ms, lambda: _over(world))


def _replace_disk(world: RaftWorld, number: int) -> None:
    world.crash(number)
    world.lose_disk(number)
    world.at(world.rng.randrange(1, 4_000), lambda: world._restart(number))


def _over(world: RaftWorld) -> None:
    world.heal()
    world.loss = world.late = 0.0
    world.delay_ms = 5
    world.syncs_slowly = False
    for number, node in world.nodes.items():
        if node.raft is None:
            world.start(number)


def _fault(world: RaftWorld, kind: str, numbers: list[int], lasts: int) -> Callable[[], None]:
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
            world.syncs_slowly = True
            world.at(lasts, lambda: setattr(world, "syncs_slowly", False))

    return begin
