"""The catalogue of an archive: entries, snapshots, and what a crash leaves."""

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from skylark.errors import ConfigError, StoreUnreadable
from skylark.spark import archive as archives
from skylark.spark import catalogue as catalogues
from skylark.spark import changes
from skylark.spark.catalogue import ArchivedFile, Catalogue, Entry
from skylark.spark.metrics import Metric
from skylark.spark.metrics.rows import Row, to_table
from skylark.spark.metrics.table import MetricTable
from skylark.spark.offsets import QueueKey

QUEUE = QueueKey("T", "a", 0)


def path_of(name):
    """Below the root, as every try has a folder of its own."""
    return f"data/batch={name}.5f1c0a9e/topic=T/hour=2026-11-15T19/part.parquet"


def entry(first, last=None, *, names=(), end=0):
    files = tuple(ArchivedFile(path_of(name), "T", 1, 10) for name in names)
    return Entry(first, first if last is None else last, files, {QUEUE: end})


def make(catalogue, *names, age_s=0):
    """Files as they lie in an archive, written so long ago."""
    for name in names:
        path = catalogue.root / path_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        written_s = time.time() - age_s
        for one in (path, *list(path.parents)[:3]):
            os.utime(one, (written_s, written_s))


def is_there(catalogue, name):
    return (catalogue.root / path_of(name)).exists()


def test_an_empty_archive_reaches_nowhere(tmp_path):
    catalogue = Catalogue(tmp_path / "new")
    assert catalogue.entries() == []
    assert catalogue.ends() == {}


def test_entries_are_read_back_in_order(tmp_path):
    catalogue = Catalogue(tmp_path)
    wanted = [entry(number, names=[str(number)], end=number) for number in range(11)]
    for one in wanted:
        catalogue.add(one)
    assert catalogue.entries() == wanted
    assert catalogue.ends() == {QUEUE: 10}


def test_a_draft_does_not_count(tmp_path):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0))
    (tmp_path / "catalogue" / "000000000001-000000000001.draft").write_bytes(b"{")
    assert len(catalogue.entries()) == 1


def test_a_wider_entry_takes_the_place_of_those_within(tmp_path):
    catalogue = Catalogue(tmp_path)
    old = [entry(number, names=[str(number)]) for number in range(3)]
    for one in old:
        catalogue.add(one)
    new = entry(0, 2, names=["all"], end=9)
    # As after a crash between the new entry and the removal of the old ones.
    catalogue.add(new)
    assert catalogue.entries() == [new]
    assert len(list((tmp_path / "catalogue").glob("*.json"))) == 4
    catalogue.sweep(time.time() + 3_700)
    assert catalogue.entries() == [new]
    assert len(list((tmp_path / "catalogue").glob("*.json"))) == 1


def test_files_that_were_replaced_go_when_nobody_can_still_read_them(tmp_path):
    catalogue = Catalogue(tmp_path)
    make(catalogue, "0", "1", age_s=7_200)
    make(catalogue, "all")
    old = [entry(number, names=[str(number)]) for number in range(2)]
    for one in old:
        catalogue.add(one)
    catalogue.replace(old, entry(0, 1, names=["all"]))
    written = next((tmp_path / "trash").iterdir()).stat().st_mtime
    # A query that has begun has listed them, however old they are.
    assert catalogue.sweep(written + 10) == 0
    assert is_there(catalogue, "0")
    assert is_there(catalogue, "1")
    assert catalogue.sweep(written + 3_601) == 2
    assert catalogue.sweep(time.time() + 7_200) == 0
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["batch=all.5f1c0a9e"]
    assert is_there(catalogue, "all")


def test_files_that_an_earlier_try_was_about_to_replace_stay_as_long(tmp_path):
    catalogue = Catalogue(tmp_path)
    make(catalogue, "0", "1", "2", age_s=7_200)
    old = [entry(number, names=[str(number)]) for number in range(3)]
    for one in old:
        catalogue.add(one)
    catalogue.note_replaced(old[:2], entry(0, 1))  # And then it died, two hours ago.
    note = next((tmp_path / "trash").iterdir())
    os.utime(note, (time.time() - 7_200,) * 2)
    catalogue.replace(old, entry(0, 2, names=["all"]))
    assert catalogue.sweep(time.time()) == 0
    assert all(is_there(catalogue, name) for name in "012")
    assert catalogue.sweep(time.time() + 3_700) == 3


def begun(catalogue, count):
    """So many entries, without waiting for the disk."""
    catalogue.add(entry(0, end=1))
    for number in range(1, count):
        one = entry(number, end=number + 1)
        (catalogue.root / "catalogue" / one.name).write_bytes(one.to_bytes())


