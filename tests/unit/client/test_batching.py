"""Automatic batches: fewer requests, the same receipts, bounded memory, kept order."""

from __future__ import annotations

import asyncio

import pytest
from send_world import TOPIC, World

from skylark.errors import InvalidMessage, SendFailed
from skylark.model.message import Message
from skylark.model.queue import MessageQueue
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.testing.fake_broker import Delay, Step

BATCH, SINGLE = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2


def body(n: int) -> bytes:
    return f"{n:05d}".encode()


def test_messages_of_one_moment_travel_together_and_each_has_its_receipt() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", linger_ms=5) as producer:
            sends = (producer.send(Message(TOPIC, body(n), tag="T")) for n in range(100))
            receipts = await asyncio.gather(*sends)
        broker = world.brokers[0]
        assert broker.requests[BATCH] == 1
        assert broker.messages(TOPIC) == [body(n) for n in range(100)]
        assert [receipt.queue_offset for receipt in receipts] == list(range(100))
        assert [receipt.message_id for receipt in receipts] == [
            stored.properties["UNIQ_KEY"] for stored in broker.stored
        ]
        assert all(stored.properties["TAGS"] == "T" for stored in broker.stored)

    world.run(scenario)


def test_a_message_alone_lingers_and_goes_as_an_ordinary_one() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", linger_ms=5) as producer:
            await producer.send(Message(TOPIC, b"0" * 5_000))
            began_ms = world.clock.monotonic_ms()
            await producer.send(Message(TOPIC, b"0" * 5_000))
            assert 5 <= world.clock.monotonic_ms() - began_ms <= 7
        broker = world.brokers[0]
        assert (broker.requests[SINGLE], broker.requests[BATCH]) == (2, 0)
        assert broker.stored[0].header.sys_flag == 0x301

    world.run(scenario)


def test_without_linger_only_messages_of_one_turn_travel_together() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", linger_ms=0) as producer:
            await asyncio.gather(*(producer.send(Message(TOPIC, body(n))) for n in range(10)))
            began = world.loop.time()
            await producer.send(Message(TOPIC, b"alone"))
            assert world.loop.time() - began < 0.001
        assert world.brokers[0].requests[BATCH] == 1

    world.run(scenario)


def test_a_full_batch_does_not_wait() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        settings = {"linger_ms": 1_000, "batch_bytes_max": 10_000}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            await producer.fetch_queues(TOPIC)
            began_ms = world.clock.monotonic_ms()
            tasks = [
                asyncio.ensure_future(producer.send(Message(TOPIC, bytes(3_000)))) for _ in range(9)
            ]
            await asyncio.wait(tasks[:6])
            assert world.clock.monotonic_ms() - began_ms < 10
            await asyncio.gather(*tasks)
            assert world.clock.monotonic_ms() - began_ms >= 1_000
        assert world.brokers[0].requests[BATCH] == 3

    world.run(scenario)


def test_topics_queues_and_wait_marks_are_not_mixed() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", linger_ms=5) as producer:
            queue = MessageQueue(TOPIC, "broker-b", 2)
            await asyncio.gather(
                *(producer.send(Message(TOPIC, b"a")) for _ in range(2)),
                *(producer.send(Message("Other", b"b")) for _ in range(2)),
                *(producer.send(Message(TOPIC, b"c"), queue=queue) for _ in range(2)),
                *(producer.send(Message(TOPIC, b"d", wait_stored=False)) for _ in range(2)),
                producer.send(Message(TOPIC, b"e", delay_level=3)),
            )
        stored = [one for broker in world.brokers for one in broker.stored]
        by_body = {one.body: one.header for one in stored}
        assert sum(broker.requests[BATCH] for broker in world.brokers) == 4
        assert sum(broker.requests[SINGLE] for broker in world.brokers) == 1
        assert by_body[b"b"].topic == "Other"
        assert (by_body[b"c"].broker_name, by_body[b"c"].queue_id) == ("broker-b", 2)
        assert by_body[b"d"].properties == "WAIT\x01false"

    world.run(scenario)


def test_messages_with_one_key_keep_their_order_under_load() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        for broker in world.brokers:
            broker.script.extend([Delay(50), 0] * 20)  # Later batches would overtake earlier ones.
        settings = {"linger_ms": 0, "batch_bytes_max": 2_000}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            keys = ("alice", "bob", "carol")
            tasks = []
            for n in range(200):
                for key in keys:
                    message = Message(TOPIC, key.encode() + body(n))
                    tasks.append(asyncio.ensure_future(producer.send(message, key=key)))
                if n % 20 == 0:
                    await world.clock.sleep_ms(1)
            await asyncio.gather(*tasks)
        for key in (b"alice", b"bob", b"carol"):
            seen = [
                one.body
                for broker in world.brokers
                for one in broker.stored
                if one.body.startswith(key)
            ]
            assert seen == [key + body(n) for n in range(200)]

    world.run(scenario)


