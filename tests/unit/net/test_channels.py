"""Channels: one connection for each peer, whatever becomes of it. On virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from sim_peers import ECHO, LATER, NEVER, PORT, RawPeer, World

from skylark.errors import CallTimeout, ConnectFailed, ConnectionLost, LocalProtocolError
from skylark.net import Channels, Handler, Listener, NetConfig, Switchboard
from skylark.net.channel import split_address
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response


def request(code: int = ECHO, body: bytes = b"") -> Command:
    return Command.request(code, body=body)


async def settle() -> None:
    """Let a few round trips pass."""
    await asyncio.sleep(0.01)


class TestConnecting:
    def test_concurrent_first_calls_share_one_connection(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener, world.channels() as channels:
                calls = [
                    channels.call(world.address, request(body=str(n).encode()), 1000)
                    for n in range(50)
                ]
                answers = await asyncio.gather(*calls)
                assert [answer.body for answer in answers] == [str(n).encode() for n in range(50)]
                assert listener.accepted_total == 1

        world.run(main)

    def test_nobody_there_is_an_error_at_once_and_then_tries_are_spaced_out(
        self, world: World
    ) -> None:
        async def main() -> None:
            attempts: list[float] = []
            connect = world.client.connect

            async def counting(*args: object) -> asyncio.Transport:
                attempts.append(world.loop.time())
                return await connect(*args)  # type: ignore[arg-type]

            world.client.connect = counting  # type: ignore[method-assign,assignment]
            async with world.channels() as channels:
                with pytest.raises(ConnectFailed):
                    await channels.call(world.address, request(), 1000)
                while world.loop.time() < 60:
                    with pytest.raises(ConnectFailed):
                        await channels.call(world.address, request(), 1000)
                    await asyncio.sleep(0.01)
            gaps = [after - before for before, after in itertools.pairwise(attempts)]
            assert 0.05 <= gaps[0] <= 0.2
            assert max(gaps) <= 2.1
            assert min(gaps[6:]) >= 1.0, "the spacing grows to 2 s and stays there"

        world.run(main)

    def test_a_call_during_the_pause_says_when_the_next_try_is(self, world: World) -> None:
        async def main() -> None:
            async with world.channels() as channels:
                for _ in range(2):
                    with pytest.raises(ConnectFailed) as caught:
                        await channels.call(world.address, request(), 1000)
                assert "the next try is in" in str(caught.value)

        world.run(main)

    def test_a_server_that_drops_connections_is_not_hammered(self, world: World) -> None:
        class Dropping(asyncio.Protocol):
            count = 0

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                Dropping.count += 1
                assert isinstance(transport, asyncio.Transport)
                transport.abort()

        async def main() -> None:
            server = await world.server.listen(Dropping, "", PORT)
            async with world.channels() as channels:
                while world.loop.time() < 30:
                    with pytest.raises((ConnectFailed, ConnectionLost)):
                        await channels.call(world.address, request(), 1000)
                    await asyncio.sleep(0.001)
            server.close()
            assert Dropping.count < 40

        world.run(main)

    def test_a_server_that_comes_back_is_found_again(self, world: World) -> None:
        async def main() -> None:
            async with world.channels() as channels:
                async with world.listener():
                    await channels.call(world.address, request(), 1000)
                await settle()
                with pytest.raises((ConnectFailed, ConnectionLost)):
                    await channels.call(world.address, request(), 1000)
                await asyncio.sleep(3)
                async with world.listener():
                    answer = await channels.call(world.address, request(body=b"again"), 1000)
                    assert answer.body == b"again"

        world.run(main)

    def test_a_lost_connection_is_replaced_at_the_next_call(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener, world.channels() as channels:
                await channels.call(world.address, request(), 1000)
                world.network.reset(world.client)
                await settle()
                await channels.call(world.address, request(), 1000)
                assert listener.accepted_total == 2
                assert len(listener.links) == 1

        world.run(main)

    def test_a_machine_without_an_answer_fails_after_three_seconds(self, world: World) -> None:
        async def main() -> None:
            world.network.partition(world.client, world.server)
            async with world.channels() as channels:
                with pytest.raises(ConnectFailed, match="no answer in 3000 ms"):
                    await channels.call(world.address, request(), 60_000)
                assert world.loop.time() == pytest.approx(3, abs=0.1)

        world.run(main)

    def test_one_caller_who_gives_up_does_not_end_it_for_the_others(self, world: World) -> None:
        async def main() -> None:
            async with world.channels() as channels, world.listener():
                first = asyncio.create_task(channels.call(world.address, request(), 1000))
                second = asyncio.create_task(channels.call(world.address, request(), 1000))
                await asyncio.sleep(0)
                first.cancel()
                assert (await second).code == ResponseCode.SUCCESS
                with pytest.raises(asyncio.CancelledError):
                    await first

        world.run(main)

    def test_closing_while_connecting_is_an_error_of_the_call_not_a_cancellation(
        self, world: World
    ) -> None:
        async def main() -> None:
            world.network.partition(world.client, world.server)
            async with world.channels() as channels:
                call = asyncio.create_task(channels.call(world.address, request(), 1000))
                await asyncio.sleep(0.1)
                channels.drop(world.address)
                with pytest.raises(ConnectFailed, match="closed"):
                    await call

        world.run(main)

    def test_calls_after_the_end_fail(self, world: World) -> None:
        async def main() -> None:
            channels = world.channels()
            async with world.listener():
                async with channels:
                    await channels.call(world.address, request(), 1000)
                with pytest.raises(ConnectFailed, match="shutting down"):
                    await channels.call(world.address, request(), 1000)

        world.run(main)

    @pytest.mark.parametrize("address", ["", "host", ":1", "h:", "h:x", "h:99999", "h:-1", "h:²"])
    def test_what_is_no_address_is_refused(self, address: str) -> None:
        with pytest.raises(ConnectFailed, match="host:port"):
            split_address(address)

    def test_an_address_is_split_at_the_last_colon(self) -> None:
        assert split_address("10.0.0.1:9876") == ("10.0.0.1", 9876)
        assert split_address("[fe80::1]:10911") == ("fe80::1", 10911)
        assert split_address("fe80::1:10911") == ("fe80::1", 10911)


class TestCalls:
    def test_a_call_that_times_out_drops_its_late_answer(self, world: World) -> None:
        async def main() -> None:
            async with world.listener(), world.channels() as channels:
                with pytest.raises(CallTimeout) as caught:
                    await channels.call(world.address, request(LATER), 500)
                assert caught.value.timeout_ms == 500
                assert world.loop.time() == pytest.approx(0.5, abs=0.05)
                (link,) = channels.links
                assert link._connection.waiting == 0
                world.released.set()
                await settle()
                assert link._connection.stray_answers == 1
                answer = await channels.call(world.address, request(body=b"x"), 500)
                assert answer.body == b"x"

        world.run(main)

    def test_a_peer_that_is_heard_stays_connected_after_a_timeout(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener, world.channels() as channels:
                slow = asyncio.create_task(channels.call(world.address, request(NEVER), 3000))
                for _ in range(4):
                    await channels.call(world.address, request(), 1000)
                    await asyncio.sleep(1)
                with pytest.raises(CallTimeout):
                    await slow
                await channels.call(world.address, request(), 1000)
                assert listener.accepted_total == 1

        world.run(main)

    def test_a_machine_that_vanished_is_noticed_by_its_silence(self, world: World) -> None:
        async def main() -> None:
            async with world.channels() as channels:
                listener = await world.listener().__aenter__()
                await channels.call(world.address, request(), 1000)
                world.network.partition(world.client, world.server)
                other = asyncio.create_task(channels.call(world.address, request(), 60_000))
                with pytest.raises(CallTimeout):
                    await channels.call(world.address, request(), 3000)
                with pytest.raises(ConnectionLost, match="not a word"):
                    await other  # It need not wait a minute.
                assert not channels.to(world.address).is_connected
                world.network.heal()
                await asyncio.sleep(5)
                await channels.call(world.address, request(), 1000)
                await listener.__aexit__(None, None, None)

        world.run(main)

    def test_a_call_under_way_when_the_connection_ends_is_lost(self, world: World) -> None:
        async def main() -> None:
            async with world.listener(), world.channels() as channels:
                calls = [
                    asyncio.create_task(channels.call(world.address, request(NEVER), 60_000))
                    for _ in range(3)
                ]
                await settle()
                world.network.reset(world.client)
                errors = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(error) for error in errors] == [ConnectionLost] * 3
                assert len({id(error) for error in errors}) == 3, "each caller gets its own"

        world.run(main)

    def test_closing_the_channels_ends_the_calls_under_way(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                async with world.channels() as channels:
                    call = asyncio.create_task(channels.call(world.address, request(NEVER), 60_000))
                    await settle()
                with pytest.raises(ConnectionLost):
                    await call
                assert channels.links == []
                await settle()
                assert listener.links == []

        world.run(main)

    def test_cancellation_at_each_await_leaves_no_waiter_and_no_task(self, world: World) -> None:
        async def main() -> None:
            async with world.listener(), world.channels() as channels:
                world.released.set()
                cancelled = finished = 0
                for steps in range(40):
                    call = asyncio.create_task(channels.call(world.address, request(LATER), 60_000))
                    for _ in range(steps):
                        await asyncio.sleep(0.00002)
                    if call.cancel():
                        cancelled += 1
                    else:
                        finished += 1
                    await asyncio.gather(call, return_exceptions=True)
                    if steps % 5 == 0:
                        channels.drop(world.address)  # So that connecting is cut as well.
                await asyncio.sleep(1)
                assert cancelled >= 10
                assert finished >= 3
                for link in channels.links:
                    assert link._connection.waiting == 0
                assert world.loop.tasks() == [asyncio.current_task()]
                await channels.call(world.address, request(), 1000)

        world.run(main)

    def test_a_request_that_cannot_be_written_is_the_callers_mistake(self, world: World) -> None:
        async def main() -> None:
            async with world.listener(), world.channels() as channels:
                bad = Command.request(ECHO, {"a": "\ud800"})
                with pytest.raises(LocalProtocolError):
                    await channels.call(world.address, bad, 1000)
                await channels.call(world.address, request(), 1000)
                assert channels.links[0]._connection.waiting == 0

        world.run(main)

    def test_one_command_to_many_peers_pairs_every_answer(self, world: World) -> None:
        async def main() -> None:
            others = [world.network.host(f"10.0.1.{n}") for n in range(5)]
            board = Switchboard(world.handlers)
            listeners = [Listener(NetConfig(listen_port=PORT), board, host) for host in others]
            async with world.channels() as channels:
                for number, listener in enumerate(listeners):
                    await listener.__aenter__()
                    for _ in range(number):  # So that every peer is at another number.
                        await channels.call(f"10.0.1.{number}:{PORT}", request(), 1000)
                heartbeat = request(body=b"one for all")
                calls = [channels.call(f"10.0.1.{n}:{PORT}", heartbeat, 1000) for n in range(5)]
                answers = await asyncio.gather(*calls)
                assert [answer.body for answer in answers] == [b"one for all"] * 5
                assert [link._connection.waiting for link in channels.links] == [0] * 5
            for listener in listeners:
                await listener.__aexit__(None, None, None)

        world.run(main)

    def test_large_requests_and_large_answers_do_not_block_each_other(self, world: World) -> None:
        # If both ends stopped reading while their own writes are stuck, neither would go on.
        async def main() -> None:
            async with world.listener(), world.channels() as channels:
                body = bytes(2 * 1024 * 1024)
                calls = [channels.call(world.address, request(body=body), 20_000) for _ in range(8)]
                answers = await asyncio.gather(*calls)
                assert [len(answer.body) for answer in answers] == [len(body)] * 8
                assert world.loop.time() < 5

        world.run(main)

    def test_large_requests_both_ways_at_once_do_not_block_each_other(self, world: World) -> None:
        body = bytes(2 * 1024 * 1024)

        async def ask_back(request: AnyRequest, peer: Peer) -> Response:
            answer = await peer.call(Command.request(307, body=body), 20_000)
            return Response(body=answer.body)

        async def main() -> None:
            world.handlers[34] = Handler(None, ask_back)
            board = Switchboard(
                {307: Handler(None, lambda request, _: Response(body=request.body))}
            )
            async with world.listener(), world.channels(switchboard=board) as channels:
                calls = [channels.call(world.address, request(34, body), 20_000) for _ in range(6)]
                answers = await asyncio.gather(*calls)
                assert [len(answer.body) for answer in answers] == [len(body)] * 6
                assert world.loop.time() < 5

        world.run(main)

    def test_oneways_go_out_and_wait_for_nothing(self, world: World) -> None:
        async def main() -> None:
            async with world.listener(), world.channels() as channels:
                for _ in range(3):
                    await channels.send_oneway(world.address, Command.request(ECHO, oneway=True))
                await settle()
                assert world.served == [ECHO] * 3
                assert channels.links[0]._connection.stray_answers == 0

        world.run(main)


class TestBothWays:
    def test_the_server_calls_back_over_the_same_connection(self, world: World) -> None:
        seen: list[str] = []

        async def ask_back(request: AnyRequest, peer: Peer) -> Response:
            answer = await peer.call(Command.request(307, body=b"who are you"), 1000)
            peer.notify(Command.request(40, oneway=True))
            return Response(body=bytes(answer.body) + b", served")

        def who(request: AnyRequest, peer: Peer) -> Response:
            seen.append("asked")
            return Response(body=b"a consumer")

        def notified(request: AnyRequest, peer: Peer) -> None:
            seen.append("notified")

        async def main() -> None:
            world.handlers[34] = Handler(None, ask_back)
            board = Switchboard({307: Handler(None, who), 40: Handler(None, notified)})
            async with world.listener() as listener, world.channels(switchboard=board) as channels:
                answer = await channels.call(world.address, Command.request(34), 1000)
                assert answer.body == b"a consumer, served"
                await settle()
                assert seen == ["asked", "notified"]
                assert listener.accepted_total == 1

        world.run(main)

    def test_a_client_without_handlers_answers_code_3(self, world: World) -> None:
        codes: list[int] = []

        async def ask_back(request: AnyRequest, peer: Peer) -> Response:
            codes.append((await peer.call(Command.request(307), 1000)).code)
            return Response()

        async def main() -> None:
            world.handlers[34] = Handler(None, ask_back)
            async with world.listener(), world.channels() as channels:
                await channels.call(world.address, Command.request(34), 1000)
                assert codes == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]

        world.run(main)

    def test_a_broken_assertion_in_a_client_handler_ends_the_channels(self, world: World) -> None:
        def broken(request: AnyRequest, peer: Peer) -> Response:
            raise AssertionError("offsets went back")

        async def ask_back(request: AnyRequest, peer: Peer) -> Response:
            peer.notify(Command.request(40, oneway=True))
            return Response()

        async def main() -> None:
            world.handlers[34] = Handler(None, ask_back)
            board = Switchboard({40: Handler(None, broken)})
            async with world.listener():
                with pytest.raises(AssertionError, match="offsets went back"):  # noqa: PT012
                    async with world.channels(switchboard=board) as channels:
                        await channels.call(world.address, Command.request(34), 1000)
                        await asyncio.sleep(60)
                assert world.loop.time() < 1

        world.run(main)

    def test_an_error_of_the_body_comes_out_as_it_is(self, world: World) -> None:
        async def main() -> None:
            async with world.listener():
                with pytest.raises(KeyError, match="mine"):  # noqa: PT012
                    async with world.channels() as channels:
                        await channels.call(world.address, request(), 1000)
                        raise KeyError("mine")

        world.run(main)


def test_an_idle_channel_is_closed_and_opened_again(world: World) -> None:
    async def main() -> None:
        async with world.listener() as listener, world.channels() as channels:
            await channels.call(world.address, request(), 1000)
            await asyncio.sleep(125)
            assert channels.links == []
            await channels.call(world.address, request(), 1000)
            assert listener.accepted_total == 2

    world.run(main)


def test_a_server_that_speaks_nonsense_is_left(world: World) -> None:
    class Nonsense(RawPeer):
        def data_received(self, data: bytes) -> None:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main() -> None:
        server = await world.server.listen(Nonsense, "", PORT)
        async with Channels(world.client, world.clock, random.Random(1)) as channels:
            with pytest.raises(ConnectionLost, match="frame length"):
                await channels.call(world.address, request(), 1000)
        server.close()

    world.run(main)
