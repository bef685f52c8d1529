"""SimLoop: virtual time, order, failures, and the life of a process."""

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import AsyncIterator

import pytest

from skylark.testing import (
    Deadlock,
    Livelock,
    OutOfTime,
    RealWorldRefused,
    SimClock,
    SimLoop,
    SimulationError,
    timeline,
)


def test_a_day_of_sleeping_takes_no_time_at_all() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    began = time.perf_counter()
    with SimLoop() as loop:
        assert loop.run(main()) == 86_400
    assert time.perf_counter() - began < 1


def test_time_advances_only_when_nothing_is_ready() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(1000):
            await asyncio.sleep(0)
            times.append(loop.time())
        return times

    with SimLoop() as loop:
        loop.call_later(0.001, lambda: None)
        assert set(loop.run(main())) == {0.0}


def test_many_short_sleeps_meet_one_long_sleep_at_the_same_instant() -> None:
    async def main() -> tuple[int, int]:
        clock = SimClock(loop)

        async def short() -> int:
            for _ in range(1000):
                await asyncio.sleep(0.001)
            return clock.monotonic_ms()

        async def long() -> int:
            await asyncio.sleep(1)
            return clock.monotonic_ms()

        first, second = await asyncio.gather(short(), long())
        return first, second

    with SimLoop() as loop:
        assert loop.run(main()) == (1000, 1000)
        assert loop.timeline.now_us == 1_000_000


def test_sleeping_until_a_deadline_that_floats_cannot_hit_does_not_spin() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        rounds = 0
        await asyncio.sleep(0.2)
        deadline = loop.time() + 0.1 + 1e-13
        while loop.time() < deadline:
            rounds += 1
            await asyncio.sleep(deadline - loop.time())
        return rounds

    with SimLoop() as loop:
        assert loop.run(main()) <= 3


def test_timers_of_one_instant_run_in_the_order_they_were_set() -> None:
    seen: list[int] = []
    with SimLoop() as loop:
        for number in range(500):
            loop.call_at(1.0, seen.append, number)
        loop.run_for(2000)
    assert seen == list(range(500))


def test_shuffled_timers_of_one_instant_run_in_a_seeded_order() -> None:
    def order(seed: int) -> list[int]:
        seen: list[int] = []
        with SimLoop(shuffle=random.Random(seed)) as loop:
            for number in range(50):
                loop.call_at(1.0, seen.append, number)
            loop.call_at(0.5, seen.append, -1)
            loop.run_for(2000)
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1)[0] == -1, "time still comes first"
    assert sorted(order(1)) == [-1, *range(50)]


def test_shuffling_leaves_what_call_soon_promises() -> None:
    seen: list[int] = []
    with SimLoop(shuffle=random.Random(3)) as loop:
        for number in range(100):
            loop.call_soon(seen.append, number)
        loop.run_for(1)
    assert seen == list(range(100))


def test_timeouts_task_groups_events_queues_and_conditions_work() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        seen.append(f"timeout at {loop.time():g}")

        event = asyncio.Event()
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        condition = asyncio.Condition()

        async def wait() -> None:
            await event.wait()
            seen.append(f"event at {loop.time():g}")

        async def feed() -> None:
            for number in range(3):
                await queue.put(number)
            async with condition:
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            group.create_task(feed())
            loop.call_later(2, event.set)
            async with condition:
                received = asyncio.gather(*(queue.get() for _ in range(3)))
                await condition.wait()
            seen.append(f"queue {await received}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 1)
        seen.append(f"wait_for at {loop.time():g}")
        return seen

    with SimLoop() as loop:
        assert loop.run(main()) == [
            "timeout at 3",
            "queue [0, 1, 2]",
            "event at 5",
            "wait_for at 6",
        ]


def test_a_cancelled_group_cancels_its_tasks_in_the_same_order_every_time() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                seen.append(number)
                raise

        ballast = [object() for _ in range(len(noise))]  # so that addresses differ between runs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1), asyncio.TaskGroup() as group:
                for number in range(200):
                    group.create_task(wait(number))
                    noise.append(bytearray(random.randrange(1, 500)))
        assert ballast is not None
        return seen

    orders = []
    noise: list[object] = []
    for _ in range(3):
        with SimLoop() as loop:
            orders.append(loop.run(main()))
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(200))


def test_futures_in_sets_iterate_in_a_fixed_order() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(100)]
        for number, future in enumerate(futures):
            future.set_result(number)
        done, _ = await asyncio.wait(futures)
        return [future.result() for future in done]

    orders = []
    keep = []
    for _ in range(2):
        with SimLoop() as loop:
            orders.append(loop.run(main()))
        keep.append([bytearray(100) for _ in range(77)])
    assert orders[0] == orders[1]


