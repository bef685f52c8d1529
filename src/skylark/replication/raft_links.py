"""The sockets of a Raft group: every member connects to every other one, and speaks there.

What a member hears comes over connections that others have made. A new one of the same member, once
it has proved itself, ends the one before: nothing of an earlier process is heard after that, which
a member that lost its disk relies on (ADR 0026).

A message to a member that cannot be reached is dropped: Raft says it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

from ..clock import Clock
from ..errors import ConnectFailed, RemoteProtocolError, TransportError
from ..net.network import Network as Network
from ..net.network import Server
from .raft_log import Message
from .raft_wire import (
    NONCE_BYTES,
    PING,
    PROOF_BYTES,
    TEXT_BYTES_MAX,
    FrameDecoder,
    Hello,
    Welcome,
    acceptors_proof,
    connectors_proof,
    encode_message,
    is_proof,
    take_hello,
    take_proof,
    take_welcome,
)

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
RETRY_MS: Final = 100
RETRY_MS_MAX: Final = 1_000
_JOIN_BYTES_MAX: Final = 64 << 10  # Larger pieces are written from where they lie.
_GREETING_BYTES_MAX: Final = TEXT_BYTES_MAX + 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Who is who, and how patient."""

    group: str
    own_id: str
    peers: Mapping[str, tuple[str, int]]  # This member included.
    listen_host: str
    key: bytes | None
    silence_ms: int


class RaftLinks:
    """All connections of one member."""

    def __init__(
        self,
        settings: LinkSettings,
        network: Network,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        on_messages: Callable[[str, list[Message]], None],
    ) -> None:
        """`on_messages` may raise RemoteProtocolError, which ends the connection they came by."""
        self.settings = settings
        self.clock = clock
        self.random_bytes = random_bytes
        self.on_messages = on_messages
        self._network = network
        self._server: Server | None = None
        self._accepted: dict[_AcceptedLink, None] = {}
        self.incoming: dict[str, _AcceptedLink] = {}
        self._outgoing: dict[str, _OwnLink] = {}
        self.heard_ms: dict[str, int] = {}
        self.refused_total = 0
        self.last_refusal = ""
        self.refused_by: dict[str, str] = {}  # Members that refuse us, and why.
        self.sent_bytes = 0
        self.is_closed = False

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None, "the port is not open"
        return self._server.address[1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RaftLinks]:
        """Listen, connect, and look after the connections."""
        settings = self.settings
        self.is_closed = False
        self._server = await self._network.listen(
            lambda: _AcceptedLink(self),
            settings.listen_host,
            settings.peers[settings.own_id][1],
        )
        try:
            async with asyncio.TaskGroup() as duties:
                tasks = [
                    duties.create_task(self._dial(member), name=f"raft link to {member}")
                    for member in settings.peers
                    if member != settings.own_id
                ]
                tasks.append(duties.create_task(self._tick(), name="raft pings"))
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            self.is_closed = True
            self._server.close()
            for link in [*self._accepted, *self._outgoing.values()]:
                link.close()

    # Speaking.

    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to their connections."""
        pieces: dict[str, list[bytes | memoryview]] = {}
        for message in messages:
            link = self._outgoing.get(message.target)
            if link is not None and link.is_ready:
                head, data = encode_message(message)
                found = pieces.setdefault(message.target, [])
                found.append(head)
                if len(data):
                    found.append(data)
        for target, parts in pieces.items():
            size = sum(map(len, parts))
            self.sent_bytes += size
            self._outgoing[target].write(parts, size)

    def is_linked(self, member: str) -> bool:
        """Whether what is said to a member goes out."""
        link = self._outgoing.get(member)
        return link is not None and link.is_ready

    async def _dial(self, member: str) -> None:
        retry_ms = RETRY_MS
        while True:
            link = _OwnLink(self, member)
            began_ms = self.clock.monotonic_ms()
            try:
                await link.run(self._network)
            except (TransportError, RemoteProtocolError) as error:
                if isinstance(error, RemoteProtocolError):
                    if self.refused_by.get(member) != str(error):
                        logger.error("member=%s refuses, or is none: %s", member, error)
                    self.refused_by[member] = str(error)
                else:
                    logger.debug("member=%s not reached: %s", member, error)
            if self.clock.monotonic_ms() - began_ms > RETRY_MS_MAX:
                retry_ms = RETRY_MS
            await self.clock.sleep_ms(retry_ms)
            retry_ms = min(retry_ms * 2, RETRY_MS_MAX)

    def link_ready(self, member: str, link: _OwnLink) -> None:
        """Our connection to a member is up."""
        self._outgoing[member] = link
        self.refused_by.pop(member, None)

    def link_ended(self, member: str, link: _OwnLink) -> None:
        """It is gone."""
        if self._outgoing.get(member) is link:
            del self._outgoing[member]

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep_ms(max(10, self.settings.silence_ms // 3))
            now_ms = self.clock.monotonic_ms()
            for heard in list(self._accepted):
                heard.tick(now_ms)
            for spoken in list(self._outgoing.values()):
                spoken.tick(now_ms)

    # Hearing.

    def accepted(self, link: _AcceptedLink) -> bool:
        """Whether there is room for another one; the oldest that has not proved itself makes some.

        So strangers that hold connections open do not keep members out.
        """
        if self.is_closed:
            return False
        if len(self._accepted) >= CONNECTIONS_MAX:
            oldest = next((other for other in self._accepted if not other.source), link)
            self.note_refusal(oldest.address, f"{CONNECTIONS_MAX} connections are the limit")
            if oldest is link:
                return False
            del self._accepted[oldest]
            oldest.close()
        self._accepted[link] = None
        return True

    def proved(self, link: _AcceptedLink) -> None:
        """A connection is a member's; the one it had before is not any more."""
        before = self.incoming.get(link.source)
        self.incoming[link.source] = link
        if before is not None and before is not link:
            before.close()

    def lost(self, link: _AcceptedLink) -> None:
        """One is gone."""
        self._accepted.pop(link, None)
        if self.incoming.get(link.source) is link:
            del self.incoming[link.source]

    def refuse(self, member: str, problem: str) -> None:
        """What a member said makes no sense: end its connection."""
        link = self.incoming.get(member)
        self.note_refusal(member, problem)
        if link is not None:
            link.close()

    def note_refusal(self, who: str, problem: str) -> None:
        """Somebody was sent away."""
        self.refused_total += 1
        self.last_refusal = f"{who}: {problem}"
        logger.warning("raft peer=%s refused: %s", who, problem)

    def problem_of(self, hello: Hello) -> str:
        """Why a hello is not that of another member of this group; empty if it is."""
        settings = self.settings
        own, members = settings.own_id, tuple(sorted(settings.peers))
        if hello.group != settings.group:
            return f"it is of group {hello.group[:256]!r}, this is {settings.group!r}"
        if hello.members != members:
            theirs = ";".join(hello.members)[:256]
            return f"its members are {theirs}, ours {';'.join(members)}: correct dLegerPeers"
        if hello.target != own:
            return f"it wants member {hello.target[:64]!r}, this is {own!r}: correct dLegerPeers"
        if hello.source not in members or hello.source == own:
            return f"it says that it is member {hello.source[:64]!r}: correct dLegerSelfId"
        if hello.has_key != (settings.key is not None):
            return "one of both has a cluster key: set haClusterKey on all members, or on none"
        return ""


