"""Does an offset mean one message for everybody, and does committed progress only grow?

A crash may forget commits younger than the interval at which a broker saves them; a reset may move
progress anywhere. Nothing may leave progress behind the end of its queue: what comes next would be
passed over (D2).
"""

from __future__ import annotations

from ..anomalies import Anomalies
from ..history import INVOKE, OK
from ..story import READS, Story


def check_offsets(story: Story, anomalies: Anomalies) -> None:
    """Find offsets with two messages, and progress that went back or too far."""
    _check_meaning(story, anomalies)
    _check_progress(story, anomalies)
    _check_ends(story, anomalies)


def _check_meaning(story: Story, anomalies: Anomalies) -> None:
    lying: dict[tuple[int, int], tuple[int, int]] = {}  # Queue, offset → id, event.
    where: dict[int, tuple[int, int]] = {}  # Id → queue, offset, of what was sent once.
    ends = {send.ended for send in story.acked if send.verb == "send"}
    sent_once = {
        id for id, tries in story.tries.items() if len(tries) == 1 and tries[0].verb == "send"
    }
    for at, event in enumerate(story.history):
        is_read = event.f in READS and event.id >= 0
        if not is_read and at not in ends:
            continue
        spot = (story.place(event.topic, event.q), event.off)
        other, seen_at = lying.setdefault(spot, (event.id, at))
        if other != event.id:
            # After a loss that is allowed, the next message takes the free place.
            if not story.is_gone(*spot, other) and not story.is_gone(*spot, event.id):
                text = f"{story.history[seen_at]}, and {event}"
                anomalies.add("inconsistent-offsets", at, text)
            lying[spot] = (event.id, at)
        if event.id in sent_once and event.f != "replica":
            known = where.setdefault(event.id, spot)
            is_moved = story.is_gone(*known, event.id) or story.is_gone(*spot, event.id)
            if known != spot and not is_moved:
                text = f"{story.places[known[0]]}@{known[1]} before, and {event}"
                anomalies.add("inconsistent-offsets", at, text)


def _check_progress(story: Story, anomalies: Anomalies) -> None:
    # What is known to be committed, per queue: (when, offset), the offsets growing.
    floors: dict[int, list[tuple[int, int]]] = {}
    asked: dict[tuple[int, int], int] = {}  # Client, queue → the floor when it asked.
    # At its end once more: an answer may be on its way while the process that gave it dies.
    crashes = sorted(
        (at, fault.t_begin) for fault in story.crashes() for at in (fault.begin, fault.end)
    )
    windows = sorted((fault.begin, fault.end) for fault in story.crashes())
    shrunk = story.shrunk()  # A commit beyond the end that is left is answered, and not taken.
    for at, event in enumerate(story.history):
        while windows and windows[0][1] < at:
            windows.pop(0)
        while crashes and crashes[0][0] <= at:
            _, t_begin = crashes.pop(0)
            due = t_begin - story.rules.forget_ms
            for place, commits in floors.items():
                floors[place] = [commit for commit in commits if commit[0] <= due]
        if event.f not in ("commit", "committed", "reset"):
            continue
        place = story.place(event.topic, event.q)
        commits = floors.setdefault(place, [])
        if event.f == "reset":
            floors[place] = [(event.t_mono, event.off)]
        elif event.f == "committed" and event.type == INVOKE:
            asked[event.p, place] = commits[-1][1] if commits else -1
        elif event.type == OK:
            if event.f == "committed":
                # A crash between question and answer may have lowered what must be answered.
                floor = min(asked.pop((event.p, place), -1), commits[-1][1] if commits else -1)
                if event.off < min(floor, shrunk.get(place, floor)):
                    anomalies.add("offset-regression", at, f"{floor} was committed: {event}")
            is_sure = event.f == "committed" or event.off <= shrunk.get(place, event.off)
            # What arrives while a process dies and comes back may have been said by the dead one.
            is_dying = any(begin <= at <= end for begin, end in windows)
            if is_sure and not is_dying and (not commits or event.off > commits[-1][1]):
                commits.append((event.t_mono, event.off))


def _check_ends(story: Story, anomalies: Anomalies) -> None:
    if not story.is_drained:
        return
    ends = {place: max(queue) + 1 for place, queue in story.final.items()}
    shrunk = story.shrunk()
    last: dict[int, int] = {}
    for at, event in enumerate(story.history):
        if event.f in ("commit", "committed") and event.type == OK and event.off > 0:
            place = story.place(event.topic, event.q)
            last[place] = at
            if event.off > ends.get(place, 0) and place not in shrunk:
                text = f"the queue ends at {ends.get(place, 0)}: {event}"
                anomalies.add("offset-beyond-end", at, text)
    for place, at in last.items():
        event = story.history[at]
        if place in shrunk and event.f == "committed" and event.off > ends.get(place, 0):
            text = f"in the end the queue ends at {ends.get(place, 0)}: {event}"
            anomalies.add("offset-beyond-end", at, text)
