"""Arrivals: wakes waiting pulls.

A pull that finds nothing is held here, at the cost of one small object, until a message arrives in
its queue that it may want, or its time is up. Messages are reported by the store's dispatcher, in
the middle of its work; so waiters are only collected then, and run in the next turn of the loop.

Waiters of one timeout are held in the order of their deadlines, so that looking for those whose
time is up costs nothing while there are none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock
from ..store import Arrival

_STEP_MS = 100  # Timeouts are rounded up to this, so that there are few kinds of them.
_SWEEP_MIN = 1_024


def _nothing() -> None:
    """What a waiter does that has done its work: its pull must not be kept alive by it."""


class WatchedStore(Protocol):
    """What is asked of the store."""

    def watch(self, topic: str, queue_id: int) -> None: ...
    def unwatch(self, topic: str, queue_id: int) -> None: ...


class Waiter:
    """One held pull."""

    __slots__ = ("deadline_ms", "is_done", "key", "offset", "resume", "tag_hashes")

    def __init__(
        self,
        key: tuple[str, int],
        offset: int,
        tag_hashes: frozenset[int] | None,
        deadline_ms: int,
        resume: Callable[[], None],
    ) -> None:
        self.key = key
        self.offset = offset
        self.tag_hashes = tag_hashes  # None: any message will do.
        self.deadline_ms = deadline_ms
        self.resume = resume
        self.is_done = False


class Arrivals:
    """All held pulls."""

    def __init__(self, store: WatchedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_queue: dict[tuple[str, int], list[Waiter]] = {}
        self._by_timeout: dict[int, deque[Waiter]] = {}
        self._ready: list[Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._count = 0
        self._listeners: dict[str, Callable[[Arrival], None]] = {}
        self.is_closed = False

    def __len__(self) -> int:
        return self._count

    def held(self) -> dict[tuple[str, int], int]:
        """How many pulls wait at each queue."""
        return {key: len(waiters) for key, waiters in self._by_queue.items()}

    def wait(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        tag_hashes: frozenset[int] | None,
        timeout_ms: int,
        resume: Callable[[], None],
    ) -> Waiter:
        """Call resume once, when a message from the offset on may match or the time is up."""
        timeout_ms = max(1, -(-timeout_ms // _STEP_MS)) * _STEP_MS
        key = (topic, queue_id)
        waiter = Waiter(key, offset, tag_hashes, self._clock.monotonic_ms() + timeout_ms, resume)
        waiters = self._by_queue.get(key)
        if waiters is None:
            self._by_queue[key] = [waiter]
            self._store.watch(topic, queue_id)
        else:
            waiters.append(waiter)
        self._count += 1
        queue = self._by_timeout.get(timeout_ms)
        if queue is None:
            queue = self._by_timeout[timeout_ms] = deque()
        queue.append(waiter)
        if len(queue) > _SWEEP_MIN and len(queue) > 4 * self._count:
            # Most of them were woken long before their deadline.
            self._by_timeout[timeout_ms] = deque(item for item in queue if not item.is_done)
        if self._timer is None or waiter.deadline_ms < self._timer_at_ms:
            self._set_timer(waiter.deadline_ms)
        if self.is_closed:
            self._wake(waiter)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Forget a waiter whose peer is gone."""
        if not waiter.is_done:
            waiter.is_done = True
            waiter.resume = _nothing
            self._remove(waiter)

    def listen(self, topic: str, listener: Callable[[Arrival], None]) -> None:
        """Have all arrivals of a topic reported whose queues are watched."""
        self._listeners[topic] = listener

    # Waking.

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Take note of new messages; called by the store while it dispatches them."""
        for arrival in arrivals:
            if self._listeners:
                listener = self._listeners.get(arrival.topic)
                if listener is not None:
                    listener(arrival)
            waiters = self._by_queue.get((arrival.topic, arrival.queue_id))
            if waiters is None:
                continue
            offset, tag = arrival.queue_offset, arrival.tag_hash
            woken = [
                waiter
                for waiter in waiters
                if offset >= waiter.offset
                and (waiter.tag_hashes is None or tag in waiter.tag_hashes)
            ]
            for waiter in woken:
                self._wake(waiter)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Let every pull of a queue look again, whatever it waits for."""
        for waiter in list(self._by_queue.get((topic, queue_id), ())):
            self._wake(waiter)

    def close(self) -> None:
        """Let all pulls go; from here on none is held."""
        self.is_closed = True
        for waiters in list(self._by_queue.values()):
            for waiter in list(waiters):
                self._wake(waiter)
        self._run_ready()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, waiter: Waiter) -> None:
        if waiter.is_done:
            return
        waiter.is_done = True
        self._remove(waiter)
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._run_ready)
        self._ready.append(waiter)

    def _run_ready(self) -> None:
        ready, self._ready = self._ready, []
        for waiter in ready:
            resume, waiter.resume = waiter.resume, _nothing
            resume()

    def _remove(self, waiter: Waiter) -> None:
        self._count -= 1
        waiters = self._by_queue[waiter.key]
        if len(waiters) > 1:
            waiters.remove(waiter)
        else:
            del self._by_queue[waiter.key]
            self._store.unwatch(*waiter.key)

    # Time.

    def _set_timer(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        next_ms: int | None = None
        for timeout_ms, queue in list(self._by_timeout.items()):
            while queue and (queue[0].is_done or queue[0].deadline_ms <= now_ms):
                self._wake(queue.popleft())
            if not queue:
                del self._by_timeout[timeout_ms]
            elif next_ms is None or queue[0].deadline_ms < next_ms:
                next_ms = queue[0].deadline_ms
        if next_ms is not None:
            self._set_timer(next_ms)
