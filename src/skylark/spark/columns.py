"""Stored messages as Arrow columns: records in, RecordBatches out.

The compiled twin looks at the records twice, once to count and once to fill, and makes no Python
object for any of them but those whose body is compressed. What is not of the usual form, such as a
body that does not expand, is left to the code here, which specifies both.

Records outside a range of offsets, and with a tag other than those asked for, are left out: brokers
filter tags by their hash alone. A batch holds about bytes_max, or one message that is larger, also
where a few compressed bytes stand for many.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidCompression, InvalidRecord, MissingExtra
from ..model.message import Property, StoredMessage
from ..protocol.compression import compression_type, expand, plain_body
from ..protocol.record import decode_record
from .bodies import UnreadableBody, parsed_bodies, place_of, text_bodies
from .offsets import QueueKey
from .options import BodyFormat, BodyMode

if TYPE_CHECKING:
    import pyarrow as pa

# Timestamps that Spark allows, and less a day or two: they have a year in every time zone.
TIME_MS_MIN, TIME_MS_MAX = -62_135_424_000_000, 253_402_214_399_999

_columns: Any = None
if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from . import _columns  # type: ignore[attr-defined, no-redef, unused-ignore]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns to build, and how."""

    columns: tuple[str, ...]
    body_format: BodyFormat = BodyFormat.BINARY
    tags: frozenset[str] | None = None  # Exactly these; None for all.
    mode: BodyMode = BodyMode.FAILFAST

    @property
    def raw_tags(self) -> frozenset[bytes] | None:
        """The tags as records have them."""
        return None if self.tags is None else frozenset(tag.encode() for tag in self.tags)

    @property
    def built(self) -> tuple[str, ...]:
        """What the compiled twin builds: parsed bodies that are refused are named by offset."""
        if self.body_format is BodyFormat.JSON and "queue_offset" not in self.columns:
            return (*self.columns, "queue_offset")
        return self.columns


def to_batches(
    records: bytes | memoryview,
    *,
    queue: QueueKey,
    start: int,
    end: int,
    layout: Layout,
    schema: pa.Schema,
    bytes_max: int,
) -> Iterator[pa.RecordBatch]:
    """The messages with offsets in [start, end) of records back to back."""
    at = 0
    tags = layout.raw_tags
    while at < len(records):
        compiled = None
        if _columns is not None:
            compiled = _columns.build(
                records, at, start, end, layout.built, tags, expanded, bytes_max
            )
        if compiled is None:
            yield from pure_batches(
                records,
                at=at,
                queue=queue,
                start=start,
                end=end,
                layout=layout,
                schema=schema,
                bytes_max=bytes_max,
            )
            return
        at, count, built = compiled
        if count:
            yield from assembled(count, built, queue, layout, schema)


def expanded(body: bytes, sys_flag: int) -> bytes | None:
    """What a compressed body stands for; None if it does not expand, and the pure code decides."""
    try:
        return expand(body, compression_type(sys_flag))
    except (InvalidCompression, MissingExtra):
        return None


