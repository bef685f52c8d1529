"""What a topic or a group may be called.

Names become parts of file paths, of JSON keys and of `topic@group` strings. Only letters, digits
and `% | - _` are allowed, which keeps all three safe.
"""

from __future__ import annotations

import re

from ..errors import InvalidName

TOPIC_NAME_LENGTH_MAX = 127  # The record has one signed byte for its length.
GROUP_NAME_LENGTH_MAX = 255

_REFUSED = re.compile(r"[^%|a-zA-Z0-9_-]")


def check_topic_name(name: str) -> None:
    """Raise InvalidName unless this may be the name of a topic."""
    _check("topic", name, TOPIC_NAME_LENGTH_MAX)


def check_group_name(name: str) -> None:
    """Raise InvalidName unless this may be the name of a producer or consumer group."""
    _check("group", name, GROUP_NAME_LENGTH_MAX)


def _check(kind: str, name: str, length_max: int) -> None:
    if not name:
        raise InvalidName(kind, name, "is empty")
    if len(name) > length_max:
        raise InvalidName(kind, name, f"is longer than {length_max} characters")
    if refused := _REFUSED.search(name):
        raise InvalidName(
            kind, name, f"contains {refused[0]!r}; use letters, digits and the signs % | - _"
        )
