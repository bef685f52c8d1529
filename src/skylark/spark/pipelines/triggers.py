"""Trigger: when the micro-batches of a pipeline come."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .document import Node

# As Spark reads one, which knows no other digits and spaces than those of ASCII.
_INTERVAL = re.compile(
    r"(\d{1,15})\s+(millisecond|second|minute|hour|day)s?", re.ASCII | re.IGNORECASE
)
_UNITS_MS = {
    "millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000
}  # fmt: skip
_DAYS_MAX = 36_500  # Far below where Spark's own sums of times overflow.
_ALLOWED = "availableNow, or an interval such as 10 seconds, is allowed"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Micro-batches at an interval, or until all of now is done."""

    interval: str | None = None
    available_now: bool = False

    def arguments(self) -> dict[str, Any]:
        """As DataStreamWriter.trigger takes them."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": self.interval}

    def __str__(self) -> str:
        return "available now" if self.available_now else f"every {self.interval}"


def check_interval(text: str) -> bool:
    """Whether a text is an interval as Spark reads it, and no longer than it can add to a time."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        return False
    return int(found[1]) * _UNITS_MS[found[2].lower()] <= _DAYS_MAX * _UNITS_MS["day"]


def parse_trigger(node: Node) -> Trigger:
    """Read a trigger: a word, an interval, or processingTime: an interval."""
    if isinstance(node.value, dict):
        keys = node.known(["processingTime", "availableNow", "once", "continuous"])
        if len(keys) != 1:
            node.place.refuse(_ALLOWED)
        ((word, value),) = keys.items()
        if word == "processingTime":
            return _interval(value)
        if word != "continuous" and not value.flag():
            node.place.refuse(_ALLOWED)
        return _word(Node(word, value.place))
    return _word(node)


def _word(node: Node) -> Trigger:
    text = node.text().strip()
    if text.lower() in ("availablenow", "once"):
        return Trigger(available_now=True)
    if text.lower().startswith("continuous"):
        node.place.refuse(
            "continuous processing does not work with topics: Spark offers it to no source in "
            f"Python; {_ALLOWED}, and 0 seconds is as fast as it goes"
        )
    return _interval(node)


def _interval(node: Node) -> Trigger:
    text = node.text().strip()
    if not check_interval(text):
        node.place.refuse(f"{text[:40]!r} is not a trigger; {_ALLOWED}")
    return Trigger(interval=text)
