"""Link: one TCP connection, either end of it.

All frames of one read are handled as one batch and answered in one write. A peer is trusted with
little:

    it sends nothing, or half a frame        closed at the first-frame or idle limit
    it sends faster than we answer           reading stops at in_flight_max; TCP holds it back
    it does not read its answers             reading and answering stop, then the link is cut
    it does not read its notifications       cut at unsent_bytes_max
    it answers nothing at all                cut when a call has waited in vain (our calls only)
    it sends what is no frame                closed, one log line

A link ends its own failures; anything else goes up through the owner's task group.

    state          reads    writes    ends with
    open           yes      yes
    closed         no       what is already written, until stalled_write_timeout_ms
    lost           no       no        connection_lost, once, whatever came before
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol, cast

from ..errors import CallTimeout, ConnectionLost, LocalProtocolError, RemoteProtocolError
from ..protocol.codes import ResponseCode
from ..protocol.command import Command
from ..protocol.connection import Connection
from ..protocol.exchange import Answers, Deferred
from ..protocol.frame import FrameLimits, encode_frames
from .config import NetConfig, TlsMode
from .switchboard import Later, Switchboard
from .tls import HELLO, TlsSession

logger = logging.getLogger(__name__)

# A peer that reads less than this in stalled_write_timeout_ms has stalled; a slow one goes on.
PROGRESS_BYTES_MIN: Final = 64 * 1024
# A peer that says nothing at all while a request waits this long or longer is taken for dead: its
# machine may be gone without a word, and TCP alone notices that only after a quarter of an hour.
SILENCE_MS_MIN: Final = 1_000


class Owner(Protocol):
    """What a link needs from the listener or channel it belongs to."""

    def begin_tls(self) -> TlsSession | None:
        """A session for a peer that opened with a TLS hello, or None to refuse it."""
        ...

    def link_made(self, link: Link) -> str | None:
        """A connection has come up; a text refuses it and says why."""
        ...

    def link_lost(self, link: Link) -> None:
        """A connection that was not refused is gone."""
        ...

    def held_bytes_changed(self, delta: int) -> None:
        """Unfinished frames hold more or fewer bytes; the owner may close links over it."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run something under the owner's task group; None where that is ending."""
        ...

    def adopt(self, tasks: list[asyncio.Task[None]]) -> None:
        """Take over oneway requests whose sender is gone; they end when the owner does."""
        ...

    def fail(self, error: Exception) -> None:
        """Something went wrong that must not: serve nothing more, and end with this error."""
        ...


