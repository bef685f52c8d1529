"""Calls about offsets: how far groups and queues are."""

from __future__ import annotations

from typing import Final

from ...model.queue import MessageQueue
from ...protocol import headers
from ...protocol.codes import RequestCode, ResponseCode
from ..name_server import CALL_TIMEOUT_MS
from .caller import FOUND_OR_NOT, BrokerCaller

OFFSET_TIMEOUT_MS: Final = 5_000


class OffsetCalls(BrokerCaller):
    """Asks for offsets, and commits them."""

    async def query_consumer_offset(
        self, group: str, queue: MessageQueue, *, timeout_ms: int = OFFSET_TIMEOUT_MS
    ) -> int | None:
        """How far a group has come in a queue, or None where it has never committed."""
        header = headers.QueryConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._call(code, header, timeout_ms=timeout_ms, accepted=FOUND_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return headers.QueryConsumerOffsetResponse.from_fields(answer.fields).offset

    async def update_consumer_offset(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        *,
        reset: bool = False,
        oneway: bool = False,
        timeout_ms: int = OFFSET_TIMEOUT_MS,
    ) -> None:
        """Commit how far a group has come in a queue; with reset it may go back."""
        header = headers.UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            reset=True if reset else None,
            broker_name=queue.broker_name,
        )
        if oneway:
            await self._oneway(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            await self._call(RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)

    async def search_offset(
        self, queue: MessageQueue, at_ms: int, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """The offset whose message was stored nearest to a time."""
        header = headers.SearchOffsetRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=at_ms,
            broker_name=queue.broker_name,
        )
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return headers.SearchOffsetResponse.from_fields(answer.fields).offset

    async def get_max_offset(
        self, queue: MessageQueue, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """The offset that the next message of a queue will get."""
        header = headers.GetMaxOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        answer = await self._call(RequestCode.GET_MAX_OFFSET, header, timeout_ms=timeout_ms)
        return headers.GetMaxOffsetResponse.from_fields(answer.fields).offset

    async def get_min_offset(
        self, queue: MessageQueue, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """The first offset of a queue that can still be read."""
        header = headers.GetMinOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        answer = await self._call(RequestCode.GET_MIN_OFFSET, header, timeout_ms=timeout_ms)
        return headers.GetMinOffsetResponse.from_fields(answer.fields).offset

    async def get_earliest_store_time(
        self, queue: MessageQueue, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int | None:
        """When the first message was stored that a queue still has, or None without messages."""
        header = headers.GetEarliestMsgStoretimeRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        at_ms = headers.GetEarliestMsgStoretimeResponse.from_fields(answer.fields).timestamp
        return at_ms if at_ms >= 0 else None
