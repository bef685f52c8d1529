"""The words of an SQL92 expression, read one at a time.

    word          form
    NOT AND …     the nine reserved words, in any case
    whole         0, or digits without a leading 0, then l or L if wished: 5, 12L (but 0L is two)
    number        with a point, an exponent, or both: 5. .5 5e10 1.5E-3
    text          in single quotes; two of them stand for one
    name          a letter, _ or $, then these and digits
    sign          = <> < <= > >= ( ) , + -
    passed over   blanks, /* … */, and -- to the end of a line that has one

The longest form wins. The parser asks for a word when it needs it, and never for more than one
beyond the last that it uses: what comes later is not looked at, sound or not, as in RocketMQ.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from ..errors import InvalidExpression


class Kind(Enum):
    """What a word is."""

    END = auto()
    RESERVED = auto()
    WHOLE = auto()
    NUMBER = auto()
    TEXT = auto()
    NAME = auto()
    SIGN = auto()


class Token(NamedTuple):
    """One word, and where it stands."""

    kind: Kind
    text: str  # Reserved words in upper case, texts without their quotes, all else as written.
    start: int
    end: int


RESERVED: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
)
_BLANKS: Final = frozenset(" \t\n\r\f")
_DIGITS: Final = frozenset("0123456789")
_NAME_START: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_$")
_NAME_REST: Final = _NAME_START | _DIGITS
_SIGNS: Final = frozenset("=<>(),+-")
_LONG_SIGNS: Final = frozenset(("<>", "<=", ">="))


class Tokens:
    """The words of one expression; InvalidExpression where there is none to be made out."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> Token:
        """Read the next word; END for ever after the last."""
        text = self._text
        start = self._at = self._skip(self._at)
        if start >= len(text):
            return Token(Kind.END, "", start, start)
        first = text[start]
        if first in _NAME_START:
            return self._name(start)
        if first in _DIGITS or first == ".":
            return self._number(start)
        if first == "'":
            return self._quoted(start)
        if first in _SIGNS:
            length = 2 if text[start : start + 2] in _LONG_SIGNS else 1
            return self._taken(Kind.SIGN, start, start + length)
        hint = "; texts stand in single quotes" if first == '"' else ""
        raise InvalidExpression(
            text, f"has {first!r} at position {start + 1}, which means nothing{hint}", start
        )

    def _taken(self, kind: Kind, start: int, end: int) -> Token:
        self._at = end
        return Token(kind, self._text[start:end], start, end)

    def _skip(self, at: int) -> int:
        text, size = self._text, len(self._text)
        while at < size:
            if text[at] in _BLANKS:
                at += 1
            elif text.startswith("--", at):
                ends = [end for mark in "\n\r" if (end := text.find(mark, at)) >= 0]
                if not ends:
                    return at  # Not a comment: two signs.
                at = min(ends) + 1
            elif text.startswith("/*", at):
                end = text.find("*/", at + 2)
                if end < 0:
                    raise InvalidExpression(
                        text, f"has a comment at position {at + 1} that does not end", at
                    )
                at = end + 2
            else:
                break
        return at

    def _name(self, start: int) -> Token:
        text, end = self._text, start + 1
        while end < len(text) and text[end] in _NAME_REST:
            end += 1
        word = self._taken(Kind.NAME, start, end)
        upper = word.text.upper()
        if upper in RESERVED:
            return Token(Kind.RESERVED, upper, start, end)
        return word

    def _number(self, start: int) -> Token:
        text = self._text
        whole_end = self._digits(start)
        end = whole_end
        has_point = text[end : end + 1] == "."
        if has_point:
            end = self._digits(end + 1)
            if whole_end == start and end == start + 1:
                raise InvalidExpression(
                    text, f"has a point at position {start + 1} without a digit", start
                )
        exponent_end = self._exponent(end)
        if has_point or exponent_end > end:
            return self._taken(Kind.NUMBER, start, exponent_end)
        if text[start] == "0":
            return self._taken(Kind.WHOLE, start, start + 1)
        if text[whole_end : whole_end + 1] in ("l", "L"):
            whole_end += 1
        return self._taken(Kind.WHOLE, start, whole_end)

    def _digits(self, at: int) -> int:
        text = self._text
        while at < len(text) and text[at] in _DIGITS:
            at += 1
        return at

    def _exponent(self, at: int) -> int:
        """Where an exponent that begins here ends; the same place if there is none."""
        text = self._text
        if text[at : at + 1] not in ("e", "E"):
            return at
        digits_at = at + 1
        if text[digits_at : digits_at + 1] in ("+", "-"):
            digits_at += 1
        end = self._digits(digits_at)
        return end if end > digits_at else at

    def _quoted(self, start: int) -> Token:
        text = self._text
        end = start
        while True:
            end = text.find("'", end + 1)
            if end < 0:
                raise InvalidExpression(
                    text, f"has a quote at position {start + 1} that is not closed", start
                )
            if text[end + 1 : end + 2] != "'":
                break
            end += 1
        self._at = end + 1
        return Token(Kind.TEXT, text[start + 1 : end].replace("''", "'"), start, end + 1)
