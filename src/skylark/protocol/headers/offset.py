"""Offsets: how far a group has come, and where a queue begins and ends."""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header, wire


@header
class QueryConsumerOffsetRequest(Header):
    """How far has a group come in a queue?"""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: I32
    broker_name: str | None = wire("bname", default=None)
    set_zero_if_not_found: bool | None = None  # From 5.x clients only.


@header
class QueryConsumerOffsetResponse(Header):
    """The next offset that the group will read."""

    offset: I64 | None = None


@header
class UpdateConsumerOffsetRequest(Header):
    """A group has come this far."""

    CODE: ClassVar[RequestCode] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64
    # Ours: a member of the group goes back on purpose. RocketMQ's brokers let everybody go back.
    reset: bool | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class SearchOffsetRequest(Header):
    """Which message of a queue was stored at that time?"""

    CODE: ClassVar[RequestCode] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: I32
    timestamp: I64
    broker_name: str | None = wire("bname", default=None)


@header
class SearchOffsetResponse(Header):
    """The offset nearest to that time."""

    offset: I64


@header
class GetMaxOffsetRequest(Header):
    """Which offset will the next message of a queue get?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: I32
    broker_name: str | None = wire("bname", default=None)


@header
class GetMaxOffsetResponse(Header):
    """The offset after the last message."""

    offset: I64


@header
class GetMinOffsetRequest(Header):
    """Which is the first offset of a queue that can still be read?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_MIN_OFFSET

    topic: str
    queue_id: I32
    broker_name: str | None = wire("bname", default=None)


@header
class GetMinOffsetResponse(Header):
    """The offset of the first message."""

    offset: I64


@header
class GetEarliestMsgStoretimeRequest(Header):
    """When was the first message stored that a queue still has?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queue_id: I32
    broker_name: str | None = wire("bname", default=None)


@header
class GetEarliestMsgStoretimeResponse(Header):
    """Milliseconds since 1970, or -1 for a queue without messages."""

    timestamp: I64
