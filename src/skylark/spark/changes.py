"""ChangeTable: a table in a lake that follows the changes of another, and equals it.

Changes come as messages (change_messages.py), with the primary key as sharding key, so that those
of a row stay in order. `seq` grows with every change of the source. Of each key the change with the
highest `seq` counts, and a delete is remembered as one. So it does not matter whether changes come
twice, late, or again from the start: a batch that is repeated changes nothing, and no crash can
leave the table halfway, since a state of it is one entry of a catalogue.

    <root>/data/batch=000000000003.5f1c0a9e/bucket=5/part-….parquet   rows, with _seq, _deleted
    <root>/catalogue/000000000000-000000000003.json   the files that are the table now, and its
                                                      key, columns and buckets
    <root>/catalogue/KIND                             `changes`: a directory holds nothing else

Keys are spread over buckets, and a batch writes only those anew in which something has changed. So
a table that went on with other buckets, or by another key, would have rows twice: it is refused. A
table whose entries do not say how it was made is older than that, and takes what it is given.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from . import streams
from .bodies import place_of
from .body_schema import BodySchema
from .catalogue import ArchivedFile, Catalogue, Entry, Kind, files_in, unglobbed
from .change_messages import DELETED, SEQUENCE, NotAChange, arrow_type, changes_of, quoted
from .offsets import QueueKey
from .options import BodyMode
from .pipelines.causes import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

BUCKETS = 8
_BUCKET = "bucket"
_OWN = (_BUCKET, SEQUENCE, DELETED)
_MODES = (BodyMode.FAILFAST, BodyMode.DROPMALFORMED)


class ChangeTable:
    """A table that changes are applied to; processes that do so wait for each other."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        key: str,
        columns: str,
        buckets: int = BUCKETS,
        body_mode: str = BodyMode.FAILFAST,
    ) -> None:
        """Name its columns as in CREATE TABLE, and which of them is the key.

        A message that is no change, or has values that are not of the columns' types, ends the
        batch, and says where it is. With body_mode "dropmalformed" it is left out, and a warning
        says how many were; after a query has gone past it, "failfast" is possible again.
        """
        if buckets < 1:
            raise ConfigError(f"buckets={buckets}: at least 1 is needed")
        if body_mode not in _MODES:
            raise ConfigError(f"body_mode={body_mode!r}: {' or '.join(_MODES)} are allowed")
        self.catalogue = Catalogue(root, Kind.CHANGES)
        self.key = key
        self.columns = columns
        self.buckets = buckets
        self._drops = body_mode == BodyMode.DROPMALFORMED

    def follow(
        self,
        spark: SparkSession,
        topic: str,
        *,
        namesrv: str,
        group: str,
        once: bool = False,
        trigger: str = "10 seconds",
        messages_max: int = 1_000_000,
    ) -> StreamingQuery:
        """Start applying the changes of a topic; with once, those that are there now."""
        self._entries()  # What is wrong is said before anything starts.
        self.catalogue.make()
        frame = (
            spark.readStream.format("skylark")
            .option("namesrv", namesrv)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("group", group)
            .option("maxMessagesPerTrigger", messages_max)
            # What does not expand is no change either, and is told with the others.
            .option("bodyMode", BodyMode.PERMISSIVE if self._drops else BodyMode.FAILFAST)
            .load()
        )
        chosen: Any = {"availableNow": True} if once else {"processingTime": trigger}
        writer = (
            frame.writeStream.foreachBatch(self.apply)
            .queryName(f"changes {topic}"[:120])
            .trigger(**chosen)
        )
        return streams.start(spark, writer, str(self.catalogue.root / "checkpoint"))

    def apply(self, batch: DataFrame, number: int = 0) -> None:
        """Apply a micro-batch of messages; its number does not matter, nor does a repeat."""
        self._entries()  # Another table's changes might all look like none.
        changes = self._spread(batch).persist()
        try:
            touched = self._touched(changes)
            if touched:
                with self.catalogue.alone(waits=True):
                    self._rewrite(changes.where("misfit is null").select("row.*"), touched)
        finally:
            changes.unpersist()

    def read(self, spark: SparkSession) -> DataFrame:
        """The table as it is now."""
        stored = self._stored(spark, _files(self._entries()))
        return stored.where(f"not {DELETED}").drop(SEQUENCE, DELETED)

    # How it is done.

    def _schema(self) -> StructType:
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            BodySchema(self.columns).columns()  # Types that JSON has.
            schema = StructType.fromDDL(self.columns)
            assert isinstance(schema, StructType)
            arrow_type(schema)
        except (ValueError, RecursionError, PySparkException) as error:
            raise ConfigError(f"columns {self.columns!r}: {one_line(error)}") from error
        there: dict[str, str] = {}  # By the name as Spark compares it.
        for name in schema.fieldNames():
            if name.lower() in _OWN:
                raise ConfigError(
                    f"column {name}: the table has one of this name itself, as it has "
                    f"{', '.join(_OWN)}; send it under another name"
                )
            if name.lower() in there:
                raise ConfigError(
                    f"column {name}: {there[name.lower()]} is there already, and Spark does not "
                    "tell them apart; send it under another name"
                )
            there[name.lower()] = name
        if self.key not in there.values():
            names = ", ".join(there.values())
            raise ConfigError(f"key {self.key!r}: it must be one of the columns {names}")
        return schema

    def _as_made(self) -> dict[str, Any]:
        """What must not change, as entries have it."""
        fields = [(field.name, field.dataType.simpleString()) for field in self._schema().fields]
        columns = ", ".join(f"{n if n.isidentifier() else quoted(n)} {kind}" for n, kind in fields)
        return {"key": self.key, "columns": columns, "buckets": self.buckets}

    def _entries(self) -> list[Entry]:
        """Its entries; raises ConfigError where it was made as another."""
        entries = self.catalogue.entries()
        given = self._as_made()
        made = entries[-1].table if entries else {}
        other = [name for name in made if made[name] != given.get(name)]
        if other:
            as_made = ", ".join(f"{name}={made[name]!r}" for name in other)
            as_given = ", ".join(f"{name}={given.get(name)!r}" for name in other)
            raise ConfigError(
                f"change table {self.catalogue.root}: it was made with {as_made}, and is given "
                f"{as_given}; go on with {as_made}, or follow the topic into another directory"
            )
        return entries

    def _spread(self, batch: DataFrame) -> DataFrame:
        """The changes of a batch, with their buckets; what is none has no bucket."""
        hashed = f"pmod(hash(row.{quoted(self.key)}), {self.buckets})"
        changes = changes_of(batch, self._schema(), self.key)
        return changes.selectExpr("*", f"if(misfit is null, {hashed}, null) as {_BUCKET}")

    def _touched(self, changes: DataFrame) -> set[str]:
        """The buckets of a batch; raises NotAChange where some of it is none, unless it drops."""
        from pyspark.sql import functions as F

        touched = set()
        counted = (F.count("misfit").alias("misfits"), F.min("misfit").alias("first"))
        for row in changes.groupBy(_BUCKET).agg(*counted).collect():
            if row["misfits"]:
                *queue, offset = row["first"]
                error = NotAChange(QueueKey(*queue), offset, key=self.key, count=row["misfits"])
                if not self._drops:
                    raise error
                logger.warning(
                    "table=%s %d messages are no changes of it and were left out, the first at %s",
                    self.catalogue.root, error.count, place_of(error.queue, error.offset),
                )  # fmt: skip
            else:
                touched.add(str(row[_BUCKET]))
        return touched

    def _latest(self, changes: DataFrame) -> DataFrame:
        """Of each key its last change, with the bucket that it belongs to."""
        from pyspark.sql import functions as F

        return (
            changes.selectExpr(
                f"{quoted(self.key)} as key", f"{SEQUENCE} as seq", "struct(*) as change"
            )
            .groupBy("key")
            .agg(F.max_by("change", "seq").alias("last"))
            .selectExpr("last.*", f"pmod(hash(key), {self.buckets}) as {_BUCKET}")
        )

    def _stored(self, spark: SparkSession, files: Sequence[ArchivedFile]) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, LongType

        schema = self._schema().add(SEQUENCE, LongType()).add(DELETED, BooleanType())
        if not files:
            # Not from a list: Spark would start a Python worker to learn that it is empty.
            nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
            return spark.range(0).select(*nothing)
        paths = [unglobbed(self.catalogue.root / file.path) for file in files]
        return spark.read.schema(schema).parquet(*paths)

    def _rewrite(self, changes: DataFrame, touched: set[str]) -> None:
        """Write the buckets with changes anew; one entry makes them, and the others, the table."""
        entries = self._entries()
        number = entries[-1].last + 1 if entries else 0
        files = _files(entries)
        before = self._stored(changes.sparkSession, [f for f in files if f.topic in touched])
        folder = self.catalogue.new_folder(number, number)
        (
            self._latest(before.unionByName(changes))
            .repartition(_BUCKET)
            .sortWithinPartitions(quoted(self.key))
            .write.partitionBy(_BUCKET)
            .option("compression", "zstd")
            .parquet(str(folder))
        )
        written = files_in(self.catalogue.root, folder, _bucket_of)
        kept = [file for file in files if file.topic not in touched]
        first = entries[0].first if entries else 0
        self.catalogue.replace(
            entries, Entry(first, number, (*kept, *written), {}, self._as_made())
        )
        self.catalogue.sweep(time.time())


def _files(entries: Sequence[Entry]) -> tuple[ArchivedFile, ...]:
    return entries[-1].files if entries else ()


def _bucket_of(path: Path) -> str:
    """The bucket that a file is of, by the name of the folder that it is in."""
    return path.parent.name.removeprefix(f"{_BUCKET}=")
