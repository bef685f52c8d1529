"""Message trace: the text of the records, and when they are sent."""

from __future__ import annotations

import asyncio

import pytest
from send_world import TOPIC, World

from skylark.client import trace
from skylark.client.hooks import MessageType
from skylark.client.trace import (
    ConsumeContextCode,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    TraceWriter,
    encode_record,
    trace_messages,
)
from skylark.errors import SendFailed
from skylark.model.message import Message
from skylark.model.topic import TRACE_TOPIC, TopicConfig


def test_a_sent_message_is_written_as_rocketmq_writes_it() -> None:
    record = PubTrace(
        at_ms=1794727891894,
        group="pg_tr",
        topic="TopicTest",
        message_id="ID",
        tag="TagA",
        message_keys=("trk",),
        store_host="127.0.0.1:20911",
        body_bytes=1,
        cost_ms=11,
        offset_id="OFFSET",
    )
    assert encode_record(record) == (
        "Pub\x011794727891894\x01DefaultRegion\x01pg_tr\x01TopicTest\x01ID\x01TagA\x01trk"
        "\x01127.0.0.1:20911\x011\x0111\x010\x01OFFSET\x01true\x02"
    )
    assert record.keys() == ("ID", "trk")


def test_the_other_records_have_their_fields_in_order() -> None:
    before = SubBeforeTrace(
        at_ms=5, group="g", request_id="R", message_id="M", retry_times=2, message_keys=("k",)
    )
    assert encode_record(before) == "SubBefore\x015\x01null\x01g\x01R\x01M\x012\x01k\x02"
    after = SubAfterTrace(
        at_ms=9,
        group="g",
        request_id="R",
        message_id="M",
        cost_ms=4,
        success=False,
        message_keys=("k",),
        context_code=ConsumeContextCode.EXCEPTION,
    )
    assert encode_record(after) == "SubAfter\x01R\x01M\x014\x01false\x01k\x012\x019\x01g\x02"
    end = EndTransactionTrace(
        at_ms=7,
        group="g",
        topic="T",
        message_id="M",
        transaction_id="X",
        state="COMMIT_MESSAGE",
        from_check=True,
        store_host="h:1",
    )
    assert encode_record(end) == (
        "EndTransaction\x017\x01DefaultRegion\x01g\x01T\x01M\x01\x01\x01h:1\x012\x01X"
        "\x01COMMIT_MESSAGE\x01true\x02"
    )
    assert before.keys() == after.keys() == ("M", "k")
    assert end.keys() == ("M",)


def test_separators_in_values_cannot_forge_fields() -> None:
    record = PubTrace(at_ms=1, group="g", topic="T", message_id="M", tag="a\x01b\x02c")
    assert encode_record(record).count("\x01") == 13
    assert encode_record(record).count("\x02") == 1


def pub(n: int, *, keys: int = 1, filler: int = 0) -> PubTrace:
    names = tuple(f"key-{n}-{k}" for k in range(keys - 1))
    return PubTrace(
        at_ms=n, group="g" + "x" * filler, topic="T", message_id=f"M{n}", message_keys=names
    )


def test_records_are_packed_by_size_and_by_keys() -> None:
    small: list[TraceRecord] = [pub(n) for n in range(200)]
    messages = trace_messages("Trace", small)
    assert [len(tuple(message.keys)) for message in messages] == [64, 64, 64, 8]
    large: list[TraceRecord] = [pub(n, filler=50_000) for n in range(5)]
    messages = trace_messages("Trace", large)
    assert len(messages) == 3
    assert all(len(message.body) <= 128_000 for message in messages)
    text = b"".join(message.body for message in messages)
    assert text.count(b"\x02") == 5
    assert trace_messages("Trace", []) == []


def test_a_producer_traces_what_it_sends_and_not_its_traces() -> None:
    world = World(brokers=1, topics=[TopicConfig(TOPIC, 4, 4), TopicConfig(TRACE_TOPIC, 1, 1)])

    async def scenario() -> None:
        broker = world.brokers[0]
        async with world.connect() as mq, mq.producer("shop", enable_msg_trace=True) as producer:
            one = await producer.send(Message(TOPIC, b"abc", tag="T", keys=["k1"]))
            two = await producer.send(Message(TOPIC, b"x", delay_level=2))
            await world.clock.sleep_ms(2_000)
            (traced,) = [one for one in broker.stored if one.header.topic == TRACE_TOPIC]
            fields = [line.split("\x01") for line in traced.body.decode().split("\x02")[:-1]]
            assert [line[0] for line in fields] == ["Pub", "Pub"]
            assert [line[5] for line in fields] == [one.message_id, two.message_id]
            assert [line[12] for line in fields] == [one.offset_id, two.offset_id]
            assert fields[0][3:5] == ["shop", TOPIC]
            assert fields[0][6:10] == ["T", "k1", broker.address, "3"]
            assert [line[11] for line in fields] == ["0", "3"]
            assert [line[13] for line in fields] == ["true", "true"]
            assert traced.properties["KEYS"].split() == [one.message_id, "k1", two.message_id]
            assert traced.header.producer_group.startswith("_INNER_TRACE_PRODUCER-shop-PRODUCE-")
            await producer.send(Message(TOPIC, b"last words"))
        assert len(broker.messages(TRACE_TOPIC)) == 2

    world.run(scenario)


def test_a_broker_that_wants_no_traces_gets_none() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].trace_on = False
        async with world.connect() as mq, mq.producer("shop", enable_msg_trace=True) as producer:
            await producer.send(Message(TOPIC, b"x"))
        assert not world.brokers[0].messages(TRACE_TOPIC)

    world.run(scenario)


def test_every_message_of_a_batch_is_traced() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", enable_msg_trace=True) as producer:
            receipts = await producer.send_batch([Message(TOPIC, b"x")] * 3)
        (body,) = world.brokers[0].messages(TRACE_TOPIC)
        assert [line.split("\x01")[5] for line in body.decode().split("\x02")[:-1]] == [
            receipt.message_id for receipt in receipts
        ]

    world.run(scenario)


def test_a_trace_topic_that_fails_harms_no_message() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", enable_msg_trace=True) as producer:
            await producer.send(Message(TOPIC, b"x"))
            world.brokers[0].script.extend([13])
            await world.clock.sleep_ms(1_000)
            await producer.send(Message(TOPIC, b"y"))

    world.run(scenario)


def test_records_beyond_the_limit_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "PENDING_MAX", 3)
    world = World(brokers=1)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        raise SendFailed("no", hint="no")

    async def scenario() -> None:
        writer = TraceWriter("Trace", send, world.clock)
        for n in range(5):
            writer.add(pub(n))
        assert writer.dropped == 2
        task = asyncio.ensure_future(writer.run())
        await world.clock.sleep_ms(499)
        assert not sent
        await world.clock.sleep_ms(2)
        assert len(sent) == 1
        assert writer.dropped == 3
        task.cancel()
        await asyncio.wait([task])

    world.run(scenario)


def test_kinds_have_the_ordinals_of_rocketmq() -> None:
    assert [kind.value for kind in MessageType] == [
        "Normal_Msg",
        "Trans_Msg_Half",
        "Trans_msg_Commit",
        "Delay_Msg",
    ]
