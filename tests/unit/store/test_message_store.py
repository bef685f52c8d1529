"""The front door: put, get, query, offsets, flush errors, full disks, replicas."""

import dataclasses
import errno

import pytest

from skylark.errors import StoreClosed, StoreDamaged, StoreError, StoreLocked, StoreUnreadable
from skylark.protocol.hashes import tag_hash
from skylark.protocol.record import decode_record, decode_records
from skylark.store import (
    FlushDiskType,
    GetStatus,
    MessageFilter,
    MessageStore,
    OsFiles,
    PutStatus,
    StoreConfig,
)
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock, StoreModel, make_message, read_all

SYNC = dataclasses.replace(TINY, flush_disk_type=FlushDiskType.SYNC_FLUSH)
EVER = {"begin_ms": 0, "end_ms": 2**62}


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def files(clock):
    return SimFiles(now_ms=clock.now_ms)


@pytest.fixture
def store(files, clock):
    with MessageStore.open(TINY, files, clock) as opened:
        yield opened


def put(store, *messages):
    results = store.put(list(messages))
    assert all(result.status is PutStatus.PUT_OK for result in results)
    return results


def flush_log(store):
    work = store.begin_flush()
    work.run()
    store.end_flush(work)


# Put.


def test_all_topics_share_one_log_and_each_queue_counts_by_itself(store, files):
    results = put(
        store,
        *(make_message(f"Topic{number % 3}", number % 2, b"%d" % number) for number in range(12)),
    )
    ends = [0] + [result.end for result in results]
    assert [result.physical_offset for result in results] == ends[:-1]
    assert files.list_names("/store/consumequeue") == ["Topic0", "Topic1", "Topic2"]
    for topic in range(3):
        for queue_id in range(2):
            assert store.max_offset(f"Topic{topic}", queue_id) == 2


def test_a_record_that_does_not_fit_goes_to_the_next_file_behind_a_blank_record(store, files):
    first = put(store, make_message(body=b"a" * 2500))[0]
    second = put(store, make_message(body=b"b" * 2500))[0]
    assert second.physical_offset == 4096
    assert store.log.blank_end(first.end) == 4096
    assert len(read_all(store, "TopicTest", 0)) == 2


def test_each_message_of_a_put_is_judged_by_itself(store):
    good = make_message()
    results = store.put(
        [
            good,
            good._replace(body=b"x" * 3001),
            good,
            good._replace(properties=b"p" * 40_000),
            good._replace(topic="../../etc/passwd"),
            good._replace(topic=""),
            good._replace(queue_id=-1),
            good,
        ]
    )
    assert [result.status for result in results] == [
        PutStatus.PUT_OK,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PUT_OK,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PUT_OK,
    ]
    assert store.max_offset("TopicTest", 0) == 3


