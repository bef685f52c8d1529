"""StoreModel: what a store must hold, kept as a list and checked against the real one.

The log is a list of messages in the order of their appends. Everything else follows from it: a
queue is the messages of that queue, the index is the messages with that key, and a crash leaves a
prefix of the list that contains everything flushed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..model.message import Property
from ..protocol.batch import BatchEntry, encode_batch
from ..protocol.properties import encode_properties
from ..protocol.record import decode_record, pack_host
from ..store import (
    GetStatus,
    MessageStore,
    PutEntries,
    PutMessage,
    PutResult,
    PutStatus,
    StoreConfig,
)
from .clock import EPOCH_MS
from .files import SimFiles

HOST = pack_host("127.0.0.1", 10911)
HOST_V6 = pack_host("2001:db8::1", 54321)

TINY = StoreConfig(
    store_path_root_dir="/store",
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=7,
    max_index_num=20,
    max_message_size=3000,
    machine_memory_bytes=1 << 40,
)
"""A store so small that every few messages a file is full."""


class HandClock:
    """A clock that a test moves by hand; for the store, which never sleeps."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance_ms(self, duration_ms: int) -> None:
        """Let time pass."""
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        """Time passes at once; others get their turn."""
        self.advance_ms(duration_ms)
        await asyncio.sleep(0)


def make_message(
    topic: str = "TopicTest",
    queue_id: int = 0,
    body: bytes = b"hello",
    *,
    keys: str | None = None,
    tag: str | None = None,
    born_host: bytes = HOST,
    sys_flag: int = 0,
    **properties: str,
) -> PutMessage:
    """A message to put, with the properties that matter to the store."""
    named: dict[str, str | None] = {Property.KEYS: keys, Property.TAGS: tag, **properties}
    return PutMessage(
        topic,
        queue_id,
        body,
        encode_properties(named),
        1_700_000_000_000,
        born_host,
        HOST,
        sys_flag=sys_flag,
    )


def put_as_batch(store: MessageStore, messages: Sequence[PutMessage]) -> list[PutResult]:
    """Put messages as a broker does those of one client batch."""
    first = messages[0]
    shared = first._replace(body=b"", properties=b"", flag=0)
    stored = None
    if all(m._replace(body=b"", properties=b"", flag=0) == shared for m in messages):
        entries = encode_batch([BatchEntry(bytes(m.body), m.properties, m.flag) for m in messages])
        stored = store.put_entries(
            PutEntries(
                first.topic,
                first.queue_id,
                entries,
                b"",
                first.born_at_ms,
                first.born_host,
                first.store_host,
                first.sys_flag,
                first.reconsume_times,
            )
        )
    if stored is None:
        return store.put_group(messages)
    ends = [*stored.physical_offsets[1:], stored.end]
    return [
        PutResult(
            PutStatus.PUT_OK, start, stored.queue_offset + number, end - start, stored.stored_at_ms
        )
        for number, (start, end) in enumerate(zip(stored.physical_offsets, ends, strict=True))
    ]


@dataclass(slots=True)
class Expected:
    """One message that was appended."""

    message: PutMessage
    physical_offset: int
    queue_offset: int
    size_bytes: int
    stored_at_ms: int

    @property
    def end(self) -> int:
        """Where its record ends."""
        return self.physical_offset + self.size_bytes


