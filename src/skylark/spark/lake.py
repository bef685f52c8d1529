"""Lake: topics archived into an Iceberg or Delta table, with the package that the user brings.

Both formats write a stream exactly once by themselves: what a micro-batch adds and its number are
in one commit of the table, Iceberg's in the snapshot's summary and Delta's as a transaction of the
query, so that a batch that is repeated finds itself and adds nothing. The checkpoint must stay with
the table: a new one starts over, and would add everything again; that of another table would leave
out what went there, and is refused (lake_notes.py).

    format    package, on Maven Central                                   for Spark
    iceberg   org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0    4.1
    delta     io.delta:delta-spark_4.2_2.13:4.4.0                         4.2

Builds follow Spark by some months, and one that was made for another Spark does not work: that is
said before anything starts. In November 2026 there is none for Spark 4.3, and none of Iceberg for
4.2, the oldest that our source runs on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, SkylarkError
from ..model.group import ARCHIVE_GROUP
from . import streams
from .lake_notes import DEFAULT_TABLE, TABLES, LakeNote
from .options import access_options
from .pipelines.causes import as_error, one_line
from .schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CATALOGUE = "skylark"
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,3}")
_BUILT_FOR = re.compile(r"(?:iceberg-spark-runtime-|delta-spark_)(?P<spark>\d+\.\d+)_\d+\.\d+:")
_LINKAGE = ("NoSuchMethodError", "NoClassDefFoundError", "AbstractMethodError",
            "IncompatibleClassChangeError", "NoSuchFieldError", "ClassNotFoundException",
            "IllegalAccessError", "VerifyError")  # fmt: skip


class TableFormat(StrEnum):
    """Formats of tables that others can read."""

    ICEBERG = "iceberg"
    DELTA = "delta"


_PACKAGES = {
    TableFormat.ICEBERG: "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    TableFormat.DELTA: "io.delta:delta-spark_4.2_2.13:4.4.0",
}
_CLASSES = {
    TableFormat.ICEBERG: "org.apache.iceberg.spark.SparkCatalog",
    TableFormat.DELTA: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def settings(table_format: TableFormat, root: Path) -> dict[str, str]:
    """What a session needs for tables below a directory; the user's own settings go before."""
    if table_format is TableFormat.DELTA:
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": _CLASSES[table_format],
        }
    catalogue = f"spark.sql.catalog.{CATALOGUE}"
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalogue: _CLASSES[table_format],
        f"{catalogue}.type": "hadoop",
        f"{catalogue}.warehouse": str(root / TABLES),
    }


def installed_spark() -> str:
    """The version of Spark that is here; raises ConfigError where there is none."""
    try:
        return version("pyspark")
    except PackageNotFoundError as error:
        raise ConfigError("Spark is not installed: pip install 'skylarkmq[spark]'") from error


def require_package(
    given: Mapping[str, str], table_format: TableFormat, spark_version: str
) -> None:
    """Refuse to start Spark without what it will need; raises ConfigError.

    Coordinates name the Spark that a package was built for. One for another Spark starts, and
    fails at its first commit with the signature of a method that is not there.
    """
    packages = given.get("spark.jars.packages", "")
    if not packages and "spark.jars" not in given:
        raise ConfigError(
            f"--table-format {table_format} needs its package, such as --packages "
            f"{_PACKAGES[table_format]}; take the build for your Spark, which is {spark_version}"
        )
    ours = ".".join(spark_version.split(".")[:2])
    for name in packages.split(","):
        built_for = _BUILT_FOR.search(name)
        if built_for is not None and built_for["spark"] != ours:
            theirs = built_for["spark"]
            other = f"or pip install 'pyspark~={theirs}.0'"
            if tuple(map(int, theirs.split("."))) < (4, 2):
                other = "if there is one yet: the source of topics needs Spark 4.2 or newer"
            raise ConfigError(
                f"--packages {name.strip()} is built for Spark {theirs}, and this is Spark "
                f"{spark_version}; take the build for {ours}, {other}"
            )


