"""MessageStore: put, get, query, truncate; the engine's front door.

One thread owns a store and calls it; nothing in here waits. What must wait for the disk is handed
out as FlushWork, which any thread may run, and handed back when it is done:

    work = store.begin_flush()        # on the owner's thread
    work.run()                        # anywhere; fdatasync releases the GIL
    store.end_flush(work)             # on the owner's thread

The cursors of a store, in order:

    # dispatched <= visible <= flushed <= committed <= appended      with SYNC_FLUSH
    # dispatched <= visible = committed <= appended                  with ASYNC_FLUSH
    # dispatched <= visible <= agreed, flushed                       as member of a Raft group

Consumers see nothing beyond dispatched. The first flush that fails ends the store as a writer, for
good: after a failed fsync the kernel may have dropped the very pages it could not write, so a
second try that succeeds proves nothing. Reads go on, and a restart recovers from the disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ..clock import Clock
from ..errors import (
    InvalidName,
    InvalidRecord,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from ..model.message import Property
from ..model.queue import PhysicalOffset, QueueOffset
from ..protocol.properties import split_keys
from ..protocol.record import PROPERTIES_BYTES_MAX, decode_dispatch
from . import append
from .append import (
    ENTRY_BYTES,
    Arrival,
    EntriesResult,
    GatherLimits,
    PutEntries,
    PutMessage,
    PutResult,
    PutStatus,
    is_storable,
    message_size,
)
from .checkpoint import Checkpoint, Marks, StoreTimes
from .commit_log import CommitLog
from .config import StoreConfig
from .consume_queue import ConsumeQueue
from .consume_queues import ConsumeQueues
from .dispatcher import Dispatcher
from .files import FileLock, Files, Syncable
from .flush_work import FlushWork
from .key_index import IndexMark, KeyIndex
from .mapped_file import RegionCache
from .reading import CarefulReader, GetResult, GetStatus, MessageFilter, QueryResult, nothing
from .recovery import Progress, RecoveryReport, recover
from .sums import LogSums, sums_directory

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4096


class MessageStore:
    """A store on disk, open in this process."""

    def __init__(self, config: StoreConfig, files: Files, clock: Clock) -> None:
        self.config = config
        self.files = files
        self.clock = clock
        root = config.store_path_root_dir
        self._abort_path = os.path.join(root, "abort")
        self._lock: FileLock | None = None
        self._is_closed = False
        limit = config.mapped_regions_max or files.map_limit()
        self._cache = RegionCache(limit)
        self.log = CommitLog(files, config)
        self.sums = LogSums(files, sums_directory(root)) if config.sums_enable else None
        self.queues = ConsumeQueues(files, self._cache, config, self.log)
        self.queues.visible_end = lambda: min(self.visible_end, self.dispatcher.position)
        self.queues.before_rebuild = lambda: self.checkpoint.distrust_queues(self.log.start)
        self.index: KeyIndex | None = None
        if config.message_index_enable:
            self.index = KeyIndex(
                files,
                self._cache,
                os.path.join(root, "index"),
                slot_count=config.max_hash_slot_num,
                entry_max=config.max_index_num,
                walk_max=config.index_walk_max,
                sums_directory=sums_directory(root) if config.sums_enable else None,
            )
        self.checkpoint = Checkpoint(files, os.path.join(root, "checkpoint"))
        self.dispatcher = Dispatcher(
            self.log, self.queues, self.index, clock, config.delay_levels_ms
        )
        self.dispatcher.dirty = self.queues.dirty
        if config.enable_consume_queue_ext:
            self.dispatcher.use_ext()
        self.recovery = RecoveryReport()
        self.failure: StoreError | None = None  # Why the store stopped writing for good.
        self.is_disk_full = False  # Set and cleared by retention, and by an append without room.
        self.is_replica = False  # Its log is a master's copy: nothing but append_raw() writes.
        # As member of a Raft group: how far the members agree; nothing beyond becomes visible.
        self.agreed: int | None = None
        self.wants_checkpoint = False  # Retention waits for one; a flusher should not take long.
        # Called once when the store ends as a writer, so that nobody waits for a flush in vain.
        self.on_failure: Callable[[StoreError], None] | None = None
        # Called after every append, so that a flusher knows there is something to do.
        self.on_append: Callable[[], None] | None = None
        # Called when the visible end may have moved, so that replicas can be sent more.
        self.on_visible: Callable[[], None] | None = None
        # Called after every append, for a Raft group.
        self.on_grew: Callable[[], None] | None = None
        self._last_stored_ms = 0
        self._flushed_ms = 0
        self._distance = config.memory_distance_bytes
        self._dispatches_at_once = not config.is_sync_flush and not self.log.is_staged
        # Queue flushes under way: their queues count as clean and are not durable yet.
        self._under_way: list[FlushWork] = []

    # Life.

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        files: Files,
        clock: Clock,
        *,
        progress: Progress | None = None,
        is_member: bool = False,
    ) -> Self:
        """Lock, load and recover a store, or make an empty one.

        The store of a member of a Raft group shows at first only what was visible before: what lies
        behind may never have been agreed. More becomes visible by agree().
        """
        store = cls(config, files, clock)
        if is_member:
            assert config.is_sync_flush, "a member counts only what is on its disk"
            store.agreed = 0
        files.make_directory(config.store_path_root_dir)
        # RocketMQ locks after recovery. Two brokers recovering one store would be the end of it.
        store._lock = files.lock(os.path.join(config.store_path_root_dir, "lock"))
        try:
            store._load(progress)
        except BaseException:
            store._release()
            raise
        return store

    def _load(self, progress: Progress | None) -> None:
        self.files.make_directory(self.config.commit_log_directory)
        was_clean = not self.files.exists(self._abort_path)
        self._remove_drafts()
        self.checkpoint.load()
        self.log.load()
        self.queues.load()
        if self.index is not None:
            try:
                self.index.load()
            except StoreDamaged:
                if was_clean:
                    raise
                self.index.discard_unloaded()
        self.recovery = recover(self, was_clean=was_clean, progress=progress)
        self._last_stored_ms = self._flushed_ms = self.checkpoint.times.log_ms
        if not was_clean or self.recovery.built_from < self.recovery.log_end:
            # Marks of the time before would promise what recovery has cut away.
            self.flush()
        logger.info(
            "root=%s open, log %d to %d, %s", self.config.store_path_root_dir, self.log.start,
            self.log.appended, "clean" if was_clean else "recovered from a crash",
        )  # fmt: skip

    def _remove_drafts(self) -> None:
        """Delete files that a crash left half made; see Files.create."""
        for directory in {
            self.config.store_path_root_dir,
            os.path.dirname(self.config.commit_log_directory),
        }:
            for name in self.files.list_names(directory):
                if name.startswith(".new-"):
                    self.files.remove(os.path.join(directory, name))

    def mark_open(self) -> None:
        """Leave the mark that tells the next start of a crash; from here on files may change."""
        if not self.files.exists(self._abort_path):
            self.files.create(self._abort_path, 0, reserve=False)
            self.files.sync_directory(self.config.store_path_root_dir)
        self.checkpoint.open_for_writing()

    def close(self) -> None:
        """Flush everything and leave a clean mark; after a failure, only let go."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.failure is None:
                self.flush(is_final=True)
                if self.dispatcher.position == self.log.appended:
                    self.log.remove_spare()
                    self.files.remove(self._abort_path)
                    self.files.sync_directory(self.config.store_path_root_dir)
        finally:
            self._release()

    def _release(self) -> None:
        self._is_closed = True
        self.log.close()
        if self.sums is not None:
            self.sums.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.checkpoint.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if isinstance(error, AssertionError):
            # What we believe of the files is wrong: leave them to recovery.
            self.fail(StoreClosed(f"a broken invariant: {error}"))
        self.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("the store is closed")

    # Extent.

    @property
    def visible_end(self) -> int:
        """How far the dispatcher may go."""
        if self.agreed is not None:
            # A majority has it on disk, whether or not we do: it stays, and is answered for. What
            # is answered must be seen by whoever asks next.
            return min(self.log.committed, self.agreed)
        return self.log.flushed if self.config.is_sync_flush else self.log.committed

    @property
    def dispatch_lag_bytes(self) -> int:
        """What is in the log and not yet in the queues."""
        return self.log.appended - self.dispatcher.position

    @property
    def is_writable(self) -> bool:
        """Whether a put has a chance."""
        return (
            not self._is_closed
            and self.failure is None
            and not self.is_disk_full
            and not self.is_replica
        )

    @property
    def last_stored_ms(self) -> int:
        """The store time of the newest message, as far as known."""
        return self._last_stored_ms

    # Put.

    def put(self, messages: Sequence[PutMessage]) -> list[PutResult]:
        """Append messages, each by itself; the results are in the same order.

        PUT_OK means appended. With SYNC_FLUSH the caller acknowledges only what wait_flushed() has
        returned for.
        """
        if not self.is_writable:
            self._require_open()
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(messages)
        results: list[PutResult] = []
        stored_at_ms = self.clock.now_ms()
        cursor, table = self.log.cursor, self.queues.table
        stop = len(messages)
        at = append.append_batch(cursor, messages, 0, stop, table, stored_at_ms, results)
        while at < stop:
            refusal = self._make_way(messages[at])
            if refusal is not None:
                results.append(PutResult(refusal))
                at += 1
            at = append.append_batch(cursor, messages, at, stop, table, stored_at_ms, results)
        self._after_append(stored_at_ms)
        return results

    def put_group(self, messages: Sequence[PutMessage]) -> list[PutResult]:
        """Append the messages of one client batch: all in one file, or none."""
        self._require_open()
        if not self.is_writable:
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(messages)
        refusal = None
        total = append.group_size(self.log.cursor, messages, self.queues.table)
        if total < 0:
            total, refusal = self._look_at(messages)
        if refusal is None and total > self.config.mapped_file_size_commit_log - 8:
            refusal = PutStatus.MESSAGE_ILLEGAL
        if refusal is None and not self.log.fits(total):
            refusal = self._roll()
        if refusal is not None:
            return [PutResult(refusal)] * len(messages)
        results: list[PutResult] = []
        stored_at_ms = self.clock.now_ms()
        at = append.append_batch(
            self.log.cursor, messages, 0, len(messages), self.queues.table, stored_at_ms, results
        )
        assert at == len(messages)
        self._after_append(stored_at_ms)
        return results

    def _look_at(self, messages: Sequence[PutMessage]) -> tuple[int, PutStatus | None]:
        """The size of a group's records, and why it is refused; makes the queues it needs."""
        refusal = None
        total = 0
        table, cursor = self.queues.table, self.log.cursor
        for message in messages:
            size = message_size(message)
            total += size
            if refusal is None and not is_storable(cursor, message, size):
                refusal = self._refusal(message)
            if refusal is None and message.queue_id not in table.get(message.topic, {}):
                refusal = self._make_queue(message)
        return total, refusal

    def put_entries(self, batch: PutEntries) -> EntriesResult | None:
        """Append the messages of one client batch as put_group does, in the ordinary case.

        None, and nothing is done, in any other: put_group says what is the matter, or does it.
        """
        if not self.is_writable:
            return None
        stored_at_ms = self.clock.now_ms()
        result = append.append_entries(self.log.cursor, batch, self.queues.table, stored_at_ms)
        if result is not None:
            self._after_append(stored_at_ms)
        return result

    def _make_way(self, message: PutMessage) -> PutStatus | None:
        """Do what kept a message from being appended, or say why it cannot be."""
        refusal = self._refusal(message)
        if refusal is not None:
            return refusal
        if message.queue_id not in self.queues.table.get(message.topic, {}):
            return self._make_queue(message)
        return self._roll()

    def _refusal(self, message: PutMessage) -> PutStatus | None:
        if len(message.properties) > PROPERTIES_BYTES_MAX:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if not is_storable(self.log.cursor, message, message_size(message)):
            return PutStatus.MESSAGE_ILLEGAL
        return None

    def _make_queue(self, message: PutMessage) -> PutStatus | None:
        try:
            self.queues.queue(message.topic, message.queue_id)
        except InvalidName as error:
            logger.info("message refused: %s", error)
            return PutStatus.MESSAGE_ILLEGAL
        return None

    def _roll(self) -> PutStatus | None:
        try:
            self.log.roll()
        except StoreFull as error:
            self._note_full(error)
            return PutStatus.CREATE_MAPEDFILE_FAILED
        return None

    def _note_full(self, error: StoreFull) -> None:
        # Retention looks at the disk every few seconds, and clears this when there is room again.
        if not self.is_disk_full:
            logger.error("no more writes until there is room: %s", error)
        self.is_disk_full = True

    def _after_append(self, stored_at_ms: int) -> None:
        self._last_stored_ms = stored_at_ms
        if self._dispatches_at_once:
            try:
                self.dispatcher.catch_up()
            except StoreFull as error:
                self._note_full(error)
            if self.on_visible is not None:
                self.on_visible()
        if self.on_append is not None:
            self.on_append()
        if self.on_grew is not None:
            self.on_grew()

    def append_raw(
        self, offset: int, data: bytes | memoryview, stored_at_ms: int | None = None
    ) -> None:
        """Append a piece of the master's log, which must continue ours.

        The store time of its last record dates the checkpoint; without it the last one stays.
        """
        self._require_open()
        if self.failure is not None:
            raise StoreClosed(f"the store takes no more writes: {self.failure}")
        if not self.log.mapped.files and self.log.appended != offset:
            self.log.begin_at(offset)
            self.dispatcher.position = offset
            if self.sums is not None:
                self.sums.position = offset
        if offset != self.log.appended:
            raise StoreDamaged(
                self.config.commit_log_directory,
                offset,
                f"the piece does not continue the log, which ends at {self.log.appended}",
                "truncate the log to where both brokers agree",
            )
        self.log.append_raw(data)
        self._after_append(self._last_stored_ms if stored_at_ms is None else stored_at_ms)

    # Dispatch and flush.

    def dispatch(self) -> None:
        """Feed queues and index up to what may be visible."""
        until = self.visible_end
        if self.dispatcher.position < until:
            try:
                self.dispatcher.run(until)
            except StoreFull as error:
                self._note_full(error)  # What was not dispatched will be, once there is room.
            if self.on_visible is not None:
                self.on_visible()

    def agree(self, offset: int) -> None:
        """The members of the group agree on the log up to an offset; it never goes back."""
        assert self.agreed is not None
        if offset > self.agreed:
            self.agreed = offset
            self.dispatch()

    def begin_flush(self) -> FlushWork:
        """The work that makes everything appended so far durable."""
        self.log.commit()
        if self.sums is not None:
            self.sums.advance(self.log, self.log.committed)
        if not self.config.is_sync_flush:
            self.dispatch()  # With the transient pool, a commit is what makes visible.
        return FlushWork(
            [*self.log.unflushed_regions()],
            self.log.committed,
            self._last_stored_ms,
            prepare=self.log.prepare_next_file if self.log.wants_next_file else None,
        )

    def end_flush(self, work: FlushWork) -> None:
        """Take note of a flush that succeeded."""
        assert self.failure is None
        assert work.log_end <= self.log.appended
        self.log.flushed = max(self.log.flushed, work.log_end)
        self._flushed_ms = work.log_ms
        self.checkpoint.note_flushed(self.log.flushed)
        if self.config.is_sync_flush:
            self.dispatch()

    def begin_queue_flush(self, *, thorough: bool, is_final: bool = False) -> FlushWork:
        """The work that makes queues durable: the busy ones, or all with a new checkpoint."""
        # A queue may not be more durable than the log, so the log goes first; and with a commit
        # more may become visible, so it goes before anyone asks which queues are dirty.
        log_work = self.begin_flush() if thorough else None
        least = 0 if thorough else self.config.flush_consume_queue_least_pages * _PAGE_BYTES
        regions: list[Syncable] = []
        directories: list[str] = []
        kept = []
        for cursor in self.queues.dirty:
            assert cursor.owner is not None
            if cursor.write_at - cursor.dirty_from >= least:
                regions += cursor.owner.dirty_regions()
                directories += cursor.owner.unsynced_directories()
            else:
                kept.append(cursor)
        self.queues.dirty[:] = kept
        work = FlushWork(
            regions,
            self.log.flushed,
            self._flushed_ms,
            directories,
            self.files.sync_directory,
        )
        if log_work is not None:
            self.wants_checkpoint = False
            for ext in self.queues.opened_exts():
                regions += ext.dirty_regions()
                directories += ext.mapped.take_unsynced_directory()
            full = []
            if self.index is not None:
                regions += self.index.dirty_regions()
                directories += self.index.take_unsynced_directory()
                full, self.index.full_unsynced = self.index.full_unsynced, []
            if self.sums is not None:
                regions += self.sums.take_unsynced()
                directories += self.sums.take_unsynced_directories()
            work.regions = [*log_work.regions, *regions]
            work.log_end, work.log_ms = log_work.log_end, log_work.log_ms
            times, marks = self._checkpoint_now(work, is_final, [f.start for f in full])
            generation = self.checkpoint.generation
            saving_sums = [] if self.index is None else self.index.saving_sums(full)

            def save() -> None:
                for save_sums in saving_sums:
                    save_sums()
                self.checkpoint.save(times, marks, generation)

            work.save = save
            work.prepare = None if is_final else log_work.prepare
            for other in self._under_way:
                work.regions += other.regions
                work.directories += other.directories
        self._under_way.append(work)
        return work

    def _checkpoint_now(
        self, work: FlushWork, is_final: bool, full: list[int]
    ) -> tuple[StoreTimes, Marks]:
        """What the checkpoint may say once this work is done."""
        before = self.checkpoint.times
        position = self.dispatcher.position
        index_ms = before.index_ms
        mark = IndexMark(0, 1, 0, -1)
        if self.index is not None:
            mark = self.index.mark()
            done = [f for f in self.index.index_files[:-1] if f.start in full]
            if done:
                index_ms = self.index.header(done[-1]).end_ms
            elif is_final:
                index_ms = max(index_ms, mark.end_ms)
        queues_ms = work.log_ms if position >= work.log_end else self._flushed_ms
        return StoreTimes(work.log_ms, queues_ms, index_ms), Marks(
            log_flushed=work.log_end,
            queues_flushed=min(position, work.log_end),
            index=mark,
            queue_count=len(self.queues.names_on_disk()),
            is_clean=is_final,
        )

    def end_queue_flush(self, work: FlushWork) -> None:
        """Take note of a queue flush that succeeded."""
        self._under_way = [other for other in self._under_way if other is not work]
        if work.save is not None:
            self.end_flush(work)

    def flush(self, *, is_final: bool = False) -> None:
        """Make everything durable now, on this thread; for stops, tools and tests."""
        try:
            work = self.begin_flush()
            work.run()
            self.end_flush(work)
            self.dispatch()
            work = self.begin_queue_flush(thorough=True, is_final=is_final)
            work.run()
            self.end_queue_flush(work)
        except StoreError as error:
            self.fail(error)
            raise

    def fail(self, error: StoreError) -> None:
        """End the store as a writer, for good."""
        if self.failure is None:
            self.failure = error
            logger.critical(
                "root=%s takes no more writes: %s; restart the broker once the disk is well",
                self.config.store_path_root_dir, error,
            )  # fmt: skip
            if self.on_failure is not None:
                self.on_failure(error)

    def is_flushed(self, offset: int) -> bool:
        """Whether everything below a physical offset would survive a power cut."""
        return self.log.flushed >= offset

    # Get.

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        filter: MessageFilter | None = None,
        *,
        bulk_bytes: int | None = None,
    ) -> GetResult:
        """The messages of a queue from an offset on, as many as the limits allow.

        With bulk_bytes, that and count_max are the limits, wherever the records lie.
        """
        self._require_open()
        queue = self.queues.get(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        first, last = queue.min_offset, queue.max_offset
        if offset < first:
            return nothing(GetStatus.OFFSET_TOO_SMALL, first, first, last)
        if offset == last:
            return nothing(GetStatus.OFFSET_OVERFLOW_ONE, offset, first, last)
        if offset > last:
            return nothing(GetStatus.OFFSET_OVERFLOW_BADLY, last, first, last)
        found = queue.entries_at(offset)
        if found is None:
            next_offset = queue.next_file_offset(offset)
            return nothing(GetStatus.OFFSET_FOUND_NULL, next_offset, first, last)
        entries, at, end = found
        config = self.config
        if bulk_bytes is not None:
            count_max = max(1, count_max)
            limits = GatherLimits(
                count_max, bulk_bytes, count_max, bulk_bytes, count_max, self._distance
            )
        else:
            limits = GatherLimits(
                max(1, count_max),
                config.max_transfer_bytes_on_message_in_memory,
                config.max_transfer_count_on_message_in_memory,
                config.max_transfer_bytes_on_message_in_disk,
                config.max_transfer_count_on_message_in_disk,
                self._distance,
            )
        # At least 800 entries are looked at, so that a rare tag does not take a pull each.
        end = min(end, at + max(16_000, ENTRY_BYTES * count_max) // ENTRY_BYTES * ENTRY_BYTES)
        if filter is not None and filter.entries_max is not None:
            end = min(end, at + ENTRY_BYTES * filter.entries_max)
        log_end = self.log.committed
        gathered = None
        if filter is None or (filter.entry is None and filter.record is None):
            tags = None if filter is None else filter.tag_hashes
            gathered = append.gather(entries, at, end, self.log.cursor, log_end, tags, limits)
        if gathered is not None:
            chunks, count, size, scanned, last_physical = gathered
            was_removed = False
        else:
            if append.ENTRY.unpack_from(entries, at)[0] < self.log.start:
                # Retention is at work, and has not told the queues yet: nothing is passed over.
                queue.update_min(self.log.start)
                first = queue.min_offset
                if offset < first:
                    return nothing(GetStatus.OFFSET_TOO_SMALL, first, first, last)
            wanted = filter or MessageFilter()
            ext = self.queues.ext(topic, queue_id)
            reader = CarefulReader(self.log, queue, ext, limits, wanted, config.store_path_root_dir)
            try:
                reader.read(offset, entries, at, end)
            except StoreDamaged as error:
                if not self._repair(queue, error):
                    raise
                return self.get(topic, queue_id, offset, count_max, filter, bulk_bytes=bulk_bytes)
            chunks, count, size = reader.chunks, reader.count, reader.total
            scanned, last_physical = reader.scanned, reader.last_physical
            was_removed = reader.was_removed
        if count:
            status = GetStatus.FOUND
        elif was_removed:
            status = GetStatus.MESSAGE_WAS_REMOVING
        else:
            status = GetStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status,
            QueueOffset(offset + scanned),
            QueueOffset(first),
            QueueOffset(last),
            chunks,
            count,
            size,
            log_end - last_physical > self._distance,
        )

    def _repair(self, queue: ConsumeQueue, error: StoreDamaged) -> bool:
        """Build a queue again whose entry does not fit the log; twice would mean the log is bad."""
        if queue.was_rebuilt:
            return False
        logger.error("topic=%s queue=%d is built again: %s", queue.topic, queue.queue_id, error)
        self.queues.rebuild([(queue.topic, queue.queue_id)])
        return True

    def get_by_physical_offset(self, offset: int, size: int | None = None) -> memoryview | None:
        """The record at a physical offset; None if none begins there or it is not visible yet."""
        self._require_open()
        record = self.log.record(offset, size)
        if record is None or offset + len(record) > self.visible_end:
            return None
        return record

    def query(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Messages of a topic that carry a key, stored within a time range, oldest first."""
        self._require_open()
        if self.index is None:
            return QueryResult([], 0, PhysicalOffset(0))
        count_max = min(count_max, self.config.max_msgs_num_batch)
        matches = self.index.query(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        records = []
        for offset in sorted({match.physical_offset for match in matches}):
            record = self.get_by_physical_offset(offset)
            # Hashes collide, and an index may be damaged: the record itself decides.
            if record is not None and _has_key(record, topic, key):
                records.append(record)
        cursor = self.index.cursor
        return QueryResult(records, cursor.end_ms, PhysicalOffset(max(0, cursor.end_physical)))

    # Offsets.

    def min_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The oldest queue offset that can be read; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return QueueOffset(0 if queue is None else queue.min_offset)

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The queue offset after the newest visible message; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return QueueOffset(0 if queue is None else queue.max_offset)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> QueueOffset:
        """The queue offset of the message stored nearest to a time; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return QueueOffset(0)
        return QueueOffset(queue.offset_by_time(time_ms, self.log.stored_at_ms))

    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of one message, or -1."""
        queue = self.queues.get(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        if entry is None:
            return -1
        return self.log.stored_at_ms(entry.physical_offset, entry.size_bytes)

    def earliest_stored_at_ms(self, topic: str, queue_id: int) -> int:
        """The store time of the oldest message that can be read, or -1."""
        return self.stored_at_ms(topic, queue_id, self.min_offset(topic, queue_id))

    # Arrivals.

    def set_on_arrivals(self, callback: Callable[[list[Arrival]], None] | None) -> None:
        """Have messages reported that become visible in watched queues."""
        self.dispatcher.on_arrivals = callback

    def watch(self, topic: str, queue_id: int) -> None:
        """Report arrivals in a queue; calls are counted."""
        self.queues.queue(topic, queue_id).cursor.watchers += 1

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Take back one watch(); a queue that was deleted since is fine."""
        cursor = self.queues.table.get(topic, {}).get(queue_id)
        if cursor is not None and cursor.watchers:
            cursor.watchers -= 1

    # Removal.

    def truncate(self, offset: int) -> None:
        """Give up everything from a physical offset on, durably; it must be a record's begin.

        A replica does this where its log and the master's part. The checkpoint steps back first, so
        that a crash half way ends in a recovery from there.
        """
        self._require_open()
        assert self.log.start <= offset <= self.log.appended
        assert self.agreed is None or offset >= self.agreed, "what was agreed would be cut"
        self.flush()
        marks, times = self.checkpoint.marks, self.checkpoint.times
        assert marks is not None
        stored_ms = max(0, self.log.stored_at_ms(offset) - 1)
        safe_ms = min(times.log_ms, stored_ms)
        self.checkpoint.save(
            StoreTimes(safe_ms, min(times.queues_ms, safe_ms), min(times.index_ms, safe_ms)),
            Marks(
                log_flushed=min(marks.log_flushed, offset),
                queues_flushed=self.log.start,
                index=marks.index,
                queue_count=marks.queue_count,
                is_clean=False,
            ),
        )
        for topic, queue_id in sorted(self.queues.names):
            queue = self.queues.queue(topic, queue_id)
            queue.truncate(offset)
        if self.index is not None:
            self.index.truncate(offset, self.log.stored_at_ms)
        self.log.set_end(offset, flushed=offset)
        if self.sums is not None:
            self.sums.cut(self.log, offset)
        self.dispatcher.position = min(self.dispatcher.position, offset)
        self._last_stored_ms = self._flushed_ms = safe_ms
        self.flush()

    def drop_topic(self, topic: str) -> int:
        """Delete all queues of a topic; its records stay in the log until they expire."""
        dropped = [name for name in self.queues.names if name[0] == topic]
        if dropped:
            # Recovery must neither dispatch the old records again nor miss the queues.
            self.flush()
            for _, queue_id in dropped:
                self.queues.drop(topic, queue_id)
            self.flush()
        return len(dropped)


def _has_key(record: memoryview, topic: str, key: str) -> bool:
    try:
        info = decode_dispatch(record)
    except InvalidRecord:
        return False
    if info is None or info.topic != topic:
        return False
    return key == info.unique_key or key in split_keys(info.properties.get(Property.KEYS))
