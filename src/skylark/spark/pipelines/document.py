"""Document: the text of a pipeline file as nodes that know their lines.

A value is the text that is written: YAML would make false of the country NO, and 1.1 of version
1.10. Tags that make objects, anchors and aliases (with which a page of text becomes a gigabyte) and
keys written twice are refused. Everything is bounded before it is parsed.

    ${NAME}            the environment's value; an error where it is not set
    ${NAME:-default}   the default where it is not set
    $${                these two characters themselves: ${

Values are put in after parsing, so that what the environment holds is a text, whatever is in it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ...errors import ConfigError, MissingExtra

TEXT_BYTES_MAX = 1 << 20
_DEPTH_MAX = 20
_VARIABLE = re.compile(r"\$(?:(\$\{)|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|(\{))")
_NULL_TAG = "tag:yaml.org,2002:null"
_SAFE_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
}

_TEXT_TAGS = {  # Of the texts = and <<, which mean something as names only, and not here.
    f"tag:yaml.org,2002:{name}" for name in ("value", "merge")
}
_TRUTHS = {
    word: is_true
    for words, is_true in ((("true", "yes", "on"), True), (("false", "no", "off"), False))
    for word in words
}

# A text or None; a list of nodes; names to nodes. From a program also a number, truth or function.
Value = Any


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is said: a file and a line, and the keys that lead there."""

    file: str
    line: int
    path: str = ""

    def refuse(self, problem: str) -> NoReturn:
        """Say that something here cannot be."""
        where = f"{self.file}:{self.line}"
        raise ConfigError(
            f"{where}: {self.path}: {problem}" if self.path else f"{where}: {problem}"
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and where it is written."""

    value: Value
    place: Place

    def text(self) -> str:
        """It as one text; lists and mappings are refused."""
        value = self.value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        return self.place.refuse(f"a text is needed, and this is {_kind(value)}")

    def flag(self) -> bool:
        """It as true or false."""
        text = self.text()
        found = _TRUTHS.get(text.lower())
        if found is None:
            self.place.refuse(f"true or false is needed, and this is {text[:40]!r}")
        return found

    def items(self) -> dict[str, Node]:
        """It as a mapping, in the order of the file."""
        if not isinstance(self.value, dict):
            self.place.refuse(f"names with values are needed, and this is {_kind(self.value)}")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """It as a list of texts; one text is a list of those between its commas."""
        if isinstance(self.value, list):
            return tuple(node.text() for node in self.value)
        return tuple(part.strip() for part in self.text().split(",") if part.strip())

    def known(self, names: Iterable[str]) -> dict[str, Node]:
        """Its mapping, whose names must all be among these."""
        names = list(names)
        found = self.items()
        for name, node in found.items():
            if name not in names:
                near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
                meant = [n for n in names if near and n.lower() == near[0]]
                hint = f"; did you mean {meant[0]}?" if meant else f"; known are {', '.join(names)}"
                node.place.refuse(f"this key is not known{hint}")
        return found


def _kind(value: Value) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else f"a {type(value).__name__}"


def from_python(value: Any, place: Place) -> Node:
    """Values of a Python program as nodes, all said at one place."""
    if isinstance(value, Mapping):
        inner = {
            str(name): from_python(one, _below(place, str(name))) for name, one in value.items()
        }
        return Node(inner, place)
    if isinstance(value, list | tuple):
        return Node([from_python(one, place) for one in value], place)
    return Node(os.fspath(value) if isinstance(value, os.PathLike) else value, place)


def parse_yaml(text: str, file: str, environment: Mapping[str, str]) -> Node:
    """The nodes of a YAML text; raises ConfigError with the line of what cannot be."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("spark", "a pipeline as YAML") from error
    if len(text.encode()) > TEXT_BYTES_MAX:
        Place(file, 1).refuse(f"a pipeline file has at most {TEXT_BYTES_MAX} bytes")
    try:
        loader = yaml.SafeLoader(text)
        anchors: dict[str, Any] = {}
        loader.anchors = anchors  # Filled while it composes.
        root = loader.get_single_node()
        if root is None:
            Place(file, 1).refuse("the file is empty; docs/pipelines.md shows what belongs in it")
        return _Tree(file, environment, anchors.values()).node(root, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        Place(file, mark.line + 1 if mark else 1).refuse(f"this is not YAML: {error.problem}")
    except (yaml.YAMLError, ValueError) as error:
        Place(file, 1).refuse(f"this is not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        Place(file, 1).refuse("this nests too deep")


class _Tree:
    """Turns the nodes of the YAML library into ours."""

    def __init__(self, file: str, environment: Mapping[str, str], anchored: Iterable[Any]) -> None:
        self._file = file
        self._environment = environment
        self._anchored = {id(raw) for raw in anchored}

    def node(self, raw: Any, path: str, depth: int) -> Node:
        place = Place(self._file, raw.start_mark.line + 1, path)
        if raw.tag not in _SAFE_TAGS and (raw.id != "scalar" or raw.tag not in _TEXT_TAGS):
            place.refuse(f"the tag {raw.tag} is not allowed; plain values are")
        self._check_anchor(raw, place)
        if depth > _DEPTH_MAX:
            place.refuse("this nests too deep")
        if raw.id == "mapping":
            return Node(dict(self._pairs(raw, place, depth)), place)
        if raw.id == "sequence":
            return Node([self.node(one, path, depth + 1) for one in raw.value], place)
        if raw.tag == _NULL_TAG:
            return Node(None, place)
        return Node(substituted(raw.value, self._environment, place), place)

    def _check_anchor(self, raw: Any, place: Place) -> None:
        if id(raw) in self._anchored:
            place.refuse("anchors (&) and aliases (*) are not allowed; write the value again")

    def _pairs(self, raw: Any, place: Place, depth: int) -> Iterator[tuple[str, Node]]:
        names = set()
        for key, value in raw.value:
            at = Place(self._file, key.start_mark.line + 1, place.path)
            self._check_anchor(key, at)
            if key.id != "scalar":
                at.refuse("a name must be a plain text")
            name = str(key.value)
            if name in names:
                at.refuse(f"{name} is here twice")
            names.add(name)
            found = self.node(value, _below(place, name).path, depth + 1)
            # An error about a key points at the key, which may stand above its value.
            yield name, Node(found.value, Place(self._file, at.line, found.place.path))


def _below(place: Place, name: str) -> Place:
    return Place(place.file, place.line, f"{place.path}.{name}" if place.path else name)


def substituted(text: str, environment: Mapping[str, str], place: Place) -> str:
    """A text with the environment's values put in."""

    def replace(found: re.Match[str]) -> str:
        literal, name, default, broken = found.groups()
        if literal:
            return "${"
        if broken:
            place.refuse(
                "${ begins a name such as ${NAME} or ${NAME:-default}; write $${ for itself"
            )
        value = environment.get(name)
        if value is None and default is None:
            place.refuse(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            )
        return value if value is not None else default or ""

    return _VARIABLE.sub(replace, text)
