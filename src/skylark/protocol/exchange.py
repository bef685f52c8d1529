"""Request, Response, Peer: a conversation as the processors see it.

A processor gets a typed request and returns a typed response; frames, opaques and sockets stay in
the network shell. What it may ask of the peer itself is in Peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    is_oneway: bool = False  # Nobody waits for an answer.


@dataclass(slots=True)
class Response:
    """How a request ended, and what goes back with that."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    body: bytes | memoryview = b""


Answers = bytes | Sequence[Command]
"""Answers to one or several requests: commands, or frames that are encoded already."""


class Deferred:
    """Answers that come later, without a task that waits for them.

    A handler of raw requests that cannot answer yet returns one and keeps it. Whoever has the
    answers calls answer(), once; when the peer goes first, on_dropped is called instead.
    """

    __slots__ = ("_early", "_take", "is_done", "on_dropped", "weight")

    def __init__(
        self, *, weight: int = 0, on_dropped: Callable[[Deferred], None] | None = None
    ) -> None:
        # How many requests it counts for where those under way are limited: 0 for one that waits
        # for something that the peer itself may have to bring about.
        self.weight = weight
        self.on_dropped = on_dropped
        self.is_done = False
        self._take: Callable[[Deferred, Answers], None] | None = None
        self._early: Answers | None = None

    def answer(self, answers: Answers) -> None:
        """Hand over the answers; nobody hears them if the peer is gone."""
        if self.is_done:
            return
        self.is_done = True
        if self._take is None:
            self._early = answers
        else:
            self._take(self, answers)

    def taken_by(self, take: Callable[[Deferred, Answers], None]) -> None:
        """Say who takes the answers; for the network shell."""
        self._take = take
        if self._early is not None:
            take(self, self._early)

    def drop(self) -> None:
        """The peer is gone; for the network shell."""
        if not self.is_done:
            self.is_done = True
            if self.on_dropped is not None:
                self.on_dropped(self)


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

    @property
    def unsent_bytes(self) -> int:
        """How much of what was answered it has not taken yet."""
        ...

    @property
    def waited_ms(self) -> int:
        """How long its request that is being served has waited since it was read."""
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
