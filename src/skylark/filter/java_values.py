"""Values as RocketMQ's evaluator sees them: Java's numbers, and how texts become numbers.

    Java       here                 comes from
    String     str                  every property, and 'text'
    Integer    int                  a whole number that fits in 32 bits
    Long       Long                 a larger whole number
    Double     float                a number with a point or an exponent
    Boolean    bool                 TRUE, FALSE, and every comparison
    null       None                 a property that is missing, and NULL

A property is a text. Where it meets a number it is read as a number of that very kind, so that
`a > 5` cannot look at the text 6.5, while `a > 5.0` can. What cannot be read raises NotComparable,
and the message does not match, whatever the rest of the expression says.
"""

from __future__ import annotations

from typing import Final

from ..errors import SkylarkError

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_BLANKS: Final = "".join(map(chr, range(33)))  # What Java's trim() takes away.
_DIGITS: Final = frozenset("0123456789")
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_SUFFIXES: Final = frozenset("fFdD")


class NotComparable(SkylarkError):
    """Two values that cannot be compared; the message does not match."""


class Long(int):
    """A whole number of 64 bits, to tell it from one of 32."""

    __slots__ = ()


Value = str | int | float | bool | None


def parse_int(text: str) -> int:
    """Read a whole number of 32 bits as Integer.valueOf does; raises NotComparable."""
    return _whole(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> Long:
    """Read a whole number of 64 bits as Long.valueOf does; raises NotComparable."""
    return Long(_whole(text, LONG_MIN, LONG_MAX))


def _whole(text: str, least: int, most: int) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    # Any script's digits count, as long as each is one of Java's 16-bit characters.
    if not digits.isdecimal() or (not digits.isascii() and max(digits) > "\uffff"):
        raise NotComparable(f"{text[:40]!r} is not a whole number")
    if len(digits) > 18:
        digits = digits.lstrip("0") if digits.isascii() else digits
        if len(digits) > 4_000:
            raise NotComparable(f"{text[:40]!r}… is out of range")
    value = int(digits or "0")
    if text[0] == "-":
        value = -value
    if not least <= value <= most:
        raise NotComparable(f"{text[:40]} is out of range: {least} to {most}")
    return value


def parse_double(text: str) -> float:
    """Read a number as Double.valueOf does; raises NotComparable."""
    trimmed = text.strip(_BLANKS)
    number = trimmed[1:] if trimmed[:1] in ("-", "+") else trimmed
    is_negative = trimmed[:1] == "-"
    if number == "NaN":
        return float("nan")
    if number == "Infinity":
        value = float("inf")
    elif number[:2] in ("0x", "0X"):
        value = _hexadecimal(number)
    else:
        if number[-1:] in _SUFFIXES:
            number = number[:-1]
        if not is_decimal(number):
            raise NotComparable(f"{text[:40]!r} is not a number")
        value = float(number)
    return -value if is_negative else value


def is_decimal(text: str) -> bool:
    """Whether a text is digits with an optional point and exponent; ASCII only, no sign."""
    at, whole = _skip_digits(text, 0)
    fraction = 0
    if text[at : at + 1] == ".":
        at, fraction = _skip_digits(text, at + 1)
    if not whole and not fraction:
        return False
    if text[at : at + 1] in ("e", "E"):
        at += 1
        if text[at : at + 1] in ("-", "+"):
            at += 1
        at, exponent = _skip_digits(text, at)
        if not exponent:
            return False
    return at == len(text)


def _skip_digits(text: str, at: int, digits: frozenset[str] = _DIGITS) -> tuple[int, int]:
    start = at
    while at < len(text) and text[at] in digits:
        at += 1
    return at, at - start


def _hexadecimal(number: str) -> float:
    at, whole = _skip_digits(number, 2, _HEX_DIGITS)
    fraction = 0
    if number[at : at + 1] == ".":
        at, fraction = _skip_digits(number, at + 1, _HEX_DIGITS)
    is_sound = bool(whole or fraction) and number[at : at + 1] in ("p", "P")
    at += 1
    if number[at : at + 1] in ("-", "+"):
        at += 1
    at, exponent = _skip_digits(number, at)
    end = at
    if number[at : at + 1] in _SUFFIXES:
        at += 1
    if not is_sound or not exponent or at != len(number):
        raise NotComparable(f"{number[:40]!r} is not a number")
    try:
        return float.fromhex(number[:end])
    except OverflowError:
        return float("inf")


def compare_doubles(left: float, right: float) -> int:
    """Order two numbers as Double.compareTo does: NaN above all, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    if value != value:
        return 2
    if value == 0.0:
        return 0 if str(value)[0] == "-" else 1
    return 0


def compare(left: Value, right: Value) -> int:
    """Order two values that are not null, after RocketMQ's conversions; raises NotComparable.

    Kinds that have nothing in common count as left before right.
    """
    assert left is not None
    assert right is not None
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        left = read_as(left, right)
    elif isinstance(left, bool):
        if isinstance(right, str):
            raise NotComparable(f"the truth value {left} and the text {right[:40]!r} do not mix")
        return int(left) - int(right) if isinstance(right, bool) else -1
    elif isinstance(right, bool):
        return -1
    elif isinstance(right, str):
        right = read_as(right, left)
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def read_as(text: str, like: int | float) -> int | float:
    """Read a text as a number of the same kind as another; raises NotComparable."""
    if isinstance(like, float):
        return parse_double(text)
    return parse_long(text) if isinstance(like, Long) else parse_int(text)


def equal(left: Value, right: Value) -> bool | None:
    """Whether two values are equal, with RocketMQ's answers where one is null."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0


def order(left: Value, right: Value) -> int | None:
    """Order two values for <, <=, > and >=; None where one is null. Two texts must be numbers."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return compare_doubles(parse_double(left), parse_double(right))
    return compare(left, right)
