"""Matching: what consumers did with a message, put together with when it was sent.

Both come as records of the trace topic, from different clients, in any order and hours apart when a
group is behind. So a step leaves state for the next ones, as files that its entry names:

    published   the messages whose sending it has seen; each step adds a file, and those whose
                newest message is an hour older than the newest trace are forgotten
    waiting     consumption whose sending is not known; the newest file has all of it. After ten
                minutes, by the time of the newest trace, it is counted as unmatched

Times are those of clients, whose clocks may be wrong. None is newer than now, or one client that is
a day ahead would have all that others sent forgotten.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ..catalogue import ArchivedFile, files_in
from . import queries
from .rows import Row
from .table import PUBLISHED, WAITING, MetricTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REMEMBERED_MS = 3_600_000
WAITING_MS = 600_000


def match(
    spark: SparkSession,
    table: MetricTable,
    number: int,
    traces: DataFrame,
    *,
    now_ms: int = queries.TIME_MS_MAX,
) -> tuple[list[Row], list[ArchivedFile]]:
    """The rows of these trace messages, and the state after them."""
    for unfinished in (table.root / "state").glob(f"*/{number:012d}-*"):
        shutil.rmtree(unfinished)  # A try of this step wrote it, and died.
    records = queries.trace_records(traces).persist()
    pairs: DataFrame | None = None
    try:
        sent, done = queries.published(records), queries.consumed(records)
        newest_sent, newest_done = (min(at, now_ms) for at in queries.newest(sent, done))
        newest = max(newest_sent, newest_done)
        state = _keep(table, sent, PUBLISHED, number, newest_sent) if newest_sent else []
        known = [str(table.root / file.path) for file in state]
        known += table.published(newest - REMEMBERED_MS)
        remembered = queries.read_state(spark, known, queries.PUBLISHED_SCHEMA)
        waiting = queries.read_state(spark, table.waiting(), queries.CONSUMED_SCHEMA)
        pairs = queries.matched(remembered, done.unionByName(waiting)).persist()
        patience = newest - WAITING_MS, newest + REMEMBERED_MS
        rows, left = queries.latencies(pairs, *patience)
        if left:
            rest = pairs.where(queries.waits(*patience)).select(
                "kind", "detail", "group", "id", "at"
            )
            state += _keep(table, rest, WAITING, number, newest)
        return rows, state
    finally:
        records.unpersist()
        if pairs is not None:
            pairs.unpersist()


def nothing_new(table: MetricTable) -> list[ArchivedFile]:
    """The state after a step without traces: what waits goes on waiting."""
    entries = table.catalogue.entries()
    last = entries[-1].files if entries else ()
    return [file for file in last if file.topic == WAITING]


def _keep(
    table: MetricTable, frame: DataFrame, kind: str, number: int, newest_ms: int
) -> list[ArchivedFile]:
    """Write state; the name of its folder says how old it is."""
    folder = table.root / "state" / kind / f"{number:012d}-{newest_ms}"
    frame.coalesce(1).write.option("compression", "zstd").parquet(str(folder))
    return files_in(table.root, folder, lambda path: kind)
