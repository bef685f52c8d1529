"""I37, M1, I33, I32: views outlive their files, queues open lazily, nothing is left behind."""

import dataclasses
import gc
import os
import random

from skylark.clock import SystemClock
from skylark.store import FlushDiskType, MessageStore, OsFiles, PutStatus
from skylark.store.retention import Retention
from skylark.testing.files import SimFiles
from skylark.testing.stores import TINY, HandClock, make_message, read_all

HOUR_MS = 3_600_000


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps_of(root: str) -> int:
    with open("/proc/self/maps") as file:
        return sum(root in line for line in file)


def test_views_stay_readable_while_retention_deletes_under_load(tmp_path):
    """500 deletions, each with views of the file in somebody's hands."""
    clock = HandClock()
    config = dataclasses.replace(
        TINY,
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=128 << 10,
        max_message_size=64 << 10,
        delete_when="",
        file_reserved_time=0,
    )
    rng = random.Random(37)
    deleted = 0
    held: list[tuple[memoryview, bytes]] = []
    with MessageStore.open(config, OsFiles(), clock) as store:
        retention = Retention(store, SystemClock())
        number = 0
        while deleted < 500:
            for _ in range(rng.randrange(3, 9)):
                number += 1
                # Beyond 16 KiB a read hands out the mapping itself, not a copy.
                body = b"%08d" % number * rng.randrange(2_200, 3_500)
                [result] = store.put([make_message("TopicA", number % 2, body)])
                assert result.status is PutStatus.PUT_OK
                record = store.get_by_physical_offset(result.physical_offset)
                assert record is not None
                if rng.random() < 0.3:
                    held.append((record, bytes(record)))
            for queue_id in (0, 1):
                found = store.get("TopicA", queue_id, store.min_offset("TopicA", queue_id), 4)
                held += [(v, bytes(v)) for v in found.chunks if isinstance(v, memoryview)]
            store.flush()
            retention.clean_soon()
            deleted += retention.clean()
            if rng.random() < 0.2:
                store.drop_topic("TopicA")
            for view, content in held:
                assert view == content
            # Some let go, some hold on for long.
            held = [pair for pair in held[-200:] if rng.random() < 0.9]
        assert any(view for view, _ in held)
        assert len(store.log.mapped) < 10
        held.clear()
        gc.collect()
        assert maps_of(str(tmp_path)) <= store._cache._count_max + len(store.log.mapped)


def test_two_thousand_queues_open_lazily_within_the_limit_of_maps():
    clock = HandClock()
    files = SimFiles(map_limit=64)
    config = dataclasses.replace(TINY, mapped_file_size_commit_log=1 << 20)
    names = [(f"Topic{number:03d}", queue_id) for number in range(500) for queue_id in range(4)]
    with MessageStore.open(config, files, clock) as store:
        for start in range(0, len(names), 50):
            results = store.put([make_message(*name, b"x") for name in names[start : start + 50]])
            assert {result.status for result in results} == {PutStatus.PUT_OK}
        assert files.open_regions <= 64 + 2
    with MessageStore.open(config, files, clock) as store:
        opened_at_start = files.open_regions
        assert opened_at_start <= 64 + 2
        for topic, queue_id in random.Random(33).sample(names, 300):
            assert len(read_all(store, topic, queue_id)) == 1
        assert files.open_regions <= 64 + 2
        results = store.put([make_message(*name, b"y") for name in names])
        assert {result.queue_offset for result in results} == {1}
        assert files.open_regions <= 64 + 2
    gc.collect()
    assert files.open_regions == 0


def test_two_hundred_stores_leave_no_descriptor_and_no_map_behind(tmp_path):
    config = dataclasses.replace(
        TINY,
        store_path_root_dir=str(tmp_path / "store"),
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )
    gc.collect()
    before = open_descriptors()
    for number in range(200):
        with MessageStore.open(config, OsFiles(), SystemClock()) as store:
            store.put([make_message("TopicA", number % 4, b"x" * 500, keys="k1")])
            store.flush()
            store.get("TopicA", number % 4, 0, 32)
            store.query("TopicA", "k1", count_max=9, begin_ms=0, end_ms=2**60)
    gc.collect()
    assert open_descriptors() <= before
    assert maps_of(str(tmp_path)) == 0
