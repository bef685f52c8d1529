"""Retries and dead letters: how often, when, and where a failed message goes.

reconsume times of the failed delivery    0    1    2   …  15   from the limit on, or level < 0
delay level                               3    4    5   …  18   %DLQ%group, at once
"""

from __future__ import annotations

from typing import NamedTuple

from ..model.group import SubscriptionGroupConfig
from ..model.topic import TopicConfig, dlq_topic, retry_topic
from .topics import TopicTable

FIRST_LEVEL = 3
DLQ_QUEUES = 1
HONOURS_MAX_VERSION_MIN = 121  # V3_4_9: from here on a request's maxReconsumeTimes counts.
_UNIT_SUB = 2


class Destination(NamedTuple):
    """Where a message goes next: a topic, and the delay level on the way (0 for none)."""

    topic: TopicConfig
    level: int

    @property
    def is_dead(self) -> bool:
        """Whether nobody will try again by itself."""
        return self.level == 0


def tries_max(group: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """How often a message may be consumed again."""
    if asked is not None and version >= HONOURS_MAX_VERSION_MIN:
        return asked
    return group.retry_max_times


def destination(
    topics: TopicTable,
    group: SubscriptionGroupConfig,
    *,
    reconsume_times: int,
    level: int,
    tries: int,
    unit_mode: bool = False,
) -> Destination:
    """Where a message goes that a group has failed with; makes the topic where missing."""
    if reconsume_times >= tries or level < 0:
        name = dlq_topic(group.group_name)
        return Destination(topics.create_own(name, queue_nums=DLQ_QUEUES), 0)
    return Destination(
        retry_topic_of(topics, group, unit_mode=unit_mode),
        level if level > 0 else FIRST_LEVEL + reconsume_times,
    )


def retry_topic_of(
    topics: TopicTable, group: SubscriptionGroupConfig, *, unit_mode: bool = False
) -> TopicConfig:
    """The topic that brings a group's failed messages back to it, made where missing."""
    return topics.create_own(
        retry_topic(group.group_name),
        queue_nums=max(1, group.retry_queue_nums),
        sys_flag=_UNIT_SUB if unit_mode else 0,
    )
