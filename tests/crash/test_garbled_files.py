"""I05, I06: files cut, zeroed, overwritten, flipped, missing, of another size."""

import dataclasses
import random

import pytest
from crash_judge import Judge, require
from crash_script import ASYNC, SYNC
from garbling import campaign, kind_of, specimen

from skylark.broker.saved_table import SavedTable
from skylark.errors import StoreDamaged, StoreError, StoreTooNew, StoreUnreadable
from skylark.protocol.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from skylark.store import MessageStore
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock, make_message

CASES_EACH = 2_500
TABLE_CASES = 2_000
TABLES = {
    TopicConfigTable: b'{"dataVersion":{"counter":4,"timestamp":1794726906418},"topicConfigTable":'
    b'{"T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}',
    SubscriptionGroupTable: b'{"dataVersion":{"counter":1,"timestamp":1794726902794},'
    b'"subscriptionGroupTable":{"CG":{"brokerId":0,"consumeEnable":true,"groupName":"CG",'
    b'"retryMaxTimes":16}}}',
    ConsumerOffsetTable: b'{"offsetTable":{"%RETRY%CG@CG":{0:4},"T@CG":{0:2,1:0,2:1,3:1}}}',
    DelayOffsetTable: b'{"offsetTable":{1:1,3:4}}',
}


