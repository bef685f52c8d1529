"""StateReporter: queries of any program, where `skylark pipeline status` finds them.

What `skylark pipeline run` starts keeps a state of its own. This is for sessions in notebooks and
programs: one state under a name, with an entry for each query, held while the process lives.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ..clock import Clock, SystemClock
from .pipelines.state import RunDirectory, RunState, SinkState

if TYPE_CHECKING:
    from .reports import QueryReport


class StateReporter:
    """Keeps the state of one session; raises ConfigError if its name is taken."""

    def __init__(
        self, name: str, directory: RunDirectory | None = None, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._directory = directory or RunDirectory.default()
        self._lock = self._directory.lock(name, "session")
        self._state = RunState(
            name,
            kind="session",
            status="running",
            pid=os.getpid(),
            host=socket.gethostname(),
            started_ms=self._clock.now_ms(),
        )
        self._write()

    def __call__(self, report: QueryReport) -> None:
        """Take a report."""
        sink = self._state.sinks.setdefault(report.query, SinkState("query"))
        sink.topics = sorted(report.lag_by_topic()) or sink.topics
        sink.batch = report.batch
        sink.rows += report.rows
        sink.rows_per_s = report.rows_per_s
        sink.batch_ms = report.batch_ms
        sink.lag = report.lag
        sink.is_active = report.is_active
        sink.error = report.error
        self._write()

    def close(self) -> None:
        """Say that the session has ended, and give the name back."""
        self._state.status = "stopped"
        self._state.ended_ms = self._clock.now_ms()
        self._write()
        self._lock.release()

    def _write(self) -> None:
        self._state.updated_ms = self._clock.now_ms()
        self._directory.write(self._state)
