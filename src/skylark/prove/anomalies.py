"""Anomalies: what checkers found; how many of each kind, and the first of each in full."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .story import FaultSpan, Story

KINDS: Final = {
    "lost": "acknowledged, and not there",
    "hole": "lost in the middle of a queue, where only its end may be",
    "vanished": "seen by a reader, and no longer there",
    "unseen": "acknowledged and there, and never given to the group",
    "duplicate": "there more often than it was sent",
    "aborted-read": "seen although its send failed or was rolled back",
    "precommitted-read": "seen before it was committed",
    "content-mismatch": "a body that nobody sent",
    "nonmonotonic-send": "one producer's messages in another order than it sent them",
    "nonmonotonic-poll": "a reader saw an offset again, or an older one",
    "poll-skip-internal": "a message was left out within one answer",
    "poll-skip-external": "a message was left out between two answers",
    "order-inversion": "an ordered group saw a message before the one in front of it",
    "inconsistent-offsets": "two messages at one offset, or one at two",
    "offset-regression": "the committed offset went back",
    "offset-beyond-end": "the committed offset lies behind the last message",
    "real-time-order": "sent after another was acknowledged, and stored in front of it",
    "stale-read": "the end of a queue did not count what was acknowledged before",
    "lock-not-linearizable": "no order of the lock's answers explains them",
    "double-lock-owner": "two clients held one lock",
    "early-delivery": "seen before its time",
    "late-delivery": "seen long after its time",
    "replica-divergence": "two replicas have different messages at one place",
    "replica-behind": "a replica does not have all in the end",
    "retry-count-mismatch": "tried more or less often than configured",
}
_AROUND_MS: Final = 10_000


@dataclass(slots=True)
class Anomaly:
    """All of one kind."""

    kind: str
    checker: str
    count: int
    example: str  # The first one, in words.
    at: int  # The number of its event.
    faults: list[str] = field(default_factory=list)  # What was going on around it.


class Anomalies:
    """Collects what one checker finds."""

    def __init__(self, story: Story, checker: str) -> None:
        self._story = story
        self._checker = checker
        self.found: dict[str, Anomaly] = {}
        self.undecided: list[str] = []  # What took too long to judge, in words.

    def add(self, kind: str, at: int, example: str) -> None:
        """Note one; the number is that of the event it is about."""
        assert kind in KINDS, kind
        known = self.found.get(kind)
        if known is None:
            around = [str(fault) for fault in faults_around(self._story, at)]
            self.found[kind] = Anomaly(kind, self._checker, 1, example, at, around)
        else:
            known.count += 1


def faults_around(story: Story, at: int) -> list[FaultSpan]:
    """The faults under way at an event, or within ten seconds of it."""
    if not 0 <= at < len(story.history):
        return []
    now = story.history[at].t_mono
    return [
        fault
        for fault in story.faults
        if fault.t_begin - _AROUND_MS <= now <= fault.t_end + _AROUND_MS
    ]
