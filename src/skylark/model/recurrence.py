"""Recurrence: when something that repeats is due next.

    every 90000                 each 90 seconds, counted from the first time
    cron 0 8 * * 1-5            at 08:00 from Monday to Friday, in a time zone

Five fields are minute, hour, day of month, month, day of week; six begin with the second. A field
is `*` or `?`, a number, a range `1-5`, a step `*/15` or `10-50/10`, or a list of these. Months and
days have names too, Sunday is 0 and 7. Where both days are given either will do, as in every cron.
@yearly, @monthly, @weekly, @daily and @hourly stand for what they say.

When clocks are set forward, what was due in the hour that is left out is due at its end. When they
are set back, what names its hour happens once, and what does not goes on all the time.
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..errors import ConfigError

EVERY_MS_MIN: Final = 100
EVERY_MS_MAX: Final = 366 * 86_400_000
TEXT_MAX: Final = 256

_SEARCH_DAYS: Final = 366 * 9  # Nine years hold every 29 February, even around 2100.
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = [
    "JAN",
    "FEB",
    "MAR",
    "APR",
    "MAY",
    "JUN",
    "JUL",
    "AUG",
    "SEP",
    "OCT",
    "NOV",
    "DEC",
]
_DAYS: Final = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]


_SECOND = _Field("second", 0, 59, {})
_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)


def parse_recurrence(text: str, zone: str = "UTC") -> Recurrence:
    """Understand `every MS` or `cron FIELDS`; raises ConfigError."""
    kind, _, rest = text.strip().partition(" ")
    if len(text) > TEXT_MAX:
        raise ConfigError(f"the rule is {len(text)} characters long, {TEXT_MAX} are allowed")
    if kind == "every":
        rest = rest.strip()
        if not (rest.isascii() and rest.isdigit() and len(rest) <= 12):
            raise ConfigError(f"every {rest[:32]!r} is not a number of milliseconds")
        every_ms = int(rest)
        if not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
            raise ConfigError(
                f"every {every_ms} ms: it must be between {EVERY_MS_MIN} ms and 366 days"
            )
        return Every(every_ms)
    if kind == "cron":
        return Cron.parse(rest, zone)
    raise ConfigError(f"rule {text[:32]!r}: it must begin with every or cron")


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again after the same time."""

    every_ms: int

    def __str__(self) -> str:
        return f"every {self.every_ms}"

    def next_after(self, time_ms: int, last_ms: int | None = None) -> int | None:
        """The first time after a moment; last_ms is one that it was due at."""
        if last_ms is None:
            return time_ms + self.every_ms
        missed = max(0, time_ms - last_ms) // self.every_ms
        return last_ms + (missed + 1) * self.every_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """At times of the day and days of the calendar."""

    text: str
    zone: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # As date.isoweekday() % 7: Sunday is 0.
    is_either_day: bool  # Both days are given, and one of them suffices.

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Cron:
        """Read the fields; raises ConfigError that names the one at fault."""
        words = _MACROS.get(text.strip().lower(), text).split()
        if len(words) not in (5, 6):
            raise ConfigError(
                f"cron {text[:64]!r} has {len(words)} fields; it needs 5 (minute, hour, day of "
                "month, month, day of week), or 6 with the second before them"
            )
        _zone(zone)
        seconds = _numbers(words[0], _SECOND) if len(words) == 6 else frozenset({0})
        sets = [_numbers(word, field) for word, field in zip(words[-5:], _FIELDS, strict=True)]
        rule = cls(
            text=" ".join(words),
            zone=zone,
            seconds=seconds,
            minutes=sets[0],
            hours=sets[1],
            days=sets[2],
            months=sets[3],
            weekdays=frozenset(day % 7 for day in sets[4]),
            is_either_day=words[-3][0] not in "*?" and words[-1][0] not in "*?",
        )
        if rule.next_after(0) is None:
            raise ConfigError(f"cron {text[:64]!r} never comes: there is no such day")
        return rule

    def __str__(self) -> str:
        return f"cron {self.text}"

    def next_after(self, time_ms: int, last_ms: int | None = None) -> int | None:
        """The first time after a moment, None where there is none."""
        zone = _zone(self.zone)
        at = time_ms // 1000 + 1
        end = at + _SEARCH_DAYS * 86_400
        names_hour = len(self.hours) < 24
        local = _local(at, zone)
        # The second before may lie on the other side of a change of the clocks.
        before = _local(at - 1, zone)
        if names_hour and _is_gap(before, local) and self._is_in_gap(before, local):
            return at * 1000
        while at < end:
            if not self._is_day(local):
                following = _next_day(local, at, zone)
            elif local.hour not in self.hours or (names_hour and local.fold):
                following = at + 3600 - local.minute * 60 - local.second
            elif local.minute not in self.minutes:
                following = at + 60 - local.second
            elif local.second not in self.seconds:
                following = at + 1
            else:
                return at * 1000
            then = _local(following, zone)
            if names_hour and _is_gap(local, then):
                change = _first_after_change(at, following, zone)
                before, after = _local(change - 1, zone), _local(change, zone)
                if self._is_in_gap(before, after):
                    return change * 1000
            at, local = following, then
        return None

    def _is_day(self, local: datetime.datetime) -> bool:
        if local.month not in self.months:
            return False
        is_day, is_weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return is_day or is_weekday if self.is_either_day else is_day and is_weekday

    def _is_in_gap(self, before: datetime.datetime, after: datetime.datetime) -> bool:
        """Whether it was due at a time that clocks have left out between two moments."""
        moment = before.replace(tzinfo=None) + datetime.timedelta(seconds=1)
        end = after.replace(tzinfo=None)
        while moment < end:
            if self._is_day(moment) and moment.hour in self.hours and moment.minute in self.minutes:
                return True
            moment = moment.replace(second=0) + datetime.timedelta(minutes=1)
        return False


