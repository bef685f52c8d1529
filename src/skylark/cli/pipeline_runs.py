"""`skylark pipeline run | validate | status | stop | resume`: pipelines from files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, SkylarkError
from . import asking, exits, render
from .pipeline_progress import TITLES, Reporter, rows_of, with_lag_of_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.pipelines import Run, RunDirectory, RunState, Spec

_LOCAL = "local[2,4]"  # Two cores, and a task may fail four times: workers are killed, too.
_WATCH_S = 1.0

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline: .yaml or .py.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What the pipeline is called.")]
Master = Annotated[
    str | None, typer.Option("--master", help="Spark's master; local on two cores if not set.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.")
]
Packages = Annotated[
    str | None, typer.Option("--packages", metavar="G:A:V,…", help="Java packages for Spark.")
]
Jars = Annotated[str | None, typer.Option("--jars", metavar="FILE,…", help="Jars for Spark.")]
PyFiles = Annotated[
    str | None, typer.Option("--py-files", metavar="FILE,…", help="Python files for its workers.")
]
Once = Annotated[bool, typer.Option("--once", help="End when everything of now is done.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show all that Spark says.")]


@dataclass(frozen=True, slots=True)
class Flags:
    """What goes to Spark as it is; kept so that `resume` does the same."""

    master: str | None = None
    conf: list[str] | None = None
    packages: str | None = None
    jars: str | None = None
    py_files: str | None = None
    once: bool = False
    namesrv: str | None = None

    def settings(self) -> dict[str, str]:
        """As settings of Spark."""
        found = {}
        for key, value in (
            ("spark.jars.packages", self.packages),
            ("spark.jars", self.jars),
            ("spark.submit.pyFiles", self.py_files),
        ):
            if value is not None:
                found[key] = value
        for one in self.conf or ():
            name, equals, value = one.partition("=")
            if not equals or not name:
                raise ConfigError(f"--conf {one!r}: KEY=VALUE is needed")
            found[name] = value
        return found


def run(
    file: File,
    once: Once = False,
    namesrv: asking.NameServer = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Run a pipeline from a file, going on where it was, until it ends or is stopped."""
    flags = Flags(master, conf, packages, jars, py_files, once, namesrv)
    execute(file, flags, verbose=verbose, as_json=json)


def execute(file: Path, flags: Flags, *, verbose: bool, as_json: bool) -> None:
    """Run a pipeline file to its end."""
    from ..spark.pipelines import Run

    settings = flags.settings()
    spec = _loaded(file, flags.namesrv)
    spec = spec.once() if flags.once else spec
    with Run(spec, file=str(file.absolute()), flags=asdict(flags)) as one:
        follow(one, spec, flags, settings, verbose=verbose, as_json=as_json)