def test_an_unhandled_error_in_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(1000)

    with SimLoop() as loop:
        with pytest.raises(ZeroDivisionError) as caught:
            loop.run(main())
        assert loop.now_ms == 1000
    assert "at 1000.000 ms, process main" in caught.value.__notes__[0]


def test_an_error_in_a_task_that_nobody_awaits_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("lost")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fail(), name="background")
        kept.append(task)
        await asyncio.sleep(1)

    kept: list[object] = []
    with SimLoop() as loop, pytest.raises(ValueError, match="lost") as caught:
        loop.run(main())
    assert caught.value.__notes__ == ["nobody awaited task background of process main"]


def test_an_error_in_a_forgotten_task_fails_the_run_when_the_task_goes() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("lost")

    async def main() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0.5)
        del task
        await asyncio.sleep(1000)

    with SimLoop() as loop, pytest.raises(ValueError, match="lost"):
        loop.run(main())


def test_a_task_whose_error_was_handled_does_not_fail_the_run() -> None:
    async def fail() -> None:
        raise ValueError("handled")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        assert isinstance(task.exception(), ValueError)

    with SimLoop() as loop:
        loop.run(main())


def test_a_deadlock_names_the_task_and_the_line_it_waits_at() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await wait_for_ever()

    with SimLoop() as loop, pytest.raises(Deadlock) as caught:
        loop.run(main())
    assert "main: main#" in str(caught.value)
    assert "wait (" in str(caught.value), "the innermost frame is named"


def test_a_busy_wait_is_reported_instead_of_running_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeline, "LIVELOCK_CALLBACKS", 1000)

    async def main() -> None:
        while asyncio.get_running_loop().time() < 1:
            await asyncio.sleep(0)

    with SimLoop() as loop, pytest.raises(Livelock, match="1000 callbacks without a step"):
        loop.run(main())


def test_a_run_that_is_not_done_in_time_says_where_it_waits() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with SimLoop() as loop:
        with pytest.raises(OutOfTime, match=r"not done at 60000 ms .*sleep"):
            loop.run(main(), until_ms=60_000)
        assert loop.now_ms == 60_000


def test_tasks_that_outlive_main_go_on_in_the_next_run() -> None:
    seen: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(asyncio.get_running_loop().time())

    async def main() -> None:
        tasks.append(asyncio.create_task(tick()))
        await asyncio.sleep(2.5)

    tasks: list[object] = []
    with SimLoop() as loop:
        loop.run(main())
        assert seen == [1, 2]
        loop.run_for(2000)
        assert seen == [1, 2, 3, 4]


def test_an_executor_runs_inline_after_its_latency() -> None:
    async def main() -> tuple[int, float]:
        with pytest.raises(KeyError):
            await asyncio.to_thread(dict[str, int]().__getitem__, "missing")
        result = await asyncio.to_thread(sum, [1, 2, 3])
        return result, asyncio.get_running_loop().time()

    with SimLoop() as loop:
        assert loop.run(main()) == (6, 0.0)
    with SimLoop(executor_latency_us=250_000) as loop:
        assert loop.run(main()) == (6, 0.5)
    latencies = iter([1_000_000, 2_000_000])
    with SimLoop(executor_latency_us=lambda: next(latencies)) as loop:
        assert loop.run(main()) == (6, 3.0)


def test_real_sockets_threads_and_processes_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RealWorldRefused):
            await asyncio.open_connection("127.0.0.1", 9)
        with pytest.raises(RealWorldRefused):
            await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        with pytest.raises(RealWorldRefused):
            await loop.getaddrinfo("localhost", 80)
        with pytest.raises(RealWorldRefused):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(RealWorldRefused):
            loop.add_reader(0, lambda: None)
        with pytest.raises(RealWorldRefused):
            loop.add_signal_handler(15, lambda: None)

    with SimLoop() as loop:
        loop.run(main())


def test_debug_mode_tells_where_a_failing_callback_was_set() -> None:
    def fail() -> None:
        raise ValueError("debug")

    async def main() -> None:
        handles.append(asyncio.get_running_loop().call_later(1, fail))
        await asyncio.sleep(2)

    handles: list[asyncio.TimerHandle] = []
    with SimLoop() as loop:
        loop.set_debug(True)
        with pytest.raises(ValueError, match="debug") as caught:
            loop.run(main())
    assert "created at" in caught.value.__notes__[0]
    assert "test_loop.py" in caught.value.__notes__[0]


