"""Micro-batches over two brokers: the real protocol of tasks, driver and brokers under kills.

Spark and the network are played; what tasks and drivers ask (Decisions, Cluster.coordinator) and
what brokers do with it (StagingService on a store) is the real thing. Before and after any request
the driver may die, a broker may die, and stay away for a while, during which name servers have
forgotten it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark")

from test_staged_rows import HOUR_MS, World, messages

from skylark.broker.decisions import GroupKey, read_decision
from skylark.errors import BrokerError, ConfigError, TransportError
from skylark.model.route import BrokerData, ClusterInfo
from skylark.protocol.bodies import ClusterInfoBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access
from skylark.spark.transactions import A_JOB, BatchName, Decisions, Staged
from skylark.store import FlushDiskType

SINK = "sink"
TRIES_MAX = 1_000
NAMESRV = "10.0.0.9:9876"
ADDRESSES = {"a": "10.0.0.1:10911", "b": "10.0.0.2:10911"}


class DriverDied(Exception):
    """Nothing of this driver goes on."""


class Servers:
    """A name server and two brokers, which die by chance."""

    def __init__(
        self, seed: int, deaths: float, mode: FlushDiskType = FlushDiskType.SYNC_FLUSH
    ) -> None:
        self.rng = random.Random(seed)
        self.deaths = deaths
        self.mode = mode
        self.brokers = {name: World(flush_disk_type=mode) for name in ADDRESSES}
        self.away: dict[str, int] = {}  # Name → after how many more requests it is back.
        self.settings: dict[str, str] = {}
        self.kills: Counter[str] = Counter()
        self.falls_after: tuple[str, int] | None = None  # Who is gone after it has answered what.

    def chance(self) -> None:
        """Somebody may die here, and somebody may come back."""
        for name in list(self.away):
            self.away[name] -= 1
            if self.away[name] <= 0:
                del self.away[name]
        if self.rng.random() < self.deaths:
            self.kill(self.rng.choice(sorted(self.brokers)))
        if self.rng.random() < self.deaths:
            self.kills["driver"] += 1
            raise DriverDied

    def kill(self, name: str) -> None:
        self.kills["broker"] += 1
        broker = self.brokers[name]
        if self.rng.random() < 0.5:
            broker.kill()
        else:
            broker.cut_power(self.rng)
        self.away[name] = self.rng.randrange(12)

    @staticmethod
    def finish(broker: World) -> None:
        """What a broker does after a start, or a minute later; it may die before."""
        for decision in list(broker.service._decisions.values()):
            if broker.service.is_due(decision):
                broker.apply(decision)

    def answers(self, broker: World) -> None:
        """Before a broker answers, rows are as safe as its flushDiskType says."""
        if self.mode is FlushDiskType.SYNC_FLUSH:
            broker.flush()

    def ask(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Command:
        self.chance()
        answer = self._answer(address, code, fields, body)
        self.chance()  # It was done, and perhaps nobody hears of it.
        return answer

    def _answer(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Command:
        found = Command.request(code)
        if address == NAMESRV:
            if code == RequestCode.PUT_KV_CONFIG:
                self.settings[fields["key"]] = fields["value"]
            elif code == RequestCode.GET_KV_CONFIG:
                if fields["key"] not in self.settings:
                    raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "no such setting", address)
                found.fields = {"value": self.settings[fields["key"]]}
            else:
                assert code == RequestCode.GET_BROKER_CLUSTER_INFO
                there = {
                    name: BrokerData("c", name, {0: at})
                    for name, at in ADDRESSES.items()
                    if name not in self.away
                }
                info = ClusterInfo(brokers=there, clusters={"c": tuple(there)})
                found.body = ClusterInfoBody(info).to_json()
            return found
        (name,) = [name for name, at in ADDRESSES.items() if at == address]
        found.body = json.dumps(self._asked_broker(name, code, fields, body)).encode()
        if self.falls_after == (name, code):
            self.away[name] = TRIES_MAX
        return found

    def _asked_broker(self, name: str, code: int, fields: dict[str, str], body: bytes) -> Any:
        broker = self.reach(name)
        if code == RequestCode.GET_DECISION:
            known = broker.service.decision(fields["sink"])
            return {} if known is None else known.to_json()
        if code == RequestCode.SEAL_ROWS:
            broker.service.seal(read_decision(body))
            broker.flush()
            return {}
        assert code == RequestCode.DECIDE_ROWS
        decision, _ = broker.service.decide(read_decision(body))
        broker.flush()  # In any mode; test_staging.py has that.
        while broker.service.apply_some(decision) is not None:
            if self.rng.random() < self.deaths:
                self.kill(name)
                raise TransportError(ADDRESSES[name], "it died while it applied a decision")
        self.answers(broker)
        return decision.to_json()

    def reach(self, name: str) -> World:
        """A broker that answers."""
        if name in self.away:
            raise TransportError(ADDRESSES[name], "it is away")
        return self.brokers[name]

    def visible(self) -> Counter[bytes]:
        """All rows that anybody can read, once brokers have finished what they know of."""
        for broker in self.brokers.values():
            self.finish(broker)
        return Counter(body for broker in self.brokers.values() for body, _ in broker.visible())


class PlayedWire:
    """As much of a Wire as is asked of it."""

    def __init__(self, servers: Servers, address: str) -> None:
        self._servers = servers
        self._address = address

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        return self._servers.ask(self._address, code, fields, body)


class PlayedCluster(Cluster):
    """The real one, with other wires."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(Access(NAMESRV, retry_ms=0))
        self._servers = servers

    def wire(self, address: str) -> Any:
        return PlayedWire(self._servers, address)


