"""Record: a message as bytes, the same in the commit log and on the wire.

    record, big-endian, B and S = 4 or 16 (IPv4 or IPv6, as sysFlag 0x10 and 0x20 say)
    at       size   field
    0        4      total size of the record, this field included
    4        4      magic 0xDAA320A7 (0xDAA320AB: version 2 of 5.x; read, never written)
    8        4      CRC-32 of the body as stored, top bit cleared
    12       4      queue id
    16       4      flag, the application's own
    20       8      queue offset
    28       8      physical offset
    36       4      sysFlag (see model.message)
    40       8      born timestamp, ms, the producer's clock
    48       B + 4  born host: address, port as i32
    52 + B   8      store timestamp, ms, the broker's clock
    60 + B   S + 4  store host
    64 + B+S 4      reconsume times
    68 + B+S 8      prepared transaction offset
    76 + B+S 4 + n  body length, body
    ...      1 + n  topic length (at most 127; in version 2 this is an i16), topic
    ...      2 + n  properties length (at most 32,767), properties

With two IPv4 hosts the fixed fields take 91 bytes. Several records are simply concatenated.

    blank record, where the next record would not fit in a file of the commit log
    0        4      bytes from here to the end of the file
    4        4      magic 0xCBD43194
    8        ...    anything

Checks run in RocketMQ's order (magic, body CRC, properties, recomputed size against total size),
and no length is believed before it is compared with what is really there. A failed check raises
InvalidRecord, which names the position and the field.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import InvalidRecord, LocalProtocolError
from ..model.message import HostAddress, Property, StoredMessage
from .crc import body_crc
from .hashes import tag_hash
from .properties import LazyProperties, encode_text, parse_properties_pure, split_keys

MAGIC = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK_SIZE_MIN = 8  # Every file keeps room for the head of a blank record.

FIXED_SIZE = 91
TOPIC_BYTES_MAX = 127
PROPERTIES_BYTES_MAX = 32_767

# Where an appender patches what it learns last. With an IPv6 born host the store time is 12 later.
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
STORED_AT_AT = 56

_BORN_V6 = 0x10
_STORE_V6 = 0x20
_V6_EXTRA = 12

_HEAD = struct.Struct(">iIiiiqqiq")  # total size … born timestamp
_TAIL = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body length
_BLANK = struct.Struct(">iI")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BYTE = struct.Struct(">b")
assert _HEAD.size + 8 + 8 + 8 + _TAIL.size + 1 + 2 == FIXED_SIZE

Buffer = bytes | bytearray | memoryview


def stored_at_position(sys_flag: int) -> int:
    """Return where in a record its store timestamp lies."""
    return STORED_AT_AT + (_V6_EXTRA if sys_flag & _BORN_V6 else 0)


def record_size(
    body_bytes: int, topic_bytes: int, properties_bytes: int, *, sys_flag: int = 0
) -> int:
    """Return the size of a record from the sizes of its variable parts."""
    hosts = (_V6_EXTRA if sys_flag & _BORN_V6 else 0) + (_V6_EXTRA if sys_flag & _STORE_V6 else 0)
    return FIXED_SIZE + hosts + body_bytes + topic_bytes + properties_bytes


@functools.lru_cache(maxsize=4096)
def pack_host(ip: str, port: int) -> bytes:
    """Return a host as records hold it: 8 bytes for IPv4, 20 for IPv6.

    An IPv4 address in IPv6 clothes, as a dual-stack socket shows it, is stored as the IPv4 address
    it is: the C++ client cannot read IPv6 records.
    """
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        if not 0 <= port <= 0xFFFF:
            raise ValueError(f"port {port} is out of range")
    except ValueError as error:
        raise LocalProtocolError(
            f"host {ip!r} port {port}: {error}; resolve names before storing them"
        ) from None
    return address.packed + port.to_bytes(4, "big")


@functools.lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> HostAddress:
    """Return the host that 8 or 20 bytes of a record stand for."""
    port = int.from_bytes(packed[-4:], "big", signed=True)
    return HostAddress(str(ipaddress.ip_address(packed[:-4])), port)


def encode_blank(size_left: int) -> bytes:
    """Return the head of the blank record that ends a file."""
    assert size_left >= BLANK_SIZE_MIN
    return _BLANK.pack(size_left, BLANK_MAGIC)


def encode_record(
    *,
    topic: str | bytes,
    body: Buffer,
    properties: str | bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_at_ms: int = 0,
    born_host: bytes,
    stored_at_ms: int = 0,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return one record; hosts come from pack_host, and set the IPv6 bits of the sysFlag."""
    if isinstance(topic, str):
        topic = encode_text(topic)
    if isinstance(properties, str):
        properties = encode_text(properties)
    if not 0 < len(topic) <= TOPIC_BYTES_MAX:
        raise LocalProtocolError(
            f"topic of {len(topic)} bytes: 1 to {TOPIC_BYTES_MAX} can be stored"
        )
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {len(properties)} bytes: at most {PROPERTIES_BYTES_MAX} can be stored"
        )
    sys_flag &= ~(_BORN_V6 | _STORE_V6)
    for host, bit in ((born_host, _BORN_V6), (store_host, _STORE_V6)):
        if len(host) == 20:
            sys_flag |= bit
        elif len(host) != 8:
            raise LocalProtocolError(f"host of {len(host)} bytes: pack_host gives 8 or 20")
    body_bytes = len(body)
    try:
        return b"".join(
            (
                _HEAD.pack(
                    record_size(body_bytes, len(topic), len(properties), sys_flag=sys_flag),
                    MAGIC,
                    body_crc(body),
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    born_at_ms,
                ),
                born_host,
                _LONG.pack(stored_at_ms),
                store_host,
                _TAIL.pack(reconsume_times, prepared_transaction_offset, body_bytes),
                body,
                len(topic).to_bytes(1, "big"),
                topic,
                _SHORT.pack(len(properties)),
                properties,
            )
        )
    except struct.error as error:
        raise LocalProtocolError(f"a field does not fit its place in a record: {error}") from None