@dataclass(slots=True)
class StoreModel:
    """The list, and how far it must survive."""

    appended: list[Expected] = field(default_factory=list)
    start: int = 0  # Messages below this physical offset may have been deleted.
    # (topic, queue) -> offsets that retention or deletion forgot about are not checked.
    dropped_topics: set[str] = field(default_factory=set)

    def put(self, store: MessageStore, messages: list[PutMessage], *, group: bool = False) -> None:
        """Put messages into the store, and note those that it took."""
        results = put_as_batch(store, messages) if group else store.put(messages)
        assert len(results) == len(messages)
        for message, result in zip(messages, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                self.appended.append(
                    Expected(
                        message,
                        result.physical_offset,
                        result.queue_offset,
                        result.size_bytes,
                        result.stored_at_ms,
                    )
                )

    def cut(self, end: int, *, flushed: int) -> int:
        """After a crash: what is not below end is gone; nothing flushed may be. Return the loss."""
        kept = [item for item in self.appended if item.end <= end]
        lost = self.appended[len(kept) :]
        assert self.appended[: len(kept)] == kept, "a crash must leave a prefix"
        for item in lost:
            assert item.end > flushed, f"flushed message lost: {item}"
        self.appended = kept
        return len(lost)

    def queue(self, topic: str, queue_id: int) -> list[Expected]:
        """The messages of one queue that are in the queue, oldest first."""
        return [
            item
            for item in self.appended
            if item.message.topic == topic
            and item.message.queue_id == queue_id
            and item.message.sys_flag & 0xC in (0x0, 0x8)
        ]

    def check(self, store: MessageStore) -> None:
        """Compare everything that can be read with the list."""
        visible = store.visible_end
        queues = {(i.message.topic, i.message.queue_id) for i in self.appended}
        for topic, queue_id in queues:
            expected = [item for item in self.queue(topic, queue_id) if item.end <= visible]
            self._check_queue(store, topic, queue_id, expected)
        for item in self.appended:
            record = store.get_by_physical_offset(item.physical_offset)
            if item.physical_offset >= store.log.start and item.end <= visible:
                assert record is not None
                self.check_record(record, item)
            else:
                assert record is None

    def _check_queue(
        self, store: MessageStore, topic: str, queue_id: int, expected: list[Expected]
    ) -> None:
        first, last = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        kept = [item for item in expected if item.physical_offset >= store.log.start]
        if expected:
            assert last == expected[-1].queue_offset + 1
            assert first == (kept[0].queue_offset if kept else last)
        else:
            assert last == 0
        found = read_all(store, topic, queue_id, int(first))
        assert len(found) == len(kept)
        for record, item in zip(found, kept, strict=True):
            self.check_record(record, item)

    @staticmethod
    def check_record(record: memoryview | bytes, item: Expected) -> None:
        """Compare a record, byte-exact in all that the sender gave."""
        message = decode_record(record)
        sent = item.message
        assert message.topic == sent.topic
        assert message.queue_id == sent.queue_id
        assert message.body == bytes(sent.body)
        assert message.queue_offset == item.queue_offset
        assert message.physical_offset == item.physical_offset
        assert message.stored_at_ms == item.stored_at_ms
        assert bytes(record).endswith(sent.properties)
        assert len(record) == item.size_bytes


def read_all(
    store: MessageStore, topic: str, queue_id: int, offset: int = 0, count_max: int = 32
) -> list[memoryview]:
    """All records of a queue from an offset on, read as a consumer would."""
    found: list[memoryview] = []
    while True:
        result = store.get(topic, queue_id, offset, count_max)
        if result.status is not GetStatus.FOUND:
            assert result.message_count == 0
            assert result.status in (
                GetStatus.OFFSET_OVERFLOW_ONE,
                GetStatus.NO_MESSAGE_IN_QUEUE,
            ), result
            return found
        records = list(result.records())
        assert len(records) == result.message_count
        assert sum(map(len, records)) == result.byte_count
        found += records
        assert result.next_offset > offset
        offset = result.next_offset


def derived_files(files: SimFiles, config: StoreConfig) -> dict[str, bytes]:
    """Queues and index as bytes; index files by their order, as their names are times."""
    root = config.store_path_root_dir
    found = {}
    for topic in files.list_names(f"{root}/consumequeue"):
        for queue_id in files.list_names(f"{root}/consumequeue/{topic}"):
            directory = f"{root}/consumequeue/{topic}/{queue_id}"
            for name in files.list_names(directory):
                content = files.read(f"{directory}/{name}")
                if content.strip(b"\0"):
                    found[os.path.relpath(f"{directory}/{name}", root)] = content
    for number, name in enumerate(files.list_names(f"{root}/index")):
        found[f"index/{number}"] = files.read(f"{root}/index/{name}")
    return found


def rebuilt_files(files: SimFiles, config: StoreConfig) -> dict[str, bytes]:
    """Queues and index as they are when made from the log alone."""
    disk = files.copy()
    root = config.store_path_root_dir
    for topic in disk.list_names(f"{root}/consumequeue"):
        for queue_id in disk.list_names(f"{root}/consumequeue/{topic}"):
            directory = f"{root}/consumequeue/{topic}/{queue_id}"
            for name in disk.list_names(directory):
                disk.remove(f"{directory}/{name}")
            disk.remove_directory(directory)
        disk.remove_directory(f"{root}/consumequeue/{topic}")
    for name in disk.list_names(f"{root}/index"):
        disk.remove(f"{root}/index/{name}")
    for name in ("checkpoint", "abort", "lock"):
        disk.remove(f"{root}/{name}")
    with MessageStore.open(config, disk, HandClock()):
        pass
    return derived_files(disk, config)
