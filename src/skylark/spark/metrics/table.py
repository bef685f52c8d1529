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
from collections.abc import Sequence
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
        """Put small files together, if there are enough of them; how many steps were."""
        group: list[Entry] = []
        for entry in reversed(self.catalogue.entries()):
            size = sum(f.bytes for one in (entry, *group) for f in one.files if f.topic == MINUTES)
            if group and size > COMPACT_BYTES:
                break
            group.insert(0, entry)
        if len(group) < max(2, entries_min):
            return 0
        sent = [newest_ms(f) for entry in group for f in entry.files if f.topic == PUBLISHED]
        self._merge(group, max(sent, default=0) - remembered_ms)
        self.catalogue.sweep(now_s)
        self._sweep_state(group[-1].last)
        return len(group)

    def _sweep_state(self, last: int) -> None:
        """Remove folders whose files were swept: Spark has left others there that nobody names."""
        for folder in sorted((self.root / "state").glob("*/*-*")):
            number = folder.name.partition("-")[0]
            # Behind the last entry a step may be at work, which has yet to write its file.
            is_done = number.isdecimal() and int(number) <= last
            if is_done and not any(folder.glob("*.parquet")):
                shutil.rmtree(folder, ignore_errors=True)

    def _merge(self, group: Sequence[Entry], since_ms: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        first, last = group[0].first, group[-1].last
        files = [file for entry in group for file in entry.files]
        minutes = [f for f in files if f.topic == MINUTES]
        tables = [parquet.ParquetFile(self.root / file.path).read() for file in minutes]
        whole = pa.concat_tables(tables) if tables else schema().empty_table()
        kept = [f for f in files if f.topic == PUBLISHED and newest_ms(f) >= since_ms]
        kept += [f for f in group[-1].files if f.topic == WAITING]
        merged = _write(self.root, first, last, added(whole))
        self.catalogue.replace(group, Entry(first, last, (*merged, *kept), dict(group[-1].ends)))


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
