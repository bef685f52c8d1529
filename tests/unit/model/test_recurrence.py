"""When something that repeats is due next: by interval, by cron, around changes of the clocks."""

from __future__ import annotations

import datetime
import random
import zoneinfo

import pytest

from skylark.errors import ConfigError
from skylark.model.recurrence import Cron, Every, parse_recurrence


def at(text: str, zone: str = "UTC") -> int:
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return int(moment.timestamp() * 1000)


def following(rule: str, zone: str, start: str, count: int) -> list[str]:
    cron, time_ms, found = Cron.parse(rule, zone), at(start, zone), []
    for _ in range(count):
        next_ms = cron.next_after(time_ms)
        assert next_ms is not None
        assert next_ms > time_ms
        time_ms = next_ms
        local = datetime.datetime.fromtimestamp(time_ms / 1000, zoneinfo.ZoneInfo(zone))
        found.append(f"{local:%Y-%m-%d %H:%M:%S%z}"[:-2])
    return found


@pytest.mark.parametrize(
    ("rule", "zone", "start", "expected"),
    [
        ("0 8 * * MON-FRI", "Asia/Shanghai", "2026-11-13T12:00",
         ["2026-11-16 08:00:00+08", "2026-11-17 08:00:00+08"]),
        ("*/15 * * * *", "UTC", "2026-11-13T12:50",
         ["2026-11-13 13:00:00+00", "2026-11-13 13:15:00+00"]),
        ("5-10/5,30 12 * * *", "UTC", "2026-11-13T12:04",
         ["2026-11-13 12:05:00+00", "2026-11-13 12:10:00+00", "2026-11-13 12:30:00+00"]),
        ("*/20 * * * * *", "UTC", "2026-11-13T12:00:30",
         ["2026-11-13 12:00:40+00", "2026-11-13 12:01:00+00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00",
         ["2028-02-29 00:00:00+00", "2032-02-29 00:00:00+00"]),
        ("0 0 13 * 5", "UTC", "2026-11-01T00:00",  # The 13th, and every Friday.
         ["2026-11-06 00:00:00+00", "2026-11-13 00:00:00+00", "2026-11-20 00:00:00+00"]),
        ("0 0 * * 7", "UTC", "2026-11-13T00:00", ["2026-11-15 00:00:00+00"]),
        ("@hourly", "UTC", "2026-11-13T00:30", ["2026-11-13 01:00:00+00"]),
        ("@yearly", "UTC", "2026-11-13T00:30", ["2027-01-01 00:00:00+00"]),
        ("0 0 1 jan,jul ?", "UTC", "2026-11-13T00:30",
         ["2027-01-01 00:00:00+00", "2027-07-01 00:00:00+00"]),
        # Clocks go forward: 02:30 does not exist and happens when it would have been over.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00",
         ["2026-03-29 03:00:00+02", "2026-03-30 02:30:00+02"]),
        # Clocks go back: what names its hour happens once.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00",
         ["2026-10-25 02:30:00+02", "2026-10-26 02:30:00+01"]),
        # And what does not goes on all the time.
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:45",
         ["2026-10-25 02:00:00+02", "2026-10-25 02:30:00+02", "2026-10-25 02:00:00+01",
          "2026-10-25 02:30:00+01", "2026-10-25 03:00:00+01"]),
        # A day that begins at one o'clock.
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00",
         ["2018-11-04 01:00:00-02", "2018-11-05 00:00:00-02"]),
    ],
)  # fmt: skip
def test_cron(rule: str, zone: str, start: str, expected: list[str]) -> None:
    assert following(rule, zone, start, len(expected)) == expected


def test_cron_agrees_with_a_walk_through_all_minutes() -> None:
    rng = random.Random(9)
    for _ in range(60):
        fields = [
            rng.choice(("*", "*/7", str(rng.randrange(60)), "3-40/9")),
            rng.choice(("*", "*/5", str(rng.randrange(24)), "2,14")),
            rng.choice(("*", str(rng.randrange(1, 29)), "1-10")),
            rng.choice(("*", str(rng.randrange(1, 13)))),
            rng.choice(("*", str(rng.randrange(7)), "1-5")),
        ]
        cron = Cron.parse(" ".join(fields))
        start = at("2026-01-01T00:00") + rng.randrange(300 * 86_400) * 1000
        expected = None
        moment = datetime.datetime.fromtimestamp(start // 60_000 * 60, datetime.UTC)
        for _ in range(3 * 1_440):
            moment += datetime.timedelta(minutes=1)
            days = moment.day in cron.days, moment.isoweekday() % 7 in cron.weekdays
            is_day = any(days) if cron.is_either_day else all(days)
            if (
                is_day
                and moment.month in cron.months
                and moment.hour in cron.hours
                and moment.minute in cron.minutes
            ):
                expected = int(moment.timestamp() * 1000)
                break
        found = cron.next_after(start)
        if expected is None:
            assert found is None or found > int(moment.timestamp() * 1000)
        else:
            assert found == expected, fields


def test_an_interval_keeps_its_beat_and_leaves_out_what_was_missed() -> None:
    every = Every(1_000)
    assert every.next_after(5_000) == 6_000
    assert every.next_after(5_000, 5_000) == 6_000
    assert every.next_after(5_300, 5_000) == 6_000
    assert every.next_after(9_999, 5_000) == 10_000
    assert every.next_after(10_000, 5_000) == 11_000


@pytest.mark.parametrize(
    ("text", "zone", "problem"),
    [
        ("every 99", "UTC", "between"),
        ("every 1e3", "UTC", "not a number"),
        ("every " + "9" * 50, "UTC", "not a number"),
        ("cron", "UTC", "0 fields"),
        ("cron 60 * * * *", "UTC", "minute"),
        ("cron * 24 * * *", "UTC", "hour"),
        ("cron * * 0 * *", "UTC", "day of month"),
        ("cron * * * 13 *", "UTC", "month"),
        ("cron * * * * 8", "UTC", "day of week"),
        ("cron */0 * * * *", "UTC", "step"),
        ("cron 5-1 * * * *", "UTC", "minute"),
        ("cron a * * * *", "UTC", "minute"),
        ("cron 0 0 31 2 *", "UTC", "never comes"),
        ("cron 0 0 * * *", "Europe/Nowhere", "time zone"),
        ("cron 0 0 * * *", "/etc/passwd", "time zone"),
        ("hourly", "UTC", "every or cron"),
        ("cron " + "1," * 200 + "1 * * * *", "UTC", "characters long"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_reason(
    text: str, zone: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_recurrence(text, zone)


@pytest.mark.parametrize("text", ["every 60000", "cron 0 8 * * MON-FRI", "cron @daily"])
def test_a_rule_is_read_as_it_is_written(text: str) -> None:
    rule = parse_recurrence(text, "Europe/Berlin")
    assert parse_recurrence(str(rule), "Europe/Berlin") == rule
