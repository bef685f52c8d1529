"""BrokerRequests: what brokers ask of a client, on the connections that it has opened.

broker sends                      goes to
39 CHECK_TRANSACTION_STATE        a producer of the message's group
40 NOTIFY_CONSUMER_IDS_CHANGED    the consumer of that group
220, 221, 307, 309                the consumer of that group
326 PUSH_REPLY_MESSAGE            whoever waits for the reply
"""

from __future__ import annotations

import logging

from ..errors import BrokerError
from ..model.message import Property
from ..net import Handler
from ..protocol import headers
from ..protocol.bodies import ConsumerStatusBody, ResetOffsetBody
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.exchange import Peer, Request, Response
from ..protocol.record import decode_record
from .members import ConsumerMember, Members
from .request_reply import ReplyTable

logger = logging.getLogger(__name__)


class BrokerRequests:
    """Hands requests to the members that they are meant for."""

    def __init__(self, members: Members, replies: ReplyTable) -> None:
        self._members = members
        self._replies = replies

    def handlers(self) -> dict[int, Handler]:
        """Request code → who serves it."""
        return {
            RequestCode.CHECK_TRANSACTION_STATE: Handler(
                headers.CheckTransactionStateRequest, self._check_transaction
            ),
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Handler(
                headers.NotifyConsumerIdsChangedRequest, self._members_changed
            ),
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Handler(
                headers.ResetOffsetRequest, self._reset_offsets
            ),
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Handler(
                headers.GetConsumerStatusRequest, self._consumer_status
            ),
            RequestCode.GET_CONSUMER_RUNNING_INFO: Handler(
                headers.GetConsumerRunningInfoRequest, self._running_info
            ),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Handler(
                headers.ConsumeMessageDirectlyRequest, self._consume_directly
            ),
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Handler(
                headers.PushReplyMessageRequest, self._reply_arrived
            ),
        }

    async def _check_transaction(
        self, request: Request[headers.CheckTransactionStateRequest], peer: Peer
    ) -> None:
        half = decode_record(request.body)
        group = half.properties.get(Property.PGROUP, "")
        members = self._members.producers.get(group)
        if not members:
            logger.warning("group=%s a check for a group without producer here", group)
            return
        for member in list(members):
            if await member.check_transaction(request.header, half, peer.address):
                return

    def _members_changed(
        self, request: Request[headers.NotifyConsumerIdsChangedRequest], peer: Peer
    ) -> None:
        member = self._members.consumers.get(request.header.consumer_group)
        if member is not None:
            member.members_changed()

    async def _reset_offsets(
        self, request: Request[headers.ResetOffsetRequest], peer: Peer
    ) -> None:
        member = self._members.consumers.get(request.header.group)
        if member is not None:
            offsets = ResetOffsetBody.from_json(request.body).offsets
            await member.reset_offsets(request.header.topic, offsets)

    def _consumer_status(
        self, request: Request[headers.GetConsumerStatusRequest], peer: Peer
    ) -> Response:
        member = self._member(request.header.group)
        queues = member.consumer_status(request.header.topic)
        return Response(body=ConsumerStatusBody(queues=queues).to_json())

    def _running_info(
        self, request: Request[headers.GetConsumerRunningInfoRequest], peer: Peer
    ) -> Response:
        member = self._member(request.header.consumer_group)
        return Response(body=member.running_info(jstack=request.header.jstack_enable).to_json())

    async def _consume_directly(
        self, request: Request[headers.ConsumeMessageDirectlyRequest], peer: Peer
    ) -> Response:
        member = self._member(request.header.consumer_group)
        message = decode_record(request.body)
        result = await member.consume_directly(message, request.header.broker_name)
        return Response(body=result.to_json())

    def _reply_arrived(
        self, request: Request[headers.PushReplyMessageRequest], peer: Peer
    ) -> Response:
        self._replies.arrived(request.header, bytes(request.body))
        return Response()

    def _member(self, group: str) -> ConsumerMember:
        member = self._members.consumers.get(group)
        if member is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{group}> not exist in this consumer",
            )
        return member
