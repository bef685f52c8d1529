"""MyProducer and MyConsumer of the delayed messages: level 0 comes at once, level 1 after a second.

    python examples/java_names/delayed_pair.py [LEVELS]

LEVELS is how many levels to send, 2 unless told otherwise; 20 waits for two hours.
"""

import os
import sys
import threading
import time

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
LEVELS = int(sys.argv[1]) if len(sys.argv) > 1 else 2


class Listener(MessageListenerConcurrently):
    def __init__(self) -> None:
        self.left = LEVELS
        self.done = threading.Event()

    def consumeMessage(
        self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        print(int(time.time()))
        for msg in msgs:
            print(
                msg.getTopic(),
                msg.getQueueId(),
                msg.getMsgId(),
                msg.getDelayTimeLevel(),
                msg.getBody().decode(),
                sep="\t",
            )
        self.left -= len(msgs)
        if self.left <= 0:
            self.done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


if __name__ == "__main__":
    producer = DefaultMQProducer("producer_grp_06_01")
    producer.setNamesrvAddr(ADDRESS)
    producer.start()
    for i in range(LEVELS):
        # 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h
        message = Message("tp_demo_06", f"hello skylark - {i}".encode())
        # 0 is no delay, and whatever is above 18 is two hours.
        message.setDelayTimeLevel(i)
        producer.send(message)
    producer.shutdown()

    listener = Listener()
    consumer = DefaultMQPushConsumer("consumer_grp_06_01")
    consumer.setNamesrvAddr(ADDRESS)
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("tp_demo_06", "*")
    consumer.setMessageListener(listener)
    consumer.start()
    if not listener.done.wait(30 if LEVELS <= 2 else 3 * 3_600):
        raise SystemExit(f"{listener.left} messages did not come")
    consumer.shutdown()
