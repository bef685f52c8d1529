"""The judge: runs every checker over a history and adds up what happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .anomalies import Anomalies, Anomaly
from .checkers import CHECKERS
from .checkers.sets import is_wanted
from .history import FAIL, INFO, INVOKE, OK, History
from .story import Story


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened, in numbers."""

    events: int
    sent: int
    acknowledged: int
    refused: int
    unknown: int
    lost: int  # Acknowledged, and not there in the end, allowed or not.
    lost_as_allowed: int
    duplicated: int  # Copies beyond the first, of messages that were sent again after doubt.
    delivered: int
    delivered_again: int
    faults: dict[str, int]
    longest_outage_ms: int  # Between two acknowledged sends, while somebody tried.
    seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says."""

    anomalies: list[Anomaly]
    figures: Figures
    undecided: list[str]  # Neither right nor wrong: it would have taken too long.

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.anomalies


def judge(history: History) -> Verdict:
    """Judge a history by the rules that are in it."""
    story = Story.of(history)
    found: list[Anomaly] = []
    undecided: list[str] = []
    for name, check in CHECKERS.items():
        anomalies = Anomalies(story, name)
        check(story, anomalies)
        found += anomalies.found.values()
        undecided += anomalies.undecided
    return Verdict(found, _figures(story), undecided)


def _figures(story: Story) -> Figures:
    history = story.history
    types = Counter(send.type for send in story.sends)
    gone = [
        send
        for send in story.acked
        if story.is_drained and not story.copies[send.id] and is_wanted(story, send)
    ]
    delivered: Counter[tuple[str, int]] = Counter(
        (event.f, event.id) for event in history if event.f in ("deliver", "ordered")
    )
    return Figures(
        events=len(history),
        sent=len(story.sends),
        acknowledged=types[OK],
        refused=types[FAIL],
        unknown=types[INFO],
        lost=len(gone),
        lost_as_allowed=sum(story.excuse(send) is not None for send in gone),
        duplicated=sum(count - 1 for count in story.copies.values() if count > 1),
        delivered=len(delivered),
        delivered_again=sum(count - 1 for count in delivered.values()),
        faults=dict(Counter(fault.kind for fault in story.faults)),
        longest_outage_ms=_longest_outage(story),
        seconds=round((history[len(history) - 1].t_mono - history[0].t_mono) / 1000, 1)
        if len(history)
        else 0.0,
    )


def _longest_outage(story: Story) -> int:
    """The longest time without an acknowledgement from the first send to the last one ended."""
    longest = 0
    last: int | None = None
    for event in story.history:
        if event.f != "send":
            continue
        if last is None and event.type == INVOKE:
            last = event.t_mono
        elif event.type == OK:
            assert last is not None
            longest, last = max(longest, event.t_mono - last), event.t_mono
        elif event.type != INVOKE and last is not None:
            longest = max(longest, event.t_mono - last)
    return longest
