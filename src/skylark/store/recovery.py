"""Recovery: after a clean stop, after a crash: what is trusted, what is rebuilt.

The commit log is the only truth. Recovery answers two questions: where does it end, and from where
on must queues and index be built again?

    what is found                      log is checked and dispatched from   queue entries are kept
    our marks, clean stop              the third last file                  all
    our marks, crash                   the third last file, or that of the  below that offset
                                       marked offset
    RocketMQ's times, clean stop       the third last file, or where the    all
                                       index ends
    RocketMQ's times, crash            the newest file that began before    below that file
                                       the trusted time
    nothing, or something is missing   the first file                       of expired records

What is in a queue already is skipped when it is dispatched again. The store of a member of a Raft
group is dispatched only as far as its marks vouch for, and further when the group has agreed.

The log ends at the first record that is not sound. If sound records lie behind it, and that place
was flushed as far as the checkpoint knows, it is damage and not a torn tail: the store refuses to
open, because going on would drop acknowledged messages without a word.

A record is sound if its fields add up, its body has its checksum, and, where there are sums beside
the log (sums.py), all else has its sum. A record without a sum is not worse for it: a power cut may
have taken the sum, or RocketMQ wrote the record. A sum that differs means damage, but for one case:
RocketMQ may have cut our torn tail and written its own records there. Those are younger than all
that the sums know of, and lie behind all that we have flushed.

Up to the point where the log's end is known nothing is changed on the disk. From there on the abort
file is present, and a crash during recovery only means that it is done once more.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import StoreDamaged
from ..protocol.record import MAGIC, stored_at_position
from . import append, sums
from .mapped_file import MappedFile

if TYPE_CHECKING:
    from .message_store import MessageStore

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all."""

_FILES_CHECKED = 3  # At least; as many as RocketMQ checks after a clean stop.
_MANY_QUEUES = 1_000
_DISPATCH_STEP = 64 << 20
_MAGIC_BYTES = struct.pack(">I", MAGIC)
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did; for the log, the console and tests."""

    was_clean: bool = True
    log_start: int = 0
    log_end: int = 0
    checked_from: int = 0
    built_from: int = 0
    dropped_bytes: int = 0  # Behind the end of the log there was something, and it is gone now.
    lost_flushed_bytes: int = 0  # The checkpoint had vouched for these, and the disk lost them.
    queues_rebuilt: list[tuple[str, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # File of the log -> position up to which all its records have sums that fit.
    matched: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Where to begin, and what to believe."""

    # The log is checked from here on, and dispatched again: what is in a queue already is skipped.
    check_from: int
    build_from: int
    queues_flushed: int  # Entries of records below this are on the disk; others may be torn.
    is_clean: bool  # Queues and index are as a clean stop left them.


def recover(
    store: MessageStore, *, was_clean: bool, progress: Progress | None = None
) -> RecoveryReport:
    """Bring a store whose files are loaded to a sound state, ready to read and write."""
    report = RecoveryReport(was_clean=was_clean, log_start=store.log.start)
    plan = make_plan(store, was_clean, report)
    log_end = _find_log_end(store, plan, report, progress)
    if log_end < plan.queues_flushed:
        report.problems.append("the checkpoint is ahead of the log: all queues are built again")
        plan = _everything(store)

    store.mark_open()
    # What a killed process wrote is in the page cache; it counts as flushed only when it is.
    for file in store.log.mapped.files:
        if file.start < log_end and file.end > plan.check_from:
            file.region.sync()
    store.log.set_end(log_end, flushed=log_end)
    if store.sums is not None:
        store.sums.take_up(store.log, report.matched, log_end)
    plan = _settle_index(store, plan)
    store.dispatcher.position = plan.build_from
    if not plan.is_clean:
        for topic, queue_id in sorted(store.queues.names):
            store.queues.open_below(topic, queue_id, plan.queues_flushed)
    report.log_end = log_end
    report.checked_from, report.built_from = plan.check_from, plan.build_from
    if store.checkpoint.marks is not None:
        # No queue is missing, or all of them are built: one that is not there was deleted.
        store.dispatcher.vouched_end = plan.queues_flushed
    build_end = log_end
    if store.agreed is not None:
        # Only what was agreed is ever dispatched, so what the marks vouch for is. The rest may be
        # cut away again by the group.
        build_end = store.agreed = min(log_end, plan.queues_flushed)
    _build(store, build_end, report, progress)
    for problem in report.problems:
        logger.warning("%s", problem)
    return report


def _everything(store: MessageStore) -> RecoveryPlan:
    start = store.log.start
    return RecoveryPlan(check_from=start, build_from=start, queues_flushed=start, is_clean=False)


