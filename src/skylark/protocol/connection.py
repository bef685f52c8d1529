"""Connection: one peer's conversation, without a socket.

Bytes go in, requests and answers come out; commands go in, bytes come out. It pairs answers with
the requests that wait for them. Who reads, writes, waits and closes is the shell's business
(net/link.py).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ..errors import RemoteProtocolError
from .command import Command
from .frame import FrameDecoder, FrameLimits, encode_frames

Waiter = TypeVar("Waiter")
_OPAQUE_MAX = 2**31 - 1


class Connection(Generic[Waiter]):
    """The state of one conversation. A waiter is whatever the shell wants back with an answer."""

    __slots__ = ("_decoder", "_next_opaque", "_waiters", "stray_answers")

    def __init__(self, limits: FrameLimits = FrameLimits()) -> None:  # noqa: B008
        self._decoder = FrameDecoder(limits)
        self._waiters: dict[int, Waiter] = {}
        self._next_opaque = 0
        self.stray_answers = 0  # Answers nobody waited for: late ones, after a time-out.

    @property
    def violation(self) -> RemoteProtocolError | None:
        """What the peer did that ends this conversation, if it did."""
        return self._decoder.error

    @property
    def limits(self) -> FrameLimits:
        """The frame limits in force for this peer."""
        return self._decoder.limits

    @limits.setter
    def limits(self, limits: FrameLimits) -> None:
        self._decoder.limits = limits

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame is in hand."""
        return self._decoder.held_bytes

    @property
    def waiting(self) -> int:
        """How many of our requests have no answer yet."""
        return len(self._waiters)

    def receive_data(self, data: bytes) -> tuple[list[Command], list[tuple[Waiter, Command]]]:
        """Take bytes from the peer; return its requests, and its answers with their waiters.

        After a violation nothing more comes out; what came before it in the same bytes still does.
        """
        requests: list[Command] = []
        answers: list[tuple[Waiter, Command]] = []
        for command in self._decoder.feed(data):
            if not command.flag & 1:
                requests.append(command)
            elif command.opaque in self._waiters:
                answers.append((self._waiters.pop(command.opaque), command))
            else:
                self.stray_answers += 1
        return requests, answers

    def begin_request(self, command: Command, waiter: Waiter) -> bytes:
        """Number a request, remember who waits for its answer, and return its bytes."""
        self._number(command)
        data = encode_frames([command])
        self._waiters[command.opaque] = waiter
        return data

    def encode_oneway(self, command: Command) -> bytes:
        """Number a request that gets no answer, and return its bytes."""
        assert command.is_oneway
        self._number(command)
        return encode_frames([command])

    def forget(self, opaque: int) -> None:
        """Stop waiting for the answer to a request; a late one will be dropped.

        By number, not by command: the same command may have gone to another peer since, and then
        carries the number it was given there.
        """
        self._waiters.pop(opaque, None)

    def abandon(self) -> list[Waiter]:
        """End the conversation; return all who still wait."""
        waiters = list(self._waiters.values())
        self._waiters.clear()
        return waiters

    def _number(self, command: Command) -> None:
        opaque = self._next_opaque
        while opaque in self._waiters:  # After 2**31 requests the count starts again.
            opaque = 0 if opaque == _OPAQUE_MAX else opaque + 1
        command.opaque = opaque
        self._next_opaque = 0 if opaque == _OPAQUE_MAX else opaque + 1
