"""QueueLocks: which member of a group may consume a queue in order.

A lock is a lease: it ends queueLockLeaseMs after the last time its owner asked, by the monotonic
clock, so that no jump of the wall clock hands a queue to two. Each change of owner raises the
fencing token, and what a former owner does late is recognised by it: its commits are refused.

    # At any moment at most one client owns (group, queue); tokens of one lock only grow.

In a Raft group every change of owner goes through the ledger, and is answered when the group has
agreed. Renewals do not: whoever begins to lead gives all owners that it knows of a whole lease from
that moment on, which ends later than any that the former leader gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..clock import Clock
from ..model.queue import MessageQueue
from .ledger import Change, Ledger

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
        # In a Raft group: where changes are written down first, and what the group has agreed on.
        self.ledger: Ledger | None = None
        self._agreed: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> tuple[MessageQueue, ...]:
        """Take or renew what is free or one's own; return the queues that the client now has."""
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + self._lease_ms()
        granted = []
        taken: dict[tuple[str, MessageQueue], QueueLock] = {}
        for queue in queues:
            key = (group, queue)
            held = self._locks.get(key)
            if held is None and len(self._locks) + len(taken) >= LOCKS_MAX:
                self._drop_expired(now_ms)
                if len(self._locks) + len(taken) >= LOCKS_MAX:
                    break
            if held is not None and held.client_id == client_id and held.until_ms > now_ms:
                self._locks[key] = held._replace(until_ms=until_ms)
            elif held is None or held.until_ms <= now_ms:
                self._token += 1
                taken[key] = QueueLock(client_id, until_ms, self._token)
            else:
                continue
            granted.append(queue)
        if taken:
            self._write(taken=taken)
            self._locks.update(taken)
        return tuple(granted)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> int:
        """Give back what the client has; return how many that were."""
        freed = [
            key
            for key in dict.fromkeys((group, queue) for queue in queues)
            if key in self._locks and self._locks[key].client_id == client_id
        ]
        self._free(freed)
        return len(freed)

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
        """Forget locks that have run out; raises BrokerError where that cannot be written."""
        if self.ledger is None or self.ledger.is_open:
            self._drop_expired(self._clock.monotonic_ms())

    def _drop_expired(self, now_ms: int) -> None:
        self._free([key for key, lock in self._locks.items() if lock.until_ms <= now_ms])

    def _free(self, keys: list[tuple[str, MessageQueue]]) -> None:
        if keys:
            self._write(freed=keys)
            for key in keys:
                del self._locks[key]

    # In a Raft group.

    def _write(
        self,
        *,
        taken: Mapping[tuple[str, MessageQueue], QueueLock] | None = None,
        freed: Iterable[tuple[str, MessageQueue]] = (),
    ) -> None:
        if self.ledger is not None:
            items = [
                [group, queue.topic, queue.broker_name, queue.queue_id, lock.client_id, lock.token]
                for (group, queue), lock in (taken or {}).items()
            ]
            items += [
                [group, queue.topic, queue.broker_name, queue.queue_id, "", 0]
                for group, queue in freed
            ]
            self.ledger.write(Change.LOCKS, {"locks": items})

    def apply(self, items: Iterable[list[Any]]) -> None:
        """Take note of what the group has agreed on; an owner without a name is none."""
        for group, topic, broker_name, queue_id, client_id, token in items:
            key = (str(group), MessageQueue(str(topic), str(broker_name), int(queue_id)))
            if client_id:
                self._agreed[key] = str(client_id), int(token)
                self._token = max(self._token, int(token))
            else:
                self._agreed.pop(key, None)

    def agreed(self) -> list[list[Any]]:
        """All owners that the group has agreed on, in the form that apply() takes."""
        return [
            [group, queue.topic, queue.broker_name, queue.queue_id, client_id, token]
            for (group, queue), (client_id, token) in self._agreed.items()
        ]

    @property
    def token(self) -> int:
        """The highest fencing token so far."""
        return self._token

    def restore(self, items: Iterable[list[Any]], token: int) -> None:
        """Become what a snapshot says; tokens go on from there, though nobody owns anything."""
        self._agreed.clear()
        self._token = max(self._token, token)
        self.apply(items)

    def begin_leading(self) -> None:
        """Give every owner a lease from now on."""
        until_ms = self._clock.monotonic_ms() + self._lease_ms()
        self._locks = {
            key: QueueLock(client_id, until_ms, token)
            for key, (client_id, token) in self._agreed.items()
        }

    def end_leading(self) -> None:
        """Somebody else gives leases now."""
        self._locks.clear()
