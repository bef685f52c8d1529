"""Liveness: what is dropped when, by which clock, and whose connection is closed for it."""

from __future__ import annotations

import pytest

from skylark.model.topic import TopicConfig
from skylark.model.version import DataVersion
from skylark.nameserver import NameServerConfig
from skylark.nameserver.liveness import Liveness
from skylark.nameserver.route_table import BrokerIdentity, RouteTable
from skylark.protocol.bodies import TopicConfigTable
from skylark.testing import SimClock, SimLoop

BROKER = BrokerIdentity(cluster="c", name="b", id=0, address="10.0.0.1:10911")
TABLE = TopicConfigTable({"T": TopicConfig("T")}, DataVersion())


class Scene:
    def __init__(self) -> None:
        self.root = SimLoop()
        self.loop = self.root.fork("ns")
        self.clock = SimClock(self.loop)
        self.table = RouteTable()
        self.closed: list[object] = []
        liveness = Liveness(self.table, self.clock, NameServerConfig(), self.closed.append)
        self.loop.create_task(liveness.run())

    def beat(self) -> None:
        self.table.register(BROKER, table=TABLE, owner="conn", now_ms=self.clock.monotonic_ms())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_silent_broker_goes_at_the_first_scan_after_its_time(scene: Scene) -> None:
    scene.beat()
    scene.root.run_for(121_000)
    assert scene.table.topics() == ["T"]
    scene.root.run_for(10_000)
    assert scene.table.topics() == []
    assert scene.closed == ["conn"]
    scene.root.close()


def test_a_broker_that_beats_stays(scene: Scene) -> None:
    for _ in range(20):
        scene.beat()
        scene.root.run_for(30_000)
    assert scene.table.topics() == ["T"]
    assert scene.closed == []
    scene.root.close()


@pytest.mark.parametrize("jump_ms", [86_400_000 * 365 * 24, -86_400_000 * 365])
def test_a_jump_of_the_wall_clock_drops_nobody_and_keeps_nobody(scene: Scene, jump_ms: int) -> None:
    scene.beat()
    scene.root.run_for(60_000)
    scene.clock.jump_ms(jump_ms)
    scene.root.run_for(60_000)
    assert scene.table.topics() == ["T"]
    scene.root.run_for(15_000)
    assert scene.table.topics() == []
    scene.root.close()


def test_a_name_server_that_stood_still_does_not_blame_the_brokers(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.root.run_for(2_000)
    scene.beat()
    scene.loop.pause()
    scene.root.run_for(600_000)
    scene.loop.resume()
    scene.root.run_for(100_000)
    assert scene.table.topics() == ["T"]
    assert "stood still" in caplog.text
    scene.root.run_for(40_000)  # From then on the time counts.
    assert scene.table.topics() == []
    scene.root.close()
