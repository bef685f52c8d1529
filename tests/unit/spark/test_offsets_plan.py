"""Offsets, admission and splits: pure, so that hypothesis can look for what is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import ConfigError
from skylark.spark.offsets import (
    QueueKey,
    Range,
    admit,
    describe_loss,
    from_json,
    lost,
    ranges,
    split,
    to_json,
)

QUEUES = st.builds(
    QueueKey, st.sampled_from(["A", "B"]), st.sampled_from(["a", "b"]), st.integers(0, 3)
)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 1_000), max_size=8)


@given(OFFSETS)
def test_offsets_survive_json_and_have_one_form(offsets):
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    shuffled = dict(reversed(list(offsets.items())))
    assert json.dumps(to_json(shuffled)) == text


@pytest.mark.parametrize("value", [None, {}, {"v": 2, "q": {}}, {"v": 1}, {"v": 1, "q": []}, 7])
def test_a_checkpoint_of_something_else_is_refused(value):
    with pytest.raises(ConfigError, match="checkpointLocation"):
        from_json(value)


@given(OFFSETS, OFFSETS, st.integers(1, 2_000))
def test_admission_stays_within_its_limit_and_never_stands_still(start, behind, limit):
    available = {queue: start.get(queue, 0) + count for queue, count in behind.items()}
    begin = {queue: start.get(queue, 0) for queue in {*start, *available}}
    ends = admit(begin, available, limit)
    taken = {queue: ends[queue] - begin[queue] for queue in ends}
    total = sum(behind.values())
    assert sum(taken.values()) <= max(limit, 0) or sum(taken.values()) == total <= limit
    for queue, count in taken.items():
        assert 0 <= count <= behind.get(queue, 0)
    if total:
        assert sum(taken.values()) > 0
    if total <= limit:
        assert sum(taken.values()) == total


@given(OFFSETS, st.integers(1, 500))
def test_a_stream_with_a_limit_reads_everything_in_the_end(available, limit):
    at = dict.fromkeys(available, 0)
    rounds = 0
    while at != available:
        at = admit(at, available, limit)
        rounds += 1
        assert rounds <= sum(available.values())


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12), st.integers(1, 11))
def test_queues_take_turns_where_fewer_messages_are_allowed_than_there_are_queues(counts, limit):
    limit = min(limit, len(counts) - 1)
    queues = [QueueKey("A", "a", number) for number in range(len(counts))]
    at, rounds = dict.fromkeys(queues, 0), 0
    while not all(at.values()):
        available = {queue: at[queue] + n for queue, n in zip(queues, counts, strict=True)}
        ends = admit(at, available, limit)
        assert sum(ends.values()) - sum(at.values()) == limit
        at, rounds = ends, rounds + 1
        assert rounds <= len(counts), "somebody has to wait for more than a round"


def test_a_driver_is_not_asked_for_more_tasks_than_it_can_bear():
    wanted = [Range(QueueKey("A", "a", 0), 0, 10**7)]
    tasks = split(wanted, bytes_per_message=1_000, split_bytes=1, partitions_min=1)
    assert len(tasks) == 100_000
    assert sum(one.count for task in tasks for one in task) == 10**7


def test_without_a_limit_everything_is_admitted():
    queue = QueueKey("A", "a", 0)
    assert admit({queue: 3}, {queue: 10**9}, None) == {queue: 10**9}


def test_a_queue_that_has_become_shorter_does_not_move_back():
    queue = QueueKey("A", "a", 0)
    assert admit({queue: 30}, {queue: 10}, None) == {queue: 30}


RANGES = st.lists(
    st.builds(lambda queue, a, b: Range(queue, min(a, b), max(a, b)), QUEUES,
              st.integers(0, 1_000), st.integers(0, 1_000)),
    max_size=8, unique_by=lambda one: one.queue,
)  # fmt: skip


@given(RANGES, st.floats(1, 2_000), st.integers(1, 100_000), st.integers(1, 50))
def test_every_message_is_in_exactly_one_task_and_queues_stay_in_order(
    wanted, size, split_bytes, least
):
    tasks = split(wanted, bytes_per_message=size, split_bytes=split_bytes, partitions_min=least)
    seen = [(one.queue, at) for task in tasks for one in task for at in range(one.start, one.end)]
    assert len(seen) == len(set(seen))
    assert set(seen) == {(one.queue, at) for one in wanted for at in range(one.start, one.end)}
    for queue in {one.queue for one in wanted}:
        offsets = [at for where, at in seen if where == queue]
        assert offsets == sorted(offsets)
    total = len(seen)
    if total:
        assert len(tasks) >= min(least, total)
        assert all(sum(one.count for one in task) > 0 for task in tasks)
        sizes = [sum(one.count for one in task) for task in tasks]
        assert max(sizes) - min(sizes) <= 1


def test_small_queues_share_a_task():
    wanted = [Range(QueueKey("A", "a", number), 0, 10) for number in range(32)]
    assert len(split(wanted, bytes_per_message=100, split_bytes=1 << 20, partitions_min=1)) == 1


def test_what_lies_between_two_offsets():
    one, other = QueueKey("A", "a", 0), QueueKey("A", "a", 1)
    assert ranges({one: 5, other: 7}, {one: 9, other: 7}) == [Range(one, 5, 9)]


def test_what_retention_has_removed_is_said_with_its_place():
    one = QueueKey("A", "a", 0)
    gone = lost({one: 5}, {one: 9})
    assert gone == [Range(one, 5, 9)]
    assert "A/a/0 5 to 9" in describe_loss(gone)
    assert "failOnDataLoss" in describe_loss(gone)
    assert not lost({one: 9}, {one: 9})
