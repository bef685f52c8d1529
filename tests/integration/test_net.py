"""Listener and Channels on real sockets, on both loops."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import weakref

import pytest
from net_harness import (
    ECHO,
    LARGE,
    LATER,
    Raw,
    Service,
    address_of,
    channels,
    on_both_loops,
    run,
    until,
)

from skylark.errors import CallTimeout, ConnectFailed, ConnectionLost
from skylark.net import AsyncioNetwork, Handler, NetConfig, Switchboard
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.frame import encode_frames

pytestmark = on_both_loops
MIB = 1024 * 1024


def test_calls_are_answered(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener, channels() as peers:
            answers = await asyncio.gather(
                *[
                    peers.call(address_of(listener), Command.request(ECHO, body=b"%d" % n), 5000)
                    for n in range(200)
                ]
            )
            assert [answer.body for answer in answers] == [b"%d" % n for n in range(200)]
            assert listener.accepted_total == 1

    run(loop_name, main())


def test_large_bodies_go_both_ways(loop_name: str) -> None:
    async def main() -> None:
        body = random.Random(1).randbytes(4 * MIB)
        service = Service()
        async with service.listener() as listener, channels() as peers:
            for _ in range(3):
                answer = await peers.call(
                    address_of(listener), Command.request(ECHO, body=body), 9000
                )
                assert answer.body == body

    run(loop_name, main())


def test_any_split_of_the_stream_is_answered_alike(loop_name: str) -> None:
    async def main() -> None:
        rng = random.Random(7)
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener) as raw:
                raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                commands = [
                    Command(ECHO, n, body=rng.randbytes(rng.randrange(300))) for n in range(50)
                ]
                stream = encode_frames(commands)
                at = 0
                while at < len(stream):
                    size = rng.choice([1, 3, 8, 50, 400])
                    await raw.send(stream[at : at + size])
                    at += size
                    await asyncio.sleep(0)
                answers = await raw.receive(50)
                assert [a.body for a in answers] == [c.body for c in commands]

    run(loop_name, main())


def test_reading_stops_at_256_requests_under_way(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener) as greedy, await Raw.to(listener) as bystander:
                codes = [LATER] * 1_000 + [ECHO] * 99_000
                stream = encode_frames([Command(code, n) for n, code in enumerate(codes)])
                sending = asyncio.create_task(greedy.send(stream))
                await until(lambda: len(service.served) >= 256)
                await asyncio.sleep(0.2)
                assert len(service.served) == 256
                assert not sending.done(), "TCP must hold the sender back"
                assert (await bystander.ask(Command(ECHO))).code == 0
                service.released.set()
                answers = await greedy.receive(100_000)
                await sending
                assert sorted(answer.opaque for answer in answers) == list(range(100_000))

    run(loop_name, main())


def test_a_reader_that_is_slow_gets_every_answer_in_order(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener, receive_buffer=65_536) as raw:
                requests = [Command(LARGE, n, fields={"size": "100000"}) for n in range(200)]
                await raw.send(encode_frames(requests))
                await asyncio.sleep(0.3)
                assert len(service.served) < 150, "answers that nobody reads must wait"
                (link,) = listener.links
                assert link._transport is not None
                assert link._transport.get_write_buffer_size() < 2 * MIB
                answers = await raw.receive(200)
                assert [answer.opaque for answer in answers] == list(range(200))

    run(loop_name, main())


def test_a_reader_that_stalls_is_cut(loop_name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener(stalled_write_timeout_ms=300) as listener:
            with await Raw.to(listener, receive_buffer=65_536) as raw:
                requests = [Command(LARGE, n, fields={"size": "400000"}) for n in range(50)]
                await raw.send(encode_frames(requests))
                await until(lambda: bool(listener.links))
                await until(lambda: not listener.links)

    run(loop_name, main())
    lines = [record for record in caplog.records if record.name == "skylark.net.link"]
    assert len(lines) == 1


def test_a_closing_link_with_a_deaf_peer_ends(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener(stalled_write_timeout_ms=300) as listener:
            with await Raw.to(listener, receive_buffer=65_536) as raw:
                requests = [Command(LARGE, n, fields={"size": "400000"}) for n in range(50)]
                await raw.send(encode_frames(requests))
                await until(lambda: bool(listener.links) and not listener.links[0].is_idle)
                listener.links[0].close()
                await until(lambda: not listener.links)

    run(loop_name, main())


@pytest.mark.parametrize("end", ["close", "reset", "half"])
def test_a_link_is_freed_without_the_collector(loop_name: str, end: str) -> None:
    async def main() -> None:
        service = Service()
        gc.collect()
        gc.disable()
        try:
            async with service.listener() as listener:
                watched = []
                for _ in range(5):
                    with await Raw.to(listener) as raw:
                        await raw.ask(Command(ECHO))
                        await raw.send(encode_frames([Command(LATER)]))
                        await until(lambda: service.served[-1] == LATER)
                        watched.append(weakref.ref(listener.links[-1]))
                        if end == "reset":
                            linger = b"\1\0\0\0\0\0\0\0"
                            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        elif end == "half":
                            raw.sock.shutdown(socket.SHUT_WR)
                            await until(lambda: not listener.links)
                    await until(lambda: not listener.links)
                await until(lambda: all(ref() is None for ref in watched), timeout_s=2)
        finally:
            gc.enable()

    run(loop_name, main())


def test_requests_before_a_half_close_are_answered(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener) as raw:
                await raw.send(encode_frames([Command(ECHO, n) for n in range(5)]))
                raw.sock.shutdown(socket.SHUT_WR)
                assert len(await raw.receive(5)) == 5
                await raw.wait_closed()

    run(loop_name, main())


class TestChannels:
    def test_one_connection_under_concurrent_first_calls(self, loop_name: str) -> None:
        async def main() -> None:
            service = Service()
            async with service.listener() as listener, channels() as peers:
                to = address_of(listener)
                await asyncio.gather(
                    *[peers.call(to, Command.request(ECHO), 5000) for _ in range(64)]
                )
                assert listener.accepted_total == 1

        run(loop_name, main())

    def test_both_sides_ask_each_other(self, loop_name: str) -> None:
        async def ask_back(request: AnyRequest, peer: Peer) -> Response:
            answer = await peer.call(Command.request(307, body=request.body), 5000)
            return Response(body=bytes(answer.body) + b"!")

        async def main() -> None:
            service = Service()
            service.handlers[34] = Handler(None, ask_back)
            board = Switchboard(
                {307: Handler(None, lambda request, _: Response(body=request.body))}
            )
            async with service.listener() as listener, channels(switchboard=board) as peers:
                calls = [
                    peers.call(address_of(listener), Command.request(34, body=b"%d" % n), 5000)
                    for n in range(50)
                ]
                answers = await asyncio.gather(*calls)
                assert [a.body for a in answers] == [b"%d!" % n for n in range(50)]

        run(loop_name, main())

    def test_nobody_listens(self, loop_name: str) -> None:
        async def main() -> None:
            sock = socket.create_server(("127.0.0.1", 0))
            port = sock.getsockname()[1]
            sock.close()
            async with channels() as peers:
                with pytest.raises(ConnectFailed) as caught:
                    await peers.call(f"127.0.0.1:{port}", Command.request(ECHO), 1000)
                assert caught.value.address == f"127.0.0.1:{port}"

        run(loop_name, main())

    def test_a_restarted_server_is_found_again(self, loop_name: str) -> None:
        async def main() -> None:
            service = Service()
            async with channels() as peers:
                async with service.listener() as listener:
                    to, port = address_of(listener), listener.address[1]
                    await peers.call(to, Command.request(ECHO), 5000)
                with pytest.raises((ConnectFailed, ConnectionLost)):
                    await peers.call(to, Command.request(ECHO), 5000)
                async with service.listener(listen_port=port):
                    async with asyncio.timeout(10):
                        while True:
                            try:
                                await peers.call(to, Command.request(ECHO), 5000)
                                break
                            except ConnectFailed:
                                await asyncio.sleep(0.02)

        run(loop_name, main())

    def test_a_late_answer_is_dropped(self, loop_name: str) -> None:
        async def main() -> None:
            service = Service()
            async with service.listener() as listener, channels() as peers:
                with pytest.raises(CallTimeout):
                    await peers.call(address_of(listener), Command.request(LATER), 50)
                service.released.set()
                answer = await peers.call(
                    address_of(listener), Command.request(ECHO, body=b"x"), 5000
                )
                assert answer.body == b"x"
                (link,) = peers.links
                assert link._connection.waiting == 0

        run(loop_name, main())

    def test_cancellation_at_each_await_leaves_nothing_behind(self, loop_name: str) -> None:
        async def main() -> None:
            service = Service()
            service.released.set()
            async with service.listener() as listener, channels() as peers:
                to = address_of(listener)
                for steps in range(60):
                    call = asyncio.create_task(peers.call(to, Command.request(LATER), 5000))
                    for _ in range(steps // 2):
                        await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.gather(call, return_exceptions=True)
                    if steps % 4 == 3:
                        peers.drop(to)
                await peers.call(to, Command.request(ECHO), 5000)
                assert [link._connection.waiting for link in peers.links] == [0]

        run(loop_name, main())  # It also checks that no task is left.


class TestEnding:
    def test_sigterm_lets_answers_under_way_go_out(self, loop_name: str) -> None:
        async def main() -> None:
            service = Service()
            loop = asyncio.get_running_loop()

            async def serve(ready: asyncio.Future[tuple[str, int]]) -> None:
                async with service.listener() as listener:
                    ready.set_result(listener.address)
                    await listener.serve()

            ready = loop.create_future()
            serving = asyncio.create_task(serve(ready))
            loop.add_signal_handler(signal.SIGTERM, serving.cancel)
            host, port = await ready
            async with channels() as peers:
                calls = [
                    asyncio.create_task(peers.call(f"{host}:{port}", Command.request(LATER), 5000))
                    for _ in range(100)
                ]
                await until(lambda: len(service.served) == 100)
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                assert not serving.done()
                with pytest.raises(ConnectFailed):
                    async with channels() as others:
                        await others.call(f"{host}:{port}", Command.request(ECHO), 1000)
                service.released.set()
                answers = await asyncio.gather(*calls)
                assert [answer.code for answer in answers] == [0] * 100
            with pytest.raises(asyncio.CancelledError):
                await serving
            loop.remove_signal_handler(signal.SIGTERM)

        run(loop_name, main())

    @pytest.mark.parametrize("waits", [False, True])
    def test_a_broken_assertion_ends_the_listener(self, loop_name: str, waits: bool) -> None:
        def now(request: AnyRequest, peer: Peer) -> Response:
            raise AssertionError("the log went back")

        async def later(request: AnyRequest, peer: Peer) -> Response:
            await asyncio.sleep(0.01)
            raise AssertionError("the log went back")

        async def main() -> None:
            service = Service()
            service.handlers[1] = Handler(None, later if waits else now)
            with pytest.raises(AssertionError, match="the log went back"):  # noqa: PT012
                async with service.listener() as listener:
                    with await Raw.to(listener) as raw:
                        await raw.send(encode_frames([Command(1)]))
                        await listener.serve()
            assert listener.links == []

        run(loop_name, main())

    def test_a_port_that_is_taken_is_an_os_error(self, loop_name: str) -> None:
        async def main() -> None:
            service = Service()
            async with service.listener() as listener:
                with pytest.raises(OSError, match="in use"):
                    await service.listener(listen_port=listener.address[1]).__aenter__()

        run(loop_name, main())


def test_port_0_on_all_interfaces_is_one_port(loop_name: str) -> None:
    async def main() -> None:
        network = AsyncioNetwork()
        server = await network.listen(asyncio.Protocol, "", 0)
        assert len({sock.getsockname()[1] for sock in server._server.sockets}) == 1  # type: ignore[attr-defined]
        assert NetConfig().listen_host == ""
        server.close()
        await server.wait_closed()

    run(loop_name, main())