@pytest.mark.parametrize("seed", range(4))
def test_a_garbled_tail_opens_to_what_is_intact_or_is_refused_by_name(seed):
    tally, outcomes = campaign(seed=seed, count=CASES_EACH)
    assert [str(finding) for finding in tally.findings] == []
    assert tally.states == CASES_EACH
    # Each kind of file was met, and damage made a difference.
    assert {name.split()[0] for name in outcomes} == {
        "log",
        "queue",
        "index",
        "sums",
        "checkpoint",
    }
    assert outcomes["log refused"] > 50
    assert outcomes["log shorter"] > 20


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_a_garbled_table_is_read_from_its_backup_or_refused_by_name(kind):
    older, newer = TABLES[kind].replace(b"4", b"3"), TABLES[kind]
    rng = random.Random(len(newer))
    wanted = {kind.from_json(older).to_json(), kind.from_json(newer).to_json()}
    for number in range(TABLE_CASES // len(TABLES)):
        files = SimFiles()
        files.make_directory("/store/config")
        path = "/store/config/table.json"
        files.replace(path, older)
        files.replace(path, newer)
        at = rng.randrange(len(newer))
        damage = ("cut", "zero", "ones", "flip", "random")[number % 5]
        if damage == "cut":
            files.truncate(path, at)
        elif damage == "flip":
            files.flip_bit(path, at, rng.randrange(8))
        else:
            size = rng.randrange(1, 30)
            piece = {"zero": bytes(size), "ones": b"\xff" * size}.get(damage, rng.randbytes(size))
            files.overwrite(path, at, piece[: len(newer) - at])
        try:
            found = SavedTable(path, files, kind).load()
        except StoreError:
            continue  # Neither could be read, and it says so.
        assert found is not None
        if damage == "cut" and at < len(newer.rstrip(b"} \n")):
            # JSON cut short is no JSON: the backup must have taken its place.
            assert found.to_json() in wanted


def opened(disk, config=SYNC):
    return MessageStore.open(config, disk, HandClock(specimen("clean").now_ms))


CASES = [
    (name, path)
    for name in ("clean", "crashed")
    for path in specimen(name).disk.all_paths()
    if kind_of(path) != "lock"
]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_a_missing_file_is_made_again_or_named(name, path):
    kept = specimen(name)
    disk = kept.disk.copy()
    disk.remove(path)
    try:
        store = opened(disk)
    except StoreDamaged as error:
        assert kind_of(path) == "log"
        require(path in str(error) or "commitlog" in str(error), str(error))
        return
    with store:
        end = store.log.appended
        judge = Judge(SYNC, kept.now_ms)
        if kind_of(path) == "log" and int(path.rsplit("/", 1)[1]) > 0:
            # The newest file can be missing without a hole, and then it must be said.
            assert end <= int(path.rsplit("/", 1)[1])
            assert store.recovery.problems
        else:
            # Without its first file a log looks as if retention had been there.
            assert end == kept.history[-1].end
        judge.checks_all_keys = kind_of(path) in ("index", "sums")
        judge.check_derived(store, tuple(item for item in kept.history if item.end <= end))


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
@pytest.mark.parametrize(("name", "path"), CASES)
def test_a_file_of_another_size_is_repaired_or_named(name, path, size):
    kept = specimen(name)
    if kind_of(path) in ("abort", "lock"):
        return
    disk = kept.disk.copy()
    content = disk.read(path)
    disk.remove(path)
    disk.create(path, size, reserve=False)
    disk.overwrite(path, 0, content[:size])
    try:
        store = opened(disk)
    except (StoreDamaged, StoreUnreadable) as error:
        require(kind_of(path) == "log" or name == "clean", str(error))
        require(path in str(error), str(error))
        return
    with store:
        end = store.log.appended
        survivors = tuple(item for item in kept.history if item.end <= end)
        if kind_of(path) == "log":
            damaged_at = int(path.rsplit("/", 1)[1]) + size
            assert all(item in survivors for item in kept.history if item.end <= damaged_at)
        else:
            assert end == kept.history[-1].end
        Judge(SYNC, kept.now_ms).check_derived(store, survivors)


def test_damage_in_the_middle_of_the_log_is_reported_at_the_next_start():
    """I06: 50 flips in records that were flushed, within what a start examines."""
    kept = specimen("clean")
    rng = random.Random(6)
    last = [path for path in kept.disk.all_paths() if kind_of(path) == "log"][-3:]
    start = int(last[0].rsplit("/", 1)[1])
    inside = [i for i in kept.history[:-1] if i.physical_offset >= start and i.message.body]
    for _ in range(50):
        item = rng.choice(inside)
        body_at = item.raw.index(bytes(item.message.body), 80)
        at = item.physical_offset + body_at + rng.randrange(len(item.message.body))
        disk = kept.disk.copy()
        disk.flip_bit(f"/store/commitlog/{at // 4096 * 4096:020d}", at % 4096, rng.randrange(8))
        with pytest.raises(StoreDamaged) as caught:
            opened(disk)
        assert f"{item.physical_offset // 4096 * 4096:020d}" in str(caught.value)
        assert "skylark store check" in str(caught.value)


def test_a_head_damaged_in_an_old_file_is_reported_when_it_is_met():
    kept = specimen("clean")
    item = next(i for i in kept.history if i.is_queued)
    disk = kept.disk.copy()
    disk.flip_bit("/store/commitlog/00000000000000000000", item.physical_offset + 5, 3)
    with pytest.raises(StoreError) as caught, opened(disk) as store:
        store.get(item.message.topic, item.message.queue_id, item.queue_offset, 32)
    assert "skylark store check" in str(caught.value)


def test_a_store_of_a_newer_version_is_refused():
    disk = specimen("clean").disk.copy()
    content = bytearray(disk.read("/store/checkpoint"))
    from skylark.store import checkpoint

    for place in (512, 1024):
        body = bytes(content[place + 16 : place + 104])
        content[place + 8 : place + 12] = (2).to_bytes(4, "big")
        content[place + 12 : place + 16] = checkpoint._checksum(2, body).to_bytes(4, "big")
    disk.overwrite("/store/checkpoint", 0, bytes(content))
    with pytest.raises(StoreTooNew, match="newer skylark"):
        opened(disk)


def test_a_store_opens_only_with_the_sizes_it_was_written_with():
    for change in ({"mapped_file_size_commit_log": 8192}, {"max_index_num": 40}):
        with pytest.raises(StoreDamaged):
            opened(specimen("clean").disk.copy(), dataclasses.replace(ASYNC, **change))


def test_a_foreign_file_in_the_log_is_named():
    disk = specimen("clean").disk.copy()
    disk.create("/store/commitlog/notes.txt", 10, reserve=False)
    with pytest.raises(StoreDamaged, match=r"notes\.txt"):
        opened(disk)


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "", ".", "..", "x" * 128, "a\0b", "a b"])
def test_a_topic_that_is_a_path_never_reaches_the_disk(topic):
    disk = SimFiles()
    with MessageStore.open(SYNC, disk, HandClock()) as store:
        before = disk.all_paths()
        [result] = store.put([make_message(topic, 0, b"x")])
        assert result.status.name == "MESSAGE_ILLEGAL"
        assert disk.all_paths() == before
