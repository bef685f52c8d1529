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
from ...store import ExtUnit, MessageFilter, MessageStore
from ..clients import Clients
from ..config import LiveConfig
from ..filters import FilterTable, is_by_tags

ENTRIES_SHOWN_MAX = 1_024
_ANSWER_ROOM_BYTES = 65_536  # What a frame needs besides the records.


class QueryProcessor:
    """Finds messages otherwise than by consuming them."""

    def __init__(
        self, live: LiveConfig, *, store: MessageStore, clients: Clients, filters: FilterTable
    ) -> None:
        self._live = live
        self._store = store
        self._clients = clients
        self._filters = filters

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
        wanted = None
        if subscription is not None and header.consumer_group is not None:
            wanted = self._wanted(header.consumer_group, subscription)
        ext = self._store.queues.ext(header.topic, header.queue_id)
        entries = []
        for offset in range(
            header.index, header.index + max(0, min(header.count, ENTRIES_SHOWN_MAX))
        ):
            if not queue.min_offset <= offset < queue.max_offset:
                break
            entry = queue.entry(offset)
            if entry is None:
                continue  # A place whose message recovery could not find.
            unit = None if ext is None else ext.get(entry.tag_code)
            entries.append(
                ConsumeQueueData(
                    physic_offset=entry.physical_offset,
                    physic_size=entry.size_bytes,
                    tags_code=entry.tag_code,
                    passes=subscription is not None
                    and _passes(wanted, entry.tag_code if unit is None else unit.tag_hash, unit),
                    extend_data_json=None if unit is None else _shown(unit),
                    bit_map=None if unit is None or not unit.bitmap else _bits(unit.bitmap),
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
        known = self._filters.get(topic, group)
        return subscription, "null" if known is None else known.data.to_json().decode()

    def _wanted(self, group: str, subscription: Subscription) -> MessageFilter | None:
        """What a group's pulls let pass; None for everything."""
        if is_by_tags(subscription.expression_type):
            hashes = _hashes(subscription)
            return None if hashes is None else MessageFilter(tag_hashes=hashes)
        try:
            return self._filters.of_subscription(group, subscription, 0)
        except BrokerError:
            return MessageFilter(tag_hashes=frozenset())  # Its pulls are refused.


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


def _passes(wanted: MessageFilter | None, code: int, unit: ExtUnit | None) -> bool:
    """What the queue alone says of a message; the record may say otherwise."""
    if wanted is None:
        return True
    if wanted.tag_hashes is not None and code not in wanted.tag_hashes:
        return False
    return wanted.entry is None or wanted.entry(code, unit)


def _shown(unit: ExtUnit) -> str:
    size = 20 + len(unit.bitmap)
    return (
        f'{{"bitMapSize":{len(unit.bitmap)},"msgStoreTime":{unit.stored_at_ms},'
        f'"size":{size},"tagsCode":{unit.tag_hash}}}'
    )


def _bits(bitmap: bytes) -> str:
    return "".join(str(one >> bit & 1) for one in bitmap for bit in range(8))


def _hashes(subscription: Subscription) -> frozenset[int] | None:
    if subscription.expression_type != "TAG" or subscription.expression == SUBSCRIBE_ALL:
        return None
    tags = subscription.tags or parse_tags(subscription.expression)
    return frozenset(map(tag_hash, tags)) if tags else None
