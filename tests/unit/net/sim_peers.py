"""A simulated server port and hand-driven peers, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from skylark.net import Channels, Handler, Listener, NetConfig, Switchboard
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.frame import FrameDecoder, encode_frames
from skylark.testing import LinkConfig, SimClock, SimHost, SimLoop, SimNetwork

ECHO, LATER, NEVER, LARGE = 105, 106, 107, 108
WIRE = LinkConfig(delay_ms=0.1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)
PORT = 9876


class World:
    """One server machine, one client machine, and what the handlers saw."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(1), config=WIRE)
        self.server: SimHost = self.network.host("10.0.0.1")
        self.client: SimHost = self.network.host("10.0.0.2")
        self.clock = SimClock(self.loop)
        self.served: list[int] = []
        self.cancelled: list[int] = []
        self.connects: list[str] = []
        self.disconnects: list[str] = []
        self.handlers: dict[int, Handler] = {
            ECHO: Handler(None, self._echo),
            LATER: Handler(None, self._later),
            NEVER: Handler(None, self._never),
            LARGE: Handler(None, self._large),
        }
        self.released = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{self.server.address}:{PORT}"

    def listener(self, **settings: Any) -> Listener:
        board = Switchboard(
            self.handlers,
            on_connect=lambda peer: self.connects.append(peer.address),
            on_disconnect=lambda peer: self.disconnects.append(peer.address),
        )
        return Listener(NetConfig(listen_port=PORT, **settings), board, self.server)

    def channels(self, **options: Any) -> Channels:
        return Channels(self.client, self.clock, random.Random(2), **options)

    async def peer(self) -> RawPeer:
        peer = RawPeer()
        await self.client.connect(lambda: peer, self.server.address, PORT)
        return peer

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run(main())

    # Handlers

    def _echo(self, request: AnyRequest, peer: Peer) -> Response:
        self.served.append(request.code)
        return Response(body=request.body)

    async def _later(self, request: AnyRequest, peer: Peer) -> Response:
        self.served.append(request.code)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.code)
            raise
        return Response(body=request.body)

    async def _never(self, request: AnyRequest, peer: Peer) -> Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a future that nobody sets was set")

    def _large(self, request: AnyRequest, peer: Peer) -> Response:
        self.served.append(request.code)
        return Response(body=bytes(int(request.fields["size"])))


class RawPeer(asyncio.Protocol):
    """The other end of a connection, driven by hand."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.answers: list[Command] = []
        self.received_bytes = 0
        self.lost_at: float | None = None
        self.lost = self.loop.create_future()
        self._decoder = FrameDecoder()
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self.answers += self._decoder.feed(data)
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost_at = self.loop.time()
        self.lost.set_result(None)
        self._changed.set()

    def send(self, *commands: Command) -> None:
        self.transport.write(encode_frames(list(commands)))

    async def wait_answers(self, count: int) -> list[Command]:
        while len(self.answers) < count:
            assert self.lost_at is None, f"lost after {len(self.answers)} of {count} answers"
            self._changed.clear()
            await self._changed.wait()
        return self.answers
