"""PipelinedLink: a connection on which many requests are under way at once, at little cost each.

    a plain Link                          here
    one write to the socket a request     one for all requests of a turn of the loop
    one timer for each call               one for all calls, set for the earliest deadline

What is gathered is bounded: beyond GATHERED_BYTES_MAX it goes out at once, so that the transport's
own limits see it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ..errors import CallTimeout
from ..net.link import Link
from ..protocol.command import Command

GATHERED_BYTES_MAX: Final = 64 * 1024
_SLACK_S: Final = 0.001  # Deadlines this close together are served by one wake-up.


class PipelinedLink(Link):
    """A link for calling."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._is_write_due = False
        self._calls: dict[int, tuple[float, int, asyncio.Future[Command]]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for its answer; raises TransportError."""
        if not self.is_ready:
            return await super().call(command, timeout_ms)
        answer = self.submit(command, timeout_ms)
        opaque = command.opaque  # Its number here: it may be sent to another peer meanwhile.
        try:
            return await answer
        finally:
            self.finish(opaque)

    def submit(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Send a request on a link that is ready; whoever awaits the answer calls finish then."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Command] = loop.create_future()
        self.begin(command, answer)
        deadline = loop.time() + timeout_ms / 1000
        self._calls[command.opaque] = (deadline, timeout_ms, answer)
        if self._sweep is None or deadline < self._sweep.when():
            self._sweep_at(deadline)
        return answer

    def finish(self, opaque: int) -> None:
        """Forget a request, answered or not."""
        _, _, answer = self._calls.pop(opaque)
        if answer.cancelled() or answer.exception() is not None:
            self.forget(opaque)

    def close(self) -> None:
        """End the connection once what is written has gone out."""
        self._write_gathered()
        super().close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._gathered.clear()
        super().connection_lost(error)

    # Writing.

    def write(self, data: bytes) -> None:
        """Send bytes with all others of this turn of the loop."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            self._write_gathered()
        elif not self._is_write_due:
            self._is_write_due = True
            asyncio.get_running_loop().call_soon(self._write_due)

    def _write_due(self) -> None:
        self._is_write_due = False
        self._write_gathered()

    def _write_gathered(self) -> None:
        gathered = self._gathered
        if gathered:
            self._gathered, self._gathered_bytes = [], 0
            super().write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    # Time.

    def _sweep_at(self, deadline: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        now = asyncio.get_running_loop().time() + _SLACK_S
        earliest: float | None = None
        for deadline, timeout_ms, answer in list(self._calls.values()):
            if answer.done():
                continue
            if deadline <= now:
                answer.set_exception(CallTimeout(self.address, timeout_ms))
                self.suspect(timeout_ms)
            elif earliest is None or deadline < earliest:
                earliest = deadline
        if earliest is not None and not self.is_closed:
            self._sweep_at(earliest)
