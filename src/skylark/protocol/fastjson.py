"""JSON as fastjson speaks it: the dialect of RocketMQ's bodies and config files.

Java writes map keys as they come, so a good part of what it emits is not JSON:

    {"brokerAddrs":{0:"10.0.0.1:10911"}}                                 integers as keys
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}       objects as keys
    {"offsetTable":{"{\\"brokerName\\":\\"b\\",…}":5}}                        the same, as text
    {a:1,'b':'two'}                                                      names and single quotes
    [{"topic":"T"},{"$ref":"$[0]"}]                                      an object seen before

`loads` takes all of these. Every key comes back as text: `"0"`, or an `ObjectKey` that holds the
text of the key's object and can be given to `loads` again. So each spelling of a key has one
meaning, and maps stay plain dicts. The standard library's parser is tried first, because most
bodies are plain JSON and it is much faster; what it refuses is read again here, and what it accepts
means the same.

    limit                        beyond it
    size, as the caller says     InvalidJson before anything is parsed
    64 levels of nesting         InvalidJson; the stack never grows further
    64-bit integers              InvalidJson; NaN, infinities and halves of surrogate pairs likewise
    `$ref`                       only to something whole that came earlier: no cycles; and the
                                 document in full has no more values than its text has characters

A key that occurs twice keeps its last value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from operator import itemgetter
from typing import Any, NoReturn, TypeAlias

from ..errors import InvalidJson, LocalProtocolError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"

SIZE_MAX = 16 * 1024 * 1024
DEPTH_MAX = 64

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_INT_DIGITS_MAX = 20
_FLOAT_DIGITS_MAX = 400

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_BARE_KEY = re.compile(r"-?[0-9]{1,20}|[A-Za-z_$][A-Za-z0-9_$]*")
_BLANKS = re.compile(r"[ \t\n\r\f]*")
# The bulk of any table is plain: a key and a short number or text without escapes, then a comma or
# the end. One match takes all of it, and what it does not match is read step by step. Possessive,
# so that a failed match never looks at a character twice.
_PLAIN_SCALAR = r'(?:"([^"\\]*+)"|(-?(?:0|[1-9][0-9]{0,17}+))(?![0-9.eE]))'
_PLAIN_MEMBER = re.compile(
    r'[ \t\n\r\f]*+(?:"([^"\\]*+)"|(-?[0-9]{1,20}+|[A-Za-z_$][A-Za-z0-9_$]*+))'
    rf"[ \t\n\r\f]*+:[ \t\n\r\f]*+{_PLAIN_SCALAR}[ \t\n\r\f]*+([,}}])"
)
_PLAIN_ITEM = re.compile(rf"[ \t\n\r\f]*+{_PLAIN_SCALAR}[ \t\n\r\f]*+([,\]])")
_BLANK = " \t\n\r\f"
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_HEX2 = re.compile(r"[0-9a-fA-F]{2}")
_REFERENCE_STEP = re.compile(r"\[([0-9]{1,9})\]|\.((?:\\.|[^.\[\\])+)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
}
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ROUND = bytes.maketrans(b"[]{}", b"()()")


class ObjectKey(str):
    """The JSON text of an object that is the key of a map."""

    __slots__ = ()


def loads(data: bytes | bytearray | memoryview | str, *, size_max: int = SIZE_MAX) -> Json:
    """Read one value, or raise InvalidJson that says what is wrong and where."""
    if len(data) > size_max:
        raise InvalidJson(f"longer than {size_max} bytes", size_max)
    if isinstance(data, str):
        text = data
        try:
            raw = data.encode()
        except UnicodeEncodeError as error:
            raise InvalidJson("half of a surrogate pair", error.start) from None
    else:
        raw = bytes(data)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidJson("bytes that are not UTF-8", error.start) from None
    value = _loads(raw, text)
    if "$ref" in text:
        value = _References(value, text).resolved()
    return value


def _loads(raw: bytes, text: str) -> Json:
    if _is_shallow(raw) and _SURROGATE_ESCAPE.search(text) is None:
        try:
            value: Json = _STRICT.decode(text)
        except ValueError:
            pass  # Not plain JSON: the tolerant reader accepts it, or says exactly what is wrong.
        else:
            return value
    return _tolerant(text)


def _is_shallow(raw: bytes) -> bool:
    """Return whether nesting is surely within the limit, without parsing.

    Brackets inside texts count here, so a False means no more than "look closer". So it does for
    long runs of brackets that hardly shrink, which keeps the work in proportion to the size.
    """
    brackets = raw.translate(_ROUND, _NOT_BRACKETS)
    for _ in range(DEPTH_MAX):
        if not brackets:
            return True
        before = len(brackets)
        brackets = brackets.replace(b"()", b"")  # Takes away the innermost level everywhere.
        if before > 4096 and len(brackets) > before - before // 8:
            return False
    return not brackets


def _read_int(text: str) -> int:
    if len(text) > _INT_DIGITS_MAX or not _INT_MIN <= (value := int(text)) <= _INT_MAX:
        raise ValueError("integer that does not fit 64 bits")
    return value


def _read_float(text: str) -> float:
    if len(text) > _FLOAT_DIGITS_MAX or math.isinf(value := float(text)):
        raise ValueError("number that does not fit a double")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


_STRICT = json.JSONDecoder(
    parse_int=_read_int, parse_float=_read_float, parse_constant=_refuse_constant
)


# The tolerant reader. Each function takes the text and a position, and returns a value and the
# position after it. The text ends in a NUL that no rule accepts, so a look ahead never runs off it.


def _tolerant(text: str) -> Json:
    text += "\0"
    value, at = _value(text, _skip(text, 0), 0)
    at = _skip(text, at)
    if at != len(text) - 1:
        _unexpected(text, at, "after the value")
    return value


def _skip(text: str, at: int) -> int:
    if text[at] not in _BLANK:
        return at
    blanks = _BLANKS.match(text, at)
    assert blanks is not None
    return blanks.end()


def _unexpected(text: str, at: int, where: str) -> NoReturn:
    if at >= len(text) - 1:
        raise InvalidJson(f"end of text {where}", at)
    raise InvalidJson(f"unexpected {text[at]!r} {where}", at)


def _value(text: str, at: int, depth: int) -> tuple[Json, int]:
    first = text[at]
    if first in "\"'":
        return _quoted(text, at)
    if first == "{":
        return _object(text, at, depth)
    if first == "[":
        return _array(text, at, depth)
    number = _NUMBER.match(text, at)
    if number is not None:
        read = _read_float if number[1] else _read_int
        try:
            return read(number[0]), number.end()
        except ValueError as error:
            raise InvalidJson(str(error), at) from None
    for word, meaning in (("true", True), ("false", False), ("null", None)):
        if text.startswith(word, at):
            return meaning, at + len(word)
    _unexpected(text, at, "where a value should be")


def _array(text: str, at: int, depth: int) -> tuple[list[Json], int]:
    if depth == DEPTH_MAX:
        raise InvalidJson(f"nested deeper than {DEPTH_MAX} levels", at)
    items: list[Json] = []
    at = _skip(text, at + 1)
    if text[at] == "]":
        return items, at + 1
    while True:
        while (plain := _PLAIN_ITEM.match(text, at)) is not None:
            word, number, after = plain.groups()
            items.append(int(number) if word is None else word)
            at = plain.end()
            if after == "]":
                return items, at
        item, at = _value(text, _skip(text, at), depth + 1)
        items.append(item)
        at = _skip(text, at)
        if text[at] == "]":
            return items, at + 1
        if text[at] != ",":
            _unexpected(text, at, "in an array")
        at += 1


def _object(text: str, at: int, depth: int) -> tuple[JsonObject, int]:
    if depth == DEPTH_MAX:
        raise InvalidJson(f"nested deeper than {DEPTH_MAX} levels", at)
    members: JsonObject = {}
    at = _skip(text, at + 1)
    if text[at] == "}":
        return members, at + 1
    while True:
        while (plain := _PLAIN_MEMBER.match(text, at)) is not None:
            name, bare, word, number, after = plain.groups()
            members[bare if name is None else name] = int(number) if word is None else word
            at = plain.end()
            if after == "}":
                return members, at
        key, at = _key(text, _skip(text, at), depth)
        at = _skip(text, at)
        if text[at] != ":":
            _unexpected(text, at, "after a key")
        members[key], at = _value(text, _skip(text, at + 1), depth + 1)
        at = _skip(text, at)
        if text[at] == "}":
            return members, at + 1
        if text[at] != ",":
            _unexpected(text, at, "in an object")
        at += 1


def _key(text: str, at: int, depth: int) -> tuple[str, int]:
    first = text[at]
    if first in "\"'":
        return _quoted(text, at)
    if first == "{":
        _, end = _object(text, at, depth + 1)
        return ObjectKey(text[at:end]), end
    bare = _BARE_KEY.match(text, at)
    if bare is None:
        _unexpected(text, at, "where a key should be")
    return bare[0], bare.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote = text[at]
    end = text.find(quote, at + 1)
    if end < 0:
        raise InvalidJson("text without an end", at)
    plain = text[at + 1 : end]
    if "\\" not in plain:
        return plain, end + 1
    pieces: list[str] = []
    start = at
    at += 1
    while True:
        # Each step takes everything up to the next quote or backslash, so the text is read once.
        stop = _STOPS[quote].search(text, at)
        if stop is None:
            raise InvalidJson("text without an end", start)
        pieces.append(text[at : stop.start()])
        if stop[0] == quote:
            return "".join(pieces), stop.end()
        piece, at = _escape(text, stop.end())
        pieces.append(piece)


_STOPS = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}


def _escape(text: str, at: int) -> tuple[str, int]:
    kind = text[at]
    if kind == "u":
        return _unicode_escape(text, at + 1)
    if kind == "x" and (digits := _HEX2.match(text, at + 1)):
        return chr(int(digits[0], 16)), digits.end()
    plain = _ESCAPES.get(kind)
    if plain is None:
        raise InvalidJson("unknown escape", at - 1)
    return plain, at + 1


def _unicode_escape(text: str, at: int) -> tuple[str, int]:
    digits = _HEX4.match(text, at)
    if digits is None:
        raise InvalidJson("unknown escape", at - 2)
    unit, end = int(digits[0], 16), digits.end()
    if not 0xD800 <= unit <= 0xDFFF:
        return chr(unit), end
    if unit < 0xDC00 and text.startswith("\\u", end) and (low := _HEX4.match(text, end + 2)):
        second = int(low[0], 16)
        if 0xDC00 <= second <= 0xDFFF:
            return chr(0x10000 + ((unit - 0xD800) << 10) + (second - 0xDC00)), low.end()
    raise InvalidJson("half of a surrogate pair", at - 2)


class _References:
    """Puts the objects that `$ref` stands for in its place.

    Java only refers to what it has already written. Holding to that rules out cycles, and counting
    what is referred to rules out documents that explode when walked.
    """

    def __init__(self, root: Json, text: str) -> None:
        self._root = root
        self._position = text.find("$ref")
        self._count_max = max(1000, len(text))
        self._counts: dict[int, int] = {}  # id of a finished container → values in and below it

    def resolved(self) -> Json:
        if _reference_of(self._root) is not None:
            self._fail("refers to itself")
        self._finish(self._root)
        return self._root

    def _fail(self, problem: str) -> NoReturn:
        raise InvalidJson(f"$ref that {problem}", self._position)

    def _finish(self, node: Json) -> int:
        children: Sequence[tuple[Any, Json]]
        if isinstance(node, dict):
            children = list(node.items())
        elif isinstance(node, list):
            children = list(enumerate(node))
        else:
            return 1
        count = 1
        container: Any = node
        for key, child in children:
            path = _reference_of(child)
            if path is None:
                count += self._finish(child)
            else:
                target = self._find(path)
                container[key] = target
                count += self._counts[id(target)] if isinstance(target, dict | list) else 1
            if count > self._count_max:
                self._fail("makes the document too big")
        self._counts[id(node)] = count
        return count

    def _find(self, path: str) -> Json:
        if not path.startswith("$"):
            self._fail(f"is not a path from the root: {path[:64]!r}")
        node: Any = self._root
        at = 1
        while at < len(path):
            step = _REFERENCE_STEP.match(path, at)
            if step is None:
                self._fail(f"is not a path: {path[:64]!r}")
            try:
                if step[1] is not None:
                    node = node[int(step[1])] if isinstance(node, list) else node[step[1]]
                else:
                    node = node[_ESCAPED.sub(r"\1", step[2])]
            except (LookupError, TypeError):
                self._fail(f"leads nowhere: {path[:64]!r}")
            at = step.end()
        if isinstance(node, dict | list) and id(node) not in self._counts:
            self._fail(f"does not refer to something earlier: {path[:64]!r}")
        found: Json = node
        return found


def _reference_of(node: Json) -> str | None:
    if isinstance(node, dict) and len(node) == 1:
        path = node.get("$ref")
        if isinstance(path, str):
            return path
    return None


def dumps(
    value: Any, *, quoted_keys: bool = False, ascii_only: bool = False, pretty: bool = False
) -> bytes:
    """Write a value as fastjson would: members in order, None left out of objects, no blanks.

    Integer keys are written bare unless `quoted_keys`; an ObjectKey is always written as the object
    that it is. `pretty` gives the form of config files: one member a line, indented with tabs.
    """
    writer = _Writer(quoted_keys=quoted_keys, ascii_only=ascii_only)
    try:
        return writer.text_of(value, "\n" if pretty else None).encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("half of a surrogate pair has no form in JSON") from None


class _Writer:
    """Turns values into text; `newline` is what starts a line at the present depth, if lines do."""

    def __init__(self, *, quoted_keys: bool, ascii_only: bool) -> None:
        self._quoted_keys = quoted_keys
        self._quote = _quote_ascii if ascii_only else encode_basestring

    def text_of(self, value: Any, newline: str | None) -> str:
        if isinstance(value, str):
            return self._quote(value)
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            if not _INT_MIN <= value <= _INT_MAX:
                raise LocalProtocolError(f"{value} does not fit 64 bits")
            return str(int(value))
        if isinstance(value, float):
            if not math.isfinite(value):
                raise LocalProtocolError(f"{value} has no form in JSON")
            return repr(value)
        inner = None if newline is None else newline + "\t"
        if isinstance(value, Mapping):
            members = [
                f"{self._key_text(key)}:{self.text_of(member, inner)}"
                for key, member in sorted(value.items(), key=_by_key)
                if member is not None
            ]
            return _enclosed("{", members, "}", newline)
        assert isinstance(value, list | tuple), f"{type(value).__name__} has no form in JSON"
        return _enclosed("[", [self.text_of(item, inner) for item in value], "]", newline)

    def _key_text(self, key: str | int) -> str:
        if isinstance(key, ObjectKey):
            return str(key)
        if isinstance(key, str):
            return self._quote(key)
        return f'"{key}"' if self._quoted_keys else str(key)


_by_key = itemgetter(0)


def _quote_ascii(text: str) -> str:
    if not text.isascii():
        text.encode()  # An escape would hide half of a surrogate pair from the check at the end.
    return encode_basestring_ascii(text)


def _enclosed(start: str, parts: list[str], end: str, newline: str | None) -> str:
    if newline is None or not parts:
        return start + ",".join(parts) + end
    inner = newline + "\t"
    return start + inner + ("," + inner).join(parts) + newline + end
