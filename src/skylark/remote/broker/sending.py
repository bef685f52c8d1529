"""Calls that store messages: sends, replies, giving back, ends of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...errors import BrokerError
from ...protocol import headers
from ...protocol.bodies import HalfMessage, HalfMessageList
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.command import Command
from ...protocol.header import Header
from ..name_server import CALL_TIMEOUT_MS
from .caller import ADMIN_TIMEOUT_MS, RELAY_TIMEOUT_MS, BrokerCaller

SEND_BACK_TIMEOUT_MS: Final = 5_000


class SendStatus(StrEnum):
    """How far a message had come when the broker answered; it is stored in every case."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


SEND_STATUS_BY_CODE: Final[Mapping[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}

_STORED = frozenset(int(code) for code in SEND_STATUS_BY_CODE)


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


class SendCalls(BrokerCaller):
    """Gives messages to a broker."""

    async def send(
        self,
        header: headers.SendMessageRequestV2,
        body: bytes,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> SendAnswer:
        """Store a message, or a batch where the header says so."""
        code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
        return await self._send(code, header, body, timeout_ms)

    async def send_v1(
        self,
        header: headers.SendMessageRequest,
        body: bytes,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> SendAnswer:
        """Store a message with the long names of the first header, as old clients do."""
        return await self._send(RequestCode.SEND_MESSAGE, header, body, timeout_ms)

    async def send_oneway(self, header: headers.SendMessageRequestV2, body: bytes) -> None:
        """Hand a message to the socket and hope for the best."""
        code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
        await self._oneway(code, header, body)

    async def send_reply(
        self,
        header: headers.SendMessageRequestV2,
        body: bytes,
        *,
        timeout_ms: int = RELAY_TIMEOUT_MS,
    ) -> SendAnswer:
        """Answer a request message: the broker hands this to the client that asked."""
        return await self._send(RequestCode.SEND_REPLY_MESSAGE_V2, header, body, timeout_ms)

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
        await self._call(RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)

    async def end_transaction(
        self, header: headers.EndTransactionRequest, *, remark: str | None = None
    ) -> None:
        """Say how a half message ends; the broker does not answer."""
        await self._oneway(RequestCode.END_TRANSACTION, header, remark=remark)

    async def confirm_transaction(
        self,
        header: headers.EndTransactionRequest,
        *,
        timeout_ms: int,
        remark: str | None = None,
    ) -> None:
        """Say how a half message ends, and wait until the broker has it; not for UNKNOWN."""
        command = Command.request(RequestCode.END_TRANSACTION, header.to_fields())
        command.remark = remark
        answer = await self.call(command, timeout_ms=timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, self.address)

    async def list_transactions(
        self, *, count_max: int = 100, group: str | None = None, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> HalfMessageList:
        """Half messages that nobody has ended, the oldest first; our brokers alone can tell."""
        header = headers.ListTransactionsRequest(count_max=count_max, group=group)
        answer = await self._call(RequestCode.LIST_TRANSACTIONS, header, timeout_ms=timeout_ms)
        return HalfMessageList.from_json(answer.body)

    async def resolve_transaction(
        self, half: HalfMessage, *, commits: bool, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """End a half message in its producer's place."""
        header = headers.EndTransactionRequest(
            producer_group=half.producer_group,
            tran_state_table_offset=half.half_offset,
            commit_log_offset=half.physical_offset,
            commit_or_rollback=8 if commits else 12,
            msg_id=half.transaction_id,
            transaction_id=half.transaction_id,
        )
        await self.confirm_transaction(header, timeout_ms=timeout_ms, remark="by an operator")

    async def resume_check(self, offset_id: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Have a half message checked again that was given up."""
        header = headers.ResumeCheckHalfMessageRequest(msg_id=offset_id)
        await self._call(RequestCode.RESUME_CHECK_HALF_MESSAGE, header, timeout_ms=timeout_ms)

    async def _send(
        self, code: RequestCode, header: Header, body: bytes, timeout_ms: int
    ) -> SendAnswer:
        answer = await self._call(code, header, body, timeout_ms=timeout_ms, accepted=_STORED)
        return send_answer_of(answer, self.address)
