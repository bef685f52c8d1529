"""BloomFilter: which of many consumers want a message, in a few bits.

    size      bits = n · log2(1 / error) · log2(e), rounded up to whole bytes
              positions for each name = log2(1 / error), rounded up
    position  of `group#topic`: h = murmur3_128(name), lower and upper half of its first 64 bits;
              for i = 1, 2, …: lower + i · upper in 32 bits, turned over if negative, mod bits
    bit i     in byte i / 8 with mask 1 << (i % 8)

A message's bits are those of every consumer whose expression it passes. A consumer with a bit that
is not set does not want the message; one whose bits are all set may, and the expression decides.
The bits are RocketMQ's, so that files of either can be read by the other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomFilter:
    """The size of the bits, and where names leave theirs."""

    __slots__ = ("bit_count", "hash_count")

    def __init__(self, *, error_percent: int, expected_count: int) -> None:
        assert 1 <= error_percent < 100
        assert expected_count >= 1
        error = error_percent / 100.0
        self.hash_count = math.ceil(math.log(error) / math.log(0.5))
        bits = math.ceil(
            expected_count * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        self.bit_count = 8 * math.ceil(bits / 8.0)

    def positions(self, name: str) -> tuple[int, ...]:
        """The bits of a name; the same bit may be there twice."""
        hashed = murmur3_128_low(name.encode())
        lower, upper = _signed(hashed), _signed(hashed >> 32)
        found = []
        for step in range(1, self.hash_count + 1):
            mixed = _signed(lower + step * upper)
            found.append((~mixed if mixed < 0 else mixed) % self.bit_count)
        return tuple(found)

    @staticmethod
    def set_bits(bits: bytearray, positions: Iterable[int]) -> None:
        """Leave a name's bits."""
        for position in positions:
            bits[position >> 3] |= 1 << (position & 7)

    @staticmethod
    def has_bits(bits: bytes | bytearray, positions: Iterable[int]) -> bool:
        """Whether all bits of a name are set."""
        return all(bits[position >> 3] >> (position & 7) & 1 for position in positions)


def _signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> (64 - count)) & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3_128_low(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with seed 0, unsigned."""
    first = second = 0
    whole = len(data) // 16 * 16
    for one, two in struct.iter_unpack("<QQ", data[:whole]):
        first ^= _rotated(one * _C1 & _MASK, 31) * _C2 & _MASK
        first = (_rotated(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _rotated(two * _C2 & _MASK, 33) * _C1 & _MASK
        second = (_rotated(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    one, two = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    second ^= _rotated(two * _C2 & _MASK, 33) * _C1 & _MASK
    first ^= _rotated(one * _C1 & _MASK, 31) * _C2 & _MASK
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    return _finished(first) + _finished(second) & _MASK
