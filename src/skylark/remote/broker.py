"""Calls to one broker: one coroutine for each request code.

A call returns what the answer holds as typed values, and raises BrokerError for a code that says
no, TransportError where no answer came. Codes that are part of an ordinary conversation (a message
stored but not yet flushed, a queue without new messages, a group without a committed offset) are
values, not errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..errors import BrokerError
from ..model.group import Subscription, SubscriptionGroupConfig
from ..model.message import StoredMessage
from ..model.queue import MessageQueue
from ..model.topic import AUTO_CREATE_TOPIC, TopicConfig
from ..model.version import DataVersion
from ..net.channel import Channels
from ..protocol import headers
from ..protocol.bodies import (
    BrokerConsumeStatsBody,
    BrokerStatsDataBody,
    CheckClientConfigBody,
    ConsumeMessageDirectlyResult,
    ConsumerConnectionBody,
    ConsumerList,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStatsBody,
    CorrectionOffsetBody,
    DataVersionBody,
    DelayOffsetTable,
    GroupList,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnectionBody,
    ProducerTableBody,
    QueryConsumeQueueBody,
    QueryConsumeTimeSpanBody,
    ResetOffsetBody,
    SubscriptionGroupConfigBody,
    SubscriptionGroupTable,
    TopicConfigTable,
    TopicList,
    TopicStatsBody,
    format_properties,
    parse_properties,
)
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.header import Header
from ..protocol.headers import PullSysFlag
from ..protocol.record import decode_record, decode_records
from .name_server import CALL_TIMEOUT_MS

ADMIN_TIMEOUT_MS: Final = 5_000
RELAY_TIMEOUT_MS: Final = 15_000  # The broker itself waits 10 s for the client that it asks.
LOCK_TIMEOUT_MS: Final = 1_000
OFFSET_TIMEOUT_MS: Final = 5_000
SEND_BACK_TIMEOUT_MS: Final = 5_000
PULL_TIMEOUT_MS: Final = 30_000
QUERY_TIMEOUT_MS: Final = 6_000

_Code = RequestCode


class SendStatus(StrEnum):
    """How far a message had come when the broker answered; it is stored in every case."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class PullStatus(StrEnum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


