"""Figures about topics, groups and the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...model.queue import MessageQueue
from ..fastjson import Json
from .body import Body
from .members import Members, queue_members, queue_of
from .offsets import queue_map_members


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Where one queue begins and ends, and when it was last written to."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True)
class TopicStatsBody(Body):
    """The queues of a topic, the answer to GET_TOPIC_STATS_INFO."""

    offsets: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.queue_map_of("offsetTable", _topic_offset_of))

    def to_members(self) -> dict[str, Any]:
        table = {
            queue: {
                "lastUpdateTimestamp": at.last_update_timestamp,
                "maxOffset": at.max_offset,
                "minOffset": at.min_offset,
            }
            for queue, at in self.offsets.items()
        }
        return {"offsetTable": queue_map_members(table)}


@dataclass(frozen=True, slots=True)
class ConsumeOffset:
    """How far a queue reaches, how far a group has come in it, and when that was stored."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class ConsumeStatsBody(Body):
    """How far a group is behind, the answer to GET_CONSUME_STATS."""

    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            offsets=members.queue_map_of("offsetTable", _consume_offset_of),
            consume_tps=members.real("consumeTps", 0.0),
        )

    def to_members(self) -> dict[str, Any]:
        table = {
            queue: {
                "brokerOffset": at.broker_offset,
                "consumerOffset": at.consumer_offset,
                "lastTimestamp": at.last_timestamp,
            }
            for queue, at in self.offsets.items()
        }
        return {"consumeTps": float(self.consume_tps), "offsetTable": queue_map_members(table)}


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsBody(Body):
    """How far every group of a broker is behind: for each group, its figures by topic."""

    broker_addr: str
    groups: tuple[Mapping[str, tuple[ConsumeStatsBody, ...]], ...] = ()
    total_diff: int = 0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        groups = []
        for item in members.objects("consumeStatsList"):
            groups.append(
                {
                    group: tuple(
                        ConsumeStatsBody.from_members(stats) for stats in item.objects(group)
                    )
                    for group in item.members
                }
            )
        return cls(
            broker_addr=members.text("brokerAddr", ""),
            groups=tuple(groups),
            total_diff=members.i64("totalDiff", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "brokerAddr": self.broker_addr,
            "consumeStatsList": [
                {name: [stats.to_members() for stats in group[name]] for name in group}
                for group in self.groups
            ],
            "totalDiff": self.total_diff,
        }


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """The store times of one queue's first and last message, and of the group's place between."""

    queue: MessageQueue
    min_timestamp: int
    max_timestamp: int
    consume_timestamp: int
    delay_time: int
    min_timestamp_text: str | None = None
    max_timestamp_text: str | None = None
    consume_timestamp_text: str | None = None


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpanBody(Body):
    """The time spans of a topic's queues, the answer to QUERY_CONSUME_TIME_SPAN."""

    spans: tuple[QueueTimeSpan, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(tuple(_span_of(item) for item in members.objects("consumeTimeSpanSet")))

    def to_members(self) -> dict[str, Any]:
        return {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consume_timestamp,
                    "consumeTimeStampStr": span.consume_timestamp_text,
                    "delayTime": span.delay_time,
                    "maxTimeStamp": span.max_timestamp,
                    "maxTimeStampStr": span.max_timestamp_text,
                    "messageQueue": queue_members(span.queue),
                    "minTimeStamp": span.min_timestamp,
                    "minTimeStampStr": span.min_timestamp_text,
                }
                for span in self.spans
            ]
        }


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(Body):
    """One counter over one stretch of time."""

    sum: int = 0
    tps: float = 0.0
    average: float = 0.0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.i64("sum", 0), members.real("tps", 0.0), members.real("avgpt", 0.0))

    def to_members(self) -> dict[str, Any]:
        return {"avgpt": float(self.average), "sum": self.sum, "tps": float(self.tps)}


@dataclass(frozen=True, slots=True)
class BrokerStatsDataBody(Body):
    """One counter over the last minute, hour and day, the answer to VIEW_BROKER_STATS_DATA."""

    minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    day: BrokerStatsItem = field(default_factory=BrokerStatsItem)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            minute=BrokerStatsItem.from_members(members.object_or_empty("statsMinute")),
            hour=BrokerStatsItem.from_members(members.object_or_empty("statsHour")),
            day=BrokerStatsItem.from_members(members.object_or_empty("statsDay")),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "statsDay": self.day.to_members(),
            "statsHour": self.hour.to_members(),
            "statsMinute": self.minute.to_members(),
        }


def _topic_offset_of(value: Json, where: str) -> TopicOffset:
    members = Members.of(value, where)
    return TopicOffset(
        min_offset=members.i64("minOffset", 0),
        max_offset=members.i64("maxOffset", 0),
        last_update_timestamp=members.i64("lastUpdateTimestamp", 0),
    )


def _consume_offset_of(value: Json, where: str) -> ConsumeOffset:
    members = Members.of(value, where)
    return ConsumeOffset(
        broker_offset=members.i64("brokerOffset", 0),
        consumer_offset=members.i64("consumerOffset", 0),
        last_timestamp=members.i64("lastTimestamp", 0),
    )


def _span_of(members: Members) -> QueueTimeSpan:
    queue = members.object("messageQueue")
    return QueueTimeSpan(
        queue=queue_of(queue.members, queue.where),
        min_timestamp=members.i64("minTimeStamp", 0),
        max_timestamp=members.i64("maxTimeStamp", 0),
        consume_timestamp=members.i64("consumeTimeStamp", 0),
        delay_time=members.i64("delayTime", 0),
        min_timestamp_text=members.text_or_none("minTimeStampStr"),
        max_timestamp_text=members.text_or_none("maxTimeStampStr"),
        consume_timestamp_text=members.text_or_none("consumeTimeStampStr"),
    )