def encode_record_into(
    buffer: bytearray | memoryview,
    at: int,
    *,
    topic: str | bytes,
    body: Buffer,
    properties: str | bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_at_ms: int = 0,
    born_host: bytes,
    stored_at_ms: int = 0,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> int:
    """Write one record at a position of a writable buffer, and return its size.

    Nothing is written unless all of it fits.
    """
    record = encode_record_pure(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_at_ms=born_at_ms,
        born_host=born_host,
        stored_at_ms=stored_at_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )
    end = at + len(record)
    with memoryview(buffer) as view:
        if at < 0 or end > len(view):
            raise LocalProtocolError(
                f"a record of {len(record)} bytes does not fit at {at} of {len(view)} bytes"
            )
        view[at:end] = record
    return len(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchInfo:
    """What queues and index need to know of a record; the body is not touched."""

    physical_offset: int
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    tag_hash: int
    stored_at_ms: int
    sys_flag: int
    prepared_transaction_offset: int
    unique_key: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]

    __hash__ = None  # type: ignore[assignment]


class _Fields(NamedTuple):
    """The checked fields of a record, and where those lie that are not read yet."""

    head: tuple[int, int, int, int, int, int, int, int, int]
    tail: tuple[int, int, int]
    stored_at: int
    tail_at: int
    body_at: int
    topic: str
    properties_at: int
    end: int


def _walk(view: memoryview, at: int, *, check_crc: bool) -> _Fields | None:
    """Check the record at a position; None where a blank record begins."""
    room = len(view)
    if at < 0 or at + 8 > room:
        raise InvalidRecord(at, "total size", f"is cut off: {room - at} bytes left")
    magic = _BLANK.unpack_from(view, at)[1]
    if magic == BLANK_MAGIC:
        return None
    if magic != MAGIC and magic != MAGIC_V2:
        raise InvalidRecord(at, "magic", f"is {magic:#010x}, expected {MAGIC:#010x}")
    if at + FIXED_SIZE > room:
        raise InvalidRecord(at, "fixed fields", f"are cut off: {room - at} bytes left")
    head = _HEAD.unpack_from(view, at)
    sys_flag = head[7]
    stored_at = at + _HEAD.size + (20 if sys_flag & _BORN_V6 else 8)
    tail_at = stored_at + 8 + (20 if sys_flag & _STORE_V6 else 8)
    body_at = tail_at + _TAIL.size
    if body_at > room:
        raise InvalidRecord(at, "fixed fields", f"are cut off: {room - at} bytes left")
    tail = _TAIL.unpack_from(view, tail_at)

    topic_at = body_at + tail[2]
    topic_length_form = _BYTE if magic == MAGIC else _SHORT
    if tail[2] < 0 or topic_at + topic_length_form.size > room:
        raise InvalidRecord(at, "body length", f"is {tail[2]}: {room - body_at} bytes left")
    if check_crc and body_crc(view[body_at:topic_at]) != head[2]:
        raise InvalidRecord(at, "body crc", "does not match the body")

    topic_length = topic_length_form.unpack_from(view, topic_at)[0]
    topic_at += topic_length_form.size
    properties_at = topic_at + topic_length + 2
    if topic_length < 0 or properties_at > room:
        raise InvalidRecord(at, "topic length", f"is {topic_length}: {room - topic_at} bytes left")
    try:
        topic = str(view[topic_at : properties_at - 2], "utf-8")
    except UnicodeDecodeError:
        raise InvalidRecord(at, "topic", "is not UTF-8") from None

    properties_length = _SHORT.unpack_from(view, properties_at - 2)[0]
    end = properties_at + properties_length
    if properties_length < 0 or end > room:
        raise InvalidRecord(
            at, "properties length", f"is {properties_length}: {room - properties_at} bytes left"
        )
    if end - at != head[0]:
        raise InvalidRecord(at, "total size", f"is {head[0]}, but the fields take {end - at}")
    return _Fields(head, tail, stored_at, tail_at, body_at, topic, properties_at, end)


def properties_text(record: Buffer) -> bytes:
    """The properties of one whole, sound record, unread; empty where its lengths do not fit."""
    with memoryview(record) as view:
        size = len(view)
        if size < FIXED_SIZE:
            return b""
        sys_flag = _INT.unpack_from(view, SYS_FLAG_AT)[0]
        at = _HEAD.size + 8 + (20 if sys_flag & _BORN_V6 else 8)
        at += (20 if sys_flag & _STORE_V6 else 8) + _TAIL.size
        body_bytes = _INT.unpack_from(view, at - 4)[0] if at <= size else -1
        at += body_bytes
        if body_bytes < 0 or at + 2 > size:
            return b""
        if _INT.unpack_from(view, 4)[0] & 0xFFFFFFFF == MAGIC_V2:
            at += 2 + _SHORT.unpack_from(view, at)[0]
        else:
            at += 1 + view[at]
        if not 0 < at <= size - 2:
            return b""
        end = at + 2 + _SHORT.unpack_from(view, at)[0]
        return bytes(view[at + 2 : end]) if at + 2 <= end <= size else b""


def _message(view: memoryview, at: int, fields: _Fields) -> StoredMessage:
    head, tail, stored_at, tail_at, body_at, topic, properties_at, end = fields
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_at_ms = head
    reconsume_times, prepared_transaction_offset, body_bytes = tail
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        body=bytes(view[body_at : body_at + body_bytes]),
        properties=LazyProperties(bytes(view[properties_at:end])),
        flag=flag,
        sys_flag=sys_flag,
        born_at_ms=born_at_ms,
        born_host=unpack_host(bytes(view[at + _HEAD.size : stored_at])),
        stored_at_ms=_LONG.unpack_from(view, stored_at)[0],
        store_host=unpack_host(bytes(view[stored_at + 8 : tail_at])),
        physical_offset=physical_offset,
        size_bytes=size,
        body_crc=crc,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        magic=magic,
    )


