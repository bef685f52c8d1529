"""Explanations say what the broker says, and name the part that it comes from."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from skylark.cli.main import main
from skylark.errors import InvalidExpression
from skylark.filter import SqlExpression
from skylark.filter.explain import explain, marked

sys.path.insert(0, str(Path(__file__).parents[2] / "property"))

from sql_cases import answer, make_properties, make_tree, render

WORDS = {"true": "true", "false": "false", "null": "unknown", "error": "failed"}


def test_an_explanation_never_says_something_else_than_the_evaluator() -> None:
    for number in range(1_000):
        rng = random.Random(f"explain/{number}")
        tree, properties = make_tree(rng, 3), make_properties(rng)
        wanted = answer(tree, properties)
        if wanted == "invalid":
            continue
        expression = SqlExpression(render(tree, rng))
        said = explain(expression, properties)
        assert said.outcome == WORDS[wanted], (number, expression)
        assert said.matches is expression.matches(properties)
        assert said.decided_by == expression.text[said.start : said.end]
        assert said.because


@pytest.mark.parametrize(
    ("text", "properties", "part", "because"),
    [
        ("a > 5 AND b > 5", {"a": "9", "b": "1"}, "b > 5", "b > 5 is false: b is '1'"),
        ("a > 5 OR b > 5", {"a": "1", "b": "9"}, "b > 5", "b > 5 is true: b is '9'"),
        ("a > 5", {}, "a > 5", "a > 5 is unknown: the message has no property a"),
        ("a = b", {"b": "x"}, "a = b",
         "a = b is unknown: the message has no property a and b is 'x'"),
        ("NOT (a = '1')", {"a": "1"}, "a = '1'",
         "a = '1' is true: a is '1', and NOT turns it around"),
        ("a", {"a": "1"}, "a", "a is false: a is a text, and a text by itself is never true"),
        ("a <> 'x'", {"a": "x"}, "a <> 'x'", "a <> 'x' is false: a is 'x'"),
        ("x IS NULL AND a BETWEEN 5 AND 7", {"a": "8"}, "a BETWEEN 5 AND 7",
         "a BETWEEN 5 AND 7 is false: a is '8'"),
        ("a = 1 AND b = 2", {"a": "1", "b": "2"}, "a = 1 AND b = 2",
         "all 2 conditions of AND are true: a = 1 is true: a is '1'; b = 2 is true: b is '2'"),
        ("TRUE", {}, "TRUE", "TRUE is true"),
    ],
)  # fmt: skip
def test_the_part_that_decides_is_named_with_its_reason(
    text: str, properties: dict[str, str], part: str, because: str
) -> None:
    said = explain(SqlExpression(text), properties)
    assert (said.decided_by, said.because) == (part, because)


def test_a_comparison_that_fails_says_what_to_write_instead() -> None:
    said = explain(SqlExpression("a > 5 OR b = 'x'"), {"a": "6.5", "b": "x"})
    assert said.decided_by == "a > 5"
    assert said.because == (
        "a > 5 cannot be worked out: '6.5' is not a whole number, and 5 asks for a whole number "
        "of 32 bits (write 5.0 to compare any number); the message does not match, whatever else "
        "is true"
    )


def test_a_mark_stands_under_the_position() -> None:
    assert marked("a > > 5", 4) == "a > > 5\n    ^"
    assert marked("a > 5\nAND b >", 13) == "AND b >\n       ^"
    assert marked("a > 5 AND b", 0, 5) == "a > 5 AND b\n^^^^^"
    long = marked("a = 1 OR " * 30 + "b > 'x'", 274)
    line, mark = long.split("\n")
    assert line[mark.index("^") :] == "'x'"
    assert len(line) < 100


def test_the_command_says_it_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["message", "explain-filter", "a > 5 AND b IS NULL", "-p", "a=7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("matches: all 2 conditions of AND are true")
    assert main(["message", "explain-filter", "a > 5", "-p", "a=1"]) == 0
    assert capsys.readouterr().out == ("does not match: a > 5 is false: a is '1'\n\na > 5\n^^^^^\n")
    assert main(["message", "explain-filter", "a > 0 LIKE 'x'", "-p", "a=1"]) == 0
    assert "has no effect" in capsys.readouterr().out


def test_the_command_marks_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["message", "explain-filter", 'a = "x"']) == 2
    assert capsys.readouterr().err == (
        "skylark message explain-filter: the expression has '\"' at position 5, which means "
        'nothing; texts stand in single quotes\na = "x"\n    ^\n'
    )


def test_the_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["message", "explain-filter", "--json", "a > 5", "-p", "a=7"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["matches"], said["result"], said["decided_by"]) == (True, "true", "a > 5")
    assert main(["message", "explain-filter", "--json", "a > > 5"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["valid"], said["position"]) == (False, 5)


def test_the_command_knows_tags_and_hashes_that_collide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["message", "explain-filter", "--tags", "Aa || C", "-p", "TAGS=BB", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["matches"], said["passes_broker"]) == (False, True)
    assert "hashes like 'Aa'" in said["because"]


def test_a_property_without_a_value_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["message", "explain-filter", "a > 5", "-p", "a"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err


def test_a_terminal_is_not_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["message", "explain-filter", "a = 'x'", "-p", "a=\x1b[2J"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    with pytest.raises(InvalidExpression):
        SqlExpression("\x1b")