def test_readers_are_not_held_up_by_entries_that_are_just_being_removed(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    begun(catalogue, 200)
    new = entry(0, 199, names=["all"], end=200)
    catalogue.add(new)
    read_entry = catalogues.read_entry

    def read_as_compaction_gets_there(path):
        if path.name != new.name:
            path.unlink()
        return read_entry(path)

    monkeypatch.setattr(catalogues, "read_entry", read_as_compaction_gets_there)
    assert catalogue.entries() == [new]
    assert catalogue.ends() == {QUEUE: 200}


def test_how_far_a_large_archive_reaches_its_last_entry_says(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    begun(catalogue, 50)
    read, read_entry = [], catalogues.read_entry
    monkeypatch.setattr(catalogues, "read_entry", lambda path: read.append(1) or read_entry(path))
    assert catalogue.ends() == {QUEUE: 50}
    assert len(read) == 1
    (tmp_path / "catalogue" / entry(7).name).unlink()
    with pytest.raises(StoreUnreadable, match="batch 7 is missing, the next is 8"):
        catalogue.ends()


def test_a_sweep_compares_no_entries_that_count_with_each_other(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    begun(catalogue, 50)
    compared, takes = [], Entry.takes_the_place_of
    monkeypatch.setattr(Entry, "takes_the_place_of", lambda *of: compared.append(of) or takes(*of))
    catalogue.sweep(time.time() + 3_700)
    assert not compared


@pytest.mark.parametrize(
    "name", ["._{}", "copy of {}", "{} (conflicted copy).json", "notes.json", ".nfs00f3.json"]
)
def test_files_that_others_leave_beside_entries_are_none(tmp_path, name):
    catalogue = Catalogue(tmp_path)
    old = [entry(number, names=[str(number)]) for number in range(3)]
    for one in old:
        catalogue.add(one)
    (tmp_path / "catalogue" / name.format(old[1].name)).write_bytes(b"\0\5\x16\7")
    assert catalogue.entries() == old
    new = entry(0, 2, names=["all"])
    catalogue.replace(old, new)
    catalogue.sweep(time.time() + 3_700)
    assert catalogue.entries() == [new]


def test_a_missing_batch_is_not_passed_over(tmp_path):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0))
    catalogue.add(entry(2))
    with pytest.raises(StoreUnreadable, match="batch 1 is missing"):
        catalogue.entries()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", json.dumps({"first": 0}).encode()])
def test_a_damaged_entry_is_named(tmp_path, content):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0))
    (tmp_path / "catalogue" / "000000000000-000000000000.json").write_bytes(content)
    with pytest.raises(StoreUnreadable, match="000000000000-000000000000"):
        catalogue.entries()


def test_an_archive_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="there is none"):
        Catalogue(tmp_path / "nowhere").require()


def test_an_archive_is_a_directory():
    with pytest.raises(ConfigError, match="directory"):
        Catalogue("s3://bucket/lake")


def test_the_first_entry_of_a_name_stands(tmp_path):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0, names=["mine"]))
    with pytest.raises(StoreUnreadable, match="another job writes this archive"):
        catalogue.add(entry(0, names=["theirs"]))
    assert catalogue.entries() == [entry(0, names=["mine"])]
    assert not list((tmp_path / "catalogue").glob("*.draft"))


def test_a_full_disk_leaves_no_drafts(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0))

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            catalogue.add(entry(1))
    assert not list(tmp_path.rglob("*.draft"))
    monkeypatch.undo()
    catalogue.add(entry(1))


def test_an_archive_whose_first_batch_is_missing_is_not_taken_for_a_whole_one(tmp_path):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(1))
    with pytest.raises(StoreUnreadable, match="batch 0 is missing"):
        catalogue.entries()


def test_folders_of_tries_that_were_not_finished_go_when_they_are_old(tmp_path):
    catalogue = Catalogue(tmp_path)
    kept, left = catalogue.new_folder(0, 0), catalogue.new_folder(0, 0)
    assert kept != left
    for folder in (kept, left):
        (folder / "topic=T").mkdir(parents=True)
        (folder / "topic=T" / "part.parquet").write_bytes(b"x")
    path = str((kept / "topic=T" / "part.parquet").relative_to(tmp_path))
    catalogue.add(Entry(0, 0, (ArchivedFile(path, "T", 1, 1),), {QUEUE: 1}))
    written = left.stat().st_mtime
    assert catalogue.sweep(written + 10) == 0
    assert catalogue.sweep(written + 3_700) == 1
    assert list((tmp_path / "data").iterdir()) == [kept]


