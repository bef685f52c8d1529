"""The history checkers over recorded runs of the real code, with a bug planted in it.

Beside tests/unit/prove, where the same is done to histories by hand: here the bug is in a broker,
and time is virtual; what clients recorded must show it. Without the bug, each run is clean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import test_replication_planted as plants
from proof_world import SHAPE, ProofWorld, nothing, proven
from test_reliability_classes import NoLuck

from skylark.broker.delay import DelayService
from skylark.broker.locks import QueueLocks
from skylark.broker.offsets import ConsumerOffsets
from skylark.store import recovery
from skylark.store.flush_work import FlushWork
from skylark.store.message_store import MessageStore

Patch = pytest.MonkeyPatch
BUSY = dataclasses.replace(SHAPE, senders=4, gap_ms=4, delays=False)


# Faults.


async def killed(world: ProofWorld) -> None:
    """kill -9, and started again."""
    end = world.begin("kill", world.master)
    world.master.crash(reset=True)
    await _start(world)
    end()


async def power_cut(world: ProofWorld) -> None:
    """A disk that keeps nothing but what was synced."""
    end = world.begin("power-cut", world.master)
    world.master._disk_rng = NoLuck()  # type: ignore[assignment]
    world.master.crash()
    await _start(world)
    end()


async def disk_lost_with_a_replica_away(world: ProofWorld) -> None:
    """The replica sees nothing for a while; then the master's disk is gone."""
    (replica,) = world.replicas
    cut = world.cluster.network.isolate([replica.name])
    await world.cluster.clock.sleep_ms(1_000)
    cut.heal()
    await _lose_disk(world)


async def disk_lost(world: ProofWorld) -> None:
    await _lose_disk(world)


async def _lose_disk(world: ProofWorld) -> None:
    end = world.begin("disk-lost", world.master)
    world.master.crash()
    world.lose_disk(world.master)
    await _start(world)
    end()


async def _start(world: ProofWorld) -> None:
    await world.cluster.clock.sleep_ms(200)
    world.master.start()
    await world.wait_serving(world.master)


# Bugs.


def ack_before_flush(patch: Patch) -> None:
    patch.setattr(FlushWork, "run", lambda work: work.save() if work.save is not None else None)


def dispatch_past_flush(patch: Patch) -> None:
    real = MessageStore._after_append

    def after_append(store: MessageStore, stored_at_ms: int) -> None:
        real(store, stored_at_ms)
        store.dispatch()

    patch.setattr(MessageStore, "visible_end", property(lambda store: store.log.committed))
    patch.setattr(MessageStore, "_after_append", after_append)


def forget_the_tail(patch: Patch) -> None:
    def no_build(store: MessageStore, log_end: int, *_: Any) -> None:
        store.dispatcher.position = log_end

    patch.setattr(recovery, "_build", no_build)


def forget_offsets(patch: Patch) -> None:
    patch.setattr(ConsumerOffsets, "load", lambda self: None)


def give_locks_to_all(patch: Patch) -> None:
    patch.setattr(QueueLocks, "lock", lambda self, group, client, queues: tuple(queues))


def one_offset_twice(patch: Patch) -> None:
    """The second of two producers is told the offset that the first one got."""
    real = MessageStore.put
    count = 0

    def put(store: MessageStore, messages: Any) -> Any:
        nonlocal count
        count += 1
        results = real(store, messages)
        if count % 20 == 0 and messages[-1].topic == "Proof" and results[-1].queue_offset > 0:
            results[-1] = results[-1]._replace(queue_offset=results[-1].queue_offset - 1)
        return results

    patch.setattr(MessageStore, "put", put)


def _changed_puts(patch: Patch, change: Callable[[int, Any], list[Any]]) -> None:
    """Let every message of the workload go through a change on its way to the log."""
    real = MessageStore.put
    count = 0

    def put(store: MessageStore, messages: Any) -> Any:
        nonlocal count
        results = []
        for message in messages:
            if message.topic == "Proof":
                count += 1
                results.append(real(store, change(count, message))[0])
            else:
                results += real(store, [message])
        return results

    patch.setattr(MessageStore, "put", put)


def store_twice(patch: Patch) -> None:
    _changed_puts(patch, lambda n, message: [message] * (2 if n % 30 == 0 else 1))


def mix_bodies(patch: Patch) -> None:
    last = [b""]

    def change(number: int, message: Any) -> list[Any]:
        body = bytes(message.body)
        other, last[0] = last[0], body
        if number % 30 or len(other) < 24:
            return [message]
        return [message._replace(body=body[:16] + other[16:])]

    _changed_puts(patch, change)


