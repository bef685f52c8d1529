"""Iteration: messages for those who ask for them one by one, instead of having a handler."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..clock import Clock
from .lines import ConcurrentLine, LineClosed, OrderlyLine
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .settlement import Settlement
from .verdicts import DONE, Verdict
from .workers import YIELD_EVERY, Pace, count


class HandedOut:
    """The messages that are with those who iterate, until each is settled."""

    def __init__(
        self,
        clock: Clock,
        line: ConcurrentLine | OrderlyLine,
        settlement: Settlement,
        *,
        rate_max: float | None,
    ) -> None:
        self.clock = clock
        self._line = line
        self._settlement = settlement
        self._pace = Pace(clock, rate_max)
        self._out: dict[ReceivedMessage, ProcessQueue] = {}

    async def take(self) -> ReceivedMessage:
        """Wait for the next message; raises LineClosed. It is out until it is settled."""
        while (batch := self._line.take()) is None:
            await self._line.wait()
        queue, messages = batch
        try:
            await self._pace.wait_turn(1)
        except BaseException:
            self._line.put_back(queue, messages)  # Whoever asked has gone.
            raise
        (message,) = messages
        message.started_at_ms = self.clock.monotonic_ms()
        message.settled_by(self)
        self._out[message] = queue
        return message

    def acknowledge(self, message: ReceivedMessage) -> None:
        """A message is done; a second time is harmless."""
        queue = self._out.pop(message, None)
        if queue is None:
            return
        line = self._line
        line.finish(queue, (message,))
        now_ms = self.clock.monotonic_ms()
        count(queue, 1, DONE, now_ms - (message.started_at_ms or now_ms))
        line.back(queue, now_ms)
        if isinstance(line, OrderlyLine) and not queue.is_dropped:
            line.release(queue)

    async def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """A message shall come again, or never."""
        queue = self._out.pop(message, None)
        if queue is None:
            return
        now_ms = self.clock.monotonic_ms()
        try:
            count(queue, 1, verdict, now_ms - (message.started_at_ms or now_ms))
            await self._settlement.settle(queue, [message], verdict)
        finally:
            self._line.back(queue, now_ms)

    def clear(self) -> None:
        """Forget all of them; they come again to whoever gets their queues."""
        self._out.clear()


class Iteration:
    """One loop over a consumer: asking for the next message commits the one before."""

    def __init__(self, handed_out: HandedOut) -> None:
        self._handed_out = handed_out
        self._current: ReceivedMessage | None = None
        self._turns = 0

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._current is not None:
            self._handed_out.acknowledge(self._current)
            self._current = None
        self._turns += 1
        if self._turns % YIELD_EVERY == 0:
            await self._handed_out.clock.sleep_ms(0)
        try:
            self._current = await self._handed_out.take()
        except LineClosed:
            raise StopAsyncIteration from None
        return self._current
