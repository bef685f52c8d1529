"""Makes SQL92 expressions, and says by itself what RocketMQ answers to them.

A tree is a tuple: its kind, then its parts. `render` writes it as text, with as many parentheses
as it needs and sometimes more; `answer` works it out by walking the tree, with Java's numbers read
by regular expressions and fractions. Nothing here is shared with skylark.filter.
"""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]


class Invalid(Exception):
    """The expression does not compile."""


class Fails(Exception):
    """The evaluation raises."""


NAMES = ("a", "b", "c", "TAGS", "_x", "$y", "aVeryLongPropertyName", "between1", "nulls")
TEXTS = ("", "x", "y", "TagA", "it''s", "TRUE", "true", "5", "5.0", "-3", "naïve ☃", "a b", "NULL")
WHOLES = ("0", "1", "5", "7", "9", "12L", "100l", "2147483647", "2147483648", "9223372036854775807")
NUMBERS = ("5.0", "1.5", ".5", "5.", "1e3", "1.5E-3", "7.0", "00.5", "1e308", "3.1415", "4.9e-324")
VALUES = (
    "0", "1", "5", "6", "7", "8", "9", "10", "-1", "-5", "+5", "5.0", "6.5", "1.5", "-3", "007",
    "1e3", ".5", "5.", " 5 ", "5 ", "\t7", "5d", "5F", "5L", "NaN", "-NaN", "Infinity",
    "-Infinity", "inf", "nan", "0x10", "0x1.8p1", "0x1p4f", "-0.0", "0.0", "-0", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "1e400", "1e-400", "1_000", "1,5", "٥", "５", "𝟓", "5e", "e5", ".",
    "-", "+", "--5", "+-5", "x", "y", "TagA", "it's", "true", "TRUE", "tRuE", "false", "FALSE",
    "null", "NULL", "a b", "naïve ☃", "0000000000000000000000005", "1.0000000000000002", "12",
    "100",
)  # fmt: skip
ORDERING = ("<", "<=", ">", ">=")


# Making.


def make_tree(rng: random.Random, depth: int, wants: str = "condition") -> Tree:
    """A tree of about this depth; mostly one that compiles."""
    if rng.random() < 0.03:
        wants = rng.choice(("condition", "operand", "number"))
    if wants == "number":
        return _number(rng)
    if wants == "operand":
        roll = rng.random()
        if roll < 0.55:
            return ("name", rng.choice(NAMES))
        if roll < 0.85:
            return _number(rng)
        if roll < 0.95:
            return ("text", rng.choice(TEXTS))
        return ("neg", ("name", rng.choice(NAMES)))
    if depth <= 0:
        return _leaf(rng)
    roll = rng.random()
    if roll < 0.3:
        return ("and", make_tree(rng, depth - 1), make_tree(rng, depth - 1))
    if roll < 0.6:
        return ("or", make_tree(rng, depth - 1), make_tree(rng, depth - 1))
    if roll < 0.72:
        return ("not", make_tree(rng, depth - 1))
    if roll < 0.78:
        return ("=", make_tree(rng, depth - 1), make_tree(rng, depth - 1))
    if roll < 0.82:
        return ("<>", make_tree(rng, depth - 1, "operand"), make_tree(rng, depth - 1))
    if roll < 0.85:
        return ("null", make_tree(rng, depth - 1), rng.random() < 0.5)
    return _leaf(rng)


def _number(rng: random.Random) -> Tree:
    leaf: Tree = (
        ("number", rng.choice(NUMBERS)) if rng.random() < 0.35 else ("whole", rng.choice(WHOLES))
    )
    roll = rng.random()
    if roll < 0.15:
        return ("neg", leaf)
    return ("pos", leaf) if roll < 0.2 else leaf


