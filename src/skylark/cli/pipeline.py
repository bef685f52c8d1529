"""`skylark pipeline`: topics and Spark.

Everything here runs Spark: with local workers, or on the cluster that --master names. What is about
pipelines from files is in pipeline_runs.py, replay in replay.py, metrics in pipeline_metrics.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from . import asking, pipeline_lake, pipeline_runs, render
from .pipeline_flags import (
    NO_FLAGS,
    BodyMode,
    Flags,
    Verbose,
    body_options,
    with_spark_flags,
)
from .pipeline_metrics import metrics
from .pipeline_queries import finish
from .pipeline_signals import ended_by_signal, stopping_by_signal
from .pipeline_spark import make_folder, require_target, require_topics, say, spark_session
from .pipeline_sql import sql, topics_of
from .replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

app = typer.Typer(
    help="Work with topics on Spark: pipelines from files, SQL, archive, replay, mirror, metrics.",
    no_args_is_help=True,
)
Root = Annotated[str, typer.Option("--archive", metavar="DIR", help="The folder of the archive.")]


def _go_on(
    name: str,
    flags: Flags,
    start: Callable[[SparkSession], StreamingQuery],
    *,
    verbose: bool,
) -> bool:
    """Run a query until it ends or is told to stop; whether it was told."""
    from ..spark.pipelines.causes import as_error

    with (
        stopping_by_signal("Spark's start") as stop,
        spark_session(name, flags, flags.settings(), verbose=verbose) as spark,
    ):
        stop.after = ""
        if not stop.is_asked:
            try:
                query = start(spark)
            except Exception as error:
                raise as_error(error) from error
            finish(query, stop)
    if stop.is_asked:
        say(f"{name}: stopped; go on with the same command")
    return stop.is_asked


@with_spark_flags
def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[,TOPIC]", help="Topics to archive.")],
    root: Root,
    once: Annotated[bool, typer.Option("--once", help="Copy what is there now, then end.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="INTERVAL", help="How often, such as '30 seconds'.")
    ] = "1 minute",
    table_format: Annotated[
        str | None,
        typer.Option(
            "--table-format", metavar="FORMAT", help="Write a table of iceberg or delta instead."
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="With --table-format: its name in SQL."),
    ] = None,
    namesrv: asking.NameServer = None,
    body_mode: BodyMode = None,
    gone: Annotated[
        list[str] | None,
        typer.Option(
            "--gone",
            metavar="BROKER",
            help="A broker that is gone for good; what the archive has of it stays.",
        ),
    ] = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Copy topics to Parquet files.

    Every message gets there exactly once. It runs until it is stopped, and goes on with the same
    command; `skylark pipeline sql --archive` reads archive and live log as one table.
    """
    from ..spark import archive as archives
    from ..spark.catalogue import Catalogue
    from ..spark.pipelines.triggers import check_interval

    topics = topics_of(topic)
    if not check_interval(every):
        raise ConfigError(f"--every {every[:40]!r}: an interval such as '30 seconds' is needed")
    options = body_options(body_mode)
    if table_format is not None:
        if options or gone:
            raise ConfigError("--body-mode and --gone go without --table-format")
        flags = replace(flags, once=once, namesrv=namesrv)
        pipeline_lake.archive(
            root, topics, table_format, table, flags, every=every, verbose=verbose, as_json=json
        )
        return
    if table is not None:
        raise ConfigError("--table goes with --table-format")
    archived = {queue.topic for queue in archives.require_place(root).ends()}
    addresses = asking.addresses(namesrv)
    # One that is archived may be deleted, or its brokers gone: the archive says so, and goes on.
    require_topics(addresses, [one for one in topics if one not in archived])
    make_folder("--archive", root)
    _go_on(
        "archive",
        flags,
        lambda spark: archives.archive(
            spark,
            root,
            topics,
            namesrv=addresses,
            once=once,
            trigger=every,
            gone=gone or (),
            options=options,
        ),
        verbose=verbose,
    )
    rows = archives.status(root) if Catalogue(root).entries() else []
    if json:
        render.show_table(rows, {}, as_json=True)
        return
    for row in rows:
        typer.echo(f"{row['topic']}: {row['rows']} messages in {row['files']} files")


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this pipeline; all if not set.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIR", help="Show what this archive holds instead."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until all have ended.")
    ] = False,
    json: asking.Json = False,
) -> None:
    """Show how far pipelines are.

    Also replays, and whatever else runs here under a name; with --archive, what an archive holds.
    """
    if root is not None and (name is not None or watch):
        raise ConfigError("--archive shows an archive: leave out the name and --watch")
    if root is None:
        from ..spark.pipelines import RunDirectory

        pipeline_runs.show_states(RunDirectory.default(), name, watch=watch, as_json=json)
        return
    from ..spark import archive as archives

    rows = archives.status(root)
    titles = ("topic", "rows", "files", "bytes")
    render.show_table(rows, {name: name for name in titles}, as_json=json)


