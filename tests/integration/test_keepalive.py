"""Connections that we open are probed: a peer that lost power is noticed when it is back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from skylark.net import AsyncioNetwork
from skylark.net.network import KEEPALIVE_S


def _loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    made: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
    try:
        import uvloop
    except ImportError:
        return made
    return [*made, uvloop.new_event_loop]


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="not on this system")
@pytest.mark.parametrize("make_loop", _loops())
def test_a_connection_is_probed_after_seconds_of_silence(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        network = AsyncioNetwork()
        server = await network.listen(asyncio.Protocol, "127.0.0.1", 0)
        transport = await network.connect(asyncio.Protocol, *server.address)
        connection = transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in KEEPALIVE_S.items():
            assert connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        assert KEEPALIVE_S["TCP_KEEPIDLE"] < 5  # What clients promise after a server's return.
        transport.abort()
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
