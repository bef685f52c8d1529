"""Flusher: group commit or interval; wait_flushed(offset).

Threads sync, one flush at a time, so that the loop never waits for a disk. While one is at it,
appends go on, and all that arrived in the meantime is the next flush: with 64 senders waiting, one
fdatasync serves them all. There is no pause between flushes; the disk sets the pace. A flush that
is nothing but fdatasync goes to the SyncThread, which does not compete with the loop for the GIL.

    mode          commit log                                    queues
    SYNC_FLUSH    as soon as something is appended              every second those with 2 dirty
    ASYNC_FLUSH   every 500 ms, if 4 pages are dirty or 10 s    pages; every 60 s all of them, with
                  have passed                                   the index and a new checkpoint

The first error ends the store as a writer: every waiter is told, nothing is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from heapq import heappop, heappush
from typing import NamedTuple

from ..clock import Clock
from ..errors import StoreClosed, StoreError
from .files import OsRegion, store_error
from .flush_work import FlushWork
from .message_store import MessageStore
from .sync_thread import SyncThread

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4096


class FlushFigures(NamedTuple):
    """What an operator wants to know of the flusher."""

    flush_count: int
    unflushed_bytes: int
    last_flush_ms: int
    longest_flush_ms: int
    error: str | None


class _Waiter(NamedTuple):
    offset: int
    number: int  # Breaks ties, so that futures are never compared.
    future: asyncio.Future[bool]


class Flusher:
    """Keeps a store's files moving to the disk while its loop does other things."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._config = store.config
        self._wake = asyncio.Event()
        self._waiters: list[_Waiter] = []
        self._waiter_count = 0
        self._executor: ThreadPoolExecutor | None = None
        # Two syncs of one descriptor at once would share its error: only one of them is told.
        self._one_at_a_time = asyncio.Lock()
        self._sync_thread: SyncThread | None = None
        self._synced: asyncio.Future[tuple[int, int]] | None = None
        self._syncing: list[OsRegion] = []  # Kept open until the thread is done with them.
        self._under_way = 0  # Flushes between their beginning and their end.
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._none_under_way = asyncio.Event()
        self._has_failed = False
        self._flush_count = 0
        self._last_flush_ms = 0
        self._longest_flush_ms = 0
        self.on_failure: Callable[[StoreError], None] | None = None

    @property
    def figures(self) -> FlushFigures:
        """Counts and durations so far."""
        failure = self._store.failure
        return FlushFigures(
            self._flush_count,
            self._store.log.appended - self._store.log.flushed,
            self._last_flush_ms,
            self._longest_flush_ms,
            None if failure is None else str(failure),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Flusher]:
        """Flush in the background; what is left at the end is MessageStore.close's to flush."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="flusher")
        self._store.on_append = self._on_append
        self._store.on_failure = self._on_failure
        log_task = asyncio.create_task(self._flush_log(), name="flush log")
        queue_task = asyncio.create_task(self._flush_queues(), name="flush queues")
        try:
            yield self
        finally:
            self._store.on_append = None
            self._store.on_failure = None
            for task in (log_task, queue_task):
                task.cancel()
            for task in (log_task, queue_task):
                with suppress(asyncio.CancelledError):
                    await task
            # The thread ends its sync: a region must not be written and synced by two at once.
            if self._synced is not None:
                await self._synced
            if self._sync_thread is not None:
                self._sync_thread.close()
                self._sync_thread = None
            await asyncio.to_thread(self._executor.shutdown)
            self._executor = None
            self._release(StoreClosed("the flusher has stopped"))

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Let no flush be under way, for what moves the log's end back.

        store.truncate() may not run beside one: it would sync and note what is no longer there.
        """
        self._may_begin.clear()
        try:
            while self._under_way:
                self._none_under_way.clear()
                await self._none_under_way.wait()
            yield
        finally:
            self._may_begin.set()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        await self._may_begin.wait()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()

    def _on_append(self) -> None:
        if self._config.is_sync_flush:
            self._wake.set()

    def _on_failure(self, error: StoreError) -> None:
        """The store has ended as a writer, by a flush of ours or by somebody else's error."""
        self._release(self._closed(error))
        if self.on_failure is not None:
            self.on_failure(error)

    # Waiting.

    async def wait_flushed(self, offset: int, timeout_ms: int | None = None) -> bool:
        """Wait until everything below a physical offset is on the disk; False if time runs out.

        Raises StoreClosed when it never will be, because a flush has failed.
        """
        future = self.flushed(offset)
        if future.done():
            return future.result()
        timeout_ms = self._config.sync_flush_timeout if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(future)
        except TimeoutError:
            return False

    def flushed(self, offset: int) -> asyncio.Future[bool]:
        """A future that is done when everything below a physical offset is on the disk."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._store.failure is not None:
            future.set_exception(self._closed(self._store.failure))
        elif self._store.is_flushed(offset):
            future.set_result(True)
        else:
            self._waiter_count += 1
            heappush(self._waiters, _Waiter(offset, self._waiter_count, future))
            self._wake.set()
        return future

    @staticmethod
    def _closed(error: StoreError) -> StoreClosed:
        return StoreClosed(f"the store takes no more writes: {error}")

    def _release(self, error: StoreError | None = None) -> None:
        """Let those go whose offset is flushed; with an error, all of them."""
        while self._waiters:
            if error is None and self._waiters[0].offset > self._store.log.flushed:
                break
            future = heappop(self._waiters).future
            if future.done():
                continue
            if error is None:
                future.set_result(True)
            else:
                future.set_exception(error)
                future.exception()  # Seen: a waiter that timed out will not fetch it.

    # Flushing.

    async def _run(self, work: FlushWork, finish: Callable[[FlushWork], None]) -> bool:
        """Do one flush on a thread; False when the store has ended as a writer."""
        assert self._executor is not None
        started = self._clock.monotonic_ms()
        try:
            async with self._one_at_a_time:
                regions = work.plain_regions
                if regions is not None:
                    await self._sync(regions)
                else:
                    await asyncio.get_running_loop().run_in_executor(self._executor, self._do, work)
            if self._store.failure is None:
                finish(work)
        except StoreError as error:
            self._store.fail(error)
        if self._store.failure is not None:
            return False
        self._last_flush_ms = self._clock.monotonic_ms() - started
        self._longest_flush_ms = max(self._longest_flush_ms, self._last_flush_ms)
        self._flush_count += 1
        self._release()
        return True

    async def _sync(self, regions: list[OsRegion]) -> None:
        """Have files synced and nothing else; none after a flush that failed."""
        if self._has_failed:
            raise StoreClosed("a flush has failed before")
        if self._sync_thread is None:
            self._sync_thread = SyncThread(self._on_synced)
        self._synced = asyncio.get_running_loop().create_future()
        self._syncing = regions
        self._sync_thread.submit([region.descriptor for region in regions])
        # Shielded: who stops waiting must not make it look as if the sync had ended.
        number, descriptor = await asyncio.shield(self._synced)
        if number != 0:
            path = next(region.path for region in regions if region.descriptor == descriptor)
            raise store_error(path, "flush", OSError(number, os.strerror(number)))

    def _on_synced(self, number: int, descriptor: int) -> None:
        assert self._synced is not None
        self._has_failed = self._has_failed or number != 0
        self._synced.set_result((number, descriptor))
        self._synced = None
        self._syncing = []

    def _do(self, work: FlushWork) -> None:
        """On the thread: one flush; none after one that failed, not even if it waited in line."""
        if self._has_failed:
            raise StoreClosed("a flush has failed before")
        try:
            work.run()
        except BaseException:
            self._has_failed = True
            raise

    async def _flush_log(self) -> None:
        thorough_at = self._clock.monotonic_ms()
        while self._store.failure is None:
            await self._next_turn()
            store = self._store
            store.log.commit()
            if not self._config.is_sync_flush:
                store.dispatch()
            now = self._clock.monotonic_ms()
            is_thorough = now - thorough_at >= self._config.flush_commit_log_thorough_interval
            least = self._config.flush_commit_log_least_pages * _PAGE_BYTES
            unflushed = store.log.committed - store.log.flushed
            if unflushed == 0 and not store.log.wants_next_file:
                self._release()  # Somebody else has flushed: a topic was dropped, say.
                continue
            if unflushed < least and not (
                is_thorough or self._waiters or self._config.is_sync_flush
            ):
                continue
            async with self._turn():
                if not await self._run(store.begin_flush(), store.end_flush):
                    return
            thorough_at = now

    async def _next_turn(self) -> None:
        """Wait for work with SYNC_FLUSH, for the interval with ASYNC_FLUSH."""
        if self._config.is_sync_flush:
            await self._wake.wait()
            self._wake.clear()
            return
        interval = self._config.flush_interval_commit_log
        if self._config.transient_store_pool_enable:
            interval = min(interval, self._config.commit_interval_commit_log)
        sleeping = asyncio.ensure_future(self._clock.sleep_ms(interval))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
        self._wake.clear()

    async def _flush_queues(self) -> None:
        thorough_at = self._clock.monotonic_ms()
        while self._store.failure is None:
            await self._clock.sleep_ms(self._config.flush_interval_consume_queue)
            now = self._clock.monotonic_ms()
            index = self._store.index
            is_thorough = (
                now - thorough_at >= self._config.flush_consume_queue_thorough_interval
                # A full index file is noted at once, as RocketMQ does.
                or (index is not None and bool(index.full_unsynced))
                or self._store.wants_checkpoint
            )
            async with self._turn():
                work = self._store.begin_queue_flush(thorough=is_thorough)
                if not work.regions:
                    continue
                if not await self._run(work, self._store.end_queue_flush):
                    return
            if is_thorough:
                thorough_at = now
