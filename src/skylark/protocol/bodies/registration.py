"""RegisterBrokerBody: the topics that a broker brings along when it registers.

Three forms, told apart by the request's header:

    version < 37      the bare topic table, as JSON
    compressed=false  {"filterServerList":[],"topicConfigSerializeWrapper":{the topic table}}
    compressed=true   one zlib stream of the following, big-endian

    size   field
    4 + n  length, the DataVersion as JSON
    4      number of topics
    4 + n  for each: length, `name readQueueNums writeQueueNums perm topicFilterType`
    4 + n  length, the filter servers as a JSON array

The compressed form loses the order and system flags of a topic.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Self

from ...errors import InvalidBody
from ...model.topic import TopicConfig
from .. import fastjson
from .body import Body
from .members import Members
from .topics import DataVersionBody, TopicConfigTable, topic_config_of

FULL_BODY_VERSION_MIN = 37  # V3_0_11; older brokers send the bare table.

INFLATED_SIZE_MAX = 16 * 1024 * 1024
_RATIO_MAX = 256  # Topic tables shrink some twenty-fold; far more than that is a bomb.
_RATIO_FREE = 64 * 1024  # Below this size the ratio does not matter.
_COMPRESSION_LEVEL = 9

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(Body):
    """A broker's topics with their version, and its filter servers."""

    table: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_servers: tuple[str, ...] = ()

    @classmethod
    def decode(cls, data: bytes | memoryview, *, compressed: bool, version: int) -> Self:
        """Read whichever form the request's header announces; no body means no topics."""
        if not data:
            return cls()
        if version < FULL_BODY_VERSION_MIN:
            return cls(TopicConfigTable.from_json(data))
        return cls.from_compressed(data) if compressed else cls.from_json(data)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            TopicConfigTable.from_members(members.object_or_empty("topicConfigSerializeWrapper")),
            members.texts("filterServerList"),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "filterServerList": self.filter_servers,
            "topicConfigSerializeWrapper": self.table.to_members(),
        }

    @classmethod
    def from_compressed(cls, data: bytes | memoryview) -> Self:
        """Read the compressed form."""
        return cls._from_inflated(_inflate(data))

    @classmethod
    def _from_inflated(cls, plain: bytes) -> Self:
        version, at = _take(plain, 0)
        count, at = _take_length(plain, at)
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            line, at = _take(plain, at)
            config = _topic_of_line(line)
            topics[config.name] = config
        servers, at = _take(plain, at)
        if at != len(plain):
            raise InvalidBody(f"RegisterBrokerBody: {len(plain) - at} bytes after its end")
        members = Members({"filterServerList": fastjson.loads(servers)}, "RegisterBrokerBody")
        return cls(
            TopicConfigTable(topics, DataVersionBody.from_json(version).version),
            members.texts("filterServerList"),
        )

    def to_compressed(self) -> bytes:
        """Write the compressed form."""
        return zlib.compress(self._to_inflated(), _COMPRESSION_LEVEL)

    def _to_inflated(self) -> bytes:
        topics = self.table.topics.values()
        parts = [_prefixed(DataVersionBody(self.table.data_version).to_json())]
        parts.append(_LENGTH.pack(len(topics)))
        parts += (_prefixed(_line_of_topic(config).encode()) for config in topics)
        parts.append(_prefixed(fastjson.dumps(self.filter_servers)))
        return b"".join(parts)


def body_crc32(data: bytes | memoryview) -> int:
    """Return the checksum of a body as sent, which the header carries; 0 there means unchecked."""
    return zlib.crc32(data) & 0x7FFFFFFF


def _inflate(data: bytes | memoryview) -> bytes:
    size_max = min(INFLATED_SIZE_MAX, max(_RATIO_FREE, len(data) * _RATIO_MAX))
    stream = zlib.decompressobj()
    try:
        # One byte more than allowed tells "exactly full" from "too big" without inflating it all.
        plain = stream.decompress(data, size_max + 1)
    except zlib.error as error:
        raise InvalidBody(f"RegisterBrokerBody: not a zlib stream: {error}") from None
    if len(plain) > size_max:
        raise InvalidBody(f"RegisterBrokerBody: inflates to more than {size_max} bytes")
    if not stream.eof:
        raise InvalidBody("RegisterBrokerBody: the zlib stream is cut short")
    if stream.unused_data:
        raise InvalidBody("RegisterBrokerBody: bytes after the zlib stream")
    return plain


def _take_length(plain: bytes, at: int) -> tuple[int, int]:
    if len(plain) - at < 4:
        raise InvalidBody(f"RegisterBrokerBody: cut short at byte {at}")
    (length,) = _LENGTH.unpack_from(plain, at)
    # Each counted thing takes at least a byte, so one check serves for lengths and for counts.
    if not 0 <= length <= len(plain) - at - 4:
        raise InvalidBody(f"RegisterBrokerBody: length {length} at byte {at} is beyond the end")
    return length, at + 4


def _take(plain: bytes, at: int) -> tuple[bytes, int]:
    length, at = _take_length(plain, at)
    return plain[at : at + length], at + length


def _prefixed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _topic_of_line(line: bytes) -> TopicConfig:
    try:
        words = line.decode().split(" ")
    except UnicodeDecodeError:
        raise InvalidBody("RegisterBrokerBody: a topic that is not UTF-8") from None
    if len(words) != 5:
        raise InvalidBody(f"RegisterBrokerBody: a topic of {len(words)} words instead of 5")
    name, read_queue_nums, write_queue_nums, perm, filter_type = words
    return topic_config_of(
        {
            "topicName": name,
            "readQueueNums": read_queue_nums,
            "writeQueueNums": write_queue_nums,
            "perm": perm,
            "topicFilterType": filter_type,
        },
        "RegisterBrokerBody topic",
    )


def _line_of_topic(config: TopicConfig) -> str:
    return (
        f"{config.name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
        f"{config.filter_type}"
    )
