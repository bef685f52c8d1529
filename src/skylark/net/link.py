"""Link: one TCP connection, either end of it.

All frames of one read are handled as one batch and answered in one write. A peer is trusted with
little:

    it sends nothing, or half a frame        closed at the first-frame or idle limit
    it sends faster than we answer           reading stops at in_flight_max; TCP holds it back
    it does not read its answers             reading stops, then the link is cut
    it sends what is no frame                closed, one log line

A link ends its own failures; anything else goes up through the task group that owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from ..errors import CallTimeout, ConnectionLost, LocalProtocolError, RemoteProtocolError
from ..protocol.codes import ResponseCode
from ..protocol.command import Command
from ..protocol.connection import Connection
from ..protocol.frame import FrameLimits, encode_frames
from .config import NetConfig, TlsMode
from .switchboard import Switchboard
from .tls import HELLO, TlsSession

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """What a link needs from the listener or channel it belongs to."""

    def begin_tls(self) -> TlsSession | None:
        """A session for a peer that opened with a TLS hello, or None to refuse it."""
        ...

    def link_made(self, link: Link) -> bool:
        """A connection has come up; False refuses it."""
        ...

    def link_lost(self, link: Link) -> None:
        """A connection is gone."""
        ...

    def held_bytes_changed(self, delta: int) -> bool:
        """Unfinished frames hold more or fewer bytes; False when that is too much in all."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something under the owner's task group."""
        ...


