"""Queries: messages by key and by id, and the entries of a consume queue."""

from __future__ import annotations

from ...errors import BrokerError
from ...filter import parse_tags
from ...model.group import SUBSCRIBE_ALL, Subscription
from ...protocol.bodies import ConsumeQueueData, QueryConsumeQueueBody
from ...protocol.codes import ResponseCode
from ...protocol.exchange import Peer, Request, Response
from ...protocol.hashes import tag_hash
from ...protocol.headers import query as headers
from ...store import MessageStore
from ..clients import Clients
from ..config import LiveConfig

ENTRIES_SHOWN_MAX = 1_024
_ANSWER_ROOM_BYTES = 65_536  # What a frame needs besides the records.


class QueryProcessor:
    """Finds messages otherwise than by consuming them."""

    def __init__(self, live: LiveConfig, *, store: MessageStore, clients: Clients) -> None:
        self._live = live
        self._store = store
        self._clients = clients

    def query(self, request: Request[headers.QueryMessageRequest], peer: Peer) -> Response:
        """Serve QUERY_MESSAGE."""
        header = request.header
        config = self._live.current
        if header.begin_timestamp > header.end_timestamp:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"beginTimestamp {header.begin_timestamp} is after endTimestamp "
                f"{header.end_timestamp}; swap them",
            )
        asked = config.default_query_max_num if header.unique_key_query else header.max_num
        found = self._store.query(
            header.topic,
            header.key,
            count_max=max(1, min(asked, config.max_msgs_num_batch)),
            begin_ms=header.begin_timestamp,
            end_ms=header.end_timestamp,
        )
        freshness = headers.QueryMessageResponse(
            index_last_update_timestamp=found.index_updated_ms,
            index_last_update_phyoffset=found.index_updated_physical,
        )
        body = _fitting(found.records, config.frame_bytes_max - _ANSWER_ROOM_BYTES)
        if not body:
            return Response(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                freshness,
            )
        return Response(header=freshness, body=body)

    def view(self, request: Request[headers.ViewMessageRequest], peer: Peer) -> Response:
        """Serve VIEW_MESSAGE_BY_ID; only a whole record is ever shown, never bytes within one."""
        offset = request.header.offset
        record = self._store.get_by_physical_offset(offset)
        if record is None:
            return Response(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        return Response(body=bytes(record))

    def consume_queue(
        self, request: Request[headers.QueryConsumeQueueRequest], peer: Peer
    ) -> Response:
        """Serve QUERY_CONSUME_QUEUE."""
        header = request.header
        queue = self._store.queues.get(header.topic, header.queue_id)
        if queue is None:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                f"{header.queue_id}@{header.topic[:127]} is not exist!",
            )
        subscription, filter_data = self._filter_of(header.consumer_group, header.topic)
        hashes = None if subscription is None else _hashes(subscription)
        entries = []
        for offset in range(
            header.index, header.index + max(0, min(header.count, ENTRIES_SHOWN_MAX))
        ):
            if not queue.min_offset <= offset < queue.max_offset:
                break
            entry = queue.entry(offset)
            if entry is None:
                continue  # A place whose message recovery could not find.
            entries.append(
                ConsumeQueueData(
                    physic_offset=entry.physical_offset,
                    physic_size=entry.size_bytes,
                    tags_code=entry.tag_code,
                    passes=subscription is not None
                    and (hashes is None or entry.tag_code in hashes),
                )
            )
        if not entries:
            return Response(
                remark=f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
            )
        body = QueryConsumeQueueBody(
            min_queue_index=queue.min_offset,
            max_queue_index=queue.max_offset,
            entries=tuple(entries),
            subscription=subscription,
            filter_data=filter_data,
        )
        return Response(body=body.to_json())

    def _filter_of(self, group: str | None, topic: str) -> tuple[Subscription | None, str | None]:
        if group is None:
            return None, None
        found = self._clients.consumer_group(group)
        subscription = None if found is None else found.subscriptions.get(topic)
        if subscription is None:
            return None, f"{group[:255]}@{topic} is not online!"
        return subscription, "null"  # Where an SQL92 filter would be shown.


def _fitting(records: list[memoryview], bytes_max: int) -> bytes:
    """As many records as one answer can carry, oldest first."""
    taken: list[memoryview] = []
    total = 0
    for record in records:
        total += len(record)
        if total > bytes_max and taken:
            break
        taken.append(record)
    return b"".join(taken)


def _hashes(subscription: Subscription) -> frozenset[int] | None:
    if subscription.expression_type != "TAG" or subscription.expression == SUBSCRIBE_ALL:
        return None
    tags = subscription.tags or parse_tags(subscription.expression)
    return frozenset(map(tag_hash, tags)) if tags else None
