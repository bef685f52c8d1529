"""Judge: is a store that was reopened after a fault what it had promised to be?

    I04  it opens, and holds a prefix of what was appended that contains all acknowledged
    I15  queues have no gap and no double; queues and index equal a rebuild from the log
    I17  nothing that was visible is gone
    and  it takes more messages, stops cleanly, and holds them when it is opened again

The judge knows the records byte for byte (crash_script.Item), so it does not believe the store's
own decoder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from crash_script import KEYS, TABLE_PATH, TOPICS, History, Item, Moment, ScriptedRun

from skylark.store import GetStatus, MessageStore, PutStatus, StoreConfig
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock, derived_files, make_message, rebuilt_files


class Broken(AssertionError):
    """A promise was not kept."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise Broken(what)


@dataclass
class Judge:
    """Judges disks of one configuration; remembers rebuilds, which depend on the log alone."""

    config: StoreConfig
    now_ms: int
    checks_keys: bool = True
    checks_all_keys: bool = False
    _rebuilt: dict[int, dict[str, bytes]] = field(default_factory=dict)
    _turn: int = 0

    def judge(
        self,
        disk: SimFiles,
        promise: Moment,
        possible: tuple[History, ...],
        *,
        is_power_cut: bool = True,
        goes_on: bool = True,
    ) -> MessageStore | None:
        """Open a disk and raise Broken unless everything holds; the disk is used up."""
        clock = HandClock(self.now_ms)
        store = MessageStore.open(self.config, disk, clock)
        history = self.check_log(store, promise, possible, is_power_cut=is_power_cut)
        self.check_derived(store, history)
        self.check_table(disk, promise)
        if not goes_on:
            store.close()
            self.check_rebuild(disk, history)
            return None
        # What was given up must stay gone under new messages.
        more = [
            make_message(topic, queue_id, b"later " * 9, keys="k1 k2", tag="TagA")
            for topic in TOPICS
            for queue_id in (0, 1)
        ]
        for message, result in zip(more, store.put(more), strict=True):
            require(result.status is PutStatus.PUT_OK, f"put after recovery: {result.status.name}")
            history = (*history, Item.of(message, result))
        store.close()
        self.check_rebuild(disk, history)
        store = MessageStore.open(self.config, disk, clock)
        require(store.recovery.was_clean, "a clean stop was not recognised")
        require(not store.recovery.problems, f"after a clean stop: {store.recovery.problems}")
        require(store.log.appended == history[-1].end, "a clean stop lost messages")
        self.check_derived(store, history)
        return store

    # The log.

    def check_log(
        self,
        store: MessageStore,
        promise: Moment,
        possible: tuple[History, ...],
        *,
        is_power_cut: bool,
    ) -> History:
        """Return the messages that survived."""
        end = store.log.appended
        require(end >= promise.durable, f"flushed {promise.durable}, found only {end}")
        if self.config.is_sync_flush:
            require(end >= promise.visible, f"visible up to {promise.visible}, found {end}")
        if not is_power_cut:
            require(end >= promise.committed, f"a kill: committed {promise.committed}, found {end}")
        require(store.log.flushed == end, "recovery left something unflushed")
        require(store.dispatcher.position == end, "recovery left something undispatched")
        require(not store.recovery.lost_flushed_bytes, "the checkpoint was ahead of the disk")
        problems = []
        for history in possible:
            problem = self._misfit(store, history, end)
            if problem is None:
                return tuple(item for item in history if item.end <= end)
            problems.append(problem)
        raise Broken("; ".join(problems))

    def _misfit(self, store: MessageStore, history: History, end: int) -> str | None:
        """Why a log that ends here is no prefix of a history."""
        log = store.log
        at = log.start
        for item in history:
            if item.physical_offset < log.start:
                continue
            if item.physical_offset >= end:
                break
            if item.end > end:
                return f"the log ends at {end}, inside a record of {item.physical_offset}"
            if log.read(item.physical_offset, item.size_bytes) != item.raw:
                return f"the record at {item.physical_offset} is not what was put"
            at = item.end
        if end != at and log.blank_end(at) != end:
            return f"the log ends at {end}, its last record at {at}"
        return None

    # Queues and index.

    def check_derived(self, store: MessageStore, history: History) -> None:
        """Everything that can be read equals the list of messages."""
        start = store.log.start
        queues: dict[tuple[str, int], list[Item]] = defaultdict(list)
        for item in history:
            if item.is_queued:
                queues[item.message.topic, item.message.queue_id].append(item)
        for (topic, queue_id), items in queues.items():
            kept = [item for item in items if item.physical_offset >= start]
            first = kept[0].queue_offset if kept else items[-1].queue_offset + 1
            last = store.max_offset(topic, queue_id)
            name = f"{topic}/{queue_id}"
            require(
                last == items[-1].queue_offset + 1,
                f"{name} ends at {last}, its last message is {items[-1].queue_offset}",
            )
            lowest = store.min_offset(topic, queue_id)
            require(lowest == first, f"{name} begins at {lowest}, should at {first}")
            found = b"".join(read_bodies(store, topic, queue_id, first))
            require(found == b"".join(item.raw for item in kept), f"{name} holds other records")
        for topic, queue_id in store.queues.names:
            if (topic, queue_id) not in queues:
                require(store.max_offset(topic, queue_id) == 0, f"{topic}/{queue_id} from nowhere")
        if self.checks_keys:
            self._check_keys(store, [item for item in history if item.physical_offset >= start])

    def _check_keys(self, store: MessageStore, kept: list[Item]) -> None:
        # Where the index is compared with a rebuild, byte for byte, a sample of queries will do.
        pairs = [(topic, key) for topic in TOPICS for key in KEYS]
        if store.log.start == 0 and not self.checks_all_keys:
            self._turn += 1
            pairs = [pairs[self._turn * step % len(pairs)] for step in (1, 5)]
        for topic, key in pairs:
            expected = [item for item in kept if item.message.topic == topic and key in item.keys]
            result = store.query(topic, key, count_max=64, begin_ms=0, end_ms=self.now_ms + 10**9)
            require(
                [bytes(record) for record in result.records]
                == [item.raw for item in expected][-64:],
                f"key {key} of {topic}: {len(result.records)} of {len(expected)} found",
            )

    def check_rebuild(self, disk: SimFiles, history: History) -> None:
        """The files of queues and index equal those made from the log alone, byte for byte."""
        names = disk.list_names(self.config.commit_log_directory)
        if not names or int(names[0]) > 0 or self.config.enable_consume_queue_ext:
            # Queues remember offsets of messages that are gone, which no rebuild can know.
            return
        key = hash(tuple(item.raw for item in history))
        if key not in self._rebuilt:
            self._rebuilt[key] = rebuilt_files(disk, self.config)
        found, wanted = derived_files(disk, self.config), self._rebuilt[key]
        for name in sorted(found.keys() | wanted.keys()):
            require(found.get(name) == wanted.get(name), f"{name} differs from a rebuild")

    # Small files.

    def check_table(self, disk: SimFiles, promise: Moment) -> None:
        if not promise.tables:
            return
        content = disk.read(TABLE_PATH) if disk.exists(TABLE_PATH) else b""
        require(content in promise.tables, "a table is neither the old one nor the new one")


def read_bodies(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> Iterator[bytes | memoryview]:
    """All records of a queue, read as a consumer would."""
    while True:
        result = store.get(topic, queue_id, offset, 32)
        if result.status is not GetStatus.FOUND:
            require(
                result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE),
                f"{topic}/{queue_id} at {offset}: {result.status}",
            )
            return
        require(result.next_offset > offset, "a read did not move on")
        yield from result.chunks
        offset = result.next_offset


def promises(
    run: ScriptedRun, changes: int, at: int = 0
) -> tuple[Moment, tuple[History, ...], int]:
    """What a crash after so many changes must keep and may show; at speeds up a walk."""
    moments = run.moments
    while at + 1 < len(moments) and moments[at + 1].at <= changes:
        at += 1
    promise = moments[at]
    under_way = moments[min(at + 1, len(moments) - 1)]
    possible = tuple(dict.fromkeys((*under_way.histories, *promise.histories)))
    if promise.tables or under_way.tables:
        either = (*promise.tables, *under_way.tables)
        promise = Moment(
            promise.at, promise.durable, promise.visible, promise.committed, promise.start,
            promise.histories, either if promise.tables else (b"", *either),
        )  # fmt: skip
    return promise, possible, at
