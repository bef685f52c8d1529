"""What the seeds say of the files, looked at from outside: a default store on a real disk."""

from __future__ import annotations

import itertools
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest

from skylark.clock import SystemClock
from skylark.protocol.hashes import key_hash
from skylark.protocol.record import decode_record
from skylark.store import MessageStore, OsFiles, StoreConfig
from skylark.testing.stores import TINY, HandClock, make_message, read_all


@pytest.fixture(scope="module")
def default_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the sizes that nobody has changed, while it is still open."""
    root = tmp_path_factory.mktemp("default") / "store"
    with MessageStore.open(
        StoreConfig(store_path_root_dir=str(root)), OsFiles(), SystemClock()
    ) as store:
        store.mark_open()
        for number in range(24):
            store.put([make_message("TopicTest", number % 8, b"%d" % number, keys=f"k{number}")])
            store.put([make_message("Other", 0, b"in between")])
        maps = Path("/proc/self/maps").read_text() if os.path.exists("/proc/self/maps") else ""
        (root.parent / "maps").write_text(maps)
    return root


def test_a_commit_log_file_is_a_gibibyte_under_the_name_of_its_offset(default_root: Path) -> None:
    (file,) = (default_root / "commitlog").iterdir()
    assert file.name == "00000000000000000000"
    assert file.stat().st_size == 1_073_741_824


def test_the_default_place_is_store_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert StoreConfig().store_path_root_dir == "/home/someone/store"
    assert StoreConfig().commit_log_directory == "/home/someone/store/commitlog"


def test_each_queue_has_a_directory_and_files_of_300_000_entries(default_root: Path) -> None:
    queues = sorted(path.name for path in (default_root / "consumequeue" / "TopicTest").iterdir())
    assert queues == [str(number) for number in range(8)]
    for queue in queues:
        (file,) = (default_root / "consumequeue" / "TopicTest" / queue).iterdir()
        assert file.name == "00000000000000000000"
        assert file.stat().st_size == 6_000_000 == 300_000 * 20


def test_an_index_file_has_its_full_size_and_takes_little_of_the_disk(default_root: Path) -> None:
    (file,) = (default_root / "index").iterdir()
    assert file.stat().st_size == 420_000_040 == 40 + 5_000_000 * 4 + 20_000_000 * 20
    assert file.stat().st_blocks * 512 < 64 << 20
    time.strptime(file.name[:14], "%Y%m%d%H%M%S")
    assert len(file.name) == 17


def test_the_slot_of_a_key_leads_to_its_newest_entry(default_root: Path) -> None:
    (file,) = (default_root / "index").iterdir()
    hash_value = key_hash("TopicTest", "k7")
    with file.open("rb") as index:
        index.seek(40 + 4 * (hash_value % 5_000_000))
        number = struct.unpack(">i", index.read(4))[0]
        index.seek(40 + 4 * 5_000_000 + 20 * number)
        found, physical_offset, _, _ = struct.unpack(">iqii", index.read(20))
    assert found == hash_value
    with (default_root / "commitlog" / f"{0:020d}").open("rb") as log:
        log.seek(physical_offset)
        assert decode_record(log.read(400)).body == b"7"


def test_store_files_are_mapped_into_memory(default_root: Path) -> None:
    maps = (default_root.parent / "maps").read_text()
    if not maps:
        pytest.skip("this system does not show what is mapped")
    for place in ("commitlog/00000000000000000000", "consumequeue/TopicTest/3/", "index/"):
        assert str(default_root / place) in maps


def test_records_lie_one_after_another_without_a_gap() -> None:
    from skylark.testing.files import SimFiles

    files = SimFiles()
    ends = []
    with MessageStore.open(TINY, files, HandClock()) as store:
        for number in range(60):
            ends += [
                (result.physical_offset, result.end)
                for result in store.put([make_message(f"T{number % 3}", 0, b"x" * number)])
            ]
    for (_, end), (begin, _) in itertools.pairwise(ends):
        # The next record, or the first one of the next file behind a blank record.
        assert begin == end or (begin % 4096 == 0 and 8 <= begin - end < 4096)


def test_any_offset_of_a_queue_is_read_with_the_same_effort() -> None:
    from skylark.testing.files import SimFiles

    files = SimFiles()
    config = replace(TINY, mapped_file_size_commit_log=1 << 20, max_index_num=50_000)
    with MessageStore.open(config, files, HandClock()) as store:
        for number in range(2_000):
            store.put([make_message("T", 0, b"%d" % number)])
        for offset in (0, 1, 999, 1_998, 1_999):
            record = next(store.get("T", 0, offset, 1).records())
            assert decode_record(record).body == b"%d" % offset
        queue = store.queues.get("T", 0)
        assert queue is not None
        # An entry is found by arithmetic: one file is opened, whichever offset is asked for.
        queue.close()
        assert queue.entry(1_000) is not None
        assert sum(file.is_open for file in queue.mapped.files) == 1


def test_what_was_put_before_a_restart_is_there_after_it(tmp_path: Path) -> None:
    config = replace(TINY, store_path_root_dir=str(tmp_path / "store"))
    for life in range(3):
        with MessageStore.open(config, OsFiles(), HandClock()) as store:
            store.put([make_message("T", 0, b"life %d" % life)])
    with MessageStore.open(config, OsFiles(), HandClock()) as store:
        bodies = [decode_record(record).body for record in read_all(store, "T", 0)]
    assert bodies == [b"life 0", b"life 1", b"life 2"]
