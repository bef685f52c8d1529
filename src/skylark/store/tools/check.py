"""check_store: is everything in a store what the commit log says it should be?

The log is walked once: every record's checksum, position and queue offset. On the way the engine's
own dispatcher rebuilds queues and index in memory, piece by piece, and each piece is compared with
the files and dropped: what it takes is a few kilobytes a queue and one index file.

Nothing is written, and nothing is locked. While a broker runs on the store, the check ends at the
newest record that was in a queue when it began: up to there everything is written.

    state      bytes behind the log's end   queues or index lack the newest records
    clean      a finding                    a finding
    crashed    a note: the next start cuts  a note: the next start builds them
    running    not looked at                a finding
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ...protocol.record import DispatchInfo, decode_dispatch
from .. import append
from ..append import ENTRY_BYTES, Stop, tag_code
from ..checkpoint import Checkpoint
from ..config import StoreConfig
from ..files import OsFiles
from .check_index import IndexCheck
from .check_queues import QueueCheck
from .check_tables import check_tables
from .layout import index_paths, state_of
from .log_reader import LogReader, Progress, Window
from .report import RESTORE, CheckReport, Finding, StoreState


def check_store(
    config: StoreConfig,
    *,
    progress: Progress | None = None,
    wait: Callable[[], None] = lambda: None,
) -> CheckReport:
    """Compare everything in a store with its log; changes nothing.

    wait is called where a running broker should be given a tenth of a second.
    """
    root = config.store_path_root_dir
    report = CheckReport(root, state_of(root))
    log = LogReader.of(config)
    log.load()
    _check_log_files(log, config, report)
    report.log_start = log.start
    checkpoint = Checkpoint(OsFiles(), os.path.join(root, "checkpoint"))
    checkpoint.load()
    log.flushed = checkpoint.log_flushed
    queues = QueueCheck(config, log, report)
    index = IndexCheck(config, log, report) if index_paths(root) else None
    if index is None and log.files and config.message_index_enable:
        report.notes.append("there is no index: the next start of a broker builds it")
    goal = log.limit
    if report.state is StoreState.RUNNING:
        goal = max(log.start, queues.newest_physical())
    torn_from = checkpoint.log_flushed if report.state is StoreState.CRASHED else None
    _Walker(config, log, report, queues, index, progress).walk(goal, torn_from)
    queues.finish()
    if index is not None:
        index.finish(wait)
    if checkpoint.log_flushed > report.log_end and report.state is not StoreState.RUNNING:
        path, at = log.place_of(report.log_end)
        report.findings.append(
            Finding(
                path,
                at,
                f"the log ends here, and was flushed up to {checkpoint.log_flushed}: the disk lost"
                f" {checkpoint.log_flushed - report.log_end} bytes",
                RESTORE,
            )
        )
    check_tables(config, report, queues.end_of)
    return report


# The log.


def _check_log_files(log: LogReader, config: StoreConfig, report: CheckReport) -> None:
    listed = {os.path.basename(file.path) for file in log.files}
    for name in sorted(os.listdir(log.directory)):
        if name not in listed:
            report.findings.append(
                Finding(
                    os.path.join(log.directory, name),
                    0,
                    "does not belong here, and keeps brokers from starting",
                    "move it elsewhere",
                )
            )
    for number, file in enumerate(log.files):
        try:
            size = os.stat(file.path).st_size
        except FileNotFoundError:
            continue  # Retention was faster.
        if size != log.file_bytes:
            is_last = number == len(log.files) - 1
            report.findings.append(
                Finding(
                    file.path,
                    size,
                    f"is {size} bytes long, expected {log.file_bytes}",
                    "start a skylark broker on it: it makes the last file whole again"
                    if is_last and size < log.file_bytes
                    else RESTORE,
                )
            )
        if number and file.start != log.files[number - 1].start + log.file_bytes:
            missing = log.files[number - 1].start + log.file_bytes
            report.findings.append(
                Finding(
                    os.path.join(log.directory, f"{missing:020d}"),
                    0,
                    f"is missing, the next file begins at {file.start}",
                    RESTORE,
                )
            )


class _Walker:
    """Goes through the log once and feeds what it finds to queues and index."""

    def __init__(
        self,
        config: StoreConfig,
        log: LogReader,
        report: CheckReport,
        queues: QueueCheck,
        index: IndexCheck | None,
        progress: Progress | None,
    ) -> None:
        self._log = log
        self._report = report
        self._queues = queues
        self._index = index
        self._progress = progress
        self._delays_ms = config.delay_levels_ms
        self._last_stored_ms = -1

    def walk(self, goal: int, torn_from: int | None) -> None:
        """Check the records below an offset, which is a record's end or the end of the files."""
        log, report = self._log, self._report
        at = report.log_end = log.start
        while at < goal:
            for window in log.windows(at, torn_from=torn_from):
                if log.has_expired:
                    self._go_on_without(log.start)
                self._feed(window.cut(goal))
                if self._progress is not None:
                    self._progress("checking records", window.end - log.start, goal - log.start)
                if window.end >= goal:
                    break
            self._last_stored_ms = log.last_stored_ms
            report.log_end = min(log.end, goal)
            if log.end >= goal:
                return
            behind = self._next_sound()
            if behind is None:
                self._judge_tail()
                return
            path, place = log.place_of(log.end)
            report.findings.append(
                Finding(
                    path,
                    place,
                    f"{log.problem or 'zeros instead of a record'}; sound records follow at offset"
                    f" {behind}, {behind - log.end} bytes cannot be read",
                    RESTORE,
                )
            )
            self._queues.forgive_gaps()
            if self._index is not None:
                self._index.give_up("the log is damaged")
            at = behind

    def _go_on_without(self, start: int) -> None:
        """A running broker's retention has taken files that were not checked yet."""
        self._log.has_expired = False
        self._report.log_start = start
        self._queues.forgive_gaps()
        if self._index is not None:
            self._index.give_up("retention was at work")

    def _next_sound(self) -> int | None:
        """Where the log goes on behind a place without a record; None where it has its end."""
        log = self._log
        if log.end >= log.limit:
            return None
        behind = log.sound_record_after(log.end, self._progress)
        if behind is None:
            return None
        record = log.record(behind)
        info = None if record is None else decode_dispatch(record)
        if info is not None and info.stored_at_ms < self._last_stored_ms:
            cursor = self._queues.cursor_of(info.topic, info.queue_id)
            if cursor is not None and info.queue_offset * ENTRY_BYTES < cursor.write_at:
                # RocketMQ leaves the bytes of what it has cut away; newer records came since.
                self._report.notes.append(
                    f"behind the end of the log, at {behind}, lie records that were given up before"
                )
                return None
        return behind

    def _judge_tail(self) -> None:
        log, report = self._log, self._report
        behind = log.bytes_behind(log.end) if log.problem or log.end < log.limit else 0
        if not behind or report.state is StoreState.RUNNING or report.notes:
            return
        if report.state is StoreState.CRASHED:
            report.notes.append(
                f"the log ends at {log.end} with a torn record: the next start cuts {behind} bytes"
            )
            return
        path, at = log.place_of(log.end)
        report.findings.append(
            Finding(
                path,
                at,
                f"{log.problem or 'bytes that are no record'} after a clean stop; {behind} bytes"
                " are behind the last sound record",
                RESTORE,
            )
        )

    def _feed(self, window: Window) -> None:
        buffer, at = window.buffer, 0
        queues, index = self._queues, self._index
        while True:
            at, stop = append.dispatch_records(
                buffer,
                window.start,
                at,
                len(buffer),
                queues.table,
                None if index is None or index.is_broken else index.cursor,
                self._delays_ms,
                queues.dirty,
                [],
            )
            if stop is Stop.END:
                break
            info = decode_dispatch(buffer, at)
            assert info is not None
            self._feed_one(info)
            at += info.size_bytes
        self._report.record_count += count_records(buffer)

    def _feed_one(self, info: DispatchInfo) -> None:
        transaction = info.sys_flag & 0xC
        if transaction in (0x0, 0x8):
            self._queues.put(info, tag_code(info, self._delays_ms))
        if self._index is not None and not self._index.is_broken and transaction != 0xC:
            self._index.put(info)


def count_records(buffer: memoryview) -> int:
    """How many records a piece of the log holds."""
    count = at = 0
    while at < len(buffer):
        at += int.from_bytes(buffer[at : at + 4], "big")
        count += 1
    return count
