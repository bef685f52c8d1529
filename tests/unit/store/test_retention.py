"""What may go, when, and what a full disk does."""

import asyncio
import dataclasses
import time

import pytest

from skylark.errors import StoreUnreadable
from skylark.protocol.record import decode_records
from skylark.store import DiskSpace, GetStatus, MessageStore, PutStatus
from skylark.store.retention import Retention, judge
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock, StoreModel, make_message

HOUR_MS = 3_600_000
CONFIG = dataclasses.replace(TINY, file_reserved_time=2, delete_when="04")


def at_hour(hour):
    """A wall time in this hour of the local day."""
    base = 1_767_225_600_000
    return next(
        base + number * HOUR_MS
        for number in range(24)
        if time.localtime(base / 1000 + number * 3600).tm_hour == hour
    )


class World:
    def __init__(self, config=CONFIG, hour=12, **callbacks):
        self.clock = HandClock(at_hour(hour))
        self.files = SimFiles(now_ms=self.clock.now_ms, capacity_bytes=1_000_000)
        self.config = config
        self.store = MessageStore.open(config, self.files, self.clock)
        self.model = StoreModel()
        for number in range(60):
            message = make_message(body=b"%d" % number * 100, keys="k")
            self.model.put(self.store, [message])
        self.store.flush()
        self.retention = Retention(self.store, self.clock, **callbacks)
        self.count = len(self.store.log.mapped)
        assert self.count >= 4


def test_nothing_goes_before_its_time():
    world = World(hour=4)
    world.clock.advance_ms(HOUR_MS // 2)
    assert world.retention.clean() == 0


def test_expired_files_go_in_the_hour_of_delete_when_and_queues_follow():
    world = World(hour=1)
    world.clock.advance_ms(3 * HOUR_MS)
    assert world.retention.clean() == world.count - 1, "the last file stays"
    start = world.store.log.start
    assert start > 0
    world.model.check(world.store)
    first = world.store.min_offset("TopicTest", 0)
    entry = world.store.queues.get("TopicTest", 0).entry(first)
    assert entry.physical_offset >= start
    names = world.files.list_names("/store/consumequeue/TopicTest/0")
    assert int(names[0]) > 0
    header = world.store.index.header(world.store.index.index_files[0])
    assert header.end_physical >= start
    world.store.close()
    again = MessageStore.open(CONFIG, world.files, world.clock)
    world.model.check(again)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_is_passed_over_while_files_go_and_queues_are_not_told_yet(count):
    """Who reads on where a file was must hear of it, or takes what follows for all there is."""
    world = World()
    for _ in range(count):
        world.store.log.detach_first().remove()
    found = world.store.get("TopicTest", 0, 0, 32)
    assert found.status is GetStatus.OFFSET_TOO_SMALL
    first = world.store.queues.get("TopicTest", 0).entry(found.next_offset)
    assert first.physical_offset == world.store.log.start
    assert found.min_offset == found.next_offset == world.store.min_offset("TopicTest", 0)
    after = world.store.get("TopicTest", 0, found.next_offset, 1)
    assert decode_records(after.body)[0].queue_offset == found.next_offset


def test_at_other_hours_expired_files_wait_unless_asked_for():
    world = World(hour=12)
    world.clock.advance_ms(5 * HOUR_MS)
    assert world.retention.clean() == 0
    world.retention.clean_soon()
    assert world.retention.clean() > 0


@pytest.mark.parametrize(
    ("used", "expired", "forced", "refuses"),
    [(75, False, False, False), (76, True, False, False), (85, True, False, False),
     (86, True, True, False), (90, True, True, False), (91, True, True, True)],
)  # fmt: skip
def test_the_marks_are_rocketmqs(used, expired, forced, refuses):
    verdict = judge(CONFIG, DiskSpace(used_bytes=used * 10, free_bytes=1000 - used * 10))
    assert (verdict.cleans_expired, verdict.cleans_forcibly, verdict.refuses_writes) == (
        expired, forced, refuses,
    )  # fmt: skip


def test_ample_space_overrules_the_ratios_and_a_reserve_overrules_that():
    config = dataclasses.replace(CONFIG, disk_space_ample_bytes=20 << 30)
    space = DiskSpace(used_bytes=970 << 30, free_bytes=30 << 30)
    assert not judge(config, space).refuses_writes
    assert judge(CONFIG, space).refuses_writes
    config = dataclasses.replace(config, disk_space_reserve_bytes=40 << 30)
    assert judge(config, space).refuses_writes


def fill_to(world, per_cent):
    used = world.files._used()
    world.files.foreign_bytes = world.files.capacity_bytes * per_cent // 100 - used


def test_above_the_first_mark_expired_files_go_at_any_hour():
    world = World(hour=12)
    world.clock.advance_ms(3 * HOUR_MS)
    fill_to(world, 80)
    assert world.retention.clean() > 0


def test_above_the_second_mark_the_oldest_go_before_their_time_until_there_is_room():
    world = World(hour=12)
    fill_to(world, 86)
    world.files.foreign_bytes += 5000
    assert world.retention.clean() > 0
    assert world.retention.figures.forced_removals > 0
    assert len(world.store.log.mapped) >= 1
    world.model.check(world.store)


def test_above_the_third_mark_writes_are_refused_and_come_back_by_themselves():
    world = World()
    fill_to(world, 95)
    assert world.retention.look().refuses_writes
    (result,) = world.store.put([make_message()])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    world.model.check(world.store)
    world.files.foreign_bytes = 0
    world.retention.look()
    world.model.put(world.store, [make_message()])
    assert world.model.appended[-1].message.body == b"hello"


def test_an_append_that_found_no_room_is_allowed_again_once_there_is_some():
    world = World()
    world.files.foreign_bytes = world.files.capacity_bytes
    statuses = {world.store.put([make_message(body=b"x" * 2500)])[0].status for _ in range(3)}
    assert PutStatus.CREATE_MAPEDFILE_FAILED in statuses
    assert world.store.is_disk_full
    world.files.foreign_bytes = 0
    world.retention.look()
    assert world.store.put([make_message(body=b"x" * 2500)])[0].status is PutStatus.PUT_OK


def test_undelivered_messages_are_kept_though_expired():
    undelivered = [5000]
    world = World(hour=1, undelivered_from=lambda: undelivered[0])
    world.clock.advance_ms(3 * HOUR_MS)
    assert world.retention.clean() == 1
    assert world.store.log.start == 4096
    undelivered[0] = None
    assert world.retention.clean() > 0


def test_a_full_disk_takes_undelivered_messages_and_counts_them():
    world = World(undelivered_from=lambda: 0)
    fill_to(world, 86)
    world.files.foreign_bytes += 5000
    world.retention.clean()
    assert world.retention.figures.protected_removals > 0


def test_data_that_expires_unread_is_measured_before_it_goes():
    unconsumed = [None]
    config = dataclasses.replace(CONFIG, expiry_warning_ms=HOUR_MS)
    world = World(config, unconsumed_from=lambda: unconsumed[0])
    world.retention.clean()
    assert world.retention.figures.expiring_bytes == 0
    world.clock.advance_ms(HOUR_MS * 3 // 2)
    world.retention.clean()
    expiring = world.retention.figures.expiring_bytes
    assert expiring == (world.count - 1) * 4096
    assert world.retention.figures.expiring_unconsumed_bytes == 0
    unconsumed[0] = 4096
    world.retention.clean()
    assert world.retention.figures.expiring_unconsumed_bytes == expiring - 4096


def test_files_whose_queue_entries_are_not_durable_wait_for_the_checkpoint():
    world = World(hour=1)
    while len(world.store.log.mapped) < world.count + 3:
        world.model.put(world.store, [make_message(body=b"x" * 1500)])
    flushed = world.store.checkpoint.queues_flushed
    world.clock.advance_ms(3 * HOUR_MS)
    world.retention.clean()
    assert world.store.log.start <= flushed
    assert world.store.wants_checkpoint
    world.store.flush()
    assert world.retention.clean() > 0


def test_a_file_that_cannot_be_removed_does_not_stop_the_rest():
    world = World(hour=1)
    world.clock.advance_ms(3 * HOUR_MS)
    world.files.fail("remove", "*/commitlog/*")
    assert world.retention.clean() == world.count - 1
    assert world.retention.figures.files_removed >= world.count - 2
    with pytest.raises(StoreUnreadable):
        world.files.map("/none", 5)


def test_queues_without_a_readable_message_can_be_dropped():
    world = World(hour=1)
    world.model.put(world.store, [make_message("Fresh")])
    world.store.flush()
    world.clock.advance_ms(3 * HOUR_MS)
    while world.retention.clean():
        pass
    for _ in range(3):
        world.store.put([make_message("Fresh", body=b"y" * 2500)])
    world.store.flush()
    world.clock.advance_ms(24 * HOUR_MS)
    world.retention.clean()
    assert world.store.min_offset("TopicTest", 0) == 60
    assert world.retention.remove_expired_queues(keep=lambda topic: topic == "TopicTest") == 0
    assert world.retention.remove_expired_queues() == 1
    assert ("TopicTest", 0) not in world.store.queues.names
    assert world.store.max_offset("Fresh", 0) == 4


def test_looking_and_cleaning_run_in_the_background():
    world = World(hour=1)
    world.clock.advance_ms(3 * HOUR_MS)

    async def run():
        # Files are removed on a thread, which may have to wait for its turn.
        async with asyncio.timeout(20), world.retention.running():
            while len(world.store.log.mapped) > 1:
                await asyncio.sleep(0.001)

    asyncio.run(run())
    assert len(world.store.log.mapped) == 1


def test_an_error_of_the_disk_ends_the_store_as_a_writer_and_nothing_else():
    world = World(hour=1)
    world.clock.advance_ms(3 * HOUR_MS)
    world.files.fail("sync", "*/commitlog", times=None)
    told = []
    world.store.on_failure = told.append

    async def run():
        async with asyncio.timeout(20), world.retention.running():
            while world.store.failure is None:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)

    asyncio.run(run())
    assert isinstance(world.store.failure, StoreUnreadable)
    assert told == [world.store.failure]
    assert world.store.put([make_message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    assert world.store.get("TopicTest", 0, 59, 1).message_count == 1


def test_errors_of_the_body_and_of_a_duty_come_out_as_they_went_in():
    world = World(hour=1)

    async def run(body):
        async with world.retention.running():
            await body()

    async def refuse():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(run(refuse))

    def broken():
        raise AssertionError("an invariant")

    world.retention.look = broken
    with pytest.raises(AssertionError, match="an invariant"):
        asyncio.run(run(lambda: asyncio.sleep(5)))


@pytest.mark.parametrize("damage", ["an entry", "the length", "a crash"])
def test_a_damaged_queue_whose_messages_have_expired_goes_on_at_its_offset(damage):
    world = World(hour=1)
    for _ in range(3):
        world.store.put([make_message("Fresh", body=b"y" * 2500)])
    world.store.flush()
    world.clock.advance_ms(3 * HOUR_MS)
    while world.retention.clean():
        pass
    assert world.store.min_offset("TopicTest", 0) == world.store.max_offset("TopicTest", 0) == 60
    if damage == "a crash":
        world.files.end_process()
    else:
        world.store.close()
    directory = "/store/consumequeue/TopicTest/0"
    path = f"{directory}/{world.files.list_names(directory)[-1]}"
    if damage == "the length":
        world.files.truncate(path, 130)
    else:
        world.files.overwrite(path, 8, b"\xff" * 4)
        world.files.overwrite(path, 190, b"\xff" * 5)
    with MessageStore.open(world.config, world.files, world.clock) as store:
        [result] = store.put([make_message()])
        assert result.queue_offset == 60
        assert store.min_offset("TopicTest", 0) == 60
        store.flush()
        assert store.get("TopicTest", 0, 60, 1).message_count == 1
    with MessageStore.open(world.config, world.files, world.clock) as store:
        assert store.max_offset("TopicTest", 0) == 61
