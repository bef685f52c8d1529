"""DelayService: the delay levels.

A delayed message lies in SCHEDULE_TOPIC_XXXX, queue level - 1, until it is due; the queue's entry
holds when. All messages of a level wait equally long, so each queue is in order of delivery, and
only its head needs watching: there is one timer for all levels, set for the earliest head.

    # Never early by the wall clock; late by the loop's own delay only. Saving goes on beside it.
    # An offset is advanced after the copy is appended, and saved after the copy is on the disk: a
    # crash loses none. What it may have delivered already is looked for in the log by its unique
    # key, and only what is not found there is delivered again. The same after a table that was
    # lost, cannot be read, or says what cannot be.

In a Raft group the progress is a record of the log, behind the copies that it counts. Whoever
begins to lead goes on from there, and looks for what the former leader has delivered since.

Where the wall clock steps back, or a level was made shorter, a head could lie further ahead than
its level's whole delay: it waits that delay from when it is seen, not more.
"""

from __future__ import annotations

import asyncio
import logging

from ..clock import Clock
from ..errors import CorruptRecord, InvalidRecord, StoreError
from ..model.message import Property, StoredMessage
from ..model.topic import SCHEDULE_TOPIC
from ..protocol.bodies import DelayOffsetTable
from ..protocol.properties import parse_properties
from ..protocol.record import decode_record
from ..store import Arrival, MessageStore, PutMessage, PutStatus
from .arrivals import Arrivals
from .deferral import restored
from .durability import FlushWaiter, is_safe
from .ledger import Change, Ledger
from .observer import Observer
from .saved_table import SavedTable, SmallFiles

logger = logging.getLogger(__name__)

_BATCH_MAX = 64
_RETRY_MS = 100
_LOOK_MS_MAX = 5_000  # The wall clock may jump: never sleep longer on its word.
_IDLE_MS = 3_600_000
_COPIES_MAX = 64
_UNIQ_KEY = Property.UNIQ_KEY


