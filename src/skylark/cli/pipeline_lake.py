"""`skylark pipeline archive --table-format`: topics into an Iceberg or Delta table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from . import asking, render
from .pipeline_flags import Flags
from .pipeline_queries import finish
from .pipeline_signals import stopping_by_signal
from .pipeline_spark import make_folder, require_topics, say, spark_session

_NAME = "archive"


def archive(
    root: str,
    topics: Sequence[str],
    table_format: str,
    table: str | None,
    flags: Flags,
    *,
    every: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Archive until stopped, or with flags.once what is there now."""
    from ..spark import lake
    from ..spark.lake_notes import LakeNote

    try:
        chosen = lake.TableFormat(table_format.lower())
    except ValueError:
        known = ", ".join(lake.TableFormat)
        raise ConfigError(f"--table-format {table_format[:40]!r}: allowed are {known}") from None
    if "://" in root:
        raise ConfigError(f"--archive {root}: the checkpoint needs a directory of this machine")
    folder = Path(root).absolute()
    LakeNote(chosen.value, table).check(folder)  # Before Spark is started for nothing.
    given = flags.settings()
    lake.require_package(given, chosen, lake.installed_spark())
    settings = {**lake.settings(chosen, folder), **given}
    namesrv = asking.addresses(flags.namesrv)
    require_topics(namesrv, topics)
    make_folder("--archive", folder)
    with (
        stopping_by_signal("Spark's start") as stop,
        spark_session(_NAME, flags, settings, verbose=verbose) as spark,
    ):
        stop.after = ""
        if not stop.is_asked:
            query = lake.archive_into(
                spark, folder, topics, table_format=chosen, table=table, namesrv=namesrv,
                once=flags.once, trigger=every,
            )  # fmt: skip
            finish(query, stop, lambda error: lake.explained(spark, chosen, error))
        if stop.is_asked:
            say("archive: stopped; go on with the same command")
            if as_json:
                render.show_table([], {}, as_json=True)
            return
        rows = spark.table(lake.name_of(chosen, folder, table)).groupBy("topic").count().collect()
    shown = [{"topic": row["topic"], "rows": row["count"]} for row in sorted(rows)]
    if as_json:
        render.show_table(shown, {}, as_json=True)
        return
    for row in shown:
        say(f"{row['topic']}: {row['rows']} messages in {chosen.value}")
