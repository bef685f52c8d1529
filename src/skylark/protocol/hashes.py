"""The string hashes that files and subscriptions are built on.

All of them start from Java's String.hashCode: h = 31 * h + unit over the UTF-16 units of the text
(a character beyond U+FFFF counts as its two surrogates), in 32-bit arithmetic that wraps around.

    use                    rule
    tag hash               the hash as it is, signed; 0 without a tag. An i64 in consume queues
    key hash (key index)   absolute value of the hash of "topic#key"; the one value without an
                           absolute value, -2**31, becomes 0
"""

from __future__ import annotations

import array
import contextlib
import os
import sys

_INT32_MIN = -(2**31)
_MASK = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode of a text, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & _MASK
    else:
        # Lone surrogates are legal in a Java string, and hash as themselves.
        units = array.array("H", text.encode("utf-16-be", "surrogatepass"))
        if sys.byteorder == "little":
            units.byteswap()
        for unit in units:
            value = (31 * value + unit) & _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


java_string_hash_pure = java_string_hash

if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from ._record import java_string_hash


def tag_hash(tag: str | None) -> int:
    """Return what a consume queue and a subscription hold for a tag; 0 for none."""
    return java_string_hash(tag) if tag else 0


def key_hash(topic: str, key: str) -> int:
    """Return the non-negative hash under which the key index files a message key."""
    value = java_string_hash(f"{topic}#{key}")
    return 0 if value == _INT32_MIN else abs(value)
