"""Spec: what a pipeline is, parsed once.

    sources   tables and streams by name: a topic, an archive, or anything that Spark reads
    steps     SQL over what has a name so far, or a Python function of it; each makes a new name
    sinks     where a source or step goes, each a query with a checkpoint folder of its own

YAML and Python files come as nodes (document.py) and leave as these dataclasses; nothing else looks
at the nodes again (parsing.py reads them). docs/pipelines.md lists the keys; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from .document import Place
from .triggers import Trigger

MODES = ("append", "update", "complete")
# Formats of Spark that write tables and not streams: each micro-batch is one write.
BATCH_FORMATS = frozenset({"jdbc"})
FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})

PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
PIPELINE_NAME_RULE = "letters, digits, - and _ are allowed, 100 at most, a letter or digit first"

KEYS: dict[str, str] = {
    "name": "What it is called: in status, stop and resume, and as its consumer group.",
    "checkpoint": "The folder where progress is kept, one folder in it for each sink.",
    "trigger": "availableNow (all of now, then end; once is the same), or an interval such as "
    "10 seconds; 1 second if not set.",
    "namesrv": "Name servers of all topics; NAMESRV_ADDR, else 127.0.0.1:9876, if not set.",
    "group": "The consumer group of its progress; the name if not set. With several sinks each has "
    "its own: group-sink.",
    "settings": "Settings of Spark, as --conf gives them; --conf wins.",
    "sources": "Names, and what is read.",
    "steps": "Names, and what is made of what has a name above; may be left out.",
    "sinks": "Names, and where it goes.",
}
SOURCE_KEYS: dict[str, str] = {
    "topic": "A topic, or several with commas; with it, every reading option of docs/spark.md.",
    "archive": "The folder of an archive: the topic from its first archived message on, and then "
    "live.",
    "format": "Anything else that Spark reads: parquet, csv, jdbc, rate, …",
    "path": "Its path, where the format has one.",
    "options": "Its options, as they are.",
    "schema": "Its columns, as in CREATE TABLE; of a topic, only these are read.",
    "stream": "Whether it is a stream; true for topics and archives, false for others.",
    "watermark": "How late rows may be: a column of time and an interval, store_time 10 minutes.",
}
STEP_KEYS: dict[str, str] = {
    "sql": "A query; sources and steps above are its tables.",
    "python": "Or a function, module:function; its parameters are the names it takes.",
    "inputs": "The names it is given, where the parameters are called otherwise.",
    "watermark": "As for sources.",
}
SINK_KEYS: dict[str, str] = {
    "from": "The source or step that it takes; the last step, or the only source, if not set.",
    "topic": "A topic; with it, every writing option of docs/spark.md.",
    "format": "Anything else that Spark writes: parquet, json, jdbc, console, memory, noop, …",
    "python": "Or a function, module:function, of a micro-batch and its number.",
    "path": "Its path, where the format has one.",
    "options": "Its options, as they are.",
    "mode": "append, update or complete; append if not set.",
    "partitionBy": "Columns that become folders.",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    name: str
    place: Place
    format: str  # "skylark", "archive", or one of Spark's.
    options: Mapping[str, str]
    path: str | None = None
    schema: str | None = None
    is_stream: bool = True
    watermark: tuple[str, str] | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it names."""
        text = self.options.get("topic", "") if self.format in ("skylark", "archive") else ""
        return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class Step:
    """What is made of rows."""

    name: str
    place: Place
    sql: str | None = None
    function: Callable[..., Any] | str | None = None  # Itself, or module:function.
    inputs: tuple[str, ...] | None = None
    watermark: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go."""

    name: str
    place: Place
    takes: str
    format: str  # "skylark", "python", or one of Spark's.
    options: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    function: Callable[..., Any] | str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole pipeline."""

    name: str
    place: Place
    folder: Path  # Relative paths and modules are looked for here.
    checkpoint: str
    trigger: Trigger
    namesrv: str
    group: str
    settings: Mapping[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    places: Mapping[str, Place] = field(default_factory=dict)  # checkpoint, trigger, settings.x

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Say that what a key of the whole pipeline says cannot be."""
        self.places.get(key, self.place).refuse(problem)

    def refuse_setting(self, problem: str) -> None:
        """Refuse the setting that a problem names; nothing where it is none of the file's."""
        for name, value in self.settings.items():
            if f'"{name}"' in problem and f"'{value}'" in problem:  # And not that of --conf.
                self.refuse(f"settings.{name}", problem)

    def group_of(self, sink: Sink) -> str:
        """The group under which the query of a sink commits; two must not share one."""
        return self.group if len(self.sinks) == 1 else f"{self.group}-{sink.name}"

    def checkpoint_of(self, sink: Sink) -> str:
        """Where the query of a sink keeps its progress."""
        return f"{self.checkpoint}/{sink.name}"

    def once(self) -> Spec:
        """The same, ending when it has what is there now."""
        return replace(self, trigger=Trigger(available_now=True))
