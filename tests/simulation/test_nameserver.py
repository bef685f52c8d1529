"""Two name servers, ten brokers, fifty clients, an hour of faults: do routes stay true?

What is demanded, for every pair of a broker and a name server:

    never lost   once a registration was confirmed that was sent in calm, the name server knows the
                 broker at every moment of that calm
    there soon   in calm, the broker is known after one heartbeat and the time-outs of one failed
                 try; one that tries again only at its next heartbeat, as RocketMQ's, after two
    gone soon    a broker from which nothing could come is forgotten after the expiry and one scan

A pair is in calm while both processes run and nothing cuts, slows or resets what is between them.
Clock jumps are no excuse. Clients never lose a route they had, and when the faults are over
everybody agrees. Half of the brokers are eager, half behave as RocketMQ's.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator

import pytest

from skylark.client.routes import RouteCache
from skylark.clock import Clock
from skylark.errors import BrokerError, TransportError
from skylark.model.topic import TopicConfig
from skylark.nameserver import NameServer, NameServerConfig
from skylark.nameserver.route_table import BrokerIdentity, Owner, Registration, RouteTable
from skylark.net.channel import Channels
from skylark.remote import NameServers, RemoteNameServer
from skylark.testing import SimNode, Trace
from skylark.testing.broker import SimulatedBroker
from skylark.testing.checks import check_replay, eventually
from skylark.testing.cluster import ProcessDied, SimCluster
from skylark.testing.faults import WEIGHTS, Fault, FaultPlan, inject
from skylark.testing.files import SimFiles

SEEDS = range(200)
HOUR_MS = 3_600_000
FAULTS_END_MS = 3_300_000
HEARTBEAT_MS = 30_000
FAILED_TRY_MS = 12_000  # 6 s for a registration, 3 s to connect, 3 s before the next try.
GONE_MS = 120_000 + 10_000 + 5_000  # Expiry, one scan, and what is on the way.
SAMPLE_MS = 3_000

NAME_SERVERS = ("ns-1", "ns-2")
BROKERS = tuple(f"b-{i}" for i in range(10))
CLIENTS = tuple(f"c-{i}" for i in range(50))
FAULTY = (*NAME_SERVERS, *BROKERS, *CLIENTS[:3])
KINDS = {kind: weight for kind, weight in WEIGHTS.items() if kind != "ring"}

CONFIG = NameServerConfig(kv_config_path="/kv/kvConfig.json", config_store_path="/kv/namesrv.conf")


@dataclasses.dataclass
class World:
    """One run: the nodes, and what is known of them from outside."""

    cluster: SimCluster
    plan: FaultPlan
    make_routes: Callable[[], RouteTable] = RouteTable
    make_clock: Callable[[SimNode], Clock] = lambda node: node.clock
    config: NameServerConfig = CONFIG
    tables: dict[str, RouteTable] = dataclasses.field(default_factory=dict)
    brokers: dict[str, SimulatedBroker] = dataclasses.field(default_factory=dict)
    caches: dict[str, RouteCache] = dataclasses.field(default_factory=dict)
    started_ms: dict[str, int] = dataclasses.field(default_factory=dict)
    calm_samples: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        # The speed of a run matters here, and its order is checked by its trace.
        self.cluster.loop.set_debug(False)
        for name in NAME_SERVERS:
            self.cluster.add_node(name, self.name_server, files=SimFiles())
        for name in BROKERS:
            self.cluster.add_node(name, self.broker)
        for name in CLIENTS:
            self.cluster.add_node(name, self.client)
        self.addresses = [f"{self.cluster.nodes[name].address}:9876" for name in NAME_SERVERS]

    # What runs on the nodes.

    async def name_server(self, node: SimNode) -> None:
        self.started_ms[node.name] = self.cluster.clock.monotonic_ms()
        assert node.files is not None
        server = NameServer(
            self.config, clock=self.make_clock(node), network=node.network, files=node.files
        )
        server.routes = self.make_routes()
        async with server:
            self.tables[node.name] = server.routes
            await server.serve()

    async def broker(self, node: SimNode) -> None:
        self.started_ms[node.name] = self.cluster.clock.monotonic_ms()
        number = BROKERS.index(node.name)
        # The last two are replicas of the first two.
        name, broker_id = (node.name, 0) if number < 8 else (BROKERS[number - 8], 1)
        broker = SimulatedBroker(
            self.addresses,
            network=node.network,
            clock=node.clock,
            rng=node.rng,
            address=f"{node.address}:10911",
            name=name,
            broker_id=broker_id,
            topics=[TopicConfig(f"T-{name}", 4, 4), TopicConfig("ALL", 8, 8)],
            compressed=number % 4 == 1,
            force_register=number % 5 != 3,
            eager=number % 2 == 0,
        )
        async with broker:
            self.brokers[node.name] = broker
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def client(self, node: SimNode) -> None:
        topic = ("ALL", *(f"T-{name}" for name in BROKERS[:8]))[int(node.name[2:]) % 9]
        async with Channels(node.network, node.clock, node.rng) as channels:
            cache = RouteCache(NameServers(channels, self.addresses, node.rng), node.clock)
            async with cache.running():
                while cache.known(topic) is None:
                    with contextlib.suppress(TransportError, BrokerError):
                        await cache.get(topic)
                    await node.clock.sleep_ms(1_000)
                self.caches[node.name] = cache
                await asyncio.Event().wait()

    # What happens, and what is asked.

    async def scenario(self) -> None:
        for node in self.cluster.nodes.values():
            node.start()
        await self.cluster.clock.sleep_ms(5_000)
        await self.put_settings()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self.watch())
            changing = group.create_task(self.change_topics())
            await inject(self.cluster, self.plan)
            await self.cluster.clock.sleep_ms(
                max(0, FAULTS_END_MS - self.cluster.clock.monotonic_ms())
            )
            changing.cancel()
            # Resets that the last partition held back may still arrive; then heartbeats decide.
            await self.cluster.clock.sleep_ms(2 * HEARTBEAT_MS + FAILED_TRY_MS)
            assert self.is_settled(), "some name server does not know all brokers"
            await eventually(
                self.clients_agree,
                within_ms=HEARTBEAT_MS + FAILED_TRY_MS,
                every_ms=1_000,
                what="all clients have the routes that the name servers have",
            )
            await self.cluster.clock.sleep_ms(HOUR_MS - self.cluster.clock.monotonic_ms())
            watching.cancel()
        assert self.is_settled()
        assert self.clients_agree()
        await self.check_settings()

    async def put_settings(self) -> None:
        async def put(node: SimNode) -> None:
            async with Channels(node.network, node.clock, node.rng) as channels:
                for address in self.addresses:
                    server = RemoteNameServer(channels, address)
                    await server.put_kv("ORDER_TOPIC_CONFIG", "ALL", "b-0:8")

        await self.cluster.nodes["c-49"].call(put)

    async def check_settings(self) -> None:
        async def read(node: SimNode) -> list[str | None]:
            async with Channels(node.network, node.clock, node.rng) as channels:
                servers = [RemoteNameServer(channels, address) for address in self.addresses]
                return [await server.get_kv("ORDER_TOPIC_CONFIG", "ALL") for server in servers]

        values = await self.cluster.nodes["c-49"].call(read)
        assert values == ["b-0:8", "b-0:8"], "an acknowledged setting was lost"

    async def change_topics(self) -> None:
        rng = self.cluster.rng("topics")
        while True:
            await self.cluster.clock.sleep_ms(rng.randint(10_000, 200_000))
            name = rng.choice(BROKERS[:8])
            node, broker = self.cluster.nodes[name], self.brokers.get(name)
            if broker is not None and node.is_running and not node.is_paused:
                queues = rng.randint(1, 16)
                topic = TopicConfig(f"T-{broker.name}", queues, queues)
                with contextlib.suppress(ProcessDied, TimeoutError):
                    async with asyncio.timeout(20):
                        await node.call(lambda node, b=broker, t=topic: b.put_topic(t))

    def is_settled(self) -> bool:
        expected = sorted((b.address, b.data_version) for b in self.brokers.values())
        found = [
            [(known.broker.address, known.data_version) for known in self.tables[name].live]
            for name in NAME_SERVERS
        ]
        bodies = {self.tables[name].cluster_body() for name in NAME_SERVERS}
        return found == [expected, expected] and len(bodies) == 1

    def clients_agree(self) -> bool:
        table = self.tables["ns-1"]
        return len(self.caches) == len(CLIENTS) and all(
            cache.known(topic) == table.route(topic)
            for cache in self.caches.values()
            for topic in cache.topics
        )

    async def watch(self) -> None:
        pairs = [Pair(self, broker, server) for broker in BROKERS for server in NAME_SERVERS]
        while True:
            await self.cluster.clock.sleep_ms(SAMPLE_MS)
            now_ms = self.cluster.clock.monotonic_ms()
            for pair in pairs:
                pair.check(now_ms)
            for name, cache in self.caches.items():
                if self.cluster.nodes[name].starts == 1:
                    assert cache.topics, f"{now_ms}: {name} lost its route"


class Pair:
    """A broker and a name server: how long calm or cut between them, and what is demanded."""

    def __init__(self, world: World, broker: str, server: str) -> None:
        self.world = world
        self.broker = world.cluster.nodes[broker]
        self.server = world.cluster.nodes[server]
        self.address = f"{self.server.address}:9876"
        self.disturbed = _merged(world.plan, broker, server, _disturbs)
        self.cut = _merged(world.plan, broker, server, _cuts)
        self.cut_since_ms = 0
        self.cut_by: tuple[str | None, int, int] = (None, 0, 0)

    def check(self, now_ms: int) -> None:
        broker = self.world.brokers.get(self.broker.name)
        table = self.world.tables.get(self.server.name)
        is_serving = self.server.is_running and not self.server.is_paused
        is_beating = self.broker.is_running and not self.broker.is_paused
        starts = (self.broker.starts, self.server.starts)
        # Between one cause and the next there may have been a moment for a heartbeat.
        cause = "plan" if self.cut.cover(now_ms) else None if is_beating else "down"
        if not is_serving or cause is None or (cause, *starts) != self.cut_by:
            self.cut_since_ms = now_ms
        self.cut_by = (cause, *starts)
        if broker is None or table is None or not is_serving:
            return
        self.world.samples += 1
        is_known = table.data_version(broker.address) is not None
        if now_ms - self.cut_since_ms > GONE_MS:
            assert not is_known, f"{now_ms}: {self.server.name} still knows {self.broker.name}"
        started_ms = self.world.started_ms
        calm_since_ms = max(
            self.disturbed.last_end(now_ms),
            started_ms[self.broker.name],
            started_ms[self.server.name],
        )
        if not is_beating or calm_since_ms > now_ms:
            return
        limit_ms = HEARTBEAT_MS * (1 if self.broker.name in BROKERS[::2] else 2) + FAILED_TRY_MS
        confirmed_ms = broker.confirmed_ms.get(self.address, -1)
        if confirmed_ms >= calm_since_ms or now_ms - calm_since_ms > limit_ms:
            self.world.calm_samples += 1
            assert is_known, (
                f"{now_ms}: {self.server.name} lost {self.broker.name}, "
                f"confirmed at {confirmed_ms}, calm since {calm_since_ms}"
            )


class Intervals:
    """Spans of time, asked about in rising order."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if self._spans and start <= self._spans[-1][1]:
                start, last_end = self._spans.pop()
                end = max(end, last_end)
            self._spans.append((start, end))
        self._at = 0

    def last_end(self, now_ms: int) -> int:
        """When the last span ends that has begun; 0 if none has."""
        begun = bisect.bisect_right(self._spans, (now_ms, HOUR_MS * 2))
        return self._spans[begun - 1][1] if begun else 0

    def cover(self, now_ms: int) -> bool:
        """Whether one span covers the whole sample that ends now."""
        start, end = self._span(now_ms)
        return start <= now_ms - SAMPLE_MS and now_ms <= end

    def _span(self, now_ms: int) -> tuple[int, int]:
        while self._at < len(self._spans) and self._spans[self._at][1] < now_ms - SAMPLE_MS:
            self._at += 1
        return self._spans[self._at] if self._at < len(self._spans) else (HOUR_MS * 2, HOUR_MS * 2)


