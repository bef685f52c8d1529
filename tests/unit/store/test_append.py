"""The hot functions: one suite over the specification and its compiled twin."""

import itertools
import struct

import pytest

from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.crc import crc32
from skylark.protocol.hashes import key_hash, tag_hash
from skylark.protocol.record import decode_record, encode_blank, pack_host
from skylark.store import append
from skylark.store.append import (
    ENTRY,
    Arrival,
    EntriesResult,
    GatherLimits,
    PutEntries,
    PutMessage,
    PutResult,
    PutStatus,
    Stop,
)
from skylark.testing.stores import HOST, HOST_V6, make_message

NOW = 1_767_225_600_000
SOURCES = [pytest.param(append.PURE, id="pure")]
if append.COMPILED:
    SOURCES.append(pytest.param(append.COMPILED, id="compiled"))


class Kit:
    """Cursors over plain memory, and the functions of one source."""

    def __init__(self, source, file_bytes=4096, slots=4, entries=64):
        self.source = source
        self.log = source["LogCursor"](file_bytes, 1000, 2000)
        self.log.buffer = memoryview(bytearray(file_bytes))
        self.log.buffers = [self.log.buffer]
        self.queues = {}
        self.index = source["IndexCursor"](slots)
        self.index.buffer = memoryview(bytearray(40 + 4 * slots + 20 * entries))
        self.index.entry_limit = entries
        self.dirty, self.arrivals = [], []

    def queue(self, topic="TopicTest", queue_id=0, entries=100):
        cursor = self.source["QueueCursor"](topic, queue_id)
        cursor.buffer = memoryview(bytearray(entries * 20))
        cursor.limit = entries * 20
        self.queues.setdefault(topic, {})[queue_id] = cursor
        return cursor

    def append(self, messages, at=0, now=NOW):
        results = []
        end = self.source["append_batch"](
            self.log, messages, at, len(messages), self.queues, now, results
        )
        return end, results

    def append_entries(self, batch, now=NOW):
        return self.source["append_entries"](self.log, batch, self.queues, now)

    def dispatch(self, at=0, end=None, index=True):
        return self.source["dispatch_records"](
            self.log.buffer, self.log.file_start, at, self.log.write_at if end is None else end,
            self.queues, self.index if index else None, (1000, 5000, 10000), self.dirty,
            self.arrivals,
        )  # fmt: skip

    def gather(self, cursor, at=0, tags=None, **limits):
        chosen = GatherLimits(32, 262144, 32, 65536, 8, 1 << 40)._replace(**limits)
        return self.source["gather"](
            cursor.buffer, at, cursor.write_at, self.log, self.log.write_at, tags, chosen
        )

    def scan(self, at=0, end=None, check_crc=True, torn_from=1 << 40):
        return self.source["scan_records"](
            self.log.buffer, self.log.file_start, at, len(self.log.buffer) if end is None else end,
            check_crc, torn_from,
        )  # fmt: skip


@pytest.fixture(params=SOURCES)
def kit(request):
    return Kit(request.param)


def entries(cursor):
    return [ENTRY.unpack_from(cursor.buffer, at) for at in range(0, cursor.write_at, 20)]


# Appending.


def test_messages_are_appended_one_after_another_with_dense_queue_offsets(kit):
    kit.queue(queue_id=0)
    kit.queue(queue_id=1)
    messages = [make_message(queue_id=i % 2, body=b"body %d" % i) for i in range(6)]
    end, results = kit.append(messages)
    assert end == 6
    at = 0
    for number, (message, result) in enumerate(zip(messages, results, strict=True)):
        assert isinstance(result, PutResult)
        assert result.status is PutStatus.PUT_OK
        assert result.physical_offset == at
        assert result.queue_offset == number // 2
        assert result.end == at + result.size_bytes
        stored = decode_record(kit.log.buffer, at)
        assert stored.body == message.body
        assert stored.queue_id == message.queue_id
        assert stored.queue_offset == result.queue_offset
        assert stored.physical_offset == at
        assert stored.stored_at_ms == NOW == result.stored_at_ms
        at += stored.size_bytes
    assert kit.log.write_at == at


