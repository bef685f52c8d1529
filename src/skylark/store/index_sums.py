"""IndexSums: checksums of index files, beside them.

An index entry has no checksum of its own: with one bit of it wrong, a message is not found, and
nobody notices. Entries are written once, and slots follow from entries, so a checksum of the first
n entries stays true while the file grows.

    sums/index/<name of the index file>, big-endian
    at    size  field
    0     4     b"SKI1"
    4     4     CRC-32 of the bytes 8 to 511
    8     8     store time of the file's first entry
    16    8     physical offset of the file's first entry
    24    4     number of the next entry, n; the sum covers those below
    28    4     CRC-32 of the entries 1 to n - 1
    32    4     number of page sums; 0 until the index file is full
    36    4     CRC-32 of the page sums
    512   4     each page sum: CRC-32 of 8 KiB of the full index file

It is written after the entries are synced and before the checkpoint that vouches for them. A start
verifies the newest file and older ones as far as they are small; a query verifies the pages of a
full file that it touches. What does not fit is built again from the log, or refused by name.
See docs/formats/sums.md.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from ..errors import StoreDamaged, StoreFull, StoreUnreadable
from .append import ENTRY_BYTES
from .files import Files
from .mapped_file import MappedFile

logger = logging.getLogger(__name__)

PAGE_BYTES = 8192  # Above what zlib takes before it lets other threads run.
_MAGIC = b"SKI1"
_PREFIX = struct.Struct(">4sI")
_FIELDS = struct.Struct(">qqiIiI")
_HEAD_BYTES = 512


class IndexSum(NamedTuple):
    """What is known of an index file."""

    begin_ms: int
    begin_physical: int
    index_count: int
    entries_crc: int
    page_sums: bytes


class IndexSums:
    """Writes and reads the sums of index files."""

    def __init__(self, files: Files, directory: str, entries_at: int) -> None:
        self._files = files
        self._directory = directory
        self._entries_at = entries_at
        # File -> number of the next entry and the sum of those before, to go on from there.
        self._running: dict[int, tuple[int, int]] = {}
        self._guards: dict[int, PageGuard | None] = {}

    def path_of(self, file: MappedFile) -> str:
        """The sums of an index file."""
        return os.path.join(self._directory, os.path.basename(file.path))

    # Writing.

    def saving(
        self, file: MappedFile, begin_ms: int, begin_physical: int, index_count: int, is_full: bool
    ) -> Callable[[], None]:
        """What to run once the entries below a number are on the disk; from any thread."""
        buffer, path = file.buffer, self.path_of(file)

        def save() -> None:
            count, crc = self._running.get(file.start, (1, 0))
            if count > index_count:
                count, crc = 1, 0
            first = self._entries_at + ENTRY_BYTES * count
            crc = zlib.crc32(buffer[first : self._entries_at + ENTRY_BYTES * index_count], crc)
            self._running[file.start] = (index_count, crc)
            pages = page_sums(buffer) if is_full else b""
            known = IndexSum(begin_ms, begin_physical, index_count, crc, pages)
            try:
                self._write(path, pack(known))
            except StoreFull as error:
                logger.warning("an index file goes on without its sums: %s", error)
                self._files.remove(path)

        return save

    def _write(self, path: str, content: bytes) -> None:
        is_new = not self._files.exists(path)
        if is_new:
            self._files.make_directory(self._directory, durable=False)
        target = self._files.grow(path)
        target.write(0, content)
        target.sync()
        if is_new:
            for directory in (self._directory, os.path.dirname(self._directory)):
                self._files.sync_directory(directory)

    def forget(self, file: MappedFile) -> None:
        """The index file is deleted, or cut: what was known of it does not hold any more."""
        self._running.pop(file.start, None)
        self._guards.pop(file.start, None)
        self._files.remove(self.path_of(file))

    def others(self, kept: list[MappedFile]) -> list[str]:
        """The names of files that have sums and are not there."""
        names = {os.path.basename(file.path) for file in kept}
        found = self._files.list_names(self._directory)
        return [name for name in found if name.isdigit() and name not in names]

    def remove_others(self, kept: list[MappedFile]) -> None:
        """Delete the sums of files that are not there."""
        for name in self.others(kept):
            self._files.remove(os.path.join(self._directory, name))

    # Reading.

    def read(self, file: MappedFile) -> IndexSum | None:
        """What is known of a file; None where that is nothing, or damaged itself."""
        path = self.path_of(file)
        if not self._files.exists(path):
            return None
        try:
            return parse(self._files.read(path))
        except StoreUnreadable as error:
            logger.warning("the index file is opened without its sums: %s", error)
            return None

    def fits(self, file: MappedFile, *, takes_up: bool = False) -> bool:
        """Whether a file holds what its sum says; true where there is none.

        takes_up lets the next sum go on from here.
        """
        found = self.read(file)
        if found is None:
            return True
        end = self._entries_at + ENTRY_BYTES * found.index_count
        if end > file.size_bytes or found.index_count < 1:
            return False
        begin = struct.unpack_from(">qqq", file.buffer, 0)
        if (begin[0], begin[2]) != (found.begin_ms, found.begin_physical):
            return False
        crc = zlib.crc32(file.buffer[self._entries_at + ENTRY_BYTES : end])
        if crc == found.entries_crc and takes_up:
            self._running[file.start] = (found.index_count, crc)
        if crc == found.entries_crc and found.page_sums:
            return page_sums(file.buffer) == found.page_sums
        return crc == found.entries_crc

    def guard(self, file: MappedFile) -> PageGuard | None:
        """Watches what is read of a full file; None where there are no sums of its pages."""
        if file.start not in self._guards:
            found = self.read(file)
            has_pages = found is not None and bool(found.page_sums)
            self._guards[file.start] = (
                PageGuard(file, found.page_sums) if found is not None and has_pages else None
            )
        return self._guards[file.start]


class PageGuard:
    """Verifies each page of a full index file when it is first read."""

    def __init__(self, file: MappedFile, sums: bytes) -> None:
        self._file = file
        self._sums = sums
        self._verified: set[int] = set()

    def require(self, at: int, size: int) -> None:
        """StoreDamaged unless the bytes are those that were written."""
        for page in range(at // PAGE_BYTES, (at + size - 1) // PAGE_BYTES + 1):
            if page in self._verified:
                continue
            first = page * PAGE_BYTES
            crc = zlib.crc32(self._file.buffer[first : first + PAGE_BYTES])
            if crc.to_bytes(4, "big") != self._sums[4 * page : 4 * page + 4]:
                raise StoreDamaged(
                    self._file.path,
                    first,
                    "is not what was written, and a key may not be found",
                    "stop the broker and run: skylark store rebuild",
                )
            self._verified.add(page)


def page_sums(buffer: memoryview) -> bytes:
    """The sums of all pages of a file."""
    return b"".join(
        zlib.crc32(buffer[at : at + PAGE_BYTES]).to_bytes(4, "big")
        for at in range(0, len(buffer), PAGE_BYTES)
    )


def pack(found: IndexSum) -> bytes:
    """A sums file as it is on the disk."""
    pages = found.page_sums
    fields = _FIELDS.pack(*found[:4], len(pages) // 4, zlib.crc32(pages))
    rest = fields.ljust(_HEAD_BYTES - _PREFIX.size, b"\0")
    return _PREFIX.pack(_MAGIC, zlib.crc32(rest)) + rest + pages


def parse(content: bytes) -> IndexSum | None:
    """What a sums file says; None where it is damaged."""
    if len(content) < _HEAD_BYTES:
        return None
    magic, crc = _PREFIX.unpack_from(content, 0)
    if magic != _MAGIC or zlib.crc32(content[_PREFIX.size : _HEAD_BYTES]) != crc:
        return None
    begin_ms, begin_physical, index_count, entries_crc, page_count, pages_crc = _FIELDS.unpack_from(
        content, _PREFIX.size
    )
    pages = content[_HEAD_BYTES : _HEAD_BYTES + 4 * page_count]
    if zlib.crc32(pages) != pages_crc:
        pages = b""  # The entries are still covered.
    return IndexSum(begin_ms, begin_physical, index_count, entries_crc, pages)
