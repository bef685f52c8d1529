"""ClientChannels: the connections of a session, with signatures and hooks on what goes out."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Iterable

from ..clock import Clock
from ..net import Channels, NetConfig, Network, Switchboard
from ..net.channel import split_address
from ..net.tls import TlsSession
from ..protocol.acl import sign_fields
from ..protocol.command import Command
from .hooks import RpcHook
from .pipelining import PipelinedLink

logger = logging.getLogger(__name__)


class ClientChannels(Channels):
    """Channels that sign every request with an account, where one is given."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        rng: random.Random,
        *,
        switchboard: Switchboard,
        config: NetConfig | None = None,
        tls: ssl.SSLContext | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        hooks: Iterable[RpcHook] = (),
    ) -> None:
        super().__init__(network, clock, rng, switchboard=switchboard, config=config, tls=tls)
        self._access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token
        self.hooks: list[RpcHook] = list(hooks)

    def ready_link(self, address: str) -> PipelinedLink | None:
        """The link to an address, if a plain request can go out on it without waiting.

        None as well where requests are signed or watched: that is for call to do.
        """
        channel = self.known(address)
        if channel is None or self.hooks or self._access_key is not None:
            return None
        link = channel.link
        return link if isinstance(link, PipelinedLink) and link.is_ready else None

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request to an address and wait for its answer; raises TransportError."""
        if not self.hooks:
            if self._access_key is not None:
                self._sign(command)
            return await self.to(address).call(command, timeout_ms)
        for hook in self.hooks:
            hook.before_request(address, command)
        self._sign(command)
        answer = await self.to(address).call(command, timeout_ms)
        for hook in self.hooks:
            try:
                hook.after_response(address, command, answer)
            except Exception:
                logger.exception("peer=%s a hook failed after an answer", address)
        return answer

    async def send_oneway(self, address: str, command: Command) -> None:
        """Send a request that gets no answer; raises TransportError."""
        for hook in self.hooks:
            hook.before_request(address, command)
        self._sign(command)
        await self.to(address).send_oneway(command)

    async def open_link(self, address: str) -> PipelinedLink:
        """Connect to an address, handshake included; for Channel."""
        host, port = split_address(address)
        tls = TlsSession(self._tls, server_side=False) if self._tls is not None else None
        link = PipelinedLink(self._config, self._switchboard, self, is_server=False, tls=tls)
        await self._network.connect(lambda: link, host, port)
        try:
            await link.wait_established()
        except asyncio.CancelledError:
            link.cut()
            raise
        return link

    def _sign(self, command: Command) -> None:
        # Again at every try: hooks may have changed the fields since.
        if self._access_key is not None and self._secret_key is not None:
            command.fields = sign_fields(
                command.fields,
                command.body,
                access_key=self._access_key,
                secret_key=self._secret_key,
                security_token=self._security_token,
            )
