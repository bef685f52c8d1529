"""KeyIndex over IndexFiles: find messages by key and time.

A hash table on disk: slots hold the number of the newest entry with a hash, entries are chained to
the one before. Only hashes are stored, so a reader gets false matches and checks the key itself.

    index file, big-endian; S slots, N entries
    at       size   field
    0        8      store time of the first entry
    8        8      store time of the last entry
    16       8      physical offset of the first entry
    24       8      physical offset of the last entry
    32       4      slots in use
    36       4      number of the next entry; the first is 1, entry 0 is never used
    40       4 * S  slots: number of the newest entry, 0 for none
    40+4S    20 * N entries: key hash i32, physical offset i64, seconds since the file's first
                    store time i32, number of the slot's entry before i32

A file is named by the wall time of its creation, yyyyMMddHHmmssSSS, local time. When it is full (N
counts entry 0), the next one begins with the end values of the one before. See
docs/formats/index.md.

Entries are written once, slots change. After a crash the entries up to a mark are known to be on
the disk (checkpoint.py), and the slots are made again from them.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import StoreDamaged
from ..protocol.hashes import key_hash
from ..protocol.record import DispatchInfo
from . import append
from .append import INDEX_HEADER_BYTES, IndexCursor, index_keys, put_index
from .files import Files, Region
from .index_sums import IndexSums, PageGuard
from .mapped_file import MappedFile, RegionCache

logger = logging.getLogger(__name__)

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_INT = struct.Struct(">i")
_ENTRY_BYTES = 20
_RESERVE_ENTRIES = 50_000
_VERIFIED_BYTES_MAX = 64 << 20  # Of all files but the newest, at a start.
_NAME_DIGITS = 17
assert _HEADER.size == INDEX_HEADER_BYTES


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_ms: int
    end_ms: int
    begin_physical: int
    end_physical: int
    slots_used: int
    index_count: int


class IndexMark(NamedTuple):
    """How far the newest index file is known to be on the disk."""

    name: int  # The file's name as a number; 0 for no file.
    index_count: int
    end_ms: int
    end_physical: int


class IndexMatch(NamedTuple):
    """An entry with the hash that was looked for."""

    physical_offset: int
    stored_at_ms: int  # To the second.


class KeyIndex:
    """All index files, the last of which takes new entries."""

    def __init__(
        self,
        files: Files,
        cache: RegionCache,
        directory: str,
        *,
        slot_count: int,
        entry_max: int,
        walk_max: int = 100_000,
        writable: bool = True,
        sums_directory: str | None = None,
    ) -> None:
        self._files = files
        self._cache = cache
        self._directory = directory
        self._slot_count = slot_count
        self._entry_max = entry_max
        self._walk_max = walk_max
        self._writable = writable
        self._entries_at = INDEX_HEADER_BYTES + 4 * slot_count
        self.file_bytes = self._entries_at + _ENTRY_BYTES * entry_max
        self.index_files: list[MappedFile] = []
        self.cursor: IndexCursor = append.IndexCursor(slot_count)
        # A full file is flushed and noted in the checkpoint by whoever flushes next.
        self.full_unsynced: list[MappedFile] = []
        self._has_unsynced_names = False
        self._sums = (
            None
            if sums_directory is None
            else IndexSums(files, os.path.join(sums_directory, "index"), self._entries_at)
        )

    def load(self) -> None:
        """Find the files; foreign names are passed over, as RocketMQ does."""
        for name in self._files.list_names(self._directory):
            path = os.path.join(self._directory, name)
            if not (name.isascii() and name.isdigit()):
                logger.warning("path=%s is not an index file, passed over", path)
                continue
            size = self._files.size_of(path)
            if size != self.file_bytes:
                raise StoreDamaged(
                    path,
                    0,
                    f"is {size} bytes long, expected {self.file_bytes}",
                    "use the maxHashSlotNum and maxIndexNum it was written with, or delete the"
                    " index directory: it is rebuilt at the next start",
                )
            self.index_files.append(self._file(path, int(name)))
        self.index_files.sort(key=lambda file: file.start)
        self._take_up_last()

    def _file(self, path: str, number: int) -> MappedFile:
        return MappedFile(self._files, self._cache, path, number, self.file_bytes, self._writable)

    def header(self, file: MappedFile) -> IndexHeader:
        """Decode a file's header."""
        return IndexHeader._make(_HEADER.unpack_from(file.buffer, 0))

    def _take_up_last(self) -> None:
        """Let the cursor continue where the last file ends."""
        cursor = self.cursor = append.IndexCursor(self._slot_count)
        if self.index_files:
            header = self.header(self.index_files[-1])
            cursor.begin_ms, cursor.end_ms = header.begin_ms, header.end_ms
            cursor.begin_physical = header.begin_physical
            cursor.slots_used = header.slots_used
            cursor.index_count = max(1, header.index_count)
            if header.index_count > 1 or len(self.index_files) > 1:
                cursor.end_physical = header.end_physical

    # Writing.

    def put(self, info: DispatchInfo, now_ms: int) -> None:
        """File a record under each of its keys, rolling to a new file where one is full.

        With RocketMQ's rule a record's keys may lie in two files. Asked again for the last record,
        only the keys that are missing are added.
        """
        keys = index_keys(info)
        if info.physical_offset < self.cursor.end_physical or not keys:
            return
        if info.physical_offset == self.cursor.end_physical:
            keys = keys[self._count_at_end(info.physical_offset) :]
        for key in keys:
            self._make_room(now_ms)
            put_index(
                self.cursor, key_hash(info.topic, key), info.physical_offset, info.stored_at_ms
            )

    def _count_at_end(self, physical_offset: int) -> int:
        count = 0
        for file in reversed(self.index_files):
            for number in range(self.header(file).index_count - 1, 0, -1):
                entry = _ENTRY.unpack_from(file.buffer, self._entries_at + number * _ENTRY_BYTES)
                if entry[1] != physical_offset:
                    return count
                count += 1
        return count

    def _make_room(self, now_ms: int) -> None:
        cursor = self.cursor
        if cursor.buffer is not None and cursor.index_count < cursor.entry_limit:
            return
        if not self.index_files or cursor.index_count >= self._entry_max:
            self._roll(now_ms)
            cursor = self.cursor
        file = self.index_files[-1]
        region = file.region
        limit = min(self._entry_max, cursor.index_count + _RESERVE_ENTRIES)
        region.reserve(self._entries_at + _ENTRY_BYTES * limit)
        for other in self.index_files:
            other.cursor = None
        file.cursor = cursor
        cursor.buffer = region.buffer
        cursor.entry_limit = limit

    def _roll(self, now_ms: int) -> None:
        number = int(time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)))
        number = number * 1000 + now_ms % 1000
        if self.index_files:
            # Two in one millisecond, or a clock that went back: the order of names is the order.
            number = max(number, self.index_files[-1].start + 1)
        path = os.path.join(self._directory, f"{number:0{_NAME_DIGITS}d}")
        self._files.make_directory(self._directory)
        self._files.create(path, self.file_bytes, reserve=False)
        self._has_unsynced_names = True
        before, cursor = self.cursor, append.IndexCursor(self._slot_count)
        if self.index_files:
            self.full_unsynced.append(self.index_files[-1])
            cursor.begin_ms = cursor.end_ms = before.end_ms
            cursor.begin_physical = cursor.end_physical = before.end_physical
        self.index_files.append(self._file(path, number))
        self.cursor = cursor

    # Reading.

    def query(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[IndexMatch]:
        """Entries that may be for this key, newest first, with store times in a range."""
        found: list[IndexMatch] = []
        hash_value = key_hash(topic, key)
        visits = 0
        for file in reversed(self.index_files):
            header = self.header(file)
            if header.index_count <= 1 or header.begin_ms > end_ms:
                continue
            guard = None
            if self._sums is not None and file is not self.index_files[-1]:
                guard = self._sums.guard(file)
            for entry, stored_at_ms in self._chain(file, header, hash_value, guard):
                visits += 1
                if entry[0] == hash_value and begin_ms <= stored_at_ms <= end_ms:
                    found.append(IndexMatch(entry[1], stored_at_ms))
                # A second of slack: entries keep whole seconds only.
                if (
                    len(found) >= count_max
                    or stored_at_ms + 1000 < begin_ms
                    or visits >= self._walk_max
                ):
                    break
            if len(found) >= count_max or header.begin_ms < begin_ms or visits >= self._walk_max:
                break
        return found

    def _chain(
        self, file: MappedFile, header: IndexHeader, hash_value: int, guard: PageGuard | None
    ) -> Iterator[tuple[tuple[int, int, int, int], int]]:
        """The entries of a hash's slot, newest first, each with its store time."""
        buffer = file.buffer
        slot_at = INDEX_HEADER_BYTES + 4 * (hash_value % self._slot_count)
        if guard is not None:
            guard.require(0, INDEX_HEADER_BYTES)
            guard.require(slot_at, 4)
        number = _INT.unpack_from(buffer, slot_at)[0]
        above = min(header.index_count, self._entry_max)
        while 0 < number < above:
            at = self._entries_at + number * _ENTRY_BYTES
            if guard is not None:
                guard.require(at, _ENTRY_BYTES)
            entry = _ENTRY.unpack_from(buffer, at)
            # The first entry's seconds count from the end of the file before: RocketMQ takes the
            # new begin only afterwards. Its store time is the begin itself.
            yield entry, header.begin_ms + (entry[2] * 1000 if number > 1 else 0)
            above, number = number, entry[3]  # Chains lead to older entries only: no loop.

    # Flush and recovery.

    def mark(self) -> IndexMark:
        """How far the newest file is written."""
        if not self.index_files:
            return IndexMark(0, 1, 0, -1)
        cursor = self.cursor
        return IndexMark(
            self.index_files[-1].start, cursor.index_count, cursor.end_ms, cursor.end_physical
        )

    @property
    def resume_at(self) -> int:
        """The physical offset from which on records may be missing; 0 if all are."""
        return max(0, self.cursor.end_physical)

    def dirty_regions(self) -> list[Region]:
        """The regions that may have entries not on the disk."""
        files = [*self.full_unsynced, *self.index_files[-1:]]
        return [file.region for file in files if self.header(file).index_count > 1]

    def take_unsynced_directory(self) -> list[str]:
        """The directory, if a new name in it is not durable yet; it counts as synced then."""
        had, self._has_unsynced_names = self._has_unsynced_names, False
        return [self._directory] if had else []

    def saving_sums(self, full: list[MappedFile]) -> list[Callable[[], None]]:
        """What to run once the entries of full files and of the newest one are on the disk."""
        if self._sums is None:
            return []
        saving = []
        for file in full:
            header = self.header(file)
            saving.append(
                self._sums.saving(
                    file, header.begin_ms, header.begin_physical, header.index_count, True
                )
            )
        cursor = self.cursor
        if self.index_files and cursor.index_count > 1:
            saving.append(
                self._sums.saving(
                    self.index_files[-1],
                    cursor.begin_ms,
                    cursor.begin_physical,
                    cursor.index_count,
                    False,
                )
            )
        return saving

    def lost_file(self, log_start: int) -> str | None:
        """The name of a file that is gone, while records that were in it are not."""
        for name in [] if self._sums is None else self._sums.others(self.index_files):
            after = [file for file in self.index_files if file.start > int(name)]
            # Retention deletes a file when all its records are gone, and the next begins there.
            if not after or self.header(after[0]).begin_physical > log_start:
                return name
        return None

    def forget_lost_files(self) -> None:
        """Do not look for them again: they went by right."""
        if self._sums is not None:
            self._sums.remove_others(self.index_files)

    def damaged_file(self, *, was_clean: bool = True) -> MappedFile | None:
        """The first file whose entries are not what was written, or do not fit slots and header.

        The newest file is always looked at, others as far as they are few: a start should not take
        longer for them. Queries look at what they read of those.
        """
        left = _VERIFIED_BYTES_MAX
        for file in reversed(self.index_files):
            is_last = file is self.index_files[-1]
            left -= 0 if is_last else file.size_bytes
            if left < 0:
                break
            if self._sums is not None and not self._sums.fits(file, takes_up=is_last):
                return file
            # After a crash the newest file's slots are made again, and what follows its mark.
            if (was_clean or not is_last) and not self._is_sound(file):
                return file
        return None

    def _is_sound(self, file: MappedFile) -> bool:
        header = self.header(file)
        if not 1 <= header.index_count <= self._entry_max:
            return False
        if header.index_count == 1:
            return True
        first = _ENTRY.unpack_from(file.buffer, self._entries_at + _ENTRY_BYTES)
        return append.restore_slots(file.buffer, self._slot_count, header.index_count, True) == (
            header.slots_used,
            header.end_physical,
        ) and bool(first[1] == header.begin_physical)

    def restore(self, mark: IndexMark | None, full_until_ms: int) -> None:
        """After a crash, keep what is on the disk for sure.

        With a mark, the marked file is cut to it and later ones go. Without one, RocketMQ's rule:
        files whose last entry is newer than what the checkpoint vouches for go.
        """
        while self.index_files:
            last = self.index_files[-1]
            if mark is not None and last.start == mark.name:
                if self._restore_slots(last, mark):
                    break
            elif mark is None or last.start < mark.name:
                header = self.header(last)
                if 1 < header.index_count <= self._entry_max and header.end_ms <= full_until_ms:
                    break
            self._remove_last()
        self._sync_names()
        self.full_unsynced.clear()
        self._take_up_last()

    def _remove_last(self) -> None:
        file = self.index_files.pop()
        if self._sums is not None:
            self._sums.forget(file)
        file.remove()

    def _restore_slots(self, file: MappedFile, mark: IndexMark) -> bool:
        """Cut a file to its mark; False if the entries are not what the mark says."""
        if not 1 < mark.index_count <= self._entry_max:
            return False
        if self._sums is not None:
            self._sums.forget(file)
        buffer = file.buffer
        begin_ms, _, begin_physical, *_ = _HEADER.unpack_from(buffer, 0)
        region = file.region
        region.reserve(self._entries_at + _ENTRY_BYTES * mark.index_count)
        used, end_physical = append.restore_slots(buffer, self._slot_count, mark.index_count)
        if used < 0 or end_physical != mark.end_physical:
            return False
        region.zero(self._entries_at + _ENTRY_BYTES * mark.index_count, self.file_bytes)
        _HEADER.pack_into(
            buffer, 0, begin_ms, mark.end_ms, begin_physical, mark.end_physical, used,
            mark.index_count,
        )  # fmt: skip
        region.sync()
        return True

    def truncate(self, physical_limit: int, stored_at_ms: Callable[[int], int]) -> None:
        """Drop the entries of records at or beyond a physical offset, durably.

        stored_at_ms(physical offset) gives the exact store time, which entries keep in seconds.
        """
        while self.index_files:
            file = self.index_files[-1]
            header = self.header(file)
            count = header.index_count
            while count > 1:
                at = self._entries_at + (count - 1) * _ENTRY_BYTES
                entry = _ENTRY.unpack_from(file.buffer, at)
                if entry[1] < physical_limit:
                    break
                count -= 1
            if count == header.index_count:
                break
            if count > 1:
                end_ms = stored_at_ms(entry[1])
                if self._restore_slots(file, IndexMark(file.start, count, end_ms, entry[1])):
                    break
            self._remove_last()
            self._files.sync_directory(self._directory)
        self.full_unsynced = [file for file in self.full_unsynced if file in self.index_files]
        self._take_up_last()

    def discard_unloaded(self) -> None:
        """Delete everything in the directory after load() has failed: it will be built again."""
        self.index_files.clear()
        for name in self._files.list_names(self._directory):
            self._files.remove(os.path.join(self._directory, name))
        if self._sums is not None:
            self._sums.remove_others([])
        self._sync_names()
        self._take_up_last()

    def remove_all(self) -> None:
        """Delete every file: the index will be built again."""
        while self.index_files:
            self._remove_last()
        if self._sums is not None:
            self._sums.remove_others([])
        self._sync_names()
        self.full_unsynced.clear()
        self._take_up_last()

    def _sync_names(self) -> None:
        """Make removals durable: a file that comes back would count beside its successor."""
        if self._files.exists(self._directory):
            self._files.sync_directory(self._directory)

    def remove_before(self, log_start: int) -> int:
        """Delete leading files of records that the commit log has dropped, never the last."""
        count = 0
        while len(self.index_files) > 1:
            if self.header(self.index_files[0]).end_physical >= log_start:
                break
            file = self.index_files.pop(0)
            if file in self.full_unsynced:
                self.full_unsynced.remove(file)
            if self._sums is not None:
                self._sums.forget(file)
            file.remove()
            count += 1
        if count:
            self._sync_names()
        return count

    def close(self) -> None:
        """Unmap all."""
        for file in self.index_files:
            file.close()
