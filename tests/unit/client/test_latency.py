"""LatencyTable: who is left alone, for how long, and who is used all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from send_world import TOPIC, World

from skylark.client.latency import POLICIES, POLICY_4_9, POLICY_5, LatencyPolicy, LatencyTable
from skylark.errors import ConfigError
from skylark.model.message import Message
from skylark.testing import SimClock, SimLoop
from skylark.testing.fake_broker import Delay


@pytest.fixture
def clock() -> Iterator[SimClock]:
    loop = SimLoop()
    yield SimClock(loop)
    loop.close()


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [
        (0, 0),
        (549, 0),
        (550, 30_000),
        (999, 30_000),
        (1_000, 60_000),
        (2_000, 120_000),
        (3_000, 180_000),
        (14_999, 180_000),
        (15_000, 600_000),
        (10**9, 600_000),
    ],
)
def test_the_table_of_4_9_8(latency_ms: int, pause_ms: int) -> None:
    assert POLICY_4_9.pause_for(latency_ms) == pause_ms


def test_the_table_of_5_x_forgives_sooner() -> None:
    assert [POLICY_5.pause_for(ms) for ms in (550, 1_800, 3_000, 5_000, 15_000)] == [
        2_000,
        5_000,
        6_000,
        10_000,
        30_000,
    ]
    assert POLICY_5.failure_pause_ms == 10_000
    assert POLICIES == {"4.9": POLICY_4_9, "5.x": POLICY_5}


def test_a_table_that_makes_no_sense_is_refused() -> None:
    for settings in (
        {"latency_ms": (), "pause_ms": ()},
        {"latency_ms": (1, 2), "pause_ms": (0,)},
        {"latency_ms": (2, 1), "pause_ms": (0, 0)},
        {"latency_ms": (1,), "pause_ms": (-1,)},
    ):
        with pytest.raises(ConfigError):
            LatencyPolicy(**settings)


def test_a_slow_broker_is_paused_and_comes_back(clock: SimClock) -> None:
    table = LatencyTable(POLICY_4_9, clock, random.Random(1))
    table.update("a", 600)
    assert not table.is_available("a")
    assert table.is_available("never seen")
    clock._loop.run_for(29_999)
    assert not table.is_available("a")
    clock._loop.run_for(1)
    assert table.is_available("a")


def test_a_quick_answer_ends_a_pause(clock: SimClock) -> None:
    table = LatencyTable(POLICY_4_9, clock, random.Random(1))
    table.update("a", 600)
    table.update("a", 5)
    assert table.is_available("a")


def test_a_failure_pauses_for_30_seconds(clock: SimClock) -> None:
    table = LatencyTable(POLICY_4_9, clock, random.Random(1))
    table.update("a", 1, failed=True)
    clock._loop.run_for(29_999)
    assert not table.is_available("a")
    clock._loop.run_for(1)
    assert table.is_available("a")


def test_a_jump_of_the_wall_clock_ends_no_pause(clock: SimClock) -> None:
    table = LatencyTable(POLICY_4_9, clock, random.Random(1))
    table.update("a", 600)
    clock.jump_ms(3_600_000)
    assert not table.is_available("a")


def test_of_bad_brokers_one_of_the_better_half_is_picked(clock: SimClock) -> None:
    table = LatencyTable(POLICY_4_9, clock, random.Random(1))
    assert table.pick_one_at_least() is None
    for name, latency_ms in (("a", 600), ("b", 700), ("c", 16_000), ("d", 20_000)):
        table.update(name, latency_ms)
    picked = {table.pick_one_at_least() for _ in range(20)}
    assert picked == {"a", "b"}
    for name in ("a", "b", "d"):
        table.remove(name)
    assert table.pick_one_at_least() == "c"


def test_a_producer_leaves_a_slow_broker_alone_for_30_seconds() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        settings = {"send_latency_fault_enable": True}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            slow = (await producer.send(Message(TOPIC, b"x"))).queue.broker_name
            broker = next(one for one in world.brokers if one.name == slow)
            broker.script.append(Delay(600))
            await producer.send(Message(TOPIC, b"x"))
            table = producer.latency_table
            assert table is not None
            assert not table.is_available(slow)
            seen = len(broker.seen)
            for _ in range(16):
                await producer.send(Message(TOPIC, b"x"))
            assert len(broker.seen) == seen
            await world.clock.sleep_ms(30_000)
            for _ in range(8):
                await producer.send(Message(TOPIC, b"x"))
            assert len(broker.seen) > seen

    world.run(scenario)


def test_a_producer_sends_even_if_all_brokers_are_paused() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        settings = {"send_latency_fault_enable": True}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            for broker in world.brokers:
                broker.script.append(Delay(700))
            for _ in range(2):
                await producer.send(Message(TOPIC, b"x"))
            table = producer.latency_table
            assert table is not None
            assert not any(table.is_available(broker.name) for broker in world.brokers)
            for _ in range(4):
                await producer.send(Message(TOPIC, b"x"))

    world.run(scenario)


def test_without_the_switch_a_slow_broker_keeps_its_turn() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop") as producer:
            assert producer.latency_table is None
            world.brokers[0].script.extend([Delay(700)] * 8)
            for _ in range(16):
                await producer.send(Message(TOPIC, b"x"))
            assert len(world.brokers[0].seen) == 8

    world.run(scenario)
