"""Tags: does a message's tag match a subscription?

    expression             wants
    null, empty, `*`       every message
    `A || B`               messages whose tag is A or B

A broker compares hashes (protocol.hashes.tag_hash), because the queue holds nothing else, and may
let a message through whose tag only hashes alike; the consumer compares the text.
"""

from __future__ import annotations

from ..errors import InvalidExpression

EXPRESSION_CHARS_MAX = 4_096
ALL = "*"
_OR = "||"


def parse_tags(expression: str | None) -> tuple[str, ...]:
    """The tags that an expression names, each once; empty stands for all. InvalidExpression."""
    if expression is None or expression.strip() in ("", ALL):
        return ()
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise InvalidExpression(
            expression, f"has {len(expression)} characters, {EXPRESSION_CHARS_MAX} are allowed"
        )
    tags = dict.fromkeys(tag for part in expression.split(_OR) if (tag := part.strip()))
    if not tags:
        raise InvalidExpression(expression, "names no tag; write A || B, or * for all")
    return tuple(tags)


def matches(tags: tuple[str, ...], tag: str | None) -> bool:
    """Whether a message with this tag is wanted, by exact comparison."""
    return not tags or tag in tags
