"""`skylark pipeline metrics`: count what goes through a cluster, minute by minute; or show it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from . import asking, pipeline_runs, render
from .pipeline_runs import Conf, Flags, Jars, Master, Packages, Verbose, say

if TYPE_CHECKING:
    from ..spark.metrics.job import Step
    from ..spark.pipelines import RunDirectory, RunState

_SPANS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_POLL_S = 0.2
_TITLES = ("at", "metric", "topic", "group", "detail", "count", "bytes", "p50_ms", "p90_ms",
           "p99_ms", "max_ms")  # fmt: skip


def metrics(
    table: Annotated[str, typer.Option("--table", metavar="DIR", help="Where the table is.")],
    topics: Annotated[
        str, typer.Option("--topics", metavar="PATTERN", help="Topics that match, as a whole.")
    ] = ".*",
    once: Annotated[bool, typer.Option("--once", help="End when all of now is counted.")] = False,
    every: Annotated[str, typer.Option("--every", help="Between two steps: 30s, 1m, 1h.")] = "1m",
    start: Annotated[
        str, typer.Option("--from", help="Where a new table begins: earliest or latest.")
    ] = "earliest",
    name: Annotated[str, typer.Option("--name", help="For status and stop.")] = "metrics",
    show: Annotated[bool, typer.Option("--show", help="Show the table; nothing is run.")] = False,
    since: Annotated[str, typer.Option("--since", help="With --show: from when on.")] = "1h",
    metric: Annotated[str | None, typer.Option("--metric", help="With --show: only this.")] = None,
    step: Annotated[str, typer.Option("--step", help="With --show: how long a row is.")] = "1m",
    namesrv: asking.NameServer = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Count rates, latencies, failures, dead letters and lag by the minute, until stopped."""
    if show:
        _show(table, since, metric, step, as_json=json)
        return
    every_ms = span_ms(every, "--every")
    flags = Flags(master, conf, packages, jars, once=once, namesrv=namesrv)
    settings = flags.settings()
    from ..spark.metrics import MetricsJob

    with _running(name, table) as stop:
        say(f"{name}: Spark starts; the table is {table}")
        with pipeline_runs.spark_session(name, flags, None, settings, verbose) as spark:
            job = MetricsJob(
                spark, table, namesrv=asking.addresses(namesrv), topics=topics, start=start
            )
            job.run(once=once, every_ms=every_ms, stop=stop, on_step=stop.note)
    say(f"{name}: {stop.state.sinks['table'].rows:,} messages counted")


def span_ms(text: str, option: str) -> int:
    """A span of time in milliseconds; raises ConfigError."""
    digits = text.rstrip("smhd")
    unit = text[len(digits) :]
    if not digits.isdecimal() or unit not in _SPANS or not int(digits):
        raise ConfigError(f"{option} {text[:40]!r}: write a number with s, m, h or d, such as 30s")
    return int(digits) * _SPANS[unit]


def _show(table: str, since: str, metric: str | None, step: str, *, as_json: bool) -> None:
    from ..spark.metrics import Metric, read_metrics

    if metric is not None and metric not in set(Metric):
        raise ConfigError(f"--metric {metric[:40]!r}: allowed are {', '.join(Metric)}")
    now_ms = int(time.time() * 1_000)
    found = read_metrics(
        table, asking.moment_ms(since, now_ms), now_ms + 60_000, metric=metric,
        step_ms=span_ms(step, "--step"),
    )  # fmt: skip
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

    def __init__(self, directory: RunDirectory, state: RunState) -> None:
        self.state = state
        self._directory = directory
        self._event = threading.Event()

    def is_set(self) -> bool:
        """Whether somebody has said so."""
        return self._event.is_set() or self._directory.is_asked_to_stop(self.state.name)

    def wait(self, timeout: float) -> bool:
        """Wait, but not beyond that."""
        deadline = time.monotonic() + timeout
        while not self.is_set() and (left := deadline - time.monotonic()) > 0:
            self._event.wait(min(_POLL_S, left))
        return self.is_set()

    def ask(self, number: int, frame: Any) -> None:
        """The handler of a signal; the second one does not wait."""
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()
        say("stopping after this step; once more to stop at once")

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
    lock = directory.lock(name)
    state = RunState(
        name, kind="metrics", checkpoint=str(Path(table).absolute()), pid=os.getpid(),
        host=socket.gethostname(), started_ms=int(time.time() * 1_000),
        sinks={"table": SinkState("metrics")},
    )  # fmt: skip
    stop = _Stop(directory, state)
    directory.forget_stop(name)
    stop.write("starting")
    before = {one: signal.signal(one, stop.ask) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except BaseException as error:
        state.error = None if isinstance(error, KeyboardInterrupt) else one_line(error)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        state.ended_ms = int(time.time() * 1_000)
        state.sinks["table"].is_active = False
        ended = "stopped" if stop.is_set() else "done"
        stop.write("failed" if state.error else ended)
        directory.forget_stop(name)
        lock.release()
