"""Parsing: the nodes of a pipeline file become a Spec.

What can be known without a cluster and without Spark is checked here, and refused with file, line
and key: names, options and their values, what excludes what.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError, InvalidExpression, InvalidName
from ...model.addresses import parse_addresses
from ...model.names import check_group_name
from ..catalogue import unglobbed
from ..options import OF_ACCESS, READ_OPTIONS, WRITE_OPTIONS, read_options, write_options
from .document import Node, Place
from .paths import has_scheme
from .spec import (
    FILE_FORMATS,
    KEYS,
    MODES,
    PIPELINE_NAME,
    PIPELINE_NAME_RULE,
    SINK_KEYS,
    SOURCE_KEYS,
    STEP_KEYS,
    Sink,
    Source,
    Spec,
    Step,
)
from .triggers import Trigger, check_interval, parse_trigger

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
_VIEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_OPTION = re.compile(r"\boptions? (\w+)")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# What an archive can follow in archived rows as well as in live ones.
_OF_ARCHIVES = frozenset({"archive", "topic", "namesrv", "stream", "watermark", *OF_ACCESS})
_OF_ARCHIVE_STREAMS = frozenset({"group", "maxMessagesPerTrigger", "maxBytesPerTrigger"})


def parse(
    root: Node,
    folder: Path,
    *,
    name: str | None = None,
    environment: Mapping[str, str] = os.environ,
    namesrv: str | None = None,
) -> Spec:
    """Read a pipeline; raises ConfigError with file and line.

    name is used where it has none; namesrv goes before its own, and not before that of a part.
    """
    keys = root.known(KEYS)
    if "name" not in keys and name is None:
        root.place.refuse("name is missing, such as name: orders-per-minute")
    title = keys["name"].text() if "name" in keys else str(name)
    if not PIPELINE_NAME.fullmatch(title):
        _place(keys, "name", root).refuse(f"name {title[:60]!r}: {PIPELINE_NAME_RULE}")
    for needed, example in (
        ("checkpoint", f"checkpoint: checkpoints/{title}"),
        ("sources", "sources: {orders: {topic: OrderTopic}}"),
        ("sinks", "sinks: {out: {format: console}}"),
    ):
        if needed not in keys or keys[needed].value in (None, {}):
            root.place.refuse(f"{needed} is missing, such as {example}")
    if not namesrv and "namesrv" in keys:
        namesrv = _addresses(keys["namesrv"])
    namesrv = namesrv or environment.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER
    reader = _SpecReader(folder, namesrv, environment)
    names: dict[str, Place] = {}
    sources = tuple(reader.source(n, node, names) for n, node in keys["sources"].items().items())
    given = keys["steps"].items() if "steps" in keys and keys["steps"].value is not None else {}
    steps = tuple(reader.step(n, node, names) for n, node in given.items())
    whole = (steps or sources)[-1].name if steps or len(sources) == 1 else None
    sinks = tuple(reader.sink(n, node, names, whole) for n, node in keys["sinks"].items().items())
    group = keys["group"].text() if "group" in keys else title
    settings = keys["settings"].items() if "settings" in keys else {}
    spec = Spec(
        name=title,
        place=root.place,
        folder=folder,
        checkpoint=reader.path(keys["checkpoint"]),
        trigger=parse_trigger(keys["trigger"]) if "trigger" in keys else Trigger("1 second"),
        namesrv=namesrv,
        group=group,
        settings={name: node.text() for name, node in settings.items()},
        sources=sources,
        steps=steps,
        sinks=sinks,
        places={
            **{name: keys[name].place for name in ("checkpoint", "trigger") if name in keys},
            **{f"settings.{name}": node.place for name, node in settings.items()},
        },
    )
    _check_groups(spec, _place(keys, "group", root))
    return spec


def _place(keys: Mapping[str, Node], name: str, root: Node) -> Place:
    return keys[name].place if name in keys else root.place


def _addresses(node: Node) -> str:
    """Addresses of name servers, checked where they are written; an empty text is none."""
    text = node.text()
    try:
        if text:
            parse_addresses(text)
    except ConfigError as error:
        node.place.refuse(str(error))
    return text


def _check_groups(spec: Spec, place: Place) -> None:
    try:
        for sink in spec.sinks:
            check_group_name(spec.group_of(sink))
    except InvalidName as error:
        place.refuse(str(error))
    readers: dict[tuple[str, str, str], str] = {}
    for source in spec.sources:
        if not source.is_stream:
            continue
        for topic in source.topics:
            # A topic of this name on another cluster has progress of its own.
            key = (source.options["namesrv"], source.options.get("group", ""), topic)
            if key in readers:
                source.place.refuse(
                    f"{readers[key]} reads the topic {topic} under the same group; use that "
                    "source in both places, or give one of them a group of its own"
                )
            readers[key] = source.name
        if "group" in source.options and len(spec.sinks) > 1:
            source.place.refuse(
                "with several sinks a source cannot have one group: leave it out, and each sink's "
                "query has its own; or make it the group of the pipeline"
            )


class _SpecReader:
    """Reads the parts of a pipeline."""

    def __init__(self, folder: Path, namesrv: str, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._namesrv = namesrv
        self._environment = environment

    def path(self, node: Node) -> str:
        """A path, from the pipeline file's folder on; what has a scheme stays as it is."""
        return self._beyond(self._folder, node)

    def pattern(self, node: Node) -> str:
        """The same for what Spark takes for a pattern, which the folder's own name is not."""
        return self._beyond(Path(unglobbed(self._folder.absolute())), node)

    def _beyond(self, folder: Path, node: Node) -> str:
        text = node.text()
        if not text.strip():
            node.place.refuse("a path is needed")
        return text if has_scheme(text) else str((folder / Path(text).expanduser()).absolute())

    def _take_name(self, name: str, node: Node, names: dict[str, Place]) -> None:
        if not _VIEW_NAME.fullmatch(name):
            node.place.refuse("letters, digits and _ are allowed in a name: SQL uses it as a table")
        for known, place in names.items():
            if known.lower() == name.lower():
                node.place.refuse(
                    f"line {place.line} has the same name"
                    + ("" if known == name else f", {known}: SQL does not tell cases apart")
                )
        names[name] = node.place

    def source(self, name: str, node: Node, names: dict[str, Place]) -> Source:
        """One source."""
        self._take_name(name, node, names)
        keys = node.items()
        extra = [key for key in SOURCE_KEYS if key not in ("format", "path", "options")]
        if "format" in keys:
            keys = node.known([key for key in SOURCE_KEYS if key not in ("topic", "archive")])
            _check_source_format(keys["format"])
            return Source(
                name,
                node.place,
                keys["format"].text(),
                _options(keys),
                path=self.pattern(keys["path"]) if "path" in keys else None,
                schema=keys["schema"].text() if "schema" in keys else None,
                is_stream=keys["stream"].flag() if "stream" in keys else False,
                watermark=_watermark(keys),
            )
        if not keys.keys() & {"topic", "topicsPattern", "archive"}:
            node.place.refuse("topic, archive or format is needed: what is read")
        keys = node.known(list(dict.fromkeys([*extra, *READ_OPTIONS])))
        is_stream = keys["stream"].flag() if "stream" in keys else True
        options = {"namesrv": self._namesrv}
        options |= {key: one.text() for key, one in keys.items() if key in READ_OPTIONS}
        if "namesrv" in keys:
            _addresses(keys["namesrv"])
        root = self.path(keys["archive"]) if "archive" in keys else None
        if root is not None:
            _check_archive(keys, node, is_stream=is_stream)
        try:
            read_options(options, is_stream=is_stream, environment=self._environment)
        except (ConfigError, InvalidName, InvalidExpression) as error:
            _culprit(keys, str(error), node).refuse(str(error))
        return Source(
            name,
            node.place,
            "skylark" if root is None else "archive",
            options,
            path=root,
            schema=keys["schema"].text() if "schema" in keys else None,
            is_stream=is_stream,
            watermark=_watermark(keys),
        )

    def step(self, name: str, node: Node, names: dict[str, Place]) -> Step:
        """One step."""
        if isinstance(node.value, str):  # A step that is only its query.
            node = Node({"sql": Node(node.value, node.place)}, node.place)
        before = list(names)
        self._take_name(name, node, names)
        keys = node.known(STEP_KEYS)
        if ("sql" in keys) == ("python" in keys):
            node.place.refuse("either sql or python is needed")
        if "sql" in keys:
            if "inputs" in keys:
                keys["inputs"].place.refuse("a query names its tables itself")
            query = keys["sql"].text().strip().rstrip(";")
            return Step(name, node.place, sql=query, watermark=_watermark(keys))
        inputs = keys["inputs"].texts() if "inputs" in keys else None
        for one in inputs or ():
            if one not in before:
                keys["inputs"].place.refuse(_not_there(one, before))
        return Step(
            name,
            node.place,
            function=_function(keys["python"]),
            inputs=inputs,
            watermark=_watermark(keys),
        )

    def sink(self, name: str, node: Node, names: Mapping[str, Place], whole: str | None) -> Sink:
        """One sink; whole is what it takes if it does not say."""
        if not _VIEW_NAME.fullmatch(name):
            node.place.refuse("letters, digits and _ are allowed in a name")
        keys = node.items()
        kinds = sorted(keys.keys() & {"topic", "format", "python"})
        if len(kinds) > 1:
            keys[kinds[0]].place.refuse(f"{' and '.join(kinds)} exclude each other")
        is_topic = "topic" in keys or (not kinds and keys.keys() & set(WRITE_OPTIONS))
        if not kinds and not is_topic:
            node.place.refuse("topic, format or python is needed: where it goes")
        allowed = [
            key for key in SINK_KEYS
            if key in ("from", "mode") or (not is_topic and key != "topic") or key in kinds
        ]  # fmt: skip
        keys = node.known([*allowed, *(WRITE_OPTIONS if is_topic else ())])
        if "from" not in keys and whole is None:
            node.place.refuse(f"from is needed, as there are several sources: {', '.join(names)}")
        takes = keys["from"].text() if "from" in keys else whole
        assert takes is not None
        if takes not in names:
            keys["from"].place.refuse(_not_there(takes, list(names)))
        mode = keys["mode"].text() if "mode" in keys else "append"
        if mode not in MODES:
            keys["mode"].place.refuse(f"one of {', '.join(MODES)} is allowed")
        sink = Sink(name, node.place, takes, "python", mode=mode)
        if is_topic:
            return self._topic_sink(sink, keys, node)
        if "python" in keys:
            for key in ("path", "partitionBy", "options"):
                if key in keys:
                    keys[key].place.refuse(
                        "this is for a sink with format; a function is given it by its own module"
                    )
            return replace(sink, function=_function(keys["python"]))
        _check_sink_format(keys["format"])
        sink = replace(
            sink,
            format=keys["format"].text(),
            options=_options(keys),
            path=self.path(keys["path"]) if "path" in keys else None,
            partition_by=keys["partitionBy"].texts() if "partitionBy" in keys else (),
        )
        _check_format(sink, keys)
        return sink

    def _topic_sink(self, sink: Sink, keys: Mapping[str, Node], node: Node) -> Sink:
        options = {"namesrv": self._namesrv}
        options |= {key: one.text() for key, one in keys.items() if key in WRITE_OPTIONS}
        if "namesrv" in keys:
            _addresses(keys["namesrv"])
        try:
            write_options(options, is_stream=True, environment=self._environment)
        except (ConfigError, InvalidName) as error:
            _culprit(keys, str(error), node).refuse(str(error))
        if sink.mode != "append":
            keys["mode"].place.refuse("a topic can only be appended to")
        return replace(sink, format="skylark", options=options)