def _leaf(rng: random.Random) -> Tree:
    name: Tree = ("name", rng.choice(NAMES))
    roll = rng.random()
    if roll < 0.3:
        sides = [name, make_tree(rng, 0, rng.choice(("number", "number", "number", "operand")))]
        if rng.random() < 0.2:
            sides.reverse()
        return (rng.choice(ORDERING), *sides)
    if roll < 0.5:
        right = rng.choice(
            (
                ("text", rng.choice(TEXTS)),
                make_tree(rng, 0, "operand"),
                ("true",),
                ("false",),
                _number(rng),
            )
        )
        sides = [name, right]
        if rng.random() < 0.2:
            sides.reverse()
        return (rng.choice(("=", "=", "<>")), *sides)
    if roll < 0.62:
        bounds = [make_tree(rng, 0, "number"), make_tree(rng, 0, "number")]
        return ("between", name, *bounds, rng.random() < 0.3)
    if roll < 0.74:
        texts = tuple(rng.choice(TEXTS) for _ in range(rng.randint(1, 7)))
        return ("in", name, texts, rng.random() < 0.4)
    if roll < 0.88:
        return ("null", rng.choice((name, name, _number(rng))), rng.random() < 0.5)
    if roll < 0.93:
        return name
    return rng.choice((("true",), ("false",), ("nil",)))


def make_properties(rng: random.Random) -> dict[str, str]:
    """Some properties, many of them missing."""
    return {name: rng.choice(VALUES) for name in NAMES if rng.random() < 0.55}


def make_soup(rng: random.Random) -> str:
    """Words in any order: mostly nonsense, sometimes by chance an expression."""
    words = (
        *NAMES, *WHOLES, *NUMBERS, "'x'", "'it''s'", "=", "<>", "<", "<=", ">", ">=", "(", ")",
        ",", "+", "-", "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS",
        "LIKE", "CONTAINS", "!=", "==", "&&", '"x"', "'open", "-- note\n", "/* note */",
        "/* open", "#", ".", "\t", "ä", "a.b", "0L", "5x", "1.5f", "%",
    )  # fmt: skip
    start = rng.choice(
        ("a = 1", "a IN ('x')", "a", "(a > 5", "a IS NULL", "TRUE", "b BETWEEN 1 AND 2", "")
    )
    count = rng.randint(1, 5)
    return " ".join((start, *(rng.choice(words) for _ in range(count)))).strip()


# Writing.

_LEVELS = {
    "or": 1,
    "and": 2,
    "=": 3,
    "<>": 3,
    "null": 3,
    "between": 4,
    "in": 4,
    "neg": 5,
    "pos": 5,
    "not": 5,
}


def render(tree: Tree, rng: random.Random, level: int = 0) -> str:
    """The text of a tree where a part of at least this level may stand."""
    kind = tree[0]
    own = 4 if kind in ORDERING else _LEVELS.get(kind, 6)
    text = _render(tree, rng, own)
    return f"({text})" if own < level or rng.random() < 0.08 else text


def _render(tree: Tree, rng: random.Random, own: int) -> str:
    def word(text: str) -> str:
        cased = rng.choice((text, text, text.lower(), text.title()))
        gap = rng.choice(("", "", "", " ", "\n", "/* * note ** */", "-- note\r\n"))
        return f" {cased} {gap}"

    kind = tree[0]
    if kind in ("and", "or"):
        return render(tree[1], rng, own) + word(kind.upper()) + render(tree[2], rng, own + 1)
    if kind in ("=", "<>") or kind in ORDERING:
        gap = rng.choice(("", " "))
        return f"{render(tree[1], rng, own)}{gap}{kind}{gap}{render(tree[2], rng, own + 1)}"
    if kind == "null":
        negated = word("NOT") if tree[2] else ""
        return render(tree[1], rng, own) + word("IS") + negated + word("NULL")
    if kind == "between":
        negated = word("NOT") if tree[4] else ""
        bounds = render(tree[2], rng, 5) + word("AND") + render(tree[3], rng, 5)
        return render(tree[1], rng, own) + negated + word("BETWEEN") + bounds
    if kind == "in":
        negated = word("NOT") if tree[3] else ""
        return (
            render(tree[1], rng, own)
            + negated
            + word("IN")
            + f"({', '.join(map(_quoted, tree[2]))})"
        )
    if kind == "not":
        return word("NOT") + render(tree[1], rng, 5)
    if kind in ("neg", "pos"):
        # Two signs in a row could begin a comment.
        return ("- " if kind == "neg" else "+ ") + render(tree[1], rng, 5)
    if kind == "text":
        return _quoted(tree[1])
    return {"true": "TRUE", "false": "FALSE", "nil": "NULL"}.get(kind) or str(tree[1])


