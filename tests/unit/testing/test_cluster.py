"""SimCluster and SimNode: how processes live and end."""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skylark.errors import ConnectFailed
from skylark.testing import (
    FaultPlan,
    LinkConfig,
    ProcessDied,
    SimCluster,
    SimNode,
    SimulationError,
    Trace,
    check_replay,
    eventually,
    inject,
)
from skylark.testing.files import SimFiles

CALM = LinkConfig(delay_ms=1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)
PORT = 9876


class Chatter(asyncio.Protocol):
    """Answers every question mark with an exclamation mark."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.lost = asyncio.get_running_loop().create_future()
        self.heard = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.set()
        if questions := data.count(b"?"):
            self.transport.write(b"!" * questions)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.node.note("lost", type(exc).__name__)
        if not self.lost.done():
            self.lost.set_result(exc)


async def serve(node: SimNode) -> None:
    """A server that says goodbye when it is stopped."""
    await node.network.listen(lambda: Chatter(node), "", PORT)
    node.note("serving")
    try:
        await asyncio.Event().wait()
    finally:
        node.note("cleanup")


def chatting(*servers: str, every_ms: int = 1000) -> "object":
    async def chat(node: SimNode) -> None:
        async def talk(server: str) -> None:
            while True:
                try:
                    async with asyncio.timeout(3):
                        chatter = Chatter(node)
                        transport = await node.network.connect(lambda c=chatter: c, server, PORT)  # type: ignore[misc]
                except (ConnectFailed, TimeoutError) as error:
                    node.note("unreachable", server, type(error).__name__)
                    await node.clock.sleep_ms(every_ms)
                    continue
                try:
                    while not chatter.lost.done():
                        chatter.heard.clear()
                        transport.write(b"?")
                        async with asyncio.timeout(5):
                            await chatter.heard.wait()
                        await node.clock.sleep_ms(every_ms + node.rng.randrange(100))
                except TimeoutError:
                    node.note("silence", server)
                finally:
                    transport.abort()

        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(talk(server))

    return chat


def test_a_stopped_node_cleans_up_and_its_peers_see_an_orderly_end() -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)
        chatter = Chatter(client)
        await client.call(lambda n: n.network.connect(lambda: chatter, "server", PORT))
        await server.stop()
        assert not server.is_running
        await asyncio.sleep(1)
        assert chatter.lost.result() is None
        assert [entry[2] for entry in cluster.trace if entry[1] == "server"] == [
            "start",
            "serving",
            "stop",
            "cleanup",
            "exit",
        ]

    async def idle(node: SimNode) -> None:
        await asyncio.Event().wait()

    with SimCluster(1, link=CALM) as cluster:
        server, client = cluster.add_node("server", serve), cluster.add_node("client", idle)
        server.start()
        client.start()
        # Built outside a running loop on purpose: the protocol is made inside the scenario.
        cluster.run(scenario())


@pytest.mark.parametrize(("reset", "expected"), [(True, "ConnectionResetError"), (False, None)])
def test_a_crashed_node_is_noticed_by_reset_or_not_at_all(
    reset: bool, expected: str | None
) -> None:
    async def connect_and_wait(node: SimNode) -> None:
        chatter = Chatter(node)
        await node.network.connect(lambda: chatter, "server", PORT)
        await chatter.lost

    async def scenario() -> None:
        await asyncio.sleep(1)
        client.start(connect_and_wait)
        await asyncio.sleep(1)
        server.crash(reset=reset)
        await asyncio.sleep(3600)
        lost = [entry[3][0] for entry in cluster.trace.find("lost", "client")]
        assert lost == ([expected] if expected else [])
        assert client.is_running == (not reset)
        assert cluster.trace.find("cleanup") == [], "the dead are not heard"

    with SimCluster(1, link=CALM) as cluster:
        server, client = cluster.add_node("server", serve), cluster.add_node("client")
        server.start()
        cluster.run(scenario())


def test_cleanup_code_of_a_crashed_process_reaches_nothing() -> None:
    reached: list[str] = []

    async def stubborn(node: SimNode) -> None:
        chatter = Chatter(node)
        transport = await node.network.connect(lambda: chatter, "server", PORT)
        try:
            await asyncio.Event().wait()
        finally:
            reached.append("cleanup")
            transport.write(b"last words")
            transport.close()
            node.note("last words")
            assert node.files is not None
            node.files.replace("/will", b"everything to the cat")
            for attempt in (
                lambda: node.network.connect(lambda: Chatter(node), "server", PORT),
                lambda: node.network.listen(lambda: Chatter(node), "", 1),
            ):
                try:
                    await attempt()
                except OSError:
                    reached.append("listen refused")
                except ConnectFailed:
                    reached.append("connect refused")
            await asyncio.sleep(1)
            reached.append("beyond a wait")

    async def scenario() -> None:
        await asyncio.sleep(1)
        client.start(stubborn)
        await asyncio.sleep(1)
        heard = len(cluster.trace.find("recv", "server"))
        client.crash()
        client.start()  # at the same instant: the new process must not be disturbed
        await asyncio.sleep(1)
        assert reached == ["cleanup", "connect refused", "listen refused"]
        assert len(cluster.trace.find("recv", "server")) == heard
        assert cluster.trace.find("last words") == []
        assert client.files is not None
        assert not client.files.exists("/will")
        assert client.is_running
        client.crash(reset=True)
        await client.wait_ended()

    with SimCluster(1, link=CALM) as cluster:
        server = cluster.add_node("server", serve)
        client = cluster.add_node("client", files=SimFiles())
        server.start()
        cluster.run(scenario())


def test_a_process_that_swallows_its_end_cannot_end_its_successor() -> None:
    async def deaf(node: SimNode) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def scenario() -> None:
        await asyncio.sleep(1)
        node.crash()
        node.start(serve)
        await asyncio.sleep(1)
        assert node.is_running
        assert node.starts == 2
        assert [entry[2] for entry in cluster.trace if entry[1] == "node"] == [
            "start",
            "crash",
            "start",
            "serving",
        ]

    with SimCluster(1) as cluster:
        node = cluster.add_node("node", deaf)
        node.start()
        cluster.run(scenario())


def test_a_power_cut_loses_what_was_not_synced_and_a_kill_does_not() -> None:
    async def write(node: SimNode) -> None:
        assert node.files is not None
        node.files.create("/log", 4096, reserve=True)
        region = node.files.map("/log", 4096)
        node.files.sync_directory("/")
        region.buffer[:5] = b"first"
        region.sync()
        region.buffer[:5] = b"after"
        node.files.observe()
        await asyncio.Event().wait()

    def contents(reset: bool) -> set[bytes]:
        found = set()
        for seed in range(20):
            with SimCluster(seed) as cluster:
                node = cluster.add_node("node", write, files=SimFiles())
                node.start()
                cluster.loop.run_for(1000)
                node.crash(reset=reset)
                assert node.files is not None
                found.add(node.files.read("/log")[:5])
        return found

    assert contents(reset=True) == {b"after"}
    assert {b"first", b"after"} <= contents(reset=False)


def test_a_paused_node_times_its_peers_out_and_finds_its_own_timers_late() -> None:
    async def scenario() -> None:
        await asyncio.sleep(10)
        assert not cluster.trace.find("silence")
        server.pause()
        assert server.is_paused
        await asyncio.sleep(20)
        assert cluster.trace.find("silence", "client")
        server.resume()
        await eventually(lambda: quiet_for(5000), within_ms=30_000)

    def quiet_for(span_ms: int) -> bool:
        last = max(e[0] for e in cluster.trace if e[2] in ("silence", "unreachable", "resume"))
        return cluster.loop.now_ms - last / 1000 > span_ms

    with SimCluster(1) as cluster:
        server, client = cluster.add_node("server", serve), cluster.add_node("client")
        server.start()
        client.start(chatting("server"))  # type: ignore[arg-type]
        cluster.run(scenario())


def test_an_error_out_of_a_nodes_main_fails_the_run_with_its_seed() -> None:
    async def broken(node: SimNode) -> None:
        await asyncio.sleep(5)
        raise ValueError("broken")

    with SimCluster(42) as cluster:
        cluster.add_node("node", broken).start()
        with pytest.raises(ValueError, match="broken") as caught:
            cluster.run(asyncio.sleep(1000))
        assert cluster.loop.now_ms == 5000
    assert "process node: main of node node failed" in caught.value.__notes__[0]
    assert caught.value.__notes__[1].startswith("seed 42,")


def test_a_node_that_may_fail_keeps_its_error() -> None:
    async def broken(node: SimNode) -> None:
        raise ValueError("refused to start")

    async def scenario() -> None:
        node.start(broken, may_fail=True)
        await node.wait_ended()
        assert isinstance(node.error, ValueError)
        node.start(serve)
        assert node.error is None
        await asyncio.sleep(1)
        assert node.is_running

    with SimCluster(42) as cluster:
        node = cluster.add_node("node")
        cluster.run(scenario())


def test_a_task_left_behind_by_main_is_cancelled_and_its_failure_reported() -> None:
    async def forgetful(node: SimNode) -> None:
        async def fail_late() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise ValueError("at the end")

        tasks.append(asyncio.create_task(fail_late()))
        await asyncio.sleep(1)

    tasks: list[object] = []
    with SimCluster(42) as cluster:
        cluster.add_node("node", forgetful).start()
        with pytest.raises(ValueError, match="at the end"):
            cluster.run(asyncio.sleep(1000))


def test_call_brings_results_errors_and_death_out_of_a_process() -> None:
    async def answer(node: SimNode) -> str:
        await asyncio.sleep(1)
        return f"from {node.name} in {asyncio.get_running_loop() is node.loop}"

    async def fail(node: SimNode) -> None:
        raise KeyError("inside")

    async def hang(node: SimNode) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        assert await node.call(answer) == "from node in True"
        with pytest.raises(KeyError, match="inside"):
            await node.call(fail)
        cluster.loop.call_later(5, node.crash)
        with pytest.raises(ProcessDied):
            await node.call(hang)
        with pytest.raises(ProcessDied, match="is down"):
            await node.call(answer)

    with SimCluster(1) as cluster:
        node = cluster.add_node("node", serve)
        node.start()
        cluster.run(scenario())


def test_wrong_use_is_named() -> None:
    with SimCluster(1) as cluster:
        node = cluster.add_node("node", address="10.1.1.1")
        with pytest.raises(SimulationError, match="has no main"):
            node.start()
        with pytest.raises(ValueError, match="already"):
            cluster.add_node("node")
        with pytest.raises(ValueError, match="belongs to 'node'"):
            cluster.add_node("other", address="10.1.1.1")
        node.start(serve)
        with pytest.raises(SimulationError, match="is running"):
            node.start(serve)


def test_children_of_the_seed_do_not_depend_on_each_other() -> None:
    with SimCluster(5) as one, SimCluster(5) as two:
        two.rng("something new").random()
        two.add_node("extra")
        assert one.rng("a").random() == two.rng("a").random()
        assert one.rng("a").random() != one.rng("b").random()
        assert one.add_node("x").rng.random() == two.add_node("x").rng.random()


def test_a_nodes_clock_survives_its_processes() -> None:
    async def scenario() -> None:
        node.clock.jump_ms(5000)
        await asyncio.sleep(100)
        wall = node.clock.now_ms()
        node.crash()
        await asyncio.sleep(100)
        node.start()
        assert node.clock.now_ms() - wall == 101_000, "one per cent fast, also while down"

    with SimCluster(5) as cluster:
        node = cluster.add_node("node", serve, drift=0.01)
        node.start()
        cluster.run(scenario())


def test_buggify_is_off_unless_asked_for_and_then_seeded_per_point() -> None:
    with SimCluster(5) as cluster:
        assert not any(cluster.buggify("tiny file") for _ in range(1000))
    fired = set()
    for seed in range(30):
        runs = []
        for _ in range(2):
            with SimCluster(seed, buggify=True) as cluster:
                node = cluster.add_node("node")
                runs.append([node.buggify("tiny file") for _ in range(100)])
                asked, yes = cluster.buggify_counts["tiny file"]
                assert (asked, yes) == (100, sum(runs[-1]))
        assert runs[0] == runs[1]
        fired.add(any(runs[0]))
    assert fired == {True, False}


# Whole clusters


def chatter_cluster(
    seed: int, *, servers: int = 2, clients: int = 8, span_ms: int = 600_000, gap_ms: int = 20_000
) -> Trace:
    names = [f"server-{number}" for number in range(servers)]
    with SimCluster(seed) as cluster:
        for name in names:
            cluster.add_node(name, serve).start()
        for number in range(clients):
            node = cluster.add_node(f"client-{number}", drift=0.001 * (number % 3))
            node.start(chatting(*names, every_ms=5000))  # type: ignore[arg-type]
        plan = FaultPlan.draw(
            cluster.rng("faults"),
            list(cluster.nodes),
            start_ms=5_000,
            end_ms=span_ms - 60_000,
            gap_ms=gap_ms,
        )

        async def scenario() -> None:
            await inject(cluster, plan)
            await asyncio.sleep(span_ms / 1000 - cluster.loop.time())
            last_trouble = max(
                (e[0] for e in cluster.trace if e[2] in ("silence", "unreachable")), default=0
            )
            assert last_trouble < (span_ms - 30_000) * 1000, "all is well once faults are off"
            assert all(node.is_running and not node.is_paused for node in cluster.nodes.values())

        cluster.run(scenario(), until_ms=span_ms + 1000)
        return cluster.trace


@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_under_every_fault_replays_and_recovers(seed: int) -> None:
    trace = check_replay(lambda: chatter_cluster(seed))
    assert len(trace.find("fault")) > 5


def test_other_processes_and_hash_seeds_give_the_same_trace() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_cluster as t; "
        "ballast = [bytearray(i) for i in range(int(sys.argv[2]))]; "
        "print(t.chatter_cluster(3).digest())"
    )
    digests = set()
    for hash_seed, ballast in (("0", "0"), ("1", "1000"), ("4242", "77")):
        done = subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parent), ballast],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert digests == {chatter_cluster(3).digest()}


def test_fifty_nodes_chat_for_an_hour_in_seconds() -> None:
    began = time.process_time()
    trace = chatter_cluster(9, servers=2, clients=48, span_ms=3_600_000, gap_ms=60_000)
    seconds = time.process_time() - began
    print(f"{len(trace)} events, {seconds:.2f} s of CPU, {3600 / seconds:,.0f} times real time")
    assert len(trace) > 100_000
    assert seconds < 60


def test_seeds_differ() -> None:
    digests = {chatter_cluster(seed, clients=2, span_ms=100_000).digest() for seed in range(5)}
    assert len(digests) == 5


def test_faults_of_a_plan_hit_the_nodes_they_name() -> None:
    plan = FaultPlan.parse(
        """
        1000 5000 crash a - 0
        2000 1000 pause a - 0
        10000 5000 kill a - 0
        20000 5000 pause a - 0
        30000 5000 restart a - 0
        40000 5000 clock_jump a - 3600000
        50000 5000 isolate a - 0
        60000 5000 one_way a b 0
        70000 0 reset_storm a - 0
        80000 5000 slow a - 500
        """
    )
    seen: list[tuple[int, str]] = []

    async def scenario() -> None:
        async def watch() -> None:
            for _ in range(90):
                state = "paused" if a.is_paused else "up" if a.is_running else "down"
                if a.clock.now_ms() - cluster.clock.now_ms() > 1_000_000:
                    state += " ahead"
                link = cluster.network.link(a.host, b.host)
                state += " cut" if link.blocked and link.reverse.blocked else ""
                state += " mute" if link.blocked and not link.reverse.blocked else ""
                state += " slow" if link.extra_us else ""
                if not seen or seen[-1][1] != state:
                    seen.append((round(cluster.loop.now_ms), state))
                await asyncio.sleep(1)

        watcher = asyncio.create_task(watch())
        await asyncio.sleep(0.5)
        await inject(cluster, plan)
        await watcher

    with SimCluster(1) as cluster:
        a, b = cluster.add_node("a", serve), cluster.add_node("b", serve)
        a.start()
        b.start()
        cluster.run(scenario())
        assert a.starts == 4
    states = [state for _, state in seen]
    assert states == [
        *("up", "down", "up", "down", "up", "paused", "up", "down", "up"),
        *("up ahead", "up", "up cut", "up", "up mute", "up", "up slow", "up"),
    ]


def test_random_rng_is_not_touched() -> None:
    """A run must not draw from, nor seed, the numbers that everybody shares."""
    random.seed(7)
    before = random.getstate()
    chatter_cluster(1, clients=1, span_ms=100_000)
    assert random.getstate() == before
