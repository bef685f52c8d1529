"""Bugs planted in legal histories: what clients would have seen of each, and who must find it.

The first twenty are the reference's list (part 4.5), each as the anomaly that it leaves behind; the
others make every kind of anomaly occur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from legal_histories import LEASE_MS, LegalRun

from skylark.prove.history import FAIL, INVOKE, MANGLED, OK, Event, History

Events = list[Event]
Mutation = Callable[[Events], Events]


class Planted(NamedTuple):
    """A bug, what it does to a history, and what must be found, by whom."""

    name: str
    mutate: Mutation
    kind: str
    checker: str


def history_with(mutate: Mutation, seed: int, **rules: int) -> History:
    """A legal history with one bug in it."""
    return History(mutate(LegalRun(seed, **rules).events))


# Pieces.


def is_final(event: Event) -> bool:
    return event.f in ("drain", "replica", "log")


def first_final(events: Events) -> int:
    return next(at for at, event in enumerate(events) if is_final(event))


def acked(events: Events, f: str = "send") -> Events:
    return [event for event in events if event.f == f and event.type == OK]


def without(events: Events, id: int, *verbs: str) -> Events:
    return [e for e in events if not (e.id == id and e.f in verbs)]


def lose(events: Events, id: int) -> Events:
    """Not in any queue in the end, and nobody has seen it; what lies behind stays where it is."""
    return without(events, id, "drain", "replica", "poll", "deliver", "ordered")


def fault(events: Events, at: int, kind: str, node: str = "broker-a.0") -> Events:
    """Let something happen before an event, and be over at once."""
    here = events[at]
    spot = {"p": -1, "f": "fault", "topic": kind, "q": -1, "off": -1, "id": -1, "node": node}
    pair = [here._replace(type=INVOKE, **spot), here._replace(type=OK, **spot)]
    return [*events[:at], *pair, *events[at:]]


def lose_the_last(kind: str) -> Mutation:
    """After a fault, the last acknowledged message of a queue is gone."""

    def mutate(events: Events) -> Events:
        last = acked(events)[-1]
        events = fault(events, first_final(events), kind)
        return lose(events, last.id)

    return mutate


# The reference's twenty.


def seen_and_vanished(events: Events) -> Events:
    """Read before it was flushed, never acknowledged, gone with the power."""
    seen = next(e for e in reversed(events) if e.f == "poll" and e.id in _sent_once(events))
    events = fault(events, first_final(events), "power-cut")
    return without(events, seen.id, "drain", "replica")


def _sent_once(events: Events) -> set[int]:
    return {event.id for event in events if event.f == "send"}


def in_the_log_only(events: Events) -> Events:
    """The log has it, its queue does not."""
    return without(events, acked(events)[-1].id, "drain", "poll", "deliver", "ordered")


def another_tail(events: Events) -> Events:
    """A replica kept what it should have given up."""
    at = max(i for i, e in enumerate(events) if e.f == "replica" and e.node.endswith("1"))
    return _changed(events, at, id=events[at].id + 1)


def _changed(events: Events, at: int, **fields: object) -> Events:
    return [*events[:at], events[at]._replace(**fields), *events[at + 1 :]]  # type: ignore[arg-type]


def two_leaders(events: Events) -> Events:
    """Two clients were told the same offset by two leaders of one term."""
    first, second = _two_in_a_queue(events)
    return _changed(events, events.index(second), off=first.off)


def _two_in_a_queue(events: Events) -> tuple[Event, Event]:
    found = acked(events)
    for first in found:
        for second in found:
            if first.off < second.off and first.q == second.q and first.id != second.id:
                return first, second
    raise AssertionError("too short a history")


def one_offset_for_two(events: Events) -> Events:
    """Both were told one offset, and the second took the first one's place in the queue."""
    first, second = _two_in_a_queue(events)
    events = without(events, first.id, "drain", "replica", "poll", "deliver", "ordered")
    return [
        e._replace(off=first.off) if e.id == second.id and e.off == second.off else e
        for e in events
    ]


