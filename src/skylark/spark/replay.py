"""Replay: messages of a topic, from its archive or log, sent once more to a topic.

What is chosen is written down first, as files of at most so many rows; then a stream sends a file
a micro-batch, exactly once. So a replay that is killed goes on where it was, whatever retention or
compaction have done meanwhile.

A rate is the size of a file, and a second that each task waits before it sends. Micro-batches come
one after the other and appear at their end, so between two of them there is that second at least,
however slow one was; a trigger alone would let the next two follow at once.

    <folder>/plan.json       rows of each file, in the order they are sent; the selection, and the
                             words it was typed as
    <folder>/chosen/         the files; their times are in order, which is the order Spark reads in
    <folder>/target/         Spark's checkpoint

Messages of one queue stay in order, also where the clock of its broker went back. A copy has an id
and times of its own, and says whose it is:

    REPLAY_ID                the id of the original
    REPLAY_FROM              topic/broker/queue/offset
    REPLAY_STORE_TIME        when that was stored, in milliseconds since 1970

A message without a body cannot be sent: its body does not expand, or it was archived without. One
that is chosen ends the replay before anything is sent, unless such messages are to be left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..errors import ConfigError, SkylarkError, StoreUnreadable
from ..model.names import check_topic_name
from . import archive as archives
from .catalogue import sync, sync_tree, unglobbed
from .mirror import OWN_PROPERTIES, Copies, is_same_cluster
from .options import BodyMode
from .pipelines.causes import as_error
from .pipelines.document import Place
from .pipelines.spec import Sink, Source, Spec, Step
from .pipelines.triggers import Trigger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_FILE = 100_000
_RATE_S = 1.0
_SINK = "target"
_PLAN = "plan.json"
_MARKS = ("REPLAY_ID", "REPLAY_FROM", "REPLAY_STORE_TIME")
_COLUMNS = "body binary, tag string, keys string, properties map<string,string>, queue_id int"
_FILE_NAME = re.compile(r"part-(\d+)-.*-c(\d+)\.")  # Numbers of any length: c1000 is after c999.
_LEFT_OUT = "--body-mode dropmalformed leaves such messages out"
_OPTION_HINT = ". Set the option bodyMode"  # Of a reader, whose words are not those of a command.
_BODY = (  # Evaluated for messages that are chosen; others may be without one.
    "coalesce(body, raise_error(concat_ws(' ', 'topic', topic, 'broker', broker, 'queue', "
    "queue_id, 'offset', concat(queue_offset, ': its body could not be read when it was archived, "
    f"so it cannot be sent; {_LEFT_OUT}'))))"
)
_NUMBERS = frozenset({"from_ms", "until_ms", "rate"})  # Fields of a selection; others are texts.
_FILE_MS = 10  # Between the times of two files; Spark forgets files that are a week older.


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages, and where to."""

    topic: str
    to: str
    namesrv: str
    to_namesrv: str
    archive: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    tag: str | None = None
    where: str | None = None
    rate: int | None = None  # Messages a second.
    body_mode: str | None = None  # failfast if not set.

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        check_topic_name(self.to)
        if self.rate is not None and self.rate < 1:
            raise ConfigError("--rate: at least one message a second is needed")
        bounds = (self.from_ms, self.until_ms)
        if None not in bounds and self.from_ms >= self.until_ms:  # type: ignore[operator]
            raise ConfigError("--from must be before --until; nothing lies between them")
        if self.body_mode == BodyMode.PERMISSIVE:
            raise ConfigError(
                "--body-mode permissive: a message without a body cannot be sent; dropmalformed "
                "leaves it out"
            )
        if self.body_mode not in (None, BodyMode.FAILFAST, BodyMode.DROPMALFORMED):
            raise ConfigError(f"--body-mode {self.body_mode}: failfast or dropmalformed is needed")

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """From JSON, without what a newer version has added; raises TypeError for what is none."""
        if not isinstance(value, dict):
            raise TypeError(f"the selection is {value!r}")
        known = [one for one in fields(cls) if one.name in value]
        for one in known:
            found, kind = value[one.name], int if one.name in _NUMBERS else str
            if type(found) is not kind and (found is not None or one.default is not None):
                raise TypeError(f"{one.name} is {found!r}")
        return cls(**{one.name: value[one.name] for one in known})

    @property
    def way(self) -> str:
        """From where to where, as people say it."""
        return f"{self.topic} to {self.to}"

    @property
    def drops(self) -> bool:
        """Whether messages whose body cannot be read are left out."""
        return self.body_mode == BodyMode.DROPMALFORMED

    @property
    def reading(self) -> dict[str, str]:
        """Options of what reads the messages."""
        return {} if self.body_mode is None else {"bodyMode": self.body_mode}

    @property
    def is_onto_itself(self) -> bool:
        """Whether the copies would land where the originals are; asks both clusters if need be."""
        return self.topic == self.to and is_same_cluster(self.namesrv, self.to_namesrv)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would send."""

    messages: int
    bytes: int
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What has been written down, file by file, and what it was chosen by."""

    rows: tuple[int, ...]
    selection: Selection
    typed: Mapping[str, Any] = field(default_factory=dict)  # The words of a command, if known.

    @property
    def total(self) -> int:
        """All messages of the replay."""
        return sum(self.rows)

    def sent(self, batches: int) -> int:
        """How many were sent with the first micro-batches, a file each."""
        return sum(self.rows[:batches])


