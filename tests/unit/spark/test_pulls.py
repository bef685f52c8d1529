"""RangeReader: what a broker's answers say is missing."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest

from skylark.errors import TransportError
from skylark.protocol.codes import ResponseCode
from skylark.spark.offsets import DataLoss, QueueKey, Range
from skylark.spark.options import read_options
from skylark.spark.pulls import RangeReader


class Answer(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes = b""
    remark: str = ""


class OneAnswer:
    """A cluster whose only broker says the same to everybody."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.is_replica = False
        self.end = 0  # What its master says in the end.

    def require_master(self, queue: QueueKey, problem: str) -> None:
        if self.is_replica:
            raise TransportError("a", problem)

    def settled_end(self, queue: QueueKey, least: int) -> int:
        return self.end

    def broker_address(self, topic: str, broker: str) -> str:
        return "127.0.0.1:10911"

    def wire(self, address: str) -> OneAnswer:
        return self

    def ask(self, code: int, fields: dict[str, str]) -> None:
        pass

    def answer(self) -> Answer:
        return self._answer


def reader(
    answer: Answer, *, is_replica: bool = False, end: int = 0, **options: str
) -> RangeReader:
    """One that has read up to 10 of 40."""
    found = read_options({"namesrv": "127.0.0.1:9876", "topic": "T", **options}, is_stream=False)
    layout: Any = None
    cluster: Any = OneAnswer(answer)
    cluster.is_replica, cluster.end = is_replica, end
    return RangeReader(cluster, found, layout, layout, Range(QueueKey("T", "a", 0), 10, 40))


def beginning_at(offset: int) -> bytes:
    return struct.pack(">20xq63x", offset)


FOUND = Answer(0, {"nextBeginOffset": "20"}, beginning_at(16))
NONE_LEFT = Answer(ResponseCode.PULL_RETRY_IMMEDIATELY, {"nextBeginOffset": "16"})


@pytest.mark.parametrize("answer", [FOUND, NONE_LEFT])
def test_what_a_broker_passes_over_is_lost(answer: Answer) -> None:
    """Its retention may have removed what was asked for, a moment ago."""
    with pytest.raises(DataLoss, match=r"10.*16"):
        reader(answer)._pull()


@pytest.mark.parametrize(("answer", "at"), [(FOUND, 20), (NONE_LEFT, 16)])
def test_who_may_lose_data_goes_on_behind_it(answer: Answer, at: int) -> None:
    one = reader(answer, failOnDataLoss="false")
    one._pull()
    assert one.at == at


@pytest.mark.parametrize(("answer", "at"), [(FOUND, 20), (NONE_LEFT, 16)])
def test_a_filter_passes_over_what_it_does_not_want(answer: Answer, at: int) -> None:
    one = reader(answer, filter="TagA")
    one._pull()
    assert one.at == at


TOO_SHORT = Answer(ResponseCode.PULL_NOT_FOUND, {"minOffset": "0", "maxOffset": "8"})


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("answer", [FOUND, NONE_LEFT, TOO_SHORT])
def test_a_replica_is_not_believed_that_something_is_gone(answer: Answer, loss: str) -> None:
    one = reader(answer, is_replica=True, failOnDataLoss=loss)
    with pytest.raises(TransportError):  # Which is asked again, until its master is back.
        one._pull()
    assert one.at == 10


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("end", [20, 40])
def test_a_new_master_is_given_time_to_learn_where_a_queue_ends(end: int, loss: str) -> None:
    one = reader(TOO_SHORT, end=end, failOnDataLoss=loss)
    assert one._pull() is None
    assert one.at == 10, "and is asked again"


def test_a_queue_that_has_become_shorter_has_lost_what_is_missing() -> None:
    with pytest.raises(DataLoss, match="ends at 9, and was to be read up to 40"):
        reader(TOO_SHORT, end=9)._pull()
    one = reader(TOO_SHORT, end=9, failOnDataLoss="false")
    one._pull()
    assert one.at == 40


def test_an_answer_that_begins_where_it_should_is_taken() -> None:
    one = reader(Answer(0, {"nextBeginOffset": "20"}, beginning_at(10)))
    assert one._pull() == beginning_at(10)
    assert one.at == 20
