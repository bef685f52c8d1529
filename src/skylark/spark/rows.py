"""Rows: what the rows of a DataFrame are as entries of a batch request.

    column         becomes
    body           the body; text as UTF-8
    topic          where it goes; the option topic where the column is not there or null
    tag, keys      properties; keys as one text or as an array
    properties     further properties; names that the system sets itself are refused
                   but in copies, which keep what their originals were read with
    queue_id       the number of the queue, counted over all writable queues (numbering.py)
    sharding_key   rows with one key go to one queue, in the order of their task
    deliver_time   the message is delivered then
    delay_level    or after this level's time

Most frames have no more than a body, a tag and keys. Such rows go where their task sends next, so
they are encoded many at a time and, compiled, without a Python object for each: plain_rows(). All
others are looked at one by one: single_rows().
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ConfigError, InvalidName, LocalProtocolError
from ..model.message import RESERVED_PROPERTIES, Property
from ..model.names import check_topic_name
from ..model.topic import is_dlq_topic, is_retry_topic, is_system_topic
from ..protocol.batch import BatchEntry, encode_batch
from ..protocol.message_id import UniqueIdGenerator
from ..protocol.properties import (
    NAME_END,
    PROPERTIES_BYTES_MAX,
    VALUE_END,
    encode_text,
    format_properties,
)

if TYPE_CHECKING:
    import pyarrow as pa

_rows: Any = None
if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from . import _rows  # type: ignore[attr-defined, no-redef, unused-ignore]

# Of a row's properties; the rest of what a record holds is left to the broker's own: where a row
# goes that is staged or waits, which cluster it came to, which row of a sink it is.
ROW_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - 1_024
ROWS_MAX = 65_536  # Of one encoding: the counter of ids goes round after these.
_PLAIN = frozenset({"body", "tag", "keys"})
# What a column or the sink itself says: these no row may have, not even a copy.
_OF_COLUMNS: dict[str, str | None] = {
    Property.TAGS: "tag",
    Property.KEYS: "keys",
    Property.DELAY: "delay_level",
    Property.TIMER_DELIVER_MS: "deliver_time",
    Property.TIMER_DELAY_MS: "deliver_time",
    Property.TIMER_DELAY_SEC: "deliver_time",
    **dict.fromkeys(
        (
            Property.UNIQ_KEY, Property.WAIT, Property.TRAN_MSG, Property.PGROUP,
            Property.REAL_TOPIC, Property.REAL_QID,
        )
    ),
}  # fmt: skip
OWN_PROPERTIES = RESERVED_PROPERTIES | {"SINK_ROW"}
# A mirror and a replay copy what others have sent, who may have set what our producers refuse.
_MARKS_OF_COPIES = frozenset({"MIRROR_ID", "REPLAY_ID"})


class PlainRows(Protocol):
    """Rows that need nothing but encoding."""

    rows: int

    def encode(self, start: int, bytes_max: int, mark: bytes, counter: int) -> tuple[bytes, int]:
        """Rows from one on as entries, about as many bytes as asked for; and how many rows.

        The mark is what all ids begin with; the counter follows it, in four hex digits. No rows if
        the first one has to be looked at by itself.
        """
        ...


class PureRows:
    """Plain rows, encoded one by one; the compiled twin makes the same bytes."""

    def __init__(
        self,
        body: Sequence[bytes | str | None],
        tag: Sequence[str | None] | None,
        keys: Sequence[str | None] | None,
    ) -> None:
        self.rows = len(body)
        nothing: Sequence[None] = [None] * self.rows
        self._body, self._tag, self._keys = body, tag or nothing, keys or nothing

    def encode(self, start: int, bytes_max: int, mark: bytes, counter: int) -> tuple[bytes, int]:
        """As PlainRows says."""
        entries: list[BatchEntry] = []
        size = 0
        for row in range(start, min(self.rows, start + ROWS_MAX)):
            body, tag, keys = self._body[row], self._tag[row], self._keys[row]
            if body is None or any(
                end in text for text in (tag, keys) if text for end in (NAME_END, VALUE_END)
            ):
                break
            if tag is not None and not _is_one_tag(tag):
                break
            properties: dict[str, str | None] = {
                Property.TAGS: tag,
                Property.KEYS: keys or None,
                Property.UNIQ_KEY: f"{mark.decode()}{(counter + row - start) & 0xFFFF:04X}",
                Property.WAIT: "true",
            }
            text = encode_text(format_properties(properties))
            content = body.encode() if isinstance(body, str) else body
            if len(text) > ROW_PROPERTIES_BYTES_MAX:
                break
            if entries and size + len(content) + len(text) > bytes_max:
                break
            size += len(content) + len(text)
            entries.append(BatchEntry(content, text))
        return (encode_batch(entries), len(entries)) if entries else (b"", 0)


def plain_rows(batch: pa.RecordBatch) -> PlainRows | None:
    """The rows of a batch, if they have nothing but a body, a tag and keys."""
    import pyarrow as pa

    names = batch.schema.names
    if not _PLAIN.issuperset(names) or len(set(names)) != len(names):
        return None
    columns = dict(zip(names, batch.columns, strict=True))
    for name, column in columns.items():
        if column.type != pa.string() and not (name == "body" and column.type == pa.binary()):
            return None
    if _rows is None or not batch.num_rows:
        lists = {name: column.to_pylist() for name, column in columns.items()}
        return PureRows(lists["body"], lists.get("tag"), lists.get("keys"))

    def parts(name: str) -> tuple[Any, Any, Any, int] | None:
        column = columns.get(name)
        if column is None:
            return None
        validity, ends, data = (
            None if buffer is None else memoryview(buffer).cast("B") for buffer in column.buffers()
        )
        return validity if column.null_count else None, ends, data, column.offset

    found: PlainRows = _rows.Columns(batch.num_rows, parts("body"), parts("tag"), parts("keys"))
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One row, and what it says about where it goes."""

    topic: str
    entry: BatchEntry
    is_delayed: bool
    sharding_key: str | None
    queue_number: int | None


