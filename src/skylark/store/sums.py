"""LogSums: checksums of records, beside the log.

A record's own checksum covers its body and nothing else. So each file of the log has a companion
that RocketMQ's broker does not know, in which every record has a sum of all its other bytes: damage
to a time, a flag or a property is seen like damage to a body.

    sums/<name of the log file>, blocks of 512 bytes, big-endian
    at   size  field
    0    4     b"SKS1"
    4    4     CRC-32 of the rest of the block
    8    4     where in the log file the block's first record begins
    12   2     number of entries, 1 to 61
    14   2     0
    16   8     the newest store time in the block
    24   8     each entry: where in the log file the record ends u32, its sum u32

The sum is the CRC-32 of the record's bytes before its body and of those behind it, in one; of a
record with another magic number, that of all its bytes.

Blocks are sectors, so a power cut leaves one whole or as it was. They are written before the log is
flushed, in one piece for all that the flush covers, and synced with the next checkpoint, not with
every flush: a record beyond the synced sums is as good as one that RocketMQ wrote, which has none.
Nothing acknowledged depends on them. A block that is damaged covers nothing.

    # What a sum says of a record holds as long as the record is there: records never change. Where
    # the log is cut, the sums are cut, durably, before anything new is written behind that place.

See docs/formats/sums.md and docs/adr/0012-checksums-beside-the-log.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import StoreError, StoreUnreadable
from ..protocol.record import FIXED_SIZE, MAGIC, MAGIC_V2
from .commit_log import CommitLog
from .files import Files, GrowingFile, Syncable
from .mapped_file import file_name

logger = logging.getLogger(__name__)

BLOCK_BYTES = 512
ENTRIES_MAX = 61
_MAGIC = b"SKS1"
_PREFIX = struct.Struct(">4sI")
_HEAD = struct.Struct(">IHHq")
_ENTRY = struct.Struct(">II")
_ENTRIES_AT = _PREFIX.size + _HEAD.size
assert _ENTRIES_AT + ENTRIES_MAX * _ENTRY.size == BLOCK_BYTES

_RECORD_HEAD = struct.Struct(">iI")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class SumCheck(NamedTuple):
    """How far records are what their sums say."""

    position: int  # Where the walk ended: at the record that differs, or where no record is.
    matched_end: int  # Every record from the start up to here has a sum, and it fits.
    differs: bool
    newest_ms: int  # The newest store time that the differing sum's block knows of.


def sum_records(buffer: memoryview, at: int, end: int) -> tuple[bytes, int, int]:
    """Return the entries of the whole records in buffer[at:end], which begins with the log file.

    Also where the walk ended, and the newest store time, or -1.
    """
    entries = []
    newest_ms = -1
    while (record := _record_at(buffer, at, end)) is not None:
        at += record[0]
        entries.append(_ENTRY.pack(at, record[1]))
        newest_ms = max(newest_ms, record[2])
    return b"".join(entries), at, newest_ms


def check_sums(buffer: memoryview, base: int, at: int, end: int, content: bytes) -> SumCheck:
    """Compare the records in buffer[at:end] with a sums file; buffer begins at base in its file."""
    matched_end, is_gapless = at, True
    covered = _covered(content)
    first, last, wanted, newest_ms = next(covered, _NOTHING)
    while (record := _record_at(buffer, at, end)) is not None:
        size, found, _ = record
        while last <= base + at:
            first, last, wanted, newest_ms = next(covered, _NOTHING)
        if first >= base + at + size:
            is_gapless = False
        elif (first, last, wanted) != (base + at, base + at + size, found):
            return SumCheck(at, matched_end, True, newest_ms)
        elif is_gapless:
            matched_end = at + size
        at += size
    return SumCheck(at, matched_end, False, -1)


_NOTHING = (2**62, 2**62, 0, -1)


def _covered(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Begin, end and sum of each record that is covered, and its block's newest store time."""
    for at in range(0, len(content) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = parse_block(content, at)
        if block is not None:
            begin = block.start
            for end, value in block.entries():
                yield begin, end, value, block.newest_ms
                begin = end


def _record_at(buffer: memoryview, at: int, end: int) -> tuple[int, int, int] | None:
    """Size, sum and store time of the record at a position; None where no whole one is."""
    if end - at < FIXED_SIZE:
        return None
    size, magic = _RECORD_HEAD.unpack_from(buffer, at)
    if not FIXED_SIZE <= size <= end - at or magic not in (MAGIC, MAGIC_V2):
        return None
    flags = _INT.unpack_from(buffer, at + 36)[0]
    stored_at = 48 + (20 if flags & 0x10 else 8)
    body_at = stored_at + 8 + (20 if flags & 0x20 else 8) + 16
    stored_ms = _LONG.unpack_from(buffer, at + stored_at)[0]
    if magic == MAGIC and body_at <= size:
        body_bytes = _INT.unpack_from(buffer, at + body_at - 4)[0]
        if 0 <= body_bytes <= size - body_at:
            head = zlib.crc32(buffer[at : at + body_at])
            tail = buffer[at + body_at + body_bytes : at + size]
            return size, zlib.crc32(tail, head), stored_ms
    return size, zlib.crc32(buffer[at : at + size]), stored_ms


class SumBlock(NamedTuple):
    """One sound block of a sums file."""

    start: int
    newest_ms: int
    packed: bytes

    def entries(self) -> Iterator[tuple[int, int]]:
        """End and sum of each record."""
        return _ENTRY.iter_unpack(self.packed)


def parse_block(content: bytes, at: int) -> SumBlock | None:
    """The block at a position; None where it is damaged."""
    magic, crc = _PREFIX.unpack_from(content, at)
    start, count, rest, newest_ms = _HEAD.unpack_from(content, at + _PREFIX.size)
    if magic != _MAGIC or not 1 <= count <= ENTRIES_MAX or rest:
        return None
    if zlib.crc32(content[at + _PREFIX.size : at + BLOCK_BYTES]) != crc:
        return None
    packed = content[at + _ENTRIES_AT : at + _ENTRIES_AT + count * _ENTRY.size]
    return SumBlock(start, newest_ms, packed)


def pack_block(start: int, newest_ms: int, entries: bytes) -> bytes:
    """A block as it is on the disk."""
    head = _HEAD.pack(start, len(entries) // _ENTRY.size, 0, newest_ms)
    rest = (head + entries).ljust(BLOCK_BYTES - _PREFIX.size, b"\0")
    return _PREFIX.pack(_MAGIC, zlib.crc32(rest)) + rest


def sums_directory(root: str) -> str:
    """Where the sums of a store's log lie."""
    return os.path.join(root, "sums")


class LogSums:
    """Writes the sums of a log, one file at a time, and reads them back."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.position = 0  # Records below this offset have been looked at.
        self._file: GrowingFile | None = None
        self._file_start = -1
        self._given_up = -1  # The log file whose sums could not be written.
        self._unsynced: list[GrowingFile] = []
        self._has_unsynced_names = False
        # The last block, which is written again as it fills up.
        self._block_number = 0
        self._block_start = 0
        self._newest_ms = -1
        self._entries = b""

    def path_of(self, file_start: int) -> str:
        """The sums file of a log file."""
        return os.path.join(self._directory, file_name(file_start))

    # Writing.

    def advance(self, log: CommitLog, until: int) -> None:
        """Write the sums of all whole records below an offset; called before each flush."""
        while self.position < until:
            file = log.mapped.at(self.position)
            if file is None:
                break
            at, stop = self.position - file.start, min(until, file.end) - file.start
            entries, end, newest_ms = sum_records(file.buffer, at, stop)
            if entries:
                self._put(file.start, at, entries, newest_ms)
            self.position = file.start + end
            if end < stop:
                if log.blank_end(self.position) != file.end or until < file.end:
                    break  # A replica has received a part of a record.
                self.position = file.end

    def _put(self, file_start: int, at: int, entries: bytes, newest_ms: int) -> None:
        if self._given_up == file_start:
            return
        try:
            if self._file_start != file_start:
                self._open(file_start, at)
            assert self._file is not None
            place, content = self._extend(at, entries, newest_ms)
            self._file.write(place, content)
        except StoreError as error:
            # The log's own flush will tell whether the disk is well. Without sums a record is as
            # safe as RocketMQ's; a wrong one would be worse than none.
            logger.warning("log file %d goes on without sums: %s", file_start, error)
            self._given_up = file_start
            self._leave()
            with contextlib.suppress(StoreError):
                self._files.remove(self.path_of(file_start))

    def _extend(self, at: int, entries: bytes, newest_ms: int) -> tuple[int, bytes]:
        """Add entries to the last block and those that follow; return what to write, and where."""
        place = self._block_number * BLOCK_BYTES
        blocks = []
        self._newest_ms = max(self._newest_ms, newest_ms)
        block_bytes = ENTRIES_MAX * _ENTRY.size
        pending = self._entries + entries
        for first in range(0, len(pending), block_bytes):
            piece = pending[first : first + block_bytes]
            blocks.append(pack_block(self._block_start, self._newest_ms, piece))
            if len(piece) < block_bytes:
                self._entries = piece
                break
            self._block_number += 1
            self._block_start = _ENTRY.unpack_from(piece, block_bytes - _ENTRY.size)[0]
            self._newest_ms = newest_ms
        else:
            self._entries = b""
        return place, b"".join(blocks)

    def _open(self, file_start: int, at: int) -> None:
        self._leave()
        self._files.make_directory(self._directory, durable=False)
        path = self.path_of(file_start)
        self._has_unsynced_names |= not self._files.exists(path)
        self._file = self._files.grow(path)
        self._file.truncate(0)
        self._file_start = file_start
        self._begin(0, at, -1, b"")

    def _begin(self, number: int, start: int, newest_ms: int, entries: bytes) -> None:
        self._block_number, self._block_start = number, start
        self._newest_ms, self._entries = newest_ms, entries

    def _leave(self) -> None:
        if self._file is not None:
            self._unsynced.append(self._file)
        self._file, self._file_start = None, -1

    # Flush.

    def take_unsynced(self) -> list[Syncable]:
        """What the next checkpoint syncs; it counts as synced then."""
        unsynced: list[Syncable] = [*self._unsynced]
        self._unsynced.clear()
        if self._file is not None:
            unsynced.append(self._file)
        return unsynced

    def take_unsynced_directories(self) -> list[str]:
        """The directories in which a new name is not durable yet; they count as synced then."""
        had, self._has_unsynced_names = self._has_unsynced_names, False
        return [self._directory, os.path.dirname(self._directory)] if had else []

    # Recovery.

    def read(self, file_start: int) -> bytes:
        """The sums of a log file; nothing where there are none, or they cannot be read."""
        path = self.path_of(file_start)
        if not self._files.exists(path):
            return b""
        try:
            return self._files.read(path)
        except StoreUnreadable as error:
            logger.warning("the log file is checked without its sums: %s", error)
            return b""

    def take_up(self, log: CommitLog, matched: Mapping[int, int], end: int) -> None:
        """Continue after recovery: what matched is kept, what lacks sums gets them.

        matched has, for each log file that was checked, the position in it up to which all records
        have sums that fit.
        """
        self.remove_others(log)
        for file_start, at in sorted(matched.items()):
            file = log.mapped.at(file_start)
            if file is None or file_start >= end:
                continue
            at = min(at, end - file_start)
            self.position = file_start + at
            try:
                self._keep(file_start, at)
            except StoreError as error:
                logger.warning("log file %d goes on without sums: %s", file_start, error)
                self._given_up = file_start
                self._leave()
            self.advance(log, min(end, file.end))
        self.position = end

    def cut(self, log: CommitLog, end: int) -> None:
        """Forget, durably, what was said of records at or behind an offset."""
        self.remove_others(log)
        self.position = end
        file = log.mapped.at(end)
        if file is not None:
            self._keep(file.start, end - file.start)

    def _keep(self, file_start: int, at: int) -> None:
        """Take up the last block in which entries up to a position lie, and drop what follows."""
        self._leave()
        content = self.read(file_start)
        number, start, newest_ms, entries = 0, at, -1, b""
        while (number + 1) * BLOCK_BYTES <= len(content):
            found = parse_block(content, number * BLOCK_BYTES)
            if found is None or found.start >= at:
                break
            kept = b"".join(_ENTRY.pack(*entry) for entry in found.entries() if entry[0] <= at)
            is_full = len(kept) == ENTRIES_MAX * _ENTRY.size
            if not is_full and kept and _ENTRY.unpack(kept[-_ENTRY.size :])[0] == at:
                start, newest_ms, entries = found.start, found.newest_ms, kept
                break
            number += 1
        self._files.make_directory(self._directory, durable=False)
        path = self.path_of(file_start)
        self._has_unsynced_names |= not self._files.exists(path)
        self._file, self._file_start = self._files.grow(path), file_start
        self._begin(number, start, newest_ms, entries)
        block = pack_block(start, newest_ms, entries) if entries else b""
        place = number * BLOCK_BYTES
        if content[place:] != block:
            self._file.truncate(place)
            if block:
                self._file.write(place, block)
            self._file.sync()

    def remove_others(self, log: CommitLog) -> None:
        """Delete the sums of log files that are not there, durably."""
        known = {file_name(file.start) for file in log.mapped.files}
        names = [name for name in self._files.list_names(self._directory) if name.isdigit()]
        gone = [name for name in names if name not in known]
        for name in gone:
            if self._file is not None and self._file.path == os.path.join(self._directory, name):
                self._file, self._file_start = None, -1
            self._files.remove(os.path.join(self._directory, name))
        if gone:
            self._files.sync_directory(self._directory)

    def remove(self, file_start: int) -> None:
        """Delete the sums of a log file that retention has deleted; from any thread."""
        self._files.remove(self.path_of(file_start))

    def close(self) -> None:
        """Let the files go."""
        self._file, self._file_start = None, -1
        self._unsynced.clear()


# The compiled twins take over where they were built; tests reach both by these names.
PURE: dict[str, Callable[..., Any]] = {"sum_records": sum_records, "check_sums": check_sums}
COMPILED: dict[str, Callable[..., Any]] = {}

with contextlib.suppress(ImportError):
    from . import _sums

    _sums.bind(SumCheck)
    COMPILED = {name: getattr(_sums, name) for name in PURE}
    if os.environ.get("SKYLARK_PURE") != "1":
        globals().update(COMPILED)