def another_message_at_its_place(events: Events) -> Events:
    """Committed by counting, then overwritten by the next leader."""
    seen = next(e for e in events if e.f == "drain" and any(o.id == e.id for o in acked(events)))
    other = [e for e in acked(events) if e.q == seen.q and e.id != seen.id][-1]
    spot = {"p": 11, "f": "poll", "topic": seen.topic, "q": seen.q, "off": seen.off, "id": other.id}
    at = first_final(events)
    poll = events[at - 1]._replace(type=OK, node="broker-a", **spot)  # type: ignore[arg-type]
    assign = poll._replace(f="assign", id=-1)
    return [*events[:at], assign, poll, *events[at:]]


def one_replica_stands_still(events: Events) -> Events:
    kept = [e for e in events if not (e.f == "replica" and e.node.endswith("1"))]
    short = [e for e in events if e.f == "replica" and e.node.endswith("1")]
    return [*kept, *short[: len(short) // 2]]


def lose_a_scheduled_one(events: Events) -> Events:
    return lose(events, acked(events, "schedule")[-1].id)


def deliver_late(events: Events) -> Events:
    """Everything after a delayed message's time is a minute later, and nothing was broken."""
    events = [e for e in events if e.f != "fault"]
    id = next(e.id for e in events if e.f == "deliver" and e.id >> 32 == 6)
    at = next(i for i, e in enumerate(events) if e.f in ("deliver", "poll") and e.id == id)
    late = [e._replace(t_mono=e.t_mono + 60_000, t_wall=e.t_wall + 60_000) for e in events[at:]]
    return [*events[:at], *late]


def half_seen_too_soon(events: Events) -> Events:
    ended = next(e for e in events if e.f == "end" and e.type == OK)
    at = next(i for i, e in enumerate(events) if e.f == "end" and e.id == ended.id)
    place = next(e for e in events if e.f == "drain" and e.id == ended.id)
    seen = events[at]._replace(f="deliver", type=OK, p=20, q=place.q, off=place.off, id=ended.id)
    return [*events[:at], seen, *events[at:]]


def lose_a_committed_half(events: Events) -> Events:
    return lose(events, next(e.id for e in reversed(events) if e.f == "end" and e.type == OK))


def offsets_go_to_zero(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if e.f == "committed" and e.type == OK and e.off > 0)
    events = fault(events, at - 1, "stop")
    return _changed(events, at + 2, off=0)


def lock_given_twice(events: Events) -> Events:
    """Somebody else is told yes while the first one surely holds the lock."""
    held: dict[int, Event] = {}
    for at, event in enumerate(events):
        owner = held.get(event.q)
        if event.f == "lock" and event.type == OK:
            held[event.q] = event
        elif event.f in ("lock", "unlock") and owner is not None and event.p == owner.p:
            del held[event.q]
        elif event.f == "lock" and event.type == FAIL and owner is not None:
            is_held = event.t_mono < owner.t_mono + LEASE_MS
            if is_held:
                return _changed(events, at, type=OK)
    raise AssertionError("nobody was refused")


def mangled(events: Events) -> Events:
    at = next(i for i, e in enumerate(events) if e.f == "poll")
    return _changed(events, at, id=MANGLED)


def lose_one_of_two(events: Events) -> Events:
    """Taken for a repetition of another's, acknowledged and thrown away."""
    return lose(events, acked(events)[len(acked(events)) // 2].id)


def group_passes_over_one(events: Events) -> Events:
    """Its offset was committed before it was handled."""
    return without(events, acked(events)[-1].id, "deliver")


# The rest.


def stored_twice(events: Events) -> Events:
    last = next(e for e in reversed(events) if e.f == "drain" and any(
        o.id == e.id for o in acked(events)))  # fmt: skip
    again = last._replace(off=10_000)
    return [*events, again]


def failed_and_seen(events: Events) -> Events:
    failed = next(e for e in events if e.f == "send" and e.type == FAIL)
    end = max(e.off for e in events if e.f == "drain" and e.q == failed.q) + 1
    return [*events, events[-1]._replace(f="drain", topic=failed.topic, q=failed.q, off=end,
                                         id=failed.id, node="broker-a")]  # fmt: skip


def rolled_back_and_seen(events: Events) -> Events:
    gone = next(e for e in events if e.f == "end" and e.type == FAIL)
    return [*events, events[-1]._replace(f="drain", topic=gone.topic, q=0, off=9_999, id=gone.id,
                                         node="broker-a")]  # fmt: skip


def poll_goes_back(events: Events) -> Events:
    for at, event in enumerate(events):
        if event.f == "poll" and event.off > 0:
            return [*events[: at + 1], event, *events[at + 1 :]]
    raise AssertionError


def skip_inside(events: Events) -> Events:
    """The middle one of three that came together is missing."""
    for at, event in enumerate(events[:-2]):
        three = events[at : at + 3]
        if all(e.f == "poll" and (e.p, e.q) == (event.p, event.q) for e in three):
            return [*events[: at + 1], *events[at + 2 :]]
    raise AssertionError


def skip_between(events: Events) -> Events:
    polls = [i for i, e in enumerate(events) if e.f == "poll"]
    for at in polls:
        mine = [i for i in polls if i < at and _same_reader(events[i], events[at])]
        if mine and events[mine[-1]].t_mono < events[at].t_mono:
            after = [i for i in polls if i > at and _same_reader(events[i], events[at])]
            is_next = after and events[after[0]].off == events[at].off + 1
            assigned = any(e.f == "assign" for e in events[mine[-1] : after[0] if after else at])
            if is_next and not assigned:
                return [*events[:at], *events[at + 1 :]]
    raise AssertionError


def _same_reader(one: Event, other: Event) -> bool:
    return (one.p, one.q) == (other.p, other.q)


def ordered_out_of_order(events: Events) -> Events:
    places = [i for i, e in enumerate(events) if e.f == "ordered"]
    for at in places:
        later = [i for i in places if i > at and events[i].q == events[at].q
                 and events[i].off == events[at].off + 1]  # fmt: skip
        if events[at].off > 0 and later:
            one, other = events[at], events[later[0]]
            events = _changed(events, at, off=other.off, id=other.id)
            return _changed(events, later[0], off=one.off, id=one.id)
    raise AssertionError


def sent_out_of_order(events: Events) -> Events:
    """One producer's two messages have changed places in the log."""
    mine = {}
    for event in acked(events):
        key = (event.p, event.q)
        if key in mine:
            return _exchanged(events, mine[key], event)
        mine[key] = event
    raise AssertionError


def stored_in_front(events: Events) -> Events:
    """Sent after another producer's was acknowledged, and stored in front of it."""
    begun = {e.id: i for i, e in enumerate(events) if e.f == "send" and e.type == INVOKE}
    for first in acked(events):
        for second in acked(events):
            is_after = begun[second.id] > events.index(first)
            if first.q == second.q and first.p != second.p and is_after:
                return _exchanged(events, first, second)
    raise AssertionError


def _exchanged(events: Events, first: Event, second: Event) -> Events:
    places = {first.id: second, second.id: first}
    return [
        event._replace(off=places[event.id].off)
        if event.id in places and event.f == "send" and event.type == OK
        else event._replace(id=places[event.id].id)
        if event.id in places and event.f != "send"
        else event
        for event in events
    ]


def stale_end(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if e.f == "max" and e.type == OK and e.off > 3)
    return _changed(events, at, off=1)


def committed_too_far(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if e.f == "commit" and e.type == OK)
    end = max(e.off for e in events if e.f == "drain" and e.q == events[at].q) + 1
    return _changed(events, at, off=end + 3)


def refused_though_free(events: Events) -> Events:
    """A lock that nobody ever had is refused."""
    at = next(i for i, e in enumerate(events) if e.f == "lock" and e.type == OK)
    return _changed(events, at, type=FAIL)


def deliver_early(events: Events) -> Events:
    events = [e for e in events if e.f != "fault"]
    sent = next(e for e in events if e.f == "schedule" and e.type == OK)
    at = events.index(sent) + 1
    place = next(e for e in events if e.f == "drain" and e.id == sent.id)
    seen = events[at - 1]._replace(f="deliver", p=20, q=place.q, off=place.off, id=sent.id)
    return [*events[:at], seen, *events[at:]]


def one_try_too_many(events: Events) -> Events:
    at = next(i for i, e in enumerate(events) if e.f == "dead")
    return [*events[:at], events[at]._replace(f="attempt", off=4), *events[at:]]


def given_up_too_soon(events: Events) -> Events:
    id = next(e.id for e in events if e.f == "dead")
    return [e for e in events if not (e.f == "attempt" and e.id == id and e.off == 3)]


def log_bytes_differ(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if e.f == "log")
    return _changed(events, at, id=78)


BUGS = [
    Planted("acknowledged before it is flushed", lose_the_last("power-cut"), "lost", "set"),
    Planted("flush error swallowed (D1)", lose_the_last("kill"), "lost", "set"),
    Planted("dispatched past the flush (D2)", seen_and_vanished, "vanished", "set"),
    Planted("tail not dispatched again (D3)", in_the_log_only, "lost", "set"),
    Planted("truncated in memory only (H2)", another_tail, "replica-divergence", "replicas"),
    Planted("replica believed without a check (H1)", lose_the_last("disk-lost"), "lost", "set"),
    Planted("a leader without the last entries (R1)", lose_the_last("partition"), "lost", "set"),
    Planted("vote not persisted", two_leaders, "inconsistent-offsets", "offsets"),
    Planted(
        "an old term's entry committed by counting",
        another_message_at_its_place,
        "inconsistent-offsets",
        "offsets",
    ),
    Planted(
        "committed beyond the last (R2)", one_replica_stands_still, "replica-behind", "replicas"
    ),
    Planted(
        "queue offset outside the lock (R6)", one_offset_for_two, "inconsistent-offsets", "offsets"
    ),
    Planted("a failed delayed delivery is passed over (S1)", lose_a_scheduled_one, "lost", "set"),
    Planted("delay progress not clamped (S2)", deliver_late, "late-delivery", "delivery"),
    Planted("half visible", half_seen_too_soon, "precommitted-read", "set"),
    Planted("check loop stops on an error (X2)", lose_a_committed_half, "lost", "set"),
    Planted(
        "offset 0 where none is found (O1)", offsets_go_to_zero, "offset-regression", "offsets"
    ),
    Planted("lock without fencing", lock_given_twice, "double-lock-owner", "locks"),
    Planted("checksum not checked", mangled, "content-mismatch", "set"),
    Planted("suppressed as another's duplicate", lose_one_of_two, "lost", "set"),
    Planted("offsets committed before rows", group_passes_over_one, "unseen", "set"),
    Planted("stored twice", stored_twice, "duplicate", "set"),
    Planted("a refused message is stored", failed_and_seen, "aborted-read", "set"),
    Planted("a rolled back message is shown", rolled_back_and_seen, "aborted-read", "set"),
    Planted("a reader is sent back", poll_goes_back, "nonmonotonic-poll", "order"),
    Planted("an answer leaves one out", skip_inside, "poll-skip-internal", "order"),
    Planted("the next answer starts too late", skip_between, "poll-skip-external", "order"),
    Planted(
        "an ordered group is served out of order", ordered_out_of_order, "order-inversion", "order"
    ),
    Planted(
        "one producer's messages change places", sent_out_of_order, "nonmonotonic-send", "order"
    ),
    Planted(
        "stored in front of what was acknowledged", stored_in_front, "real-time-order", "appends"
    ),
    Planted("asked of a node that is behind", stale_end, "stale-read", "appends"),
    Planted("progress beyond the end", committed_too_far, "offset-beyond-end", "offsets"),
    Planted("a free lock is refused", refused_though_free, "lock-not-linearizable", "locks"),
    Planted("two owners, by search", lock_given_twice, "lock-not-linearizable", "locks"),
    Planted("delivered before its time", deliver_early, "early-delivery", "delivery"),
    Planted("one try too many", one_try_too_many, "retry-count-mismatch", "retries"),
    Planted("given up too soon", given_up_too_soon, "retry-count-mismatch", "retries"),
    Planted("logs that part", log_bytes_differ, "replica-divergence", "replicas"),
]
REFERENCE_COUNT = 20
