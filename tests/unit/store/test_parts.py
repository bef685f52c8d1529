"""The parts by themselves: mapped files, commit log, queues, ext, index, checkpoint, config."""

import dataclasses
import os

import pytest

from skylark.errors import ConfigError, CorruptRecord, StoreDamaged, StoreFull, StoreTooNew
from skylark.protocol.record import decode_dispatch, encode_record
from skylark.store import StoreConfig
from skylark.store.append import ENTRY, PutStatus, put_entry
from skylark.store.checkpoint import Checkpoint, Marks, StoreTimes
from skylark.store.commit_log import CommitLog
from skylark.store.config import parse_delay_levels
from skylark.store.consume_queue import ConsumeQueue, ConsumeQueueEntry
from skylark.store.consume_queue_ext import ConsumeQueueExt, ExtUnit, is_address
from skylark.store.key_index import IndexMark, KeyIndex
from skylark.store.mapped_file import MappedFileQueue, RegionCache
from skylark.testing.files import SimFiles
from skylark.testing.stores import HOST, TINY, make_message


@pytest.fixture
def files():
    disk = SimFiles()
    disk.make_directory("/d")
    return disk


# Mapped files.


def mapped(files, count_max=8, file_bytes=100):
    return MappedFileQueue(files, RegionCache(count_max), "/d", file_bytes)


def test_files_are_named_by_their_first_offset_in_twenty_digits(files):
    queue = mapped(files)
    queue.add(0, reserve=True)
    queue.add(100, reserve=True)
    assert files.list_names("/d") == ["00000000000000000000", "00000000000000000100"]
    again = mapped(files)
    again.load()
    assert [file.start for file in again.files] == [0, 100]
    assert (again.start, again.end) == (0, 200)


def test_an_offset_finds_its_file_without_a_search(files):
    queue = mapped(files)
    for start in range(700, 1500, 100):
        queue.add(start, reserve=False)
    assert queue.at(1234).start == 1200
    assert queue.at(700).start == 700
    assert queue.at(699) is None
    assert queue.at(1500) is None


@pytest.mark.parametrize(
    "name", ["notes.txt", "123", "00000000000000000050", "0000000000000000000x"]
)
def test_a_file_that_does_not_belong_is_named(files, name):
    files.create(f"/d/{name}", 100, reserve=False)
    with pytest.raises(StoreDamaged, match=name):
        mapped(files).load()


def test_a_missing_file_in_the_middle_is_named(files):
    for start in (0, 200):
        files.create(f"/d/{start:020d}", 100, reserve=False)
    with pytest.raises(StoreDamaged, match=r"00000000000000000100.*missing") as caught:
        mapped(files).load()
    assert "skylark store check" in caught.value.next_step


def test_regions_are_closed_when_too_many_are_open_and_come_back_when_used(files):
    queue = mapped(files, count_max=3)
    for start in range(0, 1000, 100):
        queue.add(start, reserve=False).buffer[0] = start // 100 + 1
    assert sum(file.is_open for file in queue.files) == 3
    assert files.open_regions == 3
    for number, file in enumerate(queue.files):
        assert file.buffer[0] == number + 1
    assert files.open_regions == 3


def test_a_cursor_forgets_its_buffer_when_the_region_closes(files):
    queue = mapped(files, count_max=2)

    class Cursor:
        buffer = None

    cursor = Cursor()
    first = queue.add(0, reserve=False)
    cursor.buffer, first.cursor = first.buffer, cursor
    for start in (100, 200, 300):
        queue.add(start, reserve=False).buffer[0] = 1
    assert not first.is_open
    assert cursor.buffer is None


def test_a_pinned_file_stays_open(files):
    queue = mapped(files, count_max=2)
    first = queue.add(0, reserve=False)
    first.is_pinned = True
    first.buffer[0] = 1
    for start in (100, 200, 300):
        queue.add(start, reserve=False).buffer[0] = 1
    assert first.is_open


# Commit log.


