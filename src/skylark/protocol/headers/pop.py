"""Popping: 5.x clients whose queues are shared out by the broker rather than among themselves.

QUERY_ASSIGNMENT and BATCH_ACK_MESSAGE carry everything in their bodies. The extra info of a popped
message is opaque here: the broker wrote it and reads it again.
"""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header, wire


@header
class PopMessageRequest(Header):
    """Take messages for a while; whatever is not acknowledged by then comes back."""

    CODE: ClassVar[RequestCode] = RequestCode.POP_MESSAGE

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64
    init_mode: I32
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class PopMessageResponse(Header):
    """When the messages were taken, for how long, and where each of them lies."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@header
class AckMessageRequest(Header):
    """A popped message is done with."""

    CODE: ClassVar[RequestCode] = RequestCode.ACK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    broker_name: str | None = wire("bname", default=None)


@header
class ChangeInvisibleTimeRequest(Header):
    """A popped message takes longer than was thought, or is wanted back sooner."""

    CODE: ClassVar[RequestCode] = RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64
    broker_name: str | None = wire("bname", default=None)


@header
class ChangeInvisibleTimeResponse(Header):
    """The new terms on which the message is out."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


@header
class NotificationRequest(Header):
    """Tell me when there is something to pop."""

    CODE: ClassVar[RequestCode] = RequestCode.NOTIFICATION

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class NotificationResponse(Header):
    """Whether there is something to pop."""

    has_msg: bool


@header
class PollingInfoRequest(Header):
    """How many pops are waiting on a queue?"""

    CODE: ClassVar[RequestCode] = RequestCode.POLLING_INFO

    consumer_group: str
    topic: str
    queue_id: I32
    broker_name: str | None = wire("bname", default=None)


@header
class PollingInfoResponse(Header):
    """The number of waiting pops."""

    polling_num: I32
