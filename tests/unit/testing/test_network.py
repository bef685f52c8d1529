"""SimNetwork and SimTransport: what TCP promises, and every fault in it."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.errors import ConnectFailed
from skylark.testing import LinkConfig, SimHost, SimLoop, SimNetwork, SimTransport, Trace

CALM = LinkConfig(delay_ms=1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)


class Peer(asyncio.Protocol):
    """Records what a connection does; `on_data` may answer."""

    def __init__(self, on_data: Callable[["Peer", bytes], None] | None = None) -> None:
        self.transport: SimTransport
        self.reads: list[bytes] = []
        self.events: list[str] = []
        self.lost_at_ms: float | None = None
        self.error: BaseException | None = None
        self.keep_open = False
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()

    @property
    def received(self) -> bytes:
        return b"".join(self.reads)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert data
        assert "lost" not in self.events
        assert self._loop is asyncio.get_running_loop()
        self.reads.append(data)
        if self._on_data is not None:
            self._on_data(self, data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def connection_lost(self, exc: BaseException | None) -> None:
        assert self._loop is asyncio.get_running_loop()
        self.events.append("lost")
        self.error = exc
        self.lost_at_ms = now_ms()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


def now_ms() -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop.now_ms


def echo(peer: Peer, data: bytes) -> None:
    peer.transport.write(data)


class Pair:
    """A client on one machine, connected to a server on another."""

    def __init__(self, network: SimNetwork, client: Peer, server: Peer) -> None:
        self.network = network
        self.client = client
        self.server = server

    @property
    def client_host(self) -> SimHost:
        return self.network.host("10.0.0.2")

    @property
    def server_host(self) -> SimHost:
        return self.network.host("10.0.0.1")


async def connect(
    network: SimNetwork, on_data: Callable[[Peer, bytes], None] | None = None
) -> Pair:
    accepted: list[Peer] = []

    def accept() -> Peer:
        accepted.append(Peer(on_data))
        return accepted[-1]

    await network.host("10.0.0.1").listen(accept, "", 9876)
    client = Peer()
    await network.host("10.0.0.2").connect(lambda: client, "10.0.0.1", 9876)
    return Pair(network, client, accepted[0])


def simulate(
    main: Callable[[SimNetwork], Coroutine[Any, Any, None]],
    config: LinkConfig = CALM,
    seed: int = 1,
    until_ms: int = 10_000_000,
) -> Trace:
    trace = Trace()
    with SimLoop(shuffle=random.Random(seed)) as loop:
        network = SimNetwork(loop, random.Random(seed), config=config, trace=trace)
        loop.run(main(network), until_ms=until_ms)
    return trace


# Connecting


def test_both_ends_know_their_addresses_and_ports_are_given_out_in_order() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        assert pair.client.transport.get_extra_info("peername") == ("10.0.0.1", 9876)
        assert pair.client.transport.get_extra_info("sockname") == ("10.0.0.2", 32_768)
        assert pair.server.transport.get_extra_info("peername") == ("10.0.0.2", 32_768)
        assert pair.server.transport.get_extra_info("sockname") == ("10.0.0.1", 9876)
        second = Peer()
        await pair.client_host.connect(lambda: second, "10.0.0.1", 9876)
        assert second.transport.get_extra_info("sockname") == ("10.0.0.2", 32_769)

    simulate(main)


def test_connecting_takes_a_round_trip() -> None:
    async def main(network: SimNetwork) -> None:
        await connect(network)
        assert now_ms() == 2

    simulate(main)


def test_port_0_picks_a_free_port_that_can_be_connected_to() -> None:
    async def main(network: SimNetwork) -> None:
        host = network.host("10.0.0.1")
        first = await host.listen(Peer, "", 0)
        second = await host.listen(Peer, "0.0.0.0", 0)
        assert first.address != second.address
        await network.host("10.0.0.2").connect(Peer, *second.address)
        await host.connect(Peer, "127.0.0.1", first.address[1])

    simulate(main)


def test_a_machine_is_found_by_its_name() -> None:
    async def main(network: SimNetwork) -> None:
        await network.host("10.0.0.1", "ns-a").listen(Peer, "ns-a", 9876)
        await network.host("10.0.0.2").connect(Peer, "ns-a", 9876)
        with pytest.raises(ConnectFailed, match="no such machine"):
            await network.host("10.0.0.2").connect(Peer, "ns-b", 9876)

    simulate(main)


def test_a_taken_port_and_a_foreign_address_are_refused_as_the_system_would() -> None:
    async def main(network: SimNetwork) -> None:
        host = network.host("10.0.0.1")
        server = await host.listen(Peer, "", 9876)
        with pytest.raises(OSError, match="in use"):
            await host.listen(Peer, "", 9876)
        with pytest.raises(OSError, match="not an address"):
            await host.listen(Peer, "10.0.0.9", 9877)
        server.close()
        await server.wait_closed()
        await host.listen(Peer, "", 9876)

    simulate(main)


def test_connecting_where_nothing_listens_is_refused_after_a_round_trip() -> None:
    async def main(network: SimNetwork) -> None:
        network.host("10.0.0.1")
        with pytest.raises(ConnectFailed, match="refused") as caught:
            await network.host("10.0.0.2").connect(Peer, "10.0.0.1", 9876)
        assert caught.value.address == "10.0.0.1:9876"
        assert now_ms() == 2

    simulate(main)


def test_a_closed_listener_keeps_its_connections() -> None:
    async def main(network: SimNetwork) -> None:
        server = await network.host("10.0.0.1").listen(lambda: Peer(echo), "", 9876)
        client = Peer()
        await network.host("10.0.0.2").connect(lambda: client, "10.0.0.1", 9876)
        server.close()
        client.transport.write(b"still there")
        await asyncio.sleep(1)
        assert client.received == b"still there"
        with pytest.raises(ConnectFailed):
            await network.host("10.0.0.2").connect(Peer, "10.0.0.1", 9876)

    simulate(main)


def test_connecting_into_a_black_hole_hangs_until_the_callers_patience_ends() -> None:
    async def main(network: SimNetwork) -> None:
        made: list[Peer] = []
        server, client = network.host("10.0.0.1"), network.host("10.0.0.2")
        await server.listen(lambda: made.append(Peer()) or made[-1], "", 9876)  # type: ignore[func-returns-value]
        network.partition(client, server, one_way=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await client.connect(Peer, "10.0.0.1", 9876)
        assert now_ms() == 3000
        network.heal()
        await asyncio.sleep(200)
        assert made == []
        assert network.connections() == []

    simulate(main)


def test_connecting_into_a_black_hole_fails_by_itself_after_two_minutes() -> None:
    async def main(network: SimNetwork) -> None:
        server, client = network.host("10.0.0.1"), network.host("10.0.0.2")
        await server.listen(Peer, "", 9876)
        network.partition(server, client, one_way=True)  # the answers are lost
        with pytest.raises(ConnectFailed, match="no answer within 127000 ms"):
            await client.connect(Peer, "10.0.0.1", 9876)
        assert now_ms() == 127_000

    simulate(main)


def test_a_connect_that_was_lost_succeeds_at_the_next_try_after_healing() -> None:
    async def main(network: SimNetwork) -> None:
        server, client = network.host("10.0.0.1"), network.host("10.0.0.2")
        await server.listen(Peer, "", 9876)
        partition = network.partition(client, server)
        asyncio.get_running_loop().call_later(2, partition.heal)
        await client.connect(Peer, "10.0.0.1", 9876)
        assert 3000 <= now_ms() < 3010, "sent at 0, 1 and 3 s"

    simulate(main)


def test_a_caller_that_gives_up_late_leaves_no_connection_behind() -> None:
    async def main(network: SimNetwork) -> None:
        accepted: list[Peer] = []

        def accept() -> Peer:
            accepted.append(Peer())
            return accepted[-1]

        await network.host("10.0.0.1").listen(accept, "", 9876)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.0015):  # the server has seen it, the answer is on its way
                await network.host("10.0.0.2").connect(Peer, "10.0.0.1", 9876)
        await asyncio.sleep(1)
        assert accepted[0].events == ["made", "lost"]
        assert isinstance(accepted[0].error, ConnectionResetError)
        assert network.connections() == []

    simulate(main)


# Bytes


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 5000), max_size=20),
    pauses=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    seed=st.integers(0, 2**32),
    split=st.floats(0, 1),
    merge=st.floats(0, 1),
    loss=st.floats(0, 0.5),
    window=st.sampled_from([7, 100, 1000, 65_536]),
)
def test_bytes_arrive_in_order_and_once_however_they_are_cut(
    sizes: list[int],
    pauses: list[int],
    seed: int,
    split: float,
    merge: float,
    loss: float,
    window: int,
) -> None:
    chunks = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    config = LinkConfig(
        split_chance=split,
        merge_chance=merge,
        spike_chance=0.1,
        loss=loss,
        window_bytes=window,
        retransmit_limit_ms=10**9,
    )

    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)
        for chunk, pause in zip(chunks, pauses, strict=False):
            pair.client.transport.write(chunk)
            await asyncio.sleep(pause / 1000)
        pair.client.transport.write_eof()
        while "lost" not in pair.server.events or "lost" not in pair.client.events:
            await asyncio.sleep(60)
        assert pair.server.received == b"".join(chunks)
        assert pair.client.received == b"".join(chunks)
        await asyncio.sleep(600)
        assert pair.client.error is None
        assert network.connections() == []

    simulate(main, config, seed, until_ms=10**9)


def test_splitting_and_merging_happen() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        for number in range(200):
            pair.client.transport.write(b"%04d" % number)
            await asyncio.sleep(0.0002)
        await asyncio.sleep(10)
        assert pair.server.received == b"".join(b"%04d" % number for number in range(200))
        sizes = {len(read) for read in pair.server.reads}
        assert min(sizes) < 4 < max(sizes)

    simulate(main, LinkConfig(split_chance=0.3, merge_chance=0.3))


def test_writes_of_one_instant_are_read_together() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.client.transport.writelines([b"one ", bytearray(b"two ")])
        pair.client.transport.write(memoryview(b"three"))
        await asyncio.sleep(1)
        assert pair.server.reads == [b"one two three"]

    simulate(main)


def test_a_buffer_may_be_reused_after_write() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        buffer = bytearray(b"first")
        pair.client.transport.write(buffer)
        buffer[:] = b"other"
        await asyncio.sleep(1)
        assert pair.server.received == b"first"

    simulate(main)


def test_only_bytes_can_be_written() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        with pytest.raises(TypeError, match="not str"):
            pair.client.transport.write("text")  # type: ignore[arg-type]
        pair.client.transport.write_eof()
        with pytest.raises(RuntimeError):
            pair.client.transport.write(b"late")

    simulate(main)


def test_delays_spike_and_loss_costs_a_retransmission() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)
        slowest = 0.0
        for _ in range(500):
            began, count = now_ms(), len(pair.client.reads)
            pair.client.transport.write(b"x")
            while len(pair.client.reads) == count:
                await asyncio.sleep(0.001)
            slowest = max(slowest, now_ms() - began)
        latencies.append(slowest)

    latencies: list[float] = []
    simulate(main, CALM)
    simulate(main, LinkConfig(spike_chance=0.05, spike_ms=100, jitter_ms=0))
    simulate(main, LinkConfig(spike_chance=0, loss=0.05, jitter_ms=0))
    simulate(main, LinkConfig(spike_chance=0, jitter_ms=5))
    calm, spikes, loss, jitter = latencies
    assert calm <= 3
    assert 50 < spikes < 210
    assert loss > 200
    assert 10 < jitter < 200


def test_connections_overtake_each_other_but_bytes_of_one_do_not() -> None:
    async def main(network: SimNetwork) -> None:
        order: list[int] = []

        def note(peer: Peer, data: bytes) -> None:
            order.extend(data)

        await network.host("10.0.0.1").listen(lambda: Peer(note), "", 1)
        clients = []
        for _ in range(20):
            clients.append(Peer())
            await network.host("10.0.0.2").connect(lambda: clients[-1], "10.0.0.1", 1)
        for number, client in enumerate(clients):
            client.transport.write(bytes([number]))
            client.transport.write(bytes([100 + number]))
        await asyncio.sleep(5)
        assert order != sorted(order)
        for number in range(20):
            assert order.index(number) < order.index(100 + number)

    simulate(main, LinkConfig(jitter_ms=5))


def test_bandwidth_limits_how_fast_bytes_arrive() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        began = now_ms()
        pair.client.transport.write(b"x" * 1_000_000)
        while len(pair.server.received) < 1_000_000:
            await asyncio.sleep(0.1)
        assert 9_900 < now_ms() - began < 10_400

    config = LinkConfig(bandwidth_bytes_per_s=100_000, spike_chance=0, window_bytes=10_000)
    simulate(main, config)


# Back-pressure


def test_a_peer_that_never_reads_pauses_the_writer_and_bounds_the_memory() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server.transport.pause_reading()
        assert not pair.server.transport.is_reading()
        transport = pair.client.transport
        transport.set_write_buffer_limits(high=10_000)
        written = 0
        while "pause" not in pair.client.events:
            transport.write(b"x" * 1000)
            written += 1000
            await asyncio.sleep(0.01)
        assert written == 50_000 + 10_000 + 1000, "window, high-water mark, and one more"
        assert transport.get_write_buffer_size() == 11_000
        await asyncio.sleep(3600)
        assert pair.server.reads == []
        assert pair.client.events == ["made", "pause"]

        pair.server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(pair.server.received) == written
        assert pair.client.events == ["made", "pause", "resume"]
        assert transport.get_write_buffer_size() == 0

    simulate(main, LinkConfig(window_bytes=50_000))


def test_write_limits_follow_asyncio() -> None:
    async def main(network: SimNetwork) -> None:
        transport = (await connect(network)).client.transport
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        transport.set_write_buffer_limits(high=100)
        assert transport.get_write_buffer_limits() == (25, 100)
        transport.set_write_buffer_limits(low=100)
        assert transport.get_write_buffer_limits() == (100, 400)
        with pytest.raises(ValueError, match="must be >="):
            transport.set_write_buffer_limits(high=1, low=2)

    simulate(main)


def test_a_megabyte_written_at_once_arrives_whole() -> None:
    async def main(network: SimNetwork) -> None:
        data = random.Random(0).randbytes(5_000_000)
        pair = await connect(network, echo)
        pair.client.transport.write(data)
        assert pair.client.events == ["made", "pause"]
        await asyncio.sleep(60)
        assert pair.client.received == data
        assert max(map(len, pair.server.reads)) <= 256 * 1024
        assert pair.client.events == ["made", "pause", "resume"]

    simulate(main, LinkConfig())


# Ends


def test_close_delivers_what_was_written_and_then_the_end() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.client.transport.write(b"x" * 2_000_000)
        pair.client.transport.close()
        assert pair.client.transport.is_closing()
        pair.client.transport.write(b"too late")
        await asyncio.sleep(60)
        assert len(pair.server.received) == 2_000_000
        assert pair.server.events == ["made", "eof", "lost"]
        assert pair.client.events[-1] == "lost"
        assert pair.client.error is pair.server.error is None
        assert network.connections() == []

    simulate(main, LinkConfig())


def test_abort_loses_what_is_not_on_the_wire_and_resets_the_peer() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.client.transport.write(b"x" * 500_000)
        pair.client.transport.abort()
        await asyncio.sleep(60)
        assert len(pair.server.received) == 256 * 1024
        assert pair.server.events == ["made", "lost"]
        assert isinstance(pair.server.error, ConnectionResetError)
        assert pair.client.events == ["made", "pause", "lost"]
        assert pair.client.error is None
        assert network.connections() == []

    simulate(main)


def test_half_a_connection_can_be_closed() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server.keep_open = True
        pair.client.transport.write(b"question")
        pair.client.transport.write_eof()
        await asyncio.sleep(1)
        assert pair.server.events == ["made", "eof"]
        pair.server.transport.write(b"answer")
        pair.server.transport.close()
        await asyncio.sleep(1)
        assert pair.client.received == b"answer"
        assert pair.client.events == ["made", "eof", "lost"]
        assert network.connections() == []

    simulate(main)


def test_writing_to_a_peer_that_has_closed_ends_in_a_reset() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server.keep_open = True
        pair.client.transport.close()
        await asyncio.sleep(1)
        pair.server.transport.write(b"anyone?")
        await asyncio.sleep(1)
        assert pair.server.events == ["made", "eof"], "nobody reads, hence nobody sees the reset"
        pair.server.transport.write(b"anyone at all?")
        await asyncio.sleep(1)
        assert isinstance(pair.server.error, ConnectionResetError)
        assert pair.server.events == ["made", "eof", "lost"]

    simulate(main)


def test_closing_with_unread_bytes_resets_the_peer() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server.transport.pause_reading()
        pair.client.transport.write(b"unread")
        await asyncio.sleep(1)
        pair.server.transport.close()
        await asyncio.sleep(1)
        assert isinstance(pair.client.error, ConnectionResetError)
        assert pair.server.error is None
        assert network.connections() == []

    simulate(main)


def test_a_peer_that_does_not_read_learns_of_a_reset_when_it_reads_or_writes() -> None:
    async def main(network: SimNetwork) -> None:
        reader, writer, closer = Peer(), Peer(), Peer()
        await network.host("10.0.0.1").listen(Peer, "", 1)
        for peer in (reader, writer, closer):
            await network.host("10.0.0.2").connect(lambda peer=peer: peer, "10.0.0.1", 1)  # type: ignore[misc]
            peer.transport.pause_reading()
        assert network.reset("10.0.0.1") == 3
        await asyncio.sleep(1)
        assert reader.events == writer.events == closer.events == ["made"]
        reader.transport.resume_reading()
        writer.transport.write(b"x")
        closer.transport.close()
        await asyncio.sleep(1)
        assert isinstance(reader.error, ConnectionResetError)
        assert isinstance(writer.error, ConnectionResetError)
        assert closer.events == ["made", "lost"]

    simulate(main)


def test_a_reset_storm_hits_only_the_connections_it_names() -> None:
    async def main(network: SimNetwork) -> None:
        peers = {}
        for server in ("10.0.0.1", "10.0.0.2"):
            await network.host(server).listen(Peer, "", 1)
            for client in ("10.0.1.1", "10.0.1.2"):
                peer = peers[server, client] = Peer()
                await network.host(client).connect(lambda peer=peer: peer, server, 1)  # type: ignore[misc]
        assert network.reset("10.0.0.1", "10.0.1.2") == 1
        await asyncio.sleep(1)
        lost = [key for key, peer in peers.items() if peer.error is not None]
        assert lost == [("10.0.0.1", "10.0.1.2")]
        assert network.reset("10.0.1.1") == 2

    simulate(main)


# Partitions


def test_what_is_sent_during_a_partition_arrives_after_it() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)
        partition = network.partition("10.0.0.1", "10.0.0.2")
        for number in range(5):
            pair.client.transport.write(b"%d" % number)
            await asyncio.sleep(1)
        assert pair.server.reads == []
        partition.heal()
        partition.heal()
        healed_at = now_ms()
        pair.client.transport.write(b"5")
        await asyncio.sleep(0.5)
        assert pair.server.reads == [], "TCP waits for its next retransmission"
        await asyncio.sleep(5)
        assert pair.client.received == b"012345"
        assert pair.client.error is None
        assert now_ms() - healed_at == 5500

    simulate(main)


def test_what_is_on_the_way_when_a_partition_begins_is_not_lost() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.client.transport.write(b"on the way")
        pair.client.transport.close()
        network.isolate("10.0.0.1")
        await asyncio.sleep(10)
        assert pair.server.events == ["made"]
        network.heal()
        await asyncio.sleep(20)
        assert pair.server.received == b"on the way"
        assert pair.server.events == ["made", "eof", "lost"]
        assert network.connections() == []

    simulate(main)


def test_a_sender_gives_up_when_a_partition_lasts_too_long() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        network.partition("10.0.0.1", "10.0.0.2")
        pair.client.transport.write(b"lost")
        await asyncio.sleep(119)
        assert pair.client.events == ["made"]
        await asyncio.sleep(2)
        assert isinstance(pair.client.error, TimeoutError)
        assert pair.server.events == ["made"], "nobody told the server"
        network.heal()
        await asyncio.sleep(600)
        assert pair.server.events == ["made"]
        pair.server.transport.write(b"hello?")
        await asyncio.sleep(1)
        assert isinstance(pair.server.error, ConnectionResetError)
        assert pair.server.received == b""

    simulate(main)


def test_a_partition_without_traffic_goes_unnoticed() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)
        network.partition("10.0.0.1", "10.0.0.2")
        await asyncio.sleep(3600)
        network.heal()
        pair.client.transport.write(b"x")
        await asyncio.sleep(1)
        assert pair.client.received == b"x"

    simulate(main)


def test_one_way_lets_bytes_pass_and_loses_the_answers() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)
        network.partition("10.0.0.1", "10.0.0.2", one_way=True)
        pair.client.transport.write(b"one")
        await asyncio.sleep(10)
        assert pair.server.received == b"one"
        assert pair.client.received == b""
        network.heal()
        await asyncio.sleep(20)
        assert pair.client.received == b"one"
        assert pair.client.error is pair.server.error is None

    simulate(main)


def test_a_sender_without_acknowledgements_fills_the_window_and_gives_up() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        network.partition("10.0.0.1", "10.0.0.2", one_way=True)
        for _ in range(4):
            pair.client.transport.write(b"x" * 250)
            await asyncio.sleep(1)
        assert len(pair.server.received) == 600
        assert pair.client.transport.get_write_buffer_size() == 400
        await asyncio.sleep(115)
        assert pair.client.error is None
        await asyncio.sleep(2)
        assert isinstance(pair.client.error, TimeoutError)

    simulate(main, LinkConfig(window_bytes=600, spike_chance=0))


def test_acknowledgements_that_come_late_let_the_sender_go_on() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        partition = network.partition("10.0.0.1", "10.0.0.2", one_way=True)
        pair.client.transport.write(b"x" * 10_000)
        await asyncio.sleep(60)
        assert len(pair.server.received) == 600
        partition.heal()
        await asyncio.sleep(60)
        assert len(pair.server.received) == 10_000
        await asyncio.sleep(600)
        assert pair.client.error is None

    simulate(main, LinkConfig(window_bytes=600, spike_chance=0))


def test_overlapping_partitions_add_up() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        first = network.partition("10.0.0.1", "10.0.0.2")
        second = network.isolate("10.0.0.2")
        pair.client.transport.write(b"x")
        first.heal()
        await asyncio.sleep(10)
        assert pair.server.reads == []
        second.heal()
        await asyncio.sleep(20)
        assert pair.server.received == b"x"

    simulate(main)


async def _who_sees_whom(network: SimNetwork, hosts: list[str]) -> set[tuple[str, str]]:
    seen = set()
    for src in hosts:
        for dst in hosts:
            if src != dst:
                try:
                    async with asyncio.timeout(0.1):
                        await network.host(src).connect(Peer, dst, 1)
                    seen.add((src[-1], dst[-1]))
                except TimeoutError:
                    pass
    return seen


def test_ring_and_bridge_have_their_shapes() -> None:
    async def main(network: SimNetwork) -> None:
        hosts = [f"10.0.0.{number}" for number in range(1, 6)]
        for host in hosts:
            await network.host(host).listen(Peer, "", 1)
        everyone = await _who_sees_whom(network, hosts)
        assert len(everyone) == 20

        network.ring(hosts)
        seen = await _who_sees_whom(network, hosts)
        neighbours = {("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"), ("1", "5")}
        assert seen == neighbours | {(b, a) for a, b in neighbours}
        network.heal()

        network.bridge(hosts[:2], hosts[3:])
        seen = await _who_sees_whom(network, hosts)
        assert everyone - seen == {
            (a, b) for a, b in everyone if {a, b} & {"1", "2"} and {a, b} & {"4", "5"}
        }
        network.heal()
        assert await _who_sees_whom(network, hosts) == everyone
        with pytest.raises(ValueError, match="both sides"):
            network.bridge(hosts[:2], hosts[1:])

    simulate(main)


def test_slowness_adds_to_every_delay_until_it_ends() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)

        async def round_trip() -> float:
            began, count = now_ms(), len(pair.client.reads)
            pair.client.transport.write(b"x")
            while len(pair.client.reads) == count:
                await asyncio.sleep(0.001)
            return now_ms() - began

        before = await round_trip()
        network.slow("10.0.0.1", 500)
        assert 1000 <= await round_trip() <= 1003
        network.heal()
        assert await round_trip() <= before + 1

    simulate(main)


# Machines


def test_a_silent_machine_leaves_half_open_connections_that_a_send_resolves() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server_host.crash()
        await asyncio.sleep(600)
        assert pair.client.events == ["made"], "nothing told the client"
        pair.client.transport.write(b"hello?")
        await asyncio.sleep(10)
        pair.server_host.start()
        await asyncio.sleep(20)
        assert isinstance(pair.client.error, ConnectionResetError), "the new machine knows nothing"
        assert pair.server.events == ["made"], "the dead hear nothing"
        with pytest.raises(ConnectFailed, match="refused"):
            await pair.client_host.connect(Peer, "10.0.0.1", 9876)

    simulate(main)


def test_sending_to_a_machine_that_stays_dead_times_out() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server_host.crash()
        pair.client.transport.write(b"hello?")
        await asyncio.sleep(121)
        assert isinstance(pair.client.error, TimeoutError)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await pair.client_host.connect(Peer, "10.0.0.1", 9876)

    simulate(main)


def test_keep_alive_finds_a_dead_machine_and_a_forgotten_connection() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server_host.crash()
        await asyncio.sleep(61)
        assert isinstance(pair.client.error, TimeoutError)
        pair.server_host.start()
        await pair.server_host.listen(Peer, "", 9876)
        second = Peer()
        await pair.client_host.connect(lambda: second, "10.0.0.1", 9876)
        pair.server_host.crash()
        pair.server_host.start()
        await asyncio.sleep(61)
        assert isinstance(second.error, ConnectionResetError)

    simulate(main, LinkConfig(keepalive_ms=60_000, spike_chance=0))


def test_a_killed_process_resets_its_peers_at_once() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server_host.crash_process()
        await asyncio.sleep(1)
        assert isinstance(pair.client.error, ConnectionResetError)
        with pytest.raises(ConnectFailed, match="refused"):
            await pair.client_host.connect(Peer, "10.0.0.1", 9876)
        assert network.connections() == []

    simulate(main)


def test_a_process_that_ends_closes_its_connections_in_order() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network)
        pair.server.transport.write(b"goodbye")
        pair.server_host.exit_process()
        await asyncio.sleep(1)
        assert pair.client.received == b"goodbye"
        assert pair.client.events == ["made", "eof", "lost"]
        assert pair.client.error is None
        assert network.connections() == []

    simulate(main)


def test_a_paused_process_is_connected_to_and_reads_everything_after_it_goes_on() -> None:
    with SimLoop() as loop:
        network = SimNetwork(loop, random.Random(1), config=CALM)
        process = loop.fork("server")
        accepted: list[Peer] = []

        def accept() -> Peer:
            accepted.append(Peer(echo))
            return accepted[-1]

        async def main() -> None:
            await asyncio.sleep(0.1)
            process.pause()
            client = Peer()
            await network.host("10.0.0.2").connect(lambda: client, "10.0.0.1", 9876)
            for number in range(10):
                client.transport.write(b"%d" % number)
                await asyncio.sleep(1)
            assert accepted == []
            assert client.error is None
            network.partition("10.0.0.1", "10.0.0.2")  # What has arrived before, stays arrived.
            process.resume()
            await asyncio.sleep(1)
            assert accepted[0].reads == [b"0123456789"]
            network.heal()
            await asyncio.sleep(10)
            assert client.received == b"0123456789"
            client.transport.close()
            process.pause()
            await asyncio.sleep(1)
            assert accepted[0].events == ["made"]
            process.resume()
            await asyncio.sleep(1)
            assert accepted[0].events == ["made", "eof", "lost"]

        process.create_task(network.host("10.0.0.1").listen(accept, "", 9876))
        loop.run(main())


def test_a_paused_process_exerts_back_pressure_and_is_not_timed_out() -> None:
    with SimLoop() as loop:
        network = SimNetwork(loop, random.Random(1), config=CALM)
        process = loop.fork("server")
        accepted: list[Peer] = []

        def accept() -> Peer:
            accepted.append(Peer())
            return accepted[-1]

        async def main() -> None:
            client = Peer()
            await asyncio.sleep(1)
            await network.host("10.0.0.2").connect(lambda: client, "10.0.0.1", 9876)
            process.pause()
            client.transport.write(b"x" * 1_000_000)
            await asyncio.sleep(3600)
            assert client.events == ["made", "pause"]
            assert client.transport.get_write_buffer_size() == 1_000_000 - 256 * 1024
            process.resume()
            await asyncio.sleep(1)
            assert len(accepted[0].received) == 1_000_000

        process.create_task(network.host("10.0.0.1").listen(accept, "", 9876))
        loop.run(main())


# Streams, configuration, luck


def test_asyncio_streams_work_on_top() -> None:
    async def main(network: SimNetwork) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        def accept() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)

        loop = asyncio.get_running_loop()
        await network.host("10.0.0.1").listen(accept, "", 1)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = await network.host("10.0.0.2").connect(lambda: protocol, "10.0.0.1", 1)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        for _ in range(100):
            writer.write(b"hello\n")
            assert await reader.readline() == b"HELLO\n"
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(1)
        assert network.connections() == []

    simulate(main, LinkConfig(split_chance=0.5))


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loss=1\.5 is no chance"):
        LinkConfig(loss=1.5)
    with pytest.raises(ValueError, match="use a partition"):
        LinkConfig(loss=1.0)
    with pytest.raises(ValueError, match="window_bytes"):
        LinkConfig(window_bytes=0)


def test_unknown_machines_are_named_in_the_error() -> None:
    async def main(network: SimNetwork) -> None:
        with pytest.raises(ValueError, match=r"no machine '10\.9\.9\.9'"):
            network.isolate("10.9.9.9")

    simulate(main)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    async def main(network: SimNetwork) -> None:
        pair = await connect(network, echo)
        for _ in range(50):
            pair.client.transport.write(b"x" * 500)
            await asyncio.sleep(0.001)
        await asyncio.sleep(10)

    first, again, other = (simulate(main, LinkConfig(), seed) for seed in (1, 1, 2))
    assert first.digest() == again.digest() != other.digest()
    assert first.text() == again.text()
    assert first.find("recv")


def test_traffic_between_two_machines_does_not_change_the_luck_of_others() -> None:
    def run(with_noise: bool) -> list[object]:
        async def main(network: SimNetwork) -> None:
            if with_noise:
                network.host("10.0.0.9")
                await network.host("10.0.0.8").listen(lambda: Peer(echo), "", 1)
                noise = Peer(echo)
                await network.host("10.0.0.9").connect(lambda: noise, "10.0.0.8", 1)
                noise.transport.write(b"for ever")
                await asyncio.sleep(1 - now_ms() / 1000)
            else:
                await asyncio.sleep(1)
            pair = await connect(network, echo)
            for _ in range(50):
                pair.client.transport.write(b"x" * 500)
                await asyncio.sleep(0.001)
            await asyncio.sleep(1)

        trace = simulate(main, LinkConfig())
        return [entry for entry in trace.find("recv") if entry[1] in ("10.0.0.1", "10.0.0.2")]

    assert run(False) == run(True)
