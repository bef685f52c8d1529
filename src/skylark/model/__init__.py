"""The nouns that everyone shares: frozen dataclasses and enums, without I/O."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .group import ConsumeFromWhere as ConsumeFromWhere
    from .group import ConsumeType as ConsumeType
    from .group import MessageModel as MessageModel
    from .group import Subscription as Subscription
    from .group import SubscriptionGroupConfig as SubscriptionGroupConfig
    from .message import CompressionType as CompressionType
    from .message import HostAddress as HostAddress
    from .message import Message as Message
    from .message import OffsetId as OffsetId
    from .message import Property as Property
    from .message import StoredMessage as StoredMessage
    from .message import SysFlag as SysFlag
    from .message import TransactionType as TransactionType
    from .names import check_group_name as check_group_name
    from .names import check_topic_name as check_topic_name
    from .queue import MessageQueue as MessageQueue
    from .queue import PhysicalOffset as PhysicalOffset
    from .queue import QueueOffset as QueueOffset
    from .route import BrokerData as BrokerData
    from .route import ClusterInfo as ClusterInfo
    from .route import QueueData as QueueData
    from .route import TopicRoute as TopicRoute
    from .topic import Permission as Permission
    from .topic import TopicConfig as TopicConfig
    from .topic import TopicFilterType as TopicFilterType
    from .version import DataVersion as DataVersion
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "group": (
                "ConsumeFromWhere",
                "ConsumeType",
                "MessageModel",
                "Subscription",
                "SubscriptionGroupConfig",
            ),
            "message": (
                "CompressionType",
                "HostAddress",
                "Message",
                "OffsetId",
                "Property",
                "StoredMessage",
                "SysFlag",
                "TransactionType",
            ),
            "names": (
                "check_group_name",
                "check_topic_name",
            ),
            "queue": (
                "MessageQueue",
                "PhysicalOffset",
                "QueueOffset",
            ),
            "route": (
                "BrokerData",
                "ClusterInfo",
                "QueueData",
                "TopicRoute",
            ),
            "topic": (
                "Permission",
                "TopicConfig",
                "TopicFilterType",
            ),
            "version": ("DataVersion",),
        },
    )
