"""`skylark pipeline metrics`: count what goes through a cluster, minute by minute; or show it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..admin import NEWEST
from ..errors import ConfigError
from . import asking, render
from .pipeline_flags import NO_FLAGS, Flags, Verbose, with_spark_flags
from .pipeline_signals import stopping_by_signal
from .pipeline_spark import make_folder, require_topics, say, spark_session

if TYPE_CHECKING:
    from ..spark.metrics.job import Step
    from ..spark.pipelines import RunDirectory, RunState
    from .pipeline_signals import Stop

_SPANS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN_MS_MAX = 365 * _SPANS["d"]
_DIGITS_MAX = 12
_POLL_S = 0.2
_TITLES = ("at", "metric", "topic", "group", "detail", "count", "bytes", "p50_ms", "p90_ms",
           "p99_ms", "max_ms")  # fmt: skip


@with_spark_flags
def metrics(
    table: Annotated[str, typer.Option("--table", metavar="DIR", help="The folder of the table.")],
    topics: Annotated[
        str,
        typer.Option("--topics", metavar="PATTERN", help="Only topics whose whole name matches."),
    ] = ".*",
    once: Annotated[
        bool, typer.Option("--once", help="Count what is there now, then end.")
    ] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="SPAN", help="How often: 30s, 1m, 1h.")
    ] = "1m",
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Where a new table begins: earliest or latest."
        ),
    ] = "earliest",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Its name for status and stop.")
    ] = "metrics",
    show: Annotated[
        bool, typer.Option("--show", help="Show what has been counted; count nothing.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="TIME", help="With --show: from then on, such as 1h for an hour ago."
        ),
    ] = "1h",
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="With --show: only messages, latency, failures, dead_letters or lag.",
        ),
    ] = None,
    step: Annotated[
        str,
        typer.Option("--step", metavar="SPAN", help="With --show: what a row sums up: 1m, 5m, 1h."),
    ] = "1m",
    namesrv: asking.NameServer = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Count what goes through, by the minute.

    Messages, latencies, failures, dead letters and lag of a cluster go to a table, until it is
    stopped; the same command goes on. --show shows the table.
    """
    if show:
        _show(table, since, metric, step, as_json=json)
        return
    every_ms = span_ms(every, "--every")
    addresses = asking.addresses(namesrv)
    _check_reading(addresses, topics, start)
    from ..spark.metrics import MetricsJob

    with _running(name, table) as stop:
        require_topics(addresses)
        make_folder("--table", table)
        say(f"{name}: Spark starts; the table is {table}")
        with spark_session(name, flags, flags.settings(), verbose=verbose) as spark:
            stop.begin()
            job = MetricsJob(spark, table, namesrv=addresses, topics=topics, start=start)
            job.run(once=once, every_ms=every_ms, stop=stop, on_step=stop.note)
    if json:
        render.show_record(stop.state.shown(), {}, as_json=True)
        return
    ended = "stopped, " if stop.state.status == "stopped" else ""
    say(f"{name}: {ended}{stop.state.sinks['table'].rows:,} messages counted")


def _check_reading(namesrv: str, topics: str, start: str) -> None:
    """Refuse what MetricsJob would, before servers are asked and Spark starts; in our words."""
    from ..spark.options import read_options

    options = {"namesrv": namesrv, "topicsPattern": topics, "startingOffsets": start}
    try:
        read_options(options, is_stream=False)
    except ConfigError as error:
        text = str(error).replace("option topicsPattern", "--topics", 1)
        raise ConfigError(text.replace("option startingOffsets", "--from", 1)) from None


def span_ms(text: str, option: str) -> int:
    """A span of time in milliseconds; raises ConfigError."""
    digits = text.rstrip("smhd")
    unit = text[len(digits) :]
    if not digits.isdecimal() or unit not in _SPANS or not int(digits):
        raise ConfigError(f"{option} {text[:40]!r}: write a number with s, m, h or d, such as 30s")
    if len(digits) > _DIGITS_MAX or int(digits) * _SPANS[unit] > _SPAN_MS_MAX:
        raise ConfigError(f"{option} {text[:40]!r}: 365d is the longest")
    return int(digits) * _SPANS[unit]