def open_log(files, **changes):
    log = CommitLog(files, dataclasses.replace(TINY, store_path_root_dir="/d", **changes))
    files.make_directory("/d/commitlog")
    log.load()
    return log


def test_a_full_disk_refuses_the_next_file_and_leaves_the_current_one_as_it_is(files):
    log = open_log(files)
    log.roll()
    log.cursor.write_at = 100
    before = bytes(log.mapped.files[0].buffer)
    files.foreign_bytes = files.capacity_bytes
    with pytest.raises(StoreFull):
        log.roll()
    assert bytes(log.mapped.files[0].buffer) == before
    assert log.appended == 100
    files.foreign_bytes = 0
    log.roll()
    assert log.appended == 4096
    assert log.blank_end(100) == 4096


def test_a_file_made_ahead_is_used_or_removed(files):
    log = open_log(files)
    log.roll()
    assert not log.wants_next_file
    log.cursor.write_at = 3000
    assert log.wants_next_file
    log.prepare_next_file()
    log.prepare_next_file()
    assert len(files.list_names("/d/commitlog")) == 2
    log.roll()
    assert len(files.list_names("/d/commitlog")) == 2
    log.cursor.write_at = 3000
    log.prepare_next_file()
    log.remove_spare()
    assert len(files.list_names("/d/commitlog")) == 2


def test_making_a_file_ahead_of_need_on_a_full_disk_is_no_error_yet(files):
    log = open_log(files)
    log.roll()
    files.foreign_bytes = files.capacity_bytes
    log.prepare_next_file()
    assert len(files.list_names("/d/commitlog")) == 1


def test_a_file_made_ahead_can_be_warmed(tmp_path):
    from skylark.store.files import OsFiles

    config = dataclasses.replace(
        TINY, store_path_root_dir=str(tmp_path), warm_maped_file_enable=True,
        mapped_file_size_commit_log=1 << 20,
    )  # fmt: skip
    os_files = OsFiles()
    os_files.make_directory(config.commit_log_directory)
    log = CommitLog(os_files, config)
    log.load()
    log.roll()
    log.prepare_next_file()
    assert os_files.list_names(config.commit_log_directory) == [
        "00000000000000000000",
        "00000000000001048576",
    ]
    assert os_files.read(log.mapped.directory + "/00000000000001048576") == bytes(1 << 20)


def test_only_whole_records_that_say_where_they_lie_can_be_read(files):
    log = open_log(files)
    log.roll()
    record = encode_record(topic="T", body=b"x" * 50, born_host=HOST, store_host=HOST,
                           stored_at_ms=77)  # fmt: skip
    log.append_raw(record)
    assert bytes(log.record(0)) == record
    assert log.stored_at_ms(0) == 77
    assert log.record(0, len(record) + 1) is None
    for offset in (-1, 1, 4, len(record), 10**9):
        assert log.record(offset) is None
    assert log.read(0, 4096) is None, "beyond the end"


def test_a_log_file_of_another_size_is_refused_by_name(files):
    files.make_directory("/d/commitlog")
    for start in (0, 4096):
        files.create(f"/d/commitlog/{start:020d}", 100, reserve=True)
    with pytest.raises(StoreDamaged, match="mappedFileSizeCommitLog"):
        open_log(files)


def test_a_short_last_file_is_extended(files):
    files.make_directory("/d/commitlog")
    files.create("/d/commitlog/00000000000000000000", 100, reserve=True)
    log = open_log(files)
    assert files.size_of("/d/commitlog/00000000000000000000") == 4096
    assert len(log.mapped) == 1


def test_giving_up_a_tail_zeroes_it_durably(files):
    log = open_log(files)
    log.roll()
    log.append_raw(b"x" * 500)
    log.roll()
    log.append_raw(b"y" * 500)
    log.set_end(300, flushed=300)
    for state in files.copy_states():
        assert state.list_names("/d/commitlog") == ["00000000000000000000"]
        content = state.read("/d/commitlog/00000000000000000000")
        assert content[300:] == bytes(4096 - 300)
    assert log.appended == 300


