"""Bugs planted in the real code, one at a time: a checker that finds none of them is worth nothing.

Each comes with the checker that must catch it. Without any of them, every checker is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import garbling
from crash_script import ASYNC, SYNC
from crash_states import sweep
from disk_errors import flush_error, full_disk

from skylark.errors import SkylarkError, StoreError
from skylark.store import append, recovery
from skylark.store.commit_log import CommitLog
from skylark.store.flush_work import FlushWork
from skylark.store.flusher import Flusher
from skylark.store.index_sums import IndexSums
from skylark.store.mapped_file import MappedFileQueue
from skylark.store.message_store import MessageStore
from skylark.store.retention import Retention
from skylark.store.sums import LogSums

Checker = Callable[[], str | None]
Planting = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class PlantedBug:
    """What is broken, how, and who must notice."""

    name: str
    plant: Planting
    checker: str


# Checkers: the first thing found, or None.


def _states(name: str, page_bytes: int = 512, states: int = 500) -> Checker:
    def check() -> str | None:
        try:
            tally = sweep(name, seed=1, page_bytes=page_bytes, states=states)
        except (AssertionError, SkylarkError) as error:
            return f"{type(error).__name__}: {error}"  # The script itself met it.
        return str(tally.findings[0]) if tally.findings else None

    return check


def _first(attempts: Iterator[Callable[[], object]]) -> str | None:
    for attempt in attempts:
        try:
            attempt()
        except (AssertionError, SkylarkError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def _flush_errors() -> str | None:
    def attempts() -> Iterator[Callable[[], object]]:
        for skip in range(10):
            yield lambda skip=skip: asyncio.run(flush_error(SYNC, "*/commitlog/*", skip, skip))

    return _first(attempts())


def _full_disks() -> str | None:
    return _first((lambda skip=skip: full_disk(ASYNC, "create", skip, 1)) for skip in range(8, 16))


def _garbled() -> str | None:
    tally, _ = garbling.campaign(seed=1, count=600)
    return str(tally.findings[0]) if tally.findings else None


CHECKERS: dict[str, Checker] = {
    "crash states": _states("steady"),
    "crash states of an async store": _states("steady-async"),
    "crash states of whole pages": _states("steady", page_bytes=2048),
    "crash states of a long log": _states("long", states=900),
    "crash states of old queues": _states("aging", states=900),
    "crash states of restarts": _states("restarts"),
    "crash states of truncation": _states("truncation"),
    "crash states of retention": _states("retention", states=900),
    "flush errors": _flush_errors,
    "full disks": _full_disks,
    "garbled files": _garbled,
}


# Bugs.


def _swapped(owner: Any, name: str, value: Any) -> Planting:
    return lambda: mock.patch.object(owner, name, value)


def _run_nothing(work: FlushWork) -> None:
    if work.save is not None:
        work.save()


def _run_swallowing(work: FlushWork) -> None:
    for region in work.regions:
        with contextlib.suppress(StoreError):
            region.sync()
    for directory in work.directories:
        assert work.sync_directory is not None
        work.sync_directory(directory)
    if work.save is not None:
        work.save()


def _run_backwards(work: FlushWork) -> None:
    if work.save is not None:
        work.save()
    for region in work.regions:
        region.sync()
    for directory in work.directories:
        assert work.sync_directory is not None
        work.sync_directory(directory)


def _plant_eager_dispatch() -> contextlib.AbstractContextManager[Any]:
    real = MessageStore._after_append

    def after_append(store: MessageStore, stored_at_ms: int) -> None:
        real(store, stored_at_ms)
        store.dispatch()

    stack = contextlib.ExitStack()
    stack.enter_context(
        mock.patch.object(MessageStore, "visible_end", property(lambda store: store.log.committed))
    )
    stack.enter_context(mock.patch.object(MessageStore, "_after_append", after_append))
    return stack


def _no_build(store: MessageStore, log_end: int, *_: Any) -> None:
    store.dispatcher.position = log_end


def _set_end_in_memory(log: CommitLog, end: int, *, flushed: int) -> None:
    files = log.mapped.files
    while files and files[-1].start >= max(end, log.mapped.start + 1):
        files.pop().close()
    log.flushed = flushed
    log._committed = end
    log._write_into(log.mapped.at(end), end)


def _plant_offset_race() -> contextlib.AbstractContextManager[Any]:
    real = append.append_batch

    def append_batch(log, messages, at, stop, queues, *rest):  # type: ignore[no-untyped-def]
        first = at
        at = real(log, messages, at, stop, queues, *rest)
        if at - first > 1:
            # As if the second of two producers had read the offset before the first wrote it.
            message = messages[at - 1]
            cursor = queues[message.topic][message.queue_id]
            cursor.next_offset = max(0, cursor.next_offset - 1)
        return at

    return mock.patch.object(append, "append_batch", append_batch)


def _plant_no_crc() -> contextlib.AbstractContextManager[Any]:
    real = append.scan_records
    return mock.patch.object(
        append,
        "scan_records",
        lambda buffer, start, at, end, _, torn: real(buffer, start, at, end, False, torn),
    )


def _plant_no_tear_check() -> contextlib.AbstractContextManager[Any]:
    real = append.scan_records
    return mock.patch.object(
        append,
        "scan_records",
        lambda buffer, start, at, end, crc, _: real(buffer, start, at, end, crc, 1 << 40),
    )


def _plant_optimistic_marks() -> contextlib.AbstractContextManager[Any]:
    real = MessageStore._checkpoint_now

    def checkpoint_now(store: MessageStore, *rest: Any) -> Any:
        times, marks = real(store, *rest)
        end = store.log.appended
        return times, replace(marks, log_flushed=end, queues_flushed=end)

    return mock.patch.object(MessageStore, "_checkpoint_now", checkpoint_now)


def _no_abort_mark(store: MessageStore) -> None:
    store.checkpoint.open_for_writing()


def _roll_without_blank(log: CommitLog) -> None:
    if log.cursor.buffer is not None:
        log._make(log.mapped.end)
        log.cursor.write_at = log._file_bytes
        log.commit()
    log._next_file()


def _plant_deaf_retention() -> contextlib.AbstractContextManager[Any]:
    real = Retention.look

    def look(retention: Retention) -> Any:
        was_full = retention._store.is_disk_full
        verdict = real(retention)
        retention._store.is_disk_full |= was_full
        return verdict

    return mock.patch.object(Retention, "look", look)


def _release_all(flusher: Flusher, error: StoreError | None = None) -> None:
    while flusher._waiters:
        future = flusher._waiters.pop().future
        if not future.done():
            future.set_result(True)


def _plant_flush_in_time_only() -> contextlib.AbstractContextManager[Any]:
    """The flushed offset is taken when the flush ends, not when it began."""
    real = MessageStore.end_flush

    def end_flush(store: MessageStore, work: FlushWork) -> None:
        work.log_end = store.log.committed
        real(store, work)

    return mock.patch.object(MessageStore, "end_flush", end_flush)


def _plant_hasty_retention() -> contextlib.AbstractContextManager[Any]:
    """Files go although their queue entries are not durable."""
    from skylark.store.checkpoint import Checkpoint

    return mock.patch.object(Checkpoint, "queues_flushed", property(lambda _: 1 << 60))


def _forget_in_memory(sums: LogSums, log: CommitLog, end: int) -> None:
    """Sums are cut, and nothing on the disk says so."""
    sums.position = end
    sums._leave()


BUGS = [
    PlantedBug(
        "acknowledged before it is flushed",
        _swapped(FlushWork, "run", _run_nothing),
        "crash states",
    ),
    PlantedBug(
        "flush error swallowed (D1)", _swapped(FlushWork, "run", _run_swallowing), "flush errors"
    ),
    PlantedBug("dispatched past the flush (D2)", _plant_eager_dispatch, "crash states"),
    PlantedBug(
        "tail not dispatched again (D3)", _swapped(recovery, "_build", _no_build), "crash states"
    ),
    PlantedBug(
        "index not built again (D4)",
        _swapped(recovery, "_settle_index", lambda _, plan: plan),
        "crash states of restarts",
    ),
    PlantedBug(
        "truncated in memory only (H2)",
        _swapped(CommitLog, "set_end", _set_end_in_memory),
        "crash states of truncation",
    ),
    PlantedBug("queue offset taken outside the lock (R6)", _plant_offset_race, "crash states"),
    PlantedBug("checksum not checked", _plant_no_crc, "garbled files"),
    PlantedBug("checksum not checked after a crash", _plant_no_crc, "crash states of a long log"),
    PlantedBug("torn records not recognised", _plant_no_tear_check, "crash states"),
    PlantedBug(
        "checkpoint ahead of the truth", _plant_optimistic_marks, "crash states of a long log"
    ),
    PlantedBug(
        "checkpoint written before the flush",
        _swapped(FlushWork, "run", _run_backwards),
        "crash states of a long log",
    ),
    PlantedBug(
        "new names not synced",
        _swapped(MappedFileQueue, "take_unsynced_directory", lambda _: []),
        "crash states of a long log",
    ),
    PlantedBug(
        "no mark of a crash", _swapped(MessageStore, "mark_open", _no_abort_mark), "crash states"
    ),
    PlantedBug(
        "no blank record at a file's end",
        _swapped(CommitLog, "roll", _roll_without_blank),
        "crash states",
    ),
    PlantedBug("flush counted from its end", _plant_flush_in_time_only, "crash states"),
    PlantedBug(
        "waiters released too early", _swapped(Flusher, "_release", _release_all), "flush errors"
    ),
    PlantedBug("full for ever (K1)", _plant_deaf_retention, "full disks"),
    PlantedBug(
        "deleted before the queues know", _plant_hasty_retention, "crash states of retention"
    ),
    PlantedBug(
        "sums of records not compared",
        _swapped(recovery, "_check_sums", lambda store, file, *_: file.end),
        "garbled files",
    ),
    PlantedBug(
        "sums of the index not compared",
        _swapped(IndexSums, "fits", lambda *_, **__: True),
        "garbled files",
    ),
    PlantedBug(
        "sums not cut with the log",
        _swapped(LogSums, "cut", _forget_in_memory),
        "crash states of truncation",
    ),
]
