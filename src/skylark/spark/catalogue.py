"""Catalogue: which files make up an archive, and how far it reaches.

    <root>/catalogue/KIND                             what the directory holds: archive, metrics …
    <root>/data/batch=000000000012.5f1c0a9e/topic=OrderTopic/hour=2026-11-15T19/part-….parquet
    <root>/catalogue/000000000012-000000000012.json   one micro-batch: files, and offsets after it
    <root>/catalogue/000000000000-000000000011.json   several, after compaction
    <root>/trash/000000000000-000000000011.json       the files that these had before

A file counts only if an entry names it. An entry is written beside and linked, so it is there whole
or not at all, and the first of a name stands; one of a wider range takes the place of all that lie
within it. Every try writes a folder of its own, so nobody ever writes to or removes what counts.
Files that are replaced stay for a while: a reader lists once, and reads what it found.

Who replaces entries does so alone, under a lock. Between machines not every shared folder has locks
that hold, so an entry that took a place which is not there any more is withdrawn before anything is
removed for it: of two that overlap at most one stays.

Metrics tables and change tables are kept in the same way. A directory holds one kind of thing, and
whoever takes it for another is refused before anything in it changes. KIND is there before the
first entry is; where it is missing, since the directory is older, the paths of its files tell:

    KIND      a line of text     its files
    archive   an archive         data/batch=…/topic=…/hour=…/….parquet
    metrics   a metrics table    data/day=…/….parquet, state/…
    changes   a change table     data/batch=…/bucket=…/….parquet

An entry:

    {"first": 12, "last": 12, "files": [{"path", "topic", "rows", "bytes"}], "ends": offsets}

`ends` is the next offset of every queue after the batch: where the live log takes over. Entries of
a change table have `table` besides: {"key", "columns", "buckets"}, as which it was made.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..errors import ConfigError, StoreUnreadable
from .offsets import Offsets, from_json, to_json

_DIGITS = 12
_LISTINGS_MAX = 100
_SHOWN_MAX = 60
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_PATTERNS = re.compile(r"[\[\]{}*?\\]")
_NAME = re.compile(rf"(\d{{{_DIGITS},}})-(\d{{{_DIGITS},}})\.json")
SWEEP_AGE_S = 3_600.0  # Longer than a query over the archive takes.


class Kind(StrEnum):
    """What a directory holds, as its file KIND says it."""

    ARCHIVE = "archive"
    METRICS = "metrics"
    CHANGES = "changes"


_SPOKEN: dict[str, str] = {
    Kind.ARCHIVE: "an archive",
    Kind.METRICS: "a metrics table",
    Kind.CHANGES: "a change table",
}
_FOLDERS = {
    "state": Kind.METRICS,
    "day": Kind.METRICS,
    "bucket": Kind.CHANGES,
    "topic": Kind.ARCHIVE,
}


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file."""

    path: str  # Below the root.
    topic: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What one batch, or several after each other, have left."""

    first: int
    last: int
    files: tuple[ArchivedFile, ...]
    ends: Offsets
    table: Mapping[str, Any] = field(default_factory=dict)  # As which a table was made.

    @property
    def name(self) -> str:
        """The name of its file."""
        return _name_of(self.first, self.last)

    def takes_the_place_of(self, name: str) -> bool:
        """Whether the batches of another entry, by its name, lie within this one."""
        first, last = _batches(name)
        return name != self.name and self.first <= first and last <= self.last

    def crosses(self, name: str) -> bool:
        """Whether some batches of another entry, by its name, lie within this one, not all."""
        first, last = _batches(name)
        is_apart = last < self.first or self.last < first
        is_within = self.first <= first and last <= self.last
        is_around = first <= self.first and self.last <= last
        return not (is_apart or is_within or is_around)

    def to_bytes(self) -> bytes:
        """As it is on the disk."""
        value: dict[str, Any] = {
            "first": self.first,
            "last": self.last,
            "files": [
                {"path": f.path, "topic": f.topic, "rows": f.rows, "bytes": f.bytes}
                for f in self.files
            ],
            "ends": to_json(self.ends),
        }
        if self.table:
            value["table"] = dict(self.table)
        return json.dumps(value, indent=1).encode()


def _name_of(first: int, last: int) -> str:
    return f"{first:0{_DIGITS}d}-{last:0{_DIGITS}d}.json"


def _batches(name: str) -> tuple[int, int]:
    """The first and the last batch of an entry, by its name."""
    first, _, last = name.removesuffix(".json").partition("-")
    return int(first), int(last)


def _that_count(names: Iterable[str]) -> list[str]:
    """The entries that count, in order, by their names: of those within each other the widest."""
    found: list[str] = []
    reached = -1
    for first, last in sorted(map(_batches, names), key=lambda one: (one[0], -one[1])):
        if last > reached:
            found.append(_name_of(first, last))
            reached = last
    return found


def read_entry(path: Path) -> Entry:
    """Read an entry; raises StoreUnreadable, FileNotFoundError if it has been replaced."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        return Entry(
            int(value["first"]),
            int(value["last"]),
            tuple(
                ArchivedFile(str(f["path"]), str(f["topic"]), int(f["rows"]), int(f["bytes"]))
                for f in value["files"]
            ),
            from_json(value["ends"]),
            dict(value.get("table", {})),
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise StoreUnreadable(str(path), f"is no entry of an archive: {error}") from error


