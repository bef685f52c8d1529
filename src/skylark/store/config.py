"""StoreConfig: what the engine can be told.

Names are RocketMQ's, in our spelling: mappedFileSizeCommitLog is mapped_file_size_commit_log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum

from ..errors import ConfigError

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

ENTRY_BYTES = 20
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(StrEnum):
    """When a message counts as stored."""

    ASYNC_FLUSH = "ASYNC_FLUSH"  # When it is in memory; the disk follows within the flush interval.
    SYNC_FLUSH = "SYNC_FLUSH"  # When it is on the disk.


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in milliseconds, the first being level 1."""
    delays = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()):
            raise ConfigError(
                f"messageDelayLevel: {word!r} is not a number with s, m, h or d; an example: 10s"
            )
        delays.append(int(number) * _UNIT_MS[unit])
    if not delays:
        raise ConfigError("messageDelayLevel: it is empty; leave it out for the 18 default levels")
    return tuple(delays)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of the engine; times in milliseconds, sizes in bytes unless a comment differs."""

    store_path_root_dir: str = field(default_factory=lambda: os.path.expanduser("~/store"))
    store_path_commit_log: str = ""  # Empty: commitlog under the root.

    # Geometry. A store opens only with the sizes it was written with.
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * ENTRY_BYTES  # Rounded up to whole entries.
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 << 20
    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000

    # Limits of one message.
    max_message_size: int = 4 << 20  # Of the body.
    message_delay_level: str = DELAY_LEVELS

    # Flush.
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: int = 5_000
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    transient_store_pool_enable: bool = False  # Ignored with SYNC_FLUSH, as in RocketMQ.
    transient_store_pool_size: int = 5
    commit_interval_commit_log: int = 200
    warm_maped_file_enable: bool = False  # RocketMQ's spelling.

    # Reads.
    access_message_in_memory_max_ratio: int = 40  # Per cent of the machine's memory.
    machine_memory_bytes: int = 0  # 0: ask the machine.
    max_transfer_bytes_on_message_in_memory: int = 256 << 10
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    max_transfer_count_on_message_in_disk: int = 8
    max_msgs_num_batch: int = 64  # Results of one key query.
    index_walk_max: int = 100_000  # Entries that one key query visits at most.

    # Retention.
    file_reserved_time: int = 72  # Hours.
    delete_when: str = "04"  # Hours of the day, separated by ";".
    clean_resource_interval: int = 10_000
    delete_commit_log_files_interval: int = 100
    delete_files_batch_max: int = 10
    disk_max_used_space_ratio: int = 75  # Per cent: expired files go at once.
    disk_space_clean_forcibly_ratio: int = 85  # Per cent: files go before they expire.
    disk_space_warning_level_ratio: int = 90  # Per cent: no more writes.
    # A ratio alone refuses writes on a large disk with plenty of room, so it counts only while
    # fewer than this many bytes are free. 0 leaves RocketMQ's rule, the ratio alone.
    disk_space_ample_bytes: int = 0
    disk_space_reserve_bytes: int = (
        0  # No more writes below this many free bytes, whatever the ratio.
    )
    clean_file_forcibly_enable: bool = True
    expiry_warning_ms: int = 6 * 3_600_000  # How far ahead the figure of expiring data looks.

    # Recovery.
    check_crc_on_recover: bool = True
    # Keep checksums of whole records and of the index in a directory that RocketMQ's broker passes
    # over; without them damage outside a body may go unseen.
    sums_enable: bool = True
    mapped_regions_max: int = 0  # 0: as many as the process may have.

    def __post_init__(self) -> None:
        if os.pathsep in self.store_path_commit_log or "," in self.store_path_commit_log:
            raise ConfigError(
                "storePathCommitLog: several directories are not supported; name one, on a volume"
                " that spans the disks"
            )
        self._require("mapped_file_size_commit_log", minimum=256, maximum=2**31 - 1)
        self._require("mapped_file_size_consume_queue", minimum=ENTRY_BYTES, maximum=2**31 - 21)
        self._require("mapped_file_size_consume_queue_ext", minimum=64, maximum=2**31 - 1)
        self._require("max_hash_slot_num", minimum=1, maximum=2**29)
        self._require("max_index_num", minimum=2, maximum=2**26)
        self._require("max_message_size", minimum=1, maximum=2**30)
        self._require("file_reserved_time", minimum=0, maximum=24 * 365 * 100)
        self._require("sync_flush_timeout", minimum=1, maximum=2**31 - 1)
        for name in ("disk_max_used_space_ratio", "access_message_in_memory_max_ratio"):
            self._require(name, minimum=1, maximum=100)
        self.delete_hours  # noqa: B018 - it raises where the text is wrong
        self.delay_levels_ms  # noqa: B018

    def _require(self, name: str, *, minimum: int, maximum: int) -> None:
        value = getattr(self, name)
        if not minimum <= value <= maximum:
            first, *rest = name.split("_")
            key = first + "".join(word.title() for word in rest)
            raise ConfigError(f"{key}: {value} is not between {minimum} and {maximum}")

    @property
    def commit_log_directory(self) -> str:
        """Where the commit log lies."""
        return self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")

    @property
    def consume_queue_file_bytes(self) -> int:
        """The size of a consume queue's file: whole entries."""
        return -(-self.mapped_file_size_consume_queue // ENTRY_BYTES) * ENTRY_BYTES

    @property
    def record_bytes_max(self) -> int:
        """The largest record: what a message may have, and a file has room for."""
        return min(self.max_message_size + (64 << 10), self.mapped_file_size_commit_log - 8)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay of each level, the first being level 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day in which expired files go."""
        words = [word.strip() for word in self.delete_when.split(";") if word.strip()]
        if any(not (w.isascii() and w.isdigit() and int(w) < 24) for w in words):
            raise ConfigError(
                f"deleteWhen: {self.delete_when!r} is not a list of hours like 04 or 02;14"
            )
        return frozenset(int(word) for word in words)

    @property
    def memory_distance_bytes(self) -> int:
        """Records this far behind the end of the log count as no longer in memory."""
        memory = self.machine_memory_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf(
            "SC_PAGE_SIZE"
        )
        return memory * self.access_message_in_memory_max_ratio // 100

    @property
    def is_sync_flush(self) -> bool:
        """Whether nothing is visible before it is on the disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH
