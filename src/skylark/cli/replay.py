"""`skylark pipeline replay`: messages of the past, sent once more."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..admin import NEWEST
from ..errors import ConfigError, StoreUnreadable
from ..logs import escaped
from . import asking, render
from .pipeline_flags import NO_FLAGS, BodyMode, Flags, Verbose, body_options, with_spark_flags
from .pipeline_progress import Reporter
from .pipeline_signals import ended_by_signal, stopping_by_signal
from .pipeline_spark import make_folder, require_target, require_topics, say, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.pipelines import RunDirectory, RunState
    from ..spark.replay import Selection

_WAY = ("topic", "to")
_TIMES_END_MS = 253_370_764_800_000  # 9999-01-01: times before it can be written in every zone.


@dataclass(frozen=True, slots=True)
class _Replay:
    """One replay, as it was typed or as it was kept."""

    name: str
    selection: Selection
    # The words it was typed as, which stay the same while times such as 1h move; empty where an
    # older version has kept none.
    typed: Mapping[str, Any]
    folder: Path
    flags: Flags


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
    body_mode: BodyMode = None,
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
    from ..spark.replay import Selection

    now_ms = time.time_ns() // 1_000_000
    source = asking.addresses(namesrv)
    end_ms = _moment("--until", until, now_ms)
    selection = Selection(
        topic, to, source, to_namesrv or source, _folder(archive), _moment("--from", since, now_ms),
        now_ms if end_ms is None else end_ms, key, tag, where, rate, _body_mode(body_mode),
    )  # fmt: skip
    typed = {"from": since, "until": until, **selection.to_dict()}
    del typed["from_ms"], typed["until_ms"]
    name = _made_up_name(typed) if name is None else _sound_name(name)
    directory = RunDirectory.default()
    folder = Path(_folder(checkpoint) or directory.root / "replays" / name)
    asked = _Replay(name, selection, typed, folder, flags)
    if not dry_run:
        begun = _begun(asked, directory, is_folder_typed=checkpoint is not None)
        if begun is not None:
            # How Spark runs is no part of what is sent: it is as typed now.
            _go_on(replace(begun, flags=flags), verbose=verbose, as_json=json)
            return
    _require_possible(selection, force=force)
    if not dry_run:
        require_target(selection.to_namesrv, to)
        make_folder("--checkpoint", folder)
    with spark_session(name, flags, flags.settings(), verbose=verbose) as spark:
        with ended_by_signal():  # Nothing has been done yet.
            found = _previewed(spark, selection)
        if not _is_meant(name, selection, found, dry_run=dry_run, yes=yes, as_json=json):
            return
        _send(asked, spark, as_json=json)


def _body_mode(text: str | None) -> str | None:
    """As a selection has it: failfast is what goes without saying."""
    mode = (body_options(text).get("bodyMode") or "failfast").strip().lower()
    return None if mode == "failfast" else mode


def _sound_name(name: str) -> str:
    from ..spark.pipelines.spec import PIPELINE_NAME, PIPELINE_NAME_RULE

    if not PIPELINE_NAME.fullmatch(name):
        raise ConfigError(f"--name {name[:60]!r}: {PIPELINE_NAME_RULE}")
    return name


def _made_up_name(typed: Mapping[str, Any]) -> str:
    """The name for some words; what older versions have begun keeps the one that they gave it."""
    from ..spark.replay import default_name

    words = {**typed, "from_ms": 0, "until_ms": 0}
    if words["body_mode"] is None:
        del words["body_mode"]
    return default_name(typed["topic"], words)


def _require_possible(selection: Selection, *, force: bool) -> None:
    """Refuse what cannot be, or is hardly meant, before Spark starts."""
    from ..spark.catalogue import Catalogue

    if selection.archive is not None:
        Catalogue(selection.archive).require()
    if selection.is_onto_itself and not force:
        raise ConfigError(
            f"--to {selection.to}: a topic is not replayed into itself, its consumers would see "
            "everything twice; add --force if that is meant"
        )
    # A topic may be in the archive alone.
    require_topics(selection.namesrv, [selection.topic] if selection.archive is None else ())


def _begun(asked: _Replay, directory: RunDirectory, *, is_folder_typed: bool) -> _Replay | None:
    """What the same command has begun, or None; raises ConfigError where it was another."""
    if asked.name in directory.names():
        return _begun_as_named(asked, directory, is_folder_typed=is_folder_typed)
    return _begun_in_folder(asked, is_folder_typed=is_folder_typed)


def _begun_as_named(asked: _Replay, directory: RunDirectory, *, is_folder_typed: bool) -> _Replay:
    name = asked.name
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
    begun = _kept(name, state)
    is_made_up = not begun.typed and name == _made_up_name(asked.typed)
    if not is_made_up and not _is_same(begun, asked):
        raise ConfigError(
            f"--name {name}: that replay sends {_told(begun, asked)}; go on with it by "
            f"`skylark pipeline resume {name}`, or choose another name"
        )
    if is_folder_typed and asked.folder != begun.folder:
        raise ConfigError(
            f"--checkpoint {asked.folder}: replay {name} keeps its progress in {begun.folder}; "
            "leave that out to go on with it, or give another --name as well"
        )
    return begun


def _begun_in_folder(asked: _Replay, *, is_folder_typed: bool) -> _Replay | None:
    """The same, where a folder holds a choice and the state of its replay is gone."""
    from ..spark.replay import batches_done, chosen_in

    chosen = chosen_in(asked.folder)
    if chosen is None:
        return None
    option, holds, advice = f"--name {asked.name}", "its folder holds", "choose another name"
    if is_folder_typed:
        option, holds, advice = f"--checkpoint {asked.folder}", "it holds", "name another folder"
    begun = replace(asked, selection=chosen.selection, typed=chosen.typed)
    # An older version has kept no words there, and there is no state to resume it by.
    is_older = not chosen.typed and chosen.selection == _as_of(chosen.selection, asked)
    if not is_older and not _is_same(begun, asked):
        raise ConfigError(
            f"{option}: {holds} the choice of another replay, {_told(begun, asked)}; {advice}"
        )
    if batches_done(asked.folder) >= len(chosen.rows):
        raise ConfigError(
            f"{option}: what {holds} has been sent already, {chosen.selection.way}; {advice}"
        )
    return begun


def _is_same(begun: _Replay, asked: _Replay) -> bool:
    if not begun.typed:
        return begun.selection == asked.selection
    return _given(begun.typed) == _given(asked.typed)


def _as_of(then: Selection, asked: _Replay) -> Selection:
    """What is asked for, with the moments of an earlier time where they move with the clock."""
    now = asked.selection
    from_ms = then.from_ms if _moves(asked.typed["from"]) else now.from_ms
    until_ms = then.until_ms if _moves(asked.typed["until"] or "now") else now.until_ms
    return replace(now, from_ms=from_ms, until_ms=until_ms)


def _moves(word: str | None) -> bool:
    """Whether a moment is another one when it is typed later."""
    return _moment("", word, 1 << 41) != _moment("", word, 1 << 42)


def _given(typed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: word for name, word in typed.items() if word is not None}


def _in_words(selection: Selection) -> dict[str, Any]:
    """Words that would choose the same, though not those that were typed."""
    bounds = {"from": selection.from_ms, "until": selection.until_ms}
    texts = {name: None if at_ms is None else str(at_ms) for name, at_ms in bounds.items()}
    return {**selection.to_dict(), **texts}


def _told(begun: _Replay, asked: _Replay) -> str:
    """What a replay sends, with those of its options that are not what is asked for now."""
    then, now = _given(begun.typed or _in_words(begun.selection)), _given(asked.typed)
    others = [key for key in asked.typed if key not in _WAY and then.get(key) != now.get(key)]
    options = [_option(key, then.get(key)) for key in others]
    return begun.selection.way + (f" with {' and '.join(options)}" if options else "")


def _option(key: str, word: Any) -> str:
    name = "--" + key.replace("_", "-")
    return f"no {name}" if word is None else f"{name} {escaped(shlex.quote(str(word)))}"


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
    if state.status == "done":
        raise ConfigError(f"replay {name} is done; there is nothing to go on with")
    _go_on(_kept(name, state), verbose=verbose, as_json=as_json)


def _kept(name: str, state: RunState) -> _Replay:
    """A replay from its state; raises StoreUnreadable for one that is damaged."""
    from ..spark.pipelines import RunDirectory
    from ..spark.replay import Selection

    try:
        if not state.checkpoint:
            raise ValueError("it has no checkpoint")
        selection = Selection.from_dict(state.flags.get("selection"))
        typed = state.flags.get("typed")
        folder = Path(state.checkpoint)
        flags = Flags.kept(state.flags)
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreUnreadable(
            str(RunDirectory.default().path(name, "json")),
            f"does not say what the replay sends: {error}; begin it anew with another --name",
        ) from error
    return _Replay(name, selection, typed if isinstance(typed, dict) else {}, folder, flags)


def _go_on(begun: _Replay, *, verbose: bool, as_json: bool) -> None:
    """Send what is left; it was shown and meant when it was begun."""
    require_target(begun.selection.to_namesrv, begun.selection.to)
    say(f"{begun.name}: going on where it was")
    settings = begun.flags.settings()
    with spark_session(begun.name, begun.flags, settings, verbose=verbose) as spark:
        _send(begun, spark, as_json=as_json)


def _send(one: _Replay, spark: SparkSession, *, as_json: bool) -> None:
    from ..spark.pipelines import Run
    from ..spark.replay import as_pipeline, batches_done, choose

    name, selection, folder = one.name, one.selection, one.folder
    kept = {**asdict(one.flags), "selection": selection.to_dict(), "typed": one.typed}
    reporter = None if as_json else Reporter()
    with (
        Run(as_pipeline(name, selection, folder), kind="replay", flags=kept) as run,
        stopping_by_signal("this micro-batch") as stop,
    ):
        stop.then(run.request_stop)
        if reporter is not None:
            stop.then(reporter.begin_below)
        chosen = choose(spark, selection, folder, one.typed)
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
    if found >= _TIMES_END_MS:
        raise ConfigError(f"{option} {text[:40]}: the year 9998 is the last")
    return now_ms if found == NEWEST else max(0, found)  # Nothing is stored before 1970.
