"""StagingService: rows that a job has sent and that nobody sees until the job has decided.

A job of many tasks, such as a Spark micro-batch, must appear in its topics as a whole and once,
though tasks fail, are repeated, and drivers die between any two steps. So tasks *stage* rows; the
driver then *decides*, by one record, which attempt of each task counts; and the broker *applies*
the decision: it appends copies of just those rows to their topics. All of it is in the log:

    topic, queue        tag      holds
    rmq_sys_staged, 0            a row; REAL_TOPIC, REAL_QID: where to; STAGE:
                                 sink/batch/task/attempt
    rmq_sys_staged, 1   decide   JSON: sink, batch, and of each task its attempt and count of rows
    rmq_sys_staged, 1   apply    JSON: sink, batch, task, from, count; right behind it in the log
                                 lie that many copies, in the same append
    rmq_sys_staged, 1   done     JSON: sink, batch

    # Of one sink and batch there is at most one decision, the first; batches only go up.
    # Copies before `from` of the last apply record are in the log, and behind it as many as the
    # end of the log has left of `count`: an append is cut by a crash, never interleaved.

What is not decided stays in doubt until a later batch of its sink is decided, or
stagedRowsTimeoutHours have passed. Copies carry SINK_ROW = sink/batch/task/number, the same however
often a batch was tried.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..clock import Clock
from ..errors import BrokerError, InvalidRecord, StoreError
from ..model.message import Property, StoredMessage
from ..model.topic import STAGED_TOPIC
from ..protocol.codes import ResponseCode
from ..protocol.properties import LazyProperties, encode_properties, parse_properties
from ..protocol.record import decode_record, decode_records, pack_host
from ..store import MessageStore, PutEntries, PutMessage, PutStatus
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
TASKS_MAX: Final = 100_000
CARRIES_MAX: Final = 30  # Days after which a sink that nobody uses is forgotten.
_CARRY_MS: Final = 24 * 3_600_000
_TIDY_MS: Final = 600_000
_MARK: Final = b"\x02STAGE\x01"  # What a staged row's own properties end with.
_SINK: Final = re.compile(r"[A-Za-z0-9_.-]{1,120}")
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


class GroupKey(NamedTuple):
    """The rows of one attempt of one task."""

    sink: str
    batch: int
    task: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}/{self.task}/{self.attempt}"


@dataclass(slots=True)
class Group:
    """Where the rows of a group lie."""

    runs: list[tuple[int, int]] = field(default_factory=list)  # First queue offset, number of rows.
    rows: int = 0
    physical_offset: int = 0  # Of the first.
    stored_at_ms: int = 0

    def runs_from(self, row: int) -> Iterator[tuple[int, int]]:
        """The queue offsets of the rows from one on, in the order in which they were staged."""
        for first, count in self.runs:
            if row < count:
                yield first + row, count - row
            row = max(0, row - count)


@dataclass(slots=True)
class Decision:
    """What counts of one batch."""

    sink: str
    batch: int
    # Task → the attempt that counts, and its number of rows here.
    tasks: dict[int, tuple[str, int]]
    # Broker → its tasks, where rows of the batch lie at several: for whoever has to go on.
    elsewhere: dict[str, Any] = field(default_factory=dict)
    applied: dict[int, int] = field(default_factory=dict)  # Task → rows that have been copied.
    is_done: bool = False
    recorded_at_ms: int = 0
    carried: int = 0  # How often it was written down again, each time a day later.

    def to_json(self) -> dict[str, Any]:
        """As records and answers carry it."""
        found: dict[str, Any] = {
            "sink": self.sink,
            "batch": self.batch,
            "tasks": {str(task): list(one) for task, one in sorted(self.tasks.items())},
        }
        if self.elsewhere:
            found["elsewhere"] = self.elsewhere
        return found


def read_key(text: str) -> GroupKey:
    """Read sink/batch/task/attempt; raises BrokerError."""
    parts = text.split("/")
    if len(parts) == 4:
        sink, batch, task, attempt = parts
        if (
            _SINK.fullmatch(sink)
            and _ATTEMPT.fullmatch(attempt)
            and _is_number(batch)
            and _is_number(task)
        ):
            return GroupKey(sink, int(batch), int(task), attempt)
    raise _illegal(f"stage {text[:80]!r} is not sink/batch/task/attempt")


def read_decision(text: bytes | memoryview) -> Decision:
    """Read what a driver asks for; raises BrokerError."""
    try:
        value = json.loads(bytes(text))
        tasks = {int(task): (str(one[0]), int(one[1])) for task, one in value["tasks"].items()}
        elsewhere = dict(value.get("elsewhere", {}))
        found = Decision(str(value["sink"]), int(value["batch"]), tasks, elsewhere)
        found.carried = int(value.get("carried", 0))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise _illegal('a decision is {"sink": s, "batch": b, "tasks": {t: [a, n]}}') from None
    if len(found.tasks) > TASKS_MAX or found.batch < 0:
        raise _illegal(f"a decision is about at most {TASKS_MAX} tasks of a batch from 0 on")
    for task, (attempt, _) in found.tasks.items():
        read_key(f"{found.sink}/{found.batch}/{task}/{attempt}")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _illegal(problem: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, problem)


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
        self._groups: dict[GroupKey, Group] = {}
        self._decisions: dict[str, Decision] = {}

    def __len__(self) -> int:
        return len(self._groups)

    # Starting.

    def load(self) -> None:
        """Find rows in doubt and decisions in the log, and finish what a crash has cut."""
        self._groups.clear()
        self._decisions.clear()
        if self._store.is_replica:
            return
        for stored in self._messages(ROWS_QUEUE):
            try:
                key = read_key(stored.properties.get(STAGE_PROPERTY, ""))
            except BrokerError as error:
                logger.error("staged row at %d: %s", stored.physical_offset, error.remark)
                continue
            self._note(key, stored.queue_offset, 1, stored.physical_offset, stored.stored_at_ms)
        last: tuple[Decision, int, int, int, StoredMessage] | None = None
        for stored in self._messages(DECISIONS_QUEUE):
            last = self._replay(stored) or last
        if last is not None:
            decision, task, first, count, stored = last
            copied = self._copies_behind(stored, decision, task, first, count)
            decision.applied[task] = first + copied
        for decision in self._decisions.values():
            self._forget_before(decision.sink, decision.batch + (1 if decision.is_done else 0))
        if self._groups:
            logger.info("%d groups of staged rows are in doubt", len(self._groups))

    def _replay(
        self, stored: StoredMessage
    ) -> tuple[Decision, int, int, int, StoredMessage] | None:
        kind = stored.tag
        try:
            value = json.loads(stored.body)
            if kind == "decide":
                decision = read_decision(stored.body)
                decision.recorded_at_ms = stored.stored_at_ms
                self._decisions[decision.sink] = decision
                return None
            known = self._decisions.get(value["sink"])
            if known is None or known.batch != value["batch"]:
                return None
            if kind == "done":
                known.is_done = True
                return None
            task, first, count = int(value["task"]), int(value["from"]), int(value["count"])
            known.applied[task] = first + count
        except (ValueError, KeyError, TypeError, BrokerError) as error:
            logger.error("staging record at %d cannot be read: %s", stored.physical_offset, error)
            return None
        return known, task, first, count, stored

    def _copies_behind(
        self, stored: StoredMessage, decision: Decision, task: int, first: int, count: int
    ) -> int:
        """How many of the copies of an apply record are in the log."""
        at = stored.physical_offset + stored.size_bytes
        for number in range(count):
            expected = f"{decision.sink}/{decision.batch}/{task}/{first + number}"
            found = self._decoded(at, None)
            if found is None or found.properties.get(ROW_PROPERTY) != expected:
                return number
            at += found.size_bytes
        return count

    def _messages(self, queue_id: int) -> Iterator[StoredMessage]:
        first = self._store.min_offset(STAGED_TOPIC, queue_id)
        for offset in range(first, self._store.max_offset(STAGED_TOPIC, queue_id)):
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
        """Write down what counts, if nobody has; the decision that stands, and the log's end."""
        known = self._decisions.get(wanted.sink)
        if known is not None and wanted.batch < known.batch:
            raise BrokerError(
                ResponseCode.TRANSACTION_FAILED,
                f"batch {wanted.batch} of sink {wanted.sink} is over, {known.batch} is decided",
            )
        if known is not None and wanted.batch == known.batch:
            return known, 0
        if known is not None and not known.is_done:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]batch {known.batch} of sink {known.sink} is not applied yet",
            )
        if known is None and len(self._decisions) >= SINKS_MAX:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{SINKS_MAX} sinks are known")
        for task, (attempt, rows) in wanted.tasks.items():
            key = GroupKey(wanted.sink, wanted.batch, task, attempt)
            group = self._groups.get(key)
            there = 0 if group is None else group.rows
            if there != rows:
                raise BrokerError(
                    ResponseCode.TRANSACTION_FAILED,
                    f"staged rows {key}: {rows} were to be there, there are {there}; the batch "
                    "must be tried again",
                )
        end = self._record("decide", wanted.to_json())
        wanted.recorded_at_ms = self._clock.now_ms()
        self._decisions[wanted.sink] = wanted
        return wanted, end

    def _record(self, kind: str, value: Mapping[str, Any]) -> int:
        result = self._store.put([self._mark(kind, value)])[0]
        if result.status is not PutStatus.PUT_OK:
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the store takes no writes: {result.status}"
            )
        return result.end

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
        for task, (attempt, rows) in sorted(decision.tasks.items()):
            first = decision.applied.get(task, 0)
            if first < rows:
                return self._apply_chunk(decision, task, attempt, first)
        end = self._record("done", {"sink": decision.sink, "batch": decision.batch})
        decision.is_done = True
        self._forget_before(decision.sink, decision.batch + 1)
        return end

    def _apply_chunk(self, decision: Decision, task: int, attempt: str, first: int) -> int:
        key = GroupKey(decision.sink, decision.batch, task, attempt)
        group = self._groups.get(key)
        copies: list[PutMessage] = []
        size = 0
        places: dict[bytes, tuple[str, int]] = {}
        for stored in () if group is None else self._rows_from(group, first):
            number = first + len(copies)
            copies.append(self._copy(stored, f"{key.sink}/{key.batch}/{task}/{number}", places))
            size += stored.size_bytes
            if len(copies) >= CHUNK_ROWS or size >= CHUNK_BYTES:
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
        if b"SINK_ROW\x01" in own:  # It was read from where another sink has written.
            known = parse_properties(own)
            known.pop(ROW_PROPERTY, None)
            own = encode_properties(known)
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
        """Finish what was decided before a restart; then forget what has expired, for ever."""
        for decision in list(self._decisions.values()):
            try:
                while self.apply_some(decision) is not None:
                    await self._clock.sleep_ms(0)
            except (BrokerError, StoreError) as error:
                # Whoever decided it will ask again; until then nothing of the rest is seen.
                logger.error("batch %d of sink %s: %s", decision.batch, decision.sink, error)
        while True:
            await self._clock.sleep_ms(_TIDY_MS)
            if not self._store.is_replica and self._store.is_writable:
                self.forget_expired()
                self.carry_on()

    # Forgetting.

    def _forget_before(self, sink: str, batch: int) -> None:
        for key in [key for key in self._groups if key.sink == sink and key.batch < batch]:
            del self._groups[key]

    def forget_expired(self) -> int:
        """Roll back rows that nobody has decided about for too long; how many groups."""
        limit = self._clock.now_ms() - self._timeout_ms
        expired = [
            key
            for key, group in self._groups.items()
            if group.stored_at_ms < limit and not self._counts(key)
        ]
        for key in expired:
            logger.warning("staged rows %s are rolled back: nobody decided about them", key)
            del self._groups[key]
        return len(expired)

    def _counts(self, key: GroupKey) -> bool:
        decision = self._decisions.get(key.sink)
        return decision is not None and decision.batch == key.batch and not decision.is_done

    def carry_on(self) -> int:
        """Write down again what retention would soon remove: a driver may come back after days."""
        now_ms = self._clock.now_ms()
        count = 0
        for sink, decision in list(self._decisions.items()):
            age_ms = now_ms - decision.recorded_at_ms
            if not decision.is_done or age_ms < _CARRY_MS:
                continue
            if decision.carried >= CARRIES_MAX:
                del self._decisions[sink]
                continue
            carried = decision.carried + 1
            value = {**decision.to_json(), "tasks": {}, "elsewhere": {}, "carried": carried}
            self._record("decide", value)
            self._record("done", {"sink": sink, "batch": decision.batch})
            decision.carried, decision.recorded_at_ms = carried, now_ms
            count += 1
        return count

    def undelivered_from(self) -> int | None:
        """Where the oldest row in doubt lies; retention spares it."""
        return min((group.physical_offset for group in self._groups.values()), default=None)
