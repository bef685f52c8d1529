"""Consumers on real sockets and threads, with our own broker; RocketMQ's samples, line by line."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from consumer_cluster import running_cluster

import skylark
from skylark import Message, ReceivedMessage, RetryLater, ToDlq, compat
from skylark.client.push_consumer import MessageHandler
from skylark.compat import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    DefaultLitePullConsumer,
    DefaultMQProducer,
    DefaultMQPullConsumer,
    DefaultMQPushConsumer,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageQueue,
    MQPullConsumerScheduleService,
    SelectMessageQueueByHash,
    SendResult,
)
from skylark.compat.consumers import PullTaskContext


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("consumers")) as address:
        yield address


async def until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.01)


def wait_for(condition: Callable[[], object], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def test_an_iteration_reads_what_was_sent_and_goes_on_where_it_stopped(address: str) -> None:
    async def main() -> None:
        async with skylark.connect(address) as mq:
            async with mq.producer("makers") as producer:
                for number in range(100):
                    await producer.send(Message("Iterated", b"%d" % number, tag="Paid"))
            got: list[bytes] = []
            for stop_at in (60, 100):
                async with mq.consumer(
                    "readers", {"Iterated": "Paid || Refund"}, consume_from="first"
                ) as consumer:
                    async for message in consumer:
                        got.append(message.body)
                        message.ack()
                        if len(got) == stop_at:
                            break
            assert Counter(got) == Counter(b"%d" % number for number in range(100))

    asyncio.run(main())


def test_blocking_handlers_run_in_threads_at_the_same_time(address: str) -> None:
    async def main() -> None:
        barrier = threading.Barrier(4)
        threads: set[str] = set()

        def handle(message: ReceivedMessage) -> None:
            threads.add(threading.current_thread().name)
            barrier.wait(10)  # Four must be in here at once, or nobody gets out.

        async with skylark.connect(address) as mq:
            async with mq.producer("makers") as producer:
                for _ in range(8):
                    await producer.send(Message("Blocking", b"x"))
            async with mq.consumer(
                "blockers", "Blocking", handle, consume_from="first", concurrency=4
            ) as consumer:
                await until(lambda: consumer.stats.of("Blocking").succeeded == 8)
        assert len(threads) == 4
        assert all(name.startswith("skylark-blockers") for name in threads)

    asyncio.run(main())


def test_a_thread_gets_several_messages_in_one_go_and_each_has_its_own_fate(address: str) -> None:
    async def main() -> None:
        got: Counter[bytes] = Counter()

        def handle(message: ReceivedMessage) -> None:
            got[message.body] += 1
            if message.body == b"13" and message.reconsume_times == 0:
                raise RetryLater(level=1)
            if message.body == b"14":
                raise ToDlq
            if message.body == b"15" and message.reconsume_times == 0:
                raise ValueError("15")

        async with skylark.connect(address) as mq:
            async with mq.producer("makers") as producer:
                sends = [producer.send(Message("InOneGo", b"%d" % n)) for n in range(500)]
                await asyncio.gather(*sends)
            async with mq.consumer("goers", "InOneGo", handle, consume_from="first", concurrency=2):
                await until(lambda: len(got) == 500 and got[b"13"] == 2)
            assert got[b"14"] == 1
            assert sum(got.values()) == 501
            async with mq.consumer("after", "%DLQ%goers", consume_from="first") as dead:
                async for message in dead:
                    assert message.body == b"14"
                    break

    asyncio.run(main())


def test_a_process_of_two_members_shares_connections_and_queues(address: str) -> None:
    async def main() -> None:
        async with skylark.connect(address) as mq:
            async with mq.producer("makers") as producer:
                await producer.send(Message("Twins", b"x"))
            counts: Counter[int] = Counter()

            def handler(number: int) -> MessageHandler:
                async def handle(message: ReceivedMessage) -> None:
                    counts[number] += 1

                return handle

            async with (
                mq.consumer("twins", "Twins", handler(0), consume_from="first") as one,
                mq.consumer("twins", "Twins", handler(1), consume_from="first") as two,
            ):
                assert one.client_id != two.client_id
                await until(lambda: len(one.assignment | two.assignment) == 5)
                await until(lambda: not one.assignment & two.assignment)
            assert sum(counts.values()) == 1

    asyncio.run(main())


# RocketMQ's samples.


def test_the_quick_start_pair(address: str) -> None:
    producer = DefaultMQProducer("quickstart_producer")
    producer.setNamesrvAddr(address)
    producer.setRetryTimesWhenSendFailed(3)
    producer.start()
    for number in range(20):
        message = compat.Message("QuickStart", "TagA", f"Hello {number}".encode())
        result = producer.send(message)
        assert result is not None
        assert result.getSendStatus() is compat.SendStatus.SEND_OK
        assert result.getMsgId()
        assert result.getOffsetMsgId()
    got: list[MessageExt] = []

    class Listener(MessageListenerConcurrently):
        def consumeMessage(
            self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
        ) -> ConsumeConcurrentlyStatus:
            got.extend(msgs)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = DefaultMQPushConsumer("quickstart_consumer")
    consumer.setNamesrvAddr(address)
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("QuickStart", "*")
    consumer.registerMessageListener(Listener())
    consumer.start()
    with pytest.raises(compat.MQClientException, match="maybe started once"):
        consumer.start()
    wait_for(lambda: len(got) == 20)
    consumer.shutdown()
    consumer.shutdown()
    producer.shutdown()
    bodies = {message.getBody() for message in got}
    assert bodies == {f"Hello {number}".encode() for number in range(20)}
    assert {message.getTags() for message in got} == {"TagA"}


def test_asynchronous_oneway_batch_and_selected_sends(address: str) -> None:
    outcomes: list[SendResult | Exception] = []

    class Callback(compat.SendCallback):
        def onSuccess(self, sendResult: SendResult) -> None:
            outcomes.append(sendResult)

        def onException(self, e: Exception) -> None:
            outcomes.append(e)

    producer = DefaultMQProducer("senders")
    producer.setNamesrvAddr(address)
    producer.start()
    producer.send(compat.Message("Sends", b"async"), Callback())
    wait_for(lambda: outcomes)
    assert isinstance(outcomes[0], SendResult)
    producer.sendOneway(compat.Message("Sends", b"oneway"))
    batch = producer.send([compat.Message("Sends", b"1"), compat.Message("Sends", b"2")], 3000)
    assert batch is not None
    assert batch.getMsgId().count(",") == 1
    chosen = {
        str(sent.getMessageQueue())
        for sent in (
            producer.send(compat.Message("Sends", b"%d" % n), SelectMessageQueueByHash(), "order-7")
            for n in range(5)
        )
        if sent is not None
    }
    assert len(chosen) == 1
    queue = producer.fetchPublishMessageQueues("Sends")[0]
    direct = producer.send(compat.Message("Sends", b"there"), queue, 3000)
    assert direct is not None
    assert direct.getMessageQueue() == queue
    with pytest.raises(compat.MQClientException):
        producer.send(compat.Message("no topic/like this", b"x"))
    producer.shutdown()


def test_an_orderly_listener_keeps_order_and_waits_after_a_failure(address: str) -> None:
    producer = DefaultMQProducer("order_producer")
    producer.setNamesrvAddr(address)
    producer.start()
    for step in ("created", "paid", "sent"):
        for order in range(10):
            text = f"{order}/{step}".encode()
            producer.send(compat.Message("Steps", text), SelectMessageQueueByHash(), order)
    producer.shutdown()
    seen: list[bytes] = []
    failed: set[bytes] = set()

    class Listener(MessageListenerOrderly):
        def consumeMessage(
            self, msgs: list[MessageExt], context: ConsumeOrderlyContext
        ) -> ConsumeOrderlyStatus:
            body = msgs[0].getBody()
            context.setSuspendCurrentQueueTimeMillis(50)
            if body == b"3/paid" and body not in failed:
                failed.add(body)
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            seen.append(body)
            return ConsumeOrderlyStatus.SUCCESS

    consumer = DefaultMQPushConsumer("order_consumer")
    consumer.setNamesrvAddr(address)
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("Steps", compat.MessageSelector.byTag("*"))
    consumer.registerMessageListener(Listener())
    consumer.start()
    wait_for(lambda: len(seen) == 30)
    consumer.shutdown()
    for order in range(10):
        steps = [body for body in seen if body.startswith(b"%d/" % order)]
        assert steps == [b"%d/%s" % (order, step) for step in (b"created", b"paid", b"sent")]


def test_the_pull_sample_drains_a_topic(address: str) -> None:
    producer = DefaultMQProducer("pull_producer")
    producer.setNamesrvAddr(address)
    producer.start()
    for number in range(50):
        producer.send(compat.Message("Drained", b"%d" % number))
    producer.shutdown()
    consumer = DefaultMQPullConsumer("pull_consumer")
    consumer.setNamesrvAddr(address)
    consumer.start()
    got: list[bytes] = []
    for queue in consumer.fetchSubscribeMessageQueues("Drained"):
        offset = 0
        while True:
            result = consumer.pull(queue, "*", offset, 10)
            found = result.getMsgFoundList()
            if not found:
                break
            got += [message.getBody() for message in found]
            offset = result.getNextBeginOffset()
        consumer.updateConsumeOffset(queue, offset)
        assert consumer.fetchConsumeOffset(queue, False) == offset == consumer.maxOffset(queue)
    consumer.shutdown()
    assert sorted(got) == sorted(b"%d" % number for number in range(50))

    lite = DefaultLitePullConsumer("lite_consumer")
    lite.setNamesrvAddr(address)
    lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    lite.setAutoCommit(False)
    lite.subscribe("Drained", "*")
    lite.start()
    assert lite.isRunning()
    polled: list[bytes] = []
    while len(polled) < 50:
        polled += [message.getBody() for message in lite.poll(1000)]
    lite.commitSync()
    queues = lite.fetchMessageQueues("Drained")
    assert sum(lite.committed(queue) for queue in queues) == 50
    lite.seekToBegin(queues[0])
    assert lite.poll(1000)[0].getQueueOffset() == 0
    lite.shutdown()
    assert sorted(polled) == sorted(got)

    service = MQPullConsumerScheduleService("scheduled_consumer")
    service.getDefaultMQPullConsumer().setNamesrvAddr(address)
    scheduled: list[bytes] = []

    def pull(queue: MessageQueue, context: PullTaskContext) -> None:
        puller = context.getPullConsumer()
        at = max(0, puller.fetchConsumeOffset(queue, False))
        result = puller.pull(queue, "*", at, 32)
        scheduled.extend(one.getBody() for one in result.getMsgFoundList() or [])
        puller.updateConsumeOffset(queue, result.getNextBeginOffset())
        context.setPullNextDelayTimeMillis(10)

    service.registerPullTaskCallback("Drained", pull)
    service.start()
    wait_for(lambda: len(scheduled) >= 50)
    service.shutdown()
    assert sorted(scheduled) == sorted(got)
