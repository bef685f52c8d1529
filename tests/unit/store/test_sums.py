"""Checksums beside the log: what they cover, what they see, and that nothing depends on them."""

import dataclasses
import errno
import random

import pytest

from skylark.errors import StoreDamaged
from skylark.store import FlushDiskType, MessageStore, OsFiles, PutStatus
from skylark.store import sums as sums_module
from skylark.store.append import message_size
from skylark.store.retention import Retention
from skylark.store.sums import BLOCK_BYTES, ENTRIES_MAX, LogSums, pack_block, parse_block
from skylark.testing.files import SimFiles
from skylark.testing.stores import HOST_V6, TINY, HandClock, make_message, read_all

SYNC = dataclasses.replace(TINY, flush_disk_type=FlushDiskType.SYNC_FLUSH)
FIRST = "/store/commitlog/00000000000000000000"
FIRST_SUMS = "/store/sums/00000000000000000000"

TWINS = [pytest.param(sums_module.PURE, id="pure")]
if sums_module.COMPILED:
    TWINS.append(pytest.param(sums_module.COMPILED, id="compiled"))


def messages(count, seed=0, size=60):
    rng = random.Random(seed)
    return [
        make_message(
            "TopicA",
            number % 2,
            rng.randbytes(rng.randrange(size)),
            keys=f"k{number}",
            **({"born_host": HOST_V6} if number % 5 == 0 else {}),
        )
        for number in range(count)
    ]


def opened(files, now_ms=10_000_000, config=SYNC):
    return MessageStore.open(config, files, HandClock(now_ms))


def killed(count=12, *, flushed=True):
    """A store as a process leaves it that is killed with everything flushed, and its results."""
    files = SimFiles()
    store = opened(files)
    results = store.put(messages(count))
    if flushed:
        store.flush()
    files.end_process()
    return files.copy(), results


# The functions.


@pytest.fixture
def log_bytes():
    files, results = killed()
    return memoryview(bytearray(files.read(FIRST))), [result.end for result in results]


@pytest.mark.parametrize("twin", TWINS)
def test_every_whole_record_gets_a_sum_and_a_part_of_one_does_not(twin, log_bytes):
    log, ends = log_bytes
    entries, at, newest_ms = twin["sum_records"](log, 0, ends[5] + 40)
    assert at == ends[5]
    assert len(entries) == 6 * 8
    assert newest_ms == 10_000_000
    assert [int.from_bytes(entries[i : i + 4], "big") for i in range(0, 48, 8)] == ends[:6]


@pytest.mark.parametrize("twin", TWINS)
def test_damage_to_any_byte_outside_a_body_is_seen(twin, log_bytes):
    log, ends = log_bytes
    entries, _, _ = twin["sum_records"](log, 0, len(log))
    content = pack_block(0, 10_000_000, entries)
    assert twin["check_sums"](log, 0, 0, len(log), content) == (ends[-1], ends[-1], False, -1)
    start, end = ends[3], ends[4]
    body_bytes = int.from_bytes(log[start + 84 : start + 88], "big")
    for place in range(start, end):
        log[place] ^= 0x40
        position, matched, differs, newest_ms = twin["check_sums"](log, 0, 0, len(log), content)
        if start + 88 <= place < start + 88 + body_bytes:
            assert not differs, "the body has a checksum of its own"
        elif differs:
            assert (position, matched, newest_ms) == (start, start, 10_000_000)
        else:
            # Magic and size are what makes it a record at all.
            assert place < start + 8
            assert position == start
        log[place] ^= 0x40


@pytest.mark.parametrize("twin", TWINS)
def test_records_without_a_sum_are_passed_over(twin, log_bytes):
    log, ends = log_bytes
    entries, _, _ = twin["sum_records"](log, 0, len(log))
    blocks = [
        pack_block(0, 1, entries[: 3 * 8]),
        bytes(BLOCK_BYTES),
        b"x" * BLOCK_BYTES,
        pack_block(ends[5], 1, entries[6 * 8 :]),
    ]
    found = twin["check_sums"](log, 0, 0, len(log), b"".join(blocks))
    assert found == (ends[-1], ends[2], False, -1)
    log[ends[8] + 20] ^= 1
    assert twin["check_sums"](log, 0, 0, len(log), b"".join(blocks))[:3] == (ends[8], ends[2], True)


