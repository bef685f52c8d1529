"""Listener: what handlers do is answered, and how serving ends. On virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sim_peers import ECHO, LATER, NEVER, PORT, World

from skylark.errors import (
    BrokerError,
    InvalidBody,
    InvalidHeader,
    LocalProtocolError,
    StoreClosed,
    StoreFull,
)
from skylark.net import Handler, Listener, NetConfig, Switchboard
from skylark.net.link import format_address
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.frame import FRAME_BYTES_MAX
from skylark.protocol.header import I32, Header, header


async def settle() -> None:
    await asyncio.sleep(0.01)


@header
class Sized(Header):
    size: I32


RAISED = pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (BrokerError(17, "no such topic"), 17, "no such topic"),
        (BrokerError(17, None), 17, ""),
        (InvalidHeader("Sized", "size", "is missing"), 1, "Sized: field 'size' is missing"),
        (InvalidBody("not JSON"), 1, "not JSON"),
        (StoreFull("no room"), 14, "no room"),
        (StoreClosed("closed"), 14, "closed"),
        (LocalProtocolError("x" * 5000), 1, "x" * 1024),
        (RuntimeError("secret"), 1, "internal error, see the log: RuntimeError"),
        (RecursionError("deep"), 1, "internal error, see the log: RecursionError"),
        (TimeoutError(), 1, "internal error, see the log: TimeoutError"),
    ],
)


@RAISED
@pytest.mark.parametrize("waits", [False, True])
def test_what_a_handler_raises_becomes_a_code(
    world: World,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    code: int,
    remark: str,
    waits: bool,
) -> None:
    def now(request: AnyRequest, peer: Peer) -> Response:
        raise error

    async def later(request: AnyRequest, peer: Peer) -> Response:
        await asyncio.sleep(0.1)
        raise error

    async def main() -> None:
        world.handlers[1] = Handler(None, later if waits else now)
        async with world.listener():
            peer = await world.peer()
            peer.send(Command(code=1, opaque=5, serialization=1), Command(code=ECHO, opaque=6))
            answers = await peer.wait_answers(2)
            (answer,) = [answer for answer in answers if answer.opaque == 5]
            assert (answer.code, answer.remark or "") == (code, remark)
            assert answer.serialization == 1, "an answer has the form of its request"

    world.run(main)
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == ("internal error" in remark)


def test_unknown_codes_are_answered_with_code_3_and_nothing_else_happens(world: World) -> None:
    async def main() -> None:
        async with world.listener() as listener:
            peer = await world.peer()
            known = set(world.handlers)
            for first in range(0, 65_536, 4096):
                codes = range(first, first + 4096)
                peer.answers.clear()
                peer.send(*[Command(code, code) for code in codes if code not in known])
                answers = await peer.wait_answers(len(set(codes) - known))
                assert {answer.code for answer in answers} == {3}
                assert {answer.opaque for answer in answers} == set(codes) - known
            assert world.served == []
            assert len(listener.links) == 1

    world.run(main)


def test_a_field_that_does_not_parse_is_answered_and_the_connection_stays(world: World) -> None:
    def sized(request: AnyRequest, peer: Peer) -> Response:
        return Response(remark=str(request.header.size))

    async def main() -> None:
        world.handlers[1] = Handler(Sized, sized)
        async with world.listener():
            peer = await world.peer()
            for fields in ({}, {"size": "x"}, {"size": "99999999999"}, {"size": "7"}):
                peer.send(Command(code=1, fields=fields))
            answers = await peer.wait_answers(4)
            assert [answer.code for answer in answers] == [1, 1, 1, 0]
            assert answers[3].remark == "7"

    world.run(main)


def test_an_answer_that_cannot_be_written_is_replaced_and_its_neighbours_go_out(
    world: World,
) -> None:
    def huge(request: AnyRequest, peer: Peer) -> Response:
        return Response(body=bytes(FRAME_BYTES_MAX))

    def torn(request: AnyRequest, peer: Peer) -> Response:
        return Response(remark="\ud800")

    async def main() -> None:
        world.handlers |= {1: Handler(None, huge), 2: Handler(None, torn)}
        async with world.listener():
            peer = await world.peer()
            peer.send(*[Command(code, n) for n, code in enumerate([ECHO, 1, ECHO, 2, ECHO])])
            answers = await peer.wait_answers(5)
            assert [answer.code for answer in answers] == [0, 1, 0, 1, 0]
            assert "at most 16777216 fit" in (answers[1].remark or "")

    world.run(main)


def test_a_handler_may_close_its_peer(world: World) -> None:
    def goodbye(request: AnyRequest, peer: Peer) -> None:
        peer.close()

    async def main() -> None:
        world.handlers[1] = Handler(None, goodbye)
        async with world.listener() as listener:
            peer = await world.peer()
            peer.send(Command(code=1), Command(code=ECHO))
            await peer.lost
            await settle()
            assert listener.links == []
            assert world.served == []

    world.run(main)


def test_answers_of_one_read_go_out_in_one_write(world: World) -> None:
    async def main() -> None:
        world.released.set()
        async with world.listener() as listener:
            peer = await world.peer()
            await settle()
            (link,) = listener.links
            writes: list[int] = []
            transport: Any = link._transport
            original = transport.write
            transport.write = lambda data: (writes.append(len(data)), original(data))
            peer.send(*[Command(code=ECHO, opaque=n) for n in range(64)])
            await peer.wait_answers(64)
            assert len(writes) == 1
            peer.send(*[Command(code=LATER, opaque=n) for n in range(64)])
            await peer.wait_answers(128)
            assert len(writes) == 2

    world.run(main)


class TestAssertions:
    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("grouped", [False, True])
    def test_a_broken_assertion_ends_the_listener_with_that_error(
        self, world: World, waits: bool, grouped: bool
    ) -> None:
        error: Exception = AssertionError("the log went back")
        if grouped:
            error = ExceptionGroup("parts", [ValueError("x"), error])

        def now(request: AnyRequest, peer: Peer) -> Response:
            raise error

        async def later(request: AnyRequest, peer: Peer) -> Response:
            await asyncio.sleep(0.1)
            raise error

        async def main() -> None:
            world.handlers[1] = Handler(None, later if waits else now)
            with pytest.raises(type(error)) as caught:  # noqa: PT012
                async with world.listener() as listener:
                    peer, other = await world.peer(), await world.peer()
                    other.send(Command(code=NEVER))
                    await settle()
                    peer.send(Command(code=1), *[Command(code=ECHO) for _ in range(10)])
                    await listener.serve()
            assert caught.value is error
            assert listener.links == []
            await settle()
            assert peer.lost_at is not None
            assert other.lost_at is not None
            assert world.loop.time() < 1, "a broken server does not drain"
            assert world.loop.tasks() == [asyncio.current_task()]

        world.run(main)
        if not waits:
            assert world.served == [], "nothing is served after it"

    @pytest.mark.parametrize("moment", ["connect", "disconnect"])
    def test_a_mistake_of_ours_about_a_peer_ends_the_listener(
        self, world: World, moment: str
    ) -> None:
        def broken(peer: Peer) -> None:
            raise KeyError("a table lost its peer")

        async def main() -> None:
            board = Switchboard(world.handlers, **{f"on_{moment}": broken})
            with pytest.raises(KeyError, match="lost its peer"):  # noqa: PT012
                async with Listener(NetConfig(listen_port=PORT), board, world.server) as listener:
                    peer = await world.peer()
                    peer.transport.abort()
                    await listener.serve()
            assert listener.links == []

        world.run(main)

    def test_a_mistake_while_leaving_is_not_lost(self, world: World) -> None:
        def broken(peer: Peer) -> None:
            raise KeyError("a table lost its peer")

        async def main() -> None:
            board = Switchboard(world.handlers, on_disconnect=broken)
            with pytest.raises(KeyError, match="lost its peer"):
                async with Listener(NetConfig(listen_port=PORT), board, world.server):
                    await world.peer()

        world.run(main)


class TestDraining:
    def test_answers_under_way_go_out_before_the_end(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                peer.send(*[Command(code=LATER, opaque=n) for n in range(300)])
                await settle()
                serving = asyncio.create_task(listener.serve())
                world.loop.call_later(2, world.released.set)
                serving.cancel()
            assert len(peer.answers) == 300 or await peer.wait_answers(300)
            await peer.lost
            assert 2 <= peer.lost_at < 3

        world.run(main)
        assert world.cancelled == []

    def test_no_new_connection_and_no_new_request_while_draining(self, world: World) -> None:
        async def main() -> None:
            listener = await world.listener().__aenter__()
            peer = await world.peer()
            peer.send(Command(code=LATER))
            await settle()
            leaving = asyncio.create_task(listener.__aexit__(None, None, None))
            await settle()
            peer.send(Command(code=ECHO))
            with pytest.raises(Exception, match="refused"):
                await world.peer()
            await asyncio.sleep(1)
            assert world.served == [LATER]
            world.released.set()
            await leaving
            await peer.lost
            assert [answer.code for answer in peer.answers] == [0]

        world.run(main)

    def test_what_does_not_finish_is_cut_at_the_limit(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener(drain_timeout_ms=3000):
                peer, deaf = await world.peer(), await world.peer()
                peer.send(Command(code=LATER))
                deaf.transport.pause_reading()
                deaf.send(*[Command(code=108, fields={"size": "300000"}) for _ in range(9)])
                await settle()
            assert world.loop.time() == pytest.approx(3, abs=0.2)
            assert world.cancelled == [LATER]
            assert len(world.disconnects) == 2, "nobody hears of a peer after the listener is left"

        world.run(main)
        assert [r.getMessage() for r in caplog.records if "still busy" in r.getMessage()] == [
            "links=2 still busy after 3000 ms, closed"
        ]

    def test_a_second_cancellation_does_not_wait(self, world: World) -> None:
        async def main() -> None:
            async def serve() -> None:
                async with world.listener() as listener:
                    await listener.serve()

            serving = asyncio.create_task(serve())
            await settle()
            peer = await world.peer()
            peer.send(Command(code=LATER))
            await settle()
            serving.cancel()
            await asyncio.sleep(1)
            assert not serving.done()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert world.loop.time() < 1.1
            assert world.cancelled == [LATER]
            assert world.loop.tasks() == [asyncio.current_task()]

        world.run(main)

    def test_an_idle_server_stops_at_once(self, world: World) -> None:
        async def main() -> None:
            async with world.listener():
                peers = [await world.peer() for _ in range(20)]
                await settle()
                left_at = world.loop.time()
            assert world.loop.time() - left_at < 0.05
            await settle()
            assert all(peer.lost_at is not None for peer in peers)
            assert len(world.disconnects) == 20

        world.run(main)

    def test_a_port_that_is_taken_is_an_os_error_and_leaves_nothing_behind(
        self, world: World
    ) -> None:
        async def main() -> None:
            async with world.listener():
                with pytest.raises(OSError, match="in use"):
                    await world.listener().__aenter__()
            assert world.loop.tasks() == [asyncio.current_task()]

        world.run(main)


class TestLeaks:
    def test_a_thousand_connections_come_and_go(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                for _ in range(100):
                    peers = [await world.peer() for _ in range(10)]
                    for peer in peers:
                        peer.send(Command(code=LATER), Command(code=ECHO))
                    await asyncio.gather(*[peer.wait_answers(1) for peer in peers])
                    for peer in peers:
                        peer.transport.close()
                await asyncio.sleep(1)
                assert listener.links == []
                assert listener._orphans == set()
                assert world.loop.tasks() == [asyncio.current_task()]
            assert len(world.connects) == len(world.disconnects) == 1000

        world.run(main)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 5, 0, 0), "::1:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1:5"),
        (None, "?"),
        ("/run/socket", "/run/socket"),
    ],
)
def test_addresses_are_shown_as_ip_and_port(name: Any, text: str) -> None:
    assert format_address(name) == text