def pure_batches(
    records: bytes | memoryview,
    *,
    queue: QueueKey,
    start: int,
    end: int,
    layout: Layout,
    schema: pa.Schema,
    bytes_max: int,
    at: int = 0,
    wants: Callable[[StoredMessage], bool] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The same, one message after another, from a position on."""
    rows: list[tuple[StoredMessage, bytes | None]] = []
    size = 0
    for message in _decoded(records, at, queue):
        if not start <= message.queue_offset < end:
            continue
        if layout.tags is not None and message.properties.get(Property.TAGS) not in layout.tags:
            continue
        if wants is not None and not wants(message):
            continue
        body: bytes | None = b""
        if "body" in layout.columns:
            try:
                body = bytes(plain_body(message))
            except InvalidCompression as error:
                if layout.mode is BodyMode.FAILFAST:
                    raise UnreadableBody(queue, message.queue_offset, str(error)) from error
                if layout.mode is BodyMode.DROPMALFORMED:
                    continue
                body = None
            except MissingExtra as error:
                # Not the message's fault, so no bodyMode passes over it.
                purpose = f"{error.purpose}, {place_of(queue, message.queue_offset)},"
                raise MissingExtra(error.extra, purpose) from error
        rows.append((message, body))
        size += len(body or b"") + message.size_bytes - len(message.body)
        if size >= bytes_max:
            yield from _of_rows(rows, queue, layout, schema)
            rows, size = [], 0
    yield from _of_rows(rows, queue, layout, schema)


def _decoded(records: bytes | memoryview, at: int, queue: QueueKey) -> Iterable[StoredMessage]:
    while at < len(records):
        try:
            message = decode_record(records, at, check_crc=False)
        except InvalidRecord as error:
            raise UnreadableBody(
                queue, None, f"what the broker has sent is damaged: {error}"
            ) from error
        at += message.size_bytes
        yield message


def _of_rows(
    rows: list[tuple[StoredMessage, bytes | None]],
    queue: QueueKey,
    layout: Layout,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if not rows:
        return
    arrays = []
    dropped: list[int] = []
    for name, field in zip(layout.columns, schema, strict=True):
        if name == "broker":
            arrays.append(_repeated(queue.broker, len(rows)))
        elif name == "body":
            bodies = pa.array([body for _, body in rows], pa.binary())
            offsets = [message.queue_offset for message, _ in rows]
            array, dropped = _bodies(bodies, field.type, layout, queue, offsets.__getitem__)
            arrays.append(array)
        else:
            arrays.append(pa.array([_VALUES[name](message) for message, _ in rows], field.type))
    yield from _without(pa.RecordBatch.from_arrays(arrays, schema=schema), dropped)


def _micros(at_ms: int) -> int:
    """A time as a timestamp; clients write what they like, and no query ends by that."""
    return min(max(at_ms, TIME_MS_MIN), TIME_MS_MAX) * 1_000


_VALUES: dict[str, Any] = {
    "topic": lambda message: message.topic,
    "queue_id": lambda message: message.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "tag": lambda message: message.properties.get(Property.TAGS),
    "keys": lambda message: message.properties.get(Property.KEYS),
    "properties": lambda message: list(message.properties.items()),
    "message_id": lambda message: message.unique_id or message.offset_id,
    "born_time": lambda message: _micros(message.born_at_ms),
    "store_time": lambda message: _micros(message.stored_at_ms),
    "reconsume_times": lambda message: message.reconsume_times,
    "flag": lambda message: message.flag,
    "sys_flag": lambda message: message.sys_flag,
    "physical_offset": lambda message: message.physical_offset,
    "born_host": lambda message: str(message.born_host),
    "store_host": lambda message: str(message.store_host),
    "offset_message_id": lambda message: message.offset_id,
}


def assembled(
    count: int, built: dict[str, Any], queue: QueueKey, layout: Layout, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Put what the compiled twin has built into Arrow's arrays; buffers are taken, not copied."""
    import pyarrow as pa

    arrays: list[pa.Array] = []
    dropped: list[int] = []
    for name, field in zip(layout.columns, schema, strict=True):
        if name == "broker":
            arrays.append(_repeated(queue.broker, count))
            continue
        buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in built[name]]
        if name == "properties":
            offsets, key_offsets, key_data, value_offsets, value_data = buffers
            pairs = built["pairs"]
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
            array, dropped = _bodies(bodies, field.type, layout, queue, _offset_in(built))
            arrays.append(array)
        else:
            arrays.append(pa.Array.from_buffers(field.type, count, buffers))
    yield from _without(pa.RecordBatch.from_arrays(arrays, schema=schema), dropped)


def _offset_in(built: dict[str, Any]) -> Callable[[int], int]:
    def at(row: int) -> int:
        with memoryview(built["queue_offset"][1]) as view, view.cast("q") as numbers:
            return int(numbers[row])

    return at


def _bodies(
    bodies: pa.Array,
    kind: pa.DataType,
    layout: Layout,
    queue: QueueKey,
    offset_of: Callable[[int], int],
) -> tuple[pa.Array, list[int]]:
    """Bodies as bytes, as text, or parsed; and the rows that are to be left out."""
    if layout.body_format is BodyFormat.BINARY:
        return bodies, []
    if layout.body_format is BodyFormat.TEXT:
        return text_bodies(bodies), []
    array, bad = parsed_bodies(bodies, kind)
    if bad and layout.mode is BodyMode.FAILFAST:
        raise UnreadableBody(queue, offset_of(bad[0]), "is no JSON object that fits bodySchema")
    return array, bad if layout.mode is BodyMode.DROPMALFORMED else []


def _without(batch: pa.RecordBatch, dropped: list[int]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if dropped:
        left_out = set(dropped)
        batch = batch.filter(pa.array([row not in left_out for row in range(batch.num_rows)]))
    if batch.num_rows:
        yield batch


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)
