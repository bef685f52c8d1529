"""BrokerCaller: how calls to one broker travel, and what counts as a refusal."""

from __future__ import annotations

from typing import Final

from ...errors import BrokerError
from ...net.channel import Channels
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.command import Command
from ...protocol.header import Header

ADMIN_TIMEOUT_MS: Final = 5_000
RELAY_TIMEOUT_MS: Final = 15_000  # The broker itself waits 10 s for the client that it asks.

SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
FOUND_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})


class BrokerCaller:
    """One broker, by address."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        self._channels = channels

    async def call(self, command: Command, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> Command:
        """Send any request and return its answer, whatever its code."""
        return await self._channels.call(self.address, command, timeout_ms)

    async def _call(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        accepted: frozenset[int] = SUCCESS,
    ) -> Command:
        command = Command.request(code, None if header is None else header.to_fields(), body)
        answer = await self._channels.call(self.address, command, timeout_ms)
        if answer.code not in accepted:
            raise BrokerError(answer.code, answer.remark, self.address)
        return answer

    async def _oneway(
        self,
        code: RequestCode,
        header: Header | None,
        body: bytes = b"",
        *,
        remark: str | None = None,
    ) -> None:
        fields = None if header is None else header.to_fields()
        command = Command.request(code, fields, body, oneway=True)
        command.remark = remark
        await self._channels.send_oneway(self.address, command)
