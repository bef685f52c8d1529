"""IndexCheck: the key index as the log makes it, compared file by file."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator

from ...errors import StoreUnreadable
from ...protocol.hashes import key_hash
from ...protocol.record import DispatchInfo
from .. import append
from ..append import ENTRY_BYTES, INDEX_HEADER_BYTES, IndexCursor, index_keys, put_index
from ..config import StoreConfig
from ..files import OsFiles
from .layout import index_header, index_paths
from .log_reader import LogReader, read_at
from .report import CheckReport, Finding, StoreState, rebuild_command

_WAITS_MAX = 50
_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")


class IndexCheck:
    """The index as the log makes it, compared file by file."""

    def __init__(self, config: StoreConfig, log: LogReader, report: CheckReport) -> None:
        self._root = config.store_path_root_dir
        self._slots = config.max_hash_slot_num
        self._entry_max = config.max_index_num
        self._entries_at = INDEX_HEADER_BYTES + 4 * self._slots
        self._file_bytes = self._entries_at + ENTRY_BYTES * self._entry_max
        self._report = report
        self._paths = index_paths(self._root)
        self._number = 0  # Of the file that is being made.
        self.is_broken = False  # One difference shifts all that follows: the first is told.
        self.cursor: IndexCursor = self._new_cursor()
        report.index_file_count = len(self._paths)
        with self._while_files_may_go():
            for path in self._paths:
                size = OsFiles().size_of(path)
                if size != self._file_bytes:
                    self._tell(path, size, f"is {size} bytes long, expected {self._file_bytes}")
                    return
            self._resume(log.start)

    def _new_cursor(self) -> IndexCursor:
        cursor: IndexCursor = append.IndexCursor(self._slots)
        cursor.buffer = memoryview(mmap.mmap(-1, self._file_bytes))
        cursor.entry_limit = self._entry_max
        return cursor

    def _tell(self, path: str, at: int, problem: str) -> None:
        self.is_broken = True
        self._report.findings.append(Finding(path, at, problem, rebuild_command(self._root)))

    def _resume(self, log_start: int) -> None:
        """Begin with what the files hold of records that the log has dropped."""
        cursor = self.cursor
        for number, path in enumerate(self._paths):
            header = index_header(path)
            count = header.index_count
            if not 1 <= count <= self._entry_max:
                self._tell(path, 36, f"counts {count} entries, at most {self._entry_max} fit")
                return
            kept = self._first_kept(path, count, log_start)
            if kept == count and number < len(self._paths) - 1:
                cursor.begin_ms = cursor.end_ms = header.end_ms
                cursor.begin_physical = cursor.end_physical = header.end_physical
                continue
            self._number = number
            if kept > 1:
                self._seed(path, kept)
            return

    def _first_kept(self, path: str, count: int, log_start: int) -> int:
        """The number of the first entry of a record that the log still has."""
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            entry = read_at(path, self._entries_at + middle * ENTRY_BYTES, ENTRY_BYTES)
            if len(entry) == ENTRY_BYTES and _INDEX_ENTRY.unpack(entry)[1] < log_start:
                low = middle + 1
            else:
                high = middle
        return low

    def _seed(self, path: str, kept: int) -> None:
        cursor, end = self.cursor, self._entries_at + kept * ENTRY_BYTES
        assert cursor.buffer is not None
        cursor.buffer[self._entries_at : end] = read_at(
            path, self._entries_at, end - self._entries_at
        )
        used, end_physical = append.restore_slots(cursor.buffer, self._slots, kept)
        if used < 0:
            self._tell(path, self._entries_at, "an entry does not name the one before in its slot")
            return
        header = index_header(path)
        cursor.begin_ms, cursor.begin_physical = header.begin_ms, header.begin_physical
        cursor.end_ms, cursor.end_physical = header.end_ms, end_physical
        cursor.slots_used, cursor.index_count = used, kept
        _INDEX_HEADER.pack_into(
            cursor.buffer, 0, header.begin_ms, header.end_ms, header.begin_physical, end_physical,
            used, kept,
        )  # fmt: skip

    def put(self, info: DispatchInfo) -> None:
        """File a record that the fast path left."""
        with self._while_files_may_go():
            self._put(info)

    def _put(self, info: DispatchInfo) -> None:
        """Only a file that is full, or that was cut in a record, makes this necessary."""
        keys = index_keys(info)
        cursor = self.cursor
        if info.physical_offset < cursor.end_physical or not keys:
            return
        if info.physical_offset == cursor.end_physical:
            keys = keys[self._count_at_end(info.physical_offset) :]
        for key in keys:
            if self.cursor.index_count >= self._entry_max:
                self._compare(is_last=False)
                if self.is_broken:
                    return
                self._roll()
            put_index(
                self.cursor, key_hash(info.topic, key), info.physical_offset, info.stored_at_ms
            )

    def _count_at_end(self, physical_offset: int) -> int:
        count, cursor = 0, self.cursor
        assert cursor.buffer is not None
        while cursor.index_count - count > 1:
            at = self._entries_at + (cursor.index_count - 1 - count) * ENTRY_BYTES
            if _INDEX_ENTRY.unpack_from(cursor.buffer, at)[1] != physical_offset:
                break
            count += 1
        return count

    def give_up(self, why: str) -> None:
        """The log has a hole: nobody can say what the index should hold from here on."""
        if not self.is_broken:
            self.is_broken = True
            self._report.notes.append(f"the index is not compared to its end: {why}")

    @contextlib.contextmanager
    def _while_files_may_go(self) -> Iterator[None]:
        """A running broker's retention may take index files away under the check."""
        try:
            yield
        except StoreUnreadable:
            if self._report.state is not StoreState.RUNNING or all(
                map(os.path.exists, self._paths)
            ):
                raise
            self.give_up("retention was at work")

    def _roll(self) -> None:
        before = self.cursor
        self._number += 1
        self.cursor = cursor = self._new_cursor()
        cursor.begin_ms = cursor.end_ms = before.end_ms
        cursor.begin_physical = cursor.end_physical = before.end_physical

    def finish(self, wait: Callable[[], None]) -> None:
        """Compare the last file."""
        if not self.is_broken:
            with self._while_files_may_go():
                self._finish(wait)

    def _finish(self, wait: Callable[[], None]) -> None:
        if self._report.state is StoreState.RUNNING and self._number < len(self._paths):
            for _ in range(_WAITS_MAX):
                if index_header(self._paths[self._number]).index_count >= self.cursor.index_count:
                    break
                wait()
        self._compare(is_last=True)
        surplus = self._paths[self._number + 1 :]
        if surplus and not self.is_broken and self._report.state is not StoreState.RUNNING:
            if all(index_header(path).index_count <= 1 for path in surplus):
                return  # A file made, and not used yet.
            self._tell(surplus[0], 0, "has entries that the log does not account for")

    def _compare(self, *, is_last: bool) -> None:
        cursor, report = self.cursor, self._report
        if self._number >= len(self._paths):
            if cursor.index_count > 1:
                self._lag(os.path.join(self._root, "index"), 0, cursor.index_count - 1)
            return
        path = self._paths[self._number]
        header = index_header(path)
        count = min(cursor.index_count, header.index_count)
        assert cursor.buffer is not None
        first, end = self._entries_at + ENTRY_BYTES, self._entries_at + count * ENTRY_BYTES
        expected, found = cursor.buffer[first:end], read_at(path, first, max(0, end - first))
        report.index_entry_count += max(0, count - 1)
        if found != expected:
            number = _first_difference(found, expected) // ENTRY_BYTES + 1
            at = self._entries_at + number * ENTRY_BYTES
            entry = _INDEX_ENTRY.unpack_from(found, (number - 1) * ENTRY_BYTES)
            wanted = _INDEX_ENTRY.unpack_from(expected, (number - 1) * ENTRY_BYTES)
            self._tell(
                path,
                at,
                f"entry {number} is {_index_text(entry)}, the log says {_index_text(wanted)}",
            )
        elif cursor.index_count > header.index_count:
            self._lag(path, end, cursor.index_count - header.index_count)
        elif header.index_count > cursor.index_count:
            if report.state is StoreState.CRASHED and is_last:
                report.notes.append("the index is ahead of the log: the next start cuts it")
            elif report.state is StoreState.CLEAN or not is_last:
                self._tell(path, end, "has more entries than the log accounts for")
        elif report.state is not StoreState.RUNNING or not is_last:
            self._compare_head(path, cursor.buffer)

    def _compare_head(self, path: str, expected: memoryview) -> None:
        """Header and slots, which change with every entry."""
        found = read_at(path, 0, self._entries_at)
        if found != expected[: self._entries_at]:
            at = _first_difference(found, expected[: self._entries_at])
            at -= at % (8 if at < 32 else 4)
            what = "header" if at < INDEX_HEADER_BYTES else "slots"
            self._tell(path, at, f"its {what} do not fit its entries")

    def _lag(self, path: str, at: int, count: int) -> None:
        text = f"{count} index entries are missing"
        if self._report.state is StoreState.CRASHED:
            self._report.notes.append(f"{text}: the next start builds them")
            self.is_broken = True
        else:
            self._tell(path, at, text)


def _first_difference(found: bytes, expected: memoryview) -> int:
    low, high = 0, min(len(found), len(expected))
    while low < high:
        middle = (low + high) // 2
        if found[low : middle + 1] == expected[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def _index_text(entry: tuple[int, int, int, int]) -> str:
    return f"hash {entry[0]} offset {entry[1]} seconds {entry[2]} before {entry[3]}"
