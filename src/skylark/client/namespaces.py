"""Namespaces: `ns%name` on the wire, `name` in the application.

    name             on the wire
    Orders           ns%Orders
    %RETRY%billing   %RETRY%ns%billing
    %DLQ%billing     %DLQ%ns%billing

System topics and groups belong to everybody and stay as they are. Brokers know nothing of it: to
them these are only longer names.
"""

from __future__ import annotations

from ..model.group import is_system_group
from ..model.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

SEPARATOR = "%"


def wrap(namespace: str | None, name: str) -> str:
    """Return the name of a topic or group as brokers know it."""
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, rest = _split(name)
    start = namespace + SEPARATOR
    return name if rest.startswith(start) else prefix + start + rest


def unwrap(namespace: str | None, name: str) -> str:
    """Return the name as the application knows it."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
