"""Bodies as text, or parsed as JSON with a schema.

A JSON body fits if it is an object, and each of its members that the schema names is null or of the
schema's type; further members do not matter. Dates and times are texts as in ISO 8601, those
without a zone in UTC. What does not fit is null, the body or the member; bodyMode decides whether
such a row stays.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ..errors import SkylarkError
from .offsets import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa


class UnreadableBody(SkylarkError):
    """A body that is damaged, too large when expanded, or not what the schema says."""

    def __init__(self, queue: QueueKey, offset: int | None, problem: str) -> None:
        place = "" if offset is None else f" offset {offset}"
        super().__init__(
            f"topic {queue.topic} broker {queue.broker} queue {queue.queue_id}{place}: the body "
            f"cannot be read: {problem}. Set the option bodyMode to permissive (null) or "
            "dropmalformed (no row) to go on without it"
        )
        self.queue = queue
        self.offset = offset
        self.problem = problem

    def __reduce__(self) -> tuple[type[UnreadableBody], tuple[QueueKey, int | None, str]]:
        return type(self), (self.queue, self.offset, self.problem)


class _Misfit(Exception):
    """A value that is not of the schema's type."""


def text_bodies(bodies: pa.Array) -> pa.Array:
    """Bodies as text; what is no UTF-8 is marked as Spark does it, nothing is lost silently."""
    import pyarrow as pa

    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if b is None else b.decode("utf-8", "replace") for b in bodies.to_pylist()]
        return pa.array(texts, pa.string())


def parsed_bodies(bodies: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Bodies as structs, and the rows that did not fit."""
    import pyarrow as pa

    found: list[dict[str, Any] | None] = []
    bad: list[int] = []
    for row, body in enumerate(bodies.to_pylist()):
        value = _object(body)
        if value is None:
            bad.append(row)
        found.append(value)
    if _is_plain(kind):
        try:
            return pa.array(found, kind), bad
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
            pass  # Some value does not fit: look at each.
    rows = []
    for row, value in enumerate(found):
        fitted = None
        if value is not None:
            fitted = {}
            for field in kind:
                try:
                    fitted[field.name] = _fitted(value.get(field.name), field.type)
                except _Misfit:
                    fitted[field.name] = None
                    if not bad or bad[-1] != row:
                        bad.append(row)
        rows.append(fitted)
    return pa.array(rows, kind), sorted(set(bad))


def _object(body: bytes | None) -> dict[str, Any] | None:
    if body is None:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow reads JSON's values as they are."""
    from pyarrow import types

    if types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if types.is_list(kind):
        return _is_plain(kind.value_type)
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
    )


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """The value as Arrow takes it; raises _Misfit."""
    import pyarrow as pa
    from pyarrow import types

    if value is None:
        return None
    try:
        if types.is_struct(kind):
            return {field.name: _fitted(value.get(field.name), field.type) for field in kind}
        if types.is_list(kind):
            if not isinstance(value, list):
                raise _Misfit
            return [_fitted(item, kind.value_type) for item in value]
        if types.is_map(kind):
            return [(name, _fitted(item, kind.item_type)) for name, item in value.items()]
        if types.is_timestamp(kind):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if types.is_date(kind):
            return date.fromisoformat(value)
        if types.is_decimal(kind):
            value = Decimal(str(value))
        pa.scalar(value, kind)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        AttributeError,
        InvalidOperation,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise _Misfit from error
    return value