def _merged(
    plan: FaultPlan, broker: str, server: str, touches: Callable[[Fault, str, str], bool]
) -> Intervals:
    return Intervals(
        [(f.at_ms, f.at_ms + f.duration_ms) for f in plan if touches(f, broker, server)]
    )


def _disturbs(fault: Fault, broker: str, server: str) -> bool:
    if fault.kind == "clock_jump":
        return False
    if fault.kind in ("partition", "one_way", "bridge"):
        return _between(fault, broker, server) or _between(fault, server, broker)
    if fault.kind == "isolate":
        return (broker in fault.nodes) != (server in fault.nodes)
    return broker in fault.nodes or server in fault.nodes


def _cuts(fault: Fault, broker: str, server: str) -> bool:
    """Whether nothing at all gets from the broker to the name server."""
    if fault.kind in ("partition", "bridge"):
        return _between(fault, broker, server) or _between(fault, server, broker)
    if fault.kind == "one_way":
        return _between(fault, broker, server)
    return fault.kind == "isolate" and _disturbs(fault, broker, server)


def _between(fault: Fault, left: str, right: str) -> bool:
    return left in fault.nodes and right in fault.others


def draw_plan(seed: int) -> FaultPlan:
    """Many short faults, and some that outlast the expiry."""
    rng = random.Random(f"{seed}/faults")
    short = FaultPlan.draw(
        rng, FAULTY, start_ms=60_000, end_ms=FAULTS_END_MS, gap_ms=60_000, weights=KINDS
    )
    long = FaultPlan.draw(
        rng,
        FAULTY,
        start_ms=60_000,
        end_ms=FAULTS_END_MS,
        gap_ms=400_000,
        duration_ms=(60_000, 300_000),
        weights=KINDS,
    )
    jumps = FaultPlan.draw(
        rng,
        NAME_SERVERS,
        start_ms=60_000,
        end_ms=FAULTS_END_MS,
        gap_ms=300_000,
        weights={"clock_jump": 1},
    )
    faults = [*short, *long, *jumps]
    for _ in range(6):
        faults += _hasty_restart(rng.choice(BROKERS), rng.randint(60_000, FAULTS_END_MS - 60_000))
    return FaultPlan(tuple(sorted(faults, key=lambda fault: (fault.at_ms, str(fault)))))


