"""Messages: as an application builds them, and as a broker stores them.

sysFlag bit(s)     meaning
0x001              body compressed
0x002              multi tags (the topic's filter type)
0x00c              transaction: 0x0 none, 0x4 prepared (half), 0x8 commit, 0xc rollback
0x010, 0x020       born host, store host is IPv6: 20 bytes instead of 8
0x040, 0x080       reserved for the inner batches of 5.x
0x700              compression type: 0x100 LZ4, 0x200 ZSTD, 0x300 zlib; 0 means zlib too
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

from ..errors import LocalProtocolError


class SysFlag(IntFlag):
    """Bits that brokers and clients keep in a message's sysFlag."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


class TransactionType(IntEnum):
    """What a message is to a transaction: two bits of the sysFlag."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC

    @classmethod
    def of(cls, sys_flag: int) -> TransactionType:
        """Return the type that a sysFlag holds."""
        return cls(sys_flag & 0xC)


class CompressionType(IntEnum):
    """How a compressed body is compressed: three bits of the sysFlag."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


COMPRESSION_TYPE_MASK = 0x700
TRANSACTION_TYPE_MASK = 0xC


class Property:
    """Names of properties with a meaning to brokers and clients."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    UNIQ_KEY = "UNIQ_KEY"
    CLUSTER = "CLUSTER"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QID = "REAL_QID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    TRAN_MSG = "TRAN_MSG"
    PGROUP = "PGROUP"
    TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    MSG_TYPE = "MSG_TYPE"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    BUYER_ID = "BUYER_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    # Timer properties of 5.x: any delivery time instead of the 18 levels.
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    # Ours: the offset of the timer that this one stands in for, and what repeats.
    TIMER_REPLACES = "TIMER_REPLACES"
    REPEAT_ID = "REPEAT_ID"
    REPEAT_RULE = "REPEAT_RULE"
    REPEAT_ZONE = "REPEAT_ZONE"
    REPEAT_COUNT = "REPEAT_COUNT"


# Java lets an application set these four itself; so do we.
_OPEN_TO_APPLICATIONS = {
    Property.INNER_MULTI_DISPATCH,
    Property.TRAN_PREPARED_QUEUE_OFFSET,
    Property.TRANSACTION_CHECK_TIMES,
    Property.CHECK_IMMUNITY_TIME_IN_SECONDS,
}

RESERVED_PROPERTIES: frozenset[str] = frozenset(
    value for name, value in vars(Property).items() if not name.startswith("_")
) - frozenset(_OPEN_TO_APPLICATIONS)

DELAY_LEVEL_MAX = 18


def require_user_property(name: str, value: str) -> None:
    """Raise LocalProtocolError unless an application may set this property."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise LocalProtocolError(f"property {name!r}: name and value must be strings")
    if name in RESERVED_PROPERTIES:
        raise LocalProtocolError(
            f"property {name!r} is reserved: use the field of Message that sets it, or another name"
        )
    if not name or not value:
        raise LocalProtocolError(f"property {name!r}: neither name nor value may be empty")
    if any(separator in text for text in (name, value) for separator in "\x01\x02"):
        raise LocalProtocolError(f"property {name!r}: it contains the separator \\x01 or \\x02")


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send."""

    topic: str
    body: bytes = b""
    tag: str | None = None
    keys: Iterable[str] = ()  # Kept as a tuple; a single string is one key.
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0  # Free for the application; stored as it is.
    delay_level: int = 0  # 1 to 18, or 0 for at once.
    delay_ms: int | None = None  # Any delay; needs a broker with a timer.
    deliver_at_ms: int | None = None  # Any wall time; needs a broker with a timer.
    wait_stored: bool = True  # The answer waits for flush and replicas, if the broker does.

    def __post_init__(self) -> None:
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "properties", dict(self.properties))
        if not isinstance(self.body, bytes):
            if not isinstance(self.body, bytearray | memoryview):
                kind = type(self.body).__name__
                raise LocalProtocolError(f"a message body is bytes, not {kind}: encode it first")
            object.__setattr__(self, "body", bytes(self.body))
        if not self.topic:
            raise LocalProtocolError("a message needs a topic")
        for name, value in self.properties.items():
            require_user_property(name, value)
        for key in keys:
            if not key or any(character in key for character in " \x01\x02"):
                raise LocalProtocolError(
                    f"key {key!r}: a key may not be empty nor contain spaces, \\x01 or \\x02"
                )
        if self.tag is not None and (
            not self.tag.strip() or any(part in self.tag for part in ("||", "\x01", "\x02"))
        ):
            raise LocalProtocolError(
                f"tag {self.tag!r}: a tag may not be blank nor contain ||, \\x01 or \\x02"
            )
        if not 0 <= self.delay_level <= DELAY_LEVEL_MAX:
            raise LocalProtocolError(
                f"delay level {self.delay_level}: it must be 1 to {DELAY_LEVEL_MAX}, or 0 for none"
            )
        if not -(2**31) <= self.flag < 2**31:
            raise LocalProtocolError(f"flag {self.flag}: it must fit in 32 bits, signed")
        delays = (self.delay_level or None, self.delay_ms, self.deliver_at_ms)
        if sum(delay is not None for delay in delays) > 1:
            raise LocalProtocolError(
                "give one of delay_level, delay_ms and deliver_at_ms, not several"
            )
        if any(when is not None and when < 0 for when in (self.delay_ms, self.deliver_at_ms)):
            raise LocalProtocolError("delay_ms and deliver_at_ms may not be negative")

    def all_properties(self) -> dict[str, str]:
        """Return the application's properties and those that the other fields stand for."""
        found = dict(self.properties)
        keys = tuple(self.keys)
        if keys:
            found[Property.KEYS] = " ".join(keys)
        if self.tag is not None:
            found[Property.TAGS] = self.tag
        if self.delay_level:
            found[Property.DELAY] = str(self.delay_level)
        if self.delay_ms is not None:
            found[Property.TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at_ms is not None:
            found[Property.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        found[Property.WAIT] = "true" if self.wait_stored else "false"
        return found


class HostAddress(NamedTuple):
    """An IP address and a port, as records hold them: never a host name."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class OffsetId(NamedTuple):
    """Where a record lies: the broker that stores it, and the physical offset in its log.

    As text: address (4 or 16 bytes), port (i32), offset (i64) in upper-case hex, 32 or 56 digits.
    """

    host: HostAddress
    physical_offset: int

    def __str__(self) -> str:
        place = struct.pack(">iq", self.host.port, self.physical_offset)
        return (ipaddress.ip_address(self.host.ip).packed + place).hex().upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as a broker stored it: one record, all its fields."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes  # As stored: compressed where is_compressed says so.
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: HostAddress
    stored_at_ms: int
    store_host: HostAddress
    physical_offset: int
    size_bytes: int
    body_crc: int
    reconsume_times: int
    prepared_transaction_offset: int
    magic: int

    def __hash__(self) -> int:
        return hash((self.store_host, self.physical_offset))

    @property
    def tag(self) -> str | None:
        """The tag that consumers filter by."""
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which the message can be found."""
        return tuple(key for key in self.properties.get(Property.KEYS, "").split(" ") if key)

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave it; retries and delayed copies keep it."""
        return self.properties.get(Property.UNIQ_KEY)

    @property
    def offset_id(self) -> str:
        """The id that says where this record lies: address of the broker and physical offset."""
        return str(OffsetId(self.store_host, self.physical_offset))

    @property
    def delay_level(self) -> int:
        """The delay level it was sent with, or 0."""
        level = self.properties.get(Property.DELAY, "0")
        return int(level) if level.isascii() and level.isdigit() else 0

    @property
    def is_compressed(self) -> bool:
        """Whether the body is stored compressed; protocol.compression expands it."""
        return bool(self.sys_flag & SysFlag.COMPRESSED)

    @property
    def transaction_type(self) -> TransactionType:
        """What it is to a transaction."""
        return TransactionType.of(self.sys_flag)
