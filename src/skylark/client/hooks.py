"""Hooks: what an application may watch, and change, on the way out and back.

    RpcHook         every request and its answer, as they travel (signatures are added after it)
    SendHook        every message that a producer sends, once for each try
    ForbiddenHook   may refuse a message just before it goes out, by raising

A hook that raises in before_… stops what it watches; one that raises in after_… is logged, since
what it watches has already happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ..model.message import Message
from ..model.queue import MessageQueue
from ..protocol.command import Command

if TYPE_CHECKING:
    from .receipts import SendReceipt


class CommunicationMode(StrEnum):
    """How a producer sends: RocketMQ's names."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class MessageType(StrEnum):
    """What kind of message is sent; the order gives the ordinals of traces."""

    NORMAL = "Normal_Msg"
    TRANS_HALF = "Trans_Msg_Half"
    TRANS_COMMIT = "Trans_msg_Commit"
    DELAY = "Delay_Msg"


class RpcHook(Protocol):
    """Sees requests and answers; may add fields to a request."""

    def before_request(self, address: str, request: Command) -> None:
        """A request is about to go out."""
        ...

    def after_response(self, address: str, request: Command, response: Command) -> None:
        """Its answer has come."""
        ...


@dataclass(slots=True, kw_only=True)
class SendContext:
    """One try to send: what is known of it, and after it how it ended."""

    group: str
    messages: tuple[Message, ...]  # One, or all of a batch.
    message_ids: tuple[str, ...]
    queue: MessageQueue
    broker_address: str
    mode: CommunicationMode
    message_type: MessageType = MessageType.NORMAL
    namespace: str | None = None
    born_at_ms: int = 0
    cost_ms: int = 0
    receipts: tuple[SendReceipt, ...] = ()
    error: Exception | None = None


class SendHook(Protocol):
    """Sees each try to send."""

    def before_send(self, context: SendContext) -> None:
        """A try begins; raising stops it and goes to the caller."""
        ...

    def after_send(self, context: SendContext) -> None:
        """It has ended, well or badly."""
        ...


class ForbiddenHook(Protocol):
    """May refuse what is about to be sent."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise to refuse."""
        ...
