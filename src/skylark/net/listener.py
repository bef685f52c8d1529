"""Listener: accepts peers on a port and keeps what they can cost within bounds.

    async with Listener(config, switchboard, network) as listener:
        await listener.serve()

Leaving the block drains it: no new connection, no new request, answers under way go out, then the
links close. A handler's broken assertion ends the block with that error, and without draining.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from .config import NetConfig, TlsMode
from .link import Link
from .network import Network, Server
from .owner import LinkOwner
from .switchboard import Switchboard
from .tls import Certificates, TlsSession

logger = logging.getLogger(__name__)

_DRAIN_STEP_MS = 10


class Listener(LinkOwner):
    """One listening port."""

    def __init__(self, config: NetConfig, switchboard: Switchboard, network: Network) -> None:
        super().__init__()
        self._config = config
        self._switchboard = switchboard
        self._network = network
        self._certificates: Certificates | None = None
        self._server: Server | None = None
        self._held_bytes = 0
        self._handshakes: set[TlsSession] = set()
        self.accepted_total = 0
        self.refused_total = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None, "the listener is not open"
        return self._server.address

    @property
    def held_bytes(self) -> int:
        """What the unfinished frames of all peers take together."""
        return self._held_bytes

    async def __aenter__(self) -> Self:
        config = self._config
        if config.tls_mode != TlsMode.DISABLED and config.tls_cert_path:
            self._certificates = Certificates(config)
        await self._tasks.__aenter__()
        try:
            self._server = await self._network.listen(
                self._make_link, config.listen_host, config.listen_port
            )
        except BaseException as error:
            await self._tasks.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        try:
            if self._failure is None:
                await self._drain()
        finally:
            try:
                await self._end()
            finally:
                await self._tasks.__aexit__(kind, error, traceback)
        if self._failure is not None:
            raise self._failure  # It came when the task group could not take it any more.

    async def serve(self) -> None:
        """Wait until cancelled, or until something fails that must not."""
        await asyncio.Event().wait()

    async def _drain(self) -> None:
        for link in self.links:
            link.stop_reading()
        try:
            async with asyncio.timeout(self._config.drain_timeout_ms / 1000):
                while any(not link.is_idle for link in self._links) or self._orphans:
                    await asyncio.sleep(_DRAIN_STEP_MS / 1000)
        except TimeoutError:
            busy = sum(not link.is_idle for link in self._links)
            logger.warning(
                "links=%d still busy after %d ms, closed", busy, self._config.drain_timeout_ms
            )

    def _make_link(self) -> Link:
        return Link(self._config, self._switchboard, self, is_server=True)

    # What a link asks of its owner.

    def begin_tls(self) -> TlsSession | None:
        self._handshakes = {tls for tls in self._handshakes if not tls.is_established}
        if self._certificates is None or len(self._handshakes) >= self._config.tls_handshakes_max:
            return None
        session = TlsSession(self._certificates.context(), server_side=True)
        self._handshakes.add(session)
        return session

    def link_made(self, link: Link) -> str | None:
        if self._is_ending or self._failure is not None:
            return "shutting down"
        if len(self._links) >= self._config.connections_max:
            self.refused_total += 1
            return "too many connections; raise connectionsMax or add a server"
        self.accepted_total += 1
        self._links[link] = None
        return None

    def link_lost(self, link: Link) -> None:
        if link.tls is not None:
            self._handshakes.discard(link.tls)
        super().link_lost(link)

    def held_bytes_changed(self, delta: int) -> None:
        self._held_bytes += delta
        while self._held_bytes > self._config.held_bytes_max:
            # The largest goes, not the last: else a few big frames, never finished, would keep
            # everybody else from finishing small ones.
            largest = max(self._links, key=lambda link: link.held_bytes)
            largest.abort("unfinished frames take too much memory; raise heldBytesMax")