def test_the_transient_pool_shows_nothing_before_it_is_committed(files):
    log = open_log(files, transient_store_pool_enable=True, transient_store_pool_size=2)
    log.roll()
    assert log.is_staged
    log.append_raw(b"x" * 100)
    assert (log.appended, log.committed) == (100, 0)
    assert log.read(0, 100) is None
    assert bytes(log.mapped.files[0].buffer[:100]) == bytes(100)
    assert log.commit() == 100
    assert bytes(log.read(0, 100)) == b"x" * 100
    for _ in range(4):  # More files than buffers in the pool.
        log.roll()
        log.append_raw(b"z" * 50)
    log.commit()
    assert bytes(log.read(4 * 4096, 50)) == b"z" * 50


# Consume queue.


def open_queue(files, file_bytes=100, fill=0, first=0, step=100):
    queue = ConsumeQueue(files, RegionCache(8), "/d", "T", 0, file_bytes)
    queue.load()
    for number in range(first, first + fill):
        queue.make_room(number)
        put_entry(queue.cursor, number * step, 91, 0, [])
    return queue


def reopened(files, **options):
    queue = ConsumeQueue(files, RegionCache(8), "/d", "T", 0, 100, **options)
    queue.load()
    return queue


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 13, 15])
def test_the_end_is_found_again(files, count):
    open_queue(files, fill=count)
    queue = reopened(files)
    queue.find_end()
    assert queue.max_offset == count
    assert queue.cursor.max_physical == ((count - 1) * 100 + 91 if count else 0)
    queue = reopened(files)
    queue.find_end_below(10**9)
    assert queue.max_offset == count


def test_after_a_crash_entries_beyond_the_known_offset_are_dropped(files):
    for directory in open_queue(files, fill=13).unsynced_directories():
        files.sync_directory(directory)
    queue = reopened(files)
    queue.find_end_below(700)
    assert queue.max_offset == 7
    assert files.list_names("/d/T/0") == ["00000000000000000000", "00000000000000000100"]
    # The caller syncs it with all others, before a new checkpoint vouches for it.
    assert queue.was_cut
    queue.cursor.dirty_from = queue.cursor.write_at
    for region in queue.dirty_regions():
        region.sync()
    for state in files.copy_states():
        content = state.read("/d/T/0/00000000000000000100")
        assert content[40:] == bytes(60)


def test_an_entry_is_found_by_its_number(files):
    queue = open_queue(files, fill=12)
    for number in (0, 4, 5, 11):
        assert queue.entry(number) == ConsumeQueueEntry(number * 100, 91, 0)
    assert queue.entry(12) is None
    assert queue.entry(-1) is None


def test_a_damaged_entry_is_not_decoded():
    with pytest.raises(CorruptRecord):
        ConsumeQueueEntry.decode(ENTRY.pack(-1, 91, 0), 0)
    with pytest.raises(CorruptRecord):
        ConsumeQueueEntry.decode(ENTRY.pack(1, -91, 0), 0)
    assert ConsumeQueueEntry.decode(bytes(20), 0) is None
    assert ConsumeQueueEntry.decode(ENTRY.pack(0, 2**31 - 1, 0), 0) is None


def test_a_gap_is_filled_so_that_offsets_stay_true(files):
    queue = open_queue(files, fill=3)
    queue.make_room(12)
    put_entry(queue.cursor, 5000, 91, 0, [])
    assert queue.max_offset == 13
    assert queue.entry(12).physical_offset == 5000
    assert queue.entry(7) is None


def test_an_absurd_gap_is_damage_and_not_filled(files):
    queue = open_queue(files, fill=3)
    with pytest.raises(StoreDamaged, match="queue offset"):
        queue.make_room(10**9)