def test_a_batch_may_take_longer_than_what_is_left_behind_is_kept(tmp_path):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0))
    left, at_work, again = (catalogue.new_folder(number, number) for number in (0, 1, 1))
    for folder in (left, at_work, again):
        (folder / "topic=T").mkdir(parents=True)
        (folder / "topic=T" / "part.parquet").write_bytes(b"x")
    later = time.time() + 10 * 3_600
    assert catalogue.sweep(later) == 1
    assert not left.exists()
    path = str((again / "topic=T" / "part.parquet").relative_to(tmp_path))
    catalogue.add(Entry(1, 1, (ArchivedFile(path, "T", 1, 1),), {QUEUE: 1}))
    assert catalogue.sweep(later) == 1, "now it is known which try of batch 1 was none"
    assert not at_work.exists()
    assert again.exists()


def test_an_entry_that_comes_while_others_are_swept_away_stays(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0, end=1))
    listed = Catalogue.entries

    def entries_and_one_more(self):
        found = listed(self)
        if len(found) == 1:
            self.add(entry(1, end=2))  # The archive goes on, and its group with it.
        return found

    monkeypatch.setattr(Catalogue, "entries", entries_and_one_more)
    catalogue.sweep(time.time() + 3_700)
    monkeypatch.undo()
    assert catalogue.ends() == {QUEUE: 2}


def test_a_batch_that_is_being_written_does_not_end_a_sweep(tmp_path):
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry(0))
    over = threading.Event()

    def write():
        """As Spark does: files in folders of their own, which go when all is done."""
        while not over.is_set():
            folder = catalogue.new_folder(1, 1)
            for task in range(4):
                task_folder = folder / "_temporary" / "0" / f"task_{task}" / "topic=T"
                task_folder.mkdir(parents=True)
                (task_folder / "part-0.parquet").write_bytes(b"x")
            shutil.rmtree(folder / "_temporary")
            (folder / "_SUCCESS").write_bytes(b"")
            shutil.rmtree(folder)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            catalogue.sweep(time.time())
    finally:
        over.set()
        writer.join()


# Compactions that overlap: only one of each two may stay, or the archive cannot be read.


def sized(number, size=40):
    file = ArchivedFile(path_of(str(number)), "T", 1, size)
    return Entry(number, number, (file,), {QUEUE: number + 1})


def merging(catalogue, meanwhile):
    """In the place of Spark: files half as large, and something else while it is at the second."""
    count = iter(range(100))

    def merge(spark, of, group):
        if next(count) == 1:
            meanwhile()
        first, last = group[0].first, group[-1].last
        size = sum(file.bytes for one in group for file in one.files) // 2
        files = (ArchivedFile(path_of(f"{first}-{last}"), "T", len(group), size),)
        of.replace(group, Entry(first, last, files, dict(group[-1].ends)))

    return merge


