"""Batch: many messages of one topic in one request body.

    entry, repeated without a count, big-endian
    at       size   field
    0        4      size of this entry
    4        4      magic: 0, not looked at
    8        4      CRC-32 of the body, or 0
    12       4      flag, the application's own
    16       4 + n  body length, body
    ...      2 + n  properties length (at most 32,767), properties

The broker makes a record of each entry: queue, sysFlag, times and hosts come from the request, and
the properties of the request are joined to those of the entry. Lengths are checked strictly, all
of them before the first entry is used: a batch is taken whole or refused whole.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InvalidBatch, InvalidBody, LocalProtocolError
from .crc import Buffer, crc32
from .properties import PROPERTIES_BYTES_MAX

BATCH_COUNT_MAX = 65_536  # Entries of 4 MiB with room for a body and an id each.

_HEAD = struct.Struct(">iiIii")  # size, magic, crc, flag, body length
_SHORT = struct.Struct(">h")
_ENTRY_SIZE_MIN = _HEAD.size + _SHORT.size
assert _ENTRY_SIZE_MIN == 22
BESIDE_BODY_BYTES_MAX = _ENTRY_SIZE_MIN + PROPERTIES_BYTES_MAX  # Of an entry.

_SEPARATOR = b"\x02"


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One message of a batch; its properties as text (see properties.py)."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Return the body of a batch request."""
    parts: list[bytes] = []
    for entry in entries:
        if len(entry.properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"properties of {len(entry.properties)} bytes: a batch entry holds"
                f" {PROPERTIES_BYTES_MAX}"
            )
        size = _ENTRY_SIZE_MIN + len(entry.body) + len(entry.properties)
        try:
            parts.append(_HEAD.pack(size, 0, 0, entry.flag, len(entry.body)))
        except struct.error as error:
            raise LocalProtocolError(f"a field does not fit in a batch entry: {error}") from None
        parts += (entry.body, _SHORT.pack(len(entry.properties)), entry.properties)
    if not parts:
        raise LocalProtocolError("a batch needs at least one message")
    return b"".join(parts)


def decode_batch(body: Buffer, *, count_max: int = BATCH_COUNT_MAX) -> list[BatchEntry]:
    """Return the entries of a batch body; raise InvalidBatch if a single length does not add up."""
    data = bytes(body)
    room = len(data)
    if not room:
        raise InvalidBatch(0, "body", "holds no entry")
    entries: list[BatchEntry] = []
    at = 0
    while at < room:
        if len(entries) == count_max:
            raise InvalidBatch(at, "count", f"is more than {count_max}: send several batches")
        if room - at < _ENTRY_SIZE_MIN:
            raise InvalidBatch(at, "fixed fields", f"are cut off: {room - at} bytes left")
        size, _magic, crc, flag, body_bytes = _HEAD.unpack_from(data, at)
        if not _ENTRY_SIZE_MIN <= size <= room - at:
            raise InvalidBatch(at, "size", f"is {size}: {room - at} bytes left")
        if not 0 <= body_bytes <= size - _ENTRY_SIZE_MIN:
            raise InvalidBatch(at, "body length", f"is {body_bytes} in an entry of {size}")
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes + _SHORT.size
        properties_bytes = _SHORT.unpack_from(data, properties_at - _SHORT.size)[0]
        if properties_bytes != at + size - properties_at:
            raise InvalidBatch(
                at,
                "properties length",
                f"is {properties_bytes}, {at + size - properties_at} remain",
            )
        content = data[body_at : body_at + body_bytes]
        # No known client fills it in; one that does has to be right, with or without the top bit.
        if crc and crc & 0x7FFFFFFF != crc32(content) & 0x7FFFFFFF:
            raise InvalidBatch(at, "body crc", "does not match the body")
        entries.append(BatchEntry(content, data[properties_at : at + size], flag))
        at += size
    return entries


decode_batch_pure = decode_batch

if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from . import _record

        # The twin hands odd input back to the pure function, so that both say the same about it.
        _record.bind_batch(BatchEntry, decode_batch_pure)
        decode_batch = _record.decode_batch


def join_properties(entry: bytes, request: bytes) -> bytes:
    """Return the properties text of one record: the entry's own, then those of the request.

    Names may come twice that way, and readers keep the last: the request's.
    """
    if entry and request and not entry.endswith(_SEPARATOR):
        joined = b"".join((entry, _SEPARATOR, request))
    else:
        joined = entry + request
    if len(joined) > PROPERTIES_BYTES_MAX:
        raise InvalidBody(
            f"properties take {len(joined)} bytes with those of the batch,"
            f" the limit is {PROPERTIES_BYTES_MAX}"
        )
    return joined
