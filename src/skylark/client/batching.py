"""Batcher: messages that are sent at about the same time travel in one request.

    messages of          wait together until
    one topic, no queue  linger_ms has passed, batch_bytes_max or the count is reached; several
                         batches may be under way at once
    one queue            the same, and only one batch is under way, so that order is kept

While a batch is under way, the next one grows: a slow broker gets larger batches, not more of
them. What waits and what is under way together takes at most buffer_bytes_max; beyond that, whoever
sends waits for room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from ..errors import SkylarkError
from ..model.message import Message
from ..model.queue import MessageQueue
from .outgoing import BATCH_COUNT_MAX, MESSAGE_BYTES_MAX
from .receipts import SendReceipt

IN_FLIGHT_MAX: Final = 4  # Batches under way for one topic; more only make each of them smaller.
_ENTRY_OVERHEAD: Final = 512  # Of ids, futures and lists: bounds many small messages too.


class BatchSend(Protocol):
    """Sends a batch whose entries are encoded; one receipt for each message, in order."""

    def __call__(
        self, pile: Pile, queue: MessageQueue | None
    ) -> Awaitable[tuple[SendReceipt, ...]]:
        """Send what has piled up."""
        ...


class Pile:
    """What waits to be sent together."""

    __slots__ = ("entries", "entries_bytes", "futures", "message_ids", "messages", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.messages: list[Message] = []
        self.message_ids: list[str] = []
        self.entries: list[bytes] = []
        self.entries_bytes = 0
        self.futures: list[asyncio.Future[SendReceipt]] = []


class _Lane:
    """The piles of one destination: one that grows, full ones that wait, and those under way."""

    __slots__ = ("growing", "in_flight", "in_flight_max", "is_due", "queue", "ready", "timer")

    def __init__(self, topic: str, queue: MessageQueue | None) -> None:
        self.queue = queue
        self.growing = Pile(topic)
        self.ready: deque[Pile] = deque()
        self.in_flight = 0
        self.in_flight_max = 1 if queue is not None else IN_FLIGHT_MAX
        self.is_due = False  # The growing pile has lingered enough and goes out as soon as it can.
        self.timer: asyncio.Handle | None = None


LaneKey = tuple[str, MessageQueue | None, bool]


class Batcher:
    """Collects messages by destination and sends them in batches."""

    def __init__(
        self,
        send: BatchSend,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *,
        linger_ms: float,
        batch_bytes_max: int,
        buffer_bytes_max: int,
        batch_count_max: int = BATCH_COUNT_MAX,
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._linger_s = linger_ms / 1000
        self._batch_bytes_max = min(batch_bytes_max, MESSAGE_BYTES_MAX)
        self._batch_count_max = batch_count_max
        self._buffer_bytes_max = buffer_bytes_max
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[LaneKey, _Lane] = {}
        self._buffered_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()  # Senders who wait for room.
        self._piles: dict[Pile, None] = {}  # Closed and not yet settled, oldest first.

    @property
    def buffered_bytes(self) -> int:
        """What waits and what is under way."""
        return self._buffered_bytes

    @property
    def has_room(self) -> bool:
        """Whether a message may be added without waiting."""
        return self._buffered_bytes < self._buffer_bytes_max and not self._waiting

    async def wait_room(self) -> None:
        """Wait, in turn, until a message may be added."""
        while not self.has_room:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
            if self._buffered_bytes < self._buffer_bytes_max:
                return

    def add(
        self,
        message: Message,
        message_id: str,
        entry: bytes,
        *,
        topic: str,
        queue: MessageQueue | None,
    ) -> asyncio.Future[SendReceipt]:
        """Take a message; the future is that of its receipt."""
        key = (topic, queue, message.wait_stored)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(topic, queue)
        if lane.growing.entries and (
            lane.growing.entries_bytes + len(entry) > self._batch_bytes_max
        ):
            self._close_pile(lane)
            self._pump(key, lane)
        pile = lane.growing
        receipt: asyncio.Future[SendReceipt] = self._loop.create_future()
        pile.messages.append(message)
        pile.message_ids.append(message_id)
        pile.entries.append(entry)
        pile.entries_bytes += len(entry)
        pile.futures.append(receipt)
        self._buffered_bytes += len(entry) + _ENTRY_OVERHEAD
        if (
            len(pile.entries) >= self._batch_count_max
            or pile.entries_bytes >= self._batch_bytes_max
        ):
            self._close_pile(lane)
            self._pump(key, lane)
        elif lane.timer is None and not lane.is_due:
            if self._linger_s > 0:
                lane.timer = self._loop.call_later(self._linger_s, self._time_is_up, key, lane)
            else:
                lane.timer = self._loop.call_soon(self._time_is_up, key, lane)
        return receipt

    async def flush(self) -> None:
        """Send everything that waits, and wait until all of it has ended, well or badly."""
        for key, lane in list(self._lanes.items()):
            self._close_pile(lane)
            self._pump(key, lane)
        futures = [future for pile in self._piles for future in pile.futures]
        if futures:
            await asyncio.wait(futures)

    def _time_is_up(self, key: LaneKey, lane: _Lane) -> None:
        lane.timer = None
        lane.is_due = True
        self._pump(key, lane)

    def _close_pile(self, lane: _Lane) -> None:
        pile = lane.growing
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        lane.is_due = False
        if pile.entries:
            lane.growing = Pile(pile.topic)
            lane.ready.append(pile)
            self._piles[pile] = None

    def _pump(self, key: LaneKey, lane: _Lane) -> None:
        """Send as much as may be under way at once."""
        while lane.in_flight < lane.in_flight_max:
            if not lane.ready and lane.is_due:
                self._close_pile(lane)
            if not lane.ready:
                break
            lane.in_flight += 1
            self._spawn(self._carry(key, lane, lane.ready.popleft()))
        if not (lane.in_flight or lane.ready or lane.growing.entries):
            self._lanes.pop(key, None)

    async def _carry(self, key: LaneKey, lane: _Lane, pile: Pile) -> None:
        receipts: tuple[SendReceipt, ...] = ()
        error: SkylarkError | None = None
        try:
            receipts = await self._send(pile, lane.queue)
        except SkylarkError as problem:
            error = problem
        except BaseException:
            self.abandon()  # We are being ended; nobody will send the rest.
            raise
        self._settle(pile, receipts, error)
        self._piles.pop(pile, None)  # Not there any more if all was abandoned meanwhile.
        self._buffered_bytes -= pile.entries_bytes + _ENTRY_OVERHEAD * len(pile.entries)
        lane.in_flight -= 1
        self._wake_waiting()
        self._pump(key, lane)

    def abandon(self) -> None:
        """Give up on everything that is not confirmed; whoever waits for it is cancelled."""
        piles = [*self._piles, *(lane.growing for lane in self._lanes.values())]
        for lane in self._lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
        self._lanes.clear()
        self._piles.clear()
        for future in [future for pile in piles for future in pile.futures]:
            future.cancel()
        for turn in self._waiting:
            turn.cancel()

    def _settle(
        self, pile: Pile, receipts: tuple[SendReceipt, ...], error: SkylarkError | None
    ) -> None:
        if error is None:
            for future, receipt in zip(pile.futures, receipts, strict=True):
                if not future.done():
                    future.set_result(receipt)
            return
        for future in pile.futures:
            if future.done():
                continue
            future.set_exception(error)
            future.exception()  # Whoever sent it may have gone; that is no news for the log.

    def _wake_waiting(self) -> None:
        room = self._buffer_bytes_max - self._buffered_bytes
        while self._waiting and room > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= _ENTRY_OVERHEAD
