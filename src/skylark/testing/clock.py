"""SimClock: the clocks of one simulated machine.

Its monotonic clock is that of the process's SimLoop: it may run fast or slow and never jumps. Its
wall clock follows the monotonic one and jumps when told to, as a correction by hand or NTP does.
"""

from __future__ import annotations

import asyncio

from .loop import SimLoop

# 2026-01-01 00:00 UTC: a fixed wall time, so that nothing in a run depends on the day it is run.
EPOCH_MS = 1_767_225_600_000


class SimClock:
    """A Clock in virtual time, with offset, drift and jumps."""

    def __init__(
        self, loop: SimLoop, *, offset_ms: int = 0, drift: float = 0.0, epoch_ms: int = EPOCH_MS
    ) -> None:
        """Start at the epoch plus an offset; a drift of 0.01 gains one second in a hundred."""
        self._loop = loop
        self._wall_ms = epoch_ms + offset_ms
        if drift:
            self.set_drift(drift)

    def now_ms(self) -> int:
        return self._wall_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        # Times are whole microseconds, so this only takes the floats' error out.
        return int(self._loop.time() * 1e6 + 0.5) // 1000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def jump_ms(self, delta_ms: int) -> None:
        """Move the wall clock, forward or back."""
        self._wall_ms += delta_ms

    def set_drift(self, drift: float) -> None:
        """Let both clocks gain (or lose, if negative) this fraction from now on."""
        self._loop.set_rate(1 + drift)

    def attach(self, loop: SimLoop) -> None:
        """Follow the loop of the process that runs on this machine now."""
        self._wall_ms += self.monotonic_ms()
        self._loop = loop
        self._wall_ms -= self.monotonic_ms()
