"""Config files: Java's properties syntax, and TOML.

    properties            # and ! start a comment line
    key=value             a key ends at the first `=`, `:` or blank that is not escaped
    key = a\\              a backslash at the end joins the next line, without its leading blanks
          b
    \\t \\n \\r \\f \\uXXXX  escapes, in keys and values; before any other character a backslash
                          is dropped

TOML: keys outside any table count for every component, those in `[nameserver]` for that one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import ConfigError
from . import rocketmq_keys
from .schema import safe_path, safe_text, value_text

FILE_BYTES_MAX = 1024 * 1024

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_KEY_END = "=: \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")


class Property(NamedTuple):
    """One entry of a config file and the line where it starts."""

    key: str
    value: str
    line: int


def read_config_file(path: str | os.PathLike[str], component: str) -> list[Property]:
    """Read the entries of a file that may concern a component; raises ConfigError."""
    name = safe_path(path)
    try:
        with open(path, "rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"cannot read the config file {name}: {why}; give a readable file with -c"
        ) from error
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"{name}: larger than {FILE_BYTES_MAX} bytes; give a config file with -c")
    if os.fspath(path).lower().endswith(".toml"):
        return _parse_toml(_decoded(raw), name, component)
    return parse_properties(_decoded(raw), name)


def _decoded(raw: bytes) -> str:
    # Java reads Latin-1; people write UTF-8. What is not UTF-8 is taken as Java takes it.
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def parse_properties(text: str, origin: str = "properties") -> list[Property]:
    """Read Java's properties syntax; raises ConfigError on a malformed \\u escape."""
    found = []
    for start, _, logical in _logical_lines(_LINE_END.split(text)):
        key, value = _split_entry(logical)
        try:
            found.append(Property(_unescaped(key), _unescaped(value), start + 1))
        except ValueError as error:
            raise ConfigError(
                f"{origin}:{start + 1}: {error} is not an escape; "
                "write four hexadecimal digits after \\u, or a double backslash"
            ) from None
    return found


def merge_properties(text: str, changes: Mapping[str, str]) -> str:
    """Return a properties text with some values changed, its other lines and comments kept."""
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    remaining = dict(changes)
    merged: list[str] = []
    copied = 0
    for start, end, logical in _logical_lines(lines):
        key = _unescaped(_split_entry(logical)[0])
        if key not in changes:
            continue
        merged.extend(lines[copied:start])
        copied = end
        # A key that stands there twice is written once, at its first place.
        if key in remaining:
            merged.append(_property_line(key, remaining.pop(key)))
    merged.extend(lines[copied:])
    merged.extend(_property_line(key, value) for key, value in remaining.items())
    return "".join(line + "\n" for line in merged)


def _logical_lines(lines: list[str]) -> list[tuple[int, int, str]]:
    """Join continued lines and drop comments: (first line, line after the last, text)."""
    found = []
    at = 0
    while at < len(lines):
        start = at
        logical = lines[at].lstrip(_BLANK)
        at += 1
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            logical = logical[:-1]
            if at == len(lines):
                break
            logical += lines[at].lstrip(_BLANK)
            at += 1
        found.append((start, at, logical))
    return found


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_entry(logical: str) -> tuple[str, str]:
    end = 0
    while end < len(logical) and logical[end] not in _KEY_END:
        end += 2 if logical[end] == "\\" else 1
    key, rest = logical[:end], logical[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return key, rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            parts.append(char)
            continue
        escaped = text[at : at + 1]
        at += 1
        if escaped == "u":
            digits = text[at : at + 4]
            if not _HEX4.fullmatch(digits):
                raise ValueError(safe_text("\\u" + digits))
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    # Java writes a character beyond the first plane as two \u escapes; a lone half is no text.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _property_line(key: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\")
    for letter, char in _ESCAPES.items():
        escaped = escaped.replace(char, "\\" + letter)
    return f"{key}=\\{escaped}" if escaped.startswith(" ") else f"{key}={escaped}"


def _parse_toml(text: str, name: str, component: str) -> list[Property]:
    import tomllib  # Only for those who write TOML.

    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name}: not TOML: {safe_text(str(error))}; correct it") from None
    lines = _toml_lines(text)
    found = []
    for key, value in document.items():
        line = lines.get(("", key), 1)
        if not isinstance(value, dict):
            found.append(Property(key, _toml_text(value, f"{name}:{line}: {key}"), line))
        elif key not in rocketmq_keys.COMPONENTS:
            found.append(Property(key, "", lines.get((key, ""), 1)))
    own = document.get(component)
    for key, value in own.items() if isinstance(own, dict) else ():
        line = lines.get((component, key), 1)
        found.append(Property(key, _toml_text(value, f"{name}:{line}: {key}"), line))
    return found


def _toml_text(value: object, where: str) -> str:
    if isinstance(value, (str, bool, int)):
        return value_text(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ";".join(value)
    raise ConfigError(f"{where}: expected text, a whole number, true or false; correct it")


def _toml_lines(text: str) -> dict[tuple[str, str], int]:
    # tomllib keeps no positions. A line inside a multi-line string can mislead this search, which
    # costs a message its exact line and nothing else.
    entry = re.compile(
        r"""\s*(?:\[\s*(?P<table>[^\[\]]+?)\s*\]|(?P<key>[\w.-]+|"[^"]*"|'[^']*')\s*=)"""
    )
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(_LINE_END.split(text), start=1):
        match = entry.match(line)
        if match is None:
            continue
        if match["table"] is not None:
            table = match["table"].strip("\"'")
            found.setdefault((table, ""), number)
        else:
            found.setdefault((table, match["key"].strip("\"'")), number)
    return found
