"""Durability: when a message is as safe as its broker's settings promise.

    flushDiskType   brokerRole      a send is answered when the message is
    ASYNC_FLUSH     ASYNC_MASTER    in the log
    SYNC_FLUSH      ASYNC_MASTER    on the disk
    ASYNC_FLUSH     SYNC_MASTER     in the log, and at a replica
    SYNC_FLUSH      SYNC_MASTER     on the disk, and at a replica, on its disk if it has SYNC_FLUSH

One after the other: a replica is sent only what its master will not lose. Where it takes too long
the message is stored all the same, and the answer says what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..replication.quorum import Quorum
from ..store import MessageStore, PutStatus
from .flow import FlowControl


class FlushWaiter(Protocol):
    """What is asked of the flusher."""

    def flushed(self, offset: int) -> asyncio.Future[bool]: ...


class Durability:
    """Knows what answers wait for."""

    def __init__(
        self,
        store: MessageStore,
        flusher: FlushWaiter,
        flow: FlowControl,
        quorum: Quorum | None,
        *,
        replica_timeout_ms: int,
    ) -> None:
        self.store = store
        self.flusher = flusher
        self.flow = flow
        self.quorum = quorum  # None: nobody waits for replicas.
        self.replica_timeout_ms = replica_timeout_ms
        self.flushes = store.config.is_sync_flush
        self.is_waited_for = self.flushes or quorum is not None

    def is_safe(self, end: int) -> bool:
        """Whether the log up to an offset is as safe as promised."""
        if self.flushes and not self.store.is_flushed(end):
            return False
        return self.quorum is None or self.quorum.is_replicated(end)

    def when_safe(
        self, end: int, count: int, done: Callable[[PutStatus | None], None]
    ) -> Callable[[], None]:
        """Call back once the log is safe up to an offset, or with what it lacks after too long.

        What is returned gives the wait up. The count is how many sends wait, for flow control.
        """
        wait = _Wait(self, end, count, done)
        wait.begin()
        return wait.cancel


class _Wait:
    """One batch that waits: first for the disk, then for a replica."""

    def __init__(
        self,
        owner: Durability,
        end: int,
        count: int,
        done: Callable[[PutStatus | None], None],
    ) -> None:
        self._owner = owner
        self._end = end
        self._count = count
        self._done = done
        self._timer: asyncio.TimerHandle | None = None
        self._leave: Callable[[int], None] | None = None

    def begin(self) -> None:
        owner = self._owner
        if not owner.flushes or owner.store.is_flushed(self._end):
            self._replicate()
            return
        owner.flow.begin_wait(self._count)
        self._leave = owner.flow.end_wait
        timeout_ms = owner.store.config.sync_flush_timeout
        self._start_timer(timeout_ms, PutStatus.FLUSH_DISK_TIMEOUT)
        owner.flusher.flushed(self._end).add_done_callback(self._flushed)

    def _flushed(self, done: asyncio.Future[bool]) -> None:
        if self._leave is None:
            return  # Timed out, or given up.
        # A flush that failed will never be made up for: the store is closed to writes.
        if done.cancelled() or done.exception() is not None:
            self._finish(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        self.cancel()
        self._replicate()

    def _replicate(self) -> None:
        owner = self._owner
        quorum = owner.quorum
        if quorum is None or quorum.is_replicated(self._end):
            self._finish(None)
        elif not quorum.is_available(self._end):
            self._finish(PutStatus.SLAVE_NOT_AVAILABLE)
        else:
            owner.flow.begin_replica_wait(self._count)
            self._leave = owner.flow.end_replica_wait
            self._start_timer(owner.replica_timeout_ms, PutStatus.FLUSH_SLAVE_TIMEOUT)
            quorum.replicated(self._end).add_done_callback(self._replicated)

    def _replicated(self, done: asyncio.Future[bool]) -> None:
        if self._leave is not None:
            self._finish(None)

    def _start_timer(self, timeout_ms: int, status: PutStatus) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_ms / 1000, self._finish, status)

    def _finish(self, status: PutStatus | None) -> None:
        self.cancel()
        self._done(status)

    def cancel(self) -> None:
        """Stop waiting; nobody is called back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave(self._count)
