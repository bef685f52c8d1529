"""Scanner: passes over the messages that an SQL92 expression does not want, many in one call.

An expression that matches little is looked at for hundreds of messages in each pull. The compiled
scanner reads queue entries and records where they lie, finds the properties that are named, and
counts how many messages from here on are surely not wanted. It stops at the first that may be, and
at everything unusual, which the reader then looks at by itself: a scanner is never right or wrong
about a message that is delivered, only quick about those that are not.

    scanner_of(expression)     a scanner, or None where there is no compiled one, or the expression
                               has parts that it does not know (two properties compared, signs)
    skip(entries, at, end, buffer, file_start)
                               how many of the entries from at on, each 20 bytes up to end, may be
                               passed over; records are at file_start and above in the buffer

Parts are handed over as tuples: a code, the property's number, then what belongs to the code.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from ..filter import SqlExpression
from ..filter import sql_nodes as nodes
from ..filter.java_values import Long, parse_double, parse_int, parse_long
from ..protocol.properties import parse_properties
from ..protocol.record import MAGIC, properties_text

_ENTRY: Final = struct.Struct(">qiq")
_CONSTANT, _AND, _OR, _NOT, _NULL, _BARE, _IN, _TEXT, _BOOL, _WHOLE, _DOUBLE = range(11)
_SIGNS: Final = {"=": 0, "<": 1, "<=": 2, ">": 3, ">=": 4}
_SWAPPED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Part = tuple[Any, ...]


class Scanner(Protocol):
    """Passes over what one expression does not want."""

    def skip(
        self, entries: memoryview, at: int, end: int, buffer: memoryview, file_start: int
    ) -> int:
        """How many messages from here on are surely not wanted."""
        ...


class PureScanner:
    """What the compiled scanner does, said plainly."""

    def __init__(self, expression: SqlExpression) -> None:
        self._expression = expression

    def skip(
        self, entries: memoryview, at: int, end: int, buffer: memoryview, file_start: int
    ) -> int:
        """How many messages from here on are surely not wanted."""
        count = 0
        while at + _ENTRY.size <= end:
            physical, size, _ = _ENTRY.unpack_from(entries, at)
            start = physical - file_start
            if start < 0 or size < 91 or start + size > len(buffer):
                break
            total, magic = struct.unpack_from(">iI", buffer, start)
            if (total, magic) != (size, MAGIC):
                break
            if struct.unpack_from(">q", buffer, start + 28)[0] != physical:
                break
            text = properties_text(buffer[start : start + size])
            if self._expression.matches(parse_properties(text)):
                break
            count += 1
            at += _ENTRY.size
        return count


class _Unknown(Exception):
    """A part that the compiled scanner does not know."""


def program_of(expression: SqlExpression) -> tuple[list[bytes], list[Part]] | None:
    """The names and the parts, the last of which is the whole; None for what is not known."""
    names = sorted(expression.names)
    parts: list[Part] = []

    def add(*part: Any) -> int:
        parts.append(part)
        return len(parts) - 1

    def compiled(node: nodes.Node) -> int:
        if isinstance(node, nodes.Constant) and node.is_condition:
            return add(_CONSTANT, 0, 2 if node.value is None else int(bool(node.value)))
        if isinstance(node, nodes.And | nodes.Or):
            terms = tuple(compiled(term) for term in node.terms)
            return add(_AND if isinstance(node, nodes.And) else _OR, 0, terms)
        if isinstance(node, nodes.Not):
            return add(_NOT, 0, compiled(node.operand))
        if isinstance(node, nodes.IsIn):
            texts = frozenset(_encoded(text) for text in node.texts)
            return add(_IN, names.index(node.operand.name), texts, node.is_negated)
        if isinstance(node, nodes.Bare | nodes.IsNull) and isinstance(
            node.operand, nodes.PropertyOf
        ):
            code = _BARE if isinstance(node, nodes.Bare) else _NULL
            return add(code, names.index(node.operand.name))
        if isinstance(node, nodes.Equal):
            return comparison(node.left, node.right, "=")
        if isinstance(node, nodes.Ordered):
            return comparison(node.left, node.right, node.sign)
        raise _Unknown

    def comparison(left: nodes.Node, right: nodes.Node, sign: str) -> int:
        # A property that is missing is unknown on the left of = and false on its right.
        is_turned = not isinstance(left, nodes.PropertyOf)
        if is_turned:
            left, right, sign = right, left, _SWAPPED[sign]
        missing = 0 if is_turned and sign == "=" else 2
        constant = nodes.constant_of(right)
        if not isinstance(left, nodes.PropertyOf) or constant is None:
            raise _Unknown
        name = names.index(left.name)
        if isinstance(constant, str):
            return add(_TEXT, name, _encoded(constant), missing)
        if isinstance(constant, bool):
            if is_turned:
                raise _Unknown
            return add(_BOOL, name, int(constant), missing)
        if isinstance(constant, float):
            return add(_DOUBLE, name, constant, _SIGNS[sign], missing)
        is_long = isinstance(constant, Long)
        return add(_WHOLE, name, int(constant), _SIGNS[sign], missing, is_long)

    try:
        compiled(expression.root)
    except _Unknown:
        return None
    return [name.encode() for name in names], parts


def _encoded(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise _Unknown from None
    if "\ufffd" in text or not data:
        raise _Unknown  # What stands for broken bytes equals them only once they are decoded.
    return data


def read_whole(text: bytes, is_long: bool) -> int:
    """A whole number that is written in an unusual way; raises NotComparable."""
    decoded = text.decode("utf-8", "replace")
    return parse_long(decoded) if is_long else parse_int(decoded)


def read_double(text: bytes) -> float:
    """A number; raises NotComparable."""
    return parse_double(text.decode("utf-8", "replace"))


COMPILED: Callable[[list[bytes], list[Part]], Scanner] | None = None

with contextlib.suppress(ImportError):
    from . import _filter_scan  # type: ignore[attr-defined, unused-ignore]

    _filter_scan.bind(read_whole, read_double)
    COMPILED = _filter_scan.Scanner


def scanner_of(expression: SqlExpression) -> Scanner | None:
    """A compiled scanner where there is one for this expression."""
    if COMPILED is None or os.environ.get("SKYLARK_PURE") == "1":
        return None
    program = program_of(expression)
    return None if program is None else COMPILED(*program)
