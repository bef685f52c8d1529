"""What waits for a moment of its own, as operators see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from .body import Body
from .members import Members


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage(Body):
    """One message that is not delivered yet."""

    topic: str
    queue_id: int
    due_ms: int
    stored_at_ms: int
    queue_offset: int  # In the queue of all that waits.
    offset_id: str
    unique_id: str | None = None
    keys: str | None = None
    tag: str | None = None
    size_bytes: int = 0
    repeat_id: str | None = None
    rule: str | None = None
    zone: str | None = None
    repeat_count: int = 0  # How often it was delivered so far.

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            topic=members.text("topic"),
            queue_id=members.i32("queueId"),
            due_ms=members.i64("dueMs"),
            stored_at_ms=members.i64("storeTimestamp"),
            queue_offset=members.i64("queueOffset"),
            offset_id=members.text("offsetMsgId"),
            unique_id=members.text_or_none("msgId"),
            keys=members.text_or_none("keys"),
            tag=members.text_or_none("tag"),
            size_bytes=members.i32("storeSize", 0),
            repeat_id=members.text_or_none("repeatId"),
            rule=members.text_or_none("rule"),
            zone=members.text_or_none("zone"),
            repeat_count=members.i32("repeatCount", 0),
        )

    def to_members(self) -> dict[str, Any]:
        found = {
            "topic": self.topic,
            "queueId": self.queue_id,
            "dueMs": self.due_ms,
            "storeTimestamp": self.stored_at_ms,
            "queueOffset": self.queue_offset,
            "offsetMsgId": self.offset_id,
            "msgId": self.unique_id,
            "keys": self.keys,
            "tag": self.tag,
            "storeSize": self.size_bytes,
            "repeatId": self.repeat_id,
            "rule": self.rule,
            "zone": self.zone,
            "repeatCount": self.repeat_count,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class WaitingList(Body):
    """Some of what waits, and how much there is in all."""

    messages: tuple[WaitingMessage, ...] = ()
    total: int = 0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            tuple(WaitingMessage.from_members(item) for item in members.objects("messages")),
            members.i64("total", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {"messages": [m.to_members() for m in self.messages], "total": self.total}
