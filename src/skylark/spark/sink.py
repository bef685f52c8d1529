"""The sink: rows of a DataFrame as messages, sent in batches by the tasks themselves.

Rows without queue_id and sharding_key are spread over the queues that are there, a whole batch to
each. The others go by the numbers of queues (numbering.py), and wait for a broker that restarts.

    at_least_once   a task sends its rows; what it has sent stays sent when it is done again
    exactly_once    a task stages its rows under a name of its own (transactions.py), and the driver
                    decides, once per micro-batch, which tasks' rows appear
"""

from __future__ import annotations

import os
import random
import socket
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..clock import SystemClock
from ..errors import ConfigError
from ..protocol.batch import BatchEntry, decode_batch, encode_batch
from ..protocol.codes import RequestCode
from ..protocol.headers import SendMessageRequestV2
from ..protocol.message_id import UniqueIdGenerator
from .cluster import NEW_TOPIC_QUEUES, SETTLING_S_MAX, TEMPLATE_TOPIC, Cluster
from .numbering import Numbered, numbered_queues
from .offsets import QueueKey
from .options import Guarantee, WriteOptions
from .outbox import Letter, Outbox
from .planned import settle_plan
from .rows import ROWS_MAX, PlainRows, Row, plain_rows, single_rows
from .transactions import (
    DECIDING_MS_MIN,
    BatchName,
    Decisions,
    Stage,
    Staged,
    name_in_task,
)

if TYPE_CHECKING:
    import pyarrow as pa

WAITING_BYTES = 16 << 20  # Of a task's rows that wait for more, for all queues together.
_COUNTING = frozenset({"queue_id", "sharding_key"})  # Columns that go by the numbers of queues.


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    rows: int


