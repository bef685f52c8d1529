"""Decisions: which attempt of each task of a batch counts, and where its rows lie.

The vocabulary of staging.py, as records and requests carry it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..errors import BrokerError
from ..protocol.codes import ResponseCode

TASKS_MAX: Final = 100_000
_SINK: Final = re.compile(r"[A-Za-z0-9_.-]{1,120}")
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


class GroupKey(NamedTuple):
    """The rows of one attempt of one task."""

    sink: str
    batch: int
    task: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}/{self.task}/{self.attempt}"


@dataclass(slots=True)
class Group:
    """Where the rows of a group lie."""

    runs: list[tuple[int, int]] = field(default_factory=list)  # First queue offset, number of rows.
    rows: int = 0
    physical_offset: int = 0  # Of the first.
    stored_at_ms: int = 0

    def runs_from(self, row: int) -> Iterator[tuple[int, int]]:
        """The queue offsets of the rows from one on, in the order in which they were staged."""
        for first, count in self.runs:
            if row < count:
                yield first + row, count - row
            row = max(0, row - count)


class Record(NamedTuple):
    """Where a record of the decisions queue lies."""

    physical_offset: int
    end: int
    queue_offset: int
    stored_at_ms: int


@dataclass(slots=True)
class Seal:
    """Rows of one batch that another broker may have decided about."""

    batch: int
    since_ms: int
    record: Record


class Apply(NamedTuple):
    """The last apply record of a batch, and where its copies begin."""

    task: int
    first: int
    rows: int
    end: int


@dataclass(slots=True)
class Decision:
    """What counts of one batch."""

    sink: str
    batch: int
    # Task → the attempt that counts, and its number of rows here.
    tasks: dict[int, tuple[str, int]]
    # Broker → its tasks, where rows of the batch lie at several: for whoever has to go on.
    elsewhere: dict[str, Any] = field(default_factory=dict)
    query: str = ""  # Whose sink it is; "" is not known, by a driver of a former version.
    plan: str = ""  # What its driver had planned, as a digest; "" is not known.
    applied: dict[int, int] = field(default_factory=dict)  # Task → rows that have been copied.
    # The last of these appends, as far as they may still be lost: where each ends, and its rows.
    unsafe: deque[tuple[int, int]] = field(default_factory=deque)
    is_done: bool = False
    since_ms: int = 0
    record: Record | None = None  # The last that says this; None: nowhere yet.

    def to_json(self) -> dict[str, Any]:
        """As records and answers carry it."""
        found: dict[str, Any] = {
            "sink": self.sink,
            "batch": self.batch,
            "tasks": {str(task): list(one) for task, one in sorted(self.tasks.items())},
        }
        if self.elsewhere:
            found["elsewhere"] = self.elsewhere
        if self.query:
            found["query"] = self.query
        if self.plan:
            found["plan"] = self.plan
        return found


def read_key(text: str) -> GroupKey:
    """Read sink/batch/task/attempt; raises BrokerError."""
    parts = text.split("/")
    if len(parts) == 4:
        sink, batch, task, attempt = parts
        if (
            _SINK.fullmatch(sink)
            and _ATTEMPT.fullmatch(attempt)
            and _is_number(batch)
            and _is_number(task)
        ):
            return GroupKey(sink, int(batch), int(task), attempt)
    raise illegal(f"stage {text[:80]!r} is not sink/batch/task/attempt")


def read_decision(text: bytes | memoryview) -> Decision:
    """Read what a driver asks for; raises BrokerError."""
    try:
        value = json.loads(bytes(text))
        tasks = {int(task): (str(one[0]), int(one[1])) for task, one in value["tasks"].items()}
        elsewhere = dict(value.get("elsewhere", {}))
        query = str(value.get("query", ""))
        plan = str(value.get("plan", ""))
        found = Decision(str(value["sink"]), int(value["batch"]), tasks, elsewhere, query, plan)
        found.since_ms = int(value.get("since", 0))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise illegal('a decision is {"sink": s, "batch": b, "tasks": {t: [a, n]}}') from None
    if len(found.tasks) > TASKS_MAX or found.batch < 0:
        raise illegal(f"a decision is about at most {TASKS_MAX} tasks of a batch from 0 on")
    if found.query and not _ATTEMPT.fullmatch(found.query):
        raise illegal(f"query {found.query[:80]!r} is no name of a query")
    if found.plan and not _ATTEMPT.fullmatch(found.plan):
        raise illegal(f"plan {found.plan[:80]!r} is no digest of a plan")
    _require_sink(found.sink)
    for task, (attempt, _) in found.tasks.items():
        read_key(f"{found.sink}/{found.batch}/{task}/{attempt}")
    return found


def _require_sink(sink: str) -> None:
    if not _SINK.fullmatch(sink):
        raise illegal(f"sink {sink[:80]!r} is no name of a sink")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def illegal(problem: str) -> BrokerError:
    """What cannot be meant."""
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, problem)
