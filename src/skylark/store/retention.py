"""Retention: which files may go: age, disk space.

Messages are never deleted one by one. The log drops whole files from its old end, queues and index
follow, whatever has been consumed. Two separate duties, so that neither waits for the other:

    look()    every few seconds: measures the disk, and refuses or allows writes. Never deletes.
    clean()   deletes at most a few files; in the background with a pause after each.

    used space        what happens
    > 75 %            expired files go at once, not only in the hours of deleteWhen
    > 85 %            the oldest files go even if not expired
    > 90 %            writes are refused, until there is room again

On a large disk 90 % may leave plenty, so diskSpaceAmpleBytes can say how much free space makes the
ratios irrelevant; diskSpaceReserveBytes refuses writes below so many bytes whatever the ratio.

A file that still holds a delayed or half message someone must deliver is kept when it expires. Only
a full disk overrules that, and then it is logged and counted as what it is: loss.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..clock import Clock
from ..errors import StoreError, StoreUnreadable
from .config import StoreConfig
from .files import DiskSpace
from .mapped_file import MappedFile
from .message_store import MessageStore

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_MANUAL_RUNS = 20


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """What the space on the disk asks for."""

    cleans_expired: bool
    cleans_forcibly: bool
    refuses_writes: bool


@dataclass(slots=True)
class RetentionFigures:
    """What an operator wants to know of retention."""

    used_ratio: float = 0.0
    free_bytes: int = 0
    files_removed: int = 0
    forced_removals: int = 0
    protected_removals: int = 0  # Forced, and undelivered messages went with them.
    expiring_bytes: int = 0  # Log that expires soon.
    expiring_unconsumed_bytes: int = 0  # Of that, what some group has not read yet.


class Retention:
    """Deletes what is old, and keeps the disk from filling up."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        *,
        undelivered_from: Callable[[], int | None] = lambda: None,
        unconsumed_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Callbacks give a physical offset: of the oldest delayed or half message that is still to
        be delivered, and of the oldest message that some group has not consumed."""
        self._store = store
        self._clock = clock
        self._config = store.config
        self._undelivered_from = undelivered_from
        self._unconsumed_from = unconsumed_from
        self._manual_runs = 0
        self._is_time = False
        self.figures = RetentionFigures()

    def reconfigure(self, config: StoreConfig) -> None:
        """Go by other settings from now on; where the files lie must be the same."""
        assert config.commit_log_directory == self._config.commit_log_directory
        self._config = config

    def clean_soon(self) -> None:
        """Let expired files go in the next runs, whatever the hour; an operator asked for it."""
        self._manual_runs = _MANUAL_RUNS

    # The disk.

    def look(self) -> DiskVerdict:
        """Measure the disk, and refuse or allow writes accordingly."""
        space = self._store.files.disk_space(self._config.commit_log_directory)
        verdict = judge(self._config, space)
        self.figures.used_ratio = space.used_ratio
        self.figures.free_bytes = space.free_bytes
        store = self._store
        if verdict.refuses_writes and not store.is_disk_full:
            logger.error(
                "disk is %.0f%% full, %d bytes free: writes are refused until there is room",
                space.used_ratio * 100, space.free_bytes,
            )  # fmt: skip
        needs = self._config.mapped_file_size_commit_log
        has_room = not verdict.refuses_writes and (
            # An append that found no room set the flag at a ratio below the mark.
            space.free_bytes >= needs or store.log.mapped.at(store.log.appended) is not None
        )
        if store.is_disk_full and has_room:
            logger.warning("disk has room again, writes are accepted")
        store.is_disk_full = not has_room
        if has_room and store.failure is None:
            store.dispatch()  # What found no room when it arrived is taken up here.
        return verdict

    # Deleting.

    def clean(self) -> int:
        """Delete what may go now, at most a few files; return how many."""
        count = 0
        self._begin_clean()
        while count < self._config.delete_files_batch_max and (file := self._next_to_go()):
            self._remove(file)
            count += 1
        self._end_clean(count)
        return count

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Retention]:
        """Look and clean in the background, each at its own pace.

        An error of the disk ends the store as a writer, as one of the flusher's does, and these
        duties with it. Errors of the body come out as they went in.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._until_failure(self._look_for_ever)),
                    group.create_task(self._until_failure(self._clean_for_ever)),
                ]
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) > 1:
                raise
            raise errors.exceptions[0] from None

    async def _until_failure(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except StoreError as error:
            self._store.fail(error)

    async def _look_for_ever(self) -> None:
        while True:
            self.look()
            await self._clock.sleep_ms(self._config.clean_resource_interval)

    async def _clean_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(self._config.clean_resource_interval)
            count = 0
            self._begin_clean()
            while count < self._config.delete_files_batch_max and (file := self._next_to_go()):
                # Unlinking a gigabyte may take the file system a while: not on the loop.
                await asyncio.to_thread(self._remove, file)
                count += 1
                await self._clock.sleep_ms(self._config.delete_commit_log_files_interval)
            self._end_clean(count)

    def _begin_clean(self) -> None:
        self._is_time = self._is_delete_hour() or self._manual_runs > 0
        self._manual_runs = max(0, self._manual_runs - 1)

    def _next_to_go(self) -> MappedFile | None:
        """Take the oldest file out of the log, if it may go; the disk is looked at every time."""
        log = self._store.log
        if len(log.mapped) <= 1:
            return None
        verdict = judge(
            self._config, self._store.files.disk_space(self._config.commit_log_directory)
        )
        file = log.mapped.files[0]
        if file.end > self._store.checkpoint.queues_flushed:
            # The queues' entries for this file are not durable. Without file and entries, a crash
            # would let a queue begin at 0 again.
            self._store.wants_checkpoint = True
            return None
        may_go = self._may_go(file)
        if verdict.cleans_forcibly and self._config.clean_file_forcibly_enable:
            if not may_go:
                self.figures.forced_removals += 1
                self._mourn(file)
        elif not (may_go and (self._is_time or verdict.cleans_expired)):
            return None
        return log.detach_first()

    def _end_clean(self, count: int) -> None:
        if count:
            self._follow_log()
        self._measure_expiring()

    def _is_delete_hour(self) -> bool:
        hour = time.localtime(self._clock.now_ms() / 1000).tm_hour
        return hour in self._config.delete_hours

    def _may_go(self, file: MappedFile) -> bool:
        """Whether a file has expired and holds nothing that must still be delivered."""
        reserved_ms = self._config.file_reserved_time * _HOUR_MS
        if self._store.files.modified_ms(file.path) + reserved_ms > self._clock.now_ms():
            return False
        undelivered = self._undelivered_from()
        return undelivered is None or file.end <= undelivered

    def _mourn(self, file: MappedFile) -> None:
        undelivered = self._undelivered_from()
        if undelivered is not None and undelivered < file.end:
            self.figures.protected_removals += 1
            logger.error(
                "path=%s is deleted because the disk is full, with messages in it that were still"
                " to be delivered", file.path,
            )  # fmt: skip
        else:
            logger.warning("path=%s is deleted before its time: the disk is full", file.path)

    def _remove(self, file: MappedFile) -> None:
        try:
            file.remove()
            if self._store.sums is not None:
                self._store.sums.remove(file.start)
        except StoreUnreadable as error:
            # It is out of the log and will be found, and tried again, by the next start.
            logger.warning("%s", error)
            return
        self.figures.files_removed += 1
        logger.info("path=%s deleted", file.path)

    def _follow_log(self) -> None:
        """Let queues and index drop what pointed to deleted files."""
        store = self._store
        start = store.log.start
        store.files.sync_directory(self._config.commit_log_directory)
        for queue in store.queues.opened():
            self.figures.files_removed += queue.remove_before(start)
            ext = store.queues.ext(queue.topic, queue.queue_id)
            first = queue.entry(queue.min_offset)
            if ext is not None and first is not None:
                self.figures.files_removed += ext.remove_before(first.tag_code)
        if store.index is not None:
            self.figures.files_removed += store.index.remove_before(start)

    def remove_expired_queues(self, *, keep: Callable[[str], bool] = lambda _: False) -> int:
        """Delete queues whose every message the log has dropped; their offsets restart at 0."""
        store = self._store
        count = 0
        for topic, queue_id in sorted(store.queues.names):
            queue = store.queues.get(topic, queue_id)
            if queue is None or keep(topic):
                continue
            last = queue.last_entry()
            is_idle = queue.cursor.next_offset == queue.max_offset and not queue.cursor.watchers
            if last is not None and last.physical_offset < store.log.start and is_idle:
                store.queues.drop(topic, queue_id)
                count += 1
        return count

    def _measure_expiring(self) -> None:
        """How much of the log expires soon, and how much of that nobody has read."""
        soon_ms = self._clock.now_ms() + self._config.expiry_warning_ms
        reserved_ms = self._config.file_reserved_time * _HOUR_MS
        log = self._store.log
        end = log.start
        for file in log.mapped.files[:-1]:
            if self._store.files.modified_ms(file.path) + reserved_ms > soon_ms:
                break
            end = file.end
        unconsumed = self._unconsumed_from()
        self.figures.expiring_bytes = end - log.start
        self.figures.expiring_unconsumed_bytes = (
            0 if unconsumed is None else max(0, end - max(unconsumed, log.start))
        )


def judge(config: StoreConfig, space: DiskSpace) -> DiskVerdict:
    """What the space on the disk asks for."""
    is_ample = 0 < config.disk_space_ample_bytes <= space.free_bytes
    ratio = 0.0 if is_ample else space.used_ratio * 100
    is_below_reserve = space.free_bytes < config.disk_space_reserve_bytes
    return DiskVerdict(
        cleans_expired=ratio > config.disk_max_used_space_ratio or is_below_reserve,
        cleans_forcibly=ratio > config.disk_space_clean_forcibly_ratio or is_below_reserve,
        refuses_writes=ratio > config.disk_space_warning_level_ratio or is_below_reserve,
    )