def make_plan(store: MessageStore, was_clean: bool, report: RecoveryReport) -> RecoveryPlan:
    """Decide from where to check and to build; changes nothing on the disk."""
    log, index, marks = store.log, store.index, store.checkpoint.marks
    files = log.mapped.files
    if not files:
        if store.checkpoint.log_flushed or store.queues.names:
            raise StoreDamaged(
                store.config.commit_log_directory,
                0,
                "the commit log is gone, its queues are not",
                "restore it; or to begin anew, delete consumequeue, index and checkpoint as well",
            )
        return _everything(store)
    lacking = _what_is_missing(store, was_clean)
    if lacking is not None:
        report.problems.append(f"{lacking}: queues and index are built again")
        return _everything(store)
    third_last = files[max(0, len(files) - _FILES_CHECKED)].start
    if marks is not None and log.start <= marks.queues_flushed <= log.mapped.end:
        is_clean = was_clean and marks.is_clean
        start = min(_file_start(store, marks.queues_flushed), third_last)
        # Dispatching again opens every queue that it meets. After a clean stop there is no need
        # for it, only more certainty, which is too dear with tens of thousands of queues.
        is_lazy = is_clean and len(store.queues.names) > _MANY_QUEUES
        return RecoveryPlan(
            check_from=start,
            build_from=marks.queues_flushed if is_lazy else start,
            queues_flushed=marks.queues_flushed,
            is_clean=is_clean,
        )
    if was_clean:
        queued = max(log.start, _newest_queued(store))
        start = min(_file_start(store, queued), third_last)
        indexed = start if index is None else max(log.start, index.resume_at)
        return RecoveryPlan(
            check_from=start,
            build_from=min(start, indexed),
            queues_flushed=queued,
            is_clean=True,
        )
    for file in reversed(files):
        if 0 < log.first_stored_at_ms(file) <= store.checkpoint.times.trusted_ms:
            return RecoveryPlan(
                check_from=file.start,
                build_from=file.start,
                queues_flushed=file.start,
                is_clean=False,
            )
    return _everything(store)


def _what_is_missing(store: MessageStore, was_clean: bool) -> str | None:
    marks, index = store.checkpoint.marks, store.index
    found = len(store.queues.names)
    if marks is not None and found < marks.queue_count:
        return f"{marks.queue_count - found} of {marks.queue_count} consume queues are missing"
    if marks is None and not found:
        return "there are no consume queues yet"
    if index is not None:
        names = {file.start for file in index.index_files}
        if marks is not None and marks.index.name and marks.index.name not in names:
            return f"index file {marks.index.name} is missing"
        if marks is None and not names:
            return "there is no index"
        lost = index.lost_file(store.log.start)
        if marks is not None and lost is not None:
            return f"index file {lost} is missing"
        # Retention took them; or RocketMQ did, which builds anew what it doubts.
        index.forget_lost_files()
        if marks is not None and marks.is_clean and was_clean and index.mark() != marks.index:
            return f"index file {marks.index.name} is not as it was left"
        if (damaged := index.damaged_file(was_clean=was_clean)) is not None:
            return f"index file {damaged.start} is damaged"
    return None


def _file_start(store: MessageStore, offset: int) -> int:
    """The beginning of the file that holds an offset, or of the last one."""
    file = store.log.mapped.at(offset) or store.log.mapped.files[-1]
    return file.start


def _newest_queued(store: MessageStore) -> int:
    """Where the newest record ends that is in a queue; opens all queues."""
    newest = 0
    for topic, queue_id in sorted(store.queues.names):
        newest = max(newest, store.queues.newest_physical(topic, queue_id))
    return newest


def _find_log_end(
    store: MessageStore, plan: RecoveryPlan, report: RecoveryReport, progress: Progress | None
) -> int:
    log = store.log
    if not log.mapped.files:
        return 0
    flushed, limit = store.checkpoint.log_flushed, log.mapped.end
    # A clean stop leaves nothing torn, and nothing below the flushed offset is.
    torn_from = limit if report.was_clean else flushed
    at = plan.check_from
    while at < limit:
        file = log.mapped.at(at)
        assert file is not None
        stop = _check_sums(store, file, at, flushed, report)
        at, _ = log.scan(
            at,
            stop,
            check_crc=store.config.check_crc_on_recover,
            torn_from=max(torn_from, file.start + report.matched.get(file.start, 0)),
        )
        if progress is not None:
            progress("checking the log", at - plan.check_from, limit - plan.check_from)
        if at < file.end:
            break
    report.dropped_bytes = _bytes_behind(store, at)
    survivor = _sound_record_behind(store, at) if report.dropped_bytes else None
    if survivor is not None:
        offset, stored_ms = survivor
        has_marks = store.checkpoint.marks is not None
        was_flushed = offset < flushed or (
            not has_marks and stored_ms < store.checkpoint.times.trusted_ms
        )
        if was_flushed or report.was_clean:
            file = log.mapped.at(at)
            assert file is not None
            raise StoreDamaged(
                file.path,
                at - file.start,
                f"a record is damaged, and sound ones follow at offset {offset}",
                "restore the file from a replica or a backup, or see what can be saved with:"
                f" skylark store check {store.config.store_path_root_dir}",
            )
    if at < flushed:
        report.lost_flushed_bytes = flushed - at
        report.problems.append(
            f"the log ends at {at} and was flushed up to {flushed}: the disk lost"
            f" {flushed - at} bytes"
        )
    return at