def _hasty_restart(broker: str, at_ms: int) -> list[Fault]:
    """A broker is replaced while its goodbye still crawls through the network."""
    return [
        Fault(at_ms, 3_200, "slow", (broker,), amount=9_000),
        Fault(at_ms + 100, 500, "restart", (broker,)),
    ]


@contextlib.contextmanager
def world(
    seed: int,
    plan: FaultPlan | None = None,
    *,
    make_routes: Callable[[], RouteTable] = RouteTable,
    make_clock: Callable[[SimNode], Clock] = lambda node: node.clock,
    config: NameServerConfig = CONFIG,
) -> Iterator[World]:
    with SimCluster(seed, trace=Trace(keep=20_000)) as cluster:
        wanted = draw_plan(seed) if plan is None else plan
        yield World(cluster, wanted, make_routes, make_clock, config)


def run(made: World) -> World:
    made.cluster.run(made.scenario(), until_ms=HOUR_MS + 60_000)
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_routes_of_live_brokers_are_not_lost(seed: int) -> None:
    with world(seed) as made:
        run(made)
        # The demands must have been made, not only excused.
        assert made.calm_samples > made.samples // 4


@pytest.mark.parametrize("seed", [0, 7, 36])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    def traced() -> Trace:
        with world(seed) as made:
            return run(made).cluster.trace

    check_replay(traced)


