"""Story: a history read once, as its checkers want it: sends, faults, rules, and what was left.

Rules come from the history itself, so that a kept file can be judged by itself. A loss rule says
what a fault may cost of what was acknowledged:

    0     nothing
    n     the last n milliseconds before it, and only the end of each queue
    -2    the end of each queue, however long
    -1    everything

A vanish rule says whether a fault may also take what was seen before it was acknowledged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Final

from ..errors import ConfigError
from .history import FAIL, INFO, INVOKE, OK, History

EVERYTHING: Final = -1
A_SUFFIX: Final = -2
LOSS_RULES: Final = {
    "kill": "loss_kill",
    "power-cut": "loss_power",
    "disk-lost": "loss_disk",
    "all-power-cut": "loss_all_power",
}
SENDS: Final = ("send", "schedule", "half")
READS: Final = ("poll", "deliver", "ordered", "drain", "replica")


@dataclass(frozen=True, slots=True)
class Rules:
    """What was promised, as numbers."""

    loss_kill: int = 0
    loss_power: int = 0
    loss_disk: int = 0
    loss_all_power: int = 0
    vanish_kill: int = 0
    vanish_power: int = 0
    vanish_disk: int = 0
    vanish_all_power: int = 0
    linearizable: int = 1  # The end of a queue, when asked, counts all that was acknowledged.
    forget_ms: int = 0  # A crash may forget commits that are no older.
    lease_ms: int = 60_000
    locks_kept: int = 1  # Locks outlive a restart of their broker.
    retries_max: int = 16
    late_ms: int = 5_000  # After its time, or after the last fault.
    early_ms: int = 0
    level: int = 1  # In the end all replicas have the same.


@dataclass(slots=True)
class Send:
    """One try to send a message."""

    id: int
    p: int
    verb: str
    place: int
    invoked: int  # Numbers of events.
    type: int = INFO
    ended: int = -1
    off: int = -1
    t_invoked: int = 0
    t_ended: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault from its first moment to its last."""

    kind: str
    node: str
    begin: int
    end: int
    t_begin: int
    t_end: int

    @property
    def groups(self) -> set[str]:
        """The brokers whose machines it met: broker-a of broker-a.0."""
        return {name.rpartition(".")[0] or name for name in self.node.split(",")}

    def __str__(self) -> str:
        return f"{self.kind} {self.node} from {self.t_begin} to {self.t_end} ms"