class _Link(asyncio.Protocol):
    """What both kinds of connections have in common."""

    def __init__(self, links: RaftLinks) -> None:
        self._links = links
        self._transport: asyncio.Transport | None = None
        self._greeting = bytearray()
        self._heard_ms = links.clock.monotonic_ms()

    def close(self) -> None:
        """End the connection; what was not sent is not worth waiting for."""
        if self._transport is not None:
            self._transport.abort()

    def _greeted(self, data: bytes) -> None:
        self._greeting += data
        if len(self._greeting) > _GREETING_BYTES_MAX:
            raise RemoteProtocolError("its greeting does not end")


class _AcceptedLink(_Link):
    """A connection by which we hear another member."""

    def __init__(self, links: RaftLinks) -> None:
        super().__init__(links)
        self._hello: Hello | None = None
        self._welcome: Welcome | None = None
        self._decoder: FrameDecoder | None = None
        self._made_ms = self._heard_ms
        self.source = ""
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        if not self._links.accepted(self):
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._links.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._heard_ms = self._links.clock.monotonic_ms()
        try:
            if self._decoder is None:
                data = self._greet(data)
            if self._decoder is not None:
                self._take(self._decoder, data)
        except RemoteProtocolError as error:
            self._links.note_refusal(self.source or self.address, str(error))
            self.close()

    def _take(self, decoder: FrameDecoder, data: bytes) -> None:
        links = self._links
        links.heard_ms[self.source] = self._heard_ms
        messages = []
        for message in decoder.feed(data):
            if message is None:
                assert self._transport is not None
                self._transport.write(PING)
            else:
                messages.append(message)
        if messages and links.incoming.get(self.source) is self:
            links.on_messages(self.source, messages)

    def _greet(self, data: bytes) -> bytes:
        """Take the greeting; return what comes behind it."""
        links, key = self._links, self._links.settings.key
        assert self._transport is not None
        self._greeting += data
        if self._hello is None:
            if len(self._greeting) > _GREETING_BYTES_MAX:
                raise RemoteProtocolError("its greeting does not end")
            hello = take_hello(self._greeting)
            if hello is None:
                return b""
            welcome = Welcome(links.random_bytes(NONCE_BYTES))
            problem = links.problem_of(hello)
            if problem:
                self._transport.write(welcome._replace(problem=problem).encode())
                links.note_refusal(self.address, problem)
                self._transport.close()
                return b""
            if key is not None:
                welcome = welcome._replace(proof=acceptors_proof(key, hello, welcome))
            self._hello, self._welcome = hello, welcome
            self._transport.write(welcome.encode())
        proof = take_proof(self._greeting)
        if proof is None:
            return b""
        hello, given = self._hello, self._welcome
        assert given is not None
        if key is not None and not is_proof(proof, connectors_proof(key, hello, given)):
            raise RemoteProtocolError("it does not have the cluster key")
        self.source = hello.source
        self._decoder = FrameDecoder(hello.source, hello.target)
        links.proved(self)
        logger.info("member=%s speaks from %s", self.source, self.address)
        rest, self._greeting = bytes(self._greeting), bytearray()
        return rest

    def tick(self, now_ms: int) -> None:
        """Give up on those who say nothing."""
        silence_ms = self._links.settings.silence_ms
        if self._decoder is None:
            if now_ms - self._made_ms > silence_ms:
                self._links.note_refusal(self.address, "it does not greet")
                self.close()
        elif now_ms - self._heard_ms > 2 * silence_ms:
            self.close()


