"""Sending: messages, batches, replies, and messages that a consumer gives back.

The second version of the send header has the same fields under one-letter names, because it travels
with every message. Whether a body is a batch is said by the batch flag, not by the request code.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self

from ..codes import RequestCode
from ..header import I32, I64, Header, header, wire


@header
class SendMessageRequest(Header):
    """Store a message: SEND_MESSAGE, and SEND_REPLY_MESSAGE for the answer to one."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    batch: bool | None = None
    broker_name: str | None = wire("bname", default=None)

    def to_v2(self) -> SendMessageRequestV2:
        """Return the same request under its one-letter names."""
        return SendMessageRequestV2(**_members(self))


@header
class SendMessageRequestV2(Header):
    """Store a message: SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2."""

    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c")
    default_topic_queue_nums: I32 = wire("d")
    queue_id: I32 = wire("e")
    sys_flag: I32 = wire("f")
    born_timestamp: I64 = wire("g")
    flag: I32 = wire("h")
    properties: str | None = wire("i", default=None)
    reconsume_times: I32 | None = wire("j", default=None)
    unit_mode: bool | None = wire("k", default=None)
    max_reconsume_times: I32 | None = wire("l", default=None)
    batch: bool | None = wire("m", default=None)
    broker_name: str | None = wire("n", default=None)

    def to_v1(self) -> SendMessageRequest:
        """Return the same request under its full names."""
        return SendMessageRequest(**_members(self))

    @classmethod
    def from_v1(cls, request: SendMessageRequest) -> Self:
        """Return a request of the first version under one-letter names."""
        return cls(**_members(request))


@header
class SendMessageResponse(Header):
    """Where a message went; region and trace switch come with errors too."""

    msg_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: I64 | None = None
    transaction_id: str | None = None
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)


@header
class ConsumerSendMsgBackRequest(Header):
    """A consumer has failed with a message and wants it again later."""

    CODE: ClassVar[RequestCode] = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class PushReplyMessageRequest(Header):
    """The broker hands a reply to the client that asked."""

    CODE: ClassVar[RequestCode] = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: I64


@header
class RecallMessageRequest(Header):
    """Take back a delayed message; 5.x clients only."""

    CODE: ClassVar[RequestCode] = RequestCode.RECALL_MESSAGE

    producer_group: str | None = None
    topic: str
    recall_handle: str


@header
class RecallMessageResponse(Header):
    """The message that was taken back."""

    msg_id: str


def _members(request: SendMessageRequest | SendMessageRequestV2) -> dict[str, Any]:
    return {name: getattr(request, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(SendMessageRequest))
assert tuple(field.name for field in fields(SendMessageRequestV2)) == _NAMES
