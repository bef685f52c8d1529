"""Was each lock held by one client at a time?

Twice: by intervals, which gives the plainest example, and by search (Wing and Gong, with Lowe's
memo), which also judges refusals and unknown answers.

    operation     possible when                      afterwards
    lock ok       nobody has it, or the client       the client has it
    lock fail     somebody else has it               unchanged
    unlock        always                             free, if the client had it
    expiry        the client has it                  free; from a lease after the question on

Unknown answers and expiries may happen later, or never; the client's next answer settles them. What
a broker's restart does to locks is a rule: where they are kept in memory only, it may free them.
"""

from __future__ import annotations

from typing import NamedTuple

from ..anomalies import Anomalies
from ..history import FAIL, INFO, INVOKE, OK, Event
from ..story import Story

_CONFIGURATIONS_MAX = 20_000
FREE = -1
_OPENS, _ENDS, _GOES = range(3)


class Operation(NamedTuple):
    """One call, or something that may happen by itself."""

    verb: str
    p: int
    ok: bool
    number: int  # Its first event; expiries have numbers of their own.
    is_optional: bool = False


def check_locks(story: Story, anomalies: Anomalies) -> None:
    """Find locks with two owners, and answers that no order explains."""
    by_lock: dict[int, list[tuple[int, Event]]] = {}
    for at, event in enumerate(story.history):
        if event.f in ("lock", "unlock"):
            by_lock.setdefault(story.place(event.topic, event.q), []).append((at, event))
    for events in by_lock.values():
        _check_intervals(story, anomalies, events)
        _search(story, anomalies, events)


def _check_intervals(story: Story, anomalies: Anomalies, events: list[tuple[int, Event]]) -> None:
    """From the grant to the wish to give back, or the end of the lease as the client counts it."""
    asked: dict[int, int] = {}
    held: dict[int, tuple[int, int]] = {}  # Client → until when, the event of the grant.
    crashes = [] if story.rules.locks_kept else [(f.begin, f.node) for f in story.crashes()]
    for at, event in events:
        while crashes and crashes[0][0] <= at:
            crashes.pop(0)
            held.clear()
        if event.type == INVOKE:
            if event.f == "unlock":
                held.pop(event.p, None)
            else:
                asked[event.p] = event.t_mono
        elif event.f == "lock" and event.type == OK:
            begun = asked.get(event.p, event.t_mono)
            for other, (until, granted) in held.items():
                if other != event.p and event.t_mono < until:
                    text = f"{story.history[granted]} until {until} ms, and {event}"
                    anomalies.add("double-lock-owner", at, text)
            held[event.p] = (begun + story.rules.lease_ms, at)


def _steps(story: Story, events: list[tuple[int, Event]]) -> list[tuple[int, int, Operation]]:
    """What happens to pending operations: the event's number, and that one opens, ends or goes."""
    outcomes: dict[int, tuple[int, Event]] = {}  # By the number of the question.
    asked: dict[tuple[int, str], int] = {}
    for at, event in events:
        if event.type == INVOKE:
            asked[event.p, event.f] = at
        elif (event.p, event.f) in asked:
            outcomes[asked.pop((event.p, event.f))] = (at, event)
    timeline: list[tuple[int, int, int, Operation]] = []
    doubtful: dict[int, list[Operation]] = {}  # Client → what may still happen by itself.
    extra = len(story.history)
    for at, event in events:
        if event.type != INVOKE:
            continue
        end, outcome = outcomes.get(at, (-1, event._replace(type=INFO)))
        is_known = outcome.type != INFO
        operation = Operation(event.f, event.p, outcome.type != FAIL, at, not is_known)
        timeline.append((event.t_mono, at, _OPENS, operation))
        open_ones = doubtful.setdefault(event.p, [])
        if is_known:
            timeline.append((outcome.t_mono, end, _ENDS, operation))
            # A client's requests take effect in order, and each answer settles its lease.
            timeline += [(outcome.t_mono, end, _GOES, one) for one in open_ones]
            open_ones.clear()
        else:
            open_ones.append(operation)
        if event.f == "lock" and outcome.type != FAIL:
            extra += 1
            expiry = Operation("expiry", event.p, True, extra, True)
            timeline.append((event.t_mono + story.rules.lease_ms, -1, _OPENS, expiry))
            open_ones.append(expiry)
    if not story.rules.locks_kept:
        for fault in story.crashes():
            for client in sorted(doubtful):
                extra += 1
                freed = Operation("expiry", client, True, extra, True)
                timeline.append((fault.t_begin, fault.begin, _OPENS, freed))
                timeline.append((fault.t_end + story.rules.lease_ms, -1, _GOES, freed))
    timeline.sort(key=lambda step: step[:3])
    return [(number, what, operation) for _, number, what, operation in timeline]


