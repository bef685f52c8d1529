"""The JSON form of a frame's header (serialization type 0).

    key                      JSON type      meaning
    code                     number         request code; in a response, how it ended
    extFields                object         the typed header's fields, string to string; may be null
    flag                     number         see command.py
    language                 string         name of the sender's language
    opaque                   number         pairs an answer with its request; may be negative
    remark                   string         text for people; left out when there is none
    serializeTypeCurrentRPC  string         "JSON"; informational
    version                  number         the sender's version ordinal

Members are written in alphabetical order as Java does, and read in any. C++ clients write numbers
in extFields and end the text with a newline; both are read, and every field value becomes text.

What a peer could use to hurt the reader is refused: duplicate keys, nesting, integers beyond 64
bits, NaN, lone surrogates.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ..errors import LocalProtocolError, RemoteProtocolError
from .codes import Language, Serialization
from .command import Command

DEPTH_MAX: Final = 4
_INT_DIGITS_MAX: Final = 20
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_LANGUAGE_OF_NAME: Final = {language.name: language.value for language in Language}
_NAME_OF_LANGUAGE: Final = {language.value: language.name for language in Language}


class _Decimal(str):
    """The text of a JSON number that is not an integer."""

    __slots__ = ()


def decode_header_json(data: bytes) -> Command:
    """Read a header; the command's body is left empty. Raises RemoteProtocolError."""
    try:
        header = _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"header is not acceptable JSON: {error}") from None
    if type(header) is not dict:
        raise RemoteProtocolError("header is not a JSON object")
    _check_depth(header, 1)
    if b"\\u" in data or b"\\U" in data:
        _check_surrogates(header)
    remark = header.get("remark")
    if remark is not None and type(remark) is not str:
        raise RemoteProtocolError("header member remark is not a string")
    return Command(
        code=_int32(header, "code", None),
        opaque=_int32(header, "opaque", 0),
        flag=_int32(header, "flag", 0),
        fields=_fields(header.get("extFields")),
        remark=remark,
        language=_language(header.get("language")),
        version=_int32(header, "version", 0),
        serialization=Serialization.JSON,
    )


def encode_header_json(command: Command) -> bytes:
    """Write a header as Java's clients expect it. Raises LocalProtocolError."""
    header: dict[str, Any] = {"code": int(command.code)}
    if command.fields:
        header["extFields"] = command.fields
    header["flag"] = int(command.flag)
    header["language"] = _NAME_OF_LANGUAGE.get(command.language, "OTHER")
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    try:
        return _ENCODER.encode(header).encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"header cannot be written: {error}") from None


def _int32(header: dict[str, Any], name: str, default: int | None) -> int:
    value = header.get(name, default)
    if type(value) is not int or value not in _INT32:
        raise RemoteProtocolError(f"header member {name} is not a 32-bit integer")
    return value


def _language(value: Any) -> int:
    if type(value) is str:
        return _LANGUAGE_OF_NAME.get(value, Language.OTHER)
    if type(value) is int and value in _NAME_OF_LANGUAGE:
        return value
    return Language.OTHER


def _fields(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if type(value) is not dict:
        raise RemoteProtocolError("header member extFields is not an object")
    fields: dict[str, str] = {}
    for name, item in value.items():
        kind = type(item)
        if kind is str:
            fields[name] = item
        elif kind is bool:
            fields[name] = "true" if item else "false"
        elif kind is int or kind is _Decimal:
            fields[name] = str(item)
        elif item is not None:
            raise RemoteProtocolError("a header field is neither text, number nor boolean")
    return fields


def _integer(text: str) -> int:
    if len(text) > _INT_DIGITS_MAX:
        raise ValueError("integer of more than 64 bits")
    value = int(text)
    if value not in _INT64:
        raise ValueError("integer of more than 64 bits")
    return value


def _constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _check_depth(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise RemoteProtocolError(f"header is nested deeper than {DEPTH_MAX}")
    if type(value) is dict:
        for item in value.values():
            if type(item) in (dict, list):
                _check_depth(item, depth + 1)
    elif type(value) is list:
        for item in value:
            if type(item) in (dict, list):
                _check_depth(item, depth + 1)


def _check_surrogates(value: Any) -> None:
    try:
        if isinstance(value, str):
            value.encode()
        elif type(value) is dict:
            for name, item in value.items():
                name.encode()
                _check_surrogates(item)
        elif type(value) is list:
            for item in value:
                _check_surrogates(item)
    except UnicodeEncodeError:
        raise RemoteProtocolError("header holds half of a surrogate pair") from None


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_Decimal, parse_constant=_constant
)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