def archive_into(
    spark: SparkSession,
    root: Path,
    topics: Sequence[str],
    *,
    table_format: TableFormat,
    namesrv: str,
    table: str | None = None,
    group: str = ARCHIVE_GROUP,
    once: bool = False,
    trigger: str = "1 minute",
    messages_max: int = 1_000_000,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start archiving into a table; it is made where it is missing.

    Options are those of the account and of patience: accessKey, secretKey, timeoutMs, retryMs.
    """
    asking = access_options(options)
    target = name_of(table_format, root, table)
    note = LakeNote(table_format.value, table)
    note.check(root)
    _check_package(spark, table_format)
    try:
        _make(spark, table_format, target)
        frame = (
            spark.readStream.format("skylark")
            .options(**asking)
            .option("namesrv", namesrv)
            .option("topic", ",".join(topics))
            .option("startingOffsets", "earliest")
            .option("group", group)
            .option("maxMessagesPerTrigger", messages_max)
            .load()
        )
        if table_format is TableFormat.DELTA:
            frame = frame.selectExpr("*", "date_format(store_time, \"yyyy-MM-dd'T'HH\") as hour")
        chosen: Any = {"availableNow": True} if once else {"processingTime": trigger}
        checkpoint = str(root / "checkpoint")
        writer = (
            frame.writeStream.format(table_format.value)
            .outputMode("append")
            .option("checkpointLocation", checkpoint)
            .option("fanout-enabled", "true")
            .queryName(f"archive {' '.join(topics)}"[:120])
            .trigger(**chosen)
        )
        note.write(root)
        if table is None and table_format is TableFormat.DELTA:
            # Delta streams by name only into what has one.
            return streams.started(spark, checkpoint, lambda: writer.start(_path(root)))
        return streams.started(spark, checkpoint, lambda: writer.toTable(target))
    except Exception as error:
        raise explained(spark, table_format, error) from error


def explained(spark: SparkSession, table_format: TableFormat, error: Exception) -> Exception:
    """One line of an error; where the package is for another Spark, that."""
    java: Any = getattr(error, "java_exception", None)  # Its text, not that a call has failed.
    text = str(error) if java is None else f"{java.toString()}\n{error}"
    for line in text.splitlines():
        if any(word in line for word in _LINKAGE):
            return ConfigError(
                f"the package for {table_format} does not fit Spark {spark.version} "
                f"({line.strip()[:200]}); take the build for this Spark, or a Spark that there is "
                "a build for"
            )
    return as_error(error if java is None else SkylarkError(one_line(Exception(text))))


def _check_package(spark: SparkSession, table_format: TableFormat) -> None:
    jvm: Any = spark._jvm
    name = _CLASSES[table_format]
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, False)
    except Exception as error:
        raise ConfigError(
            f"Spark has no {table_format} ({name} is missing); add --packages "
            f"{_PACKAGES[table_format]}, or the build for Spark {spark.version}"
        ) from error


def name_of(table_format: TableFormat, root: Path, table: str | None) -> str:
    """A table as SQL names it: the user's own, or one below the directory."""
    if table is not None:
        if not _NAME.fullmatch(table):
            raise ConfigError(f"table {table[:80]!r}: names with dots are allowed, as in SQL")
        return table
    if table_format is TableFormat.ICEBERG:
        return f"{CATALOGUE}.{DEFAULT_TABLE}"
    if "`" in str(root):
        raise ConfigError(f"archive {root}: its path must be without `")
    return f"delta.`{_path(root)}`"


def _path(root: Path) -> str:
    return str(root / TABLES / DEFAULT_TABLE)


def _make(spark: SparkSession, table_format: TableFormat, target: str) -> None:
    """Make the table where it is missing."""
    columns = [f"{column} {kind}" for column, kind in COLUMNS.items()]
    parts = "topic, hours(store_time)"
    if table_format is TableFormat.DELTA:
        columns.append("hour string")
        parts = "topic, hour"
    spark.sql(
        f"create table if not exists {target} ({', '.join(columns)}) using {table_format.value} "
        f"partitioned by ({parts})"
    )
