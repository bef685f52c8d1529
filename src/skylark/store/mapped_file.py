"""MappedFile and MappedFileQueue: fixed-size files as one address space.

    directory/00000000000000000000     bytes 0 .. size-1
    directory/00000000000000001024     bytes 1024 .. (file size 1024)

A file's name is the offset of its first byte, in at least 20 digits. All files of a queue have the
same size, whatever is in use of the last one; the end of the data is found by reading, not by the
length. See docs/formats/commit-log.md.

Mappings are a limited resource (65,530 a process, and a descriptor each), while a broker may have
100,000 queue files. So a MappedFile opens when it is used, and RegionCache closes those that were
not used for the longest time. Nothing is lost by that: what was written is in the page cache.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from typing import Protocol

from ..errors import StoreDamaged, StoreError
from .files import Files, Region, Syncable

_NAME_DIGITS = 20


def file_name(start: int) -> str:
    """The name of the file that begins at an offset."""
    return f"{start:0{_NAME_DIGITS}d}"


class Cursor(Protocol):
    """Someone who keeps a file's buffer for speed, and must forget it when the file closes."""

    buffer: memoryview | None


class RegionCache:
    """Keeps the number of open regions below a limit, closing those unused for long.

    Second chance instead of strict LRU: a use only sets a flag, which costs the hot path nothing.
    """

    def __init__(self, count_max: int) -> None:
        assert count_max >= 2
        self._count_max = count_max
        self._opened: deque[MappedFile] = deque()

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, file: MappedFile) -> None:
        """Note a file that has just opened; another one may close for it."""
        chances = len(self._opened)
        while len(self._opened) >= self._count_max and chances >= 0:
            oldest = self._opened.popleft()
            if oldest.is_pinned or (oldest.was_used and chances > 0):
                oldest.was_used = False
                self._opened.append(oldest)
                chances -= 1
            else:
                oldest._drop()
        self._opened.append(file)

    def discard(self, file: MappedFile) -> None:
        """Forget a file that closes for another reason."""
        self._opened.remove(file)


class _UnmappedFile:
    """A file with pages that may not be on the disk, though nobody has it open."""

    def __init__(self, files: Files, path: str, size_bytes: int) -> None:
        self._files = files
        self._path = path
        self._size_bytes = size_bytes

    def sync(self) -> None:
        """Open the file for as long as the sync takes; one that was removed needs none."""
        try:
            region = self._files.map(self._path, self._size_bytes, writable=False)
        except StoreError:
            if not self._files.exists(self._path):
                return
            raise
        region.sync()


class MappedFile:
    """One file of fixed size, mapped when it is used."""

    __slots__ = (
        "_cache",
        "_files",
        "_region",
        "_writable",
        "cursor",
        "is_pinned",
        "path",
        "size_bytes",
        "start",
        "was_used",
    )

    def __init__(
        self,
        files: Files,
        cache: RegionCache,
        path: str,
        start: int,
        size_bytes: int,
        writable: bool,
    ) -> None:
        self._files = files
        self._cache = cache
        self._region: Region | None = None
        self._writable = writable
        self.path = path
        self.start = start
        self.size_bytes = size_bytes
        self.was_used = False
        self.is_pinned = False
        self.cursor: Cursor | None = None

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.start + self.size_bytes

    @property
    def is_open(self) -> bool:
        """Whether it is mapped at the moment."""
        return self._region is not None

    @property
    def region(self) -> Region:
        """The mapping, made now if need be."""
        self.was_used = True
        region = self._region
        if region is None:
            region = self._files.map(self.path, self.size_bytes, writable=self._writable)
            self._region = region
            self._cache.add(self)
        return region

    @property
    def syncable(self) -> Syncable:
        """What a flush has to sync: the mapping, or the file itself while it is not mapped.

        A flush of ten thousand queues must not open ten thousand files at once.
        """
        region = self._region
        return _UnmappedFile(self._files, self.path, self.size_bytes) if region is None else region

    @property
    def buffer(self) -> memoryview:
        """All bytes of the file; views of it outlive the file."""
        return self.region.buffer

    def close(self) -> None:
        """Unmap, as soon as nobody holds a view."""
        if self._region is not None:
            self._cache.discard(self)
            self._drop()

    def _drop(self) -> None:
        self._region = None
        if self.cursor is not None:
            self.cursor.buffer = None

    def remove(self) -> None:
        """Delete the file; views that are held stay readable."""
        self.close()
        self._files.remove(self.path)


