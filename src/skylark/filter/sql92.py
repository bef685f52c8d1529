"""SQL92 filters: which messages a consumer wants, by their properties.

    amount > 100 AND region IN ('eu', 'us') AND test IS NULL

The dialect and its answers are RocketMQ 4.9.8's, down to what a missing property means. Nothing of
a user's text is ever run: it becomes a small tree of parts, bounded in length, depth and number.
docs/filters.md has the grammar, the types and the tables of unknown.
"""

from __future__ import annotations

from typing import Final

from .java_values import NotComparable
from .sql_nodes import Node, Properties, PropertyOf, Run, walk
from .sql_parser import Parser

SQL92: Final = "SQL92"


class SqlExpression:
    """An expression that was understood."""

    __slots__ = ("_run", "ignored_at", "part_count", "root", "text")

    text: str
    root: Node
    # How many parts at most are looked at for one message.
    part_count: int
    # Where the rest begins that RocketMQ's grammar lets stand and nobody looks at; or the end.
    ignored_at: int
    _run: Run

    def __init__(self, text: str) -> None:
        """Raises InvalidExpression, with the position where the text has one."""
        parser = Parser(text)
        self.text = text
        self.root, self.ignored_at = parser.parse()
        self.part_count = parser.part_count
        self._run = self.root.compiled()

    @property
    def ignored(self) -> str:
        """What stands behind the expression and has no effect."""
        return self.text[self.ignored_at :]

    @property
    def names(self) -> frozenset[str]:
        """The properties that it asks for."""
        return frozenset(node.name for node in walk(self.root) if isinstance(node, PropertyOf))

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False, or None for unknown; raises NotComparable."""
        value = self._run(properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is wanted: only where the answer is true."""
        try:
            return self._run(properties) is True
        except NotComparable:
            return False

    def __repr__(self) -> str:
        return f"SqlExpression({self.text!r})"