@pytest.mark.parametrize("twin", TWINS)
def test_a_piece_of_a_file_is_compared_at_its_place(twin, log_bytes):
    log, ends = log_bytes
    content = pack_block(0, 1, twin["sum_records"](log, 0, len(log))[0])
    piece = memoryview(bytes(log[ends[2] - 7 :]))
    found = twin["check_sums"](piece, ends[2] - 7, 7, ends[6] - ends[2] + 7, content)
    assert found == (ends[6] - ends[2] + 7, ends[6] - ends[2] + 7, False, -1)


def test_both_twins_say_the_same_of_anything():
    if not sums_module.COMPILED:
        pytest.skip("not compiled")
    files, results = killed(30)
    log = memoryview(bytearray(files.read(FIRST)))
    content = bytearray(files.read(FIRST_SUMS))
    rng = random.Random(4)
    for _ in range(500):
        target = rng.choice((log, content))
        place = rng.randrange(len(target))
        kept = target[place]
        target[place] = rng.randrange(256)
        at = rng.choice((0, results[0].end, rng.randrange(4096)))
        end = rng.randrange(at, 4097)
        pure, compiled = (
            (twin["sum_records"](log, at, end), twin["check_sums"](log, 0, at, end, bytes(content)))
            for twin in (sums_module.PURE, sums_module.COMPILED)
        )
        assert pure == compiled
        target[place] = kept


@pytest.mark.parametrize("twin", TWINS)
def test_a_range_outside_the_buffer_is_refused(twin):
    if twin is sums_module.PURE:
        return
    for at, end in ((-1, 5), (0, 101)):
        with pytest.raises(ValueError, match="outside"):
            twin["sum_records"](memoryview(bytes(100)), at, end)
        with pytest.raises(ValueError, match="outside"):
            twin["check_sums"](memoryview(bytes(100)), 0, at, end, b"")


def test_a_block_is_a_sector_that_knows_its_own_damage():
    block = pack_block(7, 99, b"\0\0\0\x10abcd" * ENTRIES_MAX)
    assert len(block) == 512
    found = parse_block(block, 0)
    assert found is not None
    assert (found.start, found.newest_ms, len(list(found.entries()))) == (7, 99, ENTRIES_MAX)
    for place in range(512):
        damaged = bytearray(block)
        damaged[place] ^= 1
        assert parse_block(bytes(damaged), 0) is None


# In a store.


def coverage(files, ends):
    """How many of these records have a sum on the disk, from the first on."""
    content = files.read(FIRST_SUMS) if files.exists(FIRST_SUMS) else b""
    log = memoryview(files.read(FIRST))
    found = sums_module.check_sums(log, 0, 0, len(log), content)
    assert not found.differs
    return sum(end <= found.matched_end for end in ends)


def test_sums_are_written_before_the_log_is_flushed():
    files = SimFiles()
    store = opened(files)
    ends = [result.end for result in store.put(messages(5))]
    store.begin_flush()  # It is not run: the process ends here.
    files.end_process()
    assert coverage(files.copy(), ends) == 5