def _quoted(text: str) -> str:
    return f"'{text}'"  # Quotes within are doubled in the tables above.


# Working out.

_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEX = re.compile(r"([+-]?)0[xX]([0-9a-fA-F]*)\.?([0-9a-fA-F]*)[pP]([+-]?\d+)[fFdD]?", re.ASCII)


def answer(tree: Tree, properties: dict[str, str]) -> str:
    """What RocketMQ says: invalid, error, true, false or null."""
    try:
        check(tree)
        if not is_condition(tree) and tree[0] != "name":
            raise Invalid
        found = value_of(("bare", tree) if tree[0] == "name" else tree, properties)
    except Invalid:
        return "invalid"
    except Fails:
        return "error"
    return {None: "null", ("bool", True): "true", ("bool", False): "false"}[found]


def is_condition(tree: Tree) -> bool:
    """Whether it may stand where a condition is asked for, properties aside."""
    return tree[0] not in ("name", "text", "whole", "number", "neg") and (
        tree[0] != "pos" or is_condition(tree[1])
    )


def _plain(tree: Tree) -> Tree:
    return _plain(tree[1]) if tree[0] == "pos" else tree


def check(tree: Tree) -> None:
    """Raise Invalid where RocketMQ refuses to compile."""
    kind = tree[0]
    if kind == "whole" and int(tree[1].rstrip("lL")) >= 2**63:
        raise Invalid
    if (
        kind == "number"
        and not 0 < Fraction(tree[1] if tree[1][-1] != "." else tree[1][:-1]) < 2**1024
    ):
        raise Invalid
    parts = [part for part in tree[1:] if isinstance(part, tuple) and kind != "in"]
    for part in [tree[1]] if kind == "in" else parts:
        check(part)
    parts = [_plain(part) for part in parts]
    if kind in ("and", "or", "not"):
        if any(not is_condition(part) and part[0] != "name" for part in parts):
            raise Invalid
    elif kind in ORDERING:
        if any(part[0] == "text" or is_condition(part) for part in parts):
            raise Invalid
    elif kind == "between":
        check((">=", tree[1], tree[2]))
        check(("<=", tree[1], tree[3]))
        low, high = parts[1], parts[2]
        is_fixed = not {"neg", "name"} & {low[0], high[0]}
        if not tree[4] and is_fixed and _compare(value_of(high, {}), value_of(low, {})) < 0:
            raise Invalid
    elif kind in ("=", "<>"):
        truths = ("true", "false")
        if any(part[0] == "nil" for part in parts):
            raise Invalid
        if parts[0][0] in truths and parts[1][0] in ("text", "whole", "number"):
            raise Invalid
    elif kind == "in" and _plain(tree[1])[0] != "name":
        raise Invalid