def read_past_one(patch: Patch) -> None:
    real = MessageStore.get
    count = 0

    def get(store: Any, topic: str, queue_id: int, offset: int, *rest: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        found = real(store, topic, queue_id, offset, *rest, **more)
        if count % 7 == 0 and topic == "Proof" and found.message_count > 1:
            return real(store, topic, queue_id, offset + 1, *rest, **more)
        return found

    patch.setattr(MessageStore, "get", get)


def deliver_at_once(patch: Patch) -> None:
    patch.setattr(DelayService, "_due_ms", lambda self, *_: 0)


def end_of_yesterday(patch: Patch) -> None:
    real = MessageStore.max_offset
    patch.setattr(MessageStore, "max_offset", lambda self, *where: max(0, real(self, *where) - 3))


class Planted(NamedTuple):
    """A bug, the run that shows it, and what must be found by whom."""

    name: str
    plant: Callable[[Patch], None]
    strike: Callable[[ProofWorld], Any]
    found: tuple[str, str]
    settings: dict[str, Any]


ALONE = {"replicas": 0, "role": "ASYNC_MASTER"}
SYNC = {**ALONE, "flush_disk_type": "SYNC_FLUSH"}
BUGS = [
    Planted("acknowledged before the flush", ack_before_flush, power_cut, ("lost", "set"), SYNC),
    Planted(
        "dispatched past the flush (D2)",
        dispatch_past_flush,
        power_cut,
        ("vanished", "set"),
        {**SYNC, "disk_latency_ms": 20, "shape": BUSY},
    ),
    Planted("tail not dispatched again (D3)", forget_the_tail, killed, ("lost", "set"), ALONE),
    Planted(
        "answered without the replica",
        plants.answer_without_the_replica,
        disk_lost_with_a_replica_away,
        ("lost", "set"),
        {},
    ),
    Planted("replicas are not asked", plants.never_ask_replicas, disk_lost, ("lost", "set"), {}),
    Planted(
        "only lengths are compared (H3)",
        plants.compare_lengths_only,
        power_cut,
        ("replica-divergence", "replicas"),
        {
            "role": "ASYNC_MASTER",
            "ha_recover_from_slave": False,
            "rules": {"loss_power": 12_000, "vanish_power": 1},
        },
    ),
    Planted(
        "offset 0 where none is found (O1)",
        forget_offsets,
        killed,
        ("offset-regression", "offsets"),
        {**ALONE, "flush_consumer_offset_interval": 200, "rules": {"forget_ms": 600}},
    ),
    Planted(
        "a lock for everybody",
        give_locks_to_all,
        nothing,
        ("double-lock-owner", "locks"),
        ALONE,
    ),
    Planted(
        "one offset for two (R6)",
        one_offset_twice,
        nothing,
        ("inconsistent-offsets", "offsets"),
        ALONE,
    ),
    Planted("stored twice", store_twice, nothing, ("duplicate", "set"), ALONE),
    Planted("bodies mixed (D6)", mix_bodies, nothing, ("content-mismatch", "set"), ALONE),
    Planted(
        "an answer starts too late", read_past_one, nothing, ("poll-skip-external", "order"), ALONE
    ),
    Planted("delivered at once", deliver_at_once, nothing, ("early-delivery", "delivery"), ALONE),
    Planted("the end of a while ago", end_of_yesterday, nothing, ("stale-read", "appends"), ALONE),
]


def run(bug: Planted) -> list[tuple[str, str]]:
    verdict = proven(5, bug.strike, for_ms=1_800, **bug.settings)
    assert verdict.figures.acknowledged > 50
    return [(one.kind, one.checker) for one in verdict.anomalies]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_planted_in_the_broker_shows_in_the_history(
    bug: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.plant(monkeypatch)
    assert bug.found in run(bug)


RUNS = {
    f"{bug.strike.__name__} {sorted(bug.settings)}": bug for bug in BUGS
}  # Each run once, without a bug.


@pytest.mark.parametrize("name", RUNS)
def test_without_a_bug_the_history_is_clean(name: str) -> None:
    assert run(RUNS[name]) == []


@pytest.mark.parametrize("seed", [2])
def test_a_group_leaves_nothing_out_when_a_power_cut_took_the_end_of_its_queues(seed: int) -> None:
    """The queue grows over the lost offsets before the group asks; it must not stand there."""
    rules = {"loss_power": 12_000, "vanish_power": 1}
    verdict = proven(
        seed,
        power_cut,
        for_ms=3_000,
        rules=rules,
        shape=BUSY,
        flush_consumer_offset_interval=100,
        **ALONE,
    )
    assert verdict.figures.lost_as_allowed > 0
    assert [(one.kind, one.example) for one in verdict.anomalies] == []
