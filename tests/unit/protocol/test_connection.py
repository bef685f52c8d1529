"""Connection: bytes in, requests and paired answers out."""

from __future__ import annotations

import pytest

from skylark.errors import LocalProtocolError
from skylark.protocol.command import Command
from skylark.protocol.connection import Connection
from skylark.protocol.frame import FrameLimits, encode_frames


def decoded(data: bytes) -> Command:
    requests, _ = Connection[str]().receive_data(data)
    return requests[0]


def test_requests_are_numbered_from_zero_and_come_out_at_the_other_end() -> None:
    ours: Connection[str] = Connection()
    theirs: Connection[str] = Connection()
    for number in range(3):
        request = Command.request(105, {"topic": "T"})
        requests, answers = theirs.receive_data(ours.begin_request(request, "me"))
        assert requests == [request]
        assert requests[0].opaque == number
        assert answers == []
    assert ours.waiting == 3


def test_answers_find_their_waiters_in_any_order() -> None:
    connection: Connection[str] = Connection()
    requests = [decoded(connection.begin_request(Command.request(1), name)) for name in "abc"]
    replies = [request.reply(0) for request in requests]
    _, answers = connection.receive_data(encode_frames([replies[2], replies[0], replies[1]]))
    assert [waiter for waiter, _ in answers] == ["c", "a", "b"]
    assert connection.waiting == 0


def test_the_same_number_may_be_alive_in_both_directions() -> None:
    connection: Connection[str] = Connection()
    own = decoded(connection.begin_request(Command.request(1), "me"))
    foreign = Command(code=40, opaque=own.opaque)
    requests, answers = connection.receive_data(encode_frames([foreign, own.reply(0)]))
    assert requests == [foreign]
    assert answers == [("me", own.reply(0))]


def test_a_second_answer_to_one_request_is_dropped_and_counted() -> None:
    connection: Connection[str] = Connection()
    request = decoded(connection.begin_request(Command.request(1), "me"))
    _, answers = connection.receive_data(encode_frames([request.reply(0), request.reply(1)]))
    assert [answer.code for _, answer in answers] == [0]
    assert connection.stray_answers == 1


def test_a_late_answer_is_dropped() -> None:
    connection: Connection[str] = Connection()
    request = decoded(connection.begin_request(Command.request(1), "me"))
    connection.forget(request.opaque)
    assert connection.waiting == 0
    assert connection.receive_data(encode_frames([request.reply(0)])) == ([], [])
    assert connection.stray_answers == 1


def test_one_command_may_go_to_many_peers_at_once() -> None:
    # A heartbeat is built once and sent to every broker, each of which numbers it anew.
    busy: Connection[str] = Connection()
    busy.begin_request(Command.request(1), "first")
    busy.begin_request(Command.request(1), "second")
    other: Connection[str] = Connection()
    shared = Command.request(34)
    number_there = decoded(other.begin_request(shared, "heartbeat")).opaque
    busy.begin_request(shared, "heartbeat")
    other.forget(number_there)
    assert other.waiting == 0
    assert busy.waiting == 3


def test_oneways_wait_for_nothing() -> None:
    connection: Connection[str] = Connection()
    request = Command.request(15, oneway=True)
    assert decoded(connection.encode_oneway(request)) == request
    assert connection.waiting == 0


def test_a_request_that_cannot_be_written_leaves_no_waiter() -> None:
    connection: Connection[str] = Connection()
    with pytest.raises(LocalProtocolError):
        connection.begin_request(Command.request(1, {"a": "\ud800"}), "me")
    assert connection.waiting == 0


def test_numbers_start_again_after_the_last_one_and_skip_those_in_use() -> None:
    connection: Connection[str] = Connection()
    connection.begin_request(Command.request(1), "old")  # Number 0 stays in use.
    connection._next_opaque = 2**31 - 1
    last = decoded(connection.begin_request(Command.request(1), "last"))
    after = decoded(connection.begin_request(Command.request(1), "after"))
    assert last.opaque == 2**31 - 1
    assert after.opaque == 1
    _, answers = connection.receive_data(encode_frames([after.reply(0), last.reply(0)]))
    assert [waiter for waiter, _ in answers] == ["after", "last"]


def test_abandoning_gives_back_all_who_wait() -> None:
    connection: Connection[str] = Connection()
    for name in "ab":
        connection.begin_request(Command.request(1), name)
    assert connection.abandon() == ["a", "b"]
    assert connection.waiting == 0
    assert connection.abandon() == []


def test_a_violation_keeps_what_came_before_it_and_ends_the_rest() -> None:
    connection: Connection[str] = Connection()
    good = Command(code=1)
    requests, _ = connection.receive_data(encode_frames([good]) + bytes(8) + encode_frames([good]))
    assert requests == [good]
    assert connection.violation is not None
    assert connection.receive_data(encode_frames([good])) == ([], [])


def test_limits_are_those_of_the_peer() -> None:
    connection: Connection[str] = Connection(FrameLimits(frame_bytes_max=64))
    connection.limits = FrameLimits(frame_bytes_max=4096)
    data = encode_frames([Command(code=1, body=bytes(1000))])
    connection.receive_data(data[:100])
    assert connection.held_bytes == 100
    requests, _ = connection.receive_data(data[100:])
    assert len(requests) == 1
    assert connection.held_bytes == 0
