"""The client without await: same names, from any thread, and across a fork.

    with skylark.sync.connect("127.0.0.1:9876") as mq:
        with mq.producer("orders") as producer:
            receipt = producer.send(Message("OrderTopic", b"..."))
        with mq.consumer("billing", {"OrderTopic": "Paid || Refund"}) as consumer:
            for message in consumer:
                ...

All work is done by one thread of its own with a private event loop; the caller's thread waits for
it. Callbacks run on that thread and must not block; handlers of consumers have their own threads.

    after fork, in the child     what it held from the parent is left alone: the parent still uses
                                 it. The first call in the child connects anew, with a client id
                                 of its own. So a producer made before a server forks its workers
                                 works in each of them.
"""

from __future__ import annotations

from .client import Client, connect
from .consumers import LitePullConsumer, PullConsumer, PushConsumer
from .producers import Producer, Transaction, TransactionalProducer

__all__ = [
    "Client",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Transaction",
    "TransactionalProducer",
    "connect",
]
