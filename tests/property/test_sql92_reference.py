"""SQL92 against a second evaluator, on expressions that are made anew for every seed."""

from __future__ import annotations

import os
import random

from sql_cases import answer, make_properties, make_soup, make_tree, render

from skylark.errors import InvalidExpression
from skylark.filter import SqlExpression
from skylark.filter.java_values import NotComparable

SEED = int(os.environ.get("SKYLARK_SEED", "20261115"))
COUNT = int(os.environ.get("SKYLARK_SQL_EXPRESSIONS", "5000"))


def _said(text: str, properties: dict[str, str]) -> str:
    try:
        expression = SqlExpression(text)
        return {True: "true", False: "false", None: "null"}[expression.evaluate(properties)]
    except InvalidExpression:
        return "invalid"
    except NotComparable:
        return "error"


def test_five_thousand_expressions_mean_the_same_to_both() -> None:
    seen: dict[str, int] = {}
    for number in range(COUNT):
        rng = random.Random(f"{SEED}/{number}")
        tree = make_tree(rng, rng.randint(0, 4))
        text = render(tree, rng)
        for _ in range(2):
            properties = make_properties(rng)
            wanted = answer(tree, properties)
            assert _said(text, properties) == wanted, (SEED, number, text, properties, tree)
            seen[wanted] = seen.get(wanted, 0) + 1
    assert seen.keys() == {"true", "false", "null", "error", "invalid"}


def test_matching_is_nothing_but_the_answer_true() -> None:
    rng = random.Random(SEED)
    for _ in range(300):
        tree = make_tree(rng, 2)
        properties = make_properties(rng)
        wanted = answer(tree, properties)
        if wanted != "invalid":
            expression = SqlExpression(render(tree, rng))
            assert expression.matches(properties) is (wanted == "true")


def test_words_in_any_order_are_taken_or_refused_and_never_more() -> None:
    for number in range(2_000):
        rng = random.Random(f"soup/{SEED}/{number}")
        assert _said(make_soup(rng), make_properties(rng)) in (
            "true", "false", "null", "error", "invalid",
        )  # fmt: skip


def test_what_is_behind_the_expression_is_shown_and_has_no_effect() -> None:
    for number in range(300):
        rng = random.Random(f"rest/{SEED}/{number}")
        tree = make_tree(rng, 1)
        properties = make_properties(rng)
        wanted = answer(tree, properties)
        if wanted == "invalid":
            continue
        text = f"({render(tree, rng)})"
        expression = SqlExpression(f"{text} garbage behind it")
        assert expression.ignored == "garbage behind it"
        assert _said(expression.text, properties) == wanted
