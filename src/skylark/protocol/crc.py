"""The checksum of a body: CRC-32 as in zlib, with the top bit cleared.

Java keeps it in a signed int and wants it non-negative. Only the body is covered: a record's other
fields are checked by what they must add up to.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable

Buffer = bytes | bytearray | memoryview

crc32_pure: Callable[[Buffer], int] = zlib.crc32
crc32: Callable[[Buffer], int] = zlib.crc32  # The plain checksum, all 32 bits.

if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from ._record import crc32


def body_crc(body: Buffer) -> int:
    """Return the checksum that a record carries for this body."""
    return crc32(body) & 0x7FFFFFFF
