"""FlushWork: what one flush has to do, made by the thread that owns a store, run by any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .files import OsRegion, Syncable
from .sync_thread import DESCRIPTORS_MAX


@dataclass(slots=True)
class FlushWork:
    """Regions and directories to sync, then a checkpoint to write; run() may be called anywhere."""

    regions: list[Syncable]
    log_end: int
    log_ms: int
    # Directories in which files were made, and how to sync them.
    directories: list[str] = field(default_factory=list)
    sync_directory: Callable[[str], None] | None = None
    save: Callable[[], None] | None = None
    prepare: Callable[[], None] | None = None

    @property
    def plain_regions(self) -> list[OsRegion] | None:
        """The open files of a flush that is nothing but fdatasync; None if there is more to do."""
        if self.directories or self.save is not None or self.prepare is not None:
            return None
        plain = [region for region in self.regions if isinstance(region, OsRegion)]
        return plain if 0 < len(plain) == len(self.regions) <= DESCRIPTORS_MAX else None

    def run(self) -> None:
        """Sync everything, then write the checkpoint that says so."""
        for region in self.regions:
            region.sync()
        for directory in dict.fromkeys(self.directories):  # Each once, inner ones first.
            assert self.sync_directory is not None
            self.sync_directory(directory)
        if self.save is not None:
            self.save()
        if self.prepare is not None:
            self.prepare()
