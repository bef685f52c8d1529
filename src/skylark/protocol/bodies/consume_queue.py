"""The entries of a consume queue, as QUERY_CONSUME_QUEUE shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ...model.group import Subscription
from .body import Body
from .members import Members
from .subscriptions import subscription_members, subscription_of


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(Body):
    """One entry, and whether a group's filter would let it pass."""

    physic_offset: int
    physic_size: int
    tags_code: int
    passes: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            physic_offset=members.i64("physicOffset"),
            physic_size=members.i32("physicSize"),
            tags_code=members.i64("tagsCode"),
            passes=members.flag("eval", False),
            extend_data_json=members.text_or_none("extendDataJson"),
            bit_map=members.text_or_none("bitMap"),
            msg=members.text_or_none("msg"),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "bitMap": self.bit_map,
            "eval": self.passes,
            "extendDataJson": self.extend_data_json,
            "msg": self.msg,
            "physicOffset": self.physic_offset,
            "physicSize": self.physic_size,
            "tagsCode": self.tags_code,
        }


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueBody(Body):
    """A stretch of a consume queue, and the subscription it was judged by."""

    min_queue_index: int
    max_queue_index: int
    entries: tuple[ConsumeQueueData, ...] = ()
    subscription: Subscription | None = None
    filter_data: str | None = None

    @classmethod
    def from_members(cls, members: Members) -> Self:
        subscription = None
        if members.has("subscriptionData") and members.object("subscriptionData").members:
            subscription = subscription_of(
                members.members["subscriptionData"], f"{members.where}.subscriptionData"
            )
        return cls(
            min_queue_index=members.i64("minQueueIndex", 0),
            max_queue_index=members.i64("maxQueueIndex", 0),
            entries=tuple(
                ConsumeQueueData.from_members(item) for item in members.objects("queueData")
            ),
            subscription=subscription,
            filter_data=members.text_or_none("filterData"),
        )

    def to_members(self) -> dict[str, Any]:
        subscription = self.subscription
        return {
            "filterData": self.filter_data,
            "maxQueueIndex": self.max_queue_index,
            "minQueueIndex": self.min_queue_index,
            "queueData": [entry.to_members() for entry in self.entries],
            "subscriptionData": (
                None if subscription is None else subscription_members(subscription)
            ),
        }
