"""Tables of offsets: committed ones, delayed ones, and those that a group is to be set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...errors import InvalidBody
from ...model.queue import MessageQueue
from .. import fastjson
from .body import Body
from .members import Members, long_of, queue_key, queue_members, queue_of


@dataclass(frozen=True, slots=True)
class ConsumerOffsetTable(Body):
    """`topic@group` → queue id → next offset: GET_ALL_CONSUMER_OFFSET and consumerOffset.json."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        table = members.object_or_empty("offsetTable")
        return cls({name: table.integer_map_of(name, long_of) for name in table.members})

    def to_members(self) -> dict[str, Any]:
        return {"offsetTable": self.offsets}


@dataclass(frozen=True, slots=True)
class DelayOffsetTable(Body):
    """Delay level → next offset to deliver: GET_ALL_DELAY_OFFSET and delayOffset.json."""

    offsets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.integer_map_of("offsetTable", long_of))

    def to_members(self) -> dict[str, Any]:
        return {"offsetTable": self.offsets}


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(Body):
    """The offset that each queue is set to.

    Java and Go take a map by queue, C++ only a list; the reader takes either.

        {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:9}}
        {"offsetTable":[{"brokerName":"b","offset":9,"queueId":0,"topic":"T"}]}
    """

    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        if isinstance(members.members.get("offsetTable"), list):
            items = members.objects("offsetTable")
            return cls({queue_of(item.members, item.where): item.i64("offset") for item in items})
        return cls(members.queue_map_of("offsetTable", long_of))

    def to_members(self) -> dict[str, Any]:
        return {"offsetTable": queue_map_members(self.offsets)}

    def to_list_json(self) -> bytes:
        """Write the list form, which the C++ client needs."""
        items = [{**queue_members(queue), "offset": at} for queue, at in self.offsets.items()]
        return fastjson.dumps({"offsetTable": items})


@dataclass(frozen=True, slots=True)
class ConsumerStatusBody(Body):
    """How far members have come: one member's own table, or the tables of all by client id."""

    queues: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumers: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        consumers = members.object_or_empty("consumerTable")
        return cls(
            queues=members.queue_map_of("messageQueueTable", long_of),
            consumers={
                client_id: consumers.queue_map_of(client_id, long_of)
                for client_id in consumers.members
            },
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "consumerTable": {
                client_id: queue_map_members(offsets)
                for client_id, offsets in self.consumers.items()
            },
            "messageQueueTable": queue_map_members(self.queues),
        }


@dataclass(frozen=True, slots=True)
class CorrectionOffsetBody(Body):
    """Queue id → offset, the answer to QUERY_CORRECTION_OFFSET."""

    offsets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.integer_map_of("correctionOffsets", long_of))

    def to_members(self) -> dict[str, Any]:
        return {"correctionOffsets": self.offsets}


@dataclass(frozen=True, slots=True)
class OffsetMovedEvent(Body):
    """A consumer asked for an offset that its queue does not have; a message, not an answer."""

    consumer_group: str
    queue: MessageQueue
    offset_request: int
    offset_new: int

    @classmethod
    def from_members(cls, members: Members) -> Self:
        queue = members.object("messageQueue")
        return cls(
            consumer_group=members.text("consumerGroup"),
            queue=queue_of(queue.members, queue.where),
            offset_request=members.i64("offsetRequest"),
            offset_new=members.i64("offsetNew"),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "consumerGroup": self.consumer_group,
            "messageQueue": queue_members(self.queue),
            "offsetNew": self.offset_new,
            "offsetRequest": self.offset_request,
        }


def queue_map_members(table: Mapping[MessageQueue, Any]) -> dict[str, Any]:
    """Return a map by queue with keys that are written as objects."""
    return {queue_key(queue): value for queue, value in table.items()}


def topic_and_group_of(key: str) -> tuple[str, str]:
    """Split a `topic@group` key of the consumer offset table."""
    topic, separator, group = key.partition("@")
    if not separator or "@" in group or not topic or not group:
        raise InvalidBody(f"offset table key {key[:64]!r} is not topic@group")
    return topic, group


def topic_at_group(topic: str, group: str) -> str:
    """Return the key under which the consumer offset table has a group's offsets in a topic."""
    return f"{topic}@{group}"
