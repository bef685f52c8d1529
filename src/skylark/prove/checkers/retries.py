"""Were failing messages tried as often as configured: once, then each retry, then dead letters?

A try may be repeated with the same count, because delivery is at least once.
"""

from __future__ import annotations

from ..anomalies import Anomalies
from ..story import Story


def check_retries(story: Story, anomalies: Anomalies) -> None:
    """Find counts that were left out or went too far, and dead letters too soon or missing."""
    tried: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    dead: dict[int, int] = {}
    most = story.rules.retries_max
    for at, event in enumerate(story.history):
        if event.f == "attempt":
            tried.setdefault(event.id, set()).add(event.off)
            last[event.id] = at
        elif event.f == "dead":
            dead[event.id] = at
    for id, counts in tried.items():
        missing = set(range(max(counts))) - counts
        event = story.history[last[id]]
        if missing:
            text = f"try {min(missing)} was left out: {event}"
            anomalies.add("retry-count-mismatch", last[id], text)
        elif max(counts) > most:
            text = f"{most} retries are allowed: {event}"
            anomalies.add("retry-count-mismatch", last[id], text)
        elif id in dead and max(counts) < most:
            text = f"given up after {max(counts)} of {most} retries: {event}"
            anomalies.add("retry-count-mismatch", dead[id], text)
    for id, at in dead.items():
        if id not in tried:
            text = f"a dead letter that was never tried: {story.history[at]}"
            anomalies.add("retry-count-mismatch", at, text)
