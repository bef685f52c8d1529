"""CommitLog: the one append-only log of all topics.

Records (protocol/record.py) lie one after another in files of fixed size. A record never spans two
files: where the next one would not leave 8 bytes, a blank record fills the file and the next file
begins. See docs/formats/commit-log.md.

    first file kept                                                          last file
    | start ........................... flushed ....... committed ... appended |

    # flushed <= committed <= appended
    flushed    survives a power cut
    committed  is in the mapped file and survives the end of the process; only with the transient
               pool does it differ from appended
    appended   where the next record goes
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
from collections.abc import Sequence

from ..errors import StoreDamaged, StoreFull
from ..protocol.record import BLANK_MAGIC, BLANK_SIZE_MIN, MAGIC, encode_blank, stored_at_position
from . import append
from .append import LogCursor, PutMessage, PutResult, QueueTable, Stop
from .config import StoreConfig
from .files import Files, Region
from .mapped_file import MappedFile, MappedFileQueue, RegionCache, file_name

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">iI")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_MAPS_MAX = 1 << 20  # Log files are few and stay mapped once read.


class CommitLog:
    """Appends records, reads them back, and knows how far they are safe."""

    def __init__(self, files: Files, config: StoreConfig, *, writable: bool = True) -> None:
        self._files = files
        self._file_bytes = config.mapped_file_size_commit_log
        self._writable = writable
        self._warms_files = config.warm_maped_file_enable
        self.mapped = MappedFileQueue(
            files,
            RegionCache(_MAPS_MAX),
            config.commit_log_directory,
            self._file_bytes,
            writable=writable,
        )
        self.cursor: LogCursor = append.LogCursor(
            self._file_bytes, config.max_message_size, config.record_bytes_max
        )
        self.flushed = 0
        self._committed = 0
        # Held while a file is made: the flusher's thread makes the next one ahead of need.
        self._making = threading.Lock()
        self._pool = (
            _StagingPool(config.transient_store_pool_size, self._file_bytes)
            if config.transient_store_pool_enable and not config.is_sync_flush and writable
            else None
        )

    # Extent.

    @property
    def start(self) -> int:
        """The physical offset of the oldest record kept."""
        return self.mapped.start

    @property
    def appended(self) -> int:
        """The physical offset that the next record gets, unless it does not fit in the file."""
        return self.cursor.file_start + self.cursor.write_at

    @property
    def committed(self) -> int:
        """How far readers may read."""
        return self._committed if self._pool is not None else self.appended

    @property
    def is_staged(self) -> bool:
        """Whether records wait in the transient pool until they are committed."""
        return self._pool is not None

    @property
    def pool_free(self) -> int:
        """Buffers of the transient pool that are not in use."""
        return 0 if self._pool is None else self._pool.free_count

    # Opening.

    def load(self) -> None:
        """Find the files, and check that they are what this configuration writes."""
        self.mapped.load()
        files = self.mapped.files
        for file in files:
            size = self._files.size_of(file.path)
            if size == self._file_bytes:
                continue
            if file is files[-1] and size < self._file_bytes and self._writable:
                # What is missing was at the end, so recovery finds the last sound record.
                logger.warning("path=%s is %d bytes long, extended", file.path, size)
                self._files.extend(file.path, self._file_bytes)
                continue
            raise StoreDamaged(
                file.path,
                0,
                f"is {size} bytes long, expected {self._file_bytes}",
                "set mappedFileSizeCommitLog to the size it was written with",
            )
        self._refresh_buffers()

    def set_end(self, end: int, *, flushed: int) -> None:
        """Continue at an offset; what lies behind it is zeroed or deleted, durably.

        Without that, a later crash could bring records back to life that were given up here.
        """
        assert flushed <= end
        # The first file stays even if nothing is left in it: its name is what keeps offsets from
        # beginning at 0 again.
        with self._making:
            # The one made ahead goes first, or a crash in between would leave a hole.
            self.remove_spare()
            self.mapped.remove_after(max(end, self.mapped.start + 1))
        file = self.mapped.at(end)
        if file is not None:
            at = end - file.start
            file.region.reserve(file.size_bytes)
            file.region.zero(at, file.size_bytes)
            file.region.sync()
        self.flushed = flushed
        self._committed = end
        self._write_into(file, end)

    def _write_into(self, file: MappedFile | None, end: int) -> None:
        cursor = self.cursor
        cursor.file_start = end if file is None else file.start
        cursor.write_at = end - cursor.file_start
        if file is None:
            # Between two files, or before the first one: the next append makes it.
            cursor.buffer = None
        elif self._pool is None:
            cursor.buffer = file.buffer
        else:
            cursor.buffer = self._pool.take(file.start)
            if cursor.write_at:
                cursor.buffer[: cursor.write_at] = file.buffer[: cursor.write_at]
        self._refresh_buffers()

    def _refresh_buffers(self) -> None:
        cursor = self.cursor
        files = self.mapped.files
        cursor.first_start = self.mapped.start
        cursor.buffers = [file.buffer if file.is_open else None for file in files]

    # Writing.

    def append(
        self,
        messages: Sequence[PutMessage],
        at: int,
        stop: int,
        queues: QueueTable,
        stored_at_ms: int,
        results: list[PutResult],
    ) -> int:
        """Append messages[at:stop] as far as the file goes; see append.append_batch."""
        return append.append_batch(self.cursor, messages, at, stop, queues, stored_at_ms, results)

    def fits(self, total: int) -> bool:
        """Whether records of so many bytes go into the current file."""
        if self.cursor.buffer is None:
            return False
        return total + BLANK_SIZE_MIN <= self._file_bytes - self.cursor.write_at

    def append_raw(self, data: bytes | memoryview) -> None:
        """Append bytes of another broker's log at the end; they may be part of a record."""
        if self.cursor.buffer is None:
            self._next_file()
        cursor = self.cursor
        assert cursor.buffer is not None
        end = cursor.write_at + len(data)
        if end > self._file_bytes:
            raise StoreDamaged(
                self.mapped.files[-1].path,
                cursor.write_at,
                f"{len(data)} bytes reach beyond the file",
                "check that both brokers use the same mappedFileSizeCommitLog",
            )
        cursor.buffer[cursor.write_at : end] = data
        cursor.write_at = end
        if end == self._file_bytes:
            self.commit()
            self._write_into(None, self.appended)

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at an offset, as a replica's does."""
        assert not self.mapped.files
        start = offset - offset % self._file_bytes
        self.mapped.add(start, reserve=True)
        self.flushed = self._committed = offset
        self._write_into(self.mapped.files[-1], offset)

    def roll(self) -> None:
        """Close the current file with a blank record and go on in the next one.

        The next file exists before the blank record does: with a full disk nothing has changed.
        """
        cursor = self.cursor
        if cursor.buffer is not None:
            with self._making:
                self._make(self.mapped.end)
            left = self._file_bytes - cursor.write_at
            assert left >= BLANK_SIZE_MIN
            blank = encode_blank(left)
            cursor.buffer[cursor.write_at : cursor.write_at + len(blank)] = blank
            cursor.write_at = self._file_bytes
            self.commit()
        self._next_file()

    def _next_file(self) -> None:
        start = self.appended
        self._files.make_directory(self.mapped.directory)
        with self._making:
            self.mapped.add(start, reserve=True)
        self._write_into(self.mapped.files[-1], start)

    def _make(self, start: int) -> None:
        path = os.path.join(self.mapped.directory, file_name(start))
        if not self._files.exists(path):
            self._files.create(path, self._file_bytes, reserve=True)
            if self._warms_files:
                self._files.map(path, self._file_bytes).populate()

    @property
    def wants_next_file(self) -> bool:
        """Whether the next file should be made now; half a file is time enough."""
        return self.cursor.buffer is not None and self.cursor.write_at > self._file_bytes // 2

    def prepare_next_file(self) -> None:
        """Make the next file ahead of need; called from the flusher's thread."""
        try:
            with self._making:
                self._make(self.mapped.end)
        except StoreFull as error:
            # No harm yet: the append that needs the file finds out, if nobody makes room before.
            logger.warning("%s", error)

    def remove_spare(self) -> None:
        """Delete a file made ahead and not used, before a clean stop."""
        path = os.path.join(self.mapped.directory, file_name(self.mapped.end))
        if self.mapped.files and self._files.exists(path):
            self._files.remove(path)
            self._files.sync_directory(self.mapped.directory)

    # Commit and flush.

    def commit(self) -> int:
        """Copy what is staged into the mapped file; return how far the log is committed."""
        if self._pool is None:
            self._committed = self.appended
            return self._committed
        while self._committed < self.appended:
            file = self.mapped.at(self._committed)
            assert file is not None
            staged = self._pool.buffer_of(file.start)
            at = self._committed - file.start
            end = min(self.appended, file.end) - file.start
            if staged is not None:
                file.buffer[at:end] = staged[at:end]
            self._committed = file.start + end
            if end == file.size_bytes:
                self._pool.give_back(file.start)
        return self._committed

    def unflushed_regions(self) -> list[Region]:
        """The regions that hold anything between flushed and committed."""
        return [
            file.region
            for file in self.mapped.files
            if file.end > self.flushed and file.start < self.committed
        ]

    # Reading.

    def buffer_at(self, offset: int) -> tuple[memoryview, int] | None:
        """The buffer of the file that holds an offset, and where in it; None if it is not kept."""
        file = self.mapped.at(offset)
        if file is None:
            return None
        number = (offset - self.mapped.start) // self._file_bytes
        buffer = self.cursor.buffers[number]
        if buffer is None:
            buffer = self.cursor.buffers[number] = file.buffer
        return buffer, offset - file.start

    def read(self, offset: int, size: int) -> memoryview | None:
        """Committed bytes within one file; None where they are not kept."""
        if size < 0 or offset < 0 or offset + size > self.committed:
            return None
        found = self.buffer_at(offset)
        if found is None or found[1] + size > self._file_bytes:
            return None
        buffer, at = found
        return buffer[at : at + size]

    def record(self, offset: int, size: int | None = None) -> memoryview | None:
        """The record that begins at an offset; None if none does.

        Offsets come from clients, so the record must say of itself that it lies here.
        """
        head = self.read(offset, 36)
        if head is None:
            return None
        total, magic = _HEAD.unpack_from(head, 0)
        if magic != MAGIC or _LONG.unpack_from(head, 28)[0] != offset:
            return None
        if size is not None and total != size:
            return None
        return self.read(offset, total)

    def stored_at_ms(self, offset: int, size: int | None = None) -> int:
        """The store time of the record at an offset, or -1."""
        record = self.record(offset, size)
        if record is None:
            return -1
        at = stored_at_position(_INT.unpack_from(record, 36)[0])
        return int(_LONG.unpack_from(record, at)[0])

    def first_stored_at_ms(self, file: MappedFile) -> int:
        """The store time of a file's first record, or -1 where there is no record."""
        total, magic = _HEAD.unpack_from(file.buffer, 0)
        if magic != MAGIC or not 48 < total <= file.size_bytes:
            return -1
        at = stored_at_position(_INT.unpack_from(file.buffer, 36)[0])
        return int(_LONG.unpack_from(file.buffer, at)[0])

    def blank_end(self, offset: int) -> int | None:
        """Where the next file begins, if a blank record lies at an offset."""
        found = self.buffer_at(offset)
        if found is None:
            return None
        buffer, at = found
        if at + BLANK_SIZE_MIN > len(buffer) or _HEAD.unpack_from(buffer, at)[1] != BLANK_MAGIC:
            return None
        return offset - at + self._file_bytes

    def scan(self, start: int, end: int, *, check_crc: bool, torn_from: int) -> tuple[int, int]:
        """Walk sound records from an offset; return where they end, and the last store time.

        Records at or beyond torn_from are examined for lost sectors as well.
        """
        last_stored_ms = -1
        at = start
        while at < end:
            found = self.buffer_at(at)
            if found is None:
                break
            buffer, position = found
            file_start = at - position
            stop_at = min(self._file_bytes, end - file_start)
            position, why, stored_ms = append.scan_records(
                buffer, file_start, position, stop_at, check_crc, torn_from - file_start
            )
            at = file_start + position
            if stored_ms >= 0:
                last_stored_ms = stored_ms
            if why is Stop.BLANK:
                left = _INT.unpack_from(buffer, position)[0]
                if left != self._file_bytes - position:
                    break  # Not a blank record of this place.
                at = file_start + self._file_bytes
            elif why is Stop.ILLEGAL or position < self._file_bytes:
                break
        return at, last_stored_ms

    # Retention.

    def detach_first(self) -> MappedFile:
        """Forget the oldest file, which the caller then deletes; views of it stay readable."""
        assert len(self.mapped) > 1
        file = self.mapped.detach_first()
        self._refresh_buffers()
        return file

    def close(self) -> None:
        """Unmap all."""
        self.cursor.buffer = None
        self.cursor.buffers = []
        self.mapped.close()


class _StagingPool:
    """Anonymous memory that records are staged in, a buffer per file; taken from few, reused."""

    def __init__(self, count: int, file_bytes: int) -> None:
        self._free = [memoryview(mmap.mmap(-1, file_bytes)) for _ in range(count)]
        self._taken: dict[int, memoryview] = {}
        self._file_bytes = file_bytes

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self, file_start: int) -> memoryview:
        buffer = self._taken.get(file_start)
        if buffer is None:
            # Commits run long before the pool is empty; if they stall, memory is the lesser evil.
            buffer = self._free.pop() if self._free else memoryview(mmap.mmap(-1, self._file_bytes))
            self._taken[file_start] = buffer
        return buffer

    def buffer_of(self, file_start: int) -> memoryview | None:
        return self._taken.get(file_start)

    def give_back(self, file_start: int) -> None:
        buffer = self._taken.pop(file_start, None)
        if buffer is not None:
            buffer[:] = bytes(len(buffer))
            self._free.append(buffer)