def _check_archive(keys: Mapping[str, Node], node: Node, *, is_stream: bool) -> None:
    """Refuse options that only live rows would follow, or nobody."""
    if "topic" not in keys or len(keys["topic"].texts()) != 1:
        node.place.refuse("an archive is read one topic at a time: add topic: OrderTopic")
    for key in keys:
        place = keys[key].place
        if key in _OF_ARCHIVES:
            continue
        if key not in _OF_ARCHIVE_STREAMS:
            place.refuse(f"an archive is read whole, with all its columns; {_instead(key)}")
        if not is_stream:
            place.refuse("this is for streams; with stream: false leave it out")


def _instead(key: str) -> str:
    if key in ("filter", "filterType"):
        return "filter in a step, such as: select * from orders where tag = 'Paid'"
    if key.startswith(("starting", "ending")):
        return "narrow it in a step, such as: select * from orders where store_time >= '2026-11-01'"
    if key.startswith("body"):
        return "read the body in a step, such as: select from_json(cast(body as string), 'id long')"
    if key == "schema":
        return "choose them in a step, such as: select body, keys from orders"
    return f"leave {key} out"


def _check_source_format(node: Node) -> None:
    """Refuse our own, which would go by none of the checks of a topic, nor to its name servers."""
    name = node.text().strip()
    if name.lower() in ("skylark", "archive"):
        node.place.refuse(
            f"write topic: OrderTopic (or archive: lake with topic: OrderTopic) instead of format: "
            f"{name}"
        )


