"""The numbers of queues, while brokers come and go."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from sink_world import World, WorldCluster, named, queues

from skylark.errors import ConfigError, TransportError
from skylark.spark import cluster as clusters
from skylark.spark.numbering import Run, first_numbers, next_number, noted, numbered_queues


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    monkeypatch.setattr(clusters, "time", clock)


def numbers(world: World) -> str:
    return named(numbered_queues(WorldCluster(world), "T").queues)


def test_queues_are_counted_by_broker() -> None:
    assert numbers(World("ba")) == "a0 a1 b0 b1"


@pytest.mark.parametrize("away", ["a", "b", "ab"])
def test_queues_of_a_broker_that_is_away_keep_their_numbers(away: str) -> None:
    world = World()
    before = numbers(world)
    world.there -= set(away)
    if world.there:
        assert numbers(world) == before
        found = numbered_queues(WorldCluster(world), "T").there
        assert {queue.broker for queue in found} == world.there
    else:
        world.there = {"c"}  # One that has nothing of it.
        assert numbers(world) == before


@pytest.mark.parametrize("away", ["a", "b", "ab"])
def test_a_replica_alone_does_not_stand_for_its_broker(away: str) -> None:
    """It may bring no topics: name servers learn them from masters."""
    world = World()
    before = numbers(world)
    world.replicas = {*"ab"}
    assert numbers(world) == before
    world.there -= set(away)
    assert numbers(world) == before


def test_brokers_do_not_make_a_topic_that_is_only_away() -> None:
    world = World("ab")
    world.topics["T"] = {"b": 2}
    assert numbers(world) == "b0 b1"
    world.template_queues = 4
    world.there = {"a"}
    assert numbers(world) == "b0 b1"


def test_what_comes_later_is_counted_behind() -> None:
    world = World()
    numbers(world)
    world.topics["T"] = {"a": 4, "b": 2}
    assert numbers(world) == "a0 a1 b0 b1 a2 a3"
    world.there.add("A")
    world.topics["T"]["A"] = 1
    assert numbers(world) == "a0 a1 b0 b1 a2 a3 A0"


def test_queues_are_gone_where_their_broker_is_there_without_them() -> None:
    world = World()
    numbers(world)
    world.topics["T"] = {"a": 1, "b": 2}
    assert numbers(world) == "a0 b0 b1"
    world.topics["T"] = {"a": 2, "b": 2}
    assert numbers(world) == "a0 a1 b0 b1", "and are what they were when they are back"


@pytest.mark.parametrize("when", ["before the route", "after it"])
def test_a_broker_that_comes_or_goes_just_now_has_lost_nothing(when: str) -> None:
    world = World()
    numbers(world)

    class Moving(WorldCluster):
        asked = 0

        def brokers(self):  # type: ignore[no-untyped-def]
            found = super().brokers()
            self.asked += 1
            world.there = {"a"} if (self.asked == 1) == (when == "before the route") else {*"ab"}
            return found

    if when == "after it":
        world.there = {"a"}
    assert named(numbered_queues(Moving(world), "T").queues) == "a0 a1 b0 b1"


def test_a_new_topic_has_the_queues_that_brokers_will_make() -> None:
    world = World()
    world.topics.clear()
    world.template_queues = 2
    assert numbers(world) == "a0 a1 b0 b1"
    world.topics["T"] = {"a": 2}  # The first rows went there.
    assert numbers(world) == "a0 a1 b0 b1"


def test_name_servers_that_missed_something_are_not_believed() -> None:
    world = World()
    world.away = {"ns1:1"}
    numbers(world)
    world.topics["T"] = {"a": 4, "b": 2}
    world.away = {"ns2:1"}
    assert numbers(world) == "a0 a1 a2 a3 b0 b1", "nobody can tell"
    world.away = set()
    world.settings = {"ns1:1": {"queues.T": "a:0-2"}, "ns2:1": {"queues.T": "a:0-2;b:0-2"}}
    assert numbers(world) == "a0 a1 b0 b1 a2 a3"
    assert set(world.settings["ns1:1"].values()) == {"a:0-2;b:0-2;a:2-4"}


def test_without_name_servers_nothing_is_numbered() -> None:
    world = World()
    world.away = set(world.settings)
    with pytest.raises(TransportError, match="is away"):
        numbers(world)


def test_a_setting_that_is_none_of_ours_is_said() -> None:
    world = World()
    world.settings["ns1:1"]["queues.T"] = "a=4"
    with pytest.raises(ConfigError, match=r"setting queues.T in SKYLARK .*deleteKvConfig"):
        numbers(world)


@pytest.mark.parametrize(
    ("grow", "expected"),
    [
        (lambda: queues("a0 a1 b0 b1"), {"a": 0, "b": 2}),
        (lambda: queues("a2 a3"), {"a": 0, "b": 2}),
        (lambda: queues("c0"), {"a": 0, "b": 2, "c": 4}),
    ],
)
def test_the_first_number_of_a_broker_never_changes(
    grow: Callable[[], list], expected: dict[str, int]
) -> None:
    cluster = WorldCluster(World())
    runs = noted(cluster, "T", queues("a0 a1 b0 b1"))
    assert next_number(runs) == 4
    runs = noted(cluster, "T", grow())
    assert first_numbers(runs) == expected
    assert noted(cluster, "T", []) == runs


def test_queues_of_one_broker_are_runs() -> None:
    assert noted(WorldCluster(World()), "T", queues("a1 a0 a3 b0")) == [
        Run("a", 0, 2), Run("a", 3, 4), Run("b", 0, 1),
    ]  # fmt: skip
