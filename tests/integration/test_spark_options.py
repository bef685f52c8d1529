"""Options that are tried one by one in test_spark_contract.py, all together in Spark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_world import SPARKS_WARNINGS, Cluster

from skylark.model.message import Message
from skylark.protocol.codes import RequestCode
from skylark.protocol.headers import SendMessageRequestV2
from skylark.spark.cluster import Cluster as Brokers
from skylark.spark.mirror import mirror
from skylark.spark.options import Access

pytestmark = SPARKS_WARNINGS

COUNT = 60
BAD = range(5, COUNT, 10)  # Bodies that are no JSON.


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> tuple[str, str]:
    """Two topics that a pattern matches, beside one that it does not."""
    for topic in ("OptionsA", "OptionsB", "OptionsCC"):
        cluster.send(
            Message(
                topic, b"{" if number in BAD else json.dumps({"id": number}).encode(),
                properties={"n": str(number)},
            )
            for number in range(COUNT)
        )  # fmt: skip
    return "OptionsA", "OptionsB"


def reading(reader: Any, cluster: Cluster, **options: object) -> Any:
    reader = reader.format("skylark").option("namesrv", cluster.address)
    given = {
        "topicsPattern": "Options[A-Z]", "filterType": "SQL92", "filter": "n >= 20 and n < 50",
        "splitBytes": "1k", "bodyFormat": "json", "bodySchema": "id long", **options,
    }  # fmt: skip
    return reader.options(**given).load()


def test_a_batch_reads_what_its_options_say_together(
    spark: Any, cluster: Cluster, topics: tuple[str, str]
) -> None:
    good = [number for number in range(20, 50) if number not in BAD]
    dropped = reading(spark.read, cluster, bodyMode="dropmalformed")
    assert sorted((row.topic, row.body.id) for row in dropped.collect()) == [
        (topic, number) for topic in topics for number in good
    ]
    assert dropped.rdd.getNumPartitions() > 4, "splitBytes"
    rows = reading(spark.read, cluster, bodyMode="permissive").collect()
    assert sorted(int(row.properties["n"]) for row in rows if row.body is None) == sorted(
        2 * [number for number in BAD if 20 <= number < 50]
    )
    with pytest.raises(Exception, match=r"topic Options[AB] .*bodySchema.*bodyMode"):
        reading(spark.read, cluster, bodyMode="failfast").collect()


def test_a_path_is_refused(spark: Any, cluster: Cluster, topics: tuple[str, str]) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as body")
    for action in (
        lambda: spark.read.format("skylark").option("topic", topics[0]).load("/etc/passwd"),
        lambda: spark.readStream.format("skylark").load("/etc/passwd"),
        lambda: frame.write.format("skylark").mode("append").save("/etc/passwd"),
    ):
        with pytest.raises(Exception, match="option path: a topic has none; give option topic"):
            action()


def test_a_stream_reads_and_writes_what_its_options_say_together(
    spark: Any, cluster: Cluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    rows = reading(
        spark.readStream, cluster, bodyMode="dropmalformed", maxBytesPerTrigger="8k",
        startingOffsets="earliest", group="options-readers",
    ).selectExpr("cast(body.id as string) as body", "topic as tag")  # fmt: skip

    def written(group: str) -> Any:
        writer = rows.writeStream.format("skylark").option("namesrv", cluster.address)
        writer = writer.option("topic", "OptionsOut").option("group", group)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    with pytest.raises(Exception, match="option group: group name 'a b'"):
        written("a b")
    query = written("options-writers")
    expected = [str(number).encode() for number in range(20, 50) if number not in BAD]
    found = spark.read.format("skylark").option("namesrv", cluster.address)
    messages = found.option("topic", "OptionsOut").load().collect()
    for topic in topics:
        bodies = [bytes(row.body) for row in messages if row.tag == topic]
        assert sorted(bodies) == expected
    # Sink, micro-batch, task, number.
    places = [row.properties["SINK_ROW"].split("/") for row in messages]
    assert len({batch for _, batch, _, _ in places}) > 1, "maxBytesPerTrigger"
    assert len({task for _, _, task, _ in places}) > 2, "splitBytes"
    assert len(query.recentProgress) > 2


def test_a_mirror_copies_what_our_own_producers_would_not_send(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    # Of a client that checks no tags, and come back from a retry.
    marks = {"TAGS": "A||B", "ORIGIN_MESSAGE_ID": "7F", "RETRY_TOPIC": "Other", "n": "1"}
    cluster.send([Message("OptionsForeign", b"ours", tag="A")])
    brokers = Brokers(Access(cluster.address))
    (broker,) = {queue.broker for queue in brokers.queues(["OptionsForeign"])}
    header = SendMessageRequestV2(
        producer_group="tests", topic="OptionsForeign", default_topic="TBW102",
        default_topic_queue_nums=4, queue_id=0, sys_flag=0, born_timestamp=1, flag=0,
        properties="\x02".join(f"{name}\x01{value}" for name, value in marks.items()),
        reconsume_times=0, unit_mode=False, batch=False,
    )  # fmt: skip
    try:
        address = brokers.broker_address("OptionsForeign", broker, for_writing=True)
        brokers.wire(address).call(RequestCode.SEND_MESSAGE_V2, header.to_fields(), b"theirs")
    finally:
        brokers.close()
    query = mirror(
        spark, "OptionsForeign", namesrv=cluster.address, to=cluster.address,
        as_topic="OptionsMirrored", checkpoint=str(tmp_path / "checkpoint"), once=True,
    )  # fmt: skip
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    found = spark.read.format("skylark").option("namesrv", cluster.address)
    rows = found.option("topic", "OptionsMirrored").load().collect()
    by_body = {bytes(row.body): row for row in rows}
    assert by_body.keys() == {b"ours", b"theirs"}
    assert marks.items() <= by_body[b"theirs"].properties.items()
