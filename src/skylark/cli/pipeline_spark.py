"""Spark for one command: a session, and why it did not start; the servers before it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ConfigError, SkylarkError, TransportError
from .pipeline_flags import Flags
from .pipeline_signals import kept_handlers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.cluster import Cluster

logger = logging.getLogger(__name__)

_LOCAL = "local[2,4]"  # Two cores, and a task may fail four times: workers are killed, too.
_CHECK_RETRY_MS = 5_000
_CHECK_TIMEOUT_MS = 5_000
_PAUSE_S = 0.5
_LOG_BYTES_MAX = 1 << 20
# What Java, spark-submit, Ivy and Spark write last, or before a page of what follows from it.
_TELLING = (
    re.compile(r"(?:unresolved dependency|UNRESOLVED DEPENDENC\w+): *[^\s\]][^\]]*", re.IGNORECASE),
    re.compile(r"module not found: \S.*"),
    re.compile(r"All masters are unresponsive.*"),
    re.compile(r"Unrecognized (?:VM )?option.*"),
    re.compile(r"Invalid (?:maximum|initial) heap size.*"),
    re.compile(r'(?<=Exception in thread "main" )\S.*'),
    re.compile(r"(?<=^Error: )\S.*"),
    re.compile(r"(?<= ERROR )\w\S*: \S.*"),
)
_JAVA_PREFIX = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z]\w*: ")
_LINE_CHARS_MAX = 300


def say(text: str) -> None:
    """A line for people, where it does not disturb what programs read."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def spark_session(
    name: str, flags: Flags, settings: Mapping[str, str], *, verbose: bool = False
) -> Iterator[SparkSession]:
    """A session for one command; unless verbose, what the JVM says goes to a file."""
    is_ours = not _runs_already()
    spark = _started(name, flags, settings, verbose=verbose)
    try:
        yield spark
    finally:
        if is_ours:
            _end(spark)


def _end(spark: SparkSession) -> None:
    """Stop a session; where its Java is gone there is nothing to stop, and that has been said."""
    from ..spark.pipelines.causes import is_java_gone

    try:
        with warnings.catch_warnings():  # In pyspark's own words, of the same.
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process")
            spark.stop()
    except Exception as error:
        if not is_java_gone(error):
            raise


def _runs_already() -> bool:
    """Whether a program that calls a command has a session, which it goes on with."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def _started(
    name: str, flags: Flags, settings: Mapping[str, str], *, verbose: bool
) -> SparkSession:
    from ..spark import session

    master = flags.master or os.environ.get("SPARK_MASTER") or _LOCAL
    log = None if verbose else java_log(name)
    if log is not None:
        make_folder("SKYLARK_RUN_DIR", log.parent, mode=0o700)
    _require_master(settings.get("spark.master", master))
    try:
        with kept_handlers():
            spark = session(f"skylark {name}", master=master, settings=settings, java_log=log)
        spark.sparkContext.setLogLevel("WARN" if verbose else "ERROR")
        if not verbose:
            silence(spark)
        spark.conf.get("spark.sql.shuffle.partitions")  # Settings that make no sense are said here.
    except SkylarkError:
        raise
    except Exception as error:
        _refuse_to_start(error, settings.get("spark.master", master), log)
    return spark


def _require_master(master: str) -> None:
    """Refuse masters of Spark's own that do not answer; Spark would try in silence for a minute."""
    if not master.startswith("spark://"):
        return
    give_up = time.monotonic() + _CHECK_RETRY_MS / 1000
    while True:
        for address in master.removeprefix("spark://").split(","):
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), _CHECK_TIMEOUT_MS / 1000).close()
                return
            except ValueError:
                return  # Spark says what is wrong with it.
            except OSError as error:
                problem = error
        if time.monotonic() > give_up:
            raise TransportError(master, f"this master of Spark cannot be reached: {problem}")
        time.sleep(_PAUSE_S)


def _refuse_to_start(error: Exception, master: str, log: Path | None) -> NoReturn:
    """Say why Spark did not start: its Java knows, and pyspark often not."""
    from ..spark.pipelines.causes import as_error

    known = as_error(error, "Spark did not start")
    if isinstance(known, ConfigError) and "Error while instantiating" not in str(known):
        raise known from error
    cause = None if log is None else telling_line(log)
    if cause is None:
        where = "" if log is None else f"; its log is {log}"
        raise SkylarkError(f"{known}{where}") from error
    if "masters are unresponsive" in cause:
        raise TransportError(master, f"Spark did not start: {cause} (log: {log})") from error
    raise ConfigError(f"Spark did not start: {cause} (log: {log})") from error


def telling_line(log: Path) -> str | None:
    """The line of what Java has written that says most, or None."""
    from ..logs import escaped

    try:
        with log.open("rb") as file:
            lines = file.read(_LOG_BYTES_MAX).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    for pattern in _TELLING:
        for line in lines:
            if found := pattern.search(line):
                return escaped(_JAVA_PREFIX.sub("", found[0].strip()))[:_LINE_CHARS_MAX]
    return None


def java_log(name: str) -> Path:
    """Where what Spark's Java says is kept."""
    from ..spark.pipelines import RunDirectory

    return RunDirectory.default().path(name, "log")


def silence(spark: SparkSession) -> None:
    """Keep pyspark from printing Java's stack, or its own, beside the error that we report."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # A server that hears from Java alone, and fails when that dies; who waits for Java says so.
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: logger.debug("accumulators", exc_info=True)


def make_folder(option: str, path: str | os.PathLike[str], *, mode: int = 0o777) -> None:
    """Make a folder before Spark is started for nothing; those of other file systems are its."""
    text = str(path)
    if "://" in text:
        return
    try:
        os.makedirs(text, mode=mode, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{option} {text}: a folder is needed, and there is a file") from None
    except OSError as error:
        raise ConfigError(f"{option} {text}: {error.strerror}; name another folder") from None


@contextlib.contextmanager
def cluster_of(namesrv: str) -> Iterator[Cluster]:
    """The servers behind some name servers, asked with little patience: somebody waits."""
    from ..spark.cluster import Cluster
    from ..spark.options import Access

    cluster = Cluster(Access(namesrv, timeout_ms=_CHECK_TIMEOUT_MS, retry_ms=_CHECK_RETRY_MS))
    try:
        yield cluster
    finally:
        cluster.close()


def require_topics(namesrv: str, topics: Sequence[str] = ()) -> None:
    """Refuse to start Spark for servers that do not answer, and for topics that are not there."""
    from ..model.names import check_topic_name

    for topic in topics:
        check_topic_name(topic)
    with cluster_of(namesrv) as cluster:
        if topics:
            cluster.queues(topics)
        else:
            cluster.brokers()


def require_target(namesrv: str, topic: str) -> None:
    """The same for a topic that is written to."""
    from ..model.names import check_topic_name

    check_topic_name(topic)
    with cluster_of(namesrv) as cluster:
        cluster.writable_queues(topic)


def check_spec(spec: object) -> None:
    """Refuse to start Spark for a pipeline whose servers do not answer or have not its topics."""
    from ..spark.pipelines.plans import Plan

    Plan(spec, None, None).check_cluster(_CHECK_RETRY_MS)  # type: ignore[arg-type]
