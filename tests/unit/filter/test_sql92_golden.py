"""Apache's evaluator as judge: what it said to thousands of expressions, recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import InvalidExpression
from skylark.filter import SqlExpression
from skylark.filter.bloom import BloomFilter
from skylark.filter.java_values import NotComparable

FILE = Path(__file__).parents[2] / "golden" / "captured" / "sql92-4.9.8.jsonl"


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def _said(expression: SqlExpression, properties: dict[str, str]) -> str:
    try:
        return {True: "true", False: "false", None: "null"}[expression.evaluate(properties)]
    except NotComparable:
        return "error"


def test_every_recorded_answer_is_ours_too(rows: list[Any]) -> None:
    count = 0
    differences = []
    for text, *cases in (row for row in rows if isinstance(row, list)):
        try:
            expression = SqlExpression(text)
        except InvalidExpression as error:
            count += 1
            if cases != ["invalid"]:
                differences.append(f"{text!r}: we refuse it: {error}")
            continue
        if cases == ["invalid"]:
            differences.append(f"{text!r}: Apache refuses it")
            continue
        for properties, wanted in cases:
            count += 1
            found = _said(expression, properties)
            if found != wanted:
                differences.append(f"{text!r} {properties}: {found}, Apache says {wanted}")
    assert not differences, "\n".join(differences[:20])
    assert count >= 8_000


def test_the_record_has_each_kind_of_answer(rows: list[Any]) -> None:
    kinds: dict[str, int] = {}
    for _, *cases in (row for row in rows if isinstance(row, list)):
        for case in cases:
            kind = case if case == "invalid" else case[1]
            kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds.keys() == {"true", "false", "null", "error", "invalid"}
    assert min(kinds.values()) >= 500


def test_bits_and_positions_of_the_bloom_filter_are_apaches(rows: list[Any]) -> None:
    blooms = [row for row in rows if isinstance(row, dict)]
    assert len(blooms) == 30
    for bloom in blooms:
        made = BloomFilter(error_percent=bloom["f"], expected_count=bloom["n"])
        assert (made.hash_count, made.bit_count) == (bloom["k"], bloom["m"])
        assert list(made.positions(bloom["names"][0])) == bloom["first"]
        bits = bytearray(made.bit_count // 8)
        for name in bloom["names"]:
            made.set_bits(bits, made.positions(name))
        assert bits.hex() == bloom["bits"]
        assert all(made.has_bits(bits, made.positions(name)) for name in bloom["names"])
