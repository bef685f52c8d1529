"""Verdicts: how a handler says what shall become of its messages.

    a handler …               concurrent                       orderly
    returns                   done                             done
    raises RetryLater         delivered again, after the       same as Suspend
                              broker's delay or the one given
    raises Suspend            same as RetryLater               the queue waits, the same again
    raises ToDlq              to the dead letters at once      to the dead letters at once
    raises anything else      as RetryLater, and logged        as Suspend, and logged
    returns a Verdict         what it says

A group tries 16 times unless told otherwise; orderly consumers try for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from ..errors import ConfigError

DELAY_LEVELS_MS: Final = tuple(
    seconds * 1000
    for seconds in (
        *(1, 5, 10, 30),
        *(minutes * 60 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(3600, 7200),
    )
)
"""What levels 1 to 18 mean, unless an operator has changed messageDelayLevel."""

BROKER_DECIDES: Final = 0
SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000


class Fate(Enum):
    """What shall become of a batch."""

    DONE = "done"
    RETRY = "retry"
    SUSPEND = "suspend"
    DEAD = "dead"
    # Orderly consumers that commit by themselves, as old RocketMQ programs do:
    HOLD = "hold"  # Done, and not to be committed yet.
    COMMIT = "commit"  # Commit this and all that was held.
    ROLL_BACK = "roll back"  # All that was held comes again.

    @property
    def is_success(self) -> bool:
        """Whether the handler was content."""
        return self in (Fate.DONE, Fate.HOLD, Fate.COMMIT)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What shall become of a batch; those before `acked` are done in any case."""

    fate: Fate = Fate.DONE
    delay_level: int = BROKER_DECIDES
    pause_ms: int | None = None  # None for what the consumer is configured to.
    acked: int = 0


DONE: Final = Verdict()


class Signal(Exception):
    """Raised by a handler to say what shall become of its messages; not an error."""

    @property
    def verdict(self) -> Verdict:
        """The same as a value."""
        raise NotImplementedError


class RetryLater(Signal):
    """Deliver again: after the broker's growing delay, or after about the one given.

    `delay` is a timedelta or seconds and is rounded up to one of the broker's levels; `level` is
    one of them. `acked` says how many messages at the front of a batch are done all the same.
    """

    def __init__(
        self, delay: timedelta | float | None = None, *, level: int | None = None, acked: int = 0
    ) -> None:
        if delay is not None and level is not None:
            raise ConfigError("give RetryLater a delay or a level, not both")
        if level is not None and not 0 <= level <= len(DELAY_LEVELS_MS):
            raise ConfigError(f"delay level {level}: it must be 1 to 18, or 0 for the broker's own")
        self.delay = delay
        self.level = level_of(delay) if delay is not None else level or BROKER_DECIDES
        self.acked = acked
        super().__init__(f"again later, delay level {self.level}")

    @property
    def verdict(self) -> Verdict:
        """The same as a value."""
        pause_ms = None if self.delay is None else _milliseconds(self.delay)
        return Verdict(Fate.RETRY, delay_level=self.level, pause_ms=pause_ms, acked=self.acked)


class Suspend(Signal):
    """Keep the queue waiting for a moment, then hand out the same messages again."""

    def __init__(self, delay: timedelta | float | None = None) -> None:
        self.delay = delay
        super().__init__("the queue waits")

    @property
    def verdict(self) -> Verdict:
        """The same as a value."""
        pause_ms = None if self.delay is None else _milliseconds(self.delay)
        return Verdict(Fate.SUSPEND, pause_ms=pause_ms)


class ToDlq(Signal):
    """Give up on these messages: they go to the group's dead letters at once."""

    def __init__(self, reason: str = "", *, acked: int = 0) -> None:
        self.reason = reason
        self.acked = acked
        super().__init__(reason or "to the dead letters")

    @property
    def verdict(self) -> Verdict:
        """The same as a value."""
        return Verdict(Fate.DEAD, delay_level=-1, acked=self.acked)


def verdict_of(error: BaseException) -> Verdict:
    """What an exception out of a handler stands for."""
    return error.verdict if isinstance(error, Signal) else Verdict(Fate.RETRY)


def level_of(delay: timedelta | float) -> int:
    """The smallest delay level that is not shorter than a delay; the longest for longer ones."""
    place = bisect_left(DELAY_LEVELS_MS, _milliseconds(delay))
    return min(place + 1, len(DELAY_LEVELS_MS))


def _milliseconds(delay: timedelta | float) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds < 0:
        raise ConfigError(f"a delay of {seconds} s; it may not be negative")
    return int(seconds * 1000)
