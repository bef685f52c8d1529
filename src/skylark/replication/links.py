"""The sockets of replication: MasterPort accepts replicas, MasterLine follows a master.

MasterPort sends as soon as the log grows and as fast as each connection takes it; one that is slow
is left behind, and holds up nobody. MasterLine is one connection to a master: it ends with what
was wrong, and whoever made it decides when to try again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

from ..clock import Clock
from ..errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    SkylarkError,
    StoreError,
    TransportError,
)
from ..net.channel import split_address
from ..net.network import Network as Network
from ..net.network import Server
from .epochs import Epoch, EpochTable
from .master import Follower, Master
from .quorum import Quorum
from .replica import Replica
from .stream import (
    Hello,
    PushDecoder,
    ReportDecoder,
    Welcome,
    encode_push,
    encode_push_header,
    encode_report,
    is_proof,
    masters_proof,
    replicas_proof,
    take_hello,
    take_proof,
    take_welcome,
)

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
CONNECT_TIMEOUT_MS: Final = 5_000
TICK_MS: Final = 500
_UNSENT_HIGH: Final = 1 << 20
_WRITE_BYTES: Final = 256 << 10
_WRITES_A_TURN: Final = 8  # Then others get their turn.
_GREETING_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class Secret:
    """What a broker needs to prove itself; without it, both sides speak RocketMQ's stream."""

    key: bytes
    group: str  # Cluster and broker name: another group's broker with the same key is refused.
    epochs: EpochTable
    nonce: Callable[[], bytes]


class MasterPort:
    """The port that replicas connect to."""

    def __init__(
        self,
        master: Master,
        quorum: Quorum,
        network: Network,
        clock: Clock,
        *,
        host: str,
        port: int,
        secret: Secret | None = None,
        log_extent: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.master = master
        self.quorum = quorum
        self.clock = clock
        self.secret = secret
        self.log_extent = log_extent
        self._network = network
        self._host, self._port = host, port
        self._server: Server | None = None
        self._links: dict[_FollowerLink, None] = {}
        self._is_due = False
        # Told of the epoch of a master that has taken our place.
        self.on_replaced: Callable[[int], None] = lambda epoch: None
        self.refused_total = 0
        self.last_refusal = ""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None, "the port is not open"
        return self._server.address

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MasterPort]:
        """Listen, and look after the connections."""
        self._server = await self._network.listen(
            lambda: _FollowerLink(self), self._host, self._port
        )
        ticking = asyncio.create_task(self._tick(), name="replication heartbeats")
        try:
            yield self
        finally:
            ticking.cancel()
            self._server.close()
            for link in list(self._links):
                link.close()
            await asyncio.wait((ticking,))

    def log_grew(self) -> None:
        """There may be more to ship; it goes out at the end of this turn, in one piece."""
        if self._links and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_due = False
        for link in list(self._links):
            link.pump()

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep_ms(TICK_MS)
            for link in list(self._links):
                link.tick()
            self.quorum.advance()

    # What a link asks.

    def link_made(self, link: _FollowerLink) -> bool:
        """Whether there is room for another one."""
        if len(self._links) >= CONNECTIONS_MAX:
            self.note_refusal(link.address, f"{CONNECTIONS_MAX} connections are the limit")
            return False
        self._links[link] = None
        return True

    def link_lost(self, link: _FollowerLink) -> None:
        """One is gone."""
        self._links.pop(link, None)

    def note_refusal(self, address: str, problem: str) -> None:
        """Somebody was sent away."""
        self.refused_total += 1
        self.last_refusal = f"{address}: {problem}"
        logger.warning("replica=%s refused: %s", address, problem)