def _kind_of(files: Iterable[ArchivedFile]) -> Kind | None:
    """What has files with such paths; None if they do not tell."""
    for file in files:
        for part in Path(file.path).parts:
            found = _FOLDERS.get(part.partition("=")[0])
            if found is not None:
                return found
    return None


class Catalogue:
    """The entries of one archive, or of something else that is kept as one."""

    def __init__(self, root: str | os.PathLike[str], kind: Kind = Kind.ARCHIVE) -> None:
        text = os.fspath(root)
        if "://" in text:
            raise ConfigError(
                f"archive {text}: a directory is needed that driver and workers see, such as a "
                "shared mount"
            )
        self.root = Path(text).absolute()
        self._folder = self.root / "catalogue"
        self._data = self.root / "data"
        self._kind = kind
        self._is_ours = False  # Found to be of this kind; what has entries never becomes another.

    def require_kind(self) -> None:
        """Refuse a directory that holds something else; raises ConfigError, StoreUnreadable."""
        if self._is_ours:
            return
        there = self._said_kind() or self._told_kind()
        if there is None:  # Nothing is there yet, or nothing that tells.
            return
        if there != self._kind:
            held = _SPOKEN.get(there, there[:_SHOWN_MAX])
            raise ConfigError(
                f"directory {self.root}: it holds {held}, and is to be {_SPOKEN[self._kind]}; "
                "name another directory"
            )
        self._is_ours = True

    def _said_kind(self) -> str | None:
        """What its file KIND says, which may be a word of a newer version."""
        path = self._folder / "KIND"
        try:
            found = path.read_text(encoding="ascii").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreUnreadable(str(path), f"does not say what is there: {error}") from error
        if not found:
            raise StoreUnreadable(str(path), "does not say what is there: it is empty")
        return found

    def _told_kind(self) -> Kind | None:
        """What the first entry with files that tell is of; listed again as in _read_entries()."""
        for _ in range(_LISTINGS_MAX):
            entries = (read_entry(self._folder / name) for name in sorted(self._names()))
            try:
                return next(filter(None, (_kind_of(entry.files) for entry in entries)), None)
            except FileNotFoundError:
                continue
        raise StoreUnreadable(str(self._folder), "changes faster than it can be read")

    def make(self) -> None:
        """Make its folder where there is none, so that a power cut leaves it there."""
        self.require_kind()
        new = [path for path in (self.root, *self.root.parents) if not path.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for path in new:
            with suppress(PermissionError):  # One may make folders where one may not list them.
                sync(path.parent)

    def require(self) -> Catalogue:
        """Itself, where there is an archive; raises ConfigError."""
        if not self.is_begun():
            raise ConfigError(
                f"archive {self.root}: there is none; make it with `skylark pipeline archive`"
            )
        return self

    def is_begun(self) -> bool:
        """Whether it has an entry; raises ConfigError where something else is there."""
        self.require_kind()
        # One look, while compaction is at work, may miss the new one beside all that are gone.
        return bool(self._names() or self._names())

    def entries(self) -> list[Entry]:
        """All entries that count, in order; raises StoreUnreadable where one is missing.

        Raises ConfigError where something else is there.
        """
        return self._read_entries(slice(None))

    def last(self) -> Entry | None:
        """The last of them, which says how far all reach; the others are not even read."""
        found = self._read_entries(slice(-1, None))
        return found[0] if found else None

    def _read_entries(self, which: slice) -> list[Entry]:
        """Some of those that count; listed again while compaction removes what was listed."""
        if not self._folder.is_dir():
            return []
        self.require_kind()
        for _ in range(_LISTINGS_MAX):
            names = _that_count(self._names())
            try:
                found = [read_entry(self._folder / name) for name in names[which]]
            except FileNotFoundError:
                continue
            # A listing while files come and go may miss some; two that agree have missed none.
            if names == _that_count(self._names()):
                self._require_all(names)
                return found
        raise StoreUnreadable(str(self._folder), "changes faster than it can be read")

    def _require_all(self, names: Iterable[str]) -> None:
        """Refuse entries between which batches are missing."""
        expected = 0
        for first, last in map(_batches, names):
            if first != expected:
                raise StoreUnreadable(
                    str(self._folder), f"batch {expected} is missing, the next is {first}"
                )
            expected = last + 1

    def new_folder(self, first: int, last: int) -> Path:
        """A folder for the files of a batch, or of several; nobody else has it."""
        numbers = (
            f"{first:0{_DIGITS}d}" if first == last else f"{first:0{_DIGITS}d}-{last:0{_DIGITS}d}"
        )
        return self._data / f"batch={numbers}.{os.urandom(4).hex()}"

    @contextmanager
    def alone(self, *, waits: bool) -> Iterator[None]:
        """Be the one who replaces entries; who dies lets go of it. Raises ConfigError."""
        self.make()
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                raise ConfigError(
                    f"archive {self.root}: another run puts its batches together; let it finish"
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:  # Without them replace() is all that guards it.
                    raise
            yield

    def ends(self) -> Offsets:
        """How far the archive reaches."""
        last = self.last()
        return {} if last is None else dict(last.ends)

    def add(self, entry: Entry) -> None:
        """Write an entry down; from now on its files count. Raises StoreUnreadable, ConfigError."""
        self._say_kind()
        self._write(self._folder / entry.name, entry.to_bytes(), is_new=True)

    def _say_kind(self) -> None:
        """Write down what it holds, before its first entry, or now where nobody has yet."""
        self.require_kind()
        path = self._folder / "KIND"
        if path.exists():
            self.require_kind()  # It may have come between the two looks.
            return
        try:
            self._write(path, f"{self._kind}\n".encode(), is_new=True)
        except StoreUnreadable:  # Another has said it meanwhile: what, is all that matters.
            self.require_kind()

    def replace(self, old: Iterable[Entry], new: Entry) -> None:
        """Let one entry take the place of several; their files are left to sweep()."""
        self.require_kind()
        old = list(old)
        there = self._names()
        for name in sorted({entry.name for entry in old} - there):
            raise self._replaced_by_another(name)
        self._require_place(new)
        self.note_replaced(old, new)
        self.add(new)
        try:
            self._require_place(new)
        except StoreUnreadable:
            (self._folder / new.name).unlink(missing_ok=True)
            raise
        for entry in old:
            (self._folder / entry.name).unlink(missing_ok=True)
        sync(self._folder)

    def _names(self) -> set[str]:
        """The entries that are there, by their names; other files are none of ours."""
        try:
            return set(filter(_NAME.fullmatch, os.listdir(self._folder)))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def _require_place(self, new: Entry) -> None:
        for name in sorted(filter(new.crosses, self._names())):
            raise self._replaced_by_another(name)

    def _replaced_by_another(self, name: str) -> StoreUnreadable:
        return StoreUnreadable(
            str(self._folder / name), "another job puts these batches together as well"
        )

    def note_replaced(self, old: Iterable[Entry], new: Entry) -> None:
        """Write down which files will not count once a new entry is there."""
        kept = {file.path for file in new.files}
        left = [file.path for entry in old for file in entry.files if file.path not in kept]
        self._write(self.root / "trash" / new.name, json.dumps(left).encode())

    def _write(self, path: Path, content: bytes, *, is_new: bool = False) -> None:
        write_whole(path, content, is_new=is_new)
        sync(self.root)  # The folder may be new in it.

    def sweep(self, now_s: float, *, age_s: float = SWEEP_AGE_S) -> int:
        """Remove what was replaced, or never finished, long enough ago; how many files."""
        entries = self.entries()
        counted = {file.path for entry in entries for file in entry.files}
        over, waiting = self._replaced(now_s - age_s)
        used = counted | waiting
        removed = 0
        for note, paths in over:
            for name in paths:
                if name not in used:
                    (self.root / name).unlink(missing_ok=True)
                    removed += 1
            note.unlink(missing_ok=True)
        # Entries that a crash has left beside the wider one that took their place, once that one is
        # sure to stay. The archive goes on meanwhile: what has come since they were listed lies
        # within none of them, and stays.
        sure = [entry for entry in entries if self._written_s(entry) < now_s - age_s]
        for name in self._names() - {entry.name for entry in entries}:
            if any(entry.takes_the_place_of(name) for entry in sure):
                (self._folder / name).unlink(missing_ok=True)
        # Behind the last entry a batch may be at work, however long it takes.
        last = entries[-1].last if entries else -1
        return removed + self._sweep_folders(used, last, now_s - age_s)

    def _written_s(self, entry: Entry) -> float:
        try:
            return (self._folder / entry.name).stat().st_mtime
        except FileNotFoundError:  # It has been replaced since.
            return math.inf

    def _replaced(self, before_s: float) -> tuple[list[tuple[Path, list[str]]], set[str]]:
        """Notes of what was replaced long enough ago, and all files of which that is not so."""
        over: list[tuple[Path, list[str]]] = []
        waiting: set[str] = set()
        for note in sorted((self.root / "trash").glob("*.json")):
            paths: list[str] = json.loads(note.read_bytes())
            if note.stat().st_mtime < before_s:
                over.append((note, paths))
            else:
                waiting.update(paths)
        return over, waiting

    def _sweep_folders(self, used: set[str], last: int, before_s: float) -> int:
        """Folders of which nothing is used: of tries that ended in a crash, or emptied above."""
        kept = {Path(path).parts[1] for path in used}
        removed = 0
        for folder in sorted(self._data.glob("batch=*")):
            if folder.name in kept or _first_of(folder) > last:
                continue
            if _newest_s(folder) < before_s:
                removed += sum(1 for _ in folder.rglob("*.parquet"))
                shutil.rmtree(folder, ignore_errors=True)
        return removed


def _first_of(folder: Path) -> int:
    """The number of the first batch that a folder is of, see new_folder()."""
    return int(folder.name.removeprefix("batch=").partition(".")[0].partition("-")[0])


def _newest_s(folder: Path) -> float:
    """When a folder was last written to; what goes away meanwhile belongs to a job at work."""
    newest = 0.0
    for place, _, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in names)):
            try:
                newest = max(newest, os.stat(path).st_mtime)
            except FileNotFoundError:
                return math.inf
    return newest


