"""Did the order hold: of one producer in one queue, of one reader, of an ordered group?

A skipped offset counts only where a message is known to lie: a queue may have gaps that nobody put
there, such as what a filter left out.
"""

from __future__ import annotations

from bisect import bisect_left

from ..anomalies import Anomalies
from ..history import OK
from ..story import READS, Story


def check_order(story: Story, anomalies: Anomalies) -> None:
    """Find sends, polls and ordered deliveries out of order."""
    _check_sends(story, anomalies)
    known = _known_offsets(story)
    _check_polls(story, anomalies, known)
    _check_ordered(story, anomalies, known)


def _check_sends(story: Story, anomalies: Anomalies) -> None:
    last: dict[tuple[int, int], tuple[int, int]] = {}  # Producer, queue → ended, offset.
    for send in story.sends:  # In the order in which they began.
        if send.type != OK or send.verb != "send" or story.is_lost_as_allowed(send):
            continue
        key = (send.p, send.place)
        ended, off = last.get(key, (-1, -1))
        if ended < send.invoked and send.off <= off:
            text = f"after offset {off}: {story.history[send.ended]}"
            anomalies.add("nonmonotonic-send", send.ended, text)
        if send.off > off:
            last[key] = (send.ended, send.off)


def _known_offsets(story: Story) -> dict[int, list[int]]:
    """Where messages lie, by queue, in order; what was lost does not count."""
    known: dict[int, set[int]] = {}
    for send in story.acked:
        if send.verb == "send" and (not story.is_drained or story.copies[send.id]):
            known.setdefault(send.place, set()).add(send.off)
    for event in story.history:
        is_there = not story.is_drained or story.copies[event.id]
        if event.f in READS and event.id >= 0 and is_there:
            known.setdefault(story.place(event.topic, event.q), set()).add(event.off)
    return {place: sorted(offsets) for place, offsets in known.items()}


def _left_out(offsets: list[int], begin: int, end: int) -> int | None:
    """The first known offset of a span."""
    at = bisect_left(offsets, begin)
    return offsets[at] if at < len(offsets) and offsets[at] < end else None


def _check_polls(story: Story, anomalies: Anomalies, known: dict[int, list[int]]) -> None:
    position: dict[tuple[int, int], int] = {}
    read_at: dict[tuple[int, int], int] = {}
    for at, event in enumerate(story.history):
        if event.f not in ("assign", "poll"):
            continue
        place = story.place(event.topic, event.q)
        key = (event.p, place)
        if event.f == "assign":
            position[key] = event.off
            continue
        expected = position.get(key, event.off)
        if event.off < expected:
            text = f"expected offset {expected} or more: {event}"
            anomalies.add("nonmonotonic-poll", at, text)
        skipped = _left_out(known.get(place, []), expected, event.off)
        if skipped is not None:
            kind = "internal" if read_at.get(key) == event.t_mono else "external"
            text = f"offset {skipped} has a message, and was left out before {event}"
            anomalies.add(f"poll-skip-{kind}", at, text)
        position[key] = max(expected, event.off + 1)
        read_at[key] = event.t_mono


def _check_ordered(story: Story, anomalies: Anomalies, known: dict[int, list[int]]) -> None:
    """A message may come again; for the first time it comes after all in front of it."""
    first: dict[int, int] = {}
    reached: dict[int, int] = {}
    seen: dict[int, set[int]] = {}
    for at, event in enumerate(story.history):
        if event.f != "ordered":
            continue
        place = story.place(event.topic, event.q)
        first.setdefault(place, event.off)
        there = seen.setdefault(place, set())
        expected = reached.get(place, event.off)
        missing = _left_out(known.get(place, []), expected, event.off)
        is_late = event.off not in there and first[place] <= event.off < expected
        if missing is not None or is_late:
            text = f"expected offset {expected if missing is None else missing}: {event}"
            anomalies.add("order-inversion", at, text)
        there.add(event.off)
        reached[place] = max(expected, event.off + 1)
