"""Finding messages by key, by id, and by their place in a queue."""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header, wire


@header
class QueryMessageRequest(Header):
    """Which messages of a topic have this key, or this unique id?"""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_MESSAGE

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


@header
class QueryMessageResponse(Header):
    """How far the index had come when it was asked."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


@header
class ViewMessageRequest(Header):
    """Read the one message at a physical offset."""

    CODE: ClassVar[RequestCode] = RequestCode.VIEW_MESSAGE_BY_ID

    offset: I64


@header
class QueryConsumeQueueRequest(Header):
    """Show the entries of a consume queue, and how a group's filter judges them."""

    CODE: ClassVar[RequestCode] = RequestCode.QUERY_CONSUME_QUEUE

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None
