"""`check_store`: it finds what is wrong, and nothing where nothing is."""

import shutil
import struct
from pathlib import Path

import pytest
from tools_world import config_at, fill, make_store, patch, snapshot, write_table

from skylark.errors import ConfigError, StoreDamaged, StoreUnreadable
from skylark.store import MessageStore, OsFiles
from skylark.store.tools import (
    StoreState,
    backup_store,
    check_store,
    detect_config,
    dump_records,
    rebuild_store,
    state_of,
)
from skylark.testing.stores import HandClock, make_message

ENTRY = struct.Struct(">qiq")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "store"
    make_store(root)
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """A sound store to be damaged."""
    shutil.copytree(pristine, tmp_path / "store")
    return tmp_path / "store"


def check(root: Path):
    return check_store(detect_config(str(root)))


def only(report) -> str:
    assert len(report.findings) == 1, [str(f) for f in report.findings]
    return str(report.findings[0])


def test_a_sound_store_has_no_finding_and_is_left_as_it_is(root: Path) -> None:
    before = snapshot(root)
    report = check(root)
    assert report.findings == []
    assert report.notes == []
    assert report.record_count == 165
    assert report.queue_count == 12
    assert report.queue_entry_count == 165
    assert report.index_entry_count > 165
    assert report.index_file_count > 5
    assert snapshot(root) == before


def test_geometry_is_found_out_from_the_files(root: Path) -> None:
    found, wanted = detect_config(str(root)), config_at(root)
    for name in (
        "mapped_file_size_commit_log",
        "mapped_file_size_consume_queue",
        "max_hash_slot_num",
        "max_index_num",
    ):
        assert getattr(found, name) == getattr(wanted, name)


def test_flags_win_over_what_is_found(root: Path) -> None:
    config = detect_config(str(root), overrides={"max_hash_slot_num": 3, "max_index_num": 9})
    assert (config.max_hash_slot_num, config.max_index_num) == (3, 9)
    assert check_store(config).findings


@pytest.mark.parametrize("what", ["nothing there", "not a store", "a file"])
def test_what_is_no_store_is_refused_with_the_next_step(tmp_path: Path, what: str) -> None:
    if what == "a file":
        (tmp_path / "store").write_text("x")
    elif what == "not a store":
        (tmp_path / "store").mkdir()
    with pytest.raises(StoreUnreadable, match="give the root of a store"):
        detect_config(str(tmp_path / "store"))


def test_an_index_of_unknown_geometry_asks_for_it(root: Path) -> None:
    for path in (root / "index").glob("*"):
        content = path.read_bytes()
        patch(path, 16, struct.pack(">qq", 12345, 12345))  # The header leads nowhere.
        assert len(content) == 468
    with pytest.raises(ConfigError, match="--index-slots"):
        detect_config(str(root))


def test_a_changed_body_is_found(root: Path) -> None:
    log = root / "commitlog" / f"{4096:020d}"
    place = log.read_bytes().index(b"body")
    patch(log, place, b"B")
    text = only(check(root))
    assert text.startswith(f"{log} at ")
    assert "body crc does not match" in text
    assert "sound records follow" in text
    assert "restore the file from a replica or a backup" in text


def test_a_record_of_another_place_is_found(root: Path) -> None:
    # A whole page of another file: every record in it is sound, and lies where it should not.
    first, second = (root / "commitlog" / f"{n:020d}" for n in (0, 4096))
    patch(second, 0, first.read_bytes())
    findings = [str(f) for f in check(root).findings]
    assert any("the record says it lies at 0" in text for text in findings)


def test_a_missing_log_file_is_found(root: Path) -> None:
    (root / "commitlog" / f"{4096:020d}").unlink()
    findings = [str(finding) for finding in check(root).findings]
    assert any(f"{4096:020d} at 0: is missing" in text for text in findings)


def test_a_short_log_file_and_a_foreign_one_are_found(root: Path) -> None:
    last = sorted((root / "commitlog").glob("*"))[-1]
    last.write_bytes(last.read_bytes()[:1000])
    (root / "commitlog" / "notes.txt").write_text("")
    findings = [str(finding) for finding in check(root).findings]
    assert any("is 1000 bytes long, expected 4096" in text for text in findings)
    assert any("notes.txt at 0: does not belong here" in text for text in findings)


def test_a_wrong_entry_is_found_and_the_others_counted(root: Path) -> None:
    queue = root / "consumequeue" / "TopicA" / "0" / f"{0:020d}"
    patch(queue, 40, ENTRY.pack(7, 100, 5))
    patch(queue, 60, ENTRY.pack(8, 100, 5))
    text = only(check(root))
    assert text.startswith(f"{queue} at 40: entry 2 says offset 7 size 100 tag code 5, the log")
    assert "and 1 more" in text
    assert text.endswith(f"run: skylark store rebuild {root}")


@pytest.mark.parametrize("at", [8, 12, 19])
def test_one_flipped_bit_in_an_entry_is_found(root: Path, at: int) -> None:
    queue = root / "consumequeue" / "TopicB" / "1" / f"{0:020d}"
    patch(queue, at, bytes([queue.read_bytes()[at] ^ 1]))
    assert "entry 0 says" in only(check(root))