def test_the_collector_is_back_after_a_run() -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert gc.isenabled()
    with SimLoop() as loop:
        assert loop.run(main()) is False
    assert gc.isenabled()


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> None:
        for _ in range(20_000):
            async with asyncio.timeout(3600):
                await asyncio.sleep(0.0001)

    with SimLoop() as loop:
        loop.run(main())
        assert len(loop.timeline._heap) < 5000


def test_an_abandoned_asynchronous_generator_is_closed_in_its_own_process() -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimLoop)
            closed_in.append(loop.name)

    async def child() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    closed_in: list[str] = []
    with SimLoop() as loop:
        process = loop.fork("child")
        process.create_task(child())
        loop.run(asyncio.sleep(5))
    assert closed_in == ["child"]


# Processes


def test_a_paused_process_stands_still_and_catches_up_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def tick(name: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1)
            seen.append((name, loop.time()))

    async def main() -> None:
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(3)
        assert process.is_paused
        process.resume()
        await asyncio.sleep(1)

    with SimLoop() as loop:
        process = loop.fork("other")
        process.create_task(tick("other"))
        process.call_at(2, seen.append, ("first", 2.0))
        process.call_at(3, seen.append, ("second", 3.0))
        loop.run(main())
    assert seen == [
        ("other", 1.0),
        ("first", 2.0),
        ("second", 3.0),
        ("other", 4.5),
        ("other", 5.5),
    ]


def test_the_driving_loop_cannot_be_paused() -> None:
    with SimLoop() as loop, pytest.raises(SimulationError):
        loop.pause()


def test_a_deadlock_behind_a_pause_says_so() -> None:
    async def wait() -> None:
        await asyncio.sleep(1)

    with SimLoop() as loop:
        process = loop.fork("stopped")
        process.create_task(wait())
        process.pause()
        with pytest.raises(Deadlock, match=r"stopped \(paused\)"):
            loop.run(asyncio.Event().wait())


def test_a_killed_process_does_nothing_more_but_end_its_tasks() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("tick")
        finally:
            seen.append("cleanup")
            await asyncio.sleep(5)
            seen.append("cleanup after a wait")

    async def main() -> None:
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(100)

    with SimLoop() as loop:
        process = loop.fork("victim")
        process.create_task(work())
        process.call_at(3, seen.append, "timer")
        loop.run(main())
        assert process.is_dead
        assert process.tasks() == []
    assert seen == ["tick", "tick", "cleanup"]


def test_errors_of_a_dying_process_are_nobodys_business() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("too late")

    async def main() -> None:
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(1)

    with SimLoop() as loop:
        process = loop.fork("victim")
        process.create_task(work())
        loop.run(main())
    gc.collect()


def test_a_task_that_refuses_to_die_is_reported() -> None:
    async def work() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async def main() -> None:
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(1)

    loop = SimLoop()
    process = loop.fork("immortal")
    task = process.create_task(work())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with pytest.raises(SimulationError, match="immortal has tasks that refuse cancellation"):
        loop.run(main())
    loop.close()


def test_a_process_can_kill_itself_and_gets_no_further_than_its_next_wait() -> None:
    seen: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.kill()
        seen.append("before the next wait")
        await asyncio.sleep(0)
        seen.append("after it")

    with SimLoop() as loop:
        process = loop.fork("suicidal")
        process.create_task(work())
        loop.run(asyncio.sleep(1))
    assert seen == ["before the next wait"]


def test_a_fast_clock_fires_its_timers_early_for_everyone_else() -> None:
    seen: list[float] = []

    async def tick() -> None:
        await asyncio.sleep(100)
        seen.append(loop.now_ms)

    with SimLoop() as loop:
        for rate in (1.01, 1.0, 0.99):
            process = loop.fork(f"rate {rate}")
            process.set_rate(rate)
            process.create_task(tick())
        loop.run_for(200_000)
    assert seen == pytest.approx([100_000 / 1.01, 100_000, 100_000 / 0.99], abs=0.002)


# Speed


def test_virtual_time_is_fast() -> None:
    """Far below what a quiet machine does (over 400,000 a second), to hold on a busy one."""

    async def sleeper() -> None:
        for _ in range(1000):
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(sleeper())

    with SimLoop() as loop:
        loop.set_debug(False)
        began = time.process_time()
        loop.run(main())
        rate = loop.timeline.callbacks / (time.process_time() - began)
    print(f"{rate:,.0f} callbacks/s")
    assert rate > 60_000
