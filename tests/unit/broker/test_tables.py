"""The saved tables, topics, groups, and who may make them."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.broker.config import BrokerConfig
from skylark.broker.groups import GroupTable
from skylark.broker.saved_table import SavedTable
from skylark.broker.topics import TopicTable
from skylark.errors import BrokerError, CorruptRecord, InvalidName, StoreError
from skylark.model.group import SubscriptionGroupConfig
from skylark.model.topic import TopicConfig
from skylark.protocol.bodies import DelayOffsetTable, TopicConfigTable
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock

TOPICS = "/store/config/topics.json"
GROUPS = "/store/config/subscriptionGroup.json"


def _topics(files: SimFiles, **settings: Any) -> TopicTable:
    config = BrokerConfig(broker_name="broker-a", **settings)
    table = TopicTable(config, TOPICS, files, HandClock())
    table.load()
    return table


def _groups(files: SimFiles, *, may_create: bool = True) -> GroupTable:
    table = GroupTable(GROUPS, files, HandClock(), may_create=lambda: may_create)
    table.load()
    return table


def test_a_new_broker_has_the_topics_that_clients_and_tools_expect() -> None:
    table = _topics(SimFiles())
    shown = {
        name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        for name, topic in table.topics.items()
    }
    assert shown == {
        "TBW102": (8, 8, 7),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
    }
    assert all(table.is_system(name) for name in shown)
    assert not table.is_system("Mine")


def test_settings_decide_which_built_in_topics_there_are() -> None:
    table = _topics(
        SimFiles(),
        auto_create_topic_enable=False,
        trace_topic_enable=True,
        cluster_topic_enable=False,
        broker_topic_enable=False,
    )
    assert "TBW102" not in table.topics
    assert "RMQ_SYS_TRACE_TOPIC" in table.topics
    assert table.topics["DefaultCluster"].perm == 1
    assert table.topics["broker-a"].perm == 1


def test_every_change_is_on_the_disk_before_it_is_answered_and_has_a_new_version() -> None:
    files = SimFiles()
    table = _topics(files)
    changes: list[str] = []
    table.on_change = lambda topics: changes.extend(topic.name for topic in topics)
    before = table.version
    table.put(TopicConfig("T", 3, 2))
    assert table.version.counter == before.counter + 1
    assert changes == ["T"]
    again = _topics(files)
    assert again.topics["T"] == TopicConfig("T", 3, 2)
    assert again.version == table.version
    table.put(TopicConfig("T", 3, 2))
    assert table.version.counter == before.counter + 1
    assert table.delete("T")
    assert not table.delete("T")
    assert "T" not in _topics(files).topics


def test_a_change_that_cannot_be_saved_is_not_made() -> None:
    files = SimFiles()
    table = _topics(files)
    version = table.version
    files.fail("write", "*topics.json*", times=None)
    with pytest.raises(StoreError):
        table.put(TopicConfig("T"))
    assert "T" not in table.topics
    assert table.version == version


@pytest.mark.parametrize("nums", [0, -1, 4_097, 2**31 - 1])
def test_a_topic_has_a_sensible_number_of_queues(nums: int) -> None:
    with pytest.raises(BrokerError, match="topicQueueNumsMax"):
        _topics(SimFiles()).put(TopicConfig("T", nums, 1))


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 128, "a\x00", "ẞ"])
def test_a_topic_has_a_name_that_can_be_a_directory(name: str) -> None:
    with pytest.raises(InvalidName):
        _topics(SimFiles()).put(TopicConfig(name))


def test_order_settings_of_the_name_server_mark_topics() -> None:
    table = _topics(SimFiles())
    table.put(TopicConfig("Ordered"))
    table.put(TopicConfig("Was", order=True))
    table.apply_order_conf({"Ordered": "broker-a:4", "Unknown": "broker-a:4"})
    assert table.topics["Ordered"].order
    assert not table.topics["Was"].order
    version = table.version
    table.apply_order_conf({"Ordered": "broker-a:8"})
    assert table.version == version


def test_a_topic_file_of_rocketmq_is_read() -> None:
    files = SimFiles()
    files.make_directory("/store/config")
    files.replace(
        TOPICS,
        b'{"dataVersion":{"counter":7,"timestamp":5},"topicConfigTable":{"T":{"order":false,'
        b'"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        b'"topicSysFlag":0,"writeQueueNums":4}}}',
    )
    table = _topics(files)
    assert table.topics["T"] == TopicConfig("T", 8, 4, 6)
    assert table.version.counter == 8


def test_groups_are_made_where_that_is_allowed_and_saved() -> None:
    files = SimFiles()
    table = _groups(files)
    assert {"TOOLS_CONSUMER", "SELF_TEST_C_GROUP"} <= set(table.groups)
    assert table.require("g").retry_max_times == 16
    assert "g" in _groups(files).groups
    strict = _groups(files, may_create=False)
    assert strict.require("g")
    assert strict.require("CID_RMQ_SYS_ANY")
    with pytest.raises(BrokerError, match="updateSubGroup"):
        strict.require("unknown")
    with pytest.raises(InvalidName):
        table.require("a b")
    assert table.delete("g")
    assert "g" not in _groups(files).groups


def test_a_group_has_a_sensible_number_of_retry_queues() -> None:
    with pytest.raises(BrokerError):
        _groups(SimFiles()).put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=1_000))


def test_a_table_file_survives_a_power_cut_at_any_moment_of_a_save() -> None:
    files = SimFiles(recording=True)
    saved = SavedTable("/config/t.json", files, DelayOffsetTable)
    assert saved.load() is None
    saved.save(DelayOffsetTable({1: 1}))
    start = len(files.trace)
    saved.save(DelayOffsetTable({1: 2}))
    seen = set()
    for count in range(start, len(files.trace) + 1):
        before = SimFiles.replay(files.trace[:count])
        for _, after in before.crash_states():
            again = SavedTable("/config/t.json", after, DelayOffsetTable).load()
            assert again is not None
            seen.add(again.offsets[1])
    assert seen == {1, 2}


def test_an_unchanged_table_is_not_written_again() -> None:
    files = SimFiles(recording=True)
    saved = SavedTable("/config/t.json", files, DelayOffsetTable)
    saved.load()
    saved.save(DelayOffsetTable({1: 1}))
    before = len(files.trace)
    saved.save(DelayOffsetTable({1: 1}))
    assert len(files.trace) == before


@pytest.mark.parametrize("content", [b"", b"   ", b"[]", b'{"topicConfigTable":[]}', b"\xff\xfe"])
def test_a_damaged_table_is_never_taken_for_an_empty_one(content: bytes) -> None:
    files = SimFiles()
    files.make_directory("/config")
    files.replace("/config/t.json", content)
    with pytest.raises(CorruptRecord, match=r"t\.json"):
        SavedTable("/config/t.json", files, TopicConfigTable).load()
