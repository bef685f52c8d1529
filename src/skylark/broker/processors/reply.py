"""Replies: the answer to a request-reply message goes straight to the client that asked."""

from __future__ import annotations

import logging

from ...clock import Clock
from ...errors import BrokerError, TransportError
from ...model.message import Property
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.command import Command
from ...protocol.exchange import AnyRequest, Peer, Request, Response
from ...protocol.headers import PushReplyMessageRequest, SendMessageResponse
from ...protocol.headers.send import SendMessageRequest, SendMessageRequestV2
from ...protocol.properties import format_properties, parse_properties
from ...store import MessageStore, PutResult, PutStatus
from ..clients import Clients
from ..config import LiveConfig
from ..flow import FlowControl
from ..identity import Identity
from .send import FlushWaiter, SendProcessor

logger = logging.getLogger(__name__)


class ReplyProcessor:
    """Pushes replies, and stores them where that is wanted."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        *,
        sends: SendProcessor,
        clients: Clients,
        store: MessageStore,
        flusher: FlushWaiter,
        flow: FlowControl,
        clock: Clock,
    ) -> None:
        self._live = live
        self._identity = identity
        self._sends = sends
        self._clients = clients
        self._store = store
        self._flusher = flusher
        self._flow = flow
        self._clock = clock

    async def reply(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve SEND_REPLY_MESSAGE and its second version."""
        refusal = self._flow.refusal()
        if refusal is not None:
            raise BrokerError(*refusal)
        header: SendMessageRequest | SendMessageRequestV2 = request.header
        command = Command(
            request.code, fields=request.fields, body=request.body, version=request.version
        )
        born_host = self._identity.born_host(peer)
        queue_id, message = self._sends.prepare(command, header, born_host)
        problem = await self._push(request, peer)
        stored: PutResult | None = None
        if self._live.current.store_reply_message_enable:
            (stored,) = self._store.put([message])
            if stored.status is not PutStatus.PUT_OK:
                problem = problem or f"the reply was not stored: {stored.status.name}"
                stored = None
            elif self._store.config.is_sync_flush:
                await self._flusher.flushed(stored.end)
        fields = self._identity.trace_fields()
        msg_id = (
            "0" if stored is None else f"{self._identity.id_prefix}{stored.physical_offset:016X}"
        )
        return Response(
            ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR,
            problem,
            SendMessageResponse(
                msg_id=msg_id,
                queue_id=queue_id,
                queue_offset=0 if stored is None else stored.queue_offset,
                region=fields["MSG_REGION"],
                trace_on=self._live.current.trace_on,
            ),
        )

    async def _push(self, request: Request[SendMessageRequest], peer: Peer) -> str | None:
        """Hand a reply to the requester; return what went wrong, or None."""
        header = request.header
        properties = parse_properties(header.properties or "")
        client_id = properties.get(Property.REPLY_TO_CLIENT)
        if not client_id:
            return "REPLY_TO_CLIENT is null, can not reply message: set it from the request"
        requester = self._clients.producer(client_id)
        if requester is None:
            return f"the client {client_id[:255]} is not connected to this broker"
        now_ms = self._clock.now_ms()
        properties[Property.PUSH_REPLY_TIME] = str(now_ms)
        push = PushReplyMessageRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=format_properties(properties, as_read=True),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode or False,
            born_host=peer.address,
            store_host=str(self._identity.host),
            store_timestamp=now_ms,
        )
        command = Command.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_fields(), request.body
        )
        try:
            answer = await requester.call(command, self._live.current.reply_timeout_ms)
        except TransportError as error:
            logger.info("client=%s reply not pushed: %s", client_id, error)
            return f"push reply message to {client_id[:255]} fail: {error.problem}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id[:255]} fail: {answer.remark}"
        return None
