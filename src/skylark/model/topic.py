"""TopicConfig, permissions, and the topics whose names have a meaning of their own.

permission bit   letter   meaning
1                X        inherit: a new topic may be made in this one's image
2                W        write
4                R        read
8                         priority; kept, without effect

system flag bit  meaning
1                unit topic
2                has subscribers in units
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
STAGED_TOPIC = "rmq_sys_staged"
RAFT_TOPIC = "rmq_sys_raft"
RAFT_STATE_TOPIC = "rmq_sys_raft_state"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT_TOPIC = "OFFSET_MOVED_EVENT"

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
"""Never made or deleted by an operator. A broker adds its own name, its cluster's, its replies'."""

UNSENDABLE_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        STAGED_TOPIC,
        RAFT_TOPIC,
        RAFT_STATE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
"""Written by the broker alone."""

UNREADABLE_TOPICS = frozenset({HALF_TOPIC, OP_HALF_TOPIC, STAGED_TOPIC})
"""Read by the broker alone: what is not committed is nobody's to see."""


class Permission(IntFlag):
    """What may be done with a topic."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class TopicSysFlag(IntFlag):
    """Which unit marks a topic carries."""

    UNIT = 1
    UNIT_SUB = 2


class TopicFilterType(StrEnum):
    """How many tags a message of the topic may have; the order gives the wire ordinals."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


_READ_WRITE = int(Permission.READ | Permission.WRITE)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on one broker: how many queues, and who may do what with them."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = _READ_WRITE
    filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    sys_flag: int = 0
    order: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read it."""
        return bool(self.perm & 4)

    @property
    def is_writable(self) -> bool:
        """Whether producers may write to it."""
        return bool(self.perm & 2)

    @property
    def is_inherited(self) -> bool:
        """Whether new topics may be made in its image."""
        return bool(self.perm & 1)


def retry_topic(group: str) -> str:
    """Return the topic that brings a group's failed messages back to it."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of messages that a group has given up on."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic that carries a cluster's replies."""
    return cluster + REPLY_TOPIC_SUFFIX


def is_retry_topic(topic: str) -> bool:
    """Return whether a topic brings failed messages back to a group."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Return whether a topic holds messages that a group has given up on."""
    return topic.startswith(DLQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether a name is set aside for the system itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def perm_text(perm: int) -> str:
    """Return permissions as operators read them: `RW-`, `RWX`."""
    return f"{'R' if perm & 4 else '-'}{'W' if perm & 2 else '-'}{'X' if perm & 1 else '-'}"