def stage(servers: Servers, name: BatchName, bodies: list[bytes]) -> Staged:
    """One attempt of a task: rows to any broker that is there, in several requests."""
    if Decisions(PlayedCluster(servers)).find(name) is not None:
        return Staged(name.sink, name.batch, name.task, "", {})
    attempt = f"{servers.rng.getrandbits(64):x}"
    rows: dict[str, int] = {}
    for at in range(0, len(bodies), 2):
        servers.chance()
        there = sorted(set(ADDRESSES) - set(servers.away))
        if not there:
            raise TransportError(NAMESRV, "no broker is there")
        broker = servers.rng.choice(there)
        key = GroupKey(name.sink, name.batch, name.task, attempt)
        part = bodies[at : at + 2]
        for _ in range(servers.rng.choice((1, 1, 2))):  # Asked again where the answer was lost.
            servers.reach(broker).stage(key, rows.get(broker, 0), part)
            servers.answers(servers.reach(broker))
        rows[broker] = rows.get(broker, 0) + len(part)
    return Staged(name.sink, name.batch, name.task, attempt, rows)


def run_batch(servers: Servers, batch: int, tasks: list[list[bytes]]) -> None:
    """As Spark does it: the same micro-batch again until its commit has returned."""
    for _ in range(TRIES_MAX):
        try:
            staged = [
                stage(servers, BatchName(SINK, batch, number), bodies)
                for number, bodies in enumerate(tasks)
            ]
            Decisions(PlayedCluster(servers)).decide(staged)
            servers.chance()  # Before Spark has noted it.
            return
        except (DriverDied, TransportError, BrokerError):
            for name in set(ADDRESSES) - set(servers.away):
                servers.finish(servers.brokers[name])
    raise AssertionError(f"batch {batch} does not come to an end")


def run(seed: int, mode: FlushDiskType = FlushDiskType.SYNC_FLUSH) -> Counter[str]:
    """A sink's batches one after the other, each judged; who was killed how often."""
    servers = Servers(seed, 0.03, mode)
    wanted: Counter[bytes] = Counter()
    for batch in range(25):
        tasks = [
            [b"%d-%d-%d" % (batch, task, row) for row in range(servers.rng.randrange(7))]
            for task in range(servers.rng.randrange(1, 4))
        ]
        run_batch(servers, batch, tasks)
        wanted.update(row for task in tasks for row in task)
        servers.deaths, before = 0.0, servers.deaths
        servers.away.clear()
        assert servers.visible() == wanted, f"batch {batch}"
        servers.deaths = before
    return servers.kills


@pytest.mark.parametrize("mode", FlushDiskType)
@pytest.mark.parametrize("seed", range(12))
def test_rows_of_all_batches_are_there_once_whoever_dies(seed: int, mode: FlushDiskType) -> None:
    kills = run(seed, mode)
    assert kills["driver"] > 20
    assert kills["broker"] > 20


class Planned(Servers):
    """One death at a given step, and another one some steps later."""

    def __init__(self, deaths: dict[int, str], seed: int, mode: FlushDiskType) -> None:
        super().__init__(seed, 0.0, mode)
        self.planned = deaths
        self.step = 0

    def chance(self) -> None:
        super().chance()
        self.step += 1
        victim = self.planned.get(self.step)
        if victim == "driver":
            self.kills[victim] += 1
            raise DriverDied
        if victim is not None:
            self.kill(victim)
            self.away[victim] = 3


@pytest.mark.parametrize("mode", FlushDiskType)
def test_a_batch_over_two_brokers_is_there_once_whoever_dies_at_which_step(
    mode: FlushDiskType,
) -> None:
    kills: Counter[str] = Counter()
    for first in range(1, 60):
        for number, victim in enumerate(("driver", "a", "b") * 3):
            rng = random.Random(first * 10 + number)
            other = rng.choice(("driver", "a", "b"))
            servers = Planned({first: victim, first + rng.randrange(1, 25): other}, first, mode)
            for batch in range(2):
                bodies = [b"%d-%d" % (batch, row) for row in range(8)]
                run_batch(servers, batch, [bodies[:5], bodies[5:]])
            kills += servers.kills
            wanted = Counter(b"%d-%d" % (batch, row) for batch in range(2) for row in range(8))
            assert servers.visible() == wanted, (first, victim, other)
    assert min(kills["driver"], kills["broker"]) > 200


