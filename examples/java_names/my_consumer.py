"""MyConsumer: pull ten messages from each queue of a topic, from offset 0.

python examples/java_names/my_consumer.py
"""

import os

from skylark.compat import DefaultMQProducer, DefaultMQPullConsumer, Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

if __name__ == "__main__":
    producer = DefaultMQProducer("producer_grp_01")
    producer.setNamesrvAddr(ADDRESS)
    producer.start()
    for i in range(8):
        producer.send(Message("tp_demo_01", f"hello skylark - {i}".encode()))
    producer.shutdown()

    consumer = DefaultMQPullConsumer("consumer_pull_grp_01")
    consumer.setNamesrvAddr(ADDRESS)
    consumer.start()
    messageQueues = consumer.fetchSubscribeMessageQueues("tp_demo_01")
    for messageQueue in sorted(messageQueues):
        result = consumer.pull(messageQueue, "*", 0, 10)
        for messageExt in result.getMsgFoundList() or []:
            print(messageExt)
    consumer.shutdown()