def test_a_topic_that_is_a_path_never_reaches_the_file_system(store, files):
    before = files.list_names("/store")
    for topic in ("../x", "a/b", "..", ".", "a\0b", "C:\\x", "名"):
        assert store.put([make_message()._replace(topic=topic)])[0].status != PutStatus.PUT_OK
        assert store.get(topic, 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert files.list_names("/store") == before
    assert files.list_names("/store/consumequeue") == []


def test_a_group_is_stored_whole_in_one_file(store):
    put(store, make_message(body=b"x" * 2000))
    group = [make_message(body=b"y" * 600) for _ in range(4)]
    results = store.put_group(group)
    assert [result.queue_offset for result in results] == [1, 2, 3, 4]
    assert results[0].physical_offset == 4096
    assert len({result.stored_at_ms for result in results}) == 1


def test_a_group_with_one_bad_message_is_refused_whole(store):
    group = [make_message(), make_message(body=b"x" * 3001)]
    assert {result.status for result in store.put_group(group)} == {PutStatus.MESSAGE_ILLEGAL}
    too_much = [make_message(body=b"x" * 1500) for _ in range(3)]
    assert {result.status for result in store.put_group(too_much)} == {PutStatus.MESSAGE_ILLEGAL}
    assert store.log.appended == 0
    assert store.max_offset("TopicTest", 0) == 0


# Get.


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, GetStatus.FOUND, 10),
        (7, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (2**40, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_every_offset_has_its_answer(store, offset, status, next_offset):
    put(store, *(make_message(body=b"%d" % number) for number in range(10)))
    result = store.get("TopicTest", 0, offset, 32)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 10)


def test_an_unknown_queue_is_empty_and_is_not_made_by_asking(store):
    result = store.get("Nobody", 3, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert store.max_offset("Nobody", 3) == 0
    assert store.queues.names == set()


def test_one_read_stays_within_one_queue_file(store):
    put(store, *(make_message(body=b"") for _ in range(25)))
    assert store.get("TopicTest", 0, 3, 32).message_count == 7
    assert len(read_all(store, "TopicTest", 0)) == 25


def test_a_filter_by_tag_answers_how_far_it_looked(store):
    put(store, *(make_message(tag=tag, body=b"") for tag in ("A", "B", "A", "B", "B")))
    only_a = MessageFilter(tag_hashes=frozenset([tag_hash("A")]))
    result = store.get("TopicTest", 0, 0, 32, only_a)
    assert (result.status, result.message_count, result.next_offset) == (GetStatus.FOUND, 2, 5)
    none = MessageFilter(tag_hashes=frozenset([tag_hash("C")]))
    result = store.get("TopicTest", 0, 0, 32, none)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)


def test_a_filter_may_look_at_the_record(store):
    put(store, *(make_message(body=b"%d" % number) for number in range(6)))
    even = MessageFilter(record=lambda record: int(decode_record(record).body) % 2 == 0)
    result = store.get("TopicTest", 0, 0, 32, even)
    assert [message.body for message in decode_records(result.body)] == [b"0", b"2", b"4"]
    assert result.next_offset == 6


def test_far_behind_the_end_less_is_read_and_a_replica_is_suggested(files, clock):
    config = dataclasses.replace(
        TINY, machine_memory_bytes=1000, max_transfer_count_on_message_in_disk=2
    )
    with MessageStore.open(config, files, clock) as store:
        put(store, *(make_message(body=b"") for _ in range(10)))
        far, near = store.get("TopicTest", 0, 0, 32), store.get("TopicTest", 0, 7, 32)
        assert (far.message_count, far.is_far_behind) == (2, True)
        assert (near.message_count, near.is_far_behind) == (3, False)


def test_views_survive_the_deletion_of_their_file(tmp_path, clock):
    config = dataclasses.replace(
        TINY, store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 20,
        max_message_size=1 << 19,
    )  # fmt: skip
    with MessageStore.open(config, OsFiles(), clock) as store:
        for number in range(4):
            put(store, make_message(body=bytes([number]) * (1 << 19)))
        result = store.get("TopicTest", 0, 0, 1)
        view = result.chunks[0]
        assert isinstance(view, memoryview)
        store.log.detach_first().remove()
        assert decode_record(view).body == bytes(1 << 19)
        assert store.get_by_physical_offset(0) is None


def test_records_are_read_by_physical_offset_and_nothing_else_is(store):
    first, second = put(store, make_message(body=b"one"), make_message(body=b"two"))
    assert decode_record(store.get_by_physical_offset(second.physical_offset)).body == b"two"
    for offset in (-1, 1, first.end - 1, second.end, 2**50):
        assert store.get_by_physical_offset(offset) is None
    assert store.get_by_physical_offset(0, first.size_bytes + 1) is None


# Query, time.


def test_messages_are_found_by_key_and_time(store, clock):
    for number in range(6):
        put(store, make_message(keys=f"k{number % 2} all", body=b"%d" % number))
        clock.advance_ms(10_000)
    bodies = lambda result: [decode_record(record).body for record in result.records]  # noqa: E731
    assert bodies(store.query("TopicTest", "k1", count_max=32, **EVER)) == [b"1", b"3", b"5"]
    assert bodies(store.query("TopicTest", "all", count_max=2, **EVER)) == [b"4", b"5"]
    assert bodies(store.query("Other", "k1", count_max=32, **EVER)) == []
    start = clock.now_ms() - 45_000
    found = store.query("TopicTest", "all", count_max=9, begin_ms=start, end_ms=start + 20_000)
    assert bodies(found) == [b"2", b"3"]


def test_a_key_with_the_same_hash_is_not_taken_for_another(store):
    put(store, make_message(keys="Aa", body=b"one"), make_message(keys="BB", body=b"two"))
    (record,) = store.query("TopicTest", "Aa", count_max=32, **EVER).records
    assert decode_record(record).body == b"one"


def test_offsets_are_found_by_time(store, clock):
    start = clock.now_ms()
    for _ in range(5):
        put(store, make_message())
        clock.advance_ms(1000)
    assert store.offset_by_time("TopicTest", 0, start + 2_400) == 2
    assert store.offset_by_time("TopicTest", 0, 0) == 0
    assert store.offset_by_time("TopicTest", 0, 2**60) == 4
    assert store.offset_by_time("Nobody", 0, 5) == 0
    assert store.earliest_stored_at_ms("TopicTest", 0) == start
    assert store.earliest_stored_at_ms("Nobody", 0) == -1


# Visibility and flush.


def test_with_sync_flush_nothing_is_visible_before_it_is_flushed(files, clock):
    with MessageStore.open(SYNC, files, clock) as store:
        (result,) = put(store, make_message(keys="k"))
        assert not store.is_flushed(result.end)
        assert store.max_offset("TopicTest", 0) == 0
        assert store.get("TopicTest", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.query("TopicTest", "k", count_max=1, **EVER).records == []
        assert store.get_by_physical_offset(0) is None
        work = store.begin_flush()
        put(store, make_message())
        work.run()
        store.end_flush(work)
        assert store.is_flushed(result.end)
        assert store.max_offset("TopicTest", 0) == 1, "what came after the sync began must wait"
        assert len(store.query("TopicTest", "k", count_max=1, **EVER).records) == 1


def test_arrivals_are_reported_when_they_become_visible(files, clock):
    with MessageStore.open(SYNC, files, clock) as store:
        seen = []
        store.set_on_arrivals(seen.extend)
        store.watch("TopicTest", 0)
        put(store, make_message(tag="TagA"), make_message(queue_id=1))
        assert seen == []
        flush_log(store)
        assert [(a.queue_id, a.queue_offset, a.tag_hash) for a in seen] == [(0, 0, 2598919)]
        store.unwatch("TopicTest", 0)
        put(store, make_message())
        flush_log(store)
        assert len(seen) == 1


@pytest.mark.parametrize("config", [TINY, SYNC], ids=["async", "sync"])
def test_the_first_flush_error_ends_the_store_as_a_writer(files, clock, config):
    store = MessageStore.open(config, files, clock)
    put(store, make_message(body=b"one"))
    flush_log(store)
    put(store, make_message(body=b"two"))
    files.fail("sync", "*/commitlog/*")
    with pytest.raises(StoreUnreadable):
        store.flush()
    assert isinstance(store.failure, StoreError)
    assert store.log.flushed < store.log.appended, "the flush counts for nothing"
    assert {r.status for r in store.put([make_message()] * 2)} == {PutStatus.SERVICE_NOT_AVAILABLE}
    assert store.put_group([make_message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    syncs = files.sync_count
    assert decode_record(read_all(store, "TopicTest", 0)[0]).body == b"one", "reads go on"
    store.close()
    assert files.sync_count == syncs, "a failed flush is never tried again"
    assert files.exists("/store/abort")
    with MessageStore.open(config, files.copy(), clock) as again:
        assert not again.recovery.was_clean
        assert again.is_writable


def test_a_full_disk_refuses_and_recovers_without_a_restart(files, clock):
    store = MessageStore.open(TINY, files, clock)
    put(store, make_message(body=b"x" * 2500))
    files.foreign_bytes = files.capacity_bytes
    (result,) = store.put([make_message(body=b"y" * 2500)])
    assert result.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert store.put([make_message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    assert len(read_all(store, "TopicTest", 0)) == 1
    files.foreign_bytes = 0
    store.is_disk_full = False  # What Retention.look does when there is room.
    put(store, make_message(body=b"y" * 2500))
    assert len(read_all(store, "TopicTest", 0)) == 2
    store.close()


def test_a_queue_without_room_catches_up_when_there_is(files, clock):
    with MessageStore.open(TINY, files, clock) as store:
        put(store, make_message(body=b"one"))
        files.fail("create", "*/consumequeue/Other*", error=errno.ENOSPC)
        (result,) = store.put([make_message("Other", body=b"two", keys="k")])
        assert result.status is PutStatus.PUT_OK, "it is in the log"
        assert store.is_disk_full
        assert store.max_offset("Other", 0) == 0
        store.is_disk_full = False
        put(store, make_message(body=b"three"))
        assert store.max_offset("Other", 0) == 1
        assert len(read_all(store, "TopicTest", 0)) == 2
        assert len(store.query("Other", "k", count_max=5, **EVER).records) == 1


# Life.


def test_a_store_is_open_once(store, files, clock):
    with pytest.raises(StoreLocked):
        MessageStore.open(TINY, files, clock)


def test_a_closed_store_says_so(files, clock):
    store = MessageStore.open(TINY, files, clock)
    store.close()
    store.close()
    for use in (
        lambda: store.put([make_message()]),
        lambda: store.put_group([make_message()]),
        lambda: store.get("TopicTest", 0, 0, 1),
        lambda: store.get_by_physical_offset(0),
        lambda: store.query("T", "k", count_max=1, **EVER),
        lambda: store.append_raw(0, b"x"),
    ):
        with pytest.raises(StoreClosed):
            use()


def test_a_broken_invariant_leaves_no_clean_mark(files, clock):
    store = MessageStore.open(TINY, files, clock)
    put(store, make_message())
    error = AssertionError("we are wrong")
    store.__exit__(AssertionError, error, None)
    assert files.exists("/store/abort")


def test_a_store_that_cannot_open_lets_go_of_its_lock(files, clock):
    MessageStore.open(TINY, files, clock).close()
    files.create("/store/commitlog/foreign", 10, reserve=False)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="foreign"):
            MessageStore.open(TINY, files, clock)
    files.remove("/store/commitlog/foreign")
    MessageStore.open(TINY, files, clock).close()


def test_a_clean_stop_leaves_no_file_made_ahead(files, clock):
    store = MessageStore.open(TINY, files, clock)
    put(store, make_message(body=b"x" * 2500))
    flush_log(store)
    assert len(files.list_names("/store/commitlog")) == 2
    store.close()
    assert len(files.list_names("/store/commitlog")) == 1


def test_ten_thousand_queues_open_lazily(tmp_path, clock):
    config = StoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=2000, max_hash_slot_num=10, max_index_num=100,
        mapped_regions_max=100,
    )  # fmt: skip
    files = OsFiles()
    with MessageStore.open(config, files, clock) as store:
        put(store, *(make_message(f"T{number}", body=b"%d" % number) for number in range(500)))
        assert len(store._cache) <= 100
    with MessageStore.open(config, files, clock) as store:
        for number in (0, 123, 499):
            (record,) = read_all(store, f"T{number}", 0)
            assert decode_record(record).body == b"%d" % number


def test_queue_ext_units_carry_the_filter_bitmap(files, clock):
    config = dataclasses.replace(TINY, enable_consume_queue_ext=True)
    with MessageStore.open(config, files, clock) as store:
        store.dispatcher.bitmap_of = lambda info: bytes([len(info.topic)])
        put(store, make_message(tag="TagA"), make_message(tag="TagB"))
        seen = []
        filter = MessageFilter(entry=lambda code, unit: seen.append((code, unit)) or True)
        assert store.get("TopicTest", 0, 0, 32, filter).message_count == 2
        assert [(code, unit.bitmap) for code, unit in seen] == [
            (2598919, b"\x09"),
            (2598920, b"\x09"),
        ]
        only_b = MessageFilter(tag_hashes=frozenset([2598920]))
        assert store.get("TopicTest", 0, 0, 32, only_b).message_count == 1
    with MessageStore.open(config, files, clock) as store:
        assert store.get("TopicTest", 0, 0, 32, only_b).message_count == 1


# Replicas.


def test_a_replica_that_appends_the_masters_bytes_has_the_same_queues(files, clock):
    with MessageStore.open(TINY, files, clock) as master:
        model = StoreModel()
        for number in range(20):
            model.put(master, [make_message(body=b"%d" % number * 50, keys=f"k{number % 3}")])
        replica = MessageStore.open(TINY, SimFiles(now_ms=clock.now_ms), clock)
        at = 0
        while at < master.log.appended:
            size = min(333, 4096 - at % 4096, master.log.appended - at)
            replica.append_raw(at, bytes(master.log.read(at, size)))
            at += size
        model.check(replica)
        assert len(replica.query("TopicTest", "k1", count_max=64, **EVER).records) == 7
        with pytest.raises(StoreDamaged, match="does not continue"):
            replica.append_raw(5, b"x")
        replica.close()


def test_a_replica_may_begin_in_the_middle(clock):
    master = MessageStore.open(TINY, SimFiles(), clock)
    for number in range(30):
        put(master, make_message(body=b"%d" % number * 100))
    start = 4096
    replica = MessageStore.open(TINY, SimFiles(), clock)
    at = start
    while at < master.log.appended:
        size = min(1000, 4096 - at % 4096, master.log.appended - at)
        replica.append_raw(at, bytes(master.log.read(at, size)))
        at += size
    assert replica.log.start == 4096
    first = replica.min_offset("TopicTest", 0)
    assert first > 0
    assert read_all(replica, "TopicTest", 0, first) == read_all(master, "TopicTest", 0, first)


def test_truncation_is_durable_and_nothing_comes_back(files, clock):
    store = MessageStore.open(TINY, files, clock)
    model = StoreModel()
    for number in range(24):
        model.put(store, [make_message(body=b"%d" % number * 60, keys=f"k{number % 2}")])
    cut = model.appended[10].physical_offset
    store.truncate(cut)
    model.appended = model.appended[:10]
    assert store.log.appended == cut
    model.check(store)
    for state in files.copy_states():
        with MessageStore.open(TINY, state, clock) as again:
            assert again.log.appended == cut
            model.check(again)
    model.put(store, [make_message(body=b"new", keys="k1")])
    assert model.appended[-1].queue_offset == 10
    model.check(store)
    assert len(store.query("TopicTest", "k1", count_max=64, **EVER).records) == 6


def test_a_deleted_topic_starts_at_zero_again(files, clock):
    store = MessageStore.open(TINY, files, clock)
    put(store, *(make_message("Gone", queue_id) for queue_id in (0, 1, 1)))
    assert store.drop_topic("Gone") == 2
    assert store.max_offset("Gone", 1) == 0
    assert files.list_names("/store/consumequeue/Gone") == []
    put(store, make_message("Gone", 1, b"again"))
    assert store.max_offset("Gone", 1) == 1
    store.close()
    with MessageStore.open(TINY, files, clock) as again:
        assert again.max_offset("Gone", 1) == 1


def test_a_flush_of_many_queues_opens_no_more_files_than_allowed(files, clock):
    config = dataclasses.replace(
        TINY, mapped_regions_max=16, mapped_file_size_commit_log=1 << 20, max_index_num=1_000
    )
    with MessageStore.open(config, files, clock) as store:
        for number in range(100):
            put(store, make_message(f"T{number}"))
        work = store.begin_queue_flush(thorough=True)
        assert (
            sum(hasattr(one, "buffer") for one in work.regions) <= 16 + 2
        )  # The log and the index.
        assert len(work.regions) > 100
        files.remove("/store/consumequeue/T3/0/00000000000000000000")  # As retention might.
        work.run()
        store.end_queue_flush(work)
    with MessageStore.open(config, files, clock) as store:
        assert all(store.max_offset(f"T{number}", 0) == 1 for number in range(100))
