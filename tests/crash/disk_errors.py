"""Disks that fail: a flush that errs, a device without room; at every step in turn.

I07  after the first flush error nothing is acknowledged, the store is read-only and says why,
     the flush is not tried again, and a restart recovers all that was acknowledged
I23  without room the store refuses, reads go on, and writes return once there is room, without
     a restart
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import random
from collections.abc import Callable
from typing import Any

import crash_script
from crash_judge import Judge, require
from crash_script import ASYNC, SYNC, Item, ScriptedRun

from skylark.errors import StoreClosed, StoreError, StoreFull
from skylark.store import MessageStore, PutStatus, StoreConfig
from skylark.store import flusher as flusher_module
from skylark.store.flusher import Flusher
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock

PLACES = ("*/commitlog/*", "*/consumequeue/*", "*/index/*", "*/checkpoint", "/store*")


class InlineExecutor:
    """Runs work at once: the simulated disk has one thread, and so has the test."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, work: Callable[..., None], *given: Any) -> concurrent.futures.Future[None]:
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        try:
            future.set_result(work(*given))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        pass


async def flush_error(config: StoreConfig, pattern: str, skip: int, seed: int) -> bool:
    """Let one flush err under four producers; False if it never came to that."""
    clock = HandClock()
    files = SimFiles(now_ms=clock.now_ms)
    store = MessageStore.open(config, files, clock)
    run = _Writer(store, seed)
    files.fail("sync", pattern, skip=skip, times=1)
    real, flusher_module.ThreadPoolExecutor = flusher_module.ThreadPoolExecutor, InlineExecutor  # type: ignore[misc,assignment]
    try:
        flusher = Flusher(store, clock)
        failures: list[StoreError] = []
        flusher.on_failure = failures.append
        async with flusher.running():
            await asyncio.gather(*(run.produce(flusher, 12) for _ in range(4)))
    finally:
        flusher_module.ThreadPoolExecutor = real  # type: ignore[misc]
    if store.failure is None:
        require(files.has_faults_left(), "a flush failed, and nobody noticed")
        try:
            store.close()
        except StoreError:
            _require_recovery(config, files, clock, run, seed)
            return True
        return False
    require(len(failures) == 1, f"{len(failures)} failures were reported")
    require(not store.is_writable, "the store takes writes after a failed flush")
    statuses = {r.status for r in store.put([run.message() for _ in range(2)])}
    require(statuses == {PutStatus.SERVICE_NOT_AVAILABLE}, f"a put after the failure: {statuses}")
    require(run.acked_after_failure == 0, f"{run.acked_after_failure} acknowledged after it")
    require(flusher.figures.error is not None, "the figures do not show the error")
    syncs = files.sync_count
    judge = Judge(config, clock.now_ms())
    judge.check_derived(store, run.visible(store))  # Reads go on.
    store.close()
    require(files.sync_count == syncs, "the flush was tried again")
    _require_recovery(config, files, clock, run, seed)
    return True


def _require_recovery(
    config: StoreConfig, files: SimFiles, clock: HandClock, run: _Writer, seed: int
) -> None:
    # The kernel may have dropped the pages that it could not write.
    disk = files.crash(random.Random(seed))
    with MessageStore.open(config, disk, clock) as again:
        end = again.log.appended
        require(end >= run.acked_end, f"acknowledged up to {run.acked_end}, found {end}")
        kept = tuple(item for item in run.history if item.end <= end)
        Judge(config, clock.now_ms()).check_derived(again, kept)


