"""restore_store: a store made from a backup.

The backup is a directory as `backup` makes it, or a tar archive of that directory. It may come from
anywhere, so nothing in it is believed:

    a name that is absolute, has `..`, or is not one that a backup has     refused
    a symbolic link, a device, a pipe, a socket, a directory in its place  refused
    a file of another size or checksum than the manifest says              refused
    a target with anything in it                                           refused

Everything is written to TARGET/.restore first and moved in place when it is whole, so that a
restore that was interrupted is never taken for a store. Queues and index are made by the first
start, or here with verify, which also walks every record.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from ...clock import Clock
from ...errors import InvalidName, StoreDamaged, StoreUnreadable
from ...model.names import check_topic_name
from ..config import DELAY_LEVELS, StoreConfig
from ..files import Files, store_error
from ..message_store import MessageStore
from .backup import MANIFEST, MANIFEST_VERSION
from .check import check_store
from .log_reader import Progress
from .rebuild import write_placeholder

_NAME = re.compile(r"(commitlog/[0-9]{20,}|config/[A-Za-z0-9_]{1,64}\.json)")
_MANIFEST_BYTES_MAX = 64 << 20
_PIECE_BYTES = 8 << 20
_NEXT = "make a new backup, or use another one"


@dataclass(slots=True)
class RestoreReport:
    """What was restored."""

    target: str
    made_ms: int = 0
    log_start: int = 0
    mark: int = 0
    record_count: int = 0
    file_count: int = 0
    byte_count: int = 0
    is_verified: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    size_bytes: int
    used_bytes: int
    crc32: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class _Manifest:
    members: Mapping[str, Any]
    entries: dict[str, _Entry]
    idle_queues: list[tuple[str, int, int]]

    def number(self, name: str, *, maximum: int = 2**63 - 1) -> int:
        value = self.members.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
            raise StoreDamaged(MANIFEST, 0, f"{name} is {value!r}", _NEXT)
        return value


def restore_store(
    source: str,
    target: str,
    files: Files,
    clock: Clock,
    *,
    verify: bool = False,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make a store out of a backup; the target is missing or empty."""
    _require_empty(target)
    target = os.path.abspath(target)
    with _opened(source) as backup:
        manifest = _read_manifest(backup)
        report = RestoreReport(
            target,
            made_ms=manifest.number("made"),
            log_start=manifest.number("log_start"),
            mark=manifest.number("mark"),
            record_count=manifest.number("records"),
        )
        draft = os.path.join(target, ".restore")
        files.make_directory(os.path.join(draft, "commitlog"))
        files.make_directory(os.path.join(draft, "config"))
        try:
            _copy_all(backup, manifest, draft, report, progress)
            file_bytes = manifest.number("queue_file_bytes", maximum=2**31 - 21)
            for topic, queue_id, next_offset in manifest.idle_queues:
                write_placeholder(files, draft, topic, queue_id, next_offset, file_bytes)
            # The log comes last: without it there is no store yet.
            for name in ("consumequeue", "config", "commitlog"):
                place = os.path.join(draft, name)
                if files.exists(place):
                    files.sync_directory(place)
                    files.rename(place, os.path.join(target, name))
            files.sync_directory(target)
            if verify:
                _verify(manifest, target, files, clock, report, progress)
        except BaseException:
            for name in ("commitlog", "config", "consumequeue", ".restore", "index"):
                shutil.rmtree(os.path.join(target, name), ignore_errors=True)
            for name in ("lock", "checkpoint", "abort"):
                files.remove(os.path.join(target, name))
            raise
        files.remove_directory(draft)
        files.sync_directory(target)
    return report


def _require_empty(target: str) -> None:
    if not os.path.lexists(target):
        return
    if not os.path.isdir(target):
        raise StoreUnreadable(target, "is not a directory; name a new one")
    names = os.listdir(target)
    if names == [".restore"]:
        raise StoreUnreadable(
            target, "holds a restore that was not finished; delete .restore in it and try again"
        )
    if names:
        raise StoreUnreadable(
            target, f"is not empty: it holds {sorted(names)[0]!r}; name a new directory"
        )


# Sources.


class _Source:
    """A backup as files by name, whatever it is kept in."""

    def open(self, name: str) -> IO[bytes]:
        """The content of a regular file."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Everything in it that is not a directory."""
        raise NotImplementedError


