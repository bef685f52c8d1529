"""Options that are tried one by one in test_spark_contract.py, all together in Spark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_world import SPARKS_WARNINGS, Cluster

from skylark.model.message import Message

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