class Link(asyncio.Protocol):
    """One connection: a Peer to the processors, a Protocol to asyncio."""

    def __init__(
        self,
        config: NetConfig,
        switchboard: Switchboard,
        owner: Owner,
        *,
        is_server: bool,
        tls: TlsSession | None = None,
    ) -> None:
        self._config = config
        self._switchboard = switchboard
        self._owner = owner
        self._is_server = is_server
        self._tls = tls
        self._is_detected = not is_server
        self._connection: Connection[asyncio.Future[Command]] = Connection(
            FrameLimits(
                frame_bytes_max=config.frame_bytes_max, header_bytes_max=config.header_bytes_max
            )
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self._is_closed = False
        self._held_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._backlog: deque[Command] = deque()  # Requests read beyond in_flight_max.
        self._in_flight = 0
        self._is_reading = True
        self._is_draining = False
        self._out: list[Command] = []  # Answers of this turn of the loop.
        self._is_flush_due = False
        self._writable: asyncio.Future[None] | None = None  # Set while the peer reads too slowly.
        self._has_spoken = False
        self._last_active = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._established: asyncio.Future[None] = self._loop.create_future()

    # What processors and owners see.

    @property
    def address(self) -> str:
        """The peer's `ip:port`."""
        return self._address

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended or is ending."""
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request unanswered, no answer unsent."""
        transport = self._transport
        if transport is None or self._is_closed:
            return True
        return not (
            self._in_flight or self._backlog or self._out or transport.get_write_buffer_size()
        )

    async def wait_established(self) -> None:
        """Wait until requests can be sent; raises ConnectionLost."""
        await asyncio.shield(self._established)

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for its answer; raises TransportError."""
        answer: asyncio.Future[Command] = self._loop.create_future()
        opaque: int | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._writable is not None:
                    await asyncio.shield(self._writable)
                self._require_open()
                data = self._connection.begin_request(command, answer)
                opaque = command.opaque
                self._send(data)
                return await answer
        except TimeoutError:
            raise CallTimeout(self._address, timeout_ms) from None
        finally:
            if opaque is not None:
                self._connection.forget(opaque)

    def notify(self, command: Command) -> None:
        """Send a oneway request; raises ConnectionLost."""
        self._require_open()
        self._send(self._connection.encode_oneway(command))

    def close(self) -> None:
        """End the connection once what is written has gone out."""
        if not self._is_closed and self._transport is not None:
            self._is_closed = True
            if self._tls is not None:
                self._tls.close()
                self._transport.write(self._tls.take_output())
            self._transport.close()

    def abort(self, why: str) -> None:
        """Cut the connection now, and say why in the log."""
        if not self._is_closed and self._transport is not None:
            self._is_closed = True
            logger.warning("peer=%s closed: %s", self._address, why)
            self._transport.abort()

    @property
    def tls(self) -> TlsSession | None:
        """The encrypted conversation, where there is one."""
        return self._tls

    def cancel_requests(self) -> None:
        """Give up on requests that are still being served."""
        for task in self._tasks:
            task.cancel()

    def stop_reading(self) -> None:
        """Take no further requests; those in hand are still answered."""
        self._is_draining = True
        self._update_reading()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = format_address(transport.get_extra_info("peername"))
        if not self._owner.link_made(self):
            self.abort("too many connections; raise connectionsMax or add a server")
            return
        high = max(1, self._config.unsent_bytes_max // 4)
        self._transport.set_write_buffer_limits(high=high)
        if self._is_server:
            self._timer = self._loop.call_later(
                self._config.first_frame_timeout_ms / 1000, self._check_first_frame
            )
        else:
            self._timer = self._loop.call_later(
                self._config.idle_timeout_ms / 1000, self._check_idle
            )
        self._switchboard.on_connect(self)
        if self._tls is None:
            self._establish()
        else:
            self._guard(self._continue_handshake)

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        if not self._is_detected and not self._detect(data[0]):
            return
        if self._tls is not None:
            self._guard(lambda: self._receive_encrypted(data))
        else:
            self._receive(data)

    def eof_received(self) -> bool:
        return False  # A peer that stops sending is gone; asyncio closes the transport.

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.cancel_requests()
        self._backlog.clear()
        self._out.clear()
        lost = ConnectionLost(self._address, str(error) if error else "the peer closed")
        for answer in self._connection.abandon():
            _fail(answer, lost)
        _fail(self._established, lost)
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        if self._held_bytes:
            self._owner.held_bytes_changed(-self._held_bytes)
        self._switchboard.on_disconnect(self)
        self._owner.link_lost(self)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()
        self._stall_timer = self._loop.call_later(
            self._config.stalled_write_timeout_ms / 1000,
            lambda: self.abort("it does not read its answers"),
        )
        self._update_reading()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._work_off_backlog()

    # Reading.

    def _detect(self, first_byte: int) -> bool:
        self._is_detected = True
        mode = self._config.tls_mode
        if first_byte != HELLO:
            if mode == TlsMode.ENFORCING:
                self.abort("plain text where TLS is required")
                return False
            return True
        if mode == TlsMode.DISABLED:
            self.abort("a TLS hello, and TLS is disabled; set tlsMode to permissive")
            return False
        self._tls = self._owner.begin_tls()
        if self._tls is None:
            self.abort("a TLS hello that cannot be served; check tlsCertPath and the load")
            return False
        return True

    def _receive_encrypted(self, data: bytes) -> None:
        assert self._tls is not None
        plain = self._tls.receive(data)
        self._write_tls_output()
        if self._tls.is_established:
            self._establish()
        if plain:
            self._receive(plain)

    def _continue_handshake(self) -> None:
        assert self._tls is not None
        self._tls.handshake()
        self._write_tls_output()

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except RemoteProtocolError as error:
            if self._tls is not None:
                self._write_tls_output()  # The alert that tells the peer.
            self.abort(str(error))

    def _establish(self) -> None:
        if not self._established.done():
            self._established.set_result(None)

    def _receive(self, data: bytes) -> None:
        connection = self._connection
        requests, answers = connection.receive_data(data)
        if requests or answers:
            self._has_spoken = True
            self._last_active = self._loop.time()
            for answer, command in answers:
                if not answer.done():
                    answer.set_result(command)
            if requests:
                self._handle(requests)
        if connection.violation is not None:
            self.abort(str(connection.violation))
        elif connection.held_bytes != self._held_bytes:
            delta = connection.held_bytes - self._held_bytes
            self._held_bytes = connection.held_bytes
            if not self._owner.held_bytes_changed(delta):
                self.abort("unfinished frames take too much memory; raise heldBytesMax")

    def _handle(self, requests: list[Command]) -> None:
        if self._backlog:
            self._backlog.extend(requests)
            return
        answers: list[Command] = []
        limit = self._config.in_flight_max
        for index, command in enumerate(requests):
            if self._in_flight >= limit or self._is_closed or self._writable is not None:
                self._backlog.extend(requests[index:])
                self._update_reading()
                break
            try:
                outcome = self._switchboard.begin(command, self)
            except AssertionError as error:
                self._owner.spawn(_raise(error))
                return
            if outcome is None:
                continue
            if not isinstance(outcome, Command):
                self._answer_later(command, outcome)
            elif not command.flag & 2:
                answers.append(outcome)
        if answers:
            self._write(answers)

    def _answer_later(self, command: Command, later: Coroutine[Any, Any, Command | None]) -> None:
        self._in_flight += 1
        task = self._owner.spawn(self._await_answer(command, later))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    async def _await_answer(
        self, command: Command, later: Coroutine[Any, Any, Command | None]
    ) -> None:
        answer = await later
        if answer is not None and not command.is_oneway and not self._is_closed:
            self._out.append(answer)
            if not self._is_flush_due:
                # Answers that become ready in the same turn of the loop share one write.
                self._is_flush_due = True
                self._loop.call_soon(self._flush)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._in_flight -= 1
        self._work_off_backlog()

    def _work_off_backlog(self) -> None:
        is_free = self._in_flight < self._config.in_flight_max and self._writable is None
        if self._backlog and is_free and not self._is_closed:
            waiting = list(self._backlog)
            self._backlog.clear()
            self._handle(waiting)
        self._update_reading()

    def _update_reading(self) -> None:
        wanted = not (self._is_draining or self._backlog or self._writable is not None)
        if wanted == self._is_reading or self._transport is None or self._is_closed:
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Writing.

    def _flush(self) -> None:
        self._is_flush_due = False
        answers, self._out = self._out, []
        if answers and not self._is_closed:
            self._write(answers)

    def _write(self, answers: list[Command]) -> None:
        try:
            data = encode_frames(answers)
        except LocalProtocolError:
            data = b"".join(self._encode_alone(answer) for answer in answers)
        self._send(data)

    def _encode_alone(self, answer: Command) -> bytes:
        try:
            return encode_frames([answer])
        except LocalProtocolError as error:
            logger.error("peer=%s answer cannot be sent: %s", self._address, error)
            answer.fields, answer.body = {}, b""
            answer.code, answer.remark = ResponseCode.SYSTEM_ERROR, str(error)
            return encode_frames([answer])

    def _send(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if self._is_closed:
            return
        if transport.get_write_buffer_size() >= self._config.unsent_bytes_max:
            self.abort("it does not read its answers")
            return
        self._last_active = self._loop.time()
        if self._tls is None:
            transport.write(data)
        else:
            self._tls.send(data)
            self._write_tls_output()

    def _write_tls_output(self) -> None:
        assert self._tls is not None
        assert self._transport is not None
        output = self._tls.take_output()
        if output:
            self._transport.write(output)

    def _require_open(self) -> None:
        if self._is_closed or self._transport is None:
            raise ConnectionLost(self._address, "the connection is closed")

    # Time.

    def _check_first_frame(self) -> None:
        if not self._has_spoken:
            self.abort(f"no whole frame within {self._config.first_frame_timeout_ms} ms")
            return
        self._check_idle()

    def _check_idle(self) -> None:
        # Bytes that complete no frame are no sign of life: a peer could drip them for ever.
        limit = self._config.idle_timeout_ms / 1000
        quiet = self._loop.time() - self._last_active
        if quiet >= limit and not self._in_flight:
            logger.info("peer=%s idle for %d s, closed", self._address, quiet)
            self.close()
            return
        # Rounding must not make this a busy loop, nor a request that waits beyond the limit.
        delay = limit - quiet if quiet < limit else limit / 10
        self._timer = self._loop.call_later(max(delay, 0.001), self._check_idle)


def format_address(name: Any) -> str:
    """Text of a socket address; an IPv4 address inside an IPv6 one is shown as what it is."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name or "?")
    return f"{str(name[0]).removeprefix('::ffff:')}:{name[1]}"


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Nobody may be waiting; that is no news for the log.


async def _raise(error: Exception) -> None:
    raise error
