"""Message ids of both kinds: worked examples, months, and telling them apart."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest

from skylark.errors import InvalidMessageId
from skylark.model.message import HostAddress, OffsetId
from skylark.protocol.message_id import (
    UniqueId,
    UniqueIdGenerator,
    parse_offset_id,
    parse_unique_id,
    read_message_id,
)

UTC = datetime.UTC


class SteppedClock:
    """Time that a test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    async def sleep_ms(self, duration_ms: int) -> None:
        self.now += duration_ms


def at(*when: int, zone: datetime.tzinfo = UTC) -> int:
    return int(datetime.datetime(*when, tzinfo=zone).timestamp() * 1000)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("ip", "port", "offset", "text"),
    [
        ("127.0.0.1", 10911, 256, "7F00000100002A9F0000000000000100"),
        ("127.0.0.1", 10911, 466, "7F00000100002A9F00000000000001D2"),
        ("127.0.0.1", 20911, 0, "7F000001000051AF0000000000000000"),
        ("fe80::1", 10911, 2**62, "FE80000000000000000000000000000100002A9F4000000000000000"),
    ],
)
def test_offset_ids_are_those_of_the_broker(ip: str, port: int, offset: int, text: str) -> None:
    offset_id = OffsetId(HostAddress(ip, port), offset)
    assert str(offset_id) == text
    assert parse_offset_id(text) == offset_id
    assert parse_offset_id(f" {text.lower()}\n") == offset_id


@pytest.mark.parametrize(
    "text",
    ["", "7F", "7F00000100002A9F00000000000001DG", "7F 0000010000 2A9F00000000000001", "é" * 32],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageId):
        parse_offset_id(text)
    with pytest.raises(InvalidMessageId):
        parse_unique_id(text)


def test_a_unique_id_is_not_taken_for_a_place() -> None:
    with pytest.raises(InvalidMessageId, match="unique id"):
        parse_offset_id("0A4E00A7178878308DB150A780BB0000")


def test_an_id_made_by_a_client_of_rocketmq_has_its_parts() -> None:
    parts = parse_unique_id("0A4E00A7178878308DB150A780BB0000")
    assert parts == UniqueId("10.78.0.167", 0x1788, 0x78308DB1, 0x50A780BB, 0)
    assert str(parts) == "0A4E00A7178878308DB150A780BB0000"


def test_both_kinds_are_told_apart_and_both_can_be_tried() -> None:
    unique = read_message_id("0A4E00A7178878308DB150A780BB0000")
    assert not unique.is_rather_offset_id
    assert unique.unique_id is not None
    assert unique.offset_id is not None
    offset = read_message_id("7F00000100002A9F0000000000000100")
    assert offset.is_rather_offset_id
    assert offset.offset_id == OffsetId(HostAddress("127.0.0.1", 10911), 256)
    assert offset.unique_id is not None
    v6 = read_message_id("FE80000000000000000000000000000100002A9F4000000000000000")
    assert v6.is_rather_offset_id
    assert not read_message_id("7F00000100002A9F8000000000000100").is_rather_offset_id


@pytest.mark.parametrize("text", ["order-1", "c0ffee", "a3c8e5b0-5a4e-4c8b-9f0c-0d7f3b1f2a11"])
def test_any_other_text_may_still_be_a_unique_id(text: str) -> None:
    reading = read_message_id(f" {text} ")
    assert reading == (text, None, None, False)


def test_a_generator_counts_and_tells_the_time() -> None:
    clock = SteppedClock(at(2026, 3, 10, 12))
    ids = UniqueIdGenerator(
        clock, ip="10.0.0.1", pid=0x1_2345, process_mark=0xCAFEBABE, counter=0xFFFF, timezone=UTC
    )
    first, second = ids.next(), ids.next()
    in_month = ((9 * 24) + 12) * 3_600_000
    assert first == f"0A0000012345CAFEBABE{in_month:08X}FFFF"
    assert second == f"0A0000012345CAFEBABE{in_month:08X}0000"
    assert parse_unique_id(first).born_at_ms(clock.now_ms() + 5, UTC) == clock.now_ms()


def test_an_ipv6_client_makes_ids_of_56_digits() -> None:
    ids = UniqueIdGenerator(SteppedClock(0), ip="::1", pid=1, process_mark=2, timezone=UTC)
    assert ids.next() == "0" * 31 + "1" + "0001" + "00000002" + "00000000" + "0000"


def test_time_starts_again_with_the_month_in_the_zone_of_the_client() -> None:
    zone = ZoneInfo("Asia/Shanghai")
    clock = SteppedClock(at(2026, 3, 31, 23, 59, 59, zone=zone))
    ids = UniqueIdGenerator(clock, ip="10.0.0.1", pid=1, process_mark=2, timezone=zone)
    assert parse_unique_id(ids.next()).ms_in_month == 31 * 86_400_000 - 1000
    clock.now += 1000
    assert parse_unique_id(ids.next()).ms_in_month == 0
    clock.now -= 1  # The clock was set back: the month is the old one again.
    assert parse_unique_id(ids.next()).ms_in_month == 31 * 86_400_000 - 1


def test_a_month_with_a_change_of_the_clocks_is_measured_in_real_time() -> None:
    zone = ZoneInfo("Europe/Berlin")
    clock = SteppedClock(at(2026, 3, 31, 12, zone=zone))
    ids = UniqueIdGenerator(clock, ip="10.0.0.1", pid=1, process_mark=2, timezone=zone)
    parts = parse_unique_id(ids.next())
    assert parts.ms_in_month == (30 * 24 + 12 - 1) * 3_600_000
    assert parts.born_at_ms(clock.now, zone) == clock.now
    clock.now = at(2026, 4, 1, zone=zone)
    assert parse_unique_id(ids.next()).ms_in_month == 0


def test_an_id_of_last_month_is_dated_back() -> None:
    made = at(2026, 2, 27, 10)
    ids = UniqueIdGenerator(SteppedClock(made), ip="1.2.3.4", pid=1, process_mark=2, timezone=UTC)
    parts = parse_unique_id(ids.next())
    assert parts.born_at_ms(at(2026, 3, 5), UTC) == made


def test_a_month_of_more_than_2_to_the_31_ms_does_not_wrap() -> None:
    made = at(2026, 1, 31, 23)
    ids = UniqueIdGenerator(SteppedClock(made), ip="1.2.3.4", pid=1, process_mark=2, timezone=UTC)
    parts = parse_unique_id(ids.next())
    assert parts.ms_in_month > 2**31
    assert parts.born_at_ms(made + 1, UTC) == made


def test_without_a_zone_that_of_the_machine_counts() -> None:
    clock = SteppedClock(at(2026, 6, 15, 12))
    ids = UniqueIdGenerator(clock, ip="1.2.3.4", pid=1, process_mark=2)
    assert parse_unique_id(ids.next()).born_at_ms(clock.now) == clock.now


def test_ids_of_one_process_differ() -> None:
    clock = SteppedClock(at(2026, 6, 15, 12))
    ids = UniqueIdGenerator(clock, ip="1.2.3.4", pid=1, process_mark=2, timezone=UTC)
    assert len({ids.next() for _ in range(65_536)}) == 65_536
