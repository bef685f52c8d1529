"""TimerService: messages that are delivered at a moment of their own, and messages that repeat.

What waits lies in rmq_sys_wheel_timer. The commit log says everything there is to know:

    queue 0   what waits: a message with REAL_TOPIC, REAL_QID, TIMER_OUT_MS; or the wish that one
              is cancelled (TIMER_DEL_UNIQKEY)
    queue 1   which are done: queue offsets of queue 0, 8 bytes each
    both      TIMER_REPLACES in a record of queue 0 says that another record of it is done

A delivery appends the message to its topic and the word that it is done in one go. So a restart, or
a replica that takes over, reads from the log what is left to do: a crash repeats at most the batch
that it met, and loses nothing. The wheel in store/timer is derived from both queues.

A replica reads both queues as they come, so that it knows what waits when it takes over, and
delivers nothing.

    # Nothing is delivered before queue 1 is read to its end: done is done.
    # A timer is finished here as soon as the word is appended, and saved as finished only when the
    # log is flushed that far.

A message that waits long is written again at the end of the log before its file expires; RocketMQ
calls that rolling. One that repeats is written again when it is delivered, with its next time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..clock import Clock
from ..errors import ConfigError, CorruptRecord, InvalidRecord, StoreError, StoreFull
from ..model.message import Property, StoredMessage
from ..model.recurrence import parse_recurrence
from ..model.topic import TIMER_TOPIC
from ..protocol.message_id import read_message_id
from ..protocol.properties import encode_text, format_properties
from ..protocol.record import decode_dispatch, decode_record, pack_host
from ..store import Arrival, Files, MessageStore, PutMessage, PutResult, PutStatus
from ..store.timer import TimerStore
from ..store.timer.log import UNIT_BYTES
from ..store.timer.store import DueTimer, QueueMark
from .arrivals import Arrivals
from .config import LiveConfig
from .deferral import DONE_QUEUE, TIMER_QUEUE, restored
from .durability import FlushWaiter, is_safe
from .identity import Identity
from .observer import Observer

logger = logging.getLogger(__name__)

REPEATS_MAX: Final = 10_000
_BATCH_MAX: Final = 64
_TAKE_MAX: Final = 512
_ROLL_MAX: Final = 32
_RETRY_MS: Final = 100
_FULL_RETRY_MS: Final = 1_000
_POSTPONE_MS: Final = 60_000  # What cannot be stored at all must not hold up the rest.
_LOOK_MS_MAX: Final = 5_000  # The wall clock may jump: never sleep longer on its word.
_IDLE_MS: Final = 3_600_000
_TEND_MS: Final = 10_000  # Between looks at what has become old.
_HOUR_MS: Final = 3_600_000
_LIST_SCAN_MAX: Final = 100_000
_FIND_MAX: Final = 64
_OFFSET: Final = struct.Struct(">q")
_ILLEGAL: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A message that repeats: its record, and when it is due next."""

    id: str
    queue_offset: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits, as people see it."""

    due_ms: int
    queue_offset: int
    message: StoredMessage


class TimerService:
    """Delivers messages when they are due."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        *,
        store: MessageStore,
        arrivals: Arrivals,
        flusher: FlushWaiter,
        clock: Clock,
        files: Files,
        observer: Observer,
        look_ms_max: int = _LOOK_MS_MAX,
    ) -> None:
        self._live = live
        self._identity = identity
        self._store = store
        self._arrivals = arrivals
        self._flusher = flusher
        self._clock = clock
        self._observer = observer
        self._look_ms_max = look_ms_max
        self.timers = TimerStore(
            files,
            os.path.join(store.config.store_path_root_dir, "timer"),
            file_bytes=-(-live.current.mapped_file_size_timer_log // UNIT_BYTES) * UNIT_BYTES,
        )
        self.repeats: dict[str, Repeat] = {}
        self._repeating: dict[int, str] = {}  # Queue offset → id.
        self._ready_at = 0  # Nothing is delivered before queue 0 is read up to here.
        self._rolled_until = 0
        self._marks = (-1, -1)  # Where the last records lie that were read of each queue.
        self._tend_at_ms = 0
        self._is_changed = False
        self._is_complaining = False
        self._wake = asyncio.Event()
        self.delivered_total = 0
        self.cancelled_total = 0
        self.lost_total = 0
        self.late_ms_max = 0  # Of all deliveries that were not late at the start already.

    def load(self) -> None:
        """Take up where the last run was, or begin to read the queues anew."""
        text = self.timers.load(self._fits)
        self.repeats.clear()
        self._repeating.clear()
        if text is None:
            self._begin()
        else:
            for offset in json.loads(text):
                stored = self.stored(offset)
                repeat_id = "" if stored is None else stored.properties.get(Property.REPEAT_ID, "")
                if stored is not None and repeat_id and offset in self.timers.pending:
                    self._note_repeat(repeat_id, offset, _due_ms(stored))
        self._rolled_until = 0
        self._ready_at = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        self._note_marks()

    def _begin(self) -> None:
        """Read both queues from their beginning."""
        self.repeats.clear()
        self._repeating.clear()
        self.timers.begin(
            self._clock.now_ms(),
            taken=self._store.min_offset(TIMER_TOPIC, TIMER_QUEUE),
            done_taken=self._store.min_offset(TIMER_TOPIC, DONE_QUEUE),
        )
        self._rolled_until = 0
        self._ready_at = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        self._note_marks()

    def _note_marks(self) -> None:
        self._marks = (
            self._physical(TIMER_QUEUE, self.timers.taken - 1),
            self._physical(DONE_QUEUE, self.timers.done_taken - 1),
        )

    def _is_rewritten(self) -> bool:
        """Whether the queues no longer hold what was read: a replica's log was truncated."""
        if self.timers.is_building:
            return False
        for queue_id, offset, known in (
            (TIMER_QUEUE, self.timers.taken - 1, self._marks[0]),
            (DONE_QUEUE, self.timers.done_taken - 1, self._marks[1]),
        ):
            if known >= self._store.log.start and self._physical(queue_id, offset) != known:
                return True
        return False

    def _fits(self, waiting: QueueMark, done: QueueMark) -> bool:
        return self._is_mark(TIMER_QUEUE, waiting) and self._is_mark(DONE_QUEUE, done)

    def _is_mark(self, queue_id: int, mark: QueueMark) -> bool:
        first = self._store.min_offset(TIMER_TOPIC, queue_id)
        last = self._store.max_offset(TIMER_TOPIC, queue_id)
        if not first <= mark.next_offset <= last:
            return False
        if mark.next_offset == first:
            return mark.physical_offset < self._store.log.appended
        return self._physical(queue_id, mark.next_offset - 1) == mark.physical_offset

    def _physical(self, queue_id: int, offset: int) -> int:
        queue = self._store.queues.get(TIMER_TOPIC, queue_id)
        entry = None if queue is None or offset < queue.min_offset else queue.entry(offset)
        return -1 if entry is None else entry.physical_offset

    def undelivered_from(self) -> int | None:
        """The physical offset of the oldest message that is still to be delivered."""
        first = self.timers.pending.first(self._store.min_offset(TIMER_TOPIC, TIMER_QUEUE))
        offset = self.timers.taken if first is None else min(first, self.timers.taken)
        if offset >= self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE):
            return None
        physical = self._physical(TIMER_QUEUE, offset)
        return None if physical < 0 else physical

    @property
    def pending_count(self) -> int:
        """How many messages wait."""
        return len(self.timers.pending)

    # Running.

    async def run(self) -> None:
        """Deliver for ever."""
        self._arrivals.listen(TIMER_TOPIC, self._arrived)
        for queue_id in (TIMER_QUEUE, DONE_QUEUE):
            self._store.watch(TIMER_TOPIC, queue_id)
        while True:
            self._wake.clear()
            wait_ms = self._step()
            if wait_ms <= 0:
                await self._clock.sleep_ms(0)
                continue
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def begin_leading(self) -> None:
        """Deliver from now on, once everything is read that is there."""
        self._ready_at = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        self._wake.set()

    def read_again(self) -> None:
        """Forget what was delivered and may not stay: the broker does not lead any more."""
        self._begin()
        self._wake.set()

    def wake(self) -> None:
        """Look at once: the broker has become a master, say."""
        self._wake.set()

    def _arrived(self, arrival: Arrival) -> None:
        self._wake.set()

    def _step(self) -> int:
        """Do some of what there is to do; return for how long there is nothing more."""
        try:
            if self._is_rewritten():
                logger.warning("the log was cut back: timers are read again")
                self._begin()
            has_more = self._read_done() | self._take()
            if self.timers.taken < self._ready_at:
                return 0
            if self._store.is_replica:
                return 0 if has_more else self._look_ms_max
            now_ms = self._clock.now_ms()
            due = self.timers.due(now_ms, _BATCH_MAX)
            if due:
                return 0 if self._deliver(due) else _RETRY_MS
            has_more |= self.timers.tend() or self.timers.is_building
            if self._clock.monotonic_ms() >= self._tend_at_ms:
                if self._roll(now_ms):
                    has_more = True
                else:
                    self._tend_at_ms = self._clock.monotonic_ms() + _TEND_MS
        except StoreFull as error:
            if not self._is_complaining:
                logger.error("timers wait for room on the disk: %s", error)
            self._is_complaining = True
            return _FULL_RETRY_MS
        except CorruptRecord as error:
            logger.error("%s", error)
            self.timers.begin_again(self._clock.now_ms())
            return 0
        self._is_complaining = False
        if has_more:
            return 0
        next_ms = self.timers.next_at_ms()
        if next_ms is None:
            return _IDLE_MS
        return max(0, min(self._look_ms_max, next_ms - self._clock.now_ms()))

    # Reading the queues.

    def _read_done(self) -> bool:
        """Read all of queue 1: what is done must be known before anything is delivered."""
        end = self._store.max_offset(TIMER_TOPIC, DONE_QUEUE)
        if self.timers.done_taken >= end:
            return False
        while self.timers.done_taken < end:
            record = self._record(DONE_QUEUE, self.timers.done_taken)
            if record is not None:
                for offset in done_offsets(decode_record(record)):
                    self._finish(offset)
            self.timers.done_taken += 1
        self._is_changed = True
        self._note_marks()
        return False

    def _take(self) -> bool:
        """Take new records of queue 0; return whether there are more."""
        end = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        timers = self.timers
        count = 0
        while timers.taken < end and count < _TAKE_MAX:
            offset = timers.taken
            timers.take(offset, self._waits_until(offset) if timers.wants(offset) else None)
            count += 1
        if count and not timers.is_building:
            self._is_changed = True
            self._note_marks()
        return timers.taken < end

    def _waits_until(self, offset: int) -> int | None:
        """When a record of queue 0 is due; None for one that is not to be delivered."""
        record = self._record(TIMER_QUEUE, offset)
        try:
            info = None if record is None else decode_dispatch(record)
        except InvalidRecord as error:
            self._lose(offset, str(error))
            return None
        if info is None:
            self._lose(offset, "its record was deleted before it was due")
            return None
        properties = info.properties
        replaced = properties.get(Property.TIMER_REPLACES)
        if replaced is not None and replaced.isdigit():
            self._finish(int(replaced))
        key = properties.get(Property.TIMER_DEL_UNIQKEY)
        if key is not None:
            self._cancel_for(key, properties.get(Property.REAL_TOPIC, ""), offset)
            return None
        text = properties.get(Property.TIMER_OUT_MS, "")
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            self._lose(offset, f"it says nowhere when it is due: {text[:32]!r}")
            return None
        repeat_id = properties.get(Property.REPEAT_ID)
        if repeat_id:
            self._note_repeat(repeat_id, offset, int(text))
        return int(text)

    def _lose(self, offset: int, problem: str) -> None:
        self.lost_total += 1
        logger.error("timer=%d cannot be delivered: %s", offset, problem)

    def _record(self, queue_id: int, offset: int) -> memoryview | None:
        queue = self._store.queues.get(TIMER_TOPIC, queue_id)
        if queue is None or offset < queue.min_offset:
            return None
        entry = queue.entry(offset)
        if entry is None:
            return None
        return self._store.get_by_physical_offset(entry.physical_offset, entry.size_bytes)

    def stored(self, offset: int) -> StoredMessage | None:
        """The message at an offset of queue 0, if it can be read."""
        record = self._record(TIMER_QUEUE, offset)
        if record is None:
            return None
        try:
            return decode_record(record)
        except InvalidRecord as error:
            logger.error("timer=%d: %s", offset, error)
            return None

    def _finish(self, offset: int) -> bool:
        repeat_id = self._repeating.pop(offset, None)
        if repeat_id is not None and self.repeats[repeat_id].queue_offset == offset:
            del self.repeats[repeat_id]
        self._is_changed = True
        return self.timers.finish(offset)

    def _note_repeat(self, repeat_id: str, offset: int, due_ms: int) -> None:
        before = self.repeats.get(repeat_id)
        if before is not None and before.queue_offset != offset:
            # Written later, it was written instead: a crash came before the word that said so.
            self._finish(before.queue_offset)
        self.repeats[repeat_id] = Repeat(repeat_id, offset, due_ms)
        self._repeating[offset] = repeat_id

    # Delivering.

    def _deliver(self, due: list[DueTimer]) -> bool:
        """Deliver what is due; False where the store takes nothing now, and it is to be retried."""
        now_ms = self._clock.now_ms()
        plans = [self._plan(timer, now_ms) for timer in due]
        statuses = self._put(plans)
        waiting = []
        for timer, plan, status in zip(due, plans, statuses, strict=True):
            if status is PutStatus.PUT_OK:
                self._delivered(plan)
            elif status in _ILLEGAL:
                logger.error(
                    "timer=%d cannot be stored in topic=%s, tried again in a minute: %s",
                    timer.queue_offset, plan.topic, status.name,
                )  # fmt: skip
                self.timers.postpone(timer.queue_offset, now_ms + _POSTPONE_MS)
            else:
                waiting.append(timer)
        if waiting:
            logger.warning(
                "timers=%d not delivered: %s, tried again", len(waiting), statuses[-1].name
            )
            self.timers.again(waiting)
        else:
            self.late_ms_max = max(self.late_ms_max, now_ms - due[0].due_ms)
        return not waiting

    def _delivered(self, plan: _Plan) -> None:
        repeat_id = self._repeating.get(plan.queue_offset)
        if repeat_id is not None and plan.following is not None:
            # Known from now on, so that it can be cancelled before it is read from the queue.
            self._note_repeat(repeat_id, plan.following_offset, plan.following_ms)
        self._finish(plan.queue_offset)
        self.delivered_total += plan.copy is not None

    def _plan(self, timer: DueTimer, now_ms: int, mark: str = "") -> _Plan:
        stored = self.stored(timer.queue_offset)
        if stored is None:
            self._lose(timer.queue_offset, "its record was deleted before it was due")
            return _Plan(timer.queue_offset, "")
        changes: dict[str, str] = {}
        if Property.REPEAT_RULE in stored.properties:
            # Each time is a message of its own.
            repeat_id = stored.properties.get(Property.REPEAT_ID)
            count = stored.properties.get(Property.REPEAT_COUNT, "0")
            changes[Property.UNIQ_KEY] = f"{repeat_id}-{count}{mark}"
        copy = restored(stored, changes)
        if copy is None:
            topic = stored.properties.get(Property.REAL_TOPIC)
            self._lose(timer.queue_offset, f"no topic to go to: {topic!r}")
            return _Plan(timer.queue_offset, "")
        plan = _Plan(timer.queue_offset, copy.topic, copy)
        if Property.REPEAT_RULE in stored.properties:
            self._plan_next(plan, timer, stored, now_ms)
        return plan

    def _plan_next(self, plan: _Plan, timer: DueTimer, stored: StoredMessage, now_ms: int) -> None:
        """Add the record of a repeating message's next time; what was missed is left out."""
        properties = stored.properties
        try:
            recurrence = parse_recurrence(
                properties[Property.REPEAT_RULE], properties.get(Property.REPEAT_ZONE, "UTC")
            )
        except ConfigError as error:
            logger.error("repeat=%s ends: %s", properties.get(Property.REPEAT_ID), error)
            return
        next_ms = recurrence.next_after(max(now_ms, timer.due_ms), timer.due_ms)
        if next_ms is not None:
            count = int(properties.get(Property.REPEAT_COUNT, "0")) + 1
            changes = {Property.TIMER_OUT_MS: str(next_ms), Property.REPEAT_COUNT: str(count)}
            plan.following_ms = next_ms
            plan.following = self._again(stored, timer.queue_offset, changes)

    def _again(self, stored: StoredMessage, offset: int, changes: dict[str, str]) -> PutMessage:
        """A record that stands in for another one of queue 0."""
        properties = {**stored.properties, **changes, Property.TIMER_REPLACES: str(offset)}
        return PutMessage(
            TIMER_TOPIC,
            TIMER_QUEUE,
            stored.body,
            encode_text(format_properties(properties, as_read=True)),
            stored.born_at_ms,
            pack_host(*stored.born_host),
            pack_host(*stored.store_host),
            stored.flag,
            stored.sys_flag,
            stored.reconsume_times,
        )

    def _put(self, plans: list[_Plan]) -> list[PutStatus]:
        """Append deliveries and the word that they are done, whole; in halves if too large."""
        messages: list[PutMessage] = []
        for plan in plans:
            # The copy first: who finds the record of the next time knows that this one is there.
            messages += [message for message in (plan.copy, plan.following) if message is not None]
        messages.append(self._done([plan.queue_offset for plan in plans]))
        results = self._store.put_group(messages)
        status = results[0].status
        if status in _ILLEGAL and len(plans) > 1:
            half = len(plans) // 2
            return [*self._put(plans[:half]), *self._put(plans[half:])]
        if status in _ILLEGAL:
            # Together with the word it may be too large for a file; one after the other is as good,
            # as long as nothing is called done that is not.
            results = []
            for message in messages:
                results += self._store.put([message])
                status = results[-1].status
                if status is not PutStatus.PUT_OK:
                    break
        if status is PutStatus.PUT_OK:
            self._count(plans, messages, results)
        return [status] * len(plans)

    def _count(
        self, plans: list[_Plan], messages: Sequence[PutMessage], results: Sequence[PutResult]
    ) -> None:
        found = iter(zip(messages, results, strict=True))
        for plan in plans:
            if plan.copy is not None:
                message, result = next(found)
                self._observer.stored(message.topic, 1, result.size_bytes)
            if plan.following is not None:
                _, result = next(found)
                plan.following_offset = result.queue_offset

    def _done(self, offsets: Iterable[int]) -> PutMessage:
        body = b"".join(_OFFSET.pack(offset) for offset in offsets)
        host = self._identity.store_host
        return PutMessage(
            TIMER_TOPIC, DONE_QUEUE, body, b"TAGS\x01done", self._clock.now_ms(), host, host
        )

    # What has become old.

    def _roll(self, now_ms: int) -> bool:
        """Write again what waits in files that expire soon; return whether there may be more."""
        age_ms = max(self._live.current.file_reserved_time * _HOUR_MS * 3 // 4, _HOUR_MS)
        for count, offset in enumerate(self.timers.pending.iterate(self._rolled_until), 1):
            stored = self.stored(offset)
            if stored is not None:
                if stored.stored_at_ms + age_ms > now_ms:
                    return False
                times = int(stored.properties.get(Property.TIMER_ROLL_TIMES, "0")) + 1
                again = self._again(stored, offset, {Property.TIMER_ROLL_TIMES: str(times)})
                (result,) = self._store.put([again])
                if result.status is not PutStatus.PUT_OK:
                    logger.warning("timer=%d not written again: %s", offset, result.status.name)
                    return False
                repeat_id = self._repeating.get(offset)
                due_ms = self.repeats[repeat_id].due_ms if repeat_id is not None else 0
                self._finish(offset)
                if repeat_id is not None:
                    self._note_repeat(repeat_id, result.queue_offset, due_ms)
            self._rolled_until = offset + 1
            if count == _ROLL_MAX:
                return True
        return False

    # Saving.

    async def save_for_ever(self) -> None:
        """Save how far delivery has come, now and then; deliveries go on meanwhile."""
        while True:
            await self._clock.sleep_ms(self._live.current.timer_flush_interval_ms)
            await self.save()

    async def save(self) -> None:
        """Save the wheel, so that the next start need not read the queues from their beginning."""
        if not self._is_changed or self.timers.is_building or self.timers.taken < self._ready_at:
            return
        self._is_changed = False
        text = json.dumps([repeat.queue_offset for repeat in self.repeats.values()])
        store = self._store
        end = store.log.appended
        if store.is_replica and store.agreed is not None:
            end = store.visible_end  # A follower knows only what the group has agreed on.
        try:
            snapshot = self.timers.capture(self._physical, text)
            # What counts as done in there must be done for good.
            if not is_safe(self._store, end):
                await self._flusher.flushed(end)
            await asyncio.get_running_loop().run_in_executor(None, snapshot.run)
            self.timers.saved(snapshot)
        except StoreError as error:
            self._is_changed = True
            self.timers.not_saved()
            logger.error("timers not saved: %s", error)

    def close(self) -> None:
        """Let go of the files."""
        self.timers.close()

    # What people ask.

    def waiting(self, after: DueTimer, count_max: int, topic: str | None = None) -> list[Waiting]:
        """Messages that wait, in the order of their times, behind a given one."""
        found: list[Waiting] = []
        scan_max = _LIST_SCAN_MAX
        while len(found) < count_max:
            page = self.timers.upcoming(after, count_max, scan_max)
            for timer in page:
                stored = self.stored(timer.queue_offset)
                if stored is not None and topic in (
                    None,
                    stored.properties.get(Property.REAL_TOPIC),
                ):
                    found.append(Waiting(timer.due_ms, timer.queue_offset, stored))
            scan_max -= len(page)
            if len(page) < count_max or scan_max <= 0:
                break
            after = page[-1]
        return found[:count_max]

    def find(self, text: str) -> list[int]:
        """Which of those that wait have a repeat's id, a unique key, a key, or an offset id."""
        repeat = self.repeats.get(text)
        if repeat is not None:
            return [repeat.queue_offset]
        return self._by_key(text) or self._by_place(text)

    def _by_place(self, text: str) -> list[int]:
        place = read_message_id(text).offset_id
        if place is None or place.physical_offset < 0:
            return []
        record = self._store.get_by_physical_offset(place.physical_offset)
        info = None if record is None else decode_dispatch(record)
        if info is None or info.topic != TIMER_TOPIC or info.queue_id != TIMER_QUEUE:
            return []
        if info.queue_offset in self.timers.pending:
            return [info.queue_offset]
        # It may have been written again since.
        return [] if info.unique_key is None else self._by_key(info.unique_key)

    def _by_key(self, key: str, topic: str | None = None) -> list[int]:
        result = self._store.query(TIMER_TOPIC, key, count_max=_FIND_MAX, begin_ms=0, end_ms=2**62)
        found = []
        for record in result.records:
            info = decode_dispatch(record)
            if (
                info is not None
                and info.queue_id == TIMER_QUEUE
                and info.queue_offset in self.timers.pending
                and Property.TIMER_DEL_UNIQKEY not in info.properties
                and topic in (None, info.properties.get(Property.REAL_TOPIC))
            ):
                found.append(info.queue_offset)
        return found

    def _cancel_for(self, key: str, topic: str, offset: int) -> None:
        """Cancel what a message with TIMER_DEL_UNIQKEY asks for, in its own topic only."""
        # RocketMQ 5 can be told to put the topic before the key.
        found = self._by_key(key.removeprefix(f"{topic}+"), topic)
        for other in found:
            self._finish(other)
        self.cancelled_total += len(found)
        if self._store.is_replica:
            return
        (result,) = self._store.put([self._done([*found, offset])])
        if result.status is not PutStatus.PUT_OK:
            # The wish itself stays in queue 0, and is met again by whoever reads it.
            logger.warning("timer=%d cancelled in memory: %s", offset, result.status.name)

    def cancel(self, offsets: Sequence[int]) -> PutResult | None:
        """Let these wait no more; returns where that was written, None if none of them waits."""
        waiting = [offset for offset in offsets if self.timers.is_waiting(offset)]
        if not waiting:
            return None
        (result,) = self._store.put([self._done(waiting)])
        if result.status is PutStatus.PUT_OK:
            for offset in waiting:
                self._finish(offset)
            self.cancelled_total += len(waiting)
        return result

    def fire(self, offsets: Sequence[int]) -> PutStatus | None:
        """Deliver these now; one that repeats is delivered once more, and goes on as it was."""
        waiting = [offset for offset in offsets if offset in self.timers.pending]
        status: PutStatus | None = None
        for offset in waiting:
            now_ms = self._clock.now_ms()
            plan = self._plan(DueTimer(now_ms, offset), now_ms, mark=f"-{now_ms}")
            if plan.copy is None:
                continue
            if offset in self._repeating:
                (result,) = self._store.put([plan.copy])
                status = result.status
                self.delivered_total += status is PutStatus.PUT_OK
            else:
                (status,) = self._put([plan])
                if status is PutStatus.PUT_OK:
                    self._delivered(plan)
            if status is not PutStatus.PUT_OK:
                return status
        return status

    def add_repeat(self, message: PutMessage) -> PutResult:
        """Begin to repeat a message; its properties say how, see RepeatRequest."""
        (result,) = self._store.put([message])
        return result


@dataclass(slots=True)
class _Plan:
    """What one delivery appends."""

    queue_offset: int
    topic: str
    copy: PutMessage | None = None
    following: PutMessage | None = None  # The record of its next time.
    following_ms: int = 0
    following_offset: int = -1


def done_offsets(message: StoredMessage) -> list[int]:
    """The offsets of queue 0 that a record of queue 1 says are done."""
    body = message.body
    return [_OFFSET.unpack_from(body, at)[0] for at in range(0, len(body) - 7, _OFFSET.size)]


def _due_ms(message: StoredMessage) -> int:
    text = message.properties.get(Property.TIMER_OUT_MS, "0")
    return int(text) if text.isascii() and text.isdigit() else 0
