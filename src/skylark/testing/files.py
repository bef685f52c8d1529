"""SimFiles: a disk in memory that forgets what was not synced.

It behaves as OsFiles does until crash() is called, which returns the disk as a power cut could have
left it. The model is at least as unkind as a journalling file system:

- A page that was written since the file's last sync holds, after the crash, any of the contents it
  had since then, the synced one included; every page chooses for itself. A torn page is a mix of
  two of them, cut between sectors: a disk writes a sector of 512 bytes whole or not at all. With
  pages of one sector, the default, every mix of sectors is among the states. tear_bytes=1 models a
  disk that no one makes, which stops within a sector.
- A creation, removal or rename that was not followed by sync_directory may be undone. Within one
  directory the operations survive in order, so what remains is a prefix.
- A file that was created and never synced may come back empty; one that has grown since its last
  sync may be as short as it was then, or have zeros where a page did not arrive.

Writes go into a mapping behind the disk's back, so they are noticed by comparison: before each
operation of the disk, and whenever observe() is called (after every step of a scripted run, say).

`trace` records every change. replay(trace[:n]) gives the disk as it was after n changes, with all
that is unsynced at that moment, and crash_states() enumerates what a crash there could leave.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ..errors import StoreError, StoreFull, StoreLocked, StoreUnreadable
from ..store.files import DiskSpace, store_error


class DiskChange(NamedTuple):
    """One entry of the trace."""

    kind: str  # make, write, resize, sync, link, unlink, mkdir, rmdir, sync_directory
    path: str  # of the file or directory; for make, write and sync only a label
    inode: int = -1
    at: int = 0
    data: bytes = b""
    size: int = 0


@dataclass
class _Inode:
    """A file's content, whatever names it has."""

    number: int
    live: bytearray  # What mappings write into.
    seen: bytes  # What the disk has noticed so far.
    # Page number -> its contents since the last sync, oldest first: the first is the synced one.
    pending: dict[int, list[bytes]] = field(default_factory=dict)
    is_length_synced: bool = False
    synced_bytes: int = 0  # How long it was when it was last synced; growing files only.
    modified_ms: int = 0


@dataclass
class _Fault:
    operation: str
    pattern: str
    error: int
    skip: int
    times: int | None  # None: for ever.


SECTOR_BYTES = 512  # What a disk writes whole or not at all.

# How a crash decides: of a page (inode, page number) which of its contents is found afterwards, and
# of a directory how many of its unsynced changes survive.
_PageChoice = Callable[[tuple[int, int], list[bytes]], bytes]
_NameChoice = Callable[[str, int], int]


def _newest(_: tuple[int, int], versions: list[bytes]) -> bytes:
    return versions[-1]


def _oldest(_: tuple[int, int], versions: list[bytes]) -> bytes:
    return versions[0]


def _lose(lost: tuple[int, int]) -> _PageChoice:
    return lambda key, versions: versions[0] if key == lost else versions[-1]


def _tear(torn: tuple[int, int], at: int) -> _PageChoice:
    return lambda key, versions: (
        versions[-1][:at] + versions[0][at:] if key == torn else versions[-1]
    )


def _all_names(_: str, count: int) -> int:
    return count


def _no_names(_: str, count: int) -> int:
    return 0


def _keep_names(directory: str, kept: int) -> _NameChoice:
    return lambda where, count: kept if where == directory else count


class SimRegion:
    """A mapped file of a SimFiles."""

    def __init__(self, files: SimFiles, path: str, inode: _Inode, *, writable: bool) -> None:
        self.path = path
        self.size_bytes = len(inode.live)
        self._files = files
        self._inode = inode
        view = memoryview(inode.live)
        self.buffer = view if writable else view.toreadonly()
        files.open_regions += 1

    def reserve(self, end: int) -> None:
        self._files._check("reserve", self.path)
        assert end <= self.size_bytes

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(start, end)] if start < end else []

    def zero(self, start: int, end: int) -> None:
        self.buffer[start:end] = bytes(end - start)

    def populate(self) -> None:
        pass  # Memory is memory.

    def sync(self) -> None:
        self._files._check("sync", self.path)
        self._files._note_writes(self._inode, self.path)
        self._files._apply(DiskChange("sync", self.path, self._inode.number))

    def __del__(self) -> None:
        self._files.open_regions -= 1


