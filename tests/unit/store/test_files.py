"""One contract, two disks: whatever holds for OsFiles holds for SimFiles."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from skylark.errors import StoreFull, StoreLocked, StoreUnreadable
from skylark.store.files import DiskSpace, OsFiles, is_zero, store_error
from skylark.testing.files import SimFiles


@pytest.fixture(params=["os", "sim"])
def disk(request, tmp_path):
    """A disk and a directory on it."""
    if request.param == "os":
        return OsFiles(), str(tmp_path)
    files = SimFiles(now_ms=lambda: 1_767_225_600_000)
    files.make_directory("/data")
    return files, "/data"


@pytest.mark.parametrize("reserve", [True, False])
def test_a_created_file_is_zeros_of_the_size_asked_for(disk, reserve):
    files, root = disk
    files.make_directory(f"{root}/log")
    files.create(f"{root}/log/a", 5000, reserve=reserve)
    assert files.size_of(f"{root}/log/a") == 5000
    assert files.read(f"{root}/log/a") == bytes(5000)
    assert files.list_names(f"{root}/log") == ["a"]
    assert files.list_names(root) == ["log"], "no draft is left behind"


def test_a_name_is_created_once(disk):
    files, root = disk
    files.create(f"{root}/a", 10, reserve=False)
    with pytest.raises(StoreUnreadable, match="exists"):
        files.create(f"{root}/a", 10, reserve=False)


def test_what_is_written_to_a_region_is_read_from_the_file(disk):
    files, root = disk
    files.create(f"{root}/a", 4096, reserve=False)
    region = files.map(f"{root}/a", 4096)
    region.reserve(4096)
    region.buffer[100:105] = b"hello"
    region.sync()
    assert files.read(f"{root}/a")[98:108] == b"\0\0hello\0\0\0"
    again = files.map(f"{root}/a", 4096)
    assert bytes(again.buffer[100:105]) == b"hello"


def test_a_file_of_another_size_is_not_mapped(disk):
    files, root = disk
    files.create(f"{root}/a", 100, reserve=False)
    with pytest.raises(StoreUnreadable, match="is 100 bytes long, expected 200") as caught:
        files.map(f"{root}/a", 200)
    assert caught.value.path == f"{root}/a"


def test_a_missing_file_is_a_named_error(disk):
    files, root = disk
    for act in (
        lambda: files.map(f"{root}/none", 10),
        lambda: files.read(f"{root}/none"),
        lambda: files.size_of(f"{root}/none"),
        lambda: files.modified_ms(f"{root}/none"),
        lambda: files.rename(f"{root}/none", f"{root}/b"),
    ):
        with pytest.raises(StoreUnreadable, match="none"):
            act()


def test_a_read_only_region_cannot_be_written(disk):
    files, root = disk
    files.create(f"{root}/a", 10, reserve=False)
    region = files.map(f"{root}/a", 10, writable=False)
    with pytest.raises(TypeError):
        region.buffer[0] = 1


def test_a_view_outlives_region_and_file(disk):
    files, root = disk
    files.create(f"{root}/a", 4096, reserve=False)
    region = files.map(f"{root}/a", 4096)
    region.reserve(4096)
    region.buffer[0:5] = b"hello"
    view = region.buffer[0:5]
    files.remove(f"{root}/a")
    del region
    assert bytes(view) == b"hello"
    assert not files.exists(f"{root}/a")


def test_zero_clears_a_range_and_nothing_else(disk):
    files, root = disk
    files.create(f"{root}/a", 20_000, reserve=False)
    region = files.map(f"{root}/a", 20_000)
    region.reserve(20_000)
    region.buffer[:] = b"x" * 20_000
    region.zero(5, 19_990)
    assert files.read(f"{root}/a") == b"x" * 5 + bytes(19_985) + b"x" * 10
    assert is_zero(region, 5, 19_990)
    assert not is_zero(region, 4, 19_990)
    assert not is_zero(region, 5, 19_991)


def test_extend_adds_zeros_and_never_cuts(disk):
    files, root = disk
    files.replace(f"{root}/a", b"abc")
    files.extend(f"{root}/a", 10)
    assert files.read(f"{root}/a") == b"abc" + bytes(7)
    files.extend(f"{root}/a", 5)
    assert files.size_of(f"{root}/a") == 10


def test_replace_keeps_the_content_before_as_a_backup(disk):
    files, root = disk
    files.replace(f"{root}/t.json", b"one")
    assert files.list_names(root) == ["t.json"]
    files.replace(f"{root}/t.json", b"two")
    assert files.read(f"{root}/t.json") == b"two"
    assert files.read(f"{root}/t.json.bak") == b"one"
    assert files.list_names(root) == ["t.json", "t.json.bak"]


def test_removing_what_is_not_there_is_fine(disk):
    files, root = disk
    files.remove(f"{root}/none")
    files.remove_directory(f"{root}/none")
    assert files.list_names(f"{root}/none") == []


def test_directories_are_made_with_their_parents_and_removed_when_empty(disk):
    files, root = disk
    files.make_directory(f"{root}/a/b/c")
    files.make_directory(f"{root}/a/b/c")
    files.create(f"{root}/a/b/c/f", 1, reserve=False)
    with pytest.raises(StoreUnreadable):
        files.remove_directory(f"{root}/a/b/c")
    files.remove(f"{root}/a/b/c/f")
    files.remove_directory(f"{root}/a/b/c")
    assert files.list_names(f"{root}/a/b") == []


def test_a_file_where_a_directory_should_be_is_an_error(disk):
    files, root = disk
    files.create(f"{root}/a", 1, reserve=False)
    with pytest.raises(StoreUnreadable):
        files.make_directory(f"{root}/a")


def test_the_lock_is_exclusive_until_released(disk):
    files, root = disk
    lock = files.lock(f"{root}/lock")
    assert files.read(f"{root}/lock") == b"lock"
    with pytest.raises(StoreLocked, match="open"):
        files.lock(f"{root}/lock")
    lock.release()
    lock.release()
    files.lock(f"{root}/lock").release()


def test_another_process_is_refused_by_a_record_lock_as_javas(tmp_path):
    """Java takes fcntl locks, which flock() does not see."""
    path = str(tmp_path / "lock")
    lock = OsFiles().lock(path)
    probe = (
        "import fcntl,sys\n"
        f"f=open({path!r},'r+')\n"
        "try: fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 7
    lock.release()
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_files_and_directories_are_private(tmp_path):
    files = OsFiles()
    files.make_directory(str(tmp_path / "d"))
    files.create(str(tmp_path / "d" / "a"), 10, reserve=True)
    files.replace(str(tmp_path / "d" / "b"), b"x")
    assert stat.S_IMODE(os.stat(tmp_path / "d").st_mode) == 0o700
    for name in "ab":
        assert stat.S_IMODE(os.stat(tmp_path / "d" / name).st_mode) == 0o600


def test_a_reserved_file_has_all_its_blocks_and_a_sparse_one_gets_them_when_asked(tmp_path):
    files = OsFiles()
    files.make_directory(str(tmp_path / "d"))
    files.create(str(tmp_path / "d" / "full"), 1 << 20, reserve=True)
    files.create(str(tmp_path / "d" / "sparse"), 1 << 20, reserve=False)
    assert os.stat(tmp_path / "d" / "full").st_blocks * 512 >= 1 << 20
    assert os.stat(tmp_path / "d" / "sparse").st_blocks == 0
    files.map(str(tmp_path / "d" / "sparse"), 1 << 20).reserve(64 << 10)
    blocks = os.stat(tmp_path / "d" / "sparse").st_blocks * 512
    assert 64 << 10 <= blocks < 1 << 20


def test_zeroing_a_reserved_file_does_not_write_all_of_it(tmp_path):
    files = OsFiles()
    files.make_directory(str(tmp_path / "d"))
    files.create(str(tmp_path / "d" / "a"), 256 << 20, reserve=True)
    region = files.map(str(tmp_path / "d" / "a"), 256 << 20)
    region.buffer[0:10] = b"x" * 10
    region.zero(0, 256 << 20)
    assert is_zero(region, 0, 256 << 20)
    touched = sum(stop - start for start, stop in region.data_ranges(0, 256 << 20))
    assert touched <= 128 << 20


def test_a_region_leaves_no_descriptor_behind(tmp_path):
    files = OsFiles()
    files.create(str(tmp_path / "a"), 4096, reserve=False)
    before = len(os.listdir("/proc/self/fd"))
    regions = [files.map(str(tmp_path / "a"), 4096) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    regions.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_something_that_is_no_file_is_not_mapped(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreUnreadable):
        OsFiles().map(str(tmp_path), 4096)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_an_error_of_its_own(number):
    error = store_error("/x", "write", OSError(number, "full"))
    assert isinstance(error, StoreFull)
    assert "/x" in str(error)
    assert "free disk space" in str(error)


def test_any_other_os_error_names_path_and_deed():
    error = store_error("/x", "flush", OSError(errno.EIO, "Input/output error"))
    assert isinstance(error, StoreUnreadable)
    assert error.path == "/x"
    assert "cannot flush: Input/output error" in str(error)


def test_used_space_is_rounded_up_as_df_does():
    assert DiskSpace(used_bytes=901, free_bytes=99).used_ratio == 0.91
    assert DiskSpace(used_bytes=0, free_bytes=10).used_ratio == 0.0
    assert DiskSpace(used_bytes=0, free_bytes=0).used_ratio == 0.0
    space = OsFiles().disk_space("/")
    assert space.used_bytes > 0
    assert 0 < space.used_ratio <= 1


def test_the_map_limit_respects_the_descriptor_limit():
    assert 64 <= OsFiles().map_limit() <= 16_384


def test_a_growing_file_is_written_anywhere_cut_and_taken_up_again(disk):
    files, root = disk
    growing = files.grow(f"{root}/g")
    assert growing.path == f"{root}/g"
    assert files.size_of(f"{root}/g") == 0
    growing.write(0, b"abc")
    growing.write(700, b"xyz")
    growing.sync()
    assert files.read(f"{root}/g") == b"abc" + bytes(697) + b"xyz"
    growing.write(1, b"BC" * 400)
    assert files.read(f"{root}/g") == b"a" + b"BC" * 400
    growing.truncate(5)
    assert files.read(f"{root}/g") == b"aBCBC"
    again = files.grow(f"{root}/g")
    again.write(5, b"!")
    again.truncate(8)
    assert files.read(f"{root}/g") == b"aBCBC!\0\0"


def test_a_growing_file_needs_its_directory(disk):
    files, root = disk
    with pytest.raises(StoreUnreadable, match="none"):
        files.grow(f"{root}/none/g")


@pytest.mark.parametrize("page_bytes", [512, 4096])
def test_a_growing_file_may_lose_what_was_not_synced_and_nothing_else(page_bytes):
    files = SimFiles(page_bytes=page_bytes)
    files.make_directory("/d")
    growing = files.grow("/d/g")
    growing.write(0, b"a" * 600)
    growing.sync()
    files.sync_directory("/d")
    growing.write(500, b"b" * 5000)
    contents = {state.read("/d/g") for _, state in files.crash_states(subsets=50)}
    assert len(contents) > 3
    assert b"a" * 600 in contents
    assert b"a" * 500 + b"b" * 5000 in contents
    for content in contents:
        assert content[:500] == b"a" * 500
        assert set(content[500:]) <= set(b"ab\0")
    growing.truncate(100)
    growing.sync()
    assert {state.read("/d/g") for _, state in files.crash_states()} == {b"a" * 100}


def test_a_cut_that_was_not_synced_may_be_undone():
    files = SimFiles()
    files.make_directory("/d")
    growing = files.grow("/d/g")
    growing.write(0, b"a" * 1500)
    growing.sync()
    files.sync_directory("/d")
    growing.truncate(300)
    contents = {state.read("/d/g") for _, state in files.crash_states(subsets=50)}
    assert {b"a" * 1500, b"a" * 300} <= contents
