"""History: everything that clients asked, were told and saw in one run, and every fault; in order.

    one JSON line per event, always these keys
    p        the client, a number of its own; -1 for the run itself
    type     invoke | ok | fail (did not happen) | info (may have happened: time-outs, resets,
             FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE)
    f        what: see VERBS
    topic    the topic; of a fault its kind; of a rule its name
    q        the queue, as a number that is unique in the run; -1 for none
    off      an offset, or what VERBS says; -1 for none
    id       the message: producer << 32 | sequence number; see payload.py; -1 for none
    t_mono   milliseconds, monotonic        t_wall   milliseconds since 1970
    node     the machine that is spoken of; of a fault all of them, joined by commas

One recorder writes a history, so the order of lines is the order of real time, finer than t_mono.
In memory an event takes 40 bytes: a column for each key, names kept once.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TextIO

from ..clock import Clock
from ..errors import ConfigError

TYPES: Final = ("invoke", "ok", "fail", "info")
INVOKE, OK, FAIL, INFO = range(4)
VERBS: Final = {
    "send": "a message goes to a queue; ok: off is where it lies",
    "schedule": "a message for later; off is its time, milliseconds since 1970",
    "half": "a message that is not to be seen before it is committed",
    "end": "ok: that message was committed; fail: rolled back",
    "assign": "a reader goes to an offset",
    "poll": "a reader got a message",
    "deliver": "a member of a group got a message",
    "ordered": "a member of an ordered group got a message",
    "commit": "an auditor commits how far it is",
    "committed": "how far the auditors are, as asked",
    "reset": "an operator moved the auditors",
    "max": "the end of a queue, as asked",
    "lock": "a client wants a queue's lock; fail: somebody else has it",
    "unlock": "it gives the lock back",
    "attempt": "a message is tried; off says how often it was before",
    "dead": "a message lies among the dead letters; off says how often it was tried again",
    "drain": "after all faults, a new group found a message",
    "replica": "after all faults, the files of a node have a message",
    "log": "after all faults, the log of a node: off bytes with the checksum id",
    "fault": "invoke: it begins; ok: it is over; info: it could not be done",
    "rule": "what the judge has to know: topic is its name, off its value",
}
MANGLED: Final = -2  # The id of a body that is not one of ours, or no longer.
_VERB_NAMES: Final = tuple(VERBS)
_VERB_NUMBERS: Final = {name: number for number, name in enumerate(_VERB_NAMES)}
_TYPE_NUMBERS: Final = {name: number for number, name in enumerate(TYPES)}
_NUMBERS: Final = ("p", "q", "off", "id", "t_mono", "t_wall")
_KEYS: Final = frozenset(("p", "type", "f", "topic", "q", "off", "id", "t_mono", "t_wall", "node"))
_LIMITS: Final = {"p": 31, "q": 31, "off": 63, "id": 63, "t_mono": 63, "t_wall": 63}
_LINE_MAX: Final = 4_096


class Event(NamedTuple):
    """One line."""

    p: int
    type: int
    f: str
    topic: str
    q: int
    off: int
    id: int
    t_mono: int
    t_wall: int
    node: str

    def line(self) -> str:
        """The event as JSON."""
        fields = {**self._asdict(), "type": TYPES[self.type]}
        return json.dumps(fields, separators=(",", ":"))

    def __str__(self) -> str:
        shown = [f"{self.f} {TYPES[self.type]}", f"p={self.p}"]
        shown += [self.topic] if self.topic else []
        shown += [f"q={self.q}"] if self.q >= 0 else []
        shown += [f"off={self.off}"] if self.off >= 0 else []
        shown += [f"id={self.id >> 32}:{self.id & 0xFFFFFFFF}"] if self.id >= 0 else []
        shown += [f"node={self.node}"] if self.node else []
        return " ".join(shown)


class _Names:
    """Strings by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