@pytest.mark.parametrize(
    ("time_ms", "offset"),
    [(0, 0), (1000, 0), (1400, 0), (1500, 0), (1501, 1), (2000, 1), (9_000, 4), (3000, 2)],
)
def test_offset_by_time_takes_the_nearest_the_older_on_a_tie(files, time_ms, offset):
    queue = open_queue(files, fill=5)
    times = {number * 100: 1000 * (number + 1) for number in range(5)}
    assert queue.offset_by_time(time_ms, lambda physical, _: times[physical]) == offset


def test_offset_by_time_passes_over_what_the_log_has_dropped(files):
    queue = open_queue(files, fill=10)
    found = queue.offset_by_time(0, lambda physical, _: -1 if physical < 600 else physical)
    assert found == 6
    assert queue.offset_by_time(0, lambda physical, _: -1) == 0


def test_retention_drops_leading_files_and_moves_the_minimum(files):
    queue = open_queue(files, fill=13)
    assert queue.remove_before(650) == 1
    assert queue.min_offset == 7
    assert files.list_names("/d/T/0")[0] == "00000000000000000100"
    assert queue.remove_before(10**6) == 1, "the last file stays"
    assert queue.min_offset == queue.max_offset == 13


def test_blocks_are_reserved_before_entries_are_written(files):
    import errno

    files.fail("reserve", "*/T/*", error=errno.ENOSPC)
    queue = ConsumeQueue(files, RegionCache(8), "/d", "T", 0, 100)
    with pytest.raises(StoreFull):
        queue.make_room(0)
    queue.make_room(0)
    put_entry(queue.cursor, 0, 91, 0, [])
    assert queue.max_offset == 1


# Ext.


def test_ext_units_roll_to_the_next_file_and_are_found_again(files):
    ext = ConsumeQueueExt(files, RegionCache(8), "/d", "T", 0, 100)
    units = [ExtUnit(number, 1000 + number, bytes([number]) * number) for number in range(12)]
    addresses = [ext.put(unit) for unit in units]
    assert len(files.list_names("/d/T/0")) > 2
    for at in (ext, ConsumeQueueExt(files, RegionCache(8), "/d", "T", 0, 100)):
        if at is not ext:
            at.load()
            assert at.write_at == ext.write_at
        assert [at.get(address) for address in addresses] == units
    assert ext.get(addresses[-1] + 1) is None
    assert ext.get(5) is None


def test_a_unit_that_is_too_long_has_no_address(files):
    ext = ConsumeQueueExt(files, RegionCache(8), "/d", "T", 0, 100)
    assert ext.put(ExtUnit(1, 2, bytes(80))) is None
    assert ext.put(ExtUnit(1, 2, bytes(76))) is not None


def test_a_hash_is_never_taken_for_an_address():
    assert not is_address(-(2**31))
    assert not is_address(2**31 - 1)
    assert is_address(-(2**31) - 1)
    assert is_address(-(2**63))


def test_ext_units_can_be_cut_off(files):
    ext = ConsumeQueueExt(files, RegionCache(8), "/d", "T", 0, 100)
    addresses = [ext.put(ExtUnit(number, 1, b"")) for number in range(8)]
    ext.truncate(addresses[5])
    assert ext.get(addresses[4]) == ExtUnit(4, 1, b"")
    assert ext.get(addresses[5]) is None
    assert ext.put(ExtUnit(9, 9, b"")) == addresses[5]


# Index.


def open_index(files, slots=4, entries=8, **options):
    index = KeyIndex(files, RegionCache(8), "/d/i", slot_count=slots, entry_max=entries, **options)
    index.load()
    return index


def info(number, keys, stored_at_ms=1_000_000, unique=None, topic="T"):
    named = {"UNIQ_KEY": unique} if unique else {}
    message = make_message(topic, keys=keys, **named)
    record = encode_record(
        topic=topic, body=b"", properties=message.properties, born_host=HOST, store_host=HOST,
        physical_offset=number, stored_at_ms=stored_at_ms,
    )  # fmt: skip
    return decode_dispatch(record)