class Sender:
    """Sends rows for one task; with a stage, where nobody sees them yet."""

    def __init__(self, options: WriteOptions, cluster: Cluster, stage: Stage | None = None) -> None:
        self._options = options
        self._cluster = cluster
        self._stage = stage
        self._queues: dict[str, Numbered] = {}
        # A task has no place in a plan of seeds: two attempts must not make the same ids.
        self._rng = random.Random(os.urandom(16))
        self._ids = UniqueIdGenerator(
            SystemClock(),
            ip=socket.inet_ntoa(self._rng.randbytes(4)),
            pid=os.getpid(),
            process_mark=self._rng.getrandbits(32),
        )
        self._turn = self._rng.randrange(1 << 16)
        self._counts_queues = False
        self._outbox = Outbox(cluster)
        self._waiting: dict[QueueKey, list[BatchEntry]] = {}
        self._waiting_bytes: dict[QueueKey, int] = {}
        self._waiting_bytes_all = 0
        self.rows = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; some may wait for more until flush()."""
        topic = self._options.topic
        plain = plain_rows(batch) if topic is not None else None
        if topic is not None and plain is not None:
            batch = batch.slice(self._send_plain(plain, topic))
        spread: dict[str, QueueKey] = {}
        self._counts_queues = not _COUNTING.isdisjoint(batch.schema.names)
        for row in single_rows(batch, self._options.topic, self._ids):
            queue = self._choose(row, spread)
            self.rows += 1
            if row.is_delayed and self._stage is None:
                # A batch has one delay for all; and these go where no batch goes.
                self._flush_queue(queue)
                self._send_one(queue, row.entry)
                continue
            size = len(row.entry.body) + len(row.entry.properties)
            if self._waiting_bytes.get(queue, 0) + size > self._options.batch_bytes:
                self._flush_queue(queue)
                spread.clear()
            if self._waiting_bytes_all + size > WAITING_BYTES:
                self._flush_queues()
            self._waiting.setdefault(queue, []).append(row.entry)
            self._waiting_bytes[queue] = self._waiting_bytes.get(queue, 0) + size
            self._waiting_bytes_all += size

    def _send_plain(self, rows: PlainRows, topic: str) -> int:
        """Send rows that may go anywhere, as many at a time as a request takes; how many."""
        queues = self._queues_of(topic).there
        done = 0
        while done < rows.rows:
            most = min(rows.rows - done, ROWS_MAX)
            mark, counter = self._ids.take(most)
            entries, count = rows.encode(done, self._options.batch_bytes, mark.encode(), counter)
            self._ids.give_back(most - count)  # Or the counter would go round in a millisecond.
            if not count:
                break  # The next one has to be looked at by itself.
            self._turn += 1
            queue = queues[self._turn % len(queues)]
            if count == 1 and self._stage is None:
                self._send_one(queue, *decode_batch(entries))
            else:
                self._post(queue, entries, count)
            done += count
        self.rows += done
        return done

    def flush(self) -> None:
        """Send what waits, and wait until everything is there."""
        self._flush_queues()
        self._outbox.settle()

    def _choose(self, row: Row, spread: dict[str, QueueKey]) -> QueueKey:
        queues, there = self._queues_of(row.topic)
        if row.queue_number is not None:
            if not 0 <= row.queue_number < len(queues):
                raise ConfigError(
                    f"column queue_id: {row.queue_number} is not possible, topic {row.topic} has "
                    f"{len(queues)} writable queues"
                )
            return queues[row.queue_number]
        if row.sharding_key is not None:
            return queues[zlib.crc32(row.sharding_key.encode()) % len(queues)]
        found = spread.get(row.topic)
        if found is None:
            self._turn += 1
            places = there or queues
            found = spread[row.topic] = places[self._turn % len(places)]
        return found

    def _queues_of(self, topic: str) -> Numbered:
        """The queues of a topic, as this task has found them first."""
        found = self._queues.get(topic)
        if found is None:
            if self._counts_queues:
                found = numbered_queues(self._cluster, topic)
            else:
                there = self._cluster.writable_queues(topic, settling_s=SETTLING_S_MAX)
                found = Numbered(there, there)
            if not found.queues:
                raise ConfigError(f"option topic: {topic} has no queue that may be written to")
            self._queues[topic] = found
        return found

    def _flush_queues(self) -> None:
        for queue in list(self._waiting):
            self._flush_queue(queue)

    def _flush_queue(self, queue: QueueKey) -> None:
        entries = self._waiting.pop(queue, None)
        self._waiting_bytes_all -= self._waiting_bytes.pop(queue, 0)
        if not entries:
            return
        if len(entries) == 1 and self._stage is None:
            # By itself a body may be as large as a producer's, without a head that counts as well.
            self._send_one(queue, entries[0])
        else:
            self._post(queue, encode_batch(entries), len(entries))

    def _post(self, queue: QueueKey, entries: bytes, count: int) -> None:
        if self._stage is not None:
            # Rows of one task lie in their order at each broker.
            letter = self._stage.letter(queue, entries, count)
            self._outbox.post(queue.broker, letter)
        else:
            letter = self._letter(queue, RequestCode.SEND_BATCH_MESSAGE, entries, "", is_batch=True)
            self._outbox.post(queue, letter)

    def _send_one(self, queue: QueueKey, entry: BatchEntry) -> None:
        letter = self._letter(
            queue,
            RequestCode.SEND_MESSAGE_V2,
            entry.body,
            entry.properties.decode(),
            is_batch=False,
        )
        self._outbox.post(queue, letter)

    def _letter(
        self, queue: QueueKey, code: RequestCode, body: bytes, properties: str, *, is_batch: bool
    ) -> Letter:
        header = SendMessageRequestV2(
            producer_group=self._options.group,
            topic=queue.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=NEW_TOPIC_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=is_batch,
        )
        return Letter(queue, code, header.to_fields(), body)


def _send_all(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], name: BatchName | None = None
) -> WriterCommitMessage:
    """In a task: send all rows; with the name of a batch, stage them."""
    cluster = Cluster(options.access)
    try:
        stage = None
        if name is not None:
            decided = Decisions(cluster).find(name)
            if decided is not None:
                return Staged(name.sink, name.batch, name.task, "", {})
            stage = Stage(options, name)
        sender = Sender(options, cluster, stage)
        for batch in batches:
            sender.send(batch)
        sender.flush()
        return Sent(sender.rows) if stage is None else stage.result()
    finally:
        cluster.close()


class SkylarkWriter(DataSourceArrowWriter):
    """Writes a DataFrame, at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send_all(self.options, iterator)


class SkylarkStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send_all(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is sent already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent cannot be called back; the micro-batch comes again."""


class OnceWriter(DataSourceArrowWriter):
    """Writes a DataFrame all at once: one job is one batch of a sink of its own."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.sink = options.sink_id or f"job-{os.urandom(16).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send_all(self.options, iterator, name_in_task(self.sink, 0))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _decide(self.options, messages, "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was staged and not decided is never seen, and expires."""


class OnceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each all at once and once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send_all(self.options, iterator, name_in_task(self.options.sink_id, None))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _decide(self.options, messages, settle_plan(self.options.checkpoint, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A decision is never undone; without one, what was staged is never seen."""


def _decide(options: WriteOptions, messages: list[WriterCommitMessage | None], plan: str) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    timeout_ms = max(options.access.timeout_ms, DECIDING_MS_MIN)
    cluster = Cluster(replace(options.access, timeout_ms=timeout_ms))
    try:
        Decisions(cluster).decide(staged, plan)
    finally:
        cluster.close()


def make_writer(options: WriteOptions) -> DataSourceArrowWriter:
    """The writer of a DataFrame."""
    once = options.guarantee is Guarantee.EXACTLY_ONCE
    return OnceWriter(options) if once else SkylarkWriter(options)


def make_stream_writer(options: WriteOptions) -> DataSourceStreamArrowWriter:
    """The writer of a stream."""
    once = options.guarantee is Guarantee.EXACTLY_ONCE
    return OnceStreamWriter(options) if once else SkylarkStreamWriter(options)
