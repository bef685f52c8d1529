"""Calls about the predicates of a broker's filter server."""

from __future__ import annotations

from ...errors import BrokerError
from ...protocol import acl
from ...protocol.codes import RequestCode, ResponseCode
from ...protocol.command import Command
from .caller import BrokerCaller

UPLOAD_TIMEOUT_MS = 20_000  # The broker tries the source first.


class PredicateCalls(BrokerCaller):
    """Uploads predicates."""

    async def upload_predicate(
        self,
        name: str,
        version: int,
        source: bytes,
        *,
        access_key: str,
        secret_key: str,
        timeout_ms: int = UPLOAD_TIMEOUT_MS,
    ) -> None:
        """Add the next version of a predicate; raises BrokerError where it is not taken."""
        fields = acl.sign_fields(
            {"className": name, "version": str(version)},
            source,
            access_key=access_key,
            secret_key=secret_key,
        )
        command = Command.request(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, fields, source)
        answer = await self.call(command, timeout_ms=timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, self.address)
