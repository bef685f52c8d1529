"""ReceivedMessage: a message as a consumer gets it.

It is a thin coat over the stored record: the topic is the one it was sent to, also when it comes
out of a retry topic, and the body is as its producer gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from ..errors import ClientError
from ..model.message import Property, StoredMessage
from ..model.queue import MessageQueue
from ..protocol.compression import plain_body

if TYPE_CHECKING:
    from .verdicts import Verdict


class Settler(Protocol):
    """Takes word of how a message fared."""

    def acknowledge(self, message: ReceivedMessage) -> None:
        """It is done."""
        ...

    async def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """It shall come again, or never."""
        ...


class ReceivedMessage:
    """One message, and where it was read."""

    __slots__ = (
        "_body",
        "_settler",
        "max_offset",
        "min_offset",
        "queue",
        "queue_offset",
        "reconsume_times",
        "record",
        "size_bytes",
        "started_at_ms",
        "topic",
    )

    def __init__(
        self,
        record: StoredMessage,
        queue: MessageQueue,
        topic: str,
        min_offset: int = 0,
        max_offset: int = 0,
    ) -> None:
        self.record = record
        self.queue = queue  # Where it was read; a retry topic's name stays visible here.
        self.topic = topic
        self.queue_offset = record.queue_offset
        self.reconsume_times = record.reconsume_times
        self.size_bytes = record.size_bytes
        self.min_offset = min_offset
        self.max_offset = max_offset  # The end of its queue when it was read.
        self.started_at_ms: int | None = None  # When a handler got it; monotonic.
        self._body: bytes | None = None
        self._settler: Settler | None = None

    def __repr__(self) -> str:
        queue = self.queue
        where = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{self.queue_offset}"
        return f"<ReceivedMessage {self.message_id} {where}>"

    @property
    def body(self) -> bytes:
        """What the producer sent; raises InvalidCompression where that cannot be restored."""
        body = self._body
        if body is None:
            record = self.record
            body = self._body = record.body if not record.sys_flag & 1 else plain_body(record)
        return body

    @property
    def properties(self) -> Mapping[str, str]:
        """Everything that producer and brokers noted on it."""
        return self.record.properties

    @property
    def tag(self) -> str | None:
        """Its tag."""
        return self.record.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which it can be found."""
        return self.record.keys

    @property
    def message_id(self) -> str:
        """The id that the producer gave it, the same over all retries; else the offset id."""
        return self.record.unique_id or self.record.offset_id

    @property
    def offset_id(self) -> str:
        """The id that says where this copy lies."""
        return self.record.offset_id

    @property
    def origin_id(self) -> str:
        """The offset id of the first copy, where this one is a retry."""
        return self.record.properties.get(Property.ORIGIN_MESSAGE_ID) or self.record.offset_id

    @property
    def broker_name(self) -> str:
        """The broker that it was read from."""
        return self.queue.broker_name

    @property
    def queue_id(self) -> int:
        """The queue that it was read from."""
        return self.queue.queue_id

    @property
    def flag(self) -> int:
        """What the producer set, free for the application."""
        return self.record.flag

    @property
    def delay_level(self) -> int:
        """The delay level it was sent with, or 0."""
        return self.record.delay_level

    @property
    def born_at_ms(self) -> int:
        """When the producer made it."""
        return self.record.born_at_ms

    @property
    def stored_at_ms(self) -> int:
        """When the broker stored this copy."""
        return self.record.stored_at_ms

    @property
    def behind(self) -> int:
        """How many messages its queue had after this one when it was read."""
        return max(0, self.max_offset - self.queue_offset - 1)

    # For those who iterate over a consumer. A handler says all this by returning or raising.

    def settled_by(self, settler: Settler) -> None:
        """Say who wants to hear how it fared; for the consumer."""
        self._settler = settler

    def ack(self) -> None:
        """It is done: commit it, without waiting for the next iteration."""
        self._require_settler().acknowledge(self)

    async def retry(
        self,
        delay: timedelta | float | None = None,
        *,
        level: int | None = None,
    ) -> None:
        """It failed: have it delivered again later, after the broker's delay or one of ours."""
        from .verdicts import RetryLater

        await self._require_settler().settle(self, RetryLater(delay, level=level).verdict)

    async def dead_letter(self) -> None:
        """It can never succeed: move it to the group's dead letters."""
        from .verdicts import ToDlq

        await self._require_settler().settle(self, ToDlq().verdict)

    async def __aenter__(self) -> Self:
        self._require_settler()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        from .verdicts import Signal, verdict_of

        settler = self._require_settler()
        if error is None:
            settler.acknowledge(self)
        elif isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError):
            await settler.settle(self, verdict_of(error))
        # Signals are said to us, and end here; an error is also the application's business.
        return isinstance(error, Signal)

    def _require_settler(self) -> Settler:
        if self._settler is None:
            raise ClientError(
                "this message was not handed out by an iteration",
                hint="in a handler, return for success or raise RetryLater, Suspend or ToDlq",
            )
        return self._settler
