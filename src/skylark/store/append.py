"""The hot functions of the store: append, dispatch, gather, scan.

They work on cursors, small objects that hold where each file is written next, and do the ordinary
case only. Whatever is not ordinary (a queue that does not exist yet, a file that is full, an odd
record) they leave to the caller: they stop before it and say where. So the compiled twin
_append.pyx and this specification need to agree on little, and the rare cases are written once.

    append_batch      messages -> records in the commit log, queue offsets assigned on the way
    group_size        what messages will take as records, if nothing is the matter with them
    append_entries    a client's batch, as it came -> the same, all of it or nothing
    dispatch_records  records -> consume queue entries and index entries
    gather            consume queue entries -> the records of a pull
    scan_records      how far the records of a file are sound

Layouts: protocol/record.py, consume_queue.py, key_index.py.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidBatch, InvalidBody, InvalidRecord
from ..model.message import Property
from ..protocol.batch import BatchEntry, decode_batch, join_properties
from ..protocol.crc import crc32
from ..protocol.hashes import key_hash
from ..protocol.record import (
    BLANK_SIZE_MIN,
    FIXED_SIZE,
    MAGIC,
    PROPERTIES_BYTES_MAX,
    Buffer,
    DispatchInfo,
    decode_dispatch,
    encode_record_into,
)

if TYPE_CHECKING:
    from .consume_queue import ConsumeQueue

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

ENTRY_BYTES = 20
INDEX_HEADER_BYTES = 40
ENTRY: struct.Struct = struct.Struct(">qiq")
_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">iI")
_LONG = struct.Struct(">q")

FILLER_SIZE = 2**31 - 1  # The size in entries that stand before a queue's first message.
EXT_ADDRESS_MAX = -(2**31) - 1  # Tag codes up to this are addresses in the ext file.
QUEUE_OFFSET_MAX = 1 << 58  # Entries beyond would have no position.
COPY_BYTES_MAX = 16 << 10  # Larger records are sent from where they lie instead of being copied.


class PutStatus(IntEnum):
    """What became of a put."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPEDFILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGECACHE_BUSY = 8
    UNKNOWN_ERROR = 9


class PutMessage(NamedTuple):
    """A message on its way into the log; hosts as protocol.record.pack_host makes them."""

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes
    born_at_ms: int
    born_host: bytes
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class PutResult(NamedTuple):
    """Where a message was stored, or why it was not."""

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    size_bytes: int = 0
    stored_at_ms: int = 0

    @property
    def end(self) -> int:
        """The physical offset to wait for: the message is flushed when this is."""
        return self.physical_offset + self.size_bytes


class PutEntries(NamedTuple):
    """The messages of one client batch on their way into the log, as they came."""

    topic: str
    queue_id: int
    entries: Buffer  # As in protocol/batch.py.
    properties: bytes  # What each of them gets besides its own.
    born_at_ms: int
    born_host: bytes
    store_host: bytes
    sys_flag: int = 0
    reconsume_times: int = 0

    def message(self, entry: BatchEntry, properties: bytes) -> PutMessage:
        """One of them by itself, with all its properties."""
        return PutMessage(
            self.topic,
            self.queue_id,
            entry.body,
            properties,
            self.born_at_ms,
            self.born_host,
            self.store_host,
            entry.flag,
            self.sys_flag,
            self.reconsume_times,
        )


class EntriesResult(NamedTuple):
    """Where the messages of a batch were stored: one after another."""

    physical_offsets: array[int]
    queue_offset: int  # Of the first.
    size_bytes: int  # Of all.
    stored_at_ms: int

    @property
    def end(self) -> int:
        """The physical offset to wait for: all of them are flushed when this is."""
        return self.physical_offsets[0] + self.size_bytes


class Arrival(NamedTuple):
    """A message that has become visible in a queue that somebody watches."""

    topic: str
    queue_id: int
    queue_offset: int
    tag_hash: int
    stored_at_ms: int
    physical_offset: int
    size_bytes: int


