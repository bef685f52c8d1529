"""MyConcurrentlyMessageListener: three ways to have a message come again, and one to be done.

    python examples/java_names/my_concurrently_message_listener.py

Returning RECONSUME_LATER is the best of the three; returning None and raising do the same. What
should not come again is caught, and answered with CONSUME_SUCCESS.
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
BODIES = (b"later", b"nothing", b"raise", b"caught")


class MyConcurrentlyMessageListener(MessageListenerConcurrently):
    def __init__(self) -> None:
        self.came_again: set[bytes] = set()
        self.done = threading.Event()

    def consumeMessage(
        self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        context.setDelayLevelWhenNextConsume(1)
        for msg in msgs:
            print(msg.getBody().decode(), "tried before:", msg.getReconsumeTimes())
            if msg.getReconsumeTimes() > 0:
                self.came_again.add(msg.getBody())
                if len(self.came_again) == 3:
                    self.done.set()
                continue
            if msg.getBody() == b"later":
                return ConsumeConcurrentlyStatus.RECONSUME_LATER
            if msg.getBody() == b"nothing":
                return None
            if msg.getBody() == b"raise":
                raise RuntimeError("Consumer Message exception")
            try:
                raise ValueError("something that trying again would not mend")
            except ValueError:
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


if __name__ == "__main__":
    producer = DefaultMQProducer("producer_grp_04")
    producer.setNamesrvAddr(ADDRESS)
    producer.start()
    for body in BODIES:
        producer.send(Message("tp_demo_04", body))
    producer.shutdown()

    listener = MyConcurrentlyMessageListener()
    consumer = DefaultMQPushConsumer("consumer_grp_04_01")
    consumer.setNamesrvAddr(ADDRESS)
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.setMaxReconsumeTimes(20)
    consumer.subscribe("tp_demo_04", "*")
    consumer.registerMessageListener(listener)
    consumer.start()
    if not listener.done.wait(30):
        raise SystemExit(f"only these came again: {listener.came_again}")
    consumer.shutdown()
    print("came again:", sorted(body.decode() for body in listener.came_again))
