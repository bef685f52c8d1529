"""Transactions: how a half message ends, and the broker's question about it.

commitOrRollback   meaning
0                  not known yet; the broker does nothing and will ask again
8                  commit
12                 rollback
"""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header, wire


@header
class EndTransactionRequest(Header):
    """A producer has made up its mind about a half message."""

    CODE: ClassVar[RequestCode] = RequestCode.END_TRANSACTION

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class CheckTransactionStateRequest(Header):
    """The broker asks a producer about a half message, which is the body."""

    CODE: ClassVar[RequestCode] = RequestCode.CHECK_TRANSACTION_STATE

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


@header
class ResumeCheckHalfMessageRequest(Header):
    """Ask about a half message again that the broker had given up on."""

    CODE: ClassVar[RequestCode] = RequestCode.RESUME_CHECK_HALF_MESSAGE

    msg_id: str | None = None


@header
class ListTransactionsRequest(Header):
    """Show half messages that are not over; a code of ours, RocketMQ has none for it."""

    CODE: ClassVar[RequestCode] = RequestCode.LIST_TRANSACTIONS

    count_max: I32 = 100
    group: str | None = None
