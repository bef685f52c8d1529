"""Message trace: what happened to each message, as messages of their own.

Records are collected and sent every half second, at most 128,000 bytes in one message, by an inner
producer that is itself not traced. Fields are joined by 0x01, each record ends with 0x02:

    Pub              time, region, group, topic, id, tag, keys, store host, body bytes, cost ms,
                     kind, offset id, success
    SubBefore        time, region, group, request id, id, retry times, keys
    SubAfter         request id, id, cost ms, success, keys, context code, time, group
    EndTransaction   time, region, group, topic, id, tag, keys, store host, kind, transaction id,
                     state, from check

The keys of a trace message are the ids and keys of all messages it speaks of, so that it is found
by any of them. Tracing never holds a message up: when records come faster than they can be sent,
the surplus is dropped and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from ..clock import Clock
from ..errors import SkylarkError
from ..model.message import Message
from ..remote import SendStatus
from .hooks import MessageType, SendContext

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_MS: Final = 500
BODY_BYTES_MAX: Final = 128_000
PENDING_MAX: Final = 20_000
KEYS_PER_MESSAGE_MAX: Final = 64  # Each is an entry in the broker's index.
INNER_GROUP: Final = "_INNER_TRACE_PRODUCER"
DEFAULT_REGION: Final = "DefaultRegion"

_FIELD_END = "\x01"
_RECORD_END = "\x02"
_KINDS = {kind: str(ordinal) for ordinal, kind in enumerate(MessageType)}


class ConsumeContextCode(IntEnum):
    """How a message was consumed."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    NULL = 3
    FAILED = 4


