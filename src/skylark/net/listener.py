"""Listener: accepts peers on a port and keeps what they can cost within bounds.

    async with Listener(config, switchboard, network) as listener:
        await listener.serve()

Leaving the block drains it: no new connection, no new request, answers under way go out, then the
links close. A handler's broken assertion ends the block with that error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from .config import NetConfig, TlsMode
from .link import Link
from .network import Network, Server
from .switchboard import Switchboard
from .tasks import TaskScope
from .tls import Certificates, TlsSession

logger = logging.getLogger(__name__)

_DRAIN_STEP_MS = 10


class Listener:
    """One listening port."""

    def __init__(self, config: NetConfig, switchboard: Switchboard, network: Network) -> None:
        self._config = config
        self._switchboard = switchboard
        self._network = network
        self._certificates: Certificates | None = None
        self._tasks = TaskScope()
        self._server: Server | None = None
        self._links: dict[Link, None] = {}  # In order of arrival: iteration must not depend on ids.
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
    def links(self) -> list[Link]:
        """The connections that are up, oldest first."""
        return list(self._links)

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
            await self._drain()
        finally:
            for link in self.links:
                link.close()
            for link in self.links:
                link.cancel_requests()
            await self._tasks.__aexit__(kind, error, traceback)

    async def serve(self) -> None:
        """Wait until cancelled, or until something fails that must not."""
        await asyncio.Event().wait()

    async def _drain(self) -> None:
        for link in self.links:
            link.stop_reading()
        try:
            async with asyncio.timeout(self._config.drain_timeout_ms / 1000):
                while any(not link.is_idle for link in self._links):
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

    def link_made(self, link: Link) -> bool:
        if len(self._links) >= self._config.connections_max:
            self.refused_total += 1
            return False
        self.accepted_total += 1
        self._links[link] = None
        return True

    def link_lost(self, link: Link) -> None:
        self._links.pop(link, None)
        if link.tls is not None:
            self._handshakes.discard(link.tls)

    def held_bytes_changed(self, delta: int) -> bool:
        self._held_bytes += delta
        return self._held_bytes <= self._config.held_bytes_max

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.spawn(coroutine)