class LogCursor:
    """The end of the commit log, where the next record goes, and the files before it."""

    __slots__ = (
        "body_max",
        "buffer",
        "buffers",
        "file_bytes",
        "file_start",
        "first_start",
        "record_max",
        "write_at",
    )

    def __init__(self, file_bytes: int, body_max: int, record_max: int) -> None:
        self.file_bytes = file_bytes
        self.body_max = body_max
        self.record_max = record_max
        self.buffer: memoryview | None = None  # The last file; None while there is none.
        self.file_start = 0
        self.write_at = 0  # Within that file.
        self.first_start = 0  # Of the oldest file.
        self.buffers: list[memoryview | None] = []  # By file, None for one that is not mapped.


class QueueCursor:
    """The end of one consume queue, where the next entry goes."""

    __slots__ = (
        "buffer",
        "dirty_from",
        "file_start",
        "is_dirty",
        "is_schedule",
        "limit",
        "max_physical",
        "next_offset",
        "owner",
        "queue_id",
        "topic",
        "watchers",
        "write_at",
    )

    def __init__(self, topic: str, queue_id: int, owner: ConsumeQueue | None = None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.owner = owner
        self.is_schedule = topic == SCHEDULE_TOPIC
        self.next_offset = 0  # The queue offset that the next append gets.
        # Byte positions in the queue's address space, not in a file.
        self.write_at = 0
        self.file_start = 0
        self.limit = 0  # No entry may reach beyond: end of the file, or of its reserved blocks.
        self.buffer: memoryview | None = None  # The last file; None while it is not mapped.
        self.max_physical = 0  # Records that end up to here are in the queue already.
        self.is_dirty = False
        self.dirty_from = 0
        self.watchers = 0  # With any, arrivals are reported.


class IndexCursor:
    """The index file that takes the next entry; see key_index.py."""

    __slots__ = (
        "begin_ms",
        "begin_physical",
        "buffer",
        "end_ms",
        "end_physical",
        "entry_limit",
        "index_count",
        "slot_count",
        "slots_used",
    )

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.buffer: memoryview | None = None  # None: not mapped, or no file yet.
        self.begin_ms = 0
        self.end_ms = 0
        self.begin_physical = 0
        self.end_physical = -1  # Records that begin below this are indexed; -1 while none is.
        self.slots_used = 0
        self.index_count = 1  # The number of the next entry; entry 0 is never used.
        self.entry_limit = 0  # Entries below this number have room in the file, and blocks.


QueueTable = dict[str, dict[int, QueueCursor]]


class Stop(IntEnum):
    """Why a walk over records ended."""

    END = 0  # The range is done.
    BLANK = 1  # A blank record: go on in the next file.
    HANDOVER = 2  # The record is sound, but needs the caller's care.
    ILLEGAL = 3  # Not a record.


_NO_RESULT = -1


def append_batch(
    log: LogCursor,
    messages: Sequence[PutMessage],
    at: int,
    stop: int,
    queues: QueueTable,
    stored_at_ms: int,
    results: list[PutResult],
) -> int:
    """Append messages[at:stop], and return the index of the first that was not appended.

    That one is refused (too long), or its queue is unknown, or it does not fit in the file: the
    caller finds out which, acts, and calls again.
    """
    buffer = log.buffer
    if buffer is None:
        return at
    while at < stop:
        message = messages[at]
        cursor = queues.get(message.topic, {}).get(message.queue_id)
        if cursor is None:
            return at
        size = message_size(message)
        if (
            not is_storable(log, message, size)
            or size + BLANK_SIZE_MIN > log.file_bytes - log.write_at
        ):
            return at
        # Half messages and rollbacks have no place in a queue.
        is_queued = message.sys_flag & 0xC in (0x0, 0x8)
        queue_offset = cursor.next_offset if is_queued else 0
        physical_offset = log.file_start + log.write_at
        encode_record_into(
            buffer,
            log.write_at,
            topic=message.topic,
            body=message.body,
            properties=message.properties,
            queue_id=message.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_at_ms=message.born_at_ms,
            born_host=message.born_host,
            stored_at_ms=stored_at_ms,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        log.write_at += size
        if is_queued:
            cursor.next_offset = queue_offset + 1
        results.append(
            PutResult(PutStatus.PUT_OK, physical_offset, queue_offset, size, stored_at_ms)
        )
        at += 1
    return at


append_batch_pure = append_batch


def group_size(log: LogCursor, messages: Sequence[PutMessage], queues: QueueTable) -> int:
    """The size of the records that messages will become; -1 where the caller must look at them.

    That is: one does not keep the limits, or its queue is unknown.
    """
    total = 0
    for message in messages:
        size = message_size(message)
        if message.queue_id not in queues.get(message.topic, {}) or not is_storable(
            log, message, size
        ):
            return -1
        total += size
    return total


def append_entries(
    log: LogCursor, batch: PutEntries, queues: QueueTable, stored_at_ms: int
) -> EntriesResult | None:
    """Append the messages of a batch; None, and nothing is done, where one is not ordinary.

    That is: a length or a checksum is wrong, a limit is not kept, the queue is unknown, or they do
    not fit in the file all together.
    """
    cursor = queues.get(batch.topic, {}).get(batch.queue_id)
    if cursor is None or log.buffer is None or batch.sys_flag & 0xC:
        return None
    try:
        messages = [
            batch.message(entry, join_properties(entry.properties, batch.properties))
            for entry in decode_batch(batch.entries)
        ]
    except (InvalidBatch, InvalidBody):
        return None
    sizes = [message_size(message) for message in messages]
    if not all(map(is_storable, itertools.repeat(log), messages, sizes)):
        return None
    if sum(sizes) + BLANK_SIZE_MIN > log.file_bytes - log.write_at:
        return None
    results: list[PutResult] = []
    end = append_batch_pure(log, messages, 0, len(messages), queues, stored_at_ms, results)
    assert end == len(messages)
    return EntriesResult(
        array("q", [result.physical_offset for result in results]),
        results[0].queue_offset,
        sum(sizes),
        stored_at_ms,
    )


def message_size(message: PutMessage) -> int:
    """The size of the record that a message will become."""
    return (
        FIXED_SIZE
        + (len(message.born_host) - 8)
        + (len(message.store_host) - 8)
        + len(message.body)
        + len(message.topic)
        + len(message.properties)
    )


def is_storable(log: LogCursor, message: PutMessage, size: int) -> bool:
    """Whether a message respects the limits; its queue exists, so its topic is sound."""
    return (
        len(message.body) <= log.body_max
        and len(message.properties) <= PROPERTIES_BYTES_MAX
        and size <= log.record_max
        and len(message.born_host) in (8, 20)
        and len(message.store_host) in (8, 20)
        and -(2**31) <= message.flag < 2**31
        and -(2**31) <= message.sys_flag < 2**31
        and -(2**31) <= message.reconsume_times < 2**31
        and -(2**63) <= message.born_at_ms < 2**63
        and -(2**63) <= message.prepared_transaction_offset < 2**63
    )


def dispatch_records(
    buffer: memoryview,
    file_start: int,
    at: int,
    end: int,
    queues: QueueTable,
    index: IndexCursor | None,
    delays_ms: tuple[int, ...],
    dirty: list[QueueCursor],
    arrivals: list[Arrival],
) -> tuple[int, Stop]:
    """Feed the records in buffer[at:end] to queues and index; return where it stopped, and why."""
    while at < end:
        try:
            info = decode_dispatch(buffer[:end], at)
        except InvalidRecord:
            return at, Stop.ILLEGAL
        if info is None:
            return at, Stop.BLANK
        if info.physical_offset != file_start + at:
            return at, Stop.ILLEGAL
        if _HEAD.unpack_from(buffer, at)[1] != MAGIC:
            return at, Stop.HANDOVER
        if not dispatch_record(info, queues, index, delays_ms, dirty, arrivals):
            return at, Stop.HANDOVER
        at += info.size_bytes
    return at, Stop.END


def dispatch_record(
    info: DispatchInfo,
    queues: QueueTable,
    index: IndexCursor | None,
    delays_ms: tuple[int, ...],
    dirty: list[QueueCursor],
    arrivals: list[Arrival],
) -> bool:
    """Feed one record, wholly or not at all; False where the caller must make room first."""
    transaction = info.sys_flag & 0xC
    cursor = None
    if transaction in (0x0, 0x8):
        cursor = queues.get(info.topic, {}).get(info.queue_id)
        if cursor is None:
            return False
        if info.physical_offset + info.size_bytes <= cursor.max_physical:
            cursor = None  # It is there already.
        else:
            expected = info.queue_offset * ENTRY_BYTES
            if expected < cursor.write_at:
                if info.physical_offset >= cursor.max_physical:
                    return False  # The queue begins anew here: it was deleted in between.
                cursor = None
            elif (
                expected > cursor.write_at
                or cursor.buffer is None
                or cursor.write_at + ENTRY_BYTES > cursor.limit
            ):
                return False
    keys: list[str] = []
    if index is not None and transaction != 0xC and info.physical_offset >= index.end_physical:
        keys = index_keys(info)
        if keys and (
            index.buffer is None
            or index.index_count + len(keys) > index.entry_limit
            # Some of its keys may be in the index already, and the rest not.
            or info.physical_offset == index.end_physical
        ):
            return False
    if cursor is not None:
        put_entry(cursor, info.physical_offset, info.size_bytes, tag_code(info, delays_ms), dirty)
        if cursor.watchers:
            arrivals.append(
                Arrival(
                    info.topic,
                    info.queue_id,
                    info.queue_offset,
                    info.tag_hash,
                    info.stored_at_ms,
                    info.physical_offset,
                    info.size_bytes,
                )
            )
    if index is not None:
        for key in keys:
            put_index(index, key_hash(info.topic, key), info.physical_offset, info.stored_at_ms)
    return True


def tag_code(info: DispatchInfo, delays_ms: tuple[int, ...]) -> int:
    """What the queue entry carries: the tag's hash, or when a delayed message is due."""
    if info.topic == SCHEDULE_TOPIC:
        level_text = info.properties.get(Property.DELAY) or ""
        # Java's parseInt takes a sign and any digits; a level beyond nine digits is no level.
        digits = level_text[1:] if level_text[:1] == "+" else level_text
        if digits.isascii() and digits.isdigit() and len(digits) <= 9 and int(digits) > 0:
            level = min(int(digits), len(delays_ms))
            return info.stored_at_ms + delays_ms[level - 1]
    return info.tag_hash


def index_keys(info: DispatchInfo) -> list[str]:
    """The keys under which a record is filed, the unique one first."""
    return [info.unique_key, *info.keys] if info.unique_key else list(info.keys)


def put_entry(
    cursor: QueueCursor, physical_offset: int, size: int, code: int, dirty: list[QueueCursor]
) -> None:
    """Write the next entry of a queue; there is room."""
    assert cursor.buffer is not None
    assert cursor.write_at + ENTRY_BYTES <= cursor.limit
    ENTRY.pack_into(cursor.buffer, cursor.write_at - cursor.file_start, physical_offset, size, code)
    if not cursor.is_dirty:
        cursor.is_dirty = True
        cursor.dirty_from = cursor.write_at
        dirty.append(cursor)
    cursor.write_at += ENTRY_BYTES
    cursor.max_physical = physical_offset + size
    # Appends have counted it already; replicas and recovery learn it here.
    cursor.next_offset = max(cursor.next_offset, cursor.write_at // ENTRY_BYTES)


def put_index(index: IndexCursor, hash_value: int, physical_offset: int, stored_at_ms: int) -> None:
    """Write the next entry of the index; there is room."""
    buffer = index.buffer
    number = index.index_count
    assert buffer is not None
    assert number < index.entry_limit
    slot_at = INDEX_HEADER_BYTES + 4 * (hash_value % index.slot_count)
    previous = _INT.unpack_from(buffer, slot_at)[0]
    if not 0 < previous < number:
        previous = 0
    seconds = 0
    if index.begin_ms > 0:
        seconds = min(max((stored_at_ms - index.begin_ms) // 1000, 0), 2**31 - 1)
    entry_at = INDEX_HEADER_BYTES + 4 * index.slot_count + ENTRY_BYTES * number
    _INDEX_ENTRY.pack_into(buffer, entry_at, hash_value, physical_offset, seconds, previous)
    _INT.pack_into(buffer, slot_at, number)
    if number <= 1:
        index.begin_physical = physical_offset
        index.begin_ms = stored_at_ms
    if previous == 0:
        index.slots_used += 1
    index.index_count = number + 1
    index.end_physical = physical_offset
    index.end_ms = stored_at_ms
    _INDEX_HEADER.pack_into(
        buffer,
        0,
        index.begin_ms,
        index.end_ms,
        index.begin_physical,
        index.end_physical,
        index.slots_used,
        index.index_count,
    )


def restore_slots(
    buffer: memoryview, slot_count: int, index_count: int, compares: bool = False
) -> tuple[int, int]:
    """Make an index file's slots again from its entries below a number, or compare them with it.

    Return how many are in use, and the physical offset of the last entry. The number of slots is
    -1, and nothing is written, where an entry does not name the one before it in its slot, or a
    slot is not what it should be.
    """
    entries_at = INDEX_HEADER_BYTES + 4 * slot_count
    entries = buffer[entries_at + ENTRY_BYTES : entries_at + ENTRY_BYTES * index_count]
    slots = [0] * slot_count
    used, physical_offset = 0, -1
    for number, entry in enumerate(_INDEX_ENTRY.iter_unpack(entries), 1):
        hash_value, physical_offset, _, previous = entry
        slot = hash_value % slot_count
        if hash_value < 0 or previous != slots[slot]:
            return -1, -1
        used += previous == 0
        slots[slot] = number
    packed = struct.pack(f">{slot_count}i", *slots)
    if compares and buffer[INDEX_HEADER_BYTES:entries_at] != packed:
        return -1, -1
    if not compares:
        buffer[INDEX_HEADER_BYTES:entries_at] = packed
    return used, physical_offset


class GatherLimits(NamedTuple):
    """How much one read may return; far behind the end, where records come from the disk, less."""

    count_max: int
    memory_bytes_max: int
    memory_count_max: int
    disk_bytes_max: int
    disk_count_max: int
    disk_distance: int  # Records this far behind the end count as being on the disk.


class Gathered(NamedTuple):
    """The records of one read."""

    chunks: list[bytes | memoryview]
    message_count: int
    byte_count: int
    entry_count: int  # Entries that were looked at, matching or not.
    last_physical: int  # Of the last entry that was looked at; -1 for none.


def gather(
    entries: memoryview,
    at: int,
    end: int,
    log: LogCursor,
    log_end: int,
    tags: frozenset[int] | None,
    limits: GatherLimits,
) -> Gathered | None:
    """Return the records of entries[at:end] whose tags match, up to the limits.

    None where an entry is not ordinary: the caller then reads entry by entry.
    """
    chunks: list[bytes | memoryview] = []
    count = total = scanned = 0
    last_physical = -1
    while at < end:
        physical_offset, size, code = ENTRY.unpack_from(entries, at)
        if code <= EXT_ADDRESS_MAX:
            return None
        last_physical = physical_offset
        if is_batch_full(limits, size, total, count, log_end - physical_offset):
            break
        scanned += 1
        at += ENTRY_BYTES
        if tags is not None and (code + 2**31) % 2**32 - 2**31 not in tags:
            continue
        record = find_record(log, physical_offset, size, log_end)
        if record is None:
            return None
        chunks.append(record if size > COPY_BYTES_MAX else bytes(record))
        count += 1
        total += size
    return Gathered(chunks, count, total, scanned, last_physical)


def is_batch_full(
    limits: GatherLimits, next_size: int, total: int, count: int, distance: int
) -> bool:
    """Whether the next record would be too much; the first never is."""
    if count == 0:
        return False
    if count >= limits.count_max:
        return True
    if distance > limits.disk_distance:
        return total + next_size > limits.disk_bytes_max or count >= limits.disk_count_max
    return total + next_size > limits.memory_bytes_max or count >= limits.memory_count_max


def find_record(log: LogCursor, physical_offset: int, size: int, log_end: int) -> memoryview | None:
    """The bytes of a record in a mapped file; None if it is not mapped or not that record."""
    number, at = divmod(physical_offset - log.first_start, log.file_bytes)
    if not 0 <= number < len(log.buffers) or size < FIXED_SIZE:
        return None
    buffer = log.buffers[number]
    if buffer is None or at + size > log.file_bytes or physical_offset + size > log_end:
        return None
    if _HEAD.unpack_from(buffer, at) != (size, MAGIC):
        return None
    if _LONG.unpack_from(buffer, at + 28)[0] != physical_offset:
        return None
    return buffer[at : at + size]


def scan_records(
    buffer: memoryview, file_start: int, at: int, end: int, check_crc: bool, torn_from: int
) -> tuple[int, Stop, int]:
    """Walk sound records; return where the walk ended, why, and the last store time (or -1).

    From the position torn_from on, records may have lost pages in a power cut. The checksum covers
    only the body, so topic and properties are examined as well: a lost sector reads as zeros, and
    zeros next to a sector's edge, or at the end of the record, give it away.
    """
    last_stored_ms = _NO_RESULT
    while at < end:
        try:
            info = decode_dispatch(buffer[:end], at, check_crc=check_crc)
        except InvalidRecord:
            return at, Stop.ILLEGAL, last_stored_ms
        if info is None:
            return at, Stop.BLANK, last_stored_ms
        if (
            info.physical_offset != file_start + at
            or info.stored_at_ms == 0
            or not 0 <= info.queue_offset <= QUEUE_OFFSET_MAX
            or info.queue_id < 0
        ):
            return at, Stop.ILLEGAL, last_stored_ms
        if at >= torn_from and is_torn(buffer, at, info.size_bytes, info.sys_flag):
            return at, Stop.ILLEGAL, last_stored_ms
        last_stored_ms = info.stored_at_ms
        at += info.size_bytes
    return at, Stop.END, last_stored_ms


SECTOR_BYTES = 512


def is_torn(buffer: memoryview, at: int, size: int, sys_flag: int) -> bool:
    """Whether topic or properties of a record have zeros where a lost sector would leave them."""
    body_length_at = at + 84 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    topic_at = body_length_at + 4 + _INT.unpack_from(buffer, body_length_at)[0] + 1
    end = at + size
    if end - topic_at <= 3:
        return False
    # No topic has a zero in it, wherever the tear was.
    if 0 in bytes(buffer[topic_at : topic_at + buffer[topic_at - 1]]):
        return True
    has_properties = end - topic_at - 2 > buffer[topic_at - 1]
    if has_properties and buffer[end - 1] == 0:
        return True
    first_edge = -(-topic_at // SECTOR_BYTES) * SECTOR_BYTES
    # The two bytes of the properties' length may be zero by right.
    length_at = topic_at + buffer[topic_at - 1]
    for edge in range(first_edge, end, SECTOR_BYTES):
        for place in (edge - 1, edge):
            is_length = length_at <= place < length_at + 2
            if topic_at <= place < end and not is_length and buffer[place] == 0:
                return True
    return False


# The compiled twins take over where they were built; tests reach both by these names.
PURE: dict[str, Any] = {
    "LogCursor": LogCursor,
    "QueueCursor": QueueCursor,
    "IndexCursor": IndexCursor,
    "append_batch": append_batch,
    "group_size": group_size,
    "append_entries": append_entries,
    "dispatch_records": dispatch_records,
    "gather": gather,
    "scan_records": scan_records,
    "restore_slots": restore_slots,
}
COMPILED: dict[str, Any] = {}

with contextlib.suppress(ImportError):
    from . import _append

    # The twin hands odd input back to the functions above, so that both say the same about it.
    _append.bind(
        PutResult, EntriesResult, Arrival, Gathered, PutStatus.PUT_OK, tuple(Stop), crc32, PURE
    )
    COMPILED = {name: getattr(_append, name) for name in PURE}
    if os.environ.get("SKYLARK_PURE") != "1":
        globals().update(COMPILED)
