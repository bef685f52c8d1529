"""Lines: messages between the pull and the handler.

    ConcurrentLine   all messages in one line; whoever is free takes the next batch
    OrderlyLine      all queues in one line; a queue comes back when its batch is done, so that
                     one batch of it is out at a time, in order

Handlers that never wait are common, so waking up workers is done in a chain: one is woken, and it
wakes the next as long as there is more to do. A handler that does not wait then keeps one worker
busy, and the others asleep.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from .process_queue import ProcessQueue
from .received import ReceivedMessage

Batch = tuple[ProcessQueue, list[ReceivedMessage]]


class Line(Protocol):
    """Hands out batches, one at a time to each who asks."""

    def add(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages of a queue have arrived."""
        ...

    def take(self) -> Batch | None:
        """The next batch, which is out until `back`; None for now; raises LineClosed."""
        ...

    async def wait(self) -> None:
        """Wait until there may be a batch; raises LineClosed."""
        ...

    def back(self, queue: ProcessQueue, now_ms: int) -> None:
        """A batch is not out any more, however it fared."""
        ...

    def put_back(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """A batch was taken and not looked at: it is the next to go out again."""
        ...

    def close(self) -> None:
        """Hand out nothing more; those who wait get LineClosed."""
        ...


class LineClosed(Exception):
    """Nothing more will be handed out."""


class _Waiters:
    """Those who wait for something to do."""

    def __init__(self) -> None:
        self.waiting = deque[asyncio.Future[None]]()
        self._is_waking = False
        self.is_closed = False

    def wake_one(self) -> None:
        while self.waiting and not self._is_waking:
            waiter = self.waiting.popleft()
            if not waiter.done():
                self._is_waking = True
                waiter.set_result(None)

    async def wait(self) -> None:
        if self.is_closed:
            raise LineClosed
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._is_waking = False
                self.wake_one()  # It was meant for somebody who can take it.
            raise
        self._is_waking = False

    def close(self) -> None:
        self.is_closed = True
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(LineClosed())
        self.waiting.clear()


class ConcurrentLine:
    """Messages of all queues, in the order of their arrival."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._ready = deque[Batch]()
        self._waiters = _Waiters()
        self._later: set[asyncio.TimerHandle] = set()
        self._put_off: set[ReceivedMessage] = set()

    def add(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages of a queue have arrived."""
        size = self._batch_size
        if size == 1:
            self._ready.extend([(queue, [message]) for message in messages])
        else:
            for at in range(0, len(messages), size):
                self._ready.append((queue, messages[at : at + size]))
        self._waiters.wake_one()

    def take(self) -> Batch | None:
        """The next batch; None for now."""
        ready = self._ready
        while ready:
            batch = ready.popleft()
            queue = batch[0]
            if queue.is_dropped or queue.is_leaving:
                continue
            queue.running_count += 1
            if ready and self._waiters.waiting:
                self._waiters.wake_one()
            return batch
        if self._waiters.is_closed:
            raise LineClosed
        return None

    @property
    def ready_count(self) -> int:
        """How many batches wait."""
        return len(self._ready)

    async def wait(self) -> None:
        """Wait until there may be a batch."""
        await self._waiters.wait()

    def finish(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """These are done."""
        if not queue.is_dropped:
            queue.finish(messages)

    def back(self, queue: ProcessQueue, now_ms: int) -> None:
        """A batch is not out any more, however it fared."""
        queue.running_count -= 1
        queue.consumed_at_ms = now_ms

    def put_back(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """A batch was taken and not looked at."""
        queue.running_count -= 1
        self._ready.appendleft((queue, messages))
        self._waiters.wake_one()

    def again(self, queue: ProcessQueue, messages: list[ReceivedMessage], delay_ms: int) -> None:
        """Hand these out once more, later."""
        if self._waiters.is_closed:
            return
        for message in messages:
            message.started_at_ms = None
        self._put_off.update(messages)

        def add() -> None:
            self._later.discard(handle)
            self._put_off.difference_update(messages)
            if not queue.is_dropped:
                self.add(queue, messages)

        handle = asyncio.get_running_loop().call_later(delay_ms / 1000, add)
        self._later.add(handle)

    def resume(self, queue: ProcessQueue) -> None:
        """A queue that was about to leave stays: what was passed over lines up again."""
        lined_up = {message for owner, batch in self._ready if owner is queue for message in batch}
        passed_over = [
            message
            for message in queue.open_messages()
            if message.started_at_ms is None
            and message not in lined_up
            and message not in self._put_off
        ]
        self.add(queue, passed_over)

    def close(self) -> None:
        """Hand out nothing more."""
        self._ready.clear()
        self._put_off.clear()
        self._waiters.close()
        for handle in self._later:
            handle.cancel()
        self._later.clear()


class OrderlyLine:
    """Queues that have messages and none of them out."""

    def __init__(
        self,
        batch_size: int,
        *,
        may_hand_out: Callable[[ProcessQueue], bool],
        recheck_ms: int = 100,
    ) -> None:
        self._batch_size = batch_size
        self._may_hand_out = may_hand_out
        self._recheck_ms = recheck_ms
        self._ready = deque[ProcessQueue]()
        self._waiters = _Waiters()
        self._later: set[asyncio.TimerHandle] = set()

    def add(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages of a queue have arrived."""
        queue.arrived.extend(messages)
        self.offer(queue)

    def offer(self, queue: ProcessQueue) -> None:
        """A queue may be ready."""
        if queue.arrived and not queue.is_busy and not queue.is_dropped and not queue.is_leaving:
            queue.is_busy = True
            self._ready.append(queue)
            self._waiters.wake_one()

    def resume(self, queue: ProcessQueue) -> None:
        """A queue that was about to leave stays."""
        self.offer(queue)

    def take(self) -> Batch | None:
        """The next batch; None for now."""
        while self._ready:
            queue = self._ready.popleft()
            if queue.is_dropped or queue.is_leaving:
                queue.is_busy = False
                continue
            if not self._may_hand_out(queue):
                # Its lock has run out. Another may hold it by now, so nothing goes out until it
                # is confirmed again.
                self.release(queue, self._recheck_ms)
                continue
            queue.running_count += 1
            if self._ready and self._waiters.waiting:
                self._waiters.wake_one()
            return queue, queue.take(self._batch_size)
        if self._waiters.is_closed:
            raise LineClosed
        return None

    async def wait(self) -> None:
        """Wait until there may be a batch."""
        await self._waiters.wait()

    def finish(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """These are done, and all before them."""
        if not queue.is_dropped:
            queue.commit_taken()

    def back(self, queue: ProcessQueue, now_ms: int) -> None:
        """A batch is not out any more, however it fared."""
        queue.running_count -= 1
        queue.consumed_at_ms = now_ms

    def put_back(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """A batch was taken and not looked at."""
        queue.running_count -= 1
        if not queue.is_dropped:
            queue.give_back(messages)
        self.release(queue)

    def release(self, queue: ProcessQueue, pause_ms: int = 0) -> None:
        """The queue may come again, at once or after a pause."""
        if self._waiters.is_closed:
            return
        if pause_ms <= 0:
            queue.is_busy = False
            self.offer(queue)
            return

        def resume() -> None:
            self._later.discard(handle)
            queue.is_busy = False
            self.offer(queue)

        handle = asyncio.get_running_loop().call_later(pause_ms / 1000, resume)
        self._later.add(handle)

    def close(self) -> None:
        """Hand out nothing more."""
        self._ready.clear()
        self._waiters.close()
        for handle in self._later:
            handle.cancel()
        self._later.clear()
