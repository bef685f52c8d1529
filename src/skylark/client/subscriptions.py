"""Subscriptions: what a consumer wants of its topics.

    expression         meaning
    * or nothing       every message
    A || B             messages with tag A or tag B
    SqlFilter("…")     messages whose properties satisfy an SQL92 expression
    PythonFilter("…")  messages that a predicate of the broker's filter server lets pass

The broker filters by the hash of the tag; hashes collide, so the exact tag is compared again here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import ConfigError
from ..model.group import SUBSCRIBE_ALL, Subscription
from ..model.message import StoredMessage
from ..model.names import check_topic_name
from ..protocol.hashes import tag_hash

TAG = "TAG"
SQL92 = "SQL92"
PYTHON = "PYTHON"
TAG_SEPARATOR = "||"


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages whose properties satisfy an SQL92 expression, evaluated by the broker."""

    expression: str

    def __post_init__(self) -> None:
        if not self.expression.strip():
            raise ConfigError("an SQL filter needs an expression, for example a > 5")


@dataclass(frozen=True, slots=True)
class PythonFilter:
    """Messages that a predicate lets pass, which an operator has uploaded: `name` or `name@3`."""

    predicate: str

    def __post_init__(self) -> None:
        if not self.predicate.strip():
            raise ConfigError("a Python filter needs the name of a predicate, for example big@3")


Expression = str | SqlFilter | PythonFilter | None
"""Tags joined by ||, an SqlFilter, a PythonFilter, or None for everything."""

Subscriptions = str | Mapping[str, Expression]
"""One topic as a whole, or topics with an expression each."""


def make_subscription(topic: str, expression: Expression, version: int) -> Subscription:
    """Return what heartbeats and pulls say; raises ConfigError where it cannot be understood."""
    if isinstance(expression, SqlFilter):
        return Subscription(
            topic=topic,
            expression=expression.expression,
            expression_type=SQL92,
            version=version,
        )
    if isinstance(expression, PythonFilter):
        return Subscription(
            topic=topic,
            expression=expression.predicate,
            expression_type=PYTHON,
            version=version,
        )
    if expression is None or not expression.strip() or expression.strip() == SUBSCRIBE_ALL:
        return Subscription(topic=topic, version=version)
    tags = tuple(
        dict.fromkeys(tag.strip() for tag in expression.split(TAG_SEPARATOR) if tag.strip())
    )
    if not tags:
        raise ConfigError(f"subscription {expression!r} names no tag; write A || B, or * for all")
    return Subscription(
        topic=topic,
        expression=expression,
        tags=tags,
        codes=tuple(dict.fromkeys(tag_hash(tag) for tag in tags)),
        version=version,
    )


def check_subscriptions(subscriptions: Subscriptions) -> dict[str, Expression]:
    """Return expressions by topic; raises InvalidName or ConfigError."""
    found: dict[str, Expression] = (
        {subscriptions: None} if isinstance(subscriptions, str) else dict(subscriptions)
    )
    for topic, expression in found.items():
        check_topic_name(topic)
        make_subscription(topic, expression, 0)
    return found


def tag_check(subscription: Subscription) -> Callable[[StoredMessage], bool] | None:
    """Return what tells whether a message has one of the tags asked for; None where all do."""
    if subscription.expression_type != TAG or not subscription.tags:
        return None
    tags = frozenset(subscription.tags)

    def has_one(message: StoredMessage) -> bool:
        return message.properties.get("TAGS") in tags

    return has_one


def differs(own: Subscription, other: Subscription) -> bool:
    """Whether two members of a group want different messages of a topic."""
    if own.expression_type != other.expression_type:
        return True
    if own.expression_type == TAG:
        return set(own.tags) != set(other.tags)
    return own.expression != other.expression
