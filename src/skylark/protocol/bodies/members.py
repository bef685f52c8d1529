"""Members: typed access to a JSON object, with the leniency that Java's reader has.

    wanted    taken as well
    number    its decimal text, a float without a fraction; empty text counts as absent
    text      a number or a bool
    bool      "true" and "false" in any case, 1 and 0, also as text
    enum      its name or its ordinal (the C++ client sends ordinals)
    array     absent or null: empty

A member of another kind raises InvalidBody with the path that leads to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeVar

from ...errors import InvalidBody
from ...model.queue import MessageQueue
from .. import fastjson
from ..fastjson import Json, JsonObject, ObjectKey

_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_REAL = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?")
_LIMITS = {32: (-(1 << 31), (1 << 31) - 1), 64: (-(1 << 63), (1 << 63) - 1)}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {dict: "an object", list: "an array", str: "text", bool: "a bool", type(None): "null"}


@dataclass(slots=True)
class Members:
    """The members of one object, and where in the body it stands."""

    members: JsonObject
    where: str

    @classmethod
    def of(cls, value: Json, where: str) -> Self:
        """Look into a value, which must be an object."""
        if not isinstance(value, dict):
            raise InvalidBody(f"{where} should be an object, not {_kind(value)}")
        return cls(value, where)

    def has(self, key: str) -> bool:
        """Return whether a member is there and not null."""
        return self.members.get(key) is not None

    def i32(self, key: str, default: int | None = None) -> int:
        """Return a Java int."""
        return self._integer(key, default, 32)

    def i64(self, key: str, default: int | None = None) -> int:
        """Return a Java long."""
        return self._integer(key, default, 64)

    def _integer(self, key: str, default: int | None, bits: int) -> int:
        value = self.members.get(key)
        if value is None or value == "":
            return self._default(key, default)
        return integer_of(value, f"{self.where}.{key}", bits)

    def real(self, key: str, default: float | None = None) -> float:
        """Return a Java double."""
        value = self.members.get(key)
        if value is None or value == "":
            return self._default(key, default)
        if isinstance(value, str) and _REAL.fullmatch(value):
            return float(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._wrong(key, "a number")

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a bool."""
        value = self.members.get(key)
        if value is None or value == "":
            return self._default(key, default)
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _FLAGS:
            return _FLAGS[value.lower()]
        if value in (0, 1):
            return value == 1
        raise self._wrong(key, "a bool")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        value = self.members.get(key)
        if value is None:
            return self._default(key, default)
        return text_of(value, f"{self.where}.{key}")

    def text_or_none(self, key: str) -> str | None:
        """Return a text, or None if it is absent."""
        return self.text(key) if self.has(key) else None

    def enum(self, key: str, kind: type[_E], default: _E | None = None) -> _E:
        """Return a member of an enum, given by name or by ordinal."""
        value = self.members.get(key)
        if value is None or value == "":
            return self._default(key, default)
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:9])
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(kind):
            return list(kind)[value]
        raise self._wrong(key, f"one of {', '.join(kind.__members__)}")

    def object(self, key: str) -> Members:
        """Return an object."""
        if not self.has(key):
            self._default(key, None)
        return Members.of(self.members[key], f"{self.where}.{key}")

    def object_or_empty(self, key: str) -> Members:
        """Return an object; an absent one is empty."""
        value = self.members.get(key)
        return Members.of({} if value is None else value, f"{self.where}.{key}")

    def objects(self, key: str) -> list[Members]:
        """Return an array of objects; an absent one is empty."""
        return self._array(key, Members.of)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of texts; an absent one is empty."""
        return tuple(self._array(key, text_of))

    def integers(self, key: str) -> tuple[int, ...]:
        """Return an array of Java ints; an absent one is empty."""
        return tuple(self._array(key, integer_of))

    def _array(self, key: str, read: Callable[[Json, str], _T]) -> list[_T]:
        value = self.members.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "an array")
        return [read(item, f"{self.where}.{key}[{index}]") for index, item in enumerate(value)]

    def map_of(self, key: str, read: Callable[[Json, str], _T]) -> dict[str, _T]:
        """Return a map by text; an absent one is empty, a null value is left out."""
        table = self.object_or_empty(key)
        return dict(_entries(table, read))

    def integer_map_of(
        self, key: str, read: Callable[[Json, str], _T], bits: int = 32
    ) -> dict[int, _T]:
        """Return a map by integer; an absent one is empty."""
        table = self.object_or_empty(key)
        return {
            integer_of(name, f"{table.where} key", bits): value
            for name, value in _entries(table, read)
        }

    def queue_map_of(self, key: str, read: Callable[[Json, str], _T]) -> dict[MessageQueue, _T]:
        """Return a map by MessageQueue, whose keys are objects or their text."""
        table = self.object_or_empty(key)
        return {
            queue_of(fastjson.loads(name), f"{table.where} key"): value
            for name, value in _entries(table, read)
        }

    def _default(self, key: str, default: _T | None) -> _T:
        if default is None:
            raise InvalidBody(f"{self.where}.{key} is missing")
        return default

    def _wrong(self, key: str, wanted: str) -> InvalidBody:
        return InvalidBody(f"{self.where}.{key} should be {wanted}, not {_kind(self.members[key])}")


def _entries(table: Members, read: Callable[[Json, str], _T]) -> Iterator[tuple[str, _T]]:
    for name, value in table.members.items():
        if value is not None:
            yield name, read(value, f"{table.where}.{name[:64]}")


def integer_of(value: Json, where: str, bits: int = 32) -> int:
    """Return an integer that fits so many bits, also from its text."""
    is_text_of_one = isinstance(value, str) and _INTEGER.fullmatch(value)
    if is_text_of_one or (isinstance(value, float) and value.is_integer()):
        value = int(value)  # type: ignore[arg-type]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidBody(f"{where} should be an integer, not {_kind(value)}")
    low, high = _LIMITS[bits]
    if not low <= value <= high:
        raise InvalidBody(f"{where} does not fit {bits} bits: {str(value)[:24]}")
    return value


def long_of(value: Json, where: str) -> int:
    """Return a Java long."""
    return integer_of(value, where, 64)


def text_of(value: Json, where: str) -> str:
    """Return a text, also from a number or a bool."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise InvalidBody(f"{where} should be text, not {_kind(value)}")


def queue_of(value: Json, where: str) -> MessageQueue:
    """Return the MessageQueue that an object describes."""
    members = Members.of(value, where)
    return MessageQueue(
        topic=members.text("topic"),
        broker_name=members.text("brokerName"),
        queue_id=members.i32("queueId"),
    )


def queue_members(queue: MessageQueue) -> dict[str, Any]:
    """Return the object that describes a MessageQueue."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_key(queue: MessageQueue) -> ObjectKey:
    """Return a MessageQueue as the key of a map."""
    return ObjectKey(fastjson.dumps(queue_members(queue)).decode())


def _kind(value: Json) -> str:
    return _KINDS.get(type(value)) or f"{value!r:.32}"