def write_whole(path: Path, content: bytes, *, is_new: bool = False) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.urandom(4).hex()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            os.link(draft, path)
        else:
            draft.replace(path)
    except FileExistsError as error:
        raise StoreUnreadable(
            str(path), "is there already: another job writes this archive"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def unglobbed(path: Path) -> str:
    """A path as Spark's readers take it, who see patterns in some characters."""
    return _PATTERNS.sub(r"\\\g<0>", str(path))


def files_in(root: Path, folder: Path, topic_of: Callable[[Path], str]) -> list[ArchivedFile]:
    """The Parquet files in a folder, once all of it is on the disk; topic_of is told each path."""
    import pyarrow.parquet as parquet

    if not folder.exists():
        return []
    sync_tree(folder, root)
    return [
        ArchivedFile(
            str(path.relative_to(root)),
            topic_of(path.relative_to(folder)),
            parquet.read_metadata(path).num_rows,
            path.stat().st_size,
        )
        for path in sorted(folder.rglob("*.parquet"))
    ]


def sync_tree(path: Path, root: Path) -> None:
    """Have a file, or everything in a folder, on the disk, with the names of it up to a root."""
    above = path.parents[: len(path.relative_to(root).parts)]
    for one in [*path.rglob("*"), path, *above]:
        sync(one)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
