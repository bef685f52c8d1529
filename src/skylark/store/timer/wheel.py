"""Wheel: for each stretch of time, where the chain of its timers begins in the timer log.

Two rings. The near one has slots of 100 ms for the hour at hand and the one after it, the far one a
slot for each hour beyond, more than a year of them. A timer lies in the far ring until its hour is
the next one, and is then moved to the near ring; so it is written twice at most, however far ahead.

    hour of the cursor   H                    H + 1               H + 2 … H + 9,000
    ring                 near, 36,000 slots   near                far, one slot an hour

A slot holds the position of its newest unit in the log, 0 where it is empty. Memory is the same
whatever lies in it: 0.7 MB.
"""

from __future__ import annotations

import struct
from array import array

from ...errors import CorruptRecord

SLOT_MS = 100
HOUR_SLOTS = 36_000
HOUR_MS = SLOT_MS * HOUR_SLOTS
FAR_HOURS = 9_000

_NEAR_SLOTS = 2 * HOUR_SLOTS
_COUNT = struct.Struct(">i")
_SLOT = struct.Struct(">qq")


class _Ring:
    """Slots by number; numbers that differ by the size of the ring share one."""

    __slots__ = ("_occupied", "heads", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.heads = array("q", bytes(8 * size))
        self._occupied = bytearray(size)  # A byte each, since bytearray.find is fast.

    def __setitem__(self, slot: int, head: int) -> None:
        at = slot % self.size
        self.heads[at] = head
        self._occupied[at] = head != 0

    def __getitem__(self, slot: int) -> int:
        return self.heads[slot % self.size]

    def next_from(self, slot: int, end: int) -> int | None:
        """The first slot from here on, below an end, that is not empty."""
        if slot >= end:
            return None
        assert end - slot <= self.size
        at, stop = slot % self.size, end % self.size
        found = self._occupied.find(1, at, self.size if stop <= at else stop)
        if found < 0 and stop <= at:
            found = self._occupied.find(1, 0, stop)
            return None if found < 0 else slot + found - at + self.size
        return None if found < 0 else slot + found - at


class Wheel:
    """Where the timers of each moment begin."""

    __slots__ = ("far", "near", "slot")

    def __init__(self, slot: int = 0) -> None:
        self.slot = slot  # The cursor: slots before it are done with, and empty.
        self.near = _Ring(_NEAR_SLOTS)
        self.far = _Ring(FAR_HOURS)

    @property
    def hour(self) -> int:
        """The hour of the cursor."""
        return self.slot // HOUR_SLOTS

    def place(self, due_ms: int) -> tuple[_Ring, int]:
        """The ring and the slot for a timer; what is late goes to the cursor's slot."""
        slot = max(due_ms // SLOT_MS, self.slot)
        hour = slot // HOUR_SLOTS
        if hour <= self.hour + 1:
            return self.near, slot
        return self.far, min(hour, self.hour + FAR_HOURS - 1)

    def next_near(self) -> int | None:
        """The next slot behind the cursor that is not empty."""
        return self.near.next_from(self.slot + 1, (self.hour + 2) * HOUR_SLOTS)

    def next_far(self) -> int | None:
        """The next hour behind the cursor's that is not moved to the near ring, if there is one."""
        return self.far.next_from(self.hour + 1, self.hour + FAR_HOURS)

    def encode(self) -> bytes:
        """Cursor, then of each ring: number of slots that are not empty, and these."""
        parts = [_SLOT.pack(self.slot, 0)]
        hour = self.hour
        for ring, start, end in (
            (self.near, self.slot, (hour + 2) * HOUR_SLOTS),
            (self.far, hour + 1, hour + FAR_HOURS),
        ):
            found = []
            slot = ring.next_from(start, end)
            while slot is not None:
                found.append(_SLOT.pack(slot, ring[slot]))
                slot = ring.next_from(slot + 1, end)
            parts += [_COUNT.pack(len(found)), *found]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Wheel, int]:
        """Read a wheel, and where it ends."""
        try:
            cursor, _ = _SLOT.unpack_from(data, at)
            wheel = cls(cursor)
            at += _SLOT.size
            for ring in (wheel.near, wheel.far):
                (count,) = _COUNT.unpack_from(data, at)
                at += _COUNT.size
                for _ in range(count):
                    slot, head = _SLOT.unpack_from(data, at)
                    at += _SLOT.size
                    ring[slot] = head
        except struct.error as error:
            raise CorruptRecord(f"the timer's wheel is cut off: {error}") from None
        return wheel, at