def _check_sums(
    store: MessageStore, file: MappedFile, at: int, flushed: int, report: RecoveryReport
) -> int:
    """Where in a file the records cease to be what their sums say, or its end."""
    if store.sums is None:
        return file.end
    content = store.sums.read(file.start)
    position, matched_end, differs, newest_ms = sums.check_sums(
        file.buffer, 0, at - file.start, file.size_bytes, content
    )
    report.matched[file.start] = matched_end
    if not differs:
        return file.end
    offset = file.start + position
    if offset >= flushed and _stored_ms(file, position) > newest_ms:
        logger.info("path=%s was written by another broker from %d on", file.path, position)
        return file.end
    report.problems.append(f"the record at {offset} is not what its sum says")
    return offset


def _stored_ms(file: MappedFile, at: int) -> int:
    """The store time of a record that is whole, as far as its size says."""
    place = at + stored_at_position(_INT.unpack_from(file.buffer, at + 36)[0])
    return int(_LONG.unpack_from(file.buffer, place)[0])


def _sound_record_behind(store: MessageStore, end: int) -> tuple[int, int] | None:
    """Offset and store time of the first sound record behind the end, if there is any."""
    for file in store.log.mapped.files:
        if file.end <= end:
            continue
        for at in _magic_positions(file, max(end - file.start, 0)):
            size = _INT.unpack_from(file.buffer, at)[0]
            if file.start + at > end and 0 < size <= file.size_bytes - at:
                _, _, stored_ms = append.scan_records(
                    file.buffer, file.start, at, at + size, True, file.size_bytes
                )
                if stored_ms >= 0:
                    return file.start + at, stored_ms
    return None


def _magic_positions(file: MappedFile, start: int) -> Iterator[int]:
    """Where records could begin: 4 bytes before each magic number."""
    step = 1 << 20
    for first, stop in file.region.data_ranges(start, file.size_bytes):
        for at in range(first, stop, step):
            chunk = bytes(file.buffer[at : min(at + step + 3, stop)])
            place = chunk.find(_MAGIC_BYTES)
            while 0 <= place < step:
                if at + place >= 4:
                    yield at + place - 4
                place = chunk.find(_MAGIC_BYTES, place + 1)


def _bytes_behind(store: MessageStore, end: int) -> int:
    """How many bytes lie between the end and the last one that is not zero."""
    step = 1 << 20
    for file in reversed(store.log.mapped.files):
        if file.end <= end:
            break
        ranges = file.region.data_ranges(max(end - file.start, 0), file.size_bytes)
        for first, stop in reversed(ranges):
            for start in reversed(range(first, stop, step)):
                chunk = bytes(file.buffer[start : min(start + step, stop)])
                if chunk.count(0) != len(chunk):
                    return file.start + start + len(chunk.rstrip(b"\0")) - end
    return 0


def _settle_index(store: MessageStore, plan: RecoveryPlan) -> RecoveryPlan:
    """Bring the index to a state that fits the plan; building may have to begin earlier for it."""
    index, marks = store.index, store.checkpoint.marks
    if index is None or plan.is_clean:
        return plan
    if plan.queues_flushed <= store.log.start:
        index.remove_all()
        return plan
    index.restore(None if marks is None else marks.index, store.checkpoint.times.index_ms)
    is_at_mark = marks is not None and (
        index.mark().name == marks.index.name and index.mark()[1:] == marks.index[1:]
    )
    if is_at_mark:
        return plan
    return replace(plan, build_from=max(store.log.start, min(plan.build_from, index.resume_at)))


def _build(
    store: MessageStore, log_end: int, report: RecoveryReport, progress: Progress | None
) -> None:
    """Dispatch what queues and index lack, and build a queue again in which entries are missing."""
    dispatcher = store.dispatcher
    broken: set[tuple[str, int]] = set()
    dispatcher.on_gap = lambda queue, _: broken.add((queue.topic, queue.queue_id))
    start = dispatcher.position
    while dispatcher.position < log_end:
        before = dispatcher.position
        dispatcher.run(min(log_end, before + _DISPATCH_STEP))
        if dispatcher.position == before:
            file = store.log.mapped.at(before)
            raise StoreDamaged(
                "commit log" if file is None else file.path,
                before - (0 if file is None else file.start),
                "the record cannot be dispatched",
                f"run: skylark store check {store.config.store_path_root_dir}",
            )
        if progress is not None:
            progress("building queues", dispatcher.position - start, log_end - start)
    dispatcher.on_gap = None
    if broken:
        report.queues_rebuilt.extend(sorted(broken))
        report.problems.append(f"entries were missing in {len(broken)} queues: built again")
        store.queues.rebuild(broken)
