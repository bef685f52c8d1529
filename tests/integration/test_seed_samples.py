"""Java's names at work: hooks, shared connections, and all that a received message says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from skylark import compat
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.testing import DiskBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskBroker]:
    levels = " ".join(["1s"] * 18)
    with DiskBroker(tmp_path_factory.mktemp("samples"), message_delay_level=levels) as running:
        yield running


def wait_for(condition: Callable[[], object], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def test_a_hook_sees_every_request_and_its_answer(broker: DiskBroker) -> None:
    seen: list[tuple[str, int, int | None]] = []

    class Watch(compat.RPCHook):
        def doBeforeRequest(self, remoteAddr: str, request: compat.RemotingCommand) -> None:
            request.addExtField("origin", "test")
            seen.append((remoteAddr, request.getCode(), None))

        def doAfterResponse(
            self,
            remoteAddr: str,
            request: compat.RemotingCommand,
            response: compat.RemotingCommand,
        ) -> None:
            assert request.getExtFields()["origin"] == "test"
            seen.append((remoteAddr, request.getCode(), response.getCode()))

    producer = compat.DefaultMQProducer("watched", Watch())
    producer.setNamesrvAddr(broker.address)
    producer.start()
    producer.send(compat.Message("Watched", b"x"))
    producer.shutdown()
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert (broker.address, route, None) in seen
    sends = [(code, answer) for _, code, answer in seen if code == RequestCode.SEND_MESSAGE_V2]
    assert sends == [
        (RequestCode.SEND_MESSAGE_V2, None),
        (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS),
    ]


def test_an_account_does_no_harm_where_none_is_asked_for(broker: DiskBroker) -> None:
    hook = compat.AclClientRPCHook(compat.SessionCredentials("me", "12345678"))
    producer = compat.DefaultMQProducer("signed", hook)
    producer.setNamesrvAddr(broker.address)
    producer.start()
    result = producer.send(compat.Message("Signed", b"x"))
    assert result is not None
    assert result.getSendStatus() is compat.SendStatus.SEND_OK
    producer.shutdown()


def test_clients_of_one_process_share_one_instance_and_its_connections(broker: DiskBroker) -> None:
    def listen(msgs: object, context: object) -> compat.ConsumeConcurrentlyStatus:
        return compat.ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    assert broker._broker is not None
    assert broker._broker._listener is not None
    listener = broker._broker._listener
    wait_for(lambda: not listener.links)
    clients: list[compat.DefaultMQPushConsumer | compat.DefaultMQProducer] = []
    for group in ("one", "two"):
        consumer = compat.DefaultMQPushConsumer(group)
        consumer.setNamesrvAddr(broker.address)
        consumer.subscribe("Shared", "*")
        consumer.registerMessageListener(listen)
        clients.append(consumer)
    producer = compat.DefaultMQProducer("three")
    producer.setNamesrvAddr(broker.address)
    clients.append(producer)
    for client in clients:
        client.start()
    producer.send(compat.Message("Shared", b"x"))
    assert len({client.buildMQClientId() for client in clients}) == 1
    wait_for(lambda: len(listener.links) == 1)
    stranger = compat.DefaultMQProducer("four")
    stranger.setNamesrvAddr(broker.address)
    stranger.setInstanceName("another")
    stranger.start()
    stranger.send(compat.Message("Shared", b"x"))
    assert stranger.buildMQClientId() != producer.buildMQClientId()
    wait_for(lambda: len(listener.links) == 2)
    for client in (*clients, stranger):
        client.shutdown()
    wait_for(lambda: not listener.links)


def test_a_received_message_says_all_that_the_samples_print(broker: DiskBroker) -> None:
    got: list[compat.MessageExt] = []
    done = threading.Event()

    class Listener(compat.MessageListenerConcurrently):
        def consumeMessage(
            self, msgs: list[compat.MessageExt], context: compat.ConsumeConcurrentlyContext
        ) -> compat.ConsumeConcurrentlyStatus:
            got.extend(msgs)
            assert context.getMessageQueue().getQueueId() == msgs[0].getQueueId()
            if msgs[0].getReconsumeTimes() == 0:
                return compat.ConsumeConcurrentlyStatus.RECONSUME_LATER
            done.set()
            return compat.ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    producer = compat.DefaultMQProducer("printer")
    producer.setNamesrvAddr(broker.address)
    producer.start()
    message = compat.Message("Printed", "TagA", "key-1", "grüße".encode())
    message.setDelayTimeLevel(2)
    message.putUserProperty("colour", "blue")
    sent = producer.send(message)
    assert sent is not None
    producer.shutdown()
    consumer = compat.DefaultMQPushConsumer("printed")
    consumer.setNamesrvAddr(broker.address)
    consumer.setConsumeFromWhere(compat.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("Printed", "TagA")
    consumer.setMessageListener(Listener())
    consumer.start()
    assert done.wait(30)
    consumer.shutdown()
    first, again = got
    for one in (first, again):
        assert (one.getTopic(), one.getTags(), one.getKeys()) == ("Printed", "TagA", "key-1")
        assert one.getBody().decode() == "grüße"
        assert one.getMsgId() == sent.getMsgId()  # The same over all retries.
        assert one.getProperty("colour") == "blue"
        assert int(one.getProperty(compat.MessageConst.PROPERTY_MAX_OFFSET) or 0) >= 1
        assert one.getMsgId() in str(one)
    assert (first.getReconsumeTimes(), again.getReconsumeTimes()) == (0, 1)
    assert first.getQueueOffset() == 0
    assert first.getOffsetMsgId() != again.getOffsetMsgId()
