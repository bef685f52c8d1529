"""Topic tables and topic lists, and the DataVersion that goes with every table.

{"dataVersion":{"counter":1,"timestamp":5},
 "topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",
                          "topicName":"T","topicSysFlag":0,"writeQueueNums":8}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...model.topic import TopicConfig, TopicFilterType
from ...model.version import DataVersion
from ..fastjson import Json
from .body import Body
from .members import Members


@dataclass(frozen=True, slots=True)
class DataVersionBody(Body):
    """A DataVersion alone: the body of QUERY_DATA_VERSION, and text in some headers."""

    version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            DataVersion(timestamp=members.i64("timestamp", 0), counter=members.i64("counter", 0))
        )

    def to_members(self) -> dict[str, Any]:
        return {"counter": self.version.counter, "timestamp": self.version.timestamp}


@dataclass(frozen=True, slots=True)
class TopicConfigTable(Body):
    """Every topic of a broker: GET_ALL_TOPIC_CONFIG, topics.json, and most of a registration."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            topics=members.map_of("topicConfigTable", topic_config_of),
            data_version=DataVersionBody.from_members(
                members.object_or_empty("dataVersion")
            ).version,
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "dataVersion": DataVersionBody(self.data_version).to_members(),
            "topicConfigTable": {
                name: topic_config_members(config) for name, config in self.topics.items()
            },
        }


@dataclass(frozen=True, slots=True)
class TopicConfigBody(Body):
    """One topic alone: GET_TOPIC_CONFIG."""

    topic: TopicConfig

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(topic_config_from(members))

    def to_members(self) -> dict[str, Any]:
        return topic_config_members(self.topic)


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Names of topics, and for system topics a broker that can name more of them."""

    topics: tuple[str, ...] = ()
    broker_addr: str | None = None

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.texts("topicList"), members.text_or_none("brokerAddr"))

    def to_members(self) -> dict[str, Any]:
        return {"brokerAddr": self.broker_addr, "topicList": self.topics}


def topic_config_of(value: Json, where: str) -> TopicConfig:
    """Read a topic inside a table."""
    return topic_config_from(Members.of(value, where))


def topic_config_from(members: Members) -> TopicConfig:
    """Read a topic; what an older or newer peer leaves out has Java's default."""
    return TopicConfig(
        name=members.text("topicName"),
        read_queue_nums=members.i32("readQueueNums", 16),
        write_queue_nums=members.i32("writeQueueNums", 16),
        perm=members.i32("perm", 6),
        filter_type=members.enum("topicFilterType", TopicFilterType, TopicFilterType.SINGLE_TAG),
        sys_flag=members.i32("topicSysFlag", 0),
        order=members.flag("order", False),
    )


def topic_config_members(config: TopicConfig) -> dict[str, Any]:
    """Return a topic as an object."""
    return {
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": config.filter_type,
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }
