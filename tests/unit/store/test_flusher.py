"""Group commit: who waits, who is released when, and what an error does to all of them."""

import asyncio
import dataclasses
import threading

import pytest

from skylark.clock import SystemClock
from skylark.errors import StoreClosed
from skylark.store import FlushDiskType, MessageStore, PutStatus
from skylark.store.flusher import Flusher
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, make_message, read_all

SYNC = dataclasses.replace(TINY, flush_disk_type=FlushDiskType.SYNC_FLUSH)
ASYNC = dataclasses.replace(
    TINY, flush_interval_commit_log=5, flush_commit_log_thorough_interval=20,
    flush_interval_consume_queue=5, flush_consume_queue_thorough_interval=20,
)  # fmt: skip


class Disk(SimFiles):
    """Log syncs wait until they are let through, if the gate is closed."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.log_syncs = 0
        self.on_sync = self._wait

    def _wait(self, path):
        # Files are made on the store's own thread, which must not wait for itself.
        if "/commitlog/" in path and threading.current_thread() is not threading.main_thread():
            self.log_syncs += 1
            assert self.gate.wait(10)


def run(config, scenario):
    files = Disk()
    store = MessageStore.open(config, files, SystemClock())

    async def main():
        async with asyncio.timeout(20), Flusher(store, SystemClock()).running() as flusher:
            await scenario(store, flusher, files)

    try:
        asyncio.run(main())
    finally:
        files.gate.set()
        store.close()
    return files


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_a_waiter_is_released_when_its_message_is_on_the_disk():
    async def scenario(store, flusher, files):
        (result,) = store.put([make_message()])
        assert not store.is_flushed(result.end)
        assert await flusher.wait_flushed(result.end)
        assert store.is_flushed(result.end)
        assert len(read_all(store, "TopicTest", 0)) == 1
        assert await flusher.wait_flushed(result.end), "it is flushed already"

    run(SYNC, scenario)


def test_a_waiter_is_released_when_somebody_else_has_flushed():
    async def scenario(store, flusher, files):
        (result,) = store.put([make_message()])
        waiting = flusher.flushed(result.end)
        store.flush()  # As drop_topic() does.
        async with asyncio.timeout(5):
            assert await waiting

    run(SYNC, scenario)


def test_all_that_arrive_during_one_sync_are_served_by_the_next():
    async def scenario(store, flusher, files):
        files.gate.clear()
        (first,) = store.put([make_message()])
        waiting = [asyncio.ensure_future(flusher.wait_flushed(first.end))]
        await until(lambda: files.log_syncs == 1)
        for _ in range(100):
            (result,) = store.put([make_message(body=b"")])
            waiting.append(asyncio.ensure_future(flusher.wait_flushed(result.end)))
        await asyncio.sleep(0.01)
        before = files.log_syncs
        files.gate.set()
        assert all(await asyncio.gather(*waiting))
        # One sync for each file that the hundred reached into, and one for a file made ahead.
        assert files.log_syncs - before <= len(store.log.mapped) + 1
        assert flusher.figures.flush_count == 2

    run(SYNC, scenario)


def test_a_slow_disk_is_a_timeout_and_the_message_is_stored_all_the_same():
    async def scenario(store, flusher, files):
        files.gate.clear()
        (result,) = store.put([make_message()])
        assert not await flusher.wait_flushed(result.end, timeout_ms=20)
        assert store.max_offset("TopicTest", 0) == 0
        files.gate.set()
        await until(lambda: store.max_offset("TopicTest", 0) == 1)

    run(SYNC, scenario)


def test_messages_that_nobody_waits_for_are_flushed_and_seen():
    async def scenario(store, flusher, files):
        store.put([make_message()])
        await until(lambda: store.max_offset("TopicTest", 0) == 1)

    run(SYNC, scenario)


def test_an_error_reaches_every_waiter_and_ends_the_writer():
    async def scenario(store, flusher, files):
        errors = []
        flusher.on_failure = errors.append
        files.gate.clear()
        (first,) = store.put([make_message()])
        waiting = [asyncio.ensure_future(flusher.wait_flushed(first.end))]
        await until(lambda: files.log_syncs == 1)
        (second,) = store.put([make_message()])
        waiting.append(asyncio.ensure_future(flusher.wait_flushed(second.end)))
        files.fail("sync", "*/commitlog/*", times=None)
        files.gate.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert results[0] is True, "that sync had begun before and succeeded"
        assert isinstance(results[1], StoreClosed)
        assert store.put([make_message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
        with pytest.raises(StoreClosed):
            await flusher.wait_flushed(second.end)
        assert store.max_offset("TopicTest", 0) == 1, "what is not flushed is not seen"
        assert len(errors) == 1
        assert "Input/output error" in flusher.figures.error

    files = run(SYNC, scenario)
    assert files.exists("/store/abort")


def test_async_flush_acknowledges_before_the_disk_and_follows_by_itself():
    async def scenario(store, flusher, files):
        files.gate.clear()
        (result,) = store.put([make_message()])
        assert store.max_offset("TopicTest", 0) == 1
        assert not store.is_flushed(result.end)
        files.gate.set()
        await until(lambda: store.is_flushed(result.end))
        await until(lambda: store.checkpoint.queues_flushed == result.end)

    run(ASYNC, scenario)


def test_the_transient_pool_is_committed_by_the_interval():
    config = dataclasses.replace(
        ASYNC, transient_store_pool_enable=True, commit_interval_commit_log=5
    )

    async def scenario(store, flusher, files):
        store.put([make_message()])
        assert store.max_offset("TopicTest", 0) == 0
        await until(lambda: store.max_offset("TopicTest", 0) == 1)

    run(config, scenario)


def test_the_next_file_is_made_before_it_is_needed():
    async def scenario(store, flusher, files):
        (result,) = store.put([make_message(body=b"x" * 2500)])
        await flusher.wait_flushed(result.end)
        await until(lambda: len(files.list_names("/store/commitlog")) == 2)
        assert len(store.log.mapped) == 1

    run(SYNC, scenario)


def test_stopping_tells_those_who_still_wait():
    files = Disk()
    store = MessageStore.open(SYNC, files, SystemClock())

    async def main():
        async with Flusher(store, SystemClock()).running() as flusher:
            future = flusher.flushed(10**9)
        with pytest.raises(StoreClosed):
            await future

    asyncio.run(main())
    store.close()
    assert not files.exists("/store/abort")


def test_a_waiter_that_gives_up_harms_nobody():
    async def scenario(store, flusher, files):
        files.gate.clear()
        (result,) = store.put([make_message()])
        leaving = asyncio.ensure_future(flusher.wait_flushed(result.end))
        staying = asyncio.ensure_future(flusher.wait_flushed(result.end))
        await until(lambda: files.log_syncs == 1)
        leaving.cancel()
        files.gate.set()
        assert await staying

    run(SYNC, scenario)
