"""The whole store against a list: puts, reads, reopens, crashes, retention, in any order."""

import dataclasses
import logging
import random
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skylark.store import FlushDiskType, MessageStore, OsFiles
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles
from skylark.testing.stores import (
    HOST,
    HOST_V6,
    TINY,
    HandClock,
    StoreModel,
    derived_files,
    make_message,
    rebuilt_files,
)


def setup_module() -> None:
    # Thousands of recoveries, each with something to say.
    logging.disable(logging.CRITICAL)


def teardown_module() -> None:
    logging.disable(logging.NOTSET)


TOPICS = ("TopicA", "TopicB", "%RETRY%group")
KEYS = ("k1", "k2", "中文", None)
HOUR_MS = 3_600_000

messages = st.builds(
    make_message,
    topic=st.sampled_from(TOPICS),
    queue_id=st.integers(0, 1),
    body=st.one_of(st.binary(max_size=60), st.binary(min_size=900, max_size=1500)),
    keys=st.sampled_from(KEYS),
    tag=st.sampled_from(("TagA", "TagB", None)),
    born_host=st.sampled_from((HOST, HOST_V6)),
    sys_flag=st.sampled_from((0, 0, 0, 0x8, 0x4)),
)


class StoreMachine(RuleBasedStateMachine):
    """Works on a SimFiles; every step is checked against the model."""

    @initialize(is_sync=st.booleans(), pool=st.booleans())
    def open_empty(self, is_sync: bool, pool: bool) -> None:
        self.clock = HandClock()
        self.files = self.make_files()
        kind = FlushDiskType.SYNC_FLUSH if is_sync else FlushDiskType.ASYNC_FLUSH
        self.config = dataclasses.replace(
            TINY,
            store_path_root_dir=self.root(),
            flush_disk_type=kind,
            transient_store_pool_enable=pool,
            delete_when="",
            disk_max_used_space_ratio=100,
        )
        self.model = StoreModel()
        self.store = MessageStore.open(self.config, self.files, self.clock)
        self.flushed = 0

    def root(self) -> str:
        return "/store"

    def make_files(self):
        return SimFiles(now_ms=self.clock.now_ms)

    @rule(
        batch=st.lists(messages, min_size=1, max_size=8),
        kind=st.sampled_from(("single", "group", "alike")),
    )
    def put(self, batch, kind) -> None:
        if kind == "group":
            batch = [message._replace(topic=batch[0].topic, queue_id=0) for message in batch]
        elif kind == "alike":  # As those of one client batch are.
            batch = [batch[0]._replace(body=m.body, properties=m.properties) for m in batch]
        self.model.put(self.store, batch, group=kind != "single")

    @rule(ms=st.integers(0, 5000))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance_ms(ms)

    @rule()
    def flush_the_log(self) -> None:
        work = self.store.begin_flush()
        work.run()
        self.store.end_flush(work)
        self.flushed = self.store.log.flushed

    @rule(thorough=st.booleans())
    def flush_the_queues(self, thorough: bool) -> None:
        work = self.store.begin_queue_flush(thorough=thorough)
        work.run()
        self.store.end_queue_flush(work)
        self.flushed = max(self.flushed, self.store.log.flushed)

    @rule()
    def commit(self) -> None:
        self.store.log.commit()
        self.store.dispatch()

    @rule()
    def stop_cleanly_and_reopen(self) -> None:
        self.store.close()
        self.store = MessageStore.open(self.config, self.files, self.clock)
        assert self.store.recovery.was_clean
        assert self.store.recovery.problems == []
        self.model.cut(self.store.log.appended, flushed=2**62)
        self.flushed = self.store.log.flushed

    @rule(hours=st.integers(1, 3))
    def expire_old_files(self, hours: int) -> None:
        self.clock.advance_ms(hours * HOUR_MS)
        retention = Retention(self.store, self.clock)
        retention.clean_soon()
        config = dataclasses.replace(self.config, file_reserved_time=2)
        retention._config = config
        retention.clean()

    @rule(key=st.sampled_from(KEYS[:3]), topic=st.sampled_from(TOPICS))
    def query_by_key(self, key: str, topic: str) -> None:
        result = self.store.query(
            topic, key, count_max=64, begin_ms=0, end_ms=self.clock.now_ms() + 1000
        )
        expected = [
            item
            for item in self.model.appended
            if item.message.topic == topic
            and f"KEYS\x01{key}".encode() in item.message.properties
            and item.physical_offset >= self.store.log.start
            and item.end <= self.store.dispatcher.position
        ]
        assert len(result.records) == min(64, len(expected))
        for record, item in zip(result.records, expected[-64:], strict=True):
            self.model.check_record(record, item)

    @invariant()
    def store_equals_model(self) -> None:
        if hasattr(self, "store"):
            self.store.dispatch()
            self.model.check(self.store)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class SimStoreMachine(StoreMachine):
    """The same, with crashes, which only a simulated disk can have."""

    @rule()
    def kill_and_reopen(self) -> None:
        committed = self.store.log.committed
        self.files = self.files.kill()
        self.store = MessageStore.open(self.config, self.files, self.clock)
        self.model.cut(self.store.log.appended, flushed=committed)
        self.flushed = self.store.log.flushed

    @rule(seed=st.integers(0, 2**32))
    def cut_power_and_reopen(self, seed: int) -> None:
        flushed = max(self.flushed, self.store.log.flushed)
        self.files = self.files.crash(random.Random(seed))
        self.store = MessageStore.open(self.config, self.files, self.clock)
        self.model.cut(self.store.log.appended, flushed=flushed)
        self.flushed = self.store.log.flushed

    @rule()
    def compare_with_a_rebuild(self) -> None:
        self.store.close()
        if not self.has_expired():
            assert derived_files(self.files, self.config) == rebuilt_files(self.files, self.config)
        self.store = MessageStore.open(self.config, self.files, self.clock)
        self.model.cut(self.store.log.appended, flushed=2**62)
        self.flushed = self.store.log.flushed

    def has_expired(self) -> bool:
        """Queues remember offsets of messages that are gone, which no rebuild can know."""
        names = self.files.list_names("/store/commitlog")
        return bool(names) and int(names[0]) > 0


class OsStoreMachine(StoreMachine):
    """On the real disk."""

    def root(self) -> str:
        self.directory = tempfile.mkdtemp(prefix="skylark-store-")
        return self.directory

    def make_files(self):
        return OsFiles()

    @precondition(lambda self: False)
    @rule()
    def expire_old_files(self) -> None:
        """Files on a real disk do not age with a simulated clock."""

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


TestSimulatedDisk = SimStoreMachine.TestCase
TestSimulatedDisk.settings = settings(max_examples=100, stateful_step_count=30)
TestRealDisk = OsStoreMachine.TestCase
TestRealDisk.settings = settings(max_examples=15, stateful_step_count=15)
