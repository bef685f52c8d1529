"""Reads an SQL92 expression into parts, by RocketMQ 4.9.8's grammar.

    selector   := or                      what follows is not looked at (see SqlExpression.ignored)
    or         := and (OR and)*
    and        := equality (AND equality)*
    equality   := ordering ("=" ordering | "<>" ordering | IS NULL | IS NOT NULL)*
    ordering   := unary (("<" | "<=" | ">" | ">=") unary | [NOT] BETWEEN unary AND unary
                         | [NOT] IN "(" text ("," text)* ")")*
    unary      := "+" unary | "-" unary | NOT unary | primary
    primary    := text | whole | number | TRUE | FALSE | NULL | name | "(" or ")"

NOT binds tighter than a comparison: `NOT a = 'x'` compares a truth value with a text, and
`NOT (a = 'x')` is what was meant. An expression may have 4,096 characters, 1,000 parts, and 32
levels, so that neither reading nor evaluating it can take long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..errors import InvalidExpression
from . import sql_nodes as nodes
from .java_values import INT_MAX, LONG_MAX, Long, NotComparable, compare
from .sql_nodes import Node
from .sql_tokens import Kind, Token, Tokens

EXPRESSION_CHARS_MAX: Final = 4_096
PARTS_MAX: Final = 1_000
DEPTH_MAX: Final = 32
_ORDERING: Final = frozenset(("<", "<=", ">", ">="))


class Parser:
    """Reads one expression."""

    def __init__(self, text: str) -> None:
        if len(text) > EXPRESSION_CHARS_MAX:
            raise InvalidExpression(
                text, f"has {len(text)} characters, {EXPRESSION_CHARS_MAX} are allowed"
            )
        self._text = text
        self._tokens = Tokens(text)
        self._next = self._tokens.next()
        self._level = 0
        self.part_count = 0

    def parse(self) -> tuple[Node, int]:
        """The condition, and where what is not looked at begins; raises InvalidExpression."""
        root = self._condition(self._or())
        return root, self._next.start

    # Words.

    def _take(self) -> Token:
        token = self._next
        self._next = self._tokens.next()
        return token

    def _sees(self, text: str, kind: Kind = Kind.RESERVED) -> bool:
        return self._next.kind is kind and self._next.text == text

    def _accept(self, text: str, kind: Kind = Kind.RESERVED) -> bool:
        if not self._sees(text, kind):
            return False
        self._take()
        return True

    def _expect(self, text: str, kind: Kind = Kind.RESERVED) -> Token:
        if not self._sees(text, kind):
            raise self._unexpected(text)
        return self._take()

    def _unexpected(self, wanted: str) -> InvalidExpression:
        token = self._next
        if token.kind is Kind.END:
            return InvalidExpression(self._text, f"ends where {wanted} is expected", token.start)
        found = self._text[token.start : token.end][:40]
        return InvalidExpression(
            self._text,
            f"has {found!r} at position {token.start + 1}, where {wanted} is expected",
            token.start,
        )

    def _refuse(self, node: Node, problem: str) -> InvalidExpression:
        found = self._text[node.start : node.end][:40]
        return InvalidExpression(
            self._text, f"has {found!r} at position {node.start + 1}, which {problem}", node.start
        )

    def _made(self, node: Node, parts: int = 1) -> Node:
        self.part_count += parts
        if self.part_count > PARTS_MAX:
            raise InvalidExpression(
                self._text, f"has more than {PARTS_MAX} parts; make it simpler", node.start
            )
        if node.depth > DEPTH_MAX:
            raise self._too_deep(node.start)
        return node

    def _too_deep(self, at: int) -> InvalidExpression:
        return InvalidExpression(
            self._text, f"is nested deeper than {DEPTH_MAX} levels; make it simpler", at
        )

    # Conditions.

    def _condition(self, node: Node) -> Node:
        if node.is_condition:
            return node
        if isinstance(node, nodes.PropertyOf):
            return self._made(nodes.Bare(start=node.start, end=node.end, operand=node))
        raise self._refuse(node, "is a value and no condition; compare it with something")

    def _or(self) -> Node:
        return self._chain("OR", self._and, nodes.Or)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, nodes.And)

    def _chain(
        self, word: str, term: Callable[[], Node], kind: type[nodes.Or] | type[nodes.And]
    ) -> Node:
        first = term()
        if not self._sees(word):
            return first
        terms: list[Node] = []
        while self._accept(word):
            following = term()
            if not terms:
                terms.append(self._condition(first))
            terms.append(self._condition(following))
        return self._made(kind(start=terms[0].start, end=terms[-1].end, terms=tuple(terms)))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if self._accept("=", Kind.SIGN):
                left = self._equal(left, self._comparison())
            elif self._accept("<>", Kind.SIGN):
                left = self._not(self._equal(left, self._comparison()))
            elif self._accept("IS"):
                is_negated = self._accept("NOT")
                end = self._expect("NULL").end
                left = self._made(nodes.IsNull(start=left.start, end=end, operand=left))
                left = self._not(left) if is_negated else left
            else:
                return left

    def _equal(self, left: Node, right: Node) -> Node:
        for side in (left, right):
            if isinstance(side, nodes.Constant) and side.value is None:
                raise self._refuse(side, "equals nothing; write IS NULL or IS NOT NULL")
        if (
            isinstance(left, nodes.Constant)
            and isinstance(right, nodes.Constant)
            and left.is_condition
            and not right.is_condition
        ):
            raise self._refuse(right, "cannot be compared with a truth value")
        return self._made(nodes.Equal(start=left.start, end=right.end, left=left, right=right))

    def _not(self, node: Node, start: int | None = None) -> Node:
        first = node.start if start is None else start
        return self._made(nodes.Not(start=first, end=node.end, operand=node))

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            token = self._next
            if token.kind is Kind.SIGN and token.text in _ORDERING:
                self._take()
                left = self._ordered(left, token.text, self._unary())
            elif token.kind is Kind.RESERVED and token.text in ("NOT", "BETWEEN", "IN"):
                is_negated = self._accept("NOT")
                if self._accept("BETWEEN"):
                    left = self._between(left, is_negated)
                elif self._accept("IN"):
                    left = self._in(left, is_negated)
                else:
                    raise self._unexpected("BETWEEN or IN")
            else:
                return left

    def _ordered(self, left: Node, sign: str, right: Node) -> Node:
        for side in (left, right):
            if isinstance(side, nodes.Constant) and not side.is_number:
                raise self._refuse(side, f"is no number, and {sign} orders only numbers")
            if side.is_condition:
                raise self._refuse(side, f"is true or false, and {sign} orders only numbers")
        return self._made(
            nodes.Ordered(start=left.start, end=right.end, left=left, sign=sign, right=right)
        )

    def _between(self, value: Node, is_negated: bool) -> Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if is_negated:
            terms = (self._ordered(value, "<", low), self._ordered(value, ">", high))
            return self._made(nodes.Or(start=value.start, end=high.end, terms=terms, is_range=True))
        if isinstance(low, nodes.Constant) and isinstance(high, nodes.Constant):
            self._check_bounds(low, high)
        terms = (self._ordered(value, ">=", low), self._ordered(value, "<=", high))
        return self._made(nodes.And(start=value.start, end=high.end, terms=terms, is_range=True))

    def _check_bounds(self, low: nodes.Constant, high: nodes.Constant) -> None:
        for bound in (low, high):
            if bound.value is None:
                raise self._refuse(bound, "cannot be a bound of BETWEEN")
        try:
            is_upside_down = compare(high.value, low.value) < 0
        except NotComparable:
            return  # A bound that is no number is refused where it is compared.
        if is_upside_down:
            raise self._refuse(high, "is less than the lower bound; turn the bounds around")

    def _in(self, value: Node, is_negated: bool) -> Node:
        if not isinstance(value, nodes.PropertyOf):
            raise self._refuse(value, "is no property, and IN asks for one on its left")
        self._expect("(", Kind.SIGN)
        texts = [self._quoted()]
        while self._accept(",", Kind.SIGN):
            texts.append(self._quoted())
        end = self._expect(")", Kind.SIGN).end
        node = nodes.IsIn(
            start=value.start, end=end, operand=value, texts=tuple(texts), is_negated=is_negated
        )
        return self._made(node, 1 + len(texts))

    def _quoted(self) -> str:
        if self._next.kind is not Kind.TEXT:
            raise self._unexpected("a text in single quotes")
        return self._take().text

    # Operands.

    def _unary(self) -> Node:
        self._level += 1
        if self._level > DEPTH_MAX:
            raise self._too_deep(self._next.start)
        node = self._unary_within()
        self._level -= 1
        return node

    def _unary_within(self) -> Node:
        start = self._next.start
        if self._accept("+", Kind.SIGN):
            return self._unary()
        if self._accept("-", Kind.SIGN):
            operand = self._unary()
            return self._made(nodes.Negated(start=start, end=operand.end, operand=operand))
        if self._accept("NOT"):
            return self._not(self._condition(self._unary()), start)
        if self._accept("(", Kind.SIGN):
            node = self._or()
            self._expect(")", Kind.SIGN)
            return node
        return self._made(self._leaf())

    def _leaf(self) -> Node:
        token = self._next
        start, end = token.start, token.end
        if token.kind is Kind.NAME:
            leaf: Node = nodes.PropertyOf(start=start, end=end, name=token.text)
        elif token.kind is Kind.TEXT:
            leaf = nodes.Constant(start=start, end=end, value=token.text)
        elif token.kind is Kind.WHOLE:
            leaf = nodes.Constant(start=start, end=end, value=self._whole(token))
        elif token.kind is Kind.NUMBER:
            leaf = nodes.Constant(start=start, end=end, value=self._number(token))
        elif token.kind is Kind.RESERVED and token.text in ("TRUE", "FALSE", "NULL"):
            value = None if token.text == "NULL" else token.text == "TRUE"
            leaf = nodes.Constant(start=start, end=end, value=value)
        else:
            raise self._unexpected("a property, a number, a text, TRUE, FALSE, NULL or (")
        self._take()
        return leaf

    def _whole(self, token: Token) -> int:
        value = int(token.text.rstrip("lL"))
        if value > LONG_MAX:
            raise InvalidExpression(
                self._text,
                f"has {token.text[:40]} at position {token.start + 1}, which is more than "
                f"{LONG_MAX}; write it with a point",
                token.start,
            )
        return value if value <= INT_MAX else Long(value)

    def _number(self, token: Token) -> float:
        value = float(token.text)
        if not 0.0 < value < float("inf"):
            problem = "too large" if value else "zero or too near to it; write 0 for zero"
            raise InvalidExpression(
                self._text,
                f"has {token.text[:40]} at position {token.start + 1}, which is {problem}",
                token.start,
            )
        return value
