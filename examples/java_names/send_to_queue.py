"""Send to a queue of one's choice, within a time.

    python examples/java_names/send_to_queue.py

Message and queue must be of the same topic.
"""

import os

from skylark.compat import DefaultMQProducer, Message, MessageQueue, MQClientException

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

if __name__ == "__main__":
    producer = DefaultMQProducer("producer_grp_02")
    producer.setNamesrvAddr(ADDRESS)
    producer.start()
    producer.createTopic("TBW102", "tp_demo_02", 6)
    message = Message()
    message.setTopic("tp_demo_02")
    message.setBody(b"hello skylark")
    broker = producer.fetchPublishMessageQueues("tp_demo_02")[0].getBrokerName()
    result = producer.send(message, MessageQueue("tp_demo_02", broker, 5), 1_000)
    assert result is not None
    print(result.getSendStatus(), result.getMessageQueue())
    try:
        producer.send(message, MessageQueue("tp_demo_06", broker, 5), 1_000)
    except MQClientException as error:
        print(error.getErrorMessage())
    producer.shutdown()
