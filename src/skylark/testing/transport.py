"""SimTransport: one end of a simulated TCP connection, and the wire between two of them.

What TCP promises is kept: the bytes arrive in order and once, or the connection ends. What it
leaves open varies by seed: how bytes are cut into reads, when they arrive, which side learns what.

    write ─→ backlog ─→ in flight ─→ inbox ─→ data_received
             (ours)     (wire)       (peer's)
             watermarks └── at most window_bytes ──┘

A segment that meets a blocked link (a partition, a dead machine) waits in `held` and is sent again
as TCP would: after 200 ms, 400 ms, 800 ms … counted from the first loss, until the sender gives up.
A segment that reaches a machine where its connection is unknown is answered with a reset.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

from .loop import SimLoop
from .timeline import KernelTimer

if TYPE_CHECKING:
    from .network import SimHost, SimNetwork

# The most that one data_received gets, as of asyncio's own sockets.
READ_MAX = 256 * 1024
_HIGH_WATER = 64 * 1024

_DATA, _FIN, _RST = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """How one direction between two machines behaves."""

    delay_ms: float = 0.5  # the least time on the way
    jitter_ms: float = 0.5  # mean of the exponential part on top
    spike_chance: float = 0.001  # chance that a segment takes up to spike_ms longer
    spike_ms: float = 200.0
    loss: float = 0.0  # chance that a segment is lost and sent again, TCP's time later
    split_chance: float = 0.05  # chance that a segment is read in several pieces
    merge_chance: float = 0.05  # chance that a segment is read together with the one before
    bandwidth_bytes_per_s: int | None = None
    window_bytes: int = 256 * 1024  # in flight or unread, before the sender has to wait
    retransmit_ms: int = 200  # first wait before a lost segment is sent again; then doubled
    retransmit_limit_ms: int = 120_000  # when a sender without an answer gives up
    connect_limit_ms: int = 127_000  # when connect gives up by itself
    keepalive_ms: int | None = None  # when a silent, dead peer is noticed; None: never

    def __post_init__(self) -> None:
        for name in ("spike_chance", "loss", "split_chance", "merge_chance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is no chance; give 0 to 1")
        if self.loss > 0.95:
            raise ValueError(f"loss={self.loss} lets nothing through; use a partition")
        if self.window_bytes < 1:
            raise ValueError(f"window_bytes={self.window_bytes} must be at least 1")


LOCAL = LinkConfig(delay_ms=0.02, jitter_ms=0.02, spike_chance=0)


class Link:
    """One direction between two machines."""

    __slots__ = (
        "_busy_until_us",
        "_seed",
        "bandwidth",
        "blocked",
        "config",
        "delay_us",
        "dst",
        "extra_us",
        "jitter_us",
        "loss",
        "merge_at",
        "network",
        "reverse",
        "rng",
        "senders",
        "spike_at",
        "split_at",
        "src",
    )

    reverse: Link
    rng: random.Random

    def __init__(
        self,
        network: SimNetwork,
        src: SimHost,
        dst: SimHost,
        config: LinkConfig,
        seed: str,
    ) -> None:
        self.network = network
        self.src = src
        self.dst = dst
        self._seed = seed
        self.blocked = 0  # how many faults keep segments from passing
        self.extra_us = 0
        self.senders: dict[SimTransport, None] = {}
        self._busy_until_us = 0
        self.configure(config)

    def __getattr__(self, name: str) -> random.Random:
        # Seeding takes longer than all else here, and most links of a cluster are only ever cut.
        if name == "rng":
            self.rng = random.Random(self._seed)
            return self.rng
        raise AttributeError(name)

    def configure(self, config: LinkConfig) -> None:
        """Behave like this from now on."""
        self.config = config
        self.delay_us = config.delay_ms * 1000
        self.jitter_us = config.jitter_ms * 1000
        self.loss = config.loss
        self.bandwidth = config.bandwidth_bytes_per_s
        # One draw decides between the rare things: [0, spike), [spike, split), [split, merge).
        self.spike_at = config.spike_chance
        self.split_at = self.spike_at + config.split_chance
        self.merge_at = self.split_at + config.merge_chance

    def travel_us(self, size: int, spike: bool = False) -> int:
        """Draw how long a segment takes that is sent now."""
        rng = self.rng
        wait = self.delay_us + self.extra_us - log(1.0 - rng.random()) * self.jitter_us
        if spike:
            wait += rng.random() * self.config.spike_ms * 1000
        if self.loss:
            again_us = self.config.retransmit_ms * 1000
            while rng.random() < self.loss:
                wait += again_us
                again_us *= 2
        if self.bandwidth is not None:
            now_us = self.network.timeline.now_us
            sent_us = max(now_us, self._busy_until_us) + size * 1_000_000 // self.bandwidth
            self._busy_until_us = sent_us
            wait += sent_us - now_us
        return int(wait)

    def block(self) -> None:
        """Let nothing pass; faults add up."""
        self.blocked += 1
        if self.blocked == 1:
            for sender in self._concerned():
                sender._arm_keepalive()

    def unblock(self) -> None:
        """Take one fault away; after the last, what waited is sent again in TCP's own time."""
        self.blocked -= 1
        assert self.blocked >= 0
        if self.blocked == 0:
            for sender in self._concerned():
                sender._link_is_back()

    def _concerned(self) -> list[SimTransport]:
        """Return whose segments travel here, and whose acknowledgements do."""
        return [*self.senders, *self.reverse.senders]


