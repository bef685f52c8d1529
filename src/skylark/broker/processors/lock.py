"""Queue locks, for consumers that handle a queue in order."""

from __future__ import annotations

from ...errors import BrokerError
from ...protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from ...protocol.codes import ResponseCode
from ...protocol.exchange import AnyRequest, Peer, Response
from ..clients import Clients
from ..groups import GroupTable
from ..identity import Identity
from ..locks import QueueLocks
from ..topics import TopicTable


class LockProcessor:
    """Gives queues to members of a group, one at a time."""

    def __init__(
        self,
        identity: Identity,
        *,
        topics: TopicTable,
        groups: GroupTable,
        clients: Clients,
        locks: QueueLocks,
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._locks = locks

    def lock(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve LOCK_BATCH_MQ."""
        body = LockBatchRequestBody.from_json(request.body)
        self._require_own(body, peer)
        self._groups.require(body.consumer_group)
        queues = []
        for queue in body.queues:
            topic = self._topics.get(queue.topic)
            is_here = queue.broker_name == self._identity.name
            if topic is not None and is_here and 0 <= queue.queue_id < topic.read_queue_nums:
                queues.append(queue)
        granted = self._locks.lock(body.consumer_group, body.client_id, queues)
        return Response(body=LockBatchResponseBody(granted).to_json())

    def unlock(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve UNLOCK_BATCH_MQ."""
        body = LockBatchRequestBody.from_json(request.body)
        self._require_own(body, peer)
        self._locks.unlock(body.consumer_group, body.client_id, body.queues)
        return Response()

    def _require_own(self, body: LockBatchRequestBody, peer: Peer) -> None:
        """Refuse to act for somebody else.

        After a restart of the broker members lock before their next heartbeat: while a group has no
        member at all, whoever comes is believed.
        """
        group = self._clients.consumer_group(body.consumer_group)
        if group is None:
            return
        own_id = self._clients.client_id_of(peer, body.consumer_group)
        if own_id != body.client_id and group.member_of(body.client_id) is not None:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"client {body.client_id[:255]} of group {body.consumer_group} is connected "
                "elsewhere; only it can lock and unlock its queues",
            )
        if own_id is None and group.member_of(body.client_id) is None:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"{body.client_id[:255]} is no member of group {body.consumer_group}; "
                "send a heartbeat first",
            )