def decode_record(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """Return the message at a position; the record's end is at + message.size_bytes."""
    with memoryview(buffer) as view:
        fields = _walk(view, at, check_crc=check_crc)
        if fields is None:
            raise InvalidRecord(at, "magic", "is that of a blank record, not of a message")
        return _message(view, at, fields)


def decode_records(buffer: Buffer, *, check_crc: bool = True) -> list[StoredMessage]:
    """Return all messages of a buffer that holds whole records and nothing else."""
    messages = []
    at = 0
    with memoryview(buffer) as view:
        while at < len(view):
            message = decode_record_pure(view, at, check_crc=check_crc)
            messages.append(message)
            at += message.size_bytes
    return messages


def decode_dispatch(buffer: Buffer, at: int = 0, *, check_crc: bool = False) -> DispatchInfo | None:
    """Return what to dispatch of the record at a position; None where a blank record begins."""
    with memoryview(buffer) as view:
        fields = _walk(view, at, check_crc=check_crc)
        if fields is None:
            return None
        text = bytes(view[fields.properties_at : fields.end])
        stored_at_ms = _LONG.unpack_from(view, fields.stored_at)[0]
    properties = parse_properties_pure(text)
    return DispatchInfo(
        physical_offset=fields.head[6],
        size_bytes=fields.head[0],
        topic=fields.topic,
        queue_id=fields.head[3],
        queue_offset=fields.head[5],
        tag_hash=tag_hash(properties.get(Property.TAGS)),
        stored_at_ms=stored_at_ms,
        sys_flag=fields.head[7],
        prepared_transaction_offset=fields.tail[1],
        unique_key=properties.get(Property.UNIQ_KEY),
        keys=split_keys(properties.get(Property.KEYS)),
        properties=LazyProperties(text),
    )


def decode_dispatches(
    buffer: Buffer, at: int = 0, *, count_max: int = 1024, check_crc: bool = False
) -> tuple[list[DispatchInfo], int]:
    """Return the sound records from a position on, and the position after the last of them.

    It stops without complaint after count_max records, at the buffer's end, and before a blank or
    an unsound record: decode_dispatch at the returned position tells which of the two it is.
    """
    found: list[DispatchInfo] = []
    room = len(buffer)
    while len(found) < count_max and at < room:
        try:
            info = decode_dispatch_pure(buffer, at, check_crc=check_crc)
        except InvalidRecord:
            break
        if info is None:
            break
        found.append(info)
        at += info.size_bytes
    return found, at


encode_record_pure = encode_record
encode_record_into_pure = encode_record_into
decode_record_pure = decode_record
decode_records_pure = decode_records
decode_dispatch_pure = decode_dispatch
decode_dispatches_pure = decode_dispatches

if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from . import _record

        # The twin hands odd input back to the pure functions, so that both say the same about it.
        _record.bind(
            StoredMessage,
            DispatchInfo,
            LazyProperties,
            unpack_host,
            decode_record_pure,
            decode_dispatch_pure,
            encode_record_pure,
            encode_record_into_pure,
        )
        encode_record = _record.encode_record
        encode_record_into = _record.encode_record_into
        decode_record = _record.decode_record
        decode_records = _record.decode_records
        decode_dispatch = _record.decode_dispatch
        decode_dispatches = _record.decode_dispatches