class Segment:
    """Bytes on their way, or the end of them."""

    __slots__ = ("_cancelled", "_loop", "chunks", "kind", "sent_us", "size", "source")

    def __init__(
        self, source: SimTransport, kind: int, chunks: list[bytes], size: int, sent_us: int
    ) -> None:
        self.source = source
        self.kind = kind
        self.chunks = chunks
        self.size = size
        self.sent_us = sent_us
        self._loop = source._peer._loop
        self._cancelled = False

    def _run(self) -> None:
        source = self.source
        if source._tail is self:
            source._tail = None
        if source._link.blocked or source._held:
            source._hold(self)
        else:
            source._peer._arrive(self)

    # The machine takes segments in whether or not the process runs; _arrive looks.
    _run_frozen = _run


class SimTransport(asyncio.Transport):
    """A Transport over simulated wire; the peer holds the other one."""

    _peer: SimTransport

    def __init__(
        self,
        host: SimHost,
        loop: SimLoop,
        link: Link,
        sockname: tuple[str, int],
        peername: tuple[str, int],
        context: contextvars.Context,
    ) -> None:
        super().__init__({"sockname": sockname, "peername": peername})
        self.number = loop.timeline.next_number()
        self._name = f"{sockname[0]}:{sockname[1]}>{peername[0]}:{peername[1]}"
        self._host = host
        self._loop = loop
        self._timeline = loop.timeline
        self._trace = link.network.trace
        self._context = context
        self._protocol: asyncio.Protocol | None = None  # None until accepted or connected
        # Outgoing. outstanding = bytes in flight or unread by the peer <= window.
        self._link = link
        self._window = link.config.window_bytes
        self._outstanding = 0
        self._unacked = 0  # read by the peer, who could not tell us
        self._backlog: deque[bytes] = deque()
        self._backlog_size = 0
        self._tail: Segment | None = None  # the last one in flight
        self._arrival_us = 0  # when it arrives; later ones arrive later
        self._held: deque[Segment] = deque()
        self._held_since_us = 0
        self._resend: KernelTimer | None = None
        self._give_up: KernelTimer | None = None
        self._keepalive: KernelTimer | None = None
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._writing_paused = False
        self._eof_asked = False
        self._fin_sent = False
        self._fin_arrived = False
        # Incoming.
        self._inbox: deque[Segment] = deque()
        self._reading = True
        self._drain_due = False
        self._reset_seen = False
        # Ends. closing: the process let go; ended: connection_lost is called or on its way;
        # gone: the machine has forgotten the connection.
        self._closing = False
        self._ended = False
        self._gone = False

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        state = "gone" if self._gone else "closing" if self._closing else "open"
        return f"<SimTransport {self._name} {state}>"

    # asyncio.Transport: reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if not isinstance(protocol, asyncio.Protocol):
            raise TypeError(f"{protocol!r} must be an asyncio.Protocol")
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            if self._inbox or self._reset_seen:
                self._drain_soon()

    # asyncio.Transport: writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._mind_watermarks()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._backlog_size

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._eof_asked:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or self._ended or not data:
            return  # As asyncio's transports: too late is no error.
        if self._reset_seen:
            self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
            return
        chunk = bytes(data)
        size = len(chunk)
        if not self._backlog and self._outstanding + size <= self._window:
            self._outstanding += size
            self._transmit(chunk, size)
            return
        self._backlog.append(chunk)
        self._backlog_size += size
        self._pump()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_asked and not self._closing and not self._gone:
            self._eof_asked = True
            self._pump()

    # asyncio.Transport: ends

    def is_closing(self) -> bool:
        return self._closing or self._ended

    def close(self) -> None:
        """Send what was written, then the end; nothing more is read."""
        if self._closing or self._ended:
            return
        self._closing = True
        if self._gone:
            self._end(None)
        elif self._inbox:
            # A socket closed with unread data resets the connection, after what it has sent.
            self._send_reset()
            self._end(None)
        else:
            self._pump()

    def abort(self) -> None:
        """Reset the connection; what is not on the wire yet is lost."""
        self._closing = True
        if not self._ended:
            self._send_reset()
            self._end(None)

    # Outgoing

    def _transmit(self, chunk: bytes, size: int) -> None:
        """Put bytes on the wire; the caller has counted them as outstanding."""
        now_us = self._timeline.now_us
        tail = self._tail
        link = self._link
        if (
            tail is not None
            and tail.sent_us == now_us
            and tail.size + size <= READ_MAX
            and link.bandwidth is None
        ):
            # Written in one go: read in one go.
            tail.chunks.append(chunk)
            tail.size += size
            return
        luck = link.rng.random()
        if luck >= link.merge_at:
            self._launch([chunk], size, False)
        elif luck < link.spike_at:
            self._launch([chunk], size, True)
        elif luck < link.split_at:
            rng = link.rng
            start = 0
            while start < size:
                end = rng.randint(start + 1, size)
                self._launch([chunk[start:end]], end - start, False)
                start = end
        elif tail is not None and tail.size + size <= READ_MAX:
            tail._cancelled = True
            self._timeline.count_cancelled()
            tail.chunks.append(chunk)
            self._launch(tail.chunks, tail.size + size, False)
        else:
            self._launch([chunk], size, False)

    def _launch(self, chunks: list[bytes], size: int, spike: bool, kind: int = _DATA) -> None:
        now_us = self._timeline.now_us
        arrival_us = now_us + self._link.travel_us(size, spike)
        if arrival_us <= self._arrival_us:
            arrival_us = self._arrival_us + 1
        self._arrival_us = arrival_us
        segment = Segment(self, kind, chunks, size, now_us)
        self._tail = segment if kind == _DATA else None
        self._timeline.push(arrival_us, segment)

    def _send_fin(self) -> None:
        self._fin_sent = True
        self._launch([], 0, False, _FIN)

    def _send_reset(self) -> None:
        """Send a reset, once, after what is on the wire, and know nothing of the connection."""
        if not self._gone:
            self._launch([], 0, False, _RST)
            self._forget()

    def _pump(self) -> None:
        """Move the backlog into the window, and end once it is empty, if asked to."""
        backlog = self._backlog
        while backlog:
            room = self._window - self._outstanding
            if room <= 0:
                break
            chunk = backlog[0]
            if len(chunk) > room:
                backlog[0] = chunk[room:]
                chunk = chunk[:room]
            else:
                backlog.popleft()
            size = len(chunk)
            self._backlog_size -= size
            self._outstanding += size
            self._transmit(chunk, size)
        self._mind_watermarks()
        if not backlog and (self._eof_asked or self._closing):
            if not self._fin_sent:
                self._send_fin()
            if self._closing:
                self._end(None)
                if self._fin_arrived:
                    self._forget()

    def _mind_watermarks(self) -> None:
        protocol = self._protocol
        if protocol is None or self._ended:
            return
        if self._backlog_size > self._high:
            if not self._writing_paused:
                self._writing_paused = True
                protocol.pause_writing()
        elif self._writing_paused and self._backlog_size <= self._low:
            self._writing_paused = False
            protocol.resume_writing()

    def _acknowledged(self, size: int) -> None:
        """The peer has read bytes."""
        if self._peer._link.blocked:
            self._unacked += size
            self._arm_give_up()
            return
        self._outstanding -= size
        if self._backlog and not self._gone:
            self._loop.call_soon(self._pump, context=self._context)

    # Trouble on the way

    def _hold(self, segment: Segment) -> None:
        """Keep a segment that could not get through, to be sent again."""
        if self._gone:
            return
        if not self._held:
            self._held_since_us = self._timeline.now_us
        self._held.append(segment)
        self._arm_give_up()
        if not self._link.blocked and not self._peer._link.blocked:
            self._link_is_back()

    def _arm_give_up(self) -> None:
        if self._give_up is None and not self._gone:
            limit_us = self._link.config.retransmit_limit_ms * 1000
            self._give_up = self._timeline.call_at_us(
                self._timeline.now_us + limit_us, self._time_out
            )

    def _arm_keepalive(self) -> None:
        """Something may have silenced the peer: look once the keep-alive time is over."""
        interval_ms = self._link.config.keepalive_ms
        if interval_ms is None or self._gone or self._keepalive is not None:
            return
        self._keepalive = self._timeline.call_at_us(
            self._timeline.now_us + interval_ms * 1000, self._probe
        )

    def _probe(self) -> None:
        self._keepalive = None
        if self._gone:
            return
        if self._link.blocked or self._peer._link.blocked:
            self._time_out()
        elif self._peer._gone:
            self._reset_arrives()

    def _link_is_back(self) -> None:
        if self._gone or self._link.blocked or self._peer._link.blocked:
            return
        if self._unacked:
            self._outstanding -= self._unacked
            self._unacked = 0
            self._loop.call_soon(self._pump, context=self._context)
        if self._held:
            if self._resend is None:
                now_us = self._timeline.now_us
                wait_us = self._link.config.retransmit_ms * 1000
                due_us = self._held_since_us + wait_us
                while due_us <= now_us:
                    wait_us *= 2
                    due_us += wait_us
                self._resend = self._timeline.call_at_us(
                    due_us + self._link.travel_us(0), self._send_again
                )
        else:
            self._disarm_give_up()

    def _send_again(self) -> None:
        self._resend = None
        if self._gone or self._link.blocked or self._peer._link.blocked:
            return  # The next _link_is_back tries again.
        self._disarm_give_up()
        self._timeline.ready.extend(self._held)
        self._held.clear()

    def _disarm_give_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _time_out(self) -> None:
        """Give up a peer that does not answer; it is not told."""
        self._give_up = None
        if not self._gone:
            self._note("timeout")
            self._forget()
            self._end(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    # Incoming

    def _arrive(self, segment: Segment) -> None:
        """Take a segment from the peer; runs in this transport's loop, or with that loop frozen."""
        source, kind = segment.source, segment.kind
        if self._gone or (self._closing and kind == _DATA):
            if kind == _FIN and source._closing:
                source._forget()
            elif kind != _RST and not source._gone:
                if self._link.blocked:
                    source._hold(segment)  # Our reset would not get through either.
                else:
                    self._timeline.call_at_us(
                        self._timeline.now_us + self._link.travel_us(0), source._reset_arrives
                    )
            return
        if kind == _RST:
            self._reset_arrives()
            return
        if kind == _FIN:
            source._fin_arrived = True
            if source._closing:
                source._forget()
        if (
            self._reading
            and not self._inbox
            and self._protocol is not None
            and not self._loop._frozen
        ):
            self._context.run(self._deliver, segment)
        else:
            self._inbox.append(segment)
            if self._reading and self._protocol is not None:
                self._drain_soon()

    def _deliver(self, segment: Segment) -> None:
        protocol = self._protocol
        assert protocol is not None
        if segment.kind == _FIN:
            self._note("eof")
            self._reading = False
            if not protocol.eof_received():
                self.close()
            return
        chunks = segment.chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        size = segment.size
        if self._trace is not None:
            self._trace.add(
                self._timeline.now_us, self._host.name, "recv", self._name, size, zlib.crc32(data)
            )
        segment.source._acknowledged(size)
        protocol.data_received(data)

    def _drain_soon(self) -> None:
        if not self._drain_due:
            self._drain_due = True
            self._loop.call_soon(self._drain, context=self._context)

    def _drain(self) -> None:
        """Read what has come in while nobody read, in pieces as large as a read may be."""
        self._drain_due = False
        inbox = self._inbox
        while inbox and self._reading and not self._closing:
            segment = inbox.popleft()
            while inbox and inbox[0].kind == _DATA and segment.kind == _DATA:
                if segment.size + inbox[0].size > READ_MAX:
                    break
                more = inbox.popleft()
                segment.chunks.extend(more.chunks)
                segment.size += more.size
            self._deliver(segment)
        if self._reset_seen and not inbox and self._reading:
            self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _reset_arrives(self) -> None:
        """The peer's machine says that there is no such connection."""
        if self._gone:
            return
        self._note("reset")
        self._forget()
        self._reset_seen = True
        # A process that is not reading finds out when it reads, or by its unsent bytes.
        if self._protocol is None:
            return
        if self._inbox and self._reading:
            self._drain_soon()
        elif self._reading or self._backlog or self._closing:
            self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    # Ends

    def _forget(self) -> None:
        """The machine drops its state of the connection."""
        if self._gone:
            return
        self._gone = True
        self._held.clear()
        for timer in (self._resend, self._give_up, self._keepalive):
            if timer is not None:
                timer.cancel()
        self._resend = self._give_up = self._keepalive = None
        self._link.senders.pop(self, None)
        self._host._transports.pop(self, None)

    def _end(self, error: Exception | None) -> None:
        """Tell the protocol, once and soon, that the connection is over."""
        if self._ended:
            return
        self._ended = True
        self._backlog.clear()
        self._backlog_size = 0
        self._inbox.clear()
        if self._protocol is not None:
            self._loop.call_soon(self._lose, error, context=self._context)

    def _lose(self, error: Exception | None) -> None:
        protocol = self._protocol
        assert protocol is not None
        protocol.connection_lost(error)

    def _start(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection to its protocol."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._reset_seen:
            self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        elif self._inbox and self._reading:
            self._drain_soon()

    def _exit(self) -> None:
        """The process has ended in order: its machine closes the connection for it."""
        self._closing = True
        if self._gone or self._ended:
            return
        self._ended = True
        self._backlog.clear()
        self._backlog_size = 0
        if self._inbox:
            self._inbox.clear()
            self._send_reset()
        elif not self._fin_sent:
            self._send_fin()
        elif self._fin_arrived:
            self._forget()

    def _vanish(self, reset: bool) -> None:
        """The process, or with it the machine, is gone in an instant."""
        self._closing = self._ended = True
        if reset:
            self._send_reset()
        self._forget()
        self._backlog.clear()
        self._backlog_size = 0
        self._inbox.clear()

    def _note(self, event: str) -> None:
        if self._trace is not None:
            self._trace.add(self._timeline.now_us, self._host.name, event, self._name)