# Planted bugs: each is one that a name server has had, or could easily have. A simulation that does
# not find them proves nothing.


class OldConnectionsWipe(RouteTable):
    """The end of any connection that ever registered a broker ends the registration (N1)."""

    def _unclaim(self, registration: Registration, owner: Owner) -> bool:
        if owner in registration.claims:
            self._remove(registration)
        return not registration.claims


class LateUnregisterWipes(RouteTable):
    """An unregister is taken at its word, whoever says it and whenever (RocketMQ 4.9.8)."""

    def unregister(self, broker: BrokerIdentity, *, owner: Owner) -> bool:
        known = self._live.get(broker.address)
        if known is not None:
            self._remove(known)
        return True


class NothingExpires(RouteTable):
    """A broker that has gone quiet stays as long as its connection."""

    def expire(self, *, now_ms: int, expiry_ms: int) -> tuple[list[Registration], list[Owner]]:
        return [], []


class NothingForgiven(RouteTable):
    """Brokers pay for the time in which the name server itself stood still."""

    def forgive(self, absence_ms: int, *, now_ms: int) -> None:
        return


class WallClock:
    """A clock whose durations jump with the time of day."""

    def __init__(self, node: SimNode) -> None:
        self._clock = node.clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._clock.now_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._clock.sleep_ms(duration_ms)


