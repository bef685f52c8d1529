"""Did messages for later come at their time: never before it, and not long after?

Time is the wall clock of the recorder. While the clock of a broker is wrong, and a while after,
nothing can be said about time; while anything is broken, nothing about lateness.
"""

from __future__ import annotations

from ..anomalies import Anomalies
from ..history import FAIL
from ..story import Story


def check_delivery(story: Story, anomalies: Anomalies) -> None:
    """Find deliveries before and long after their time."""
    due: dict[int, tuple[int, int]] = {}
    for send in story.sends:
        if send.verb == "schedule" and send.type != FAIL:
            due.setdefault(send.id, (send.off, send.t_invoked))
    seen: set[int] = set()
    for at, event in enumerate(story.history):
        if event.f not in ("poll", "deliver", "ordered") or event.id not in due:
            continue
        if event.id in seen:
            continue
        seen.add(event.id)
        due_ms, sent_t = due[event.id]
        due_t = event.t_mono + due_ms - event.t_wall
        late_ms = story.rules.late_ms
        if _is_shaken(story, "clock", sent_t, event.t_mono, late_ms):
            continue
        if event.t_wall < due_ms - story.rules.early_ms:
            text = f"{due_ms - event.t_wall} ms before its time: {event}"
            anomalies.add("early-delivery", at, text)
        elif event.t_wall > due_ms + late_ms and not _is_shaken(
            story, "", due_t - late_ms, event.t_mono, late_ms
        ):
            text = f"{event.t_wall - due_ms} ms after its time: {event}"
            anomalies.add("late-delivery", at, text)


def _is_shaken(story: Story, kind: str, begin_t: int, end_t: int, grace_ms: int) -> bool:
    """Whether a fault, of one kind or any, or its aftermath lies in a span."""
    return any(
        fault.t_begin <= end_t and begin_t <= fault.t_end + grace_ms
        for fault in story.faults
        if not kind or fault.kind == kind
    )