def test_every_field_of_a_message_is_stored(kit):
    kit.queue("T", 7)
    message = PutMessage(
        "T", 7, b"body", b"a\x01b", 123456789, HOST_V6, pack_host("::2", 1), -5, 0x101, 3, 99
    )
    kit.log.file_start = 1 << 33
    end, (result,) = kit.append([message])
    assert end == 1
    stored = decode_record(kit.log.buffer)
    assert stored.flag == -5
    assert stored.sys_flag == 0x131
    assert stored.reconsume_times == 3
    assert stored.prepared_transaction_offset == 99
    assert stored.born_at_ms == 123456789
    assert str(stored.born_host) == "[2001:db8::1]:54321"
    assert str(stored.store_host) == "[::2]:1"
    assert stored.physical_offset == 1 << 33 == result.physical_offset
    assert stored.properties == {"a": "b"}


@pytest.mark.parametrize("body", [bytearray(b"body"), memoryview(b"body"), b""])
def test_any_buffer_is_a_body(kit, body):
    kit.queue()
    assert kit.append([make_message(body=body)])[0] == 1
    assert decode_record(kit.log.buffer).body == bytes(body)


@pytest.mark.parametrize(("kind", "is_queued"), [(0, True), (4, False), (8, True), (12, False)])
def test_half_messages_and_rollbacks_have_no_place_in_the_queue(kit, kind, is_queued):
    cursor = kit.queue()
    cursor.next_offset = 5
    _, (result,) = kit.append([make_message(sys_flag=kind)])
    assert result.queue_offset == (5 if is_queued else 0)
    assert cursor.next_offset == (6 if is_queued else 5)


def test_an_unknown_queue_stops_the_batch_before_it(kit):
    kit.queue()
    messages = [make_message(), make_message(queue_id=9), make_message("Other")]
    assert kit.append(messages)[0] == 1
    assert kit.append(messages, at=2) == (2, [])


def test_a_record_that_does_not_leave_room_for_the_blank_one_stops_the_batch(kit):
    kit.queue()
    size = 91 + 9 + 5
    kit.log.write_at = 4096 - size - 7
    assert kit.append([make_message()]) == (0, [])
    kit.log.write_at -= 1
    assert kit.append([make_message()])[0] == 1
    assert kit.log.write_at == 4096 - 8


def test_what_breaks_a_limit_stops_the_batch_and_changes_nothing(kit):
    cursor = kit.queue()
    good = make_message()
    before = bytes(kit.log.buffer)
    for bad in (
        good._replace(body=b"x" * 1001),
        good._replace(properties=b"p" * 32_768),
        good._replace(body=b"x" * 900, properties=b"a\x01" + b"p" * 1200),
        good._replace(born_host=b"123456789"),
        good._replace(store_host=b""),
        good._replace(flag=2**31),
        good._replace(sys_flag=-(2**31) - 1),
        good._replace(reconsume_times=2**40),
        good._replace(born_at_ms=2**63),
        good._replace(prepared_transaction_offset=2**70),
    ):
        assert kit.append([bad]) == (0, [])
    assert bytes(kit.log.buffer) == before
    assert (kit.log.write_at, cursor.next_offset) == (0, 0)


def test_without_a_file_nothing_is_appended(kit):
    kit.queue()
    kit.log.buffer = None
    assert kit.append([make_message()]) == (0, [])


def test_the_size_of_a_group_is_that_of_its_records(kit):
    kit.queue()
    messages = [make_message(body=bytes(n), keys="k" * n) for n in (0, 10, 200)]
    size = kit.source["group_size"](kit.log, messages, kit.queues)
    assert kit.append(messages)[0] == 3
    assert size == kit.log.write_at
    assert kit.source["group_size"](kit.log, [], kit.queues) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "Unknown"},
        {"queue_id": 1},
        {"body": bytes(1001)},
        {"body": bytes(1000), "properties": b"a\x01" + bytes(1000)},
        {"properties": bytes(32_768)},
        {"born_host": b"short"},
        {"store_host": b"short"},
        {"flag": 1 << 31},
        {"sys_flag": 1 << 31},
        {"reconsume_times": 1 << 31},
        {"born_at_ms": 1 << 63},
        {"prepared_transaction_offset": 1 << 63},
    ],
)
def test_a_group_with_an_unusual_message_has_no_size(kit, changes):
    kit.queue()
    messages = [make_message(), make_message()._replace(**changes)]
    assert kit.source["group_size"](kit.log, messages, kit.queues) == -1