def default_name(topic: str, words: Mapping[str, Any]) -> str:
    """The same words name the same replay, so that one that was killed is found again."""
    text = json.dumps(dict(words), sort_keys=True)
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in topic)[:60]
    return f"replay-{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def select(spark: SparkSession, selection: Selection) -> DataFrame:
    """The messages themselves, with all columns; a body that is not there is an error when read."""
    try:
        if selection.archive is not None:
            frame = archives.table(
                spark,
                selection.archive,
                selection.topic,
                namesrv=selection.namesrv,
                options=selection.reading,
            )
        else:
            frame = _log(spark, selection)
        if selection.from_ms is not None:
            frame = frame.where(f"store_time >= timestamp_millis({selection.from_ms})")
        if selection.until_ms is not None:
            frame = frame.where(f"store_time < timestamp_millis({selection.until_ms})")
        if selection.tag is not None:
            frame = frame.where(frame.tag == selection.tag)
        if selection.key is not None:
            from pyspark.sql import functions as f

            frame = frame.where(f.array_contains(f.split("keys", " "), selection.key))
    except Exception as error:
        raise as_error(error) from error
    if selection.where is not None:
        try:
            frame = frame.where(selection.where)
        except Exception as error:
            raise as_error(error, "--where") from error
    return frame.where("body is not null") if selection.drops else _with_bodies(frame)


