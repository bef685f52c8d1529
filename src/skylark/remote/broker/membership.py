"""Calls of a client about itself and its group: heartbeats, members, locks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...model.group import Subscription
from ...model.queue import MessageQueue
from ...protocol import headers
from ...protocol.bodies import (
    CheckClientConfigBody,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from ...protocol.codes import RequestCode
from ..name_server import CALL_TIMEOUT_MS
from .caller import BrokerCaller

LOCK_TIMEOUT_MS: Final = 1_000


class MembershipCalls(BrokerCaller):
    """Makes a client known, and tells who else is there."""

    async def heartbeat(
        self, heartbeat: HeartbeatData, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> int:
        """Say that a client lives, and what it does; return the broker's version."""
        answer = await self._call(
            RequestCode.HEART_BEAT, body=heartbeat.to_json(), timeout_ms=timeout_ms
        )
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
        await self._call(RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)

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
        await self._call(RequestCode.CHECK_CLIENT_CONFIG, body=body, timeout_ms=timeout_ms)

    async def get_consumer_ids(
        self, group: str, *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> tuple[str, ...]:
        """The client ids of a group's members; BrokerError where it has none."""
        header = headers.GetConsumerListByGroupRequest(consumer_group=group)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
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
        answer = await self._call(RequestCode.LOCK_BATCH_MQ, body=body, timeout_ms=timeout_ms)
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
            await self._oneway(RequestCode.UNLOCK_BATCH_MQ, None, body)
        else:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, body=body, timeout_ms=timeout_ms)
