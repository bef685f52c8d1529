"""Named steps of source, sink and archive, at each of which somebody can be made to die.

Spark's own Python processes import this module, so what they are told comes in files, below the
folder that SPARK_FAULTS names:

    set/<step>        who dies when a process comes to this step: worker, driver, or a broker's name
    kills/<number>    who has died, and where; written by the killer, just before
    failures          a line for each query that ended with an error and was started again
    threads           what the last driver's Java did when jobs did not catch up
    jvm, driver       process numbers

A fault goes off once: whoever can move its file away is the killer.

    step               where                                                        in
    plan               latestOffset: how far the micro-batch goes is known          source's process
    split              partitions: what each task reads is known                    source's process
    progress           the group's progress is about to be committed                source's process
    read               a task has read its first rows                               task
    stage              a task is about to stage rows                                task
    staging            some of its rows are under way to a broker                   task
    staged             all are, and Spark does not know it yet                      task
    decide             all tasks are done, nothing is decided                       sink's process
    decided            the decision is recorded at one broker, not yet at others    sink's process
    commit             rows are there; Spark has not noted the batch                sink's process
    archive-files      files of a micro-batch are written, no entry names them      driver
    archive-entry      the entry is there; Spark has not noted the batch            driver
    compact-files      compacted files are written, no entry names them             driver
    compact-note       what they replace is noted                                   driver
    compact-entry      the wide entry is there, the old ones are too                driver
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from skylark.protocol.codes import RequestCode
from skylark.spark import transactions
from skylark.spark.sink import OnceStreamWriter
from skylark.spark.source import SkylarkDataSource, SkylarkStreamReader
from skylark.spark.wire import Wire

FOLDER = Path(os.environ.get("SPARK_FAULTS", "/nonexistent"))
IN_TASKS = ("read", "stage", "staging", "staged")
IN_QUERIES = ("plan", "split", "progress", "decide", "decided", "commit")
IN_DRIVER = (
    "archive-files", "archive-entry", "compact-files", "compact-note", "compact-entry",
)  # fmt: skip


def step(name: str) -> None:
    """Here somebody may have to die."""
    try:
        taken = FOLDER / f"taken-{name}-{os.getpid()}"
        os.rename(FOLDER / "set" / name, taken)
    except FileNotFoundError:
        return
    kill(taken.read_text(), name)
    taken.unlink()


def kill(victim: str, where: str) -> None:
    """Kill a worker (this process), the driver, or a broker; noted first."""
    if victim == "worker":
        pids = [os.getpid()]
    elif victim == "driver":
        # The JVM first: it is the driver, and must not see its Python go.
        pids = [int((FOLDER / name).read_text()) for name in ("jvm", "driver")]
    else:
        pids = [int((FOLDER / "brokers" / victim / "pid").read_text())]
    note(victim, where, pids[0])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def note(victim: str, where: str, pid: int) -> None:
    """Write down who dies."""
    draft = FOLDER / f"kill-{os.getpid()}-{time.monotonic_ns()}"
    draft.write_text(f"{victim} {where} {pid}")
    draft.rename(FOLDER / "kills" / draft.name)


def after(where: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        step(where)
        return found

    return called


class FaultySource(SkylarkDataSource):
    """Takes the place of format("skylark") in a session, with the steps above."""

    def streamReader(self, schema: Any) -> Any:
        made = super().streamReader(schema)
        assert isinstance(made, SkylarkStreamReader)
        made.__class__ = FaultyReader
        return made

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        made = super().streamWriter(schema, overwrite)
        assert isinstance(made, OnceStreamWriter)
        made.__class__ = FaultyWriter
        return made


class FaultyReader(SkylarkStreamReader):
    """Our stream reader, with steps."""

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        found = super().latestOffset(start, limit)
        if found != start:
            step("plan")
        return found

    def partitions(self, start: Any, end: Any) -> Any:
        found = super().partitions(start, end)
        step("split")
        return found

    def commit(self, end: Any) -> None:
        step("progress")
        super().commit(end)

    def read(self, partition: Any) -> Iterator[Any]:
        for number, batch in enumerate(super().read(partition)):
            if number == 0:
                step("read")
            yield batch


class FaultyWriter(OnceStreamWriter):
    """Our exactly-once writer, with steps."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        step("stage")
        staged = super().write(iterator)
        step("staged")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        step("decide")
        super().commit(messages, batchId)
        step("commit")


def _sending(ask: Callable[..., None]) -> Callable[..., None]:
    @wraps(ask)
    def asked(wire: Wire, code: int, *rest: Any, **named: Any) -> None:
        ask(wire, code, *rest, **named)
        if code == RequestCode.STAGE_ROWS:
            step("staging")

    return asked


if FOLDER.is_dir():  # Steps within methods: in every process that reads or writes under faults.
    Wire.ask = _sending(Wire.ask)  # type: ignore[method-assign]
    transactions.Decisions._decide = after(  # type: ignore[method-assign]
        "decided", transactions.Decisions._decide
    )
