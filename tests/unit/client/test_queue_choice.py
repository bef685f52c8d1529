"""Which queue is next."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from skylark.client.queue_choice import (
    PublishInfo,
    hash_position,
    select_by_hash,
    select_by_random,
)
from skylark.model.message import Message
from skylark.model.queue import MessageQueue
from skylark.model.route import BrokerData, QueueData, TopicRoute


def route(*names: str, count: int = 4, perm: int = 6, order_conf: str | None = None) -> TopicRoute:
    return TopicRoute(
        tuple(BrokerData("c", name, {0: f"{name}:1"}) for name in names),
        tuple(QueueData(name, count, count, perm) for name in names),
        order_conf,
    )


def info(given: TopicRoute, **options: int) -> PublishInfo:
    return PublishInfo("T", given, random.Random(5), **options)


def test_all_queues_have_their_turn_again_and_again() -> None:
    chosen = Counter(info(route("a", "b")).next() for _ in range(1))
    table = info(route("a", "b"))
    chosen = Counter(table.next() for _ in range(8_000))
    assert len(chosen) == 8
    assert all(abs(count - 1_000) <= 1 for count in chosen.values())


def test_the_first_turn_is_random() -> None:
    firsts = {PublishInfo("T", route("a"), random.Random(n)).next().queue_id for n in range(50)}
    assert firsts == {0, 1, 2, 3}


def test_the_broker_that_failed_is_avoided_where_there_is_another() -> None:
    table = info(route("a", "b"))
    assert all(table.next(avoid="a").broker_name == "b" for _ in range(20))
    alone = info(route("a"))
    assert {alone.next(avoid="a").queue_id for _ in range(4)} == {0, 1, 2, 3}


def test_without_a_failure_nobody_is_avoided() -> None:
    table = info(route("a", "b"))
    assert {table.next().broker_name for _ in range(8)} == {"a", "b"}


def test_only_writable_queues_of_brokers_with_a_master_count() -> None:
    given = TopicRoute(
        (
            BrokerData("c", "good", {0: "g:1"}),
            BrokerData("c", "replica", {1: "r:1"}),
            BrokerData("c", "read-only", {0: "o:1"}),
        ),
        (
            QueueData("good", 8, 2, 6),
            QueueData("replica", 4, 4, 6),
            QueueData("read-only", 4, 4, 4),
            QueueData("not listed", 4, 4, 6),
        ),
    )
    assert info(given).queues == (MessageQueue("T", "good", 0), MessageQueue("T", "good", 1))
    assert info(given).addresses == {"good": "g:1", "read-only": "o:1"}


def test_a_borrowed_route_has_at_most_the_queues_that_will_be_created() -> None:
    assert len(info(route("a", count=8), queue_count_max=4).queues) == 4
    assert len(info(route("a", count=2), queue_count_max=4).queues) == 2


def test_an_ordered_topic_keeps_its_queues_whichever_brokers_are_there() -> None:
    table = info(route("a", order_conf="a:2;b:3; ;broken"))
    assert [(queue.broker_name, queue.queue_id) for queue in table.queues] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    ]


@pytest.mark.parametrize(("key", "count"), [("order-1", 8), ("", 3), ("标签", 5), ("x" * 99, 7)])
def test_a_key_has_one_place(key: str, count: int) -> None:
    assert hash_position(key, count) == hash_position(key, count)
    assert 0 <= hash_position(key, count) < count


def test_keys_are_placed_as_java_does() -> None:
    # "TagA".hashCode() = 2598919, "polygenelubricants".hashCode() = Integer.MIN_VALUE.
    assert hash_position("TagA", 8) == 2_598_919 % 8
    assert hash_position("polygenelubricants", 7) == 2**31 % 7
    # "TagA" * 3 hashes below zero: Java takes the remainder first and its absolute value then.
    queues = [MessageQueue("T", "a", n) for n in range(5)]
    message = Message("T", b"x")
    assert select_by_hash(queues, message, 12) == select_by_hash(queues, message, "12")


def test_any_queue_may_be_chosen_at_random() -> None:
    queues = [MessageQueue("T", "a", n) for n in range(3)]
    select = select_by_random(random.Random(1))
    assert {select(queues, Message("T", b"x"), None) for _ in range(50)} == set(queues)
