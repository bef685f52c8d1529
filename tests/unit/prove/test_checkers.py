"""The checkers over small histories made by hand, where the planted ones are too coarse."""

from __future__ import annotations

import pytest

from skylark.errors import ConfigError
from skylark.prove.checkers import locks
from skylark.prove.history import FAIL, INFO, INVOKE, OK, Event, History
from skylark.prove.verdict import Verdict, judge


class Hand:
    """Writes a history, a millisecond for each event unless told otherwise."""

    def __init__(self, **rules: int) -> None:
        self.events: list[Event] = []
        self.now = 0
        for name, value in rules.items():
            self.note("rule", OK, topic=name, off=value)

    def note(self, f: str, type: int = OK, **given: object) -> None:
        self.now += 1
        fields = {"p": -1, "topic": "Proof", "q": 0, "off": -1, "id": -1, "node": "broker-a"}
        times = {"t_mono": self.now, "t_wall": 1_000_000 + self.now}
        self.events.append(Event(**{**fields, **times, **given, "f": f, "type": type}))  # type: ignore[arg-type]

    def send(self, id: int, off: int = -1, type: int = OK, p: int = 0, **given: object) -> None:
        self.note("send", INVOKE, p=p, id=id, **given)
        self.note("send", type, p=p, id=id, off=off, **given)

    def fault(self, kind: str, node: str = "broker-a.0") -> None:
        self.note("fault", INVOKE, topic=kind, node=node)
        self.note("fault", OK, topic=kind, node=node)

    def drain(self, *ids: int) -> None:
        self.note("drain")
        for off, id in enumerate(ids):
            self.note("drain", id=id, off=off)

    def judge(self) -> Verdict:
        return judge(History(self.events))

    def kinds(self) -> list[str]:
        return [one.kind for one in self.judge().anomalies]


# Losses that are allowed.


def test_the_end_of_a_queue_may_be_lost_where_that_is_allowed() -> None:
    hand = Hand(loss_power=100)
    for id in range(4):
        hand.send(id, id)
    hand.fault("power-cut")
    hand.drain(0, 1)
    verdict = hand.judge()
    assert verdict.anomalies == []
    assert (verdict.figures.lost, verdict.figures.lost_as_allowed) == (2, 2)


def test_a_loss_in_the_middle_is_a_hole_although_losses_are_allowed() -> None:
    hand = Hand(loss_power=100)
    for id in range(4):
        hand.send(id, id)
    hand.fault("power-cut")
    hand.drain(0, 1)
    hand.note("drain", id=3, off=3)
    assert "hole" in hand.kinds()


def test_what_is_older_than_allowed_is_lost() -> None:
    hand = Hand(loss_power=100)
    hand.send(0, 0)
    hand.now += 200
    hand.send(1, 1)
    hand.fault("power-cut")
    hand.drain()
    (found,) = hand.judge().anomalies
    assert (found.kind, found.count) == ("lost", 1)
    assert found.faults == ["power-cut broker-a.0 from 206 to 207 ms"]


def test_a_fault_of_another_broker_excuses_nothing() -> None:
    hand = Hand(loss_power=100)
    hand.send(0, 0)
    hand.fault("power-cut", "broker-b.0")
    hand.drain()
    assert hand.kinds() == ["lost"]


def test_after_an_allowed_loss_the_next_message_takes_the_place() -> None:
    hand = Hand(loss_power=100)
    hand.send(1, 0)
    hand.note("deliver", p=20, id=1, off=0)
    hand.fault("power-cut")
    hand.send(2, 0)
    hand.note("deliver", p=20, id=2, off=0)
    hand.drain(2)
    assert hand.kinds() == []


def test_everything_may_be_lost_where_there_was_no_copy() -> None:
    hand = Hand(loss_disk=-1)
    hand.send(1, 0)
    hand.fault("disk-lost")
    hand.drain()
    assert hand.kinds() == []


def test_what_was_seen_and_not_acknowledged_vanishes_only_where_that_is_allowed() -> None:
    for allowed in (0, 1):
        hand = Hand(vanish_disk=allowed)
        hand.send(1, type=INFO)
        hand.note("deliver", p=20, id=1, off=0)
        hand.fault("disk-lost")
        hand.drain()
        assert hand.kinds() == ([] if allowed else ["vanished"])


# Doubt.


def test_an_unknown_send_may_be_there_or_not() -> None:
    for ids in ((), (1,)):
        hand = Hand()
        hand.send(1, type=INFO)
        hand.drain(*ids)
        assert hand.kinds() == []


def test_a_message_may_be_there_as_often_as_it_was_sent_in_doubt() -> None:
    hand = Hand()
    hand.send(1, type=INFO)
    hand.send(1, 1)
    hand.drain(1, 1)
    assert hand.kinds() == []
    hand.note("drain", id=1, off=2)
    assert hand.kinds() == ["duplicate"]


def test_a_delayed_message_may_come_again_after_a_crash_only() -> None:
    for crashes, found in ((False, ["duplicate"]), (True, [])):
        hand = Hand()
        hand.note("schedule", INVOKE, p=40, id=1, off=1_000_001)
        hand.note("schedule", OK, p=40, id=1, off=1_000_001)
        if crashes:
            hand.fault("kill")
        hand.drain(1, 1)
        assert hand.kinds() == found


# Offsets.


def test_a_crash_may_forget_commits_younger_than_the_save_interval() -> None:
    for age_ms, found in ((50, []), (500, ["offset-regression"])):
        hand = Hand(forget_ms=100)
        hand.note("commit", INVOKE, p=30, off=7)
        hand.note("commit", OK, p=30, off=7)
        hand.now += age_ms
        hand.fault("kill")
        hand.note("committed", INVOKE, p=31)
        hand.note("committed", OK, p=31, off=3)
        assert hand.kinds() == found


