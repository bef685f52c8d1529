"""Plan: a pipeline as Spark's frames, one query for each sink.

Each sink has a query of its own, so everything it takes is built for it: its sources commit under
its group. Building analyses every query and starts none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import ConfigError
from .. import archive as archives
from .. import streams
from ..catalogue import Catalogue
from ..cluster import Cluster
from ..options import OF_ACCESS, Guarantee, read_options, write_options
from ..own_properties import make_known
from ..schema import check_sink_schema, checked_columns
from . import causes, functions, history, modules, queries
from .checkpoints import is_claimed
from .document import Place
from .spec import BATCH_FORMATS, Sink, Source, Spec, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_T = TypeVar("_T")
_OUTPUT_MODES = {"append": "Append", "update": "Update", "complete": "Complete"}


class Plan:
    """The frames of one pipeline in one session."""

    def __init__(self, spec: Spec, spark: SparkSession, notes: Path | None) -> None:
        self.spec = spec
        self.spark = spark
        self._notes = notes  # Where archive sources keep what they began with; None: not at all.
        self._begins = notes is None or not is_claimed(notes)

    def frame(self, sink: Sink) -> DataFrame:
        """What a sink takes, analysed; raises ConfigError with file and line."""
        frames: dict[str, DataFrame] = {}
        make_known(self.spark)
        for source in self.spec.sources:
            frames[source.name] = self._named(source, self._source(source, sink))
        for step in self.spec.steps:
            frames[step.name] = self._named(step, self._step(step, frames))
        found = frames[sink.takes]
        if not found.isStreaming:
            sink.place.refuse(
                f"{sink.takes} is a table and no stream; take something that a topic or a source "
                "with stream: true leads to"
            )
        if sink.format == "skylark":
            self._check_rows(sink, found)
        return found

    def _named(self, part: Source | Step, frame: DataFrame) -> DataFrame:
        if part.watermark is not None:
            column, delay = part.watermark
            frame = self._said(part.place, lambda: frame.withWatermark(column, delay))
        frame.createOrReplaceTempView(part.name)
        return frame

    def _said(self, place: Place, action: Callable[[], _T]) -> _T:
        """Do something of Spark's; what is wrong with it is said with its place."""
        try:
            return action()
        except Exception as error:
            known = causes.as_error(error)
            self.spec.refuse_setting(str(known))
            if isinstance(known, ConfigError) and not causes.is_about_a_setting(error):
                place.refuse(causes.explained(error, self._names()))
            if known is error:
                raise
            raise known from error

    def _names(self) -> list[str]:
        return [source.name for source in self.spec.sources] + [
            step.name for step in self.spec.steps
        ]

    def _source(self, source: Source, sink: Sink) -> DataFrame:
        options = dict(source.options)
        if source.format in ("skylark", "archive") and source.is_stream:
            options.setdefault("group", self.spec.group_of(sink))
            if not has_checkpoint(sink):
                options["commitOffsets"] = "false"
        if source.format == "archive":
            return self._said(source.place, lambda: self._archive(source, options))

        def loaded() -> DataFrame:
            reader: Any = self.spark.readStream if source.is_stream else self.spark.read
            reader = reader.format(source.format).options(**options)
            if source.schema is not None:
                reader = reader.schema(source.schema)
            frame: DataFrame = reader.load() if source.path is None else reader.load(source.path)
            if source.format == "skylark":
                checked_columns(
                    frame.schema, read_options(source.options, is_stream=source.is_stream)
                )
            return frame

        return self._said(source.place, loaded)

    def _archive(self, source: Source, options: dict[str, str]) -> DataFrame:
        assert source.path is not None
        if self._notes is None:
            Catalogue(source.path).require()
        if source.is_stream:
            return history.stream(self.spark, source, self._notes, options)
        return archives.table(
            self.spark,
            source.path,
            source.topics[0],
            namesrv=options["namesrv"],
            live=self._notes is not None,
            options={name: options[name] for name in OF_ACCESS if name in options},
        )

    def _step(self, step: Step, frames: Mapping[str, DataFrame]) -> DataFrame:
        if step.sql is not None:
            query = step.sql
            command = self._said(step.place, lambda: queries.command_in(self.spark, query))
            if command is not None:
                step.place.refuse(
                    f"a step is a query, such as select …, and this is a command ({command}): it "
                    "would run even when the pipeline is only checked; what is made goes to a sink"
                )
            return self._said(step.place, lambda: self.spark.sql(query))
        assert step.function is not None
        function = functions.find(step.function, self.spec.folder, step.place)
        called = partial(functions.call, function, step.inputs, frames, self.spark, step.place)
        try:
            found: DataFrame = called()
            if modules.send_again(self.spec.folder):  # Of what it imports only when it is called.
                found = called()
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # Whatever the user's function does.
            said = causes.explained(error, self._names())
            step.place.refuse(f"the function failed: {type(error).__name__}: {said}")
        if not hasattr(found, "writeStream"):
            step.place.refuse(f"the function must return a DataFrame, not {type(found).__name__}")
        return found

    def _check_rows(self, sink: Sink, frame: DataFrame) -> None:
        options = write_options(sink.options, is_stream=True)
        try:
            check_sink_schema(
                frame.schema,
                has_topic=options.topic is not None,
                at_once=options.guarantee is Guarantee.EXACTLY_ONCE,
            )
        except ConfigError as error:
            sink.place.refuse(str(error))

    def check_query(self, sink: Sink, frame: DataFrame) -> None:
        """Refuse what Spark cannot do as a stream, and what its sink lacks, without starting it."""
        self._check_sink(sink, frame)
        jvm: Any = getattr(self.spark, "_jvm", None)
        if jvm is None:  # Spark Connect: the server says it at the start.
            return
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        mode = getattr(modes, _OUTPUT_MODES[sink.mode])()
        plan: Any = frame._jdf.queryExecution().analyzed()
        self._said(sink.place, lambda: checker.checkForStreaming(plan, mode))

    def _check_sink(self, sink: Sink, frame: DataFrame) -> None:
        if sink.function is not None:
            functions.find(sink.function, self.spec.folder, sink.place)
        known = {name.lower() for name in frame.columns}
        for column in sink.partition_by:
            if column.lower() not in known:
                sink.place.refuse(
                    f"partitionBy: there is no column {column[:60]!r}; there are "
                    f"{', '.join(frame.columns)}"
                )
        jvm: Any = getattr(self.spark, "_jvm", None)
        if jvm is not None and sink.format not in ("skylark", "python", "memory"):
            found = jvm.org.apache.spark.sql.execution.datasources.DataSource
            conf = self.spark._jsparkSession.sessionState().conf()
            self._said(sink.place, lambda: found.lookupDataSource(sink.format, conf))

    def start(self, sink: Sink, frame: DataFrame) -> StreamingQuery:
        """Start the query of a sink."""
        spec = self.spec
        function = None
        if sink.function is not None:
            function = functions.find(sink.function, spec.folder, sink.place)
        place = spec.places.get("trigger", spec.place)
        writer = self._said(place, lambda: frame.writeStream.trigger(**spec.trigger.arguments()))
        begin = self._said(sink.place, lambda: self._told(writer, sink, function).start)
        if has_checkpoint(sink):
            begin = partial(streams.started, self.spark, spec.checkpoint_of(sink), begin)
        query: StreamingQuery = self._said(sink.place, begin)
        return query

    def _told(
        self, writer: DataStreamWriter, sink: Sink, function: Callable[..., Any] | None
    ) -> DataStreamWriter:
        """A writer that knows all of its sink."""
        is_memory = sink.format == "memory"
        writer = writer.outputMode(sink.mode)
        writer = writer.queryName(sink.name if is_memory else f"{self.spec.name}/{sink.name}")
        if has_checkpoint(sink):
            writer = writer.option("checkpointLocation", self.spec.checkpoint_of(sink))
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        options = {**sink.options, **({} if sink.path is None else {"path": sink.path})}
        if function is not None:
            return writer.foreachBatch(function)
        if sink.format.lower() in BATCH_FORMATS:
            return writer.foreachBatch(_batch_write(sink, options))
        return writer.format(sink.format).options(**options)

    def check_cluster(self, retry_ms: int) -> None:
        """Ask the brokers whether the topics are there; raises ConfigError or TransportError."""
        for source in self.spec.sources:
            if source.format in ("skylark", "archive"):
                options = read_options(source.options, is_stream=source.is_stream)
                cluster = Cluster(replace(options.access, retry_ms=retry_ms))
                try:
                    topics = cluster.topics(options)
                    queues = cluster.queues(topics)
                    if self._begins and options.starting.offsets is not None:
                        cluster.bound(options, "startingOffsets", queues)
                except ConfigError as error:
                    source.place.refuse(str(error))
                finally:
                    cluster.close()
                if not topics:
                    source.place.refuse("option topicsPattern: no topic matches")
        for sink in self.spec.sinks:
            if sink.format == "skylark":
                target = write_options(sink.options, is_stream=True)
                if target.topic is None:
                    continue
                cluster = Cluster(replace(target.access, retry_ms=retry_ms))
                try:
                    cluster.writable_queues(target.topic)
                except ConfigError as error:
                    sink.place.refuse(str(error))
                finally:
                    cluster.close()


def has_checkpoint(sink: Sink) -> bool:
    """Whether a sink goes on where it was; a table in memory is gone with its process."""
    return sink.format != "memory" or sink.mode == "complete"


def _batch_write(sink: Sink, options: Mapping[str, str]) -> Any:
    mode = "overwrite" if sink.mode == "complete" else "append"

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format(sink.format).options(**options).mode(mode).save()

    return write
