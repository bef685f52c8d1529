"""Finding and CheckReport: what a check has to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

RESTORE = "restore the file from a replica or a backup"


class StoreState(StrEnum):
    """Who has a store, or how it was left."""

    RUNNING = "running"  # A process has it open.
    CRASHED = "crashed"  # Nobody has, and the mark of a clean stop is missing.
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: where, what, and what to do about it."""

    path: str
    at: int
    problem: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.path} at {self.at}: {self.problem}; {self.next_step}"


def rebuild_command(root: str) -> str:
    """What repairs queues and index."""
    return f"run: skylark store rebuild {root}"


@dataclass(slots=True)
class CheckReport:
    """What a check has seen."""

    root: str
    state: StoreState
    log_start: int = 0
    log_end: int = 0
    record_count: int = 0
    queue_count: int = 0
    queue_entry_count: int = 0
    index_file_count: int = 0
    index_entry_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings
