"""TransactionService: ends half messages, and asks producers about those that nobody ended.

A half message is over when an op says so; half_messages.py shows the records. What is over and what
is not can be read from the log alone, so a restart loses nothing:

    # A commit and its op are appended side by side. So after a crash only a record that is the last
    # of its queue can be a commit without an op, and load() writes the op that is missing.
    # An op ends all halves of its transaction that lie before it in the log.
    # The offsets of CID_RMQ_SYS_TRANS: every half below the first is over; every op of a half from
    # there on lies at or after the second. They are noted once the log is on the disk that far.

A half is checked when its time is up: transactionTimeOut after it was stored, or what its property
CHECK_IMMUNITY_TIME_IN_SECONDS says; then every transactionCheckInterval (transaction_checks.py).
After transactionCheckMax checks it is put aside. A check that no producer could hear is none: it is
made up for as soon as one of the group is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NamedTuple

from ..clock import Clock
from ..errors import BrokerError, InvalidRecord, LocalProtocolError, StoreError
from ..model.message import Property, StoredMessage, TransactionType
from ..model.topic import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from ..protocol.codes import ResponseCode
from ..protocol.headers import EndTransactionRequest
from ..protocol.record import decode_dispatch, decode_record
from ..store import Arrival, MessageStore, PutMessage, PutResult, PutStatus
from . import half_messages
from .arrivals import Arrivals
from .clients import Clients
from .config import LiveConfig
from .durability import FlushWaiter, is_safe
from .half_messages import HALF_QUEUE, TRANSACTION_GROUP, Ending, Half, Target, TransactionId
from .identity import Identity
from .observer import Observer
from .offsets import ConsumerOffsets
from .pending_halves import PendingHalves
from .topics import TopicTable
from .transaction_checks import TransactionChecks

logger = logging.getLogger(__name__)

_NOTE_MS: Final = 1_000  # How often progress is noted while there is some.
_HOUR_MS: Final = 3_600_000
_FOUND_MAX: Final = 64  # Messages with one id that are looked at.
_ENDINGS_MAX: Final = 65_536  # How many transactions that are over are remembered.


class Op(NamedTuple):
    """A mark in the op queue, until every half before it is over."""

    queue_offset: int
    half_offset: int


class Pending(NamedTuple):
    """A half message that is not over, for operators."""

    half: Half
    stored: StoredMessage
    place: Target | None
    times: int
    since_ms: int


class TransactionService:
    """All half messages that are not over."""

    def __init__(
        self,
        live: LiveConfig,
        identity: Identity,
        *,
        topics: TopicTable,
        clients: Clients,
        offsets: ConsumerOffsets,
        store: MessageStore,
        arrivals: Arrivals,
        flusher: FlushWaiter,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._live = live
        self._identity = identity
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._store = store
        self._arrivals = arrivals
        self._clock = clock
        self._observer = observer
        self._level_max = len(store.config.delay_levels_ms)
        self._wake = asyncio.Event()
        self._halves = PendingHalves(self._wake.set)
        self._checks = TransactionChecks(
            live,
            identity,
            self,
            halves=self._halves,
            clients=clients,
            store=store,
            flusher=flusher,
            clock=clock,
        )
        self._endings: dict[TransactionId, Ending] = {}
        self._ops: deque[Op] = deque()
        self._op_end = 0  # Ops below this are in _ops, or were.
        self._is_changed = False
        self._noted: tuple[int, int, int] | None = None  # (log end, half offset, op offset).
        self._is_watching = False
        self.committed_total = 0
        self.rolled_back_total = 0
        self.given_up_total = 0
        self.damaged_total = 0

    @property
    def checks_total(self) -> int:
        """How many questions were asked."""
        return self._checks.asked_total

    @property
    def op_count(self) -> int:
        """How many ops are behind the oldest half that is not over."""
        return len(self._ops)

    @property
    def unheard(self) -> dict[str, int]:
        """How many halves of each group nobody could be asked about."""
        return self._halves.unheard()

    def __len__(self) -> int:
        return len(self._halves)

    # Reading what is there.

    def load(self) -> None:
        """Find what is not over; a broker that takes over a store does it again."""
        self._halves.clear()
        self._endings.clear()
        self._ops.clear()
        self._noted = None
        if not self._is_watching:
            self._is_watching = True
            self._arrivals.listen(HALF_TOPIC, self._arrived)
            self._store.watch(HALF_TOPIC, HALF_QUEUE)
            self._clients.on_producer = self._producer_came
        if self._store.is_replica:
            return
        first = self._begin_of(HALF_TOPIC)
        over, ended_at = self._load_ops(self._begin_of(OP_HALF_TOPIC))
        repairs: list[tuple[Half, Ending]] = []
        for queue_offset in range(first, self._store.max_offset(HALF_TOPIC, HALF_QUEUE)):
            if queue_offset in over:
                continue
            half = self._loaded(queue_offset)
            if half is None:
                continue
            older = self._halves.siblings(half)
            if ended_at.get(half.id, -1) > half.physical_offset:
                repairs.append((half, Ending.MOVED))
            else:
                repairs += [(other, Ending.MOVED) for other in older]
        repairs += [(half, Ending.COMMIT) for half in self._halves if self._is_tail(half)]
        for half, ending in repairs:
            if half.queue_offset in self._halves:
                self._mark_over([half], ending)
        self._is_changed = True
        if self._halves:
            logger.info("%d half messages are not over", len(self._halves))

    def _begin_of(self, topic: str) -> int:
        noted = self._offsets.get(topic, TRANSACTION_GROUP, HALF_QUEUE)
        return max(noted or 0, self._store.min_offset(topic, HALF_QUEUE))

    def _load_ops(self, first: int) -> tuple[set[int], dict[TransactionId, int]]:
        """The halves that ops say are over, and up to where in the log each transaction is."""
        over: set[int] = set()
        ended_at: dict[TransactionId, int] = {}
        last = self._store.max_offset(OP_HALF_TOPIC, HALF_QUEUE)
        for op_offset in range(first, last):
            stored = self._read(OP_HALF_TOPIC, op_offset)
            if stored is None:
                continue
            half_offsets, ending = half_messages.read_op(stored)
            for half_offset in half_offsets:
                over.add(half_offset)
                self._ops.append(Op(op_offset, half_offset))
                half = None if ending is Ending.MOVED else self._read(HALF_TOPIC, half_offset)
                if half is not None:
                    id = half_messages.id_of(half.properties, half_offset)
                    ended_at[id] = max(ended_at.get(id, -1), stored.physical_offset)
                    if ending is not None:
                        self._remember(id, ending)
        self._op_end = max(first, last)
        return over, ended_at

    def _loaded(self, queue_offset: int) -> Half | None:
        queue = self._store.queues.get(HALF_TOPIC, HALF_QUEUE)
        entry = None if queue is None else queue.entry(queue_offset)
        if entry is None:
            return None
        return self._take(queue_offset, entry.physical_offset, entry.size_bytes)

    def _is_tail(self, half: Half) -> bool:
        """Whether a half was committed, and the op was lost with the end of the log."""
        stored = self._decoded(half.physical_offset, half.size_bytes)
        if stored is None:
            return False
        places = half_messages.commit_places(stored.properties, self._level_max)
        return any(self._ends_with(place, half) for place in places)

    def _ends_with(self, place: Target, half: Half) -> bool:
        """Whether the last message of a queue is the commit of a half."""
        queue = self._store.queues.get(*place)
        entry = None if queue is None else queue.last_entry()
        if entry is None:
            return False
        record = self._store.get_by_physical_offset(entry.physical_offset, entry.size_bytes)
        if record is None:
            return False
        try:
            info = decode_dispatch(record)
        except InvalidRecord:
            return False
        return (
            info is not None
            and TransactionType.of(info.sys_flag) is TransactionType.COMMIT
            and info.prepared_transaction_offset == half.physical_offset
            and (info.unique_key or half.id.key) == half.id.key
        )

    def _read(self, topic: str, queue_offset: int) -> StoredMessage | None:
        """A message by its place in a queue; None where it is gone or damaged."""
        queue = self._store.queues.get(topic, HALF_QUEUE)
        entry = None if queue is None else queue.entry(queue_offset)
        if entry is None:
            return None
        return self._decoded(entry.physical_offset, entry.size_bytes)

    def stored(self, half: Half) -> StoredMessage | None:
        """The message of a half; None where it is damaged or gone. Raises StoreError."""
        record = self._store.get_by_physical_offset(half.physical_offset, half.size_bytes)
        try:
            return None if record is None else decode_record(record)
        except InvalidRecord as error:
            logger.error("half message at %d cannot be read: %s", half.physical_offset, error)
            return None

    def _decoded(self, physical_offset: int, size_bytes: int) -> StoredMessage | None:
        try:
            record = self._store.get_by_physical_offset(physical_offset, size_bytes)
            return None if record is None else decode_record(record)
        except (InvalidRecord, StoreError) as error:
            logger.error("half message at %d cannot be read: %s", physical_offset, error)
            return None

    # New ones.

    def _arrived(self, arrival: Arrival) -> None:
        """Take note of a half message that has become visible."""
        if not self._store.is_replica:
            self._take(arrival.queue_offset, arrival.physical_offset, arrival.size_bytes)

    def _take(self, queue_offset: int, physical_offset: int, size_bytes: int) -> Half:
        now_ms = self._clock.monotonic_ms()
        config = self._live.current
        timeout_ms = config.transaction_time_out
        id, stored_at_ms, wait_ms = TransactionId("", f"@{queue_offset}"), 0, timeout_ms
        try:
            record = self._store.get_by_physical_offset(physical_offset, size_bytes)
            info = None if record is None else decode_dispatch(record)
        except (InvalidRecord, StoreError) as error:
            logger.error("half message at %d cannot be read: %s", physical_offset, error)
            info = None
        if info is not None:
            properties = info.properties
            id = half_messages.id_of(properties, queue_offset)
            stored_at_ms = info.stored_at_ms
            if half_messages.check_times(properties):
                wait_ms = config.transaction_check_interval
            else:
                wait_ms = half_messages.immunity_ms(properties, timeout_ms)
                # Nobody may keep the log from expiring by asking for a year of immunity.
                wait_ms = min(wait_ms, self._store.config.file_reserved_time * _HOUR_MS + 1)
            # Only what load() finds is older than now; the wall clock may have jumped since.
            age_ms = self._clock.now_ms() - stored_at_ms
            wait_ms -= max(0, min(age_ms, wait_ms))
        half = Half(queue_offset, physical_offset, size_bytes, stored_at_ms, id)
        is_ordinary = wait_ms == timeout_ms
        self._halves.add(half, now_ms + wait_ms, is_ordinary=is_ordinary)
        return half

    def _remember(self, id: TransactionId, ending: Ending) -> None:
        endings = self._endings
        endings.pop(id, None)
        endings[id] = ending
        if len(endings) > _ENDINGS_MAX:
            del endings[next(iter(endings))]

    # Ending.

    def end(self, request: EndTransactionRequest, ending: Ending) -> int:
        """Commit or roll back, once; return up to where the log must be on the disk for it.

        Raises BrokerError for what is not the caller's, not there, or over in another way.
        """
        physical_offset = request.commit_log_offset
        stored = self._require(request)
        id = half_messages.id_of(stored.properties, stored.queue_offset)
        half = self._halves.get(stored.queue_offset) or next(reversed(self._halves.of(id)), None)
        if half is None:
            before = self._ending_of(id, stored)
            if before is ending or (before is Ending.GIVEN_UP and ending is Ending.ROLLBACK):
                return 0
            if before is not Ending.GIVEN_UP:
                raise _refused(_OVER[before].format(physical_offset))
            # The owner decides after all, and nobody was told otherwise.
            half = Half(
                stored.queue_offset,
                stored.physical_offset,
                stored.size_bytes,
                stored.stored_at_ms,
                id,
            )
        elif half.queue_offset != stored.queue_offset:
            stored = self.stored(half) or stored
        return self.finish(half, stored, ending)

    def _require(self, request: EndTransactionRequest) -> StoredMessage:
        """The half that a request means; raises BrokerError unless every field fits it."""
        queue_offset = request.tran_state_table_offset
        physical_offset = request.commit_log_offset
        queue = self._store.queues.get(HALF_TOPIC, HALF_QUEUE)
        is_there = queue is not None and queue.min_offset <= queue_offset < queue.max_offset
        entry = queue.entry(queue_offset) if is_there and queue is not None else None
        if entry is None:
            raise _refused(
                f"Find prepared transaction message failed: there is no half message "
                f"{queue_offset}; it has expired, or was never sent here"
            )
        if entry.physical_offset != physical_offset:
            raise _refused(
                f"The commit log offset wrong: half message {queue_offset} does not lie at "
                f"{physical_offset}"
            )
        stored = self._decoded(physical_offset, entry.size_bytes)
        if stored is None:
            raise _refused(
                f"Find prepared transaction message failed: half message {queue_offset} cannot be "
                "read; see the broker's log"
            )
        if stored.queue_offset != queue_offset:
            raise _refused("The transaction state table offset wrong")
        if stored.properties.get(Property.PGROUP) != request.producer_group:
            raise _refused(
                "The producer group wrong: the half message is of another group, and only its own "
                "may end it"
            )
        return stored

    def _ending_of(self, id: TransactionId, stored: StoredMessage) -> Ending | None:
        """How a transaction ended that is over; None where that is not known any more."""
        ending = self._endings.get(id)
        if ending is not None or id.key.startswith("@"):
            return ending
        place = half_messages.real_place(stored.properties)
        if place is None:
            return None
        found = self._store.query(
            place.topic,
            id.key,
            count_max=_FOUND_MAX,
            begin_ms=stored.stored_at_ms - _HOUR_MS,
            end_ms=self._clock.now_ms() + _HOUR_MS,
        )
        for record in found.records:
            info = decode_dispatch(record)
            if info is not None and TransactionType.of(info.sys_flag) is TransactionType.COMMIT:
                return Ending.COMMIT
        return None

    def finish(self, half: Half, stored: StoredMessage, ending: Ending) -> int:
        """End a transaction; returns the log end. Raises BrokerError where it cannot be stored."""
        messages = []
        if ending is Ending.COMMIT:
            place = half_messages.real_place(stored.properties)
            if place is None:
                raise _refused(
                    "the half message names no topic that it could go to: "
                    f"{stored.properties.get(Property.REAL_TOPIC)!r}; roll it back"
                )
            messages.append(
                half_messages.real_message(
                    stored,
                    place,
                    level_max=self._level_max,
                    now_ms=self._clock.now_ms(),
                    delay_ms_max=self._live.current.timer_max_delay_sec * 1000,
                )
            )
        elif ending is Ending.GIVEN_UP:
            self._topics.create_own(TRANS_CHECK_MAX_TIME_TOPIC, queue_nums=1)
            messages.append(half_messages.given_up_message(stored))
        results = self._mark_over([half, *self._halves.siblings(half)], ending, messages)
        self._require_stored(results)
        if ending is Ending.COMMIT:
            self.committed_total += 1
            place = half_messages.real_place(stored.properties)
            if place is not None:
                self._observer.stored(place.topic, 1, results[0].size_bytes)
        elif ending is Ending.ROLLBACK:
            self.rolled_back_total += 1
        else:
            self.given_up_total += 1
        return results[-1].end

    def replace(self, half: Half, copy: PutMessage) -> list[PutResult]:
        """Let a copy take a half's place; raises BrokerError where it cannot be stored."""
        results = self._mark_over([half], Ending.MOVED, [copy])
        self._require_stored(results)
        return results

    def pass_over(self, half: Half) -> None:
        """Give up a half that cannot be read; raises BrokerError where that cannot be stored."""
        logger.error(
            "half=%d at %d is damaged and passed over", half.queue_offset, half.physical_offset
        )
        self._require_stored(self._mark_over([half], Ending.DAMAGED))
        self.damaged_total += 1

    @staticmethod
    def _require_stored(results: list[PutResult]) -> None:
        if results[0].status is not PutStatus.PUT_OK:
            raise BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the end of the transaction is not stored: {results[0].status.name}; the half "
                "message stays, and its producer is asked again",
            )

    def _mark_over(
        self, halves: list[Half], ending: Ending, messages: list[PutMessage] | None = None
    ) -> list[PutResult]:
        """Append messages and the ops that go with them, in one piece; the first half ends as told,
        the others as its copies."""
        if OP_HALF_TOPIC not in self._topics.topics:
            self._topics.create_own(OP_HALF_TOPIC, queue_nums=1)
        now_ms, host = self._clock.now_ms(), self._identity.store_host
        group = [] if messages is None else messages
        count = len(group)
        for half in halves:
            how = ending if half is halves[0] else Ending.MOVED
            group.append(half_messages.op_message(half.queue_offset, how, now_ms, host))
        results = self._store.put_group(group)
        if results[0].status is not PutStatus.PUT_OK:
            return results
        for half, result in zip(halves, results[count:], strict=True):
            self._ops.append(Op(result.queue_offset, half.queue_offset))
            self._op_end = result.queue_offset + 1
            if half.queue_offset in self._halves:
                self._halves.remove(half)
        if ending is not Ending.MOVED:
            self._remember(halves[0].id, ending)
        if not self._is_changed:
            self._is_changed = True
            self._wake.set()
        return results

    # While it runs.

    async def run(self) -> None:
        """Look at half messages whose time is up, and note progress, for ever."""
        while True:
            self._wake.clear()
            wait_ms = await self._checks.run_due()
            if self._note_progress():
                wait_ms = min(wait_ms, _NOTE_MS)
            if wait_ms <= 0:
                await self._clock.sleep_ms(0)
                continue
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _producer_came(self, group: str) -> None:
        """A producer has joined a group: it may know what the others could not be asked."""
        self._halves.somebody_came(group, self._clock.monotonic_ms())

    # Progress.

    def _note_progress(self) -> bool:
        """Note how far everything is over, as far as the disk has it; whether more is to come."""
        if self._store.is_replica:
            return False
        if self._noted is None and self._is_changed:
            self._is_changed = False
            first = self.first_offset
            while self._ops and self._ops[0].half_offset < first:
                self._ops.popleft()
            op_offset = self._ops[0].queue_offset if self._ops else self._op_end
            self._noted = self._store.log.appended, first, op_offset
        if self._noted is None:
            return False
        end, half_offset, op_offset = self._noted
        if is_safe(self._store, end):
            self._noted = None
            for topic, offset in ((HALF_TOPIC, half_offset), (OP_HALF_TOPIC, op_offset)):
                if self._store.max_offset(topic, HALF_QUEUE):
                    self._offsets.commit(
                        topic, TRANSACTION_GROUP, HALF_QUEUE, offset, may_go_back=False
                    )
        return self._noted is not None or self._is_changed

    @property
    def first_offset(self) -> int:
        """Every half message below this queue offset is over."""
        first = self._halves.first
        if first is not None:
            return first.queue_offset
        return self._store.max_offset(HALF_TOPIC, HALF_QUEUE)

    def undelivered_from(self) -> int | None:
        """The physical offset of the oldest half message that is not over."""
        first = self._halves.first
        return None if first is None else first.physical_offset

    # For operators.

    def pending(self, count_max: int) -> list[Pending]:
        """The oldest half messages that are not over."""
        found: list[Pending] = []
        for half in self._halves:
            if len(found) >= count_max:
                break
            stored = self._decoded(half.physical_offset, half.size_bytes)
            if stored is not None:
                found.append(
                    Pending(
                        half,
                        stored,
                        half_messages.real_place(stored.properties),
                        half_messages.check_times(stored.properties),
                        half_messages.since_ms(stored),
                    )
                )
        return found

    def resume(self, physical_offset: int) -> int:
        """Check a half message again from the beginning that was given up; returns the log end."""
        record = self._store.get_by_physical_offset(physical_offset)
        try:
            stored = None if record is None else decode_record(record)
        except InvalidRecord:
            stored = None
        if stored is None or stored.topic not in (HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
            raise _refused(
                f"no half message lies at {physical_offset}: take the offset id of one in "
                f"{TRANS_CHECK_MAX_TIME_TOPIC}"
            )
        id = half_messages.id_of(stored.properties, stored.queue_offset)
        halves = self._halves.of(id)
        if not halves and self._endings.get(id) in (Ending.COMMIT, Ending.ROLLBACK):
            raise _refused(f"the transaction is over: it ended with a {self._endings[id]}")
        try:
            message = half_messages.resumed_message(stored)
        except LocalProtocolError as error:
            raise _refused(str(error)) from None
        if halves:
            results = self._mark_over(halves, Ending.MOVED, [message])
        else:
            results = self._store.put_group([message])
        self._require_stored(results)
        self._endings.pop(id, None)
        return results[-1].end


_OVER: Final[dict[Ending | None, str]] = {
    Ending.COMMIT: "the half message at {} was committed already, and cannot be rolled back",
    Ending.ROLLBACK: "the half message at {} was rolled back already, and cannot be committed",
    Ending.MOVED: "the half message at {} is over",
    Ending.DAMAGED: "the half message at {} could not be read, and was passed over",
    None: "the half message at {} is over, and how it ended is not known any more",
}


def _refused(problem: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, problem)
