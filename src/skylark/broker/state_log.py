"""StateLog: the tables of a Raft group as a state machine that follows the group's log.

A change of a table (ledger.py) is a record of rmq_sys_raft_state, queue 0, in the same log as the
messages; docs/formats/raft-state.md says what is in it. It is applied when the group has agreed and
the record is dispatched, at every member alike. Values are absolute, so that applying a record
again changes nothing.

    # All records below `applied` are in the tables. The files may be older: raftState.json says up
    # to which record, and what follows is applied again at the next start.

From time to time the leader writes all tables down at once, as a snapshot, while no other change is
on its way. Retention spares the last one, so a log that begins late, at a member that was given a
new disk, still says everything. A snapshot is all that a store needs that was a single broker's.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..clock import Clock
from ..errors import BrokerError, CorruptRecord, InvalidBody, InvalidRecord
from ..model.topic import RAFT_STATE_TOPIC
from ..model.version import DataVersion
from ..protocol import fastjson
from ..protocol.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from ..protocol.bodies.members import Members
from ..protocol.codes import ResponseCode
from ..protocol.record import decode_record
from ..store import Arrival, MessageStore, PutMessage, PutStatus
from .arrivals import Arrivals
from .delay import DelayService
from .groups import GroupTable
from .identity import Identity
from .ledger import Change
from .locks import QueueLocks
from .offsets import ConsumerOffsets
from .saved_table import SmallFiles
from .topics import TopicTable

logger = logging.getLogger(__name__)

STATE_QUEUE: Final = 0
FORMAT_VERSION: Final = 1
GATHER_MS: Final = 100  # Commits of offsets within it are one record.
HURRY_MS: Final = 10  # The same, while somebody waits for an answer.
SETTLE_TIMEOUT_MS: Final = 4_000  # Tools give up after five seconds.
SNAPSHOT_RATIO: Final = 8  # The log may grow by so many snapshots before the next is written.
_OFFSETS_MAX: Final = 500  # In one record.
_PART_BYTES: Final = 64 << 10


class StateLog:
    """Writes changes down as the leader, and applies them as a member."""

    def __init__(
        self,
        store: MessageStore,
        arrivals: Arrivals,
        identity: Identity,
        clock: Clock,
        path: str,
        files: SmallFiles,
        *,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        locks: QueueLocks,
        delay: DelayService,
    ) -> None:
        self._store = store
        self._arrivals = arrivals
        self._identity = identity
        self._clock = clock
        self._path = path
        self._files = files
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._locks = locks
        self._delay = delay
        # Whether this broker leads now; asked before every write.
        self.may_write: Callable[[], bool] = lambda: False
        self.applied = 0  # Queue offset of the next record to apply.
        self._written = 0  # Queue offset after the last record that was written here.
        self._snapshot_at: int | None = None  # Where the last whole snapshot begins in the log.
        self._snapshot_bytes = 0
        self._parts: list[Mapping[str, Any]] = []  # Of a snapshot that is not whole yet.
        self._parts_at = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._saved_applied = -1
        self._saved_versions: tuple[DataVersion | None, DataVersion | None] = (None, None)
        self._is_begun = False
        self._is_due = False  # A snapshot waits for a moment in which nothing is on its way.
        self._turn = 0  # How often this broker has ceased to lead.
        self.applied_total = 0
        self._collected_bytes = 0
        for table in (topics, groups, offsets, locks, delay):
            table.ledger = self

    # Starting.

    def load(self) -> None:
        """Apply what the saved tables do not have yet; raises StoreError."""
        self._load_position()
        self._arrivals.listen(RAFT_STATE_TOPIC, self._arrived)
        self._store.watch(RAFT_STATE_TOPIC, STATE_QUEUE)
        self.apply_new()

    def _load_position(self) -> None:
        if not self._files.exists(self._path):
            return
        try:
            value = json.loads(self._files.read(self._path))
            applied, snapshot = int(value["applied"]), value["snapshotAt"]
            self._snapshot_bytes = int(value.get("snapshotBytes", 0))
            self._snapshot_at = None if snapshot is None else int(snapshot)
            self._locks.restore(value["locks"], int(value["token"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(
                f"{self._path} cannot be read: {error}; remove it, and all records are applied "
                "from the first that is kept"
            ) from None
        self.applied = self._saved_applied = max(0, applied)

    # Writing, as the leader.

    @property
    def is_open(self) -> bool:
        """Whether changes can be written down here."""
        return self._store.is_writable and self.may_write()

    def write(self, change: Change, value: Mapping[str, Any]) -> None:
        """Append one record; it counts when it comes back. Raises BrokerError."""
        if not self.may_write():
            raise not_leading()
        self._append([{"v": FORMAT_VERSION, "kind": str(change), **value}])

    def _append(self, values: list[dict[str, Any]]) -> int:
        """Append records side by side; returns their bytes."""
        host = self._identity.store_host
        now_ms = self._clock.now_ms()
        bodies = [fastjson.dumps(value, quoted_keys=True) for value in values]
        results = self._store.put(
            [
                PutMessage(RAFT_STATE_TOPIC, STATE_QUEUE, body, b"", now_ms, host, host)
                for body in bodies
            ]
        )
        for result in results:
            if result.status is not PutStatus.PUT_OK:
                raise BrokerError(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"the change cannot be stored: {result.status.name}; look at the broker's disk "
                    "and log",
                )
            self._written = result.queue_offset + 1
        return sum(result.size_bytes for result in results)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its queues and the offsets in it, at every member."""
        self._topics.delete(name)

    def delete_group(self, name: str, *, with_offsets: bool) -> None:
        """Delete a consumer group at every member."""
        self._groups.write_off(name, with_offsets=with_offsets)

    async def settled(self) -> None:
        """Wait until all that was written here so far counts; raises BrokerError if it may not."""
        turn = self._turn
        if self._offsets.has_unwritten:
            await self._clock.sleep_ms(HURRY_MS)
            if turn == self._turn:
                self._write_gathered()
        if self.applied < self._written:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._written, future))
            try:
                async with asyncio.timeout(SETTLE_TIMEOUT_MS / 1000):
                    await future
            except TimeoutError:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY,
                    f"the group has not agreed on the change within {SETTLE_TIMEOUT_MS} ms; it may "
                    "still do so, look before you try again",
                ) from None
            finally:
                self._waiting = [item for item in self._waiting if item[1] is not future]
        if not self.may_write() or turn != self._turn:
            raise not_leading()

    def begin_leading(self) -> None:
        """Write from now on; everything that was agreed before has been applied."""
        self.apply_new()
        self._written = self.applied
        self._offsets.begin_leading()
        self._locks.begin_leading()
        self._delay.begin_leading()
        self._is_begun = False

    async def begun(self) -> None:
        """Wait until a first record of this turn has been agreed on; raises BrokerError."""
        if not self._is_begun:
            # Name servers take over topics when their version is a new one.
            self._topics.touch()
            self._is_begun = True
        await self.settled()

    def end_leading(self) -> None:
        """Write no more; those who wait are told."""
        self._turn += 1
        self._is_due = False
        for table in (self._topics, self._groups, self._offsets):
            table.forget_written()
        self._locks.end_leading()
        self._delay.end_leading()
        self._written = self.applied
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(not_leading())
                future.exception()  # Seen: who gave up waiting will not fetch it.

    async def run(self) -> None:
        """Write down what is gathered, and snapshots when they are due, for ever."""
        while True:
            await self._clock.sleep_ms(GATHER_MS)
            if self.is_open:
                try:
                    self._write_gathered()
                    self._write_snapshot_if_due()
                except BrokerError as error:
                    logger.warning("progress is not written down, tried again: %s", error.remark)

    def _write_gathered(self) -> None:
        self._offsets.write_gathered(_OFFSETS_MAX)
        self._delay.write_progress()

    # Snapshots.

    def _write_snapshot_if_due(self) -> None:
        self._is_due = self._snapshot_at is None
        if self._snapshot_at is not None:
            behind = self._store.log.appended - self._snapshot_at
            file_bytes = self._store.config.mapped_file_size_commit_log
            self._is_due = behind >= max(file_bytes, SNAPSHOT_RATIO * self._snapshot_bytes)
        # A snapshot would undo what is on its way. Where something always is, the moment after it
        # has been applied is a good one.
        if not self._is_due or self.applied != self._written:
            return
        self._is_due = False
        parts = list(self._snapshot_parts())
        count = len(parts)
        size_bytes = self._append(
            [
                {
                    "v": FORMAT_VERSION,
                    "kind": str(Change.SNAPSHOT),
                    "part": number,
                    "parts": count,
                    **part,
                }
                for number, part in enumerate(parts)
            ]
        )
        logger.info("snapshot of the tables written, %d records, %d bytes", count, size_bytes)

    def _snapshot_parts(self) -> Iterator[dict[str, Any]]:
        """All tables, in pieces that fit a record each."""
        room = max(1, min(_PART_BYTES, self._store.config.max_message_size // 2))
        topics, groups = self._topics.body(), self._groups.body()
        for names in _pieces(topics.topics, room, 200):
            table = TopicConfigTable({n: topics.topics[n] for n in names}, topics.data_version)
            yield {"topics": table.to_members()}
        for names in _pieces(groups.groups, room, 300):
            groups_part = SubscriptionGroupTable(
                {n: groups.groups[n] for n in names}, groups.data_version
            )
            yield {"groups": groups_part.to_members()}
        offsets = self._offsets.body().offsets
        for names in _pieces(offsets, room, 200):
            yield {"offsets": ConsumerOffsetTable({n: offsets[n] for n in names}).to_members()}
        locks = self._locks.agreed()
        step = max(1, room // 400)
        for at in range(0, max(1, len(locks)), step):
            yield {"locks": locks[at : at + step], "token": self._locks.token}
        yield {"delay": self._delay.agreed().to_members()}

    def undelivered_from(self) -> int | None:
        """Where the last snapshot begins; retention spares it."""
        return self._snapshot_at

    # Applying, as a member.

    def _arrived(self, arrival: Arrival) -> None:
        self.apply_new()

    def apply_new(self) -> None:
        """Apply all records that the group has agreed on."""
        end = self._store.max_offset(RAFT_STATE_TOPIC, STATE_QUEUE)
        first = self._store.min_offset(RAFT_STATE_TOPIC, STATE_QUEUE)
        if self.applied < first < end:
            # This log begins late; it has a snapshot, which the leader's retention has spared.
            logger.info("state records %d to %d are before our log", self.applied, first)
            self.applied = first
        while self.applied < end:
            self._apply_at(self.applied)
            self.applied += 1
            self.applied_total += 1
        for offset, future in self._waiting:
            if offset <= self.applied and not future.done():
                future.set_result(None)
        if self._is_due and self.applied == self._written:
            # Not in here: this is the middle of a dispatch, and a snapshot is an append.
            asyncio.get_running_loop().call_soon(self._write_snapshot_soon)

    def _write_snapshot_soon(self) -> None:
        if self.is_open:
            try:
                self._write_snapshot_if_due()
            except BrokerError as error:
                logger.warning("no snapshot is written now: %s", error.remark)

    def _apply_at(self, queue_offset: int) -> None:
        queue = self._store.queues.get(RAFT_STATE_TOPIC, STATE_QUEUE)
        entry = None if queue is None else queue.entry(queue_offset)
        record = None
        if entry is not None:
            record = self._store.get_by_physical_offset(entry.physical_offset, entry.size_bytes)
        if record is None or entry is None:
            logger.error("state record %d is gone, passed over", queue_offset)
            return
        try:
            value = Members.of(fastjson.loads(decode_record(record).body), "a state record")
            if value.i64("v") > FORMAT_VERSION:
                raise InvalidBody(
                    f"it has format {value.i64('v')}, and this version knows {FORMAT_VERSION}; "
                    "update this member"
                )
            self._apply(value, entry.physical_offset, entry.size_bytes)
        except (InvalidRecord, InvalidBody, ValueError) as error:
            # To pass it over would part this member from the others for ever.
            raise CorruptRecord(f"state record {queue_offset} cannot be applied: {error}") from None

    def _apply(self, value: Members, physical_offset: int, size_bytes: int) -> None:
        change = Change(value.text("kind"))
        if change is Change.SNAPSHOT:
            self._collect(value, physical_offset, size_bytes)
        elif change is Change.LOCKS:
            self._locks.apply(_rows(value))
        elif change is Change.TOPICS:
            gone = value.texts("gone")
            self._topics.apply(TopicConfigTable.from_members(value.object("table")), gone)
            for name in gone:
                self._drop_queues(name, physical_offset)
                self._offsets.forget_topic(name)
        elif change is Change.GROUPS:
            gone = value.texts("gone")
            self._groups.apply(SubscriptionGroupTable.from_members(value.object("table")), gone)
            if value.flag("withOffsets"):
                for name in gone:
                    self._offsets.forget_group(name)
        elif change is Change.DELAY:
            self._delay.apply(DelayOffsetTable.from_members(value.object("table")))
        else:
            self._offsets.apply(
                ConsumerOffsetTable.from_members(value.object("table")),
                is_reset=change is Change.RESET,
            )

    def _drop_queues(self, topic: str, physical_offset: int) -> None:
        """Drop the queues of a topic that was deleted here in the log.

        When the record is applied again, after a crash, a topic of that name may have been made
        since: a queue that has younger messages is that one's.
        """
        for name, queue_id in self._store.queues.names:
            if name == topic:
                cursor = self._store.queues.queue(name, queue_id).cursor
                if cursor.max_physical > physical_offset:
                    return
        self._store.drop_topic(topic)

    def _collect(self, value: Members, physical_offset: int, size_bytes: int) -> None:
        part, parts = value.i64("part"), value.i64("parts")
        if part == 0:
            self._parts, self._parts_at, self._collected_bytes = [], physical_offset, 0
        if part != len(self._parts):
            self._parts = []
            return  # Its beginning is missing: the log begins here, or its writer lost its place.
        self._parts.append(value.members)
        self._collected_bytes += size_bytes
        if len(self._parts) == parts:
            parts_found, self._parts = self._parts, []
            self._restore(parts_found)
            self._snapshot_at, self._snapshot_bytes = self._parts_at, self._collected_bytes

    def _restore(self, parts: list[Mapping[str, Any]]) -> None:
        topics: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        offsets: dict[str, Any] = {}
        locks: list[list[Any]] = []
        token = 0
        topics_version, groups_version = self._topics.version, self._groups.version
        for part in parts:
            if "topics" in part:
                topic_table = TopicConfigTable.from_members(Members.of(part["topics"], "topics"))
                topics.update(topic_table.topics)
                topics_version = topic_table.data_version
            elif "groups" in part:
                group_table = SubscriptionGroupTable.from_members(
                    Members.of(part["groups"], "groups")
                )
                groups.update(group_table.groups)
                groups_version = group_table.data_version
            elif "offsets" in part:
                offsets.update(
                    ConsumerOffsetTable.from_members(Members.of(part["offsets"], "offsets")).offsets
                )
            elif "locks" in part:
                locks += part["locks"]
                token = int(part["token"])
            elif "delay" in part:
                self._delay.apply(DelayOffsetTable.from_members(Members.of(part["delay"], "delay")))
        self._topics.restore(TopicConfigTable(topics, topics_version))
        self._groups.restore(SubscriptionGroupTable(groups, groups_version))
        self._offsets.restore(ConsumerOffsetTable(offsets))
        self._locks.restore(locks, token)

    # Saving.

    def take_changed(self) -> Callable[[], None] | None:
        """What saves all tables as they are now, on any thread; None if nothing has changed."""
        if self.applied == self._saved_applied:
            return None
        applied = self._saved_applied = self.applied
        position = json.dumps(
            {
                "applied": applied,
                "snapshotAt": self._snapshot_at,
                "snapshotBytes": self._snapshot_bytes,
                "locks": self._locks.agreed(),
                "token": self._locks.token,
            }
        ).encode()
        versions = self._topics.version, self._groups.version
        # A large table is encoded only where it has changed since it was last saved.
        known, self._saved_versions = self._saved_versions, versions
        topics = self._topics.encoded() if versions[0] != known[0] else None
        groups = self._groups.encoded() if versions[1] != known[1] else None
        offsets = self._offsets.take_changed()
        delay = self._delay.encoded()

        def save() -> None:
            try:
                if topics is not None:
                    self._topics.write(topics)
                if groups is not None:
                    self._groups.write(groups)
                if offsets is not None:
                    self._offsets.write(offsets)
                self._delay.write(delay)
                # Last: a position never promises what the tables do not have.
                self._files.replace(self._path, position)
            except BaseException:
                self._saved_applied, self._saved_versions = -1, (None, None)
                self._offsets.save_again()
                raise

        return save

    def save(self) -> None:
        """Save all tables; raises StoreError."""
        save = self.take_changed()
        if save is not None:
            save()


def not_leading() -> BrokerError:
    """What is answered to a change that may never count."""
    return BrokerError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "[NOT_LEADER]this member of the Raft group does not lead, or not any more; ask the leader, "
        "which the route names",
    )


def _rows(value: Members) -> list[list[Any]]:
    rows: Any = value.members.get("locks")
    if not isinstance(rows, list) or not all(isinstance(r, list) and len(r) == 6 for r in rows):
        raise InvalidBody("locks are rows of six")
    found: list[list[Any]] = rows
    return found


def _pieces(table: Mapping[str, Any], room: int, each: int) -> Iterator[list[str]]:
    """The names of a table, as many at a time as have room when each takes so many bytes."""
    names: list[str] = []
    size = 0
    for name, value in table.items():
        more = each + 2 * len(name) + (20 * len(value) if isinstance(value, Mapping) else 0)
        if names and size + more > room:
            yield names
            names, size = [], 0
        names.append(name)
        size += more
    if names:
        yield names
