"""Every write of the timer's own files is the last one before a power cut, in turn.

The commit log is the truth and is not cut here: whatever is left of wheel, log and state, the timer
that starts on it fires what is not done, at its time, and nothing that is.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from unittest import mock

import pytest

from skylark.errors import CorruptRecord
from skylark.store.timer import Snapshot, TimerStore
from skylark.store.timer.log import UNIT_BYTES, TimerLog, Unit
from skylark.testing.clock import EPOCH_MS
from skylark.testing.files import SimFiles

STATES_MIN = 300


@dataclass
class Truth:
    """What the commit log says: when each timer is due, and which are done."""

    due_ms: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Moment:
    """How long the trace was, how far the truth had come, and what time it was."""

    length: int
    due_count: int
    done_count: int
    now_ms: int


def opened(files: SimFiles, truth: Truth, now_ms: int) -> TimerStore:
    timers = TimerStore(files, "/timer", file_bytes=UNIT_BYTES * 8)
    text = timers.load(
        lambda waiting, done: (
            waiting.next_offset <= len(truth.due_ms) and done.next_offset <= len(truth.done)
        )
    )
    if text is None:
        timers.begin(now_ms, taken=0, done_taken=0)
    return timers


def follow(timers: TimerStore, truth: Truth) -> None:
    while timers.done_taken < len(truth.done):
        timers.finish(truth.done[timers.done_taken])
        timers.done_taken += 1
    while timers.taken < len(truth.due_ms):
        offset = timers.taken
        timers.take(offset, truth.due_ms[offset] if timers.wants(offset) else None)


def fire(timers: TimerStore, truth: Truth, now_ms: int) -> list[int]:
    fired: list[int] = []
    while True:
        try:
            follow(timers, truth)
            found = timers.due(now_ms, 5)
            timers.tend()
        except CorruptRecord:
            timers.begin_again(now_ms)
            continue
        for timer in found:
            assert timer.due_ms <= now_ms, "early"
            assert timer.queue_offset not in truth.done, "twice"
            truth.done.append(timer.queue_offset)
            timers.finish(timer.queue_offset)
            fired.append(timer.queue_offset)
        at_ms = timers.next_at_ms()
        if not found and (at_ms is None or at_ms > now_ms):
            return fired


def script(seed: int) -> tuple[SimFiles, Truth, list[Moment]]:
    rng = random.Random(seed)
    files = SimFiles(recording=True)
    files.make_directory("/timer")
    truth, moments, now_ms = Truth(), [], EPOCH_MS
    timers = opened(files, truth, now_ms)
    for step in range(40):
        for _ in range(rng.randrange(4)):
            span = rng.choice((200, 2_000, 3_600_000, 9 * 3_600_000))
            truth.due_ms.append(now_ms + rng.randrange(span))
        fire(timers, truth, now_ms)
        if rng.random() < 0.5:
            snapshot = timers.capture(lambda queue, offset: offset, "[]")
            snapshot.run()
            timers.saved(snapshot)
        if step == 25:
            timers.begin_again(now_ms)
        files.observe()
        moments.append(Moment(len(files.trace), len(truth.due_ms), len(truth.done), now_ms))
        now_ms += rng.choice((50, 150, 1_000, 1_800_000))
    return files, truth, moments


def sweep(seed: int) -> int:
    files, truth, moments = script(seed)
    trace = list(files.trace)
    disk = SimFiles()
    states = 0
    for number, change in enumerate(trace, 1):
        disk.apply(change)
        moment = next((m for m in moments if m.length >= number), moments[-1])
        for _, state in disk.crash_states(subsets=1, seed=number):
            left = Truth(truth.due_ms[: moment.due_count], truth.done[: moment.done_count])
            before = set(left.done)
            timers = opened(state, left, moment.now_ms)
            fire(timers, left, moment.now_ms)
            fire(timers, left, moment.now_ms + 24 * 3_600_000)
            assert set(left.done) == set(range(moment.due_count)), f"lost at {number}"
            assert len(left.done) == len(set(left.done))
            assert before <= set(left.done)
            states += 1
    return states


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_after_any_write_of_the_timers_files_loses_and_repeats_nothing(
    seed: int,
) -> None:
    assert sweep(seed) >= STATES_MIN


def _state_before_units(snapshot: Snapshot) -> None:
    snapshot.replace(snapshot.content)


def _read_unchecked(log: TimerLog, position: int) -> Unit:
    file = log._mapped.at(position)
    assert file is not None
    return Unit._make(struct.unpack_from(">qqq", file.buffer, position - file.start))


def _drop_too_much(timers: TimerStore, snapshot: Snapshot) -> None:
    timers.log.drop_before(timers.log.end)


def _found(seeds: int) -> bool:
    for seed in range(seeds):
        try:
            sweep(seed)
        except AssertionError:
            return True
    return False


def test_units_that_are_not_there_yet_are_told_by_their_checksum() -> None:
    """A state that is ahead of its units does no harm, as long as units are checked."""
    with (
        mock.patch.object(Snapshot, "run", _state_before_units),
        mock.patch.object(TimerLog, "read", _read_unchecked),
    ):
        assert _found(3)


def test_files_that_go_too_early_are_missed() -> None:
    with mock.patch.object(TimerStore, "saved", _drop_too_much):
        assert _found(3)
