"""BodySchema: the text of the option bodySchema, as Spark itself writes the type.

Spark's own parser is in its JVM, and a source is made in a Python process that has none. So what
is wrong with the text is said here, by the name of the option; the type itself is Spark's to make.
"""

from __future__ import annotations

import re
from typing import NoReturn

# Types of JSON's values as bodySchema may name them → as Spark writes them.
SCALARS: dict[str, str] = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_DECIMALS = ("decimal", "dec", "numeric")
_DECIMAL_DIGITS_MAX = 38
_CHARS = ("char", "character", "varchar")  # Spark makes strings of them.
_TOKEN = re.compile(
    r"""\s*(`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[<>(),:])\s*""",
    re.ASCII | re.DOTALL,
)
_END = ""


class BodySchema:
    """The text of bodySchema, read from left to right; raises ValueError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._begins: list[int] = []  # Where in the text each token begins.
        self._instants: list[int] = []  # The tokens that stand for the type `timestamp`.
        self._at = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text[at : at + 20]!r} is not understood")
            self._tokens.append(found[1])
            self._begins.append(found.start(1))
            at = found.end()
        self._tokens.append(_END)

    def columns(self) -> str:
        """All of it, as Spark writes a struct."""
        found = self._fields()
        self._expect(_END)
        return found

    def in_sql(self) -> str:
        """The same text, with the one type named fully that a setting of Spark's may change."""
        self.columns()
        text = self._text
        for number in reversed(self._instants):
            begin = self._begins[number]
            text = f"{text[:begin]}timestamp_ltz{text[begin + len('timestamp') :]}"
        return text

    def _fields(self) -> str:
        found: dict[str, str] = {}
        while True:
            name = self._name()
            if name in found:
                raise ValueError(f"{name} is there twice")
            self._skip(":")
            found[name] = self._kind()
            if self._skip("not"):
                self._expect("null")
            if self._skip("comment") and self._take()[:1] not in ("'", '"'):
                raise ValueError("a comment stands in quotes")
            if not self._skip(","):
                return ",".join(f"{name}:{kind}" for name, kind in found.items())

    def _name(self) -> str:
        token = self._take()
        if token[:1] == "`":
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            self._refuse(token, "a name")
        return token

    def _kind(self) -> str:
        word = self._take()
        kind = word.lower()
        if kind == "timestamp":
            self._instants.append(self._at - 1)
        if kind in SCALARS:
            return SCALARS[kind]
        if kind in _DECIMALS:
            return self._decimal()
        if kind in _CHARS:
            self._numbers()
            return "string"
        if kind not in ("array", "map", "struct"):
            self._refuse(word, "a type")
        self._expect("<")
        inner = {"array": self._kind, "map": self._pair, "struct": self._fields}[kind]()
        self._expect(">")
        return f"{kind}<{inner}>"

    def _pair(self) -> str:
        if self._kind() != "string":
            raise ValueError("the names in a JSON object are strings, so the keys of a map are")
        self._expect(",")
        return f"string,{self._kind()}"

    def _decimal(self) -> str:
        numbers = self._numbers() if self._next() == "(" else [10]
        precision, scale = (*numbers, 0)[:2]
        if len(numbers) > 2 or not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX or not precision:
            raise ValueError(f"a decimal has 1 to {_DECIMAL_DIGITS_MAX} digits, some after a point")
        return f"decimal({precision},{scale})"

    def _numbers(self) -> list[int]:
        found = []
        self._expect("(")
        while True:
            token = self._take()
            if not token.isdecimal():
                self._refuse(token, "a number")
            found.append(int(token))
            if not self._skip(","):
                self._expect(")")
                return found

    def _next(self) -> str:
        return self._tokens[self._at].lower()

    def _take(self) -> str:
        token = self._tokens[self._at]
        self._at += token != _END  # There it stays.
        return token

    def _skip(self, word: str) -> bool:
        if self._next() != word:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            self._refuse(self._tokens[self._at], repr(word) if word else "the end or ','")

    def _refuse(self, token: str, expected: str) -> NoReturn:
        raise ValueError(f"{repr(token[:80]) if token else 'the end'} is not {expected}")
