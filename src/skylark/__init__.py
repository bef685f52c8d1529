"""SkylarkMQ: a message broker in Python that RocketMQ clients can use unchanged.

    async with skylark.connect("127.0.0.1:9876") as mq:
        async with mq.producer("orders") as producer:
            receipt = await producer.send(skylark.Message("OrderTopic", b"...", tag="Paid"))
        async with mq.consumer("billing", {"OrderTopic": "Paid || Refund"}) as consumer:
            async for message in consumer:
                ...

The names below are loaded when they are first used, so that importing a server or a tool does not
load a client.
"""

from typing import TYPE_CHECKING

from .lazy import front_door

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .client.connect import connect as connect
    from .client.consumer_config import ConsumerConfig as ConsumerConfig
    from .client.facade import Client as Client
    from .client.lite_pull_consumer import LitePullConsumer as LitePullConsumer
    from .client.producer import Producer as Producer
    from .client.producer import ProducerConfig as ProducerConfig
    from .client.producer import SendCallback as SendCallback
    from .client.pull_consumer import PullConsumer as PullConsumer
    from .client.push_consumer import PushConsumer as PushConsumer
    from .client.receipts import SendReceipt as SendReceipt
    from .client.received import ReceivedMessage as ReceivedMessage
    from .client.subscriptions import PythonFilter as PythonFilter
    from .client.subscriptions import SqlFilter as SqlFilter
    from .client.transactional_producer import TransactionalProducer as TransactionalProducer
    from .client.transactional_producer import TransactionReceipt as TransactionReceipt
    from .client.transactions import Transaction as Transaction
    from .client.transactions import TransactionListener as TransactionListener
    from .client.transactions import TransactionState as TransactionState
    from .client.verdicts import RetryLater as RetryLater
    from .client.verdicts import Suspend as Suspend
    from .client.verdicts import ToDlq as ToDlq
    from .client.verdicts import Verdict as Verdict
    from .errors import SkylarkError as SkylarkError
    from .model.message import Message as Message
    from .model.message import StoredMessage as StoredMessage
    from .model.queue import MessageQueue as MessageQueue
    from .remote.broker import SendStatus as SendStatus
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "client.connect": ("connect",),
            "client.consumer_config": ("ConsumerConfig",),
            "client.facade": ("Client",),
            "client.lite_pull_consumer": ("LitePullConsumer",),
            "client.producer": ("Producer", "ProducerConfig", "SendCallback"),
            "client.pull_consumer": ("PullConsumer",),
            "client.push_consumer": ("PushConsumer",),
            "client.receipts": ("SendReceipt",),
            "client.received": ("ReceivedMessage",),
            "client.subscriptions": ("PythonFilter", "SqlFilter"),
            "client.transactional_producer": ("TransactionReceipt", "TransactionalProducer"),
            "client.transactions": ("Transaction", "TransactionListener", "TransactionState"),
            "client.verdicts": ("RetryLater", "Suspend", "ToDlq", "Verdict"),
            "errors": ("SkylarkError",),
            "model.message": ("Message", "StoredMessage"),
            "model.queue": ("MessageQueue",),
            "remote.broker": ("SendStatus",),
        },
    )
