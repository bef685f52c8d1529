"""Request and reply: marks, pairing, time-outs, and what is no request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from send_world import TOPIC, World

from skylark.errors import ClientError, InvalidMessage, RequestTimedOut
from skylark.model.message import HostAddress, Message, StoredMessage
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Command
from skylark.testing.fake_broker import FakeBroker, StoredSend

_HOST = HostAddress("10.0.0.1", 10911)


def as_stored(stored: StoredSend, properties: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        topic=stored.header.topic,
        queue_id=0,
        queue_offset=0,
        body=stored.body,
        properties=properties,
        flag=0,
        sys_flag=0,
        born_at_ms=1,
        born_host=_HOST,
        stored_at_ms=1,
        store_host=_HOST,
        physical_offset=0,
        size_bytes=1,
        body_crc=0,
        reconsume_times=0,
        prepared_transaction_offset=0,
        magic=0,
    )


async def push_reply(broker: FakeBroker, reply: StoredSend) -> Command:
    """Do with a reply what a broker does: hand it to the client that asked."""
    peer = broker.peers[reply.properties["REPLY_TO_CLIENT"]]
    text = "\x02".join(f"{name}\x01{value}" for name, value in reply.properties.items())
    fields = {
        "producerGroup": reply.header.producer_group,
        "topic": reply.header.topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "5",
        "flag": "0",
        "properties": text,
        "bornHost": "/10.0.0.100:5555",
        "storeHost": broker.address,
        "storeTimestamp": "6",
    }
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return await peer.call(Command.request(code, fields, reply.body), 1_000)


async def next_stored(world: World, broker: FakeBroker, count: int) -> StoredSend:
    while len(broker.stored) < count:
        await world.clock.sleep_ms(1)
    return broker.stored[count - 1]


def test_a_request_gets_the_reply_of_whoever_consumes_it() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        broker = world.brokers[0]
        async with world.connect() as mq, mq.producer("asker") as asker:
            asking = asyncio.ensure_future(asker.request(Message(TOPIC, b"how much?")))
            stored = await next_stored(world, broker, 1)
            assert stored.properties["REPLY_TO_CLIENT"] == mq.client_id
            assert stored.properties["TTL"] == "3000"
            assert len(stored.properties["CORRELATION_ID"]) == 36
            request = as_stored(stored, {**stored.properties, "CLUSTER": "DefaultCluster"})
            async with world.connect() as other, other.producer("replier") as replier:
                await replier.reply(request, b"three")
            reply = broker.stored[1]
            assert reply.code == RequestCode.SEND_REPLY_MESSAGE_V2
            assert reply.header.topic == "DefaultCluster_REPLY_TOPIC"
            assert reply.properties["MSG_TYPE"] == "reply"
            assert reply.properties["CORRELATION_ID"] == stored.properties["CORRELATION_ID"]
            assert (await push_reply(broker, reply)).code == 0
            answer = await asking
            assert answer.body == b"three"
            assert answer.born_host == HostAddress("10.0.0.100", 5555)
            assert "ARRIVE_TIME" in answer.properties
            assert len(mq.session.replies) == 0

    world.run(scenario)


def test_replies_find_their_requests_in_any_order() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        broker = world.brokers[0]
        async with world.connect() as mq, mq.producer("asker") as asker:
            tasks = [
                asyncio.ensure_future(asker.request(Message(TOPIC, f"{n}".encode())))
                for n in range(10)
            ]
            await next_stored(world, broker, 10)
            for stored in reversed(broker.stored[:10]):
                await push_reply(broker, stored)
            answers = await asyncio.gather(*tasks)
            assert [answer.body for answer in answers] == [f"{n}".encode() for n in range(10)]

    world.run(scenario)


def test_a_request_that_nobody_answers_says_that_it_was_sent() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("asker") as asker:
            began_ms = world.clock.monotonic_ms()
            with pytest.raises(RequestTimedOut, match="OK, but wait reply message timeout, 500 ms"):
                await asker.request(Message(TOPIC, b"?"), timeout_ms=500)
            assert 500 <= world.clock.monotonic_ms() - began_ms < 520
            assert len(mq.session.replies) == 0
            # A reply that comes too late is taken and dropped.
            assert (await push_reply(world.brokers[0], world.brokers[0].stored[0])).code == 0

    world.run(scenario)


def test_a_request_that_cannot_be_sent_is_a_failed_send() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        world.brokers[0].script.extend([13])
        async with world.connect() as mq, mq.producer("asker") as asker:
            with pytest.raises(ClientError) as caught:
                await asker.request(Message(TOPIC, b"?"))
            assert not isinstance(caught.value, RequestTimedOut)
            assert len(mq.session.replies) == 0

    world.run(scenario)


def test_an_ordinary_message_cannot_be_replied_to() -> None:
    world = World(brokers=1)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("replier") as replier:
            await replier.send(Message(TOPIC, b"x"))
            stored = as_stored(world.brokers[0].stored[0], {"CLUSTER": "c", "UNIQ_KEY": "U"})
            with pytest.raises(InvalidMessage, match="message U is no request"):
                await replier.reply(stored, b"x")

    world.run(scenario)


def test_the_requester_is_known_to_the_broker_before_it_asks() -> None:
    world = World(brokers=2)

    async def scenario() -> None:
        async with world.connect() as mq, mq.producer("asker") as asker:
            with pytest.raises(RequestTimedOut):
                await asker.request(Message(TOPIC, b"?"), timeout_ms=100)
            assert all(mq.client_id in broker.peers for broker in world.brokers)

    world.run(scenario)
