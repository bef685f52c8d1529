"""Bodies that say who sent them, which one they are and how long; so mixed content is seen.

    at   size  field
    0    4     "SKYp"
    4    4     producer
    8    4     sequence number
    12   4     length of the whole body
    16   …     fill: a pattern that follows from producer and sequence number
    -4   4     CRC32 of all before

Two bodies differ in every byte of the fill with the number of their producer or of themselves, so a
body put together from two has either a wrong pattern or a wrong checksum.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from .history import MANGLED

_HEAD: Final = struct.Struct(">4sIII")
_SUM: Final = struct.Struct(">I")
_MAGIC: Final = b"SKYp"
BODY_BYTES_MIN: Final = _HEAD.size + _SUM.size


def message_id(producer: int, sequence: int) -> int:
    """The number under which a history knows a message."""
    return producer << 32 | sequence


def body_of(id: int, length: int) -> bytes:
    """The body of a message; as short as its head allows where less is asked for."""
    length = max(BODY_BYTES_MIN, length)
    producer, sequence = id >> 32, id & 0xFFFFFFFF
    begin = _HEAD.pack(_MAGIC, producer, sequence, length) + _fill(id, length - BODY_BYTES_MIN)
    return begin + _SUM.pack(zlib.crc32(begin))


def id_of(body: bytes) -> int:
    """Whose body it is, or MANGLED where it is not as it was sent."""
    if len(body) < BODY_BYTES_MIN:
        return MANGLED
    magic, producer, sequence, length = _HEAD.unpack_from(body)
    id = message_id(producer, sequence)
    is_whole = (
        magic == _MAGIC
        and length == len(body)
        and _SUM.unpack_from(body, length - 4)[0] == zlib.crc32(memoryview(body)[:-4])
        and body[_HEAD.size : -4] == _fill(id, length - BODY_BYTES_MIN)
    )
    return id if is_whole and producer < 1 << 31 else MANGLED


def _fill(id: int, length: int) -> bytes:
    pattern = struct.pack(">Q", (id * 0x9E3779B97F4A7C15) & (1 << 64) - 1)
    return (pattern * (length // 8 + 1))[:length]
