"""The parts of an SQL92 expression, and how each is worked out.

Every part turns into a function of a message's properties (`compiled`), once, when a consumer
subscribes. Conditions give True, False or None for "unknown"; operands give a value. Texts that
cannot be read as the number they meet raise NotComparable out of the whole expression, even where
the rest would have decided: that is RocketMQ's way, and consumers are written against it.

    A       B       A AND B    A OR B      NOT A
    true    unknown unknown    true        false
    false   unknown false      unknown     true
    unknown unknown unknown    unknown     unknown

The side that comes first is looked at first, and the other not at all where the first decides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .java_values import (
    Long,
    Value,
    compare_doubles,
    equal,
    order,
    parse_double,
    parse_int,
    parse_long,
)

Properties = Mapping[str, str]
Run = Callable[[Properties], Value]

_TESTS: Final[dict[str, Callable[[int, int], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One part, and where it stands in the text."""

    start: int
    end: int
    depth: int = field(init=False, default=1)

    is_condition = False

    def __post_init__(self) -> None:
        deepest = max((child.depth for child in self.children()), default=0)
        object.__setattr__(self, "depth", deepest + 1)

    def children(self) -> tuple[Node, ...]:
        """The parts it is made of."""
        return ()

    def compiled(self) -> Run:
        """A function of the properties."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Node):
    """A value that is written in the expression."""

    value: Value

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        """TRUE, FALSE and NULL may stand alone."""
        return self.value is None or isinstance(self.value, bool)

    @property
    def is_number(self) -> bool:
        """Whether it can be ordered."""
        return not self.is_condition and not isinstance(self.value, str)

    def compiled(self) -> Run:
        """Always the same."""
        value = self.value
        return lambda properties: value


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyOf(Node):
    """A property of the message, by its name."""

    name: str

    def compiled(self) -> Run:
        """The property's text, or None."""
        name = self.name
        return lambda properties: properties.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Negated(Node):
    """A number with its sign turned; of anything else there is no such thing, so None."""

    operand: Node

    def children(self) -> tuple[Node, ...]:
        """The number."""
        return (self.operand,)

    def compiled(self) -> Run:
        """The number, negated."""
        inner = self.operand.compiled()

        def run(properties: Properties) -> Value:
            value = inner(properties)
            if value is None or isinstance(value, str | bool):
                return None
            return Long(-value) if isinstance(value, Long) else -value

        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition(Node):
    """A part that is true, false or unknown."""

    is_condition = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare(Condition):
    """A property where a condition is asked for: false if it is there, for a text is not true."""

    operand: Node

    def children(self) -> tuple[Node, ...]:
        """The property."""
        return (self.operand,)

    def compiled(self) -> Run:
        """False or unknown."""
        inner = self.operand.compiled()
        return lambda properties: None if inner(properties) is None else False


@dataclass(frozen=True, slots=True, kw_only=True)
class Not(Condition):
    """The opposite; unknown stays unknown."""

    operand: Node

    def children(self) -> tuple[Node, ...]:
        """What is negated."""
        return (self.operand,)

    def compiled(self) -> Run:
        """True for false, false for true."""
        inner = self.operand.compiled()

        def run(properties: Properties) -> bool | None:
            value = inner(properties)
            return None if value is None else not value

        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain(Condition):
    terms: tuple[Node, ...]
    is_range: bool = False  # It was written BETWEEN.

    def children(self) -> tuple[Node, ...]:
        """The terms, in their order."""
        return self.terms


