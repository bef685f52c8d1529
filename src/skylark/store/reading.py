"""What a read of a queue wants and finds, and the slow way to find it.

The fast way is one compiled call for plain entries (append.gather). What it leaves is read entry by
entry here: expressions, ext units, files that are not mapped, entries that do not fit the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from ..errors import StoreDamaged
from ..model.queue import PhysicalOffset, QueueOffset
from . import append
from .append import ENTRY_BYTES, FILLER_SIZE, GatherLimits, is_batch_full
from .commit_log import CommitLog
from .consume_queue import ConsumeQueue
from .consume_queue_ext import ConsumeQueueExt, ExtUnit, is_address


class GetStatus(StrEnum):
    """How a read by queue offset went; the names are what RocketMQ puts in its answers."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages a reader wants; each part that is None lets everything pass."""

    # Hashes of the tags; a tag whose hash is not among them is not wanted. Others may collide.
    tag_hashes: frozenset[int] | None = None
    # Decides by the entry: tag code and, where there is one, the ext unit.
    entry: Callable[[int, ExtUnit | None], bool] | None = None
    # Decides by the record itself.
    record: Callable[[memoryview], bool] | None = None
    # How many entries one read looks at, where deciding takes long.
    entries_max: int | None = None
    # How many entries from a place on are surely not wanted: entries, at, end, a file of the log,
    # and its first offset. It stops at whatever is unusual.
    skip: Callable[[memoryview, int, int, memoryview, int], int] | None = None


@dataclass(slots=True)
class GetResult:
    """The records of one read, as they are stored."""

    status: GetStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    # Each is one or more whole records. Views stay readable even if retention deletes the file.
    chunks: list[bytes | memoryview] = field(default_factory=list)
    message_count: int = 0
    byte_count: int = 0
    is_far_behind: bool = False  # A replica might serve the next read better.

    @property
    def body(self) -> bytes:
        """All records in one piece."""
        if len(self.chunks) == 1 and isinstance(self.chunks[0], bytes):
            return self.chunks[0]
        return b"".join(self.chunks)

    def records(self) -> Iterator[memoryview]:
        """Each record by itself."""
        for chunk in self.chunks:
            view = memoryview(chunk)
            while view:
                size = int.from_bytes(view[:4], "big")
                yield view[:size]
                view = view[size:]


@dataclass(slots=True)
class QueryResult:
    """The records that have a key, oldest first, and how fresh the index is."""

    records: list[memoryview]
    index_updated_ms: int
    index_updated_physical: PhysicalOffset


def nothing(status: GetStatus, next_offset: int, first: int, last: int) -> GetResult:
    """A read without messages: why, and where to go on."""
    return GetResult(status, QueueOffset(next_offset), QueueOffset(first), QueueOffset(last))


class CarefulReader:
    """Reads one by one what the fast path left: ext units, expressions, unmapped files."""

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        ext: ConsumeQueueExt | None,
        limits: GatherLimits,
        filter: MessageFilter,
        root: str,
    ) -> None:
        self._log = log
        self._root = root
        self._queue = queue
        self._ext = ext
        self._limits = limits
        self._filter = filter
        self.chunks: list[bytes | memoryview] = []
        self.count = 0
        self.total = 0
        self.scanned = 0
        self.last_physical = 0
        self.was_removed = False

    def read(self, offset: int, entries: memoryview, at: int, end: int) -> None:
        """Take entries from a place on until the limits are reached."""
        log = self._log
        log_end = log.committed
        skip = self._filter.skip
        while at < end:
            physical, size, code = append.ENTRY.unpack_from(entries, at)
            self.last_physical = physical
            if skip is not None and physical >= log.start:
                found = log.buffer_at(physical)
                count = 0
                if found is not None:
                    count = skip(entries, at, end, found[0], physical - found[1])
                if count:
                    self.scanned += count
                    at += count * ENTRY_BYTES
                    continue
            if is_batch_full(self._limits, size, self.total, self.count, log_end - physical):
                break
            self.scanned += 1
            at += ENTRY_BYTES
            if size == FILLER_SIZE or physical < log.start:
                self.was_removed = True
                continue
            if not self._wants_entry(code):
                continue
            record = log.record(physical, size)
            if record is None:
                raise self._damage(offset + self.scanned - 1, physical)
            if self._filter.record is not None and not self._filter.record(record):
                continue
            self.chunks.append(record if size > append.COPY_BYTES_MAX else bytes(record))
            self.count += 1
            self.total += size

    def _wants_entry(self, code: int) -> bool:
        unit = None
        if is_address(code):
            unit = None if self._ext is None else self._ext.get(code)
            if unit is None:
                return True  # Nothing is known of its tag: the client decides.
            code = unit.tag_hash
        tags = self._filter.tag_hashes
        if tags is not None and (code + 2**31) % 2**32 - 2**31 not in tags:
            return False
        return self._filter.entry is None or self._filter.entry(code, unit)

    def _damage(self, offset: int, physical: int) -> StoreDamaged:
        return StoreDamaged(
            self._queue.mapped.directory,
            offset * ENTRY_BYTES,
            f"message {offset} should lie at physical offset {physical}, and does not",
            f"run: skylark store check {self._root}",
        )