class _Directory(_Source):
    def __init__(self, root: str) -> None:
        self._root = root

    def names(self) -> list[str]:
        found = []
        for directory, folders, names in os.walk(self._root):
            for name in (*folders, *names):
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, self._root)
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    continue
                if not stat.S_ISREG(mode):
                    raise _refusal(relative, f"is {_kind(mode)}")
                found.append(relative)
        return found

    def open(self, name: str) -> IO[bytes]:
        path = os.path.join(self._root, name)
        try:
            # Not through a link, not even one that was put there a moment ago.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise store_error(path, "read", error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _refusal(name, "is not a regular file")
        return os.fdopen(descriptor, "rb")


class _Archive(_Source):
    """A tar archive of a backup directory, with or without that directory's own name in front."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        prefixes = set()
        for member in archive:
            name = member.name.removeprefix("./")
            if name.startswith("/") or ".." in name.split("/"):
                raise _refusal(member.name, "leads out of the archive")
            if member.isdir():
                continue
            if not member.isreg():
                kind = "a link" if member.issym() or member.islnk() else "a device or a pipe"
                raise _refusal(member.name, f"is {kind}")
            if name in self._members:
                raise _refusal(member.name, "is there twice")
            self._members[name] = member
            prefixes.add(name.partition("/")[0] if name.count("/") else "")
        if MANIFEST not in self._members and len(prefixes) == 1:
            prefix = prefixes.pop() + "/"
            self._members = {n.removeprefix(prefix): m for n, m in self._members.items()}

    def names(self) -> list[str]:
        return list(self._members)

    def open(self, name: str) -> IO[bytes]:
        content = self._archive.extractfile(self._members[name])
        assert content is not None
        return content


def _refusal(name: str, problem: str) -> StoreDamaged:
    return StoreDamaged(name, 0, f"{problem}, which no backup has", "do not use this backup")


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "a pipe or a socket"


@contextlib.contextmanager
def _opened(source: str) -> Iterator[_Source]:
    if os.path.isdir(source):
        yield _Directory(source)
        return
    if not os.path.exists(source):
        raise StoreUnreadable(source, "does not exist; name a backup's directory or tar archive")
    try:
        archive = tarfile.open(source)  # noqa: SIM115 - closed below
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise StoreUnreadable(
            source, f"is neither a backup's directory nor a tar archive of one: {error}"
        ) from error
    with archive:
        try:
            yield _Archive(archive)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise StoreDamaged(source, 0, f"the archive is damaged: {error}", _NEXT) from error


# The manifest.


def _read_manifest(backup: _Source) -> _Manifest:
    names = set(backup.names())
    if MANIFEST not in names:
        raise StoreUnreadable(
            MANIFEST, "is missing: this is no backup, or one that was not finished"
        )
    with backup.open(MANIFEST) as file:
        content = file.read(_MANIFEST_BYTES_MAX + 1)
    try:
        members = json.loads(content)
        if len(content) > _MANIFEST_BYTES_MAX or not isinstance(members, dict):
            raise ValueError("it is not an object of reasonable size")
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(MANIFEST, 0, f"cannot be read: {error}", _NEXT) from error
    manifest = _Manifest(members, {}, [])
    version = manifest.number("version")
    if version != MANIFEST_VERSION:
        raise StoreDamaged(
            MANIFEST,
            0,
            f"is of version {version}, this is version {MANIFEST_VERSION}",
            "restore it with the skylark that made it",
        )
    _take_entries(manifest)
    _take_idle_queues(manifest)
    for name in names - manifest.entries.keys() - {MANIFEST, f"{MANIFEST}.bak"}:
        raise _refusal(name, "is not in the manifest")
    for name in manifest.entries.keys() - names:
        raise StoreDamaged(name, 0, "is in the manifest and not in the backup", _NEXT)
    return manifest


def _take_entries(manifest: _Manifest) -> None:
    listed = manifest.members.get("files")
    if not isinstance(listed, list):
        raise StoreDamaged(MANIFEST, 0, "lists no files", _NEXT)
    file_bytes = manifest.number("log_file_bytes", maximum=2**31 - 1)
    for members in listed:
        one = _Manifest(members if isinstance(members, dict) else {}, {}, [])
        name = one.members.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in manifest.entries:
            raise _refusal(str(name), "is a name")
        entry = _Entry(
            name,
            one.number("bytes", maximum=2**31 - 1),
            one.number("used", maximum=2**31 - 1),
            one.number("crc32", maximum=2**32 - 1),
            one.number("modified"),
        )
        is_log = name.startswith("commitlog/")
        if entry.used_bytes > entry.size_bytes or (is_log and entry.size_bytes != file_bytes):
            raise StoreDamaged(MANIFEST, 0, f"the sizes of {name} do not fit", _NEXT)
        manifest.entries[name] = entry
    starts = sorted(int(n.partition("/")[2]) for n in manifest.entries if n.startswith("commitlog"))
    expected = list(range(manifest.number("log_start"), manifest.number("mark"), file_bytes or 1))
    if starts != expected[: len(starts)] or len(starts) != len(expected):
        raise StoreDamaged(MANIFEST, 0, "the files of the log leave a gap", _NEXT)


def _take_idle_queues(manifest: _Manifest) -> None:
    table = manifest.members.get("idle_queues", {})
    if not isinstance(table, dict):
        raise StoreDamaged(MANIFEST, 0, "idle_queues is not a table", _NEXT)
    for topic, queues in table.items():
        try:
            check_topic_name(topic)
        except InvalidName as error:
            raise StoreDamaged(MANIFEST, 0, str(error), "do not use this backup") from error
        for queue_id in queues if isinstance(queues, dict) else [None]:
            if not (isinstance(queue_id, str) and queue_id.isascii() and queue_id.isdigit()):
                raise StoreDamaged(MANIFEST, 0, f"{topic} has a queue {queue_id!r}", _NEXT)
            number = _Manifest(queues, {}, []).number(queue_id, maximum=2**55)
            manifest.idle_queues.append((topic, int(queue_id), number))


# Copies.


def _copy_all(
    backup: _Source,
    manifest: _Manifest,
    draft: str,
    report: RestoreReport,
    progress: Progress | None,
) -> None:
    total = sum(entry.used_bytes for entry in manifest.entries.values())
    for entry in manifest.entries.values():
        with backup.open(entry.name) as file:
            _copy(file, entry, os.path.join(draft, entry.name))
        report.file_count += 1
        report.byte_count += entry.used_bytes
        if progress is not None:
            progress("restoring files", report.byte_count, total)


def _copy(file: IO[bytes], entry: _Entry, path: str) -> None:
    crc, left = 0, entry.used_bytes
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while left and (piece := file.read(min(_PIECE_BYTES, left))):
                crc = zlib.crc32(piece, crc)
                left -= len(piece)
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            if left or crc != entry.crc32:
                problem = f"lacks {left} bytes" if left else "is not what was backed up"
                raise StoreDamaged(entry.name, entry.used_bytes - left, problem, _NEXT)
            os.ftruncate(descriptor, entry.size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if entry.modified_ms:
            # Retention and searches by time go by it.
            os.utime(path, ns=(entry.modified_ms * 1_000_000,) * 2)
    except OSError as error:
        raise store_error(path, "write", error) from error


def _verify(
    manifest: _Manifest,
    target: str,
    files: Files,
    clock: Clock,
    report: RestoreReport,
    progress: Progress | None,
) -> None:
    levels = manifest.members.get("delay_levels")
    config = StoreConfig(
        store_path_root_dir=target,
        mapped_file_size_commit_log=manifest.number("log_file_bytes"),
        mapped_file_size_consume_queue=manifest.number("queue_file_bytes"),
        max_hash_slot_num=manifest.number("index_slots"),
        max_index_num=manifest.number("index_entries"),
        message_delay_level=levels if isinstance(levels, str) else DELAY_LEVELS,
    )
    with MessageStore.open(config, files, clock, progress=progress) as store:
        end = store.log.appended
    if end != report.mark:
        raise StoreDamaged(target, end, f"the log ends here, not at its mark {report.mark}", _NEXT)
    found = check_store(config, progress=progress)
    if found.findings:
        worst = found.findings[0]
        raise StoreDamaged(worst.path, worst.at, worst.problem, _NEXT)
    if found.record_count != report.record_count:
        raise StoreDamaged(
            target, 0, f"has {found.record_count} records, not {report.record_count}", _NEXT
        )
    report.is_verified = True
