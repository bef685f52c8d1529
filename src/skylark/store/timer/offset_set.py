"""OffsetSet: a set of queue offsets, a bit each.

Ten million timers that wait take two megabytes here. Offsets are kept in masks of 1,024 bits; a
mask without a bit is dropped, so what is long done costs nothing.

    encoded, big-endian: number of masks i32, then of each: its number i64, 128 bytes, lowest bit
    first
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Self

from ...errors import CorruptRecord

_BITS = 1024
_MASK_BYTES = _BITS // 8
_COUNT = struct.Struct(">i")
_NUMBER = struct.Struct(">q")


class OffsetSet:
    """Offsets, each there or not."""

    __slots__ = ("_count", "_masks")

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return bool(self._masks.get(offset // _BITS, 0) >> offset % _BITS & 1)

    def add(self, offset: int) -> None:
        """Have this offset."""
        number, bit = offset // _BITS, 1 << offset % _BITS
        mask = self._masks.get(number, 0)
        if not mask & bit:
            self._masks[number] = mask | bit
            self._count += 1

    def discard(self, offset: int) -> bool:
        """Have this offset no more; return whether it was there."""
        number, bit = offset // _BITS, 1 << offset % _BITS
        mask = self._masks.get(number, 0)
        if not mask & bit:
            return False
        if mask == bit:
            del self._masks[number]
        else:
            self._masks[number] = mask ^ bit
        self._count -= 1
        return True

    def first(self, start: int = 0) -> int | None:
        """The lowest offset that is at least start."""
        return next(self.iterate(start), None)

    def iterate(self, start: int = 0) -> Iterator[int]:
        """Offsets from start on, in order; the set may change meanwhile."""
        first = start // _BITS
        for number in sorted(key for key in self._masks if key >= first):
            mask = self._masks.get(number, 0)
            if number == first:
                mask = mask >> start % _BITS << start % _BITS
            while mask:
                low = mask & -mask
                yield number * _BITS + low.bit_length() - 1
                mask ^= low

    def encode(self) -> bytes:
        """As bytes; see the module."""
        parts = [_COUNT.pack(len(self._masks))]
        for number, mask in self._masks.items():
            parts.append(_NUMBER.pack(number))
            parts.append(mask.to_bytes(_MASK_BYTES, "little"))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Self, int]:
        """Read a set, and where it ends."""
        found = cls()
        if at + _COUNT.size > len(data):
            raise CorruptRecord("a set of offsets is cut off")
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        step = _NUMBER.size + _MASK_BYTES
        if count < 0 or at + count * step > len(data):
            raise CorruptRecord(f"a set of offsets with {count} masks is cut off")
        for _ in range(count):
            (number,) = _NUMBER.unpack_from(data, at)
            mask = int.from_bytes(data[at + _NUMBER.size : at + step], "little")
            if number < 0 or not mask or number in found._masks:
                raise CorruptRecord(f"a set of offsets has a wrong mask {number}")
            found._masks[number] = mask
            found._count += mask.bit_count()
            at += step
        return found, at