# Appending a client's batch.

ENTRIES = (
    BatchEntry(b"one", b"TAGS\x01A", 1),
    BatchEntry(b"", b"", -2),
    BatchEntry(b"three" * 30, b"KEYS\x01k1 k2\x02", 2**31 - 1),
)


def make_batch(**changes):
    batch = PutEntries("T", 1, encode_batch(ENTRIES), b"CLUSTER\x01c", 5, HOST_V6, HOST, 0x101, 3)
    return batch._replace(**changes)


@pytest.mark.parametrize("common", [b"CLUSTER\x01c", b""])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_the_entries_of_a_batch_become_the_records_of_its_messages(kit, common, wrap):
    other = Kit(kit.source)
    for one in (kit, other):
        one.queue("T", 1).next_offset = 7
        one.log.file_start = 1 << 33
        one.log.write_at = 24
    batch = make_batch(entries=wrap(encode_batch(ENTRIES)), properties=common)
    result = kit.append_entries(batch)
    texts = [
        b"TAGS\x01A\x02" + common if common else b"TAGS\x01A",
        common,
        ENTRIES[2].properties + common,
    ]
    _, results = other.append(
        [
            PutMessage("T", 1, entry.body, text, 5, HOST_V6, HOST, entry.flag, 0x101, 3)
            for entry, text in zip(ENTRIES, texts, strict=True)
        ]
    )
    assert isinstance(result, EntriesResult)
    assert list(result.physical_offsets) == [one.physical_offset for one in results]
    assert result.queue_offset == 7 == results[0].queue_offset
    assert result.size_bytes == sum(one.size_bytes for one in results)
    assert result.stored_at_ms == NOW
    assert result.end == results[-1].end
    assert kit.log.buffer == other.log.buffer
    assert kit.log.write_at == other.log.write_at
    assert kit.queues["T"][1].next_offset == 10


@pytest.mark.parametrize("top_bit", [0, 1 << 31])
def test_a_batch_may_carry_checksums_if_they_are_right(kit, top_bit):
    kit.queue("T", 1)
    data = bytearray(encode_batch(ENTRIES))
    struct.pack_into(">I", data, 8, crc32(b"one") & 0x7FFFFFFF | top_bit)
    assert kit.append_entries(make_batch(entries=bytes(data))) is not None
    assert decode_record(kit.log.buffer, 0).body == b"one"
    struct.pack_into(">I", data, 8, crc32(b"two") | top_bit)
    end = kit.log.write_at
    assert kit.append_entries(make_batch(entries=bytes(data))) is None
    assert kit.log.write_at == end


def cut(size):
    return encode_batch(ENTRIES)[:size]


UNUSUAL_BATCHES = {
    "no entry": {"entries": b""},
    "cut in its first fields": {"entries": cut(12)},
    "cut in a body": {"entries": cut(22)},
    "one byte missing": {"entries": cut(-1)},
    "one byte more": {"entries": encode_batch(ENTRIES) + b"\0"},
    "an endless entry": {"entries": b"\x7f\xff\xff\xff" + cut(400)[4:]},
    "a negative size": {"entries": b"\xff\xff\xff\xff" + cut(400)[4:]},
    "an endless body": {"entries": cut(16) + b"\x7f\xff\xff\xff" + cut(400)[20:]},
    "a negative body": {"entries": cut(16) + b"\xff\xff\xff\xff" + cut(400)[20:]},
    "a body that takes its properties": {"entries": cut(16) + b"\0\0\0\x04" + cut(400)[20:]},
    "a last body too long": {"entries": encode_batch([*ENTRIES, BatchEntry(bytes(1001))])},
    "a last record too long": {
        "entries": encode_batch([*ENTRIES, BatchEntry(b"x" * 1000, b"a\x01" + b"b" * 1000)])
    },
    "properties too long when joined": {
        "entries": encode_batch([BatchEntry(b"", b"a\x01" + b"b" * 20_000)]),
        "properties": b"c\x01" + b"d" * 20_000,
    },
    "an unknown topic": {"topic": "U"},
    "an unknown queue": {"queue_id": 2},
    "a half message": {"sys_flag": 4},
    "a host of no length": {"born_host": b"short"},
    "a host of another length": {"store_host": b"short"},
    "a time beyond 64 bits": {"born_at_ms": 1 << 63},
    "flags beyond 32 bits": {"sys_flag": 1 << 32},
    "retries beyond 32 bits": {"reconsume_times": -(1 << 40)},
}