def query(index, key, count_max=32, begin_ms=0, end_ms=2**60, topic="T"):
    found = index.query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
    return [match.physical_offset for match in found]


def test_keys_are_found_newest_first_over_several_files(files):
    index = open_index(files)
    for number in range(20):
        index.put(info(number * 100, f"k{number % 3}"), now_ms=1_000_000)
    assert len(index.index_files) == 3
    assert query(index, "k1") == [1900, 1600, 1300, 1000, 700, 400, 100]
    assert query(index, "k1", count_max=2) == [1900, 1600]
    assert query(index, "k1", topic="Other") == []
    again = open_index(files)
    assert query(again, "k1") == query(index, "k1")
    assert again.mark() == index.mark()


def test_a_message_is_found_by_each_of_its_keys_and_by_its_unique_key(files):
    index = open_index(files, entries=100)
    index.put(info(500, "a  b", unique="u-1"), now_ms=1)
    for key in ("a", "b", "u-1"):
        assert query(index, key) == [500]
    assert index.cursor.index_count == 4


def test_keys_of_one_record_may_lie_in_two_files(files):
    index = open_index(files, entries=4)
    index.put(info(1, "a b"), now_ms=1)
    index.put(info(2, "c d e"), now_ms=1)
    assert [index.header(file).index_count for file in index.index_files] == [4, 3]
    assert query(index, "c") == [2]
    assert query(index, "e") == [2]
    index.put(info(2, "c d e"), now_ms=1)
    assert query(index, "c") == [2], "asked again, nothing is added"


def test_what_is_missing_of_a_records_keys_is_added(files):
    index = open_index(files, entries=4)
    index.put(info(1, "a b"), now_ms=1)
    index.put(info(2, "c"), now_ms=1)
    index.put(info(2, "c d"), now_ms=1)
    assert query(index, "d") == [2]
    assert query(index, "c") == [2]


def test_times_are_kept_in_seconds_and_ranges_are_respected(files):
    index = open_index(files, entries=100)
    for number in range(10):
        index.put(info(number, "k", stored_at_ms=1_000_000 + 10_000 * number), now_ms=1)
    assert query(index, "k", begin_ms=1_030_000, end_ms=1_050_000) == [5, 4, 3]
    assert query(index, "k", begin_ms=2_000_000) == []
    assert query(index, "k", end_ms=999_999) == []


def test_the_first_entry_of_a_later_file_is_found_after_a_long_pause(files):
    """RocketMQ stores its seconds since the end of the file before, then moves the begin."""
    index = open_index(files, entries=3)
    for number in range(2):
        index.put(info(number, "k", stored_at_ms=1_000_000), now_ms=1)
    index.put(info(2, "k", stored_at_ms=9_000_000), now_ms=1)
    assert query(index, "k", begin_ms=8_000_000, end_ms=9_500_000) == [2]


def test_different_keys_of_one_slot_are_told_apart_by_their_hash(files):
    index = open_index(files, slots=1, entries=100)
    for number in range(30):
        index.put(info(number, f"k{number}"), now_ms=1)
    assert query(index, "k7") == [7]


def test_a_chain_that_loops_ends(files):
    index = open_index(files, slots=1, entries=10)
    for number in range(5):
        index.put(info(number, "k"), now_ms=1)
    buffer = index.index_files[0].buffer
    at = 40 + 4 + 20 * 3 + 16
    buffer[at : at + 4] = (3).to_bytes(4, "big")
    assert query(index, "k") == [4, 3, 2]


def test_a_walk_is_bounded(files):
    index = open_index(files, slots=1, entries=1000, walk_max=10)
    for number in range(100):
        index.put(info(number, "k" if number < 50 else "other"), now_ms=1)
    assert query(index, "k") == []


