"""Message ids of both kinds, and how to tell them apart.

    offset id: where a record lies               unique id: given by the producer (UNIQ_KEY)
    at      size   field                         at      size   field
    0       4, 16  address of the broker         0       4, 16  address of the client
    +0      4      port, i32                     +0      2      process id, low 16 bits
    +4      8      physical offset, i64          +2      4      any constant of the process
                                                 +6      4      ms since the month began, local time
                                                 +10     2      counter

Both are shown as upper-case hex, 32 digits with IPv4 and 56 with IPv6, so the length does not tell
which one a user has pasted. The port does: its upper half is 0; a unique id has a process id there.
Brokers never look into a unique id. A producer may use any text there.
"""

from __future__ import annotations

import datetime
import ipaddress
import struct
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidMessageId
from ..model.message import HostAddress, OffsetId

if TYPE_CHECKING:
    from ..clock import Clock

_PLACE = struct.Struct(">iq")
_MARK = struct.Struct(">HIIH")
assert _PLACE.size == _MARK.size == 12

_COUNTER_MASK = 0xFFFF
_MS_MASK = 0xFFFFFFFF


class UniqueId(NamedTuple):
    """The parts of an id made by a producer in the usual way."""

    ip: str
    pid: int
    process_mark: int
    ms_in_month: int
    counter: int

    def __str__(self) -> str:
        mark = _MARK.pack(self.pid, self.process_mark, self.ms_in_month, self.counter)
        return (ipaddress.ip_address(self.ip).packed + mark).hex().upper()

    def born_at_ms(self, now_ms: int, timezone: datetime.tzinfo | None = None) -> int:
        """Return when it was made, if that was within the last month; the id does not say which."""
        month = _month_start(now_ms, timezone)
        if _ms(month) + self.ms_in_month > now_ms:
            month = _month_start(_ms(month) - 1, timezone)
        return _ms(month) + self.ms_in_month


class MessageIdReading(NamedTuple):
    """What a text may mean as a message id; try the likelier first, then the other."""

    text: str
    offset_id: OffsetId | None
    unique_id: UniqueId | None
    is_rather_offset_id: bool


def read_message_id(text: str) -> MessageIdReading:
    """Return all that a text may mean as a message id.

    Any text may be a unique id, so nothing is refused; unique_id is None where it has no parts.
    """
    text = text.strip()
    try:
        raw = _raw(text)
    except InvalidMessageId:
        return MessageIdReading(text, None, None, False)
    offset_id = _offset_id(raw)
    port = offset_id.host.port
    likely = 0 < port <= 0xFFFF and offset_id.physical_offset >= 0
    return MessageIdReading(text, offset_id, _unique_id(raw), likely)


def parse_offset_id(text: str) -> OffsetId:
    """Return what an offset id says; raise InvalidMessageId for what cannot be one."""
    offset_id = _offset_id(_raw(text.strip()))
    if not 0 <= offset_id.host.port <= 0xFFFF or offset_id.physical_offset < 0:
        raise InvalidMessageId(
            text, "names no port and offset: it is rather a unique id, query by that"
        )
    return offset_id


def parse_unique_id(text: str) -> UniqueId:
    """Return the parts of a unique id; raise InvalidMessageId where it has none."""
    return _unique_id(_raw(text.strip()))


def _raw(text: str) -> bytes:
    if len(text) not in (32, 56):
        raise InvalidMessageId(text, f"has {len(text)} characters, an id has 32 or 56 hex digits")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) * 2 != len(text):  # fromhex passes over spaces.
        raise InvalidMessageId(text, "is not all hex digits")
    return raw


def _offset_id(raw: bytes) -> OffsetId:
    port, physical_offset = _PLACE.unpack(raw[-12:])
    return OffsetId(HostAddress(str(ipaddress.ip_address(raw[:-12])), port), physical_offset)


def _unique_id(raw: bytes) -> UniqueId:
    return UniqueId(str(ipaddress.ip_address(raw[:-12])), *_MARK.unpack(raw[-12:]))


def _month_start(now_ms: int, timezone: datetime.tzinfo | None) -> datetime.datetime:
    # Whole seconds are exact in a float; None means the zone of this machine.
    now = datetime.datetime.fromtimestamp(now_ms // 1000, timezone)
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _ms(moment: datetime.datetime) -> int:
    return int(moment.timestamp()) * 1000


class UniqueIdGenerator:
    """Gives out unique ids: one generator for all producers of a process."""

    def __init__(
        self,
        clock: Clock,
        *,
        ip: str,
        pid: int,
        process_mark: int,
        counter: int = 0,
        timezone: datetime.tzinfo | None = None,
    ) -> None:
        self._clock = clock
        self._timezone = timezone
        self._counter = counter & _COUNTER_MASK
        self._prefix = (
            (
                ipaddress.ip_address(ip).packed
                + struct.pack(">HI", pid & 0xFFFF, process_mark & _MS_MASK)
            )
            .hex()
            .upper()
        )
        # now is in [month start, next month start); empty at first, so the first id sets it.
        self._month_ms = 0
        self._next_month_ms = 0

    def next(self) -> str:
        """Return an id that this process has not given before."""
        now_ms = self._clock.now_ms()
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._enter_month(now_ms)
        counter = self._counter
        self._counter = (counter + 1) & _COUNTER_MASK
        return f"{self._prefix}{now_ms - self._month_ms:08X}{counter:04X}"

    def take(self, count: int) -> tuple[str, int]:
        """Set so many ids aside: what they begin with, and the first counter behind it.

        Counters go up by one, four hex digits each, and from FFFF to 0000.
        """
        assert 0 < count <= _COUNTER_MASK + 1
        now_ms = self._clock.now_ms()
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._enter_month(now_ms)
        counter = self._counter
        self._counter = (counter + count) & _COUNTER_MASK
        return f"{self._prefix}{now_ms - self._month_ms:08X}", counter

    def give_back(self, count: int) -> None:
        """Of the ids that were set aside last, the last so many are not used."""
        self._counter = (self._counter - count) & _COUNTER_MASK

    def _enter_month(self, now_ms: int) -> None:
        month = _month_start(now_ms, self._timezone)
        # Any 32nd day lies in the next month; daylight saving makes adding hours a trap.
        next_month = (month + datetime.timedelta(days=32)).replace(day=1)
        self._month_ms = _ms(month)
        self._next_month_ms = _ms(next_month)
