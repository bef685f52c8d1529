"""The nouns that everyone shares: frozen dataclasses and enums, without I/O."""

from .group import ConsumeFromWhere as ConsumeFromWhere
from .group import ConsumeType as ConsumeType
from .group import MessageModel as MessageModel
from .group import Subscription as Subscription
from .group import SubscriptionGroupConfig as SubscriptionGroupConfig
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
