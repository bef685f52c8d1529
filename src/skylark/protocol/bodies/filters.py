"""The filters of consumer groups: consumerFilter.json.

    {"filterDataByTopic":{"TopicTest":{"topic":"TopicTest","groupFilterData":{"CG":{
      "bloomFilterData":{"bitNum":112,"bitPos":[109,15,3]},"bornTime":1794726902817,
      "clientVersion":1794726902859,"consumerGroup":"CG","dead":false,"deadTime":0,
      "expression":"a > 1","expressionType":"SQL92","topic":"TopicTest"}}}}}

`dead` follows from the times; Java writes it and does not read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from .body import Body
from .members import Members


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilterData(Body):
    """What one group wants of one topic, since when, and where its bits are."""

    topic: str
    group: str
    expression: str
    expression_type: str
    born_ms: int
    dead_ms: int = 0
    client_version: int = 0
    bit_count: int = 0
    positions: tuple[int, ...] = ()

    @property
    def is_dead(self) -> bool:
        """Whether the group is gone, or wants the topic no longer."""
        return self.dead_ms >= self.born_ms

    @classmethod
    def from_members(cls, members: Members) -> Self:
        bloom = members.object_or_empty("bloomFilterData")
        return cls(
            topic=members.text("topic"),
            group=members.text("consumerGroup"),
            expression=members.text("expression"),
            expression_type=members.text("expressionType"),
            born_ms=members.i64("bornTime", 0),
            dead_ms=members.i64("deadTime", 0),
            client_version=members.i64("clientVersion", 0),
            bit_count=bloom.i32("bitNum", 0),
            positions=bloom.integers("bitPos"),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "bloomFilterData": {"bitNum": self.bit_count, "bitPos": self.positions},
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class ConsumerFilterTable(Body):
    """Every filter of a broker."""

    filters: tuple[ConsumerFilterData, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        topics = members.object_or_empty("filterDataByTopic")
        found = []
        for topic in topics.members:
            groups = topics.object(topic).object_or_empty("groupFilterData")
            found += [
                ConsumerFilterData.from_members(groups.object(group)) for group in groups.members
            ]
        return cls(tuple(found))

    def to_members(self) -> dict[str, Any]:
        topics: dict[str, dict[str, Any]] = {}
        for one in self.filters:
            topic = topics.setdefault(one.topic, {"groupFilterData": {}, "topic": one.topic})
            topic["groupFilterData"][one.group] = one.to_members()
        return {"filterDataByTopic": topics}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateVersion(Body):
    """One version of a predicate that an operator has uploaded."""

    name: str
    version: int
    source: str
    uploaded_ms: int = 0

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            name=members.text("name"),
            version=members.i32("version"),
            source=members.text("source"),
            uploaded_ms=members.i64("uploadedTime", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "uploadedTime": self.uploaded_ms,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class PredicateTableBody(Body):
    """Every predicate of a broker, in filterPredicates.json."""

    predicates: tuple[PredicateVersion, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            tuple(PredicateVersion.from_members(one) for one in members.objects("predicates"))
        )

    def to_members(self) -> dict[str, Any]:
        return {"predicates": [one.to_members() for one in self.predicates]}
