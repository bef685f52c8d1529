"""Files: the only door to the disk.

Everything the engine does to a disk goes through this protocol, so that OsFiles (the real one) and
testing.SimFiles (memory, with crashes) are interchangeable and pass one contract suite.

Three rules live here and nowhere else:

- Space before mapping. A store into a mapped page without a disk block behind it kills the process
  with SIGBUS when the disk is full. Region.reserve() allocates blocks first and fails with
  StoreFull; nobody writes beyond what is reserved.
- Durable means synced, data and name. Region.sync() covers the bytes, sync_directory() the name.
- OS errors end here: ENOSPC and EDQUOT become StoreFull, everything else StoreUnreadable.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..errors import StoreFull, StoreLocked, StoreUnreadable

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_ZERO_CHUNK = bytes(1 << 20)
_MADV_POPULATE_WRITE = 23


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Room on the file system that holds a path, as an unprivileged process sees it."""

    used_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        """The used share from 0 to 1, rounded up to whole per cent as `df` prints it."""
        total = self.used_bytes + self.free_bytes
        return 0.0 if total == 0 else -(-self.used_bytes * 100 // total) / 100


class Syncable(Protocol):
    """Something with bytes that can be made safe from a power cut."""

    def sync(self) -> None:
        """Return when every byte written so far would survive a power cut; from any thread."""
        ...


class Region(Syncable, Protocol):
    """One file of fixed size, mapped whole.

    A region ends when nobody refers to it any more, and its memory when nobody holds a view of it:
    a view stays good after the region is gone and after the file is removed. So no reader and no
    flush in another thread can meet a closed file.
    """

    path: str
    size_bytes: int
    buffer: memoryview

    def reserve(self, end: int) -> None:
        """Make sure that bytes below end have disk blocks; StoreFull if there is no room."""
        ...

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that may hold something other than zeros, in order."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Fill with zeros, touching only what may hold something else."""
        ...

    def populate(self) -> None:
        """Fault all pages in, so that the first writes need not; from any thread."""
        ...

    def sync(self) -> None:
        """Return when every byte written so far would survive a power cut; from any thread."""
        ...


class GrowingFile(Syncable, Protocol):
    """A file that is written in pieces and not mapped; for what may be lost without harm."""

    path: str

    def write(self, at: int, content: bytes) -> None:
        """Put bytes at a position, lengthening the file where need be."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut or lengthen."""
        ...


def is_zero(region: Region, start: int, end: int) -> bool:
    """Whether a range of a file holds nothing but zeros."""
    return used_end(region, start, end) == start


def used_end(region: Region, start: int, end: int) -> int:
    """The position after the last byte of a range that is not zero; its start where all are."""
    for first, stop in reversed(region.data_ranges(start, end)):
        for step in (1 << 20, 1 << 12):
            # Large steps over what is empty, small ones where something was found. A copy is
            # compared, because views are compared byte by byte.
            for at in reversed(range(first, stop, step)):
                size = min(step, stop - at)
                if bytes(region.buffer[at : at + size]) != _ZERO_CHUNK[:size]:
                    first, stop = at, at + size
                    break
            else:
                break
        else:
            return first + len(bytes(region.buffer[first:stop]).rstrip(b"\0"))
    return start


class FileLock(Protocol):
    """A lock that other processes respect; it ends with the process at the latest."""

    def release(self) -> None:
        """Let the next process have the store."""
        ...


class Files(Protocol):
    """What the engine asks of a disk."""

    def create(self, path: str, size_bytes: int, *, reserve: bool) -> None:
        """Make a file of zeros; with reserve, every block is allocated, else the file is sparse.

        With reserve the file is complete and durable under its name when this returns, and a crash
        in between leaves no file of that name. Without, both are left to sync() and recovery.
        """
        ...

    def map(self, path: str, size_bytes: int, *, writable: bool = True) -> Region:
        """Map an existing file, which must have this size."""
        ...

    def grow(self, path: str) -> GrowingFile:
        """Open a file that grows, empty if it is new."""
        ...

    def extend(self, path: str, size_bytes: int) -> None:
        """Lengthen a file with zeros."""
        ...

    def read(self, path: str) -> bytes:
        """The whole content of a small file."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """Swap a small file's content, durably: old or new after a crash, never a mix.

        The content before is kept beside it with the suffix `.bak`.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether something has this name."""
        ...

    def size_of(self, path: str) -> int:
        """Length in bytes."""
        ...

    def modified_ms(self, path: str) -> int:
        """Wall time of the last change of the content."""
        ...

    def list_names(self, path: str) -> list[str]:
        """Names in a directory, sorted; nothing where there is no directory."""
        ...

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        """Make a directory and those above it, where missing.

        Unless durable is False, they survive a power cut when this returns.
        """
        ...

    def remove(self, path: str) -> None:
        """Unlink a file; absent is fine."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; absent is fine."""
        ...

    def rename(self, path: str, target: str) -> None:
        """Give a file another name; an existing target is replaced."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, removals and renames in a directory survive a power cut."""
        ...

    def disk_space(self, path: str) -> DiskSpace:
        """Room on the file system that holds a path."""
        ...

    def lock(self, path: str) -> FileLock:
        """Take the lock on byte 0, as Java's FileLock does; StoreLocked if another has it."""
        ...

    def map_limit(self) -> int:
        """How many regions may be open at once."""
        ...


@contextlib.contextmanager
def _os_errors(path: str, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise store_error(path, doing, error) from error


def store_error(path: str, doing: str, error: OSError) -> StoreFull | StoreUnreadable:
    """Our exception for one of the operating system's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"{path}: no space to {doing}; free disk space or shorten fileReservedTime"
        )
    return StoreUnreadable(path, f"cannot {doing}: {error.strerror or error}")


class OsRegion:
    """A file mapped shared through the operating system.

    The descriptor stays open: fdatasync on it both writes what the mapping dirtied and reports an
    error that write-back met since, and it releases the GIL, which mmap.flush does not.
    """

    __slots__ = ("_descriptor", "buffer", "path", "reserved", "size_bytes")

    def __init__(self, path: str, descriptor: int, size_bytes: int, *, writable: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.reserved = 0
        self._descriptor = -1  # For __del__, should one of the next steps fail.
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # No reference to the mmap is kept: it unmaps itself when the last view of it dies.
        self.buffer = memoryview(mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, access))
        self._descriptor = os.dup(descriptor)

    def reserve(self, end: int) -> None:
        if end > self.reserved:
            with _os_errors(self.path, "allocate blocks"):
                os.posix_fallocate(self._descriptor, self.reserved, end - self.reserved)
            self.reserved = end

    def zero(self, start: int, end: int) -> None:
        for at, stop in self.data_ranges(start, end):
            while at < stop:
                size = min(stop - at, len(_ZERO_CHUNK))
                if self.buffer[at : at + size] != _ZERO_CHUNK[:size]:
                    self.buffer[at : at + size] = _ZERO_CHUNK[:size]
                at += size

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        # Holes and blocks that were reserved and never written are passed over; where the file
        # system cannot tell, nothing is. All at once: touching the end of a range reads ahead, and
        # what was read ahead counts as data, so asking on the way would lead to the file's end.
        found = []
        at = start
        while at < end:
            try:
                at = os.lseek(self._descriptor, at, os.SEEK_DATA)
                stop = min(end, os.lseek(self._descriptor, at, os.SEEK_HOLE))
            except OSError as error:
                if error.errno == errno.ENXIO:  # No data from here to the end.
                    break
                stop = end
            if at < stop:
                found.append((at, stop))
            at = stop
        return found

    def populate(self) -> None:
        # Through ctypes, because mmap.madvise holds the GIL for what may take seconds. Kernels
        # before 5.14 refuse, and then the pages come when they are written.
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(self.size_bytes), _MADV_POPULATE_WRITE
        )

    @property
    def descriptor(self) -> int:
        """For fdatasync alone, by those who keep this region alive until it is done."""
        return self._descriptor

    def sync(self) -> None:
        with _os_errors(self.path, "flush"):
            os.fdatasync(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class OsGrowingFile:
    """A file that is written by pwrite; its descriptor goes with it."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def write(self, at: int, content: bytes) -> None:
        with _os_errors(self.path, "write"):
            view = memoryview(content)
            while view:
                count = os.pwrite(self._descriptor, view, at)
                view, at = view[count:], at + count

    def truncate(self, size_bytes: int) -> None:
        with _os_errors(self.path, "cut"):
            os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        with _os_errors(self.path, "flush"):
            os.fdatasync(self._descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)


class OsFileLock:
    """An fcntl record lock; the kernel drops it with the process."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            with _held_guard:
                _held_locks.discard(self._path)


# fcntl locks belong to the process, so a second store in this process needs its own check. Closing
# any descriptor of the file would drop the lock, hence nothing else here opens it.
_held_locks: set[str] = set()
_held_guard = threading.Lock()


class OsFiles:
    """The operating system's files."""

    def create(self, path: str, size_bytes: int, *, reserve: bool) -> None:
        if not reserve:
            with self._opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "create") as descriptor:
                os.ftruncate(descriptor, size_bytes)
            return
        # Built beside the directory and moved in, because RocketMQ refuses a store in which a
        # commit log file is short, and that is what a crash inside posix_fallocate leaves.
        directory = os.path.dirname(path)
        draft = os.path.join(os.path.dirname(directory), f".new-{os.path.basename(path)}")
        self.remove(draft)
        try:
            with self._opened(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, "create") as descriptor:
                os.posix_fallocate(descriptor, 0, size_bytes)
                os.fsync(descriptor)
        except BaseException:
            self.remove(draft)  # A half-made gigabyte must not fill the disk further.
            raise
        with _os_errors(path, "create"):
            os.rename(draft, path)
        self.sync_directory(directory)
        self.sync_directory(os.path.dirname(directory))

    def map(self, path: str, size_bytes: int, *, writable: bool = True) -> OsRegion:
        with self._opened(path, os.O_RDWR if writable else os.O_RDONLY, "map") as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise StoreUnreadable(path, "is not a regular file")
            if found.st_size != size_bytes:
                # Mapping past the end would be a SIGBUS waiting to happen.
                raise StoreUnreadable(path, f"is {found.st_size} bytes long, expected {size_bytes}")
            return OsRegion(path, descriptor, size_bytes, writable=writable)

    def grow(self, path: str) -> OsGrowingFile:
        with _os_errors(path, "open"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        return OsGrowingFile(path, descriptor)

    def extend(self, path: str, size_bytes: int) -> None:
        with self._opened(path, os.O_RDWR, "extend") as descriptor:
            size = os.fstat(descriptor).st_size
            if size < size_bytes:
                os.posix_fallocate(descriptor, size, size_bytes - size)
                os.fsync(descriptor)

    def read(self, path: str) -> bytes:
        with _os_errors(path, "read"), open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, content: bytes) -> None:
        draft, backup = f"{path}.tmp", f"{path}.bak"
        self._write_durably(draft, content)
        if self.exists(path):
            # A copy, not a rename: the name itself must never be missing.
            self._write_durably(f"{backup}.tmp", self.read(path))
            self.rename(f"{backup}.tmp", backup)
        self.rename(draft, path)
        self.sync_directory(os.path.dirname(path))

    def _write_durably(self, path: str, content: bytes) -> None:
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "write") as descriptor:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int, doing: str) -> Iterator[int]:
        with _os_errors(path, doing):
            descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size_of(self, path: str) -> int:
        with _os_errors(path, "examine"):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _os_errors(path, "examine"):
            return os.stat(path).st_mtime_ns // 1_000_000

    def list_names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise store_error(path, "list", error) from error

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with _os_errors(directory, "create directory"):
                try:
                    os.mkdir(directory, _DIRECTORY_MODE)
                except FileExistsError:
                    if not os.path.isdir(directory):
                        raise
            if durable:
                self.sync_directory(os.path.dirname(directory) or ".")

    def remove(self, path: str) -> None:
        with _os_errors(path, "remove"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with _os_errors(path, "remove directory"), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def rename(self, path: str, target: str) -> None:
        with _os_errors(path, f"rename to {os.path.basename(target)}"):
            os.replace(path, target)

    def sync_directory(self, path: str) -> None:
        with self._opened(path, os.O_RDONLY | os.O_DIRECTORY, "flush directory") as descriptor:
            os.fsync(descriptor)

    def disk_space(self, path: str) -> DiskSpace:
        with _os_errors(path, "examine"):
            found = os.statvfs(path)
        return DiskSpace(
            used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
            free_bytes=found.f_bavail * found.f_frsize,
        )

    def lock(self, path: str) -> OsFileLock:
        name = os.path.realpath(path)
        with _held_guard:
            if name in _held_locks:
                raise StoreLocked(f"{path}: this process has the store open already")
            with _os_errors(path, "lock"):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.pwrite(descriptor, b"lock", 0)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLocked(
                        f"{path}: another process has the store open; stop that broker first"
                    ) from error
                raise store_error(path, "lock", error) from error
            _held_locks.add(name)
        return OsFileLock(name, descriptor)

    def map_limit(self) -> int:
        # A region costs two descriptors (the mapping keeps its own) and one of the kernel's 65,530
        # maps. Half of the descriptors stay for connections.
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        by_descriptors = 16_384 if soft == resource.RLIM_INFINITY else soft // 4
        return max(64, min(16_384, by_descriptors))
