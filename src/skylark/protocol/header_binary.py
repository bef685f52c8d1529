"""The binary form of a frame's header (serialization type 1, "ROCKETMQ").

    size    field      note
    2       code       so the codes of pop (200050 and up) cannot be sent this way
    1       language
    2       version
    4       opaque
    4       flag
    4 + n   remark     length, then UTF-8; length 0 is no remark
    4 + m   fields     bytes of all entries together, then the entries:
                       2 + k   name
                       4 + v   value; a value of no bytes is read as no entry, as Java does

All integers are signed and big-endian. The lengths must add up exactly: what is left over or
reaches beyond the header is refused.
"""

from __future__ import annotations

import struct
from typing import Final

from ..errors import LocalProtocolError, RemoteProtocolError
from .codes import Language, Serialization
from .command import Command

_FIXED: Final = struct.Struct(">hBhii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LANGUAGES: Final = frozenset(language.value for language in Language)


def decode_header_binary(data: bytes) -> Command:
    """Read a header; the command's body is left empty. Raises RemoteProtocolError."""
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, at = _text(data, _FIXED.size, _INT)
        (fields_size,) = _INT.unpack_from(data, at)
        at += _INT.size
        if fields_size != len(data) - at:
            raise RemoteProtocolError(
                f"header fields of {fields_size} bytes where {len(data) - at} are left"
            )
        fields: dict[str, str] = {}
        while at < len(data):
            name, at = _text(data, at, _SHORT)
            value, at = _text(data, at, _INT)
            if name in fields:
                raise RemoteProtocolError("header has a duplicate field")
            fields[name] = value
    except struct.error:
        raise RemoteProtocolError("header ends in the middle of a field") from None
    except UnicodeDecodeError:
        raise RemoteProtocolError("header text is not UTF-8") from None
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        fields={name: value for name, value in fields.items() if name and value},
        remark=remark or None,
        language=language if language in _LANGUAGES else Language.OTHER,
        version=version,
        serialization=Serialization.ROCKETMQ,
    )


def encode_header_binary(command: Command) -> bytes:
    """Write a header. Raises LocalProtocolError."""
    try:
        entries = []
        for name, value in command.fields.items():
            raw_name, raw_value = name.encode(), value.encode()
            entries += [
                _SHORT.pack(len(raw_name)),
                raw_name,
                _INT.pack(len(raw_value)),
                raw_value,
            ]
        fields = b"".join(entries)
        remark = (command.remark or "").encode()
        fixed = _FIXED.pack(
            command.code, command.language, command.version, command.opaque, command.flag
        )
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise LocalProtocolError(f"header cannot be written in binary form: {error}") from None
    return b"".join((fixed, _INT.pack(len(remark)), remark, _INT.pack(len(fields)), fields))


def _text(data: bytes, at: int, length_format: struct.Struct) -> tuple[str, int]:
    (size,) = length_format.unpack_from(data, at)
    start = at + length_format.size
    end = start + size
    if size < 0 or end > len(data):
        raise RemoteProtocolError(f"header text of {size} bytes where {len(data) - start} are left")
    return data[start:end].decode(), end