@dataclass(frozen=True, slots=True, kw_only=True)
class And(_Chain):
    """False as soon as one term is; true when all are."""

    def compiled(self) -> Run:
        """Term after term."""
        terms = tuple(term.compiled() for term in self.terms)

        def run(properties: Properties) -> bool | None:
            result: bool | None = True
            for term in terms:
                value = term(properties)
                if value is False:
                    return False
                if value is None:
                    result = None
            return result

        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Or(_Chain):
    """True as soon as one term is; false when all are."""

    def compiled(self) -> Run:
        """Term after term."""
        terms = tuple(term.compiled() for term in self.terms)

        def run(properties: Properties) -> bool | None:
            result: bool | None = False
            for term in terms:
                value = term(properties)
                if value is True:
                    return True
                if value is None:
                    result = None
            return result

        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class IsIn(Condition):
    """Whether a property is one of some texts."""

    operand: PropertyOf
    texts: tuple[str, ...]
    is_negated: bool

    def children(self) -> tuple[Node, ...]:
        """The property."""
        return (self.operand,)

    def compiled(self) -> Run:
        """Unknown where the property is missing."""
        name, texts, is_negated = self.operand.name, frozenset(self.texts), self.is_negated

        def run(properties: Properties) -> bool | None:
            value = properties.get(name)
            return None if value is None else (value in texts) is not is_negated

        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull(Condition):
    """Whether something is missing; never unknown."""

    operand: Node

    def children(self) -> tuple[Node, ...]:
        """What may be missing."""
        return (self.operand,)

    def compiled(self) -> Run:
        """True or false."""
        if isinstance(self.operand, PropertyOf):
            name = self.operand.name
            return lambda properties: properties.get(name) is None
        inner = self.operand.compiled()
        return lambda properties: inner(properties) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair(Condition):
    left: Node
    right: Node

    def children(self) -> tuple[Node, ...]:
        """Both sides."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal(_Pair):
    """Whether two values are equal.

    Missing on the left is unknown, missing on the right is false, missing on both is true.
    """

    def compiled(self) -> Run:
        """A shorter way for the common case, a property and a constant."""
        constant = constant_of(self.right)
        if isinstance(self.left, PropertyOf) and constant is not None:
            return _property_equals(self.left.name, constant)
        left, right = self.left.compiled(), self.right.compiled()
        return lambda properties: equal(left(properties), right(properties))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered(_Pair):
    """Whether one number is below or above another; unknown where one is missing."""

    sign: str

    def compiled(self) -> Run:
        """A shorter way for the common case, a property and a constant."""
        for subject, other, sign in (
            (self.left, self.right, self.sign),
            (self.right, self.left, _SWAPPED[self.sign]),
        ):
            constant = constant_of(other)
            if isinstance(subject, PropertyOf) and constant is not None:
                return _property_ordered(subject.name, sign, constant)
        left, right, test = self.left.compiled(), self.right.compiled(), _TESTS[self.sign]

        def run(properties: Properties) -> bool | None:
            before = left(properties)
            if before is None:
                return None  # The right side is then not looked at, and cannot fail.
            ordered = order(before, right(properties))
            return None if ordered is None else test(ordered, 0)

        return run


def constant_of(node: Node) -> Value:
    """The value of a constant, with its sign; None for all else."""
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Negated) and (value := constant_of(node.operand)) is not None:
        if isinstance(value, str | bool):
            return None
        return Long(-value) if isinstance(value, Long) else -value
    return None


def _property_equals(name: str, constant: Value) -> Run:
    if isinstance(constant, str):

        def run_text(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else text == constant

        return run_text
    if isinstance(constant, bool):

        def run_bool(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else (text.lower() == "true") is constant

        return run_bool
    if isinstance(constant, float):

        def run_double(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else parse_double(text) == constant

        return run_double
    read = parse_long if isinstance(constant, Long) else parse_int

    def run_whole(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else read(text) == constant

    return run_whole


def _property_ordered(name: str, sign: str, constant: Value) -> Run:
    assert isinstance(constant, int | float)
    test = _TESTS[sign]
    if isinstance(constant, float):

        def run_double(properties: Properties) -> bool | None:
            text = properties.get(name)
            if text is None:
                return None
            return test(compare_doubles(parse_double(text), constant), 0)

        return run_double
    read = parse_long if isinstance(constant, Long) else parse_int

    def run_whole(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(read(text), constant)

    return run_whole


def walk(node: Node) -> Iterator[Node]:
    """A part and all that it is made of."""
    yield node
    for child in node.children():
        yield from walk(child)
