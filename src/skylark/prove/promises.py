"""Promises: what SEND_OK means under a configuration, in words and as rules for the judge.

                                 process killed   power lost   its disk lost     power lost by all
    alone, ASYNC_FLUSH           kept             the end      nothing is kept   the end
    alone, SYNC_FLUSH            kept             kept         nothing is kept   kept
    ASYNC_MASTER, ASYNC_FLUSH    kept             the end      the end           the end
    ASYNC_MASTER, SYNC_FLUSH     kept             kept         the end           kept
    SYNC_MASTER, ASYNC_FLUSH     kept             kept         kept              the end
    SYNC_MASTER, SYNC_FLUSH      kept             kept         kept              kept
    Raft, 3 members and more     kept             kept         kept              kept

The end: what was acknowledged in the last moments, always the end of each queue. tests/simulation/
test_reliability_classes.py shows the classic rows on virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .story import A_SUFFIX, EVERYTHING

# A busy machine's delay between the moment something is due and the moment it is done.
SLACK_MS: Final = 3_000
RAFT_MEMBERS_MIN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of a configuration decides what is promised."""

    kind: str  # alone | async | sync | raft
    members: int
    is_sync_flush: bool  # On every machine.
    flush_interval_ms: int
    thorough_interval_ms: int  # By then also less than a few pages are flushed.
    save_interval_ms: int
    sync_interval_ms: int  # A replica copies tables so often.
    lease_ms: int

    @property
    def window_ms(self) -> int:
        """How old an acknowledged message can be that is not on the disk yet."""
        return max(self.flush_interval_ms, self.thorough_interval_ms)


@dataclass(frozen=True, slots=True)
class Promise:
    """One event that a cluster meets, and what it may cost."""

    event: str
    fault: str  # The fault that tries it.
    loss: int  # As in story.py.
    words: str

    @property
    def is_kept(self) -> bool:
        """Whether nothing that was acknowledged may be lost."""
        return self.loss == 0


def promises(facts: Facts) -> list[Promise]:
    """What is promised, event by event."""
    end = (
        f"the last {facts.flush_interval_ms} ms may be lost (up to {facts.window_ms} ms where "
        "little was sent), always the end of a queue"
    )
    on_its_way = "what was on its way to the replica may be lost, always the end of a queue"
    kept = "everything is kept"
    goes_on = kept if facts.kind != "raft" else "everything is kept, and writes go on"
    power = 0 if facts.is_sync_flush or facts.kind == "raft" else facts.window_ms
    one_power = 0 if facts.kind == "sync" else power
    disk, disk_words = {
        "alone": (EVERYTHING, "everything is lost: there is no copy"),
        "async": (A_SUFFIX, on_its_way),
    }.get(facts.kind, (0, goes_on))
    if facts.kind == "raft" and facts.members < RAFT_MEMBERS_MIN:
        disk, disk_words = EVERYTHING, "may be lost: fewer than three members are no majority"
        goes_on = kept
    return [
        Promise("a process is killed", "kill", 0, goes_on),
        Promise("one machine loses power", "power-cut", one_power, end if one_power else goes_on),
        Promise("one machine loses its disk", "disk-lost", disk, disk_words),
        Promise("all machines lose power", "all-power-cut", power, end if power else kept),
    ]


EVERYWHERE: Final = (
    "per queue, messages keep the order in which they were stored",
    "at least once: nothing acknowledged is left out, some may come twice",
    "nothing is delivered before its time, and no half message before its commit",
    "committed offsets never go back but by a reset, or for a save interval after a crash",
)


def rules(facts: Facts) -> dict[str, int]:
    """The same for the judge."""
    loss = {promise.fault: promise.loss for promise in promises(facts)}
    is_raft = facts.kind == "raft"
    may_vanish = int(not facts.is_sync_flush and not is_raft)
    slack_ms = SLACK_MS
    return {
        "loss_kill": 0,
        "loss_power": _with_slack(loss["power-cut"], slack_ms),
        "loss_disk": loss["disk-lost"],
        "loss_all_power": _with_slack(loss["all-power-cut"], slack_ms),
        "vanish_power": may_vanish,
        # A message that only the lost disk had was never acknowledged, and may have been seen.
        "vanish_disk": int(not is_raft),
        "vanish_all_power": may_vanish,
        # In a Raft group an answered commit is agreed.
        "forget_ms": 0
        if is_raft
        else max(facts.save_interval_ms, facts.sync_interval_ms) + slack_ms,
        "lease_ms": facts.lease_ms,
        "locks_kept": int(is_raft),
        "late_ms": 10_000,
    }


def _with_slack(loss: int, slack_ms: int) -> int:
    return loss + slack_ms if loss > 0 else loss