class _FollowerLink(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, port: MasterPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._reports = ReportDecoder()
        self._greeting = bytearray()
        self._hello: Hello | None = None
        self._welcome: Welcome | None = None
        self._follower: Follower | None = None
        self._made_ms = port.clock.monotonic_ms()
        self._is_paused = False
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        if not self._port.link_made(self):
            transport.close()
            return
        self._transport.set_write_buffer_limits(_UNSENT_HIGH)
        if self._port.secret is None:
            self._join(is_trusted=False)

    def _join(self, *, is_trusted: bool) -> None:
        now_ms = self._port.clock.monotonic_ms()
        self._follower = self._port.master.join(self.address, now_ms, is_trusted=is_trusted)

    def connection_lost(self, error: Exception | None) -> None:
        self._port.link_lost(self)
        if self._follower is not None:
            self._port.master.leave(self._follower)
            if self._follower.asked >= 0:
                logger.warning(
                    "replica=%s gone at %d%s", self.address, self._follower.reported,
                    f": {error}" if error else "",
                )  # fmt: skip

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            if self._follower is None:
                data = self._greet(data)
            self._take_reports(data)
        except RemoteProtocolError as error:
            self._port.note_refusal(self.address, str(error))
            self.close()

    def _greet(self, data: bytes) -> bytes:
        """Take the handshake; return what comes behind it."""
        secret = self._port.secret
        assert secret is not None
        assert self._transport is not None
        self._greeting += data
        if len(self._greeting) > _GREETING_BYTES_MAX:
            raise RemoteProtocolError("its greeting does not end")
        if self._hello is None:
            hello = take_hello(self._greeting)
            if hello is None:
                return b""
            self._require_same_group(hello, secret)
            self._hello = hello
            epoch = secret.epochs.last
            start, end = self._port.log_extent()
            self._welcome = Welcome(
                secret.nonce(), epoch.number, epoch.mark, epoch.start, start, end
            )
            proof = masters_proof(secret.key, hello, self._welcome)
            self._transport.write(self._welcome.encode() + proof)
        proof_given = take_proof(self._greeting)
        if proof_given is None:
            return b""
        assert self._welcome is not None
        if not is_proof(proof_given, replicas_proof(secret.key, self._hello, self._welcome)):
            raise RemoteProtocolError("it does not have the cluster key")
        # Said only to those who have the key: whoever has not could make us believe anything.
        if self._hello.epoch > secret.epochs.last.number:
            self._port.on_replaced(self._hello.epoch)
            raise RemoteProtocolError(
                f"it follows epoch {self._hello.epoch}, ours is {secret.epochs.last.number}: "
                "another broker has become master; stop this one, and start it again as SLAVE"
            )
        self._join(is_trusted=True)
        rest, self._greeting = bytes(self._greeting), bytearray()
        return rest

    @staticmethod
    def _require_same_group(hello: Hello, secret: Secret) -> None:
        if hello.group != secret.group:
            raise RemoteProtocolError(
                f"it is a replica of {hello.group[:256]!r}, this is {secret.group!r}"
            )

    def _take_reports(self, data: bytes) -> None:
        if self._follower is None:
            return
        master, now_ms = self._port.master, self._port.clock.monotonic_ms()
        for offset in self._reports.feed(data):
            is_first = self._follower.asked < 0
            master.reported(self._follower, offset, now_ms)
            if is_first:
                logger.info("replica=%s follows from %d", self.address, self._follower.asked)
                self.pump()
                if self._follower.sent == self._follower.asked:
                    self._heartbeat()  # So that it knows at once that it has everything.
        self._port.quorum.advance()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.pump()

    def pump(self) -> None:
        """Send what there is, as far as the connection takes it."""
        follower, transport, port = self._follower, self._transport, self._port
        if follower is None or transport is None or transport.is_closing():
            return
        for _ in range(_WRITES_A_TURN):
            if self._is_paused:
                return
            pieces: list[bytes | memoryview] = []
            size = 0
            try:
                while size < _WRITE_BYTES and (found := port.master.next_push(follower)):
                    offset, data = found
                    pieces += (encode_push_header(offset, len(data)), data)
                    size += len(data)
                    port.master.pushed(follower, len(data), port.clock.monotonic_ms())
            except RemoteProtocolError as error:
                port.note_refusal(self.address, str(error))
                self.close()
                return
            if not pieces:
                return
            # One copy and one call for many pushes: a replica that catches up takes megabytes.
            transport.write(b"".join(pieces))
        asyncio.get_running_loop().call_soon(self.pump)

    def tick(self) -> None:
        """Say something now and then, and give up on those who do not."""
        port, now_ms = self._port, self._port.clock.monotonic_ms()
        if self._follower is None:
            if now_ms - self._made_ms > CONNECT_TIMEOUT_MS:
                port.note_refusal(self.address, "no greeting: a replica without the cluster key?")
                self.close()
            return
        if port.master.is_silent(self._follower, now_ms):
            logger.warning("replica=%s has been silent for too long, dropped", self.address)
            self.close()
        elif port.master.wants_heartbeat(self._follower, now_ms) and not self._is_paused:
            self._heartbeat()

    def _heartbeat(self) -> None:
        follower, transport = self._follower, self._transport
        assert follower is not None
        assert transport is not None
        transport.write(encode_push(follower.sent))
        self._port.master.pushed(follower, 0, self._port.clock.monotonic_ms())

    def close(self) -> None:
        """End the connection; what was not sent is not worth waiting for."""
        if self._transport is not None:
            self._transport.abort()


class MasterLine(asyncio.Protocol):
    """One connection to a master.

    line = await MasterLine.open(...)
    await line.wait_ended()        # Raises what was wrong.
    """

    def __init__(
        self,
        address: str,
        replica: Replica,
        clock: Clock,
        *,
        flushed: Callable[[int], asyncio.Future[bool]],
        is_sync_flush: bool,
        heartbeat_ms: int,
        silence_ms: int,
        secret: Secret | None = None,
        first_report: int | None = None,
    ) -> None:
        self.address = address
        self._replica = replica
        self._clock = clock
        self._flushed = flushed
        self._is_sync_flush = is_sync_flush
        self._heartbeat_ms = heartbeat_ms
        self._silence_ms = silence_ms
        self._secret = secret
        self._first_report = first_report
        self._pushes = PushDecoder()
        self._greeting = bytearray()
        self._hello: Hello | None = None
        self._is_greeted = secret is None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushing: asyncio.Future[bool] | None = None
        self._told = -1
        self._told_ms = self._heard_ms = clock.monotonic_ms()
        self.is_answered = False  # The master has sent something, if only a heartbeat.

    async def follow(self, network: Network) -> None:
        """Connect and follow until the connection ends; raises what ended it."""
        host, port = split_address(self.address)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                await network.connect(lambda: self, host, port)
        except TimeoutError:
            raise ConnectFailed(self.address, f"no answer in {CONNECT_TIMEOUT_MS} ms") from None
        ticking = asyncio.create_task(self._tick(), name=f"follow {self.address}")
        try:
            await self._ended
        finally:
            ticking.cancel()
            self.close()
            await asyncio.wait((ticking,))

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._replica.begin()
        self._heard_ms = self._clock.monotonic_ms()
        if self._secret is None:
            self._ask()
        else:
            secret = self._secret
            self._hello = Hello(secret.nonce(), secret.epochs.last.number, secret.group)
            self._transport.write(self._hello.encode())

    def _ask(self) -> None:
        """The first report says from where the log is wanted."""
        assert self._replica.confirmable == self._replica.appended
        first = self._replica.appended if self._first_report is None else self._first_report
        self._tell(first)
        logger.info("master=%s asked for the log from %d", self.address, first)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionLost(self.address, str(error) if error else "it closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._ended.done():
            return
        self._heard_ms = self._clock.monotonic_ms()
        try:
            if not self._is_greeted:
                data = self._take_greeting(data)
            for push in self._pushes.feed(data):
                self._replica.apply(push)
                self.is_answered = True
        except (RemoteProtocolError, StoreError) as error:
            self._end(error)
            return
        if self._is_greeted:
            self._report()

    def _take_greeting(self, data: bytes) -> bytes:
        secret, hello = self._secret, self._hello
        assert secret is not None
        assert hello is not None
        assert self._transport is not None
        self._greeting += data
        found = take_welcome(self._greeting)
        if found is None:
            return b""
        welcome, proof = found
        if not is_proof(proof, masters_proof(secret.key, hello, welcome)):
            raise RemoteProtocolError("the master does not have the cluster key")
        ours, theirs = (
            secret.epochs.last,
            Epoch(welcome.epoch, welcome.mark, welcome.epoch_start),
        )
        # It hears of our epoch even if we do not follow: a master that was replaced must know.
        self._transport.write(replicas_proof(secret.key, hello, welcome))
        if theirs.number < ours.number:
            raise RemoteProtocolError(
                f"the master's epoch {theirs.number} is older than {ours.number}, which this "
                "broker follows: that master has been replaced"
            )
        if theirs.number == ours.number and theirs.mark != ours.mark:
            raise RemoteProtocolError(
                f"there are two masters of epoch {ours.number}; stop the one that is wrong"
            )
        secret.epochs.follow(theirs)  # Durable before anything is confirmed under it.
        self._is_greeted = True
        rest, self._greeting = bytes(self._greeting), bytearray()
        self._ask()
        return rest

    # Reports.

    def _report(self) -> None:
        replica = self._replica
        is_unsafe = self._is_sync_flush and replica.confirmable < replica.appended
        if is_unsafe and self._flushing is None:
            self._flushing = self._flushed(replica.appended)
            self._flushing.add_done_callback(self._flush_done)
        if self._replica.confirmable > self._told:
            self._tell(self._replica.confirmable)

    def _flush_done(self, done: asyncio.Future[bool]) -> None:
        self._flushing = None
        if self._ended.done() or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._end(error if isinstance(error, SkylarkError) else StoreError(str(error)))
            return
        self._report()

    def _tell(self, offset: int) -> None:
        assert self._transport is not None
        self._told, self._told_ms = max(self._told, offset), self._clock.monotonic_ms()
        self._transport.write(encode_report(offset))

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep_ms(TICK_MS)
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._heard_ms > self._silence_ms:
                self._end(CallTimeout(self.address, self._silence_ms))
            elif self._is_greeted and now_ms - self._told_ms >= self._heartbeat_ms:
                self._tell(max(self._told, 0))

    def _end(self, error: SkylarkError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # Seen: who follows may have been cancelled.
            if not isinstance(error, TransportError):
                self.close()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
