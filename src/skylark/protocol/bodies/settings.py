"""Settings: key-value tables as JSON, and whole configurations as `key=value` lines.

The lines are Java's properties syntax. Comments start with `#` or `!`; the key ends at the first
`=`, `:` or blank that no backslash protects; a backslash at a line's end joins it with the next;
`\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` mean what they do in Java, and any other escaped character
means itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...errors import InvalidBody
from .body import Body
from .members import Members, text_of

_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = re.compile(r"[\\\t\n\r\f]")
_TO_ESCAPE_IN_KEY = re.compile(r"[\\\t\n\r\f=: #!]")
_ESCAPED_AS = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Text by text: `{"table":{"k":"v"}}`."""

    table: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(members.map_of("table", text_of))

    def to_members(self) -> dict[str, Any]:
        return {"table": self.table}


@dataclass(frozen=True, slots=True)
class KVConfigTable(Body):
    """All settings of a name server by namespace, as its kvConfig.json holds them."""

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        table = members.object_or_empty("configTable")
        return cls({name: table.map_of(name, text_of) for name in table.members})

    def to_members(self) -> dict[str, Any]:
        return {"configTable": self.namespaces}


def parse_properties(data: bytes | memoryview | str) -> dict[str, str]:
    """Read `key=value` lines; the last of several equal keys wins."""
    if isinstance(data, str):
        text = data
    else:
        try:
            text = bytes(data).decode()
        except UnicodeDecodeError as error:
            raise InvalidBody(f"properties that are not UTF-8 at byte {error.start}") from None
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        properties[_unescape(key[0])] = _unescape(line[separator.end() :])
    return properties


def format_properties(properties: Mapping[str, str]) -> bytes:
    """Write `key=value` lines, one for each setting, in the mapping's order."""
    return "".join(
        f"{_escape(key, _TO_ESCAPE_IN_KEY)}={_escape_value(value)}\n"
        for key, value in properties.items()
    ).encode()


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    joined: list[str] = []
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        if _is_continued(line):
            joined.append(line[:-1])
            continue
        lines.append("".join([*joined, line]))
        joined = []
    if joined:
        lines.append("".join(joined))
    return lines


def _is_continued(line: str) -> bool:
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units = _ESCAPE.sub(_meaning, text).encode("utf-16-le", "surrogatepass")
    try:
        return units.decode("utf-16-le")  # Two escapes may be the halves of one character.
    except UnicodeDecodeError:
        raise InvalidBody("properties with half of a surrogate pair") from None


def _meaning(escape: re.Match[str]) -> str:
    what = escape[1]
    if len(what) == 5:
        return chr(int(what[1:], 16))
    if what == "u":
        raise InvalidBody("properties with a \\u that four hexadecimal digits do not follow")
    return _ESCAPES.get(what, what)


def _escape(text: str, what: re.Pattern[str]) -> str:
    return what.sub(lambda found: _ESCAPED_AS.get(found[0], "\\" + found[0]), text)


def _escape_value(value: str) -> str:
    escaped = _escape(value, _TO_ESCAPE)
    # A blank in front would be read as part of the separator.
    return "\\" + escaped if escaped.startswith(" ") else escaped