def test_without_seals_a_power_cut_parts_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsealed(self: Decisions, broker: str, code: int, *rest: Any) -> bytes:
        return b"" if code == RequestCode.SEAL_ROWS else ask(self, broker, code, *rest)

    def run_all() -> None:
        for seed in range(12):
            run(seed, FlushDiskType.ASYNC_FLUSH)

    ask = Decisions._ask
    monkeypatch.setattr(Decisions, "_ask", unsealed)
    with pytest.raises(AssertionError, match=r"batch \d+"):
        run_all()


def staged_at_both(mode: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> tuple[Servers, Staged]:
    """A batch of three rows at each of two brokers, not flushed."""
    servers = Servers(1, 0.0, mode)
    servers.settings["decisions"] = "a"
    for name, broker in servers.brokers.items():
        broker.service.stage(
            GroupKey(SINK, 0, 0, "x"), 0, messages([f"{name}{n}".encode() for n in range(3)])
        )
    return servers, Staged(SINK, 0, 0, "x", {"a": 3, "b": 3}, "query")


ALL = sorted(f"{name}{n}".encode() for name in "ab" for n in range(3))


def lose(broker: World) -> None:
    """A power cut that takes all that is not on the disk."""
    disk = broker.files
    for seed in range(200):
        broker.files = disk.crash(random.Random(seed))
        broker.open()
        if not len(broker.service) and broker.service.decision(SINK) is None:
            return
    raise AssertionError("nothing was lost")


def test_rows_that_a_power_cut_has_taken_are_missed_before_anything_is_decided() -> None:
    servers, staged = staged_at_both()
    lose(servers.brokers["b"])
    with pytest.raises(BrokerError, match="must be tried again"):
        Decisions(PlayedCluster(servers)).decide([staged])
    assert not servers.visible()
    run_batch(servers, 0, [ALL])
    assert servers.visible() == Counter(ALL)


def test_a_batch_that_is_there_stays_whichever_broker_loses_power() -> None:
    for name in ADDRESSES:
        servers, staged = staged_at_both()
        Decisions(PlayedCluster(servers)).decide([staged])  # And the driver dies.
        with pytest.raises(AssertionError, match="nothing was lost"):
            lose(servers.brokers[name])
        run_batch(servers, 0, [ALL])
        assert servers.visible() == Counter(ALL)


def test_a_broker_that_is_down_over_the_weekend_shows_its_rows_afterwards() -> None:
    """And over two weeks, in which rows in doubt would expire."""
    for hours in (30, 300):
        servers, staged = staged_at_both()
        servers.falls_after = "b", RequestCode.SEAL_ROWS
        with pytest.raises(TransportError):
            Decisions(PlayedCluster(servers)).decide([staged])
        assert servers.brokers["a"].service.decision(SINK) is not None
        servers.away.clear()
        for broker in servers.brokers.values():
            broker.clock.advance_ms(hours * HOUR_MS)
            broker.service.carry_on()
            broker.service.forget_expired()
        servers.brokers["a"].kill()
        run_batch(servers, 0, [[b"not used: it is decided"]])
        assert servers.visible() == Counter(ALL)


def test_a_second_query_under_one_sink_id_is_refused() -> None:
    servers, staged = staged_at_both()
    decisions = Decisions(PlayedCluster(servers))
    decisions.decide([staged])
    assert decisions.find(BatchName(SINK, 0, 0, "query")) is not None
    assert decisions.find(BatchName(SINK, 1, 0, "query")) is None
    for batch in (0, 1):
        with pytest.raises(ConfigError, match="option sinkId: sink is what query query writes"):
            decisions.find(BatchName(SINK, batch, 0, "other"))
    late = Staged(SINK, 0, 0, "y", {}, "other")
    with pytest.raises(BrokerError, match="sinkId"):
        decisions.decide([late])


def test_a_job_that_is_run_again_under_its_sink_id_finds_its_decision() -> None:
    servers, _ = staged_at_both()
    decisions = Decisions(PlayedCluster(servers))
    decisions.decide([Staged("daily", 0, 0, "x", {}, A_JOB)])
    assert decisions.find(BatchName("daily", 0, 0, A_JOB)) is not None
    with pytest.raises(ConfigError, match="is what a job writes under"):
        decisions.find(BatchName("daily", 0, 0, "query"))


def test_asking_whoever_is_first_among_those_registered_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_registered(cluster: Cluster) -> str:
        names = cluster.broker_names()
        if not names:
            raise TransportError(NAMESRV, "no broker is registered")
        return names[0]

    def run_all() -> None:
        for seed in range(12):
            run(seed)

    monkeypatch.setattr(Cluster, "coordinator", first_registered)
    with pytest.raises(AssertionError, match=r"batch \d+"):
        run_all()