def test_a_slow_broker_gets_larger_batches_not_more_of_them() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.extend([Delay(100)] * 1_000)
        async with world.connect() as mq, mq.producer("shop", linger_ms=1) as producer:
            tasks = []
            for n in range(500):
                tasks.append(asyncio.ensure_future(producer.send(Message(TOPIC, body(n)))))
                await world.clock.sleep_ms(1)
            await asyncio.gather(*tasks)
        # One every millisecond would be 500 requests; four may be under way at a time.
        assert world.brokers[0].requests[BATCH] + world.brokers[0].requests[SINGLE] < 40

    world.run(scenario)


def test_senders_wait_when_the_buffer_is_full() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.extend([Delay(100)] * 1_000)
        settings = {"linger_ms": 0, "batch_bytes_max": 8_000, "buffer_bytes_max": 20_000}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            tasks = [
                asyncio.ensure_future(producer.send(Message(TOPIC, bytes(1_000))))
                for _ in range(200)
            ]
            for _ in range(50):
                await world.clock.sleep_ms(10)
                batcher = producer._batcher
                assert batcher is not None
                assert batcher.buffered_bytes <= 20_000 + 2_000
            await asyncio.gather(*tasks)
        assert len(world.brokers[0].stored) == 200

    world.run(scenario)


def test_a_sender_that_gives_up_waiting_for_room_does_not_block_the_others() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.extend([Delay(100)] * 100)
        settings = {"linger_ms": 0, "batch_bytes_max": 3_000, "buffer_bytes_max": 3_000}
        async with world.connect() as mq, mq.producer("shop", **settings) as producer:
            tasks = [
                asyncio.ensure_future(producer.send(Message(TOPIC, bytes(1_000))))
                for _ in range(20)
            ]
            await world.clock.sleep_ms(10)
            for task in tasks[5:10]:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(one, asyncio.CancelledError) for one in ended) == 5
        assert len(world.brokers[0].stored) == 15

    world.run(scenario)


def test_when_a_batch_fails_each_sender_hears_it() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.append(ResponseCode.MESSAGE_ILLEGAL)
        async with world.connect() as mq, mq.producer("shop", linger_ms=1) as producer:
            sends = (producer.send(Message(TOPIC, body(n))) for n in range(5))
            ended = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(one, SendFailed) for one in ended)
            assert (await producer.send(Message(TOPIC, b"next"))).queue_offset == 0

    world.run(scenario)


def test_a_batch_is_retried_whole_at_another_broker() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        world.brokers[0].script.extend([Step.DROP] * 3)
        async with world.connect() as mq, mq.producer("shop", linger_ms=1) as producer:
            for _ in range(3):
                sends = (producer.send(Message(TOPIC, body(n))) for n in range(10))
                receipts = await asyncio.gather(*sends)
                assert len({receipt.offset_id for receipt in receipts}) == 10

    world.run(scenario)


def test_a_bad_message_is_refused_alone() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("shop", linger_ms=1) as producer:
            good, bad = await asyncio.gather(
                producer.send(Message(TOPIC, b"good")),
                producer.send(Message(TOPIC, b"")),
                return_exceptions=True,
            )
            assert isinstance(bad, InvalidMessage)
            assert not isinstance(good, BaseException)

    world.run(scenario)


def test_closing_sends_what_lingers() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq:
            async with mq.producer("shop", linger_ms=60_000) as producer:
                tasks = [
                    asyncio.ensure_future(producer.send(Message(TOPIC, body(n)))) for n in range(7)
                ]
                await asyncio.sleep(0)
                await producer.flush()
                assert all(task.done() for task in tasks) or await asyncio.gather(*tasks)
                late = asyncio.ensure_future(producer.send(Message(TOPIC, b"late")))
                await asyncio.sleep(0)
            await late
        assert len(world.brokers[0].stored) == 8

    world.run(scenario)


def test_a_client_that_fails_with_messages_in_hand_leaves_nobody_waiting() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.extend([Step.SILENCE] * 9)
        tasks: list[asyncio.Future[object]] = []

        async def fail() -> None:
            async with world.connect() as mq, mq.producer("shop", linger_ms=1) as producer:
                tasks.extend(
                    asyncio.ensure_future(producer.send(Message(TOPIC, body(n)))) for n in range(3)
                )
                await world.clock.sleep_ms(50)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await asyncio.wait(tasks, timeout=1)
        assert all(task.done() for task in tasks)
        for task in tasks:
            assert isinstance(task.exception(), SendFailed)

    world.run(scenario)
