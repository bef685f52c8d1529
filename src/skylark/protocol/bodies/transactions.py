"""Half messages that are not over, as LIST_TRANSACTIONS shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from .body import Body
from .members import Members


@dataclass(frozen=True, slots=True)
class HalfMessage(Body):
    """One half message, and all that ends it: group, half offset, physical offset."""

    producer_group: str
    topic: str  # Where it is meant to go.
    queue_id: int
    transaction_id: str | None
    offset_id: str
    half_offset: int
    physical_offset: int
    tag: str | None
    keys: str
    body_size: int
    born_at_ms: int
    since_ms: int
    check_times: int

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            producer_group=members.text("producerGroup"),
            topic=members.text("topic"),
            queue_id=members.i32("queueId"),
            transaction_id=members.text_or_none("transactionId"),
            offset_id=members.text("offsetMsgId"),
            half_offset=members.i64("tranStateTableOffset"),
            physical_offset=members.i64("commitLogOffset"),
            tag=members.text_or_none("tags"),
            keys=members.text("keys", ""),
            body_size=members.i32("bodySize", 0),
            born_at_ms=members.i64("bornTimestamp", 0),
            since_ms=members.i64("firstStoreTimestamp", 0),
            check_times=members.i32("checkTimes", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "bodySize": self.body_size,
            "bornTimestamp": self.born_at_ms,
            "checkTimes": self.check_times,
            "commitLogOffset": self.physical_offset,
            "firstStoreTimestamp": self.since_ms,
            "keys": self.keys,
            "offsetMsgId": self.offset_id,
            "producerGroup": self.producer_group,
            "queueId": self.queue_id,
            "tags": self.tag,
            "topic": self.topic,
            "tranStateTableOffset": self.half_offset,
            "transactionId": self.transaction_id,
        }


@dataclass(frozen=True, slots=True)
class HalfMessageList(Body):
    """The oldest half messages that are not over, and what became of others since the start."""

    pending: int
    committed: int
    rolled_back: int
    given_up: int
    checks: int
    messages: tuple[HalfMessage, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            pending=members.i64("pending", 0),
            committed=members.i64("committed", 0),
            rolled_back=members.i64("rolledBack", 0),
            given_up=members.i64("givenUp", 0),
            checks=members.i64("checks", 0),
            messages=tuple(HalfMessage.from_members(item) for item in members.objects("messages")),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "checks": self.checks,
            "committed": self.committed,
            "givenUp": self.given_up,
            "messages": [message.to_members() for message in self.messages],
            "pending": self.pending,
            "rolledBack": self.rolled_back,
        }