NO_IDLE_CLOSING = CONFIG.replace(idle_timeout_ms=86_400_000)

PLANTED = {
    "the end of an old connection wipes the route": {"make_routes": OldConnectionsWipe},
    "a late unregister wipes the route": {"make_routes": LateUnregisterWipes},
    "expiry goes by the wall clock": {"make_routes": NothingForgiven, "make_clock": WallClock},
    "nothing expires": {"make_routes": NothingExpires, "config": NO_IDLE_CLOSING},
}


@pytest.mark.parametrize(
    ("bug", "seed", "found"),
    [
        ("the end of an old connection wipes the route", 4, "lost"),
        ("the end of an old connection wipes the route", 23, "lost"),
        ("a late unregister wipes the route", 2, "lost"),
        ("a late unregister wipes the route", 4, "lost"),
        ("expiry goes by the wall clock", 7, "lost"),
        ("expiry goes by the wall clock", 0, "lost"),
        ("nothing expires", 0, "still knows"),
        ("nothing expires", 1, "still knows"),
    ],
)
def test_a_planted_bug_is_found(bug: str, seed: int, found: str) -> None:
    with world(seed, **PLANTED[bug]) as made, pytest.raises(ExceptionGroup) as caught:
        run(made)
    assert found in str(caught.value.exceptions[0])


# Named cases, each with its own plan: what went wrong once in RocketMQ, or would be worst.

TOTAL_OUTAGE = "600000 900000 kill ns-1 - 0\n600000 900000 kill ns-2 - 0"
QUICK_RETURNS = "\n".join(f"{600_000 + 7_000 * i} 3000 crash b-{i} - 0" for i in range(10))
RECONNECT_STORM = "\n".join(f"{600_000 + 5_000 * i} 1 reset_storm ns-1,ns-2 - 0" for i in range(60))
YEARS_AHEAD = (
    "600000 600000 clock_jump ns-1 - 757382400000\n30000 900000 clock_jump b-0 - 757382400000"
)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(TOTAL_OUTAGE, id="all name servers are gone for a quarter of an hour"),
        pytest.param(QUICK_RETURNS, id="brokers lose power and are back before anyone notices"),
        pytest.param(RECONNECT_STORM, id="connections are reset again and again"),
        pytest.param(YEARS_AHEAD, id="a clock is 24 years ahead"),
        pytest.param(
            str(FaultPlan(tuple(_hasty_restart("b-2", 612_000)))),
            id="a goodbye arrives after the successor has registered",
        ),
    ],
)
def test_routes_survive(plan: str) -> None:
    with world(1, FaultPlan.parse(plan)) as made:
        run(made)
        assert made.calm_samples > made.samples // 2
