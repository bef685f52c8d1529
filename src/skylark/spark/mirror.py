"""Mirror: a topic of one cluster, copied to another, exactly once.

Messages of one queue keep their order: queues are counted on both sides (numbering.py), and those
of one number go to that number there, which goes round. A source queue's number is that of its
broker's first queue, which never changes, and its own id; so a source may get queues and brokers,
and none of the others moves. How many queues the target has is asked at the start.

Bodies, tags, keys and the producers' own properties are copied; ids and times are those of the
copy, and MIRROR_ID says which message it is of. What has a MIRROR_ID is a copy, and is not copied
on unless that is asked for: a topic that is mirrored both ways would go round for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from ..errors import ConfigError
from . import streams
from .cluster import TEMPLATE_TOPIC, Cluster
from .numbering import first_numbers, next_number, noted, numbered_queues
from .options import BodyMode, access_options, access_to, whole_topic_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Set by producers and brokers for one life of a message; the copy gets its own.
OWN_PROPERTIES = (
    "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID",
    "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "CLUSTER", "SINK_ROW", "MIN_OFFSET",
    "MAX_OFFSET", "MSG_REGION", "TRACE_ON",
)  # fmt: skip


NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def mirror(
    spark: SparkSession,
    topic: str,
    *,
    namesrv: str,
    to: str,
    checkpoint: str,
    as_topic: str | None = None,
    group: str = "skylark-mirror",
    once: bool = False,
    trigger: str = "1 second",
    chain: bool = False,
    options: Mapping[str, str] | None = None,
    to_options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start copying; with once, the query ends when it has what is there now.

    With chain, copies that another mirror has made are copied as well. Options are those of the
    account and of patience (accessKey, secretKey, timeoutMs, retryMs), here and at the target, and
    here bodyMode, dropmalformed or failfast.
    """
    target = as_topic or topic
    require_bodies(options or NO_OPTIONS)
    asking, asking_there = whole_topic_options(options), access_options(to_options)
    both = {"options": asking, "to_options": asking_there}
    require_apart(topic, namesrv=namesrv, target=target, to=to, **both)
    copies = Copies.plan(topic, namesrv=namesrv, target=target, to=to, **both)
    names = ", ".join(f"'{name}'" for name in OWN_PROPERTIES)
    frame = (
        spark.readStream.format("skylark")
        .options(**asking)
        .option("namesrv", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("group", group)
        .load()
        .where("true" if chain else "properties['MIRROR_ID'] is null")
        .selectExpr(
            "body",
            "tag",
            "keys",
            f"map_concat(map_filter(properties, (k, v) -> k not in ({names}, 'MIRROR_ID')), "
            "map('MIRROR_ID', message_id)) as properties",
            f"{copies.queue_id()} as queue_id",
        )
    )
    writer = (
        frame.writeStream.format("skylark")
        .options(**asking_there)
        .option("namesrv", to)
        .option("topic", target)
        .queryName(f"mirror {topic}"[:120])
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)
    return streams.start(spark, writer, checkpoint)


@dataclass(frozen=True, slots=True)
class Copies:
    """Which queue the copies of each queue go to."""

    first_numbers: Mapping[str, int]  # Of the brokers of the source.
    next_number: int  # Of a broker that comes later.
    queues: int

    @classmethod
    def plan(
        cls,
        topic: str,
        *,
        namesrv: str,
        target: str,
        to: str,
        options: Mapping[str, str] = NO_OPTIONS,
        to_options: Mapping[str, str] = NO_OPTIONS,
    ) -> Self:
        """Ask both clusters; the target first, which may not be there."""
        with _asking(to, target, to_options) as cluster:
            queues = len(numbered_queues(cluster, target).queues)
        with _asking(namesrv, topic, options) as cluster:
            try:
                there = cluster.queues([topic])
            except ConfigError:
                there = []  # Only its archive is left.
            runs = noted(cluster, topic, there)
        return cls(first_numbers(runs), next_number(runs), max(1, queues))

    def queue_id(self) -> str:
        """SQL of the number of a row's queue there, from its columns broker and queue_id."""
        cases = "".join(
            f" when {_text(broker)} then {number}" for broker, number in self.first_numbers.items()
        )
        first = f"case broker{cases} else {self.next_number} end" if cases else "0"
        return f"cast(({first} + queue_id) % {self.queues} as int)"


def _text(word: str) -> str:
    """A literal of Spark's SQL."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"


def require_bodies(options: Mapping[str, str]) -> None:
    """Refuse what makes bodies null: a message has one. Raises ConfigError."""
    for name, value in options.items():
        if name.lower() == "bodymode" and value.lower() == BodyMode.PERMISSIVE:
            raise ConfigError(
                f"option bodyMode={value}: a message without a body cannot be sent; dropmalformed "
                "leaves it out, failfast ends the query"
            )


def require_apart(
    topic: str,
    *,
    namesrv: str,
    target: str,
    to: str,
    options: Mapping[str, str] = NO_OPTIONS,
    to_options: Mapping[str, str] = NO_OPTIONS,
) -> None:
    """Refuse to copy a topic to itself; raises ConfigError."""
    if target == topic and is_same_cluster(namesrv, to, options, to_options):
        raise ConfigError(f"topic {topic} cannot be copied to itself; name another with --as")


def is_same_cluster(
    one: str,
    other: str,
    options: Mapping[str, str] = NO_OPTIONS,
    other_options: Mapping[str, str] = NO_OPTIONS,
) -> bool:
    """Whether name servers, however they are spelled, know the same brokers."""
    if one == other:
        return True
    with (
        _asking(one, options=options) as cluster,
        _asking(other, options=other_options) as another,
    ):
        return not _places(cluster).isdisjoint(_places(another))


def _places(cluster: Cluster) -> set[tuple[str, str]]:
    return {
        (name, address)
        for name, data in cluster.brokers().items()
        for address in data.addresses.values()
    }


@contextmanager
def _asking(
    namesrv: str, topic: str = TEMPLATE_TOPIC, options: Mapping[str, str] = NO_OPTIONS
) -> Iterator[Cluster]:
    cluster = Cluster(access_to(namesrv, topic, options))
    try:
        yield cluster
    finally:
        cluster.close()