class SimGrowingFile:
    """A growing file of a SimFiles."""

    def __init__(self, files: SimFiles, path: str, inode: _Inode) -> None:
        self.path = path
        self._files = files
        self._inode = inode

    def write(self, at: int, content: bytes) -> None:
        self._files._check("write", self.path)
        inode, page_bytes = self._inode, self._files.page_bytes
        end = at + len(content)
        if end > len(inode.seen):
            self._files._take_space(self.path, end - len(inode.seen))
            self._files._apply(DiskChange("resize", self.path, inode.number, size=end))
        first = at - at % page_bytes
        new = inode.seen[first:at] + content + inode.seen[end : end + page_bytes - end % page_bytes]
        for place in range(0, len(new), page_bytes):
            page = bytes(new[place : place + page_bytes])
            if page != inode.seen[first + place : first + place + page_bytes]:
                self._files._apply(
                    DiskChange("write", self.path, inode.number, first + place, page)
                )

    def truncate(self, size_bytes: int) -> None:
        self._files._check("write", self.path)
        if size_bytes != len(self._inode.seen):
            change = DiskChange("resize", self.path, self._inode.number, size=size_bytes)
            self._files._apply(change)

    def sync(self) -> None:
        self._files._check("sync", self.path)
        self._files._apply(DiskChange("sync", self.path, self._inode.number))


