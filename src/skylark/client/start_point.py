"""StartPoint: where a group begins in a queue in which it has never committed anything.

    given                                    begins at
    "last" (the default)                     the end, so history is skipped
    "first"                                  the first message
    a datetime, epoch milliseconds, or       the message stored nearest to that time
    the text yyyyMMddHHmmss (local time)

A broker that has the queue from its very first message and still in memory answers 0 to a new
group itself; then the group begins there whatever is asked for here. RocketMQ does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from ..errors import ConfigError
from ..model.group import ConsumeFromWhere
from ..model.queue import MessageQueue
from ..model.topic import is_retry_topic
from ..remote import RemoteBroker

DEFAULT_TIME_BACK: Final = timedelta(minutes=30)
_FORMAT: Final = "%Y%m%d%H%M%S"
_PAGE: Final = 32

ConsumeFrom = Literal["first", "last"] | ConsumeFromWhere | datetime | int | str


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Which end of a queue, or which time."""

    where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    at_ms: int | None = None

    @classmethod
    def of(cls, given: ConsumeFrom, *, now_ms: int) -> StartPoint:
        """Understand what a caller gives; raises ConfigError."""
        if isinstance(given, ConsumeFromWhere):
            if given is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                back_ms = int(DEFAULT_TIME_BACK.total_seconds() * 1000)
                return cls(given, now_ms - back_ms)
            return cls(given)
        if given == "first":
            return cls(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        if given == "last":
            return cls()
        return cls(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, time_ms(given))

    async def offset_in(self, queue: MessageQueue, broker: RemoteBroker) -> int:
        """Where to begin in a queue; raises TransportError or BrokerError."""
        is_retry = is_retry_topic(queue.topic)
        if self.where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return 0
        if self.where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and not is_retry:
            assert self.at_ms is not None
            return await broker.search_offset(queue, self.at_ms)
        if self.where is not ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and is_retry:
            return 0
        return await broker.get_max_offset(queue)


def time_ms(given: datetime | int | str) -> int:
    """Return epoch milliseconds of a time in one of the three forms; raises ConfigError."""
    if isinstance(given, datetime):
        return int(given.timestamp() * 1000)
    if isinstance(given, int):
        if given < 0:
            raise ConfigError(f"time {given}: epoch milliseconds may not be negative")
        return given
    try:
        if len(given) != 14:
            raise ValueError
        return int(datetime.strptime(given, _FORMAT).timestamp() * 1000)
    except ValueError:
        raise ConfigError(
            f"time {given!r} is not understood; give first, last, a datetime, epoch milliseconds, "
            "or yyyyMMddHHmmss"
        ) from None


async def first_offset_since(
    broker: RemoteBroker, group: str, queue: MessageQueue, at_ms: int
) -> int:
    """The first offset whose message was stored at a time or later; the end if none was.

    Brokers answer with the message nearest to a time. That may be one just before it, or any of
    those of the same millisecond, so the neighbours are looked at. Raises TransportError or
    BrokerError.
    """
    offset = await broker.search_offset(queue, at_ms)
    while offset > 0:  # Back, until a message is older.
        page_start = max(0, offset - _PAGE)
        answer = await broker.peek(group=group, queue=queue, offset=page_start, count_max=_PAGE)
        older = [
            message.queue_offset
            for message in answer.messages()
            if message.queue_offset < offset and message.stored_at_ms < at_ms
        ]
        if older or page_start <= answer.min_offset:
            offset = max(older, default=answer.min_offset - 1) + 1
            break
        offset = page_start
    while True:  # On, until one is not.
        answer = await broker.peek(group=group, queue=queue, offset=offset, count_max=_PAGE)
        for message in answer.messages():
            if message.stored_at_ms >= at_ms:
                return message.queue_offset
        if answer.next_begin_offset <= offset:
            return offset
        offset = answer.next_begin_offset
