"""`skylark store`: look into a store, check it, build it again, back it up and restore it.

The store is a directory, of ours or of RocketMQ's. Its file sizes are found out from the files;
flags, or the broker's own configuration file, say it where that cannot be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json as json_module
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..clock import SystemClock
from ..config import load
from ..errors import ConfigError
from ..logs import escaped
from ..store import OsFiles, StoreConfig
from ..store.tools import (
    backup_store,
    check_store,
    detect_config,
    dump_index,
    dump_queue,
    dump_records,
    rebuild_store,
    restore_store,
)
from . import exits, render

app = typer.Typer(no_args_is_help=True, help="Check, rebuild, dump, back up and restore a store.")

_GEOMETRY = {
    "log_file_bytes": "mapped_file_size_commit_log",
    "queue_file_bytes": "mapped_file_size_consume_queue",
    "index_slots": "max_hash_slot_num",
    "index_entries": "max_index_num",
    "delay_levels": "message_delay_level",
}
_KINDS = ("records", "queue", "index")
_LIMIT = 1_000

_Store = Annotated[Path, typer.Argument(metavar="STORE", help="The root of a store.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_CommitLog = Annotated[
    Path | None, typer.Option("--commit-log", help="Where the commit log lies, if not in STORE.")
]
_File = Annotated[
    Path | None, typer.Option("-c", "--config", help="Take the sizes from a broker's config file.")
]
_LogBytes = Annotated[
    int | None, typer.Option("--log-file-bytes", help="mappedFileSizeCommitLog of the store.")
]
_QueueBytes = Annotated[
    int | None, typer.Option("--queue-file-bytes", help="mappedFileSizeConsumeQueue of the store.")
]
_Slots = Annotated[int | None, typer.Option("--index-slots", help="maxHashSlotNum of the store.")]
_Entries = Annotated[int | None, typer.Option("--index-entries", help="maxIndexNum of the store.")]
_Delays = Annotated[
    str | None, typer.Option("--delay-levels", help="messageDelayLevel of the store.")
]


def _config(
    store: Path,
    *,
    commit_log: Path | None = None,
    config: Path | None = None,
    **flags: int | str | None,
) -> StoreConfig:
    values: dict[str, int | str] = {}
    place = "" if commit_log is None else str(commit_log)
    if config is not None:
        from ..broker.config import BrokerConfig

        broker = load(BrokerConfig, file=str(config)).config.store_config()
        values = {name: getattr(broker, name) for name in _GEOMETRY.values()}
        place = place or broker.store_path_commit_log
    values.update({_GEOMETRY[flag]: value for flag, value in flags.items() if value is not None})
    return detect_config(os.path.abspath(store), commit_log=place, overrides=values)


@app.command("check")
def check_command(
    store: _Store,
    commit_log: _CommitLog = None,
    config: _File = None,
    log_file_bytes: _LogBytes = None,
    queue_file_bytes: _QueueBytes = None,
    index_slots: _Slots = None,
    index_entries: _Entries = None,
    delay_levels: _Delays = None,
    json: _Json = False,
) -> int:
    """Compare every record, queue, index and offset with the commit log; changes nothing."""
    settings = _config(
        store,
        commit_log=commit_log,
        config=config,
        log_file_bytes=log_file_bytes,
        queue_file_bytes=queue_file_bytes,
        index_slots=index_slots,
        index_entries=index_entries,
        delay_levels=delay_levels,
    )
    with _progress(json) as progress:
        report = check_store(settings, progress=progress, wait=_pause)
    if json:
        _print_json({**dataclasses.asdict(report), "geometry": _geometry(settings)})
    else:
        for finding in report.findings:
            typer.echo(escaped(str(finding)))
        for note in report.notes:
            typer.echo(f"note: {escaped(note)}")
        typer.echo(
            f"{report.state}: {report.record_count} records from {report.log_start} to"
            f" {report.log_end}, {report.queue_count} queues, {report.index_entry_count} index"
            f" entries; {_count(len(report.findings), 'finding')}"
        )
    return exits.DONE if report.is_sound else exits.FAILED


@app.command("rebuild")
def rebuild_command(
    store: _Store,
    commit_log: _CommitLog = None,
    config: _File = None,
    log_file_bytes: _LogBytes = None,
    queue_file_bytes: _QueueBytes = None,
    index_slots: _Slots = None,
    index_entries: _Entries = None,
    delay_levels: _Delays = None,
    json: _Json = False,
) -> int:
    """Build consume queues and index again from the commit log; no broker may run on it."""
    settings = _config(
        store,
        commit_log=commit_log,
        config=config,
        log_file_bytes=log_file_bytes,
        queue_file_bytes=queue_file_bytes,
        index_slots=index_slots,
        index_entries=index_entries,
        delay_levels=delay_levels,
    )
    with _quiet_engine(), _progress(json) as progress:
        report = rebuild_store(settings, OsFiles(), SystemClock(), progress=progress)
    if json:
        _print_json(dataclasses.asdict(report))
        return exits.DONE
    for topic, queue_id, offset in report.kept_offsets:
        typer.echo(f"note: {topic} queue {queue_id} has no message left, it goes on at {offset}")
    for topic in report.topics_left_out:
        typer.echo(f"note: {topic} was deleted, its messages stay without queues")
    if report.dropped_bytes:
        typer.echo(f"note: a torn tail of {report.dropped_bytes} bytes was cut")
    typer.echo(
        f"{_count(report.queue_count, 'queue')} and {_count(report.index_file_count, 'index file')}"
        f" built from {report.log_start} to {report.log_end}"
    )
    return exits.DONE


@app.command("dump")
def dump_command(
    store: _Store,
    kind: Annotated[str, typer.Argument(metavar="[records|queue|index]")] = "records",
    physical: Annotated[
        str | None,
        typer.Option("--physical", metavar="FROM:TO", help="Records in this range of the log."),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option("--offsets", metavar="FROM:TO", help="Entries in this range of the queue."),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only of this topic.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", help="Only of this queue.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only with this key or id.")] = None,
    body: Annotated[bool, typer.Option("--body", help="With bodies, in base64, as JSON.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="At most so many; 0 for all.")] = _LIMIT,
    commit_log: _CommitLog = None,
    config: _File = None,
    log_file_bytes: _LogBytes = None,
    queue_file_bytes: _QueueBytes = None,
    index_slots: _Slots = None,
    index_entries: _Entries = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> int:
    """Show records, queue entries or index entries; changes nothing."""
    if kind not in _KINDS:
        raise ConfigError(f"there is no {kind} to dump; use one of: {', '.join(_KINDS)}")
    if limit < 0:
        raise ConfigError("--limit: it is negative; use 0 for all")
    settings = _config(
        store,
        commit_log=commit_log,
        config=config,
        log_file_bytes=log_file_bytes,
        queue_file_bytes=queue_file_bytes,
        index_slots=index_slots,
        index_entries=index_entries,
    )
    rows: Iterator[Mapping[str, object]]
    if kind == "records":
        if offsets is not None:
            raise ConfigError("--offsets is for dump queue; records are chosen with --physical")
        start, end = _range("--physical", physical)
        rows = dump_records(
            settings,
            start=start,
            end=end,
            topic=topic,
            queue_id=queue,
            key=key,
            with_body=body,
        )
        columns = _titles("physical_offset size topic queue queue_offset tag keys body_size")
    elif kind == "queue":
        if topic is None or queue is None:
            raise ConfigError("dump queue needs --topic and --queue")
        start, end = _range("--offsets", offsets)
        rows = dump_queue(settings, topic, queue, start=start, end=end)
        columns = _titles("queue_offset physical_offset size tag_code")
    else:
        if (topic is None) != (key is None):
            raise ConfigError("dump index takes --topic and --key together, or neither")
        rows = dump_index(settings, topic=topic, key=key)
        columns = _titles("file entry key_hash slot physical_offset stored_at_ms previous")
    _show(rows, columns, limit, as_json=json)
    return exits.DONE


@app.command("backup")
def backup_command(
    store: _Store,
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="A directory that does not exist, or is empty.")
    ],
    commit_log: _CommitLog = None,
    config: _File = None,
    log_file_bytes: _LogBytes = None,
    queue_file_bytes: _QueueBytes = None,
    index_slots: _Slots = None,
    index_entries: _Entries = None,
    delay_levels: _Delays = None,
    json: _Json = False,
) -> int:
    """Copy a store up to a mark, while a broker runs on it or not."""
    settings = _config(
        store,
        commit_log=commit_log,
        config=config,
        log_file_bytes=log_file_bytes,
        queue_file_bytes=queue_file_bytes,
        index_slots=index_slots,
        index_entries=index_entries,
        delay_levels=delay_levels,
    )
    with _progress(json) as progress:
        report = backup_store(
            settings,
            os.path.abspath(destination),
            now_ms=SystemClock().now_ms(),
            progress=progress,
            wait=_pause,
        )
    if json:
        _print_json(dataclasses.asdict(report))
    else:
        typer.echo(
            f"{report.destination}: {report.record_count} records from {report.log_start} to the"
            f" mark {report.mark}, {_count(report.linked_files, 'file')} linked,"
            f" {report.copied_files} copied, {_count(len(report.tables), 'table')}"
        )
    return exits.DONE


@app.command("restore")
def restore_command(
    source: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="A backup's directory, or a tar of it.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="STORE", help="A directory that does not exist, or is empty.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Build queues and index, and check every record.")
    ] = False,
    json: _Json = False,
) -> int:
    """Make a store out of a backup; every file is compared with the manifest."""
    with _quiet_engine(), _progress(json) as progress:
        report = restore_store(
            str(source), str(target), OsFiles(), SystemClock(), verify=verify, progress=progress
        )
    if json:
        _print_json(dataclasses.asdict(report))
    else:
        proof = "verified" if report.is_verified else "its queues are built at the first start"
        typer.echo(
            f"{report.target}: {report.record_count} records from {report.log_start} to"
            f" {report.mark}, {_count(report.file_count, 'file')}; {proof}"
        )
    return exits.DONE


# Showing.


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _titles(names: str) -> dict[str, str]:
    return {name: name.replace("_", " ") for name in names.split()}


def _range(flag: str, text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    numbers = [word for word in (first, last) if word]
    if not numbers or any(not (word.isascii() and word.isdigit()) for word in numbers):
        raise ConfigError(f"{flag}: {text!r} is not a range such as 100:200, 100: or :200")
    start = int(first) if first else None
    if not colon:
        assert start is not None
        return start, start + 1
    return start, int(last) if last else None


def _geometry(config: StoreConfig) -> dict[str, object]:
    return {flag: getattr(config, name) for flag, name in _GEOMETRY.items()}


def _print_json(value: object) -> None:
    json_module.dump(value, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def _show(
    rows: Iterable[Mapping[str, object]],
    columns: Mapping[str, str],
    limit: int,
    *,
    as_json: bool,
) -> None:
    shown = itertools.islice(rows, limit + 1 if limit else None)
    kept = []
    for number, row in enumerate(shown, 1):
        if limit and number > limit:
            exits.complain("skylark", f"there is more; see it with --limit {limit * 10}")
            break
        if as_json:
            sys.stdout.write(json_module.dumps(row, ensure_ascii=True) + "\n")
        else:
            kept.append(row)
    if not as_json:
        render.show_table(kept, columns)


@contextlib.contextmanager
def _quiet_engine() -> Iterator[None]:
    """Building queues anew is what was asked for: the engine need not warn of it."""
    engine = logging.getLogger("skylark.store")
    before = engine.level
    engine.setLevel(logging.ERROR)
    try:
        yield
    finally:
        engine.setLevel(before)


def _pause() -> None:
    time.sleep(0.1)


class _Bar:
    """A progress bar on a terminal; one task for each thing that is done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self._tasks[what], completed=done, total=total)


@contextlib.contextmanager
def _progress(as_json: bool) -> Iterator[_Bar | None]:
    if as_json or not render.is_terminal(sys.stderr):
        yield None
        return
    bar = _Bar()
    with bar.progress:
        yield bar