def single_rows(
    batch: pa.RecordBatch, default_topic: str | None, ids: UniqueIdGenerator
) -> Iterator[Row]:
    """The rows of a batch, one by one; raises ConfigError with the column that is wrong."""
    columns: dict[str, list[Any]] = {
        name: _values(batch.column(number)) for number, name in enumerate(batch.schema.names)
    }
    nothing: Sequence[None] = [None] * batch.num_rows
    checked: set[str] = set()  # Topics of these rows.
    for body, topic, tag, keys, more, number, sharding_key, deliver_at, level in zip(
        columns["body"],
        *(
            columns.get(name, nothing)
            for name in (
                "topic", "tag", "keys", "properties", "queue_id", "sharding_key", "deliver_time",
                "delay_level",
            )
        ),
        strict=True,
    ):  # fmt: skip
        if body is None:
            raise ConfigError("column body: a row has null; filter such rows out")
        if topic is not None and topic not in checked:
            _check_topic(topic)
            checked.add(topic)
        name = topic if topic is not None else default_topic
        if name is None:
            raise ConfigError("column topic: a row has null, and there is no option topic")
        properties: dict[str, str] = {}
        for key, value in more or ():
            if key in OWN_PROPERTIES:
                _check_properties([name for name, _ in more])
            if value is not None:
                properties[key] = value
        if tag is not None:
            if not _is_one_tag(tag) and not _is_copy(properties):
                raise ConfigError(
                    f"column tag: {tag[:80]!r} is blank or contains ||, so nobody could ask for "
                    "it; a message has one tag, or none: null"
                )
            properties[Property.TAGS] = tag
        if keys:
            properties[Property.KEYS] = keys if isinstance(keys, str) else _joined(keys)
        properties[Property.UNIQ_KEY] = ids.next()
        if deliver_at is not None:
            # Up: nothing is delivered before its time.
            properties[Property.TIMER_DELIVER_MS] = str(max(0, -(-deliver_at // 1_000)))
        if level:
            properties[Property.DELAY] = str(level)
        properties[Property.WAIT] = "true"
        try:
            text = encode_text(format_properties(properties, as_read=_is_copy(properties)))
        except LocalProtocolError as error:
            raise ConfigError(f"column {_unsound(properties)}: {error}") from error
        if len(text) > ROW_PROPERTIES_BYTES_MAX:
            raise ConfigError(
                f"column {_largest(properties)}: properties, tag and keys of a row take "
                f"{len(text)} bytes together, at most {ROW_PROPERTIES_BYTES_MAX} are possible"
            )
        yield Row(
            name,
            BatchEntry(body.encode() if isinstance(body, str) else body, text),
            deliver_at is not None or bool(level),
            sharding_key,
            number,
        )


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; times as microseconds since 1970, since Spark's have years that
    Python's have not."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    found: list[Any] = column.to_pylist()
    return found


def _check_topic(name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidName as error:
        raise ConfigError(f"column topic: {error}") from error
    if is_system_topic(name) or is_retry_topic(name) or is_dlq_topic(name):
        raise ConfigError(f"column topic: {name} is the system's own; choose another name")


def _check_properties(names: Sequence[str]) -> None:
    """Of a row that has some that the system sets itself; all of them are named at once."""
    refused = _OF_COLUMNS.keys() if _is_copy(names) else OWN_PROPERTIES
    found = [name for name in names if name in refused]
    if not found:
        return
    columns = dict.fromkeys(column for name in found if (column := _OF_COLUMNS.get(name)))
    what = "is set by the system; leave it out"
    if len(found) > 1:
        what = "are set by the system; leave them out"
    what += ", as user_properties() does"
    if columns:
        what = f"{what}, and use column {', '.join(columns)}"
    raise ConfigError(f"column properties: {', '.join(found)} {what}")


def _is_copy(names: Iterable[str]) -> bool:
    return not _MARKS_OF_COPIES.isdisjoint(names)


def _is_one_tag(tag: str) -> bool:
    """Whether consumers can ask for it; an empty one is none."""
    return "||" not in tag and not tag.isspace()


def _joined(keys: Sequence[str | None]) -> str:
    """Keys as the property has them, with blanks between; raises ConfigError."""
    for key in keys:
        if not key:
            raise ConfigError("column keys: an array has a null or an empty key; filter such out")
        if " " in key:
            raise ConfigError(
                f"column keys: {key[:80]!r} has a blank, so it would be several keys; give each "
                "as an element of its own"
            )
    return " ".join(keys)  # type: ignore[arg-type]


def _column_of(name: str) -> str:
    return {Property.TAGS: "tag", Property.KEYS: "keys"}.get(name, "properties")


def _unsound(properties: Mapping[str, str]) -> str:
    """The column of the first property that would read back as something else."""
    for name, value in properties.items():
        if not name or any(end in text for text in (name, value) for end in (NAME_END, VALUE_END)):
            return _column_of(name)
    raise AssertionError("each of them reads back as it is")


def _largest(properties: Mapping[str, str]) -> str:
    """The column that has most of a row's properties."""
    sizes = dict.fromkeys(("properties", "tag", "keys"), 0)
    for name, value in properties.items():
        sizes[_column_of(name)] += len(encode_text(value))
    return max(sizes, key=sizes.__getitem__)
