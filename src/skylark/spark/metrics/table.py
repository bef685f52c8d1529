"""MetricTable: the files of a metrics table, who may write them, and putting them together.

    <root>/data/day=2026-11-16/000000000012-000000000012.parquet   minutes; see rows.py
    <root>/state/published/…, <root>/state/waiting/…                what the next step needs
    <root>/catalogue/…, <root>/trash/…                              as an archive has them
    <root>/catalogue/KIND                                           `metrics`: nothing else is here
    <root>/lock                                                     held by the one that writes

A file counts when an entry of the catalogue names it; an entry also says up to where the topics
have been counted. So a step that was not finished left nothing, and is done again from the same
offsets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...errors import ConfigError
from ..catalogue import ArchivedFile, Catalogue, Entry, Kind, sync_tree
from ..offsets import Offsets
from .rows import added, schema

if TYPE_CHECKING:
    import pyarrow as pa

MINUTES = "minutes"  # What a file is, in its entry; an archive has the topic there.
PUBLISHED = "published"
WAITING = "waiting"
COMPACT_ENTRIES = 60
COMPACT_BYTES = 8 << 20
_DAY_MS = 86_400_000


def require(root: str | os.PathLike[str]) -> Catalogue:
    """The catalogue of a metrics table that is there; raises ConfigError."""
    catalogue = Catalogue(root, Kind.METRICS)
    if not catalogue.is_begun():
        raise ConfigError(
            f"metrics {catalogue.root}: there are none; make them with `skylark pipeline metrics`"
        )
    return catalogue


class MetricTable:
    """A metrics table, open for its one writer."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.catalogue = Catalogue(root, Kind.METRICS)
        self.root = self.catalogue.root
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.catalogue.require_kind()
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            problem = "another process writes them; stop it, or name another directory"
            if not isinstance(error, BlockingIOError):
                problem = f"a directory is needed that can be locked, and here: {error.strerror}"
            raise ConfigError(f"metrics {self.root}: {problem}") from error
        self._lock = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def number(self) -> int:
        """The number of the next step."""
        last = self.catalogue.last()
        return 0 if last is None else last.last + 1

    def commit(
        self, number: int, minutes: pa.Table, state: Sequence[ArchivedFile], ends: Offsets
    ) -> None:
        """Write the minutes of a step, and make all of it count."""
        assert self._lock is not None, "the table is not open"
        self.catalogue.require_kind()
        files = [*_write(self.root, number, number, minutes), *state]
        self.catalogue.add(Entry(number, number, tuple(files), ends))

    def published(self, since_ms: int) -> list[str]:
        """Files with messages that were sent since then."""
        return [
            str(self.root / file.path)
            for entry in self.catalogue.entries()
            for file in entry.files
            if file.topic == PUBLISHED and newest_ms(file) >= since_ms
        ]

    def waiting(self) -> list[str]:
        """Files with what consumers did, where nobody has told yet how it was sent."""
        entries = self.catalogue.entries()
        last = entries[-1].files if entries else ()
        return [str(self.root / file.path) for file in last if file.topic == WAITING]

    def compact(
        self, now_s: float, *, remembered_ms: int, entries_min: int = COMPACT_ENTRIES
    ) -> int:
        """Put small files together, if there is enough in them; how many entries were."""
        entries = self.catalogue.entries()
        at = _small_from(entries)
        large, small = entries[:at], entries[at:]
        fresh = sum(_size(entry) for entry in small if entry.first == entry.last)
        if len(small) < entries_min and fresh < COMPACT_BYTES // 2:
            return 0
        sent = map(newest_ms, _files(entries, PUBLISHED))
        since_ms = max(sent, default=0) - remembered_ms
        # The large ones stay as they are, but for the state that they name beyond its time.
        while large and not _has_old_state(large[0], since_ms):
            del large[0]
        if len(large) + len(small) < 2:
            return 0
        self._merge(large, small, since_ms)
        self.catalogue.sweep(now_s)
        self._sweep_state(small[-1].last)
        return len(large) + len(small)

    def _sweep_state(self, last: int) -> None:
        """Remove folders whose files were swept: Spark has left others there that nobody names."""
        for folder in sorted((self.root / "state").glob("*/*-*")):
            number = folder.name.partition("-")[0]
            # Behind the last entry a step may be at work, which has yet to write its file.
            is_done = number.isdecimal() and int(number) <= last
            if is_done and not any(folder.glob("*.parquet")):
                shutil.rmtree(folder, ignore_errors=True)

    def _merge(self, large: Sequence[Entry], small: Sequence[Entry], since_ms: int) -> None:
        """One entry for several, of which the small ones get one file for each day."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        minutes = _files(small, MINUTES)
        if len(small) > 1:
            tables = [parquet.ParquetFile(self.root / file.path).read() for file in minutes]
            whole = pa.concat_tables(tables) if tables else schema().empty_table()
            minutes = _write(self.root, small[0].first, small[-1].last, added(whole))
        old = [*large, *small]
        state = [file for file in _files(old, PUBLISHED) if newest_ms(file) >= since_ms]
        state += _files(small[-1:], WAITING)
        files = (*_files(large, MINUTES), *minutes, *state)
        new = Entry(old[0].first, old[-1].last, files, dict(old[-1].ends))
        self.catalogue.replace(old, new)


def _files(entries: Iterable[Entry], kind: str) -> list[ArchivedFile]:
    return [file for entry in entries for file in entry.files if file.topic == kind]


def _size(entry: Entry) -> int:
    return sum(file.bytes for file in _files([entry], MINUTES))


def _small_from(entries: Sequence[Entry]) -> int:
    """From which entry on all minutes go into one file; the last one does in any case."""
    at, size = len(entries), 0
    while at and (at == len(entries) or size + _size(entries[at - 1]) <= COMPACT_BYTES):
        at -= 1
        size += _size(entries[at])
    return at


def _has_old_state(entry: Entry, since_ms: int) -> bool:
    """Whether an entry before the last names state that nobody needs any more."""
    published = _files([entry], PUBLISHED)
    return bool(_files([entry], WAITING)) or any(newest_ms(f) < since_ms for f in published)


def newest_ms(file: ArchivedFile) -> int:
    """When the newest message in a file of state was sent; its folder says so."""
    return int(Path(file.path).parent.name.rpartition("-")[2])


def _write(root: Path, first: int, last: int, minutes: pa.Table) -> list[ArchivedFile]:
    """One file for each day, on the disk before it is named anywhere."""
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    found = []
    days = compute.divide(compute.cast(minutes["minute"], "int64"), _DAY_MS)
    for day in sorted(set(days.to_pylist())):
        name = datetime.fromtimestamp(day * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")
        path = Path("data") / f"day={name}" / f"{first:012d}-{last:012d}.parquet"
        full = root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        part = minutes.filter(compute.equal(days, day))
        parquet.write_table(part, full, compression="zstd")
        sync_tree(full, root)
        found.append(ArchivedFile(str(path), MINUTES, part.num_rows, full.stat().st_size))
    return found
