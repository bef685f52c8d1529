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
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from ..errors import InvalidHeader, LocalProtocolError

I32 = Annotated[int, 32]
"""A Java int."""

I64 = Annotated[int, 64]
"""A Java long."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")

_Read = Callable[[str], Any]
_Write = Callable[[Any], str]
_H = TypeVar("_H", bound="Header")


class Header:
    """Base of all typed headers; see the module's docstring for how one is written."""

    __slots__ = ()

    # Both are made once, by the decorator, for the class at hand.
    _decode: ClassVar[Callable[[Mapping[str, str]], Any]]
    _encode: ClassVar[Callable[[Any], dict[str, str]]]

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Self:
        """Read a header, or raise InvalidHeader that names the first field at fault."""
        decoded: Self = cls._decode(fields)
        return decoded

    def to_fields(self) -> dict[str, str]:
        """Write this header; members that are None are left out."""
        return type(self)._encode(self)


def wire(name: str, **options: Any) -> Any:
    """Declare a field whose wire name is not the camelCase of its Python name."""
    return dataclasses.field(metadata={"wire": name}, **options)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def header(cls: type[_H]) -> type[_H]:
    """Make a class a frozen, slotted, keyword-only dataclass that reads and writes itself."""
    made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    hints = get_type_hints(made, include_extras=True)
    readers: list[tuple[str, str, _Read, bool, bool]] = []
    writers: list[tuple[str, str, _Write]] = []
    for field in dataclasses.fields(made):  # type: ignore[arg-type]
        name = field.metadata.get("wire") or camel_case(field.name)
        kind, optional = _kind_of(hints[field.name])
        mandatory = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        assert not (optional and mandatory), f"{cls.__name__}.{field.name} needs a default"
        read, write, empty_is_absent = _codec_of(cls.__name__, name, kind)
        readers.append((field.name, name, read, mandatory, empty_is_absent))
        writers.append((field.name, name, write))
    made._decode = staticmethod(_decoder(made, readers))
    made._encode = staticmethod(_encoder(writers))
    return made


def camel_case(name: str) -> str:
    """Return `queueId` for `queue_id`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _kind_of(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        assert len(kinds) == 1, f"{hint} has more than one meaning on the wire"
        return kinds[0], True
    return hint, False


def _codec_of(owner: str, name: str, kind: Any) -> tuple[_Read, _Write, bool]:
    if kind is str:
        return _same, _same, False
    if kind is bool:
        return _read_bool, _write_bool, False
    assert kind in (I32, I64), f"{owner}.{name}: {kind} has no form on the wire"
    bits = get_args(kind)[1]
    return _int_reader(owner, name, bits), _int_writer(owner, name, bits), True


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


def _decoder(
    made: type[_H], readers: list[tuple[str, str, _Read, bool, bool]]
) -> Callable[[Mapping[str, str]], _H]:
    plan = tuple(readers)

    def decode(fields: Mapping[str, str]) -> _H:
        values: dict[str, Any] = {}
        for attribute, name, read, mandatory, empty_is_absent in plan:
            text = fields.get(name)
            if text is None or (empty_is_absent and not text):
                if mandatory:
                    raise InvalidHeader(made.__name__, name, "is missing")
                continue
            values[attribute] = read(text)
        return made(**values)

    return decode


def _encoder(writers: list[tuple[str, str, _Write]]) -> Callable[[Any], dict[str, str]]:
    plan = tuple(writers)

    def encode(value: Any) -> dict[str, str]:
        fields: dict[str, str] = {}
        for attribute, name, write in plan:
            member = getattr(value, attribute)
            if member is not None:
                fields[name] = write(member)
        return fields

    return encode