class TraceRecord(Protocol):
    """One thing that happened to one message."""

    def fields(self) -> tuple[str, ...]:
        """The record's fields, its name first."""
        ...

    def keys(self) -> tuple[str, ...]:
        """Under what it shall be found."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PubTrace:
    """A message was sent."""

    at_ms: int
    group: str
    topic: str
    message_id: str
    tag: str = ""
    message_keys: tuple[str, ...] = ()
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: MessageType = MessageType.NORMAL
    offset_id: str = ""
    success: bool = True
    region: str = DEFAULT_REGION

    def fields(self) -> tuple[str, ...]:
        """The record's fields, its name first."""
        return (
            "Pub",
            str(self.at_ms),
            self.region,
            self.group,
            self.topic,
            self.message_id,
            self.tag,
            " ".join(self.message_keys),
            self.store_host,
            str(self.body_bytes),
            str(self.cost_ms),
            _KINDS[self.message_type],
            self.offset_id,
            _flag(self.success),
        )

    def keys(self) -> tuple[str, ...]:
        """Under what it shall be found."""
        return (self.message_id, *self.message_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeTrace:
    """A consumer is about to handle a message."""

    at_ms: int
    group: str
    request_id: str
    message_id: str
    retry_times: int = 0
    message_keys: tuple[str, ...] = ()
    region: str | None = None

    def fields(self) -> tuple[str, ...]:
        """The record's fields, its name first."""
        return (
            "SubBefore",
            str(self.at_ms),
            self.region or "null",
            self.group,
            self.request_id,
            self.message_id,
            str(self.retry_times),
            " ".join(self.message_keys),
        )

    def keys(self) -> tuple[str, ...]:
        """Under what it shall be found."""
        return (self.message_id, *self.message_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterTrace:
    """A consumer has handled a message."""

    at_ms: int
    group: str
    request_id: str
    message_id: str
    cost_ms: int = 0
    success: bool = True
    message_keys: tuple[str, ...] = ()
    context_code: ConsumeContextCode = ConsumeContextCode.SUCCESS

    def fields(self) -> tuple[str, ...]:
        """The record's fields, its name first."""
        return (
            "SubAfter",
            self.request_id,
            self.message_id,
            str(self.cost_ms),
            _flag(self.success),
            " ".join(self.message_keys),
            str(int(self.context_code)),
            str(self.at_ms),
            self.group,
        )

    def keys(self) -> tuple[str, ...]:
        """Under what it shall be found."""
        return (self.message_id, *self.message_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionTrace:
    """A half message was committed, rolled back, or left in doubt."""

    at_ms: int
    group: str
    topic: str
    message_id: str
    transaction_id: str
    state: str
    from_check: bool = False
    tag: str = ""
    message_keys: tuple[str, ...] = ()
    store_host: str = ""
    message_type: MessageType = MessageType.TRANS_COMMIT
    region: str = DEFAULT_REGION

    def fields(self) -> tuple[str, ...]:
        """The record's fields, its name first."""
        return (
            "EndTransaction",
            str(self.at_ms),
            self.region,
            self.group,
            self.topic,
            self.message_id,
            self.tag,
            " ".join(self.message_keys),
            self.store_host,
            _KINDS[self.message_type],
            self.transaction_id,
            self.state,
            _flag(self.from_check),
        )

    def keys(self) -> tuple[str, ...]:
        """Under what it shall be found."""
        return (self.message_id, *self.message_keys)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def encode_record(record: TraceRecord) -> str:
    """Return one record as text; separators in an application's values become blanks."""
    clean = (field.replace(_FIELD_END, " ").replace(_RECORD_END, " ") for field in record.fields())
    return _FIELD_END.join(clean) + _RECORD_END


def trace_messages(topic: str, records: list[TraceRecord]) -> list[Message]:
    """Return the messages that carry these records, in order."""
    messages: list[Message] = []
    text: list[str] = []
    size = 0
    keys: dict[str, None] = {}

    def close() -> None:
        if text:
            messages.append(Message(topic, "".join(text).encode(), keys=_sound_keys(keys)))

    for record in records:
        line = encode_record(record)
        line_bytes = len(line.encode())
        more = dict.fromkeys((*keys, *record.keys()))
        if text and (size + line_bytes > BODY_BYTES_MAX or len(more) > KEYS_PER_MESSAGE_MAX):
            close()
            text, size, more = [], 0, dict.fromkeys(record.keys())
        text.append(line)
        size += line_bytes
        keys = more
    close()
    return messages


def _sound_keys(keys: dict[str, None]) -> list[str]:
    return [key for key in keys if key and not any(mark in key for mark in " \x01\x02")]


class TraceWriter:
    """Collects records and sends them now and then; see the module's docstring."""

    def __init__(
        self, topic: str, send: Callable[[Message], Awaitable[object]], clock: Clock
    ) -> None:
        self._topic = topic
        self._send = send
        self._clock = clock
        self._pending: list[TraceRecord] = []
        self.dropped = 0  # Records that came too fast, or could not be sent.

    def add(self, record: TraceRecord) -> None:
        """Take a record; never waits."""
        if len(self._pending) >= PENDING_MAX:
            self.dropped += 1
        else:
            self._pending.append(record)

    async def run(self) -> None:
        """Send what has come together, twice a second, until cancelled."""
        while True:
            await self._clock.sleep_ms(FLUSH_INTERVAL_MS)
            await self.flush()

    async def flush(self) -> None:
        """Send what is there now."""
        records, self._pending = self._pending, []
        for message in trace_messages(self._topic, records):
            try:
                await self._send(message)
            except SkylarkError as error:
                # A trace is worth less than what it traces: no retry, no noise for each record.
                self.dropped += 1
                logger.warning("topic=%s trace not sent: %s", self._topic, error)

    # As a SendHook.

    def before_send(self, context: SendContext) -> None:
        """Nothing is known yet."""

    def after_send(self, context: SendContext) -> None:
        """Note every message that was stored, unless its broker wants no traces."""
        count = max(1, len(context.receipts))
        for message, receipt in zip(context.messages, context.receipts, strict=True):
            if not receipt.trace_on:
                continue
            self.add(
                PubTrace(
                    at_ms=context.born_at_ms,
                    group=context.group,
                    topic=message.topic,
                    message_id=receipt.message_id,
                    tag=message.tag or "",
                    message_keys=tuple(message.keys),
                    store_host=context.broker_address,
                    body_bytes=len(message.body),
                    cost_ms=context.cost_ms // count,
                    message_type=context.message_type,
                    offset_id=receipt.offset_id,
                    success=receipt.status == SendStatus.SEND_OK,
                    region=receipt.region or DEFAULT_REGION,
                )
            )
