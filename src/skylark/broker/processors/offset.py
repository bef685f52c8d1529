"""Offsets: how far groups have come, and where queues begin and end."""

from __future__ import annotations

import logging

from ...errors import BrokerError
from ...model.group import ConsumeType
from ...model.queue import MessageQueue
from ...protocol.codes import ResponseCode
from ...protocol.exchange import Peer, Request, Response
from ...protocol.headers import offset as headers
from ...store import MessageStore
from ..clients import Clients, ConsumerGroup
from ..groups import GroupTable
from ..identity import Identity
from ..locks import QueueLocks
from ..offsets import CommitOutcome, ConsumerOffsets
from ..topics import TopicTable

logger = logging.getLogger(__name__)


class OffsetProcessor:
    """Answers questions about offsets, and takes commits."""

    def __init__(
        self,
        identity: Identity,
        *,
        topics: TopicTable,
        groups: GroupTable,
        clients: Clients,
        offsets: ConsumerOffsets,
        locks: QueueLocks,
        store: MessageStore,
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._locks = locks
        self._store = store

    # Groups.

    def query(self, request: Request[headers.QueryConsumerOffsetRequest], peer: Peer) -> Response:
        """Serve QUERY_CONSUMER_OFFSET.

        Java takes every answer but success for "start anew", so nothing but QUERY_NOT_FOUND may say
        so: a group that never committed starts at 0 where nothing has been deleted yet and the
        queue is young, and where its own setting says otherwise.
        """
        header = request.header
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        offset = self._offsets.get(topic, group, queue_id)
        if offset is None:
            if not self._is_young(topic, queue_id) and not header.set_zero_if_not_found:
                return Response(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                    headers.QueryConsumerOffsetResponse(),
                )
            return Response(header=headers.QueryConsumerOffsetResponse(offset=0))
        return Response(header=headers.QueryConsumerOffsetResponse(offset=offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has its first message, and that is recent."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return True
        entry = queue.entry(0)
        if queue.min_offset > 0 or entry is None:
            return queue.min_offset <= 0
        behind = self._store.log.committed - entry.physical_offset
        return behind <= self._store.config.memory_distance_bytes

    def update(self, request: Request[headers.UpdateConsumerOffsetRequest], peer: Peer) -> Response:
        """Serve UPDATE_CONSUMER_OFFSET."""
        header = request.header
        remark = self._commit(
            header.topic,
            header.consumer_group,
            header.queue_id,
            header.commit_offset,
            peer,
            is_reset=bool(header.reset),
        )
        return Response(remark=remark)

    def commit_quietly(
        self, topic: str, group: str, queue_id: int, offset: int, peer: Peer
    ) -> None:
        """Take the commit that comes with a pull, whose answer has no room for a refusal."""
        try:
            self._commit(topic, group, queue_id, offset, peer)
        except BrokerError as error:
            logger.debug("peer=%s commit refused: %s", peer.address, error.remark)

    def place_of_push(self, topic: str, group: str, queue_id: int, *, first: int) -> int | None:
        """Where a group with push consumers goes on that has lost its place; None for others.

        That is where it last committed, or the first message if it never did here: what lies
        behind has been stored since its place was lost, and nobody has read it.
        """
        members = self._clients.consumer_group(group)
        if members is None or members.consume_type is not ConsumeType.CONSUME_PASSIVELY:
            return None
        committed = self._offsets.get(topic, group, queue_id)
        return first if committed is None else max(first, committed)

    def _commit(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        peer: Peer,
        *,
        is_reset: bool = False,
    ) -> str | None:
        known = self._topics.get(topic)
        if known is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        queues = max(known.read_queue_nums, known.write_queue_nums)
        if not 0 <= queue_id < queues or offset < 0:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic} queue {queue_id} offset {offset}: the topic has {queues} queues, "
                "and offsets begin at 0",
            )
        self._groups.require(group)
        members = self._clients.consumer_group(group)
        client_id = None if members is None else self._clients.client_id_of(peer, group)
        lock = self._locks.owner(group, MessageQueue(topic, self._identity.name, queue_id))
        if lock is not None and client_id is not None and lock.client_id != client_id:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} queue {queue_id} is locked by {lock.client_id}; rebalance first",
            )
        outcome = self._offsets.commit(
            topic,
            group,
            queue_id,
            offset,
            may_go_back=self._may_go_back(topic, group, members)
            or (is_reset and (members is None or client_id is not None)),
        )
        if outcome is CommitOutcome.TAKEN:
            return None
        now = self._offsets.get(topic, group, queue_id)
        logger.info(
            "topic=%s group=%s queue=%d commit of %d by %s %s at %s",
            topic, group, queue_id, offset, peer.address, outcome.value, now,
        )  # fmt: skip
        if outcome is CommitOutcome.BEYOND:
            return f"offset {offset} is beyond the end of the queue and not taken; {now} is kept"
        return f"offset {now} is kept: {offset} would go back; reset the group's offsets for that"

    def _may_go_back(self, topic: str, group: str, members: ConsumerGroup | None) -> bool:
        if members is None:
            return not self._offsets.is_settling(topic, group)
        return members.consume_type is ConsumeType.CONSUME_ACTIVELY

    # Queues.

    def max(self, request: Request[headers.GetMaxOffsetRequest], peer: Peer) -> Response:
        """Serve GET_MAX_OFFSET."""
        offset = self._store.max_offset(request.header.topic, request.header.queue_id)
        return Response(header=headers.GetMaxOffsetResponse(offset=offset))

    def min(self, request: Request[headers.GetMinOffsetRequest], peer: Peer) -> Response:
        """Serve GET_MIN_OFFSET."""
        offset = self._store.min_offset(request.header.topic, request.header.queue_id)
        return Response(header=headers.GetMinOffsetResponse(offset=offset))

    def search(self, request: Request[headers.SearchOffsetRequest], peer: Peer) -> Response:
        """Serve SEARCH_OFFSET_BY_TIMESTAMP."""
        header = request.header
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return Response(header=headers.SearchOffsetResponse(offset=offset))

    def earliest(
        self, request: Request[headers.GetEarliestMsgStoretimeRequest], peer: Peer
    ) -> Response:
        """Serve GET_EARLIEST_MSG_STORETIME."""
        header = request.header
        stored_at_ms = self._store.earliest_stored_at_ms(header.topic, header.queue_id)
        return Response(header=headers.GetEarliestMsgStoretimeResponse(timestamp=stored_at_ms))
