"""Deciding, against brokers that take their time or do not know what they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sink_world import World, WorldCluster

from skylark.errors import BrokerError, CallTimeout, ConfigError, TransportError
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.spark import cluster as clusters
from skylark.spark.transactions import Decisions, Staged

RETRY_MS = 10_000
ROWS = Staged("sink", 0, 0, "x", {"a": 1_000}, "query")


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: found[0], sleep=lambda s: found.__setitem__(0, found[0] + s)
    )
    monkeypatch.setattr(clusters, "time", clock)
    return found


class Deciding(World):
    """Brokers with decisions."""

    def __init__(self, brokers: str = "a") -> None:
        super().__init__(brokers)
        self.known: dict[str, dict[str, Any]] = {}  # Broker → what it says about any sink.
        self.decide: Callable[[str], None] = lambda name: None
        self.asked: list[tuple[str, int]] = []

    def answer(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Any:
        if address in self.settings:
            return super().answer(address, code, fields, body)
        name = address.partition(":")[0]
        self.asked.append((name, code))
        answer = Command.request(code).reply(ResponseCode.SUCCESS)
        if code == RequestCode.GET_DECISION:
            answer.body = json.dumps(self.known.get(name, {})).encode()
        elif code == RequestCode.DECIDE_ROWS:
            self.known.setdefault(name, json.loads(body))
            self.decide(name)
            answer.body = json.dumps(self.known[name]).encode()
        return answer


def decide(world: World, *staged: Staged, plan: str = "") -> None:
    Decisions(WorldCluster(world, retry_ms=RETRY_MS)).decide(staged or [ROWS], plan)


@pytest.mark.parametrize("pattern", ["copied", "copied, late", "late, copied"])
def test_a_decision_may_take_as_long_as_rows_are_copied(pattern: str, now: list[float]) -> None:
    world = Deciding()
    answers = pattern.split(", ") * 40
    rows = 0

    def some(name: str) -> None:
        nonlocal rows
        if answers:
            rows += 100
            if answers.pop(0) == "late":
                now[0] += 2 * RETRY_MS / 1000
                raise CallTimeout(f"{name}:1", 2 * RETRY_MS)
            now[0] += 2.0
            remark = f"[BUSY]the decision stands, copied {rows} rows so far"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, remark, f"{name}:1")

    world.decide = some
    decide(world)
    assert not answers
    assert now[0] > 80


@pytest.mark.parametrize("kind", ["copied", "late", "other"])
def test_a_decision_that_does_not_get_on_is_given_up(kind: str, now: list[float]) -> None:
    def stuck(name: str) -> None:
        now[0] += 2.0
        if kind == "late":
            raise CallTimeout(f"{name}:1", 2_000)
        number = 100 if kind == "copied" else int(now[0])
        word = "copied" if kind == "copied" else "seen"
        remark = f"[BUSY]the decision stands, {word} {number} rows so far"
        raise BrokerError(ResponseCode.SYSTEM_BUSY, remark, f"{name}:1")

    world = Deciding()
    world.decide = stuck
    with pytest.raises((BrokerError, CallTimeout)):
        decide(world)
    assert RETRY_MS / 1000 - 4 < now[0] < 2 * RETRY_MS / 1000 + 4


# What was planned, and what was decided.

OF_TWO = Staged("sink", 0, 0, "x", {"a": 1, "b": 2}, "query")
FOUND_DECIDED = Staged("sink", 0, 0, "", {}, "query")


@pytest.mark.parametrize("again", [OF_TWO, FOUND_DECIDED])
@pytest.mark.parametrize("plan", ["of-now", ""])
def test_a_batch_that_comes_again_as_it_was_planned_is_finished(again: Staged, plan: str) -> None:
    world = Deciding("ab")
    decide(world, OF_TWO, plan="of-now")
    assert {known["plan"] for known in world.known.values()} == {"of-now"}
    assert len(world.known) == 2
    world.known.pop("b")  # The driver died before it had told all.
    decide(world, again, plan=plan)
    assert world.known["b"]["tasks"] == {"0": ["x", 2]}


@pytest.mark.parametrize("again", [OF_TWO, FOUND_DECIDED])
def test_another_plan_than_was_decided_is_refused_once_that_is_finished(again: Staged) -> None:
    world = Deciding("ab")
    decide(world, OF_TWO, plan="before-the-power-cut")
    world.known.pop("b")
    with pytest.raises(ConfigError, match=r"option checkpointLocation: micro-batch 0 of sink sink"):
        decide(world, again, plan="of-an-older-copy")
    assert world.known["b"]["plan"] == "before-the-power-cut", "those rows are there, as it says"


def test_a_decision_of_a_former_version_says_nothing_of_its_plan() -> None:
    world = Deciding()
    decide(world, plan="")
    assert "plan" not in world.known["a"]
    decide(world, plan="of-now")


def test_a_broker_that_is_away_is_named_with_what_it_has() -> None:
    world = Deciding("ab")
    decide(world, OF_TWO)
    for name, has in (("b", "has rows of this micro-batch"), ("a", "keeps the decisions")):
        world.there = {"a", "b"} - {name}
        with pytest.raises(TransportError, match=has) as caught:
            decide(world, OF_TWO)
        assert caught.value.address == name
