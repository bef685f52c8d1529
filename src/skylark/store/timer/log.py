"""TimerLog: the units that slots of the wheel point to, each leading to the one before.

    unit, 32 bytes, big-endian
    at   size  field
    0    8     position of the unit before in the same slot, 0 for none
    8    8     when the message is due, wall time in ms
    16   8     its queue offset in queue 0 of rmq_sys_wheel_timer
    24   4     CRC-32 of these 24 bytes
    28   4     b"TIMR"

Positions are bytes in the address space of the files. The first 32 bytes of a file are a head, made
as a unit is: the log's epoch, the file's start and 0, and b"TIMH" at the end. So 0 is no position
of a unit, and can mean none; and a state of another epoch is never read beside this log.

A unit always points backward, and files are only dropped at the old end, so a chain may lead out of
the log, and ends there. Nothing in here is truth: see store.py.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ...errors import CorruptRecord, StoreDamaged
from ..files import Files, Region, Syncable
from ..mapped_file import MappedFileQueue, RegionCache

UNIT_BYTES = 32
FILE_BYTES = 100 << 20

_BODY = struct.Struct(">qqq")
_TAIL = struct.Struct(">I4s")
_MAGIC = b"TIMR"
_HEAD_MAGIC = b"TIMH"
_REGIONS_MAX = 32
_RESERVE_AHEAD = 256 << 10


class Unit(NamedTuple):
    """One timer in the log."""

    previous: int
    due_ms: int
    queue_offset: int


class TimerLog:
    """Units, appended at the end and read by position."""

    def __init__(self, files: Files, directory: str, file_bytes: int = FILE_BYTES) -> None:
        assert file_bytes % UNIT_BYTES == 0
        self._files = files
        self._mapped = MappedFileQueue(files, RegionCache(_REGIONS_MAX), directory, file_bytes)
        self._file_bytes = file_bytes
        self.epoch = 0  # Which log this is: a wall time, of when it began.
        self.end = 0
        self._region: Region | None = None  # Of the last file.
        self._region_start = 0
        self._reserved = 0  # Within that file.
        self._dirty_from = 0
        # Start of a file → the highest queue offset in it: when that is done, the file may go.
        self.highest: dict[int, int] = {}

    @property
    def start(self) -> int:
        """The first position that is kept."""
        return self._mapped.start

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return len(self._mapped)

    def open(self, epoch: int, start: int, end: int, highest: dict[int, int]) -> None:
        """Take the files as a snapshot knew them; StoreError where they do not fit."""
        self._mapped.load()
        while self._mapped.files and self._mapped.files[0].end <= start:
            self._mapped.detach_first().remove()
        self._mapped.remove_after(end)
        if end > 0:
            if not (self._mapped.start <= start and end <= self._mapped.end):
                raise StoreDamaged(
                    self._mapped.directory, end, "files of the timer log are missing", "restart"
                )
            first = self._mapped.files[0]
            if bytes(first.buffer[:UNIT_BYTES]) != _head(epoch, first.start):
                raise StoreDamaged(first.path, 0, "it is another log than was saved", "restart")
        self.epoch = epoch
        self.end = end
        self.highest = dict(highest)
        self._region = None
        self._dirty_from = end

    def clear(self, epoch: int) -> None:
        """Delete everything, and begin anew."""
        self._mapped.close()
        self._mapped.files.clear()
        for name in self._files.list_names(self._mapped.directory):
            self._files.remove(f"{self._mapped.directory}/{name}")
        self.epoch = epoch
        self.end = 0
        self.highest = {}
        self._region = None
        self._dirty_from = 0

    def append(self, previous: int, due_ms: int, queue_offset: int) -> int:
        """Write a unit, and return its position; StoreFull where the disk has no room for it."""
        inside = self.end - self._region_start
        region = self._region
        if region is None or inside >= self._file_bytes:
            region = self._roll()
            inside = self.end - self._region_start
        if inside >= self._reserved:
            until = min(self._file_bytes, inside + _RESERVE_AHEAD)
            region.reserve(until)
            self._reserved = until
        if inside == 0:
            region.buffer[:UNIT_BYTES] = _head(self.epoch, self._region_start)
            inside = UNIT_BYTES
            self.end += UNIT_BYTES
        at = self.end
        body = _BODY.pack(previous, due_ms, queue_offset)
        region.buffer[inside : inside + UNIT_BYTES] = body + _TAIL.pack(zlib.crc32(body), _MAGIC)
        self.end = at + UNIT_BYTES
        if queue_offset > self.highest.get(self._region_start, -1):
            self.highest[self._region_start] = queue_offset
        return at

    def _roll(self) -> Region:
        start = self.end // self._file_bytes * self._file_bytes
        file = self._mapped.at(self.end)
        if file is None:
            self._files.make_directory(self._mapped.directory)
            file = self._mapped.add(start, reserve=False)
        self._region = file.region
        self._region_start = start
        self._reserved = 0
        return self._region

    def read(self, position: int) -> Unit:
        """The unit at a position, which must be kept; CorruptRecord where there is none."""
        file = self._mapped.at(position)
        if file is None or position >= self.end or position % UNIT_BYTES or position == file.start:
            raise CorruptRecord(f"timer log: no unit at {position}")
        at = position - file.start
        unit = bytes(file.buffer[at : at + UNIT_BYTES])
        crc, magic = _TAIL.unpack_from(unit, _BODY.size)
        if magic != _MAGIC or zlib.crc32(unit[: _BODY.size]) != crc:
            raise CorruptRecord(f"timer log: the unit at {position} is damaged")
        return Unit._make(_BODY.unpack_from(unit, 0))

    # Durability.

    def unsynced(self) -> tuple[list[Syncable], list[str]]:
        """Files and directories to sync for all units so far; they count as synced then."""
        regions: list[Syncable] = [
            file.syncable for file in self._mapped.files if file.end > self._dirty_from
        ]
        self._dirty_from = self.end
        return regions, self._mapped.take_unsynced_directory()

    def doubt(self) -> None:
        """A sync failed: everything is to be synced again."""
        self._dirty_from = 0
        self._mapped.doubt_names()

    def start_without(self, first_pending: int | None) -> int:
        """Where the log could begin if timers below a queue offset are done; None: all are."""
        start = self.start
        for file in self._mapped.files[:-1]:
            highest = self.highest.get(file.start, -1)
            if first_pending is not None and highest >= first_pending:
                break
            start = file.end
        return start

    def drop_before(self, start: int) -> None:
        """Delete files that end up to a position."""
        dropped = False
        while len(self._mapped) > 1 and self._mapped.files[0].end <= start:
            file = self._mapped.detach_first()
            self.highest.pop(file.start, None)
            file.remove()
            dropped = True
        if dropped:
            self._files.sync_directory(self._mapped.directory)

    def close(self) -> None:
        """Unmap all."""
        self._region = None
        self._mapped.close()


def _head(epoch: int, start: int) -> bytes:
    body = _BODY.pack(epoch, start, 0)
    return body + _TAIL.pack(zlib.crc32(body), _HEAD_MAGIC)