@pytest.mark.parametrize("case", UNUSUAL_BATCHES)
def test_an_unusual_batch_is_left_to_the_caller_and_nothing_is_written(kit, case):
    kit.queue("T", 1)
    assert kit.append_entries(make_batch(**UNUSUAL_BATCHES[case])) is None
    assert kit.log.write_at == 0
    assert kit.log.buffer == bytes(4096)
    assert kit.queues["T"][1].next_offset == 0


def test_a_batch_fits_as_long_as_eight_bytes_are_left(kit):
    kit.queue("T", 1)
    size = kit.append_entries(make_batch()).size_bytes
    for at, fits in ((4096 - size - 8, True), (4096 - size - 7, False)):
        kit.log.write_at = at
        assert (kit.append_entries(make_batch()) is not None) is fits
        assert kit.log.write_at == (4096 - 8 if fits else at)


def test_a_batch_waits_for_the_first_file(kit):
    kit.queue("T", 1)
    kit.log.buffer = None
    assert kit.append_entries(make_batch()) is None


# Dispatching.


def test_records_become_entries_in_their_queues(kit):
    one, two = kit.queue(queue_id=0), kit.queue("Other", 3)
    messages = [
        make_message(tag="TagA"),
        make_message("Other", 3, tag="标签"),
        make_message(),
        make_message("Other", 3, tag="polygenelubricants"),
    ]
    _, results = kit.append(messages)
    end, stop = kit.dispatch()
    assert (end, stop) == (kit.log.write_at, Stop.END)
    places = [(r.physical_offset, r.size_bytes) for r in results]
    assert entries(one) == [(*places[0], 2598919), (*places[2], 0)]
    assert entries(two) == [(*places[1], tag_hash("标签")), (*places[3], -(2**31))]
    assert one.max_physical == results[2].end
    assert kit.dirty == [one, two]
    assert one.is_dirty
    assert one.dirty_from == 0
    assert kit.arrivals == []


def test_dispatching_again_adds_nothing(kit):
    cursor = kit.queue()
    kit.append([make_message(keys="a b") for _ in range(3)])
    kit.dispatch()
    before = bytes(cursor.buffer), bytes(kit.index.buffer)
    end, stop = kit.dispatch(end=kit.log.write_at)
    # The last record may be indexed in part: the caller finds out.
    assert stop in (Stop.END, Stop.HANDOVER)
    assert (bytes(cursor.buffer), bytes(kit.index.buffer)) == before
    assert end > 0


def test_a_watched_queue_reports_arrivals(kit):
    cursor = kit.queue()
    kit.append([make_message(), make_message(tag="TagA")])
    size = kit.log.write_at
    cursor.watchers = 1
    kit.dispatch()
    assert kit.arrivals[1] == Arrival("TopicTest", 0, 1, 2598919, NOW, 105, size - 105)
    assert len(kit.arrivals) == 2


def test_half_messages_are_indexed_and_not_queued_and_rollbacks_neither(kit):
    cursor = kit.queue()
    kit.append([make_message(keys="k", sys_flag=4), make_message(keys="k", sys_flag=12)])
    assert kit.dispatch()[1] is Stop.END
    assert cursor.write_at == 0
    assert kit.index.index_count == 2


