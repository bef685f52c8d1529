"""Properties: a message's named values as one text.

    name 0x01 value 0x02 name 0x01 value ...          UTF-8, at most 32,767 bytes in a record

Reading follows RocketMQ 4.9.8 to the letter, because the text in a log outlives its writer: pieces
are split at 0x02, a piece counts only with a name before and a value after its first 0x01, all else
is passed over, and the last of several equal names wins. So a trailing 0x02 (as written by Java
before 4.9.1 and by C++) is harmless, and an empty value is the same as none. Bytes that are not
UTF-8 become U+FFFD: a broker stores the text of a batch entry unread, whatever a client put there.

Writing leaves no trailing 0x02, and refuses what would read back as something else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import ItemsView, Iterator, Mapping
from typing import TypeVar

from ..errors import InvalidBody, LocalProtocolError

NAME_END = "\x01"
VALUE_END = "\x02"
PROPERTIES_BYTES_MAX = 32_767  # The record keeps the length in a signed 16-bit field.
KEYS_COUNT_MAX = 64  # Each key costs an index entry, so a sender may not name them without bound.

_SOUND = re.compile(
    rb"(?:[^\x01\x02]++\x01[^\x02]*+\x02)*+(?:[^\x01\x02]++\x01[^\x02]*+)?+", re.DOTALL
)

_T = TypeVar("_T")


def parse_properties(text: str | bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the properties of a text; what does not count as one is passed over."""
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    found = {}
    for piece in text.split(VALUE_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


parse_properties_pure = parse_properties

if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from ._record import parse_properties


def format_properties(properties: Mapping[str, str | None], *, as_read: bool = False) -> str:
    """Return the text of properties, as headers carry it; values of None are left out.

    A value that was read may have 0x01 in it, and is handed on as its sender wrote it: it reads
    back the same. What is new may not, since not every client reads as RocketMQ does.
    """
    pieces = []
    for name, value in properties.items():
        if value is None:
            continue
        if not name or NAME_END in name or VALUE_END in name or VALUE_END in value:
            raise LocalProtocolError(
                f"property {name!r}: a name may not be empty, and neither name nor value"
                " may contain the separators \\x01 and \\x02"
            )
        if NAME_END in value and not as_read:
            raise LocalProtocolError(f"property {name!r}: its value contains the separator \\x01")
        pieces.append(f"{name}{NAME_END}{value}")
    return VALUE_END.join(pieces)


def encode_properties(properties: Mapping[str, str | None], *, as_read: bool = False) -> bytes:
    """Return the text of properties in UTF-8, as records carry it; see format_properties."""
    data = encode_text(format_properties(properties, as_read=as_read))
    if len(data) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties take {len(data)} bytes, a record holds {PROPERTIES_BYTES_MAX}"
        )
    return data


def encode_text(text: str) -> bytes:
    """Return UTF-8; a lone surrogate, which JSON can smuggle in, becomes "?" as in Java."""
    return text.encode("utf-8", "replace")


def split_keys(keys: str | None) -> tuple[str, ...]:
    """Return the single keys of a KEYS property."""
    return tuple(key for key in keys.split(" ") if key) if keys else ()


def require_sound_properties(text: str | bytes) -> None:
    """Raise InvalidBody unless a broker may store this text as a message's properties.

    Stricter than reading: a piece without a separator is a sender's mistake that would be lost
    silently, and keys without bound would fill the index.
    """
    data = encode_text(text) if isinstance(text, str) else text
    # Nearly all are, and this says so without taking them apart: fewer spaces than keys may be.
    if (
        len(data) <= PROPERTIES_BYTES_MAX
        and data.count(b" ") < KEYS_COUNT_MAX
        and _SOUND.fullmatch(data)
    ):
        return
    if len(data) > PROPERTIES_BYTES_MAX:
        raise InvalidBody(f"properties take {len(data)} bytes, the limit is {PROPERTIES_BYTES_MAX}")
    if data:
        pieces = data.split(b"\x02")
        if not pieces[-1]:
            pieces.pop()
        for piece in pieces:
            if piece.find(b"\x01") < 1:
                raise InvalidBody(f"property {piece[:40]!r} has no name or no separator \\x01")
            if piece.startswith(b"KEYS\x01"):
                count = sum(1 for key in piece[5:].split(b" ") if key)
                if count > KEYS_COUNT_MAX:
                    raise InvalidBody(f"{count} keys, the limit is {KEYS_COUNT_MAX}")


class LazyProperties(Mapping[str, str]):
    """The properties of a decoded record: kept as text, parsed when first asked."""

    __slots__ = ("_parsed", "text")

    text: bytes
    _parsed: dict[str, str] | None

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._parsed = None

    def as_dict(self) -> dict[str, str]:
        """Return a copy that the caller may change."""
        return dict(self._all())

    def _all(self) -> dict[str, str]:
        parsed = self._parsed
        if parsed is None:
            parsed = self._parsed = parse_properties(self.text)
        return parsed

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def get(self, name: str, default: _T = None) -> str | _T:  # type: ignore[assignment]
        """Return a value, or the default."""
        return self._all().get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def items(self) -> ItemsView[str, str]:
        """Return names and values."""
        return self._all().items()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyProperties):
            return self.text == other.text or self._all() == other._all()
        if isinstance(other, Mapping):
            return self._all() == dict(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[type[LazyProperties], tuple[bytes]]:
        return type(self), (self.text,)
