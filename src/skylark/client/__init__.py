"""The client layer: sessions, producers and consumers."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .config import ClientConfig as ClientConfig
    from .facade import Client as Client
    from .hooks import CommunicationMode as CommunicationMode
    from .hooks import ForbiddenHook as ForbiddenHook
    from .hooks import RpcHook as RpcHook
    from .hooks import SendContext as SendContext
    from .hooks import SendHook as SendHook
    from .latency import POLICY_4_9 as POLICY_4_9
    from .latency import POLICY_5 as POLICY_5
    from .latency import LatencyPolicy as LatencyPolicy
    from .producer import Producer as Producer
    from .producer import ProducerConfig as ProducerConfig
    from .producer import SendCallback as SendCallback
    from .queue_choice import QueueSelector as QueueSelector
    from .queue_choice import select_by_hash as select_by_hash
    from .queue_choice import select_by_random as select_by_random
    from .receipts import SendReceipt as SendReceipt
    from .session import ConsumerMember as ConsumerMember
    from .session import ProducerMember as ProducerMember
    from .session import Session as Session
    from .transactional_producer import TransactionalProducer as TransactionalProducer
    from .transactional_producer import TransactionReceipt as TransactionReceipt
    from .transactions import Transaction as Transaction
    from .transactions import TransactionListener as TransactionListener
    from .transactions import TransactionState as TransactionState
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "config": ("ClientConfig",),
            "facade": ("Client",),
            "hooks": ("CommunicationMode", "ForbiddenHook", "RpcHook", "SendContext", "SendHook"),
            "latency": ("POLICY_4_9", "POLICY_5", "LatencyPolicy"),
            "producer": ("Producer", "ProducerConfig", "SendCallback"),
            "queue_choice": ("QueueSelector", "select_by_hash", "select_by_random"),
            "receipts": ("SendReceipt",),
            "session": ("ConsumerMember", "ProducerMember", "Session"),
            "transactional_producer": ("TransactionReceipt", "TransactionalProducer"),
            "transactions": ("Transaction", "TransactionListener", "TransactionState"),
        },
    )
