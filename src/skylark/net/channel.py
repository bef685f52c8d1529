"""Channel: one peer that we call; Channels: one Channel for each address.

A channel connects when it is first needed and again after a loss. While a peer refuses, tries are
spaced out and calls fail at once in between, so that a caller can turn to another peer. Requests
that the peer sends back over the same connection go to the switchboard.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from types import TracebackType
from typing import Final, Self

from ..clock import Clock
from ..errors import ConnectFailed, ConnectionLost
from ..protocol.command import Command
from .config import NetConfig
from .link import Link
from .network import Network
from .owner import LinkOwner
from .switchboard import Switchboard
from .tls import TlsSession

CONNECT_TIMEOUT_MS: Final = 3_000
_BACKOFF_MS_MIN: Final = 100
_BACKOFF_MS_MAX: Final = 2_000


class Channel:
    """One outgoing peer, by address."""

    def __init__(self, address: str, owner: Channels) -> None:
        self.address = address
        self._owner = owner
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failure: ConnectFailed | None = None
        self._backoff_ms = 0
        self._retry_at_ms = 0

    @property
    def is_connected(self) -> bool:
        """Whether a connection is up now."""
        return self._link is not None and not self._link.is_closed

    @property
    def link(self) -> Link | None:
        """The connection that is there now, if one is; calls open one, this does not."""
        return self._link

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for its answer; raises TransportError."""
        link = self._link
        if link is None or link.is_closed:
            link = await self._connected()
        return await link.call(command, timeout_ms)

    async def send_oneway(self, command: Command) -> None:
        """Send a request that gets no answer; raises TransportError."""
        link = await self._connected()
        link.notify(command)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _connected(self) -> Link:
        while self._link is None or self._link.is_closed:
            connecting = self._connecting
            if connecting is None:
                self._judge_last_link()
                self._refuse_during_backoff()
                # One attempt serves all callers; one that gives up must not end it for the others.
                connecting = self._owner.spawn(self._connect())
                if connecting is None:
                    raise ConnectFailed(self.address, "we are shutting down")
                self._connecting = connecting
                connecting.add_done_callback(self._connect_done)
            await asyncio.wait((connecting,))
            if connecting.cancelled():
                raise ConnectFailed(self.address, "the channel was closed")
            if self._failure is not None:
                raise ConnectFailed(self.address, self._failure.problem)
        return self._link

    def _judge_last_link(self) -> None:
        # A server that takes connections only to drop them is no better than one that refuses.
        link, self._link = self._link, None
        if link is None:
            return
        if link.has_spoken:
            self._backoff_ms = 0
        else:
            self._back_off(ConnectFailed(self.address, "it dropped the connection unanswered"))

    def _refuse_during_backoff(self) -> None:
        wait_ms = self._retry_at_ms - self._owner.clock.monotonic_ms()
        if self._failure is not None and wait_ms > 0:
            problem = self._failure.problem
            raise ConnectFailed(self.address, f"{problem}; the next try is in {wait_ms} ms")

    async def _connect(self) -> None:
        self._failure = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                self._link = await self._owner.open_link(self.address)
        except TimeoutError:
            self._back_off(ConnectFailed(self.address, f"no answer in {CONNECT_TIMEOUT_MS} ms"))
        except (ConnectFailed, ConnectionLost) as error:
            self._back_off(ConnectFailed(self.address, error.problem))

    def _connect_done(self, task: asyncio.Task[None]) -> None:
        if self._connecting is task:
            self._connecting = None

    def _back_off(self, failure: ConnectFailed) -> None:
        self._failure = failure
        self._backoff_ms = min(max(self._backoff_ms * 2, _BACKOFF_MS_MIN), _BACKOFF_MS_MAX)
        spread = self._owner.rng.uniform(0.5, 1.0)  # Clients of one server must not return as one.
        self._retry_at_ms = self._owner.clock.monotonic_ms() + int(self._backoff_ms * spread)


class Channels(LinkOwner):
    """All outgoing peers of one process, one connection each."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        rng: random.Random,
        *,
        switchboard: Switchboard | None = None,
        config: NetConfig | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.clock = clock
        self.rng = rng
        self._network = network
        self._switchboard = switchboard or Switchboard({})
        self._config = config or NetConfig()
        self._tls = tls
        self._channels: dict[str, Channel] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for channel in self._channels.values():
            channel.close()
        try:
            await self._end()
        finally:
            await self._tasks.__aexit__(kind, error, traceback)
        if self._failure is not None:
            raise self._failure  # It came when the task group could not take it any more.

    def known(self, address: str) -> Channel | None:
        """The channel to an address that was used before."""
        return self._channels.get(address)

    def to(self, address: str) -> Channel:
        """The channel to an `ip:port`."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(address, self)
        return channel

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request to an address and wait for its answer; raises TransportError."""
        return await self.to(address).call(command, timeout_ms)

    async def send_oneway(self, address: str, command: Command) -> None:
        """Send a request that gets no answer; raises TransportError."""
        await self.to(address).send_oneway(command)

    def drop(self, address: str) -> None:
        """Close and forget the channel to an address that no route mentions any more."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()

    async def open_link(self, address: str) -> Link:
        """Connect to an address, handshake included; for Channel."""
        host, port = split_address(address)
        tls = TlsSession(self._tls, server_side=False) if self._tls is not None else None
        link = Link(self._config, self._switchboard, self, is_server=False, tls=tls)
        await self._network.connect(lambda: link, host, port)
        try:
            await link.wait_established()
        except asyncio.CancelledError:
            link.cut()
            raise
        return link

    # What a link asks of its owner.

    def begin_tls(self) -> TlsSession | None:
        return None  # Our side opens the conversation; a peer never does.

    def link_made(self, link: Link) -> str | None:
        if self._is_ending or self._failure is not None:
            return "shutting down"
        self._links[link] = None
        return None

    def held_bytes_changed(self, delta: int) -> None:
        pass  # We chose these peers; a frame's own limit is enough.


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` at the last colon; raises ConnectFailed."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConnectFailed(address, "not an address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
