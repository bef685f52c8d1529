"""Options of `format("skylark")`: what a user may set, read once, with errors that name the option.

Spark hands options over as text under names without case. Every reader and writer gets one of the
two dataclasses here, which travel pickled to the workers; nothing else looks at the text again.

    namesrv   is an option, or else the environment's NAMESRV_ADDR
    topic     one or several, with commas; topicsPattern instead reads all that match

docs/spark.md lists them all; tests/unit/spark/test_options.py compares.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, ItemsView, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NoReturn

from ..errors import ConfigError, InvalidExpression, InvalidName
from ..filter import SqlExpression, parse_tags
from ..model.names import check_group_name, check_topic_name

_MIB = 1 << 20
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": _MIB, "g": 1 << 30}
_PATTERN_CHARS_MAX = 255
# A batch has text at offsets of 31 bits. What is no UTF-8 becomes three times as long, and a
# batch may exceed pullBytes by a message.
_PULL_BYTES_MAX = 512 * _MIB
_SPLIT_BYTES_MIN, _SPLIT_BYTES_MAX = 1 << 10, 1 << 40
_SEND_BYTES_MAX = 8 * _MIB  # A request is one frame, which takes 16 MiB with all that is in it.
_TRIGGER_BYTES_MAX = 1 << 50
EARLIEST, LATEST = -2, -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Options of Spark itself that reach every source or sink.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "mergeschema"})


class BodyFormat(StrEnum):
    """What the column `body` holds."""

    BINARY = "binary"
    TEXT = "text"
    JSON = "json"


class BodyMode(StrEnum):
    """What becomes of a row whose body cannot be read; Spark's own words."""

    PERMISSIVE = "permissive"  # Null: the body, or the member that does not fit.
    DROPMALFORMED = "dropmalformed"  # There is no such row.
    FAILFAST = "failfast"  # The query ends, and says where.


class ReadFrom(StrEnum):
    """Where messages are read from."""

    NETWORK = "network"
    FILES = "files"  # The brokers' own; an error where they are not there.
    AUTO = "auto"  # Their own where they are there, else the network.


class Guarantee(StrEnum):
    """What a writer promises."""

    EXACTLY_ONCE = "exactly_once"  # All rows of a micro-batch or job appear at once, and once.
    AT_LEAST_ONCE = "at_least_once"  # A task or job that is done again sends its rows again.


class FilterType(StrEnum):
    """The language of the option `filter`."""

    TAG = "TAG"
    SQL92 = "SQL92"


# Topic → broker → queue → offset; EARLIEST and LATEST stand for themselves.
QueueOffsets = dict[str, dict[str, dict[int, int]]]


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read: a word for all queues, a time, or an offset for each queue."""

    word: str | None = None  # "earliest" or "latest"
    timestamp_ms: int | None = None
    offsets: QueueOffsets | None = None

    @property
    def moves(self) -> bool:
        """Whether it means something else when it is asked again later."""
        return self.word == "latest" or LATEST in _numbers(self).values()


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster, and as whom."""

    namesrv: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    timeout_ms: int = 10_000
    retry_ms: int = 60_000  # How long a task goes on trying while no broker answers.


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for."""

    access: Access
    topics: tuple[str, ...]
    topics_pattern: str | None
    starting: Bound
    ending: Bound
    group: str | None
    commit_offsets: bool
    filter: str
    filter_type: FilterType
    messages_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    partitions_min: int
    split_bytes: int
    pull_bytes: int
    pull_count: int
    fail_on_data_loss: bool
    body_format: BodyFormat
    body_schema: str | None
    body_mode: BodyMode
    pushdown: bool
    read_from: ReadFrom = ReadFrom.NETWORK
    store_path: str | None = None  # {broker} in it stands for the broker's name.


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for."""

    access: Access
    topic: str | None
    guarantee: Guarantee
    group: str
    sink_id: str | None
    batch_bytes: int
    checkpoint: str | None = None  # Spark's own option, where a stream says it.


