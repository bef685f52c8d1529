"""Trace: what happened in a run, in order, as text that is the same for the same seed.

    line    <virtual ms> <node> <event> <details …>
    e.g.    1250.731 broker-a recv 10.0.0.2:40001 118 9f21c0aa

Adding an event keeps a tuple; text and hash are made in batches. What goes in must not depend on
the process: no addresses of objects, no iteration of sets of strings, no wall time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from typing import Any

# Events hashed at a time; those beyond what is kept have been hashed before.
_BATCH = 4096

Entry = tuple[int, str, str, tuple[Any, ...]]


class Trace:
    """An append-only record of one run; keeps the last events and the hash of all."""

    def __init__(self, *, keep: int = 100_000) -> None:
        self._kept: deque[Entry] = deque(maxlen=keep)
        self._pending: list[Entry] = []
        self._hash = hashlib.sha256()
        self._count = 0

    def add(self, now_us: int, node: str, event: str, *details: Any) -> None:
        """Append an event; details are numbers and short strings."""
        pending = self._pending
        pending.append((now_us, node, event, details))
        if len(pending) >= _BATCH:
            self._settle()

    def _settle(self) -> None:
        pending = self._pending
        if pending:
            self._hash.update("".join(map(_line, pending)).encode())
            self._kept.extend(pending)
            self._count += len(pending)
            pending.clear()

    def __len__(self) -> int:
        return self._count + len(self._pending)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the events that are kept: (microseconds, node, event, details)."""
        self._settle()
        return iter(tuple(self._kept))

    def find(self, event: str, node: str | None = None) -> list[Entry]:
        """Return the kept events of one kind, of one node if named."""
        return [entry for entry in self if entry[2] == event and node in (None, entry[1])]

    def digest(self) -> str:
        """Return the hash of all events so far, as hexadecimal digits."""
        self._settle()
        return self._hash.hexdigest()

    def text(self) -> str:
        """Return the kept events, one a line."""
        return "".join(map(_line, self))


def _line(entry: Entry) -> str:
    now_us, node, event, details = entry
    if details:
        return f"{now_us / 1000:.3f} {node} {event} {' '.join(map(str, details))}\n"
    return f"{now_us / 1000:.3f} {node} {event}\n"
