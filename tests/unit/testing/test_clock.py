"""SimClock: offset, drift and jumps."""

import asyncio

import pytest

from skylark.testing import SimClock, SimLoop


def test_wall_time_starts_at_a_fixed_date_and_moves_with_virtual_time() -> None:
    with SimLoop() as loop:
        clock = SimClock(loop)
        assert clock.now_ms() == 1_767_225_600_000  # 2026-01-01T00:00:00Z
        assert clock.monotonic_ms() == 0
        loop.run(clock.sleep_ms(1234))
        assert clock.now_ms() == 1_767_225_601_234
        assert clock.monotonic_ms() == 1234


def test_every_millisecond_is_seen_exactly() -> None:
    async def main() -> list[int]:
        seen = []
        for _ in range(5000):
            seen.append(clock.monotonic_ms())
            await clock.sleep_ms(1)
        return seen

    with SimLoop() as loop:
        clock = SimClock(loop)
        assert loop.run(main()) == list(range(5000))


@pytest.mark.parametrize("delta_ms", [3_600_000, -3_600_000, 86_400_000, -86_400_000])
def test_a_jump_moves_the_wall_clock_alone(delta_ms: int) -> None:
    with SimLoop() as loop:
        clock = SimClock(loop, offset_ms=500)
        loop.run(clock.sleep_ms(100))
        before = clock.now_ms(), clock.monotonic_ms()
        clock.jump_ms(delta_ms)
        assert (clock.now_ms(), clock.monotonic_ms()) == (before[0] + delta_ms, before[1])
        loop.run(clock.sleep_ms(1000))
        assert loop.now_ms == 1100, "waiting is not moved by a jump"


def test_a_jump_does_not_wake_or_delay_a_sleeper() -> None:
    async def main() -> int:
        sleeper = asyncio.ensure_future(clock.sleep_ms(10_000))
        await clock.sleep_ms(1000)
        clock.jump_ms(3_600_000)
        await sleeper
        return clock.monotonic_ms()

    with SimLoop() as loop:
        clock = SimClock(loop)
        assert loop.run(main()) == 10_000


def test_drift_shows_in_both_clocks_and_monotonic_time_never_goes_back() -> None:
    async def main() -> None:
        last = 0
        for step in range(1000):
            if step % 100 == 0:
                fast.set_drift(0.01 if step % 200 else -0.01)
            await right.sleep_ms(1000)
            assert fast.monotonic_ms() >= last
            last = fast.monotonic_ms()

    with SimLoop() as loop:
        other = loop.fork("other")
        right, fast = SimClock(loop), SimClock(other, drift=0.01)
        loop.run(right.sleep_ms(100_000))
        assert fast.monotonic_ms() - right.monotonic_ms() == 1000
        assert fast.now_ms() - right.now_ms() == 1000
        loop.run(main())


def test_a_clock_keeps_its_wall_time_when_its_machine_starts_a_new_process() -> None:
    with SimLoop() as loop:
        first = loop.fork("first")
        clock = SimClock(first, drift=0.01)
        loop.run(asyncio.sleep(1000))
        wall, monotonic = clock.now_ms(), clock.monotonic_ms()
        clock.attach(loop.fork("second", like=first))
        assert (clock.now_ms(), clock.monotonic_ms()) == (wall, monotonic)
        loop.run(asyncio.sleep(1000))
        assert clock.monotonic_ms() == monotonic + 1_010_000


def test_an_impossible_drift_is_refused() -> None:
    with SimLoop() as loop, pytest.raises(ValueError, match="rate"):
        SimClock(loop, drift=5)
