"""Calls that find messages by key, offset or place in a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...model.message import StoredMessage
from ...protocol import headers
from ...protocol.bodies import QueryConsumeQueueBody
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.record import decode_record, decode_records
from .caller import ADMIN_TIMEOUT_MS, FOUND_OR_NOT, BrokerCaller

QUERY_TIMEOUT_MS: Final = 6_000


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The messages that an index has for a key, and how far the index had come."""

    messages: tuple[StoredMessage, ...]
    index_updated_at_ms: int
    index_physical_offset: int


class FindCalls(BrokerCaller):
    """Finds messages."""

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique: bool = False,
        timeout_ms: int = QUERY_TIMEOUT_MS,
    ) -> QueryAnswer:
        """The messages that the index has for a key or a unique id; hashes may collide."""
        header = headers.QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=count_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique,
        )
        code = RequestCode.QUERY_MESSAGE
        answer = await self._call(code, header, timeout_ms=timeout_ms, accepted=FOUND_OR_NOT)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return QueryAnswer((), 0, 0)
        found = headers.QueryMessageResponse.from_fields(answer.fields)
        return QueryAnswer(
            tuple(decode_records(answer.body)),
            found.index_last_update_timestamp,
            found.index_last_update_phyoffset,
        )

    async def view_message(
        self, physical_offset: int, *, timeout_ms: int = QUERY_TIMEOUT_MS
    ) -> StoredMessage:
        """The message that begins at a physical offset."""
        header = headers.ViewMessageRequest(offset=physical_offset)
        answer = await self._call(RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=timeout_ms)
        return decode_record(answer.body)

    async def view_record(
        self, physical_offset: int, *, timeout_ms: int = QUERY_TIMEOUT_MS
    ) -> bytes | None:
        """The record at a physical offset as it is stored; None where none begins."""
        header = headers.ViewMessageRequest(offset=physical_offset)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        accepted = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})
        answer = await self._call(code, header, timeout_ms=timeout_ms, accepted=accepted)
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None

    async def query_consume_queue(
        self,
        topic: str,
        queue_id: int,
        index: int,
        count: int,
        *,
        group: str | None = None,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> QueryConsumeQueueBody | None:
        """A stretch of a consume queue, or None where it has nothing at that index."""
        header = headers.QueryConsumeQueueRequest(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        answer = await self._call(RequestCode.QUERY_CONSUME_QUEUE, header, timeout_ms=timeout_ms)
        return QueryConsumeQueueBody.from_json(answer.body) if answer.body else None
