"""Catalogue: which files make up an archive, and how far it reaches.

    <root>/data/batch=000000000012/topic=OrderTopic/hour=2026-11-15T19/part-….parquet
    <root>/catalogue/000000000012-000000000012.json   one micro-batch: files, and offsets after it
    <root>/catalogue/000000000000-000000000011.json   several, after compaction
    <root>/trash/000000000000-000000000011.json       the files that these had before

A file counts only if an entry names it. An entry is written beside and renamed, so it is there
whole or not at all; one of a wider range takes the place of all that lie within it. Files that are
replaced stay for a while: a reader lists once, and reads what it found.

    {"first": 12, "last": 12, "files": [{"path", "topic", "rows", "bytes"}], "ends": offsets}

`ends` is the next offset of every queue after the batch: where the live log takes over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, StoreUnreadable
from .offsets import Offsets, from_json, to_json

_DIGITS = 12
SWEEP_AGE_S = 3_600.0  # Longer than a query over the archive takes.


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

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.first:0{_DIGITS}d}-{self.last:0{_DIGITS}d}.json"

    def to_bytes(self) -> bytes:
        """As it is on the disk."""
        value = {
            "first": self.first,
            "last": self.last,
            "files": [
                {"path": f.path, "topic": f.topic, "rows": f.rows, "bytes": f.bytes}
                for f in self.files
            ],
            "ends": to_json(self.ends),
        }
        return json.dumps(value, indent=1).encode()


def read_entry(path: Path) -> Entry:
    """Read an entry; raises StoreUnreadable."""
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
        )
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise StoreUnreadable(str(path), f"is no entry of an archive: {error}") from error


class Catalogue:
    """The entries of one archive."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        if "://" in text:
            raise ConfigError(
                f"archive {text}: a directory is needed that driver and workers see, such as a "
                "shared mount"
            )
        self.root = Path(text).absolute()
        self._folder = self.root / "catalogue"

    def require(self) -> Catalogue:
        """Itself, where there is an archive; raises ConfigError."""
        if not self._folder.is_dir():
            raise ConfigError(
                f"archive {self.root}: there is none; make it with `skylark pipeline archive`"
            )
        return self

    def entries(self) -> list[Entry]:
        """All entries that count, in order; raises StoreUnreadable where one is missing."""
        if not self._folder.is_dir():
            return []
        found = [read_entry(path) for path in sorted(self._folder.glob("*.json"))]
        found.sort(key=lambda entry: (entry.first, -entry.last))
        counted: list[Entry] = []
        for entry in found:
            if counted and entry.last <= counted[-1].last:
                continue  # Within a wider one.
            expected = counted[-1].last + 1 if counted else entry.first
            if entry.first != expected:
                raise StoreUnreadable(
                    str(self._folder), f"batch {expected} is missing, the next is {entry.first}"
                )
            counted.append(entry)
        return counted

    def ends(self) -> Offsets:
        """How far the archive reaches."""
        entries = self.entries()
        return dict(entries[-1].ends) if entries else {}

    def has(self, batch: int) -> bool:
        """Whether a batch is in the archive."""
        return any(entry.first <= batch <= entry.last for entry in self.entries())

    def add(self, entry: Entry) -> None:
        """Write an entry down; from now on its files count."""
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._folder / entry.name
        draft = target.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(entry.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
        _sync(self._folder)

    def replace(self, old: Iterable[Entry], new: Entry) -> None:
        """Let one entry take the place of several; their files are left to sweep()."""
        old = list(old)
        kept = {file.path for file in new.files}
        left = [file.path for entry in old for file in entry.files if file.path not in kept]
        trash = self.root / "trash"
        trash.mkdir(exist_ok=True)
        (trash / new.name).write_text(json.dumps(left))
        self.add(new)
        for entry in old:
            (self._folder / entry.name).unlink(missing_ok=True)
        _sync(self._folder)

    def sweep(self, now_s: float, *, age_s: float = SWEEP_AGE_S) -> int:
        """Remove files that were replaced long enough ago; how many."""
        counted = {file.path for entry in self.entries() for file in entry.files}
        removed = 0
        for note in sorted((self.root / "trash").glob("*.json")):
            if note.stat().st_mtime + age_s > now_s:
                continue
            for path in json.loads(note.read_text()):
                if path not in counted:
                    (self.root / path).unlink(missing_ok=True)
                    removed += 1
            note.unlink()
        return removed


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