def _check_sink_format(node: Node) -> None:
    name = node.text().strip()
    if name.lower() == "skylark":
        node.place.refuse(f"write topic: OrderTopic instead of format: {name}")
    if name.lower() == "python":
        node.place.refuse(f"write python: module:function instead of format: {name}")


def _check_format(sink: Sink, keys: Mapping[str, Node]) -> None:
    """Refuse what Spark would only miss once it runs."""
    name = sink.format.lower()
    given = {key.lower() for key, text in sink.options.items() if text.strip()}
    if name in FILE_FORMATS:
        if sink.path is None and "path" not in given:
            sink.place.refuse(f"path is missing: where the {name} files go, such as path: lake/out")
        if sink.mode != "append":
            keys["mode"].place.refuse("files can only be appended to")
    elif name == "jdbc":
        for key, example in (
            ("url", "url: jdbc:postgresql://host/shop"),
            ("dbtable", "dbtable: orders"),
        ):
            if key not in given:
                place = keys["options"].place if "options" in keys else sink.place
                place.refuse(f"the option {key} is missing, such as {example}")
        for key in ("path", "partitionBy"):
            if key in keys:
                keys[key].place.refuse("this is for files, and jdbc writes a table")


def _options(keys: Mapping[str, Node]) -> dict[str, str]:
    if "options" not in keys:
        return {}
    return {name: node.text() for name, node in keys["options"].items().items()}


def _function(node: Node) -> Callable[..., Any] | str:
    if callable(node.value):
        found: Callable[..., Any] = node.value
        return found
    text = node.text()
    if not _REFERENCE.fullmatch(text):
        node.place.refuse(f"module:function is needed, and this is {text[:60]!r}")
    return text


def _watermark(keys: Mapping[str, Node]) -> tuple[str, str] | None:
    if "watermark" not in keys:
        return None
    column, _, delay = keys["watermark"].text().replace(",", " ").strip().partition(" ")
    if not check_interval(delay.strip()):
        keys["watermark"].place.refuse(
            "a column of time and an interval are needed, such as store_time 10 minutes"
        )
    return column, delay.strip()


def _culprit(keys: Mapping[str, Node], problem: str, node: Node) -> Place:
    """The place of the key that a problem speaks of; its other words may be names of keys, too."""
    named = [key for key in _OPTION.findall(problem) if key in keys]
    named += [key for key in keys if re.search(rf"\b{re.escape(key)}\b", problem)]
    return keys[named[0]].place if named else node.place


def _not_there(name: str, known: list[str]) -> str:
    return f"there is no source or step {name[:60]!r} above; there are {', '.join(known)}"
