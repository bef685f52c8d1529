"""RocketMQ's Java names, for programs that are ported line by line.

    consumer = DefaultMQPushConsumer("group")
    consumer.setNamesrvAddr("127.0.0.1:9876")
    consumer.subscribe("TopicTest", "TagA || TagB")
    consumer.registerMessageListener(MyListener())
    consumer.start()

Everything blocks as it does in Java, and listeners run in threads. New programs are better off with
`skylark.connect` (asyncio) or `skylark.sync`, over which all this is a thin coat.
"""

from typing import TYPE_CHECKING

from ..lazy import front_door

__all__: list[str]

if TYPE_CHECKING:
    from .allocation import AllocateMachineRoomNearby as AllocateMachineRoomNearby
    from .allocation import AllocateMessageQueueAveragely as AllocateMessageQueueAveragely
    from .allocation import (
        AllocateMessageQueueAveragelyByCircle as AllocateMessageQueueAveragelyByCircle,
    )
    from .allocation import AllocateMessageQueueByConfig as AllocateMessageQueueByConfig
    from .allocation import AllocateMessageQueueByMachineRoom as AllocateMessageQueueByMachineRoom
    from .allocation import AllocateMessageQueueConsistentHash as AllocateMessageQueueConsistentHash
    from .allocation import AllocateMessageQueueSticky as AllocateMessageQueueSticky
    from .consumers import DefaultLitePullConsumer as DefaultLitePullConsumer
    from .consumers import DefaultMQPullConsumer as DefaultMQPullConsumer
    from .consumers import DefaultMQPushConsumer as DefaultMQPushConsumer
    from .consumers import MQPullConsumerScheduleService as MQPullConsumerScheduleService
    from .errors import InterruptedException as InterruptedException
    from .errors import MQBrokerException as MQBrokerException
    from .errors import MQClientException as MQClientException
    from .errors import RemotingException as RemotingException
    from .errors import RequestTimeoutException as RequestTimeoutException
    from .hooks import AclClientRPCHook as AclClientRPCHook
    from .hooks import RemotingCommand as RemotingCommand
    from .hooks import RPCHook as RPCHook
    from .hooks import SessionCredentials as SessionCredentials
    from .listeners import ConsumeConcurrentlyContext as ConsumeConcurrentlyContext
    from .listeners import ConsumeConcurrentlyStatus as ConsumeConcurrentlyStatus
    from .listeners import ConsumeOrderlyContext as ConsumeOrderlyContext
    from .listeners import ConsumeOrderlyStatus as ConsumeOrderlyStatus
    from .listeners import MessageListenerConcurrently as MessageListenerConcurrently
    from .listeners import MessageListenerOrderly as MessageListenerOrderly
    from .listeners import MessageQueueListener as MessageQueueListener
    from .messages import ConsumeFromWhere as ConsumeFromWhere
    from .messages import Message as Message
    from .messages import MessageConst as MessageConst
    from .messages import MessageExt as MessageExt
    from .messages import MessageModel as MessageModel
    from .messages import MessageQueue as MessageQueue
    from .messages import MessageSelector as MessageSelector
    from .messages import MixAll as MixAll
    from .messages import PullResult as PullResult
    from .messages import PullStatus as PullStatus
    from .messages import SendResult as SendResult
    from .messages import SendStatus as SendStatus
    from .producers import CommunicationMode as CommunicationMode
    from .producers import DefaultMQProducer as DefaultMQProducer
    from .producers import MessageQueueSelector as MessageQueueSelector
    from .producers import SelectMessageQueueByHash as SelectMessageQueueByHash
    from .producers import SelectMessageQueueByRandom as SelectMessageQueueByRandom
    from .producers import SendCallback as SendCallback
    from .transactions import LocalTransactionExecuter as LocalTransactionExecuter
    from .transactions import LocalTransactionState as LocalTransactionState
    from .transactions import TransactionCheckListener as TransactionCheckListener
    from .transactions import TransactionListener as TransactionListener
    from .transactions import TransactionMQProducer as TransactionMQProducer
    from .transactions import TransactionSendResult as TransactionSendResult
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "allocation": (
                "AllocateMachineRoomNearby",
                "AllocateMessageQueueAveragely",
                "AllocateMessageQueueAveragelyByCircle",
                "AllocateMessageQueueByConfig",
                "AllocateMessageQueueByMachineRoom",
                "AllocateMessageQueueConsistentHash",
                "AllocateMessageQueueSticky",
            ),
            "consumers": (
                "DefaultLitePullConsumer",
                "DefaultMQPullConsumer",
                "DefaultMQPushConsumer",
                "MQPullConsumerScheduleService",
            ),
            "errors": (
                "InterruptedException",
                "MQBrokerException",
                "MQClientException",
                "RemotingException",
                "RequestTimeoutException",
            ),
            "hooks": ("AclClientRPCHook", "RPCHook", "RemotingCommand", "SessionCredentials"),
            "listeners": (
                "ConsumeConcurrentlyContext",
                "ConsumeConcurrentlyStatus",
                "ConsumeOrderlyContext",
                "ConsumeOrderlyStatus",
                "MessageListenerConcurrently",
                "MessageListenerOrderly",
                "MessageQueueListener",
            ),
            "messages": (
                "ConsumeFromWhere",
                "Message",
                "MessageConst",
                "MessageExt",
                "MessageModel",
                "MessageQueue",
                "MessageSelector",
                "MixAll",
                "PullResult",
                "PullStatus",
                "SendResult",
                "SendStatus",
            ),
            "producers": (
                "CommunicationMode",
                "DefaultMQProducer",
                "MessageQueueSelector",
                "SelectMessageQueueByHash",
                "SelectMessageQueueByRandom",
                "SendCallback",
            ),
            "transactions": (
                "LocalTransactionExecuter",
                "LocalTransactionState",
                "TransactionCheckListener",
                "TransactionListener",
                "TransactionMQProducer",
                "TransactionSendResult",
            ),
        },
    )
    __all__ = [name for name in __dir__() if name[:1].isupper() and name != "TYPE_CHECKING"]