class MappedFileQueue:
    """Files of one size, each beginning where the one before ends."""

    def __init__(
        self,
        files: Files,
        cache: RegionCache,
        directory: str,
        file_bytes: int,
        *,
        writable: bool = True,
    ) -> None:
        self._files = files
        self._cache = cache
        self._writable = writable
        self.directory = directory
        self.file_bytes = file_bytes
        self.files: list[MappedFile] = []
        self._has_unsynced_names = False

    def __len__(self) -> int:
        return len(self.files)

    @property
    def start(self) -> int:
        """The offset of the first byte kept; 0 when there is no file."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """The offset after the last file."""
        return self.files[-1].end if self.files else 0

    def load(self) -> None:
        """Find the files on disk; StoreDamaged where a name does not belong or one is missing."""
        assert not self.files
        starts = []
        for name in self._files.list_names(self.directory):
            path = os.path.join(self.directory, name)
            if not (name.isascii() and name.isdigit() and len(name) >= _NAME_DIGITS):
                raise StoreDamaged(path, 0, "does not belong here", "move it elsewhere")
            start = int(name)
            if start % self.file_bytes:
                raise StoreDamaged(
                    path,
                    0,
                    f"its name is not a multiple of the file size {self.file_bytes}",
                    "use the file size setting that the store was written with",
                )
            starts.append(start)
        starts.sort()
        for start, following in itertools.pairwise(starts):
            if start + self.file_bytes != following:
                raise StoreDamaged(
                    os.path.join(self.directory, file_name(start + self.file_bytes)),
                    0,
                    f"is missing between its neighbours {start} and {following}",
                    "restore it from a backup, or run: skylark store check",
                )
        self.files = [self._file(start) for start in starts]

    def _file(self, start: int) -> MappedFile:
        path = os.path.join(self.directory, file_name(start))
        return MappedFile(self._files, self._cache, path, start, self.file_bytes, self._writable)

    def at(self, offset: int) -> MappedFile | None:
        """The file that holds an offset, if it is kept."""
        if not self.files:
            return None
        index = (offset - self.files[0].start) // self.file_bytes
        if not 0 <= index < len(self.files):
            return None
        file = self.files[index]
        assert file.start <= offset < file.end
        return file

    def add(self, start: int, *, reserve: bool) -> MappedFile:
        """Create the file that begins at an offset, which follows the last one if there is any."""
        assert start % self.file_bytes == 0
        assert not self.files or start == self.end
        file = self._file(start)
        if not self._files.exists(file.path):
            self._files.create(file.path, self.file_bytes, reserve=reserve)
            self._has_unsynced_names |= not reserve
        self.files.append(file)
        return file

    def doubt_names(self) -> None:
        """After a crash: names that are there may not be durable; the next sync makes sure."""
        self._has_unsynced_names = bool(self.files)

    def take_unsynced_directory(self) -> list[str]:
        """The directory, if a new name in it is not durable yet; it counts as synced then."""
        had, self._has_unsynced_names = self._has_unsynced_names, False
        return [self.directory] if had else []

    def detach_first(self) -> MappedFile:
        """Forget the oldest file, which the caller then deletes."""
        file = self.files.pop(0)
        file.close()
        return file

    def remove_after(self, offset: int) -> int:
        """Delete the files that begin at or after an offset, newest first; return how many."""
        count = 0
        while self.files and self.files[-1].start >= offset:
            self.files.pop().remove()
            count += 1
        if count:
            self._files.sync_directory(self.directory)
        return count

    def close(self) -> None:
        """Unmap all."""
        for file in self.files:
            file.close()
