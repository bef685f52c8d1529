"""Mirror and replay: which queue a copy goes to, and which clusters are one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("pyspark")

from sink_world import World, WorldCluster, queues

from skylark.errors import ConfigError
from skylark.spark import mirror, replay
from skylark.spark.mirror import Copies
from skylark.spark.mirror import mirror as start


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> dict[str, World]:
    """Clusters by what their name servers are called."""
    found: dict[str, World] = {}

    @contextmanager
    def asking(namesrv: str, topic: str = "", options: object = None) -> Iterator[WorldCluster]:
        yield WorldCluster(found[namesrv])

    monkeypatch.setattr(mirror, "_asking", asking)
    return found


def copies(worlds: dict[str, World]) -> Copies:
    return Copies.plan("T", namesrv="from:1", target="T", to="to:1")


def numbers(plan: Copies, text: str) -> list[int]:
    """What the SQL says of queues, as `a0 b1`."""
    case = re.fullmatch(
        r"cast\(\(case broker(.*) else (\d+) end \+ queue_id\) % (\d+) as int\)", plan.queue_id()
    )
    assert case is not None, plan.queue_id()
    firsts = dict(re.findall(r" when '(.*?)' then (\d+)", case[1]))
    return [
        (int(firsts.get(queue.broker, case[2])) + queue.queue_id) % int(case[3])
        for queue in queues(text)
    ]


def test_copies_go_to_all_brokers_of_the_target(worlds: dict[str, World]) -> None:
    worlds.update({"from:1": World("ab"), "to:1": World("xy")})
    assert numbers(copies(worlds), "a0 a1 b0 b1") == [0, 1, 2, 3]
    worlds["to:1"].topics["T"] = {"x": 3}
    worlds["to:1"].settings["ns1:1"].clear()
    worlds["to:1"].settings["ns2:1"].clear()
    assert numbers(copies(worlds), "a0 a1 b0 b1") == [0, 1, 2, 0]


def test_no_queue_moves_when_the_source_gets_more(worlds: dict[str, World]) -> None:
    worlds.update({"from:1": World("bc"), "to:1": World("wxyz")})
    running = copies(worlds)
    worlds["from:1"].topics["T"] = {"a": 2, "b": 8, "c": 8}
    worlds["from:1"].there.add("a")
    again = copies(worlds)
    everything = "b0 b1 c0 c1 b2 b7 c2 c7 a0 a1"
    assert numbers(again, everything) == numbers(running, everything)


def test_no_queue_moves_while_brokers_are_away(worlds: dict[str, World]) -> None:
    worlds.update({"from:1": World("ab"), "to:1": World("xy")})
    before = copies(worlds)
    worlds["to:1"].there.remove("x")
    worlds["from:1"].there.remove("a")
    assert copies(worlds) == before


def test_a_topic_of_which_only_the_archive_is_left_has_numbers(worlds: dict[str, World]) -> None:
    worlds.update({"from:1": World("a"), "to:1": World("xy")})
    worlds["from:1"].topics.clear()
    assert copies(worlds).queue_id() == "cast((0 + queue_id) % 4 as int)"


def test_names_are_quoted() -> None:
    assert Copies({"it's\\": 0}, 2, 4).queue_id().startswith(r"cast((case broker when 'it\'s\\' ")


def test_a_cluster_is_known_by_its_brokers(worlds: dict[str, World]) -> None:
    worlds.update({"localhost:1": World("ab"), "other:1": World("xy")})
    worlds["127.0.0.1:1"] = worlds["localhost:1"]
    assert mirror.is_same_cluster("nobody:1", "nobody:1")
    assert mirror.is_same_cluster("localhost:1", "127.0.0.1:1")
    assert not mirror.is_same_cluster("localhost:1", "other:1")


def test_a_topic_is_not_mirrored_to_itself(worlds: dict[str, World]) -> None:
    worlds["localhost:1"] = worlds["127.0.0.1:1"] = World("ab")
    for as_topic in (None, "T"):
        with pytest.raises(ConfigError, match="topic T cannot be copied to itself"):
            mirror.mirror(
                None, "T", namesrv="localhost:1", to="127.0.0.1:1", checkpoint="", as_topic=as_topic
            )  # type: ignore[arg-type]


def test_a_replay_knows_its_own_cluster(worlds: dict[str, World]) -> None:
    worlds.update({"localhost:1": World("ab"), "other:1": World("xy")})
    worlds["127.0.0.1:1"] = worlds["localhost:1"]

    def onto(to: str, where: str) -> bool:
        return replay.Selection("T", to, "localhost:1", where).is_onto_itself

    assert onto("T", "localhost:1")
    assert onto("T", "127.0.0.1:1")
    assert not onto("T", "other:1")
    assert not onto("U", "nobody:1")


def test_what_would_be_sent_without_a_body_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"option bodyMode=permissive: .*dropmalformed"):
        start(
            None, "T", namesrv="a:1", to="b:1", checkpoint="c",  # type: ignore[arg-type]
            options={"BodyMode": "permissive"},
        )  # fmt: skip
