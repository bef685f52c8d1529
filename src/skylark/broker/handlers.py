"""What a broker answers: the table of contents.

    code            asks                                     served by
    10 310 320      store messages                           processors/send.py, in batches
    11 361          read messages, or wait for them          processors/pull.py
    14 15 29-32     offsets of groups and queues             processors/offset.py
    34 35 38 46     clients and their groups                 processors/heartbeat.py
    36              a message to be retried                  processors/sendback.py
    41 42           queue locks                              processors/lock.py
    37 323          transactions: ends, checks again         processors/transaction.py
    302             predicates that operators upload         filter_server.py
    324 325         replies to requests                      processors/reply.py
    810500 …        rows that appear all at once             processors/staging.py
    12 33 321       messages by key, by id, by place         processors/query.py
    17 21 … 329     what operators ask                       processors/admin/

Codes and remarks are RocketMQ 4.9.8's. Where we differ, docs/compatibility.md says so. Codes that
are not here are answered REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ..errors import BrokerError
from ..protocol import headers
from ..protocol.codes import Language, RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.exchange import Answers, AnyRequest, Deferred, Peer, Response
from ..protocol.header import Header
from .parts import Parts
from .processors import admin
from .processors.heartbeat import HeartbeatProcessor
from .processors.lock import LockProcessor
from .processors.offset import OffsetProcessor
from .processors.pull import PullProcessor
from .processors.query import QueryProcessor
from .processors.reply import ReplyProcessor
from .processors.send import SendProcessor
from .processors.sendback import SendBackProcessor
from .processors.staging import StagingProcessor
from .processors.transaction import TransactionProcessor
from .raft_mode import RaftMode

Handle = Callable[[Any, Peer], Response | Coroutine[Any, Any, Response | None] | None]
Typed = dict[int, tuple[type[Header] | None, Handle]]


@dataclass(slots=True)
class Handlers:
    """Request code → who serves it, by the way in which requests are handed over."""

    typed: Typed = field(default_factory=dict)
    raw: dict[int, Callable[[Command, Peer], Command | bytes | Deferred | None]] = field(
        default_factory=dict
    )
    batches: dict[int, Callable[[list[Command], Peer], Answers | Deferred]] = field(
        default_factory=dict
    )


# What a replica's next copy of the tables would undo.
_THE_MASTERS_ALONE = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)


def _refuse_on_a_replica(request: object, peer: Peer) -> Response:
    raise BrokerError(
        ResponseCode.SYSTEM_ERROR,
        "Can't modify topic or subscription group from slave broker, please execute it from "
        "master broker.",
    )


# What else changes the tables of a Raft group, or the log.
_CHANGES = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)


def _when_agreed(raft: RaftMode, handle: Handle) -> Handle:
    """Let the leader alone serve a request, and answer when the group has agreed on the outcome."""

    async def serve(request: AnyRequest, peer: Peer) -> Response | None:
        raft.require_serving()
        outcome = handle(request, peer)
        if outcome is not None and not isinstance(outcome, Response):
            outcome = await outcome
        if not request.is_oneway:
            await raft.state.settled()
        return outcome

    return serve


def _by_the_leader(raft: RaftMode, handle: Handle) -> Handle:
    """Answer a question that only the leader knows the answer to.

    Java takes an error for "this group is new", and would skip messages. It asks again where it
    gets no answer at all.
    """

    def serve(request: AnyRequest, peer: Peer) -> Any:
        if not raft.is_serving and request.language != Language.PYTHON:
            return None
        raft.require_serving()
        return handle(request, peer)

    return serve


def build(parts: Parts, heartbeats: HeartbeatProcessor) -> Handlers:
    """Make the processors, and the table of what each serves."""
    sends = SendProcessor(
        parts.live,
        parts.identity,
        topics=parts.topics,
        groups=parts.groups,
        store=parts.store,
        flusher=parts.waiter,
        flow=parts.flow,
        clock=parts.clock,
        rng=parts.rng,
        observer=parts.observer,
        quorum=(parts.raft or parts.replication).sync_quorum,
    )
    replies = ReplyProcessor(
        parts.live,
        parts.identity,
        sends=sends,
        clients=parts.clients,
        store=parts.store,
        flusher=parts.waiter,
        flow=parts.flow,
        clock=parts.clock,
    )
    send_backs = SendBackProcessor(
        parts.live,
        parts.identity,
        topics=parts.topics,
        groups=parts.groups,
        store=parts.store,
        flusher=parts.waiter,
        flow=parts.flow,
        rng=parts.rng,
        observer=parts.observer,
    )
    offsets = OffsetProcessor(
        parts.identity,
        topics=parts.topics,
        groups=parts.groups,
        clients=parts.clients,
        offsets=parts.offsets,
        locks=parts.locks,
        store=parts.store,
    )
    pulls = PullProcessor(
        parts.live,
        parts.identity,
        topics=parts.topics,
        groups=parts.groups,
        clients=parts.clients,
        offsets=offsets,
        store=parts.store,
        arrivals=parts.arrivals,
        filters=parts.filters,
        predicates=parts.predicates,
        clock=parts.clock,
        observer=parts.observer,
        has_near_replica=(parts.raft or parts.replication).has_near_replica,
    )
    locks = LockProcessor(
        parts.identity,
        topics=parts.topics,
        groups=parts.groups,
        clients=parts.clients,
        locks=parts.locks,
    )
    queries = QueryProcessor(
        parts.live, store=parts.store, clients=parts.clients, filters=parts.filters
    )
    transactions = TransactionProcessor(
        parts.identity,
        transactions=parts.transactions,
        store=parts.store,
        durability=sends.durability,
        flow=parts.flow,
    )
    staging = StagingProcessor(
        parts.identity,
        sends=sends,
        staging=parts.staging,
        durability=sends.durability,
        store=parts.store,
        flow=parts.flow,
        clock=parts.clock,
    )
    code = RequestCode
    typed: Typed = {
        **admin.table(parts),
        code.STAGE_ROWS: (headers.StageRowsRequest, staging.stage),
        code.SEAL_ROWS: (None, staging.seal),
        code.DECIDE_ROWS: (None, staging.decide),
        code.GET_DECISION: (headers.GetDecisionRequest, staging.decision),
        code.QUERY_MESSAGE: (headers.QueryMessageRequest, queries.query),
        code.VIEW_MESSAGE_BY_ID: (headers.ViewMessageRequest, queries.view),
        code.QUERY_CONSUME_QUEUE: (headers.QueryConsumeQueueRequest, queries.consume_queue),
        code.QUERY_CONSUMER_OFFSET: (headers.QueryConsumerOffsetRequest, offsets.query),
        code.UPDATE_CONSUMER_OFFSET: (headers.UpdateConsumerOffsetRequest, offsets.update),
        code.SEARCH_OFFSET_BY_TIMESTAMP: (headers.SearchOffsetRequest, offsets.search),
        code.GET_MAX_OFFSET: (headers.GetMaxOffsetRequest, offsets.max),
        code.GET_MIN_OFFSET: (headers.GetMinOffsetRequest, offsets.min),
        code.GET_EARLIEST_MSG_STORETIME: (
            headers.GetEarliestMsgStoretimeRequest,
            offsets.earliest,
        ),
        code.HEART_BEAT: (None, heartbeats.heartbeat),
        code.UNREGISTER_CLIENT: (headers.UnregisterClientRequest, heartbeats.unregister),
        code.GET_CONSUMER_LIST_BY_GROUP: (
            headers.GetConsumerListByGroupRequest,
            heartbeats.list_consumers,
        ),
        code.CHECK_CLIENT_CONFIG: (None, heartbeats.check_config),
        code.REGISTER_MESSAGE_FILTER_CLASS: (None, parts.predicates.upload),
        code.CONSUMER_SEND_MSG_BACK: (headers.ConsumerSendMsgBackRequest, send_backs.send_back),
        code.LOCK_BATCH_MQ: (None, locks.lock),
        code.UNLOCK_BATCH_MQ: (None, locks.unlock),
        code.END_TRANSACTION: (headers.EndTransactionRequest, transactions.end),
        code.RESUME_CHECK_HALF_MESSAGE: (
            headers.ResumeCheckHalfMessageRequest,
            transactions.resume,
        ),
        code.LIST_TRANSACTIONS: (headers.ListTransactionsRequest, transactions.list_pending),
        code.SEND_REPLY_MESSAGE: (headers.SendMessageRequest, replies.reply),
        code.SEND_REPLY_MESSAGE_V2: (headers.SendMessageRequestV2, replies.reply),
    }
    raft = parts.raft
    if raft is not None:
        for request in (*_THE_MASTERS_ALONE, *_CHANGES):
            typed[request] = (typed[request][0], _when_agreed(raft, typed[request][1]))
        query = typed[code.QUERY_CONSUMER_OFFSET]
        typed[code.QUERY_CONSUMER_OFFSET] = (query[0], _by_the_leader(raft, query[1]))
    elif parts.store.is_replica:
        for request in _THE_MASTERS_ALONE:
            typed[request] = (typed[request][0], _refuse_on_a_replica)
    return Handlers(
        typed=typed,
        raw={code.PULL_MESSAGE: pulls.pull, code.LITE_PULL_MESSAGE: pulls.pull},
        batches={
            code.SEND_MESSAGE: sends.send,
            code.SEND_MESSAGE_V2: sends.send,
            code.SEND_BATCH_MESSAGE: sends.send,
        },
    )
