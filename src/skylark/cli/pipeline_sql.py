"""`skylark pipeline sql`: topics as tables."""

from __future__ import annotations

import datetime
import json as jsons
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, SkylarkError
from . import asking, render
from .pipeline_flags import (
    NO_FLAGS,
    BodyMode,
    Flags,
    Verbose,
    body_options,
    with_spark_flags,
)
from .pipeline_signals import ended_by_signal
from .pipeline_spark import require_topics, say, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_ASKING = ("Describe", "Explain", "Show")  # Commands that change nothing.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@with_spark_flags
def sql(
    query: Annotated[str, typer.Argument(metavar="SQL", help="A query; topics are its tables.")],
    topic: Annotated[
        str | None,
        typer.Option(
            "-t", "--topic", metavar="TOPIC[,TOPIC]", help="Topics that the query does not name."
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="DIR",
            help="Read this archive as well: it and the log are one table.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live/--no-live", help="Read the log as well, or the archive alone, without brokers."
        ),
    ] = True,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="ROWS", help="The most rows to show.")
    ] = 1000,
    body_mode: BodyMode = None,
    namesrv: asking.NameServer = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Ask topics with SQL.

    Such as: skylark pipeline sql "select tag, count(*) from OrderTopic group by tag"
    """
    from ..spark import archive as archives
    from ..spark.catalogue import Catalogue
    from ..spark.pipelines.causes import as_error

    given = [] if topic is None else topics_of(topic)
    options = body_options(body_mode)
    addresses = asking.addresses(namesrv)
    if root is not None:
        Catalogue(root).require()
    elif not live:
        raise ConfigError("--no-live reads an archive alone; name it with --archive DIR")
    if live:  # Of an archive's topics some may be in there alone.
        require_topics(addresses, given if root is None else ())
    with spark_session("sql", flags, flags.settings(), verbose=verbose) as spark, ended_by_signal():
        try:
            _require_query(spark, query)
            there = {name.lower() for name in given}  # SQL does not tell cases apart.
            named = [name for name in relations(spark, query) if name.lower() not in there]
            if root is None:
                require_topics(addresses, named)
            topics = [*given, *named]
            found = archives.sql(
                spark, query, topics, namesrv=addresses, root=root, live=live, options=options
            )
            rows = found.limit(limit + 1).collect()
        except SkylarkError:
            raise
        except Exception as error:
            raise as_error(error) from error
        schema = found.schema
    shown = records(schema, rows[:limit])
    if not json:
        shown = [{key: _text(value) for key, value in row.items()} for row in shown]
    titles = dict(zip(keys_of(schema), schema.names, strict=True))
    render.show_table(shown, titles, as_json=json)
    if len(rows) > limit:
        say(f"there are more rows than the {limit:,} that are shown; see all with --limit")


def _require_query(spark: SparkSession, query: str) -> None:
    """Refuse what would write, create or drop; raises ConfigError."""
    from ..spark.pipelines.queries import command_in

    command = command_in(spark, query)
    if command is not None and not command.startswith(_ASKING):
        raise ConfigError(
            f"sql asks, such as select …, and this is a command ({command}): it would change "
            "something; pipelines write, see `skylark pipeline run --help`"
        )


def topics_of(text: str) -> list[str]:
    """Topics with commas between them, checked; raises ConfigError or InvalidName."""
    from ..model.names import check_topic_name

    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ConfigError("name at least one topic")
    for name in found:
        check_topic_name(name)
    return found


def relations(spark: SparkSession, query: str) -> list[str]:
    """The tables that a query takes from outside, each once.

    A name with dots is one of Spark's own, such as parquet.`path`.
    """
    java: Any = spark._jsparkSession
    plan = java.sessionState().sqlParser().parsePlan(query)
    return list(dict.fromkeys(_relations(plan, frozenset())))


def _relations(plan: Any, ours: frozenset[str]) -> Iterator[str]:
    """The names of a plan; ours are those that `with` has made around it."""
    kind = plan.getClass().getSimpleName()
    if kind == "UnresolvedRelation":
        name = list(_items(plan.multipartIdentifier()))
        if len(name) == 1 and name[0].lower() not in ours:
            yield name[0]
    inner = list(_items(plan.innerChildren()))  # Subqueries; here the tables that are made.
    if kind == "UnresolvedWith":
        names = [one._1().lower() for one in _items(plan.cteRelations())]
        for name, made in zip(names, inner, strict=True):
            yield from _relations(made, ours | {name} if plan.allowRecursion() else ours)
            ours |= {name}
        inner = []
    for part in (*inner, *_items(plan.children())):
        yield from _relations(part, ours)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))


def keys_of(schema: StructType) -> list[str]:
    """A name for each column, where Spark allows one name several times."""
    found: list[str] = []
    for name in schema.names:
        key, number = name, 1
        while key in found:
            number += 1
            key = f"{name}_{number}"
        found.append(key)
    return found


def records(schema: StructType, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows of Spark's as what JSON has."""
    keys = keys_of(schema)
    return [
        {
            key: _plain(value, field.dataType)
            for key, value, field in zip(keys, row, schema.fields, strict=True)
        }
        for row in rows
    ]


def _plain(value: Any, kind: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):  # As to_json of Spark writes them; JSON itself cannot.
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    word = kind.typeName()
    if isinstance(value, datetime.datetime):  # A timestamp comes without the zone it is told in.
        return (value.astimezone() if word == "timestamp" else value).isoformat(sep=" ")
    if word == "struct":
        return {
            field.name: _plain(one, field.dataType)
            for one, field in zip(value, kind.fields, strict=True)
        }
    if word == "map":
        return {
            str(_plain(key, kind.keyType)): _plain(one, kind.valueType)
            for key, one in value.items()
        }
    if word == "array":
        return [_plain(one, kind.elementType) for one in value]
    return str(value)


def _text(value: Any) -> Any:
    return jsons.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
