"""RaftQuorum: those who wait until the members of a group agree on what they have put.

Waiters are held by offset, so that one step of the group frees all of them that it covers.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import NamedTuple

from .raft import Raft


class _Waiter(NamedTuple):
    offset: int
    number: int  # Breaks ties, so that futures are never compared.
    future: asyncio.Future[bool]


class RaftQuorum:
    """Those who wait for agreement; for broker/durability.py, in the place of Quorum."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._waiters: list[_Waiter] = []
        self._count = 0

    def is_available(self, offset: int) -> bool:
        """Whether waiting has a chance: this member leads and hears of a majority."""
        return self._raft.lease_ticks > 0

    def is_replicated(self, offset: int) -> bool:
        """Whether everything below a physical offset is agreed; False on anyone but the leader."""
        return self._raft.is_leader and self._raft.committed >= offset

    def replicated(self, offset: int) -> asyncio.Future[bool]:
        """A future: True when the log is agreed up to an offset; False if leadership is lost first.

        False means that nobody knows yet whether the message stays: the sender must be told of an
        error, never SEND_OK. To be called in the same turn of the loop as the put; the caller minds
        the time. It is agreed only when a majority has it on disk, so the flusher need not be
        waited for as well.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self.is_replicated(offset) or not self._raft.is_leader:
            future.set_result(self._raft.is_leader)
        else:
            self._count += 1
            heappush(self._waiters, _Waiter(offset, self._count, future))
        return future

    def advance(self, *, is_lost: bool = False) -> None:
        """Let those go whose offset is agreed now; or all, if leadership is lost."""
        waiters, committed = self._waiters, self._raft.committed
        while waiters and (is_lost or waiters[0].offset <= committed or waiters[0].future.done()):
            future = heappop(waiters).future
            if not future.done():
                future.set_result(not is_lost)

    def __len__(self) -> int:
        return len(self._waiters)
