"""Transactions: producers end their half messages, operators look at those that nobody ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ...errors import BrokerError, InvalidMessageId
from ...model.message import OffsetId, TransactionType
from ...protocol.bodies import HalfMessage, HalfMessageList
from ...protocol.codes import ResponseCode
from ...protocol.exchange import Peer, Request, Response
from ...protocol.headers import (
    EndTransactionRequest,
    ListTransactionsRequest,
    ResumeCheckHalfMessageRequest,
)
from ...protocol.message_id import parse_offset_id
from ...store import MessageStore, PutStatus
from ..durability import Durability
from ..flow import FlowControl
from ..half_messages import Ending
from ..identity import Identity
from ..transactions import TransactionService

LIST_COUNT_MAX = 1_000
_ENDINGS: dict[int, Ending] = {
    TransactionType.COMMIT: Ending.COMMIT,
    TransactionType.ROLLBACK: Ending.ROLLBACK,
}


class TransactionProcessor:
    """Ends, lists and resumes half messages."""

    def __init__(
        self,
        identity: Identity,
        *,
        transactions: TransactionService,
        store: MessageStore,
        durability: Durability,
        flow: FlowControl,
    ) -> None:
        self._identity = identity
        self._transactions = transactions
        self._store = store
        self._durability = durability
        self._flow = flow

    def end(
        self, request: Request[EndTransactionRequest], peer: Peer
    ) -> Response | Coroutine[Any, Any, Response] | None:
        """Serve END_TRANSACTION."""
        header = request.header
        if self._store.is_replica:
            raise BrokerError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "this broker is a slave: transactions end at its master",
            )
        kind = header.commit_or_rollback
        if kind == TransactionType.NONE:
            return None  # The producer does not know yet, and is asked again.
        ending = _ENDINGS.get(kind)
        if ending is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {kind}: 8 commits, 12 rolls back, 0 says not known yet",
            )
        refusal = self._flow.refusal()
        if refusal is not None:
            raise BrokerError(*refusal)
        return self._stored(self._transactions.end(header, ending))

    def resume(
        self, request: Request[ResumeCheckHalfMessageRequest], peer: Peer
    ) -> Response | Coroutine[Any, Any, Response]:
        """Serve RESUME_CHECK_HALF_MESSAGE."""
        try:
            offset = parse_offset_id(request.header.msg_id or "").physical_offset
        except InvalidMessageId as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return self._stored(self._transactions.resume(offset))

    def _stored(self, end: int) -> Response | Coroutine[Any, Any, Response]:
        if self._durability.is_safe(end):
            return Response()
        return self._when_safe(end)

    async def _when_safe(self, end: int) -> Response:
        done: asyncio.Future[PutStatus | None] = asyncio.get_running_loop().create_future()
        cancel = self._durability.when_safe(end, 1, done.set_result)
        try:
            status = await done
        finally:
            cancel()
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "the end of the transaction may not be on the disk; see the broker's log",
            )
        # Stored, if less safely than it should be: RocketMQ counts that as done, and so it is.
        return Response(remark=None if status is None else status.name)

    def list_pending(self, request: Request[ListTransactionsRequest], peer: Peer) -> Response:
        """Serve LIST_TRANSACTIONS."""
        service = self._transactions
        header = request.header
        found: list[HalfMessage] = []
        for item in service.pending(LIST_COUNT_MAX if header.group else header.count_max):
            if header.group and item.half.id.group != header.group:
                continue
            if len(found) >= min(header.count_max, LIST_COUNT_MAX):
                break
            stored = item.stored
            found.append(
                HalfMessage(
                    producer_group=item.half.id.group,
                    topic="" if item.place is None else item.place.topic,
                    queue_id=-1 if item.place is None else item.place.queue_id,
                    transaction_id=stored.unique_id,
                    offset_id=str(OffsetId(self._identity.host, stored.physical_offset)),
                    half_offset=stored.queue_offset,
                    physical_offset=stored.physical_offset,
                    tag=stored.tag,
                    keys=" ".join(stored.keys),
                    body_size=len(stored.body),
                    born_at_ms=stored.born_at_ms,
                    since_ms=item.since_ms,
                    check_times=item.times,
                )
            )
        body = HalfMessageList(
            pending=len(service),
            committed=service.committed_total,
            rolled_back=service.rolled_back_total,
            given_up=service.given_up_total,
            checks=service.checks_total,
            messages=tuple(found),
        )
        return Response(body=body.to_json())
