"""What Raft agrees on, and what its members say to each other; see docs/formats/raft.md.

The log is a stretch of bytes, made of records, and Raft counts in positions: physical offsets at
which a record ends. A term is a stretch of the log, from where its leader began to write.

    position   0        120         340    400            620
    log        |--------|-----------|------|--------------|
    term           1         1          3         3
    terms      (1 from 0) (3 from 340)

Where two logs have the same term at the same position, they are the same up to there: a term has
one leader, which writes every position once. So the terms of a log are a short table, and an entry
needs neither a number nor a header of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple, Protocol

CHUNK_BYTES_MAX = 1 << 20  # More only for a single record.


class Kind(Enum):
    """What a message is; the numbers are those of the wire."""

    PRE_VOTE = 1
    PRE_VOTE_ANSWER = 2
    VOTE = 3
    VOTE_ANSWER = 4
    APPEND = 5
    APPEND_ANSWER = 6
    TIMEOUT_NOW = 7
    GREET = 8
    GREET_ANSWER = 9


class HardState(NamedTuple):
    """What must be on the disk before a message says so."""

    term: int
    vote: str | None
    may_vote: bool = True
    floor: int = 0  # A candidate without a term in its log must have this much of it.


class Chunk(NamedTuple):
    """Whole records of one term."""

    start: int
    end: int
    term: int
    data: Any  # Bytes of the commit log; MemoryLog has its own.
    stored_at_ms: int = -1  # Of its last record, if known.


class Message(NamedTuple):
    """Between two members; fields that a kind does not use are left alone."""

    kind: Kind
    source: str
    target: str
    term: int
    # A position. Votes: the last. Append: where it continues. Answer: what is on the disk, or a
    # hint. Greeting: the last.
    at: int = 0
    log_term: int = 0  # Of that position.
    chunk: Chunk | None = None
    # A position. Append, greeting: what is agreed. Answer: what was received; no: what was asked.
    commit: int = 0
    ok: bool = False
    is_transfer: bool = False
    is_voter: bool = True
    is_base: bool = False  # Append: the sender's log begins at this position.
    beat: int = 0  # Comes back in the answer.


class RaftLog(Protocol):
    """The records, and their terms."""

    @property
    def start(self) -> int:
        """Where it begins; it may have begun earlier once."""
        ...

    @property
    def last(self) -> int:
        """Where it ends."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing, and it may begin anywhere."""
        ...

    @property
    def may_lead(self) -> bool:
        """Whether its disk takes what a leader would write."""
        ...

    def term_at(self, position: int) -> int:
        """The term of the record that ends at a position, from start to last."""
        ...

    def term_after(self, position: int) -> int:
        """The term of the record that begins at a position, below last."""
        ...

    def stretch_end(self, position: int) -> int:
        """How far the records from a position on are of one term."""
        ...

    def end_of_term(self, term: int) -> tuple[int, int]:
        """The newest term that is not newer than this one, and where it ends; (-1, -1): none."""
        ...

    def read(self, position: int, size_max: int) -> Chunk:
        """Whole records of one term from a position on, at least one."""
        ...

    def append(self, chunk: Chunk, since: int) -> None:
        """Add what a chunk has from a position on, which is where the log ends."""
        ...

    def truncate(self, position: int) -> None:
        """Drop everything behind a position, durably."""
        ...

    def begin(self, position: int, term: int) -> None:
        """Let an empty log begin at a position, with the term of what lies before."""
        ...

    def begin_term(self, term: int, leader: str) -> bool:
        """As leader, write the first record of a term; False if there is no room for it."""
        ...