class _Writer:
    """Producers that wait for their flush, and remember what they were told."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self.store = store
        self.history: tuple[Item, ...] = ()
        self.acked_end = 0
        self.acked_after_failure = 0
        self._source = ScriptedRun.__new__(ScriptedRun)
        self._source.rng = random.Random(seed)
        self._source.number = 0

    def message(self) -> Any:
        return self._source._flagged(self._source.message())

    async def produce(self, flusher: Flusher, count: int) -> None:
        for _ in range(count):
            message = self.message()
            result = self.store.put([message])[0]
            if result.status is not PutStatus.PUT_OK:
                return
            self.history = (*self.history, Item.of(message, result))
            try:
                flushed = await flusher.wait_flushed(result.end)
            except StoreClosed:
                return
            if flushed:
                # Told late is fine, if it was on the disk before.
                was_too_late = result.end > self.store.log.flushed
                self.acked_after_failure += self.store.failure is not None and was_too_late
                self.acked_end = max(self.acked_end, result.end)

    def visible(self, store: MessageStore) -> tuple[Item, ...]:
        return tuple(item for item in self.history if item.end <= store.dispatcher.position)


# No room.


def full_disk(config: StoreConfig, operation: str, skip: int, seed: int) -> bool:
    """Run an ordinary day; from one operation on there is no room, later there is again."""
    run = ScriptedRun.__new__(ScriptedRun)
    clock = HandClock()
    files = SimFiles(now_ms=clock.now_ms)
    run.config, run.rng, run.clock, run.files = config, random.Random(seed), clock, files
    run.history, run.tables, run.moments, run.refused, run.number = (), (), [], 0, 0
    run.store = MessageStore.open(config, files, clock)
    judge = Judge(config, clock.now_ms())
    files.fail(operation, error=errno.ENOSPC, skip=skip, times=None)
    retention = Retention(run.store, clock)
    hit = False
    for turn in range(12):
        run.put(3)
        run.put(2, group=True)
        if run.store.is_disk_full:
            hit = True
        try:
            run.flush()
            if turn % 3 == 2:
                run.flush_queues(thorough=True)
        except StoreFull:
            raise AssertionError("a flush needed room") from None
        require(run.store.failure is None, f"a full disk ended the store: {run.store.failure}")
        # What was taken and dispatched can be read.
        position = run.store.dispatcher.position
        judge.checks_keys = position == run.store.log.appended
        reached = tuple(i for i in run.history if i.end <= position)
        try:
            judge.check_derived(run.store, reached)
        except AssertionError:
            # The next one may be in its queue, and have found no room in the index.
            judge.check_derived(run.store, run.history[: len(reached) + 1])
        if hit and turn >= 6:
            break
    if not hit:
        run.store.close()
        return False
    refused = run.refused
    files.heal()
    retention.look()
    require(run.store.is_writable, "there is room again, and no message is taken")
    run.put(4)
    require(run.refused == refused, "there is room again, and messages are refused")
    run.flush()
    run.store.dispatch()
    judge.checks_keys = True
    judge.check_derived(run.store, run.history)
    run.store.close()
    judge.check_rebuild(files, run.history)
    with MessageStore.open(config, files, clock) as again:
        require(again.log.appended == run.history[-1].end, "messages were lost")
        judge.check_derived(again, run.history)
    return True


def full_disk_at_start(operation: str, skip: int, seed: int) -> bool:
    """Recover with a disk that fills up on the way: refuse, and recover once there is room."""
    run = crash_script.record("restarts", seed=seed)
    run.files.end_process()
    disk = run.files.copy()
    disk.fail(operation, error=errno.ENOSPC, skip=skip, times=None)
    judge = Judge(run.config, run.clock.now_ms())
    try:
        MessageStore.open(run.config, disk, HandClock(judge.now_ms)).close()
        hit = False
    except StoreError:
        hit = True
    disk.heal()
    disk.end_process()
    with MessageStore.open(run.config, disk, HandClock(judge.now_ms)) as store:
        require(store.log.appended >= run.moments[-1].durable, "a full disk cost messages")
        judge.check_derived(store, run.history)
    return hit


__all__ = ["ASYNC", "PLACES", "SYNC", "flush_error", "full_disk", "full_disk_at_start"]
