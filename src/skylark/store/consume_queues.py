"""ConsumeQueues: all queues of a store, opened when they are first used.

A broker may have 40,000 queues and use few of them, so a start only lists their directories. A
queue that opens is compared with the log where it ends; one that does not fit is built again, since
it holds nothing that the log does not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

from ..errors import (
    CorruptRecord,
    InvalidName,
    InvalidRecord,
    StoreDamaged,
    StoreError,
    StoreUnreadable,
)
from ..model.names import check_topic_name
from ..protocol.record import DispatchInfo, decode_dispatch
from .append import ENTRY, ENTRY_BYTES, FILLER_SIZE, QueueCursor, QueueTable, put_entry, tag_code
from .commit_log import CommitLog
from .config import StoreConfig
from .consume_queue import ConsumeQueue, ConsumeQueueEntry
from .consume_queue_ext import ConsumeQueueExt, is_address
from .files import Files
from .mapped_file import RegionCache, file_name

logger = logging.getLogger(__name__)

_QUEUE_ID_MAX = 2**31 - 1
_VERIFIED_ENTRIES = 512
_VERIFIED_ENTRIES_OF_MANY = 16  # With thousands of queues to open, a look at the end must do.
_MANY = 1_000


class ConsumeQueues:
    """Finds and opens queues."""

    def __init__(
        self,
        files: Files,
        cache: RegionCache,
        config: StoreConfig,
        log: CommitLog,
        *,
        writable: bool = True,
    ) -> None:
        self._files = files
        self._cache = cache
        self._config = config
        self._log = log
        self._writable = writable
        self.root = os.path.join(config.store_path_root_dir, "consumequeue")
        self._ext_root = os.path.join(config.store_path_root_dir, "consumequeue_ext")
        self._delays_ms = config.delay_levels_ms
        self._exts: dict[tuple[str, int], ConsumeQueueExt] = {}
        self.table: QueueTable = {}  # Open queues only: the hot path looks here.
        self.names: set[tuple[str, int]] = set()  # All queues, open or not.
        self.dirty: list[QueueCursor] = []  # Shared with the dispatcher.
        # How far a queue that is built again may go; the store narrows it to what is visible.
        self.visible_end: Callable[[], int] = lambda: log.committed
        # Called before entries go that the checkpoint may vouch for.
        self.before_rebuild: Callable[[], None] = lambda: None

    def load(self) -> None:
        """List the queues on the disk."""
        for topic in self._files.list_names(self.root):
            try:
                check_topic_name(topic)
            except InvalidName as error:
                logger.warning("path=%s is passed over: %s", self.root, error)
                continue
            for name in self._files.list_names(os.path.join(self.root, topic)):
                if name.isascii() and name.isdigit() and int(name) <= _QUEUE_ID_MAX:
                    self.names.add((topic, int(name)))

    # Access.

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if there is one."""
        cursor = self.table.get(topic, {}).get(queue_id)
        if cursor is not None:
            assert cursor.owner is not None
            return cursor.owner
        return self.queue(topic, queue_id) if (topic, queue_id) in self.names else None

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, opened or made as need be; InvalidName if its topic cannot have one."""
        cursor = self.table.get(topic, {}).get(queue_id)
        if cursor is not None:
            assert cursor.owner is not None
            return cursor.owner
        queue = self._new(topic, queue_id)
        if (topic, queue_id) in self.names:
            try:
                queue.load()
                queue.find_end()
                self._require_files(queue)
                if not self._fits_log(queue):
                    raise StoreDamaged(
                        queue.mapped.directory, queue.cursor.write_at, "does not fit the log", ""
                    )
                if self._writable:
                    queue.remove_before(self._log.start)  # Retention passes closed queues by.
                else:
                    queue.update_min(self._log.start)
            except (StoreDamaged, StoreUnreadable) as error:
                if not self._writable:
                    raise
                return self._build_anew(topic, queue_id, error, until=None)
        self._add(queue)
        return queue

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        check_topic_name(topic)  # It becomes a directory.
        if not 0 <= queue_id <= _QUEUE_ID_MAX:
            raise InvalidName("queue", f"{topic}/{queue_id}", "has an id out of range")
        return ConsumeQueue(
            self._files,
            self._cache,
            self.root,
            topic,
            queue_id,
            self._config.consume_queue_file_bytes,
            writable=self._writable,
        )

    def _add(self, queue: ConsumeQueue) -> None:
        self.table.setdefault(queue.topic, {})[queue.queue_id] = queue.cursor
        self.names.add((queue.topic, queue.queue_id))

    def open_below(self, topic: str, queue_id: int, physical_limit: int) -> None:
        """After a crash: open a queue without the entries of records beyond a physical offset."""
        queue = self._new(topic, queue_id)
        try:
            queue.load()
            queue.drop_unfinished_files()
            if physical_limit > self._log.start:
                self._require_files(queue)
            queue.find_end_below(physical_limit)
            if not self._fits_log(queue, is_cut=True):
                raise StoreDamaged(
                    queue.mapped.directory, queue.cursor.write_at, "does not fit the log", ""
                )
        except (StoreDamaged, StoreUnreadable) as error:
            self._build_anew(topic, queue_id, error, until=physical_limit)
            return
        if queue.was_cut:
            self._note_dirty(queue.cursor, queue.cursor.write_at)
        queue.mapped.doubt_names()
        queue.remove_before(self._log.start)  # A crash may have brought back what retention took.
        self._add(queue)

    def _build_anew(
        self, topic: str, queue_id: int, error: StoreError, *, until: int | None
    ) -> ConsumeQueue:
        """Replace a queue that is damaged by what the log says of it."""
        logger.warning("topic=%s queue=%d is built again: %s", topic, queue_id, error)
        next_offset = self._next_offset_on_disk(topic, queue_id)
        queue = self._new(topic, queue_id)
        self._add(queue)
        self.before_rebuild()
        self._discard_files(topic, queue_id)
        self.rebuild([(topic, queue_id)], until=until)
        if not queue.mapped.files and next_offset > 0:
            # All its messages have expired: the log does not know how far its offsets had come.
            queue.continue_at(next_offset)
            self._note_dirty(queue.cursor, queue.mapped.start)
        return queue

    def _note_dirty(self, cursor: QueueCursor, dirty_from: int) -> None:
        if not cursor.is_dirty:
            cursor.is_dirty = True
            cursor.dirty_from = dirty_from
            self.dirty.append(cursor)

    def _next_offset_on_disk(self, topic: str, queue_id: int) -> int:
        """The offset after the newest entry that a damaged queue may have had, rather too high.

        An offset must not be given out twice; one that is passed over does no harm.
        """
        directory = os.path.join(self.root, topic, str(queue_id))
        file_bytes = self._config.consume_queue_file_bytes
        names = [name for name in self._files.list_names(directory) if name.isdigit()]
        for name in sorted(names, key=int, reverse=True):
            start = int(name)
            try:
                content = self._files.read(os.path.join(directory, name))
            except StoreUnreadable:
                content = b""
            has_expired, end = start > 0, 0
            whole = content[: len(content) // ENTRY_BYTES * ENTRY_BYTES]
            for number, (physical_offset, size, code) in enumerate(ENTRY.iter_unpack(whole), 1):
                is_sound = physical_offset >= 0 and 0 < size < FILLER_SIZE
                if is_sound and physical_offset >= self._log.start:
                    continue  # Of a record that a crash took, or the log would know it.
                if is_sound or size == FILLER_SIZE:
                    has_expired = True
                if (physical_offset, size, code) != (0, 0, 0):
                    end = number
            if has_expired and len(content) != file_bytes:
                return (start + file_bytes) // ENTRY_BYTES  # Nobody knows what was cut off.
            if has_expired:
                return start // ENTRY_BYTES + end
        return 0

    def _require_files(self, queue: ConsumeQueue) -> None:
        """StoreDamaged where a queue has lost its files, or the first of them."""
        directory, start = queue.mapped.directory, queue.mapped.start
        if not queue.mapped.files:
            raise StoreDamaged(directory, 0, "has no files", "")
        # Only retention removes a queue's beginning, and it removes the log's before.
        if start > 0 and self._log.start == 0:
            raise StoreDamaged(directory, start, "begins after the log", "")

    def newest_physical(self, topic: str, queue_id: int) -> int:
        """Where the newest record of a queue ends; the queue is looked at, not opened."""
        queue = self._new(topic, queue_id)
        try:
            queue.load()
            queue.find_end()
        except (StoreDamaged, StoreUnreadable):
            return 0
        finally:
            queue.close()
        return queue.cursor.max_physical

    def ext(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """The queue's ext file; None unless ext files are in use."""
        if not self._config.enable_consume_queue_ext:
            return None
        ext = self._exts.get((topic, queue_id))
        if ext is None:
            ext = ConsumeQueueExt(
                self._files,
                self._cache,
                self._ext_root,
                topic,
                queue_id,
                self._config.mapped_file_size_consume_queue_ext,
                writable=self._writable,
            )
            try:
                ext.load()
            except (StoreDamaged, StoreUnreadable) as error:
                logger.warning("topic=%s queue=%d ext is dropped: %s", topic, queue_id, error)
                self._discard_files_in(os.path.join(self._ext_root, topic, str(queue_id)))
                ext.mapped.files.clear()
                ext.load()
            self._exts[topic, queue_id] = ext
        return ext

    # Checks and repair.

    def _fits_log(self, queue: ConsumeQueue, *, is_cut: bool = False) -> bool:
        """Whether the newest entries are what the log's records say."""
        count = _VERIFIED_ENTRIES if len(self.names) < _MANY else _VERIFIED_ENTRIES_OF_MANY
        first = max(queue.min_offset, queue.max_offset - count)
        return (is_cut or queue.is_zero_after_end()) and all(
            self.entry_fits(queue, offset) for offset in range(first, queue.max_offset)
        )

    def entry_fits(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry and the record it points to agree; true where the log dropped it."""
        found = queue.entries_at(queue_offset)
        if found is None:
            return False
        try:
            entry = ConsumeQueueEntry.decode(found[0], found[1])
        except CorruptRecord:
            return False
        if entry is None or entry.physical_offset < self._log.start:
            return True
        record = self._log.record(entry.physical_offset, entry.size_bytes)
        if record is None:
            return False
        try:
            info = decode_dispatch(record)
        except InvalidRecord:
            return False
        assert info is not None
        return (
            info.topic == queue.topic
            and info.queue_id == queue.queue_id
            and info.queue_offset == queue_offset
            and (
                is_address(entry.tag_code)
                or entry.tag_code == tag_code(info, self._delays_ms)
                # Levels may have been configured differently when it was stored.
                or queue.cursor.is_schedule
            )
        )

    def rebuild(self, keys: Iterable[tuple[str, int]], until: int | None = None) -> None:
        """Build queues again from the log, up to an offset or to its dispatched end."""
        wanted = set(keys)
        self.before_rebuild()
        for topic, queue_id in wanted:
            queue = self.table[topic][queue_id].owner
            assert queue is not None
            queue.restart()
            queue.was_rebuilt = True
        at = self._log.start
        end = self.visible_end() if until is None else until
        while at < end and (found := self._log.buffer_at(at)) is not None:
            buffer, position = found
            try:
                info = decode_dispatch(buffer, position)
            except InvalidRecord as error:
                raise StoreDamaged(
                    os.path.join(self._config.commit_log_directory, file_name(at - position)),
                    position,
                    str(error),
                    f"run: skylark store check {self._config.store_path_root_dir}",
                ) from error
            if info is None:
                at += len(buffer) - position
                continue
            at += info.size_bytes
            if (info.topic, info.queue_id) in wanted and info.sys_flag & 0xC in (0x0, 0x8):
                self._put_again(info)

    def _put_again(self, info: DispatchInfo) -> None:
        queue = self.table[info.topic][info.queue_id].owner
        assert queue is not None
        cursor = queue.cursor
        at = info.queue_offset * ENTRY_BYTES
        if at < cursor.write_at:
            queue.restart()  # It was deleted here, and made again.
        if at != cursor.write_at or cursor.buffer is None or at + ENTRY_BYTES > cursor.limit:
            queue.make_room(info.queue_offset)
        put_entry(
            cursor,
            info.physical_offset,
            info.size_bytes,
            tag_code(info, self._delays_ms),
            self.dirty,
        )

    # Removal.

    def drop(self, topic: str, queue_id: int) -> None:
        """Delete a queue: its offsets begin at 0 when it is used again."""
        if (topic, queue_id) not in self.names:
            return
        cursor = self.table.get(topic, {}).pop(queue_id, None)
        if cursor is not None:
            cursor.buffer = None
            if cursor.is_dirty:
                self.dirty.remove(cursor)
            assert cursor.owner is not None
            cursor.owner.close()
        if not self.table.get(topic):
            self.table.pop(topic, None)
        self._discard_files(topic, queue_id)
        self.names.discard((topic, queue_id))
        ext = self._exts.pop((topic, queue_id), None)
        if ext is not None:
            ext.destroy()

    def _discard_files(self, topic: str, queue_id: int) -> None:
        self._discard_files_in(os.path.join(self.root, topic, str(queue_id)))

    def _discard_files_in(self, directory: str) -> None:
        if not self._files.exists(directory):
            return
        for name in reversed(self._files.list_names(directory)):
            self._files.remove(os.path.join(directory, name))
        self._files.sync_directory(directory)
        self._files.remove_directory(directory)
        self._files.sync_directory(os.path.dirname(directory))

    def names_on_disk(self) -> set[tuple[str, int]]:
        """The queues that have files; one without a message has none yet."""
        return {
            (topic, queue_id)
            for topic, queue_id in self.names
            if (cursor := self.table.get(topic, {}).get(queue_id)) is None
            or cursor.owner is None
            or cursor.owner.mapped.files
        }

    def opened(self) -> list[ConsumeQueue]:
        """The queues that are open."""
        return [
            cursor.owner
            for by_id in self.table.values()
            for cursor in by_id.values()
            if cursor.owner is not None
        ]

    def opened_exts(self) -> list[ConsumeQueueExt]:
        """The ext files that are open."""
        return list(self._exts.values())

    def close(self) -> None:
        """Unmap all."""
        for queue in self.opened():
            queue.close()
        for ext in self._exts.values():
            ext.close()