def test_a_second_compaction_is_refused_while_one_runs(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    for number in range(8):
        catalogue.add(sized(number))

    def again():
        with pytest.raises(ConfigError, match="another run puts its batches together"):
            archives.compact(None, tmp_path, bytes_max=100)

    monkeypatch.setattr(archives, "_merge", merging(catalogue, again))
    assert archives.compact(None, tmp_path, bytes_max=100) == 8
    assert [(one.first, one.last) for one in catalogue.entries()] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ]
    assert catalogue.ends() == {QUEUE: 8}
    assert archives.compact(None, tmp_path, bytes_max=100) == 4, "who is done lets go"


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_compactions_that_overlap_leave_an_archive_that_can_be_read(
    tmp_path, monkeypatch, error
):
    def refuse(*_):
        raise OSError(error, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    catalogue = Catalogue(tmp_path)
    for number in range(8):
        catalogue.add(sized(number))

    def again():
        archives.compact(None, tmp_path, bytes_max=100)

    monkeypatch.setattr(archives, "_merge", merging(catalogue, again))
    with pytest.raises(StoreUnreadable, match="another job puts these batches together"):
        archives.compact(None, tmp_path, bytes_max=100)
    assert [one.first for one in catalogue.entries()] == [0, 3, 5, 7]
    assert catalogue.ends() == {QUEUE: 8}


def test_of_two_that_overlap_the_later_one_is_withdrawn(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    old = [sized(number) for number in range(8)]
    for one in old:
        catalogue.add(one)
    note_replaced = Catalogue.note_replaced

    def note_and_be_overtaken(self, replaced, new):
        note_replaced(self, replaced, new)
        monkeypatch.undo()
        self.replace(old[3:], Entry(3, 7, (), {QUEUE: 8}))

    monkeypatch.setattr(Catalogue, "note_replaced", note_and_be_overtaken)
    with pytest.raises(StoreUnreadable, match="000000000003-000000000007"):
        catalogue.replace(old[:5], Entry(0, 4, (), {QUEUE: 5}))
    assert catalogue.entries() == [*old[:3], Entry(3, 7, (), {QUEUE: 8})]


def test_those_that_were_replaced_stay_until_the_wider_one_is_sure_to(tmp_path):
    catalogue = Catalogue(tmp_path)
    old = [sized(number) for number in range(3)]
    for one in old:
        catalogue.add(one)
    catalogue.add(Entry(0, 2, (), {QUEUE: 3}))
    catalogue.sweep(time.time())  # Of another job, which does not know that it may be withdrawn.
    (tmp_path / "catalogue" / Entry(0, 2, (), {}).name).unlink()
    assert catalogue.entries() == old


# Power cuts.


def test_a_new_archive_is_on_the_disk_with_the_folders_above_it(tmp_path, monkeypatch):
    synced = synced_paths(monkeypatch)
    root = tmp_path / "new" / "lake"
    catalogue = Catalogue(root)
    catalogue.make()
    assert {tmp_path, tmp_path / "new"} <= set(synced)
    synced.clear()
    catalogue.add(entry(0))
    assert {root, root / "catalogue"} <= set(synced)


def test_files_of_a_batch_are_on_the_disk_with_the_folders_above_them(tmp_path, monkeypatch):
    catalogue = Catalogue(tmp_path)
    make(catalogue, "0")
    synced = synced_paths(monkeypatch)
    path = tmp_path / path_of("0")
    catalogues.sync_tree(path.parents[2], tmp_path)
    assert {path, *list(path.parents)[:5]} <= set(synced)


def test_the_rows_of_a_change_table_are_on_the_disk_before_its_entry_is(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    folder = Catalogue(tmp_path).new_folder(3, 3)
    path = folder / "bucket=5" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pa.table({"id": [1]}), path)
    synced = synced_paths(monkeypatch)
    (file,) = catalogues.files_in(tmp_path, folder, changes._bucket_of)
    assert (file.topic, file.rows) == ("5", 1)
    assert {path, path.parent, folder, folder.parent, tmp_path} <= set(synced)


def test_the_minutes_of_a_metrics_table_are_on_the_disk_with_the_folders_above(
    tmp_path, monkeypatch
):
    with MetricTable(tmp_path) as table:
        synced = synced_paths(monkeypatch)
        row = Row(minute_ms=1_794_830_400_000, metric=Metric.MESSAGES, topic="T", count=1, sum=1)
        table.commit(0, to_table([row]), [], {})
    (path,) = (tmp_path / "data").rglob("*.parquet")
    assert {path, path.parent, tmp_path / "data", tmp_path} <= set(synced)


def synced_paths(monkeypatch):
    """What is brought to the disk from now on."""
    found = []
    fsync = os.fsync

    def noted(descriptor):
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


class Crash(Exception):
    pass


@pytest.mark.parametrize("step", range(16))
def test_a_crash_at_any_step_of_compaction_changes_no_row(tmp_path, monkeypatch, step):
    catalogue = Catalogue(tmp_path)
    old = [entry(number, names=[str(number)], end=number) for number in range(3)]
    for one in old:
        catalogue.add(one)
    left = iter([None] * step)

    def counted(function):
        def called(*arguments, **named):
            if next(left, Crash) is Crash:
                raise Crash
            return function(*arguments, **named)

        return called

    new = Entry(0, 2, (ArchivedFile(path_of("all"), "T", 3, 30),), {QUEUE: 2})
    with monkeypatch.context() as patched:
        for where, name in ((os, "fsync"), (os, "link"), (Path, "replace"), (Path, "unlink")):
            patched.setattr(where, name, counted(getattr(where, name)))
        try:
            catalogue.replace(old, new)
        except Crash:
            assert step < 15, "there are not so many steps"
    # After a kill drafts may be left too; they count for nothing.
    found = catalogue.entries()
    assert found in (old, [new])
    if found == old:
        catalogue.replace(old, new)
    catalogue.sweep(time.time() + 3_700)
    assert catalogue.entries() == [new]
    assert [path.name for path in (tmp_path / "catalogue").glob("*.json")] == [new.name]
