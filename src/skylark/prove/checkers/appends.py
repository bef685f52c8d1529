"""Are appends linearizable? An append returns its offset, so no search is needed.

1. offsets and messages that were acknowledged are one to one (offsets.py finds the rest)
2. what was sent after another was acknowledged lies behind it
3. the end of a queue, asked for after an acknowledgement, counts it
4. all readers see one order: they agree on each offset (offsets.py) and skip none (order.py)

Together these are complete for a log, and cost one sort.
"""

from __future__ import annotations

from ..anomalies import Anomalies
from ..history import INVOKE, OK
from ..story import Send, Story


def check_appends(story: Story, anomalies: Anomalies) -> None:
    """Find appends and reads that no order in real time explains."""
    by_place: dict[int, list[Send]] = {}
    for send in story.acked:
        if send.verb == "send":
            by_place.setdefault(send.place, []).append(send)
    for sends in by_place.values():
        _check_real_time(story, anomalies, sends)
    if story.rules.linearizable:
        _check_ends(story, anomalies, by_place)


def _check_real_time(story: Story, anomalies: Anomalies, sends: list[Send]) -> None:
    ended = sorted(
        (s for s in sends if not story.is_lost_as_allowed(s)), key=lambda send: send.ended
    )
    at, highest = 0, -1
    for send in sends:  # In the order in which they began.
        while at < len(ended) and ended[at].ended < send.invoked:
            highest = max(highest, ended[at].off)
            at += 1
        if send.off <= highest and not story.is_lost_as_allowed(send):
            text = f"offset {highest} was acknowledged before this began: "
            anomalies.add("real-time-order", send.ended, text + str(story.history[send.ended]))


def _check_ends(story: Story, anomalies: Anomalies, by_place: dict[int, list[Send]]) -> None:
    acked = {
        send.ended: send
        for sends in by_place.values()
        for send in sends
        if not story.is_lost_as_allowed(send)
    }
    highest: dict[int, int] = {}
    asked: dict[tuple[int, int], int] = {}
    for at, event in enumerate(story.history):
        send = acked.get(at)
        if send is not None:
            highest[send.place] = max(highest.get(send.place, -1), send.off)
        elif event.f == "max":
            place = story.place(event.topic, event.q)
            if event.type == INVOKE:
                asked[event.p, place] = highest.get(place, -1)
            elif event.type == OK and event.off <= asked.pop((event.p, place), -1):
                anomalies.add("stale-read", at, f"offset {event.off} was acknowledged: {event}")
