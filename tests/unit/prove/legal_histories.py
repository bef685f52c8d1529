"""Histories that a correct cluster could have given: a log in memory, and clients at random."""

from __future__ import annotations

import random

from skylark.prove.history import FAIL, INFO, INVOKE, OK, Event, History

TOPIC = "Proof"
NODES = ("broker-a.0", "broker-a.1")
LEASE_MS = 60_000


class LegalRun:
    """Clients of a perfect broker, at random; every effect lies between question and answer."""

    def __init__(self, seed: int, *, steps: int = 400, queues: int = 2, **rules: int) -> None:
        self.rng = random.Random(seed)
        self.queues = queues
        self.now = 1_000
        self.wall = 1_700_000_000_000
        self.events: list[Event] = []
        self.log: list[list[int]] = [[] for _ in range(queues)]
        self.sequence = 0
        self.position: dict[tuple[int, int], int] = {}
        self.handled = [0] * queues
        self.committed = [0] * queues
        self.owner: list[tuple[int, int] | None] = [None] * queues  # Client, until.
        self.pending: list[tuple[str, int, int, int, int]] = []
        self.scheduled: list[tuple[int, int]] = []  # Due, id.
        for name, value in {"lease_ms": LEASE_MS, "retries_max": 3, **rules}.items():
            self.note("rule", OK, topic=name, off=value)
        for _ in range(steps):
            self.step()
        self.finish()

    def note(self, f: str, type: int, **given: object) -> None:
        fields = {"p": -1, "topic": TOPIC, "q": -1, "off": -1, "id": -1, "node": "broker-a"}
        self.events.append(
            Event(**{**fields, **given, "f": f, "type": type, "t_mono": self.now,
                     "t_wall": self.wall + self.now})  # type: ignore[arg-type]
        )  # fmt: skip

    def step(self) -> None:
        rng = self.rng
        self.now += rng.randrange(0, 20)
        self.deliver_due()
        what = rng.choice((
            self.begin_send, self.begin_send, self.end_send, self.end_send, self.poll, self.group,
            self.commit, self.ask_committed, self.ask_end, self.lock, self.unlock,
            self.schedule, self.attempt, self.half, self.fault,
        ))  # fmt: skip
        what()

    def begin_send(self) -> None:
        busy = {p for _, p, *_ in self.pending}
        free = [p for p in range(5) if p not in busy]
        if free:
            p, q = self.rng.choice(free), self.rng.randrange(self.queues)
            self.sequence += 1
            id = p << 32 | self.sequence
            self.note("send", INVOKE, p=p, q=q, id=id)
            outcome = self.rng.choices(("ok", "fail", "info", "info and stored"), (8, 1, 1, 1))[0]
            self.pending.append((outcome, p, q, id, -1))

    def end_send(self) -> None:
        if not self.pending:
            return
        outcome, p, q, id, off = self.pending.pop(self.rng.randrange(len(self.pending)))
        if off < 0 and outcome in ("ok", "info and stored"):
            off = len(self.log[q])
            self.log[q].append(id)
            if self.rng.random() < 0.5:  # Stored; the answer comes later.
                self.pending.append((outcome, p, q, id, off))
                return
        type = {"ok": OK, "fail": FAIL}.get(outcome, INFO)
        self.note("send", type, p=p, q=q, id=id, off=off if type == OK else -1)

    def poll(self) -> None:
        p, q = 10 + self.rng.randrange(2), self.rng.randrange(self.queues)
        if (p, q) not in self.position or self.rng.random() < 0.05:
            self.position[p, q] = self.rng.choice((0, len(self.log[q])))
            self.note("assign", OK, p=p, q=q, off=self.position[p, q])
        for _ in range(self.rng.randrange(1, 4)):
            off = self.position[p, q]
            if off < len(self.log[q]):
                self.note("poll", OK, p=p, q=q, off=off, id=self.log[q][off])
                self.position[p, q] += 1

    def group(self) -> None:
        q = self.rng.randrange(self.queues)
        if self.handled[q] < len(self.log[q]):
            off = self.handled[q]
            for kind in ("deliver", "ordered"):
                self.note(kind, OK, p=20, q=q, off=off, id=self.log[q][off])
            if self.rng.random() < 0.9:  # Else it comes again.
                self.handled[q] += 1

    def commit(self) -> None:
        q = self.rng.randrange(self.queues)
        off = self.rng.randint(self.committed[q], len(self.log[q]))
        self.note("commit", INVOKE, p=30, q=q, off=off)
        self.committed[q] = off
        self.note("commit", self.rng.choice((OK, OK, INFO)), p=30, q=q, off=off)

    def ask_committed(self) -> None:
        q = self.rng.randrange(self.queues)
        self.note("committed", INVOKE, p=31, q=q)
        self.note("committed", OK, p=31, q=q, off=self.committed[q])

    def ask_end(self) -> None:
        q = self.rng.randrange(self.queues)
        self.note("max", INVOKE, p=32, q=q)
        self.note("max", OK, p=32, q=q, off=len(self.log[q]))

    def lock(self) -> None:
        p, q = 40 + self.rng.randrange(3), self.rng.randrange(self.queues)
        self.note("lock", INVOKE, p=p, q=q)
        held = self.owner[q]
        is_free = held is None or held[0] == p or held[1] <= self.now
        if is_free and self.rng.random() < 0.9:
            self.owner[q] = (p, self.now + LEASE_MS)
            self.note("lock", self.rng.choice((OK, OK, OK, INFO)), p=p, q=q)
        else:
            self.note("lock", INFO if is_free else FAIL, p=p, q=q)

    def unlock(self) -> None:
        p, q = 40 + self.rng.randrange(3), self.rng.randrange(self.queues)
        held = self.owner[q]
        if held is None or held[0] != p:
            return
        if self.rng.random() < 0.1:
            # The owner is gone; its lease runs out while all else waits for it.
            self.now += LEASE_MS + 1
            self.note("fault", INVOKE, topic="delay", node=NODES[0])
            self.note("fault", OK, topic="delay", node=NODES[0])
            self.owner = [None] * self.queues
            return
        self.note("unlock", INVOKE, p=p, q=q)
        self.owner[q] = None
        self.note("unlock", self.rng.choice((OK, OK, INFO)), p=p, q=q)

    def schedule(self) -> None:
        self.sequence += 1
        id = 6 << 32 | self.sequence
        due = self.wall + self.now + 1_000
        self.note("schedule", INVOKE, p=6, q=0, id=id, off=due)
        self.note("schedule", OK, p=6, q=0, id=id, off=due)
        self.scheduled.append((due, id))

    def deliver_due(self) -> None:
        for due, id in [one for one in self.scheduled if one[0] <= self.wall + self.now]:
            self.scheduled.remove((due, id))
            self.log[0].append(id)

    def attempt(self) -> None:
        self.sequence += 1
        id = 7 << 32 | self.sequence
        tries = self.rng.randrange(0, 5)
        for count in range(min(tries, 3) + 1):
            for _ in range(self.rng.randrange(1, 3)):
                self.note("attempt", OK, p=50, id=id, off=count)
        if tries > 3:
            self.note("dead", OK, p=50, id=id, off=3)

    def half(self) -> None:
        self.sequence += 1
        id = 8 << 32 | self.sequence
        q = self.rng.randrange(self.queues)
        self.note("half", INVOKE, p=8, q=q, id=id)
        self.note("half", OK, p=8, q=q, id=id, off=0)
        if self.rng.random() < 0.5:
            self.note("end", INVOKE, p=8, id=id)
            self.log[q].append(id)
            self.note("end", OK, p=8, id=id)
        else:
            self.note("end", FAIL, p=8, id=id)

    def fault(self) -> None:
        if self.rng.random() < 0.3:
            kind = self.rng.choice(("kill", "stop", "partition", "delay"))
            self.note("fault", INVOKE, topic=kind, node=self.rng.choice(NODES))
            self.now += self.rng.randrange(300)
            event = self.events[-1]
            self.note("fault", OK, topic=kind, node=event.node)

    def finish(self) -> None:
        while self.pending:
            self.end_send()
        self.now += 2_000
        self.deliver_due()
        for q in range(self.queues):
            for kind in ("deliver", "ordered"):
                for off in range(self.handled[q], len(self.log[q])):
                    self.note(kind, OK, p=20, q=q, off=off, id=self.log[q][off])
        for q, log in enumerate(self.log):
            for off, id in enumerate(log):
                self.note("drain", OK, q=q, off=off, id=id)
        for node in NODES:
            for q, log in enumerate(self.log):
                for off, id in enumerate(log):
                    self.note("replica", OK, q=q, off=off, id=id, node=node)
            self.note("log", OK, topic="", off=4_096, id=77, node=node)

    @property
    def history(self) -> History:
        return History(self.events)
