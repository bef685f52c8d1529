"""ChangeMessages: messages as changes of rows, and the places of those that are none.

    {"op": "insert" | "update" | "delete", "seq": 42, "row": {"id": 7, "name": "…"}}

Values are taken to the letter (bodies.py), in Python: Spark's own parser makes null of what does
not fit, rounds decimals, sees a time of today in "12:00", and takes no notice of a second object.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..errors import RemoteProtocolError
from .bodies import parsed_bodies, place_of
from .offsets import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

SEQUENCE = "_seq"
DELETED = "_deleted"
_PLACE = ("topic", "broker", "queue_id", "queue_offset")


class NotAChange(RemoteProtocolError):
    """A message that says nothing of a table's rows, and how many more of its batch do not."""

    def __init__(self, queue: QueueKey, offset: int, *, key: str, count: int) -> None:
        more = "" if count == 1 else f" ({count} such messages are in this batch)"
        super().__init__(
            f"{place_of(queue, offset)} is no change of this table: op (insert, update or delete), "
            f"seq (an integer) and row are needed, with the key {key} and values of the columns' "
            f"types{more}. Nothing of its batch is applied; go on without such messages with "
            "body_mode='dropmalformed', and send the rows again, corrected"
        )
        self.queue = queue
        self.offset = offset
        self.key = key
        self.count = count


def quoted(name: str) -> str:
    """A column as an expression names it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def arrow_type(schema: StructType) -> pa.DataType:
    """What Python hands to Spark; raises PySparkException for a column that it cannot."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(schema, timezone="UTC")


def change_type(schema: StructType) -> StructType:
    """A whole change; of a deleted row there may be no more than its key."""
    from pyspark.sql.types import LongType, StringType, StructType

    row = StructType()
    for field in schema.fields:
        row = row.add(field.name, field.dataType)
    return StructType().add("op", StringType()).add("seq", LongType()).add("row", row)


def changes_of(messages: DataFrame, schema: StructType, key: str) -> DataFrame:
    """For each message `row`, with _seq and _deleted, or `misfit`, the place of one without."""
    placed = messages.selectExpr(*_PLACE, "cast(body as binary) as body")
    change = change_type(schema)
    read = placed.mapInArrow(
        partial(_read, arrow_type(change)), placed.drop("body").schema.add("change", change)
    )
    is_sound = (
        "coalesce(change.op in ('insert', 'update', 'delete') and change.seq is not null and "
        f"change.row.{quoted(key)} is not null, false)"
    )
    row = f"struct(change.row.*, change.seq as {SEQUENCE}, change.op = 'delete' as {DELETED})"
    return read.selectExpr(
        f"if({is_sound}, {row}, null) as row",
        f"if({is_sound}, null, struct({', '.join(_PLACE)})) as misfit",
    )


def _read(kind: pa.DataType, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Bodies as changes; null where anything in one is not of its type."""
    import pyarrow as pa

    for batch in batches:
        found, bad = parsed_bodies(batch.column("body"), kind)
        if bad:
            gone = set(bad)
            kept = [None if number in gone else number for number in range(len(found))]
            found = found.take(pa.array(kept, pa.int64()))
        columns = [batch.column(name) for name in _PLACE]
        yield pa.RecordBatch.from_arrays([*columns, found], [*_PLACE, "change"])