class Terms:
    """Term → first position; the first entry says which term is before everything."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ((0, 0),)) -> None:
        entries = list(entries)
        assert entries
        self.numbers = [number for number, _ in entries]
        self.starts = [start for _, start in entries]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """As it is written down."""
        return list(zip(self.numbers, self.starts, strict=True))

    def at(self, position: int) -> int:
        """The term of the record that ends here."""
        return self.numbers[max(0, bisect_left(self.starts, position) - 1)]

    def after(self, position: int) -> int:
        """The term of the record that begins here."""
        return self.numbers[max(0, bisect_right(self.starts, position) - 1)]

    def next_start(self, position: int) -> int | None:
        """Where the term behind that of a position begins."""
        place = bisect_right(self.starts, position)
        return self.starts[place] if place < len(self.starts) else None

    def end_of(self, term: int, last: int) -> tuple[int, int]:
        """The newest term that is not newer than this one, and its end."""
        place = bisect_right(self.numbers, term) - 1
        if place < 0:
            return -1, -1
        return self.numbers[place], (
            self.starts[place + 1] if place + 1 < len(self.starts) else last
        )

    def begin(self, term: int, start: int) -> None:
        """A term begins at the end of the log."""
        assert term > self.numbers[-1]
        assert start >= self.starts[-1]
        self.numbers.append(term)
        self.starts.append(start)

    def cut(self, position: int) -> bool:
        """Forget terms that would begin at or behind a position; whether there were any."""
        place = max(1, bisect_left(self.starts, position))
        had = place < len(self.starts)
        del self.numbers[place:], self.starts[place:]
        return had

    def prune(self, start: int) -> bool:
        """Forget terms that end where the log begins, or before; whether there were any."""
        place = 0
        while place + 1 < len(self.starts) and self.starts[place + 1] < start:
            place += 1
        del self.numbers[:place], self.starts[:place]
        return place > 0


class Record(NamedTuple):
    """One record of a MemoryLog."""

    end: int
    term: int
    data: bytes
    start: int


class MemoryLog:
    """A RaftLog in memory; a record takes as many bytes as its data has, and twenty."""

    may_lead = True

    def __init__(self, items: Iterable[Record] = (), base: tuple[int, int] = (0, 0)) -> None:
        self.items = list(items)
        self.base_term, self.start = base
        if self.items:
            self.start = min(self.start, self.items[0].start)

    @property
    def last(self) -> int:
        return self.items[-1].end if self.items else self.start

    @property
    def is_empty(self) -> bool:
        return not self.items and self.start == 0

    def place(self, position: int) -> int:
        """How many records end at or before a position."""
        items = self.items
        if not items or position >= items[-1].end:
            return len(items)
        return bisect_right(items, (position, 1 << 62))

    def term_at(self, position: int) -> int:
        place = self.place(position)
        return self.items[place - 1].term if place else self.base_term

    def term_after(self, position: int) -> int:
        return self.items[self.place(position)].term

    def stretch_end(self, position: int) -> int:
        place = self.place(position)
        term = self.items[place].term
        while place < len(self.items) and self.items[place].term == term:
            place += 1
        return self.items[place - 1].end

    def end_of_term(self, term: int) -> tuple[int, int]:
        for item in reversed(self.items):
            if item.term <= term:
                return item.term, item.end
        return (self.base_term, self.start) if self.base_term <= term else (-1, -1)

    def read(self, position: int, size_max: int) -> Chunk:
        place = first = self.place(position)
        term = self.items[place].term
        end = self.items[place].end
        while (
            place < len(self.items)
            and self.items[place].term == term
            and (place == first or self.items[place].end - position <= size_max)
        ):
            end = self.items[place].end
            place += 1
        return Chunk(position, end, term, tuple(self.items[first:place]))

    def append(self, chunk: Chunk, since: int) -> None:
        assert since == self.last
        self.items += [item for item in chunk.data if item.end > since]
        assert self.last == chunk.end

    def add(self, term: int, data: bytes) -> int:
        """Append one record; return where it ends."""
        start = self.last
        assert not self.items or term >= self.items[-1].term, "a term of the past"
        self.items.append(Record(start + 20 + len(data), term, data, start))
        return self.last

    def truncate(self, position: int) -> None:
        del self.items[self.place(position) :]
        assert self.last == position

    def begin(self, position: int, term: int) -> None:
        assert self.is_empty
        self.start, self.base_term = position, term

    def begin_term(self, term: int, leader: str) -> bool:
        self.add(term, b"")
        return True
