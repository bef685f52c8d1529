"""Clock: the only source of time.

Wall time (now_ms) is for what people and files see; monotonic time is for every duration, lease and
time-out, because wall clocks jump. Tests hand in a SimClock instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, and how to wait for later."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970; may jump in either direction."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; never goes back."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait, without blocking the loop."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)
