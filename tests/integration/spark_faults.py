"""A sink that fails where it is told to, and a driver as a process of its own that can be killed.

Spark's own Python processes import this module, so what it is told comes in files: a fault is a
file in a folder, and goes off once, when it can be removed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, WriterCommitMessage

from skylark.spark.options import write_options
from skylark.spark.sink import OnceStreamWriter


def goes_off(folder: str, name: str) -> bool:
    """Whether a fault was set; it is not any more."""
    try:
        os.remove(os.path.join(folder, name))
    except FileNotFoundError:
        return False
    return True


class FaultySource(DataSource):
    """format("faulty"): our sink, with the option `faults` that names a folder."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        given = {name: value for name, value in self.options.items() if name != "faults"}
        return FaultyWriter(write_options(given, is_stream=True), self.options["faults"])


class FaultyWriter(OnceStreamWriter):
    """Fails before or after each of its steps."""

    def __init__(self, options: Any, folder: str) -> None:
        super().__init__(options)
        self.folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if goes_off(self.folder, "before-write"):
            os.kill(os.getpid(), signal.SIGKILL)
        staged = super().write(iterator)
        if goes_off(self.folder, "after-write"):
            os.kill(os.getpid(), signal.SIGKILL)
        if goes_off(self.folder, "task-error"):
            raise RuntimeError("the task fails after it has staged its rows")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if goes_off(self.folder, "before-commit"):
            raise RuntimeError("the commit fails before the decision")
        if goes_off(self.folder, "kill-before-commit"):
            kill_driver()
        super().commit(messages, batchId)
        if goes_off(self.folder, "after-commit"):
            raise RuntimeError("the commit fails after the decision")
        if goes_off(self.folder, "kill-after-commit"):
            kill_driver()


def kill_driver() -> None:
    """The JVM that this process works for, and with it the whole query."""
    os.kill(int(os.environ["SPARK_FAULTS_JVM"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(namesrv: str, source: str, sink: str, folder: str, rows_max: int) -> None:
    """One driver: topic to topic, what is there now."""
    from spark_world import start_spark

    spark = start_spark(Path(folder) / "warehouse")
    spark.dataSource.register(FaultySource)
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    os.environ["SPARK_FAULTS_JVM"] = str(jvm)
    print(f"jvm {jvm}", flush=True)
    query = start_query(spark, namesrv, source, sink, folder, rows_max)
    query.awaitTermination()
    spark.stop()


def start_query(
    spark: Any, namesrv: str, source: str, sink: str, folder: str, rows_max: int
) -> Any:
    """Topic to topic, exactly once, through the sink with faults."""
    return (
        spark.readStream.format("skylark")
        .option("namesrv", namesrv)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", rows_max)
        .option("minPartitions", 3)
        .load()
        .selectExpr("body", "tag", "cast(body as string) as sharding_key")
        .writeStream.format("faulty")
        .option("faults", folder)
        .option("namesrv", namesrv)
        .option("topic", sink)
        .option("batchBytes", "4k")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
