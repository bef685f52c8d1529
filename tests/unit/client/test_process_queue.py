"""ProcessQueue: what may be committed, what holds pulling up, what comes again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.process_queue import FlowLimits, ProcessQueue
from skylark.client.received import ReceivedMessage
from skylark.model.message import HostAddress, StoredMessage
from skylark.model.queue import MessageQueue

PLACE = MessageQueue("T", "b", 0)


def message(offset: int, body: bytes = b"x") -> ReceivedMessage:
    host = HostAddress("10.0.0.1", 1)
    record = StoredMessage(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        body=body,
        properties={},
        flag=0,
        sys_flag=0,
        born_at_ms=0,
        born_host=host,
        stored_at_ms=0,
        store_host=host,
        physical_offset=offset * 100,
        size_bytes=100,
        body_crc=0,
        reconsume_times=0,
        prepared_transaction_offset=0,
        magic=0,
    )
    return ReceivedMessage(record, PLACE, "T", 0, 100)


def test_an_empty_queue_commits_where_it_will_pull_next() -> None:
    queue = ProcessQueue(PLACE, 7)
    assert queue.commit_offset == 7
    queue.add((), 12)  # All filtered out.
    assert queue.commit_offset == 12
    assert queue.count == queue.span == queue.size_bytes == 0


def test_the_first_unfinished_message_holds_the_commit() -> None:
    queue = ProcessQueue(PLACE, 5)
    messages = [message(offset) for offset in (5, 6, 7, 8, 9)]
    queue.add(messages, 10)
    queue.finish([messages[0], messages[2], messages[3]])
    assert (queue.commit_offset, queue.count, queue.span) == (6, 2, 3)
    queue.finish([messages[1]])
    assert queue.commit_offset == 9
    queue.finish([messages[4]])
    assert queue.commit_offset == 10


def test_finishing_twice_changes_nothing() -> None:
    queue = ProcessQueue(PLACE, 0)
    one, two = message(0), message(1)
    queue.add([one, two], 2)
    queue.finish([one])
    queue.finish([one])
    assert (queue.count, queue.size_bytes, queue.commit_offset) == (1, 100, 1)


def test_offsets_that_do_not_go_up_are_our_own_mistake() -> None:
    queue = ProcessQueue(PLACE, 0)
    queue.add([message(3)], 4)
    with pytest.raises(AssertionError):
        queue.add([message(3)], 5)
    with pytest.raises(AssertionError):
        queue.add((), 2)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=60).flatmap(
        lambda steps: st.tuples(st.just(steps), st.permutations(range(len(steps))))
    )
)
def test_the_commit_is_the_first_unfinished_offset_in_any_order(
    case: tuple[list[int], list[int]],
) -> None:
    steps, order = case
    offsets = [sum(steps[: index + 1]) for index in range(len(steps))]
    messages = [message(offset) for offset in offsets]
    queue = ProcessQueue(PLACE, 0)
    queue.add(messages, offsets[-1] + 5)
    open_offsets = set(offsets)
    for index in order:
        queue.finish([messages[index]])
        open_offsets.discard(offsets[index])
        assert queue.commit_offset == min(open_offsets, default=offsets[-1] + 5)
        assert queue.count == len(open_offsets)
        assert queue.size_bytes == 100 * len(open_offsets)


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (FlowLimits(count_max=3), "messages"),
        (FlowLimits(bytes_max=300), "bytes"),
        (FlowLimits(span_max=40), "span"),
    ],
)
def test_a_limit_that_is_reached_is_named(limits: FlowLimits, word: str) -> None:
    queue = ProcessQueue(PLACE, 0)
    queue.add([message(0), message(1)], 2)
    assert queue.exceeded(limits) is None
    queue.add([message(50)], 51)
    assert word in (queue.exceeded(limits) or "")


def test_one_message_far_away_is_no_span() -> None:
    queue = ProcessQueue(PLACE, 0)
    queue.add([message(5000)], 5001)
    assert queue.exceeded(FlowLimits()) is None


def test_an_orderly_batch_comes_again_in_its_place() -> None:
    queue = ProcessQueue(PLACE, 0)
    messages = [message(offset) for offset in range(5)]
    queue.add(messages, 5)
    queue.arrived.extend(messages)
    first = queue.take(2)
    assert first == messages[:2]
    queue.give_back(first)
    assert queue.take(3) == messages[:3]
    assert queue.commit_offset == 0
    queue.commit_taken()
    assert queue.commit_offset == 3
    assert queue.take(9) == messages[3:]
    queue.roll_back_taken()
    assert list(queue.arrived) == messages[3:]
    assert queue.commit_offset == 3


def test_a_part_of_an_orderly_batch_is_given_up() -> None:
    queue = ProcessQueue(PLACE, 0)
    messages = [message(offset) for offset in range(3)]
    queue.add(messages, 3)
    queue.arrived.extend(messages)
    batch = queue.take(3)
    queue.finish_taken(batch[:1])
    queue.give_back(batch[1:])
    assert queue.commit_offset == 1
    assert queue.take(3) == messages[1:]


def test_a_dropped_queue_says_how_far_it_came_and_hands_out_nothing() -> None:
    queue = ProcessQueue(PLACE, 0)
    messages = [message(offset) for offset in range(3)]
    queue.add(messages, 3)
    queue.arrived.extend(messages)
    queue.finish(messages[:1])
    assert queue.drop() == 1
    assert queue.is_dropped
    assert queue.take(3) == []


def test_a_lock_is_valid_for_thirty_seconds_after_its_last_request() -> None:
    queue = ProcessQueue(PLACE, 0)
    assert not queue.is_lock_valid(0)
    queue.locked_at_ms = 1_000
    assert queue.is_lock_valid(30_999)
    assert not queue.is_lock_valid(31_000)


def test_what_tools_are_told_is_in_wall_time() -> None:
    queue = ProcessQueue(PLACE, 0, now_ms=500)
    queue.add([message(4), message(6)], 7)
    info = queue.info(now_ms=1_000_500, monotonic_ms=500)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (4, 6)
    assert info.last_pull_timestamp == 1_000_500
    assert info.last_lock_timestamp == 0
    assert not info.locked
    queue.locked_at_ms = 400
    assert queue.info(now_ms=1_000_500, monotonic_ms=500).last_lock_timestamp == 1_000_400
