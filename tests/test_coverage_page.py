"""docs/coverage.md: every row is there, and every test that it names exists."""

import ast
import functools
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "coverage.md").read_text()
ROWS = {
    "CR": 20,
    "BR": 18,
    "PR": 42,
    "FC": 10,
    "CF": 16,
    "AP": 20,
    "ST": 49,
    "QU": 10,
    "NS": 29,
    "RM": 23,
    "CO": 46,
    "RB": 20,
    "OR": 8,
    "RE": 27,
    "TX": 21,
    "SC": 14,
    "HA": 11,
    "FI": 16,
    "PL": 6,
}
MARKS = {"tested by", "measured by", "in part; the rest later", "note only"}

_ROW = re.compile(r"^\| ([A-Z]{2})-(\d\d) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
_REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


@functools.cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("area", ROWS)
def test_every_row_has_its_line(area: str) -> None:
    found = [int(number) for name, number, *_ in _ROW.findall(PAGE) if name == area]
    assert found == list(range(1, ROWS[area] + 1))


def test_every_mark_is_one_of_those_explained() -> None:
    assert {mark for *_, mark, _ in _ROW.findall(PAGE)} <= MARKS
    assert all(f"| {mark} |" in PAGE for mark in MARKS)


def test_every_row_that_says_tested_names_a_test() -> None:
    bare = [
        f"{area}-{number}"
        for area, number, _, mark, shown in _ROW.findall(PAGE)
        if mark == "tested by" and not _REFERENCE.search(shown)
    ]
    assert bare == []


def test_every_test_that_is_named_exists() -> None:
    references = set(_REFERENCE.findall(PAGE))
    assert len(references) > 60
    missing = sorted(
        f"{path}::{name}"
        for path, name in references
        if not (TESTS / path).exists() or name not in names_in(path)
    )
    assert missing == []