@with_spark_flags
def compact(
    root: Root,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Put small files of an archive together.

    Readers and a running `archive` are not disturbed.
    """
    from ..spark import archive as archives
    from ..spark.catalogue import Catalogue
    from ..spark.pipelines.causes import as_error

    Catalogue(root).require()  # Before Spark is started for nothing.
    with (
        spark_session("compact", flags, flags.settings(), verbose=verbose) as spark,
        ended_by_signal(),
    ):
        try:
            count = archives.compact(spark, root)
        except OSError:
            raise
        except Exception as error:
            raise as_error(error) from error
    if json:
        render.show_record({"batches": count}, {}, as_json=True)
    else:
        typer.echo(f"{count} batches were put together")


@with_spark_flags
def mirror(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to copy.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="ADDRESSES", help="The name servers of the other cluster."),
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="DIR", help="The folder where progress is kept.")
    ],
    as_topic: Annotated[
        str | None,
        typer.Option("--as", metavar="TOPIC", help="Its name there; the same if not set."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Copy what is there now, then end.")] = False,
    chain: Annotated[
        bool, typer.Option("--chain", help="Copy also what another mirror has copied to here.")
    ] = False,
    body_mode: BodyMode = None,
    namesrv: asking.NameServer = None,
    flags: Flags = NO_FLAGS,
    verbose: Verbose = False,
    json: asking.Json = False,
) -> None:
    """Copy a topic to another cluster.

    Every message gets there exactly once. It runs until it is stopped, and goes on with the same
    command.
    """
    from ..spark.mirror import mirror as start
    from ..spark.mirror import require_apart, require_bodies

    addresses = asking.addresses(namesrv)
    options = body_options(body_mode)
    require_bodies(options)
    target = as_topic or topic
    if addresses == to:  # No server needs to be asked.
        require_apart(topic, namesrv=addresses, target=target, to=to)
    require_topics(addresses, [topic])
    require_target(to, target)
    require_apart(topic, namesrv=addresses, target=target, to=to)
    make_folder("--checkpoint", checkpoint)
    is_stopped = _go_on(
        "mirror",
        flags,
        lambda spark: start(
            spark,
            topic,
            namesrv=addresses,
            to=to,
            as_topic=as_topic,
            checkpoint=checkpoint,
            once=once,
            chain=chain,
            options=options,
        ),
        verbose=verbose,
    )
    if json:
        ended = "stopped" if is_stopped else "done"
        render.show_record(
            {"topic": topic, "to": to, "as": target, "status": ended}, {}, as_json=True
        )
    elif not is_stopped:
        say(f"{topic} is copied to {to}")


# In the order in which help shows them.
for _command in (
    pipeline_runs.run, pipeline_runs.validate, status, pipeline_runs.stop, pipeline_runs.resume,
    sql, replay, archive, compact, mirror, metrics,
):  # fmt: skip
    app.command()(_command)
