"""Allocation strategies: tables that agree with RocketMQ's, and what holds for all of them."""

from __future__ import annotations

import hashlib
import pathlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.allocation import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    Sticky,
    allocate_sorted,
    room_of_broker_name,
)
from skylark.model.queue import MessageQueue

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "allocation-4.9.8.txt"


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for number in range(count)]


def clients(count: int) -> list[str]:
    return [f"10.0.0.{number}@{number}" for number in range(1, count + 1)]


def shares(
    strategy: AllocationStrategy, places: list[MessageQueue], ids: list[str]
) -> list[list[int]]:
    return [
        [place.queue_id for place in allocate_sorted(strategy, "g", one, places, ids)]
        for one in ids
    ]


# (queues, clients) → shares, as AllocateMessageQueueAveragely gives them.
@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        (7, 2, [[0, 1, 2, 3], [4, 5, 6]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (3, 2, [[0, 1], [2]]),
        (3, 4, [[0], [1], [2], []]),
        (4, 4, [[0], [1], [2], [3]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (0, 2, [[], []]),
        (1, 3, [[0], [], []]),
    ],
)
def test_averagely_gives_neighbouring_queues(
    count: int, members: int, expected: list[list[int]]
) -> None:
    assert shares(Averagely(), queues(count), clients(members)) == expected


@pytest.mark.parametrize("count", range(20))
@pytest.mark.parametrize("members", range(1, 9))
def test_averagely_agrees_with_the_formula_of_java(count: int, members: int) -> None:
    for index, got in enumerate(shares(Averagely(), queues(count), clients(members))):
        rest = count % members
        if count <= members:
            size = 1
        else:
            size = count // members + (1 if rest > 0 and index < rest else 0)
        start = index * size if rest > 0 and index < rest else index * size + rest
        span = min(size, count - start)
        assert got == [(start + step) % count for step in range(span)]


def test_by_circle_deals_queues_like_cards() -> None:
    assert shares(AveragelyByCircle(), queues(6), clients(3)) == [[0, 3], [1, 4], [2, 5]]
    assert shares(AveragelyByCircle(), queues(2), clients(3)) == [[0], [1], []]


def test_by_config_gives_what_the_configuration_says() -> None:
    chosen = queues(4)[2:]
    assert allocate_sorted(ByConfig(chosen), "g", "x", queues(4), ["x", "y"]) == chosen


def test_by_machine_room_takes_only_brokers_of_its_rooms() -> None:
    places = [*queues(5, "room1@broker-a"), *queues(3, "room2@broker-b"), *queues(2, "broker-c")]
    got = [
        [
            (place.broker_name, place.queue_id)
            for place in allocate_sorted(ByMachineRoom({"room1"}), "g", one, places, clients(3))
        ]
        for one in clients(3)
    ]
    name = "room1@broker-a"
    assert got == [[(name, 0), (name, 3)], [(name, 1), (name, 4)], [(name, 2)]]


def test_consistent_hash_agrees_with_a_ring_of_md5_values() -> None:
    ids = clients(4)
    places = queues(16)
    ring = {
        int(hashlib.md5(f"{one}-{number}".encode()).hexdigest()[:8], 16): one
        for one in ids
        for number in range(10)
    }

    def owner(place: MessageQueue) -> str:
        text = f"MessageQueue [topic=TopicTest, brokerName=broker-a, queueId={place.queue_id}]"
        point = int(hashlib.md5(text.encode()).hexdigest()[:8], 16)
        later = [at for at in ring if at >= point]
        return ring[min(later)] if later else ring[min(ring)]

    for one in ids:
        got = allocate_sorted(ConsistentHash(), "g", one, places, ids)
        assert got == [place for place in places if owner(place) == one]


def test_consistent_hash_needs_a_point_for_each_client() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ConsistentHash(0)


def test_nearby_rooms_keep_to_themselves_and_share_deserted_ones() -> None:
    strategy = MachineRoomNearby(
        Averagely(),
        room_of_queue=room_of_broker_name,
        room_of_client=lambda client_id: client_id.partition("-")[0],
    )
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    ids = ["r1-a", "r1-b", "r2-a"]
    places = [*queues(4, "r1@x"), *queues(2, "r2@y"), *queues(3, "r3@z")]
    got = {
        one: [
            f"{place.broker_name[:2]}/{place.queue_id}"
            for place in allocate_sorted(strategy, "g", one, places, ids)
        ]
        for one in ids
    }
    assert got == {
        "r1-a": ["r1/0", "r1/1", "r3/0"],
        "r1-b": ["r1/2", "r1/3", "r3/1"],
        "r2-a": ["r2/0", "r2/1", "r3/2"],
    }


def test_a_client_that_is_not_listed_gets_nothing() -> None:
    for strategy in (Averagely(), AveragelyByCircle(), ByMachineRoom({"r"}), ConsistentHash()):
        assert allocate_sorted(strategy, "g", "stranger", queues(4), clients(2)) == []


def test_ids_and_queues_are_sorted_as_java_sorts_them() -> None:
    """By UTF-16 units: a character beyond U+FFFF comes before U+FF5E."""
    ids = ["～", "\U0001f600"]
    assert shares(Averagely(), queues(2), ids) == [[1], [0]]


@given(
    count=st.integers(0, 40),
    names=st.sets(
        st.text("abcdefgh0123456789@#.-", min_size=1, max_size=8), min_size=1, max_size=9
    ),
    kind=st.sampled_from([Averagely, AveragelyByCircle, ConsistentHash, Sticky]),
)
def test_every_queue_has_exactly_one_owner(
    count: int, names: set[str], kind: type[AllocationStrategy]
) -> None:
    ids = list(names)
    owned = Counter(
        place for one in ids for place in allocate_sorted(kind(), "g", one, queues(count), ids)
    )
    assert owned == Counter(queues(count))


def _owners(strategy: AllocationStrategy, count: int, ids: list[str]) -> dict[MessageQueue, str]:
    return {
        place: one
        for one in ids
        for place in allocate_sorted(strategy, "g", one, queues(count), ids)
    }


def test_sticky_is_even_and_moves_much_less_than_averagely() -> None:
    moved = {"STICKY": 0, "AVG": 0}
    least = 0
    for seed in range(20):
        rng = random.Random(seed)
        ids = [f"10.0.{rng.randrange(256)}.{n}@{rng.randrange(10**9)}" for n in range(8)]
        rng.shuffle(ids)
        for strategy in (Sticky(), Averagely()):
            before = _owners(strategy, 32, ids[:1])
            for size in range(2, 9):
                after = _owners(strategy, 32, ids[:size])
                counts = Counter(after.values())
                assert max(counts.values()) - min(counts.values()) <= 1
                moved[strategy.name] += sum(before[place] != after[place] for place in after)
                before = after
        least += sum(32 // size for size in range(2, 9))
    assert moved["STICKY"] < least * 1.35
    assert moved["STICKY"] < moved["AVG"] * 0.75


def test_shares_are_those_that_java_gives() -> None:
    strategies = {one.name: one for one in (Averagely(), AveragelyByCircle(), ConsistentHash())}
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 60
    for line in lines:
        name, count, members, client_id, *expected = line.split()
        ids = [f"10.0.0.{n}@{n * 7919}#{n * 1234567}" for n in range(int(members))]
        places = [*queues(int(count)), *queues(int(count), "broker-b")]
        got = allocate_sorted(strategies[name], "g", client_id, places, ids)
        assert [f"{place.broker_name}/{place.queue_id}" for place in got] == expected
