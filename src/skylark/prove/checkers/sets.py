"""Is everything there that was acknowledged, no more often than it was sent, and as it was sent?

What a fault was allowed to cost is passed over, but it must be the end of a queue: behind a lost
message nothing may be left that was acknowledged before the fault.
"""

from __future__ import annotations

from collections import defaultdict

from ..anomalies import Anomalies
from ..history import FAIL, INVOKE, MANGLED
from ..story import EVERYTHING, LOSS_RULES, READS, FaultSpan, Send, Story


def check_sets(story: Story, anomalies: Anomalies) -> None:
    """Find what is lost, vanished, unseen, doubled, aborted, seen too soon or mangled."""
    _check_reads(story, anomalies)
    if story.is_drained:
        _check_losses(story, anomalies)
        _check_vanished(story, anomalies)
        _check_copies(story, anomalies)
    _check_deliveries(story, anomalies)


def is_wanted(story: Story, send: Send) -> bool:
    """Whether an acknowledged send must be there in the end."""
    return send.verb != "half" or story.committed.get(send.id, False)


def _check_losses(story: Story, anomalies: Anomalies) -> None:
    gone: dict[tuple[int, FaultSpan], int] = {}  # The lowest offset of each queue that is lost.
    for send in story.acked:
        if story.copies[send.id] or not is_wanted(story, send):
            continue
        fault = story.excuse(send)
        if fault is None:
            anomalies.add("lost", send.ended, f"lost: {story.history[send.ended]}")
        elif send.verb == "send" and getattr(story.rules, LOSS_RULES[fault.kind]) != EVERYTHING:
            key = (send.place, fault)
            gone[key] = min(gone.get(key, send.off), send.off)
    if not gone:
        return
    by_place: dict[int, list[Send]] = defaultdict(list)
    for send in story.acked:
        if send.verb == "send" and story.copies[send.id]:
            by_place[send.place].append(send)
    for (place, fault), lowest in gone.items():
        for send in by_place[place]:
            if send.off > lowest and send.ended < fault.begin:
                text = f"offset {lowest} is lost, and behind it is {story.history[send.ended]}"
                anomalies.add("hole", send.ended, text)


def _check_vanished(story: Story, anomalies: Anomalies) -> None:
    told: set[int] = set()
    for at, event in enumerate(story.history):
        if event.f not in ("poll", "deliver", "ordered") or event.id < 0 or event.id in told:
            continue
        if not story.copies[event.id] and not story.is_excused(event.id):
            told.add(event.id)
            anomalies.add("vanished", at, f"seen, and no longer there: {event}")


def _check_copies(story: Story, anomalies: Anomalies) -> None:
    for id, count in story.copies.items():
        tries = [send for send in story.tries.get(id, []) if send.type != FAIL]
        # What was delayed may come again after a crash, which forgets the last moments of progress.
        may_repeat = tries and tries[0].verb == "schedule" and story.crashes()
        if count > len(tries) > 0 and not may_repeat:
            where = [
                f"{story.places[place]}@{off}"
                for place, queue in story.final.items()
                for off, found in queue.items()
                if found == id
            ]
            last = max(send.invoked for send in tries)
            text = f"{count} copies of {story.history[last]}: {', '.join(where[:4])}"
            anomalies.add("duplicate", last, text)


def _check_reads(story: Story, anomalies: Anomalies) -> None:
    ends: dict[int, int] = {}  # Halves: when their commit began.
    halves = {send.id for send in story.sends if send.verb == "half"}
    for at, event in enumerate(story.history):
        if event.f == "end" and event.type == INVOKE:
            ends.setdefault(event.id, at)
        if event.f not in READS or event.id == -1:
            continue
        tries = story.tries.get(event.id)
        if event.id == MANGLED or tries is None or tries[0].invoked > at:
            anomalies.add("content-mismatch", at, f"nobody sent what was read: {event}")
        elif all(send.type == FAIL for send in tries):
            anomalies.add("aborted-read", at, f"its send failed, and it was read: {event}")
        elif event.id in halves:
            if story.committed.get(event.id) is False:
                anomalies.add("aborted-read", at, f"rolled back, and read: {event}")
            elif event.f in ("poll", "deliver", "ordered") and ends.get(event.id, at + 1) > at:
                anomalies.add("precommitted-read", at, f"not committed yet: {event}")


def _check_deliveries(story: Story, anomalies: Anomalies) -> None:
    for verb in ("deliver", "ordered"):
        seen: dict[str, set[int]] = defaultdict(set)
        for event in story.history:
            if event.f == verb:
                seen[event.topic].add(event.id)
        for send in story.acked:
            topic = story.places[send.place][0]
            # What is not there is lost, which is worse and has its own name.
            is_there = not story.is_drained or story.copies[send.id]
            is_due = is_there and is_wanted(story, send) and send.verb != "schedule"
            if is_due and topic in seen and send.id not in seen[topic]:
                text = f"no {verb} of {story.history[send.ended]}"
                anomalies.add("unseen", send.ended, text)
