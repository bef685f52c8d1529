"""Expressions made to hurt: all are refused, or cost no more than a long one."""

from __future__ import annotations

import pickle
import time

import pytest

from skylark.errors import InvalidExpression
from skylark.filter import SqlExpression
from skylark.filter.sql_parser import DEPTH_MAX, EXPRESSION_CHARS_MAX, PARTS_MAX

HOSTILE = {
    "nested parentheses": "(" * 100_000 + "a" + ")" * 100_000,
    "nested parentheses that fit": "(" * 2_000 + "a" + ")" * 2_000,
    "a chain of OR": " OR ".join(["a = 1"] * 100_000),
    "a chain of OR that fits": "a" + " OR a" * 1_000,
    "a literal of a mebibyte": "a = '" + "x" * (1 << 20) + "'",
    "a list of 100,000": "a IN (" + ",".join(["'x'"] * 100_000) + ")",
    "a list that fits": "a IN (" + ",".join(["'x'"] * 1_020) + ")",
    "a chain of NOT": "NOT " * 1_000 + "a",
    "a chain of signs": "a = " + "-" * 1 + " -" * 2_000 + "1",
    "a chain of equals": "a" + " = TRUE" * 500,
    "a number without end": "a = " + "9" * 4_000,
    "an exponent without end": "a = 1e" + "9" * 4_000,
    "quotes without end": "a = " + "'" * 4_001,
    "a comment without end": "/*" + "*" * 4_000,
    "comments without end": "/**/" * 1_000 + "/",
    "nothing but spaces": " " * 4_000,
    "null bytes": "a = 1\x00",
    "a lone surrogate": "a = \ud800",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_expressions_are_refused_at_once(kind: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InvalidExpression) as refusal:
        SqlExpression(HOSTILE[kind])
    assert time.perf_counter() - start < 0.2
    assert len(str(refusal.value)) < 400


def test_the_largest_expressions_allowed_are_worked_out_quickly() -> None:
    widest = "a = 'x'" + " OR a = 'x'" * 300
    deepest = "(" * (DEPTH_MAX - 1) + "a = 'x'" + ")" * (DEPTH_MAX - 1)
    longest = "a = '" + "y" * (EXPRESSION_CHARS_MAX - 6) + "'"
    for text in (widest, deepest, longest):
        expression = SqlExpression(text)
        assert expression.part_count <= PARTS_MAX
        start = time.perf_counter()
        for _ in range(10):
            assert not expression.matches({"a": "z"})
        assert time.perf_counter() - start < 0.1


@pytest.mark.parametrize(
    "value",
    ["9" * 30_000, "-" + "9" * 30_000, "0" * 30_000, "." * 30_000, "1e" + "9" * 30_000,
     " " * 30_000,
     "0x" + "f" * 30_000 + "p1", "(a+)+$" * 5_000, "٥" * 10_000, "1" + "0" * 400, "\x00"],
)  # fmt: skip
def test_hostile_values_take_no_time(value: str) -> None:
    expression = SqlExpression("a > 5 OR b > 5.5 OR c > 2147483648 OR a < b")
    start = time.perf_counter()
    for name in "abc":
        expression.matches({name: value})
    expression.matches({"a": value, "b": value})
    assert time.perf_counter() - start < 0.1


def test_an_error_keeps_its_position_over_a_process_boundary() -> None:
    with pytest.raises(InvalidExpression) as refusal:
        SqlExpression("a > > 5")
    copy = pickle.loads(pickle.dumps(refusal.value))
    assert (copy.position, str(copy)) == (4, str(refusal.value))
    assert str(refusal.value) == (
        "expression 'a > > 5' has '>' at position 5, where a property, a number, a text, TRUE, "
        "FALSE, NULL or ( is expected"
    )


def test_the_names_that_an_expression_asks_for_are_known() -> None:
    expression = SqlExpression("a > 5 AND b IN ('x') OR NOT (c IS NULL)")
    assert expression.names == {"a", "b", "c"}
    assert expression.ignored == ""
    assert repr(expression) == "SqlExpression(\"a > 5 AND b IN ('x') OR NOT (c IS NULL)\")"