class _SimLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimFiles:
    """A disk in memory; see the module."""

    def __init__(
        self,
        *,
        page_bytes: int = 512,
        tear_bytes: int = SECTOR_BYTES,
        capacity_bytes: int = 1 << 40,
        now_ms: Callable[[], int] = lambda: 0,
        map_limit: int = 1024,
        recording: bool = False,
    ) -> None:
        assert page_bytes % SECTOR_BYTES == 0
        assert page_bytes % tear_bytes == 0
        self.page_bytes = page_bytes
        self.tear_bytes = tear_bytes
        self.capacity_bytes = capacity_bytes
        self.foreign_bytes = 0  # Space taken by others; tests move it to fill the disk.
        self.trace: list[DiskChange] = []
        self.open_regions = 0
        self.sync_count = 0
        # Called before every sync with the path: a slow or hanging disk, seen from the caller.
        self.on_sync: Callable[[str], None] | None = None
        # Called after every recorded change, so that a campaign can crash at each in turn.
        self.on_change: Callable[[DiskChange], None] | None = None
        self._now_ms = now_ms
        self._map_limit = map_limit
        self._recording = recording
        self._inodes: dict[int, _Inode] = {}
        self._mapped: set[int] = set()  # Inodes that may be written behind the disk's back.
        self._names: dict[str, int] = {}  # As processes see them.
        self._durable_names: dict[str, int] = {}
        self._directories: set[str] = {"/", "."}
        self._durable_directories: set[str] = {"/", "."}
        # Per directory, the changes of names that its next sync makes durable.
        self._pending_names: dict[str, list[DiskChange]] = {}
        self._faults: list[_Fault] = []
        self._locks: set[str] = set()
        self._next_inode = 0
        self._used_bytes = 0

    # Faults.

    def fail(
        self,
        operation: str,
        pattern: str = "*",
        *,
        error: int = errno.EIO,
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Make an operation on matching paths fail: after skip successes, times times or ever."""
        self._faults.append(_Fault(operation, pattern, error, skip, times))

    def has_faults_left(self) -> bool:
        """Whether a fault that was set has not happened as often as it should."""
        return any(fault.times != 0 for fault in self._faults)

    def heal(self) -> None:
        """Forget all faults that were set."""
        self._faults.clear()

    def flip_bit(self, path: str, at: int, bit: int = 0) -> None:
        """Damage one bit, synced: the medium rotted."""
        inode = self._inode_of(path)
        self._note_writes(inode, path)
        inode.live[at] ^= 1 << bit
        inode.seen = bytes(inode.live)
        for page, versions in inode.pending.items():
            if page == at // self.page_bytes:
                versions[:] = [self._page(inode.seen, page)]

    def overwrite(self, path: str, at: int, content: bytes) -> None:
        """Put bytes there, synced; for tests that garble files."""
        inode = self._inode_of(path)
        self._note_writes(inode, path)
        inode.live[at : at + len(content)] = content
        inode.seen = bytes(inode.live)
        inode.pending.clear()

    def truncate(self, path: str, size_bytes: int) -> None:
        """Cut a file, synced; no mapping of it may be open."""
        inode = self._inode_of(path)
        content = bytes(inode.live)[:size_bytes]
        inode.live, inode.seen = bytearray(content), content
        inode.pending.clear()

    def _check(self, operation: str, path: str) -> None:
        for fault in self._faults:
            if fault.operation == operation and fnmatch.fnmatch(path, fault.pattern):
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times == 0:
                    continue
                if fault.times is not None:
                    fault.times -= 1
                raise self._error(path, operation, fault.error)

    @staticmethod
    def _error(path: str, doing: str, number: int) -> StoreError:
        return store_error(path, doing, OSError(number, os.strerror(number)))

    # The Files protocol.

    def create(self, path: str, size_bytes: int, *, reserve: bool) -> None:
        self.observe()
        self._check("create", path)
        self._require_directory(path)
        if path in self._names:
            raise self._error(path, "create", errno.EEXIST)
        if reserve:
            self._take_space(path, size_bytes)
        number = self._make(path, bytes(size_bytes))
        if reserve:
            self._apply(DiskChange("sync", path, number))
        self._apply(DiskChange("link", path, number))
        if reserve:
            self._apply(DiskChange("sync_directory", os.path.dirname(path)))

    def map(self, path: str, size_bytes: int, *, writable: bool = True) -> SimRegion:
        self._check("map", path)
        inode = self._inode_of(path)
        if len(inode.live) != size_bytes:
            raise StoreUnreadable(path, f"is {len(inode.live)} bytes long, expected {size_bytes}")
        self._mapped.add(inode.number)
        return SimRegion(self, path, inode, writable=writable)

    def grow(self, path: str) -> SimGrowingFile:
        if path not in self._names:
            self.observe()
            self._check("create", path)
            self._require_directory(path)
            self._apply(DiskChange("link", path, self._make(path, b"")))
        return SimGrowingFile(self, path, self._inode_of(path))

    def extend(self, path: str, size_bytes: int) -> None:
        self._check("create", path)
        inode = self._inode_of(path)
        if len(inode.live) < size_bytes:
            self.observe()
            content = bytes(inode.live).ljust(size_bytes, b"\0")
            number = self._make(path, content)
            self._apply(DiskChange("sync", path, number))
            self._apply(DiskChange("link", path, number))
            self._apply(DiskChange("sync_directory", os.path.dirname(path)))

    def read(self, path: str) -> bytes:
        self._check("read", path)
        return bytes(self._inode_of(path).live)

    def replace(self, path: str, content: bytes) -> None:
        draft, backup = f"{path}.tmp", f"{path}.bak"
        self._write_durably(draft, content)
        if self.exists(path):
            self._write_durably(f"{backup}.tmp", self.read(path))
            self.rename(f"{backup}.tmp", backup)
        self.rename(draft, path)
        self.sync_directory(os.path.dirname(path))

    def _write_durably(self, path: str, content: bytes) -> None:
        self.observe()
        self._check("write", path)
        self._require_directory(path)
        number = self._make(path, content)
        self._apply(DiskChange("link", path, number))
        self._check("sync", path)
        self._apply(DiskChange("sync", path, number))

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def size_of(self, path: str) -> int:
        return len(self._inode_of(path).live)

    def modified_ms(self, path: str) -> int:
        self.observe()
        return self._inode_of(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Age a file, as `touch -d` would."""
        self.observe()
        self._inode_of(path).modified_ms = modified_ms

    def list_names(self, path: str) -> list[str]:
        inside = path.rstrip("/") + "/"
        return sorted(
            {
                name[len(inside) :].partition("/")[0]
                for known in (self._names, self._directories)
                for name in known
                if name.startswith(inside) and len(name) > len(inside)
            }
        )

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        self.observe()
        missing = []
        while path and path not in self._directories:
            if path in self._names:
                raise self._error(path, "create directory", errno.EEXIST)
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            self._check("create", directory)
            self._apply(DiskChange("mkdir", directory))
            if durable:
                self._apply(DiskChange("sync_directory", os.path.dirname(directory)))

    def remove(self, path: str) -> None:
        self.observe()
        self._check("remove", path)
        if path in self._names:
            self._apply(DiskChange("unlink", path))

    def remove_directory(self, path: str) -> None:
        self.observe()
        if path in self._directories:
            if self.list_names(path):
                raise self._error(path, "remove directory", errno.ENOTEMPTY)
            self._apply(DiskChange("rmdir", path))

    def rename(self, path: str, target: str) -> None:
        self.observe()
        self._check("rename", path)
        inode = self._inode_of(path)
        # One change in the journal: the old name goes in the same instant.
        self._apply(DiskChange("link", target, inode.number, data=path.encode()))

    def sync_directory(self, path: str) -> None:
        self.observe()
        self._check("sync", path)
        self._apply(DiskChange("sync_directory", path))

    def disk_space(self, path: str) -> DiskSpace:
        used = self._used() + self.foreign_bytes
        return DiskSpace(used_bytes=used, free_bytes=max(0, self.capacity_bytes - used))

    def lock(self, path: str) -> _SimLock:
        if path in self._locks:
            raise StoreLocked(f"{path}: another process has the store open; stop that broker first")
        self._require_directory(path)
        if path not in self._names:
            self._apply(DiskChange("link", path, self._make(path, b"lock")))
        self._locks.add(path)
        return _SimLock(self._locks, path)

    def map_limit(self) -> int:
        return self._map_limit

    # Inside.

    def _require_directory(self, path: str) -> None:
        if os.path.dirname(path) not in self._directories:
            raise self._error(path, "create", errno.ENOENT)

    def _inode_of(self, path: str) -> _Inode:
        try:
            return self._inodes[self._names[path]]
        except KeyError:
            raise self._error(path, "open", errno.ENOENT) from None

    def _used(self) -> int:
        return sum(len(self._inodes[number].live) for number in set(self._names.values()))

    def _take_space(self, path: str, size_bytes: int) -> None:
        if self._used() + self.foreign_bytes + size_bytes > self.capacity_bytes:
            raise StoreFull(f"{path}: no space to create; free disk space")

    def _make(self, path: str, content: bytes) -> int:
        number = self._next_inode
        self._apply(DiskChange("make", path, number, data=content.rstrip(b"\0"), size=len(content)))
        return number

    def _page(self, content: bytes | bytearray, page: int) -> bytes:
        return bytes(content[page * self.page_bytes : (page + 1) * self.page_bytes])

    def observe(self) -> None:
        """Notice what was written into mappings since the last look."""
        for number in sorted(self._mapped):
            inode = self._inodes[number]
            if inode.live != inode.seen:
                names = [path for path, other in self._names.items() if other == number]
                self._note_writes(inode, names[-1] if names else "(unlinked)")

    def _note_writes(self, inode: _Inode, path: str) -> None:
        if inode.live == inode.seen:
            return
        inode.modified_ms = self._now_ms()
        for page in range(-(-len(inode.live) // self.page_bytes)):
            now, before = self._page(inode.live, page), self._page(inode.seen, page)
            if now != before:
                at = page * self.page_bytes
                self._apply(DiskChange("write", path, inode.number, at, now))

    def _apply(self, change: DiskChange) -> None:
        """Every change of the disk passes here, live and in replay."""
        kind, path = change.kind, change.path
        if kind == "make":
            content = change.data.ljust(change.size, b"\0")
            self._inodes[change.inode] = _Inode(
                change.inode, bytearray(content), content, modified_ms=self._now_ms()
            )
            self._next_inode = change.inode + 1
        elif kind == "write":
            inode = self._inodes[change.inode]
            page = change.at // self.page_bytes
            inode.pending.setdefault(page, [self._page(inode.seen, page)]).append(change.data)
            end = change.at + len(change.data)
            inode.seen = inode.seen[: change.at] + change.data + inode.seen[end:]
            inode.live[change.at : end] = change.data
        elif kind == "resize":
            self._resize(self._inodes[change.inode], change.size)
        elif kind == "sync":
            inode = self._inodes[change.inode]
            if self.on_sync is not None:
                self.on_sync(path)
            inode.pending.clear()
            inode.is_length_synced = True
            inode.synced_bytes = len(inode.seen)
            self.sync_count += 1
        elif kind == "sync_directory":
            for pending in self._pending_names.pop(path, []):
                self._rename_in(self._durable_names, self._durable_directories, pending)
        else:
            self._rename_in(self._names, self._directories, change)
            self._pending_names.setdefault(os.path.dirname(path), []).append(change)
        if self._recording:
            self.trace.append(change)
        if self.on_change is not None:
            self.on_change(change)

    def _resize(self, inode: _Inode, size_bytes: int) -> None:
        """Cut or lengthen; until the next sync the bytes that go may come back."""
        before = len(inode.seen)
        if size_bytes < before:
            for page in range(size_bytes // self.page_bytes, -(-before // self.page_bytes)):
                versions = inode.pending.setdefault(page, [self._page(inode.seen, page)])
                at = page * self.page_bytes
                versions.append(inode.seen[at : max(at, size_bytes)])
        inode.seen = inode.seen[:size_bytes].ljust(size_bytes, b"\0")
        inode.live = bytearray(inode.seen)

    @staticmethod
    def _rename_in(names: dict[str, int], directories: set[str], change: DiskChange) -> None:
        if change.kind == "link":
            if change.data:
                names.pop(change.data.decode(), None)
            names[change.path] = change.inode
        elif change.kind == "unlink":
            names.pop(change.path, None)
        elif change.kind == "mkdir":
            directories.add(change.path)
        elif change.kind == "rmdir":
            directories.discard(change.path)

    # Crashes.

    @classmethod
    def replay(cls, trace: Iterable[DiskChange], *, page_bytes: int = 512) -> SimFiles:
        """A disk that has been through these changes; what they did not sync can still be lost."""
        files = cls(page_bytes=page_bytes)
        for change in trace:
            files._apply(change)
        return files

    def apply(self, change: DiskChange) -> None:
        """Let one change of a trace happen here; replay() step by step."""
        self._apply(change)

    def start_recording(self) -> None:
        """Begin a trace here."""
        self._recording = True
        self.trace = []

    def end_process(self) -> None:
        """The process that uses the disk dies: its locks end, unsynced pages stay in memory.

        Unlike kill() this leaves everything unsynced at risk: a power cut may follow.
        """
        self.observe()
        self._locks.clear()

    def all_paths(self) -> list[str]:
        """Every name of a file, sorted."""
        return sorted(self._names)

    def copy(self) -> SimFiles:
        """The same disk after a clean power-down: everything arrived, no process has it open."""
        self.observe()
        return self._after_crash(_newest, _all_names, False)

    def crash(self, rng: random.Random) -> SimFiles:
        """The disk after a power cut now, every choice drawn from rng."""

        self.observe()

        def page(_: tuple[int, int], versions: list[bytes]) -> bytes:
            chosen, other = rng.choice(versions), rng.choice(versions)
            cut = rng.randrange(0, self.page_bytes + self.tear_bytes, self.tear_bytes)
            return chosen[:cut] + other[cut:] if rng.random() < 0.2 else chosen

        return self._after_crash(page, lambda _, count: rng.randint(0, count), rng.random() < 0.5)

    def copy_states(self) -> list[SimFiles]:
        """All crash_states() without their names."""
        return [state for _, state in self.crash_states()]

    def kill(self) -> SimFiles:
        """The disk after the process died and the machine did not: the page cache is intact."""
        return self.copy()

    def crash_states(
        self, *, subsets: int = 8, tears: int = 3, seed: int = 0
    ) -> Iterator[tuple[str, SimFiles]]:
        """What a power cut now could leave: each state with a name that says how it came about."""
        for name, make in self.crash_plans(subsets=subsets, tears=tears, seed=seed):
            yield name, make()

    def crash_plans(
        self, *, subsets: int = 8, tears: int = 3, seed: int = 0
    ) -> list[tuple[str, Callable[[], SimFiles]]]:
        """The same states, each to be made when it is wanted: for those who take a sample."""
        self.observe()
        plans: list[tuple[str, Callable[[], SimFiles]]] = []

        def add(name: str, page: _PageChoice, names: _NameChoice, lengths_lost: bool) -> None:
            plans.append((name, lambda: self._after_crash(page, names, lengths_lost)))

        add("all persisted", _newest, _all_names, False)
        add("all unsynced lost", _oldest, _no_names, True)
        add("pages lost, names kept", _oldest, _all_names, False)
        dirty = [(i.number, page) for i in self._inodes.values() for page in i.pending]
        for lost in dirty:
            add(f"page {lost} lost", _lose(lost), _all_names, False)
        rng = random.Random(seed)
        for torn in dirty:
            for at in self._cuts(tears, rng):
                add(f"page {torn} torn at {at}", _tear(torn, at), _all_names, False)
        for directory, pending in self._pending_names.items():
            for kept in range(len(pending)):
                choice = _keep_names(directory, kept)
                add(f"names of {directory} after {kept} lost", _newest, choice, False)
        for number in range(subsets):
            rng = random.Random(seed * 1000 + number)
            plans.append((f"random subset {number}", partial(self.crash, rng)))
        return plans

    @classmethod
    def from_tree(cls, tree: Mapping[str, bytes], directories: Iterable[str]) -> SimFiles:
        """A disk with these files and directories, all synced."""
        files = cls()
        for directory in sorted(directories):
            files.make_directory(directory)
        for path, content in tree.items():
            files.create(path, len(content), reserve=False)
            files.overwrite(path, 0, content)
        return files.copy()

    def misfit(self, tree: Mapping[str, bytes]) -> str | None:
        """Why files found after a real power cut are none that this disk allows; None if they are.

        For comparing the model with a file system: replay a trace on both, cut the power of one.
        """
        self.observe()
        touched = {
            name
            for pending in self._pending_names.values()
            for change in pending
            for name in (change.path, change.data.decode())
        }
        for path in self._durable_names.keys() - touched - tree.keys():
            return f"{path} is gone, and its name was synced"
        for path, content in tree.items():
            numbers = {self._durable_names.get(path), self._names.get(path)}
            numbers |= {
                change.inode
                for pending in self._pending_names.values()
                for change in pending
                if change.path == path
            }
            inodes = [self._inodes[number] for number in numbers if number in self._inodes]
            if not any(self._may_hold(inode, content) for inode in inodes):
                return f"{path} holds what it never held"
        return None

    def _may_hold(self, inode: _Inode, content: bytes) -> bool:
        """Whether each sector is one that the file has had since its last sync, or lost."""
        if inode.is_length_synced and not inode.pending and len(content) != len(inode.seen):
            return False
        for at in range(0, len(content), SECTOR_BYTES):
            page, within = divmod(at, self.page_bytes)
            versions = inode.pending.get(page, [self._page(inode.seen, page)])
            sector = content[at : at + SECTOR_BYTES]
            held = {v[within : within + SECTOR_BYTES].ljust(len(sector), b"\0") for v in versions}
            if not inode.is_length_synced:
                held.add(bytes(len(sector)))
            if sector not in held:
                return False
        return True

    def _cuts(self, count: int, rng: random.Random) -> list[int]:
        """Where a page may be torn: some places between its sectors, or any."""
        places = range(self.tear_bytes, self.page_bytes, self.tear_bytes)
        return sorted(rng.sample(places, min(count, len(places))))

    def _after_crash(
        self,
        page_of: _PageChoice,
        names_kept: _NameChoice,
        lengths_lost: bool,
    ) -> SimFiles:
        after = SimFiles(
            page_bytes=self.page_bytes,
            tear_bytes=self.tear_bytes,
            capacity_bytes=self.capacity_bytes,
            now_ms=self._now_ms,
            map_limit=self._map_limit,
            recording=self._recording,
        )
        after.foreign_bytes = self.foreign_bytes
        names, directories = dict(self._durable_names), set(self._durable_directories)
        for directory, pending in self._pending_names.items():
            for change in pending[: names_kept(directory, len(pending))]:
                self._rename_in(names, directories, change)
        after._directories = directories
        after._durable_directories = set(directories)
        for number in sorted(set(names.values())):
            inode = self._inodes[number]
            content = bytearray(inode.seen)
            for page, versions in sorted(inode.pending.items()):
                at = page * self.page_bytes
                chosen = page_of((number, page), versions)
                # Shorter where the file has grown since, longer where it was cut.
                held = min(len(content) - at, self.page_bytes)
                if held < 0 and chosen:
                    content.extend(bytes(-held))
                content[at : at + self.page_bytes] = chosen.ljust(held, b"\0")
            if lengths_lost:
                content = content[: inode.synced_bytes if inode.is_length_synced else 0]
            after._inodes[number] = _Inode(
                number,
                content,
                bytes(content),
                is_length_synced=True,
                synced_bytes=len(content),
                modified_ms=inode.modified_ms,
            )
        # A name whose directory did not survive is gone with it.
        alive = {p: n for p, n in names.items() if os.path.dirname(p) in directories}
        after._names, after._durable_names = dict(alive), dict(alive)
        after._next_inode = self._next_inode
        return after
