"""The columns of a message as a DataFrame has them.

A user's own schema picks columns by name, and only those are built: Spark does not tell a Python
source which columns a query needs, so `.schema("queue_offset long, body binary")` is the way to
read less. The first twelve come by themselves; the others only when they are named.

    column              type                  what
    topic               string
    broker              string                the broker's name
    queue_id            int
    queue_offset        bigint
    body                binary                expanded if it was compressed; see bodyFormat
    tag                 string
    keys                string                as stored: several stand with blanks between
    properties          map<string,string>    all of them, the system's too
    message_id          string                the producer's unique key; without one, the offset id
    born_time           timestamp
    store_time          timestamp
    reconsume_times     int
    flag, sys_flag      int
    physical_offset     bigint
    born_host           string                ip:port
    store_host          string
    offset_message_id   string

What is in a JSON body, bodySchema says. Spark's parser reads it together with these columns, and
would name all of them in an error; so it is understood first (body_schema.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .body_schema import SCALARS, BodySchema
from .options import BodyFormat, BodyMode, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Name → Spark's type; the order is that of the schema.
COLUMNS: dict[str, str] = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "body": "binary",
    "tag": "string",
    "keys": "string",
    "properties": "map<string,string>",
    "message_id": "string",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "reconsume_times": "int",
}
EXTRA_COLUMNS: dict[str, str] = {
    "flag": "int",
    "sys_flag": "int",
    "physical_offset": "bigint",
    "born_host": "string",
    "store_host": "string",
    "offset_message_id": "string",
}
# What a row that is written may have; body is needed.
SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "queue_id": ("int", "bigint"),
    "sharding_key": ("string",),
    "deliver_time": ("timestamp",),
    "delay_level": ("int",),
}


def default_schema(options: ReadOptions) -> str:
    """The schema of a read without one of its own, as in CREATE TABLE."""
    _built_body_type(options)  # Refuses what Spark would.
    body = body_type(options)
    if options.body_schema is not None:
        body = f"struct<{BodySchema(options.body_schema).in_sql()}>"
    return in_sql({**COLUMNS, "body": body})


def in_sql(columns: Mapping[str, str]) -> str:
    """Columns as in CREATE TABLE, whatever spark.sql.timestampType makes of `timestamp`."""
    return ", ".join(
        f"{name} {'timestamp_ltz' if kind == 'timestamp' else kind}"
        for name, kind in columns.items()
    )


def body_type(options: ReadOptions) -> str:
    """The type of the column body; the fields of a JSON one are for Spark's own parser."""
    if options.body_format is BodyFormat.JSON:
        return f"struct<{options.body_schema}>"
    return "string" if options.body_format is BodyFormat.TEXT else "binary"


def _built_body_type(options: ReadOptions) -> str:
    """The type of the column body as Spark writes it; raises ConfigError."""
    text = options.body_schema
    if text is None:
        return body_type(options)
    try:
        return f"struct<{BodySchema(text).columns()}>"
    except (ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, ValueError) else "it is too deep"
        raise ConfigError(
            f"option bodySchema={text[:80]!r}: {problem}; columns such as 'id long, name string "
            f"NOT NULL' are allowed, of type {', '.join(dict.fromkeys(SCALARS.values()))}, "
            "decimal(p,s), array<...>, map<string,...> or struct<...>"
        ) from error


def checked_columns(schema: StructType, options: ReadOptions) -> list[str]:
    """The columns to build; raises ConfigError for one that cannot be as the schema says."""
    body = _built_body_type(options)
    types = {**COLUMNS, **EXTRA_COLUMNS, "body": body}
    found = []
    for field in schema.fields:
        expected = types.get(field.name)
        if expected is None:
            raise ConfigError(f"column {field.name} is not known; allowed are {', '.join(types)}")
        given = field.dataType.simpleString()
        if given != expected:
            raise ConfigError(f"column {field.name}: {given} is not possible, it is {expected}")
        if not field.nullable:
            _refuse_nulls(field.name, options)
        found.append(field.name)
    if not found:
        raise ConfigError("the schema has no columns")
    return found


def _refuse_nulls(column: str, options: ReadOptions) -> None:
    """Where NOT NULL is not true, Spark ends in Java, which names no column."""
    if column in ("tag", "keys"):
        raise ConfigError(f"column {column}: NOT NULL is not possible, messages may have none")
    if column == "body" and options.body_mode is BodyMode.PERMISSIVE:
        raise ConfigError(
            "column body: NOT NULL is not possible with bodyMode=permissive, which makes bodies "
            "null; set dropmalformed or failfast"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark will check each batch against."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC", prefers_large_types=False)


def check_sink_schema(schema: StructType, *, has_topic: bool, at_once: bool) -> None:
    """Refuse rows that cannot be sent, before any task runs."""
    names = set()
    for field in schema.fields:
        allowed = SINK_COLUMNS.get(field.name)
        if allowed is None:
            raise ConfigError(
                f"column {field.name} cannot be written; allowed are {', '.join(SINK_COLUMNS)}"
            )
        given = field.dataType.simpleString()
        if given not in allowed:
            raise ConfigError(
                f"column {field.name}: {given} cannot be written, it must be {' or '.join(allowed)}"
            )
        names.add(field.name)
    if "body" not in names:
        raise ConfigError("column body is missing; select something as body")
    if "topic" not in names and not has_topic:
        raise ConfigError("option topic is needed where the rows have no column topic")
    if {"queue_id", "sharding_key"} <= names:
        raise ConfigError("columns queue_id and sharding_key exclude each other")
    if {"deliver_time", "delay_level"} <= names:
        raise ConfigError("columns deliver_time and delay_level exclude each other")
    if at_once and "delay_level" in names:
        raise ConfigError(
            "column delay_level: rows that appear all at once have no levels; use deliver_time, or "
            "set deliveryGuarantee=at_least_once"
        )
