"""Request, Response, Peer: a conversation as the processors see it.

A processor gets a typed request and returns a typed response; frames, opaques and sockets stay in
the network shell. What it may ask of the peer itself is in Peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from .codes import ResponseCode
from .command import Command
from .header import Header

HeaderT = TypeVar("HeaderT", bound="Header | None", covariant=True)


@dataclass(slots=True)
class Request(Generic[HeaderT]):
    """One request: its typed header, its body, and what the sender said of itself."""

    code: int
    header: HeaderT
    body: bytes | memoryview = b""
    version: int = 0
    language: int = 0
    fields: dict[str, str] = field(default_factory=dict)  # As sent: signatures cover all of them.


@dataclass(slots=True)
class Response:
    """How a request ended, and what goes back with that."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    body: bytes | memoryview = b""


class Peer(Protocol):
    """The other end of a connection, as far as a processor may know it."""

    @property
    def address(self) -> str:
        """Its `ip:port`."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        ...

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send it a request and wait for the answer; raises TransportError."""
        ...

    def notify(self, command: Command) -> None:
        """Send it a oneway request; raises ConnectionLost when it is gone."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


AnyRequest = Request[Any]