def _with_bodies(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.withColumn("body", f.expr(_BODY))


def _log(spark: SparkSession, selection: Selection) -> DataFrame:
    reader = spark.read.format("skylark").option("namesrv", selection.namesrv)
    reader = reader.option("topic", selection.topic).options(**selection.reading)
    if selection.from_ms is not None:
        reader = reader.option("startingTimestamp", selection.from_ms)
    if selection.until_ms is not None:
        reader = reader.option("endingTimestamp", selection.until_ms)
    return reader.load()


def preview(spark: SparkSession, selection: Selection) -> Preview:
    """Count, without sending anything."""
    try:
        row = (
            select(spark, selection)
            .selectExpr(
                "count(*) as messages",
                "coalesce(sum(length(body)), 0) as bytes",
                "cast(min(store_time) as string) as first",
                "cast(max(store_time) as string) as last",
            )
            .first()
        )
    except Exception as error:
        raise _as_error(error) from error
    assert row is not None
    return Preview(row["messages"], row["bytes"], row["first"], row["last"])


def _as_error(error: Exception) -> SkylarkError:
    """One of our errors; of a body that cannot be read, with what a replay can do about it."""
    known = as_error(error)
    problem, hint, _ = str(known).partition(_OPTION_HINT)
    return SkylarkError(f"{problem}; {_LEFT_OUT}") if hint else known


def choose(
    spark: SparkSession,
    selection: Selection,
    folder: Path,
    typed: Mapping[str, Any] | None = None,
) -> Chosen:
    """Write down what will be sent, once; later calls find it.

    Raises ConfigError where the folder holds the choice of another replay.
    """
    there = chosen_in(folder)
    if there is not None:
        if there.selection != selection:
            raise ConfigError(
                f"--checkpoint {folder}: it holds the choice of another replay, "
                f"{there.selection.way}; name another folder"
            )
        return there
    chosen = folder / "chosen"
    shutil.rmtree(chosen, ignore_errors=True)  # Of a try that was not finished.
    _write_copies(spark, selection, chosen)
    found = Chosen(_in_order(chosen), selection, dict(typed or {}))
    sync_tree(chosen, folder)  # A plan that is on the disk has its files there.
    draft = folder / "plan.draft"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(asdict(found), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _PLAN)
    sync(folder)
    return found


def chosen_in(folder: Path) -> Chosen | None:
    """What a folder holds, if anything has been chosen there; raises StoreUnreadable."""
    path = folder / _PLAN
    try:
        plan = json.loads(path.read_bytes())
        rows = tuple(int(rows) for rows in plan["rows"])
        return Chosen(rows, Selection.from_dict(plan["selection"]), dict(plan.get("typed") or {}))
    except (FileNotFoundError, NotADirectoryError):  # The latter is refused when it is made.
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreUnreadable(
            str(path), f"is no choice of a replay: {error!r}; name another folder"
        ) from error


def _write_copies(spark: SparkSession, selection: Selection, folder: Path) -> None:
    try:
        (
            _copies(select(spark, selection), _plan(selection))
            .write.option("maxRecordsPerFile", selection.rate or _ROWS_PER_FILE)
            .parquet(str(folder))
        )
    except Exception as error:
        raise _as_error(error) from error


def _copies(frame: DataFrame, copies: Copies) -> DataFrame:
    """Messages as they will be sent, in the order of the originals.

    Queues go side by side by time. A broker's clock may go back, so of a queue the latest time so
    far counts, which never does.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    until_now = Window.partitionBy("broker", "queue_id").orderBy("queue_offset")
    until_now = until_now.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    frame = frame.withColumn("latest", f.max("store_time").over(until_now))
    names = ", ".join(f"'{name}'" for name in (*OWN_PROPERTIES, *_MARKS, "MIRROR_ID"))
    marks = (
        "map('REPLAY_ID', message_id, "
        "'REPLAY_FROM', concat_ws('/', topic, broker, queue_id, queue_offset), "
        "'REPLAY_STORE_TIME', cast(unix_millis(store_time) as string))"
    )
    return frame.orderBy("latest", "broker", "queue_id", "queue_offset").selectExpr(
        "body",
        "tag",
        "keys",
        f"map_concat(map_filter(properties, (k, v) -> k not in ({names})), {marks}) as properties",
        f"{copies.queue_id()} as queue_id",
    )


def _plan(selection: Selection) -> Copies:
    return Copies.plan(
        selection.topic,
        namesrv=selection.namesrv,
        target=selection.to,
        to=selection.to_namesrv,
    )


def _in_order(folder: Path) -> tuple[int, ...]:
    """Give files times in the order of their numbers, which Spark's sort has made; their rows."""
    import pyarrow.parquet as parquet

    paths = sorted(folder.glob("*.parquet"), key=_numbers)
    counts = [parquet.read_metadata(path).num_rows for path in paths]
    for path, rows in zip(paths, counts, strict=True):
        if not rows:
            path.unlink()
    kept = [(path, rows) for path, rows in zip(paths, counts, strict=True) if rows]
    if kept:
        first_ns = kept[0][0].stat().st_mtime_ns - len(kept) * _FILE_MS * 1_000_000
        for number, (path, _) in enumerate(kept):
            at_ns = first_ns + number * _FILE_MS * 1_000_000
            os.utime(path, ns=(at_ns, at_ns))
    return tuple(rows for _, rows in kept)


def _numbers(path: Path) -> tuple[int, int]:
    """The partition of a file, and its place among the files of that."""
    matched = _FILE_NAME.match(path.name)
    assert matched is not None, f"Spark wrote {path.name}"
    return int(matched[1]), int(matched[2])


def batches_done(folder: Path) -> int:
    """How many micro-batches Spark has noted as sent."""
    commits = folder / _SINK / "commits"
    numbers = [int(path.name) for path in commits.glob("*") if path.name.isdecimal()]
    return max(numbers) + 1 if numbers else 0


def paced(chosen: DataFrame) -> DataFrame:
    """The same rows, of each micro-batch a second later."""
    return chosen.mapInArrow(_a_second_later, chosen.schema)


def _a_second_later(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(_RATE_S)
    yield from batches


def as_pipeline(name: str, selection: Selection, folder: Path) -> Spec:
    """What sends the files: a pipeline like any other."""
    place = Place(name, 1)
    chosen = Source(
        "chosen",
        place,
        "parquet",
        {"maxFilesPerTrigger": "1"},
        path=unglobbed(folder / "chosen"),
        schema=_COLUMNS,
    )
    steps = () if selection.rate is None else (Step("paced", place, function=paced),)
    target = Sink(
        _SINK,
        place,
        steps[-1].name if steps else chosen.name,
        "skylark",
        {
            "namesrv": selection.to_namesrv,
            "topic": selection.to,
            "deliveryGuarantee": "exactly_once",
        },
    )
    return Spec(
        name=name,
        place=place,
        folder=folder,
        checkpoint=str(folder),
        trigger=Trigger(available_now=True) if selection.rate is None else Trigger("0 seconds"),
        namesrv=selection.namesrv,
        group=name,
        settings={},
        sources=(chosen,),
        steps=steps,
        sinks=(target,),
    )