@pytest.mark.parametrize(
    ("level", "due"), [("1", 1000), ("3", 10000), ("9", 10000), ("+2", 5000), ("0", None),
                       ("", None), ("x", None), ("-1", None), ("1234567890", None), ("٣", None)],
)  # fmt: skip
def test_a_delayed_message_carries_when_it_is_due(kit, level, due):
    cursor = kit.queue("SCHEDULE_TOPIC_XXXX", 2)
    named = {"DELAY": level} if level else {}
    kit.append([make_message("SCHEDULE_TOPIC_XXXX", 2, tag="TagA", **named)])
    kit.dispatch()
    assert entries(cursor)[0][2] == (2598919 if due is None else NOW + due)


def test_a_blank_record_ends_the_walk(kit):
    kit.queue()
    kit.append([make_message()])
    at = kit.log.write_at
    kit.log.buffer[at : at + 8] = encode_blank(4096 - at)
    assert kit.dispatch(end=4096) == (at, Stop.BLANK)


def test_what_is_no_record_ends_the_walk(kit):
    kit.queue()
    kit.append([make_message(), make_message()])
    size = kit.log.write_at // 2
    assert kit.dispatch(end=4096) == (2 * size, Stop.ILLEGAL)
    kit2 = Kit(kit.source)
    kit2.queue()
    kit2.append([make_message(), make_message()])
    kit2.log.buffer[size + 28] ^= 1  # It says that it lies elsewhere.
    assert kit2.dispatch() == (size, Stop.ILLEGAL)


def test_a_record_that_is_not_all_there_ends_the_walk(kit):
    kit.queue()
    kit.append([make_message()])
    for end in range(1, kit.log.write_at):
        assert kit.dispatch(end=end) == (0, Stop.ILLEGAL)


@pytest.mark.parametrize("why", ["unknown", "gap", "unmapped", "full", "behind"])
def test_a_queue_that_needs_care_is_handed_over(kit, why):
    cursor = kit.queue()
    kit.append([make_message(), make_message(keys="k")])
    size = 105
    if why == "unknown":
        kit.queues.clear()
        assert kit.dispatch() == (0, Stop.HANDOVER)
        return
    kit.dispatch(end=size)
    if why == "gap":
        cursor.write_at, cursor.max_physical = 0, 0
    elif why == "unmapped":
        cursor.buffer = None
    elif why == "full":
        cursor.limit = 20
    else:
        cursor.write_at, cursor.max_physical = 60, 50
    index_before = kit.index.index_count
    assert kit.dispatch(at=size) == (size, Stop.HANDOVER)
    assert kit.index.index_count == index_before, "wholly, or not at all"


def test_an_index_without_room_is_handed_over_before_anything_is_written(kit):
    cursor = kit.queue()
    kit.append([make_message(keys="a b c")])
    kit.index.entry_limit = 3
    assert kit.dispatch() == (0, Stop.HANDOVER)
    assert cursor.write_at == 0
    kit.index.entry_limit = 4
    assert kit.dispatch()[1] is Stop.END


def test_without_an_index_keys_are_passed_over(kit):
    cursor = kit.queue()
    kit.append([make_message(keys="a")])
    assert kit.dispatch(index=False)[1] is Stop.END
    assert cursor.write_at == 20


def test_keys_of_any_alphabet_are_filed_by_javas_hash(kit):
    kit.queue()
    keys = ["k1", "中文", "😀smile", "ÿ", "ࠀ"]
    kit.append([make_message(keys=" ".join(keys), UNIQ_KEY="u-1")])
    assert kit.dispatch()[1] is Stop.END
    found = [
        struct.unpack_from(">i", kit.index.buffer, 40 + 16 + 20 * number)[0]
        for number in range(1, 7)
    ]
    assert found == [key_hash("TopicTest", key) for key in ["u-1", *keys]]


