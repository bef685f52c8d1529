"""Quorum: wait_replicated(offset); what SYNC_MASTER answers wait for.

A message is replicated when a replica has confirmed the log beyond it. Waiters are held by offset,
so that one confirmation frees all of them that it covers, however many batches they came in.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import NamedTuple

from .master import Master


class _Waiter(NamedTuple):
    offset: int
    number: int  # Breaks ties, so that futures are never compared.
    future: asyncio.Future[bool]


class Quorum:
    """Those who wait for a second copy."""

    def __init__(self, master: Master, *, fall_behind_max: int, copies: int = 1) -> None:
        self._master = master
        self._fall_behind_max = fall_behind_max
        self._copies = copies
        self._waiters: list[_Waiter] = []
        self._count = 0

    def is_available(self, offset: int) -> bool:
        """Whether waiting for this offset has a chance: a replica is there and near enough."""
        reports = [f.reported for f in self._master.followers if f.asked >= 0]
        if len(reports) < self._copies:
            return False
        return offset - sorted(reports, reverse=True)[self._copies - 1] < self._fall_behind_max

    def is_replicated(self, offset: int) -> bool:
        """Whether everything below a physical offset would survive the loss of this machine."""
        return self._master.confirmed(self._copies) >= offset

    def replicated(self, offset: int) -> asyncio.Future[bool]:
        """A future that is done when an offset is replicated; the caller minds the time."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self.is_replicated(offset):
            future.set_result(True)
        else:
            self._count += 1
            heappush(self._waiters, _Waiter(offset, self._count, future))
        return future

    async def wait_replicated(self, offset: int, timeout_ms: int) -> bool:
        """Wait until an offset is replicated; False if time runs out."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.replicated(offset)
        except TimeoutError:
            return False

    def advance(self) -> None:
        """Let those go whose offset is replicated now, and forget those that gave up."""
        waiters = self._waiters
        if not waiters:
            return
        confirmed = self._master.confirmed(self._copies)
        while waiters and (waiters[0].offset <= confirmed or waiters[0].future.done()):
            future = heappop(waiters).future
            if not future.done():
                future.set_result(True)

    def __len__(self) -> int:
        return len(self._waiters)
