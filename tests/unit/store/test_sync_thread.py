"""The thread that only syncs: one suite over the pure one and the compiled one."""

import asyncio
import errno
import os

import pytest

from skylark.store.sync_thread import DESCRIPTORS_MAX, PureSyncThread, SyncThread

KINDS = [PureSyncThread] if SyncThread is PureSyncThread else [PureSyncThread, SyncThread]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__module__.rpartition(".")[2])
def kind(request):
    return request.param


def answers_of(kind, orders):
    """What on_done hears for each of several orders, one after another."""

    async def main():
        heard = []
        done = asyncio.Event()

        def on_done(number, descriptor):
            heard.append((number, descriptor))
            done.set()

        thread = kind(on_done)
        try:
            async with asyncio.timeout(10):
                for order in orders:
                    done.clear()
                    thread.submit(order)
                    await done.wait()
        finally:
            thread.close()
        return heard

    return asyncio.run(main())


@pytest.fixture
def descriptor(tmp_path):
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(found, b"x")
    yield found
    os.close(found)


def test_each_order_is_answered_once_it_is_done(kind, descriptor):
    assert answers_of(kind, [[descriptor], [descriptor] * 3]) == [(0, -1), (0, -1)]


def test_an_error_comes_with_the_descriptor_that_met_it(kind, descriptor):
    reading, writing = os.pipe()
    os.close(writing)
    try:
        # A pipe cannot be synced; what stands behind it is not tried.
        assert answers_of(kind, [[descriptor, reading, 10**6], [descriptor]]) == [
            (errno.EINVAL, reading),
            (0, -1),
        ]
    finally:
        os.close(reading)


def test_a_second_order_while_one_is_under_way_is_our_own_mistake(kind, descriptor):
    async def main():
        thread = kind(lambda _number, _descriptor: None)
        try:
            thread.submit([descriptor])
            with pytest.raises(AssertionError):
                thread.submit([descriptor])
        finally:
            thread.close()

    asyncio.run(main())


@pytest.mark.parametrize("count", [0, DESCRIPTORS_MAX + 1])
def test_an_order_of_no_or_too_many_descriptors_is_our_own_mistake(kind, descriptor, count):
    with pytest.raises(AssertionError):
        answers_of(kind, [[descriptor] * count])


def test_closing_waits_for_the_sync_under_way_and_then_says_nothing(kind, descriptor):
    async def main():
        heard = []
        thread = kind(lambda *answer: heard.append(answer))
        thread.submit([descriptor])
        thread.close()
        await asyncio.sleep(0.01)
        return heard

    assert asyncio.run(main()) == []


def test_nothing_is_left_open(kind, descriptor):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        answers_of(kind, [[descriptor]])
    assert len(os.listdir("/proc/self/fd")) == before
