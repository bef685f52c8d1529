"""SubscriptionGroupConfig, Subscription, and how a group consumes.

The enums' order is their ordinal, which the C++ client sends in place of the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_CHECK_GROUP = "CID_RMQ_SYS_TRANS"
TOOLS_CONSUMER_GROUP = "TOOLS_CONSUMER"
SELF_TEST_CONSUMER_GROUP = "SELF_TEST_C_GROUP"
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
ARCHIVE_GROUP = "skylark-archive"  # Under which an archive shows how far it has come.

RESERVED_GROUPS = (
    TOOLS_CONSUMER_GROUP,
    "FILTERSRV_CONSUMER",
    SELF_TEST_CONSUMER_GROUP,
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has from the start."""

SUBSCRIBE_ALL = "*"


class ConsumeType(StrEnum):
    """Who starts: the consumer's own calls, or the arrival of messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"


class MessageModel(StrEnum):
    """Whether each member of a group sees every message, or the members share them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group starts that has no committed offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """What a broker allows one consumer group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a group wants of one topic.

    Tags and their hashes are kept in the client's order; an empty tuple stands for all tags, and
    for an expression that is not about tags. The version is the client's time of the last change.
    """

    topic: str
    expression: str = SUBSCRIBE_ALL
    expression_type: str = "TAG"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = 0
    class_filter_mode: bool = False


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to the system itself and always exists."""
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in RESERVED_GROUPS
