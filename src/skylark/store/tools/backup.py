"""backup_store: a copy of a store that may be at work, up to a mark.

    DEST/manifest.json       what is here, with sizes and CRC-32 of every file; written last
    DEST/commitlog/<start>   full files as hard links where the file system can, else copies;
                             the last one a copy of its bytes below the mark, then a hole
    DEST/config/*.json       the tables

Queues and index are not copied: they are made again from the log.

The mark is the end of the last whole record at the time. Before it is taken as such, the log is
synced, so all below it is on the disk of the source as well. Every message that was acknowledged
before the backup began lies below it.

Tables of offsets are copied before the mark is taken, so that no group is ahead of the log and no
delayed message counts as delivered whose delivery is not in it. Topics and groups are copied after
it, so that no message lacks its topic.

A full file is never written again, so a link is as good as a copy; only a replica that cuts its log
back into that file would change both, and the manifest's checksum would tell.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import InvalidBody, StoreDamaged, StoreError, StoreUnreadable
from ...protocol import fastjson
from ...protocol.record import decode_dispatch
from ..append import ENTRY_BYTES
from ..config import StoreConfig
from ..files import OsFiles, store_error
from .layout import QueueFiles, queues_of, state_of
from .log_reader import LogFile, LogReader, Progress, read_at
from .report import StoreState

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1

_PIECE_BYTES = 8 << 20
_OFFSETS_FIRST = ("consumerOffset.json", "delayOffset.json", "lmqConsumerOffset.json")
_TRIES = 5
_SETTLE_TRIES = 50


@dataclass(slots=True)
class BackupReport:
    """What a backup holds."""

    root: str
    destination: str
    log_start: int = 0
    mark: int = 0
    record_count: int = 0
    linked_files: int = 0
    copied_files: int = 0
    copied_bytes: int = 0
    tables: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Item:
    """One file of the backup, as the manifest has it."""

    name: str
    size_bytes: int
    used_bytes: int
    crc32: int
    modified_ms: int

    def members(self) -> dict[str, object]:
        return {
            "name": self.name,
            "bytes": self.size_bytes,
            "used": self.used_bytes,
            "crc32": self.crc32,
            "modified": self.modified_ms,
        }


def backup_store(
    config: StoreConfig,
    destination: str,
    *,
    now_ms: int,
    progress: Progress | None = None,
    wait: Callable[[], None] = lambda: None,
) -> BackupReport:
    """Copy a store up to a mark; the source is only read, and may be at work.

    wait is called where a running broker should be given a moment.
    """
    root = config.store_path_root_dir
    report = BackupReport(root, destination)
    _make_destination(root, destination)
    try:
        items = _copy_tables(root, destination, lambda name: True, wait)
        log = LogReader.of(config)
        log.load()
        linked = _link_full_files(log, destination, report)
        mark, seen = _find_mark(config, log, report, progress, wait)
        report.mark = mark
        log_items = _copy_log(log, linked, mark, destination, report, progress)
        # Topics of now: one that was made since then may have messages below the mark.
        again = _copy_tables(root, destination, lambda name: name not in _OFFSETS_FIRST, wait)
        items.update(again)
        report.tables = sorted(os.path.basename(name) for name in items)
        ends = _ends_of_idle_queues(config, seen)
        manifest = {
            "version": MANIFEST_VERSION,
            "made": now_ms,
            "state": str(state_of(root)),
            "log_start": log_items[0].start if log_items else 0,
            "mark": mark,
            "records": report.record_count,
            "log_file_bytes": config.mapped_file_size_commit_log,
            "queue_file_bytes": config.consume_queue_file_bytes,
            "index_slots": config.max_hash_slot_num,
            "index_entries": config.max_index_num,
            "delay_levels": config.message_delay_level,
            "idle_queues": ends,
            "files": [item.members() for _, item in sorted(items.items())]
            + [entry.item.members() for entry in log_items],
        }
        report.log_start = log_items[0].start if log_items else 0
        # Only now is it a backup: without a manifest nobody restores it.
        OsFiles().replace(
            os.path.join(destination, MANIFEST),
            json.dumps(manifest, indent=1, ensure_ascii=True).encode() + b"\n",
        )
    except BaseException:
        shutil.rmtree(destination, ignore_errors=True)
        raise
    return report


def _make_destination(root: str, destination: str) -> None:
    if os.path.realpath(destination).startswith(os.path.realpath(root) + os.sep):
        raise StoreUnreadable(destination, "lies inside the store; choose a place outside of it")
    if os.path.lexists(destination) and (not os.path.isdir(destination) or os.listdir(destination)):
        raise StoreUnreadable(
            destination, "exists and is not an empty directory; choose another name"
        )
    files = OsFiles()
    files.make_directory(os.path.join(os.path.abspath(destination), "commitlog"))
    files.make_directory(os.path.join(os.path.abspath(destination), "config"))


# Tables.


def _copy_tables(
    root: str, destination: str, wants: Callable[[str], bool], wait: Callable[[], None]
) -> dict[str, _Item]:
    """Copy config/*.json, each as it was at one moment."""
    items: dict[str, _Item] = {}
    source = os.path.join(root, "config")
    names = {
        name.removesuffix(".bak").removesuffix(".tmp")
        for name in (os.listdir(source) if os.path.isdir(source) else [])
    }
    for name in sorted(names):
        if not name.endswith(".json") or not wants(name):
            continue
        content = _read_table(os.path.join(source, name), wait)
        target = os.path.join(destination, "config", name)
        _write(target, content)
        items[f"config/{name}"] = _Item(
            f"config/{name}", len(content), len(content), zlib.crc32(content), 0
        )
    return items


def _read_table(path: str, wait: Callable[[], None]) -> bytes:
    """A table that can be parsed; its backup where the broker is just replacing it."""
    problem = "cannot be read"
    for _ in range(_TRIES):
        for candidate in (path, f"{path}.bak"):
            try:
                content = OsFiles().read(candidate)
                if content.strip():
                    fastjson.loads(content)
                    return content
            except (StoreUnreadable, InvalidBody) as error:
                problem = str(error)
        wait()
    raise StoreDamaged(path, 0, problem, "restore the table, then back up again")


def _write(path: str, content: bytes) -> None:
    OsFiles()._write_durably(path, content)


# The log.


@dataclass(slots=True)
class _LogItem:
    start: int
    item: _Item


def _link_full_files(log: LogReader, destination: str, report: BackupReport) -> set[int]:
    """Link all files but the last two at once, before retention can take them."""
    linked: set[int] = set()
    for file in list(log.files[:-2]):
        target = os.path.join(destination, "commitlog", os.path.basename(file.path))
        try:
            os.link(file.path, target, follow_symlinks=False)
        except FileNotFoundError:
            # Retention was faster: the log begins later now, and so does all that was linked.
            for start in linked:
                os.unlink(os.path.join(destination, "commitlog", f"{start:020d}"))
            linked.clear()
            log.files = [other for other in log.files if other.start > file.start]
            continue
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                continue  # Another file system, or one without links: it is copied.
            raise store_error(target, "link", error) from error
        linked.add(file.start)
        # From here on the link is read: the file's own name may go at any time.
        place = log.files.index(file)
        log.files[place] = LogFile(target, file.start)
    report.linked_files = len(linked)
    return linked


def _find_mark(
    config: StoreConfig,
    log: LogReader,
    report: BackupReport,
    progress: Progress | None,
    wait: Callable[[], None],
) -> tuple[int, set[tuple[str, int]]]:
    """Walk the log to its end, sync it, and return the end and the queues that were seen."""
    seen: set[tuple[str, int]] = set()
    is_running = state_of(config.store_path_root_dir) is StoreState.RUNNING
    at = log.start
    last = (0, b"")
    for _ in range(_SETTLE_TRIES):
        for window in log.windows(at):
            last = _note_records(window.buffer, window.start, seen, report)
            if progress is not None:
                progress("checking records", window.end - log.start, log.limit - log.start)
        at = log.end
        _refuse_damage(config, log, is_running)
        if not is_running or not last[1]:
            break
        # The last record may be half written: its checksum covers only the body.
        wait()
        if log.record(last[0]) == last[1]:
            break
        at, last = last[0], (0, b"")
        report.record_count -= 1
        log.load()
    files = [file for file in log.files if file.start < log.end]
    for file in files[-2:]:
        _sync_file(file.path)
    return log.end, seen


def _note_records(
    buffer: memoryview, start: int, seen: set[tuple[str, int]], report: BackupReport
) -> tuple[int, bytes]:
    at = size = 0
    while at < len(buffer):
        info = decode_dispatch(buffer, at)
        assert info is not None
        if info.sys_flag & 0xC in (0x0, 0x8):
            seen.add((info.topic, info.queue_id))
        report.record_count += 1
        size = info.size_bytes
        at += size
    return start + at - size, bytes(buffer[at - size : at])


def _refuse_damage(config: StoreConfig, log: LogReader, is_running: bool) -> None:
    if log.end >= log.limit or is_running:
        return
    behind = log.sound_record_after(log.end)
    if behind is not None:
        path, at = log.place_of(log.end)
        raise StoreDamaged(
            path,
            at,
            f"{log.problem or 'no record'}, and sound ones follow at offset {behind}: a backup"
            " would end here",
            f"run: skylark store check {config.store_path_root_dir}",
        )


def _sync_file(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise store_error(path, "flush", error) from error


def _copy_log(
    log: LogReader,
    linked: set[int],
    mark: int,
    destination: str,
    report: BackupReport,
    progress: Progress | None,
) -> list[_LogItem]:
    entries = []
    wanted = [file for file in log.files if file.start < mark]
    total = sum(min(log.file_bytes, mark - file.start) for file in wanted)
    done = 0
    for file in wanted:
        used = min(log.file_bytes, mark - file.start)
        target = os.path.join(destination, "commitlog", os.path.basename(file.path))
        modified_ns = os.stat(file.path).st_mtime_ns
        if file.start in linked:
            crc = _crc_of(file.path, used)
        else:
            crc = _copy(file, target, used, log.file_bytes)
            os.utime(target, ns=(modified_ns, modified_ns))
            report.copied_files += 1
            report.copied_bytes += used
        done += used
        if progress is not None:
            progress("copying the log", done, total)
        name = f"commitlog/{os.path.basename(file.path)}"
        item = _Item(name, log.file_bytes, used, crc, modified_ns // 1_000_000)
        entries.append(_LogItem(file.start, item))
    OsFiles().sync_directory(os.path.join(destination, "commitlog"))
    return entries


def _crc_of(path: str, size: int) -> int:
    crc = at = 0
    while at < size:
        piece = read_at(path, at, min(_PIECE_BYTES, size - at))
        if not piece:
            raise StoreDamaged(path, at, "is shorter than it was", "back up again")
        crc = zlib.crc32(piece, crc)
        at += len(piece)
    return crc


def _copy(file: LogFile, target: str, used: int, size_bytes: int) -> int:
    """Copy the first bytes of a file, durably; what follows is a hole. Return their checksum."""
    crc = at = 0
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while at < used:
                piece = read_at(file.path, at, min(_PIECE_BYTES, used - at))
                if not piece:
                    raise StoreDamaged(file.path, at, "is shorter than it was", "back up again")
                crc = zlib.crc32(piece, crc)
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
                at += len(piece)
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise store_error(target, "copy", error) from error
    return crc


def _ends_of_idle_queues(
    config: StoreConfig, seen: set[tuple[str, int]]
) -> dict[str, dict[str, int]]:
    """Where the offsets of queues go on whose messages have all expired: the log cannot tell."""
    root = config.store_path_root_dir
    ends: dict[str, dict[str, int]] = {}
    for topic, queue_id in queues_of(root):
        if (topic, queue_id) in seen:
            continue
        files = QueueFiles(root, topic, queue_id, config.consume_queue_file_bytes)
        with contextlib.suppress(StoreError):  # Deleted since it was listed.
            if end := files.find_end() // ENTRY_BYTES:
                ends.setdefault(topic, {})[str(queue_id)] = end
    return ends