class _OwnLink(_Link):
    """Our connection to another member."""

    def __init__(self, links: RaftLinks, member: str) -> None:
        super().__init__(links)
        self._member = member
        self._hello: Hello | None = None
        self._pongs = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_ready = False

    async def run(self, network: Network) -> None:
        """Connect, and stay until the connection ends; raises what ended it."""
        links = self._links
        host, port = links.settings.peers[self._member]
        try:
            async with asyncio.timeout(links.settings.silence_ms / 1000):
                await network.connect(lambda: self, host, port)
        except TimeoutError:
            raise ConnectFailed(f"{host}:{port}", "no answer") from None
        try:
            await self._ended
        finally:
            links.link_ended(self._member, self)
            self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._heard_ms = self._links.clock.monotonic_ms()
        settings = self._links.settings
        self._hello = Hello(
            self._links.random_bytes(NONCE_BYTES),
            settings.key is not None,
            settings.group,
            settings.own_id,
            self._member,
            tuple(sorted(settings.peers)),
        )
        self._transport.write(self._hello.encode())
        asyncio.get_running_loop().call_later(
            settings.silence_ms / 1000, self._give_up_unless_greeted
        )

    def _give_up_unless_greeted(self) -> None:
        if not self.is_ready:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_ready = False
        self._end(None)

    def data_received(self, data: bytes) -> None:
        if self._ended.done():
            return
        self._heard_ms = self._links.clock.monotonic_ms()
        try:
            if not self.is_ready:
                self._greet(data)
            elif data.strip(b"\0\1"):
                raise RemoteProtocolError("it answers with something else than pings")
        except RemoteProtocolError as error:
            self._end(error)
            self.close()

    def _greet(self, data: bytes) -> None:
        assert self._hello is not None
        assert self._transport is not None
        self._greeted(data)
        welcome = take_welcome(self._greeting)
        if welcome is None:
            return
        if welcome.problem:
            raise RemoteProtocolError(welcome.problem)
        key = self._links.settings.key
        proof = bytes(PROOF_BYTES)
        if key is not None:
            if not is_proof(welcome.proof, acceptors_proof(key, self._hello, welcome)):
                raise RemoteProtocolError("it does not have the cluster key")
            proof = connectors_proof(key, self._hello, welcome)
        self._transport.write(proof)
        self.is_ready = True
        self._links.link_ready(self._member, self)

    def _end(self, error: RemoteProtocolError | None) -> None:
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)
                self._ended.exception()  # Seen: who dials may have been cancelled.

    def write(self, parts: list[bytes | memoryview], size: int) -> None:
        """Send frames."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if size <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
            return
        for part in parts:
            self._transport.write(part)

    def tick(self, now_ms: int) -> None:
        """Ask for a sign of life; without any, connect anew."""
        if now_ms - self._heard_ms > self._links.settings.silence_ms:
            logger.info("member=%s has been silent for too long, connecting anew", self._member)
            self.close()
        elif self.is_ready and self._transport is not None:
            self._transport.write(PING)