Configuration = tuple[int, frozenset[int]]  # The owner, and the pending operations that are done.


def _search(story: Story, anomalies: Anomalies, events: list[tuple[int, Event]]) -> None:
    configurations: set[Configuration] = {(FREE, frozenset())}
    pending: dict[int, Operation] = {}
    settled: set[int] = set()
    for number, what, operation in _steps(story, events):
        if what == _OPENS:
            if operation.number not in settled:
                pending[operation.number] = operation
                _drop_alike(pending, operation)
                configurations = _prune(_with_pending(configurations, pending), pending)
        elif what == _GOES:
            settled.add(operation.number)
            pending.pop(operation.number, None)
            configurations = _prune(_without(configurations, operation.number), pending)
        else:
            configurations = _until_done(configurations, pending, operation)
            del pending[operation.number]
            configurations = _prune(_without(configurations, operation.number), pending)
            if not configurations:
                text = f"no order of grants and refusals allows {story.history[number]}"
                anomalies.add("lock-not-linearizable", number, text)
                return  # Whatever comes after starts from a state that nobody knows.
            if len(configurations) > _CONFIGURATIONS_MAX:
                text = f"the lock of {story.history[number]}: too many orders explain its answers"
                anomalies.undecided.append(text)
                return


def _drop_alike(pending: dict[int, Operation], newest: Operation) -> None:
    """Of one client's doubtful calls of a kind, two stand for all: a later one does the same."""
    if newest.is_optional:
        alike = [
            one.number
            for one in pending.values()
            if one.is_optional and (one.verb, one.p) == (newest.verb, newest.p)
        ]
        for number in alike[:-2]:
            del pending[number]


def _with_pending(
    configurations: set[Configuration], pending: dict[int, Operation]
) -> set[Configuration]:
    known = frozenset(pending)
    return {(owner, done & known) for owner, done in configurations}


def _without(configurations: set[Configuration], number: int) -> set[Configuration]:
    return {(owner, done - {number}) for owner, done in configurations}


def _until_done(
    configurations: set[Configuration], pending: dict[int, Operation], wanted: Operation
) -> set[Configuration]:
    """All ways to take pending operations, in any order, until a certain one is taken."""
    found: set[Configuration] = set()
    seen: set[Configuration] = set()
    work = list(configurations)
    while work:
        configuration = work.pop()
        if configuration in seen:
            continue
        seen.add(configuration)
        owner, done = configuration
        if wanted.number in done:
            found.add(configuration)
            continue
        for operation in pending.values():
            if operation.number in done:
                continue
            after = _apply(owner, operation)
            if after is not None:
                work.append((after, done | {operation.number}))
    return found


def _apply(owner: int, operation: Operation) -> int | None:
    """The owner after an operation, or None where it cannot happen now."""
    p = operation.p
    if operation.verb == "lock":
        if operation.ok:
            return p if owner in (FREE, p) else None
        return owner if owner not in (FREE, p) else None
    if operation.verb == "unlock":
        return FREE if owner == p else owner
    return FREE if owner == p else None


def _prune(configurations: set[Configuration], pending: dict[int, Operation]) -> set[Configuration]:
    """Keep what can do the most later: an optional operation that is not used up is no burden."""
    by_key: dict[tuple[int, frozenset[int]], list[frozenset[int]]] = {}
    for owner, done in configurations:
        must = frozenset(n for n in done if not pending[n].is_optional)
        by_key.setdefault((owner, must), []).append(done - must)
    kept: set[Configuration] = set()
    for (owner, must), choices in by_key.items():
        least: list[frozenset[int]] = []
        for used in sorted(choices, key=len):
            if not any(other <= used for other in least):
                least.append(used)
                kept.add((owner, must | used))
    return kept
