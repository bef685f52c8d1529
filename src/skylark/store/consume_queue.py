"""ConsumeQueue: the index of one queue, as an array of fixed-size entries.

The commit log holds every topic interleaved; this finds the n-th message of one queue in one seek.
It owns no truth: lost or torn entries are rebuilt by the Dispatcher.

    entry, 20 bytes, big-endian
    at   size  field
    0    8     physical offset of the record in the commit log
    8    4     record size in bytes; in blank entries 0 (after the last) or 2**31 - 1 (before the
               first)
    12   8     tag hash, or the delivery time of a delayed message, or an address in the ext file

The entry of queue offset q lies at byte q * 20 of the files' address space. Files are sparse, and
blocks are reserved a little ahead of the writing: 40,000 mostly empty queues must not cost 240 GB.
See docs/formats/consume-queue.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ..errors import CorruptRecord, StoreDamaged
from ..model.queue import PhysicalOffset
from . import append
from .append import ENTRY, ENTRY_BYTES, FILLER_SIZE, QueueCursor
from .files import Files, Region, Syncable, is_zero, used_end
from .mapped_file import MappedFile, MappedFileQueue, RegionCache

logger = logging.getLogger(__name__)

_RESERVE_AHEAD = 64 << 10
_GAP_MAX = 1 << 12  # More missing messages in a row than any accident but a damaged record makes.
_FILLER = ENTRY.pack(0, FILLER_SIZE, 0)


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntry:
    """Where one message lies, and enough of its tag to skip it unread."""

    physical_offset: PhysicalOffset
    size_bytes: int
    tag_code: int

    @classmethod
    def decode(cls, buffer: bytes | memoryview, at: int) -> Self | None:
        """Return the entry at a byte position, or None where it is blank."""
        physical_offset, size_bytes, tag_code = ENTRY.unpack_from(buffer, at)
        if size_bytes in (0, FILLER_SIZE):
            return None
        if physical_offset < 0 or size_bytes < 0:
            raise CorruptRecord(f"consume queue entry at {at}: {physical_offset=} {size_bytes=}")
        return cls(PhysicalOffset(physical_offset), size_bytes, tag_code)


class ConsumeQueue:
    """One queue's entries, and the cursor at which the dispatcher writes."""

    def __init__(
        self,
        files: Files,
        cache: RegionCache,
        root: str,
        topic: str,
        queue_id: int,
        file_bytes: int,
        *,
        writable: bool = True,
    ) -> None:
        assert file_bytes % ENTRY_BYTES == 0
        self._files = files
        directory = os.path.join(root, topic, str(queue_id))
        self.mapped = MappedFileQueue(files, cache, directory, file_bytes, writable=writable)
        self.topic = topic
        self.queue_id = queue_id
        self.cursor: QueueCursor = append.QueueCursor(topic, queue_id, self)
        self.min_at = 0  # The byte position of the oldest entry that may be read.
        self._has_directory = False
        self.was_cut = False  # By find_end_below, and not synced since.
        self.was_rebuilt = False  # In this process: a second time would not help.

    # Extent.

    @property
    def min_offset(self) -> int:
        """The oldest queue offset that can be read."""
        return self.min_at // ENTRY_BYTES

    @property
    def max_offset(self) -> int:
        """The queue offset after the newest visible message."""
        return self.cursor.write_at // ENTRY_BYTES

    # Opening.

    def load(self) -> None:
        """Find the files; the end is not known until one of the find_end functions ran."""
        self.mapped.load()
        self._has_directory = bool(self.mapped.files)
        self.min_at = self.mapped.start

    def find_end(self) -> None:
        """Set the end after a clean stop: entries are dense, so halving finds the first blank."""
        files = self.mapped.files
        end = self.mapped.start
        while files:
            file = files[-1]
            # Reading a hole through a mapping costs a page of memory: halve only where data is.
            ranges = file.region.data_ranges(0, file.size_bytes)
            low, high = 0, -(-ranges[-1][1] // ENTRY_BYTES) if ranges else 0
            high = min(high, file.size_bytes // ENTRY_BYTES)
            buffer = file.buffer
            while low < high:
                middle = (low + high) // 2
                if self._is_written(buffer, middle * ENTRY_BYTES):
                    low = middle + 1
                else:
                    high = middle
            if low > 0 or len(files) == 1:
                end = file.start + low * ENTRY_BYTES
                break
            files.pop().close()  # Created, and never written.
        self._set_end(end)

    def drop_unfinished_files(self) -> None:
        """After a crash: drop trailing files without their length; they held nothing safe."""
        files = self.mapped.files
        while files and self._files.size_of(files[-1].path) != files[-1].size_bytes:
            if len(files) == 1:
                return  # All that the queue has: not a new file, but a damaged one.
            files.pop().remove()

    def find_end_below(self, physical_limit: int) -> None:
        """Set the end after a crash: behind the last entry of a record below a physical offset.

        All entries of records below it are known to be on the disk. What follows may be there, or
        zero, or torn, and is made zero: the dispatcher writes it again. was_cut says whether there
        was anything, and then the queue must be synced before a new checkpoint vouches for it.
        """
        files = self.mapped.files
        keep = len(files)
        while keep > 1 and not self._belongs_below(files[keep - 1].buffer, 0, physical_limit):
            keep -= 1
        for file in reversed(files[keep:]):
            file.remove()
        if keep < len(files):
            del files[keep:]
            self._files.sync_directory(self.mapped.directory)
        end = self.mapped.start
        if files:
            buffer, at = files[-1].buffer, 0
            newest = -1
            while at < len(buffer) and self._belongs_below(buffer, at, physical_limit):
                physical_offset, size, _ = ENTRY.unpack_from(buffer, at)
                if size != FILLER_SIZE:
                    if physical_offset <= newest:
                        break
                    newest = physical_offset
                at += ENTRY_BYTES
            end = files[-1].start + at
            self._require_nothing_behind(files[-1], at, newest, physical_limit)
        self._set_end(end)
        # Not durable yet: until it is, the checkpoint vouches for nothing behind the limit.
        self.was_cut = self._zero_after_end()

    def _require_nothing_behind(
        self, file: MappedFile, at: int, newest: int, physical_limit: int
    ) -> None:
        """StoreDamaged where an entry that was vouched for lies behind one that is no good."""
        buffer = file.buffer
        # Blocks are reserved ahead, and thousands of queues would be walked for zeros.
        used = used_end(file.region, at, file.size_bytes)
        for first, stop in file.region.data_ranges(at, -(-used // ENTRY_BYTES) * ENTRY_BYTES):
            first -= (first - at) % ENTRY_BYTES
            for place in range(first, stop - ENTRY_BYTES + 1, ENTRY_BYTES):
                physical_offset, size, _ = ENTRY.unpack_from(buffer, place)
                if newest < physical_offset < physical_limit and 0 < size < FILLER_SIZE:
                    raise StoreDamaged(
                        file.path, at, f"is no entry, and there are good ones at {place}", ""
                    )

    @staticmethod
    def _is_written(buffer: memoryview, at: int) -> bool:
        physical_offset, size, _ = ENTRY.unpack_from(buffer, at)
        return bool(physical_offset >= 0 and size > 0)

    @classmethod
    def _belongs_below(cls, buffer: memoryview, at: int, physical_limit: int) -> bool:
        return cls._is_written(buffer, at) and ENTRY.unpack_from(buffer, at)[0] < physical_limit

    def _set_end(self, end: int) -> None:
        cursor = self.cursor
        cursor.write_at = end
        cursor.next_offset = end // ENTRY_BYTES
        cursor.max_physical = 0
        self._forget_tail()
        if last := self.last_entry():
            cursor.max_physical = last.physical_offset + last.size_bytes
        self.min_at = min(max(self.min_at, self.mapped.start), end)

    def _forget_tail(self) -> None:
        for file in self.mapped.files:
            file.cursor = None
        self.cursor.buffer = None
        self.cursor.limit = 0

    def _zero_after_end(self) -> bool:
        """Make everything behind the end zero, so that no scan meets old entries.

        Return whether anything was there, and has to be synced.
        """
        end = self.cursor.write_at
        had_any = False
        for file in self.mapped.files:
            start = max(end - file.start, 0)
            used = used_end(file.region, start, file.size_bytes) if start < file.size_bytes else 0
            if used > start:
                # Up to the last byte that is there: the rest of the file may stay a hole.
                file.region.reserve(used)
                file.region.zero(start, used)
                had_any = True
        return had_any

    def _sync_after_end(self) -> None:
        for file in self.mapped.files:
            if file.end > self.cursor.write_at:
                file.region.sync()

    def is_zero_after_end(self) -> bool:
        """Whether nothing follows the last entry; if something does, entries before it are gone."""
        end = self.cursor.write_at
        return all(
            is_zero(file.region, max(end - file.start, 0), file.size_bytes)
            for file in self.mapped.files
            if file.end > end
        )

    # Reading.

    def entries_at(self, queue_offset: int) -> tuple[memoryview, int, int] | None:
        """The buffer that holds an offset's entry, where in it, and where its entries end."""
        at = queue_offset * ENTRY_BYTES
        file = self.mapped.at(at)
        if file is None or at >= self.cursor.write_at:
            return None
        return file.buffer, at - file.start, min(file.end, self.cursor.write_at) - file.start

    def entry(self, queue_offset: int) -> ConsumeQueueEntry | None:
        """The entry of one message; None where it is blank or beyond the end."""
        found = self.entries_at(queue_offset) if queue_offset >= 0 else None
        return None if found is None else ConsumeQueueEntry.decode(found[0], found[1])

    def first_entry(self) -> ConsumeQueueEntry | None:
        """The oldest entry that may be read."""
        return self.entry(self.min_offset)

    def last_entry(self) -> ConsumeQueueEntry | None:
        """The newest entry."""
        return self.entry(self.max_offset - 1)

    def next_file_offset(self, queue_offset: int) -> int:
        """The first queue offset of the file after the one that would hold an offset."""
        file_bytes = self.mapped.file_bytes
        return (queue_offset * ENTRY_BYTES // file_bytes + 1) * file_bytes // ENTRY_BYTES

    def offset_by_time(self, time_ms: int, stored_at: Callable[[int, int], int]) -> int:
        """The queue offset whose store time is nearest, by halving.

        stored_at(physical offset, size) gives a record's store time, or -1 where it is gone. An
        exact hit wins; between two neighbours the nearer, the older one on a tie; before all the
        first, after all the last.
        """
        low, high = self.min_offset, self.max_offset - 1
        before: tuple[int, int] | None = None  # (offset, store time) of the newest not after it
        after: tuple[int, int] | None = None
        while low <= high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            found_ms = -1 if entry is None else stored_at(entry.physical_offset, entry.size_bytes)
            if found_ms == time_ms:
                return middle
            if found_ms < time_ms:
                if found_ms >= 0:
                    before = (middle, found_ms)
                low = middle + 1
            else:
                after = (middle, found_ms)
                high = middle - 1
        if before is None:
            return after[0] if after is not None else 0
        if after is None:
            return before[0]
        return before[0] if time_ms - before[1] <= after[1] - time_ms else after[0]

    # Writing.

    def make_room(self, queue_offset: int) -> None:
        """Map the place of the next entry, with blocks behind it; StoreFull if there are none.

        An empty queue may begin anywhere: what comes before in its first file is filled up. In a
        queue with entries a gap means that messages are missing, which the caller must have dealt
        with; it is filled, too, so that offsets stay true.
        """
        cursor = self.cursor
        at = queue_offset * ENTRY_BYTES
        assert at >= cursor.write_at, f"{self}: entry {queue_offset} is there already"
        if self.mapped.files and queue_offset - self.max_offset > _GAP_MAX:
            raise StoreDamaged(
                self.mapped.directory,
                cursor.write_at,
                f"the log has a record with queue offset {queue_offset}, {self.max_offset} is due",
                "run: skylark store check",
            )
        if not self._has_directory:
            # Durable with the queue's first flush: syncing three directories for the first message
            # of every queue would take milliseconds.
            self._files.make_directory(self.mapped.directory, durable=False)
            self._has_directory = True
        file_bytes = self.mapped.file_bytes
        if not self.mapped.files:
            start = at - at % file_bytes
            self._reserved(self.mapped.add(start, reserve=False), at)
            self._fill(start, at)
            cursor.write_at = self.min_at = at
        elif at > cursor.write_at:
            logger.warning(
                "topic=%s queue=%d entries %d to %d are missing in the log",
                self.topic, self.queue_id, self.max_offset, queue_offset - 1,
            )  # fmt: skip
            while cursor.write_at < at:
                stop = min(at, self.mapped.end)
                if stop > cursor.write_at:
                    self._reserved(self.mapped.files[-1], stop - ENTRY_BYTES)
                    self._fill(cursor.write_at, stop)
                    cursor.write_at = stop
                else:
                    self.mapped.add(cursor.write_at, reserve=False)
        if cursor.write_at == self.mapped.end:
            self.mapped.add(cursor.write_at, reserve=False)
        file = self.mapped.files[-1]
        assert file.start <= cursor.write_at < file.end
        self._forget_tail()
        region = self._reserved(file, cursor.write_at)
        file.cursor = cursor
        cursor.buffer = region.buffer
        cursor.file_start = file.start

    def _reserved(self, file: MappedFile, at: int) -> Region:
        """The file's region, with blocks for the entry at a position and some after it."""
        end = min(file.size_bytes, at - file.start + ENTRY_BYTES + _RESERVE_AHEAD)
        region = file.region
        region.reserve(end)
        self.cursor.limit = file.start + end
        return region

    def _fill(self, start: int, end: int) -> None:
        file = self.mapped.files[-1]
        count = (end - start) // ENTRY_BYTES
        file.buffer[start - file.start : end - file.start] = _FILLER * count

    def dirty_regions(self) -> list[Syncable]:
        """The files with entries that may not be on the disk, and mark them clean."""
        cursor = self.cursor
        cursor.is_dirty = False
        return [file.syncable for file in self.mapped.files if file.end > cursor.dirty_from]

    def unsynced_directories(self) -> list[str]:
        """The directories that must be synced for new files of the queue to keep their names."""
        inner = self.mapped.take_unsynced_directory()
        if not inner:
            return []
        topic = os.path.dirname(self.mapped.directory)
        root = os.path.dirname(topic)
        return [*inner, topic, root, os.path.dirname(root)]

    def truncate(self, physical_limit: int) -> None:
        """Drop the entries of records at or beyond a physical offset, durably."""
        cursor = self.cursor
        while (last := self.last_entry()) is not None and last.physical_offset >= physical_limit:
            cursor.write_at -= ENTRY_BYTES
        end = cursor.write_at
        if self.mapped.files and self.mapped.files[-1].start >= end > self.mapped.start:
            self.mapped.remove_after(end)
        self._set_end(end)
        if self._zero_after_end():
            self._sync_after_end()

    # Retention.

    def update_min(self, log_start: int) -> None:
        """Move the oldest readable offset past records that the commit log has dropped."""
        for file in self.mapped.files:
            low = max(self.min_at - file.start, 0) // ENTRY_BYTES
            high = (min(file.end, self.cursor.write_at) - file.start) // ENTRY_BYTES
            buffer = file.buffer
            while low < high:  # Fillers have offset 0, so the order holds for them as well.
                middle = (low + high) // 2
                physical_offset, size, _ = ENTRY.unpack_from(buffer, middle * ENTRY_BYTES)
                if physical_offset < log_start or size == FILLER_SIZE:
                    low = middle + 1
                else:
                    high = middle
            self.min_at = max(self.min_at, file.start + low * ENTRY_BYTES)
            if self.min_at < file.end:
                return

    def remove_before(self, log_start: int) -> int:
        """Delete leading files without a readable entry, never the last; return how many."""
        count = 0
        for file in self.mapped.files[:-1]:
            last, size, _ = ENTRY.unpack_from(file.buffer, file.size_bytes - ENTRY_BYTES)
            if last >= log_start and size != FILLER_SIZE:
                break
            count += 1
        if count:
            # Someone durable must remember how far offsets have come, and it is the next file.
            self.mapped.files[count].region.sync()
            for _ in range(count):
                self.mapped.detach_first().remove()
            self.min_at = max(self.min_at, self.mapped.start)
            self._files.sync_directory(self.mapped.directory)
        self.update_min(log_start)
        return count

    def continue_at(self, queue_offset: int) -> None:
        """Let an empty queue go on at an offset: its messages have expired, its offsets stay."""
        assert not self.mapped.files
        self.make_room(queue_offset)
        self.cursor.next_offset = queue_offset

    def restart(self) -> None:
        """Forget all entries; offsets that appends have given out beyond them stay given."""
        cursor = self.cursor
        if cursor.next_offset == self.max_offset:
            cursor.next_offset = 0
        self.destroy()
        cursor.write_at = cursor.max_physical = self.min_at = 0

    def destroy(self) -> None:
        """Delete all files of the queue."""
        self._forget_tail()
        # Newest first: what a crash leaves of a queue is its beginning, and not a hole.
        self.mapped.remove_after(0)
        self._files.remove_directory(self.mapped.directory)
        self._has_directory = False

    def close(self) -> None:
        """Unmap all."""
        self.mapped.close()

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id})"
