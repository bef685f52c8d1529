"""ChangeTable: a table in a lake that follows the changes of another, and equals it.

Changes come as messages, with the primary key as sharding key, so that those of a row stay in
order:

    {"op": "insert" | "update" | "delete", "seq": 42, "row": {"id": 7, "name": "…"}}

`seq` grows with every change of the source. Of each key the change with the highest `seq` counts,
and a delete is remembered as one. So it does not matter whether changes come twice, late, or again
from the start: a batch that is repeated changes nothing, and no crash can leave the table halfway,
since a state of it is one entry of a catalogue.

    <root>/data/batch=000000000003.5f1c0a9e/bucket=5/part-….parquet   rows, with _seq, _deleted
    <root>/catalogue/000000000000-000000000003.json   the files that are the table now
    <root>/catalogue/KIND                             `changes`: a directory holds nothing else

Keys are spread over buckets, and a batch writes only those anew in which something has changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from . import streams
from .catalogue import ArchivedFile, Catalogue, Entry, Kind, sync_tree, unglobbed
from .pipelines.causes import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

BUCKETS = 8
SEQUENCE = "_seq"
DELETED = "_deleted"


class ChangeTable:
    """A table that changes are applied to; processes that do so wait for each other."""

    def __init__(
        self, root: str | os.PathLike[str], *, key: str, columns: str, buckets: int = BUCKETS
    ) -> None:
        """Name its columns as in CREATE TABLE, and which of them is the key."""
        self.catalogue = Catalogue(root, Kind.CHANGES)
        self.key = key
        self.columns = columns
        self.buckets = buckets

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
        self._schema()  # Wrong columns are said before anything starts.
        self.catalogue.make()
        frame = (
            spark.readStream.format("skylark")
            .option("namesrv", namesrv)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("group", group)
            .option("maxMessagesPerTrigger", messages_max)
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
        changes = self._latest(self._parsed(batch)).persist()
        try:
            touched = {str(row["bucket"]) for row in changes.select("bucket").distinct().collect()}
            if touched:
                with self.catalogue.alone(waits=True):
                    self._rewrite(changes, touched)
        finally:
            changes.unpersist()

    def read(self, spark: SparkSession) -> DataFrame:
        """The table as it is now."""
        return self._stored(spark, self._files()).where(f"not {DELETED}").drop(SEQUENCE, DELETED)

    # How it is done.

    def _schema(self) -> StructType:
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            schema = StructType.fromDDL(self.columns)
        except PySparkException as error:
            raise ConfigError(f"columns {self.columns!r}: {one_line(error)}") from error
        assert isinstance(schema, StructType)
        names = schema.fieldNames()
        if self.key not in names:
            raise ConfigError(f"key {self.key!r}: it must be one of the columns {', '.join(names)}")
        return schema

    def _parsed(self, batch: DataFrame) -> DataFrame:
        """Changes as rows; a message that is none ends the query with its place."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType, StringType, StructType

        body = StructType().add("op", StringType()).add("seq", LongType())
        change = F.from_json(F.col("body").cast("string"), body.add("row", self._schema()))
        sound = (
            "change.op in ('insert', 'update', 'delete') and change.seq is not null and "
            f"change.row.`{self.key}` is not null"
        )
        place = "topic, '/', broker, '/', queue_id, ' offset ', queue_offset"
        refused = (
            f"raise_error(concat('skylark.errors.RemoteProtocolError: ', {place}, ' is no change; "
            "op (insert, update or delete), seq and row with its key are needed'))"
        )
        return (
            batch.withColumn("change", change)
            .selectExpr(f"if(coalesce({sound}, false), change, {refused}) as change")
            .selectExpr(
                "change.row.*", f"change.seq as {SEQUENCE}", f"change.op = 'delete' as {DELETED}"
            )
        )

    def _latest(self, changes: DataFrame) -> DataFrame:
        """Of each key its last change, with the bucket that it belongs to."""
        from pyspark.sql import functions as F

        return (
            changes.selectExpr(f"`{self.key}` as key", f"{SEQUENCE} as seq", "struct(*) as change")
            .groupBy("key")
            .agg(F.max_by("change", "seq").alias("last"))
            .selectExpr("last.*", f"pmod(hash(key), {self.buckets}) as bucket")
        )

    def _files(self) -> tuple[ArchivedFile, ...]:
        entries = self.catalogue.entries()
        return entries[-1].files if entries else ()

    def _stored(self, spark: SparkSession, files: Sequence[ArchivedFile]) -> DataFrame:
        from pyspark.sql.types import BooleanType, LongType

        schema = self._schema().add(SEQUENCE, LongType()).add(DELETED, BooleanType())
        if not files:
            # Not from a list: Spark would start a Python worker to learn that it is empty.
            fields = ((field.name, field.dataType.simpleString()) for field in schema.fields)
            return spark.range(0).selectExpr(*(f"cast(null as {k}) as `{n}`" for n, k in fields))
        paths = [unglobbed(self.catalogue.root / file.path) for file in files]
        return spark.read.schema(schema).parquet(*paths)

    def _rewrite(self, changes: DataFrame, touched: set[str]) -> None:
        """Write the buckets with changes anew; one entry makes them, and the others, the table."""
        entries = self.catalogue.entries()
        number = entries[-1].last + 1 if entries else 0
        files = self._files()
        before = self._stored(changes.sparkSession, [f for f in files if f.topic in touched])
        folder = self.catalogue.new_folder(number, number)
        (
            self._latest(before.unionByName(changes.drop("bucket")))
            .repartition("bucket")
            .sortWithinPartitions(self.key)
            .write.partitionBy("bucket")
            .option("compression", "zstd")
            .parquet(str(folder))
        )
        written = _written(self.catalogue.root, folder)
        kept = [file for file in files if file.topic not in touched]
        new = Entry(entries[0].first if entries else 0, number, (*kept, *written), {})
        self.catalogue.replace(entries, new)
        self.catalogue.sweep(time.time())


def _written(root: Path, folder: Path) -> list[ArchivedFile]:
    """The files of a folder, once all of them are on the disk."""
    import pyarrow.parquet as parquet

    sync_tree(folder, root)
    found = []
    for path in sorted(folder.rglob("*.parquet")):
        rows = parquet.read_metadata(path).num_rows
        bucket = path.parent.name.removeprefix("bucket=")
        found.append(ArchivedFile(str(path.relative_to(root)), bucket, rows, path.stat().st_size))
    return found
