"""`skylark pipeline replay`: messages of the past, sent once more."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..admin import NEWEST
from ..errors import ConfigError
from . import asking, render
from .pipeline_flags import NO_FLAGS, Flags, Verbose, with_spark_flags
from .pipeline_progress import Reporter
from .pipeline_signals import ended_by_signal, stopping_by_signal
from .pipeline_spark import make_folder, require_target, require_topics, say, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.pipelines import RunState
    from ..spark.replay import Selection


@with_spark_flags
def replay(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic whose messages are sent again.")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="TOPIC", help="The topic that they are sent to.")
    ],
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive", metavar="DIR", help="Read its archive and the log; else the log only."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Only those stored then or later: 2026-11-15T08:00, or 30m for half an hour ago.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Only those stored before then; now if not set."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only those with this key.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Only those with this tag.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="Only those for which this is true, such as 'queue_id = 0'.",
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", metavar="COUNT", min=1, help="The most messages in any second."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Its name for status, stop and resume; one is made up if not set.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where progress is kept; in the run directory if not set.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many they are; send none.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Allow to send them to the same topic.")
    ] = False,
    to_namesrv: Annotated[
        str | None,
        typer.Option(
            "--to-namesrv",
            metavar="ADDRESSES",
            help="The name servers of another cluster to send to.",
        ),
    ] = None,
    yes: asking.Yes = False,
    namesrv: asking.NameServer = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Send messages of the past again.

    Chosen by time, key, tag or SQL, each is sent exactly once. It says how many they are and asks
    before it sends them. `resume`, or the same command, goes on with a replay that has not ended.
    """
    from ..spark.pipelines import RunDirectory
    from ..spark.replay import Selection, default_name

    now_ms = time.time_ns() // 1_000_000
    source = asking.addresses(namesrv)
    selection = Selection(
        topic, to, source, to_namesrv or source, _folder(archive), _moment("--from", since, now_ms),
        _moment("--until", until, now_ms) or now_ms, key, tag, where, rate,
    )  # fmt: skip
    if selection.is_onto_itself and not force:
        raise ConfigError(
            f"--to {to}: a topic is not replayed into itself, its consumers would see everything "
            "twice; add --force if that is meant"
        )
    words = {"from": since, "until": until, **selection.to_dict(), "from_ms": 0, "until_ms": 0}
    name = name or default_name(topic, words)
    directory = RunDirectory.default()
    if not dry_run and name in directory.names():
        state = directory.read(name)
        if state.kind != "replay":
            raise ConfigError(f"--name {name}: a {state.kind} is called so; choose another name")
        if directory.is_running(name):
            raise ConfigError(f"replay {name} runs already, as process {state.pid}")
        if state.status == "done":
            raise ConfigError(
                f"replay {name} is done already; to send the same messages once more, give it "
                "another --name"
            )
        resume_replay(name, state, verbose=verbose, as_json=json)
        return
    folder = Path(_folder(checkpoint) or directory.root / "replays" / name)
    require_topics(source, [topic] if archive is None else ())  # It may be in there alone.
    if not dry_run:
        require_target(selection.to_namesrv, to)
        make_folder("--checkpoint", folder)
    with spark_session(name, flags, flags.settings(), verbose=verbose) as spark:
        with ended_by_signal():  # Nothing has been done yet.
            found = _previewed(spark, selection)
        if not _is_meant(name, selection, found, dry_run=dry_run, yes=yes, as_json=json):
            return
        _send(name, selection, folder, flags, spark, as_json=json)


def _previewed(spark: SparkSession, selection: Selection) -> dict[str, Any]:
    """What would be sent, with all times as they are written everywhere else."""
    from ..spark.replay import preview

    found = preview(spark, selection)
    shown = asdict(found)
    for name, text in (("first", found.first), ("last", found.last)):
        if text is not None:  # In the zone of the session, which only Spark knows for sure.
            row = spark.sql("select unix_millis(cast(:at as timestamp))", args={"at": text}).first()
            shown[name] = asking.time_text(None if row is None else row[0])
    return {
        **shown,
        "from": asking.time_text(selection.from_ms),
        "until": asking.time_text(selection.until_ms),
    }


def _is_meant(
    name: str,
    selection: Selection,
    found: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    from ..spark.pipelines import RunState

    if dry_run or not as_json:
        titles = ("from", "until", "messages", "bytes", "first", "last")
        render.show_record(found, {title: title for title in titles}, as_json=as_json)
    if dry_run:
        return False
    if not found["messages"]:
        say(f"{selection.topic}: no message is like that; nothing is sent")
        if as_json:
            nothing = RunState(name, kind="replay", status="done", rows_total=0)
            render.show_record(nothing.shown(), {}, as_json=True)
        return False
    asking.require_meant(f"send {found['messages']:,} messages to {selection.to}?", yes)
    return True


def resume_replay(name: str, state: RunState, *, verbose: bool, as_json: bool) -> None:
    """Go on with a replay that has not ended."""
    from ..spark.replay import Selection

    if state.status == "done":
        raise ConfigError(f"replay {name} is done; there is nothing to go on with")
    given = dict(state.flags)
    selection = Selection(**given.pop("selection"))
    flags = Flags(**given)
    require_target(selection.to_namesrv, selection.to)
    say(f"{name}: going on where it was")
    with spark_session(name, flags, flags.settings(), verbose=verbose) as spark:
        _send(name, selection, Path(state.checkpoint), flags, spark, as_json=as_json)


def _send(
    name: str,
    selection: Selection,
    folder: Path,
    flags: Flags,
    spark: SparkSession,
    *,
    as_json: bool,
) -> None:
    from ..spark.pipelines import Run
    from ..spark.replay import as_pipeline, batches_done, choose

    kept: dict[str, Any] = {**asdict(flags), "selection": selection.to_dict()}
    reporter = None if as_json else Reporter()
    with (
        Run(as_pipeline(name, selection, folder), kind="replay", flags=kept) as run,
        stopping_by_signal("this micro-batch") as stop,
    ):
        stop.then(run.request_stop)
        if reporter is not None:
            stop.then(reporter.begin_below)
        chosen = choose(spark, selection, folder)
        before = batches_done(folder)
        run.state.rows_total, run.state.rows_before = chosen.total, chosen.sent(before)
        last = len(chosen.rows) - 1
        if before > last:
            run.state.status = "done"
            end = run.state
        else:
            if run.state.status != "stopping":
                run.start(spark)
            end = run.wait(
                reporter,
                until=lambda state: _has_done(state, last),
            )
    if as_json:
        render.show_record(end.shown(), {}, as_json=True)
    elif end.status == "stopped":
        say(f"{name}: stopped; go on with: skylark pipeline resume {name}")
    else:
        say(f"{name}: {chosen.total:,} messages are in {selection.to}, each once")


def _has_done(state: RunState, last: int) -> bool:
    return any(one.batch is not None and one.batch >= last for one in state.sinks.values())


def _folder(text: str | None) -> str | None:
    return None if text is None else str(Path(text).expanduser().absolute())


def _moment(option: str, text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        found = asking.moment_ms(text, now_ms)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
    return now_ms if found == NEWEST else found