def _since_ms(text: str, now_ms: int) -> int:
    try:
        found = asking.moment_ms(text, now_ms)
    except ConfigError as error:
        raise ConfigError(f"--since: {error}") from None
    if found == NEWEST:
        return now_ms
    if found > now_ms:
        raise ConfigError(f"--since {text[:40]!r} is to come; nothing has been counted then")
    return found


def _show(table: str, since: str, metric: str | None, step: str, *, as_json: bool) -> None:
    from ..spark.metrics import Metric, read_metrics

    if metric is not None and metric not in set(Metric):
        raise ConfigError(f"--metric {metric[:40]!r}: allowed are {', '.join(Metric)}")
    step_ms = span_ms(step, "--step")
    if step_ms % _SPANS["m"]:
        raise ConfigError(f"--step {step!r}: whole minutes are needed, such as 1m, 5m or 1h")
    now_ms = int(time.time() * 1_000)
    since_ms = _since_ms(since, now_ms)
    found = read_metrics(table, since_ms, now_ms + 60_000, metric=metric, step_ms=step_ms)
    rows = [
        {
            "at": asking.time_text(one.at_ms), "metric": one.metric.value, "topic": one.topic,
            "group": one.group, "detail": one.detail, "count": one.count, "bytes": one.bytes,
            "p50_ms": one.p50_ms, "p90_ms": one.p90_ms, "p99_ms": one.p99_ms,
            "max_ms": one.max_ms,
        }
        for one in found
    ]  # fmt: skip
    render.show_table(rows, {title: title for title in _TITLES}, as_json=as_json)


class _Stop:
    """Whether to stop: a signal, or `skylark pipeline stop`. Keeps the state that status shows."""

    def __init__(self, directory: RunDirectory, state: RunState, signals: Stop) -> None:
        self.state = state
        self._directory = directory
        self._event = threading.Event()
        self._signals = signals
        signals.then(self._event.set)

    def begin(self) -> None:
        """Spark has started: from now on a step may be under way."""
        self._signals.after = "this step"

    def is_set(self) -> bool:
        """Whether somebody has said so."""
        return self._event.is_set() or self._directory.is_asked_to_stop(self.state.name)

    def wait(self, timeout: float) -> bool:
        """Wait, but not beyond that."""
        deadline = time.monotonic() + timeout
        while not self.is_set() and (left := deadline - time.monotonic()) > 0:
            self._event.wait(min(_POLL_S, left))
        return self.is_set()

    def note(self, step: Step) -> None:
        """A step is done."""
        sink = self.state.sinks["table"]
        sink.batch, sink.lag = step.number, step.behind
        sink.rows += step.messages
        self.write("running")

    def write(self, status: str) -> None:
        """Let others see how far it is."""
        self.state.status = status
        self.state.updated_ms = int(time.time() * 1_000)
        self._directory.write(self.state)


@contextlib.contextmanager
def _running(name: str, table: str) -> Iterator[_Stop]:
    """Hold the name, and say how it ended."""
    from ..spark.pipelines import RunDirectory, RunState
    from ..spark.pipelines.causes import one_line
    from ..spark.pipelines.state import SinkState

    directory = RunDirectory.default()
    lock = directory.lock(name, "metrics")
    state = RunState(
        name, kind="metrics", checkpoint=str(Path(table).absolute()), pid=os.getpid(),
        host=socket.gethostname(), started_ms=int(time.time() * 1_000),
        sinks={"table": SinkState("metrics")},
    )  # fmt: skip
    directory.forget_stop(name)
    try:
        with stopping_by_signal("Spark's start") as signals:
            stop = _Stop(directory, state, signals)
            stop.write("starting")
            try:
                yield stop
            except BaseException as error:
                is_told = isinstance(error, KeyboardInterrupt)
                state.error = None if is_told else one_line(error)
                state.status = "stopped" if is_told else "failed"
                raise
            else:
                state.status = "stopped" if stop.is_set() else "done"
            finally:
                state.ended_ms = int(time.time() * 1_000)
                state.sinks["table"].is_active = False
                stop.write(state.status)
    finally:
        directory.forget_stop(name)
        lock.release()
