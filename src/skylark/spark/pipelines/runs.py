"""Run: a pipeline at work, from its locks to its last word.

    with Run(spec) as run:       holds the name and the checkpoint, or refuses
        run.start(session())     checks everything, then starts a query for each sink
        run.wait()               until all have ended, one has failed, or somebody says stop

The state file is renewed while it runs; a stop is a file beside it, or a signal that the caller
turns into request_stop(). A stop lets the micro-batch under way finish: with sinks that are exactly
once nothing would be lost otherwise, but its work would be done again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ...clock import Clock, SystemClock
from ...errors import SkylarkError
from ..streams import active
from . import causes
from .checkpoints import Checkpoint
from .locks import Lock
from .plans import Plan, has_checkpoint
from .progress import Watched
from .spec import Spec
from .state import RunDirectory, RunState, SinkState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_TICK_S = 0.2
_WRITE_EVERY_MS = 500
_SIGN_OF_LIFE_MS = 5_000
_CLUSTER_RETRY_MS = 10_000
STOP_TIMEOUT_MS = 60_000


class Run:
    """One run of a pipeline; a context manager."""

    def __init__(
        self,
        spec: Spec,
        *,
        directory: RunDirectory | None = None,
        clock: Clock | None = None,
        file: str | None = None,
        flags: Mapping[str, Any] | None = None,
        kind: str = "pipeline",
        stop_timeout_ms: int = STOP_TIMEOUT_MS,
    ) -> None:
        self.spec = spec
        self.spark: SparkSession | None = None
        self._directory = directory or RunDirectory.default()
        self._clock = clock or SystemClock()
        self._stop_timeout_ms = stop_timeout_ms
        self._lock: Lock | None = None
        self._checkpoint: Checkpoint | None = None
        self._watched: list[Watched] = []
        self._written_ms = 0
        self._stop_at_ms: int | None = None  # When patience ends, once a stop is asked for.
        self.state = RunState(
            spec.name,
            kind=kind,
            file=file,
            checkpoint=spec.checkpoint,
            trigger=str(spec.trigger),
            pid=os.getpid(),
            host=socket.gethostname(),
            flags=dict(flags or {}),
        )

    def __enter__(self) -> Self:
        self._lock = self._directory.lock(self.spec.name, self.state.kind)
        try:
            # Of somebody who meant an earlier run; from now on it is this one that is meant.
            self._directory.forget_stop(self.spec.name)
            self._checkpoint = Checkpoint.take(self.spec, self._directory)
        except BaseException:
            self._lock.release()
            raise
        self.state.started_ms = self._clock.now_ms()
        self._write()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        assert self._lock is not None
        assert self._checkpoint is not None
        for one in self._watched:
            _stop(one.query)
        if not self.state.has_ended:
            self.state.status = "stopped" if error is None else "failed"
            self.state.error = None if error is None else causes.one_line(error)
        if isinstance(error, KeyboardInterrupt):
            self.state.status, self.state.error = "stopped", None
        self.state.ended_ms = self._clock.now_ms()
        self._write()
        self._directory.forget_stop(self.spec.name)
        self._checkpoint.release()
        self._lock.release()

    def start(self, spark: SparkSession) -> None:
        """Check everything, then start all queries; raises what cannot be, with its line."""
        assert self._checkpoint is not None, "use it in a with statement"
        self._note_jvm(spark)
        # Views and settings of its own, whatever else runs in this process.
        self.spark = spark.newSession()
        self._set_all(self.spark)
        with active(self.spark):
            self._start_queries(Plan(self.spec, self.spark, self._checkpoint.folder))
        self.state.status = "running"
        self._write()

    def _set_all(self, spark: SparkSession) -> None:
        """Give a session the settings of the file; what the command line has set stays."""
        chosen = {one.partition("=")[0] for one in self.state.flags.get("conf") or ()}
        try:
            for name, value in self.spec.settings.items():
                # Others came with the session, or not at all.
                if name not in chosen and spark.conf.isModifiable(name):
                    spark.conf.set(name, value)
        except Exception as error:  # Of Spark's; also of settings that it has from elsewhere.
            known = causes.as_error(error)
            self.spec.refuse_setting(str(known))
            raise known from error

    def _start_queries(self, plan: Plan) -> None:
        plan.check_cluster(_CLUSTER_RETRY_MS)
        frames = [(sink, plan.frame(sink)) for sink in self.spec.sinks]
        for sink, frame in frames:
            plan.check_query(sink, frame)
        assert self._checkpoint is not None
        self._checkpoint.claim(self.spec)
        for sink, frame in frames:
            group = self.spec.group_of(sink) if has_checkpoint(sink) else ""  # It commits nothing.
            state = SinkState(sink.format, group, self._namesrv())
            self.state.sinks[sink.name] = state
            self._watched.append(Watched(sink.name, plan.start(sink, frame), state))

    def _namesrv(self) -> str:
        """Where the groups are: at the cluster of the topics that are read."""
        for source in self.spec.sources:
            if source.is_stream and "namesrv" in source.options:
                return source.options["namesrv"]
        return self.spec.namesrv

    def _note_jvm(self, spark: SparkSession) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is not None and self._checkpoint is not None:
            pid = int(jvm.java.lang.ProcessHandle.current().pid())
            self._checkpoint.lock.note(jvm=pid)

    def wait(
        self,
        report: Callable[[RunState], None] | None = None,
        *,
        until: Callable[[RunState], bool] | None = None,
    ) -> RunState:
        """Wait for the end; report hears every change. until says when enough has been done."""
        try:
            return self._wait(report, until)
        except Exception as error:
            if not causes.is_java_gone(error):
                raise
            how = "run it again"
            if self.state.file is not None or self.state.kind != "pipeline":
                how = f"skylark pipeline resume {self.spec.name}"
            raise SkylarkError(
                f"pipeline {self.spec.name}: {causes.JAVA_IS_GONE}; go on with: {how}"
            ) from error

    def _wait(
        self,
        report: Callable[[RunState], None] | None,
        until: Callable[[RunState], bool] | None,
    ) -> RunState:
        while True:
            is_news = self._observe()
            self._raise_failure()
            if not any(one.state.is_active for one in self._watched):
                self.state.status = "stopped" if self._stop_at_ms is not None else "done"
                break
            if until is not None and until(self.state):
                self._stop_all()
                self.state.status = "done"
                break
            if self._stop_at_ms is None and self._directory.is_asked_to_stop(self.spec.name):
                self.request_stop()
            if self._stop_at_ms is not None:
                self._stop_those_between()
            self._write_sometimes(is_news)
            if report is not None:
                report(self.state)
            time.sleep(_TICK_S)
        self.state.ended_ms = self._clock.now_ms()
        self._write()
        if report is not None:
            report(self.state)
        return self.state

    def request_stop(self) -> None:
        """Let every query end after the micro-batch that is under way."""
        if self._stop_at_ms is None:
            self._stop_at_ms = self._clock.monotonic_ms() + self._stop_timeout_ms
            self.state.status = "stopping"
            for one in self._watched:
                if one.state.batch is not None:
                    one.stop_after = one.state.batch

    def _stop_those_between(self) -> None:
        assert self._stop_at_ms is not None
        is_late = self._clock.monotonic_ms() >= self._stop_at_ms
        for one in self._watched:
            if one.query.isActive and (is_late or one.is_between):
                _stop(one.query)

    def _stop_all(self) -> None:
        for one in self._watched:
            _stop(one.query)
            one.state.is_active = False

    def _observe(self) -> bool:
        is_news = False
        for one in self._watched:
            if one.state.is_active:
                one.state.is_active = bool(one.query.isActive)
                # After it was asked whether it is active: the last micro-batch is seen as well.
                is_news = one.observe() or is_news
        return is_news

    def _raise_failure(self) -> None:
        for one in self._watched:
            error = None if one.state.is_active else one.query.exception()
            if error is None:
                continue
            one.state.error = causes.one_line(error)
            self.state.status = "failed"
            self.state.error = f"sink {one.name}: {one.state.error}"
            self._stop_all()
            raise causes.as_error(error, f"pipeline {self.spec.name}: sink {one.name}") from error

    def _write_sometimes(self, is_news: bool) -> None:
        age_ms = self._clock.now_ms() - self._written_ms
        if age_ms >= (_WRITE_EVERY_MS if is_news else _SIGN_OF_LIFE_MS) or age_ms < 0:
            self._write()
            assert self._checkpoint is not None
            self._checkpoint.lock.touch()

    def _write(self) -> None:
        self.state.updated_ms = self._written_ms = self._clock.now_ms()
        self._directory.write(self.state)


def _stop(query: Any) -> None:
    try:
        query.stop()
    except Exception as error:  # A query that has failed already, or a JVM that is gone.
        logger.debug("stopping a query: %s", error)