@pytest.mark.parametrize("count", [1, 60, 61, 62, 130])
def test_each_record_has_its_sum_however_the_flushes_fall(count):
    files = SimFiles()
    config = dataclasses.replace(SYNC, mapped_file_size_commit_log=65536)
    store = opened(files, config=config)
    ends = []
    for number, message in enumerate(messages(count)):
        ends.append(store.put([message])[0].end)
        if number % 7 == 0:
            store.flush()
    store.close()
    log = memoryview(files.read(FIRST))
    found = sums_module.check_sums(log, 0, 0, len(log), files.read(FIRST_SUMS))
    assert found.matched_end == ends[-1]
    # Taken up where they ended, again and again.
    for again in range(3):
        with opened(files, config=config) as store:
            ends.append(store.put(messages(1, seed=again))[0].end)
    log = memoryview(files.read(FIRST))
    found = sums_module.check_sums(log, 0, 0, len(log), files.read(FIRST_SUMS))
    assert found.matched_end == ends[-1]
    assert len(files.read(FIRST_SUMS)) == -(-len(ends) // ENTRIES_MAX) * BLOCK_BYTES


def test_records_whose_sums_were_lost_are_kept_and_get_new_ones():
    files, results = killed()
    files.remove(FIRST_SUMS)
    with opened(files) as store:
        assert store.log.appended == results[-1].end
        assert store.recovery.problems == []
    assert coverage(files, [r.end for r in results]) == 12


@pytest.mark.parametrize("place", [0, 5, 9, 13, 17, 30, 100])
def test_damaged_sums_cost_nothing(place):
    files, results = killed()
    files.flip_bit(FIRST_SUMS, place, 3)
    with opened(files) as store:
        assert store.log.appended == results[-1].end
        assert store.recovery.problems == []
    assert coverage(files, [r.end for r in results]) == 12


def test_a_record_that_is_damaged_outside_its_body_is_not_served():
    files, results = killed()
    last, middle = results[-1], results[5]
    changed = files.copy()
    changed.flip_bit(FIRST, last.physical_offset + 47, 0)  # The time at which it was born.
    with opened(changed) as store:
        assert store.log.appended == last.physical_offset
        assert f"the record at {last.physical_offset} is not what its sum says" in str(
            store.recovery.problems
        )
    files.flip_bit(FIRST, middle.physical_offset + 47, 0)
    with pytest.raises(StoreDamaged, match="a record is damaged, and sound ones follow"):
        opened(files)


def test_without_sums_the_store_behaves_as_before():
    files = SimFiles()
    config = dataclasses.replace(SYNC, sums_enable=False)
    with opened(files, config=config) as store:
        store.put(messages(5))
    assert files.list_names("/store/sums") == []


def test_a_property_with_a_zero_byte_survives_a_kill_at_the_edge_of_a_sector():
    # Zeros at the edge of a sector are what a power cut leaves. With a sum it is known better.
    files = SimFiles()
    store = opened(files, config=dataclasses.replace(TINY))
    plain = make_message("TopicA", 0, b"")
    gap = 512 - message_size(plain._replace(properties=b"")) % 512
    zeros = plain._replace(properties=b"a\x01" + b"\0" * (gap + 40) + b"b")
    result = store.put([zeros])[0]
    store.begin_flush()
    files.end_process()
    with opened(files.copy(), config=TINY) as again:
        assert again.log.appended == result.end


# Another broker was there.


def write_as_apache(files, results, *, stored_at_ms):
    """Overwrite the end of the log as RocketMQ does after it has cut a torn tail."""
    foreign = SimFiles()
    store = opened(foreign, stored_at_ms, dataclasses.replace(SYNC, sums_enable=False))
    cut = 8
    store.put(messages(cut))
    theirs = store.put(messages(4, seed=9))
    content = bytes(store.log.mapped.files[0].buffer)
    at = results[cut].physical_offset
    assert theirs[0].physical_offset == at
    files.overwrite(FIRST, at, content[at:])
    return theirs


def test_what_rocketmq_wrote_over_a_torn_tail_of_ours_is_kept():
    files = SimFiles()
    store = opened(files)
    results = store.put(messages(8))
    store.flush()
    results += store.put(messages(4, seed=1))
    store.begin_flush()  # Sums of a tail that is never flushed.
    files.end_process()
    disk = files.copy()
    theirs = write_as_apache(disk, results, stored_at_ms=10_060_000)
    with opened(disk, 10_100_000) as again:
        assert again.log.appended == theirs[-1].end
        found = read_all(again, "TopicA", 0) + read_all(again, "TopicA", 1)
        assert len(found) == 12
    assert coverage(disk, [r.end for r in results[:8]] + [r.end for r in theirs]) == 12


def test_a_tail_of_ours_that_differs_from_its_sums_is_cut():
    files = SimFiles()
    store = opened(files)
    results = store.put(messages(8))
    store.flush()
    results += store.put(messages(4, seed=1))
    store.begin_flush()
    files.end_process()
    disk = files.copy()
    disk.flip_bit(FIRST, results[10].physical_offset + 47)
    with opened(disk) as again:
        assert again.log.appended == results[10].physical_offset


def test_what_rocketmq_appended_has_no_sums_and_is_kept():
    files = SimFiles()
    with opened(files) as store:
        results = store.put(messages(6))
    before = files.read(FIRST_SUMS)
    with opened(files, 10_060_000, dataclasses.replace(SYNC, sums_enable=False)) as store:
        results += store.put(messages(6, seed=2))
    assert files.read(FIRST_SUMS) == before
    with opened(files, 10_120_000) as store:
        assert store.log.appended == results[-1].end
    assert coverage(files, [r.end for r in results]) == 12


def test_sums_of_a_store_that_was_deleted_do_not_count():
    files, _ = killed()
    for name in ("checkpoint", "abort"):
        files.remove(f"/store/{name}")
    files.remove(FIRST)
    for queue_id in (0, 1):
        files.remove(f"/store/consumequeue/TopicA/{queue_id}/00000000000000000000")
        files.remove_directory(f"/store/consumequeue/TopicA/{queue_id}")
    files.remove_directory("/store/consumequeue/TopicA")
    for name in files.list_names("/store/index"):
        files.remove(f"/store/index/{name}")
    with opened(files, 20_000_000) as store:
        assert files.list_names("/store/sums") == ["index"]
        results = store.put(messages(3, seed=8))
    with opened(files, 20_000_000) as store:
        assert store.log.appended == results[-1].end


# Cuts, retention, faults.


def test_a_cut_log_has_cut_sums_whatever_a_power_cut_does():
    files = SimFiles(recording=True)
    store = opened(files)
    results = store.put(messages(10))
    store.flush()
    store.truncate(results[6].physical_offset)
    later = store.put(messages(4, seed=3, size=50))
    store.flush()
    ends = [r.end for r in results[:6]] + [r.end for r in later]
    for how, disk in files.crash_states(subsets=20):
        with opened(disk) as again:
            assert again.log.appended == ends[-1], how
        assert coverage(disk, ends) == 10, how


def test_retention_deletes_the_sums_with_the_log_file():
    files = SimFiles()
    clock = HandClock()
    config = dataclasses.replace(SYNC, file_reserved_time=1, delete_when="")
    with MessageStore.open(config, files, clock) as store:
        store.put(messages(200))
        store.flush()
        before = files.list_names("/store/sums")
        assert len(before) > 4
        clock.advance_ms(2 * 3_600_000)
        retention = Retention(store, clock)
        retention.clean_soon()
        assert retention.clean() > 1
        logs = files.list_names("/store/commitlog")
        assert set(files.list_names("/store/sums")) - {"index"} <= set(logs)
        assert len(logs) < len(before)


def test_sums_of_a_file_that_retention_deleted_in_a_crash_go_at_the_next_start():
    files, _ = killed(200)
    files.create("/store/sums/00000000000900000000", 512, reserve=False)
    with opened(files):
        assert "00000000000900000000" not in files.list_names("/store/sums")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_has_no_room_for_sums_costs_no_message(error):
    files = SimFiles()
    store = opened(files)
    files.fail("write", "*/sums/*", error=error)
    results = store.put(messages(5))
    store.flush()
    results += store.put(messages(5, seed=1))
    store.flush()
    assert all(result.status is PutStatus.PUT_OK for result in results)
    assert not files.exists(FIRST_SUMS), "half a truth is none"
    store.close()
    with opened(files) as again:
        assert again.log.appended == results[-1].end
    assert coverage(files, [r.end for r in results]) == 10


def test_a_replica_sums_records_when_they_are_whole():
    files, results = killed()
    content = files.read(FIRST)[: results[-1].end]
    replica = SimFiles()
    with opened(replica) as store:
        for at in range(0, len(content), 97):
            store.append_raw(at, content[at : at + 97])
            store.flush()
    assert coverage(replica, [r.end for r in results]) == 12


def test_sums_lie_on_a_real_disk_as_on_a_simulated_one(tmp_path):
    config = dataclasses.replace(SYNC, store_path_root_dir=str(tmp_path))
    with MessageStore.open(config, OsFiles(), HandClock(10_000_000)) as store:
        store.put(messages(12))
    files, _ = killed()
    assert (tmp_path / "sums/00000000000000000000").read_bytes() == files.read(FIRST_SUMS)


def test_a_sums_file_that_cannot_be_read_is_no_sums_file(tmp_path):
    (tmp_path / "00000000000000000000").mkdir()
    assert LogSums(OsFiles(), str(tmp_path)).read(0) == b""


# The index.


def index_name(files, which):
    return files.list_names("/store/index")[which]


def indexed(count=60):
    """A store with several full index files, after a clean stop."""
    files = SimFiles()
    with opened(files) as store:
        store.put(messages(count))
    assert len(files.list_names("/store/index")) >= 3
    assert files.list_names("/store/sums/index") == files.list_names("/store/index")
    return files


def found_keys(store, count=60):
    return [
        number
        for number in range(count)
        if store.query("TopicA", f"k{number}", count_max=8, begin_ms=0, end_ms=10**14).records
    ]


@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_index_file_that_is_damaged_anywhere_is_built_again(which):
    files = indexed()
    path = f"/store/index/{index_name(files, which)}"
    size = len(files.read(path).rstrip(b"\0"))
    rng = random.Random(which)
    for place in [*range(40), *rng.sample(range(40, size), 30)]:
        disk = files.copy()
        disk.flip_bit(path, place, rng.randrange(8))
        with opened(disk) as store:
            assert found_keys(store) == list(range(60)), place


def test_a_query_refuses_a_damaged_page_of_an_index_file_too_large_to_verify_at_a_start(
    monkeypatch,
):
    files = indexed()
    path = f"/store/index/{index_name(files, 0)}"
    with opened(files.copy()) as store:
        monkeypatch.setattr("skylark.store.key_index._VERIFIED_BYTES_MAX", 0)
        assert found_keys(store) == list(range(60))
    at = 40 + 4 * TINY.max_hash_slot_num + 20 * 3 + 5  # In the third entry's physical offset.
    files.flip_bit(path, at)
    with opened(files) as store, pytest.raises(StoreDamaged, match="skylark store rebuild"):
        found_keys(store)


def test_an_index_file_that_is_gone_is_noticed_while_its_records_are_there():
    files = indexed()
    files.remove(f"/store/index/{index_name(files, 0)}")
    with opened(files) as store:
        assert found_keys(store) == list(range(60))
        assert "is missing" in store.recovery.problems[0]


def test_damaged_sums_of_an_index_file_cost_nothing():
    files = indexed()
    for which in (0, -1):
        for place in (0, 6, 20, 30, 40, 514):
            disk = files.copy()
            path = f"/store/sums/index/{index_name(disk, which)}"
            if place < len(disk.read(path)):
                disk.flip_bit(path, place)
            with opened(disk) as store:
                assert store.recovery.problems == []
                assert found_keys(store) == list(range(60))


def test_a_disk_without_room_for_the_index_sums_goes_on():
    files = SimFiles()
    with opened(files) as store:
        files.fail("write", "*/sums/index/*", error=errno.ENOSPC, times=None)
        store.put(messages(60))
        store.flush()
        assert store.failure is None
        files.heal()
    with opened(files) as store:
        assert found_keys(store) == list(range(60))