def follow(
    run: Run,
    spec: Spec,
    flags: Flags,
    settings: dict[str, str],
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Start a run that has its locks, show how far it is, and say how it ended."""
    say(f"{spec.name}: Spark starts; progress is kept in {spec.checkpoint}")
    with stopping_by_signal(run), spark_session(spec.name, flags, spec, settings, verbose) as spark:
        try:
            run.start(spark)
            end = run.wait(None if as_json else Reporter())
        except SkylarkError as error:
            if verbose and error.__cause__ is not None:
                print(error.__cause__, file=sys.stderr)
            raise
    if as_json:
        render.show_record(end.to_dict(), {}, as_json=True)
    elif end.status == "stopped":
        say(f"{spec.name}: stopped; go on with: skylark pipeline resume {spec.name}")
    else:
        counts = ", ".join(f"{sink.rows:,} rows for {name}" for name, sink in end.sinks.items())
        say(f"{spec.name}: done, {counts}")


def say(text: str) -> None:
    """A line for people, where it does not disturb what programs read."""
    print(text, file=sys.stderr, flush=True)


def _loaded(file: Path, namesrv: str | None) -> Spec:
    from ..spark.pipelines import load

    environment = dict(os.environ)
    if namesrv is not None:
        environment["NAMESRV_ADDR"] = namesrv
    return load(file, environment)


@contextlib.contextmanager
def stopping_by_signal(run: Run) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a stop; the second one does not wait."""
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        run.request_stop()
        say("stopping after this micro-batch; once more to stop at once")

    before = {one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def spark_session(
    name: str, flags: Flags, spec: Spec | None, settings: dict[str, str], verbose: bool
) -> Iterator[SparkSession]:
    """A session for one command; unless verbose, what the JVM says goes to a file."""
    from ..spark import session
    from ..spark.pipelines.causes import as_error

    settings = {**({} if spec is None else spec.settings), **settings}
    try:
        spark = session(
            f"skylark {name}",
            master=flags.master or os.environ.get("SPARK_MASTER") or _LOCAL,
            settings=settings,
            java_log=None if verbose else java_log(name),
        )
        spark.sparkContext.setLogLevel("WARN" if verbose else "ERROR")
        if not verbose:
            silence()
    except SkylarkError:
        raise
    except Exception as error:
        raise as_error(error, "Spark did not start") from error
    try:
        yield spark
    finally:
        spark.stop()


def java_log(name: str) -> Path:
    """Where what Spark's Java says is kept."""
    from ..spark.pipelines import RunDirectory

    return RunDirectory.default().root / f"{name}.log"


def silence() -> None:
    """Keep pyspark from printing Java's stack beside the error that we report."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def validate(
    file: File,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no brokers.")] = False,
    namesrv: asking.NameServer = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Check a pipeline without running it: the file, the topics, and Spark's plan of it."""
    from ..spark.pipelines.plans import Plan

    flags = Flags(master, conf, packages, jars, py_files, namesrv=namesrv)
    settings = flags.settings()
    spec = _loaded(file, namesrv)
    with spark_session(spec.name, flags, spec, settings, verbose) as spark:
        plan = Plan(spec, spark, None)
        if not offline:
            plan.check_cluster(0)
        rows = []
        for sink in spec.sinks:
            frame = plan.frame(sink)
            plan.check_query(sink, frame)
            columns = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in frame.schema)
            rows.append({"sink": sink.name, "format": sink.format, "columns": columns})
    titles = {"sink": "sink", "format": "format", "columns": "columns"}
    render.show_table(rows, titles, as_json=json)
    if not json:
        say(f"{file}: sound" + (", as far as can be said without brokers" if offline else ""))


def stop(
    name: Name,
    wait_s: Annotated[
        int, typer.Option("--wait", metavar="SECONDS", help="How long to wait for its end.")
    ] = 90,
    json: asking.Json = False,
) -> None:
    """Stop a pipeline after the micro-batch that is under way; resume goes on from there."""
    from ..spark.pipelines import RunDirectory

    directory = RunDirectory.default()
    state = directory.read(name)
    if not directory.is_running(name):
        raise ConfigError(f"pipeline {name} does not run: it is {state.status}")
    directory.ask_to_stop(name)
    deadline = time.monotonic() + wait_s
    while directory.is_running(name):
        if time.monotonic() > deadline:
            raise SkylarkError(
                f"pipeline {name} still runs after {wait_s} s; it stops after its micro-batch, or "
                f"end process {state.pid}"
            )
        time.sleep(0.1)
    state = directory.read(name)
    if json:
        render.show_record(state.to_dict(), {}, as_json=True)
    else:
        say(f"{name}: {state.status}; go on with: skylark pipeline resume {name}")
    if state.status == "failed":
        raise typer.Exit(exits.FAILED)


def resume(name: Name, verbose: Verbose = False, json: asking.Json = False) -> None:
    """Run a pipeline again as it was run last, from where it was."""
    from ..spark.pipelines import RunDirectory

    directory = RunDirectory.default()
    state = directory.read(name)
    if directory.is_running(name):
        raise ConfigError(f"pipeline {name} runs already, as process {state.pid}")
    if state.kind == "replay":
        from .replay import resume_replay

        resume_replay(name, state, verbose=verbose, as_json=json)
        return
    if state.file is None:
        raise ConfigError(f"pipeline {name} was run by a program, not from a file; run that again")
    flags = Flags(**state.flags)
    _check_same(name, Path(state.file), flags, state)
    execute(Path(state.file), flags, verbose=verbose, as_json=json)


def _check_same(name: str, file: Path, flags: Flags, state: RunState) -> None:
    spec = _loaded(file, flags.namesrv)
    if spec.name != name:
        raise ConfigError(f"{file} is the pipeline {spec.name} now; run it under that name")
    if spec.checkpoint != state.checkpoint:
        raise ConfigError(
            f"{file} has the checkpoint {spec.checkpoint} now, and {name} was run with "
            f"{state.checkpoint}; to start there, use: skylark pipeline run {file}"
        )


def show_states(directory: RunDirectory, name: str | None, *, watch: bool, as_json: bool) -> None:
    """The body of `status`, for pipelines."""
    names = [name] if name is not None else directory.names()
    if not watch:
        states = [with_lag_of_now(directory.read(one)) for one in names]
        if as_json:
            render.show_table([state.to_dict() for state in states], {}, as_json=True)
            return
        render.show_table([row for state in states for row in rows_of(state)], TITLES)
        return
    reporter = Reporter(sys.stdout)
    while True:
        states = [with_lag_of_now(directory.read(one)) for one in names]
        if as_json:
            render.show_table([state.to_dict() for state in states], {}, as_json=True)
        else:
            reporter.states(states)
        if all(state.has_ended for state in states):
            return
        time.sleep(_WATCH_S)