def test_properties_that_are_not_utf8_hash_as_the_decoder_reads_them(kit):
    cursor = kit.queue()
    message = make_message()._replace(
        properties=b"TAGS\x01\xff\xfe\x02KEYS\x01\xc0\x80 \xed\xa0\x80"
    )
    kit.append([message])
    at, stop = kit.dispatch()
    if stop is Stop.HANDOVER:
        assert at == 0  # The compiled one leaves it to the caller, who decodes it.
    else:
        assert entries(cursor)[0][2] == tag_hash("\ufffd\ufffd")


def test_of_equal_property_names_the_last_counts_and_empty_ones_do_not(kit):
    cursor = kit.queue()
    properties = b"TAGS\x01first\x02TAGS\x01TagA\x02TAGS\x01\x02\x01TAGS\x02TAGS\x02XTAGS\x01no"
    kit.append([make_message()._replace(properties=properties)])
    kit.dispatch()
    assert entries(cursor)[0][2] == 2598919


# Gathering.


def gathered(kit, **options):
    cursor = next(iter(kit.queues["TopicTest"].values()))
    return kit.gather(cursor, **options)


def test_gather_returns_records_as_they_lie(kit):
    kit.queue()
    kit.append([make_message(body=b"%d" % i) for i in range(5)])
    kit.dispatch()
    found = gathered(kit)
    assert b"".join(found.chunks) == bytes(kit.log.buffer[: kit.log.write_at])
    assert (found.message_count, found.entry_count) == (5, 5)
    assert found.byte_count == kit.log.write_at


def test_gather_filters_by_tag_hash_and_counts_what_it_passed_over(kit):
    kit.queue()
    tags = ["TagA", "TagB", None, "polygenelubricants"]
    kit.append([make_message(tag=tag, body=b"") for tag in tags])
    kit.dispatch()
    for wanted, count in ((("TagA",), 1), (("TagB", "TagA"), 2), (("polygenelubricants",), 1),
                          (("none",), 0)):  # fmt: skip
        found = gathered(kit, tags=frozenset(tag_hash(tag) for tag in wanted))
        assert (found.message_count, found.entry_count) == (count, 4)


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"count_max": 3}, 3),
        ({"memory_count_max": 2}, 2),
        ({"memory_bytes_max": 105 * 4}, 4),
        ({"memory_bytes_max": 105 * 4 - 1}, 3),
        ({"memory_bytes_max": 1}, 1),
        ({"disk_distance": 0, "disk_count_max": 2}, 2),
        ({"disk_distance": 0, "disk_bytes_max": 1}, 1),
        ({"disk_distance": 105 * 5 - 1, "disk_count_max": 1}, 1),
        ({"disk_distance": 105 * 5, "disk_count_max": 1}, 6),
    ],
)
def test_gather_respects_the_limits_but_for_the_first_record(kit, limits, count):
    kit.queue()
    kit.append([make_message() for _ in range(6)])
    kit.dispatch()
    found = gathered(kit, **limits)
    assert found.message_count == count
    assert found.entry_count == count


def test_large_records_are_views_and_small_ones_copies(kit):
    kit.log = kit.source["LogCursor"](1 << 20, 1 << 19, 1 << 19)
    kit.log.buffer = memoryview(bytearray(1 << 20))
    kit.log.buffers = [kit.log.buffer]
    kit.queue()
    bodies = [b"s", b"L" * 20_000, b"s", b"s", b"L" * 20_000]
    kit.append([make_message(body=body) for body in bodies])
    kit.dispatch()
    found = gathered(kit)
    assert b"".join(found.chunks) == bytes(kit.log.buffer[: kit.log.write_at])
    assert [type(chunk) for chunk in found.chunks if len(chunk) > 20_000] == [memoryview] * 2
    assert all(type(chunk) is bytes for chunk in found.chunks if len(chunk) < 20_000)


@pytest.mark.parametrize("why", ["unmapped", "removed", "elsewhere", "size", "ext", "magic"])
def test_gather_leaves_what_is_not_ordinary_to_the_caller(kit, why):
    cursor = kit.queue()
    kit.append([make_message()])
    kit.dispatch()
    physical, size, code = entries(cursor)[0]
    if why == "unmapped":
        kit.log.buffers = [None]
    elif why == "removed":
        kit.log.first_start = 4096
    elif why == "elsewhere":
        physical = 1
    elif why == "size":
        size += 1
    elif why == "ext":
        code = -(2**63)
    else:
        kit.log.buffer[4] ^= 1
    ENTRY.pack_into(cursor.buffer, 0, physical, size, code)
    assert gathered(kit) is None


