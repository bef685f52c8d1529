"""ProcessQueue: what a consumer has in hand of one queue.

Messages arrive in the order of their offsets, are handed out in that order, and finish in any
order. What may be committed is the place of the first that is not finished:

    offset    5  6  7  8  9  10          5, 7 and 8 are finished, 10 is the next to pull
    state     f  -  f  f  -              commit_offset is 6, span is 4

    handed out <= pulled < next_offset; commit_offset <= every offset that is not finished

Once it is dropped, because the queue belongs to another member, nothing that finishes moves
commit_offset any more: the other member starts there and gets those messages again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..model.queue import MessageQueue
from ..protocol.bodies import ProcessQueueInfo
from .consumer_stats import TopicFigures
from .received import ReceivedMessage

LOCK_LIVES_MS: Final = 30_000  # Without a refresh; the broker keeps it twice as long.
PULL_LIVES_MS: Final = 120_000

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """How much of one queue may be in hand before pulling waits."""

    count_max: int = 1_000
    bytes_max: int = 100 * _MIB
    span_max: int | None = 2_000  # None for orderly consumers, which finish in order.


class ProcessQueue:
    """The messages of one queue between their pull and their commit."""

    def __init__(
        self,
        queue: MessageQueue,
        next_offset: int,
        *,
        now_ms: int = 0,
        figures: TopicFigures | None = None,
    ) -> None:
        self.queue = queue
        self.figures = figures or TopicFigures()
        self.next_offset = next_offset  # Where the next pull begins.
        self.max_offset = 0  # The broker's, as of the last answer.
        self.is_dropped = False
        self.is_paused = False
        self.is_flow_limited = False
        # Its broker was out of reach. Until it has confirmed what we hold of it, nothing is
        # committed, and in order nothing is handed out: it may have begun anew.
        self.is_doubtful = False
        self.locked_at_ms: int | None = None  # Orderly: when the broker last confirmed the lock.
        self.pulled_at_ms = now_ms
        self.consumed_at_ms = now_ms
        self.arrived = deque[ReceivedMessage]()  # Not handed out yet; orderly only.
        self.is_busy = False  # Orderly: a batch is out, waits its turn, or a pause is on.
        self.is_leaving = False  # It will be dropped as soon as its handlers are done.
        self.running_count = 0  # Batches that are with a handler now.
        self.wakes_puller: asyncio.Future[None] | None = None  # Somebody waits for room.
        self.last: tuple[int, str] | None = None  # Offset and id of the last message that came.
        self._order = deque[int]()  # Offsets as they came; finished ones leave from the left.
        self._open: dict[int, ReceivedMessage] = {}
        self._bytes = 0
        self._taken: list[ReceivedMessage] = []  # Orderly: handed out and not committed.

    def __repr__(self) -> str:
        queue = self.queue
        return f"<ProcessQueue {queue.topic}/{queue.broker_name}/{queue.queue_id}>"

    # Figures.

    @property
    def count(self) -> int:
        """How many messages are in hand and not finished."""
        return len(self._open)

    @property
    def size_bytes(self) -> int:
        """How many bytes those have."""
        return self._bytes

    @property
    def span(self) -> int:
        """How far the last message in hand is from the first that is not finished."""
        self._forget_finished()
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def commit_offset(self) -> int:
        """How far the group has come: all before this is finished."""
        self._forget_finished()
        return self._order[0] if self._order else self.next_offset

    def exceeded(self, limits: FlowLimits) -> str | None:
        """Which limit holds pulling up, in words; None if none does."""
        if len(self._open) >= limits.count_max:
            return f"{len(self._open)} messages in hand, the limit is {limits.count_max}"
        if self._bytes >= limits.bytes_max:
            return f"{self._bytes} bytes in hand, the limit is {limits.bytes_max}"
        if limits.span_max is not None and len(self._order) > 1 and self.span > limits.span_max:
            return f"offsets in hand span {self.span}, the limit is {limits.span_max}"
        return None

    def is_lock_valid(self, now_ms: int) -> bool:
        """Whether an orderly consumer may still hand out messages."""
        return self.locked_at_ms is not None and now_ms - self.locked_at_ms < LOCK_LIVES_MS

    def is_pull_expired(self, now_ms: int) -> bool:
        """Whether pulling has stopped for no known reason."""
        return now_ms - self.pulled_at_ms > PULL_LIVES_MS

    def open_messages(self) -> list[ReceivedMessage]:
        """What is in hand and not finished, in the order of offsets."""
        self._forget_finished()
        return [self._open[offset] for offset in self._order if offset in self._open]

    # Messages come.

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take what a pull has brought; raises AssertionError unless offsets go up."""
        offsets = [message.queue_offset for message in messages]
        assert not offsets or not self._order or offsets[0] > self._order[-1], f"{self!r}: again"
        self._order.extend(offsets)
        self._open.update(zip(offsets, messages, strict=True))
        self._bytes += sum([message.size_bytes for message in messages])
        if messages:
            self.last = (offsets[-1], messages[-1].message_id)
        assert next_offset >= self.next_offset, f"{self!r}: pulled backwards to {next_offset}"
        self.next_offset = next_offset

    # Messages finish, in any order.

    def finish(self, messages: Iterable[ReceivedMessage]) -> None:
        """These will not be needed again."""
        is_open = self._open
        for message in messages:
            # A message that took too long has been sent back, and finishes a second time.
            if is_open.pop(message.queue_offset, None) is not None:
                self._bytes -= message.size_bytes
        if self.wakes_puller is not None:
            self.wake_puller()

    def wake_puller(self) -> None:
        """Have the puller look again whether there is room."""
        if self.wakes_puller is not None and not self.wakes_puller.done():
            self.wakes_puller.set_result(None)

    def is_open(self, message: ReceivedMessage) -> bool:
        """Whether a message is still to be finished."""
        return message.queue_offset in self._open

    def _forget_finished(self) -> None:
        order, is_open = self._order, self._open
        while order and order[0] not in is_open:
            order.popleft()

    # Orderly: messages finish in order, or come again.

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """Hand out the next messages in order."""
        arrived = self.arrived
        batch = [arrived.popleft() for _ in range(min(count_max, len(arrived)))]
        self._taken += batch
        return batch

    def give_back(self, batch: Sequence[ReceivedMessage]) -> None:
        """Put a batch that was handed out back to the front."""
        self.arrived.extendleft(reversed(batch))
        given = set(batch)
        self._taken = [message for message in self._taken if message not in given]

    def commit_taken(self) -> None:
        """All that was handed out is finished."""
        self.finish(self._taken)
        self._taken = []

    def finish_taken(self, messages: Sequence[ReceivedMessage]) -> None:
        """Some of what was handed out is finished."""
        done = set(messages)
        self.finish(messages)
        self._taken = [message for message in self._taken if message not in done]

    def roll_back_taken(self) -> None:
        """All that was handed out since the last commit comes again."""
        self.arrived.extendleft(reversed(self._taken))
        self._taken = []

    # The end.

    def drop(self) -> int:
        """The queue is not ours any more; return how far we came."""
        offset = self.commit_offset
        if not self.is_dropped:
            self.is_dropped = True
            self.arrived.clear()
        return offset

    def info(self, *, now_ms: int, monotonic_ms: int) -> ProcessQueueInfo:
        """What tools are told; wall times out of monotonic ones."""
        ahead_ms = now_ms - monotonic_ms
        offsets = [message.queue_offset for message in self.open_messages()]
        taken = [message.queue_offset for message in self._taken]
        return ProcessQueueInfo(
            commit_offset=self.commit_offset,
            cached_msg_min_offset=offsets[0] if offsets else 0,
            cached_msg_max_offset=offsets[-1] if offsets else 0,
            cached_msg_count=len(offsets),
            cached_msg_size_in_mib=self._bytes // _MIB,
            transaction_msg_min_offset=min(taken, default=0),
            transaction_msg_max_offset=max(taken, default=0),
            transaction_msg_count=len(taken),
            locked=self.locked_at_ms is not None,
            last_lock_timestamp=(self.locked_at_ms or -ahead_ms) + ahead_ms,
            dropped=self.is_dropped,
            last_pull_timestamp=self.pulled_at_ms + ahead_ms,
            last_consume_timestamp=self.consumed_at_ms + ahead_ms,
        )
