"""What lies in a store's directory: its geometry, its state, and what can be wrong with it.

Sizes of files are settings, and a store does not say which ones it was written with. They follow
from the files:

    commit log     the distance between two names, or the length of the only file
    consume queue  the length that most files have
    index          40 + 4 S + 20 N bytes; S is where the entry lies that the header speaks of
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...errors import ConfigError, InvalidName, InvalidRecord, StoreUnreadable
from ...model.names import check_topic_name
from ...protocol.hashes import key_hash
from ...protocol.record import decode_dispatch
from .. import files as store_files
from ..append import ENTRY, ENTRY_BYTES, INDEX_HEADER_BYTES, index_keys, restore_slots
from ..config import StoreConfig
from ..files import store_error
from ..key_index import IndexHeader
from .log_reader import LogReader, read_at, require_directory
from .report import StoreState

_HEADER = struct.Struct(">qqqqii")
_KEY = struct.Struct(">iq")
_FLOCK = struct.Struct("hhqqi")
_QUEUE_ID_MAX = 2**31 - 1


def holder_of(root: str) -> int | None:
    """The process that has a store open, if any; the lock itself is not touched."""
    path = os.path.join(root, "lock")
    # Closing any descriptor of the file would drop a lock that this very process has.
    if os.path.realpath(path) in store_files._held_locks:
        return os.getpid()
    if not os.path.exists(path):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise store_error(path, "examine", error) from error
    try:
        if not sys.platform.startswith("linux"):
            return None  # The layout of the question differs; a rebuild takes the lock anyway.
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    except OSError as error:
        raise store_error(path, "examine", error) from error
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else pid


def state_of(root: str) -> StoreState:
    """Whether a store is in use, or how it was left."""
    if holder_of(root) is not None:
        return StoreState.RUNNING
    return StoreState.CRASHED if os.path.exists(os.path.join(root, "abort")) else StoreState.CLEAN


# Queues.


class QueueFiles:
    """The files of one consume queue, read and not mapped."""

    def __init__(self, root: str, topic: str, queue_id: int, file_bytes: int) -> None:
        self.directory = os.path.join(root, "consumequeue", topic, str(queue_id))
        self.topic = topic
        self.queue_id = queue_id
        self.file_bytes = file_bytes
        self.starts = sorted(
            int(name)
            for name in _names(self.directory)
            if name.isascii() and name.isdigit() and len(name) >= 20
        )

    @property
    def start(self) -> int:
        """The byte position of the first entry that has a place."""
        return self.starts[0] if self.starts else 0

    def path_of(self, position: int) -> tuple[str, int]:
        """The file that holds a byte position, and where in it."""
        start = position - position % self.file_bytes
        return os.path.join(self.directory, f"{start:020d}"), position - start

    def read(self, position: int, size: int) -> bytes:
        """Bytes from a position on; fewer where no file holds them."""
        pieces = []
        while size > 0:
            path, at = self.path_of(position)
            if not os.path.exists(path):
                break
            piece = read_at(path, at, min(size, self.file_bytes - at))
            pieces.append(piece)
            if not piece:
                break
            position += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def entries(self, position: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Position and fields of each entry from a position on, blank ones included."""
        step = ENTRY_BYTES * 3_000
        while chunk := self.read(position, step):
            chunk = chunk[: len(chunk) // ENTRY_BYTES * ENTRY_BYTES]
            for number, entry in enumerate(ENTRY.iter_unpack(chunk)):
                yield position + number * ENTRY_BYTES, entry
            if len(chunk) < step:
                return
            position += len(chunk)

    def first_written(self, position: int) -> int | None:
        """The position of the first entry at or behind a position that is not all zeros."""
        for start in self.starts:
            if start + self.file_bytes <= position:
                continue
            path, _ = self.path_of(start)
            for first, stop in _data_ranges(path, max(0, position - start), self.file_bytes):
                content = read_at(path, first, stop - first)
                place = len(content) - len(content.lstrip(b"\0"))
                if place < len(content):
                    found = first + place
                    return start + found - found % ENTRY_BYTES
        return None

    def find_end(self) -> int:
        """The byte position after the last entry; entries are dense, so halving finds it."""
        for start in reversed(self.starts):
            low, high = 0, self.file_bytes // ENTRY_BYTES
            path, _ = self.path_of(start)
            while low < high:
                middle = (low + high) // 2
                entry = read_at(path, middle * ENTRY_BYTES, ENTRY_BYTES)
                if len(entry) == ENTRY_BYTES and _is_written(entry):
                    low = middle + 1
                else:
                    high = middle
            if low:
                return start + low * ENTRY_BYTES
        return self.start


def _data_ranges(path: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that may hold something other than zeros, in pieces."""
    step = 1 << 20
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = start
        while at < end:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA)
                stop = min(end, os.lseek(descriptor, at, os.SEEK_HOLE))
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                stop = end  # The file system cannot tell.
            while at < stop:
                yield at, min(at + step, stop)
                at += step
            at = stop
    finally:
        os.close(descriptor)


def _is_written(entry: bytes) -> bool:
    physical_offset, size, _ = ENTRY.unpack(entry)
    return bool(physical_offset >= 0 and size > 0)


def queues_of(root: str) -> list[tuple[str, int]]:
    """Every queue that has a directory, sorted."""
    found = []
    top = os.path.join(root, "consumequeue")
    for topic in _names(top):
        try:
            check_topic_name(topic)
        except InvalidName:
            continue  # Nobody's queue; the engine passes over it as well.
        found += [
            (topic, int(name))
            for name in _names(os.path.join(top, topic))
            if name.isascii() and name.isdigit() and int(name) <= _QUEUE_ID_MAX
        ]
    return sorted(found)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise store_error(directory, "list", error) from error


# Index.


def index_paths(root: str) -> list[str]:
    """The index files, oldest first."""
    directory = os.path.join(root, "index")
    names = [name for name in _names(directory) if name.isascii() and name.isdigit()]
    return [os.path.join(directory, name) for name in sorted(names, key=int)]


def index_header(path: str) -> IndexHeader:
    """The first 40 bytes of an index file."""
    head = read_at(path, 0, INDEX_HEADER_BYTES)
    if len(head) < INDEX_HEADER_BYTES:
        raise StoreUnreadable(path, "is too short to be an index file")
    return IndexHeader._make(_HEADER.unpack(head))


# Geometry.


def detect_config(
    root: str, *, commit_log: str = "", overrides: Mapping[str, int | str] | None = None
) -> StoreConfig:
    """The settings with which a store was written, found out from its files.

    overrides, by the names of StoreConfig, win over what is found.
    """
    require_directory(root)
    given = dict(overrides or {})
    config = StoreConfig(store_path_root_dir=root, store_path_commit_log=commit_log)
    directory = config.commit_log_directory
    if not os.path.isdir(directory):
        inside = [n for n in _names(root) if os.path.isdir(os.path.join(root, n, "commitlog"))]
        hint = f", such as {os.path.join(root, inside[0])}" if inside else ""
        raise StoreUnreadable(
            directory, f"does not exist; give the root of a store{hint}, or --commit-log DIRECTORY"
        )
    log_bytes = _log_file_bytes(directory)
    if log_bytes is not None:
        given.setdefault("mapped_file_size_commit_log", log_bytes)
    queue_bytes = _queue_file_bytes(root)
    if queue_bytes is not None:
        given.setdefault("mapped_file_size_consume_queue", queue_bytes)
    config = _with(config, given)
    if not {"max_hash_slot_num", "max_index_num"} <= given.keys():
        config = _with(config, {**_index_geometry(config), **given})
    return config


def _with(config: StoreConfig, values: Mapping[str, int | str]) -> StoreConfig:
    return replace(config, **values)  # type: ignore[arg-type]


def _log_file_bytes(directory: str) -> int | None:
    names = [n for n in _names(directory) if n.isascii() and n.isdigit() and len(n) >= 20]
    if not names:
        return None
    starts = sorted(int(name) for name in names)
    sizes = Counter(os.stat(os.path.join(directory, name)).st_size for name in names)
    size = sizes.most_common(1)[0][0]
    if len(starts) > 1:
        size = min(after - before for before, after in itertools.pairwise(starts))
    if size < 256 or any(start % size for start in starts):
        raise ConfigError(
            f"{directory}: the names and lengths of its files fit no file size; give it with"
            " --log-file-bytes"
        )
    return size


def _queue_file_bytes(root: str) -> int | None:
    sizes: Counter[int] = Counter()
    for topic, queue_id in queues_of(root):
        directory = os.path.join(root, "consumequeue", topic, str(queue_id))
        for name in _names(directory):
            sizes[os.stat(os.path.join(directory, name)).st_size] += 1
    for size, _ in sizes.most_common():
        if size and size % ENTRY_BYTES == 0:
            return size
    return None


def _index_geometry(config: StoreConfig) -> dict[str, int]:
    paths = index_paths(config.store_path_root_dir)
    if not paths:
        return {}
    size = Counter(os.stat(path).st_size for path in paths).most_common(1)[0][0]
    default = INDEX_HEADER_BYTES + 4 * config.max_hash_slot_num + 20 * config.max_index_num
    if size == default:
        return {}
    log = LogReader.of(config)
    log.load()
    for path in paths:
        if os.stat(path).st_size == size and (slots := _slot_count(path, size, log)):
            entries = (size - INDEX_HEADER_BYTES - 4 * slots) // ENTRY_BYTES
            return {"max_hash_slot_num": slots, "max_index_num": entries}
    if all(index_header(path).index_count <= 1 for path in paths):
        return {}  # Nothing is in it.
    raise ConfigError(
        f"{paths[0]}: {size} bytes fit several geometries; give --index-slots (maxHashSlotNum) and"
        " --index-entries (maxIndexNum)"
    )


def _slot_count(path: str, size: int, log: LogReader) -> int | None:
    """The number of slots with which the file makes sense."""
    header = index_header(path)
    count = header.index_count
    if count <= 1:
        return None
    content = read_at(path, 0, size)
    for physical_offset, number in ((header.begin_physical, 1), (header.end_physical, count - 1)):
        record = log.record(physical_offset)
        if record is None:
            continue
        try:
            info = decode_dispatch(record)
        except InvalidRecord:
            continue
        assert info is not None
        for key in index_keys(info):
            pattern = _KEY.pack(key_hash(info.topic, key), physical_offset)
            at = content.find(pattern)
            while at >= 0:
                slots, rest = divmod(at - INDEX_HEADER_BYTES - number * ENTRY_BYTES, 4)
                if rest == 0 and slots > 0 and _makes_sense(content, slots, header):
                    return slots
                at = content.find(pattern, at + 1)
    return None


def _makes_sense(content: bytes, slots: int, header: IndexHeader) -> bool:
    end = INDEX_HEADER_BYTES + 4 * slots + ENTRY_BYTES * header.index_count
    if end > len(content) or (len(content) - INDEX_HEADER_BYTES - 4 * slots) % ENTRY_BYTES:
        return False
    used, _ = restore_slots(memoryview(bytearray(content[:end])), slots, header.index_count)
    return used == header.slots_used
