"""QueryingMessageDemo: a message by its id.

python examples/java_names/querying_message_demo.py
"""

import os

from skylark.compat import DefaultMQProducer, DefaultMQPullConsumer, Message

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

if __name__ == "__main__":
    producer = DefaultMQProducer("producer_grp_08")
    producer.setNamesrvAddr(ADDRESS)
    producer.start()
    sent = producer.send(Message("tp_demo_08", b"hello skylark"))
    assert sent is not None
    producer.shutdown()

    consumer = DefaultMQPullConsumer("consumer_grp_09_01")
    consumer.setNamesrvAddr(ADDRESS)
    consumer.start()
    message = consumer.viewMessage("tp_demo_08", sent.getMsgId())
    print(message)
    print(message.getMsgId())
    assert message.getMsgId() == sent.getMsgId()
    consumer.shutdown()
