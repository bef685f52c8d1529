"""Bugs planted in the timers, one at a time: tests that let one pass are worth nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import test_delay
import test_timers
from broker_world import BrokerWorld

from skylark.broker.delay import DelayService
from skylark.broker.timers import TimerService
from skylark.errors import SkylarkError
from skylark.store import PutResult, PutStatus
from skylark.store.timer import TimerStore
from skylark.store.timer.store import DueTimer

Planting = Callable[[], contextlib.AbstractContextManager[Any]]


def _swapped(owner: Any, name: str, value: Any) -> Planting:
    return lambda: mock.patch.object(owner, name, value)


def _early(ahead_ms: int) -> Planting:
    real = TimerStore.due
    return _swapped(TimerStore, "due", lambda self, now, most: real(self, now + ahead_ms, most))


def _lose_failed(self: TimerStore, timers: list[DueTimer]) -> None:
    for timer in timers:
        self.finish(timer.queue_offset)


def _done_without_copy(self: TimerService, plans: list[Any]) -> list[PutStatus]:
    self._store.put([self._done([plan.queue_offset for plan in plans])])
    return [PutStatus.PUT_OK] * len(plans)


def _say_nothing(self: TimerService, plans: list[Any]) -> list[PutStatus]:
    copies = [plan.copy for plan in plans if plan.copy is not None]
    return [result.status for result in self._store.put(copies)]


async def _save_before_the_log(self: TimerService) -> None:
    if not self.timers.is_building and self.timers.taken >= self._ready_at:
        snapshot = self.timers.capture(self._physical, "[]")
        snapshot.run()
        self.timers.saved(snapshot)


def _cancel_in_memory(self: TimerService, offsets: list[int]) -> PutResult:
    for offset in offsets:
        self._finish(offset)
    self._is_changed = False
    return PutResult(PutStatus.PUT_OK)


def _skip_failed_level(self: DelayService, level: int, messages: Any, ends: list[int]) -> bool:
    self._store.put_group(messages)
    self._advance(level, ends[-1])
    return True


def _trust_any_offset(self: DelayService) -> None:
    body = self._saved.load()
    for level in range(1, len(self._delays_ms) + 1):
        self._offsets[level] = 0 if body is None else body.offsets.get(level, 0)


def _early_level(self: DelayService, level: int, offset: int, tag: int, at: int, now: int) -> int:
    return tag - 500


BUGS: dict[str, tuple[Planting, Callable[[BrokerWorld], None]]] = {
    "a timer is due half a second early": (
        _early(500),
        lambda world: test_timers.test_a_message_is_delivered_at_the_time_it_names(
            world, "TIMER_DELAY_MS", "1234", 1_234
        ),
    ),
    "a timer whose delivery failed is forgotten": (
        _swapped(TimerStore, "again", _lose_failed),
        test_timers.test_a_delivery_that_fails_is_tried_again_and_neither_lost_nor_doubled,
    ),
    "the word that it is done goes without the message": (
        _swapped(TimerService, "_put", _done_without_copy),
        test_timers.test_a_message_can_be_fired_now_and_comes_once,
    ),
    "the log never learns that a timer is done": (
        _swapped(TimerService, "_put", _say_nothing),
        test_timers.test_a_start_with_the_wheel_lost_delivers_what_is_left_and_nothing_twice,
    ),
    "the state is saved before the log is flushed": (
        _swapped(TimerService, "save", _save_before_the_log),
        test_timers.test_a_timer_counts_as_done_only_when_its_delivery_is_on_the_disk,
    ),
    "a cancel is not written down": (
        _swapped(TimerService, "cancel", _cancel_in_memory),
        test_timers.test_cancelled_messages_never_come_and_are_cancelled_for_good,
    ),
    "what waits long is never written again": (
        _swapped(TimerService, "_roll", lambda self, now_ms: False),
        test_timers.test_what_waits_long_is_written_again_before_its_file_expires,
    ),
    "nothing keeps a file with a timer in it": (
        _swapped(TimerService, "undelivered_from", lambda self: None),
        test_timers.test_a_file_with_a_timer_in_it_is_kept_when_it_expires,
    ),
    "a delayed message whose delivery failed is skipped": (
        _swapped(DelayService, "_put", _skip_failed_level),
        lambda world: (
            test_delay.test_the_delivery_that_fails_is_made_up_for_and_no_other_is_repeated(
                world, 1
            )
        ),
    ),
    "any number in the table is believed": (
        _swapped(DelayService, "load", _trust_any_offset),
        lambda world: (
            test_delay.test_a_table_that_is_damaged_with_its_backup_keeps_nobody_from_starting(
                world, b"{"
            )
        ),
    ),
    "a level is early": (
        _swapped(DelayService, "_due_ms", _early_level),
        test_delay.test_every_level_fires_at_its_time_to_the_millisecond,
    ),
    "what a crash left in doubt is delivered again": (
        _swapped(DelayService, "_is_delivered", lambda self, message, due_ms: False),
        test_delay.test_a_replica_takes_over_where_its_master_was,
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    plant, check = BUGS[name]
    worlds: list[BrokerWorld] = []

    class Recorded(BrokerWorld):
        def __init__(self) -> None:
            super().__init__()
            worlds.append(self)

    world = Recorded()
    try:
        with (
            plant(),
            mock.patch.object(test_delay, "BrokerWorld", Recorded),
            mock.patch.object(test_timers, "BrokerWorld", Recorded),
            pytest.raises((AssertionError, SkylarkError)),
        ):
            check(world)
    finally:
        # The test that failed has left its loops open.
        for made in worlds:
            made.loop.close()
