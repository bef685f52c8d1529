"""QueueLocks: which member of a group may consume a queue in order.

A lock is a lease: it ends queueLockLeaseMs after the last time its owner asked, by the monotonic
clock, so that no jump of the wall clock hands a queue to two. Each change of owner raises the
fencing token, and what a former owner does late is recognised by it: its commits are refused.

    # At any moment at most one client owns (group, queue); tokens of one lock only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..clock import Clock
from ..model.queue import MessageQueue

LOCKS_MAX = 1_000_000


class QueueLock(NamedTuple):
    """Who has a queue, until when, and which owner in a row that is."""

    client_id: str
    until_ms: int
    token: int


class QueueLocks:
    """All locks of this broker; they live in memory, and clients renew them after a restart."""

    def __init__(self, clock: Clock, *, lease_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._locks: dict[tuple[str, MessageQueue], QueueLock] = {}
        self._token = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> tuple[MessageQueue, ...]:
        """Take or renew what is free or one's own; return the queues that the client now has."""
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + self._lease_ms()
        granted = []
        for queue in queues:
            key = (group, queue)
            held = self._locks.get(key)
            if held is None and len(self._locks) >= LOCKS_MAX:
                self._drop_expired(now_ms)
                if len(self._locks) >= LOCKS_MAX:
                    break
            if held is not None and held.client_id == client_id and held.until_ms > now_ms:
                self._locks[key] = held._replace(until_ms=until_ms)
            elif held is None or held.until_ms <= now_ms:
                self._token += 1
                self._locks[key] = QueueLock(client_id, until_ms, self._token)
            else:
                continue
            granted.append(queue)
        return tuple(granted)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> int:
        """Give back what the client has; return how many that were."""
        count = 0
        for queue in queues:
            held = self._locks.get((group, queue))
            if held is not None and held.client_id == client_id:
                del self._locks[group, queue]
                count += 1
        return count

    def owner(self, group: str, queue: MessageQueue) -> QueueLock | None:
        """Who has a queue now."""
        held = self._locks.get((group, queue))
        if held is None or held.until_ms <= self._clock.monotonic_ms():
            return None
        return held

    def owned(self) -> dict[tuple[str, MessageQueue], QueueLock]:
        """All locks in force."""
        now_ms = self._clock.monotonic_ms()
        return {key: lock for key, lock in self._locks.items() if lock.until_ms > now_ms}

    def drop_expired(self) -> None:
        """Forget locks that have run out."""
        self._drop_expired(self._clock.monotonic_ms())

    def _drop_expired(self, now_ms: int) -> None:
        for key in [key for key, lock in self._locks.items() if lock.until_ms <= now_ms]:
            del self._locks[key]
