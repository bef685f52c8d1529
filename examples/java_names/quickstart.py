"""The quick start of RocketMQ: a producer, a push consumer, and "Hello RocketMQ".

python examples/java_names/quickstart.py
"""

import os
import threading

from skylark.compat import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    DefaultMQProducer,
    DefaultMQPushConsumer,
    Message,
    MessageExt,
    MessageListenerConcurrently,
)

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 10


def produce() -> None:
    producer = DefaultMQProducer("quickstart_producer")
    producer.setNamesrvAddr(ADDRESS)
    producer.start()
    for i in range(COUNT):
        message = Message("QuickstartTopic", "TagA", f"Hello RocketMQ {i}".encode())
        print(producer.send(message))
    producer.shutdown()


class Listener(MessageListenerConcurrently):
    def __init__(self) -> None:
        self.count = 0
        self.done = threading.Event()

    def consumeMessage(
        self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        for msg in msgs:
            print(f"{threading.current_thread().name} Receive New Messages: {msg}")
        self.count += len(msgs)
        if self.count >= COUNT:
            self.done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def consume() -> None:
    listener = Listener()
    consumer = DefaultMQPushConsumer("quickstart_consumer")
    consumer.setNamesrvAddr(ADDRESS)
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("QuickstartTopic", "*")
    consumer.registerMessageListener(listener)
    consumer.start()
    print("Consumer Started.")
    if not listener.done.wait(30):
        raise SystemExit(f"only {listener.count} of {COUNT} messages came")
    consumer.shutdown()


if __name__ == "__main__":
    produce()
    consume()
