"""Bodies as text, or parsed as JSON with a schema.

A JSON body fits if it is an object, and each of its members that the schema names is null or of the
schema's type; further members do not matter. What does not fit is null, the body or the member;
bodyMode decides whether such a row stays. A member that must not be null does not fit where it is
missing or null, and the smallest part around it that may be null is.

    integers         numbers without point and exponent, within the type's range
    float, double    any number within the range; NaN and Infinity too, which some write
    decimal          numbers or texts of such, whose digits all have room
    binary           texts, as UTF-8
    dates, times     texts as in ISO 8601; those without a zone are in UTC

Each value is looked at by itself, whatever the other bodies of its batch: Arrow's own conversions
take more than they should, and which of them it uses depends on the neighbours.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

from ..errors import SkylarkError
from .offsets import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa

_FLOAT = struct.Struct("<f")

# What JSON has → what Arrow takes; raises _Misfit, or one of what conversions raise.
_Reader = Callable[[Any], Any]


def place_of(queue: QueueKey, offset: int | None) -> str:
    """Where a message is, as errors say it."""
    place = "" if offset is None else f" offset {offset}"
    return f"topic {queue.topic} broker {queue.broker} queue {queue.queue_id}{place}"


class UnreadableBody(SkylarkError):
    """A body that is damaged, too large when expanded, or not what the schema says."""

    def __init__(self, queue: QueueKey, offset: int | None, problem: str) -> None:
        # Without an offset it is no message at all, and no mode passes over that.
        hint = (
            ". Set the option bodyMode to permissive (null) or dropmalformed (no row) to go on "
            "without it"
        )
        super().__init__(
            f"{place_of(queue, offset)}: the body cannot be read: {problem}"
            f"{'' if offset is None else hint}"
        )
        self.queue = queue
        self.offset = offset
        self.problem = problem

    def __reduce__(self) -> tuple[type[UnreadableBody], tuple[QueueKey, int | None, str]]:
        return type(self), (self.queue, self.offset, self.problem)


class _Misfit(Exception):
    """A value that is not of the schema's type."""


_MISFITS = (_Misfit, ValueError, ArithmeticError)  # The others are what conversions raise.


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

    parse = _parser(kind)
    members = _members(kind)
    rows: list[dict[str, Any] | None] = []
    bad: list[int] = []
    for row, body in enumerate(bodies.to_pylist()):
        value = None if body is None else parse(body)
        try:
            rows.append(_fitted(value, members))
        except _MISFITS:
            rows.append(_mended(value, members))
            bad.append(row)
    return pa.array(rows, kind), bad


def _parser(kind: pa.DataType) -> Callable[[bytes], Any]:
    """What reads a body as JSON; None is what is none."""
    reading: dict[str, Any] = {
        # A field of such a name costs time, and changes nothing.
        "parse_float": _exact if "decimal" in str(kind) else None,
        "parse_constant": Decimal,  # So that they are told from numbers out of range.
    }
    decoder = json.JSONDecoder(**reading)
    patient = json.JSONDecoder(**reading, parse_int=_whole)

    def parse(body: bytes) -> Any:
        try:
            text = body.decode(json.detect_encoding(body), "surrogatepass")
            try:
                return decoder.decode(text)
            except ValueError as error:
                if isinstance(error, json.JSONDecodeError):
                    return None
                return patient.decode(text)
        except (ValueError, RecursionError):
            return None

    return parse


def _whole(text: str) -> int | Decimal:
    """A whole number; of one with more digits than Python makes an int of, what fits nothing."""
    try:
        return int(text)
    except ValueError:
        return Decimal(text)


def _exact(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:  # The exponent alone has twenty digits.
        return float(text)


_Member = tuple[str, _Reader, bool]  # Its name, what reads it, and whether it may be null.


def _members(kind: pa.DataType) -> list[_Member]:
    return [(field.name, _reader(field.type), field.nullable) for field in kind]


def _fitted(value: Any, members: list[_Member]) -> dict[str, Any]:
    """An object as Arrow takes it."""
    if type(value) is not dict:
        raise _Misfit
    found: dict[str, Any] = {}
    for name, read, is_nullable in members:
        item = value.get(name)
        if item is not None:
            found[name] = read(item)
        elif is_nullable:
            found[name] = None
        else:
            raise _Misfit
    return found


def _mended(value: Any, members: list[_Member]) -> dict[str, Any] | None:
    """A body with null for the members that do not fit; None where one of them must not be null."""
    if type(value) is not dict:
        return None
    found: dict[str, Any] = {}
    for member in members:
        try:
            found |= _fitted(value, [member])
        except _MISFITS:
            name, _, is_nullable = member
            if not is_nullable:
                return None
            found[name] = None
    return found


def _reader(kind: pa.DataType) -> _Reader:
    from pyarrow import types

    if types.is_struct(kind):
        members = _members(kind)
        return lambda value: _fitted(value, members)
    if types.is_list(kind):
        return _list_reader(_reader(kind.value_type), kind.value_field.nullable)
    if types.is_map(kind):
        assert types.is_string(kind.key_type)  # schema.py refuses others.
        return _map_reader(_reader(kind.item_type), kind.item_field.nullable)
    if types.is_decimal(kind):
        return _decimal_reader(kind.precision, kind.scale)
    if types.is_integer(kind):
        return _integer_reader(kind.bit_width)
    return _READERS[str(kind)]


def _list_reader(read: _Reader, is_nullable: bool) -> _Reader:
    def items(value: Any) -> list[Any]:
        if type(value) is not list or (not is_nullable and None in value):
            raise _Misfit
        return [None if item is None else read(item) for item in value]

    return items


def _map_reader(read: _Reader, is_nullable: bool) -> _Reader:
    def pairs(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict or (not is_nullable and None in value.values()):
            raise _Misfit
        return [(_text(k), None if item is None else read(item)) for k, item in value.items()]

    return pairs


def _decimal_reader(precision: int, scale: int) -> _Reader:
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def exact(value: Any) -> Decimal:
        if type(value) not in (int, str, Decimal):
            raise _Misfit
        # Arrow does not survive an exponent of nine digits: what it gets has this scale already.
        found = Decimal(value).quantize(unit, context=context)
        if not found.is_finite():
            raise _Misfit
        return found

    return exact


def _integer_reader(bits: int) -> _Reader:
    beyond = 1 << (bits - 1)

    def whole(value: Any) -> int:
        if type(value) is not int or not -beyond <= value < beyond:
            raise _Misfit
        return value

    return whole


def _double(value: Any) -> float:
    if type(value) not in (float, int, Decimal):
        raise _Misfit
    found = float(value)
    if math.isinf(found) and not (type(value) is Decimal and value.is_infinite()):
        raise _Misfit
    return found


def _single(value: Any) -> float:
    found = _double(value)
    _FLOAT.pack(found)  # OverflowError where that would be infinity.
    return found


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _Misfit
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Misfit
    if not value.isascii():
        value.encode()  # UnicodeEncodeError for half of a surrogate pair.
    return value


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_text(value))
    # OverflowError where it is in UTC no time that Python knows.
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


_READERS: dict[str, _Reader] = {
    "bool": _boolean,
    "float": _single,
    "double": _double,
    "string": _text,
    "binary": lambda value: _text(value).encode(),
    "date32[day]": lambda value: date.fromisoformat(_text(value)),
    "timestamp[us]": _moment,
    "timestamp[us, tz=UTC]": _moment,
}
