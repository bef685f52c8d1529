"""Real sockets on loopback, on both loops; what goes unhandled fails the test."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from skylark.clock import SystemClock
from skylark.net import AsyncioNetwork, Channels, Handler, Listener, NetConfig, Switchboard
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.frame import FrameDecoder, encode_frames

ECHO, LATER, LARGE = 105, 106, 108
FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
on_both_loops = pytest.mark.parametrize("loop_name", list(FACTORIES))


def run(loop_name: str, main: Coroutine[Any, Any, None], *, timeout_s: float = 60) -> None:
    """Run a test to its end; a callback's exception or a task left behind is a failure."""
    unhandled: list[str] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(repr(context)))
        async with asyncio.timeout(timeout_s):
            await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    with asyncio.Runner(loop_factory=FACTORIES[loop_name]) as runner:
        runner.run(watched())
    assert not unhandled, unhandled


class Service:
    """A few handlers, and what they saw."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.released = asyncio.Event()
        self.handlers = {
            ECHO: Handler(None, self._echo),
            LATER: Handler(None, self._later),
            LARGE: Handler(None, self._large),
        }

    def listener(self, **settings: Any) -> Listener:
        config = NetConfig(listen_host="127.0.0.1", **settings)
        return Listener(config, Switchboard(self.handlers), AsyncioNetwork())

    def _echo(self, request: AnyRequest, peer: Peer) -> Response:
        self.served.append(request.code)
        return Response(body=request.body)

    async def _later(self, request: AnyRequest, peer: Peer) -> Response:
        self.served.append(request.code)
        await self.released.wait()
        return Response(body=request.body)

    def _large(self, request: AnyRequest, peer: Peer) -> Response:
        self.served.append(request.code)
        return Response(body=bytes(int(request.fields["size"])))


def channels(**options: Any) -> Channels:
    return Channels(AsyncioNetwork(), SystemClock(), random.Random(1), **options)


def address_of(listener: Listener) -> str:
    return "{}:{}".format(*listener.address)


class Raw:
    """A bare socket on the client's side."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self.answers: list[Command] = []

    @classmethod
    async def to(cls, listener: Listener, *, receive_buffer: int | None = None) -> Raw:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, listener.address)
        return cls(sock)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def ask(self, command: Command) -> Command:
        """One request, one answer."""
        await self.send(encode_frames([command]))
        return (await self.receive(len(self.answers) + 1))[-1]

    async def receive(self, count: int) -> list[Command]:
        while len(self.answers) < count:
            data = await self.loop.sock_recv(self.sock, 1 << 18)
            assert data, f"closed after {len(self.answers)} of {count} answers"
            self.answers += self._decoder.feed(data)
        return self.answers

    async def wait_closed(self) -> bytes:
        """Read to the end of the connection, however it ends; return what came before."""
        rest = b""
        try:
            while data := await self.loop.sock_recv(self.sock, 1 << 18):
                rest += data
        except ConnectionResetError:
            pass
        return rest


async def until(condition: Callable[[], bool], *, timeout_s: float = 30) -> None:
    """Poll until something is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