@dataclass(slots=True)
class Story:
    """What checkers ask of a history."""

    history: History
    rules: Rules = field(default_factory=Rules)
    sends: list[Send] = field(default_factory=list)
    tries: dict[int, list[Send]] = field(default_factory=dict)  # By id.
    faults: list[FaultSpan] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)
    final: dict[int, dict[int, int]] = field(default_factory=dict)  # Place → offset → id.
    copies: Counter[int] = field(default_factory=Counter)  # Id → how often it is there.
    committed: dict[int, bool] = field(default_factory=dict)  # Halves: id → committed?
    is_drained: bool = False
    _place_numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    _shrunk: dict[int, int] | None = None
    _crashes: dict[str, list[FaultSpan]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History) -> Story:
        """Read a history."""
        story = cls(history)
        given: dict[str, int] = {}
        pending: dict[tuple[int, str, int], Send] = {}
        begun: dict[tuple[str, str], tuple[int, int]] = {}
        last_t = 0
        for at, event in enumerate(history):
            f = event.f
            last_t = event.t_mono
            if f in SENDS:
                key = (event.p, f, event.id)
                if event.type == INVOKE:
                    place = story.place(event.topic, event.q)
                    send = Send(event.id, event.p, f, place, at, t_invoked=event.t_mono)
                    send.off = event.off if f == "schedule" else -1
                    pending[key] = send
                    story.sends.append(send)
                    story.tries.setdefault(event.id, []).append(send)
                elif (ended := pending.pop(key, None)) is not None:
                    ended.type, ended.ended, ended.t_ended = event.type, at, event.t_mono
                    ended.node = event.node
                    if f != "schedule":
                        ended.off = event.off
                        ended.place = story.place(event.topic, event.q)
            elif f == "drain":
                story.is_drained = True
                if event.id != -1:
                    queue = story.final.setdefault(story.place(event.topic, event.q), {})
                    queue[event.off] = event.id
                    story.copies[event.id] += 1
            elif f == "end" and event.type in (OK, FAIL):
                story.committed[event.id] = event.type == OK
            elif f == "fault":
                name = (event.topic, event.node)
                if event.type == INVOKE:
                    begun[name] = (at, event.t_mono)
                elif event.type == OK and name in begun:
                    begin, t_begin = begun.pop(name)
                    story.faults.append(FaultSpan(*name, begin, at, t_begin, event.t_mono))
            elif f == "rule":
                given[event.topic] = event.off
        for (kind, node), (begin, t_begin) in begun.items():
            story.faults.append(FaultSpan(kind, node, begin, len(history), t_begin, last_t))
        story.faults.sort(key=lambda fault: fault.begin)
        unknown = given.keys() - {item.name for item in fields(Rules)}
        if unknown:
            raise ConfigError(
                f"the history has the rule {min(unknown)[:64]!r}, which this version does not "
                "know; judge it with the version that wrote it"
            )
        story.rules = Rules(**given)
        return story

    def place(self, topic: str, q: int) -> int:
        """The number of a queue."""
        found = self._place_numbers.get((topic, q))
        if found is None:
            found = self._place_numbers[topic, q] = len(self.places)
            self.places.append((topic, q))
        return found

    @property
    def acked(self) -> list[Send]:
        """Sends that were acknowledged."""
        return [send for send in self.sends if send.type == OK]

    def crashes(self, node: str = "") -> list[FaultSpan]:
        """Faults that end a process; of one broker's machines, or all."""
        found = self._crashes.get(node)
        if found is None:
            found = self._crashes[node] = [
                fault
                for fault in self.faults
                if fault.kind in LOSS_RULES and (not node or node in fault.groups)
            ]
        return found

    def excuse(self, send: Send) -> FaultSpan | None:
        """The fault that was allowed to cost this acknowledged message, if any."""
        for fault in self.crashes(send.node):
            limit = int(getattr(self.rules, LOSS_RULES[fault.kind]))
            if limit == 0 or send.t_ended > fault.t_end:
                continue
            if limit < 0 or fault.t_begin - send.t_ended <= limit:
                return fault
        return None

    def is_lost_as_allowed(self, send: Send) -> bool:
        """Whether it is not there in the end, and need not be: its offset is free again."""
        return self.is_drained and not self.copies[send.id] and self.excuse(send) is not None

    def is_excused(self, id: int) -> bool:
        """Whether a message may be gone: it was never acknowledged, or its loss is allowed."""
        tries = self.tries.get(id, [])
        if any(send.type == OK and self.excuse(send) is None for send in tries):
            return False
        if any(send.type == OK for send in tries):
            return True
        # Never acknowledged, but perhaps seen: gone with a fault that may cost something.
        return any(self.costs(fault) for fault in self.crashes(tries[-1].node if tries else ""))

    def costs(self, fault: FaultSpan) -> bool:
        """Whether a fault may cost anything that somebody saw."""
        rule = LOSS_RULES[fault.kind]
        vanish = rule.replace("loss", "vanish")
        return bool(getattr(self.rules, rule) or getattr(self.rules, vanish))

    def is_gone(self, place: int, off: int, id: int) -> bool:
        """Whether a message lay at a place, is no longer there, and was allowed to go."""
        if not self.is_drained or self.final.get(place, {}).get(off) == id:
            return False
        for send in self.tries.get(id, ()):
            if send.verb == "send" and send.type == OK and (send.place, send.off) == (place, off):
                return self.excuse(send) is not None
        return any(self.costs(fault) for fault in self.crashes())

    def shrunk(self) -> dict[int, int]:
        """Queues that lost their end as was allowed: the lowest offset that is gone."""
        if self._shrunk is None:
            found: dict[int, int] = {}
            if any(self.costs(fault) for fault in self.crashes()):
                for event in self.history:
                    is_seen = event.f in READS or (event.f == "send" and event.type == OK)
                    if is_seen and event.id >= 0:
                        place = self.place(event.topic, event.q)
                        if self.is_gone(place, event.off, event.id):
                            found[place] = min(found.get(place, event.off), event.off)
            self._shrunk = found
        return self._shrunk
