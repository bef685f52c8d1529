"""The timer's own store: what waits comes out in time, once, whatever happens to its files."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from skylark.errors import CorruptRecord, StoreFull
from skylark.store.timer import TimerStore
from skylark.store.timer.log import UNIT_BYTES, TimerLog
from skylark.store.timer.offset_set import OffsetSet
from skylark.store.timer.store import DueTimer, QueueMark
from skylark.store.timer.wheel import FAR_HOURS, HOUR_MS, SLOT_MS, Wheel
from skylark.testing.clock import EPOCH_MS
from skylark.testing.files import SimFiles

DAY_MS = 24 * HOUR_MS
SMALL = UNIT_BYTES * 16


class Owner:
    """Two queues as lists, and a TimerStore that follows them."""

    def __init__(self, files: SimFiles, now_ms: int = EPOCH_MS) -> None:
        self.files = files
        self.now_ms = now_ms
        self.due_at: list[int] = []  # Queue 0: when each is due.
        self.done: list[int] = []  # Queue 1: which are done.
        self.fired: dict[int, int] = {}
        self.open()

    def open(self) -> bool:
        self.timers = TimerStore(self.files, "/timer", file_bytes=SMALL)
        found = self.timers.load(self._fits) is not None
        if not found:
            self.timers.begin(self.now_ms, taken=0, done_taken=0)
        self.catch_up()
        return found

    def _fits(self, waiting: QueueMark, done: QueueMark) -> bool:
        return waiting.next_offset <= len(self.due_at) and done.next_offset <= len(self.done)

    def catch_up(self) -> None:
        timers = self.timers
        while timers.done_taken < len(self.done):
            timers.finish(self.done[timers.done_taken])
            timers.done_taken += 1
        while timers.taken < len(self.due_at):
            offset = timers.taken
            timers.take(offset, self.due_at[offset] if timers.wants(offset) else None)

    def add(self, due_ms: int) -> None:
        self.due_at.append(due_ms)
        self.catch_up()

    def cancel(self, offset: int) -> None:
        self.done.append(offset)
        self.catch_up()

    def fire(self) -> int:
        count = 0
        while True:
            self.catch_up()
            found = self.timers.due(self.now_ms, 7)
            for timer in found:
                assert timer.due_ms <= self.now_ms, "early"
                assert timer.queue_offset not in self.fired, "twice"
                assert timer.due_ms == self.due_at[timer.queue_offset]
                self.fired[timer.queue_offset] = self.now_ms
                self.done.append(timer.queue_offset)
                self.timers.finish(timer.queue_offset)
                count += 1
            self.timers.tend()
            at_ms = self.timers.next_at_ms()
            if not found and (at_ms is None or at_ms > self.now_ms):
                return count

    def save(self) -> None:
        snapshot = self.timers.capture(lambda queue, offset: offset, "")
        snapshot.run()
        self.timers.saved(snapshot)

    def check(self) -> None:
        """What is due has fired, what is not has not, but for what was cancelled."""
        for offset, due_ms in enumerate(self.due_at):
            if offset in self.done and offset not in self.fired:
                continue
            assert (offset in self.fired) == (due_ms <= self.now_ms), (offset, due_ms, self.now_ms)


@pytest.mark.parametrize("seed", range(12))
def test_timers_fire_once_and_in_time_over_a_year_of_restarts(seed: int) -> None:
    rng = random.Random(seed)
    owner = Owner(SimFiles(page_bytes=4096))
    for _ in range(220):
        for _ in range(rng.randrange(6)):
            span = rng.choice((SLOT_MS, 5_000, HOUR_MS, DAY_MS, 40 * DAY_MS, 366 * DAY_MS))
            owner.add(owner.now_ms + rng.randrange(-1_000, span))
        waiting = [o for o in range(len(owner.due_at)) if o not in owner.done]
        if waiting and rng.random() < 0.3:
            owner.cancel(rng.choice(waiting))
        if rng.random() < 0.3:
            owner.save()
        if rng.random() < 0.2:
            owner.open()
        owner.now_ms += rng.choice((0, 1, 40, 99, 100, 5_000, HOUR_MS, 3 * DAY_MS))
        owner.fire()
        owner.check()
    owner.now_ms += 367 * DAY_MS
    owner.fire()
    owner.check()
    assert len(owner.timers.pending) == 0
    assert owner.timers.next_at_ms() is None


def test_the_next_call_is_wanted_when_the_next_timer_is_due() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    due = [EPOCH_MS + 37, EPOCH_MS + 38, EPOCH_MS + 5_003, EPOCH_MS + 90 * DAY_MS + 7]
    for due_ms in reversed(due):
        owner.add(due_ms)
    exact = []
    while (at_ms := owner.timers.next_at_ms()) is not None:
        assert at_ms > owner.now_ms
        owner.now_ms = at_ms
        if owner.fire():
            exact.append(at_ms)
    assert exact == due


def test_equal_times_fire_in_the_order_in_which_they_were_sent() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    for _ in range(50):
        owner.add(EPOCH_MS + 2 * HOUR_MS)
    owner.now_ms += 2 * HOUR_MS
    owner.fire()
    assert list(owner.fired) == list(range(50))


def test_what_could_not_be_delivered_is_due_again_and_survives_a_restart() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    owner.add(EPOCH_MS + 1_000)
    owner.add(EPOCH_MS + 9_000)
    owner.now_ms += 2_000
    found = owner.timers.due(owner.now_ms, 10)
    assert [timer.queue_offset for timer in found] == [0]
    owner.timers.again(found)
    assert owner.timers.due(owner.now_ms + 100, 10) == found
    owner.timers.again(found)
    owner.save()
    assert owner.open()
    owner.fire()
    assert list(owner.fired) == [0]


def test_a_timer_that_is_postponed_lets_others_pass() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    owner.add(EPOCH_MS + 1_000)
    owner.add(EPOCH_MS + 2_000)
    owner.now_ms += 1_500
    (stubborn,) = owner.timers.due(owner.now_ms, 10)
    owner.timers.postpone(stubborn.queue_offset, owner.now_ms + 60_000)
    owner.now_ms += 1_000
    assert [t.queue_offset for t in owner.timers.due(owner.now_ms, 10)] == [1]
    owner.timers.finish(1)
    assert [t.queue_offset for t in owner.timers.due(owner.now_ms + 59_500, 10)] == [0]


def test_a_slot_with_more_timers_than_fit_in_memory_is_read_in_parts() -> None:
    owner = Owner(SimFiles(page_bytes=1 << 16))
    owner.timers = TimerStore(owner.files, "/timer", file_bytes=UNIT_BYTES << 14)
    owner.timers.begin(EPOCH_MS, taken=0, done_taken=0)
    owner.due_at = [EPOCH_MS + DAY_MS + n % 90 for n in range(20_000)]
    owner.catch_up()
    owner.now_ms += DAY_MS + 45
    while not (found := owner.timers.due(owner.now_ms, 1)):
        assert owner.timers.next_at_ms() == 0
    owner.timers.again(found)
    assert len(owner.timers._heap) < 5_000
    owner.now_ms += 50
    owner.fire()
    assert len(owner.fired) == 20_000


def test_a_wall_clock_that_was_set_back_makes_nothing_early_and_nothing_stuck() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    owner.add(EPOCH_MS + 30 * DAY_MS)
    owner.now_ms += 10 * DAY_MS
    owner.fire()
    owner.now_ms -= 9 * DAY_MS
    owner.add(owner.now_ms + 1_000)
    owner.fire()
    assert owner.fired == {}
    owner.now_ms += 1_000
    owner.fire()
    owner.now_ms += 30 * DAY_MS
    owner.fire()
    assert sorted(owner.fired) == [0, 1]
    owner.check()


def test_a_saved_state_that_is_damaged_is_built_again_from_the_queues() -> None:
    for damage in ("flip", "cut", "empty", "log", "lost"):
        owner = Owner(SimFiles(page_bytes=4096))
        for number in range(40):
            owner.add(EPOCH_MS + 1_000 + number * 7_000)
        owner.cancel(3)
        owner.save()
        files = owner.files
        if damage == "flip":
            files.flip_bit("/timer/state", 40)
        elif damage == "cut":
            files.truncate("/timer/state", 50)
        elif damage == "empty":
            files.truncate("/timer/state", 0)
        elif damage == "lost":
            files.remove("/timer/log/" + files.list_names("/timer/log")[0])
        else:
            name = files.list_names("/timer/log")[1]
            files.flip_bit(f"/timer/log/{name}", UNIT_BYTES + 9)
        owner.open()
        owner.now_ms += 20_000
        if damage == "log":
            owner.now_ms += DAY_MS
            with pytest.raises(CorruptRecord):
                owner.fire()
            owner.timers.begin_again(owner.now_ms)
        owner.now_ms += DAY_MS
        owner.fire()
        assert sorted(owner.fired) == [n for n in range(40) if n != 3], damage


def test_a_state_is_not_read_beside_a_log_that_was_begun_anew() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    owner.add(EPOCH_MS + HOUR_MS)
    late = owner.timers.capture(lambda queue, offset: offset, "")
    owner.timers.begin_again(owner.now_ms)
    owner.catch_up()
    for number in range(30):
        owner.add(EPOCH_MS + HOUR_MS * number)
    late.run()  # Another thread was about to write it.
    owner.timers.saved(late)
    assert not owner.open()
    owner.now_ms += 40 * HOUR_MS
    owner.fire()
    assert len(owner.fired) == 31


def test_files_of_the_log_go_when_all_of_their_timers_are_done() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    for _ in range(200):
        owner.add(owner.now_ms + 500)
        owner.now_ms += 100
        owner.fire()
        if len(owner.due_at) % 20 == 0:
            owner.save()
    assert owner.timers.log.file_count <= 3
    assert owner.open()
    owner.now_ms += 1_000
    owner.fire()
    owner.check()


def test_a_full_disk_is_told_and_the_timer_is_taken_later() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    owner.files.fail("create", "/timer/log/*", error=28)
    with pytest.raises(StoreFull):
        owner.add(EPOCH_MS + 1_000)
    assert owner.timers.taken == 0
    owner.now_ms += 1_000
    owner.fire()
    assert list(owner.fired) == [0]


def test_upcoming_timers_are_listed_in_the_order_of_their_times() -> None:
    owner = Owner(SimFiles(page_bytes=4096))
    rng = random.Random(5)
    for _ in range(100):
        owner.add(EPOCH_MS + rng.randrange(300 * DAY_MS))
    owner.cancel(17)
    expected = sorted(
        DueTimer(due_ms, offset) for offset, due_ms in enumerate(owner.due_at) if offset != 17
    )
    found: list[DueTimer] = []
    while page := owner.timers.upcoming(found[-1] if found else DueTimer(0, -1), 9, 10_000):
        found += page
    assert found == expected


def test_a_hundred_thousand_timers_over_a_year() -> None:
    owner = Owner(SimFiles(page_bytes=1 << 20))
    owner.timers = TimerStore(owner.files, "/timer", file_bytes=UNIT_BYTES << 18)
    owner.timers.begin(EPOCH_MS, taken=0, done_taken=0)
    rng = random.Random(7)
    owner.due_at = [EPOCH_MS + rng.randrange(365 * DAY_MS) for _ in range(100_000)]
    owner.catch_up()
    timers = owner.timers
    fired = 0
    while (at_ms := timers.next_at_ms()) is not None:
        owner.now_ms = max(owner.now_ms, at_ms)
        for timer in timers.due(owner.now_ms, 64):
            assert timer.due_ms == owner.now_ms, "not exact"
            timers.finish(timer.queue_offset)
            fired += 1
        timers.tend()
    assert fired == 100_000


def test_what_waits_takes_a_few_bits_of_memory() -> None:
    timers = TimerStore(SimFiles(page_bytes=1 << 20), "/timer", file_bytes=UNIT_BYTES << 17)
    timers.begin(EPOCH_MS, taken=0, done_taken=0)
    timers.take(0, EPOCH_MS + 300 * DAY_MS)  # The file in which they lie is not what is measured.
    tracemalloc.start()
    for offset in range(1, 50_000):
        timers.take(offset, EPOCH_MS + HOUR_MS * 3 + offset * 150)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100 << 10  # Two bytes each would be the whole of it.
    assert len(timers.pending) == 50_000


def test_an_offset_set_is_a_set() -> None:
    rng = random.Random(3)
    ours, model = OffsetSet(), set[int]()
    for _ in range(5_000):
        offset = rng.choice((rng.randrange(3_000), rng.randrange(10**9)))
        if rng.random() < 0.6:
            ours.add(offset)
            model.add(offset)
        else:
            assert ours.discard(offset) == (offset in model)
            model.discard(offset)
        assert (offset in ours) == (offset in model)
    assert list(ours.iterate()) == sorted(model)
    assert list(ours.iterate(1_500)) == sorted(o for o in model if o >= 1_500)
    again, end = OffsetSet.decode(b"xx" + ours.encode(), 2)
    assert list(again.iterate()) == sorted(model)
    assert len(again) == len(model) == len(ours)
    assert end == 2 + len(ours.encode())


@pytest.mark.parametrize("cut", [1, 5, 60, 139])
def test_an_offset_set_that_is_cut_off_is_refused(cut: int) -> None:
    ours = OffsetSet()
    ours.add(7)
    with pytest.raises(CorruptRecord):
        OffsetSet.decode(ours.encode()[:cut], 0)


def test_a_wheel_is_read_as_it_was_written() -> None:
    wheel = Wheel(EPOCH_MS // SLOT_MS)
    rng = random.Random(1)
    heads = {}
    for number in range(300):
        ring, slot = wheel.place(EPOCH_MS + rng.randrange(2 * FAR_HOURS * HOUR_MS))
        ring[slot] = number + 1
        heads[(ring is wheel.near, slot)] = number + 1
    again, _ = Wheel.decode(wheel.encode(), 0)
    assert again.slot == wheel.slot
    for (is_near, slot), head in heads.items():
        assert (again.near if is_near else again.far)[slot] == head


def test_a_unit_that_is_not_there_is_told_from_one_that_is() -> None:
    log = TimerLog(SimFiles(page_bytes=4096), "/timer", SMALL)
    positions = [log.append(0, number, number) for number in range(40)]
    assert [log.read(position).due_ms for position in positions] == list(range(40))
    for position in (0, 7, SMALL, log.end, 10**9):
        with pytest.raises(CorruptRecord):
            log.read(position)
