"""What a worker is asked: messages in one frame, as bytes that take no imports to read.

u32 count, then for each message
u32 size, topic          UTF-8
u32 size, properties     as a record has them
u32 size, body           as a record has it, compressed or not
i32 system flag          bit 0: the body is compressed
i32 queue id, i64 queue offset, i64 born at, i64 stored at, i32 times consumed again
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

_SIZE: Final = struct.Struct(">I")
_FACTS: Final = struct.Struct(">iiqqqi")


class Candidate(NamedTuple):
    """One message that a predicate is asked about."""

    topic: str
    properties: bytes
    body: bytes | memoryview
    sys_flag: int = 0
    queue_id: int = 0
    queue_offset: int = 0
    born_at_ms: int = 0
    stored_at_ms: int = 0
    reconsume_times: int = 0


def encode_batch(candidates: Sequence[Candidate]) -> bytes:
    """The frame's content."""
    pieces: list[bytes | memoryview] = [_SIZE.pack(len(candidates))]
    for one in candidates:
        for text in (one.topic.encode(), one.properties, one.body):
            pieces += (_SIZE.pack(len(text)), text)
        pieces.append(
            _FACTS.pack(
                one.sys_flag,
                one.queue_id,
                one.queue_offset,
                one.born_at_ms,
                one.stored_at_ms,
                one.reconsume_times,
            )
        )
    return b"".join(pieces)
