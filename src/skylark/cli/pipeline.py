"""`skylark pipeline`: topics and Spark.

Everything here runs Spark: with local workers, or on the cluster that --master names. What is about
pipelines from files is in pipeline_runs.py, replay in replay.py, metrics in pipeline_metrics.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, SkylarkError
from ..spark.pipelines.causes import as_error, one_line
from . import asking, pipeline_lake, pipeline_runs, render
from .pipeline_metrics import metrics
from .replay import replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = typer.Typer(
    help="Pipelines on Spark: from files, archive, SQL, replay, mirror, metrics.",
    no_args_is_help=True,
)
for _verb in ("run", "validate", "stop", "resume"):
    app.command(_verb)(getattr(pipeline_runs, _verb))
app.command()(replay)
app.command()(metrics)

Master = Annotated[
    str | None, typer.Option("--master", help="Spark's master; local on two cores if not set.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.")
]
Root = Annotated[str, typer.Option("--archive", metavar="DIR", help="Where the archive is.")]


def _session(master: str | None, conf: list[str] | None) -> SparkSession:
    from ..spark import session

    settings = {}
    for one in conf or ():
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise ConfigError(f"--conf {one!r}: KEY=VALUE is needed")
        settings[name] = value
    log = pipeline_runs.java_log("pipeline")
    spark = session("skylark pipeline", master=master, settings=settings, java_log=log)
    pipeline_runs.silence()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _wait(query: Any) -> None:
    """Wait for a query; what ended it is said in one line."""
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception as error:
        raise SkylarkError(one_line(error)) from error


def _topics(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ConfigError("name at least one topic")
    return found


@app.command()
def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[,TOPIC]", help="Topics to archive.")],
    root: Root,
    once: Annotated[
        bool, typer.Option("--once", help="End when everything of now is there.")
    ] = False,
    every: Annotated[str, typer.Option("--every", help="Between two batches.")] = "1 minute",
    table_format: Annotated[
        str | None, typer.Option("--table-format", help="A table of iceberg or delta instead.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="With --table-format: its name in SQL.")
    ] = None,
    namesrv: asking.NameServer = None,
    master: Master = None,
    conf: Conf = None,
    packages: pipeline_runs.Packages = None,
    jars: pipeline_runs.Jars = None,
) -> None:
    """Copy topics to Parquet files, exactly once, until stopped."""
    from ..spark import archive as archives

    topics = _topics(topic)
    if table_format is not None:
        flags = pipeline_runs.Flags(master, conf, packages, jars, once=once, namesrv=namesrv)
        pipeline_lake.archive(root, topics, table_format, table, flags, every=every)
        return
    if table is not None or packages is not None or jars is not None:
        raise ConfigError("--table, --packages and --jars go with --table-format")
    query = archives.archive(
        _session(master, conf),
        root,
        topics,
        namesrv=asking.addresses(namesrv),
        once=once,
        trigger=every,
    )
    _wait(query)
    for row in archives.status(root):
        typer.echo(f"{row['topic']}: {row['rows']} messages in {row['files']} files")


@app.command()
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One pipeline; all if not set.")
    ] = None,
    root: Annotated[
        str | None, typer.Option("--archive", metavar="DIR", help="An archive instead.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until all have ended.")] = False,
    json: asking.Json = False,
) -> None:
    """Show how far pipelines are, or what an archive holds."""
    if root is None:
        from ..spark.pipelines import RunDirectory

        pipeline_runs.show_states(RunDirectory.default(), name, watch=watch, as_json=json)
        return
    from ..spark import archive as archives

    rows = archives.status(root)
    titles = ("topic", "rows", "files", "bytes")
    render.show_table(rows, {name: name for name in titles}, as_json=json)


@app.command()
def compact(root: Root, master: Master = None, conf: Conf = None) -> None:
    """Put the small files of an archive together."""
    from ..spark import archive as archives
    from ..spark.catalogue import Catalogue

    Catalogue(root).require()  # Before Spark is started for nothing.
    count = archives.compact(_session(master, conf), root)
    typer.echo(f"{count} batches were put together")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="SQL", help="What to ask; topics are tables.")],
    topic: Annotated[
        str, typer.Option("-t", "--topic", metavar="TOPIC[,TOPIC]", help="The topics it uses.")
    ],
    root: Annotated[
        str | None, typer.Option("--archive", metavar="DIR", help="An archive to read as well.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows to show.")] = 1000,
    namesrv: asking.NameServer = None,
    master: Master = None,
    conf: Conf = None,
    json: asking.Json = False,
) -> None:
    """Ask topics with SQL: archive and live log are one table."""
    from ..spark import archive as archives

    topics = _topics(topic)
    spark = _session(master, conf)
    try:
        found: DataFrame = archives.sql(
            spark, query, topics, namesrv=asking.addresses(namesrv), root=root
        )
        rows = [row.asDict() for row in found.limit(limit).collect()]
        names = found.columns
    except SkylarkError:
        raise
    except Exception as error:
        raise as_error(error) from error
    shown = [{name: _plain(row[name]) for name in names} for row in rows]
    render.show_table(shown, {name: name for name in names}, as_json=json)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return value if isinstance(value, int | float | str | bool | None) else str(value)


@app.command()
def mirror(
    topic: Annotated[str, typer.Argument(help="The topic to copy.")],
    to: Annotated[str, typer.Option("--to", metavar="ADDRESSES", help="The other name servers.")],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="DIR", help="Where progress is kept.")
    ],
    as_topic: Annotated[
        str | None, typer.Option("--as", metavar="TOPIC", help="Its name there.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all of now is there.")] = False,
    chain: Annotated[
        bool, typer.Option("--chain", help="Also copies that another mirror has made.")
    ] = False,
    namesrv: asking.NameServer = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Copy a topic to another cluster, exactly once, until stopped."""
    from ..spark.mirror import mirror as start

    query = start(
        _session(master, conf),
        topic,
        namesrv=asking.addresses(namesrv),
        to=to,
        as_topic=as_topic,
        checkpoint=checkpoint,
        once=once,
        chain=chain,
    )
    _wait(query)
    if once:
        print(f"{topic} is copied to {to}", file=sys.stderr)
