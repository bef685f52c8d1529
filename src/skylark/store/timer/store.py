"""TimerStore: what waits, in the order in which it is due.

The commit log is the only truth. Queue 0 of rmq_sys_wheel_timer holds the messages that wait, queue
1 says which of them are done. This is derived from both: a set of the offsets that wait, a wheel
that says when, and a log that the wheel points into. Losing it costs the time to read the two
queues again, and nothing else.

    state, one file, replaced whole, big-endian
    at    size  field
    0     8     b"SKYTIMR1"
    8     4     CRC-32 of all that follows
    12    16    next offset of queue 0, physical offset of the record before it, or -1
    28    16    the same of queue 1
    44    24    epoch, start and end of the timer log
    68          files of the timer log: number i32, then of each its start and highest queue offset
                the wheel, the set, and a text of the owner with its length i32 before it

Wheel, set and cursors are saved together and at once, after the units that they mean are synced; so
the state is always one that was true at some moment, and everything since then is read again from
the queues. Units that were written after it are overwritten.

    # taken: offsets of queue 0 below this are known here: waiting, or done.
    # Slots before the cursor are empty; what waits is in the heap, in the chain of the cursor's
    # slot, or in a later slot. A slot is left only when nothing of it waits any more.
"""

from __future__ import annotations

import heapq
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import CorruptRecord, StoreError
from ..files import Files, Syncable
from .log import FILE_BYTES, TimerLog, Unit
from .offset_set import OffsetSet
from .wheel import FAR_HOURS, HOUR_MS, HOUR_SLOTS, SLOT_MS, Wheel

logger = logging.getLogger(__name__)

_MAGIC = b"SKYTIMR1"
_PREFIX = struct.Struct(">8sI")
_FIXED = struct.Struct(">qqqqqqq")
_COUNT = struct.Struct(">i")
_FILE = struct.Struct(">qq")
_LOAD_MAX = 4_096  # Units of a chain that are read in one step.
_HEAP_MAX = 65_536
_STEPS_MAX = 64  # Of one call to due(), so that others get their turn.
_BACK_MS_MAX = 5_000  # A wall clock that went back further makes the wheel be built again.


class DueTimer(NamedTuple):
    """A message that waits, and until when."""

    due_ms: int
    queue_offset: int


class QueueMark(NamedTuple):
    """How far a queue was read, and where the record before that lies."""

    next_offset: int
    physical_offset: int


@dataclass(slots=True)
class Snapshot:
    """A state that is to be saved; run() may be called on any thread."""

    content: bytes
    epoch: int
    log_start: int
    regions: list[Syncable]
    directories: list[str]
    replace: Callable[[bytes], None]
    sync_directory: Callable[[str], None]

    def run(self) -> None:
        """Sync the units, then replace the state."""
        for region in self.regions:
            region.sync()
        for directory in self.directories:
            self.sync_directory(directory)
        self.replace(self.content)


