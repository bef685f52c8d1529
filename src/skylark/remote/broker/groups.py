"""Calls about groups and their clients, as operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.group import SubscriptionGroupConfig
from ...model.queue import MessageQueue
from ...protocol import headers
from ...protocol.bodies import (
    BrokerConsumeStatsBody,
    ConsumeMessageDirectlyResult,
    ConsumerConnectionBody,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStatsBody,
    CorrectionOffsetBody,
    ProducerConnectionBody,
    ProducerTableBody,
    QueryConsumeTimeSpanBody,
    ResetOffsetBody,
    SubscriptionGroupConfigBody,
    SubscriptionGroupTable,
)
from ...protocol.codes import RequestCode
from .caller import ADMIN_TIMEOUT_MS, RELAY_TIMEOUT_MS, BrokerCaller


class GroupCalls(BrokerCaller):
    """Looks after groups."""

    async def put_group(
        self, config: SubscriptionGroupConfig, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Create a subscription group, or change one."""
        body = SubscriptionGroupConfigBody(config).to_json()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._call(code, body=body, timeout_ms=timeout_ms)

    async def delete_group(
        self, group: str, *, remove_offset: bool = False, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Delete a subscription group, and what it has committed if so wished."""
        header = headers.DeleteSubscriptionGroupRequest(
            group_name=group, remove_offset=remove_offset
        )
        await self._call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header, timeout_ms=timeout_ms)

    async def get_groups(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> SubscriptionGroupTable:
        """All subscription groups with their settings."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._call(code, timeout_ms=timeout_ms)
        return SubscriptionGroupTable.from_json(answer.body)

    async def get_consume_stats(
        self, group: str, *, topic: str | None = None, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ConsumeStatsBody:
        """How far a group is behind, in all its topics or in one."""
        header = headers.GetConsumeStatsRequest(consumer_group=group, topic=topic)
        answer = await self._call(RequestCode.GET_CONSUME_STATS, header, timeout_ms=timeout_ms)
        return ConsumeStatsBody.from_json(answer.body)

    async def get_all_consume_stats(
        self, *, order: bool = False, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> BrokerConsumeStatsBody:
        """How far every group is behind."""
        header = headers.GetBrokerConsumeStatsRequest(is_order=order)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return BrokerConsumeStatsBody.from_json(answer.body)

    async def get_consumer_connections(
        self, group: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ConsumerConnectionBody:
        """Who consumes as a group; BrokerError CONSUMER_NOT_ONLINE where nobody does."""
        header = headers.GetConsumerConnectionListRequest(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumerConnectionBody.from_json(answer.body)

    async def get_producer_connections(
        self, group: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ProducerConnectionBody:
        """Who produces as a group; BrokerError where nobody does."""
        header = headers.GetProducerConnectionListRequest(producer_group=group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ProducerConnectionBody.from_json(answer.body)

    async def get_all_producers(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> ProducerTableBody:
        """All producers by group."""
        answer = await self._call(RequestCode.GET_ALL_PRODUCER_INFO, timeout_ms=timeout_ms)
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
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
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
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
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
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
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
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return ConsumeMessageDirectlyResult.from_json(answer.body)

    async def get_consume_time_span(
        self, topic: str, group: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> QueryConsumeTimeSpanBody:
        """Between which times the messages lie that a group has read."""
        header = headers.QueryConsumeTimeSpanRequest(topic=topic, group=group)
        answer = await self._call(
            RequestCode.QUERY_CONSUME_TIME_SPAN, header, timeout_ms=timeout_ms
        )
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
        code = RequestCode.QUERY_CORRECTION_OFFSET
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
        await self._call(RequestCode.CLONE_GROUP_OFFSET, header, timeout_ms=timeout_ms)
