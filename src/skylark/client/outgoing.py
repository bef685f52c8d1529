"""Outgoing: a message on its way, checked, with its id, and in the form that brokers take.

    field of the send header            from
    a producerGroup, n broker name      the producer, the chosen queue
    b topic, e queue id                 the chosen queue
    c, d                                the topic whose image a new topic is made in, its queues
    f sysFlag                           0x301 where the body is compressed with zlib
    g born time, h flag                 now, the message
    i properties                        the message's own, UNIQ_KEY, WAIT
    j reconsume times, k unit mode      0, false
    m batch                             whether the body holds several messages

The id is given here, before the first try: all tries of one message carry the same.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from ..errors import InvalidMessage, LocalProtocolError
from ..model.message import CompressionType, Message, Property
from ..model.names import check_topic_name
from ..model.topic import UNSENDABLE_TOPICS, is_retry_topic
from ..protocol.compression import compress, with_compression
from ..protocol.properties import PROPERTIES_BYTES_MAX, encode_text, format_properties
from .hooks import MessageType

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
BATCH_COUNT_MAX: Final = 4_096

_ENTRY_HEAD = struct.Struct(">iiIii")  # size, magic, crc, flag, body length: see protocol/batch.py
_SHORT = struct.Struct(">h")
_ENTRY_BYTES_MIN: Final = _ENTRY_HEAD.size + _SHORT.size
assert _ENTRY_BYTES_MIN == 22

_WAIT_TEXT = {True: "WAIT\x01true", False: "WAIT\x01false"}


class Outgoing:
    """One message, or one batch, ready to be sent to any queue."""

    __slots__ = (
        "body",
        "flag",
        "is_batch",
        "message_ids",
        "message_type",
        "messages",
        "properties",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        *,
        topic: str,
        messages: tuple[Message, ...],
        message_ids: tuple[str, ...],
        body: bytes,
        properties: str,
        flag: int = 0,
        sys_flag: int = 0,
        is_batch: bool = False,
        message_type: MessageType = MessageType.NORMAL,
    ) -> None:
        self.topic = topic  # As brokers know it.
        self.messages = messages
        self.message_ids = message_ids
        self.body = body
        self.properties = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.is_batch = is_batch
        self.message_type = message_type


def prepare(
    message: Message,
    *,
    topic: str,
    message_id: str,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    compress_from_bytes: int,
    compression: CompressionType = CompressionType.ZLIB,
    extra_properties: Mapping[str, str] | None = None,
) -> Outgoing:
    """Check a message and bring it into the form that is sent; raises InvalidMessage."""
    check_message(message, topic, message_bytes_max)
    body = message.body
    sys_flag = 0
    if len(body) >= compress_from_bytes:
        packed = compress(body, compression)
        if len(packed) < len(body):
            body = packed
            sys_flag = with_compression(0, compression)
    is_delayed = bool(message.delay_level) or not (
        message.delay_ms is None and message.deliver_at_ms is None
    )
    return Outgoing(
        topic=topic,
        messages=(message,),
        message_ids=(message_id,),
        body=body,
        properties=properties_text(message, message_id, extra_properties),
        flag=message.flag,
        sys_flag=sys_flag,
        message_type=MessageType.DELAY if is_delayed else MessageType.NORMAL,
    )


def prepare_batch(
    messages: Sequence[Message],
    *,
    topic: str,
    message_ids: Sequence[str],
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    extra_properties: Mapping[str, str] | None = None,
) -> Outgoing:
    """Check the messages of a batch and put them into one body; raises InvalidMessage."""
    require_one_kind(messages)
    entries = [
        entry_of(message, topic, message_id, message_bytes_max, extra_properties)
        for message, message_id in zip(messages, message_ids, strict=True)
    ]
    return join_batch(messages, topic, message_ids, entries, message_bytes_max)


def join_batch(
    messages: Sequence[Message],
    topic: str,
    message_ids: Sequence[str],
    entries: Sequence[bytes],
    message_bytes_max: int,
) -> Outgoing:
    """Put entries that were made before into one body; raises InvalidMessage if it is too large."""
    body = b"".join(entries)
    if len(body) > message_bytes_max:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages takes {len(body)} bytes, the limit is"
            f" {message_bytes_max}",
            hint="send fewer messages in one batch",
        )
    return Outgoing(
        topic=topic,
        messages=tuple(messages),
        message_ids=tuple(message_ids),
        body=body,
        properties=_WAIT_TEXT[messages[0].wait_stored],
        is_batch=True,
    )


def entry_of(
    message: Message,
    topic: str,
    message_id: str,
    message_bytes_max: int,
    extra_properties: Mapping[str, str] | None = None,
) -> bytes:
    """Check a message and return it as one entry of a batch."""
    check_message(message, topic, message_bytes_max)
    properties = encode_text(properties_text(message, message_id, extra_properties))
    body = message.body
    size = _ENTRY_BYTES_MIN + len(body) + len(properties)
    head = _ENTRY_HEAD.pack(size, 0, 0, message.flag, len(body))
    return b"".join((head, body, _SHORT.pack(len(properties)), properties))


def is_batchable(message: Message) -> bool:
    """Whether a message may travel with others: brokers refuse delayed and retried ones."""
    return not (
        message.delay_level
        or message.delay_ms is not None
        or message.deliver_at_ms is not None
        or is_retry_topic(message.topic)
    )


def require_one_kind(messages: Sequence[Message]) -> None:
    """Raise InvalidMessage unless these messages may make up one batch."""
    if not messages:
        raise InvalidMessage("a batch without messages", hint="give at least one")
    if len(messages) > BATCH_COUNT_MAX:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages", hint=f"send at most {BATCH_COUNT_MAX} in one"
        )
    first = messages[0]
    for message in messages:
        if not is_batchable(message):
            raise InvalidMessage(
                "a batch takes neither delayed messages nor those of a retry topic",
                hint="send those one by one",
            )
        if message.topic != first.topic:
            raise InvalidMessage(
                f"a batch for the topics {first.topic!r} and {message.topic!r}",
                hint="make one batch for each topic",
            )
        if message.wait_stored != first.wait_stored:
            raise InvalidMessage(
                "a batch of messages that differ in wait_stored", hint="make two batches"
            )


@functools.lru_cache(maxsize=10_000)
def check_topic(topic: str) -> None:
    """Raise InvalidName or InvalidMessage for a topic that may not be sent to."""
    check_topic_name(topic)
    if topic in UNSENDABLE_TOPICS:
        raise InvalidMessage(
            f"sending to topic {topic!r} is forbidden: brokers alone write to it",
            hint="choose another topic",
        )


def check_message(message: Message, topic: str, message_bytes_max: int) -> None:
    """Raise InvalidMessage or InvalidName for a message that no broker would take."""
    check_topic(topic)
    if not message.body:
        raise InvalidMessage("the message has no body", hint="give at least one byte")
    if len(message.body) > message_bytes_max:
        raise InvalidMessage(
            f"the body takes {len(message.body)} bytes, the limit is {message_bytes_max}",
            hint="send less, or raise max_message_size here and at the broker",
        )


def properties_text(
    message: Message, message_id: str, extra: Mapping[str, str] | None = None
) -> str:
    """Return a message's properties as brokers take them."""
    if (
        not message.properties
        and extra is None
        and not message.delay_level
        and message.delay_ms is None
        and message.deliver_at_ms is None
    ):
        # The common case. A Message has already refused separators in its tag and keys.
        text = f"UNIQ_KEY\x01{message_id}\x02{_WAIT_TEXT[message.wait_stored]}"
        if message.keys:
            text = f"KEYS\x01{' '.join(message.keys)}\x02{text}"
        if message.tag is not None:
            text = f"{text}\x02TAGS\x01{message.tag}"
    else:
        found: dict[str, str] = message.all_properties()
        found[Property.UNIQ_KEY] = message_id
        if extra:
            found.update(extra)
        try:
            text = format_properties(found)
        except LocalProtocolError as error:
            raise InvalidMessage(str(error), hint="change that property") from None
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(encode_text(text)) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(
            f"the properties take {len(encode_text(text))} bytes, the limit is"
            f" {PROPERTIES_BYTES_MAX}",
            hint="put large values into the body",
        )
    return text
