"""Network: the one door to sockets.

Everything above works with asyncio's Protocol and Transport; who provides them is decided by the
app: AsyncioNetwork gives real sockets, skylark.testing's SimNetwork a simulated wire.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from ..errors import ConnectFailed

BACKLOG = 1024
# A machine that lost power says nothing; once it is up again, the first probe is answered by a
# reset. Without probes a client that waits for messages would wait for its time-out.
KEEPALIVE_S = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 10}

ProtocolFactory = Callable[[], asyncio.Protocol]


class Server(Protocol):
    """A listening endpoint."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is real even if 0 was asked for."""
        ...

    def close(self) -> None:
        """Stop accepting. Connections that exist stay."""
        ...

    async def wait_closed(self) -> None:
        """Wait until no further connection can arrive."""
        ...


class Network(Protocol):
    """Listens and connects.

    The transports it hands to a protocol offer write, close, abort, is_closing, pause_reading,
    resume_reading, set_write_buffer_limits, get_write_buffer_size and get_extra_info for "peername"
    and "sockname"; the protocols get connection_made, data_received, eof_received, connection_lost,
    pause_writing and resume_writing, as asyncio documents them.
    """

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Server:
        """Accept connections on an address; port 0 picks a free one. Raises OSError."""
        ...

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        """Connect to an address; raises ConnectFailed."""
        ...


class AsyncioNetwork:
    """Real TCP sockets on the running loop."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Server:
        loop = asyncio.get_running_loop()
        if not host and not port:
            # Left to itself, each address family would pick a port of its own.
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            sock = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
            return _AsyncioServer(await loop.create_server(factory, sock=sock, backlog=BACKLOG))
        server = await loop.create_server(
            factory, host or None, port, backlog=BACKLOG, reuse_address=True
        )
        return _AsyncioServer(server)

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port)
        except (OSError, UnicodeError, OverflowError) as error:
            raise ConnectFailed(f"{host}:{port}", str(error) or type(error).__name__) from error
        _keep_alive(transport)
        return transport


def _keep_alive(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_S.items():
        option = getattr(socket, name, None)  # Not every system has each of them.
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _AsyncioServer:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self.address: tuple[str, int] = (host, port)

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        await self._server.wait_closed()


def local_name_and_ip() -> tuple[str, str]:
    """This machine's host name, and the address by which others are likely to reach it."""
    name = socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: the system only says which of its addresses it would send from.
            probe.connect(("192.0.2.1", 9))
            return name, str(probe.getsockname()[0])
        except OSError:
            return name, "127.0.0.1"


def resolved(host: str) -> str:
    """An IP address of a host; raises ConnectFailed."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConnectFailed(host, f"the name does not resolve: {error.strerror}") from None
