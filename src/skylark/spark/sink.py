"""The sink: rows of a DataFrame as messages, sent in batches by the tasks themselves.

    column         becomes
    body           the body; text as UTF-8
    topic          where it goes; the option topic where the column is not there or null
    tag, keys      properties; keys as one text or as an array
    properties     further properties; names that the system sets itself are refused
    queue_id       the number of the queue, counted over all writable queues of the topic
    sharding_key   rows with one key go to one queue, in the order of their task
    deliver_time   the message is delivered then
    delay_level    or after this level's time

Rows without queue_id and sharding_key are spread over the queues, a whole batch to each.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..clock import SystemClock
from ..errors import ConfigError
from ..model.message import Property
from ..protocol.batch import BatchEntry, encode_batch
from ..protocol.codes import RequestCode
from ..protocol.headers import SendMessageRequestV2
from ..protocol.message_id import UniqueIdGenerator
from ..protocol.properties import encode_text, format_properties
from .cluster import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, Cluster
from .offsets import QueueKey
from .options import Guarantee, WriteOptions
from .transactions import BatchName, Decisions, Stage, Staged, name_in_task

if TYPE_CHECKING:
    import pyarrow as pa

_OWN_PROPERTIES = frozenset(
    {
        Property.TAGS, Property.KEYS, Property.UNIQ_KEY, Property.WAIT, Property.DELAY,
        Property.TRAN_MSG, Property.PGROUP, Property.REAL_TOPIC, Property.REAL_QID,
        Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC,
    }
)  # fmt: skip


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    rows: int


@dataclass(frozen=True, slots=True)
class _Row:
    topic: str
    entry: BatchEntry
    is_delayed: bool
    sharding_key: str | None
    queue_number: int | None


class Sender:
    """Sends rows for one task; with a stage, where nobody sees them yet."""

    def __init__(self, options: WriteOptions, cluster: Cluster, stage: Stage | None = None) -> None:
        self._options = options
        self._cluster = cluster
        self._stage = stage
        self._queues: dict[str, list[QueueKey]] = {}
        # A task has no place in a plan of seeds: two attempts must not make the same ids.
        self._rng = random.Random(os.urandom(16))
        self._ids = UniqueIdGenerator(
            SystemClock(),
            ip=socket.inet_ntoa(self._rng.randbytes(4)),
            pid=os.getpid(),
            process_mark=self._rng.getrandbits(32),
        )
        self._turn = self._rng.randrange(1 << 16)
        self._waiting: dict[QueueKey, list[BatchEntry]] = {}
        self._waiting_bytes: dict[QueueKey, int] = {}
        self.rows = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; some may wait for more until flush()."""
        spread: dict[str, QueueKey] = {}
        for row in _rows(batch, self._options, self._ids):
            queue = self._choose(row, spread)
            self.rows += 1
            if row.is_delayed:
                # A batch has one delay for all; and these go where no batch goes.
                self._flush_queue(queue)
                self._send_one(queue, row.entry)
                continue
            size = len(row.entry.body) + len(row.entry.properties)
            if self._waiting_bytes.get(queue, 0) + size > self._options.batch_bytes:
                self._flush_queue(queue)
                spread.clear()
            self._waiting.setdefault(queue, []).append(row.entry)
            self._waiting_bytes[queue] = self._waiting_bytes.get(queue, 0) + size

    def flush(self) -> None:
        """Send what waits."""
        for queue in list(self._waiting):
            self._flush_queue(queue)

    def _choose(self, row: _Row, spread: dict[str, QueueKey]) -> QueueKey:
        queues = self._queues_of(row.topic)
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
            found = spread[row.topic] = queues[self._turn % len(queues)]
        return found

    def _queues_of(self, topic: str) -> list[QueueKey]:
        found = self._queues.get(topic)
        if found is None:
            found = self._cluster.writable_queues(topic)
            if not found:
                raise ConfigError(f"option topic: {topic} has no queue that may be written to")
            self._queues[topic] = found
        return found

    def _flush_queue(self, queue: QueueKey) -> None:
        entries = self._waiting.pop(queue, None)
        self._waiting_bytes.pop(queue, None)
        if not entries:
            return
        if self._stage is not None:
            self._stage.add(queue, entries)
            return
        if len(entries) == 1:
            self._send_one(queue, entries[0])
            return
        self._cluster.retried(
            lambda: self._call(
                queue, RequestCode.SEND_BATCH_MESSAGE, encode_batch(entries), "", is_batch=True
            )
        )

    def _send_one(self, queue: QueueKey, entry: BatchEntry) -> None:
        properties = entry.properties.decode()
        self._cluster.retried(
            lambda: self._call(
                queue, RequestCode.SEND_MESSAGE_V2, entry.body, properties, is_batch=False
            )
        )

    def _call(
        self, queue: QueueKey, code: RequestCode, body: bytes, properties: str, *, is_batch: bool
    ) -> None:
        address = self._cluster.broker_address(queue.topic, queue.broker, for_writing=True)
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
        self._cluster.wire(address).call(code, header.to_fields(), body)


def _rows(batch: pa.RecordBatch, options: WriteOptions, ids: UniqueIdGenerator) -> Iterator[_Row]:
    columns: dict[str, list[Any]] = {
        name: batch.column(number).to_pylist() for number, name in enumerate(batch.schema.names)
    }
    nothing: Sequence[None] = [None] * batch.num_rows
    for body, topic, tag, keys, more, number, sharding_key, deliver_at, level in zip(
        columns["body"],
        *(
            columns.get(name, nothing)
            for name in (
                "topic", "tag", "keys", "properties", "queue_id", "sharding_key", "deliver_time",
                "delay_level",
            )
        ),
        strict=True,
    ):  # fmt: skip
        if body is None:
            raise ConfigError("column body: a row has null; filter such rows out")
        name = topic if topic is not None else options.topic
        if name is None:
            raise ConfigError("column topic: a row has null, and there is no option topic")
        properties: dict[str, str] = {}
        for key, value in more or ():
            if key in _OWN_PROPERTIES:
                raise ConfigError(
                    f"column properties: {key} is set by the system; use the column made for it"
                )
            if value is not None:
                properties[key] = value
        if tag is not None:
            properties[Property.TAGS] = tag
        if keys:
            properties[Property.KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        properties[Property.UNIQ_KEY] = ids.next()
        if deliver_at is not None:
            properties[Property.TIMER_DELIVER_MS] = str(int(deliver_at.timestamp() * 1_000))
        if level:
            properties[Property.DELAY] = str(level)
        properties[Property.WAIT] = "true"
        yield _Row(
            name,
            BatchEntry(
                body.encode() if isinstance(body, str) else body,
                encode_text(format_properties(properties)),
            ),
            deliver_at is not None or bool(level),
            sharding_key,
            number,
        )


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
            stage = Stage(cluster, options, name)
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
        _decide(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was staged and not decided is never seen, and expires."""


class OnceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each all at once and once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send_all(self.options, iterator, name_in_task(self.options.sink_id, None))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _decide(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A decision is never undone; without one, what was staged is never seen."""


def _decide(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    cluster = Cluster(options.access)
    try:
        Decisions(cluster).decide(staged)
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
