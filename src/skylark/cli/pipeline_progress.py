"""How far pipelines are: a bar on a terminal, lines in a pipe, from the states that runs leave."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import SkylarkError
from ..logs import escaped
from . import render

if TYPE_CHECKING:
    from ..spark.pipelines.state import RunState, SinkState

TITLES = {
    "pipeline": "pipeline", "status": "status", "sink": "sink", "batch": "batch", "rows": "rows in",
    "rate": "rows/s", "batch_s": "batch s", "lag": "lag",
}  # fmt: skip
_BAR_CHARS = 24
_LINE_EVERY_S = 10.0
_LAG_TIMEOUT_MS = 2_000


def rows_of(state: RunState) -> list[dict[str, Any]]:
    """A state as rows of a table, one for each sink."""
    base = {"pipeline": state.name, "status": state.status}
    if not state.sinks:
        return [base]
    return [
        {
            **base,
            "sink": name,
            "batch": sink.batch,
            "rows": sink.rows,
            "rate": round(sink.rows_per_s, 1),
            "batch_s": round(sink.batch_ms / 1_000, 2),
            "lag": sink.lag,
        }
        for name, sink in state.sinks.items()
    ]


def errors_of(state: RunState) -> list[str]:
    """What went wrong, a line for each; not in the table, where they would leave no room."""
    found = [
        f"{state.name}: sink {name}: {sink.error}"
        for name, sink in state.sinks.items()
        if sink.error is not None
    ]
    error = state.error
    if error is not None and not any(error.endswith(s.error or "\0") for s in state.sinks.values()):
        found.insert(0, f"{state.name}: {error}")
    return [escaped(one) for one in found]


def show(states: Sequence[RunState], *, as_json: bool) -> None:
    """States as a table, and what went wrong below it."""
    if as_json:
        render.show_table([state.shown() for state in states], {}, as_json=True)
        return
    render.show_table([row for state in states for row in rows_of(state)], TITLES)
    for text in (text for state in states for text in errors_of(state)):
        print(text)


def fraction(state: RunState, sink: SinkState) -> float | None:
    """How much of what is known to be there has been read; None where nothing is known."""
    if state.rows_total is not None:
        return (state.rows_before + sink.rows) / max(1, state.rows_total)
    if sink.lag is None:
        return None
    return 1.0 if sink.lag == 0 else sink.rows / (sink.rows + sink.lag)


def line(state: RunState, name: str, sink: SinkState, *, bar: bool) -> str:
    """One sink in one line."""
    done = fraction(state, sink)
    left = "" if sink.lag is None else f", {sink.lag:,} left"
    if state.rows_total is not None:
        left = f" of {state.rows_total - state.rows_before:,}"
    text = (
        f"{sink.rows:,} rows in{left}, {sink.rows_per_s:,.0f} rows/s, "
        f"batch {'-' if sink.batch is None else sink.batch} in {sink.batch_ms / 1_000:.1f} s"
    )
    if sink.batch is None:
        text = "no micro-batch yet"
    shown = ""
    if bar and done is not None:
        full = int(min(1.0, done) * _BAR_CHARS)
        shown = f"[{'#' * full}{'.' * (_BAR_CHARS - full)}] {min(1.0, done):4.0%}  "
    return f"{state.name}/{name}  {state.status:<8}  {shown}{text}"


class Reporter:
    """Shows a run while it goes on: redrawn on a terminal, a line now and then elsewhere."""

    def __init__(self, stream: TextIO | None = None, *, is_alone: bool = True) -> None:
        """Where others write there, too, nothing is redrawn: it would take the place of theirs."""
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = is_alone and render.is_terminal(self._stream)
        self._drawn = 0
        self._next_s = 0.0

    def __call__(self, state: RunState) -> None:
        """Show how far a run is now; at its end, always."""
        lines = [line(state, *one, bar=self._is_terminal) for one in state.sinks.items()]
        if self._is_terminal:
            self.draw(lines)
        elif lines and (state.has_ended or time.monotonic() >= self._next_s):
            self._next_s = time.monotonic() + _LINE_EVERY_S
            print("\n".join(lines), file=self._stream, flush=True)

    def begin_below(self) -> None:
        """Leave what is drawn: another line has come below it."""
        self._drawn = 0

    def states(self, states: Sequence[RunState]) -> None:
        """Several runs at once; where there is no room for all, first those that go on."""
        lines = self._lines(states)
        if self._is_terminal:
            if len(lines) > self._height():
                lines = self._lines(sorted(states, key=lambda one: one.has_ended))
            self.draw(lines)
        elif lines:
            print("\n".join(lines), file=self._stream, flush=True)

    def _lines(self, states: Sequence[RunState]) -> list[str]:
        lines = []
        for state in states:
            lines += [line(state, *one, bar=self._is_terminal) for one in state.sinks.items()]
            if not state.sinks:
                lines.append(f"{state.name}  {state.status}")
            for text in errors_of(state):
                lines += textwrap.wrap(text, self._width()) if self._is_terminal else [text]
        return lines

    def _width(self) -> int:
        return max(20, shutil.get_terminal_size().columns - 1)

    def _height(self) -> int:
        return max(2, shutil.get_terminal_size().lines - 1)

    def draw(self, lines: list[str]) -> None:
        """Put lines in the place of those drawn before; what is above a window stays as it was."""
        width, height = self._width(), self._height()
        if len(lines) > height:
            lines = [*lines[: height - 1], f"and {len(lines) - height + 1} lines more"]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = "".join(f"\x1b[2K{one[:width]}\n" for one in lines)
        print(f"{up}{text}\x1b[J", end="", file=self._stream, flush=True)
        self._drawn = len(lines)


def with_lag_of_now(state: RunState) -> RunState:
    """A state whose lag is what the brokers say now; as it is where they do not answer."""
    sinks = {}
    for name, sink in state.sinks.items():
        lag = _lag(sink) if sink.topics and sink.group else None
        sinks[name] = sink if lag is None else replace(sink, lag=lag)
    return replace(state, sinks=sinks)


def _lag(sink: SinkState) -> int | None:
    from ..spark.cluster import Cluster
    from ..spark.options import read_options

    given = {"namesrv": sink.namesrv, "topic": ",".join(sink.topics)}
    try:
        access = read_options(given, is_stream=False).access
        access = replace(access, retry_ms=0, timeout_ms=_LAG_TIMEOUT_MS)
        with closing(Cluster(access)) as cluster:
            lag = 0
            for queue in cluster.queues(sink.topics):
                committed = cluster.committed(sink.group, queue)
                if committed is None:
                    return None
                lag += max(0, cluster.max_offset(queue) - committed)
            return lag
    except SkylarkError:  # Also an account that is half known. The recorded one is the best then.
        return None