class Link(asyncio.Protocol):
    """One connection: a Peer to the processors, a Protocol to asyncio."""

    __slots__ = (
        "__weakref__",
        "_address",
        "_backlog",
        "_config",
        "_connection",
        "_deferred",
        "_encoded",
        "_established",
        "_flush_bytes",
        "_has_spoken",
        "_held_bytes",
        "_in_flight",
        "_is_accepted",
        "_is_behind",
        "_is_closed",
        "_is_detected",
        "_is_draining",
        "_is_flush_due",
        "_is_reading",
        "_is_server",
        "_last_active",
        "_last_heard",
        "_loop",
        "_out",
        "_out_bytes",
        "_owner",
        "_stall_timer",
        "_switchboard",
        "_tasks",
        "_timer",
        "_tls",
        "_transport",
        "_why",
        "_writable",
    )

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
        frame_bytes_max = config.frame_bytes_max
        self._connection: Connection[asyncio.Future[Command]] = Connection(
            FrameLimits(
                frame_bytes_max=frame_bytes_max,
                # The answer to a batch has the ids of all its messages in its header.
                header_bytes_max=config.header_bytes_max if is_server else frame_bytes_max,
            )
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self._is_accepted = False
        self._is_closed = False
        self._why: str | None = None  # Why we closed it, for those who still wait on it.
        self._held_bytes = 0
        # Requests being served, each with its coroutine, which has not begun until the task has.
        self._tasks: dict[asyncio.Task[None], tuple[Command, Later]] = {}
        self._deferred: dict[Deferred, None] = {}  # Requests whose answer somebody else brings.
        self._in_flight = 0
        self._backlog: deque[Command] = deque()  # Requests read and not begun.
        self._is_behind = False  # Serving requests that were read some time ago.
        self._is_reading = True
        self._is_draining = False
        self._out: list[Command] = []  # Answers not yet written: of this turn, or for a slow peer.
        self._encoded: list[bytes] = []  # Answers that came encoded; they go out with _out.
        self._out_bytes = 0
        self._flush_bytes = max(1, config.unsent_bytes_max // 4)
        self._is_flush_due = False
        self._writable: asyncio.Future[None] | None = None  # Set while the peer reads too slowly.
        self._has_spoken = False
        self._last_active = self._last_heard = self._loop.time()
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
    def unsent_bytes(self) -> int:
        """How much of what was answered the peer has not taken yet."""
        transport = self._transport
        return self._out_bytes + (0 if transport is None else transport.get_write_buffer_size())

    @property
    def waited_ms(self) -> int:
        """How long the request that is being served has waited since it was read."""
        if not self._is_behind:
            return 0
        # Nothing more is read while requests wait, so the last read is theirs.
        return int((self._loop.time() - self._last_heard) * 1000)

    @property
    def has_spoken(self) -> bool:
        """Whether the peer has ever sent a whole frame."""
        return self._has_spoken

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame is in hand."""
        return self._held_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request unanswered, no answer unsent."""
        transport = self._transport
        if transport is None or self._is_closed:
            return True
        return not (
            self._in_flight
            or self._backlog
            or self._out
            or self._encoded
            or transport.get_write_buffer_size()
        )

    @property
    def tls(self) -> TlsSession | None:
        """The encrypted conversation, where there is one."""
        return self._tls

    async def wait_established(self) -> None:
        """Wait until requests can be sent; raises ConnectionLost."""
        await asyncio.shield(self._established)

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for its answer; raises TransportError."""
        answer: asyncio.Future[Command] = self._loop.create_future()
        opaque: int | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if not self._established.done():
                    await self.wait_established()
                while self._writable is not None:
                    await asyncio.shield(self._writable)
                self._require_open()
                self.begin(command, answer)
                opaque = command.opaque
                return await answer
        except TimeoutError:
            self.suspect(timeout_ms)
            raise CallTimeout(self._address, timeout_ms) from None
        finally:
            if opaque is not None:
                self.forget(opaque)

    # For those who call without waiting.

    @property
    def is_ready(self) -> bool:
        """Whether a request can go out without waiting."""
        return self._writable is None and not self._is_closed and self._established.done()

    def begin(self, command: Command, answer: asyncio.Future[Command]) -> None:
        """Send a request on a link that is ready; its answer, or the link's end, goes to a future.

        Whoever begins a request forgets it, unless it was answered.
        """
        self.write(self._connection.begin_request(command, answer))

    def forget(self, opaque: int) -> None:
        """Nobody waits for the answer to a request any more; harmless if it has come."""
        self._connection.forget(opaque)

    def notify(self, command: Command) -> None:
        """Send a oneway request; raises ConnectionLost."""
        self._require_open()
        if not self._established.done():
            raise ConnectionLost(self._address, "it has not said yet how it wants to be spoken to")
        self.write(self._connection.encode_oneway(command))

    def close(self) -> None:
        """End the connection once what is written has gone out."""
        transport = self._transport
        if self._is_closed or transport is None:
            return
        self._is_closed = True
        self._release_held()
        if self._tls is not None:
            self._tls.close()
            self._write_tls_output()
        if transport.get_write_buffer_size():
            # asyncio would wait for ever for a peer that does not read.
            self._set_stall_timer()
        transport.close()

    def abort(self, why: str) -> None:
        """Cut the connection now, and say why in the log."""
        if not self._is_closed and self._transport is not None:
            self._why = why
            logger.warning("peer=%s closed: %s", self._address, why)
            self.cut()

    def cut(self) -> None:
        """Cut the connection now, even one that is closing; no word of it in the log."""
        self._is_closed = True
        self._release_held()
        if self._transport is not None:
            self._transport.abort()

    def cancel_requests(self) -> None:
        """Give up on requests that are still being served."""
        for task in self._tasks:
            task.cancel()
        self._drop_deferred()

    def stop_reading(self) -> None:
        """Take no further requests; those in hand are still answered."""
        self._is_draining = True
        self._update_reading()

    # What asyncio calls. An exception here is our own mistake: asyncio would log it and go on.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = format_address(transport.get_extra_info("peername"))
        refusal = self._owner.link_made(self)
        if refusal is not None:
            self.abort(refusal)
            return
        self._is_accepted = True
        self._transport.set_write_buffer_limits(high=self._flush_bytes)
        if self._is_server:
            self._set_timer(self._config.first_frame_timeout_ms / 1000, self._check_first_frame)
        else:
            self._set_timer(self._config.idle_timeout_ms / 1000, self._check_idle)
        try:
            self._switchboard.on_connect(self)
            if self._tls is not None:
                self._receive_encrypted(b"")
            elif not self._is_server:
                self._establish()
        except Exception as error:
            self._owner.fail(error)

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        try:
            if not self._is_detected and not self._detect(data[0]):
                return
            if self._tls is None:
                self._receive(data)
            else:
                self._receive_encrypted(data)
        except Exception as error:
            self._owner.fail(error)

    def eof_received(self) -> bool:
        self.close()  # A peer that stops sending is gone.
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._release_held()
        self._backlog.clear()
        self._out.clear()
        self._encoded.clear()
        self._end_requests()
        problem = self._why or (str(error) if error else "the peer closed")
        for answer in self._connection.abandon():
            _fail(answer, ConnectionLost(self._address, problem))
        _fail(self._established, ConnectionLost(self._address, problem))
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._transport = None
        if not self._is_accepted:
            return
        try:
            self._switchboard.on_disconnect(self)
        except Exception as failure:
            self._owner.fail(failure)
        finally:
            self._owner.link_lost(self)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()
        if not self._is_closed:
            self._set_stall_timer()
        self._update_reading()

    def resume_writing(self) -> None:
        if self._stall_timer is not None and not self._is_closed:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._go_on()

    # Reading.

    def _detect(self, first_byte: int) -> bool:
        self._is_detected = True
        mode = self._config.tls_mode
        if first_byte != HELLO:
            if mode == TlsMode.ENFORCING:
                self.abort("plain text where TLS is required")
                return False
            self._establish()
            return True
        if mode == TlsMode.DISABLED:
            self.abort("a TLS hello, and TLS is disabled; set tlsMode to permissive")
            return False
        self._tls = self._owner.begin_tls()
        if self._tls is None:
            self.abort("a TLS hello that cannot be served; check tlsCertPath and the load")
            return False
        self._set_timer(self._config.tls_handshake_timeout_ms / 1000, self._check_handshake)
        return True

    def _receive_encrypted(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None
        try:
            plain = tls.receive(data)
        except RemoteProtocolError as error:
            self._why = str(error)
            logger.warning("peer=%s closed: %s", self._address, error)
            self._write_tls_output()  # The alert that tells the peer; abort() might lose it.
            self.close()
            return
        self._write_tls_output()
        if tls.is_established and not self._established.done():
            self._establish()
            if self._is_server:
                self._set_timer(self._config.first_frame_timeout_ms / 1000, self._check_first_frame)
        if plain:
            self._receive(plain)

    def _establish(self) -> None:
        if not self._established.done():
            self._established.set_result(None)

    def _receive(self, data: bytes) -> None:
        connection = self._connection
        requests, answers = connection.receive_data(data)
        if requests or answers:
            self._has_spoken = True
            self._last_active = self._last_heard = self._loop.time()
            for answer, command in answers:
                if not answer.done():
                    answer.set_result(command)
            if requests:
                self._backlog.extend(requests)
                self._work()
        if connection.violation is not None:
            self.abort(str(connection.violation))
        elif connection.held_bytes != self._held_bytes and not self._is_closed:
            delta = connection.held_bytes - self._held_bytes
            self._held_bytes += delta
            self._owner.held_bytes_changed(delta)

    # Serving.

    def _work(self) -> None:
        """Serve what was read, as far as the limits go, and answer it in one write."""
        backlog = self._backlog
        begin = self._switchboard.begin
        batches = self._switchboard.batches
        limit = self._config.in_flight_max
        while backlog:
            if self._in_flight >= limit or self._writable is not None or self._is_closed:
                break
            command = backlog.popleft()
            if command.code in batches:
                self._work_batch(command, limit - self._in_flight)
                continue
            outcome = begin(command, self)
            if outcome is None:
                continue
            if not isinstance(outcome, Command):
                if isinstance(outcome, bytes):
                    if not command.flag & 2:
                        self._add_answers(outcome)
                        if self._out_bytes >= self._flush_bytes:
                            self._flush()
                elif isinstance(outcome, Deferred):
                    self._defer(outcome)
                else:
                    self._begin_later(command, outcome)
            elif not command.flag & 2:
                self._out.append(outcome)
                self._out_bytes += len(outcome.body)
                if self._out_bytes >= self._flush_bytes:
                    # Small requests for large answers must not pile up memory.
                    self._flush()
        if (self._out or self._encoded) and not self._is_flush_due:
            self._flush()
        if backlog or not self._is_reading:
            self._update_reading()

    def _work_batch(self, first: Command, count_max: int) -> None:
        """Serve the requests of one read that share a handler, as one."""
        backlog, batches = self._backlog, self._switchboard.batches
        handle = batches[first.code]
        commands = [first]
        while backlog and len(commands) < count_max and batches.get(backlog[0].code) == handle:
            commands.append(backlog.popleft())
        outcome = self._switchboard.begin_batch(commands, self)
        if isinstance(outcome, Deferred):
            self._defer(outcome)
        else:
            self._add_answers(outcome)

    def _add_answers(self, answers: Answers) -> None:
        if isinstance(answers, bytes):
            if answers:
                self._encoded.append(answers)
                self._out_bytes += len(answers)
        else:
            self._out += answers
            self._out_bytes += sum(len(answer.body) for answer in answers)

    def _defer(self, deferred: Deferred) -> None:
        self._in_flight += deferred.weight
        self._deferred[deferred] = None
        deferred.taken_by(self._deferred_done)

    def _deferred_done(self, deferred: Deferred, answers: Answers) -> None:
        if self._deferred.pop(deferred, deferred) is deferred:
            return  # The link was lost first.
        self._in_flight -= deferred.weight
        if self._is_closed:
            return
        self._add_answers(answers)
        self._flush_soon()
        if self._backlog:
            self._loop.call_soon(self._go_on)

    def _drop_deferred(self) -> None:
        deferred, self._deferred = self._deferred, {}
        for one in deferred:
            one.drop()

    def _flush_soon(self) -> None:
        if not self._is_flush_due and self._writable is None:
            # Answers that become ready in the same turn of the loop share one write.
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def _begin_later(self, command: Command, later: Later) -> None:
        task = self._owner.spawn(self._answer_later(command, later))
        if task is None:
            later.close()
            self.cut()
            return
        self._in_flight += 1
        self._tasks[task] = (command, later)
        task.add_done_callback(self._later_done)

    async def _answer_later(self, command: Command, later: Later) -> None:
        try:
            answer = await self._switchboard.finish(command, self, later)
        except Exception as error:
            self._owner.fail(error)
            return
        if answer is None or command.flag & 2 or self._is_closed:
            return
        self._out.append(answer)
        self._out_bytes += len(answer.body)
        self._flush_soon()

    def _later_done(self, task: asyncio.Task[None]) -> None:
        entry = self._tasks.pop(task, None)
        if entry is not None:
            entry[1].close()  # Where the task was cancelled before it began, so was this.
        self._in_flight -= 1
        if self._backlog:
            self._go_on()

    def _go_on(self) -> None:
        self._is_behind = True
        try:
            self._flush()
            self._work()
            self._update_reading()
        except Exception as error:
            self._owner.fail(error)
        finally:
            self._is_behind = False

    def _end_requests(self) -> None:
        """Nobody waits for the answers any more; a oneway request was never waited for."""
        oneways = []
        for task, (command, _) in self._tasks.items():
            if command.flag & 2:
                oneways.append(task)
            else:
                task.cancel()
        if oneways:
            self._owner.adopt(oneways)
        self._drop_deferred()

    def _update_reading(self) -> None:
        # A server that cannot write stops reading. A client goes on, whatever waits: if both ends
        # stopped, neither would ever write again.
        is_stuck = self._writable is not None
        if is_stuck and not self._is_server:
            wanted = not self._is_draining
        else:
            wanted = not (self._is_draining or self._backlog or is_stuck)
        if wanted == self._is_reading or self._transport is None or self._is_closed:
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Writing.

    def _flush_due(self) -> None:
        self._is_flush_due = False
        try:
            self._flush()
        except Exception as error:
            self._owner.fail(error)

    def _flush(self) -> None:
        """Write answers until none is left or the peer is too slow; then they wait in _out."""
        while (self._out or self._encoded) and self._writable is None and not self._is_closed:
            if self._encoded:
                encoded, self._encoded = self._encoded, []
                data = encoded[0] if len(encoded) == 1 else b"".join(encoded)
                self._out_bytes -= len(data)
                self.write(data)
                continue
            if self._out_bytes < self._flush_bytes:
                answers, self._out, self._out_bytes = self._out, [], 0
            else:
                answers = self._take_some()
            try:
                data = encode_frames(answers)
            except LocalProtocolError:
                data = b"".join(self._encode_alone(answer) for answer in answers)
            self.write(data)

    def _take_some(self) -> list[Command]:
        count = taken = 0
        while taken < self._flush_bytes and count < len(self._out):
            taken += len(self._out[count].body)
            count += 1
        answers = self._out[:count]
        del self._out[:count]
        self._out_bytes -= taken
        return answers

    def _encode_alone(self, answer: Command) -> bytes:
        try:
            return encode_frames([answer])
        except LocalProtocolError as error:
            logger.error("peer=%s answer cannot be sent: %s", self._address, error)
            answer.fields, answer.body = {}, b""
            answer.code, answer.remark = ResponseCode.SYSTEM_ERROR, str(error)
            return encode_frames([answer])

    def write(self, data: bytes) -> None:
        """Hand encoded frames to the transport; a peer that does not read is cut off."""
        transport = self._transport
        if self._is_closed or transport is None:
            return
        if transport.get_write_buffer_size() >= self._config.unsent_bytes_max:
            self.abort("it does not read what it is sent")
            return
        self._last_active = self._loop.time()
        if self._tls is None:
            transport.write(data)
        else:
            self._tls.send(data)
            self._write_tls_output()

    def _write_tls_output(self) -> None:
        if self._tls is not None and self._transport is not None:
            output = self._tls.take_output()
            if output:
                self._transport.write(output)

    def _require_open(self) -> None:
        if self._is_closed or self._transport is None:
            raise ConnectionLost(self._address, self._why or "the connection is closed")

    def _release_held(self) -> None:
        if self._held_bytes:
            held, self._held_bytes = self._held_bytes, 0
            self._owner.held_bytes_changed(-held)

    # Time.

    def _set_timer(self, delay: float, check: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, check)

    def _set_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        delay = self._config.stalled_write_timeout_ms / 1000
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        self._stall_timer = self._loop.call_later(delay, self._check_stall, unsent)

    def _check_stall(self, unsent_before: int) -> None:
        self._stall_timer = None
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size() <= unsent_before - PROGRESS_BYTES_MIN:
            self._set_stall_timer()
            return
        self.abort("it does not read its answers")
        self.cut()  # It may have been closing already.

    def _check_handshake(self) -> None:
        self.abort(f"no TLS handshake within {self._config.tls_handshake_timeout_ms} ms")

    def _check_first_frame(self) -> None:
        if not self._has_spoken:
            self.abort(f"no whole frame within {self._config.first_frame_timeout_ms} ms")
            return
        self._check_idle()

    def _check_idle(self) -> None:
        # Bytes that complete no frame are no sign of life: a peer could drip them for ever.
        limit = self._config.idle_timeout_ms / 1000
        quiet = self._loop.time() - self._last_active
        is_waiting = self._in_flight or self._connection.waiting
        if quiet >= limit and not is_waiting:
            if not self._is_closed:
                logger.info("peer=%s idle for %d s, closed", self._address, quiet)
                self._why = "idle"
                self.close()
            return
        # Rounding must not make this a busy loop, nor a request that waits beyond the limit.
        delay = limit - quiet if quiet < limit else limit / 10
        self._set_timer(max(delay, 0.001), self._check_idle)

    def suspect(self, timeout_ms: int) -> None:
        """A call has waited in vain; cut the link if nothing at all was heard meanwhile."""
        silence_ms = (self._loop.time() - self._last_heard) * 1000
        if not self._is_server and SILENCE_MS_MIN <= timeout_ms <= silence_ms:
            self.abort(f"not a word from it while a request waited {timeout_ms} ms")


def format_address(name: Any) -> str:
    """Text of a socket address; an IPv4 address inside an IPv6 one is shown as what it is."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name or "?")
    return f"{str(name[0]).removeprefix('::ffff:')}:{name[1]}"


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Nobody may be waiting; that is no news for the log.
