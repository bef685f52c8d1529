"""MyProducer: the address is in NAMESRV_ADDR, not in the code; both ids of the message are shown.

NAMESRV_ADDR=127.0.0.1:9876 python examples/java_names/my_producer.py
"""

from skylark.compat import DefaultMQProducer, Message

if __name__ == "__main__":
    producer = DefaultMQProducer("producer_grp_17_02")
    # producer.setNamesrvAddr("127.0.0.1:9876") would win over the variable.
    producer.start()
    message = Message("tp_demo_17", b"hello skylark")
    sendResult = producer.send(message)
    assert sendResult is not None
    print(sendResult.getSendStatus())
    print(sendResult.getMsgId())
    print(sendResult.getOffsetMsgId())
    producer.shutdown()