class DelayService:
    """Moves delayed messages to their real topics when they are due."""

    def __init__(
        self,
        store: MessageStore,
        arrivals: Arrivals,
        flusher: FlushWaiter,
        clock: Clock,
        path: str,
        files: SmallFiles,
        *,
        save_interval_ms: int,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._arrivals = arrivals
        self._flusher = flusher
        self._clock = clock
        self._saved = SavedTable(path, files, DelayOffsetTable)
        self._save_interval_ms = save_interval_ms
        self._observer = Observer() if observer is None else observer
        self._delays_ms = store.config.delay_levels_ms
        self._offsets: dict[int, int] = {}  # Level → the next offset to deliver.
        # Level → below this offset what is due may have been delivered already, and is looked for.
        self._unsure: dict[int, int] = {}
        self._seen: dict[int, tuple[int, int]] = {}  # Level → (offset of the head, when it is due).
        # Level → the wall time at which its head is due; a level without a head is not here.
        self._heads: dict[int, int] = {}
        self._looked_ms = 0
        self._delivered_end = 0  # The log up to here holds all copies that offsets count.
        self._is_changed = False
        self._wake = asyncio.Event()
        self.delivered_total = 0
        # In a Raft group: where progress is written down, and what the group has agreed on.
        self.ledger: Ledger | None = None
        self._agreed: dict[int, int] = {}
        self._is_leading = False

    def load(self) -> None:
        """Read how far delivery has come; numbers that fit no queue are corrected."""
        try:
            body = self._saved.load()
        except CorruptRecord as error:
            # Delivering twice is allowed, losing is not, and neither is standing still.
            logger.error("delayed messages begin at the oldest that is kept: %s", error)
            body = None
        offsets = {} if body is None else body.offsets
        was_clean = self._store.recovery.was_clean and not self._store.is_replica
        for level in range(1, len(self._delays_ms) + 1):
            first = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
            last = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            given = offsets.get(level, first)
            is_sound = body is not None and given <= last
            # A number beyond the end says nothing, so we begin at the beginning.
            self._offsets[level] = max(first, given) if is_sound else first
            if not is_sound or not was_clean:
                self._unsure[level] = last
            if self._offsets[level] != given:
                logger.warning(
                    "level=%d offset %d is outside of %d to %d, corrected to %d",
                    level, given, first, last, self._offsets[level],
                )  # fmt: skip
        if self.ledger is not None:
            self._agreed = dict(offsets)

    @property
    def offsets(self) -> dict[int, int]:
        """The next offset to deliver, by level."""
        return dict(self._offsets)

    def body(self) -> DelayOffsetTable:
        """The table as it is answered and saved."""
        return DelayOffsetTable(
            {level: offset for level, offset in self._offsets.items() if offset > 0}
        )

    def take_over(self, table: DelayOffsetTable) -> None:
        """Note how far the master has delivered; for a replica, which delivers nothing itself."""
        for level, offset in table.offsets.items():
            if level in self._offsets and offset != self._offsets[level]:
                self._offsets[level] = max(0, offset)
                self._is_changed = True

    # In a Raft group.

    def write_progress(self) -> None:
        """Write down how far delivery has come; raises BrokerError."""
        assert self.ledger is not None
        if self._is_changed and self._is_leading:
            self.ledger.write(Change.DELAY, {"table": self.body().to_members()})
            self._is_changed = False

    def apply(self, table: DelayOffsetTable) -> None:
        """Take note of what the group has agreed on; the leader knows better."""
        self._agreed.update(table.offsets)
        if not self._is_leading:
            self._offsets.update(
                {level: max(0, o) for level, o in table.offsets.items() if level in self._offsets}
            )

    def agreed(self) -> DelayOffsetTable:
        """What the group has agreed on."""
        return DelayOffsetTable(dict(self._agreed))

    def begin_leading(self) -> None:
        """Go on where the group is; below the end of each queue the former leader may have been."""
        self._is_leading = True
        self._heads.clear()
        self._seen.clear()
        for level in self._offsets:
            first = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
            last = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            given = self._agreed.get(level, first)
            self._offsets[level] = max(first, given) if given <= last else first
            self._unsure[level] = last

    def end_leading(self) -> None:
        """Forget deliveries that the group may not agree on."""
        self._is_leading = False
        self._is_changed = False
        for level in self._offsets:
            self._offsets[level] = max(0, self._agreed.get(level, 0))

    def encoded(self) -> bytes:
        """What write() takes, for a save on another thread."""
        return self._saved.encode(self.agreed())

    def write(self, content: bytes) -> None:
        """Replace the file by what encoded() gave; may run on another thread."""
        self._saved.write(content)

    def undelivered_from(self) -> int | None:
        """The physical offset of the oldest message that is still to be delivered."""
        oldest: int | None = None
        for level, offset in self._offsets.items():
            queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
            entry = None if queue is None else queue.entry(max(offset, queue.min_offset))
            if entry is not None and (oldest is None or entry.physical_offset < oldest):
                oldest = entry.physical_offset
        return oldest

    # Running.

    async def run(self) -> None:
        """Deliver for ever; in a Raft group, for as long as it leads."""
        self._arrivals.listen(SCHEDULE_TOPIC, self._arrived)
        for level in self._offsets:
            self._store.watch(SCHEDULE_TOPIC, level - 1)
            self._heads[level] = 0
        try:
            await self._run()
        finally:
            for level in self._offsets:
                self._store.unwatch(SCHEDULE_TOPIC, level - 1)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_ms = self._deliver_due()
            if wait_ms <= 0:
                await self._clock.sleep_ms(0)
                continue
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _arrived(self, arrival: Arrival) -> None:
        level = arrival.queue_id + 1
        if level in self._offsets and level not in self._heads:
            self._heads[level] = 0  # It is the head of its queue: nobody waits for it yet.
            self._wake.set()

    async def save_for_ever(self) -> None:
        """Save now and then; deliveries do not wait for it, since a flush may take long."""
        while True:
            await self._clock.sleep_ms(self._save_interval_ms)
            await self.save()

    async def save(self) -> None:
        """Save how far delivery has come, as far as the copies are on the disk."""
        if not self._is_changed:
            return
        body, end = self.body(), self._delivered_end
        self._is_changed = False
        try:
            if not is_safe(self._store, end):
                await self._flusher.flushed(end)
            self._saved.save(body)
        except StoreError as error:
            self._is_changed = True
            logger.error("progress of delayed messages not saved: %s", error)

    # Delivering.

    def _deliver_due(self) -> int:
        """Deliver what is due; return for how long nothing more will be."""
        heads, now_ms = self._heads, self._clock.now_ms()
        if now_ms < self._looked_ms:  # The wall clock went back, and what we noted means nothing.
            heads.update(dict.fromkeys(heads, 0))
        self._looked_ms = now_ms
        for level in [level for level, due_ms in heads.items() if due_ms <= now_ms]:
            level_wait_ms = self._deliver_level(level)
            if level_wait_ms is None:
                heads.pop(level, None)
            else:
                heads[level] = now_ms + level_wait_ms
        if not heads:
            return _IDLE_MS
        return max(0, min(_LOOK_MS_MAX, min(heads.values()) - self._clock.now_ms()))

    def _deliver_level(self, level: int) -> int | None:
        """Deliver a batch of one level; return when to look again, None when nothing waits."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return None
        offset = self._offsets[level]
        if offset < queue.min_offset:
            logger.error(
                "level=%d offset=%d to %d were deleted before they were due", level, offset,
                queue.min_offset,
            )  # fmt: skip
            offset = queue.min_offset
        now_ms = self._clock.now_ms()
        messages: list[PutMessage] = []
        ends: list[int] = []  # The offset after each message that is to be put.
        wait_ms: int | None = None
        while len(messages) < _BATCH_MAX:
            entry = queue.entry(offset)
            if entry is None:
                break
            record = self._store.get_by_physical_offset(entry.physical_offset, entry.size_bytes)
            stored = None if record is None else self._decoded(level, offset, record)
            if stored is not None:
                due_ms = self._due_ms(level, offset, entry.tag_code, stored.stored_at_ms, now_ms)
                if due_ms > now_ms:
                    wait_ms = due_ms - now_ms
                    break
                message = self._real(level, offset, stored)
                if offset < self._unsure.get(level, 0) and self._is_delivered(message, due_ms):
                    message = None
                if message is not None:
                    messages.append(message)
                    ends.append(offset + 1)
                    offset += 1
                    continue
            # What cannot be delivered must not hold up what can.
            offset += 1
            if not messages:
                self._advance(level, offset)
            else:
                ends[-1] = offset
        else:
            wait_ms = 0
        if messages and not self._put(level, messages, ends):
            return _RETRY_MS
        return wait_ms

    def _due_ms(
        self, level: int, offset: int, tag_code: int, stored_at_ms: int, now_ms: int
    ) -> int:
        delay_ms = self._delays_ms[level - 1]
        # An entry that was written with other settings may hold something else.
        due_ms = tag_code if tag_code >= stored_at_ms else stored_at_ms + delay_ms
        if due_ms <= now_ms + delay_ms:
            return due_ms
        seen = self._seen.get(level)
        if seen is None or seen[0] != offset:
            seen = self._seen[level] = (offset, now_ms + delay_ms)
        return min(due_ms, seen[1])

    def _decoded(self, level: int, offset: int, record: memoryview) -> StoredMessage | None:
        try:
            return decode_record(record)
        except InvalidRecord as error:
            logger.error("level=%d offset=%d cannot be delivered: %s", level, offset, error)
            return None

    def _real(self, level: int, offset: int, stored: StoredMessage) -> PutMessage | None:
        """The message as it goes to its real topic; None for what has none."""
        message = restored(stored)
        if message is None:
            logger.error(
                "level=%d offset=%d has no topic to go to: %r queue %r", level, offset,
                stored.properties.get(Property.REAL_TOPIC),
                stored.properties.get(Property.REAL_QID),
            )  # fmt: skip
        return message

    def _is_delivered(self, message: PutMessage | None, due_ms: int) -> bool:
        """Whether the log has the copy already; only what has a unique key can be found."""
        key = None if message is None else parse_properties(message.properties).get(_UNIQ_KEY)
        if message is None or not key:
            return False
        found = self._store.query(
            message.topic, key, count_max=_COPIES_MAX, begin_ms=due_ms - 1_000, end_ms=2**62
        )
        for record in found.records:
            copy = decode_record(record, check_crc=False)
            if (
                copy.queue_id == message.queue_id
                and copy.reconsume_times == message.reconsume_times
                and copy.born_at_ms == message.born_at_ms
                and copy.stored_at_ms >= due_ms
                and copy.body == message.body
            ):
                return True
        return False

    def _put(self, level: int, messages: list[PutMessage], ends: list[int]) -> bool:
        """Append deliveries, all or none; False where they are to be tried again."""
        results = self._store.put_group(messages)
        if results[0].status is PutStatus.MESSAGE_ILLEGAL and len(messages) > 1:
            # Together they are too large for a file, or one of them is: that one stays the head.
            return all(
                self._put(level, [message], [end])
                for message, end in zip(messages, ends, strict=True)
            )
        if results[0].status is not PutStatus.PUT_OK:
            logger.warning(
                "level=%d offset=%d not delivered: %s, tried again", level,
                self._offsets[level], results[0].status.name,
            )  # fmt: skip
            return False
        for message, result in zip(messages, results, strict=True):
            self._observer.stored(message.topic, 1, result.size_bytes)
        self.delivered_total += len(messages)
        self._delivered_end = max(self._delivered_end, results[-1].end)
        self._advance(level, ends[-1])
        return True

    def _advance(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._is_changed = True
