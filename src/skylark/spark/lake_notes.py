"""LakeNote: whose the checkpoint of a directory is, one table's and no Parquet archive's.

    <root>/table.json           {"format": "delta", "table": "prod.mq.orders"}; null: the one below
    <root>/checkpoint/…         how far Spark has read for it
    <root>/tables/messages/…    the table, unless it has a name

A checkpoint says what has been read, and nothing of where it went. Gone on with for another table,
or by an archive in Parquet, everything up to there would be missing from that one without a word.
The note is there before the first micro-batch is, and is let go of while none has been done: what
was read till then is read again.

Directories from before there were notes tell by the table that lies below them, if any does. A
named table may lie anywhere, also there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from ..errors import ConfigError, StoreUnreadable
from .catalogue import Catalogue, write_whole

TABLES = "tables"
DEFAULT_TABLE = "messages"
_NOTE = "table.json"
_OF_FORMATS = {"delta": "_delta_log", "iceberg": "metadata"}  # Folders that only these have.


@dataclass(frozen=True, slots=True)
class LakeNote:
    """A table, by its format, and by its name in SQL unless it lies below the directory."""

    format: str
    table: str | None

    @classmethod
    def read(cls, root: Path) -> Self | None:
        """The note of a directory, or None; raises StoreUnreadable."""
        path = root / _NOTE
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
            table = value["table"]
            return cls(str(value["format"]), None if table is None else str(table))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreUnreadable(str(path), f"is no note of a table: {error!r}") from error

    def check(self, root: Path) -> None:
        """Refuse a directory that is another's; raises ConfigError, StoreUnreadable."""
        if (root / "catalogue").is_dir():
            Catalogue(root).require_kind()  # It knows better what else may be there.
            raise ConfigError(
                f"archive {root}: a Parquet archive is there, and its checkpoint is its own; leave "
                f"out {self._flags()}, or archive to another directory"
            )
        if not _is_begun(root):
            return
        there = self.read(root)
        if there is None:
            below = _formats_below(root)
            if not below or self.format in below:
                return
            there = LakeNote(below[0], None)
        if there != self:
            place = "below it" if there.table is None else there.table
            _refuse(root, f"the {there.format} table {place}", there)

    def write(self, root: Path) -> None:
        """Have it on the disk, before a query starts that the checkpoint is of."""
        path = root / _NOTE
        content = json.dumps({"format": self.format, "table": self.table}).encode()
        if not path.exists() or path.read_bytes() != content:
            write_whole(path, content)

    def _flags(self) -> str:
        """What the command line calls it."""
        named = "" if self.table is None else f" --table {self.table}"
        return f"--table-format {self.format}{named}"


def require_no_lake(root: Path) -> None:
    """Refuse an archive in Parquet where a table has the checkpoint; raises ConfigError."""
    if not _is_begun(root):
        return
    try:
        there = LakeNote.read(root)
    except StoreUnreadable as error:  # Whichever it is, it is no archive's.
        raise ConfigError(
            f"archive {root}: its checkpoint belongs to a table, though {error}; archive to "
            "another directory"
        ) from error
    # A catalogue says it better than a table that a run has made which then came to nothing.
    below = [] if (root / "catalogue").is_dir() else _formats_below(root)
    if there is None and below:
        there = LakeNote(below[0], None)
    if there is not None:
        _refuse(root, "a table", there)


def forget_lake(root: Path) -> None:
    """Remove the note of a first run that came to nothing: an archive has the checkpoint now."""
    (root / _NOTE).unlink(missing_ok=True)


def _refuse(root: Path, owner: str, note: LakeNote) -> NoReturn:
    raise ConfigError(
        f"archive {root}: its checkpoint belongs to {owner}; go on with {note._flags()}, or "
        "archive to another directory"
    )


def _is_begun(root: Path) -> bool:
    """Whether Spark has noted a micro-batch as done."""
    return any((root / "checkpoint" / "commits").glob("[0-9]*"))


def _formats_below(root: Path) -> list[str]:
    """What the table below a directory is, or was written as: some have been both."""
    folder = root / TABLES / DEFAULT_TABLE
    return [name for name, own in _OF_FORMATS.items() if (folder / own).is_dir()]
