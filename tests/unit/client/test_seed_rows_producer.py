"""Rows of the checklist on sending that no other test shows, on the real broker in virtual time."""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skylark import Message, SendStatus
from skylark.errors import BrokerError, ClientError, InvalidName, NoRoute
from skylark.testing import MemoryBroker, SimHost


@pytest.fixture
def mq() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


# What a message id may make a client do (S26).


def test_an_id_that_names_a_stranger_s_machine_dials_nobody(
    mq: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[str] = []
    connect = SimHost.connect

    async def watched(
        host: SimHost, factory: Callable[[], asyncio.Protocol], name: str, port: int
    ) -> asyncio.Transport:
        dialled.append(f"{name}:{port}")
        return await connect(host, factory, name, port)

    monkeypatch.setattr(SimHost, "connect", watched)

    async def scenario() -> None:
        async with mq.connect() as client, client.producer("shop") as producer:
            receipt = await producer.send(Message("Orders", b"x"))
            foreign = "C0A80001" + receipt.offset_id[8:]  # 192.168.0.1 in place of the broker.
            with pytest.raises(NoRoute, match=r"no broker of this cluster is at 192\.168\.0\.1"):
                await client.view_message(foreign)
            # With a topic it may still be a producer's id, which is looked for; nobody is dialled.
            with pytest.raises(BrokerError, match="no message has the id"):
                await client.view_message(foreign, "Orders")
            async with client.pull_consumer("readers") as consumer:
                with pytest.raises(ClientError, match=r"no broker of this cluster"):
                    await consumer.view_message("Orders", foreign)
            assert (await client.view_message(receipt.offset_id)).body == b"x"
        # A client that has sent nothing asks the name server who is of the cluster.
        async with mq.connect() as client:
            assert (await client.view_message(receipt.offset_id)).body == b"x"

    mq.run(scenario)
    assert set(dialled) == {mq.address, mq.broker_address}


# What goes out, and what comes of it.


def test_a_topic_name_may_have_127_characters(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client, client.producer("shop") as producer:
            assert (await producer.send(Message("x" * 127, b"x"))).status is SendStatus.SEND_OK
            with pytest.raises(InvalidName, match="127"):
                await producer.send(Message("x" * 128, b"x"))

    mq.run(scenario)


def test_what_a_producer_knows_of_a_topic_can_be_looked_at(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client, client.producer("shop") as producer:
            await client.create_topic("Orders", queue_count=6)
            info = await producer.publish_info("Orders")
            assert len(info.queues) == 6
            assert {queue.broker_name for queue in info.queues} == {"broker-a"}
            assert info.addresses == {"broker-a": mq.broker_address}
            assert [data.write_queue_nums for data in info.route.queues] == [6]
            before = info.turn
            await producer.send(Message("Orders", b"x"))
            assert (await producer.publish_info("Orders")).turn == before + 1
            assert "topic='Orders', queues=6" in repr(info)

    mq.run(scenario)


def test_8000_messages_are_spread_evenly_over_eight_queues(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client, client.producer("shop") as producer:
            await client.create_topic("Orders", queue_count=8)
            await producer.publish_info("Orders")  # So that all senders count together.
            counts: Counter[int] = Counter()
            for _ in range(16):
                sends = (producer.send(Message("Orders", b"x")) for _ in range(500))
                counts.update(one.queue.queue_id for one in await asyncio.gather(*sends))
            assert len(counts) == 8
            assert all(999 <= count <= 1_001 for count in counts.values())

    mq.run(scenario)


def test_a_large_body_is_stored_small_and_arrives_whole(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("shop") as producer:
                await producer.send(Message("Orders", bytes(5 << 10)))
            (stored,) = mq.messages("Orders")
            assert len(stored.body) < 100
            assert stored.size_bytes < 500
            async with client.consumer("g", "Orders", consume_from="first") as consumer:
                async for message in consumer:
                    assert message.body == bytes(5 << 10)
                    message.ack()
                    break

    mq.run(scenario)


def test_user_properties_are_read_back(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client:
            async with client.producer("shop") as producer:
                await producer.send(Message("Orders", b"x", properties={"region": "eu", "n": "7"}))
            async with client.consumer("g", "Orders", consume_from="first") as consumer:
                async for message in consumer:
                    assert (message.properties["region"], message.properties["n"]) == ("eu", "7")
                    message.ack()
                    break

    mq.run(scenario)


def test_an_outbox_loses_nothing_while_the_broker_is_down_for_a_minute(mq: MemoryBroker) -> None:
    path = Path(__file__).parents[3] / "examples" / "outbox.py"
    spec = importlib.util.spec_from_file_location("outbox_example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    async def scenario() -> None:
        outbox = example.Outbox(sqlite3.connect(":memory:"))
        async with mq.connect() as client, client.producer("shop") as producer:
            await example.place_order(producer, outbox, b"order 0")
            assert len(outbox) == 0
            mq.faults.kill()
            for number in range(1, 21):
                await example.place_order(producer, outbox, b"order %d" % number)
                await mq.clock.advance(seconds=3)
            assert len(outbox) == 20
            assert await outbox.drain(producer, "OutboxTopic") == 0  # Still down: nothing is lost.
            mq.faults.start()
            await mq.wait_ready()
            await mq.clock.advance(seconds=6)
            assert await outbox.drain(producer, "OutboxTopic") == 20
            assert len(outbox) == 0
            bodies = sorted(message.body for message in mq.messages("OutboxTopic"))
            assert bodies == sorted(b"order %d" % number for number in range(21))

    mq.run(scenario)


def test_a_producer_is_seen_by_the_broker_while_it_lives(mq: MemoryBroker) -> None:
    async def scenario() -> None:
        async with mq.connect() as client:
            broker = client.session.broker(mq.broker_address)
            async with client.producer("shop") as producer:
                await producer.send(Message("Orders", b"x"))
                await mq.clock.advance(seconds=1)
                known = await broker.get_producer_connections("shop")
                assert [one.client_id for one in known.connections] == [client.client_id]
            await mq.clock.advance(seconds=1)
            with pytest.raises(BrokerError, match="shop"):
                await broker.get_producer_connections("shop")

    mq.run(scenario)
