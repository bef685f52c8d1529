"""StagingService: rows that a job has sent and that nobody sees until the job has decided.

A job of many tasks, such as a Spark micro-batch, must appear in its topics as a whole and once,
though tasks fail, are repeated, and drivers die between any two steps. So tasks *stage* rows; the
driver then *decides*, by one record, which attempt of each task counts; and the broker *applies*
the decision: it appends copies of just those rows to their topics. All of it is in the log:

    topic, queue        tag      holds
    rmq_sys_staged, 0            a row; REAL_TOPIC, REAL_QID: where to; STAGE:
                                 sink/batch/task/attempt
    rmq_sys_staged, 1   seal     JSON: sink, batch; another broker decides about rows here
    rmq_sys_staged, 1   decide   JSON: sink, batch, and of each task its attempt and count of rows
    rmq_sys_staged, 1   apply    JSON: sink, batch, task, from, count; right behind it in the log
                                 lie that many copies, in the same append
    rmq_sys_staged, 1   done     JSON: sink, batch, and from where on a start has to read

    # Of one sink and batch there is at most one decision, the first; batches only go up.
    # Copies before `from` of a sink's last apply record are in the log, and behind it as many as a
    # crash has left of `count`: an append is cut, never interleaved. What follows is another's.
    # Before rows_from of a done record there is no row in doubt; before decisions_from, nothing
    # that stands. Both are positions in the log, and what lies there is written again in time.

What is not decided stays in doubt until a later batch of its sink is decided, or
stagedRowsTimeoutHours have passed. Rows that are sealed wait a month, as decisions do. Copies carry
SINK_ROW = sink/batch/task/number, the same however often a batch was tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..clock import Clock
from ..errors import BrokerError, InvalidRecord, StoreError
from ..model.message import Property, StoredMessage
from ..model.topic import STAGED_TOPIC
from ..protocol.codes import ResponseCode
from ..protocol.properties import LazyProperties, encode_properties, parse_properties
from ..protocol.record import decode_record, decode_records, pack_host
from ..store import MessageStore, PutEntries, PutMessage, PutStatus
from .decisions import (
    Apply,
    Decision,
    Group,
    GroupKey,
    Record,
    Seal,
    illegal,
    read_decision,
    read_key,
)
from .identity import Identity

logger = logging.getLogger(__name__)

ROWS_QUEUE: Final = 0
DECISIONS_QUEUE: Final = 1
STAGE_PROPERTY: Final = "STAGE"
ROW_PROPERTY: Final = "SINK_ROW"
CHUNK_ROWS: Final = 256  # Copied in one append, between two turns of the loop.
CHUNK_BYTES: Final = 1 << 20
GROUPS_MAX: Final = 100_000
SINKS_MAX: Final = 10_000
TAIL_MAX: Final = 50_000  # Records that a start has to read at most, to know what is decided.
SLICE_RECORDS: Final = 1_000  # Read between two turns of the loop.
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
KEEP_MS: Final = 30 * _DAY_MS  # After which a sink that nobody uses is forgotten.
KEEP_JOB_MS: Final = _DAY_MS  # A job with a name by chance is never run again.
_CARRY_MS: Final = _DAY_MS
_TIDY_MS: Final = 60_000
_TOO_LARGE: Final = (PutStatus.PROPERTIES_SIZE_EXCEEDED, PutStatus.MESSAGE_ILLEGAL)
_MARK: Final = b"\x02STAGE\x01"  # What a staged row's own properties end with.
_ROW_PIECE: Final = f"{ROW_PROPERTY}\x01".encode()
_JOB: Final = re.compile(r"job-[0-9a-f]{32}")


def _mark_of(topic: str, queue_id: int, stage: str) -> bytes:
    """What is put behind the properties of a row: whose it is, and where it goes."""
    return b"\x02" + encode_properties(
        {
            STAGE_PROPERTY: stage,
            Property.REAL_TOPIC: topic,
            Property.REAL_QID: str(queue_id),
        }
    )


def _hidden(row: PutMessage, stage: str, marks: dict[tuple[str, int], bytes]) -> PutMessage:
    """A row where nobody sees it; marks keeps what is the same for many."""
    place = row.topic, row.queue_id
    mark = marks.get(place)
    if mark is None:
        mark = marks[place] = _mark_of(row.topic, row.queue_id, stage)
    return PutMessage(STAGED_TOPIC, ROWS_QUEUE, row.body, row.properties + mark, *row[4:])


class StagingService:
    """All rows in doubt, and the last decision of each sink."""

    def __init__(
        self, identity: Identity, *, store: MessageStore, clock: Clock, timeout_ms: int
    ) -> None:
        self._identity = identity
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        reserved_ms = store.config.file_reserved_time * _HOUR_MS
        self._carry_ms = max(_TIDY_MS, min(_CARRY_MS, reserved_ms // 3))
        self._groups: dict[GroupKey, Group] = {}
        self._decisions: dict[str, Decision] = {}
        self._seals: dict[str, Seal] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._groups)

    # Starting.

    def load(self) -> None:
        """Find rows in doubt and decisions in the log, and finish what a crash has cut."""
        for _ in self.loading():
            pass

    def loading(self) -> Iterator[None]:
        """The same in slices; between them nothing may be written, and nothing asked of this."""
        self.clear()
        if self._store.is_replica:
            return
        rows_from, decisions_from = self._begins()
        applies: dict[str, Apply] = {}
        for number, stored in enumerate(self._messages(DECISIONS_QUEUE, decisions_from), 1):
            self._replay(stored, applies)
            if number % SLICE_RECORDS == 0:
                yield
        for sink, apply in applies.items():
            decision = self._decisions[sink]
            decision.applied[apply.task] = apply.first + self._copies_behind(decision, apply)
        for number, stored in enumerate(self._messages(ROWS_QUEUE, rows_from), 1):
            self._find_row(stored)
            if number % SLICE_RECORDS == 0:
                yield
        if self._groups:
            logger.info("%d groups of staged rows are in doubt", len(self._groups))

    def clear(self) -> None:
        """Forget everything; the log has it."""
        self._groups.clear()
        self._decisions.clear()
        self._seals.clear()

    def _begins(self) -> tuple[int, int]:
        """From where on rows and decisions have to be read, as the last done record says."""
        first = self._store.min_offset(STAGED_TOPIC, DECISIONS_QUEUE)
        end = self._store.max_offset(STAGED_TOPIC, DECISIONS_QUEUE)
        for offset in range(end - 1, first - 1, -1):
            stored = self._read(DECISIONS_QUEUE, offset)
            if stored is None or stored.tag != "done":
                continue
            try:
                value = json.loads(stored.body)
                # Those of former versions do not say.
                return int(value.get("rows_from", 0)), int(value.get("decisions_from", 0))
            except (ValueError, TypeError, AttributeError):
                break  # _replay() tells of it.
        return 0, 0

    def _find_row(self, stored: StoredMessage) -> None:
        try:
            key = read_key(stored.properties.get(STAGE_PROPERTY, ""))
        except BrokerError as error:
            logger.error("staged row at %d: %s", stored.physical_offset, error.remark)
            return
        decision = self._decisions.get(key.sink)
        if decision is None or key.batch >= decision.batch + decision.is_done:
            self._note(key, stored.queue_offset, 1, stored.physical_offset, stored.stored_at_ms)

    def _replay(self, stored: StoredMessage, applies: dict[str, Apply]) -> None:
        """Take in a record; applies has the last one of each batch that is not done."""
        kind, end = stored.tag, stored.physical_offset + stored.size_bytes
        record = Record(stored.physical_offset, end, stored.queue_offset, stored.stored_at_ms)
        try:
            if kind == "decide":
                decision = read_decision(stored.body)
                decision.record = record
                decision.since_ms = decision.since_ms or stored.stored_at_ms
                self._decisions[decision.sink] = decision
                applies.pop(decision.sink, None)
                return
            value = json.loads(stored.body)
            sink, batch = str(value["sink"]), int(value["batch"])
            if kind == "seal":
                since_ms = int(value.get("since", stored.stored_at_ms))
                self._seals[sink] = Seal(batch, since_ms, record)
                return
            known = self._decisions.get(sink)
            if known is None or known.batch != batch:
                return
            if kind == "done":
                known.is_done = True
                applies.pop(sink, None)
                self._break_seal(known)
                return
            task, first, count = int(value["task"]), int(value["from"]), int(value["count"])
        except (ValueError, KeyError, TypeError, AttributeError, BrokerError) as error:
            logger.error("staging record at %d cannot be read: %s", stored.physical_offset, error)
            return
        known.applied[task] = first + count
        applies[sink] = Apply(task, first, count, end)

    def _copies_behind(self, decision: Decision, apply: Apply) -> int:
        """How many of the copies of an apply record are in the log."""
        at = apply.end
        for number in range(apply.rows):
            row = f"{decision.sink}/{decision.batch}/{apply.task}/{apply.first + number}"
            found = self._decoded(at, None)
            if found is None or found.properties.get(ROW_PROPERTY) != row:
                return number
            at += found.size_bytes
        return apply.rows

    def _messages(self, queue_id: int, physical_from: int) -> Iterator[StoredMessage]:
        """What lies in a queue, from a position in the log on."""
        queue = self._store.queues.get(STAGED_TOPIC, queue_id)
        if queue is None:
            return

        def position(offset: int) -> int:
            entry = queue.entry(offset)
            return -1 if entry is None else entry.physical_offset

        offsets = range(queue.min_offset, self._store.max_offset(STAGED_TOPIC, queue_id))
        for offset in offsets[bisect_left(offsets, physical_from, key=position) :]:
            stored = self._read(queue_id, offset)
            if stored is not None:
                yield stored

    def _read(self, queue_id: int, queue_offset: int) -> StoredMessage | None:
        queue = self._store.queues.get(STAGED_TOPIC, queue_id)
        entry = None if queue is None else queue.entry(queue_offset)
        return None if entry is None else self._decoded(entry.physical_offset, entry.size_bytes)

    def _decoded(self, physical_offset: int, size_bytes: int | None) -> StoredMessage | None:
        try:
            record = self._store.get_by_physical_offset(physical_offset, size_bytes)
            return None if record is None else decode_record(record)
        except (InvalidRecord, StoreError) as error:
            logger.error("staged record at %d cannot be read: %s", physical_offset, error)
            return None

    # Staging.

    def stage(self, key: GroupKey, first: int, rows: Sequence[PutMessage]) -> int:
        """Append rows that nobody sees yet; the end of the log behind them.

        A request that comes again, because its answer was lost, changes nothing; one of which a
        crash has kept only the first rows goes on behind them.
        """
        there = self._rows_of(key)
        if first + len(rows) <= there:
            return self._store.log.appended
        if first > there:
            raise BrokerError(
                ResponseCode.TRANSACTION_FAILED,
                f"staged rows {key}: row {first} does not follow, {there} rows are here; the task "
                "must be tried again",
            )
        rows = rows[there - first :]
        marks: dict[tuple[str, int], bytes] = {}
        results = self._store.put_group([_hidden(row, str(key), marks) for row in rows])
        place = results[0]
        if place.status in _TOO_LARGE:
            raise illegal(
                f"the store does not take these rows ({place.status.name}): a body may have "
                f"{self._store.config.max_message_size} bytes, and beside its own properties a row "
                f"carries about {len(next(iter(marks.values())))} bytes more"
            )
        if place.status is not PutStatus.PUT_OK:
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the store did not take it: {place.status}"
            )
        now_ms = self._clock.now_ms()
        self._note(key, place.queue_offset, len(rows), place.physical_offset, now_ms)
        return results[-1].end

    def stage_entries(self, key: GroupKey, first: int, batch: PutEntries) -> int | None:
        """Do as stage() does with rows that are plain and follow those that are here.

        None, and nothing is done, where stage() has to look at them.
        """
        if first != self._rows_of(key):
            return None
        mark = _mark_of(batch.topic, batch.queue_id, str(key))
        stored = self._store.put_entries(
            batch._replace(
                topic=STAGED_TOPIC, queue_id=ROWS_QUEUE, properties=batch.properties + mark
            )
        )
        if stored is None:
            return None
        offsets = stored.physical_offsets
        self._note(key, stored.queue_offset, len(offsets), offsets[0], self._clock.now_ms())
        return stored.end

    def _rows_of(self, key: GroupKey) -> int:
        """How many rows of a group are here; raises BrokerError if it takes no more."""
        decision = self._decisions.get(key.sink)
        if decision is not None and key.batch <= decision.batch:
            raise BrokerError(
                ResponseCode.TRANSACTION_FAILED,
                f"batch {key.batch} of sink {key.sink} is decided already; ask for its decision",
            )
        if key not in self._groups and len(self._groups) >= GROUPS_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{len(self._groups)} groups of staged rows are in doubt already",
            )
        return self._groups[key].rows if key in self._groups else 0

    def _note(
        self, key: GroupKey, queue_offset: int, count: int, physical_offset: int, at_ms: int
    ) -> None:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(physical_offset=physical_offset, stored_at_ms=at_ms)
        if group.runs and sum(group.runs[-1]) == queue_offset:
            first, before = group.runs[-1]
            group.runs[-1] = first, before + count
        else:
            group.runs.append((queue_offset, count))
        group.rows += count

    # Deciding.

    def decision(self, sink: str) -> Decision | None:
        """The last decision of a sink."""
        return self._decisions.get(sink)

    def decide(self, wanted: Decision) -> tuple[Decision, int]:
        """Write down what counts, if nobody has; the decision that stands, and its record's end."""
        known = self._decided(wanted)
        if known is not None:
            assert known.record is not None, "only what is written down is known"
            return known, known.record.end
        known = self._decisions.get(wanted.sink)
        if known is not None and not known.is_done:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]batch {known.batch} of sink {known.sink} is not applied yet",
            )
        if known is None and len(self._decisions) >= SINKS_MAX and not self._forget_a_job():
            raise BrokerError(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{SINKS_MAX} sinks are known")
        self._require_rows(wanted)
        wanted.record = self._record("decide", wanted.to_json())
        wanted.since_ms = wanted.record.stored_at_ms
        self._decisions[wanted.sink] = wanted
        return wanted, wanted.record.end

    def seal(self, wanted: Decision) -> int:
        """Keep rows here that another broker is about to decide about; the log's end.

        Once that end is on the disk they are there whenever the decision comes.
        """
        if self._decided(wanted) is None:
            self._require_rows(wanted)
            seal = self._seals.get(wanted.sink)
            if seal is None and len(self._seals) >= SINKS_MAX:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{SINKS_MAX} sinks have sealed rows"
                )
            if seal is None or seal.batch != wanted.batch:
                self._write_seal(wanted.sink, wanted.batch, self._clock.now_ms())
        return self._store.log.appended

    def _write_seal(self, sink: str, batch: int, since_ms: int) -> None:
        value = {"sink": sink, "batch": batch, "since": since_ms}
        self._seals[sink] = Seal(batch, since_ms, self._record("seal", value))

    def _decided(self, wanted: Decision) -> Decision | None:
        """None if nothing is decided about a batch, else the decision; raises BrokerError."""
        known = self._decisions.get(wanted.sink)
        if known is None:
            return None
        if known.query and wanted.query and known.query != wanted.query:
            raise BrokerError(
                ResponseCode.TRANSACTION_FAILED,
                f"sink {wanted.sink} is written by query {known.query}, and this is "
                f"{wanted.query}: give it a sinkId of its own",
            )
        if wanted.batch < known.batch:
            raise BrokerError(
                ResponseCode.TRANSACTION_FAILED,
                f"batch {wanted.batch} of sink {wanted.sink} is over, {known.batch} is decided",
            )
        return known if wanted.batch == known.batch else None

    def _require_rows(self, wanted: Decision) -> None:
        for task, (attempt, rows) in wanted.tasks.items():
            key = GroupKey(wanted.sink, wanted.batch, task, attempt)
            group = self._groups.get(key)
            there = 0 if group is None or self._is_gone(group) else group.rows
            if there != rows:
                raise BrokerError(
                    ResponseCode.TRANSACTION_FAILED,
                    f"staged rows {key}: {rows} were to be there, there are {there}; the batch "
                    "must be tried again",
                )

    def _is_gone(self, group: Group) -> bool:
        """Whether a full disk has taken rows of a group, with the file that they were in."""
        return group.physical_offset < self._store.log.start

    def _record(self, kind: str, value: Mapping[str, Any]) -> Record:
        mark = self._mark(kind, value)
        result = self._store.put([mark])[0]
        if result.status in _TOO_LARGE:
            raise illegal(
                f"what is to be noted about batch {value['batch']} of sink {value['sink']} takes "
                f"{len(mark.body)} bytes, more than a record has room for: write it by fewer tasks"
            )
        if result.status is not PutStatus.PUT_OK:
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the store takes no writes: {result.status}"
            )
        return Record(result.physical_offset, result.end, result.queue_offset, result.stored_at_ms)

    def _record_done(self, decision: Decision) -> int:
        """Write down that a batch is there, and what a start need not read any more."""
        rows = (
            group.physical_offset
            for key, group in self._groups.items()
            if key.sink != decision.sink or key.batch > decision.batch
        )
        value = {
            "sink": decision.sink,
            "batch": decision.batch,
            "rows_from": min(rows, default=self._store.log.appended),
            "decisions_from": min(self._standing()),
        }
        return self._record("done", value).end

    def _standing(self) -> Iterator[int]:
        """Where the records lie that count."""
        for seal in self._seals.values():
            yield seal.record.physical_offset
        for decision in self._decisions.values():
            if decision.record is not None:
                yield decision.record.physical_offset

    def _mark(self, kind: str, value: Mapping[str, Any]) -> PutMessage:
        host = self._identity.store_host
        return PutMessage(
            STAGED_TOPIC,
            DECISIONS_QUEUE,
            json.dumps(value, separators=(",", ":")).encode(),
            encode_properties({Property.TAGS: kind}),
            self._clock.now_ms(),
            host,
            host,
        )

    # Applying.

    def apply_some(self, decision: Decision) -> int | None:
        """Copy a chunk of what is decided to where it goes; None once everything is there.

        The caller lets others have their turn in between.
        """
        if decision.is_done:
            return None
        self._require_current(decision)
        for task, (attempt, rows) in sorted(decision.tasks.items()):
            first = decision.applied.get(task, 0)
            if first < rows:
                return self._apply_chunk(decision, task, attempt, first)
        end = self._record_done(decision)
        decision.is_done = True
        self._forget_before(decision.sink, decision.batch + 1)
        self._break_seal(decision)
        return end

    def copied(self, decision: Decision, is_safe: Callable[[int], bool]) -> int:
        """How many rows of a batch are where they go, and safe there; it never becomes less.

        What was copied and is not safe may be taken back, by a leader that has not heard of it.
        """
        self._require_current(decision)
        unsafe = decision.unsafe
        while unsafe and is_safe(unsafe[0][0]):
            unsafe.popleft()
        return sum(decision.applied.values()) - sum(rows for _, rows in unsafe)

    def _require_current(self, decision: Decision) -> None:
        if self._decisions.get(decision.sink) is not decision:
            # It was read from the log again, in another turn as leader of a Raft group.
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker has begun anew; ask again"
            )

    def _apply_chunk(self, decision: Decision, task: int, attempt: str, first: int) -> int:
        key = GroupKey(decision.sink, decision.batch, task, attempt)
        group = self._groups.get(key)
        copies: list[PutMessage] = []
        size = 0
        # An append lies in one file.
        size_max = min(CHUNK_BYTES, self._store.config.mapped_file_size_commit_log // 2)
        places: dict[bytes, tuple[str, int]] = {}
        for stored in () if group is None else self._rows_from(group, first):
            size += stored.size_bytes
            if copies and size > size_max:
                break
            number = first + len(copies)
            copies.append(self._copy(stored, f"{key.sink}/{key.batch}/{task}/{number}", places))
            if len(copies) >= CHUNK_ROWS:
                break
        if not copies:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"staged rows {key} cannot be read from number {first} on; see the broker's log",
            )
        mark = self._mark(
            "apply",
            {
                "sink": decision.sink,
                "batch": decision.batch,
                "task": task,
                "from": first,
                "count": len(copies),
            },
        )
        results = self._store.put_group([mark, *copies])
        if results[0].status is not PutStatus.PUT_OK:
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the store takes no writes: {results[0].status}",
            )
        decision.applied[task] = first + len(copies)
        decision.unsafe.append((results[-1].end, len(copies)))
        return results[-1].end

    def _rows_from(self, group: Group, row: int) -> Iterator[StoredMessage]:
        """The rows of a group from one on, up to the first that cannot be read."""
        for first, count in group.runs_from(row):
            offset, end = first, first + count
            while offset < end:
                wanted = min(CHUNK_ROWS, end - offset)
                found = self._store.get(
                    STAGED_TOPIC, ROWS_QUEUE, offset, wanted, bulk_bytes=CHUNK_BYTES
                )
                records: list[StoredMessage] = []
                try:
                    for chunk in found.chunks:
                        records += decode_records(chunk)
                except InvalidRecord as error:
                    logger.error("staged rows from %d on cannot be read: %s", offset, error)
                    return
                if not records:
                    return
                yield from records
                offset += len(records)

    def _copy(
        self, stored: StoredMessage, row: str, places: dict[bytes, tuple[str, int]]
    ) -> PutMessage:
        """A row as it was sent, and with its number; places keeps what was read of its mark."""
        properties = stored.properties
        assert isinstance(properties, LazyProperties)
        own, _, mark = properties.text.rpartition(_MARK)
        place = places.get(mark)
        if place is None:
            found = parse_properties(mark)
            place = found.get(Property.REAL_TOPIC, ""), int(found.get(Property.REAL_QID, "0"))
            places[mark] = place
        if _ROW_PIECE in own:  # Perhaps it was read from where another sink has written.
            pieces = own.split(b"\x02")
            own = b"\x02".join([piece for piece in pieces if not piece.startswith(_ROW_PIECE)])
        return PutMessage(
            *place,
            stored.body,
            b"%b\x02SINK_ROW\x01%b" % (own, row.encode()),
            stored.born_at_ms,
            pack_host(*stored.born_host),
            self._identity.store_host,
            stored.flag,
            stored.sys_flag,
            stored.reconsume_times,
        )

    async def run(self) -> None:
        """Finish what is decided and nobody asks for; forget what has expired; for ever."""
        while True:
            self._wake.clear()
            if not self._store.is_replica and self._store.is_writable:
                await self._finish()
                self.forget_expired()
                while self.carry_on():
                    await self._clock.sleep_ms(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TIDY_MS / 1000):
                    await self._wake.wait()

    def go_on(self) -> None:
        """Have run() finish what is decided, now rather than in a minute."""
        self._wake.set()

    async def _finish(self) -> None:
        """Apply what was decided before a restart; its driver may have heard that it is there."""
        for decision in list(self._decisions.values()):
            try:
                while self.is_due(decision) and self.apply_some(decision) is not None:
                    await self._clock.sleep_ms(0)
            except (BrokerError, StoreError) as error:
                # Tried again; until then nothing of the rest is seen.
                logger.error("batch %d of sink %s: %s", decision.batch, decision.sink, error)

    def is_due(self, decision: Decision) -> bool:
        """Whether a decision is to be applied, also if its driver does not ask."""
        record = decision.record
        return not decision.is_done and record is not None and self._store.is_flushed(record.end)

    # Forgetting.

    def _forget_before(self, sink: str, batch: int) -> None:
        for key in [key for key in self._groups if key.sink == sink and key.batch < batch]:
            del self._groups[key]

    def _break_seal(self, decision: Decision) -> None:
        seal = self._seals.get(decision.sink)
        if seal is not None and seal.batch <= decision.batch:
            del self._seals[decision.sink]

    def forget_expired(self) -> int:
        """Roll back rows that nobody has decided about for too long; how many groups.

        And what is left of those of which some are gone: nobody can decide about them any more.
        """
        limit = self._clock.now_ms() - self._timeout_ms
        expired = [
            key
            for key, group in self._groups.items()
            if (group.stored_at_ms < limit or self._is_gone(group)) and not self._counts(key)
        ]
        for key in expired:
            logger.warning("staged rows %s are rolled back: nobody decided about them", key)
            del self._groups[key]
        return len(expired)

    def _counts(self, key: GroupKey) -> bool:
        """Whether rows are decided about, or may be elsewhere."""
        decision = self._decisions.get(key.sink)
        if decision is not None and decision.batch == key.batch and not decision.is_done:
            return True
        seal = self._seals.get(key.sink)
        return seal is not None and seal.batch == key.batch

    def carry_on(self) -> int:
        """Write down again what would soon be gone; how many, and there may be more.

        A driver may come back after days, when retention or a full disk has taken the files.
        """
        now_ms = self._clock.now_ms()
        known: list[tuple[str, Seal | Decision]] = [*self._seals.items(), *self._decisions.items()]
        count = 0
        for sink, one in known:
            if isinstance(one, Decision) and not one.is_done:
                continue
            # A seal is older than the decision about it, and must not go before.
            keep_ms = _keep_ms(sink) + (_DAY_MS if isinstance(one, Seal) else 0)
            if now_ms - one.since_ms > keep_ms:
                self._forget(sink, one)
            elif count < CHUNK_ROWS and self._is_old(one.record):
                try:
                    self._write_again(sink, one)
                except (BrokerError, StoreError) as error:
                    logger.error("sink %s: its decision is not written again: %s", sink, error)
                    return 0
                count += 1
        return count

    def _forget_a_job(self) -> bool:
        """Make room for another sink: the oldest job with a name by chance is not asked for."""
        for sink, decision in self._decisions.items():
            if decision.is_done and _JOB.fullmatch(sink):
                del self._decisions[sink]
                return True
        return False

    def _forget(self, sink: str, one: Seal | Decision) -> None:
        del (self._seals if isinstance(one, Seal) else self._decisions)[sink]

    def _write_again(self, sink: str, one: Seal | Decision) -> None:
        if isinstance(one, Seal):
            self._write_seal(sink, one.batch, one.since_ms)
            return
        # What other brokers have to show stays: they may not have heard of it yet.
        value = {**one.to_json(), "tasks": {}, "since": one.since_ms}
        one.record = self._record("decide", value)
        self._record_done(one)

    def _is_old(self, record: Record | None) -> bool:
        """Whether a record is about to be deleted, or far from the end of its queue."""
        assert record is not None, "only what is written down is known"
        log = self._store.log
        if record.physical_offset < log.mapped.files[-1].start and (
            record.physical_offset < (log.start + log.appended) // 2
        ):
            return True  # A full disk takes the oldest files whatever is in them.
        behind = self._store.max_offset(STAGED_TOPIC, DECISIONS_QUEUE) - record.queue_offset
        age_ms = self._clock.now_ms() - record.stored_at_ms
        return age_ms >= self._carry_ms or behind > TAIL_MAX

    def undelivered_from(self) -> int | None:
        """Where the oldest row in doubt lies, or what stands; retention spares it."""
        rows = (group.physical_offset for group in self._groups.values())
        return min((*rows, *self._standing()), default=None)


def _keep_ms(sink: str) -> int:
    return KEEP_JOB_MS if _JOB.fullmatch(sink) else KEEP_MS
