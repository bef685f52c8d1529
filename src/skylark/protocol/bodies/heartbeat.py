"""Heartbeats, the members of a group, and the queues that a member locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ...model.group import ConsumeFromWhere, ConsumeType, MessageModel, Subscription
from ...model.queue import MessageQueue
from .body import Body
from .members import Members, queue_members, queue_of
from .subscriptions import subscription_members, subscription_of


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    """One consumer group that a client is a member of, and what the group wants."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            group_name=members.text("groupName"),
            consume_type=members.enum("consumeType", ConsumeType, ConsumeType.CONSUME_PASSIVELY),
            message_model=members.enum("messageModel", MessageModel, MessageModel.CLUSTERING),
            consume_from_where=members.enum(
                "consumeFromWhere", ConsumeFromWhere, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            ),
            subscriptions=tuple(
                subscription_of(item.members, item.where)
                for item in members.objects("subscriptionDataSet")
            ),
            unit_mode=members.flag("unitMode", False),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group_name,
            "messageModel": self.message_model,
            "subscriptionDataSet": [subscription_members(item) for item in self.subscriptions],
            "unitMode": self.unit_mode,
        }


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """A client says that it lives, and which groups it is a member of.

    The fingerprint and the last flag come from 5.x clients, which may leave subscriptions out when
    they have not changed and the broker has said that it understands this.
    """

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int | None = None
    without_sub: bool | None = None

    @classmethod
    def from_members(cls, members: Members) -> Self:
        has = members.has
        return cls(
            client_id=members.text("clientID"),
            producer_groups=tuple(
                item.text("groupName") for item in members.objects("producerDataSet")
            ),
            consumers=tuple(
                ConsumerData.from_members(item) for item in members.objects("consumerDataSet")
            ),
            fingerprint=members.i32("heartbeatFingerprint")
            if has("heartbeatFingerprint")
            else None,
            without_sub=members.flag("withoutSub") if has("withoutSub") else None,
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [consumer.to_members() for consumer in self.consumers],
            "heartbeatFingerprint": self.fingerprint,
            "producerDataSet": [{"groupName": group} for group in self.producer_groups],
            "withoutSub": self.without_sub,
        }


@dataclass(frozen=True, slots=True)
class ConsumerList(Body):
    """The client ids of a group's members, the answer to GET_CONSUMER_LIST_BY_GROUP."""

    client_ids: tuple[str, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.texts("consumerIdList"))

    def to_members(self) -> dict[str, Any]:
        return {"consumerIdList": self.client_ids}


@dataclass(frozen=True, slots=True)
class CheckClientConfigBody(Body):
    """A subscription that a client wants checked before it starts."""

    client_id: str
    group: str
    subscription: Subscription

    @classmethod
    def from_members(cls, members: Members) -> Self:
        subscription = members.object("subscriptionData")
        return cls(
            client_id=members.text("clientId"),
            group=members.text("group"),
            subscription=subscription_of(subscription.members, subscription.where),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "group": self.group,
            "subscriptionData": subscription_members(self.subscription),
        }


@dataclass(frozen=True, slots=True)
class LockBatchRequestBody(Body):
    """The queues that a member wants to lock, or to unlock."""

    client_id: str
    consumer_group: str
    queues: tuple[MessageQueue, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            client_id=members.text("clientId"),
            consumer_group=members.text("consumerGroup"),
            queues=_queues_of(members, "mqSet"),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": [queue_members(queue) for queue in self.queues],
        }


@dataclass(frozen=True, slots=True)
class LockBatchResponseBody(Body):
    """The queues out of those asked for that the member now holds."""

    locked: tuple[MessageQueue, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(_queues_of(members, "lockOKMQSet"))

    def to_members(self) -> dict[str, Any]:
        return {"lockOKMQSet": [queue_members(queue) for queue in self.locked]}


def _queues_of(members: Members, key: str) -> tuple[MessageQueue, ...]:
    return tuple(queue_of(item.members, item.where) for item in members.objects(key))
