"""The compiled hot functions do what their specification does, on anything."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.record import encode_blank
from skylark.store import append
from skylark.store.append import GatherLimits, PutEntries, PutMessage
from skylark.testing.stores import HOST, HOST_V6

pytestmark = pytest.mark.skipif(not append.COMPILED, reason="not compiled here")

NOW = 1_767_225_600_000
FILE_BYTES = 8192

names = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"X", b""])
values = st.one_of(
    st.sampled_from([b"TagA", b"k1 k2", b" ", b"3", b"+1", b"-2", "中 文".encode(), b"\xff\xfe"]),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")),
    st.binary(max_size=8),
)
properties = st.one_of(
    st.binary(max_size=600),
    st.lists(st.tuples(names, values), max_size=5).map(
        lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)
    ),
)
small = st.one_of(st.integers(0, 5), st.integers(-(2**33), 2**65))
messages = st.builds(
    PutMessage,
    topic=st.sampled_from(["TopicA", "SCHEDULE_TOPIC_XXXX", "Unknown"]),
    queue_id=st.integers(0, 2),
    body=st.one_of(st.binary(max_size=80), st.binary(min_size=500, max_size=1200)),
    properties=properties,
    born_at_ms=small,
    born_host=st.sampled_from([HOST, HOST_V6, b"short"]),
    store_host=st.sampled_from([HOST, HOST_V6]),
    flag=small,
    sys_flag=st.one_of(st.sampled_from([0, 4, 8, 12, 0x30]), small),
    reconsume_times=st.integers(0, 3),
    prepared_transaction_offset=small,
)


class Side:
    """One twin with its memory."""

    def __init__(self, source):
        self.source = source
        self.log = source["LogCursor"](FILE_BYTES, 1000, 2000)
        self.log.buffer = memoryview(bytearray(FILE_BYTES))
        self.log.buffers = [self.log.buffer]
        self.queues = {}
        for topic in ("TopicA", "SCHEDULE_TOPIC_XXXX"):
            for queue_id in range(2):
                cursor = source["QueueCursor"](topic, queue_id)
                cursor.buffer = memoryview(bytearray(20 * 12))
                cursor.limit = 20 * 12
                cursor.watchers = queue_id
                self.queues.setdefault(topic, {})[queue_id] = cursor
        self.index = source["IndexCursor"](5)
        self.index.buffer = memoryview(bytearray(40 + 20 + 20 * 30))
        self.index.entry_limit = 30
        self.dirty, self.arrivals = [], []

    def append(self, batch):
        results = []
        at = 0
        while at < len(batch):
            at = self.source["append_batch"](
                self.log, batch, at, len(batch), self.queues, NOW, results
            )
            results.append(("stopped", at))
            at += 1
        return results

    def dispatch(self, at, end):
        return self.source["dispatch_records"](
            self.log.buffer, 0, at, end, self.queues, self.index, (1000, 2000), self.dirty,
            self.arrivals,
        )  # fmt: skip

    def state(self):
        return (
            bytes(self.log.buffer),
            self.log.write_at,
            [
                (c.topic, c.queue_id, c.next_offset, c.write_at, c.max_physical, bytes(c.buffer))
                for by_id in self.queues.values()
                for c in by_id.values()
            ],
            bytes(self.index.buffer),
            self.index.index_count,
            self.index.end_physical,
            [(c.topic, c.queue_id, c.dirty_from) for c in self.dirty],
            self.arrivals,
        )


@settings(max_examples=300)
@given(batches=st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=4),
       damage=st.lists(st.tuples(st.integers(0, FILE_BYTES - 1), st.integers(0, 255)), max_size=3),
       is_ended=st.booleans())  # fmt: skip
def test_both_write_the_same_bytes_and_stop_at_the_same_places(batches, damage, is_ended):
    pure, fast = Side(append.PURE), Side(append.COMPILED)
    for batch in batches:
        sizes = [side.source["group_size"](side.log, batch, side.queues) for side in (pure, fast)]
        before = pure.log.write_at
        assert pure.append(batch) == fast.append(copy.deepcopy(batch))
        assert sizes[0] == sizes[1]
        # All were taken, unless the file was too small for them.
        assert sizes[0] in (-1, pure.log.write_at - before) or sizes[0] + 8 > FILE_BYTES - before
    for side in (pure, fast):
        at = side.log.write_at
        if is_ended:
            side.log.buffer[at : at + 8] = encode_blank(FILE_BYTES - at)
        for place, value in damage:
            side.log.buffer[place % max(1, at)] = value
    assert pure.state() == fast.state()
    scans = [
        side.source["scan_records"](side.log.buffer, 0, 0, FILE_BYTES, check, torn)
        for check in (True, False)
        for torn in (0, FILE_BYTES)
        for side in (pure, fast)
    ]
    assert scans[::2] == scans[1::2]
    end = pure.log.write_at
    one, two = pure.dispatch(0, end), fast.dispatch(0, end)
    if one != two:
        # The compiled one may leave a record to the caller that the pure one manages: text that is
        # not UTF-8. It must be the same one, and nothing of it may be written.
        assert two[1] is append.Stop.HANDOVER
        assert two[0] <= one[0]
        return
    assert pure.state() == fast.state()
    for by_pure, by_fast in zip(pure.queues.values(), fast.queues.values(), strict=True):
        for queue_id in by_pure:
            a, b = by_pure[queue_id], by_fast[queue_id]
            for tags in (None, frozenset([2598919, 0])):
                for limits in ((32, 9999, 32, 9999, 8, 10**9), (3, 700, 2, 300, 1, 500)):
                    found = [
                        side.source["gather"](
                            cursor.buffer, 0, cursor.write_at, side.log, end, tags,
                            GatherLimits(*limits),
                        )
                        for side, cursor in ((pure, a), (fast, b))
                    ]  # fmt: skip
                    if found[0] is None or found[1] is None:
                        assert found[0] is found[1]
                    else:
                        assert found[0][1:] == found[1][1:]
                        assert b"".join(found[0][0]) == b"".join(found[1][0])


@settings(max_examples=300)
@given(content=st.binary(max_size=700), at=st.integers(0, 700), end=st.integers(0, 700))
def test_no_bytes_crash_the_walks(content, at, end):
    end = min(end, len(content))
    at = min(at, end)
    for source in (append.PURE, append.COMPILED):
        buffer = memoryview(bytearray(content))
        source["scan_records"](buffer, 0, at, end, True, 0)
        source["dispatch_records"](buffer, 0, at, end, {}, None, (1000,), [], [])
        entries_end = end // 20 * 20
        log = source["LogCursor"](512, 10, 10)
        log.buffers = [memoryview(bytearray(content[:512].ljust(512, b"\0")))]
        source["gather"](buffer, 0, entries_end, log, 512, None, GatherLimits(9, 9, 9, 9, 9, 9))


@settings(max_examples=200)
@given(content=st.binary(min_size=40 + 12 + 60, max_size=400), count=st.integers(1, 15))
def test_slots_are_restored_alike(content, count):
    if 40 + 12 + 20 * count > len(content):
        count = (len(content) - 52) // 20
    one, two = (memoryview(bytearray(content)) for _ in range(2))
    assert append.PURE["restore_slots"](one, 3, count) == append.COMPILED["restore_slots"](
        two, 3, count
    )
    assert one == two


entries = st.lists(
    st.builds(
        BatchEntry,
        body=st.one_of(st.binary(max_size=80), st.binary(min_size=990, max_size=1010)),
        properties=properties,
        flag=st.integers(-(2**31), 2**31 - 1),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=300)
@given(
    batches=st.lists(
        st.tuples(
            entries,
            st.sampled_from([b"", b"CLUSTER\x01c"]),
            st.sampled_from([HOST, HOST_V6, b"short"]),
            st.sampled_from([0, 1, 4, 8, 0x30, 2**31]),
        ),
        min_size=1,
        max_size=4,
    ),
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=2),
)
def test_both_take_the_same_batches_and_write_the_same_bytes(batches, damage):
    pure, fast = Side(append.PURE), Side(append.COMPILED)
    for listed, common, host, sys_flag in batches:
        data = bytearray(encode_batch(listed))
        for place, value in damage:
            data[place % len(data)] = value
        batch = PutEntries("TopicA", 1, bytes(data), common, NOW, host, HOST, sys_flag, 1)
        one, two = (
            side.source["append_entries"](side.log, batch, side.queues, NOW)
            for side in (pure, fast)
        )
        assert one == two
    assert pure.state() == fast.state()