def test_entries_that_are_missing_are_found(root: Path) -> None:
    queue = sorted((root / "consumequeue" / "TopicA" / "0").glob("*"))[-1]
    patch(queue, 0, bytes(200))
    assert "entries are missing from" in only(check(root))


def test_a_missing_queue_is_found(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "TopicC" / "2")
    text = only(check(root))
    assert "is missing; topic TopicC queue 2 has messages in the log" in text


def test_the_queue_of_a_deleted_topic_is_not_missed(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "TopicC")
    write_table(root, "topics.json", {"topicConfigTable": {}, "dataVersion": {}})
    report = check(root)
    assert report.findings == []
    assert "it was deleted" in report.notes[0]


def test_entries_that_point_nowhere_are_found(root: Path) -> None:
    shutil.copytree(root / "consumequeue" / "TopicA" / "0", root / "consumequeue" / "TopicA" / "9")
    text = only(check(root))
    assert "entry 0 points to" in text
    assert "where the log has no message of this queue" in text


def test_entries_behind_the_last_one_are_found(root: Path) -> None:
    for path in sorted((root / "consumequeue" / "TopicA" / "0").glob("*"))[-1:]:
        content = path.read_bytes()
        place = len(content.rstrip(b"\0")) // 20 * 20 + 20
        patch(path, place, ENTRY.pack(0, 100, 0))
    assert "where the log has no message of this queue" in only(check(root))


@pytest.mark.parametrize(
    ("at", "what"),
    [(0, "its header do"), (40, "its slots do"), (40 + 28 + 20, "entry 1 is hash")],
)
def test_a_flipped_bit_in_the_index_is_found(root: Path, at: int, what: str) -> None:
    config = detect_config(str(root))
    index = sorted((root / "index").glob("*"))[1]
    patch(index, at + 3, bytes([index.read_bytes()[at + 3] ^ 1]))
    report = check_store(config)
    assert what in only(report)
    assert str(index) in only(report)


def test_a_lost_index_file_is_found(root: Path) -> None:
    sorted((root / "index").glob("*"))[-1].unlink()
    assert "index entries are missing" in only(check(root))


def test_an_offset_beyond_its_queue_is_found(root: Path) -> None:
    offsets = {"TopicA@G": {"0": 3, "1": 99_999}, "Unknown@G": {"0": 1}}
    write_table(root, "consumerOffset.json", {"offsetTable": offsets})
    write_table(root, "delayOffset.json", {"offsetTable": {"1": 0, "3": 4}})
    texts = [str(finding) for finding in check(root).findings]
    assert len(texts) == 3
    assert any("TopicA@G queue 1 is at 99999, its queue ends at" in text for text in texts)
    assert any("Unknown@G queue 0 is at 1, its queue ends at 0" in text for text in texts)
    assert any("delay level 3 is at 4, its queue ends at 0" in text for text in texts)


def test_a_table_that_is_no_json_is_found(root: Path) -> None:
    write_table(root, "topics.json", {})
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":')
    assert "topics.json at 0: cannot be read" in only(check(root))


def test_a_log_shorter_than_what_was_flushed_is_found(root: Path) -> None:
    last = sorted((root / "commitlog").glob("*"))[-1]
    patch(last, 0, bytes(4096))
    texts = [str(finding) for finding in check(root).findings]
    assert any("the disk lost" in text for text in texts)


def test_a_crashed_store_is_judged_by_what_the_next_start_can_mend(tmp_path: Path) -> None:
    make_store(tmp_path / "store", crash=True)
    root = tmp_path / "store"
    assert state_of(str(root)) is StoreState.CRASHED
    assert check(root).findings == []
    # A torn tail, a queue that lags and an index that lags: all of them are for recovery to mend.
    log = sorted((root / "commitlog").glob("*"))[-2]
    end = len(log.read_bytes().rstrip(b"\0"))
    patch(log, end - 3, bytes(3))
    queue = sorted((root / "consumequeue" / "TopicA" / "0").glob("*"))[-1]
    patch(queue, len(queue.read_bytes().rstrip(b"\0")) // 20 * 20, bytes(20))
    sorted((root / "index").glob("*"))[-1].unlink()
    report = check(root)
    assert [str(f) for f in report.findings] == []
    assert any("torn record" in note for note in report.notes)
    assert any("index entries are missing" in note for note in report.notes)
    # A hole in the middle is not.
    patch(sorted((root / "consumequeue" / "TopicB" / "0").glob("*"))[0], 20, bytes(20))
    assert "entries are missing from 1 on" in only(check(root))


def test_a_store_at_work_is_checked_up_to_where_it_was(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock)
        assert state_of(str(root)) is StoreState.RUNNING
        report = check(root)
        assert report.findings == []
        assert report.state is StoreState.RUNNING
        assert report.record_count == 165
        # Undispatched records and half a record at the end are the broker's business.
        fill(store, clock, 20)
        log = store.log.cursor
        log.buffer[log.write_at : log.write_at + 20] = bytes(range(1, 21))
        assert check(root).findings == []
        log.buffer[log.write_at : log.write_at + 20] = bytes(20)
        # The lock was not dropped by looking at it.
        assert state_of(str(root)) is StoreState.RUNNING


def expire(store: MessageStore, files: int) -> None:
    for _ in range(files):
        store.log.detach_first().remove()
    for queue in store.queues.opened():
        queue.remove_before(store.log.start)
    store.index.remove_before(store.log.start)


@pytest.mark.parametrize("after", [1, 4])
def test_files_that_retention_takes_during_a_check_are_not_missed(
    tmp_path: Path, after: int
) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock, 300)
        calls = 0

        def progress(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls == after:
                expire(store, 7)

        report = check_store(detect_config(str(root)), progress=progress)
        assert calls > after
        assert [str(f) for f in report.findings] == []
        assert report.log_end == store.log.appended


def test_what_retention_left_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock, 300)
        expire(store, 3)
    report = check(root)
    assert [str(f) for f in report.findings] == []
    assert report.log_start == 3 * 4096
    # And a wrong entry in the rest is still found.
    index = sorted((root / "index").glob("*"))[-2]
    patch(index, 40 + 28 + 23, b"\x55")
    assert "entry 1 is hash" in only(check_store(config_at(root)))


