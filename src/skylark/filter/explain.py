"""Why a message matches an expression, or does not: which part decided, in words.

The parts are asked in the order in which a broker asks them, each by the very function that the
broker runs, so that an explanation cannot say something else than the broker does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from . import sql_nodes as nodes
from .java_values import Long, NotComparable, Value
from .sql92 import SqlExpression
from .sql_nodes import Node, Properties

_VALUE_CHARS_MAX = 60


class Outcome(StrEnum):
    """What became of a part."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to one expression for one message."""

    outcome: Outcome
    # The part that decided, and where it stands in the text.
    decided_by: str
    start: int
    end: int
    because: str

    @property
    def matches(self) -> bool:
        """Whether the message is delivered."""
        return self.outcome is Outcome.TRUE


def explain(expression: SqlExpression, properties: Properties) -> Explanation:
    """Say which part of an expression decides about a message, and why."""
    explainer = _Explainer(expression.text, properties)
    node, because = explainer.decisive(expression.root)
    return Explanation(
        explainer.outcome(expression.root),
        expression.text[node.start : node.end],
        node.start,
        node.end,
        because,
    )


def marked(text: str, start: int, end: int | None = None) -> str:
    """The line of a text that has a position, and under it a mark; for people to look at."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : len(text) if line_end < 0 else line_end].expandtabs(1)
    at = start - line_start
    length = max(1, min((start + 1 if end is None else end) - start, len(line) - at))
    if at > 60:  # A long line is shown around its mark.
        line, at = "…" + line[at - 40 :], 41
    return f"{line[:100]}\n{' ' * at}{'^' * min(length, max(1, 100 - at))}"


class _Explainer:
    def __init__(self, text: str, properties: Properties) -> None:
        self._text = text
        self._properties = properties

    def outcome(self, node: Node) -> Outcome:
        """What a condition comes to."""
        try:
            value = node.compiled()(self._properties)
        except NotComparable:
            return Outcome.FAILED
        if value is None:
            return Outcome.UNKNOWN
        return Outcome.TRUE if value is True else Outcome.FALSE

    def decisive(self, node: Node) -> tuple[Node, str]:
        """The part that a condition's outcome comes from, and why it is what it is."""
        outcome = self.outcome(node)
        if isinstance(node, nodes.And | nodes.Or) and not node.is_range:
            return self._decisive_term(node, outcome)
        if isinstance(node, nodes.Not):
            inner = node.operand
            if isinstance(inner, nodes.Equal) and inner.start == node.start:
                return node, self._because(node, inner, outcome)  # It was written <>.
            if isinstance(inner, nodes.IsNull) and inner.start == node.start:
                return node, self._because(node, inner, outcome)  # IS NOT NULL.
            found, because = self.decisive(inner)
            return found, f"{because}, and NOT turns it around" if self._turns(node) else because
        return node, self._because(node, node, outcome)

    def _turns(self, node: Node) -> bool:
        return self.outcome(node) in (Outcome.TRUE, Outcome.FALSE)

    def _decisive_term(self, node: nodes.And | nodes.Or, outcome: Outcome) -> tuple[Node, str]:
        word = "AND" if isinstance(node, nodes.And) else "OR"
        stops = Outcome.FALSE if word == "AND" else Outcome.TRUE
        seen = []
        for term in node.terms:
            found = self.outcome(term)
            seen.append(found)
            if found in (stops, Outcome.FAILED):
                return self.decisive(term)
        if outcome is Outcome.UNKNOWN:
            at = seen.index(Outcome.UNKNOWN)
            return self.decisive(node.terms[at])
        state = "true" if outcome is Outcome.TRUE else "false"
        parts = "; ".join(self.decisive(term)[1] for term in node.terms[:4])
        more = "" if len(node.terms) <= 4 else f"; and {len(node.terms) - 4} more"
        return node, f"all {len(node.terms)} conditions of {word} are {state}: {parts}{more}"

    def _because(self, whole: Node, test: Node, outcome: Outcome) -> str:
        text = self._written(whole)
        if outcome is Outcome.FAILED:
            return f"{text} cannot be worked out: {self._failure(test)}"
        facts = self._facts(test)
        said = f"{text} is {outcome}"
        return f"{said}: {facts}" if facts else said

    def _facts(self, node: Node) -> str:
        if isinstance(node, nodes.Bare):
            name = self._written(node.operand)
            if self._value(node.operand) is None:
                return f"the message has no property {name}"
            return f"{name} is a text, and a text by itself is never true"
        names = dict.fromkeys(
            part.name for part in nodes.walk(node) if isinstance(part, nodes.PropertyOf)
        )
        facts = []
        for name in names:
            value = self._properties.get(name)
            facts.append(
                f"the message has no property {name}" if value is None else _is(name, value)
            )
        return " and ".join(facts)

    def _failure(self, node: Node) -> str:
        try:
            node.compiled()(self._properties)
        except NotComparable as error:
            return f"{error}{self._hint(node)}; the message does not match, whatever else is true"
        raise AssertionError("it was worked out a moment ago")

    def _hint(self, node: Node) -> str:
        for side in nodes.walk(node):
            constant = nodes.constant_of(side)
            if isinstance(constant, int) and not isinstance(constant, bool):
                kind = "64" if isinstance(constant, Long) else "32"
                return (
                    f", and {self._written(side)} asks for a whole number of {kind} bits "
                    f"(write {self._written(side).rstrip('lL')}.0 to compare any number)"
                )
        return ""

    def _value(self, node: Node) -> Value:
        return node.compiled()(self._properties)

    def _written(self, node: Node) -> str:
        return self._text[node.start : node.end]


def _is(name: str, value: str) -> str:
    shown = value if len(value) <= _VALUE_CHARS_MAX else f"{value[:_VALUE_CHARS_MAX]}…"
    return f"{name} is '{shown}'"