class TimerStore:
    """All timers of a broker; one thread owns it."""

    def __init__(self, files: Files, directory: str, *, file_bytes: int = FILE_BYTES) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._path = os.path.join(directory, "state")
        self.log = self._new_log()
        self.wheel = Wheel()
        self.pending = OffsetSet()
        self.taken = 0
        self.done_taken = 0  # The same for queue 1.
        self._ahead = OffsetSet()  # Done already, though queue 0 was not read as far as that.
        # While the wheel is built again: what waited before, of offsets below _known_end.
        self._known = OffsetSet()
        self._known_end = 0
        self._heap: list[DueTimer] = []
        self._rest = 0  # Where reading the chain of the cursor's slot goes on; 0 when it is read.
        self._has_overflowed = False  # There is more in that chain than the heap took.
        self._is_behind = False

    def _new_log(self) -> TimerLog:
        return TimerLog(self._files, os.path.join(self._directory, "log"), self._file_bytes)

    # Life.

    def load(self, fits: Callable[[QueueMark, QueueMark], bool]) -> str | None:
        """Take up the saved state; return the owner's text, or None where there is none that fits.

        fits() says whether both queues still hold what was read from them.
        """
        for path in (self._path, f"{self._path}.bak"):
            if not self._files.exists(path):
                continue
            try:
                text = self._load(self._files.read(path), fits)
            except StoreError as error:
                logger.warning("path=%s is not used: %s", path, error)
                continue
            if text is not None:
                return text
            logger.warning("path=%s does not fit the log, it is not used", path)
        return None

    def _load(self, content: bytes, fits: Callable[[QueueMark, QueueMark], bool]) -> str | None:
        self._forget()
        if len(content) < _PREFIX.size + _FIXED.size:
            raise CorruptRecord("the timer's state is cut off")
        magic, crc = _PREFIX.unpack_from(content, 0)
        if magic != _MAGIC or zlib.crc32(content[_PREFIX.size :]) != crc:
            raise CorruptRecord("the timer's state is damaged")
        at = _PREFIX.size
        taken, taken_at, done, done_at, epoch, log_start, log_end = _FIXED.unpack_from(content, at)
        at += _FIXED.size
        if not fits(QueueMark(taken, taken_at), QueueMark(done, done_at)):
            return None
        (count,) = _COUNT.unpack_from(content, at)
        at += _COUNT.size
        highest = {}
        for _ in range(count):
            start, offset = _FILE.unpack_from(content, at)
            highest[start] = offset
            at += _FILE.size
        wheel, at = Wheel.decode(content, at)
        pending, at = OffsetSet.decode(content, at)
        (size,) = _COUNT.unpack_from(content, at)
        text = content[at + _COUNT.size : at + _COUNT.size + size].decode()
        self.log.open(epoch, log_start, log_end, highest)
        self.wheel, self.pending = wheel, pending
        self.taken, self.done_taken = taken, done
        self._rest = wheel.near[wheel.slot]
        return text

    def _forget(self) -> None:
        self.log.close()
        self.log = self._new_log()
        self.wheel = Wheel()
        self.pending, self._ahead, self._known = OffsetSet(), OffsetSet(), OffsetSet()
        self._known_end = 0
        self.taken = self.done_taken = 0
        self._heap, self._rest = [], 0
        self._has_overflowed = self._is_behind = False

    def begin(self, now_ms: int, *, taken: int, done_taken: int) -> None:
        """Know nothing: both queues are to be read from these offsets on."""
        self._forget()
        self._clear_files(now_ms)
        self.wheel.slot = now_ms // SLOT_MS
        self.taken, self.done_taken = taken, done_taken

    def begin_again(self, now_ms: int) -> None:
        """Build wheel and log again, of what is known to wait; queue 0 is read again for it."""
        logger.warning("the timer's wheel is built again, %d messages wait", len(self.pending))
        first = self.pending.first()
        if self.is_building:
            for offset in self.pending.iterate():
                self._known.add(offset)
            self.taken = min(self._known_end, self.taken if first is None else first)
        else:
            self._known, self._known_end = self.pending, self.taken
            self.taken = self.taken if first is None else first
        self.pending = OffsetSet()
        self._clear_files(now_ms)
        self.wheel = Wheel(now_ms // SLOT_MS)
        self._heap, self._rest = [], 0
        self._has_overflowed = False

    def _clear_files(self, now_ms: int) -> None:
        # The state goes first, durably: it must never be read beside units that it does not know.
        self._files.make_directory(self._directory)
        self._files.remove(self._path)
        self._files.remove(f"{self._path}.bak")
        self._files.sync_directory(self._directory)
        self.log.clear(max(now_ms, self.log.epoch + 1))

    @property
    def is_building(self) -> bool:
        """Whether offsets are taken again that were known before."""
        return self.taken < self._known_end

    def close(self) -> None:
        """Unmap all."""
        self.log.close()

    # What waits.

    def wants(self, queue_offset: int) -> bool:
        """Whether the record at the next offset of queue 0 has to be looked at."""
        assert queue_offset == self.taken
        if queue_offset < self._known_end:
            return queue_offset in self._known
        return queue_offset not in self._ahead

    def take(self, queue_offset: int, due_ms: int | None) -> None:
        """Take the next offset of queue 0: it waits until a time, or (None) it does not wait."""
        assert queue_offset == self.taken
        if due_ms is not None:
            self._put(due_ms, queue_offset)  # First, for it may find no room.
            self.pending.add(queue_offset)
        self._ahead.discard(queue_offset)
        self._known.discard(queue_offset)
        self.taken = queue_offset + 1

    def finish(self, queue_offset: int) -> bool:
        """It waits no more; return whether it did."""
        if queue_offset >= self.taken:
            self._known.discard(queue_offset)
            self._ahead.add(queue_offset)
            return True
        return self.pending.discard(queue_offset)

    def is_waiting(self, queue_offset: int) -> bool:
        """Whether it waits, or will as soon as queue 0 is read that far."""
        if queue_offset >= self._known_end and queue_offset >= self.taken:
            return queue_offset not in self._ahead
        return queue_offset in self.pending or queue_offset in self._known

    def _put(self, due_ms: int, queue_offset: int) -> None:
        ring, slot = self.wheel.place(due_ms)
        position = self.log.append(ring[slot], due_ms, queue_offset)
        ring[slot] = position
        if ring is self.wheel.near and slot == self.wheel.slot:
            if len(self._heap) < _HEAP_MAX:
                heapq.heappush(self._heap, DueTimer(due_ms, queue_offset))
            else:
                self._has_overflowed = True

    # What is due.

    def due(self, now_ms: int, count_max: int) -> list[DueTimer]:
        """Timers that are due, in order; each must be finished, or given back to again()."""
        if self.wheel.slot * SLOT_MS > now_ms + _BACK_MS_MAX:
            self.begin_again(now_ms)
        found: list[DueTimer] = []
        offsets: set[int] = set()
        heap, steps = self._heap, 0
        self._is_behind = False
        while len(found) < count_max:
            while heap and heap[0].due_ms <= now_ms and len(found) < count_max:
                timer = heapq.heappop(heap)
                # A timer may be there twice, and it may be done already.
                if timer.queue_offset in self.pending and timer.queue_offset not in offsets:
                    offsets.add(timer.queue_offset)
                    found.append(timer)
            if heap or found:
                break  # What was found may come back, and then its slot must still be there.
            steps += 1
            if steps > _STEPS_MAX:
                self._is_behind = True
                break
            if not self._advance(now_ms // SLOT_MS):
                break
        return found

    def postpone(self, queue_offset: int, due_ms: int) -> None:
        """Let a timer that was due wait until another time."""
        self._put(due_ms, queue_offset)

    def again(self, timers: list[DueTimer]) -> None:
        """These were due and could not be delivered: they are due again."""
        for timer in timers:
            heapq.heappush(self._heap, timer)

    def next_at_ms(self) -> int | None:
        """When to call due() again; None while nothing waits."""
        if self._is_behind or self._rest or self._has_overflowed:
            return 0
        if self._heap:
            return self._heap[0].due_ms
        near, far = self.wheel.next_near(), self.wheel.next_far()
        times = []
        if near is not None:
            times.append(near * SLOT_MS)
        if far is not None:
            # An hour ahead: moving an hour's timers to the near ring may take a while.
            times.append((far - 1) * HOUR_MS)
        return min(times, default=None)

    def tend(self) -> bool:
        """Move some timers of the next hour to the near ring; return whether there are more."""
        hour = self.wheel.hour + 1
        if self.wheel.far[hour]:
            self._move(hour)
        return bool(self.wheel.far[hour])

    def _advance(self, now_slot: int) -> bool:
        """With an empty heap, go on to what is due next; False when there is nothing up to now."""
        wheel = self.wheel
        if self._rest:
            self._load_chain()
            return True
        if self._has_overflowed:
            self._has_overflowed = False
            self._rest = wheel.near[wheel.slot]
            return True
        if now_slot <= wheel.slot:
            return False
        hour, now_hour = wheel.hour, now_slot // HOUR_SLOTS
        near = wheel.next_near()
        if near is not None and near <= now_slot and near // HOUR_SLOTS == hour:
            self._leave_slot_for(near)
            return True
        if now_hour == hour:
            self._leave_slot_for(now_slot)
            return False
        if wheel.far[hour + 1]:
            self._move(hour + 1)
        elif near is not None:
            self._leave_slot_for((hour + 1) * HOUR_SLOTS)
        else:
            far = wheel.next_far()
            target = now_hour if far is None else min(now_hour, far - 1)
            self._leave_slot_for(target * HOUR_SLOTS)
        return True

    def _leave_slot_for(self, slot: int) -> None:
        wheel = self.wheel
        assert slot > wheel.slot
        assert not self._heap
        wheel.near[wheel.slot] = 0
        wheel.slot = slot
        self._rest = wheel.near[slot]

    def _load_chain(self) -> None:
        heap, pending = self._heap, self.pending
        for unit in self._chain(self._rest, _LOAD_MAX):
            self._rest = unit.previous
            if unit.queue_offset in pending:
                heap.append(DueTimer(unit.due_ms, unit.queue_offset))
        if self._rest < self.log.start:
            self._rest = 0
        heapq.heapify(heap)

    def _move(self, hour: int) -> None:
        far = self.wheel.far
        for unit in self._chain(far[hour], _LOAD_MAX // 4):
            if unit.queue_offset in self.pending:
                self._put(unit.due_ms, unit.queue_offset)
            far[hour] = unit.previous
        if far[hour] < self.log.start:
            far[hour] = 0

    def _chain(self, position: int, count_max: int) -> Iterator[Unit]:
        start = self.log.start
        while position and position >= start and count_max:
            unit = self.log.read(position)
            if unit.previous >= position:
                raise CorruptRecord(f"timer log: the unit at {position} points forward")
            yield unit
            position = unit.previous
            count_max -= 1

    def upcoming(self, after: DueTimer, count_max: int, scan_max: int) -> list[DueTimer]:
        """Timers behind a given one in the order of their times, for people to look at.

        After reading scan_max units it returns what it has: a list for people may be cut, the
        broker's other work may not wait for it.
        """
        wheel = self.wheel
        found: set[DueTimer] = set()
        for ring, start, end in (
            (wheel.near, max(wheel.slot, after.due_ms // SLOT_MS), (wheel.hour + 2) * HOUR_SLOTS),
            (wheel.far, max(wheel.hour + 1, after.due_ms // HOUR_MS), wheel.hour + FAR_HOURS),
        ):
            slot = ring.next_from(start, end)
            while slot is not None and len(found) < count_max and scan_max > 0:
                for unit in self._chain(ring[slot], scan_max):
                    scan_max -= 1
                    timer = DueTimer(unit.due_ms, unit.queue_offset)
                    if timer > after and timer.queue_offset in self.pending:
                        found.add(timer)
                slot = ring.next_from(slot + 1, end)
        return heapq.nsmallest(count_max, found)

    # Saving.

    def capture(self, mark_of: Callable[[int, int], int], text: str) -> Snapshot:
        """The state as it is now, to be saved when the log is flushed up to now.

        mark_of(queue, offset) is the physical offset of a record of one of the two queues, or -1.
        """
        assert not self.is_building
        log_start = self.log.start_without(self.pending.first())
        regions, directories = self.log.unsynced()
        words = text.encode()
        highest = {s: h for s, h in self.log.highest.items() if s >= log_start}
        body = b"".join(
            (
                _FIXED.pack(
                    self.taken,
                    mark_of(0, self.taken - 1),
                    self.done_taken,
                    mark_of(1, self.done_taken - 1),
                    self.log.epoch,
                    log_start,
                    self.log.end,
                ),
                _COUNT.pack(len(highest)),
                *(_FILE.pack(start, offset) for start, offset in highest.items()),
                self.wheel.encode(),
                self.pending.encode(),
                _COUNT.pack(len(words)),
                words,
            )
        )
        content = _PREFIX.pack(_MAGIC, zlib.crc32(body)) + body
        return Snapshot(
            content,
            self.log.epoch,
            log_start,
            regions,
            directories,
            lambda data: self._files.replace(self._path, data),
            self._files.sync_directory,
        )

    def saved(self, snapshot: Snapshot) -> None:
        """A snapshot is on the disk: what it does not need any more may go."""
        if snapshot.epoch == self.log.epoch:
            self.log.drop_before(snapshot.log_start)

    def not_saved(self) -> None:
        """A snapshot could not be saved."""
        self.log.doubt()
