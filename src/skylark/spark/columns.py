"""Stored messages as Arrow columns: the records of a pull in, a RecordBatch out.

The compiled twin walks the records twice, once to count and once to fill, and makes no Python
object for any of them. It does the usual case; a chunk with a compressed body, or in a format that
is not 4.x's, is left to the code here, which specifies both.

Records outside a range of offsets, and with a tag other than those asked for, are left out: brokers
filter tags by their hash alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidCompression, SkylarkError
from ..model.message import Property, StoredMessage
from ..protocol.compression import plain_body
from ..protocol.record import decode_records
from .options import BodyFormat

if TYPE_CHECKING:
    import pyarrow as pa

_columns: Any = None
if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from . import _columns  # type: ignore[attr-defined, no-redef, unused-ignore]


class UnreadableBody(SkylarkError):
    """A body that is damaged, too large when expanded, or not text where text was asked for."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns to build, and how."""

    columns: tuple[str, ...]
    body_format: BodyFormat = BodyFormat.BINARY
    tags: frozenset[str] | None = None  # Exactly these; None for all.


def to_batch(
    records: bytes | memoryview,
    *,
    broker: str,
    start: int,
    end: int,
    layout: Layout,
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    """The messages with offsets in [start, end), or None if there are none."""
    compiled = None
    if _columns is not None:
        tags = None if layout.tags is None else frozenset(tag.encode() for tag in layout.tags)
        compiled = _columns.build(records, start, end, layout.columns, tags)
    if compiled is None:
        return pure_batch(
            records, broker=broker, start=start, end=end, layout=layout, schema=schema
        )
    count, built = compiled
    if count == 0:
        return None
    return _assemble(count, built, broker, layout, schema)


def pure_batch(
    records: bytes | memoryview,
    *,
    broker: str,
    start: int,
    end: int,
    layout: Layout,
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    """The same, one message after another."""
    import pyarrow as pa

    messages = [
        message
        for message in decode_records(records, check_crc=False)
        if start <= message.queue_offset < end
        and (layout.tags is None or message.properties.get(Property.TAGS) in layout.tags)
    ]
    if not messages:
        return None
    arrays = []
    for name, field in zip(layout.columns, schema, strict=True):
        if name == "broker":
            arrays.append(_repeated(broker, len(messages)))
        elif name == "body":
            bodies = [_body(message) for message in messages]
            arrays.append(_bodies(pa.array(bodies, pa.binary()), field.type, layout))
        else:
            arrays.append(pa.array([_VALUES[name](message) for message in messages], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _body(message: StoredMessage) -> bytes:
    try:
        return bytes(plain_body(message))
    except InvalidCompression as error:
        raise UnreadableBody(f"{_place(message)}: {error}") from error


def _place(message: StoredMessage) -> str:
    return f"topic {message.topic} queue {message.queue_id} offset {message.queue_offset}"


_VALUES: dict[str, Any] = {
    "topic": lambda message: message.topic,
    "queue_id": lambda message: message.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "tag": lambda message: message.properties.get(Property.TAGS),
    "keys": lambda message: message.properties.get(Property.KEYS),
    "properties": lambda message: list(message.properties.items()),
    "message_id": lambda message: message.unique_id or message.offset_id,
    "born_time": lambda message: message.born_at_ms * 1_000,
    "store_time": lambda message: message.stored_at_ms * 1_000,
    "reconsume_times": lambda message: message.reconsume_times,
    "flag": lambda message: message.flag,
    "sys_flag": lambda message: message.sys_flag,
    "physical_offset": lambda message: message.physical_offset,
    "born_host": lambda message: str(message.born_host),
    "store_host": lambda message: str(message.store_host),
    "offset_message_id": lambda message: message.offset_id,
}


def _assemble(
    count: int, built: dict[str, Any], broker: str, layout: Layout, schema: pa.Schema
) -> pa.RecordBatch:
    """Put what the compiled twin has built into Arrow's arrays; buffers are taken, not copied."""
    import pyarrow as pa

    arrays: list[pa.Array] = []
    for name, field in zip(layout.columns, schema, strict=True):
        if name == "broker":
            arrays.append(_repeated(broker, count))
            continue
        buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in built[name]]
        if name == "properties":
            offsets, key_offsets, key_data, value_offsets, value_data, pairs = (
                *buffers[:5],
                built["pairs"],
            )
            keys = pa.Array.from_buffers(pa.string(), pairs, [None, key_offsets, key_data])
            values = pa.Array.from_buffers(pa.string(), pairs, [None, value_offsets, value_data])
            struct = pa.StructArray.from_arrays(
                [keys, values], fields=[field.type.key_field, field.type.item_field]
            )
            arrays.append(
                pa.Array.from_buffers(field.type, count, [None, offsets], children=[struct])
            )
        elif name == "body":
            bodies = pa.Array.from_buffers(pa.binary(), count, buffers)
            arrays.append(_bodies(bodies, field.type, layout))
        else:
            arrays.append(pa.Array.from_buffers(field.type, count, buffers))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)


def _bodies(bodies: pa.Array, kind: pa.DataType, layout: Layout) -> pa.Array:
    """Bodies as bytes, as text, or parsed."""
    import pyarrow as pa

    if layout.body_format is BodyFormat.BINARY:
        return bodies
    if layout.body_format is BodyFormat.TEXT:
        try:
            return bodies.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_text(body) for body in bodies.to_pylist()], pa.string())
    return pa.array([_parsed(body, kind) for body in bodies.to_pylist()], kind)


def _text(body: bytes) -> str:
    # As Spark does with a string from bytes: what is no UTF-8 is marked, nothing is lost silently.
    return body.decode("utf-8", "replace")


def _parsed(body: bytes, kind: pa.DataType) -> dict[str, Any] | None:
    """A JSON object with the fields of the schema; null where it is none, as from_json does."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found = {}
    for field in kind:
        item = value.get(field.name)
        found[field.name] = _fitted(item, field.type)
    return found


def _fitted(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        return None
    return value
