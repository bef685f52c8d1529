"""Calls that read the messages of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...model.message import StoredMessage
from ...model.queue import MessageQueue
from ...protocol import headers
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.headers import PullSysFlag
from ...protocol.record import decode_records
from .caller import ADMIN_TIMEOUT_MS, BrokerCaller

PULL_TIMEOUT_MS: Final = 30_000


class PullStatus(StrEnum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


PULL_STATUS_BY_CODE: Final[Mapping[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}

_PULLED = frozenset(int(code) for code in PULL_STATUS_BY_CODE)


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


class PullCalls(BrokerCaller):
    """Reads queues."""

    async def pull(
        self, header: headers.PullMessageRequest, *, timeout_ms: int = PULL_TIMEOUT_MS
    ) -> PullAnswer:
        """Read messages of one queue; waits at the broker where the header allows it."""
        code = RequestCode.PULL_MESSAGE
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
