"""Durability: when a message is as safe as its broker's settings promise.

    flushDiskType   brokerRole      a send is answered when the message is
    ASYNC_FLUSH     ASYNC_MASTER    in the log
    SYNC_FLUSH      ASYNC_MASTER    on the disk
    ASYNC_FLUSH     SYNC_MASTER     in the log, and at a replica
    SYNC_FLUSH      SYNC_MASTER     on the disk, and at a replica, on its disk if it has SYNC_FLUSH
    any             Raft group      on the disks of most members

One after the other: a replica is sent only what its master will not lose. Where it takes too long
the message is stored all the same, and the answer says what is missing. Not so in a Raft group: it
may yet drop a message that most members do not have, and so the answer is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..errors import StoreClosed
from ..store import MessageStore, PutStatus
from .flow import FlowControl


class FlushWaiter(Protocol):
    """What is asked of the flusher."""

    def flushed(self, offset: int) -> asyncio.Future[bool]: ...


class Waiters(Protocol):
    """What is asked of replicas: replication.Quorum, or a Raft group's."""

    def is_available(self, offset: int) -> bool: ...
    def is_replicated(self, offset: int) -> bool: ...
    def replicated(self, offset: int) -> asyncio.Future[bool]: ...


class AgreedWaiter:
    """What takes the flusher's place in a Raft group: what is not agreed may not stay."""

    def __init__(self, store: MessageStore, quorum: Waiters) -> None:
        self._store = store
        self._quorum = quorum

    def flushed(self, offset: int) -> asyncio.Future[bool]:
        """A future that is done when the group has agreed up to an offset."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if is_safe(self._store, offset):
            future.set_result(True)
            return future

        def agreed(done: asyncio.Future[bool]) -> None:
            if future.done():
                return
            if not done.cancelled() and done.exception() is None and done.result():
                future.set_result(True)
                return
            future.set_exception(
                StoreClosed("leadership was lost before the group agreed; try the new leader")
            )
            future.exception()  # Seen: who gave up waiting will not fetch it.

        self._quorum.replicated(offset).add_done_callback(agreed)
        return future


def is_safe(store: MessageStore, offset: int) -> bool:
    """Whether nothing below an offset can be lost: flushed, and agreed where that is needed."""
    return store.is_flushed(offset) and (store.agreed is None or store.agreed >= offset)


class Durability:
    """Knows what answers wait for."""

    def __init__(
        self,
        store: MessageStore,
        flusher: FlushWaiter,
        flow: FlowControl,
        quorum: Waiters | None,
        *,
        replica_timeout_ms: int,
    ) -> None:
        self.store = store
        self.flusher = flusher
        self.flow = flow
        self.quorum = quorum  # None: nobody waits for replicas.
        self.replica_timeout_ms = replica_timeout_ms
        # A group agrees on what most members have on their disks; more is not waited for.
        self.is_raft = store.agreed is not None
        self.flushes = store.config.is_sync_flush and not self.is_raft
        self.is_waited_for = self.flushes or quorum is not None

    def is_safe(self, end: int, *, on_disk: bool = False) -> bool:
        """Whether the log up to an offset is as safe as promised; or on the disk in any case."""
        if self.flushes_for(on_disk) and not self.store.is_flushed(end):
            return False
        return self.quorum is None or self.quorum.is_replicated(end)

    def flushes_for(self, on_disk: bool) -> bool:
        """Whether the disk is waited for, by what must not be lost whatever flushDiskType says."""
        return self.flushes or (on_disk and not self.is_raft)

    def when_safe(
        self,
        end: int,
        count: int,
        done: Callable[[PutStatus | None], None],
        *,
        on_disk: bool = False,
    ) -> Callable[[], None]:
        """Call back once the log is safe up to an offset, or with what it lacks after too long.

        What is returned gives the wait up. The count is how many sends wait, for flow control.
        """
        wait = _Wait(self, end, count, done, flushes=self.flushes_for(on_disk))
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
        *,
        flushes: bool,
    ) -> None:
        self._owner = owner
        self._flushes = flushes
        self._end = end
        self._count = count
        self._done = done
        self._timer: asyncio.TimerHandle | None = None
        self._leave: Callable[[int], None] | None = None

    def begin(self) -> None:
        owner = self._owner
        if not self._flushes or owner.store.is_flushed(self._end):
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
        elif not owner.is_raft and not quorum.is_available(self._end):
            self._finish(PutStatus.SLAVE_NOT_AVAILABLE)
        else:
            owner.flow.begin_replica_wait(self._count)
            self._leave = owner.flow.end_replica_wait
            late = PutStatus.OS_PAGECACHE_BUSY if owner.is_raft else PutStatus.FLUSH_SLAVE_TIMEOUT
            self._start_timer(owner.replica_timeout_ms, late)
            quorum.replicated(self._end).add_done_callback(self._replicated)

    def _replicated(self, done: asyncio.Future[bool]) -> None:
        if self._leave is None:
            return
        is_lost = done.cancelled() or done.exception() is not None or not done.result()
        self._finish(PutStatus.SERVICE_NOT_AVAILABLE if is_lost else None)

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
