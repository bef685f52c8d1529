"""`skylark pipeline archive --table-format`: topics into an Iceberg or Delta table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError, SkylarkError
from . import asking, pipeline_runs
from .pipeline_runs import Flags, say

_NAME = "archive"


def archive(
    root: str,
    topics: Sequence[str],
    table_format: str,
    table: str | None,
    flags: Flags,
    *,
    every: str,
) -> None:
    """Archive until stopped, or with flags.once what is there now."""
    from ..spark import lake

    try:
        chosen = lake.TableFormat(table_format.lower())
    except ValueError:
        known = ", ".join(lake.TableFormat)
        raise ConfigError(f"--table-format {table_format[:40]!r}: allowed are {known}") from None
    if "://" in root:
        raise ConfigError(f"--archive {root}: the checkpoint needs a directory of this machine")
    folder = Path(root).absolute()
    given = flags.settings()
    lake.require_package(given, chosen, lake.installed_spark())
    settings = {**lake.settings(chosen, folder), **given}
    with pipeline_runs.spark_session(_NAME, flags, None, settings, False) as spark:
        query = lake.archive_into(
            spark, folder, topics, table_format=chosen, table=table,
            namesrv=asking.addresses(flags.namesrv), once=flags.once, trigger=every,
        )  # fmt: skip
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
            raise
        except Exception as error:
            known_error = lake.explained(spark, chosen, error)
            if isinstance(known_error, SkylarkError):
                raise known_error from error
            raise
        rows = spark.table(lake.name_of(chosen, folder, table)).groupBy("topic").count().collect()
    for row in sorted(rows):
        say(f"{row['topic']}: {row['count']} messages in {chosen.value}")
