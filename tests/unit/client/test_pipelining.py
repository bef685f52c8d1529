"""PipelinedLink: one write for many requests, deadlines kept, nothing left behind."""

from __future__ import annotations

import asyncio
import random

import pytest
from send_world import WIRE, World

from skylark.client.channels import ClientChannels
from skylark.client.pipelining import GATHERED_BYTES_MAX, PipelinedLink
from skylark.errors import CallTimeout, ConnectionLost
from skylark.net import Handler, Listener, NetConfig, Switchboard
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.testing import SimTransport

ECHO, NEVER, CUT = 105, 106, 107


class Server:
    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.network.host("10.0.0.50")
        handlers = {
            ECHO: Handler(None, self.echo),
            NEVER: Handler(None, self.never),
            CUT: Handler(None, self.cut),
        }
        config = NetConfig(listen_port=9000)
        self.listener = Listener(config, Switchboard(handlers), self.host)
        self.served = 0

    def echo(self, request: AnyRequest, peer: Peer) -> Response:
        self.served += 1
        return Response(body=request.body)

    async def never(self, request: AnyRequest, peer: Peer) -> Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a future that nobody sets was set")

    def cut(self, request: AnyRequest, peer: Peer) -> None:
        peer.close()


def channels(world: World) -> ClientChannels:
    rng = random.Random(1)
    return ClientChannels(world.client_host, world.clock, rng, switchboard=Switchboard({}))


def call(code: int, body: bytes = b"") -> Command:
    return Command.request(code, body=body)


def test_the_requests_of_one_turn_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(brokers=1)
    writes: list[int] = []
    plain = SimTransport.write

    def counting(self: SimTransport, data: bytes) -> None:
        if self.get_extra_info("peername")[1] == 9000:
            writes.append(len(data))
        plain(self, data)

    monkeypatch.setattr(SimTransport, "write", counting)

    async def scenario() -> None:
        server = Server(world)
        async with server.listener, channels(world) as peers:
            channel = peers.to("10.0.0.50:9000")
            await channel.call(call(ECHO), 1_000)
            writes.clear()
            answers = await asyncio.gather(
                *(channel.call(call(ECHO, b"%d" % n), 1_000) for n in range(200))
            )
            assert [answer.body for answer in answers] == [b"%d" % n for n in range(200)]
            assert len(writes) == 1
            writes.clear()
            large = bytes(GATHERED_BYTES_MAX)
            await asyncio.gather(*(channel.call(call(ECHO, large), 1_000) for _ in range(3)))
            assert len(writes) == 3  # What is large does not pile up.

    world.run(scenario)


def test_each_call_has_its_own_deadline() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        server = Server(world)
        async with server.listener, channels(world) as peers:
            channel = peers.to("10.0.0.50:9000")
            await channel.call(call(ECHO), 1_000)

            async def waits(timeout_ms: int) -> int:
                began_ms = world.clock.monotonic_ms()
                with pytest.raises(CallTimeout) as caught:
                    await channel.call(call(NEVER), timeout_ms)
                assert caught.value.timeout_ms == timeout_ms
                return world.clock.monotonic_ms() - began_ms

            async def talk() -> None:
                # While others wait in vain the peer is plainly alive; its link must stay.
                for _ in range(30):
                    await channel.call(call(ECHO), 1_000)
                    await world.clock.sleep_ms(100)

            times = (900, 300, 2_000, 300, 1_500)
            waited = await asyncio.gather(*(waits(ms) for ms in times), talk())
            for wanted, found in zip(times, waited[:-1], strict=True):
                assert found is not None
                assert wanted - 2 <= found <= wanted + 2
            assert channel.is_connected
            link = channel._link
            assert isinstance(link, PipelinedLink)
            assert not link._calls
            assert link._connection.waiting == 0

    world.run(scenario)


def test_a_peer_that_says_nothing_at_all_is_given_up() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        server = Server(world)
        async with server.listener, channels(world) as peers:
            channel = peers.to("10.0.0.50:9000")
            await channel.call(call(ECHO), 1_000)
            with pytest.raises(CallTimeout):
                await channel.call(call(NEVER), 1_500)
            assert not channel.is_connected
            await channel.call(call(ECHO), 1_000)

    world.run(scenario)


def test_when_the_peer_cuts_everybody_hears_it() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        server = Server(world)
        async with server.listener, channels(world) as peers:
            channel = peers.to("10.0.0.50:9000")
            await channel.call(call(ECHO), 1_000)
            waiting = [asyncio.ensure_future(channel.call(call(NEVER), 9_000)) for _ in range(5)]
            await world.clock.sleep_ms(10)
            ended = await asyncio.gather(
                *waiting, channel.call(call(CUT), 1_000), return_exceptions=True
            )
            assert [type(one) for one in ended] == [ConnectionLost] * 6

    world.run(scenario)


def test_a_call_that_is_cancelled_is_forgotten() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        server = Server(world)
        async with server.listener, channels(world) as peers:
            channel = peers.to("10.0.0.50:9000")
            await channel.call(call(ECHO), 1_000)
            task = asyncio.ensure_future(channel.call(call(NEVER), 1_000))
            await world.clock.sleep_ms(10)
            task.cancel()
            await asyncio.wait([task])
            await world.clock.sleep_ms(3_000)
            assert channel.is_connected
            link = channel._link
            assert isinstance(link, PipelinedLink)
            assert not link._calls

    world.run(scenario)


def test_what_was_sent_before_closing_goes_out() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        server = Server(world)
        async with server.listener:
            async with channels(world) as peers:
                channel = peers.to("10.0.0.50:9000")
                await channel.call(call(ECHO), 1_000)
                oneway = Command.request(ECHO, oneway=True)
                await channel.send_oneway(oneway)
                channel.close()
            await world.clock.sleep_ms(10)
            assert server.served == 2

    assert WIRE.delay_ms < 10
    world.run(scenario)
