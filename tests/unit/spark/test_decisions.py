"""Deciding, against brokers that take their time or do not know what they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sink_world import World, WorldCluster

from skylark.errors import BrokerError, CallTimeout
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.spark import cluster as clusters
from skylark.spark.transactions import Decisions, Staged

RETRY_MS = 10_000
ROWS = Staged("sink", 0, 0, "x", {"a": 1_000}, "query")


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [0.0]
    monkeypatch.setattr(clusters.time, "monotonic", lambda: found[0])
    monkeypatch.setattr(clusters.time, "sleep", lambda s: found.__setitem__(0, found[0] + s))
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


def decide(world: World, staged: Staged = ROWS) -> None:
    Decisions(WorldCluster(world, retry_ms=RETRY_MS)).decide([staged])


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
