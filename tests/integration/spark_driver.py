"""A driver that can be killed: topic to topic and topic to archive, exactly once.

    python spark_driver.py NAMESRV SOURCE SINK ROWS_MAX

It says "ready" when its session is there, begins when it gets a line, and ends with the next one.
spark_faults.py has the steps at which it dies, and the folder in which it works.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_faults import FOLDER, FaultySource, after, step
from spark_world import start_spark

from skylark.spark import archive as archives
from skylark.spark import start
from skylark.spark.catalogue import Catalogue, Entry

COMPACT_FROM = 6  # Entries.
NOTED_MAX = 20_000  # Characters of an error.
FUTILE_MAX = 30  # Starts in a row of a query that ends at once.
FUTILE_S = 3.0


def main(namesrv: str, source: str, sink: str, rows_max: int) -> None:
    """One life of a driver."""
    spark = start_spark(FOLDER / "warehouse")
    spark.dataSource.register(FaultySource)
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    print("ready", flush=True)
    sys.stdin.readline()
    (FOLDER / "jvm").write_text(str(jvm))
    (FOLDER / "driver").write_text(str(os.getpid()))
    add_steps()
    lake = FOLDER / "lake"
    over = threading.Event()
    jobs: list[Callable[[], Any]] = [
        lambda: start_query(spark, namesrv, source, sink, rows_max),
        lambda: archives.archive(
            spark, lake, [source], namesrv=namesrv, trigger="0.2 seconds", messages_max=rows_max
        ),
    ]
    compacting = threading.Thread(target=compact_often, args=(spark, lake, over))
    compacting.start()
    threading.Thread(target=wait_for_end, args=(over,), daemon=True).start()
    supervise(jobs, over)
    compacting.join()
    spark.stop()


def wait_for_end(over: threading.Event) -> None:
    """Whoever started this driver tells it when to stop, or is gone, and so is this."""
    if not sys.stdin.readline():
        os.killpg(0, signal.SIGKILL)
    over.set()


def add_steps() -> None:
    """The steps of the archive, all of which are in the driver itself."""
    add = Catalogue.add

    def added(catalogue: Catalogue, entry: Entry) -> None:
        add(catalogue, entry)
        step("archive-entry" if entry.first == entry.last else "compact-entry")

    archives.write_files = after("archive-files", archives.write_files)  # type: ignore[attr-defined]
    archives.files_in = after("compact-files", archives.files_in)  # type: ignore[attr-defined]
    Catalogue.add = added  # type: ignore[method-assign, assignment]
    Catalogue.note_replaced = after(  # type: ignore[method-assign]
        "compact-note", Catalogue.note_replaced
    )


def supervise(jobs: list[Callable[[], Any]], over: threading.Event) -> None:
    """As whoever runs queries does: one that has failed is started again.

    If starts come to nothing again and again, this process goes, and the next one takes its place.
    """
    queries: list[Any] = [None] * len(jobs)
    starts = [0.0] * len(jobs)
    futile = [0] * len(jobs)
    while not over.wait(0.1):
        for number, query in enumerate(queries):
            if query is not None and query.isActive:
                continue
            if query is not None:
                note_failure(query.exception())
            lasted = time.monotonic() - starts[number] > FUTILE_S
            futile[number] = 0 if lasted else futile[number] + 1
            if futile[number] > FUTILE_MAX:
                os.killpg(0, signal.SIGKILL)
            starts[number] = time.monotonic()
            try:
                queries[number] = jobs[number]()
            except Exception as error:
                queries[number] = None
                note_failure(error)
    for query in queries:
        if query is not None:
            query.stop()


def note_failure(error: Any) -> None:
    """A line for each query that ended by itself: the causes first, which say why.

    Whole, and with their classes: what an error of ours is called may stand far behind.
    """
    found = []
    while error is not None:
        kind = type(error)
        text = " ".join(str(error).split())[:NOTED_MAX]
        found.append(f"{kind.__module__}.{kind.__qualname__}: {text}")
        error = getattr(error, "_cause", None)
    with (FOLDER / "failures").open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} {' <- '.join(reversed(found)) or 'no error'}\n")


def compact_often(spark: Any, lake: Path, over: threading.Event) -> None:
    """Put entries together as they come."""
    while not over.wait(1.0):
        if len(Catalogue(lake).entries()) >= COMPACT_FROM:
            archives.compact(spark, lake)


def start_query(spark: Any, namesrv: str, source: str, sink: str, rows_max: int) -> Any:
    """Topic to topic, exactly once."""
    writer = (
        spark.readStream.format("skylark")
        .option("namesrv", namesrv)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("group", "chain")
        .option("maxMessagesPerTrigger", rows_max)
        .option("minPartitions", 3)
        .load()
        .selectExpr("body", "tag", "cast(body as string) as sharding_key")
        .writeStream.format("skylark")
        .option("namesrv", namesrv)
        .option("topic", sink)
        .option("batchBytes", "512")
        .trigger(processingTime="0.2 seconds")
    )
    return start(spark, writer, f"{FOLDER}/checkpoint")


if __name__ == "__main__":
    _namesrv, _source, _sink, _rows_max = sys.argv[1:]
    main(_namesrv, _source, _sink, int(_rows_max))