# Scanning.


def test_scan_finds_the_end_of_sound_records(kit):
    kit.queue()
    kit.append([make_message(), make_message(keys="k")])
    assert kit.scan() == (kit.log.write_at, Stop.ILLEGAL, NOW)
    assert kit.scan(end=kit.log.write_at) == (kit.log.write_at, Stop.END, NOW)
    assert Kit(kit.source).scan() == (0, Stop.ILLEGAL, -1)


def test_scan_stops_at_a_blank_record(kit):
    at = 40
    kit.log.buffer[at : at + 8] = encode_blank(4096 - at)
    assert kit.scan(at=at) == (at, Stop.BLANK, -1)


def test_scan_checks_the_body(kit):
    kit.queue()
    kit.append([make_message(), make_message()])
    kit.log.buffer[105 + 88] ^= 1
    assert kit.scan() == (105, Stop.ILLEGAL, NOW)
    assert kit.scan(check_crc=False)[0] == 210


@pytest.mark.parametrize("at", [0, 4, 12, 20, 28, 84, 85, 93, 104])
def test_scan_notices_fields_that_cannot_be(kit, at):
    kit.queue()
    kit.append([make_message(properties="x")])
    kit.log.buffer[at] ^= 0x80
    assert kit.scan()[:2] == (0, Stop.ILLEGAL)


def test_a_lost_sector_in_the_properties_gives_itself_away(kit):
    kit.queue()
    kit.append([make_message(note="n" * 1500)])
    kit.log.buffer[512:1024] = bytes(512)
    assert kit.scan(torn_from=0)[:2] == (0, Stop.ILLEGAL)
    assert kit.scan()[0] == kit.log.write_at, "flushed records are not suspected"


def test_zeros_of_the_sender_inside_a_sector_are_left_alone(kit):
    kit.queue()
    kit.append([make_message(note="n\x00\x00n")])
    assert kit.scan(torn_from=0)[0] == kit.log.write_at


def test_every_lost_sector_of_a_record_is_noticed(kit):
    kit.queue()
    for shift, body in itertools.product((0, 77, 300, 470), (b"", b"b" * 700)):
        fresh = Kit(kit.source)
        fresh.queue()
        fresh.log.write_at = shift
        fresh.append([make_message(body=body, note="n" * 900)])
        end = fresh.log.write_at
        for sector in range(shift // 512, -(-end // 512)):
            copy = Kit(kit.source)
            copy.log.buffer[:] = fresh.log.buffer
            copy.log.buffer[max(shift, sector * 512) : min(end, sector * 512 + 512)] = bytes(
                min(end, sector * 512 + 512) - max(shift, sector * 512)
            )
            assert copy.scan(at=shift, torn_from=0)[:2] == (shift, Stop.ILLEGAL), (shift, sector)


# The index.


def test_slots_are_made_again_from_the_entries(kit):
    kit.queue()
    kit.append([make_message(keys=f"k{i} shared") for i in range(10)])
    kit.dispatch()
    expected = bytes(kit.index.buffer)
    kit.index.buffer[40:56] = b"\xff" * 16
    used, last = kit.source["restore_slots"](kit.index.buffer, 4, kit.index.index_count)
    assert (used, last) == (kit.index.slots_used, kit.index.end_physical)
    assert bytes(kit.index.buffer) == expected


def test_slots_are_not_made_from_entries_that_do_not_fit(kit):
    kit.queue()
    kit.append([make_message(keys=f"k{i}") for i in range(10)])
    kit.dispatch()
    at = 40 + 16 + 20 * 7 + 16
    kit.index.buffer[at : at + 4] = b"\0\0\0\x09"
    before = bytes(kit.index.buffer)
    assert kit.source["restore_slots"](kit.index.buffer, 4, 11) == (-1, -1)
    assert bytes(kit.index.buffer) == before
