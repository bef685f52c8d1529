"""`skylark pipeline run | validate | status | stop | resume`: pipelines from files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError, SkylarkError, StoreUnreadable
from . import asking, exits, render
from .pipeline_flags import NO_FLAGS, Flags, Verbose, with_spark_flags
from .pipeline_progress import Reporter, show, with_lag_of_now
from .pipeline_signals import interrupted_by_signal, stopping_by_signal
from .pipeline_spark import check_spec, say, spark_session

if TYPE_CHECKING:
    from ..spark.pipelines import Run, RunDirectory, RunState, Spec

_WATCH_S = 1.0

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline: a file .yaml or .py.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the pipeline, as in its file.")
]
Once = Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")]


@with_spark_flags
def run(
    file: File,
    once: Once = False,
    namesrv: asking.NameServer = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Run a pipeline file.

    It goes on where it was, and runs until it ends by itself or is stopped: with Ctrl-C, or with
    `skylark pipeline stop NAME` from elsewhere. docs/pipelines.md says what such a file has.
    """
    flags = replace(flags, once=once, namesrv=namesrv)
    execute(file, flags, verbose=verbose, as_json=json)


def execute(file: Path, flags: Flags, *, verbose: bool, as_json: bool) -> None:
    """Run a pipeline file to its end."""
    from ..spark.pipelines import Run

    spec = _loaded(file, flags.namesrv)
    spec = spec.once() if flags.once else spec
    with Run(spec, file=str(file.absolute()), flags=asdict(flags)) as one:
        follow(one, spec, flags, verbose=verbose, as_json=as_json)


def follow(
    run: Run,
    spec: Spec,
    flags: Flags,
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Start a run that has its locks, show how far it is, and say how it ended."""
    from ..spark.pipelines import RunDirectory

    with interrupted_by_signal():
        check_spec(spec)
    say(f"{spec.name}: Spark starts; progress is kept in {spec.checkpoint}")
    prints = verbose or any(sink.format.lower() in ("console", "python") for sink in spec.sinks)
    reporter = None if as_json else Reporter(is_alone=not prints)
    settings = {**spec.settings, **flags.settings()}
    with (
        stopping_by_signal("Spark's start") as stop,
        spark_session(spec.name, flags, settings, verbose=verbose) as spark,
    ):
        stop.after = "this micro-batch"
        stop.then(run.request_stop)
        if RunDirectory.default().is_asked_to_stop(spec.name):
            run.request_stop()
        if reporter is not None:
            stop.then(reporter.begin_below)
        try:
            if run.state.status != "stopping":
                run.start(spark)
            end = run.wait(reporter)
        except SkylarkError as error:
            if verbose and error.__cause__ is not None:
                print(error.__cause__, file=sys.stderr)
            raise
    if as_json:
        render.show_record(end.shown(), {}, as_json=True)
    elif end.status == "stopped":
        say(f"{spec.name}: stopped; go on with: skylark pipeline resume {spec.name}")
    else:
        counts = ", ".join(f"{sink.rows:,} rows for {name}" for name, sink in end.sinks.items())
        say(f"{spec.name}: done, {counts}")


def _loaded(file: Path, namesrv: str | None) -> Spec:
    from ..spark.pipelines import load

    if namesrv is None:
        return load(file)
    return load(file, {**os.environ, "NAMESRV_ADDR": namesrv}, namesrv=namesrv)


@with_spark_flags
def validate(
    file: File,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no servers whether the topics are there.")
    ] = False,
    namesrv: asking.NameServer = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Check a pipeline file without running it.

    Reads the file, asks the servers for its topics, and has Spark analyse every query.
    """
    from ..spark.pipelines.plans import Plan

    spec = _loaded(file, namesrv)
    if not offline:
        check_spec(spec)
    settings = {**spec.settings, **flags.settings()}
    # Not under its name: the log of that is of its run.
    with spark_session("validate", flags, settings, verbose=verbose) as spark:
        plan = Plan(spec, spark, None)
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
        int, typer.Option("--wait", metavar="SECONDS", help="The longest to wait for its end.")
    ] = 90,
    json: asking.Json = False,
) -> None:
    """Stop a pipeline or replay that runs.

    The micro-batch under way is finished first; `resume` goes on from there.
    """
    from ..spark.pipelines import RunDirectory

    directory = RunDirectory.default()
    state = directory.read(name)
    if not directory.is_running(name):
        raise ConfigError(f"pipeline {name} does not run: it is {state.status}")
    if state.kind == "session":
        raise ConfigError(
            f"{name} is a session of another program, process {state.pid}; stop it there"
        )
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
        render.show_record(state.shown(), {}, as_json=True)
    else:
        say(f"{name}: {state.status}; go on with: {state.way_on}")
    if state.status == "failed":
        raise typer.Exit(exits.FAILED)


def resume(name: Name, verbose: Verbose = False, json: asking.Json = False) -> None:
    """Go on with what was stopped, killed or has failed.

    A pipeline or replay is run again with the same file and flags, from where it was.
    """
    from ..spark.pipelines import RunDirectory

    directory = RunDirectory.default()
    state = directory.read(name)
    if directory.is_running(name):
        raise ConfigError(f"pipeline {name} runs already, as process {state.pid}")
    if state.kind == "replay":
        from .replay import resume_replay

        resume_replay(name, state, verbose=verbose, as_json=json)
        return
    if state.kind != "pipeline":
        raise ConfigError(f"{name} is no pipeline of a file; go on with {state.way_on}")
    if state.file is None:
        raise ConfigError(f"pipeline {name} was run by a program, not from a file; run that again")
    try:
        flags = Flags.kept(state.flags)
    except TypeError as error:
        raise ConfigError(f"pipeline {name}: {error}; run its file anew") from error
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
    problems: dict[str, StoreUnreadable] = {}
    if not watch:
        states = _readable(directory, names, problems)
        show([with_lag_of_now(one) for one in states], as_json=as_json)
        _require_all(problems)
        return
    reporter = Reporter(sys.stdout)
    while True:
        names = [name] if name is not None else directory.names()  # Also of what starts meanwhile.
        states = [with_lag_of_now(one) for one in _readable(directory, names, problems)]
        if as_json:
            render.show_line([state.shown() for state in states])
        else:
            reporter.states(states)
        if all(state.has_ended for state in states):
            _require_all(problems)
            return
        time.sleep(_WATCH_S)


def _readable(
    directory: RunDirectory, names: Sequence[str], problems: dict[str, StoreUnreadable]
) -> list[RunState]:
    """The states of some pipelines; one that is damaged does not hide the others."""
    found = []
    for name in names:
        try:
            found.append(directory.read(name))
        except StoreUnreadable as error:
            problems[name] = error
    return found


def _require_all(problems: Mapping[str, StoreUnreadable]) -> None:
    """Say what could not be shown, each in a line; raises the last."""
    for error in list(problems.values())[:-1]:
        exits.complain("skylark", str(error))
    for error in list(problems.values())[-1:]:
        raise error
