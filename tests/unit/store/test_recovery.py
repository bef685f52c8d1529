"""What a start makes of what it finds: clean, crashed, damaged, incomplete, or by another."""

import dataclasses
import random

import pytest

from skylark.errors import StoreDamaged
from skylark.store import FlushDiskType, MessageStore
from skylark.testing.files import SimFiles
from skylark.testing.stores import (
    TINY,
    HandClock,
    StoreModel,
    derived_files,
    make_message,
    rebuilt_files,
)

SYNC = dataclasses.replace(TINY, flush_disk_type=FlushDiskType.SYNC_FLUSH)
LOG = "/store/commitlog/00000000000000000000"


class World:
    """A store, its disk and what it must hold."""

    def __init__(self, config=TINY):
        self.config = config
        self.clock = HandClock()
        self.files = SimFiles(now_ms=self.clock.now_ms)
        self.model = StoreModel()
        self.store = MessageStore.open(config, self.files, self.clock)

    def put(self, count, **options):
        for _ in range(count):
            number = len(self.model.appended)
            message = make_message(
                f"Topic{number % 2}", number % 3, b"%03d" % number * 40, keys=f"k{number % 4}",
                tag="TagA", **options,
            )  # fmt: skip
            self.model.put(self.store, [message])
            self.clock.advance_ms(100)

    def reopen(self, files=None):
        self.files = self.files.copy() if files is None else files
        self.store = MessageStore.open(self.config, self.files, self.clock)
        return self.store.recovery

    def check(self):
        self.model.check(self.store)
        for key in ("k0", "k3"):
            for topic in ("Topic0", "Topic1"):
                found = self.store.query(topic, key, count_max=64, begin_ms=0, end_ms=2**62)
                expected = [
                    item
                    for item in self.model.appended
                    if item.message.topic == topic
                    and f"KEYS\x01{key}".encode() in item.message.properties
                ]
                assert len(found.records) == min(64, len(expected))
        self.store.close()
        assert derived_files(self.files, self.config) == rebuilt_files(self.files, self.config)


@pytest.fixture
def world():
    made = World()
    made.put(60)
    return made


def test_a_clean_stop_is_taken_up_where_it_ended(world):
    world.store.close()
    report = world.reopen()
    assert report.was_clean
    assert report.problems == []
    assert report.log_end == world.model.appended[-1].end
    world.put(3)
    world.check()


def test_a_killed_process_loses_nothing(world):
    report = world.reopen()
    assert not report.was_clean
    assert report.log_end == world.model.appended[-1].end
    assert report.dropped_bytes == 0
    world.put(3)
    world.check()


def test_the_tail_that_a_power_cut_tore_is_cut_off(world):
    world.store.flush()
    flushed = world.store.log.flushed
    world.put(10)
    lost = 0
    for seed in range(20):
        after = World.__new__(World)
        after.config, after.clock = world.config, world.clock
        after.model = StoreModel(list(world.model.appended))
        after.files = world.files.crash(random.Random(seed))
        after.store = MessageStore.open(after.config, after.files, after.clock)
        lost += after.model.cut(after.store.log.appended, flushed=flushed)
        after.put(2)
        after.check()
    assert lost > 0


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("gone", [("checkpoint",), ("consumequeue",), ("index",),
                                  ("consumequeue", "index", "checkpoint")])  # fmt: skip
def test_what_is_missing_is_built_again(world, gone, is_clean):
    if is_clean:
        world.store.close()
    else:
        world.store.flush()
    disk = world.files.copy()
    for name in list(disk._names):
        if name.startswith(tuple(f"/store/{part}" for part in gone)):
            disk.remove(name)
    for directory in sorted(disk._directories, key=len, reverse=True):
        if directory.startswith("/store/consumequeue") and "consumequeue" in gone:
            disk.remove_directory(directory)
    world.reopen(disk)
    world.put(3)
    world.check()