class _Reader:
    """Takes options out one by one, so that what is left over is unknown."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self._names = {name.lower(): name for name in known}
        if "path" in self._given:  # What is given to load(), save() or start().
            _refuse("path: a topic has none; give option topic, such as 'OrderTopic', instead")
        for name in self._given:
            if name not in self._names and name not in _SPARKS_OWN:
                near = difflib.get_close_matches(name, self._names, n=1)
                hint = f"; did you mean {self._names[near[0]]}?" if near else ""
                raise ConfigError(f"option {name} is not known{hint} Known are: {', '.join(known)}")

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self._given.get(name.lower())
        return default if value is None else str(value).strip()

    def parsed(self, name: str, default: Any, parse: Callable[[str], Any], allowed: str) -> Any:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"option {name}={value[:80]!r}: {allowed}") from error

    def flag(self, name: str, default: bool) -> bool:
        found: bool = self.parsed(
            name,
            default,
            lambda text: {"true": True, "false": False}[text.lower()],
            "true or false is allowed",
        )
        return found

    def number(self, name: str, default: int | None, *, least: int, most: int) -> Any:
        def parse(text: str) -> int:
            value = int(text)
            if not least <= value <= most:
                raise ValueError
            return value

        return self.parsed(name, default, parse, f"a number from {least} to {most} is allowed")

    def size(self, name: str, default: int | None, *, least: int, most: int) -> Any:
        def parse(text: str) -> int:
            matched = _SIZE.fullmatch(text)
            if matched is None:
                raise ValueError
            value = int(matched[1]) * _SIZE_UNITS[matched[2].lower()]
            if not least <= value <= most:
                raise ValueError
            return value

        allowed = f"a number of bytes from {_size(least)} to {_size(most)} is allowed, such as 4m"
        return self.parsed(name, default, parse, allowed)

    def one_of(self, name: str, kinds: type[StrEnum], default: StrEnum) -> Any:
        allowed = ", ".join(kinds)

        def parse(text: str) -> StrEnum:
            return {kind.lower(): kind for kind in kinds}[text.lower()]

        return self.parsed(name, default, parse, f"one of {allowed} is allowed")


READ_OPTIONS: dict[str, str] = {
    "namesrv": "Name servers, host:port with semicolons; NAMESRV_ADDR if not set.",
    "topic": "One topic, or several with commas.",
    "topicsPattern": "A regular expression instead: all topics whose whole name matches.",
    "startingOffsets": "earliest, latest, or JSON: topic, broker, queue, offset (-2 earliest, "
    "-1 latest). Batches start at earliest, streams at latest.",
    "endingOffsets": "Batches only: the same, exclusive; latest if not set.",
    "startingTimestamp": "From this store time on: milliseconds since 1970, or ISO 8601.",
    "endingTimestamp": "Batches only: up to this store time, exclusive.",
    "group": "The consumer group under which progress is committed and lag is shown.",
    "commitOffsets": "Streams only: whether progress is committed for the group; true.",
    "filter": "Tags with ||, or an SQL92 condition; evaluated at the broker, or with "
    "readFrom=files by the task. * for all.",
    "filterType": "TAG or SQL92; TAG.",
    "maxMessagesPerTrigger": "Streams only: at most so many messages a micro-batch; 1000000.",
    "maxBytesPerTrigger": "Streams only: about so many bytes a micro-batch.",
    "minPartitions": "At least so many tasks, if there are as many messages; queues are split.",
    "splitBytes": "About so many bytes a task, 1k at least; 128m.",
    "pullBytes": "Bytes asked for in one pull, and about those of a batch, 512m at most; 4m, and "
    "less where the broker allows less. From 256k down brokers answer 32 messages at a time.",
    "pullCount": "Messages asked for in one pull; 8192.",
    "failOnDataLoss": "Whether offsets that retention has removed end the query; true.",
    "bodyFormat": "binary, text, or json with bodySchema; binary.",
    "bodySchema": "The columns of a JSON body, as in CREATE TABLE.",
    "bodyMode": "A body that does not expand, or does not fit bodySchema: permissive makes it "
    "null, dropmalformed leaves the row out, failfast ends the query. permissive for json, else "
    "failfast.",
    "readFrom": "network; files: the brokers' own, under storePath; auto: files where they are "
    "there and the broker's, else network. network.",
    "storePath": "The storePathRootDir of the brokers as Spark's workers see it; {broker} in it "
    "stands for the broker's name.",
    "pushdown": "Batches only: let Spark's filters on topic, broker, queue_id, queue_offset, "
    "store_time and tag narrow what is read; needs spark.sql.python.filterPushdown.enabled. false.",
    "accessKey": "The account; SKYLARK_ACCESS_KEY if not set.",
    "secretKey": "Its secret; SKYLARK_SECRET_KEY if not set.",
    "timeoutMs": "How long one request may take; 10000.",
    "retryMs": "How long a task goes on trying while a broker does not answer; 60000.",
}
WRITE_OPTIONS: dict[str, str] = {
    "namesrv": READ_OPTIONS["namesrv"],
    "topic": "Where rows go that have no column topic.",
    "deliveryGuarantee": "exactly_once, or at_least_once: what a failed task or job has sent is "
    "sent again. Streams are exactly_once if not set, batches at_least_once.",
    "group": "The producer group; skylark-spark.",
    "sinkId": "What names this sink in its decisions: the query's id if not set, a new name for a "
    "batch. A job that is run again under the same one writes nothing.",
    "batchBytes": "About so many bytes in one send, 8m at most; 1m.",
    "accessKey": READ_OPTIONS["accessKey"],
    "secretKey": READ_OPTIONS["secretKey"],
    "timeoutMs": READ_OPTIONS["timeoutMs"],
    "retryMs": READ_OPTIONS["retryMs"],
}


OF_ACCESS: Final = ("accessKey", "secretKey", "timeoutMs", "retryMs")


def access_options(options: Mapping[str, str] | None) -> dict[str, str]:
    """The options that say as whom, and how patiently, to ask; raises ConfigError for others."""
    return _only(OF_ACCESS, options)


def whole_topic_options(options: Mapping[str, str] | None) -> dict[str, str]:
    """Those of a topic that is read as it is; raises ConfigError for others."""
    return _only((*OF_ACCESS, "bodyMode"), options)


def _only(names: tuple[str, ...], options: Mapping[str, str] | None) -> dict[str, str]:
    known = {name.lower() for name in names}
    for name in options or {}:
        if name.lower() not in known:
            _refuse(f"{name}: here only {', '.join(names)} are possible")
    return dict(options or {})


def access_to(namesrv: str, topic: str, options: Mapping[str, str]) -> Access:
    """How to reach the cluster of a topic."""
    return read_options({"namesrv": namesrv, "topic": topic, **options}, is_stream=False).access


def read_options(
    options: Mapping[str, str],
    *,
    is_stream: bool,
    environment: Mapping[str, str] = os.environ,
) -> ReadOptions:
    """The options of a read; raises ConfigError."""
    reader = _Reader(options, READ_OPTIONS)
    topics = _topics(reader)
    pattern = reader.text("topicsPattern")
    if (pattern is None) == (not topics):
        _refuse("topic: give either topic or topicsPattern, such as .option('topic', 'OrderTopic')")
    if pattern is not None:
        _check_pattern(pattern)
    if is_stream:
        for name in ("endingOffsets", "endingTimestamp", "pushdown"):
            if reader.text(name) is not None:
                _refuse(f"{name} is for batch reads; a stream has no end")
    else:
        for name in ("maxMessagesPerTrigger", "maxBytesPerTrigger"):
            if reader.text(name) is not None:
                _refuse(f"{name} is for streams; a batch reads everything at once")
        if reader.text("commitOffsets") is not None:
            _refuse("commitOffsets is for streams; a batch has no progress to commit")
    group = reader.text("group")
    if group is not None:
        _check_name("group", group)
    filter_type: FilterType = reader.one_of("filterType", FilterType, FilterType.TAG)
    body_format: BodyFormat = reader.one_of("bodyFormat", BodyFormat, BodyFormat.BINARY)
    body_schema = reader.text("bodySchema")
    if (body_format is BodyFormat.JSON) != (body_schema is not None):
        _refuse(
            "bodyFormat=json and bodySchema go together, such as bodySchema='id long, name string'"
        )
    read_from: ReadFrom = reader.one_of("readFrom", ReadFrom, ReadFrom.NETWORK)
    starting = _bound(reader, "starting", LATEST if is_stream else EARLIEST)
    ending = _bound(reader, "ending", LATEST)
    _check_order(reader, starting, ending)
    default_mode = BodyMode.PERMISSIVE if body_format is BodyFormat.JSON else BodyMode.FAILFAST
    return ReadOptions(
        access=_access(reader, environment),
        topics=topics,
        topics_pattern=pattern,
        starting=starting,
        ending=ending,
        group=group,
        commit_offsets=reader.flag("commitOffsets", True),
        filter=_filter(reader.text("filter", "*") or "*", filter_type),
        filter_type=filter_type,
        messages_per_trigger_max=reader.number(
            "maxMessagesPerTrigger", 1_000_000 if is_stream else None, least=1, most=2**53
        ),
        bytes_per_trigger_max=reader.size(
            "maxBytesPerTrigger", None, least=1, most=_TRIGGER_BYTES_MAX
        ),
        partitions_min=reader.number("minPartitions", 1, least=1, most=100_000),
        split_bytes=reader.size(
            "splitBytes", 128 * _MIB, least=_SPLIT_BYTES_MIN, most=_SPLIT_BYTES_MAX
        ),
        pull_bytes=reader.size("pullBytes", 4 * _MIB, least=1, most=_PULL_BYTES_MAX),
        pull_count=reader.number("pullCount", 8_192, least=1, most=1_000_000),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        body_format=body_format,
        body_schema=body_schema,
        body_mode=reader.one_of("bodyMode", BodyMode, default_mode),
        pushdown=reader.flag("pushdown", False),
        read_from=read_from,
        store_path=_store_path(reader, read_from),
    )


def write_options(
    options: Mapping[str, str],
    *,
    is_stream: bool,
    environment: Mapping[str, str] = os.environ,
) -> WriteOptions:
    """The options of a write; raises ConfigError."""
    reader = _Reader(options, WRITE_OPTIONS)
    topics = _topics(reader)
    if len(topics) > 1:
        _refuse("topic: a write goes to one topic; add a column topic to write to several")
    group = reader.text("group", "skylark-spark") or "skylark-spark"
    _check_name("group", group)
    default = Guarantee.EXACTLY_ONCE if is_stream else Guarantee.AT_LEAST_ONCE
    guarantee: Guarantee = reader.one_of("deliveryGuarantee", Guarantee, default)
    sink_id = reader.text("sinkId")
    if sink_id is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", sink_id):
        _refuse(f"sinkId={sink_id[:80]!r}: letters, digits and _.- are allowed, 120 at most")
    return WriteOptions(
        access=_access(reader, environment),
        topic=topics[0] if topics else None,
        guarantee=guarantee,
        group=group,
        sink_id=sink_id,
        batch_bytes=reader.size("batchBytes", _MIB, least=1, most=_SEND_BYTES_MAX),
        checkpoint=reader.text("checkpointLocation") if is_stream else None,
    )


def _size(count: int) -> str:
    """A number of bytes as options have it."""
    for unit in ("g", "m", "k"):
        if count and count % _SIZE_UNITS[unit] == 0:
            return f"{count // _SIZE_UNITS[unit]}{unit}"
    return str(count)


def _refuse(problem: str) -> NoReturn:
    raise ConfigError(f"option {problem}")


def _access(reader: _Reader, environment: Mapping[str, str]) -> Access:
    namesrv = reader.text("namesrv") or environment.get("NAMESRV_ADDR", "").strip()
    if not namesrv:
        _refuse("namesrv is needed, such as .option('namesrv', '127.0.0.1:9876'), or NAMESRV_ADDR")
    access_key = reader.text("accessKey") or environment.get("SKYLARK_ACCESS_KEY")
    secret_key = reader.text("secretKey") or environment.get("SKYLARK_SECRET_KEY")
    if (access_key is None) != (secret_key is None):
        _refuse("accessKey and secretKey go together")
    return Access(
        namesrv,
        access_key,
        secret_key,
        reader.number("timeoutMs", 10_000, least=100, most=600_000),
        reader.number("retryMs", 60_000, least=0, most=3_600_000),
    )


def _topics(reader: _Reader) -> tuple[str, ...]:
    text = reader.text("topic")
    if text is None:
        return ()
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        _refuse("topic is empty")
    for name in topics:
        _check_name("topic", name)
    return topics


def _check_name(option: str, name: str) -> None:
    try:
        check_topic_name(name) if option == "topic" else check_group_name(name)
    except InvalidName as error:
        raise InvalidName(f"option {option}: {error.kind}", error.name, error.problem) from error


def _filter(text: str, kind: FilterType) -> str:
    """The condition, which is understood here as it will be at the broker."""
    try:
        parse_tags(text) if kind is FilterType.TAG else SqlExpression(text)
    except InvalidExpression as error:
        allowed = (
            "tags such as 'A || B' are"
            if kind is FilterType.TAG
            else "a condition such as \"amount > 100 AND region = 'eu'\" is"
        )
        raise InvalidExpression(
            error.expression,
            f"of the option filter {error.problem}; with filterType={kind} {allowed} allowed",
            error.position,
        ) from error
    return text


def _store_path(reader: _Reader, read_from: ReadFrom) -> str | None:
    path = reader.text("storePath")
    if read_from is ReadFrom.NETWORK:
        if path is not None:
            _refuse("storePath is for readFrom=files or readFrom=auto")
        return None
    if path is None:
        _refuse(
            f"storePath is needed with readFrom={read_from}: the storePathRootDir of the brokers, "
            "such as '/var/lib/skylark/{broker}'"
        )
    if not path.startswith("/") or "\0" in path or "/../" in f"{path}/":
        _refuse(f"storePath={path[:80]!r}: a path from / on, without .., is allowed")
    return path


def _check_pattern(pattern: str) -> None:
    if not 0 < len(pattern) <= _PATTERN_CHARS_MAX:
        _refuse(f"topicsPattern: 1 to {_PATTERN_CHARS_MAX} characters are allowed")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        _refuse(f"topicsPattern={pattern[:80]!r}: {error}")


def _bound(reader: _Reader, side: str, default: int) -> Bound:
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    if reader.text(offsets) is not None and reader.text(timestamp) is not None:
        _refuse(f"{offsets} and {timestamp} exclude each other")
    at_ms = reader.parsed(
        timestamp, None, _time_ms, "milliseconds since 1970 or ISO 8601 with a zone is allowed"
    )
    if at_ms is not None:
        return Bound(timestamp_ms=at_ms)
    word = "earliest" if default == EARLIEST else "latest"
    found: Bound = reader.parsed(
        offsets,
        Bound(word=word),
        _offsets,
        'earliest, latest or JSON such as {"OrderTopic": {"broker-a": {"0": 23, "1": -2}}} is '
        "allowed",
    )
    return found


def _check_order(reader: _Reader, starting: Bound, ending: Bound) -> None:
    """Refuse an end that lies before its beginning, where no broker is needed to know it."""
    begin_ms, end_ms = starting.timestamp_ms, ending.timestamp_ms
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise ConfigError(
            f"options startingTimestamp={reader.text('startingTimestamp')} and "
            f"endingTimestamp={reader.text('endingTimestamp')}: the end lies before the beginning"
        )
    if begin_ms is not None or end_ms is not None:
        return
    first, last = _numbers(starting), _numbers(ending)
    for queue in sorted({*first, *last}) or ["every queue"]:
        # One that is not named is read from its first message, or to its last.
        begin = first.get(queue, LATEST if starting.word == "latest" else EARLIEST)
        end = last.get(queue, EARLIEST if ending.word == "earliest" else LATEST)
        if end != LATEST and (begin == LATEST or begin > end):
            raise ConfigError(
                f"options startingOffsets and endingOffsets: {queue} would begin at "
                f"{_shown(begin)} and end at {_shown(end)}, before that"
            )


def _numbers(bound: Bound) -> dict[str, int]:
    """The offsets of a bound, by topic/broker/queue."""
    return {
        f"{topic}/{broker}/{queue}": offset
        for topic, brokers in (bound.offsets or {}).items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


def _shown(offset: int) -> str:
    return {EARLIEST: "earliest", LATEST: "latest"}.get(offset, str(offset))


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone is a different moment on every machine")
    if moment < _EPOCH:
        raise ValueError
    # Up, for both ends: a message of the millisecond in which such a time lies is before it.
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _offsets(text: str) -> Bound:
    if text.lower() in ("earliest", "latest"):
        return Bound(word=text.lower())
    found: QueueOffsets = {}
    for topic, brokers in _object(json.loads(text)):
        for broker, queues in _object(brokers):
            for queue, offset in _object(queues):
                if type(offset) is not int or offset < EARLIEST or not queue.isdecimal():
                    raise ValueError
                found.setdefault(topic, {}).setdefault(broker, {})[int(queue)] = offset
    if not found:
        raise ValueError
    return Bound(offsets=found)


def _object(value: Any) -> ItemsView[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value.items()
