"""TxConsumer: gets what TxProducer committed, at once or when it was asked, and nothing else.

NAMESRV_ADDR=127.0.0.1:9876 python examples/java_names/tx_consumer.py
"""

import threading

from tx_producer import MyTransactionListener

from skylark.compat import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    DefaultMQPushConsumer,
    Message,
    MessageExt,
    MessageListenerConcurrently,
    TransactionMQProducer,
)

done = threading.Event()
seen: list[str] = []


class MyListener(MessageListenerConcurrently):
    def consumeMessage(
        self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        seen.extend(msg.getBody().decode() for msg in msgs)
        if len(seen) == 2:
            done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


if __name__ == "__main__":
    consumer = DefaultMQPushConsumer("tx_consumer_grp_08")
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("tp_demo_tx_02", "*")
    consumer.registerMessageListener(MyListener())
    producer = TransactionMQProducer("tx_producer_grp_08_02")
    producer.setTransactionListener(MyTransactionListener())
    producer.start()
    for number in range(3):
        producer.sendMessageInTransaction(Message("tp_demo_tx_02", b"tx - %d" % number), number)
    consumer.start()
    done.wait(90)
    print(f"consumed {sorted(seen)}")
    consumer.shutdown()
    producer.shutdown()
