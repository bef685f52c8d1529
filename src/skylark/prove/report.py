"""The report: what was promised, what was tried, what was seen; as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from .anomalies import KINDS as ANOMALIES
from .faults import KINDS as FAULTS
from .promises import EVERYWHERE, Facts, Promise, promises
from .runner import Outcome
from .verdict import Verdict

_KIND_WORDS: Final = {
    "alone": "one broker without a copy",
    "async": "master and replica; the master answers before the replica has it",
    "sync": "master and replica; the master answers when the replica has it",
    "raft": "a Raft group",
}
# Anomalies that take something away, which a promise about a fault speaks of.
_LOSSES: Final = frozenset(("lost", "hole", "vanished", "unseen"))


def promise_lines(facts: Facts) -> Iterator[str]:
    """What a configuration promises."""
    flush = "SYNC_FLUSH" if facts.is_sync_flush else "ASYNC_FLUSH"
    if facts.kind == "raft":
        flush = "on the disks of most before SEND_OK"
    yield f"configuration: {_KIND_WORDS[facts.kind]}, {facts.members} machines, {flush}"
    yield "SEND_OK means that the message survives when"
    for promise in promises(facts):
        yield f"  {promise.event:28}{'yes' if promise.is_kept else 'NO':5}{promise.words}"
    yield "always"
    for words in EVERYWHERE:
        yield f"  {words}"


def promises_json(facts: Facts) -> dict[str, Any]:
    """The same for programs."""
    return {
        "configuration": asdict(facts),
        "promises": [
            {"event": one.event, "kept": one.is_kept, "words": one.words, "fault": one.fault}
            for one in promises(facts)
        ],
        "always": list(EVERYWHERE),
    }


def state_of(promise: Promise, outcome: Outcome) -> str:
    """held, BROKEN, or not tried; what is not promised may have cost something."""
    if promise.fault not in outcome.tried:
        return "not tried"
    for anomaly in outcome.verdict.anomalies:
        is_near = any(fault.startswith(f"{promise.fault} ") for fault in anomaly.faults)
        if anomaly.kind in _LOSSES and is_near:
            return "BROKEN"
    return "held"


def outcome_lines(
    facts: Facts, outcome: Outcome, skipped: Mapping[str, str], *, seed: int, network: str
) -> Iterator[str]:
    """All of it, for people."""
    yield from promise_lines(facts)
    yield ""
    yield f"tried with seed {seed}, network: {network}"
    for kind, count in outcome.tried.items():
        ways = ", ".join(outcome.how.get(kind, []))
        yield f"  {kind:16}{count:4}  {FAULTS[kind]}{f': {ways}' if ways else ''}"
    for kind, reason in skipped.items():
        yield f"  {kind:16}   -  not tried here: {reason}"
    yield ""
    for promise in promises(facts):
        yield f"  {promise.event:28}{state_of(promise, outcome)}"
    yield ""
    yield from figure_lines(outcome.verdict)
    if outcome.back_ms:
        yield f"  back after a fault in {max(outcome.back_ms)} ms at most"
    yield from anomaly_lines(outcome.verdict)
    for problem in outcome.problems:
        yield f"PROBLEM {problem}"
    is_clean = outcome.is_clean
    yield "every promise that was tried held" if is_clean else "NOT everything held"


def figure_lines(verdict: Verdict) -> Iterator[str]:
    """What was counted."""
    figures = verdict.figures
    allowed = f" (all {figures.lost_as_allowed} as allowed)" if figures.lost_as_allowed else ""
    if figures.lost_as_allowed != figures.lost and figures.lost_as_allowed:
        allowed = f" ({figures.lost_as_allowed} as allowed)"
    yield (
        f"  acknowledged {figures.acknowledged} of {figures.sent}, unknown {figures.unknown}, "
        f"refused {figures.refused}"
    )
    yield f"  lost {figures.lost}{allowed}, copies after a doubtful answer {figures.duplicated}"
    yield f"  delivered {figures.delivered}, of these again {figures.delivered_again}"
    yield f"  longest time without an acknowledgement {figures.longest_outage_ms} ms"


def anomaly_lines(verdict: Verdict) -> Iterator[str]:
    """What was found."""
    for anomaly in verdict.anomalies:
        yield f"BROKEN {anomaly.kind}, {anomaly.count} times: {ANOMALIES[anomaly.kind]}"
        yield f"  first: {anomaly.example} (event {anomaly.at + 1}, found by {anomaly.checker})"
        for fault in anomaly.faults[:4]:
            yield f"  around it: {fault}"
    for text in verdict.undecided:
        yield f"NOT DECIDED {text}"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Figures and findings for programs."""
    return {
        "figures": asdict(verdict.figures),
        "anomalies": [asdict(anomaly) for anomaly in verdict.anomalies],
        "undecided": verdict.undecided,
        "clean": verdict.is_clean,
    }


def outcome_json(
    facts: Facts, outcome: Outcome, skipped: Mapping[str, str], *, seed: int, network: str
) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        **promises_json(facts),
        **verdict_json(outcome.verdict),
        "seed": seed,
        "network": network,
        "tried": outcome.tried,
        "how": outcome.how,
        "not_tried": dict(skipped),
        "states": {one.event: state_of(one, outcome) for one in promises(facts)},
        "problems": outcome.problems,
        "back_ms": outcome.back_ms,
        "clean": outcome.is_clean,
    }