def test_a_file_is_named_by_the_time_of_its_creation(files):
    import time

    index = open_index(files, entries=2)
    now = 1_767_225_600_123
    for number in range(3):
        index.put(info(number, "k"), now_ms=now)
    names = files.list_names("/d/i")
    assert names[0] == time.strftime("%Y%m%d%H%M%S", time.localtime(now // 1000)) + "123"
    assert [int(name) - int(names[0]) for name in names] == [0, 1, 2], "one each millisecond"


def test_an_index_file_of_another_geometry_is_refused_by_name(files):
    open_index(files).put(info(1, "k"), now_ms=1)
    with pytest.raises(StoreDamaged, match="maxHashSlotNum"):
        open_index(files, slots=5)


def test_foreign_files_beside_the_index_are_passed_over(files):
    open_index(files).put(info(1, "k"), now_ms=1)
    files.create("/d/i/notes.txt", 5, reserve=False)
    assert len(open_index(files).index_files) == 1


def test_after_a_crash_the_index_is_what_its_mark_says(files):
    index = open_index(files, entries=50)
    for number in range(5):
        index.put(info(number, f"k{number}"), now_ms=1)
    mark, expected = index.mark(), bytes(index.index_files[0].buffer)
    for number in range(5, 9):
        index.put(info(number, "k1"), now_ms=1)
    again = open_index(files, entries=50)
    again.restore(mark, 0)
    assert bytes(again.index_files[0].buffer) == expected
    assert again.mark() == mark


def test_without_a_mark_only_files_that_the_checkpoint_vouches_for_are_kept(files):
    index = open_index(files, entries=4)
    for number in range(8):
        index.put(info(number, "k", stored_at_ms=1000 * (number + 1)), now_ms=1)
    again = open_index(files, entries=4)
    again.restore(None, 3000)
    assert [again.header(file).end_ms for file in again.index_files] == [3000]
    assert again.resume_at == 2


def test_truncation_forgets_later_records(files):
    index = open_index(files, entries=4)
    for number in range(8):
        index.put(info(number, f"k{number}", stored_at_ms=1000 + number), now_ms=1)
    fresh = KeyIndex(files, RegionCache(8), "/d/j", slot_count=4, entry_max=4)
    for number in range(5):
        fresh.put(info(number, f"k{number}", stored_at_ms=1000 + number), now_ms=1)
    index.truncate(5, lambda physical: 1000 + physical)
    assert query(index, "k5") == []
    assert [bytes(f.buffer) for f in index.index_files] == [
        bytes(f.buffer) for f in fresh.index_files
    ]


def test_a_damaged_file_is_noticed(files):
    index = open_index(files, entries=50)
    for number in range(20):
        index.put(info(number, f"k{number}"), now_ms=1)
    assert index.damaged_file() is None
    buffer = index.index_files[0].buffer
    for at in (32, 36, 40, 40 + 16 + 25, 40 + 16 + 20 * 20):
        buffer[at] ^= 0xFF
        assert index.damaged_file() is index.index_files[0]
        buffer[at] ^= 0xFF
    assert index.damaged_file() is None


# Checkpoint.


MARKS = Marks(
    log_flushed=5000, queues_flushed=4000, index=IndexMark(7, 8, 9, 10), queue_count=3,
    is_clean=True,
)  # fmt: skip


TIMES = StoreTimes(30_000, 20_000, 10_000)


def saved(files, marks=MARKS, times=TIMES):
    checkpoint = Checkpoint(files, "/d/checkpoint")
    checkpoint.load()
    checkpoint.open_for_writing()
    checkpoint.save(times, marks)
    return checkpoint


def loaded(files):
    checkpoint = Checkpoint(files, "/d/checkpoint")
    checkpoint.load()
    return checkpoint


def test_a_checkpoint_is_read_as_it_was_written(files):
    saved(files)
    checkpoint = loaded(files)
    assert checkpoint.marks == MARKS
    assert checkpoint.times == StoreTimes(30_000, 20_000, 10_000)
    assert checkpoint.times.trusted_ms == 17_000
    assert (checkpoint.log_flushed, checkpoint.queues_flushed) == (5000, 4000)


def test_a_missing_or_short_checkpoint_knows_nothing(files):
    assert loaded(files).marks is None
    saved(files)
    files.truncate("/d/checkpoint", 4000)
    checkpoint = loaded(files)
    assert checkpoint.marks is None
    assert checkpoint.times == StoreTimes()
    saved(files)
    assert files.size_of("/d/checkpoint") == 4096


def test_a_torn_copy_costs_only_itself(files):
    saved(files)
    saved(files, dataclasses.replace(MARKS, log_flushed=6000))
    newest = 512 if loaded(files)._sequence % 2 == 0 else 1024
    files.flip_bit("/d/checkpoint", newest + 30)
    assert loaded(files).marks.log_flushed == 5000
    files.flip_bit("/d/checkpoint", (1536 - newest) + 30)
    assert loaded(files).marks is None


def test_marks_are_void_when_another_program_has_written_since(files):
    saved(files)
    files.overwrite("/d/checkpoint", 0, (99_999).to_bytes(8, "big"))
    checkpoint = loaded(files)
    assert checkpoint.marks is None
    assert checkpoint.times.log_ms == 99_999


def test_the_hint_survives_the_process_and_a_torn_one_is_ignored(files):
    checkpoint = saved(files)
    checkpoint.note_flushed(7777)
    assert loaded(files).log_flushed == 7777
    files.flip_bit("/d/checkpoint", 1540)
    assert loaded(files).log_flushed == 5000


def test_a_store_of_a_newer_version_is_refused(files):
    import zlib

    saved(files)
    content = bytearray(files.read("/d/checkpoint"))
    for place in (512, 1024):
        if content[place : place + 8] == b"SKYLARK1":
            content[place + 8 : place + 12] = (2).to_bytes(4, "big")
            covered = content[place + 8 : place + 12] + content[place + 16 : place + 104]
            content[place + 12 : place + 16] = zlib.crc32(covered).to_bytes(4, "big")
    files.overwrite("/d/checkpoint", 0, bytes(content))
    with pytest.raises(StoreTooNew, match="version 2"):
        loaded(files)


# Config.


def test_the_defaults_are_rocketmqs():
    config = StoreConfig()
    assert config.store_path_root_dir == os.path.expanduser("~/store")
    assert config.commit_log_directory == os.path.expanduser("~/store/commitlog")
    assert config.mapped_file_size_commit_log == 1_073_741_824
    assert config.consume_queue_file_bytes == 6_000_000
    assert 40 + 4 * config.max_hash_slot_num + 20 * config.max_index_num == 420_000_040
    assert config.file_reserved_time == 72
    assert config.delete_hours == {4}
    assert len(config.delay_levels_ms) == 18
    assert config.delay_levels_ms[0] == 1_000
    assert config.delay_levels_ms[-1] == 7_200_000


def test_queue_files_hold_whole_entries():
    assert StoreConfig(mapped_file_size_consume_queue=101).consume_queue_file_bytes == 120


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"mapped_file_size_commit_log": 10}, "mappedFileSizeCommitLog"),
        ({"max_index_num": 1}, "maxIndexNum"),
        ({"delete_when": "25"}, "deleteWhen"),
        ({"delete_when": "x"}, "deleteWhen"),
        ({"message_delay_level": "1x"}, "messageDelayLevel"),
        ({"message_delay_level": " "}, "messageDelayLevel"),
        ({"store_path_commit_log": "/a,/b"}, "storePathCommitLog"),
        ({"disk_max_used_space_ratio": 0}, "diskMaxUsedSpaceRatio"),
    ],
)
def test_a_setting_that_cannot_work_is_named(changes, names):
    with pytest.raises(ConfigError, match=names):
        StoreConfig(**changes)


def test_delay_levels_have_units():
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)


def test_statuses_have_the_numbers_of_rocketmq():
    assert PutStatus.PUT_OK == 0
