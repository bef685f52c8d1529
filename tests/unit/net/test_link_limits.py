"""What a peer may cost: time, memory, requests under way. On virtual time."""

from __future__ import annotations

import asyncio

import pytest
from sim_peers import ECHO, LARGE, LATER, NEVER, RawPeer, World

from skylark.net import Handler, Listener
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.frame import encode_frames

HEARTBEAT = Command(code=ECHO)
MIB = 1024 * 1024


def large(size: int, opaque: int = 0) -> Command:
    """A small request for a large answer."""
    return Command(code=LARGE, opaque=opaque, fields={"size": str(size)})


def closing_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "skylark.net.link"]


async def assert_undisturbed(listener: Listener, bystander: RawPeer) -> None:
    """A peer that behaved is still there, still served, and the only one left."""
    count = len(bystander.answers)
    bystander.send(HEARTBEAT)
    await bystander.wait_answers(count + 1)
    assert len(listener.links) == 1
    assert listener.held_bytes == 0


class TestSilence:
    def test_a_peer_that_never_speaks_is_closed_after_ten_seconds(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                bystander, silent = await world.peer(), await world.peer()
                bystander.send(HEARTBEAT)
                await silent.lost
                assert 10 <= silent.lost_at <= 10.01
                await assert_undisturbed(listener, bystander)

        world.run(main)
        (line,) = closing_lines(caplog)
        assert "no whole frame within 10000 ms" in line

    def test_one_byte_every_second_does_not_make_a_first_frame(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                bystander, slow = await world.peer(), await world.peer()
                bystander.send(HEARTBEAT)
                for byte in encode_frames([HEARTBEAT]):
                    if slow.lost_at is not None:
                        break
                    slow.transport.write(bytes([byte]))
                    await asyncio.sleep(1)
                assert slow.lost_at is not None
                assert 10 <= slow.lost_at <= 10.01
                await assert_undisturbed(listener, bystander)

        world.run(main)

    def test_one_byte_every_ten_seconds_is_no_sign_of_life_later_either(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener():
                slow = await world.peer()
                slow.send(HEARTBEAT)
                await slow.wait_answers(1)
                for byte in encode_frames([HEARTBEAT]):
                    slow.transport.write(bytes([byte]))
                    await asyncio.sleep(10)
                    if slow.lost_at is not None:
                        break
                assert 120 <= slow.lost_at <= 120.1

        world.run(main)
        (line,) = closing_lines(caplog)
        assert "idle for 120 s" in line

    def test_a_header_and_then_nothing_is_closed_at_the_idle_limit(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                peer.send(HEARTBEAT)
                await peer.wait_answers(1)
                peer.transport.write(encode_frames([Command(code=ECHO, body=bytes(1000))])[:200])
                await asyncio.sleep(1)
                assert listener.held_bytes == 200
                await peer.lost
                assert 120 <= peer.lost_at <= 120.1
                assert listener.held_bytes == 0

        world.run(main)

    def test_a_peer_that_speaks_every_minute_stays(self, world: World) -> None:
        async def main() -> None:
            async with world.listener():
                peer = await world.peer()
                for _ in range(10):
                    peer.send(HEARTBEAT)
                    await asyncio.sleep(60)
                assert peer.lost_at is None
                assert len(peer.answers) == 10

        world.run(main)

    def test_a_peer_that_waits_for_an_answer_is_not_idle(self, world: World) -> None:
        async def main() -> None:
            async with world.listener():
                peer = await world.peer()
                peer.send(Command(code=LATER))
                await asyncio.sleep(500)
                assert peer.lost_at is None
                world.released.set()
                await peer.wait_answers(1)
                answered_at = world.loop.time()
                await peer.lost
                assert peer.lost_at == pytest.approx(answered_at + 120, abs=0.1)

        world.run(main)

    def test_a_machine_that_vanished_is_forgotten_at_the_idle_limit(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                peer.send(HEARTBEAT)
                await peer.wait_answers(1)
                world.client.crash()
                await asyncio.sleep(130)
                assert listener.links == []
                assert len(world.disconnects) == 1

        world.run(main)


class TestSlowReaders:
    def test_a_peer_that_never_reads_is_cut_after_thirty_seconds(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                bystander, deaf = await world.peer(), await world.peer()
                bystander.send(HEARTBEAT)
                deaf.transport.pause_reading()
                deaf.send(*[large(100_000) for _ in range(100)])
                await asyncio.sleep(1)
                assert len(world.served) < 30, "answers nobody reads must not be made"
                (link,) = [link for link in listener.links if not link.is_idle]
                await asyncio.sleep(28)
                assert not link.is_closed
                await asyncio.sleep(2)
                assert link.is_closed
                await assert_undisturbed(listener, bystander)

        world.run(main)
        (line,) = closing_lines(caplog)
        assert "does not read" in line

    def test_a_slow_peer_that_does_read_gets_everything(self, world: World) -> None:
        async def main() -> None:
            async with world.listener():
                peer = await world.peer()
                peer.transport.pause_reading()
                peer.send(
                    *[Command(code=LARGE, opaque=n, fields={"size": "100000"}) for n in range(80)]
                )
                while len(peer.answers) < 80:
                    # 256 KiB in 20 s: slow, but it moves.
                    peer.transport.resume_reading()
                    await asyncio.sleep(0.001)
                    peer.transport.pause_reading()
                    await asyncio.sleep(20)
                    assert peer.lost_at is None
                assert [answer.opaque for answer in peer.answers] == list(range(80))

        world.run(main)

    def test_a_closing_link_does_not_wait_for_ever_for_a_peer_that_does_not_read(
        self, world: World
    ) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                deaf = await world.peer()
                deaf.transport.pause_reading()
                deaf.send(*[large(400_000) for _ in range(5)])
                await asyncio.sleep(1)
                (link,) = listener.links
                link.close()
                await asyncio.sleep(31)
                assert listener.links == []

        world.run(main)

    def test_small_requests_for_large_answers_are_answered_a_few_at_a_time(
        self, world: World
    ) -> None:
        async def main() -> None:
            async with world.listener():
                peer = await world.peer()
                peer.transport.pause_reading()
                requests = [
                    Command(code=LARGE, opaque=n, fields={"size": "65536"}) for n in range(1000)
                ]
                peer.send(*requests)
                await asyncio.sleep(0.5)
                # One read brings many requests; only what fits the buffers is answered.
                assert len(world.served) <= 20
                peer.transport.resume_reading()
                answers = await peer.wait_answers(1000)
                assert [answer.opaque for answer in answers] == list(range(1000))

        world.run(main)

    def test_answers_that_become_ready_for_a_slow_peer_wait_their_turn(self, world: World) -> None:
        async def large_later(request: AnyRequest, peer: Peer) -> Response:
            await world.released.wait()
            return Response(body=bytes(200_000))

        async def main() -> None:
            world.handlers[LATER] = Handler(None, large_later)
            async with world.listener():
                peer = await world.peer()
                peer.transport.pause_reading()
                peer.send(*[Command(code=LATER, opaque=n) for n in range(40)])
                await asyncio.sleep(1)
                world.released.set()
                await asyncio.sleep(10)
                assert peer.lost_at is None, "8 MB at once is no reason to cut a consumer"
                peer.transport.resume_reading()
                answers = await peer.wait_answers(40)
                assert sorted(answer.opaque for answer in answers) == list(range(40))

        world.run(main)

    def test_notifications_nobody_reads_end_at_the_cap(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                peer.send(HEARTBEAT)
                await peer.wait_answers(1)
                peer.transport.pause_reading()
                (link,) = listener.links
                sent = 0
                while not link.is_closed:
                    link.notify(Command.request(40, body=bytes(10_000), oneway=True))
                    sent += 10_000
                    await asyncio.sleep(0)
                assert sent < 2 * MIB

        world.run(main)
        (line,) = closing_lines(caplog)
        assert "does not read" in line


class TestInFlight:
    def test_reading_stops_at_256_requests_under_way(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                bystander, greedy = await world.peer(), await world.peer()
                frame = encode_frames([Command(code=LATER, body=bytes(900))])
                greedy.transport.write(frame * 5_000)  # 5 MB: far more than one read.
                await asyncio.sleep(5)
                assert world.served.count(LATER) == 256
                unsent = greedy.transport.get_write_buffer_size()
                assert unsent > 3 * MIB, "it has been read although nothing is served"
                bystander.send(HEARTBEAT)
                await bystander.wait_answers(1)
                world.released.set()
                await greedy.wait_answers(5_000)
                assert greedy.transport.get_write_buffer_size() == 0
                assert all(link.is_idle for link in listener.links)

        world.run(main)

    def test_every_answer_carries_the_number_of_its_request(self, world: World) -> None:
        async def main() -> None:
            async with world.listener():
                peer = await world.peer()
                codes = [LATER if n % 3 else ECHO for n in range(2_000)]
                peer.send(*[Command(code, n, body=str(n).encode()) for n, code in enumerate(codes)])
                world.loop.call_later(1, world.released.set)
                answers = await peer.wait_answers(2_000)
                assert {a.opaque: bytes(a.body) for a in answers} == {
                    n: str(n).encode() for n in range(2_000)
                }

        world.run(main)

    def test_a_lost_connection_ends_its_requests_and_nobody_elses(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                stays, goes = await world.peer(), await world.peer()
                stays.send(Command(code=LATER))
                goes.send(*[Command(code=LATER) for _ in range(200)])
                await asyncio.sleep(1)
                goes.transport.abort()
                await asyncio.sleep(1)
                assert len(world.cancelled) == 200
                world.released.set()
                await stays.wait_answers(1)
                assert len(listener.links) == 1

        world.run(main)

    def test_a_oneway_request_outlives_its_connection(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                peer.send(Command(code=LATER, flag=2))
                await asyncio.sleep(1)
                peer.transport.close()
                await asyncio.sleep(1)
                assert listener.links == []
                assert world.cancelled == []
                world.loop.call_later(1, world.released.set)

        world.run(main)
        assert world.cancelled == []

    def test_a_request_cut_off_before_it_began_leaves_nothing_behind(self, world: World) -> None:
        # Request and end of the connection in one turn of the loop: the handler never starts.
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                await asyncio.sleep(0.1)
                (link,) = listener.links
                link.data_received(encode_frames([Command(code=LATER), Command(code=NEVER)]))
                link.cut()
                link.cancel_requests()
                await asyncio.sleep(1)
                assert peer.lost_at is not None
            assert world.served == []

        world.run(main)  # A coroutine that was never awaited is a warning, and so an error.

    def test_oneways_are_not_answered(self, world: World) -> None:
        async def main() -> None:
            world.released.set()
            async with world.listener():
                peer = await world.peer()
                peer.send(
                    Command(code=ECHO, flag=2),
                    Command(code=LATER, flag=2),
                    Command(code=9999, flag=2),
                    Command(code=ECHO, opaque=7),
                )
                await asyncio.sleep(1)
                assert [answer.opaque for answer in peer.answers] == [7]

        world.run(main)


class TestConnections:
    def test_connections_beyond_the_cap_are_refused_and_nobody_else_notices(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener(connections_max=3) as listener:
                first = [await world.peer() for _ in range(3)]
                for peer in first:
                    peer.send(HEARTBEAT)
                late = await world.peer()
                await late.lost
                assert [peer.lost_at for peer in first] == [None] * 3
                assert (listener.accepted_total, listener.refused_total) == (3, 1)
                first[0].transport.close()
                await asyncio.sleep(1)
                again = await world.peer()
                again.send(HEARTBEAT)
                await again.wait_answers(1)

        world.run(main)
        assert len(closing_lines(caplog)) == 1
        assert len(world.connects) == len(world.disconnects) == 4, "one of each for each accepted"

    def test_unfinished_frames_share_one_budget_and_the_largest_goes(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            big = encode_frames([Command(code=ECHO, body=bytes(MIB))])
            async with world.listener(held_bytes_max=2 * MIB) as listener:
                small, *hoarders = [await world.peer() for _ in range(4)]
                small.send(HEARTBEAT)
                for size, hoarder in zip((700_000, 900_000, 600_000), hoarders, strict=True):
                    hoarder.send(HEARTBEAT)
                    hoarder.transport.write(big[:size])
                    await asyncio.sleep(0.1)
                assert [peer.lost_at is None for peer in hoarders] == [True, False, True]
                assert listener.held_bytes == 1_300_000
                frame = encode_frames([Command(code=ECHO, body=bytes(200_000))])
                small.transport.write(frame[:100])
                await asyncio.sleep(0.1)
                small.transport.write(frame[100:])
                await small.wait_answers(2)
                for hoarder in hoarders:
                    hoarder.transport.abort()
                await asyncio.sleep(1)
                assert listener.held_bytes == 0

        world.run(main)
        (line,) = closing_lines(caplog)
        assert "raise heldBytesMax" in line

    def test_a_refused_frame_gives_its_share_of_the_budget_back(self, world: World) -> None:
        async def main() -> None:
            async with world.listener() as listener:
                peer = await world.peer()
                frame = encode_frames([Command(code=ECHO, body=bytes(1000))])
                peer.transport.write(frame[:500])
                await asyncio.sleep(0.1)
                assert listener.held_bytes == 500
                peer.transport.write(frame[500:] + bytes(8))
                await peer.lost
                await asyncio.sleep(1)
                assert listener.held_bytes == 0
                assert listener.links == []

        world.run(main)


class TestTlsTimes:
    def test_a_hello_where_no_certificate_is_set_is_closed(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with world.listener():
                peer = await world.peer()
                peer.transport.write(bytes.fromhex("16030100a5010000a10303") + bytes(100))
                await peer.lost
                assert peer.lost_at < 1

        world.run(main)
        (line,) = closing_lines(caplog)
        assert "TLS hello" in line
