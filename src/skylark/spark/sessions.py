"""Sessions: a SparkSession with the settings that go well with this source.

A session of the user's own works as well; these only save the search for what matters:

    spark.python.unix.domain.socket.enabled     workers talk to the JVM without TCP: half the time
                                                a small task takes
    spark.sql.python.filterPushdown.enabled     so that option pushdown=true works
    spark.sql.shuffle.partitions                2 locally, where 200 would crawl
    spark.python.authenticate.socketTimeout     a minute, for workers that start on a busy machine
    spark.ui.enabled                            false: no port is opened that nobody asked for
    spark.sql.sources.parallelPartition…        32 tasks look at the files of an archive, where it
                                                would be one for each, up to 10,000
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .java import java_environment
from .python import python_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
# Words, and kinds of keys; keySizeBits and keyprovider are none.
_SECRETS = re.compile(
    r"secret|passw|passphrase|token|credential|access\.?key|\bsas\b"
    r"|(?:account|private|encryption)[._-]?key(?![a-z])",
    re.IGNORECASE,
)
DEFAULTS: dict[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def session(
    name: str = "skylark",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    java_log: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """Start a session, or return the one that runs; local on two cores if no master is named.

    What Spark's Java says goes to the file java_log for as long as it lives; else it is on stderr.
    """
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
    with contextlib.nullcontext() if java_log is None else _stderr_in(Path(java_log)):
        _start_java({"spark.master": master, **DEFAULTS, **quiet, **settings})
        return builder.getOrCreate()


def is_secret(setting: str) -> bool:
    """Whether the value of a setting is nobody else's to see, by its name."""
    return _SECRETS.search(setting) is not None


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Java without secrets on its command line, which every user of the machine can read.

    They come to it with the others, over the connection that the session is made through.
    """
    from pyspark import SparkConf, SparkContext

    if not any(map(is_secret, settings)) or SparkContext._gateway is not None:
        return
    told = SparkConf(loadDefaults=False)
    told.setAll([(name, value) for name, value in settings.items() if not is_secret(name)])
    SparkContext._ensure_initialized(conf=told)


@contextlib.contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Give the processes that are started meanwhile a file for their complaints."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sys.stderr.flush()
    kept = os.dup(2)
    # At its end whoever else has it open: another process of that name may empty it meanwhile.
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


def register(spark: SparkSession) -> None:
    """Make `format("skylark")` known where the package is not installed for Spark to find it."""
    from .source import SkylarkDataSource

    spark.dataSource.register(SkylarkDataSource)
