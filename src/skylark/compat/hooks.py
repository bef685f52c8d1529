"""RPCHook and AclClientRPCHook: who watches requests, and who signs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..protocol.command import Command


class RemotingCommand:
    """A request or an answer as a hook sees it."""

    def __init__(self, command: Command) -> None:
        self._command = command

    def getCode(self) -> int:
        return self._command.code

    def getOpaque(self) -> int:
        return self._command.opaque

    def getRemark(self) -> str | None:
        return self._command.remark

    def getBody(self) -> bytes:
        return bytes(self._command.body)

    def getExtFields(self) -> dict[str, str]:
        """The fields of the header; what a hook changes in a request goes out."""
        return self._command.fields

    def addExtField(self, key: str, value: str) -> None:
        self._command.fields[key] = value

    def isOnewayRPC(self) -> bool:
        return self._command.is_oneway


class RPCHook(ABC):
    """Sees every request before it goes out, and every answer."""

    @abstractmethod
    def doBeforeRequest(self, remoteAddr: str, request: RemotingCommand) -> None:
        """A request is about to go out; raising stops it."""

    @abstractmethod
    def doAfterResponse(
        self, remoteAddr: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        """Its answer has come."""


class SessionCredentials:
    """An account: its name, its secret, and a token where the account is a temporary one."""

    def __init__(
        self,
        accessKey: str | None = None,
        secretKey: str | None = None,
        securityToken: str | None = None,
    ) -> None:
        self._access_key = accessKey
        self._secret_key = secretKey
        self._security_token = securityToken

    def getAccessKey(self) -> str | None:
        return self._access_key

    def setAccessKey(self, accessKey: str) -> None:
        self._access_key = accessKey

    def getSecretKey(self) -> str | None:
        return self._secret_key

    def setSecretKey(self, secretKey: str) -> None:
        self._secret_key = secretKey

    def getSecurityToken(self) -> str | None:
        return self._security_token

    def setSecurityToken(self, securityToken: str) -> None:
        self._security_token = securityToken

    def __repr__(self) -> str:
        return f"SessionCredentials [accessKey={self._access_key}, secretKey=***]"


class AclClientRPCHook(RPCHook):
    """Signs every request with an account."""

    def __init__(self, sessionCredentials: SessionCredentials) -> None:
        self._credentials = sessionCredentials

    def getSessionCredentials(self) -> SessionCredentials:
        return self._credentials

    def doBeforeRequest(self, remoteAddr: str, request: RemotingCommand) -> None:
        """Nothing here: the client signs last, when other hooks have done their work."""

    def doAfterResponse(
        self, remoteAddr: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        """Nothing: answers are not signed."""


@dataclass(frozen=True, slots=True)
class WatchedBy:
    """A hook of ours that takes word to one of Java's; equal where that is the same."""

    hook: Any

    def before_request(self, address: str, request: Command) -> None:
        self.hook.doBeforeRequest(address, RemotingCommand(request))

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.hook.doAfterResponse(address, RemotingCommand(request), RemotingCommand(response))


def hook_options(hook: RPCHook | None) -> dict[str, Any]:
    """What a hook asks of the connection."""
    if hook is None:
        return {}
    if isinstance(hook, AclClientRPCHook):
        credentials = hook.getSessionCredentials()
        return {
            "access_key": credentials.getAccessKey(),
            "secret_key": credentials.getSecretKey(),
            "security_token": credentials.getSecurityToken(),
        }
    return {"hooks": (WatchedBy(hook),)}
