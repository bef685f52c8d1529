"""Header: the typed form of a command's fields.

On the wire a custom header is a flat map of text to text (`extFields`). A Header class names its
fields once, with their types, and is read and written by code made from them when it is defined:

    @header
    class GetKVConfigRequest(Header):
        CODE: ClassVar[RequestCode] = RequestCode.GET_KV_CONFIG
        namespace: str                           # mandatory
        key: str
        limit: I32 = 0                           # left out by some peers
        client_id: str | None = wire("clientID", default=None)

    type      text on the wire
    str       as it is
    I32, I64  decimal, within Java's int or long; empty text counts as absent
    bool      `true` or `false`; on reading, anything but `true` in any case is false
    None      the key is absent

The wire name is the camelCase of the Python name unless `wire` says otherwise. Fields that a class
does not name are ignored on reading: newer clients send more than older servers know.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar, dataclass_transform

from ..errors import InvalidHeader, LocalProtocolError

I32 = Annotated[int, 32]
"""A Java int."""

I64 = Annotated[int, 64]
"""A Java long."""

_BITS = {"I32": 32, "I64": 64}
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")

_Read = Callable[[str], Any]
_Write = Callable[[Any], str]
_H = TypeVar("_H", bound="Header")


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """All that is known about one field: its names, its default, how it is read and written."""

    attribute: str
    name: str
    default: Any  # MISSING where the field is mandatory
    read: _Read
    write: _Write
    empty_is_absent: bool


class Header:
    """Base of all typed headers; see the module's docstring for how one is written.

    There are a hundred of them. Were each given its own generated methods, as dataclasses are,
    importing them would take longer than all else that a server does before its first answer.
    """

    __slots__ = ()

    # Set once, by the decorator, for the class at hand.
    _fields: ClassVar[tuple[_Field, ...]] = ()

    def __init__(self, **members: Any) -> None:
        for field in self._fields:
            value = members.pop(field.attribute, field.default)
            if value is dataclasses.MISSING:
                raise TypeError(f"{type(self).__name__} needs {field.attribute!r}")
            _set(self, field.attribute, value)
        if members:
            raise TypeError(f"{type(self).__name__} has no {', '.join(map(repr, members))}")

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Self:
        """Read a header, or raise InvalidHeader that names the first field at fault."""
        made = cls.__new__(cls)
        for field in cls._fields:
            text = fields.get(field.name)
            if text is None or (field.empty_is_absent and not text):
                if field.default is dataclasses.MISSING:
                    raise InvalidHeader(cls.__name__, field.name, "is missing")
                _set(made, field.attribute, field.default)
            else:
                _set(made, field.attribute, field.read(text))
        return made

    def to_fields(self) -> dict[str, str]:
        """Write this header; members that are None are left out."""
        fields: dict[str, str] = {}
        for field in self._fields:
            value = getattr(self, field.attribute)
            if value is not None:
                fields[field.name] = field.write(value)
        return fields

    def _members(self) -> Iterator[Any]:
        return (getattr(self, field.attribute) for field in self._fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return tuple(self._members()) == tuple(other._members())

    def __hash__(self) -> int:
        return hash((type(self), *self._members()))

    def __repr__(self) -> str:
        members = (
            f"{field.attribute}={getattr(self, field.attribute)!r}" for field in self._fields
        )
        return f"{type(self).__name__}({', '.join(members)})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_set = object.__setattr__


def wire(name: str, **options: Any) -> Any:
    """Declare a field whose wire name is not the camelCase of its Python name."""
    return dataclasses.field(metadata={"wire": name}, **options)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def header(cls: type[_H]) -> type[_H]:
    """Make a class a frozen, slotted, keyword-only dataclass that reads and writes itself."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    made._fields = tuple(
        _described(cls.__name__, field)
        for field in dataclasses.fields(made)  # type: ignore[arg-type]
    )
    return made


def camel_case(name: str) -> str:
    """Return `queueId` for `queue_id`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _described(owner: str, field: dataclasses.Field[Any]) -> _Field:
    # Under `from __future__ import annotations` they are text, and here one of a handful.
    kind, _, rest = str(field.type).partition(" | ")
    assert rest in ("", "None"), f"{owner}.{field.name}: {field.type} has no form on the wire"
    mandatory = field.default is dataclasses.MISSING
    assert not (rest and mandatory), f"{owner}.{field.name} may be None and needs a default"
    name = field.metadata.get("wire") or camel_case(field.name)
    read, write = _codec_of(owner, name, kind)
    return _Field(field.name, name, field.default, read, write, empty_is_absent=kind in _BITS)


def _codec_of(owner: str, name: str, kind: str) -> tuple[_Read, _Write]:
    if kind == "str":
        return _same, _same
    if kind == "bool":
        return _read_bool, _write_bool
    assert kind in _BITS, f"{owner}.{name}: {kind} has no form on the wire"
    bits = _BITS[kind]
    return _int_reader(owner, name, bits), _int_writer(owner, name, bits)


def _same(text: str) -> str:
    return text


def _read_bool(text: str) -> bool:
    return text.lower() == "true"


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


def _int_reader(owner: str, name: str, bits: int) -> _Read:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(text: str) -> int:
        # int() alone would also take blanks, underscores and the digits of other scripts.
        if _NUMBER.fullmatch(text) is None:
            raise InvalidHeader(owner, name, f"is not an integer: {text[:32]!r}")
        value = int(text)
        if not low <= value <= high:
            raise InvalidHeader(owner, name, f"does not fit {bits} bits: {text}")
        return value

    return read


def _int_writer(owner: str, name: str, bits: int) -> _Write:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def write(value: int) -> str:
        if not low <= value <= high:
            raise LocalProtocolError(f"{owner}: field {name!r} does not fit {bits} bits: {value}")
        return str(int(value))  # An IntEnum or a bool is written as its number.

    return write