class History:
    """Events, by column."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._p, self._type, self._f = array("i"), array("b"), array("b")
        self._topic, self._q, self._off = array("i"), array("i"), array("q")
        self._id, self._t_mono, self._t_wall = array("q"), array("q"), array("q")
        self._node = array("i")
        self._names = _Names()
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Put an event at the end."""
        p, kind, f, topic, q, off, id_, t_mono, t_wall, node = event
        self._p.append(p)
        self._type.append(kind)
        self._f.append(_VERB_NUMBERS[f])
        self._topic.append(self._names.number(topic))
        self._q.append(q)
        self._off.append(off)
        self._id.append(id_)
        self._t_mono.append(t_mono)
        self._t_wall.append(t_wall)
        self._node.append(self._names.number(node))

    def __len__(self) -> int:
        return len(self._p)

    def __getitem__(self, at: int) -> Event:
        texts = self._names.texts
        return Event(
            self._p[at],
            self._type[at],
            _VERB_NAMES[self._f[at]],
            texts[self._topic[at]],
            self._q[at],
            self._off[at],
            self._id[at],
            self._t_mono[at],
            self._t_wall[at],
            texts[self._node[at]],
        )

    def __iter__(self) -> Iterator[Event]:
        texts = self._names.texts
        middle = zip(self._q, self._off, self._id, self._t_mono, self._t_wall, strict=True)
        outer = zip(self._p, self._type, self._f, self._topic, self._node, strict=True)
        for (p, kind, f, topic, node), numbers in zip(outer, middle, strict=True):
            yield Event(p, kind, _VERB_NAMES[f], texts[topic], *numbers, texts[node])

    @property
    def bytes_used(self) -> int:
        """What the columns take, names not counted."""
        columns = (self._p, self._type, self._f, self._topic, self._q, self._off, self._id)
        return sum(
            len(column) * column.itemsize
            for column in (*columns, self._t_mono, self._t_wall, self._node)
        )

    def write(self, out: TextIO) -> None:
        """Write all events as lines."""
        for event in self:
            out.write(event.line() + "\n")

    @classmethod
    def read(cls, lines: Iterable[str], name: str = "history") -> History:
        """Read lines; ConfigError names the first that is not an event."""
        history = cls()
        for number, line in enumerate(lines, 1):
            try:
                history.add(parse_event(line))
            except ValueError as error:
                raise ConfigError(
                    f"{name}:{number}: {error}; give a whole file that `skylark prove --keep` wrote"
                ) from None
        return history


def parse_event(line: str) -> Event:
    """Read one line; ValueError says what is wrong with it."""
    if len(line) > _LINE_MAX:
        raise ValueError(f"longer than {_LINE_MAX} characters")
    if not line.endswith("\n"):
        raise ValueError("the line is cut short")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(fields, dict) or set(fields) != _KEYS:
        raise ValueError(f"not an object with the keys {', '.join(sorted(_KEYS))}")
    for key in _NUMBERS:
        value = fields[key]
        if type(value) is not int or not -(1 << _LIMITS[key]) <= value < 1 << _LIMITS[key]:
            raise ValueError(f"{key} is not a whole number of {_LIMITS[key] + 1} bits")
    for key in ("topic", "node", "type", "f"):
        if not isinstance(fields[key], str):
            raise ValueError(f"{key} is not a text")
    if fields["type"] not in _TYPE_NUMBERS:
        raise ValueError(f"type is none of {', '.join(TYPES)}")
    if fields["f"] not in _VERB_NUMBERS:
        raise ValueError(f"f is none of {', '.join(VERBS)}")
    return Event(**{**fields, "type": _TYPE_NUMBERS[fields["type"]]})


class Recorder:
    """Writes events down as they happen, in memory and, if asked, to a file as well."""

    def __init__(self, clock: Clock, out: TextIO | None = None) -> None:
        self.history = History()
        self._clock = clock
        self._out = out

    def note(
        self,
        f: str,
        type: int,
        *,
        p: int = -1,
        topic: str = "",
        q: int = -1,
        off: int = -1,
        id: int = -1,
        node: str = "",
    ) -> None:
        """Add an event that happens now."""
        clock = self._clock
        event = Event(p, type, f, topic, q, off, id, clock.monotonic_ms(), clock.now_ms(), node)
        self.history.add(event)
        if self._out is not None:
            self._out.write(event.line() + "\n")

    def rule(self, name: str, value: int) -> None:
        """Tell the judge something."""
        self.note("rule", OK, topic=name, off=value)
