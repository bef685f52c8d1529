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

from test_staged_rows import World

from skylark.broker.staging import GroupKey, read_decision
from skylark.errors import BrokerError, TransportError
from skylark.model.route import BrokerData, ClusterInfo
from skylark.protocol.bodies import ClusterInfoBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access
from skylark.spark.transactions import BatchName, Decisions, Staged
from skylark.store import FlushDiskType

SINK = "sink"
TRIES_MAX = 1_000
NAMESRV = "10.0.0.9:9876"
ADDRESSES = {"a": "10.0.0.1:10911", "b": "10.0.0.2:10911"}


class DriverDied(Exception):
    """Nothing of this driver goes on."""


class Servers:
    """A name server and two brokers, which die by chance."""

    def __init__(self, seed: int, deaths: float) -> None:
        self.rng = random.Random(seed)
        self.deaths = deaths
        self.brokers = {
            # With power cuts: nothing is acknowledged that is not on the disk.
            name: World(flush_disk_type=FlushDiskType.SYNC_FLUSH)
            for name in ADDRESSES
        }
        self.away: dict[str, int] = {}  # Name → after how many more requests it is back.
        self.settings: dict[str, str] = {}
        self.kills: Counter[str] = Counter()

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
        return found

    def _asked_broker(self, name: str, code: int, fields: dict[str, str], body: bytes) -> Any:
        broker = self.reach(name)
        if code == RequestCode.GET_DECISION:
            known = broker.service.decision(fields["sink"])
            return {} if known is None else known.to_json()
        decision, _ = broker.service.decide(read_decision(body))
        while broker.service.apply_some(decision) is not None:
            if self.rng.random() < self.deaths:
                self.kill(name)
                raise TransportError(ADDRESSES[name], "it died while it applied a decision")
        broker.flush()
        return decision.to_json()

    def reach(self, name: str) -> World:
        """A broker that answers."""
        if name in self.away:
            raise TransportError(ADDRESSES[name], "it is away")
        return self.brokers[name]

    def visible(self) -> Counter[bytes]:
        """All rows that anybody can read."""
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
            servers.reach(broker).flush()
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
            continue
    raise AssertionError(f"batch {batch} does not come to an end")


def run(seed: int) -> Counter[str]:
    """A sink's batches one after the other, each judged; who was killed how often."""
    servers = Servers(seed, deaths=0.03)
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


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_all_batches_are_there_once_whoever_dies(seed: int) -> None:
    kills = run(seed)
    assert kills["driver"] > 20
    assert kills["broker"] > 20


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
