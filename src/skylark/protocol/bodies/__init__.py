"""Typed JSON bodies: what requests and responses carry beside their headers."""

from typing import TYPE_CHECKING

from ...lazy import front_door

if TYPE_CHECKING:
    from .body import Body as Body
    from .connections import ClientConnection as ClientConnection
    from .connections import ConsumerConnectionBody as ConsumerConnectionBody
    from .connections import ProducerConnectionBody as ProducerConnectionBody
    from .connections import ProducerInfo as ProducerInfo
    from .connections import ProducerTableBody as ProducerTableBody
    from .consume_queue import ConsumeQueueData as ConsumeQueueData
    from .consume_queue import QueryConsumeQueueBody as QueryConsumeQueueBody
    from .filters import ConsumerFilterData as ConsumerFilterData
    from .filters import ConsumerFilterTable as ConsumerFilterTable
    from .filters import PredicateTableBody as PredicateTableBody
    from .filters import PredicateVersion as PredicateVersion
    from .heartbeat import CheckClientConfigBody as CheckClientConfigBody
    from .heartbeat import ConsumerData as ConsumerData
    from .heartbeat import ConsumerList as ConsumerList
    from .heartbeat import HeartbeatData as HeartbeatData
    from .heartbeat import LockBatchRequestBody as LockBatchRequestBody
    from .heartbeat import LockBatchResponseBody as LockBatchResponseBody
    from .offsets import ConsumerOffsetTable as ConsumerOffsetTable
    from .offsets import ConsumerStatusBody as ConsumerStatusBody
    from .offsets import CorrectionOffsetBody as CorrectionOffsetBody
    from .offsets import DelayOffsetTable as DelayOffsetTable
    from .offsets import OffsetMovedEvent as OffsetMovedEvent
    from .offsets import ResetOffsetBody as ResetOffsetBody
    from .offsets import topic_and_group_of as topic_and_group_of
    from .offsets import topic_at_group as topic_at_group
    from .registration import RegisterBrokerBody as RegisterBrokerBody
    from .registration import body_crc32 as body_crc32
    from .routes import ClusterInfoBody as ClusterInfoBody
    from .routes import TopicRouteBody as TopicRouteBody
    from .routes import wants_standard_json as wants_standard_json
    from .running import ConsumeMessageDirectlyResult as ConsumeMessageDirectlyResult
    from .running import ConsumeResult as ConsumeResult
    from .running import ConsumerRunningInfo as ConsumerRunningInfo
    from .running import ConsumeStatus as ConsumeStatus
    from .running import ProcessQueueInfo as ProcessQueueInfo
    from .settings import KVConfigTable as KVConfigTable
    from .settings import KVTable as KVTable
    from .settings import format_properties as format_properties
    from .settings import parse_properties as parse_properties
    from .stats import BrokerConsumeStatsBody as BrokerConsumeStatsBody
    from .stats import BrokerStatsDataBody as BrokerStatsDataBody
    from .stats import BrokerStatsItem as BrokerStatsItem
    from .stats import ConsumeOffset as ConsumeOffset
    from .stats import ConsumeStatsBody as ConsumeStatsBody
    from .stats import QueryConsumeTimeSpanBody as QueryConsumeTimeSpanBody
    from .stats import QueueTimeSpan as QueueTimeSpan
    from .stats import TopicOffset as TopicOffset
    from .stats import TopicStatsBody as TopicStatsBody
    from .subscriptions import GroupList as GroupList
    from .subscriptions import SubscriptionGroupConfigBody as SubscriptionGroupConfigBody
    from .subscriptions import SubscriptionGroupTable as SubscriptionGroupTable
    from .timers import WaitingList as WaitingList
    from .timers import WaitingMessage as WaitingMessage
    from .topics import DataVersionBody as DataVersionBody
    from .topics import TopicConfigBody as TopicConfigBody
    from .topics import TopicConfigTable as TopicConfigTable
    from .topics import TopicList as TopicList
    from .transactions import HalfMessage as HalfMessage
    from .transactions import HalfMessageList as HalfMessageList
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "body": ("Body",),
            "connections": (
                "ClientConnection",
                "ConsumerConnectionBody",
                "ProducerConnectionBody",
                "ProducerInfo",
                "ProducerTableBody",
            ),
            "consume_queue": (
                "ConsumeQueueData",
                "QueryConsumeQueueBody",
            ),
            "filters": (
                "ConsumerFilterData",
                "ConsumerFilterTable",
                "PredicateTableBody",
                "PredicateVersion",
            ),
            "heartbeat": (
                "CheckClientConfigBody",
                "ConsumerData",
                "ConsumerList",
                "HeartbeatData",
                "LockBatchRequestBody",
                "LockBatchResponseBody",
            ),
            "offsets": (
                "ConsumerOffsetTable",
                "ConsumerStatusBody",
                "CorrectionOffsetBody",
                "DelayOffsetTable",
                "OffsetMovedEvent",
                "ResetOffsetBody",
                "topic_and_group_of",
                "topic_at_group",
            ),
            "registration": (
                "RegisterBrokerBody",
                "body_crc32",
            ),
            "routes": (
                "ClusterInfoBody",
                "TopicRouteBody",
                "wants_standard_json",
            ),
            "running": (
                "ConsumeMessageDirectlyResult",
                "ConsumeResult",
                "ConsumeStatus",
                "ConsumerRunningInfo",
                "ProcessQueueInfo",
            ),
            "settings": (
                "KVConfigTable",
                "KVTable",
                "format_properties",
                "parse_properties",
            ),
            "stats": (
                "BrokerConsumeStatsBody",
                "BrokerStatsDataBody",
                "BrokerStatsItem",
                "ConsumeOffset",
                "ConsumeStatsBody",
                "QueryConsumeTimeSpanBody",
                "QueueTimeSpan",
                "TopicOffset",
                "TopicStatsBody",
            ),
            "subscriptions": (
                "GroupList",
                "SubscriptionGroupConfigBody",
                "SubscriptionGroupTable",
            ),
            "timers": (
                "WaitingList",
                "WaitingMessage",
            ),
            "topics": (
                "DataVersionBody",
                "TopicConfigBody",
                "TopicConfigTable",
                "TopicList",
            ),
            "transactions": (
                "HalfMessage",
                "HalfMessageList",
            ),
        },
    )
