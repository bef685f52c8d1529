"""The simulated disk forgets what it may forget, keeps what it must keep, and can be replayed."""

import errno
import random

import pytest

from skylark.errors import StoreFull, StoreUnreadable
from skylark.testing.files import SimFiles

PAGE = 512


def make(size=4 * PAGE, **options):
    files = SimFiles(**options)
    files.make_directory("/d")
    files.create("/d/a", size, reserve=True)
    return files, files.map("/d/a", size)


def test_synced_bytes_survive_every_crash():
    files, region = make()
    region.buffer[0:5] = b"hello"
    region.sync()
    for seed in range(50):
        assert files.crash(random.Random(seed)).read("/d/a")[:5] == b"hello"
    for _, after in files.crash_states():
        assert after.read("/d/a")[:5] == b"hello"


def test_every_subset_of_unsynced_pages_can_be_lost():
    files, region = make()
    for page in range(3):
        region.buffer[page * PAGE] = 1
    seen = set()
    for seed in range(200):
        content = files.crash(random.Random(seed)).read("/d/a")
        seen.add(tuple(content[page * PAGE] for page in range(3)))
    assert len(seen) == 8


def test_a_page_may_come_back_as_it_was_between_two_writes():
    files, region = make()
    region.buffer[0] = 1
    files.observe()
    region.buffer[0] = 2
    seen = {files.crash(random.Random(seed)).read("/d/a")[0] for seed in range(50)}
    assert seen == {0, 1, 2}


def test_a_torn_page_is_a_mix_cut_between_sectors():
    files = SimFiles(page_bytes=4096)
    files.make_directory("/d")
    files.create("/d/a", 4096, reserve=True)
    files.map("/d/a", 4096).buffer[:] = b"x" * 4096
    states = dict(files.crash_states(tears=3))
    torn = [state.read("/d/a") for name, state in states.items() if "torn" in name]
    assert len(torn) == 3
    for content in torn:
        cut = content.count(b"x")
        assert content == b"x" * cut + bytes(4096 - cut)
        assert cut % 512 == 0
        assert 0 < cut < 4096


def test_names_without_a_directory_sync_may_be_lost_in_order():
    files, _ = make()
    files.create("/d/b", 10, reserve=False)
    files.create("/d/c", 10, reserve=False)
    seen = {tuple(files.crash(random.Random(seed)).list_names("/d")) for seed in range(100)}
    assert seen == {("a",), ("a", "b"), ("a", "b", "c")}
    files.sync_directory("/d")
    assert all(
        files.crash(random.Random(seed)).list_names("/d") == ["a", "b", "c"] for seed in range(20)
    )


def test_a_removed_file_may_come_back_and_a_rename_is_old_or_new():
    files, region = make()
    region.buffer[0:3] = b"old"
    region.sync()
    files.create("/d/new", 4 * PAGE, reserve=True)
    fresh = files.map("/d/new", 4 * PAGE)
    fresh.buffer[0:3] = b"new"
    fresh.sync()
    files.rename("/d/new", "/d/a")
    seen = {files.crash(random.Random(seed)).read("/d/a")[:3] for seed in range(50)}
    assert seen == {b"old", b"new"}
    files.sync_directory("/d")
    files.remove("/d/a")
    assert {files.crash(random.Random(s)).exists("/d/a") for s in range(50)} == {True, False}


def test_a_file_never_synced_may_come_back_empty():
    files, _ = make()
    files.create("/d/b", 100, reserve=False)
    files.sync_directory("/d")
    sizes = {files.crash(random.Random(seed)).size_of("/d/b") for seed in range(50)}
    assert sizes == {0, 100}


def test_replace_is_atomic_in_every_crash_state():
    files = SimFiles()
    files.make_directory("/d")
    files.replace("/d/t", b"one")
    states = []
    files.on_change = lambda _: states.extend(files.copy_states())
    files.replace("/d/t", b"two")
    assert len(states) > 20
    contents = {state.read("/d/t") for state in states}
    assert contents == {b"one", b"two"}


def test_a_killed_process_loses_nothing_that_was_written():
    files, region = make()
    region.buffer[0:5] = b"hello"
    files.create("/d/b", 1, reserve=False)
    after = files.kill()
    assert after.read("/d/a")[:5] == b"hello"
    assert after.list_names("/d") == ["a", "b"]


def test_faults_hit_the_operation_and_path_they_name():
    files, region = make()
    files.fail("sync", "/d/a", skip=1, times=1)
    region.sync()
    with pytest.raises(StoreUnreadable, match="Input/output error"):
        region.sync()
    region.sync()
    files.fail("sync", "*/a", times=None)
    for _ in range(3):
        with pytest.raises(StoreUnreadable):
            region.sync()
    files.heal()
    region.sync()
    files.fail("reserve", error=errno.ENOSPC)
    with pytest.raises(StoreFull):
        region.reserve(10)


def test_a_failed_sync_makes_nothing_durable():
    files, region = make()
    region.buffer[0] = 1
    files.fail("sync", "/d/a")
    with pytest.raises(StoreUnreadable):
        region.sync()
    assert {files.crash(random.Random(seed)).read("/d/a")[0] for seed in range(50)} == {0, 1}


def test_a_full_disk_refuses_a_reserved_file_and_takes_it_when_there_is_room():
    files = SimFiles(capacity_bytes=10_000)
    files.make_directory("/d")
    files.foreign_bytes = 9_000
    with pytest.raises(StoreFull):
        files.create("/d/a", 2000, reserve=True)
    assert not files.exists("/d/a")
    files.foreign_bytes = 0
    files.create("/d/a", 2000, reserve=True)
    assert files.disk_space("/d").free_bytes == 8000


def test_a_flipped_bit_is_on_the_medium():
    files, region = make()
    region.buffer[0:5] = b"hello"
    region.sync()
    files.flip_bit("/d/a", 0, 1)
    assert files.crash(random.Random(0)).read("/d/a")[:5] == b"jello"


def test_a_trace_replays_to_the_same_disk_at_every_step():
    files, region = make(recording=True)
    steps = []
    for number in range(6):
        region.buffer[number * 300] = number + 1
        if number % 2:
            region.sync()
        files.create(f"/d/f{number}", 10, reserve=False)
        files.observe()
        steps.append((len(files.trace), files.copy()))
    for count, expected in steps:
        replayed = SimFiles.replay(files.trace[:count])
        assert replayed.list_names("/d") == expected.list_names("/d")
        assert replayed.read("/d/a") == expected.read("/d/a")
    final = SimFiles.replay(files.trace)
    for seed in range(20):
        one, other = files.crash(random.Random(seed)), final.crash(random.Random(seed))
        assert one.read("/d/a") == other.read("/d/a")


def test_crash_states_have_the_kinds_that_a_campaign_wants():
    files, region = make()
    region.buffer[0] = 1
    region.buffer[PAGE] = 1
    files.create("/d/b", 1, reserve=False)
    names = [name for name, _ in files.crash_states(subsets=4)]
    assert names[:3] == ["all persisted", "all unsynced lost", "pages lost, names kept"]
    assert sum("lost" in name and "page" in name for name in names) >= 3
    assert any(name.startswith("names of /d") for name in names)
    assert sum(name.startswith("random subset") for name in names) == 4
