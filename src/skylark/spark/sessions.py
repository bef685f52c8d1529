"""Sessions: a SparkSession with the settings that go well with this source.

A session of the user's own works as well; these only save the search for what matters:

    spark.python.unix.domain.socket.enabled     workers talk to the JVM without TCP: half the time
                                                a small task takes
    spark.sql.python.filterPushdown.enabled     so that option pushdown=true works
    spark.sql.shuffle.partitions                2 locally, where 200 would crawl
    spark.python.authenticate.socketTimeout     a minute, for workers that start on a busy machine
    spark.ui.enabled                            false: no port is opened that nobody asked for
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .java import java_environment
from .python import python_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
DEFAULTS: dict[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def session(
    name: str = "skylark",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session, or return the one that runs; local on two cores if no master is named."""
    settings = settings or {}
    master = master or os.environ.get("SPARK_MASTER") or "local[2]"
    where = settings.get("spark.master", master)
    os.environ.update(java_environment(os.environ))
    os.environ.update(python_environment(os.environ, master=where))
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Spark is not installed: pip install 'skylarkmq[spark]'") from error
    builder = SparkSession.builder.appName(name).master(master)
    quiet = {_JAVA_OPTIONS: f"-Dlog4j2.configurationFile=file:{_LOGGING}"}
    for key, value in {**DEFAULTS, **quiet, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make `format("skylark")` known where the package is not installed for Spark to find it."""
    from .source import SkylarkDataSource

    spark.dataSource.register(SkylarkDataSource)
