"""What Spark does with a data source, without Spark: the same calls in the same order.

The reader or writer is made from options and a schema, travels pickled, plans, and reads or writes
task by task; a stream asks for offsets, takes what lies between two, and asks again. So every
option can be tried at a real broker in milliseconds. That Spark does just this is what
test_spark.py shows.
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceReader

from skylark.protocol.codes import RequestCode
from skylark.spark import source as sources
from skylark.spark import wire as wires
from skylark.spark.offsets import Range
from skylark.spark.schema import COLUMNS, EXTRA_COLUMNS, arrow_schema
from skylark.spark.source import SkylarkDataSource

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "spark.md"
KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}
_ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


def options_in_the_manual() -> dict[str, set[str]]:
    """The kinds of use that docs/spark.md says an option has, by option."""
    text = PAGE.read_text()
    found: dict[str, set[str]] = {}
    for title, verb in (("## Options for reading", "read"), ("## Options for writing", "write")):
        table = text.partition(f"\n{title}")[2].partition("\n\n|")[2].partition("\n\n")[0]
        for name, meaning in _ROW.findall(f"|{table}"):
            uses = found.setdefault(name, set())
            if not meaning.startswith("Streams only"):
                uses.add(f"batch {verb}")
            if not meaning.startswith("Batches only"):
                uses.add(f"stream {verb}")
    return found


def struct_of(names: tuple[str, ...], **others: types.DataType) -> types.StructType:
    """Columns by name, with their types."""
    kinds = {**COLUMNS, **EXTRA_COLUMNS}
    return types.StructType(
        [types.StructField(name, others.get(name) or KINDS[kinds[name]]) for name in names]
    )


def pickled(thing: Any) -> Any:
    """What arrives in another process."""
    return cloudpickle.loads(cloudpickle.dumps(thing))


class BatchReading:
    """`spark.read`."""

    name = "batch read"

    def __init__(self, address: str) -> None:
        self.address = address
        self.tasks = 0

    def rows(
        self,
        *filters: Any,
        columns: tuple[str, ...] = tuple(COLUMNS),
        body: types.DataType | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        reader = self._reader(filters, columns, body, options)
        parts = pickled(reader).partitions()
        self.tasks = len(parts)
        return [row for part in parts for row in read_part(reader, part)]

    def planned(self, *filters: Any, **options: Any) -> list[Range]:
        """What tasks are told to read."""
        reader = self._reader(filters, tuple(COLUMNS), None, options)
        return [one for part in pickled(reader).partitions() for one in part.ranges]

    def _reader(
        self,
        filters: tuple[Any, ...],
        columns: tuple[str, ...],
        body: types.DataType | None,
        options: dict[str, Any],
    ) -> Any:
        reader = self.source(options).reader(_struct(columns, body))
        assert isinstance(reader, DataSourceReader)
        if filters:
            list(reader.pushFilters(list(filters)))
        return reader

    def source(self, options: dict[str, Any]) -> SkylarkDataSource:
        given = {"namesrv": self.address, **options}
        source = SkylarkDataSource(
            {name.lower(): str(value) for name, value in given.items() if value is not None}
        )
        source.schema()
        return source


class StreamReading(BatchReading):
    """`spark.readStream` with Trigger.AvailableNow."""

    name = "stream read"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sizes: list[int] = []  # Rows of each micro-batch.

    def rows(
        self,
        *filters: Any,
        columns: tuple[str, ...] = tuple(COLUMNS),
        body: types.DataType | None = None,
        start: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        if start is None and "startingTimestamp" not in options:
            options.setdefault("startingOffsets", "earliest")
        reader: Any = self.source(options).streamReader(_struct(columns, body))
        self.sizes = []
        found: list[dict[str, Any]] = []
        reader.prepareForTriggerAvailableNow()
        at = reader.initialOffset() if start is None else start
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            parts = reader.partitions(at, end)
            self.tasks = len(parts)
            rows = [row for part in parts for row in read_part(reader, part)]
            self.sizes.append(len(rows))
            found += rows
            reader.commit(end)
            at = end
        return found


def _struct(columns: tuple[str, ...], body: types.DataType | None) -> types.StructType:
    return struct_of(columns, **({} if body is None else {"body": body}))


def read_part(reader: Any, part: Any) -> Iterator[dict[str, Any]]:
    for batch in pickled(reader).read(pickled(part)):
        batch.validate(full=True)
        yield from batch.to_pylist()


class BatchWriting:
    """`df.write`."""

    name = "batch write"
    is_stream = False

    def __init__(self, address: str) -> None:
        self.address = address
        self.batch = 0

    def write(self, rows: list[dict[str, Any]], **options: Any) -> None:
        """Write rows in two tasks, and commit."""
        self.commit(*self.tasks(rows, **options))

    def tasks(self, rows: list[dict[str, Any]], **options: Any) -> tuple[Any, list[Any]]:
        """Write rows in two tasks; the writer and what it is to commit."""
        schema = types.StructType([_field(name, value) for name, value in rows[0].items()])
        given = {"namesrv": self.address, **options}
        source = SkylarkDataSource(
            {name.lower(): str(value) for name, value in given.items() if value is not None}
        )
        make = source.streamWriter if self.is_stream else source.writer
        writer: Any = make(schema, False)
        half = (len(rows) + 1) // 2
        messages = []
        for task, part in enumerate((rows[:half], rows[half:])):
            batches = [pa.RecordBatch.from_pylist(part, schema=arrow_schema(schema))]
            with in_task(task, self.batch if self.is_stream else None):
                messages.append(pickled(writer).write(iter(batches if part else [])))
        return pickled(writer), messages

    def commit(self, writer: Any, messages: list[Any]) -> None:
        writer.commit(messages)


class StreamWriting(BatchWriting):
    """`df.writeStream`."""

    name = "stream write"
    is_stream = True

    def commit(self, writer: Any, messages: list[Any]) -> None:
        writer.commit(messages, self.batch)


def _field(name: str, value: Any) -> types.StructField:
    kind: types.DataType = types.StringType()
    if isinstance(value, bytes):
        kind = types.BinaryType()
    elif isinstance(value, int):
        kind = types.IntegerType()
    elif isinstance(value, dict):
        kind = types.MapType(types.StringType(), types.StringType())
    elif isinstance(value, list):
        kind = types.ArrayType(types.StringType())
    elif isinstance(value, datetime.datetime):
        kind = types.TimestampType()
    return types.StructField(name, kind)


@contextlib.contextmanager
def in_task(number: int, batch: int | None) -> Iterator[None]:
    """As a task of Spark's sees itself."""
    context = TaskContext._getOrCreate()
    context._partitionId = number
    context._localProperties = (
        {} if batch is None
        else {"sql.streaming.queryId": "contract", "streaming.sql.batchId": str(batch)}
    )  # fmt: skip
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


class Spy:
    """What goes over the wire."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def watch(self, patch: Any) -> None:
        real = wires.encode_frames

        def encode(commands: list[Any]) -> bytes:
            self.sent += commands
            return real(commands)

        patch.setattr(wires, "encode_frames", encode)

    def fields(self, *codes: RequestCode) -> list[dict[str, str]]:
        """The fields of requests with these codes; of all without any."""
        return [one.fields for one in self.sent if not codes or one.code in codes]


def forget_connections() -> None:
    """Close what tasks keep for the next one of their worker."""
    for cluster in sources._clusters.values():
        cluster.close()
    sources._clusters.clear()
