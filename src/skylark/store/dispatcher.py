"""Dispatcher: follows the commit log, feeds queues, index and arrivals.

RocketMQ calls it reput. There is one, and it runs the same code after every append, after every
flush, in recovery and on replicas, so that a queue never depends on how a record came into the log.

It goes as far as it is told and no further: with SYNC_FLUSH that is the flushed offset, so that
nobody sees what a power cut could take back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock
from ..errors import InvalidName, InvalidRecord, StoreDamaged
from ..protocol.record import DispatchInfo, decode_dispatch
from . import append
from .append import ENTRY_BYTES, Arrival, QueueCursor, QueueTable, Stop, put_entry, tag_code
from .commit_log import CommitLog
from .consume_queue import ConsumeQueue
from .consume_queue_ext import ConsumeQueueExt, ExtUnit
from .key_index import KeyIndex

logger = logging.getLogger(__name__)


class QueueSource(Protocol):
    """Where the dispatcher gets queues from; they are made when first needed."""

    table: QueueTable
    names: set[tuple[str, int]]

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if need be."""
        ...

    def ext(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """The queue's ext file, if ext files are in use."""
        ...


class Dispatcher:
    """The one follower of the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueSource,
        index: KeyIndex | None,
        clock: Clock,
        delays_ms: tuple[int, ...],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._clock = clock
        self._delays_ms = delays_ms
        self.position = 0  # Records below are in their queues and in the index.
        self.dirty: list[QueueCursor] = []  # Queues with entries that may not be on the disk.
        self.on_arrivals: Callable[[list[Arrival]], None] | None = None
        # The bitmap of filters that a message passes, for ext files.
        self.bitmap_of: Callable[[DispatchInfo], bytes] | None = None
        # Told of every queue in whose entries there is a gap, before the gap is filled.
        self.on_gap: Callable[[ConsumeQueue, int], None] | None = None
        # Every queue of a record below this exists, unless it was deleted; set by recovery.
        self.vouched_end = 0
        self._uses_ext = False

    def use_ext(self) -> None:
        """Write ext units for every entry; the fast path then has nothing to do."""
        self._uses_ext = True

    def catch_up(self) -> None:
        """Dispatch all that is appended; what run() does, without the detours it seldom needs."""
        cursor = self._log.cursor
        at = self.position - cursor.file_start
        buffer = cursor.buffer
        if at >= 0 and buffer is not None and not self._uses_ext:
            arrivals: list[Arrival] = []
            at, stop = append.dispatch_records(
                buffer,
                cursor.file_start,
                at,
                cursor.write_at,
                self._queues.table,
                None if self._index is None else self._index.cursor,
                self._delays_ms,
                self.dirty,
                arrivals,
            )
            self.position = cursor.file_start + at
            if arrivals and self.on_arrivals is not None:
                self.on_arrivals(arrivals)
            if stop is Stop.END:
                return
        self.run(self._log.appended)

    def run(self, until: int) -> None:
        """Dispatch every whole record below an offset.

        A StoreFull on the way leaves the position at the record that found no room; the next call
        takes it up again, so nothing is lost by a full disk.
        """
        arrivals: list[Arrival] = []
        try:
            while self.position < until and self._step(until, arrivals):
                pass
        finally:
            if arrivals and self.on_arrivals is not None:
                self.on_arrivals(arrivals)

    def _step(self, until: int, arrivals: list[Arrival]) -> bool:
        found = self._log.buffer_at(self.position)
        if found is None:
            if self.position < self._log.start:
                logger.warning(
                    "position=%d was dropped by retention before it was dispatched", self.position
                )
                self.position = self._log.start
                return True
            return False
        buffer, at = found
        file_start = self.position - at
        end = min(len(buffer), until - file_start)
        index = None if self._index is None else self._index.cursor
        if self._uses_ext:
            stop = Stop.HANDOVER
        else:
            at, stop = append.dispatch_records(
                buffer, file_start, at, end, self._queues.table, index, self._delays_ms,
                self.dirty, arrivals,
            )  # fmt: skip
            self.position = file_start + at
        if stop is Stop.END:
            return True
        if stop is Stop.HANDOVER:
            return self._dispatch_with_care(buffer[:end], file_start, at, arrivals)
        if stop is Stop.BLANK:
            self.position = file_start + len(buffer)
            return True
        # A replica may have received part of a record. Anyone else has checked it before.
        return False

    def _dispatch_with_care(
        self, buffer: memoryview, file_start: int, at: int, arrivals: list[Arrival]
    ) -> bool:
        """Dispatch one record for which a queue, a file or room must be made first."""
        try:
            info = decode_dispatch(buffer, at)
        except InvalidRecord:
            return False
        if info is None:
            self.position = file_start + self._log.mapped.file_bytes
            return True
        if info.physical_offset != file_start + at:
            raise StoreDamaged(
                f"commit log file {file_start}",
                at,
                f"the record says it lies at {info.physical_offset}",
                "run: skylark store check",
            )
        transaction = info.sys_flag & 0xC
        if transaction in (0x0, 0x8):
            try:
                self._put_entry(info, arrivals)
            except InvalidName as error:
                file = self._log.mapped.at(self.position)
                raise StoreDamaged(
                    "commit log" if file is None else file.path,
                    at,
                    f"the record's {error}",
                    "run: skylark store check",
                ) from error
        if self._index is not None and transaction != 0xC:
            self._index.put(info, self._clock.now_ms())
        self.position += info.size_bytes
        return True

    def _put_entry(self, info: DispatchInfo, arrivals: list[Arrival]) -> None:
        if (
            info.physical_offset < self.vouched_end
            and (info.topic, info.queue_id) not in self._queues.names
        ):
            return
        queue = self._queues.queue(info.topic, info.queue_id)
        cursor = queue.cursor
        at = info.queue_offset * ENTRY_BYTES
        if info.physical_offset + info.size_bytes <= cursor.max_physical:
            return
        if at < cursor.write_at:
            if info.physical_offset < cursor.max_physical:
                return
            # A newer record with a lower offset: the queue was deleted, and made again.
            queue.restart()
        if at > cursor.write_at and queue.mapped.files and self.on_gap is not None:
            self.on_gap(queue, info.queue_offset)
        if at != cursor.write_at or cursor.buffer is None or at + ENTRY_BYTES > cursor.limit:
            queue.make_room(info.queue_offset)
        code = tag_code(info, self._delays_ms)
        ext = self._queues.ext(info.topic, info.queue_id)
        if ext is not None:
            bitmap = b"" if self.bitmap_of is None else self.bitmap_of(info)
            address = ext.put(ExtUnit(code, info.stored_at_ms, bitmap))
            code = code if address is None else address
        put_entry(cursor, info.physical_offset, info.size_bytes, code, self.dirty)
        if cursor.watchers:
            arrivals.append(
                Arrival(
                    info.topic,
                    info.queue_id,
                    info.queue_offset,
                    info.tag_hash,
                    info.stored_at_ms,
                    info.physical_offset,
                    info.size_bytes,
                )
            )
