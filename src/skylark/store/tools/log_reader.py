"""LogReader: the commit log through the eyes of a stranger.

Files are read, not mapped: another process owns them, and a mapped file that is cut short under a
reader ends the reader. What is read is a copy, so a record that the owner is just writing is seen
whole or not at all, never changing while it is looked at.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...errors import InvalidRecord, StoreUnreadable
from ...protocol.record import (
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    MAGIC,
    decode_dispatch,
    stored_at_position,
)
from .. import append, sums
from ..append import SECTOR_BYTES, Stop
from ..config import StoreConfig
from ..files import store_error
from ..mapped_file import file_name
from ..sums import sums_directory

_HEAD = struct.Struct(">iI")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_WINDOW_BYTES = 8 << 20
_MAGIC_BYTES = struct.pack(">I", MAGIC)

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all."""


def read_at(path: str, at: int, size: int) -> bytes:
    """Bytes of a file from a position on; fewer where it ends before."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise store_error(path, "read", error) from error
    try:
        pieces = []
        while size > 0 and (piece := os.pread(descriptor, size, at)):
            pieces.append(piece)
            at += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except OSError as error:
        raise store_error(path, "read", error) from error
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of the log with whole, sound records, and nothing else between start and end."""

    buffer: memoryview
    start: int  # The physical offset of its first byte.
    end: int

    def cut(self, limit: int) -> Window:
        """The part below an offset, which is a record's end."""
        if self.end <= limit:
            return self
        return Window(self.buffer[: max(0, limit - self.start)], self.start, limit)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log."""

    path: str
    start: int


class LogReader:
    """Walks a commit log that somebody else may be writing."""

    def __init__(self, directory: str, file_bytes: int, sums: str | None = None) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.flushed = 0  # Up to here RocketMQ has not written over our records; see recovery.py.
        self._sums = sums
        self._sums_of: tuple[int, bytes] = (-1, b"")
        self.files: list[LogFile] = []
        self.end = 0  # How far the last walk came.
        self.problem = ""  # What lies there instead of a record.
        self.last_stored_ms = -1
        self.has_expired = False  # Files went while they were being read.

    @classmethod
    def of(cls, config: StoreConfig) -> LogReader:
        """The log of a store, with its sums."""
        return cls(
            config.commit_log_directory,
            config.mapped_file_size_commit_log,
            sums_directory(config.store_path_root_dir) if config.sums_enable else None,
        )

    def load(self) -> None:
        """List the files that are whole multiples of the file size apart."""
        try:
            names = sorted(os.listdir(self.directory))
        except OSError as error:
            raise store_error(self.directory, "list", error) from error
        starts = [int(n) for n in names if n.isascii() and n.isdigit() and len(n) >= 20]
        self.files = [
            LogFile(os.path.join(self.directory, file_name(start)), start)
            for start in sorted(starts)
            if start % self.file_bytes == 0
        ]

    @property
    def start(self) -> int:
        """The physical offset of the oldest file."""
        return self.files[0].start if self.files else 0

    @property
    def limit(self) -> int:
        """The physical offset after the last file."""
        return self.files[-1].start + self.file_bytes if self.files else 0

    def at(self, offset: int) -> LogFile | None:
        """The file that holds an offset."""
        if not self.files:
            return None
        number = (offset - self.files[0].start) // self.file_bytes
        if 0 <= number < len(self.files) and self.files[number].start <= offset:
            file = self.files[number]
            if offset < file.start + self.file_bytes:
                return file
        # A file is missing in between.
        return next((f for f in self.files if 0 <= offset - f.start < self.file_bytes), None)

    def place_of(self, offset: int) -> tuple[str, int]:
        """The path of the file that holds an offset, and where in it."""
        file = self.at(offset) or (self.files[-1] if self.files else None)
        if file is None:
            return self.directory, offset
        return file.path, offset - file.start

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of one file; fewer where the file ends."""
        file = self.at(offset)
        if file is None:
            return b""
        try:
            size = min(size, file.start + self.file_bytes - offset)
            return read_at(file.path, offset - file.start, size)
        except StoreUnreadable:
            if os.path.exists(file.path):
                raise
        # Retention was faster. It begins with the oldest file, so all before are gone as well.
        self.files = [other for other in self.files if other.start > file.start]
        self.has_expired = True
        return b""

    def record(self, offset: int) -> bytes | None:
        """The record that says of itself that it begins at an offset."""
        head = self.read(offset, 48)
        if len(head) < 48:
            return None
        size, magic = _HEAD.unpack_from(head, 0)
        if magic != MAGIC or _LONG.unpack_from(head, 28)[0] != offset or size < 48:
            return None
        record = self.read(offset, size)
        return record if len(record) == size else None

    def windows(
        self, offset: int, *, check_crc: bool = True, torn_from: int | None = None
    ) -> Iterator[Window]:
        """Sound records from an offset on, as far as they go; then end and problem say why.

        Records from torn_from on are examined for sectors that a power cut has taken.
        """
        self.end, self.problem = offset, ""
        while (file := self.at(self.end)) is not None:
            start = self.end
            left = file.start + self.file_bytes - start
            # Sectors count from the beginning of the file, so the buffer begins with one.
            skip = (start - file.start) % SECTOR_BYTES
            size = min(_WINDOW_BYTES, left)
            data = self.read(start - skip, skip + size)
            if not data and self.start > start:
                self.end = self.start
                continue
            position, why = self._scan(data, start - skip, skip, check_crc, torn_from)
            if position == skip and why is Stop.ILLEGAL:
                # The record may be larger than the window.
                size = _INT.unpack_from(data, skip)[0] if len(data) >= skip + 8 else 0
                if len(data) - skip < size <= left:
                    data = self.read(start - skip, skip + size)
                    position, why = self._scan(data, start - skip, skip, check_crc, torn_from)
            summed = self._check_sums(file, data, start - skip, skip, position)
            is_damaged, position = summed < position, summed
            self.end = start - skip + position
            if is_damaged:
                if position > skip:
                    yield Window(memoryview(data)[skip:position], start, self.end)
                self.problem = "the record is not what its sum says"
                return
            if position > skip:
                yield Window(memoryview(data)[skip:position], start, self.end)
                if why is not Stop.BLANK:
                    continue
            left = file.start + self.file_bytes - self.end
            if why is Stop.BLANK:
                size = _INT.unpack_from(data, position)[0]
                if size != left:
                    self.problem = f"a blank record of {size} bytes, {left} are left"
                    return
                self.end = file.start + self.file_bytes
                continue
            self.problem = self._describe(data[skip:])
            return

    def _check_sums(self, file: LogFile, data: bytes, start: int, at: int, end: int) -> int:
        """Where in data the first record begins that is not what its sum says, or end."""
        if self._sums is None or end <= at:
            return end
        if self._sums_of[0] != file.start:
            path = os.path.join(self._sums, file_name(file.start))
            self._sums_of = (file.start, b"")
            if os.path.exists(path):
                self._sums_of = (file.start, read_at(path, 0, os.stat(path).st_size))
        view, base = memoryview(data), start - file.start
        found = sums.check_sums(view, base, at, end, self._sums_of[1])
        if not found.differs:
            return end
        stored_at = found.position + stored_at_position(
            _INT.unpack_from(data, found.position + 36)[0]
        )
        stored_ms = _LONG.unpack_from(data, stored_at)[0]
        if start + found.position >= self.flushed and stored_ms > found.newest_ms:
            self._sums_of = (file.start, b"")  # Another broker went on from here.
            return end
        return found.position

    def _scan(
        self, data: bytes, start: int, at: int, check_crc: bool, torn_from: int | None
    ) -> tuple[int, Stop]:
        if len(data) <= at:
            return at, Stop.ILLEGAL
        torn_at = len(data) if torn_from is None else max(0, torn_from - start)
        position, why, stored_ms = append.scan_records(
            memoryview(data), start, at, len(data), check_crc, torn_at
        )
        if stored_ms >= 0:
            self.last_stored_ms = stored_ms
        return position, why

    def _describe(self, data: bytes) -> str:
        if not data.strip(b"\0"):
            return ""
        try:
            info = decode_dispatch(data, 0, check_crc=True)
        except InvalidRecord as error:
            return f"{error.field} {error.problem}"
        if info is None:
            return "a blank record out of place"
        if info.physical_offset == self.end and info.stored_at_ms > 0:
            return "the end of the record is torn"
        return f"the record says it lies at {info.physical_offset}, stored at {info.stored_at_ms}"

    def sound_record_after(self, offset: int, progress: Progress | None = None) -> int | None:
        """The offset of the first sound record behind a place where there is none."""
        for file in self.files:
            at = max(offset + 1 - file.start, 0)
            while at < self.file_bytes:
                if progress is not None:
                    progress("looking for sound records", file.start + at, self.limit)
                chunk = self.read(file.start + at, _WINDOW_BYTES)
                if len(chunk) < BLANK_SIZE_MIN:
                    break
                place = chunk.find(_MAGIC_BYTES)
                while place >= 0:
                    found = file.start + at + place - 4
                    if found > offset and self._is_sound(found):
                        return found
                    place = chunk.find(_MAGIC_BYTES, place + 1)
                at += max(1, len(chunk) - 3)
                if len(chunk) < _WINDOW_BYTES:
                    break
        return None

    def _is_sound(self, offset: int) -> bool:
        record = self.record(offset)
        if record is None:
            return False
        position, _, _ = append.scan_records(
            memoryview(record), offset, 0, len(record), True, len(record)
        )
        return position == len(record)

    def bytes_behind(self, offset: int) -> int:
        """How many bytes lie between an offset and the last one that is not zero."""
        for file in reversed(self.files):
            if file.start + self.file_bytes <= offset:
                break
            first = max(offset - file.start, 0)
            at = self.file_bytes
            while at > first:
                begin = max(first, at - _WINDOW_BYTES)
                chunk = self.read(file.start + begin, at - begin).rstrip(b"\0")
                if chunk:
                    return file.start + begin + len(chunk) - offset
                at = begin
        return 0

    def is_blank(self, offset: int) -> bool:
        """Whether a blank record lies at an offset."""
        head = self.read(offset, 8)
        return len(head) == 8 and _HEAD.unpack(head)[1] == BLANK_MAGIC


def require_directory(path: str) -> None:
    """StoreUnreadable unless this is a directory that can be listed."""
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.lexists(path) else "does not exist"
        raise StoreUnreadable(path, f"{what}; give the root of a store, such as ~/store")
