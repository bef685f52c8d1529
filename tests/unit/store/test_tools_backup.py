"""`backup_store` and `restore_store`: what goes in comes out, and nothing else gets in."""

import io
import json
import os
import shutil
import tarfile
import zlib
from pathlib import Path

import pytest
from tools_world import config_at, derived, fill, make_store, patch, snapshot, write_table

from skylark.errors import StoreDamaged, StoreError, StoreUnreadable
from skylark.store import MessageStore, OsFiles
from skylark.store.tools import backup, backup_store, check_store, detect_config, restore_store
from skylark.testing.stores import HandClock, make_message

NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup."""
    place = tmp_path_factory.mktemp("pristine")
    make_store(place / "store")
    write_table(place / "store", "topics.json", {"topicConfigTable": {}})
    write_table(place / "store", "consumerOffset.json", {"offsetTable": {"TopicA@G": {"0": 3}}})
    backup_store(config_at(place / "store"), str(place / "backup"), now_ms=NOW_MS)
    return place / "backup"


@pytest.fixture
def source(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "backup")
    return tmp_path / "backup"


def restore(source: Path, target: Path, *, verify: bool = False):
    return restore_store(str(source), str(target), OsFiles(), HandClock(), verify=verify)


def test_a_store_comes_back_with_the_same_log_queues_and_index(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root)
    before = snapshot(root)
    report = backup_store(config_at(root), str(tmp_path / "backup"), now_ms=NOW_MS)
    assert snapshot(root) == before
    assert report.linked_files == len(list((root / "commitlog").iterdir())) - 2
    assert report.copied_files == 2
    assert not (tmp_path / "backup" / "consumequeue").exists()
    assert not (tmp_path / "backup" / "index").exists()
    restored = restore(tmp_path / "backup", tmp_path / "again", verify=True)
    assert restored.is_verified
    assert restored.record_count == report.record_count == 165
    assert restored.mark == report.mark
    assert derived(tmp_path / "again") == derived(root)
    for path in (root / "commitlog").iterdir():
        copy = tmp_path / "again" / "commitlog" / path.name
        assert copy.read_bytes() == path.read_bytes()
        if path.name != f"{7 * 4096:020d}":  # The last one has been opened for writing since.
            assert abs(copy.stat().st_mtime - path.stat().st_mtime) < 0.002  # mtimes are data.


def test_full_files_are_links_and_what_comes_out_is_not(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root)
    backup_store(config_at(root), str(tmp_path / "backup"), now_ms=NOW_MS)
    first, last = (sorted((root / "commitlog").iterdir())[n] for n in (0, -1))
    kept = tmp_path / "backup" / "commitlog"
    assert os.path.samefile(first, kept / first.name)
    assert not os.path.samefile(last, kept / last.name)
    restore(tmp_path / "backup", tmp_path / "again")
    assert (tmp_path / "again" / "commitlog" / first.name).stat().st_nlink == 1


def test_a_store_at_work_is_copied_up_to_its_last_whole_record(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock)
        log = store.log.cursor
        half = bytes(log.buffer[0:60])
        log.buffer[log.write_at : log.write_at + 60] = half  # A record that is being written.
        report = backup_store(config_at(root), str(tmp_path / "backup"), now_ms=NOW_MS)
        log.buffer[log.write_at : log.write_at + 60] = bytes(60)
        assert report.mark == store.log.appended
        fill(store, clock, 30)
    restored = restore(tmp_path / "backup", tmp_path / "again", verify=True)
    assert restored.record_count == 165


def test_without_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_, **__):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(backup.os, "link", link)
    make_store(tmp_path / "store")
    report = backup_store(config_at(tmp_path / "store"), str(tmp_path / "b"), now_ms=NOW_MS)
    assert report.linked_files == 0
    assert report.copied_files == len(list((tmp_path / "store" / "commitlog").iterdir()))
    assert restore(tmp_path / "b", tmp_path / "again", verify=True).is_verified


def test_offsets_are_copied_before_the_mark_and_topics_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    make_store(root)
    write_table(root, "consumerOffset.json", {"offsetTable": {"TopicA@G": {"0": 1}}})
    write_table(root, "topics.json", {"topicConfigTable": {}})
    find_mark = backup._find_mark

    def later(*arguments):
        write_table(root, "consumerOffset.json", {"offsetTable": {"TopicA@G": {"0": 2}}})
        write_table(root, "topics.json", {"topicConfigTable": {"New": {"topicName": "New"}}})
        return find_mark(*arguments)

    monkeypatch.setattr(backup, "_find_mark", later)
    backup_store(config_at(root), str(tmp_path / "b"), now_ms=NOW_MS)
    assert '"0": 1' in (tmp_path / "b" / "config" / "consumerOffset.json").read_text()
    assert "New" in (tmp_path / "b" / "config" / "topics.json").read_text()


def test_a_table_that_is_being_replaced_comes_from_its_backup(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root)
    write_table(root, "topics.json.bak", {"topicConfigTable": {}})
    (root / "config" / "topics.json.tmp").write_text("{")
    report = backup_store(config_at(root), str(tmp_path / "b"), now_ms=NOW_MS)
    assert report.tables == ["topics.json"]


def test_idle_queues_go_on_where_they_were(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        for _ in range(23):
            store.put([make_message("Idle", 3, b"old")])
        for _ in range(100):
            store.put([make_message("Busy", 0, b"x" * 100)])
        while store.log.start < 8192:
            store.log.detach_first().remove()
        for queue in store.queues.opened():
            queue.remove_before(store.log.start)
    backup_store(config_at(root), str(tmp_path / "b"), now_ms=NOW_MS)
    restore(tmp_path / "b", tmp_path / "again", verify=True)
    with MessageStore.open(config_at(tmp_path / "again"), OsFiles(), clock) as store:
        assert store.max_offset("Idle", 3) == 23
        (result,) = store.put([make_message("Idle", 3, b"new")])
        assert result.queue_offset == 23


def test_a_damaged_log_is_not_backed_up(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root)
    patch(root / "commitlog" / f"{0:020d}", 100, b"garbage" * 9)
    with pytest.raises(StoreDamaged, match="a backup would end here"):
        backup_store(config_at(root), str(tmp_path / "b"), now_ms=NOW_MS)
    assert not (tmp_path / "b").exists()


def test_a_destination_with_something_in_it_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").write_text("")
    config = config_at(tmp_path / "store")
    with pytest.raises(StoreUnreadable, match="choose another name"):
        backup_store(config, str(tmp_path / "b"), now_ms=NOW_MS)
    with pytest.raises(StoreUnreadable, match="inside the store"):
        backup_store(config, str(tmp_path / "store" / "b"), now_ms=NOW_MS)
    assert (tmp_path / "b" / "precious").exists()


def test_a_target_with_something_in_it_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "again"
    target.mkdir()
    restore(source, target)  # Empty is fine.
    with pytest.raises(StoreUnreadable, match="is not empty"):
        restore(source, target)
    shutil.rmtree(target)
    (target / ".restore").mkdir(parents=True)
    with pytest.raises(StoreUnreadable, match="was not finished"):
        restore(source, target)


# What a stranger's backup may hold.


def spoil_manifest(source: Path, change) -> None:
    path = source / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def rename_first(name: object):
    def change(manifest) -> None:
        manifest["files"][0]["name"] = name

    return change


@pytest.mark.parametrize(
    "name",
    [
        "../escaped", "config/../../escaped", "/etc/passwd", "commitlog/..", "config/a.json/../b",
        "commitlog/0000000000000000000x", "consumequeue/T/0/00000000000000000000", "lock",
        "config/\u0000.json", "config/.json", "", 7, None, ["config/a.json"],
    ],
)  # fmt: skip
def test_names_that_no_backup_has_are_refused(source: Path, tmp_path: Path, name: object) -> None:
    spoil_manifest(source, rename_first(name))
    with pytest.raises(StoreDamaged, match="which no backup has"):
        restore(source, tmp_path / "again")
    assert not list(tmp_path.glob("**/escaped"))
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("kind", ["link", "link to a directory", "pipe", "device", "extra file"])
def test_what_is_no_regular_file_is_refused(source: Path, tmp_path: Path, kind: str) -> None:
    victim = source / "config" / "topics.json"
    if kind == "extra file":
        (source / "commitlog" / "extra").write_text("")
    elif kind == "link to a directory":
        shutil.move(source / "config", tmp_path / "elsewhere")
        (source / "config").symlink_to(tmp_path / "elsewhere")
    else:
        victim.unlink()
        if kind == "link":
            victim.symlink_to("/etc/passwd")
        elif kind == "pipe":
            os.mkfifo(victim)
        else:
            try:
                os.mknod(victim, 0o020600, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("only root makes devices")
    with pytest.raises(StoreDamaged, match="which no backup has"):
        restore(source, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def change_one(**values: object):
    def change(manifest) -> None:
        manifest.update(values)

    return change


def change_file(**values: object):
    def change(manifest) -> None:
        manifest["files"][-1].update(values)

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_one(version=2), change_one(files=None), change_one(mark=10**9),
        change_one(log_start=1), change_one(idle_queues={"../x": {"0": 1}}),
        change_one(idle_queues={"T": {"-1": 1}}), change_one(idle_queues={"T": 3}),
        change_one(made="now"), change_one(log_file_bytes=True),
        change_file(crc32=1), change_file(used=10**9), change_file(bytes=17),
        change_file(used=-1), change_file(crc32=2**40), change_file(modified=None),
    ],
)  # fmt: skip
def test_a_manifest_that_lies_is_refused(source: Path, tmp_path: Path, change) -> None:
    spoil_manifest(source, change)
    with pytest.raises(StoreDamaged):
        restore(source, tmp_path / "again")
    assert not list(tmp_path.glob("again/*"))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00" * 9, "[" * 100_000])
def test_a_manifest_that_is_none_is_refused(source: Path, tmp_path: Path, text: str) -> None:
    (source / "manifest.json").write_text(text)
    with pytest.raises(StoreDamaged, match=r"manifest\.json"):
        restore(source, tmp_path / "again")


def test_a_changed_byte_or_a_missing_file_is_refused(source: Path, tmp_path: Path) -> None:
    log = source / "commitlog" / f"{4096:020d}"
    patch(log, 1000, bytes([log.read_bytes()[1000] ^ 1]))
    with pytest.raises(StoreDamaged, match="is not what was backed up"):
        restore(source, tmp_path / "again")
    log.unlink()
    with pytest.raises(StoreDamaged, match="not in the backup"):
        restore(source, tmp_path / "again")
    assert not list(tmp_path.glob("again/*"))


def test_verify_refuses_a_log_whose_records_are_bad_though_its_files_are_not(
    source: Path, tmp_path: Path
) -> None:
    # The damage was there before the checksum was taken.
    log = source / "commitlog" / f"{4096:020d}"
    patch(log, log.read_bytes().index(b"body"), b"damage")

    def change(manifest) -> None:
        for file in manifest["files"]:
            if file["name"].endswith(log.name):
                file["crc32"] = zlib.crc32(log.read_bytes())

    spoil_manifest(source, change)
    with pytest.raises(StoreError):
        restore(source, tmp_path / "again", verify=True)
    assert not list(tmp_path.glob("again/*"))


def test_a_backup_without_manifest_is_no_backup(source: Path, tmp_path: Path) -> None:
    (source / "manifest.json").unlink()
    with pytest.raises(StoreUnreadable, match="this is no backup"):
        restore(source, tmp_path / "again")


# Archives.


def archived(source: Path, target: Path, name: str = "backup", mode: str = "w:gz") -> Path:
    with tarfile.open(target, mode) as archive:
        archive.add(source, arcname=name)
    return target


@pytest.mark.parametrize("name", [".", "backup", "some-night"])
def test_a_tar_of_a_backup_is_restored(source: Path, tmp_path: Path, name: str) -> None:
    archive = archived(source, tmp_path / "b.tar.gz", name)
    assert restore(archive, tmp_path / "again", verify=True).is_verified


def add_member(path: Path, name: str, **changes: object) -> None:
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo(name)
        for key, value in changes.items():
            setattr(member, key, value)
        archive.addfile(member, io.BytesIO())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("backup/../../escaped", {}),
        ("/tmp/escaped", {}),
        ("backup/config/x.json", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("backup/config/x.json", {"type": tarfile.LNKTYPE, "linkname": "backup/manifest.json"}),
        ("backup/config/x.json", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("backup/config/x.json", {"type": tarfile.FIFOTYPE}),
        ("backup/config/topics.json", {}),  # A second one of the same name.
        ("backup/extra", {}),
    ],
)
def test_archives_with_what_no_backup_has_are_refused(
    source: Path, tmp_path: Path, name: str, changes: dict[str, object]
) -> None:
    archive = archived(source, tmp_path / "b.tar", mode="w")
    add_member(archive, name, **changes)
    with pytest.raises(StoreDamaged, match="which no backup has"):
        restore(archive, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "escaped").exists()


def test_what_is_no_archive_or_half_of_one_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StoreUnreadable, match="neither"):
        restore(tmp_path / "text", tmp_path / "again")
    with pytest.raises(StoreUnreadable, match="does not exist"):
        restore(tmp_path / "nothing", tmp_path / "again")
    whole = archived(source, tmp_path / "b.tar", mode="w").read_bytes()
    (tmp_path / "half.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError):
        restore(tmp_path / "half.tar", tmp_path / "again")
    assert not list(tmp_path.glob("again/*"))


def test_a_restored_store_is_like_any_other(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "again"
    restore(source, target)
    assert not (target / ".restore").exists()
    config = config_at(target)
    with MessageStore.open(config, OsFiles(), HandClock()) as store:
        fill(store, HandClock(), 20)
    assert check_store(detect_config(str(target))).findings == []