SEND_STATUS_BY_CODE: Final[Mapping[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}

PULL_STATUS_BY_CODE: Final[Mapping[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}

_SUCCESS = frozenset({int(ResponseCode.SUCCESS)})
_STORED = frozenset(int(code) for code in SEND_STATUS_BY_CODE)
_PULLED = frozenset(int(code) for code in PULL_STATUS_BY_CODE)
_FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Where a message went: the offset id names all messages of a batch, joined by commas."""

    status: SendStatus
    offset_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = None
    trace_on: bool = False


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """What a pull found, and where to go on; records are decoded when asked for."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_broker_id: int
    body: bytes | memoryview = b""

    def messages(self) -> list[StoredMessage]:
        """Return the records of the answer; raises InvalidRecord."""
        return decode_records(self.body) if len(self.body) else []


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The messages that an index has for a key, and how far the index had come."""

    messages: tuple[StoredMessage, ...]
    index_updated_at_ms: int
    index_physical_offset: int


@dataclass(frozen=True, slots=True)
class BrokerConfigAnswer:
    """A broker's settings and their version."""

    settings: Mapping[str, str]
    version: DataVersion


def send_answer_of(answer: Command, address: str) -> SendAnswer:
    """Read the answer to a send; raises BrokerError unless the message is stored."""
    status = SEND_STATUS_BY_CODE.get(answer.code)
    if status is None:
        raise BrokerError(answer.code, answer.remark, address)
    found = headers.SendMessageResponse.from_fields(answer.fields)
    return SendAnswer(
        status=status,
        offset_id=found.msg_id or "",
        queue_id=found.queue_id if found.queue_id is not None else -1,
        queue_offset=found.queue_offset if found.queue_offset is not None else -1,
        transaction_id=found.transaction_id,
        region=found.region,
        trace_on=bool(found.trace_on),
    )


class RemoteBroker:
    """One broker, by address."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        self._channels = channels

    # Sending.

    async def send(
        self,
        header: headers.SendMessageRequestV2,
        body: bytes,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> SendAnswer:
        """Store a message, or a batch where the header says so."""
        code = _Code.SEND_BATCH_MESSAGE if header.batch else _Code.SEND_MESSAGE_V2
        return await self._send(code, header, body, timeout_ms)

    async def send_v1(
        self,
        header: headers.SendMessageRequest,
        body: bytes,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> SendAnswer:
        """Store a message with the long names of the first header, as old clients do."""
        return await self._send(_Code.SEND_MESSAGE, header, body, timeout_ms)

    async def send_oneway(self, header: headers.SendMessageRequestV2, body: bytes) -> None:
        """Hand a message to the socket and hope for the best."""
        code = _Code.SEND_BATCH_MESSAGE if header.batch else _Code.SEND_MESSAGE_V2
        await self._oneway(code, header, body)

    async def send_reply(
        self,
        header: headers.SendMessageRequestV2,
        body: bytes,
        *,
        timeout_ms: int = RELAY_TIMEOUT_MS,
    ) -> SendAnswer:
        """Answer a request message: the broker hands this to the client that asked."""
        return await self._send(_Code.SEND_REPLY_MESSAGE_V2, header, body, timeout_ms)

    async def send_back(
        self,
        *,
        group: str,
        physical_offset: int,
        delay_level: int = 0,
        max_reconsume_times: int | None = None,
        origin_msg_id: str | None = None,
        origin_topic: str | None = None,
        unit_mode: bool = False,
        broker_name: str | None = None,
        timeout_ms: int = SEND_BACK_TIMEOUT_MS,
    ) -> None:
        """Give a message back: it comes again later, or goes to the dead letters at level -1."""
        header = headers.ConsumerSendMsgBackRequest(
            offset=physical_offset,
            group=group,
            delay_level=delay_level,
            origin_msg_id=origin_msg_id,
            origin_topic=origin_topic,
            unit_mode=unit_mode,
            max_reconsume_times=max_reconsume_times,
            broker_name=broker_name,
        )
        await self._call(_Code.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)

    async def end_transaction(
        self, header: headers.EndTransactionRequest, *, remark: str | None = None
    ) -> None:
        """Say how a half message ends; the broker does not answer."""
        await self._oneway(_Code.END_TRANSACTION, header, remark=remark)

    # Pulling.

    async def pull(
        self, header: headers.PullMessageRequest, *, timeout_ms: int = PULL_TIMEOUT_MS
    ) -> PullAnswer:
        """Read messages of one queue; waits at the broker where the header allows it."""
        code = _Code.PULL_MESSAGE
        answer = await self._call(code, header, timeout_ms=timeout_ms, accepted=_PULLED)
        found = headers.PullMessageResponse.from_fields(answer.fields)
        return PullAnswer(
            status=PULL_STATUS_BY_CODE[answer.code],
            next_begin_offset=found.next_begin_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            suggest_broker_id=found.suggest_which_broker_id,
            body=answer.body,
        )

    async def peek(
        self,
        *,
        group: str,
        queue: MessageQueue,
        offset: int,
        count_max: int = 32,
        expression: str = "*",
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> PullAnswer:
        """Read messages of one queue without waiting and without committing anything."""
        header = headers.PullMessageRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count_max,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=0,
            expression_type="TAG",
            broker_name=queue.broker_name,
        )
        return await self.pull(header, timeout_ms=timeout_ms)

    # Offsets.

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
        code = _Code.QUERY_CONSUMER_OFFSET
        answer = await self._call(code, header, timeout_ms=timeout_ms, accepted=_FOUND_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return headers.QueryConsumerOffsetResponse.from_fields(answer.fields).offset

    async def update_consumer_offset(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        *,
        oneway: bool = False,
        timeout_ms: int = OFFSET_TIMEOUT_MS,
    ) -> None:
        """Commit how far a group has come in a queue."""
        header = headers.UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        if oneway:
            await self._oneway(_Code.UPDATE_CONSUMER_OFFSET, header)
        else:
            await self._call(_Code.UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)

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
        code = _Code.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return headers.SearchOffsetResponse.from_fields(answer.fields).offset

    async def get_max_offset(
        self, queue: MessageQueue, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """The offset that the next message of a queue will get."""
        header = headers.GetMaxOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        answer = await self._call(_Code.GET_MAX_OFFSET, header, timeout_ms=timeout_ms)
        return headers.GetMaxOffsetResponse.from_fields(answer.fields).offset

    async def get_min_offset(
        self, queue: MessageQueue, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """The first offset of a queue that can still be read."""
        header = headers.GetMinOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        answer = await self._call(_Code.GET_MIN_OFFSET, header, timeout_ms=timeout_ms)
        return headers.GetMinOffsetResponse.from_fields(answer.fields).offset

    async def get_earliest_store_time(
        self, queue: MessageQueue, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int | None:
        """When the first message was stored that a queue still has, or None without messages."""
        header = headers.GetEarliestMsgStoretimeRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        code = _Code.GET_EARLIEST_MSG_STORETIME
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        at_ms = headers.GetEarliestMsgStoretimeResponse.from_fields(answer.fields).timestamp
        return at_ms if at_ms >= 0 else None

    # Clients and groups.

    async def heartbeat(
        self, heartbeat: HeartbeatData, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """Say that a client lives, and what it does; return the broker's version."""
        answer = await self._call(_Code.HEART_BEAT, body=heartbeat.to_json(), timeout_ms=timeout_ms)
        return answer.version

    async def unregister_client(
        self,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        """Leave a group."""
        header = headers.UnregisterClientRequest(
            client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self._call(_Code.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)

    async def check_client_config(
        self,
        client_id: str,
        group: str,
        subscription: Subscription,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        """Have a subscription checked before it is used; raises BrokerError where it is wrong."""
        body = CheckClientConfigBody(client_id, group, subscription).to_json()
        await self._call(_Code.CHECK_CLIENT_CONFIG, body=body, timeout_ms=timeout_ms)

    async def get_consumer_ids(
        self, group: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> tuple[str, ...]:
        """The client ids of a group's members; BrokerError where it has none."""
        header = headers.GetConsumerListByGroupRequest(consumer_group=group)
        code = _Code.GET_CONSUMER_LIST_BY_GROUP
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumerList.from_json(answer.body).client_ids

    async def lock_queues(
        self,
        client_id: str,
        group: str,
        queues: Iterable[MessageQueue],
        *,
        timeout_ms: int = LOCK_TIMEOUT_MS,
    ) -> tuple[MessageQueue, ...]:
        """Lock queues for an orderly consumer; return those that it holds now."""
        body = LockBatchRequestBody(client_id, group, tuple(queues)).to_json()
        answer = await self._call(_Code.LOCK_BATCH_MQ, body=body, timeout_ms=timeout_ms)
        return LockBatchResponseBody.from_json(answer.body).locked

    async def unlock_queues(
        self,
        client_id: str,
        group: str,
        queues: Iterable[MessageQueue],
        *,
        oneway: bool = False,
        timeout_ms: int = LOCK_TIMEOUT_MS,
    ) -> None:
        """Give locks back."""
        body = LockBatchRequestBody(client_id, group, tuple(queues)).to_json()
        if oneway:
            await self._oneway(_Code.UNLOCK_BATCH_MQ, None, body)
        else:
            await self._call(_Code.UNLOCK_BATCH_MQ, body=body, timeout_ms=timeout_ms)

    # Finding messages.

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
        code = _Code.QUERY_MESSAGE
        answer = await self._call(code, header, timeout_ms=timeout_ms, accepted=_FOUND_OR_NOT)
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
        answer = await self._call(_Code.VIEW_MESSAGE_BY_ID, header, timeout_ms=timeout_ms)
        return decode_record(answer.body)

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
        answer = await self._call(_Code.QUERY_CONSUME_QUEUE, header, timeout_ms=timeout_ms)
        return QueryConsumeQueueBody.from_json(answer.body) if answer.body else None

    # Topics.

    async def put_topic(self, config: TopicConfig, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Create a topic, or change one."""
        header = headers.CreateTopicRequest(
            topic=config.name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.filter_type.value,
            topic_sys_flag=config.sys_flag,
            order=config.order,
        )
        await self._call(_Code.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=timeout_ms)

    async def delete_topic(self, topic: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete a topic."""
        header = headers.DeleteTopicRequest(topic=topic)
        await self._call(_Code.DELETE_TOPIC_IN_BROKER, header, timeout_ms=timeout_ms)

    async def get_topics(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> TopicConfigTable:
        """All topics with their settings."""
        answer = await self._call(_Code.GET_ALL_TOPIC_CONFIG, timeout_ms=timeout_ms)
        return TopicConfigTable.from_json(answer.body)

    async def get_topic_stats(
        self, topic: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> TopicStatsBody:
        """Where a topic's queues begin and end."""
        header = headers.GetTopicStatsInfoRequest(topic=topic)
        answer = await self._call(_Code.GET_TOPIC_STATS_INFO, header, timeout_ms=timeout_ms)
        return TopicStatsBody.from_json(answer.body)

    async def get_system_topics(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> tuple[str, ...]:
        """The topics that belong to the system."""
        code = _Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        return TopicList.from_json((await self._call(code, timeout_ms=timeout_ms)).body).topics

    async def get_groups_of_topic(
        self, topic: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> tuple[str, ...]:
        """The groups that consume a topic, online or with committed offsets."""
        header = headers.QueryTopicConsumeByWhoRequest(topic=topic)
        code = _Code.QUERY_TOPIC_CONSUME_BY_WHO
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return GroupList.from_json(answer.body).groups

    # Groups, as operators see them.

    async def put_group(
        self, config: SubscriptionGroupConfig, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Create a subscription group, or change one."""
        body = SubscriptionGroupConfigBody(config).to_json()
        code = _Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._call(code, body=body, timeout_ms=timeout_ms)

    async def delete_group(
        self, group: str, *, remove_offset: bool = False, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Delete a subscription group, and what it has committed if so wished."""
        header = headers.DeleteSubscriptionGroupRequest(
            group_name=group, remove_offset=remove_offset
        )
        await self._call(_Code.DELETE_SUBSCRIPTIONGROUP, header, timeout_ms=timeout_ms)

    async def get_groups(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> SubscriptionGroupTable:
        """All subscription groups with their settings."""
        code = _Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._call(code, timeout_ms=timeout_ms)
        return SubscriptionGroupTable.from_json(answer.body)

    async def get_consume_stats(
        self, group: str, *, topic: str | None = None, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ConsumeStatsBody:
        """How far a group is behind, in all its topics or in one."""
        header = headers.GetConsumeStatsRequest(consumer_group=group, topic=topic)
        answer = await self._call(_Code.GET_CONSUME_STATS, header, timeout_ms=timeout_ms)
        return ConsumeStatsBody.from_json(answer.body)

    async def get_all_consume_stats(
        self, *, order: bool = False, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> BrokerConsumeStatsBody:
        """How far every group is behind."""
        header = headers.GetBrokerConsumeStatsRequest(is_order=order)
        code = _Code.GET_BROKER_CONSUME_STATS
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return BrokerConsumeStatsBody.from_json(answer.body)

    async def get_consumer_connections(
        self, group: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ConsumerConnectionBody:
        """Who consumes as a group; BrokerError CONSUMER_NOT_ONLINE where nobody does."""
        header = headers.GetConsumerConnectionListRequest(consumer_group=group)
        code = _Code.GET_CONSUMER_CONNECTION_LIST
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumerConnectionBody.from_json(answer.body)

    async def get_producer_connections(
        self, group: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ProducerConnectionBody:
        """Who produces as a group; BrokerError where nobody does."""
        header = headers.GetProducerConnectionListRequest(producer_group=group)
        code = _Code.GET_PRODUCER_CONNECTION_LIST
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ProducerConnectionBody.from_json(answer.body)

    async def get_all_producers(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> ProducerTableBody:
        """All producers by group."""
        answer = await self._call(_Code.GET_ALL_PRODUCER_INFO, timeout_ms=timeout_ms)
        return ProducerTableBody.from_json(answer.body)

    async def reset_offset(
        self,
        topic: str,
        group: str,
        at_ms: int,
        *,
        force: bool = True,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> Mapping[MessageQueue, int]:
        """Set a group to a time, or with -1 to the end; return where each queue stands then."""
        header = headers.ResetOffsetRequest(
            topic=topic, group=group, timestamp=at_ms, is_force=force
        )
        code = _Code.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ResetOffsetBody.from_json(answer.body).offsets if answer.body else {}

    async def get_consumer_status(
        self,
        topic: str,
        group: str,
        *,
        client_id: str | None = None,
        timeout_ms: int = RELAY_TIMEOUT_MS,
    ) -> ConsumerStatusBody:
        """How far each member has come by its own account."""
        header = headers.GetConsumerStatusRequest(topic=topic, group=group, client_addr=client_id)
        code = _Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumerStatusBody.from_json(answer.body)

    async def get_consumer_running_info(
        self,
        group: str,
        client_id: str,
        *,
        jstack: bool = False,
        timeout_ms: int = RELAY_TIMEOUT_MS,
    ) -> ConsumerRunningInfo:
        """What one member is doing, by its own account."""
        header = headers.GetConsumerRunningInfoRequest(
            consumer_group=group, client_id=client_id, jstack_enable=jstack
        )
        code = _Code.GET_CONSUMER_RUNNING_INFO
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumerRunningInfo.from_json(answer.body)

    async def consume_directly(
        self,
        group: str,
        client_id: str,
        offset_id: str,
        *,
        topic: str | None = None,
        timeout_ms: int = RELAY_TIMEOUT_MS,
    ) -> ConsumeMessageDirectlyResult:
        """Let one member consume one message now."""
        header = headers.ConsumeMessageDirectlyRequest(
            consumer_group=group, client_id=client_id, msg_id=offset_id, topic=topic
        )
        code = _Code.CONSUME_MESSAGE_DIRECTLY
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumeMessageDirectlyResult.from_json(answer.body)

    async def get_consume_time_span(
        self, topic: str, group: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> QueryConsumeTimeSpanBody:
        """Between which times the messages lie that a group has read."""
        header = headers.QueryConsumeTimeSpanRequest(topic=topic, group=group)
        answer = await self._call(_Code.QUERY_CONSUME_TIME_SPAN, header, timeout_ms=timeout_ms)
        return QueryConsumeTimeSpanBody.from_json(answer.body)

    async def get_correction_offsets(
        self,
        topic: str,
        group: str,
        *,
        filter_groups: Iterable[str] = (),
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> Mapping[int, int]:
        """The smallest offset of other groups by queue id, compared with one group's."""
        header = headers.QueryCorrectionOffsetRequest(
            filter_groups=",".join(filter_groups) or None, compare_group=group, topic=topic
        )
        code = _Code.QUERY_CORRECTION_OFFSET
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return CorrectionOffsetBody.from_json(answer.body).offsets

    async def clone_group_offset(
        self,
        source_group: str,
        target_group: str,
        *,
        topic: str | None = None,
        offline: bool = False,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> None:
        """Let one group stand where another does."""
        header = headers.CloneGroupOffsetRequest(
            src_group=source_group, dest_group=target_group, topic=topic, offline=offline
        )
        await self._call(_Code.CLONE_GROUP_OFFSET, header, timeout_ms=timeout_ms)

    # The broker itself.

    async def get_config(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> BrokerConfigAnswer:
        """All settings."""
        answer = await self._call(_Code.GET_BROKER_CONFIG, timeout_ms=timeout_ms)
        found = headers.GetBrokerConfigResponse.from_fields(answer.fields)
        version = DataVersionBody.from_json(found.version.encode()).version
        return BrokerConfigAnswer(parse_properties(answer.body), version)

    async def update_config(
        self, settings: Mapping[str, str], *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Change some settings."""
        body = format_properties(settings)
        await self._call(_Code.UPDATE_BROKER_CONFIG, body=body, timeout_ms=timeout_ms)

    async def get_runtime_info(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> Mapping[str, str]:
        """Figures about the running broker, under RocketMQ's names."""
        answer = await self._call(_Code.GET_BROKER_RUNTIME_INFO, timeout_ms=timeout_ms)
        return KVTable.from_json(answer.body).table

    async def get_stats(
        self, name: str, key: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> BrokerStatsDataBody:
        """One counter over the last minute, hour and day; BrokerError where it has no entry."""
        header = headers.ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
        answer = await self._call(_Code.VIEW_BROKER_STATS_DATA, header, timeout_ms=timeout_ms)
        return BrokerStatsDataBody.from_json(answer.body)

    async def clean_expired_consume_queues(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete consume queue files that point at nothing any more."""
        await self._call(_Code.CLEAN_EXPIRED_CONSUMEQUEUE, timeout_ms=timeout_ms)

    async def clean_unused_topics(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete the queues of topics that do not exist any more."""
        await self._call(_Code.CLEAN_UNUSED_TOPIC, timeout_ms=timeout_ms)

    async def delete_expired_commit_log(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete commit log files beyond their time, now."""
        await self._call(_Code.DELETE_EXPIRED_COMMITLOG, timeout_ms=timeout_ms)

    async def resume_check_half_message(
        self, offset_id: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Ask about a half message again that the broker had given up on."""
        header = headers.ResumeCheckHalfMessageRequest(msg_id=offset_id)
        await self._call(_Code.RESUME_CHECK_HALF_MESSAGE, header, timeout_ms=timeout_ms)

    # What a replica copies beside the log.

    async def get_all_consumer_offsets(
        self, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ConsumerOffsetTable:
        """What all groups have committed."""
        answer = await self._call(_Code.GET_ALL_CONSUMER_OFFSET, timeout_ms=timeout_ms)
        return ConsumerOffsetTable.from_json(answer.body)

    async def get_all_delay_offsets(
        self, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> DelayOffsetTable:
        """How far the delivery of each delay level has come."""
        answer = await self._call(_Code.GET_ALL_DELAY_OFFSET, timeout_ms=timeout_ms)
        return DelayOffsetTable.from_json(answer.body)

    # Access control.

    async def put_account(
        self, header: headers.CreateAccessConfigRequest, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Create an account, or change one."""
        code = _Code.UPDATE_AND_CREATE_ACL_CONFIG
        await self._call(code, header, timeout_ms=timeout_ms)

    async def delete_account(self, access_key: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete an account."""
        header = headers.DeleteAccessConfigRequest(access_key=access_key)
        await self._call(_Code.DELETE_ACL_CONFIG, header, timeout_ms=timeout_ms)

    async def get_acl_version(
        self, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> headers.GetBrokerAclConfigResponse:
        """Which version of its accounts the broker has."""
        answer = await self._call(_Code.GET_BROKER_CLUSTER_ACL_INFO, timeout_ms=timeout_ms)
        return headers.GetBrokerAclConfigResponse.from_fields(answer.fields)

    async def update_global_white_addresses(
        self,
        addresses: Iterable[str],
        *,
        acl_file: str | None = None,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> None:
        """Set the addresses that need no account."""
        header = headers.UpdateGlobalWhiteAddrsRequest(
            global_white_addrs=",".join(addresses), acl_file_full_path=acl_file
        )
        code = _Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        await self._call(code, header, timeout_ms=timeout_ms)

    # How all of them travel.

    async def call(self, command: Command, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> Command:
        """Send any request and return its answer, whatever its code."""
        return await self._channels.call(self.address, command, timeout_ms)

    async def _send(
        self, code: RequestCode, header: Header, body: bytes, timeout_ms: int
    ) -> SendAnswer:
        answer = await self._call(code, header, body, timeout_ms=timeout_ms, accepted=_STORED)
        return send_answer_of(answer, self.address)

    async def _call(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        accepted: frozenset[int] = _SUCCESS,
    ) -> Command:
        command = Command.request(code, None if header is None else header.to_fields(), body)
        answer = await self._channels.call(self.address, command, timeout_ms)
        if answer.code not in accepted:
            raise BrokerError(answer.code, answer.remark, self.address)
        return answer

    async def _oneway(
        self,
        code: RequestCode,
        header: Header | None,
        body: bytes = b"",
        *,
        remark: str | None = None,
    ) -> None:
        fields = None if header is None else header.to_fields()
        command = Command.request(code, fields, body, oneway=True)
        command.remark = remark
        await self._channels.send_oneway(self.address, command)
