"""Mirror: a topic of one cluster, copied to another, exactly once.

Messages of one queue keep their order: each goes to the queue of the same number, counted over all
writable queues there. Bodies, tags, keys and the producers' own properties are copied; ids and
times are those of the copy, and MIRROR_ID says which message it is of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .cluster import Cluster
from .options import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Set by producers and brokers for one life of a message; the copy gets its own.
OWN_PROPERTIES = (
    "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID",
    "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "CLUSTER", "SINK_ROW", "MIN_OFFSET",
    "MAX_OFFSET", "MSG_REGION", "TRACE_ON",
)  # fmt: skip


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
) -> StreamingQuery:
    """Start copying; with once, the query ends when it has what is there now."""
    target = as_topic or topic
    if namesrv == to and target == topic:
        raise ConfigError(f"topic {topic} cannot be copied to itself; name another with --as")
    queues = _queues(to, target)
    names = ", ".join(f"'{name}'" for name in OWN_PROPERTIES)
    frame = (
        spark.readStream.format("skylark")
        .option("namesrv", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("group", group)
        .load()
        .selectExpr(
            "body",
            "tag",
            "keys",
            f"map_concat(map_filter(properties, (k, v) -> k not in ({names}, 'MIRROR_ID')), "
            "map('MIRROR_ID', message_id)) as properties",
            f"queue_id % {queues} as queue_id",
        )
    )
    writer = (
        frame.writeStream.format("skylark")
        .option("namesrv", to)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .queryName(f"mirror {topic}"[:120])
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=trigger)
    return writer.start()


def _queues(namesrv: str, topic: str) -> int:
    cluster = Cluster(read_options({"namesrv": namesrv, "topic": topic}, is_stream=False).access)
    try:
        return max(1, len(cluster.writable_queues(topic)))
    finally:
        cluster.close()
