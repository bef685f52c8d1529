"""What a broker refuses, said with the column or option that it is about."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from sink_world import World, WorldCluster, WorldWire

from skylark.errors import BrokerError, CallTimeout, ConfigError
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.spark.offsets import QueueKey
from skylark.spark.outbox import Letter, Outbox

CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.STAGE_ROWS)
BATCHES = CODES[1:]
TOO_LARGE = (
    "the body has 5001 bytes, 5000 are allowed",
    # As RocketMQ and our own brokers say it of a batch that is stored.
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit 4194304, msg properties length limit 32k",
)
TOO_FAR = (
    "the message is illegal: TIMER_DELIVER_MS 9999999999999 is too far ahead: at most 259200 "
    "seconds are allowed (timerMaxDelaySec)",
    # RocketMQ 5.
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time",
)


class Refusing(World):
    """Brokers that refuse everything with one remark."""

    def __init__(self, remark: str, code: int = ResponseCode.MESSAGE_ILLEGAL) -> None:
        super().__init__()
        self._remark, self._code = remark, code

    def answer(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Command:
        raise BrokerError(self._code, self._remark, address)


def refusal(world: World, code: int) -> str:
    outbox = Outbox(WorldCluster(world, retry_ms=0))
    outbox.post("a", Letter(QueueKey("T", "a", 0), code, {}, b"x" * 70))
    with pytest.raises(ConfigError) as caught:
        outbox.settle()
    return str(caught.value)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("remark", TOO_LARGE)
def test_what_is_too_large_is_told_of_batch_bytes_where_it_is_a_batch(
    code: int, remark: str
) -> None:
    text = refusal(Refusing(remark), code)
    assert text.startswith(f"broker a refuses 70 bytes for T/a/0: {remark}")
    assert ("make batchBytes smaller" in text) == (code in BATCHES)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("remark", TOO_FAR)
def test_a_time_too_far_ahead_is_told_of_its_column(code: int, remark: str) -> None:
    text = refusal(Refusing(remark), code)
    assert text == f"column deliver_time: broker a refuses it for T/a/0: {remark}"


@pytest.mark.parametrize("code", CODES)
def test_other_refusals_are_told_as_they_are(code: int) -> None:
    text = refusal(Refusing("the message is illegal: 65 keys, the limit is 64"), code)
    assert text == (
        "broker a refuses rows for T/a/0: the message is illegal: 65 keys, the limit is 64"
    )


def test_refusals_of_no_message_stay_what_they_are() -> None:
    outbox = Outbox(WorldCluster(Refusing("no", ResponseCode.NO_PERMISSION), retry_ms=0))
    outbox.post("a", Letter(QueueKey("T", "a", 0), CODES[0], {}, b"x"))
    with pytest.raises(BrokerError, match="no"):
        outbox.settle()


class Stubborn(World):
    """Brokers that read nothing more while a megabyte of their answers is not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[QueueKey] = []

    def answer(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Command:
        queue = QueueKey("T", address[0], int(fields["e"]))
        self.taken.append(queue)
        return Command.request(code).reply(ResponseCode.SUCCESS)


class StubbornWire(WorldWire):
    """Each row has 73 bytes at least, and its id is 33 in the answer."""

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        if sum(len(body) * 33 // 73 for _, _, body in self._asked) > 1 << 20:
            raise CallTimeout(self.address, 10_000)
        super().ask(code, fields, body)


class StubbornCluster(WorldCluster):
    def wire(self, address: str) -> Any:
        return self._wires.setdefault(address, StubbornWire(self.world, address))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [100, 64 << 10, 1 << 20, 8 << 20])
def test_a_broker_can_be_rid_of_its_answers_however_many_queues_it_has(size: int) -> None:
    world = Stubborn()
    outbox = Outbox(StubbornCluster(world, retry_ms=0))
    body = b"x" * size
    places = [QueueKey("T", broker, number) for number in range(200) for broker in "ab"]
    for queue in places:
        outbox.post(
            queue, Letter(queue, RequestCode.SEND_BATCH_MESSAGE, {"e": str(queue[2])}, body)
        )
        under_way = [len(one.body) for one, _ in outbox._under_way.values()]
        assert sum(under_way) <= 2 * max(2 << 20, size)
    outbox.settle()
    assert sorted(world.taken) == sorted(places), "each once"
