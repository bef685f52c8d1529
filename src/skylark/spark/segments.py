"""SegmentReader: one range of a queue from the broker's own files, where a task can reach them.

    <storePath>/consumequeue/<topic>/<queue>/<20 digits>   entries: where, how large, which tag
    <storePath>/commitlog/<20 digits>                      the records themselves

docs/formats has both. The files are mapped and only read; records go from there into the columns.
The broker is asked once for each range, for its last message: that says what is visible, and must
be byte for byte what the files have at that place. A log only grows, so what lies before a record
that both have is the same too, and files of another broker, or of a copy that went on by itself,
are noticed.

While a range is read, the broker may delete files: a file that is mapped stays readable, one that
is gone is read over the network, with the network's rules for what is lost. The same for an entry
or record that is not sound here, such as one that shared storage does not show yet.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import BrokerError, ConfigError, InvalidRecord
from ..filter import SqlExpression
from ..model.message import StoredMessage
from ..model.names import check_topic_name
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.hashes import tag_hash
from ..protocol.properties import parse_properties
from ..protocol.record import decode_dispatch
from . import columns
from .cluster import READER_GROUP, Cluster, pull_fields
from .columns import Layout, assembled, expanded, pure_batches
from .offsets import QueueKey, Range
from .options import FilterType, ReadFrom, ReadOptions
from .pulls import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ENTRY = struct.Struct(">qiq")
_RECORD_BYTES_MIN = 91
_FILES_MAPPED_MAX = 2
_RESIDENT_BYTES_MAX = 64 << 20  # Of mapped pages that were read and still count as the worker's.
_ADDRESSES_BELOW = -(2**31)  # Tag codes below are places in the ext file.
_AT_END, _ELSEWHERE, _UNSOUND, _UNUSUAL = range(4)


class OtherStore(ConfigError):
    """The files are not there, or not those of the broker."""


class MappedFolder:
    """Files that are named by the position of their first byte, as one address space."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mapped: list[tuple[int, mmap.mmap]] = []
        self._left = 0  # The position up to which pages were given back.

    def leave(self, position: int) -> None:
        """Give back the pages before a position from time to time; they stay in the page cache."""
        if position - self._left < _RESIDENT_BYTES_MAX:
            return
        for start, mapped in self._mapped:
            if start < position:
                length = min(position - start, len(mapped))
                mapped.madvise(mmap.MADV_DONTNEED, 0, length - length % mmap.PAGESIZE)
        self._left = position

    def at(self, position: int) -> tuple[mmap.mmap, int] | None:
        """The file that holds a position, and where it begins; None if there is none."""
        for start, mapped in self._mapped:
            if start <= position < start + len(mapped):
                return mapped, start
        found = self._map(position)
        if found is None:
            return None
        if len(self._mapped) >= _FILES_MAPPED_MAX:
            self._mapped.pop(0)[1].close()
        self._mapped.append((found[1], found[0]))
        return found

    def _map(self, position: int) -> tuple[mmap.mmap, int] | None:
        try:
            names = os.listdir(self.path)
            starts = [int(name) for name in names if len(name) == 20 and name.isdecimal()]
            start = max((one for one in starts if one <= position), default=None)
            if start is None:
                return None
            path = os.path.join(self.path, f"{start:020d}")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None  # Retention was faster, or there never was one.
        except OSError as error:
            raise OtherStore(
                f"option storePath: {error.filename} on {socket.gethostname()} cannot be read: "
                f"{error.strerror}; let the user of Spark's workers read it, or set "
                "readFrom=network"
            ) from error
        try:
            if os.fstat(descriptor).st_size <= position - start:
                return None
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return mapped, start

    def close(self) -> None:
        """Let go of the files."""
        for _, mapped in self._mapped:
            mapped.close()
        self._mapped.clear()


def store_root(options: ReadOptions, broker: str) -> str:
    """Where the files of a broker lie, as storePath says."""
    assert options.store_path is not None
    if "{broker}" not in options.store_path:
        return options.store_path
    if broker in ("", ".", "..") or not {"/", "\0"}.isdisjoint(broker):
        raise OtherStore(f"option storePath: broker {broker[:64]!r} has no name for a folder")
    return options.store_path.replace("{broker}", broker)


