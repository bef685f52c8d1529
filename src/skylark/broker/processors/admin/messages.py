"""What operators ask of one member of a group, handed on to it and back."""

from __future__ import annotations

import logging
from typing import Final

from ....errors import BrokerError, CallTimeout, InvalidMessageId, TransportError
from ....protocol.codes import RequestCode, ResponseCode
from ....protocol.command import Command
from ....protocol.exchange import AnyRequest, Peer, Request, Response
from ....protocol.headers import admin_groups as headers
from ....protocol.message_id import parse_offset_id
from ...clients import Member
from ...parts import Parts

logger = logging.getLogger(__name__)

RELAY_TIMEOUT_MS: Final = 10_000
# A signature is between the operator and us: a member that saw it could use it again.
_NOT_HANDED_ON: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})


class MessageAdmin:
    """Relays questions and messages to members."""

    def __init__(self, parts: Parts) -> None:
        self._clients = parts.clients
        self._identity = parts.identity
        self._store = parts.store

    async def running_info(
        self, request: Request[headers.GetConsumerRunningInfoRequest], peer: Peer
    ) -> Response:
        """Serve GET_CONSUMER_RUNNING_INFO."""
        member = self._member(request.header.consumer_group, request.header.client_id)
        return await self._relay(request, member, request.fields, bytes(request.body))

    async def consume_directly(
        self, request: Request[headers.ConsumeMessageDirectlyRequest], peer: Peer
    ) -> Response:
        """Serve CONSUME_MESSAGE_DIRECTLY: the member gets the message from us, not from a pull."""
        header = request.header
        member = self._member(header.consumer_group, header.client_id)
        try:
            # Only the offset counts: whose address the id names is of no concern here.
            offset = parse_offset_id(header.msg_id or "").physical_offset
        except InvalidMessageId as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self._store.get_by_physical_offset(offset)
        if record is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        fields = {**request.fields, "brokerName": self._identity.name}
        return await self._relay(request, member, fields, bytes(record))

    def _member(self, group_name: str, client_id: str | None) -> Member:
        group = self._clients.consumer_group(group_name)
        member = None if group is None or client_id is None else group.member_of(client_id)
        if member is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group_name[:255]}> <{(client_id or '')[:255]}> not online",
            )
        return member

    @staticmethod
    async def _relay(
        request: AnyRequest, member: Member, fields: dict[str, str], body: bytes
    ) -> Response:
        shown = {name: text for name, text in fields.items() if name not in _NOT_HANDED_ON}
        command = Command.request(RequestCode(request.code), shown, body)
        try:
            answer = await member.peer.call(command, RELAY_TIMEOUT_MS)
        except CallTimeout as error:
            raise BrokerError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{member.client_id}> did not answer: {error.problem}",
            ) from None
        except TransportError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"consumer <{member.client_id}> is gone: {error.problem}",
            ) from None
        return Response(answer.code, answer.remark, body=bytes(answer.body))