def test_a_topic_deleted_and_made_again_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock, 200)
        store.drop_topic("TopicA")
        for _ in range(5):
            store.put([make_message("TopicA", 0, b"again")])
    write_table(root, "topics.json", {"topicConfigTable": {"TopicA": {"topicName": "TopicA"}}})
    report = check(root)
    assert [str(f) for f in report.findings if "TopicA" in str(f)] == [
        str(f) for f in report.findings
    ]
    # Queues 1 to 3 were deleted and not made again, while the topic is known: no way to tell.
    assert {f.path.rsplit("/", 1)[1] for f in report.findings} == {"1", "2", "3"}


def test_a_queue_offset_that_is_skipped_in_the_log_is_found(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    with MessageStore.open(config_at(root), OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock, 20)
        store.queues.table["TopicA"][0].next_offset += 2
        fill(store, clock, 20)
    texts = [str(finding) for finding in check(root).findings]
    assert any("topic TopicA queue 0: messages 3 to 4 are not in the log" in t for t in texts), (
        texts
    )


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with MessageStore.open(config_at(root), OsFiles(), HandClock()):
        pass
    report = check(root)
    assert (report.findings, report.record_count) == ([], 0)


def record_positions(root: Path, name: str) -> list[int]:
    """Where records begin in a file of the log."""
    content = (root / "commitlog" / name).read_bytes()
    found, at = [], 0
    while int.from_bytes(content[at + 4 : at + 8], "big") == 0xDAA320A7:
        found.append(at)
        at += int.from_bytes(content[at : at + 4], "big")
    return found


@pytest.mark.parametrize("field_at", [19, 47, 67, 83])
def test_damage_outside_a_body_is_found_in_any_file(root: Path, field_at: int) -> None:
    """Flag, time of birth, store time, an offset: none of them has a checksum in the record."""
    name = "00000000000000000000"
    at = record_positions(root, name)[3]
    content = bytearray((root / "commitlog" / name).read_bytes())
    content[at + field_at] ^= 1
    (root / "commitlog" / name).write_bytes(content)
    found = [str(finding) for finding in check(root).findings]
    assert f"{name} at {at}: the record is not what its sum says" in found[0]
    with pytest.raises(StoreDamaged, match="is not what its sum says"):
        list(dump_records(detect_config(str(root))))
    with pytest.raises(StoreDamaged, match="is not what its sum says"):
        backup_store(detect_config(str(root)), str(root.parent / "backup"), now_ms=1)


def test_a_store_without_sums_is_checked_by_what_its_format_says(root: Path) -> None:
    shutil.rmtree(root / "sums")
    assert check(root).findings == []


def test_a_rebuild_makes_sums_of_the_whole_log(root: Path) -> None:
    shutil.rmtree(root / "sums")
    rebuild_store(detect_config(str(root)), OsFiles(), HandClock())
    logs = {path.name for path in (root / "commitlog").iterdir()}
    assert {path.name for path in (root / "sums").iterdir()} == logs | {"index"}
    indexes = {path.name for path in (root / "index").iterdir()}
    assert {path.name for path in (root / "sums" / "index").iterdir()} == indexes
    assert check(root).findings == []
    test_damage_outside_a_body_is_found_in_any_file(root, 47)


def test_a_rebuild_refuses_a_log_that_is_damaged_outside_a_body(root: Path) -> None:
    name = "00000000000000000000"
    at = record_positions(root, name)[3]
    content = bytearray((root / "commitlog" / name).read_bytes())
    content[at + 47] ^= 1
    (root / "commitlog" / name).write_bytes(content)
    with pytest.raises(StoreDamaged, match="a record is damaged, and sound ones follow"):
        rebuild_store(detect_config(str(root)), OsFiles(), HandClock())