def test_what_arrives_while_a_process_dies_says_nothing_about_the_next_one() -> None:
    for arrives_late, found in ((True, []), (False, ["offset-regression"])):
        hand = Hand(forget_ms=0 if not arrives_late else 1_000)
        hand.note("committed", INVOKE, p=30)
        if not arrives_late:
            hand.note("committed", OK, p=30, off=42)
            hand.now += 500
        hand.note("fault", INVOKE, p=-1, topic="power-cut", node="broker-a.0")
        if arrives_late:
            hand.note("committed", OK, p=30, off=42)
        hand.note("committed", INVOKE, p=30)
        hand.note("committed", OK, p=30, off=0)
        hand.note("fault", OK, p=-1, topic="power-cut", node="broker-a.0")
        assert hand.kinds() == found


def test_a_reset_may_move_progress_back() -> None:
    hand = Hand()
    hand.note("commit", OK, p=30, off=7)
    hand.note("reset", OK, off=2)
    hand.note("committed", INVOKE, p=31)
    hand.note("committed", OK, p=31, off=2)
    assert hand.kinds() == []


def test_a_question_asked_before_a_commit_may_be_answered_without_it() -> None:
    hand = Hand()
    hand.note("committed", INVOKE, p=31)
    hand.note("commit", OK, p=30, off=7)
    hand.note("committed", OK, p=31, off=3)
    assert hand.kinds() == []


# Appends.


def test_two_sends_at_once_may_be_stored_in_either_order() -> None:
    hand = Hand()
    hand.note("send", INVOKE, p=0, id=1)
    hand.note("send", INVOKE, p=1, id=2)
    hand.note("send", OK, p=0, id=1, off=1)
    hand.note("send", OK, p=1, id=2, off=0)
    hand.drain(2, 1)
    assert hand.kinds() == []


def test_an_end_asked_for_before_an_acknowledgement_need_not_count_it() -> None:
    hand = Hand()
    hand.note("max", INVOKE, p=32)
    hand.send(1, 0)
    hand.note("max", OK, p=32, off=0)
    hand.drain(1)
    assert hand.kinds() == []


# Locks.


def lock(hand: Hand, p: int, type: int = OK, verb: str = "lock") -> None:
    hand.note(verb, INVOKE, p=p)
    hand.note(verb, type, p=p)


def test_a_lease_that_ran_out_may_be_taken_over_and_not_before() -> None:
    for pause_ms, found in ((20, []), (2, ["double-lock-owner", "lock-not-linearizable"])):
        hand = Hand(lease_ms=10)
        lock(hand, 1)
        hand.now += pause_ms
        lock(hand, 2)
        assert hand.kinds() == found


def test_a_renewal_makes_the_lease_longer() -> None:
    hand = Hand(lease_ms=10)
    lock(hand, 1)
    hand.now += 6
    lock(hand, 1)
    hand.now += 3
    lock(hand, 2)
    assert "double-lock-owner" in hand.kinds()


def test_a_lock_in_doubt_may_explain_a_refusal_or_not() -> None:
    hand = Hand()
    lock(hand, 1, INFO)
    lock(hand, 2, FAIL)
    assert hand.kinds() == []
    hand = Hand()
    lock(hand, 1, INFO)
    lock(hand, 2)
    assert hand.kinds() == []


def test_a_restart_may_free_locks_that_are_kept_in_memory() -> None:
    for kept, found in ((0, []), (1, ["double-lock-owner", "lock-not-linearizable"])):
        hand = Hand(locks_kept=kept)
        lock(hand, 1)
        hand.fault("kill")
        lock(hand, 2)
        assert hand.kinds() == found


def test_a_refusal_needs_an_owner_at_that_time() -> None:
    hand = Hand()
    lock(hand, 1)
    lock(hand, 1, OK, "unlock")
    lock(hand, 2, FAIL)
    assert hand.kinds() == ["lock-not-linearizable"]


def test_thousands_of_doubtful_locks_are_judged_in_no_time() -> None:
    hand = Hand()
    for number in range(3_000):
        lock(hand, number % 5, INFO)
    lock(hand, 1)
    lock(hand, 2, FAIL)
    assert hand.kinds() == []


def test_what_would_take_too_long_is_said_to_be_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_CONFIGURATIONS_MAX", 1)
    hand = Hand()
    lock(hand, 1, INFO)
    hand.note("lock", INVOKE, p=2)
    hand.note("unlock", INVOKE, p=1)
    hand.note("unlock", OK, p=1)
    verdict = hand.judge()
    assert verdict.is_clean
    (text,) = verdict.undecided
    assert "too many orders explain its answers" in text


# Delivery.


def test_nothing_is_said_about_time_while_a_clock_is_wrong() -> None:
    for kind, found in (("clock", []), ("stop", ["early-delivery"])):
        hand = Hand()
        hand.note("schedule", INVOKE, p=40, id=1, off=1_000_900)
        hand.note("schedule", OK, p=40, id=1, off=1_000_900)
        hand.fault(kind)
        hand.note("deliver", p=20, id=1, off=0)
        assert hand.kinds() == found


# Rules and figures.


def test_a_rule_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="rule 'mercy', which this version does not know"):
        Hand(mercy=1).judge()


def test_the_longest_outage_ends_with_the_last_word_of_a_send() -> None:
    hand = Hand()
    hand.send(1, 0)
    hand.now += 500
    hand.send(2, 1)
    hand.now += 100
    hand.send(3, type=FAIL)
    assert hand.judge().figures.longest_outage_ms == 502


def test_an_empty_history_is_judged_as_well() -> None:
    verdict = judge(History())
    assert verdict.is_clean
    assert verdict.figures.events == 0
