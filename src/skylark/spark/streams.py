"""Streams: starting one in any thread, and after a driver that was killed at any moment.

Spark has two conditions of its own that its users meet after months, and then at every start:

- A format that is in Python is found by way of the session that is active in a thread of Java's. A
  thread of Python's has one of its own there, and a new one without a session whenever it is a new
  thread, or its connection to Java had to be made anew.
- A driver that is killed while it notes its first micro-batch leaves a draft in the checkpoint's
  folder `offsets`, and Spark takes one that is not empty for another's. Nothing has been read by
  it; the draft of a later one is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_DRAFT = re.compile(r"\.0\.[0-9a-f-]+\.tmp")


def start(spark: SparkSession, writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
    """Start a stream with this checkpoint; raises what Spark does."""
    writer = writer.option("checkpointLocation", checkpoint)
    return started(spark, checkpoint, writer.start)


def started(
    spark: SparkSession, checkpoint: str, begin: Callable[[], StreamingQuery]
) -> StreamingQuery:
    """What begin() starts, with a checkpoint that it has been told."""
    forget_draft(spark, checkpoint)
    with active(spark):
        return begin()


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session that of this thread: Spark looks there for formats that are in Python."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:  # Spark Connect: the server knows.
        yield
        return
    sessions = type(spark)._get_j_spark_session_class(jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def forget_draft(spark: SparkSession, checkpoint: str) -> None:
    """Remove the draft of a first micro-batch that was never noted."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(folder):
        return
    paths = {status.getPath().getName(): status.getPath() for status in files.listStatus(folder)}
    if any(name.isdecimal() for name in paths):
        return
    for name, path in paths.items():
        if _DRAFT.fullmatch(name):
            files.delete(path, False)
