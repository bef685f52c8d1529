"""Topics, groups, routes and queues as values."""

import pytest

from skylark.model import (
    BrokerData,
    ConsumeFromWhere,
    ConsumeType,
    DataVersion,
    MessageModel,
    MessageQueue,
    Permission,
    QueueData,
    TopicConfig,
    TopicFilterType,
    TopicRoute,
)
from skylark.model.group import RESERVED_GROUPS, is_system_group
from skylark.model.topic import (
    UNSENDABLE_TOPICS,
    dlq_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    perm_text,
    reply_topic,
    retry_topic,
)


def test_queues_sort_by_topic_then_broker_then_id() -> None:
    queues = [
        MessageQueue("T", "b", 10),
        MessageQueue("T", "b", 2),
        MessageQueue("T", "a", 3),
        MessageQueue("S", "z", 9),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
    assert len({*queues, MessageQueue("T", "b", 10)}) == 4


@pytest.mark.parametrize(
    ("perm", "readable", "writable", "inherited", "text"),
    [
        (0, False, False, False, "---"),
        (1, False, False, True, "--X"),
        (2, False, True, False, "-W-"),
        (4, True, False, False, "R--"),
        (6, True, True, False, "RW-"),
        (7, True, True, True, "RWX"),
        (8, False, False, False, "---"),
    ],
)
def test_permission_bits_are_read_one_by_one(
    perm: int, readable: bool, writable: bool, inherited: bool, text: str
) -> None:
    topic = TopicConfig("T", perm=perm)
    queue = QueueData("b", 4, 4, perm)
    assert (topic.is_readable, topic.is_writable, topic.is_inherited) == (
        readable,
        writable,
        inherited,
    )
    assert (queue.is_readable, queue.is_writable) == (readable, writable)
    assert perm_text(perm) == text


def test_a_new_topic_has_the_defaults_of_java() -> None:
    topic = TopicConfig("T")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (16, 16, 6)
    assert topic.perm == Permission.READ | Permission.WRITE
    assert topic.filter_type is TopicFilterType.SINGLE_TAG
    assert (topic.sys_flag, topic.order) == (0, False)


def test_ordinals_of_the_enums_are_those_on_the_wire() -> None:
    assert [kind.name for kind in ConsumeType] == ["CONSUME_ACTIVELY", "CONSUME_PASSIVELY"]
    assert [model.name for model in MessageModel] == ["BROADCASTING", "CLUSTERING"]
    assert [where.name for where in ConsumeFromWhere] == [
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]


def test_topics_with_a_meaning_are_known_by_name() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dlq_topic("g") == "%DLQ%g"
    assert reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"
    assert is_retry_topic("%RETRY%g")
    assert not is_retry_topic("g%RETRY%")
    assert is_dlq_topic("%DLQ%g")
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("RMQ_SYS_anything")
    assert not is_system_topic("T")
    assert all(map(is_system_topic, UNSENDABLE_TOPICS))
    assert "TBW102" not in UNSENDABLE_TOPICS


def test_groups_of_the_system_are_known_by_name() -> None:
    assert len(RESERVED_GROUPS) == 7
    assert all(is_system_group(group) for group in RESERVED_GROUPS)
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("billing")


def test_a_broker_is_reached_at_its_master_or_else_at_its_first_replica() -> None:
    broker = BrokerData("c", "b", {2: "x:2", 0: "x:0", 1: "x:1"})
    assert broker.master_address == "x:0"
    assert broker.any_address() == "x:0"
    headless = BrokerData("c", "b", {2: "x:2", 1: "x:1"})
    assert headless.master_address is None
    assert headless.any_address() == "x:1"
    assert BrokerData("c", "b").any_address() is None


def test_a_route_finds_its_brokers_by_name() -> None:
    broker = BrokerData("c", "b", {0: "x:0"})
    route = TopicRoute(brokers=(BrokerData("c", "a"), broker))
    assert route.broker("b") is broker
    assert route.broker("z") is None


def test_the_next_data_version_is_later_and_differs() -> None:
    first = DataVersion(timestamp=5, counter=0)
    assert first.next(9) == DataVersion(timestamp=9, counter=1)
    assert first.next(5) != first