class SegmentReader:
    """Reads one range from files, and over the network what they do not have."""

    def __init__(
        self,
        cluster: Cluster,
        options: ReadOptions,
        layout: Layout,
        schema: pa.Schema,
        wanted: Range,
    ) -> None:
        queue = wanted.queue
        self._cluster = cluster
        self._options = options
        self._layout = layout
        self._schema = schema
        self._range = wanted
        self._root = store_root(options, queue.broker)
        check_topic_name(queue.topic)  # It becomes a path.
        self._queue = MappedFolder(
            os.path.join(self._root, "consumequeue", queue.topic, str(queue.queue_id))
        )
        self._log = MappedFolder(os.path.join(self._root, "commitlog"))
        self._hashes = None if layout.tags is None else frozenset(map(tag_hash, layout.tags))
        self._expression = (
            SqlExpression(options.filter) if options.filter_type is FilterType.SQL92 else None
        )
        self.at = wanted.start  # The next offset.
        self.by_network = 0  # How many offsets were read over the network.

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Everything in the range, in order."""
        try:
            first = self._looked_at(self._visible_from, self._range.end)
            if first > self.at:
                # Lost to retention, or not to be compared: the broker has the last word.
                yield from self._over_network(first)
            while self.at < self._range.end:
                batches = self._looked_at(self._chunk, None)
                if batches is None:
                    yield from self._over_network(self.at + self._options.pull_count)
                else:
                    yield from batches
        finally:
            self._queue.close()
            self._log.close()

    def _looked_at(self, look: Callable[[], T], otherwise: T) -> T:
        """What the files say; where they cannot be read, and need not be, what is said instead."""
        try:
            return look()
        except OtherStore as problem:
            if self._options.read_from is ReadFrom.FILES:
                raise
            logger.warning("%s is read over the network: %s", self._range.queue, problem)
            return otherwise

    def _over_network(self, until: int) -> Iterator[pa.RecordBatch]:
        until = min(until, self._range.end)
        reader = RangeReader(
            self._cluster,
            self._options,
            self._layout,
            self._schema,
            Range(self._range.queue, self.at, self._range.end),
            until=until,
        )
        yield from reader.batches()
        self.by_network += reader.at - self.at
        self.at = reader.at

    # The broker's word.

    def _visible_from(self) -> int:
        """The first offset that the broker has, or the range's end where the network must tell.

        Raises OtherStore where the files are not this broker's.
        """
        queue, last = self._range.queue, self._range.end - 1
        answer = self._cluster.retried(lambda: self._pull_one(last))
        if answer is None:
            return self._range.end
        theirs, first, address = answer
        for name in ("commitlog", "consumequeue"):
            if not os.path.isdir(os.path.join(self._root, name)):
                raise OtherStore(
                    f"option storePath={self._root!r}: there is no {name} on "
                    f"{socket.gethostname()}; give the storePathRootDir of broker {queue.broker}, "
                    "or set readFrom=network"
                )
        ours = self._record(last)
        if ours != theirs:
            what = "is not in them" if ours is None else "is another one there"
            raise OtherStore(
                f"option storePath={self._root!r}: on {socket.gethostname()} these are not the "
                f"files of broker {queue.broker} at {address}, message {last} of {queue} {what}; "
                "give the storePathRootDir of that broker, or set readFrom=network"
            )
        return first

    def _pull_one(self, offset: int) -> tuple[bytes, int, str] | None:
        queue = self._range.queue
        address = self._cluster.broker_address(queue.topic, queue.broker)
        wire = self._cluster.wire(address)
        group = self._options.group or READER_GROUP
        wire.ask(RequestCode.PULL_MESSAGE, pull_fields(queue, offset, 1, 1, group=group))
        answer = wire.answer()
        if answer.code in (
            ResponseCode.PULL_OFFSET_MOVED,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        ):
            return None
        if answer.code != 0:
            raise BrokerError(answer.code, answer.remark, address)
        size = int.from_bytes(answer.body[:4], "big")
        return bytes(answer.body[:size]), int(answer.fields["minOffset"]), address

    def _record(self, offset: int) -> bytes | None:
        """What the files have at an offset."""
        found = self._queue.at(offset * _ENTRY.size)
        if found is None:
            return None
        entries, start = found
        physical, size, _ = _ENTRY.unpack_from(entries, offset * _ENTRY.size - start)
        place = self._log.at(physical)
        if size < _RECORD_BYTES_MIN or place is None:
            return None
        log, log_start = place
        return log[physical - log_start : physical - log_start + size]

    # The files.

    def _chunk(self) -> Iterator[pa.RecordBatch] | None:
        """The next messages of one log file, about pullBytes; None where they are not sound."""
        queue = self._range.queue
        found = self._queue.at(self.at * _ENTRY.size)
        if found is None:
            return None
        entries, start = found
        at = self.at * _ENTRY.size - start
        stop = min(
            len(entries) - len(entries) % _ENTRY.size,
            at + (self._range.end - self.at) * _ENTRY.size,
        )
        if at + _ENTRY.size > stop:
            return None
        place = self._log.at(_ENTRY.unpack_from(entries, at)[0])
        if place is None:
            return None
        log, log_start = place
        self._log.leave(_ENTRY.unpack_from(entries, at)[0])
        why = _UNUSUAL
        if columns._columns is not None:
            try:
                scanned, why, count, built = columns._columns.build_entries(
                    entries, at, stop, self.at, log, log_start, queue.topic.encode(),
                    queue.queue_id, self._layout.built, self._layout.raw_tags, self._hashes,
                    expanded, self._wants_text(), self._options.pull_bytes,
                )  # fmt: skip
            except ValueError:
                return None
            if scanned:
                self.at += scanned
                return (
                    assembled(count, built, queue, self._layout, self._schema)
                    if count
                    else (iter(()))
                )
        if why != _UNUSUAL:
            return None
        scanned, records = gather(
            entries, at, stop, self.at, log, log_start, queue, self._hashes,
            self._options.pull_bytes,
        )  # fmt: skip
        if not scanned:
            return None
        begin, self.at = self.at, self.at + scanned
        return pure_batches(
            records,
            queue=queue,
            start=begin,
            end=self.at,
            layout=self._layout,
            schema=self._schema,
            bytes_max=self._options.pull_bytes,
            wants=self._wants_message(),
        )

    def _wants_text(self) -> Callable[[bytes], bool] | None:
        if self._expression is None:
            return None
        matches = self._expression.matches
        return lambda text: matches(parse_properties(text))

    def _wants_message(self) -> Callable[[StoredMessage], bool] | None:
        if self._expression is None:
            return None
        matches = self._expression.matches
        return lambda message: matches(message.properties)


def gather(
    entries: Any,
    at: int,
    stop: int,
    offset: int,
    log: Any,
    log_start: int,
    queue: QueueKey,
    hashes: frozenset[int] | None,
    bytes_max: int,
) -> tuple[int, bytes]:
    """How many entries were passed, and their records back to back: what the compiled loop does.

    It stops before an entry whose record lies in another file or is not sound.
    """
    scanned = size = 0
    found = []
    while at + _ENTRY.size <= stop and size < bytes_max:
        physical, length, code = _ENTRY.unpack_from(entries, at)
        place = physical - log_start
        if place < 0 or length < _RECORD_BYTES_MIN or place + length > len(log):
            break
        if hashes is None or code < _ADDRESSES_BELOW or _as_i32(code) in hashes:
            record = log[place : place + length]
            if not _is_sound(record, physical, offset + scanned, queue):
                break
            found.append(record)
            size += length
        at += _ENTRY.size
        scanned += 1
    return scanned, b"".join(found)


def _as_i32(code: int) -> int:
    return int((code + 2**31) % 2**32 - 2**31)


def _is_sound(record: bytes, physical: int, offset: int, queue: QueueKey) -> bool:
    try:
        info = decode_dispatch(record)
    except InvalidRecord:
        return False
    return info is not None and (
        info.size_bytes,
        info.physical_offset,
        info.queue_offset,
        info.queue_id,
        info.topic,
    ) == (len(record), physical, offset, queue.queue_id, queue.topic)