def test_one_missing_queue_is_noticed_and_built_again(world):
    world.store.close()
    disk = world.files.copy()
    for name in disk.list_names("/store/consumequeue/Topic1/2"):
        disk.remove(f"/store/consumequeue/Topic1/2/{name}")
    disk.remove_directory("/store/consumequeue/Topic1/2")
    report = world.reopen(disk)
    assert "missing" in report.problems[0]
    world.check()


def test_a_checkpoint_ahead_of_the_log_is_not_believed(world):
    world.store.close()
    old_log = {
        name: world.files.read(f"/store/commitlog/{name}")
        for name in world.files.list_names("/store/commitlog")
    }
    world.reopen()
    world.put(30)
    world.store.close()
    disk = world.files.copy()
    for name in disk.list_names("/store/commitlog"):
        if name in old_log:
            disk.overwrite(f"/store/commitlog/{name}", 0, old_log[name])
        else:
            disk.remove(f"/store/commitlog/{name}")
    report = world.reopen(disk)
    assert any("ahead of the log" in problem for problem in report.problems)
    assert report.lost_flushed_bytes > 0
    world.model.cut(report.log_end, flushed=0)
    world.check()


def test_damage_before_sound_records_is_refused_and_named(world):
    world.store.close()
    disk = world.files.copy()
    victim = world.model.appended[-4]
    name = f"/store/commitlog/{victim.physical_offset // 4096 * 4096:020d}"
    disk.flip_bit(name, victim.physical_offset % 4096 + 90)
    with pytest.raises(StoreDamaged, match="damaged, and sound ones follow") as caught:
        MessageStore.open(world.config, disk, world.clock)
    assert caught.value.path == name
    assert caught.value.at == victim.physical_offset % 4096
    assert "skylark store check" in caught.value.next_step
    assert not disk.exists("/store/abort"), "nothing was touched"


def test_damage_in_what_was_flushed_is_refused_after_a_crash_as_well(world):
    world.store.flush()
    world.put(1)
    disk = world.files.copy()
    victim = world.model.appended[-5]
    name = f"/store/commitlog/{victim.physical_offset // 4096 * 4096:020d}"
    disk.flip_bit(name, victim.physical_offset % 4096 + 90)
    with pytest.raises(StoreDamaged):
        MessageStore.open(world.config, disk, world.clock)


def test_a_damaged_last_record_is_cut_off_and_reported(world):
    world.store.close()
    disk = world.files.copy()
    victim = world.model.appended[-1]
    name = f"/store/commitlog/{victim.physical_offset // 4096 * 4096:020d}"
    disk.flip_bit(name, victim.physical_offset % 4096 + 90)
    report = world.reopen(disk)
    assert report.log_end == victim.physical_offset
    assert report.lost_flushed_bytes == victim.size_bytes
    assert report.problems
    world.model.appended.pop()
    world.check()


def test_records_given_up_do_not_come_back_to_life(world):
    """A truncated tail is zeroed on the disk, not only passed over in memory."""
    world.store.flush()
    world.put(6)
    disk = world.files.copy()
    victim = world.model.appended[-6]
    name = f"/store/commitlog/{victim.physical_offset // 4096 * 4096:020d}"
    disk.overwrite(name, victim.physical_offset % 4096, bytes(40))
    world.reopen(disk)
    assert world.store.recovery.dropped_bytes > 0
    world.model.cut(world.store.log.appended, flushed=0)
    for seed in range(10):
        again = world.files.crash(random.Random(seed))
        store = MessageStore.open(world.config, again, world.clock)
        assert store.log.appended == victim.physical_offset
        assert store.recovery.dropped_bytes == 0


def test_a_file_made_ahead_is_not_taken_for_a_part_of_the_log(world):
    world.store.log.prepare_next_file()
    count = len(world.files.list_names("/store/commitlog"))
    report = world.reopen()
    assert report.log_end == world.model.appended[-1].end
    assert len(world.store.log.mapped) == count - 1
    world.check()
    assert len(world.files.list_names("/store/commitlog")) == count - 1


