"""Checkpoint: how far each kind of file is known to be on the disk.

    checkpoint, 4096 bytes, big-endian
    at    size  field
    0     8     store time up to which the commit log is flushed
    8     8     store time up to which consume queues are flushed
    16    8     store time up to which full index files are flushed
    24    16    used by RocketMQ 5.x, left as it is
    512   104   our marks, copy A
    1024  104   our marks, copy B
    1536  12    physical offset below which the commit log is flushed i64, its CRC-32; written after
                every flush and not synced: a hint that survives the process, not the machine

    marks
    0     8     b"SKYLARK1"
    8     4     version of the store, 1
    12    4     CRC-32 of the version and of what follows
    16    8     sequence number; of two sound copies the higher counts
    24    8     physical offset below which the commit log is flushed
    32    8     physical offset below which every consume queue is flushed
    40    32    index: file name as a number, next entry, end time, end physical offset
    72    4     number of queues
    76    4     1 after a clean stop, else 0
    80    24    the three store times of the head, as they were when this was written

Times alone make recovery read whole files again, so our marks are offsets. They are written in
turn into two sectors, so that a torn write costs the newer copy only. RocketMQ keeps the head and
does not know the marks: when the head has changed since, another program has written, and they are
void.

Nothing in here may be ahead of the disk. See docs/formats/checkpoint.md.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from dataclasses import dataclass, replace

from ..errors import StoreTooNew
from .files import Files, Region
from .key_index import IndexMark

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 4096
STORE_VERSION = 1

_HEAD = struct.Struct(">qqq")
_MARKS = struct.Struct(">qqqqqqqiiqqq")
_PREFIX = struct.Struct(">8siI")
_MAGIC = b"SKYLARK1"
_PLACES = (512, 1024)
_HINT = struct.Struct(">qI")
_HINT_AT = 1536
_SLACK_MS = 3_000  # RocketMQ's safety margin on store times.


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Our own part of the checkpoint."""

    log_flushed: int
    queues_flushed: int
    index: IndexMark
    queue_count: int
    is_clean: bool


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The part that RocketMQ reads and writes."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0

    @property
    def trusted_ms(self) -> int:
        """Messages stored up to here are flushed, in log and queues."""
        return max(0, min(self.log_ms, self.queues_ms) - _SLACK_MS)


class Checkpoint:
    """The checkpoint file, read once and written after every complete flush."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._sequence = 0
        self.times = StoreTimes()
        self.marks: Marks | None = None
        self.flushed_hint = 0
        self._region: Region | None = None
        # The flusher's thread saves, and so may the store's own.
        self._saving = threading.Lock()
        # Marks made before this was last raised may not vouch for queues beyond held_at.
        self.generation = 0
        self._held_at = 0

    def load(self) -> None:
        """Read the file; missing, short or torn counts as knowing nothing."""
        if not self._files.exists(self._path):
            return
        content = self._files.read(self._path)
        if len(content) < CHECKPOINT_BYTES:
            logger.warning("path=%s is short, taken as empty", self._path)
            return
        times = StoreTimes(*_HEAD.unpack_from(content, 0))
        self.times = times
        flushed, crc = _HINT.unpack_from(content, _HINT_AT)
        if zlib.crc32(content[_HINT_AT : _HINT_AT + 8]) == crc:
            self.flushed_hint = flushed
        best = -1
        for place in _PLACES:
            magic, version, crc = _PREFIX.unpack_from(content, place)
            body = content[place + _PREFIX.size : place + _PREFIX.size + _MARKS.size]
            if magic != _MAGIC or _checksum(version, body) != crc:
                continue
            if version > STORE_VERSION:
                raise StoreTooNew(
                    f"{self._path}: written by store version {version}, this is version"
                    f" {STORE_VERSION}; open it with the newer skylark"
                )
            sequence, log, queues, *index, count, clean, t1, t2, t3 = _MARKS.unpack(body)
            if sequence > best:
                best = self._sequence = sequence
                is_ours = StoreTimes(t1, t2, t3) == times
                self.marks = (
                    Marks(
                        log_flushed=log,
                        queues_flushed=queues,
                        index=IndexMark._make(index),
                        queue_count=count,
                        is_clean=clean == 1,
                    )
                    if is_ours
                    else None
                )

    @property
    def log_flushed(self) -> int:
        """The physical offset below which the log was on the disk, as far as is known."""
        return max(0 if self.marks is None else self.marks.log_flushed, self.flushed_hint)

    @property
    def queues_flushed(self) -> int:
        """The physical offset below which every queue was on the disk, as far as is known."""
        return 0 if self.marks is None else self.marks.queues_flushed

    def open_for_writing(self) -> None:
        """Make the file if need be, and map it."""
        exists = self._files.exists(self._path)
        if exists and self._files.size_of(self._path) != CHECKPOINT_BYTES:
            self._files.remove(self._path)
            exists = False
        if not exists:
            self._files.create(self._path, CHECKPOINT_BYTES, reserve=True)
        self._region = self._files.map(self._path, CHECKPOINT_BYTES)
        self._region.reserve(CHECKPOINT_BYTES)

    def note_flushed(self, log_flushed: int) -> None:
        """Leave the hint for whoever opens the store after this process."""
        assert self._region is not None
        packed = log_flushed.to_bytes(8, "big")
        _HINT.pack_into(self._region.buffer, _HINT_AT, log_flushed, zlib.crc32(packed))

    def distrust_queues(self, log_start: int) -> None:
        """Take back, durably, what was said of the queues: they are about to be built again."""
        with self._saving:
            self.generation += 1
            self._held_at = log_start
            if self.marks is not None and self.marks.queues_flushed > log_start:
                marks = replace(self.marks, queues_flushed=log_start, is_clean=False)
                self._write(replace(self.times, queues_ms=0), marks)

    def save(self, times: StoreTimes, marks: Marks, generation: int | None = None) -> None:
        """Write and sync; what it says is on the disk already.

        generation is what it was when the marks were made, if that was a while ago.
        """
        with self._saving:
            if generation is not None and generation != self.generation:
                marks = replace(
                    marks, queues_flushed=min(marks.queues_flushed, self._held_at), is_clean=False
                )
                times = replace(times, queues_ms=0)
            self._write(times, marks)

    def _write(self, times: StoreTimes, marks: Marks) -> None:
        region = self._region
        assert region is not None
        self._sequence += 1
        body = _MARKS.pack(
            self._sequence,
            marks.log_flushed,
            marks.queues_flushed,
            *marks.index,
            marks.queue_count,
            marks.is_clean,
            times.log_ms,
            times.queues_ms,
            times.index_ms,
        )
        place = _PLACES[self._sequence % 2]
        prefix = _PREFIX.pack(_MAGIC, STORE_VERSION, _checksum(STORE_VERSION, body))
        region.buffer[place : place + _PREFIX.size + _MARKS.size] = prefix + body
        _HEAD.pack_into(region.buffer, 0, times.log_ms, times.queues_ms, times.index_ms)
        self.note_flushed(marks.log_flushed)
        region.sync()
        self.times, self.marks = times, marks

    def close(self) -> None:
        """Unmap."""
        self._region = None


def _checksum(version: int, body: bytes) -> int:
    # With the version, so that a damaged one does not pass for a newer one.
    return zlib.crc32(body, zlib.crc32(version.to_bytes(4, "big", signed=True)))