Recurrence = Every | Cron


def _zone(name: str) -> datetime.tzinfo:
    if name == "UTC":
        return datetime.UTC  # It needs no table of zones, which a small system may not have.
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"time zone {name[:64]!r} is not known; write one like Europe/Berlin or UTC"
        ) from None


def _local(at: int, zone: datetime.tzinfo) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, zone)


def _offset_s(local: datetime.datetime) -> float:
    offset = local.utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def _is_gap(before: datetime.datetime, after: datetime.datetime) -> bool:
    return _offset_s(after) > _offset_s(before)


def _next_day(local: datetime.datetime, at: int, zone: datetime.tzinfo) -> int:
    day = datetime.datetime.combine(
        local.date() + datetime.timedelta(days=1), datetime.time(), zone
    )
    # Where clocks change at midnight, a day may begin later than it should.
    return max(at + 1, int(day.timestamp()))


def _first_after_change(low: int, high: int, zone: datetime.tzinfo) -> int:
    offset = _offset_s(_local(low, zone))
    while low + 1 < high:
        middle = (low + high) // 2
        if _offset_s(_local(middle, zone)) == offset:
            low = middle
        else:
            high = middle
    return high


def _numbers(word: str, field: _Field) -> frozenset[int]:
    """The numbers that one field stands for."""
    found: set[int] = set()
    for part in word.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, field, lambda _: None) if slash else 1
        if step < 1:
            raise ConfigError(f"cron: step {step} of the {field.name} is less than 1")
        if span in ("*", "?"):
            first, last = field.low, field.high
        else:
            first_text, dash, last_text = span.partition("-")
            first = _number(first_text, field, field.names.get)
            last = first
            if dash:
                last = _number(last_text, field, field.names.get)
            elif slash:
                last = field.high
        if not field.low <= first <= last <= field.high:
            raise ConfigError(
                f"cron: {part[:32]!r} is not within the {field.name}'s {field.low} to {field.high}"
            )
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, field: _Field, name: Callable[[str], int | None]) -> int:
    named = name(text.upper())
    if named is not None:
        return named
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise ConfigError(f"cron: {text[:32]!r} is not a {field.name}")
    return int(text)