def test_a_half_made_file_is_cleared_away(world):
    world.store.close()
    world.files.create("/store/.new-00000000000000004096", 10, reserve=False)
    world.reopen()
    assert not world.files.exists("/store/.new-00000000000000004096")
    world.check()


def test_a_log_that_is_gone_while_its_queues_are_not_is_refused(world):
    world.store.close()
    disk = world.files.copy()
    for name in disk.list_names("/store/commitlog"):
        disk.remove(f"/store/commitlog/{name}")
    with pytest.raises(StoreDamaged, match="the commit log is gone"):
        MessageStore.open(world.config, disk, world.clock)


def test_a_store_of_only_a_log_is_opened(world):
    """What RocketMQ does with it, too: queues and index are made from it."""
    world.store.close()
    disk = SimFiles(now_ms=world.clock.now_ms)
    disk.make_directory("/store/commitlog")
    for name in world.files.list_names("/store/commitlog"):
        disk.create(f"/store/commitlog/{name}", 4096, reserve=True)
        disk.overwrite(f"/store/commitlog/{name}", 0, world.files.read(f"/store/commitlog/{name}"))
    world.reopen(disk)
    world.check()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_store_that_rocketmq_wrote_on_is_taken_up_by_its_times(world, is_clean):
    """RocketMQ keeps the three times and knows nothing of our marks."""
    world.store.flush()
    if is_clean:
        world.store.close()
    disk = world.files.copy()
    checkpoint = bytearray(disk.read("/store/checkpoint"))
    checkpoint[512:2048] = bytes(1536)
    disk.overwrite("/store/checkpoint", 0, bytes(checkpoint))
    report = world.reopen(disk)
    assert report.was_clean is is_clean
    world.put(2)
    world.check()


def test_old_stale_bytes_behind_the_end_are_not_taken_for_records(world):
    """RocketMQ leaves a truncated tail in place; those records say that they lie elsewhere."""
    world.store.close()
    disk = world.files.copy()
    name = f"/store/commitlog/{world.store.recovery.log_start:020d}"
    end = world.model.appended[-1].end
    last = f"/store/commitlog/{end // 4096 * 4096:020d}"
    stale = disk.read(name)[: world.model.appended[0].size_bytes]
    if end % 4096 + len(stale) < 4096:
        disk.overwrite(last, end % 4096, stale)
    report = world.reopen(disk)
    assert report.log_end == end
    world.check()


def test_progress_is_reported(world):
    world.store.flush()
    world.put(20)
    seen = []
    MessageStore.open(
        world.config, world.files.copy(), world.clock, progress=lambda *step: seen.append(step)
    )
    assert {what for what, _, _ in seen} == {"checking the log", "building queues"}
    assert all(0 <= done <= total for _, done, total in seen)


def test_nothing_visible_disappears_with_sync_flush():
    world = World(SYNC)
    for number in range(30):
        world.put(1)
        if number % 3 == 0:
            work = world.store.begin_flush()
            work.run()
            world.store.end_flush(work)
        visible = {
            (topic, queue_id): world.store.max_offset(topic, queue_id)
            for topic, queue_id in world.store.queues.names
        }
        after = MessageStore.open(SYNC, world.files.crash(random.Random(number)), world.clock)
        for (topic, queue_id), offset in visible.items():
            assert after.max_offset(topic, queue_id) >= offset


def test_a_queue_that_was_deleted_and_made_again_is_rebuilt_in_its_second_life():
    world = World()
    world.model.put(world.store, [make_message("Again", body=b"%d" % n) for n in range(7)])
    world.store.drop_topic("Again")
    world.model.appended.clear()
    world.model.put(world.store, [make_message("Again", body=b"new %d" % n) for n in range(3)])
    world.store.close()
    disk = world.files.copy()
    disk.remove("/store/checkpoint")
    world.reopen(disk)
    world.model.check(world.store)
