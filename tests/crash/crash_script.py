"""ScriptedRun: a store at work on a recording disk, and what it has promised at each moment.

A run is judged by its promises. After every step of a script it notes how long the trace of the
disk is, and what held at that point: how far the log is flushed, committed and visible, and what
may be in it. A crash after n changes must then keep the promises of the last moment up to n, and
may show anything that was under way until the next one.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from skylark.protocol.properties import encode_properties
from skylark.protocol.record import encode_record_into
from skylark.store import FlushDiskType, MessageStore, PutMessage, PutResult, PutStatus, StoreConfig
from skylark.store.retention import Retention
from skylark.testing.files import SECTOR_BYTES, SimFiles
from skylark.testing.stores import HOST, HOST_V6, TINY, HandClock, put_as_batch

HOUR_MS = 3_600_000
TABLE_PATH = "/store/config/topics.json"
TOPICS = ("TopicA", "TopicB", "%RETRY%group")
KEYS = ("k1", "k2", "k3", "中文")

SYNC = dataclasses.replace(
    TINY,
    flush_disk_type=FlushDiskType.SYNC_FLUSH,
    delete_when="",
    disk_max_used_space_ratio=100,
    file_reserved_time=2,
)
ASYNC = dataclasses.replace(SYNC, flush_disk_type=FlushDiskType.ASYNC_FLUSH)
POOLED = dataclasses.replace(ASYNC, transient_store_pool_enable=True)
LARGE = dataclasses.replace(SYNC, mapped_file_size_commit_log=32768, max_message_size=14_000)
WITH_EXT = dataclasses.replace(
    SYNC, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=100
)


@dataclass(frozen=True)
class Item:
    """One message that the store took, and the bytes that it must have become."""

    message: PutMessage
    physical_offset: int
    queue_offset: int
    size_bytes: int
    stored_at_ms: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size_bytes

    @property
    def is_queued(self) -> bool:
        return self.message.sys_flag & 0xC in (0x0, 0x8)

    @cached_property
    def raw(self) -> bytes:
        """The record, made here and not read back from the store."""
        m = self.message
        buffer = bytearray(self.size_bytes)
        encode_record_into(
            buffer,
            0,
            topic=m.topic,
            body=m.body,
            properties=m.properties,
            queue_id=m.queue_id,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            flag=m.flag,
            sys_flag=m.sys_flag,
            born_at_ms=m.born_at_ms,
            born_host=m.born_host,
            stored_at_ms=self.stored_at_ms,
            store_host=m.store_host,
            reconsume_times=m.reconsume_times,
            prepared_transaction_offset=m.prepared_transaction_offset,
        )
        return bytes(buffer)

    @cached_property
    def keys(self) -> list[str]:
        """The keys under which a message can be found."""
        for part in self.message.properties.decode().split("\x02"):
            name, _, value = part.partition("\x01")
            if name == "KEYS":
                return value.split(" ")
        return []

    @classmethod
    def of(cls, message: PutMessage, result: PutResult) -> Item:
        return cls(
            message,
            result.physical_offset,
            result.queue_offset,
            result.size_bytes,
            result.stored_at_ms,
        )


History = tuple[Item, ...]


@dataclass(frozen=True)
class Moment:
    """What holds once the trace is this long."""

    at: int
    durable: int  # Acknowledged with SYNC_FLUSH; in every mode a power cut must not take it.
    visible: int
    committed: int  # A kill without a power cut must not take this.
    start: int
    histories: tuple[History, ...]
    tables: tuple[bytes, ...] = ()  # Contents of the table that may be found, if any must be.


class ScriptedRun:
    """Drives a store step by step; the names of its methods are the words of a script."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        seed: int,
        page_bytes: int = 512,
        tear_bytes: int = SECTOR_BYTES,
    ) -> None:
        self.config = config
        self.rng = random.Random(seed)
        self.clock = HandClock()
        self.files = SimFiles(
            recording=True,
            page_bytes=page_bytes,
            tear_bytes=tear_bytes,
            now_ms=self.clock.now_ms,
        )
        self.history: History = ()
        self.tables: tuple[bytes, ...] = ()
        self.moments: list[Moment] = []
        self.refused = 0
        self.number = 0
        self._note_nothing()
        self.store = MessageStore.open(config, self.files, self.clock)
        self.note()

    # Promises.

    def _note_nothing(self) -> None:
        self.moments.append(Moment(0, 0, 0, 0, 0, ((),)))

    def note(self, *, durable: int | None = None, also: tuple[History, ...] = ()) -> None:
        """Note what holds now."""
        self.files.observe()
        store = self.store
        durable = store.log.flushed if durable is None else durable
        visible = min(store.dispatcher.position, durable) if also else store.dispatcher.position
        self.moments.append(
            Moment(
                len(self.files.trace),
                durable,
                visible,
                min(store.log.committed, durable) if also else store.log.committed,
                store.log.start,
                (self.history, *also),
                self.tables,
            )
        )

    # Words of a script.

    def message(self, body_max: int = 700) -> PutMessage:
        """The next message: content says who it is, everything else is drawn."""
        rng = self.rng
        self.number += 1
        body = f"message {self.number} ".encode() + rng.randbytes(
            rng.choice((0, 3, 60, 300, rng.randrange(body_max)))
        )
        topic = rng.choice(TOPICS)
        tag = rng.choice(("TagA", "TagB", None))
        keys = " ".join(rng.sample(KEYS, rng.randrange(3))) or None
        unique = f"id-{self.number}" if rng.random() < 0.3 else None
        return PutMessage(
            topic,
            rng.randrange(2),
            body,
            encode_properties({"KEYS": keys, "TAGS": tag, "UNIQ_KEY": unique}),
            1_700_000_000_000,
            rng.choice((HOST, HOST, HOST_V6)),
            rng.choice((HOST, HOST, HOST, HOST_V6)),
            sys_flag=rng.choice((0, 0, 0, 0, 0x8, 0x4)),
        )

    def _flagged(self, message: PutMessage) -> PutMessage:
        flags = message.sys_flag
        flags |= 0x10 if len(message.born_host) == 20 else 0
        flags |= 0x20 if len(message.store_host) == 20 else 0
        return message._replace(sys_flag=flags)

    def put(self, count: int = 1, *, group: bool = False, observe: bool = True) -> None:
        """Put some messages; as a group they go to one queue."""
        messages = [self._flagged(self.message()) for _ in range(count)]
        if group:
            first = messages[0]
            messages = [
                self._flagged(
                    first._replace(
                        queue_id=0, sys_flag=0, body=m.body, properties=m.properties, flag=m.flag
                    )
                )
                for m in messages
            ]
        self.put_these(messages, group=group, observe=observe)

    def put_these(
        self, messages: Sequence[PutMessage], *, group: bool = False, observe: bool = True
    ) -> list[PutResult]:
        results = put_as_batch(self.store, messages) if group else self.store.put(messages)
        for message, result in zip(messages, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                self.history = (*self.history, Item.of(message, result))
            else:
                self.refused += 1
        if observe:
            self.note()
        return results

    def put_large(self, count: int) -> None:
        """Put messages of several pages each, with bodies and properties that span sectors."""
        rng = self.rng
        messages = []
        for _ in range(count):
            message = self._flagged(self.message())
            body = bytes(message.body) + rng.randbytes(rng.choice((100, 5_000, 11_000)))
            note = "".join(rng.choices("abcdefgh", k=rng.choice((10, 700, 3_000))))
            messages.append(
                message._replace(
                    body=body, properties=message.properties + f"\x02note\x01{note}".encode()
                )
            )
        self.put_these(messages)

    def put_to(self, topic: str, queue_id: int, count: int, body_bytes: int) -> None:
        """Put messages of one queue, of one size."""
        self.put_these(
            [
                self._flagged(self.message())._replace(
                    topic=topic,
                    queue_id=queue_id,
                    sys_flag=0,
                    born_host=HOST,
                    store_host=HOST,
                    body=b"%d " % (self.number + number) + self.rng.randbytes(body_bytes),
                )
                for number in range(count)
            ]
        )

    def flush(self, *, putting: bool = False) -> None:
        """Flush the log, as the flusher does; with appends while the disk is busy."""
        work = self.store.begin_flush()
        if putting:
            self.put(2)
        work.run()
        if putting:
            self.put(1)
        self.store.end_flush(work)
        self.note()

    def flush_queues(self, *, thorough: bool, putting: bool = False) -> None:
        """Flush the queues; thorough means with index and checkpoint."""
        work = self.store.begin_queue_flush(thorough=thorough)
        if putting:
            self.put(2)
            if self.rng.random() < 0.5:
                self.flush()  # The log's own flush goes on beside it.
        work.run()
        if putting:
            self.put(1)
        self.store.end_queue_flush(work)
        self.note()

    def commit(self) -> None:
        self.store.log.commit()
        self.store.dispatch()
        self.note()

    def wait(self, ms: int = 700) -> None:
        self.clock.advance_ms(ms)

    def save_table(self) -> None:
        """Replace a small file, as the tables of a broker do."""
        self.number += 1
        content = f'{{"version": {self.number}}}'.encode() * self.rng.randrange(1, 60)
        self.files.make_directory("/store/config")
        before = self.tables[-1:]
        self.tables = (*before, content) if before else (b"", content)
        self.note()
        self.files.replace(TABLE_PATH, content)
        self.tables = (content,)
        self.note()

    def expire(self, hours: int = 3) -> None:
        """Let retention delete what is old."""
        self.clock.advance_ms(hours * HOUR_MS)
        retention = Retention(self.store, self.clock)
        retention.clean_soon()
        retention.clean()
        self.note()

    def truncate(self, count: int) -> None:
        """Give up the newest messages, as a replica does."""
        kept = self.history[: max(0, len(self.history) - count)]
        gone = self.history[len(kept) :]
        if not gone:
            return
        offset = gone[0].physical_offset
        if offset < self.store.log.start:
            return
        old = self.history
        self.note(durable=min(offset, self.store.log.flushed), also=(kept,))
        self.store.truncate(offset)
        self.history = kept
        # Until here a crash may leave the old end as well.
        last = self.moments[-1]
        self.moments[-1] = dataclasses.replace(last, histories=(old, kept))
        self.note()

    def close(self) -> None:
        self.store.close()
        self.note()

    def open(self) -> None:
        """Open after a clean stop."""
        self.store = MessageStore.open(self.config, self.files, self.clock)
        assert self.store.recovery.was_clean
        self.note()

    def kill(self) -> None:
        """The process dies, the machine does not: what it wrote is in memory, and not synced."""
        self.files.observe()
        self.files.end_process()
        promised = self.moments[-1].committed
        self.store = MessageStore.open(self.config, self.files, self.clock)
        end = self.store.log.appended
        assert end >= promised, f"a kill took {promised - end} bytes"
        self.history = tuple(item for item in self.history if item.end <= end)
        self.note()

    def cut_power(self) -> None:
        """The machine goes down: the run goes on with what is left, on a new trace."""
        self.files = self.files.crash(self.rng)
        promised = self.moments[-1].durable
        history = self.history
        self.store = MessageStore.open(self.config, self.files, self.clock)
        end = self.store.log.appended
        assert end >= promised, f"a power cut took {promised - end} bytes"
        self.history = tuple(item for item in history if item.end <= end)
        self.note()


# Scripts.


def steady(run: ScriptedRun) -> None:
    """What a broker does on an ordinary day."""
    for turn in range(9):
        run.put(1)
        run.put(3)
        run.wait()
        run.flush(putting=turn % 3 == 1)
        run.put(2, group=True)
        if turn % 3 == 2:
            run.flush_queues(thorough=turn % 2 == 0, putting=turn == 5)
    run.flush()


def restarts(run: ScriptedRun) -> None:
    """Clean stops, kills, and recoveries that a crash may cut short."""
    for turn in range(5):
        run.put(4)
        run.flush()
        run.put(2)
        if turn % 2:
            run.kill()
        else:
            run.close()
            run.open()
        run.wait()
    run.put(2)
    run.flush_queues(thorough=True)
    run.kill()
    run.put(1)
    run.flush()


def retention(run: ScriptedRun) -> None:
    """Files go at the old end while others come at the new one."""
    for turn in range(4):
        run.put(5)
        run.put(4)
        run.flush()
        if turn % 2 == 0:
            run.flush_queues(thorough=True)
        run.expire()
        run.put(2)
    run.flush_queues(thorough=True, putting=True)
    run.expire()
    run.kill()
    run.put(3)
    run.flush()


def truncation(run: ScriptedRun) -> None:
    """A replica gives up the end of its log, and goes on with another one."""
    for count in (2, 7, 1):
        run.put(4)
        run.flush()
        run.put(3)
        run.flush_queues(thorough=count == 7)
        run.truncate(count)
        run.put(2)
        run.flush()
    run.kill()
    run.truncate(3)
    run.put(2)
    run.flush()


def tables(run: ScriptedRun) -> None:
    """Small files are replaced while messages arrive."""
    for turn in range(5):
        run.put(2)
        run.save_table()
        run.flush()
        run.save_table()
        if turn == 3:
            run.flush_queues(thorough=True)
    run.close()
    run.open()
    run.save_table()


def long(run: ScriptedRun) -> None:
    """Some queues have messages only where no recovery looks unless it must."""
    run.put_to(TOPICS[1], 1, 7, 200)
    run.put_to(TOPICS[2], 0, 3, 900)
    run.flush()
    run.put_to(TOPICS[0], 0, 6, 1500)
    run.put_to(TOPICS[0], 1, 6, 1500)
    run.flush()
    run.put_to(TOPICS[0], 0, 5, 1500)
    run.flush_queues(thorough=True)
    run.wait()
    for _ in range(4):
        run.put_to(TOPICS[0], 0, 2, 1500)
        run.flush()
    run.put_to(TOPICS[1], 0, 2, 100)
    run.flush_queues(thorough=True, putting=True)
    run.put_to(TOPICS[0], 0, 3, 1500)
    run.flush()


def large(run: ScriptedRun) -> None:
    """Records of several pages: a power cut may take one from the middle, body or properties."""
    for turn in range(5):
        run.put_large(3)
        run.wait()
        run.flush(putting=turn == 2)
        run.put_large(2)
        if turn == 3:
            run.flush_queues(thorough=True)
    run.kill()
    run.put_large(2)
    run.flush()


def aging(run: ScriptedRun) -> None:
    """Queues outlive their messages: their offsets must go on where they were."""
    run.put_to(TOPICS[1], 1, 5, 300)
    run.put_to(TOPICS[2], 0, 4, 700)
    run.flush()
    for turn in range(3):
        run.put_to(TOPICS[0], 0, 5, 1500)
        run.flush()
        run.expire()
        if turn == 1:
            run.flush_queues(thorough=True)
            run.expire()
    run.put_to(TOPICS[1], 1, 1, 50)
    run.flush()
    run.kill()
    run.put_to(TOPICS[2], 0, 1, 50)
    run.flush()


def busy(run: ScriptedRun) -> None:
    """Everything at random."""
    words = (
        (8, lambda: run.put(run.rng.randrange(1, 6))),
        (2, lambda: run.put(run.rng.randrange(2, 5), group=True)),
        (4, lambda: run.flush(putting=run.rng.random() < 0.5)),
        (2, lambda: run.flush_queues(thorough=True, putting=run.rng.random() < 0.5)),
        (1, lambda: run.flush_queues(thorough=False)),
        (2, lambda: run.wait(run.rng.randrange(5000))),
        (1, lambda: run.commit()),
        (1, lambda: run.save_table()),
        (1, lambda: run.expire()),
        (1, lambda: run.truncate(run.rng.randrange(1, 6))),
        (1, lambda: run.kill()),
        (1, lambda: (run.close(), run.open())),
    )
    weights = [weight for weight, _ in words]
    for _ in range(40):
        run.rng.choices([word for _, word in words], weights)[0]()
    run.flush()


SCRIPTS = {
    "steady": (steady, SYNC),
    "steady-async": (steady, ASYNC),
    "steady-pooled": (steady, POOLED),
    "restarts": (restarts, SYNC),
    "restarts-async": (restarts, ASYNC),
    "retention": (retention, SYNC),
    "truncation": (truncation, SYNC),
    "tables": (tables, SYNC),
    "long": (long, SYNC),
    "long-async": (long, ASYNC),
    "large": (large, LARGE),
    "aging": (aging, SYNC),
    "ext": (steady, WITH_EXT),
    "busy": (busy, SYNC),
    "busy-async": (busy, ASYNC),
    "busy-pooled": (busy, POOLED),
}


def record(
    name: str, *, seed: int, page_bytes: int = 512, tear_bytes: int = SECTOR_BYTES
) -> ScriptedRun:
    """Run a script to its end, and let its process die there."""
    script, config = SCRIPTS[name]
    run = ScriptedRun(config, seed=seed, page_bytes=page_bytes, tear_bytes=tear_bytes)
    script(run)
    return run
