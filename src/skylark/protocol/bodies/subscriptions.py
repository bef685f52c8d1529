"""Subscriptions and subscription groups.

    {"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",
     "subVersion":1794726814129,"tagsSet":["TagA"],"topic":"TopicTest"}

The C++ client leaves out empty sets and the expression type, and sends the version as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...model.group import SUBSCRIBE_ALL, Subscription, SubscriptionGroupConfig
from ...model.version import DataVersion
from ..fastjson import Json
from .body import Body
from .members import Members
from .topics import DataVersionBody


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfigBody(Body):
    """One group, the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""

    config: SubscriptionGroupConfig

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(group_config_of(members.members, members.where))

    def to_members(self) -> dict[str, Any]:
        return group_config_members(self.config)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable(Body):
    """Every group of a broker: GET_ALL_SUBSCRIPTIONGROUP_CONFIG and subscriptionGroup.json."""

    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            groups=members.map_of("subscriptionGroupTable", group_config_of),
            data_version=DataVersionBody.from_members(
                members.object_or_empty("dataVersion")
            ).version,
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "dataVersion": DataVersionBody(self.data_version).to_members(),
            "subscriptionGroupTable": {
                name: group_config_members(config) for name, config in self.groups.items()
            },
        }


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """The groups that consume a topic, the answer to QUERY_TOPIC_CONSUME_BY_WHO."""

    groups: tuple[str, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.texts("groupList"))

    def to_members(self) -> dict[str, Any]:
        return {"groupList": self.groups}


def subscription_of(value: Json, where: str) -> Subscription:
    """Read a subscription."""
    members = Members.of(value, where)
    return Subscription(
        topic=members.text("topic"),
        expression=members.text("subString", SUBSCRIBE_ALL),
        expression_type=members.text("expressionType", "TAG"),
        tags=members.texts("tagsSet"),
        codes=members.integers("codeSet"),
        version=members.i64("subVersion", 0),
        class_filter_mode=members.flag("classFilterMode", False),
    )


def subscription_members(subscription: Subscription) -> dict[str, Any]:
    """Return a subscription as an object."""
    return {
        "classFilterMode": subscription.class_filter_mode,
        "codeSet": subscription.codes,
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": subscription.tags,
        "topic": subscription.topic,
    }


def group_config_of(value: Json, where: str) -> SubscriptionGroupConfig:
    """Read a group; what is left out has Java's default."""
    members = Members.of(value, where)
    return SubscriptionGroupConfig(
        group_name=members.text("groupName"),
        consume_enable=members.flag("consumeEnable", True),
        consume_from_min_enable=members.flag("consumeFromMinEnable", True),
        consume_broadcast_enable=members.flag("consumeBroadcastEnable", True),
        retry_queue_nums=members.i32("retryQueueNums", 1),
        retry_max_times=members.i32("retryMaxTimes", 16),
        broker_id=members.i64("brokerId", 0),
        which_broker_when_consume_slowly=members.i64("whichBrokerWhenConsumeSlowly", 1),
        notify_consumer_ids_changed_enable=members.flag("notifyConsumerIdsChangedEnable", True),
    )


def group_config_members(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return a group as an object."""
    return {
        "brokerId": config.broker_id,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "groupName": config.group_name,
        "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queue_nums,
        "whichBrokerWhenConsumeSlowly": config.which_broker_when_consume_slowly,
    }