def value_of(tree: Tree, properties: dict[str, str]) -> Any:
    """None, or a pair of a kind and a value."""
    kind = tree[0]
    if kind in ("true", "false"):
        return "bool", kind == "true"
    if kind == "nil":
        return None
    if kind == "text":
        return "text", tree[1].replace("''", "'")
    if kind == "whole":
        number = int(tree[1].rstrip("lL"))
        return ("int" if number < 2**31 else "long"), Fraction(number)
    if kind == "number":
        return "double", float(tree[1])
    if kind == "name":
        return ("text", properties[tree[1]]) if tree[1] in properties else None
    if kind == "pos":
        return value_of(tree[1], properties)
    if kind == "bare":
        return None if value_of(tree[1], properties) is None else ("bool", False)
    if kind == "neg":
        found = value_of(tree[1], properties)
        return (found[0], -found[1]) if found and found[0] in ("int", "long", "double") else None
    if kind == "not":
        found = _truth(tree[1], properties)
        return None if found is None else ("bool", not found)
    if kind in ("and", "or"):
        return _logic(tree, properties)
    if kind == "null":
        return "bool", (value_of(tree[1], properties) is None) != tree[2]
    if kind == "in":
        found = value_of(tree[1], properties)
        texts = [text.replace("''", "'") for text in tree[2]]
        return None if found is None else ("bool", (found[1] in texts) != tree[3])
    if kind == "between":
        first, second, join = ("<", ">", "or") if tree[4] else (">=", "<=", "and")
        return value_of((join, (first, tree[1], tree[2]), (second, tree[1], tree[3])), properties)
    if kind in ORDERING:
        return _ordered(tree, properties)
    if kind == "<>":
        found = value_of(("=", tree[1], tree[2]), properties)
        return None if found is None else ("bool", not found[1])
    assert kind == "="
    left, right = value_of(tree[1], properties), value_of(tree[2], properties)
    if left is None:
        return ("bool", True) if right is None else None
    return "bool", right is not None and (left == right or _compare(left, right) == 0)


def _truth(tree: Tree, properties: dict[str, str]) -> bool | None:
    found = value_of(("bare", tree) if _plain(tree)[0] == "name" else tree, properties)
    return None if found is None else found[1]


def _logic(tree: Tree, properties: dict[str, str]) -> Any:
    decides = tree[0] == "or"
    left = _truth(tree[1], properties)
    if left is decides:
        return "bool", decides
    right = _truth(tree[2], properties)
    if right is decides:
        return "bool", decides
    return None if left is None or right is None else ("bool", not decides)


def _ordered(tree: Tree, properties: dict[str, str]) -> Any:
    left = value_of(tree[1], properties)
    right = None if left is None else value_of(tree[2], properties)
    if left is None or right is None:
        return None
    if left[0] == right[0] == "text":
        left, right = ("double", _double(left[1])), ("double", _double(right[1]))
    sign = _compare(left, right)
    return "bool", {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[tree[0]]


def _compare(left: Any, right: Any) -> int:
    kinds = left[0], right[0]
    if kinds == ("bool", "text"):
        raise Fails
    if kinds == ("text", "bool"):
        left = "bool", left[1].casefold() == "true"
    elif kinds[0] == "text" != kinds[1]:
        left = right[0], _read(left[1], right[0])
    elif kinds[1] == "text" != kinds[0]:
        right = left[0], _read(right[1], left[0])
    elif "bool" in kinds and kinds != ("bool", "bool"):
        return -1
    if "double" in (left[0], right[0]):
        keys = [_rank(float(side[1])) for side in (left, right)]
    else:
        keys = [left[1], right[1]]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def _rank(number: float) -> tuple[int, float, int]:
    """Java's order of doubles as a key: NaN last, minus zero before zero."""
    if number != number:
        return 1, 0.0, 0
    return 0, number, 0 if str(number).startswith("-0.0") else 1 if number == 0 else 0


def _read(text: str, kind: str) -> Any:
    if kind == "double":
        return _double(text)
    bits = 31 if kind == "int" else 63
    # \d takes any script's digits; Java sees those beyond 16 bits as two halves, and refuses.
    if not re.fullmatch(r"[+-]?\d+", text) or any(ord(one) > 0xFFFF for one in text):
        raise Fails
    number = int(text)
    if not -(2**bits) <= number < 2**bits:
        raise Fails
    return Fraction(number)


def _double(text: str) -> float:
    text = re.sub(r"\A[\x00-\x20]+|[\x00-\x20]+\Z", "", text)
    if found := _HEX.fullmatch(text):
        sign, whole, fraction, exponent = found.groups()
        if not whole + fraction:
            raise Fails
        number = Fraction(int(whole + fraction, 16), 16 ** len(fraction)) * Fraction(2) ** int(
            exponent
        )
        return float(number) * (-1 if sign == "-" else 1)
    if not _DOUBLE.fullmatch(text):
        raise Fails
    if text[-1] in "fFdD":
        text = text[:-1]
    return float(text)
