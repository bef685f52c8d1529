"""The catalogue of an archive: entries, snapshots, and what a crash leaves."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from skylark.errors import ConfigError, StoreUnreadable
from skylark.spark.catalogue import ArchivedFile, Catalogue, Entry
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
    catalogue.sweep(0)
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
    catalogue.sweep(0)
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


class Crash(Exception):
    pass


@pytest.mark.parametrize("step", range(13))
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
            assert step < 12, "there are not so many steps"
    # After a kill drafts may be left too; they count for nothing.
    found = catalogue.entries()
    assert found in (old, [new])
    if found == old:
        catalogue.replace(old, new)
    catalogue.sweep(0)
    assert catalogue.entries() == [new]
    assert [path.name for path in (tmp_path / "catalogue").glob("*.json")] == [new.name]
