"""`format("skylark")` in Spark itself, local mode: batch and stream, read and write.

One session and one cluster for all; a session per test would take most of the time.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_world import SPARKS_WARNINGS, Cluster

import skylark
from skylark.model.message import Message
from skylark.spark import user_properties
from skylark.spark.mirror import mirror

pytestmark = SPARKS_WARNINGS


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> list[Message]:
    """Two hundred orders in a topic of their own."""
    messages = [
        Message(
            "SparkOrders",
            json.dumps({"id": number, "name": f"order {number}"}).encode(),
            tag="AB"[number % 2],
            keys=[f"o-{number}", "all"],
            properties={"n": str(number), "город": "Київ"},
        )
        for number in range(200)
    ]
    cluster.send(messages)
    return messages


def reading(spark: Any, cluster: Cluster, topic: str, **options: object) -> Any:
    reader = spark.read.format("skylark").option("namesrv", cluster.address).option("topic", topic)
    schema = options.pop("schema", None)
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def streaming(spark: Any, cluster: Cluster, topic: str, **options: object) -> Any:
    reader = spark.readStream.format("skylark").option("namesrv", cluster.address)
    reader = reader.option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def refusal(action: Any) -> str:
    """What Spark's driver says when something cannot be."""
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


# Reading.


def test_rows_are_what_a_consumer_reads(spark: Any, cluster: Cluster, orders: list) -> None:
    rows = reading(spark, cluster, "SparkOrders").collect()
    messages = cluster.consume("SparkOrders", len(orders), "compare")
    by_place = {(row.queue_id, row.queue_offset): row for row in rows}
    assert len(by_place) == len(rows) == len(orders)
    for message in messages:
        row = by_place[message.queue.queue_id, message.queue_offset]
        assert bytes(row.body) == message.body
        assert row.topic == message.topic
        assert row.broker == message.queue.broker_name
        assert row.tag == message.tag
        assert row["keys"] == " ".join(message.keys)
        assert row.message_id == message.message_id
        assert row.properties == message.properties
        assert row.properties["город"] == "Київ"
        assert row.reconsume_times == message.reconsume_times == 0
        assert _ms(row.store_time) == message.stored_at_ms
        assert _ms(row.born_time) == message.born_at_ms


def test_a_schema_picks_columns(spark: Any, cluster: Cluster, orders: list) -> None:
    found = reading(
        spark,
        cluster,
        "SparkOrders",
        schema="body binary, physical_offset bigint, born_host string",
    )
    assert found.columns == ["body", "physical_offset", "born_host"]
    assert found.count() == len(orders)
    assert found.first().born_host.startswith("127.0.0.1:")


def test_a_batch_by_time_is_exact_to_the_millisecond(
    spark: Any, cluster: Cluster, orders: list
) -> None:
    rows = reading(spark, cluster, "SparkOrders").collect()
    times = sorted(row.store_time for row in rows)
    begin, end = times[50], times[150]
    expected = sorted(row.message_id for row in rows if begin <= row.store_time < end)
    by_iso = reading(
        spark, cluster, "SparkOrders",
        startingTimestamp=begin.astimezone(UTC).isoformat(),
        endingTimestamp=str(round((end - begin) / timedelta(milliseconds=1)) + _ms(begin)),
    )  # fmt: skip
    assert sorted(row.message_id for row in by_iso.collect()) == expected
    assert 0 < len(expected) < len(rows)


def _ms(moment: Any) -> int:
    """Spark gives Python moments in the zone of the machine, without saying so."""
    return round(moment.timestamp() * 1000)


def test_bodies_come_as_text_or_parsed(spark: Any, cluster: Cluster, orders: list) -> None:
    text = reading(spark, cluster, "SparkOrders", bodyFormat="text")
    assert {row.body for row in text.collect()} == {message.body.decode() for message in orders}
    parsed = reading(
        spark, cluster, "SparkOrders", bodyFormat="json", bodySchema="id long, name string"
    )
    assert {(row.id, row.name) for row in parsed.select("body.*").collect()} == {
        (number, f"order {number}") for number in range(200)
    }


def test_conditions_of_the_query_narrow_what_is_read(
    spark: Any, cluster: Cluster, orders: list
) -> None:
    found = reading(spark, cluster, "SparkOrders", pushdown="true", minPartitions=1000)
    narrow = found.where("queue_id = 1 and queue_offset >= 5 and queue_offset < 9")
    assert sorted(row.queue_offset for row in narrow.collect()) == [5, 6, 7, 8]
    assert narrow.rdd.getNumPartitions() <= 5, "of fifty messages, five were read"
    found = reading(spark, cluster, "SparkOrders", pushdown="true")
    everything = found.where("store_time > '2020-01-01' and topic in ('SparkOrders', 'x')")
    assert everything.count() == 200


def test_what_cannot_be_read_is_said_in_the_driver(
    spark: Any, cluster: Cluster, orders: list
) -> None:
    for options, expected in (
        ({"topic": "SparkNowhere"}, "option topic: there is no topic SparkNowhere"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"schema": "body int"}, "column body: int is not possible"),
        ({"readFrom": "files", "storePath": "/nowhere"}, "option storePath='/nowhere'"),
    ):
        given: dict[str, Any] = {"topic": "SparkOrders", **options}
        text = refusal(lambda given=given: reading(spark, cluster, **given).collect())
        assert expected in text


def test_the_brokers_files_have_the_same_rows(spark: Any, cluster: Cluster, orders: list) -> None:
    (log,) = Path(cluster.data).glob("*/commitlog")
    options = {"readFrom": "files", "storePath": str(log.parent), "minPartitions": 3}
    expected = reading(spark, cluster, "SparkOrders").collect()
    assert sorted(reading(spark, cluster, "SparkOrders", **options).collect()) == sorted(expected)


# Streams.


def run_stream(frame: Any, folder: Path, **options: str) -> Any:
    """Read what is there, into Parquet."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return query


def test_a_stream_goes_on_where_it_was_and_shows_its_progress(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send([Message("SparkStream", b"%d" % number) for number in range(50)])

    def frame() -> Any:
        return streaming(
            spark, cluster, "SparkStream", startingOffsets="earliest", group="spark-stream",
            maxMessagesPerTrigger=20,
        )  # fmt: skip

    query = run_stream(frame(), tmp_path)
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sum(sizes) == 50
    assert max(sizes) <= 20
    lag = json.loads(cluster.cli("lag", "spark-stream", "--json"))
    assert lag_of(lag) == 0, "seen by the tools as any group is"
    cluster.send([Message("SparkStream", b"%d" % number) for number in range(50, 60)])
    assert lag_of(json.loads(cluster.cli("lag", "spark-stream", "--json"))) == 10
    run_stream(frame(), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(60))


def lag_of(rows: list[dict[str, int]]) -> int:
    return sum(row["lag"] for row in rows)


def test_a_checkpoint_of_another_topic_is_refused(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send([Message("SparkOne", b"1"), Message("SparkTwo", b"2")])
    run_stream(streaming(spark, cluster, "SparkOne", startingOffsets="earliest"), tmp_path)
    text = refusal(lambda: run_stream(streaming(spark, cluster, "SparkTwo"), tmp_path))
    assert "SparkOne" in text


def test_a_running_stream_survives_the_death_of_the_broker(
    spark: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("mortal"))
    cluster.start()
    try:
        cluster.send([Message("SparkMortal", b"%d" % number) for number in range(40)])
        query = (
            streaming(
                spark, cluster, "SparkMortal", startingOffsets="earliest", maxMessagesPerTrigger=5
            )
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            while not query.recentProgress:
                time.sleep(0.05)
            cluster.kill()
            time.sleep(0.5)
            cluster.start()
            cluster.send([Message("SparkMortal", b"%d" % number) for number in range(40, 60)])
            query.processAllAvailable()
        finally:
            query.stop()
        rows = spark.read.parquet(str(tmp_path / "rows")).collect()
        assert sorted(int(bytes(row.body)) for row in rows) == list(range(60))
    finally:
        cluster.stop()


def test_services_consume_while_spark_reads(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    half = [Message("SparkBoth", b"%d" % number) for number in range(50)]
    cluster.send(half)
    query = (
        streaming(spark, cluster, "SparkBoth", startingOffsets="earliest")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0.1 seconds")
        .start()
    )
    try:
        while not any(progress.numInputRows for progress in query.recentProgress):
            time.sleep(0.05)
        # The producer goes on, as before, and a service comes: none knows of the others.
        rest = [Message("SparkBoth", b"%d" % number) for number in range(50, 100)]
        sender = threading.Thread(target=cluster.send, args=(rest,))
        sender.start()
        messages = cluster.consume("SparkBoth", 100, "service")
        sender.join()
        assert query.isActive
        query.processAllAvailable()
    finally:
        query.stop()
    assert {message.body for message in messages} == {message.body for message in [*half, *rest]}
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(m.body for m in messages)


# Writing.


def writing(frame: Any, cluster: Cluster, topic: str | None = None, **options: object) -> None:
    writer = frame.write.format("skylark").option("namesrv", cluster.address).mode("append")
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def test_rows_become_messages(spark: Any, cluster: Cluster) -> None:
    frame = spark.createDataFrame(
        [(b"%d" % number, "T", [f"k{number}", "all"], {"n": str(number)}) for number in range(100)],
        "body binary, tag string, keys array<string>, properties map<string,string>",
    )
    writing(frame, cluster, "SparkWritten", batchBytes="2k")
    messages = cluster.consume("SparkWritten", 100, "written")
    assert sorted(int(message.body) for message in messages) == list(range(100))
    for message in messages:
        assert message.tag == "T"
        assert message.keys == (f"k{int(message.body)}", "all")
        assert message.properties["n"] == message.body.decode()
    assert len({message.message_id for message in messages}) == 100
    found = cluster.cli("message", "find", "SparkWritten", "k7", "--json")
    assert len(json.loads(found)) == 1


def test_rows_with_one_sharding_key_stay_in_order(spark: Any, cluster: Cluster) -> None:
    rows = [(f"{number % 7}:{number}", f"key-{number % 7}") for number in range(210)]
    frame = spark.createDataFrame(rows, "body string, sharding_key string").coalesce(1)
    writing(frame, cluster, "SparkSharded", batchBytes="500")
    found = reading(spark, cluster, "SparkSharded").collect()
    queues: dict[str, set[int]] = {}
    order: dict[str, list[tuple[int, int]]] = {}
    for row in found:
        key, _, number = bytes(row.body).decode().partition(":")
        queues.setdefault(key, set()).add(row.queue_id)
        order.setdefault(key, []).append((row.queue_offset, int(number)))
    assert all(len(found) == 1 for found in queues.values())
    for pairs in order.values():
        numbers = [number for _, number in sorted(pairs)]
        assert numbers == sorted(numbers)
    assert len(found) == 210


def test_a_row_says_itself_where_it_goes(spark: Any, cluster: Cluster) -> None:
    frame = spark.createDataFrame(
        [("a", "SparkHere", 0), ("b", "SparkThere", 3), ("c", None, 1)],
        "body string, topic string, queue_id int",
    )
    writing(frame, cluster, "SparkElsewhere")
    found = reading(spark, cluster, "SparkHere,SparkThere,SparkElsewhere").collect()
    assert {(row.topic, row.queue_id, bytes(row.body)) for row in found} == {
        ("SparkHere", 0, b"a"),
        ("SparkThere", 3, b"b"),
        ("SparkElsewhere", 1, b"c"),
    }


def test_a_row_can_wait_for_its_time(spark: Any, cluster: Cluster) -> None:
    writing(spark.sql("select 'late' as body, 1 as delay_level"), cluster, "SparkLate")
    (message,) = cluster.consume("SparkLate", 1, "late")
    assert message.body == b"late"
    assert message.stored_at_ms - message.born_at_ms >= 1_000


def test_rows_that_cannot_be_sent_are_refused(spark: Any, cluster: Cluster) -> None:
    for query, expected in (
        ("select 1 as body", "column body: int cannot be written"),
        ("select cast(null as string) as body", "column body: a row has null"),
    ):
        frame = spark.sql(query)
        assert expected in refusal(lambda frame=frame: writing(frame, cluster, "SparkBad"))


def test_a_topic_is_not_overwritten(spark: Any, cluster: Cluster) -> None:
    frame = spark.sql("select 'x' as body")
    writer = frame.write.format("skylark").option("namesrv", cluster.address)
    text = refusal(writer.option("topic", "SparkOver").mode("overwrite").save)
    assert "append" in text
    assert "option topic is needed" in refusal(lambda: writing(frame, cluster))


def test_a_stream_goes_from_topic_to_topic(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    cluster.send([Message("SparkFrom", b"%d" % number, tag="T") for number in range(60)])
    frame = streaming(
        spark, cluster, "SparkFrom", startingOffsets="earliest", maxMessagesPerTrigger=25
    )
    query = (
        frame.selectExpr("concat(cast(body as string), '!') as body", "tag", "keys")
        .writeStream.format("skylark")
        .option("namesrv", cluster.address)
        .option("topic", "SparkTo")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    messages = cluster.consume("SparkTo", 60, "to")
    assert sorted(int(message.body[:-1]) for message in messages) == list(range(60))
    assert {message.tag for message in messages} == {"T"}


def test_what_messages_name_is_data(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Files, classes, addresses and options in messages: they arrive, and nobody follows them."""
    secret, elsewhere = tmp_path / "secret", tmp_path / "written"
    secret.write_text("hidden")
    named = {
        "path": str(secret),
        "checkpointLocation": str(elsewhere),
        "schema": "body binary, hidden string",
        "class": "java.lang.Runtime",
        "namesrv": "127.0.0.1:1",
        "topic": "SparkStolen",
        "HOME": "${env:HOME}",
    }
    cluster.send([Message("SparkNames", json.dumps(named).encode(), properties=named)])
    frame = streaming(
        spark, cluster, "SparkNames", startingOffsets="earliest", bodyFormat="text"
    ).select("body", user_properties().alias("properties"))
    writer = (
        frame.writeStream.format("skylark")
        .option("namesrv", cluster.address)
        .option("topic", "SparkNamesTo")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = writer.start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    (message,) = cluster.consume("SparkNamesTo", 1, "names")
    assert json.loads(message.body) == named
    assert {key: message.properties[key] for key in named} == named
    assert not elsewhere.exists()
    columns = ", ".join(f"{name} string" for name in named)
    (row,) = reading(spark, cluster, "SparkNames", bodyFormat="json", bodySchema=columns).collect()
    assert row.body.asDict() == named
    assert "SparkStolen" not in cluster.cli("topic", "list")


def test_a_mirror_of_a_mirror_does_not_go_round(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send([Message("SparkThither", b"%d" % number) for number in range(8)])
    port = cluster.address.rpartition(":")[2]

    def copy(name: str, topic: str, as_topic: str, **more: Any) -> None:
        query = mirror(
            spark, topic, namesrv=cluster.address, to=f"localhost:{port}", as_topic=as_topic,
            checkpoint=str(tmp_path / name), group=f"mirror-{name}", once=True, **more,
        )  # fmt: skip
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    assert "cannot be copied to itself" in refusal(lambda: copy("self", "SparkThither", ""))
    copy("thither", "SparkThither", "SparkHither")
    copy("hither", "SparkHither", "SparkThither")
    copy("on", "SparkHither", "SparkBeyond", chain=True)
    found = reading(spark, cluster, "SparkThither,SparkHither,SparkBeyond").collect()
    by_topic = {
        topic: sorted((row.queue_id, bytes(row.body)) for row in found if row.topic == topic)
        for topic in ("SparkThither", "SparkHither", "SparkBeyond")
    }
    assert len(by_topic["SparkThither"]) == 8
    assert by_topic["SparkHither"] == by_topic["SparkBeyond"] == by_topic["SparkThither"]


def test_an_ordered_change_stream_replays_to_its_source(spark: Any, cluster: Cluster) -> None:
    # Changes of one row go to one queue, so that the last of them wins, whatever the others do.
    changes = []
    table: dict[int, int] = {}
    for number in range(300):
        row, value = (number * 7) % 13, number
        if number % 11 == 0 and row in table:
            del table[row]
            changes.append((row, None))
        else:
            table[row] = value
            changes.append((row, value))

    async def ship() -> None:
        async with skylark.connect(cluster.address) as mq, mq.producer("cdc") as producer:
            for row, value in changes:
                body = json.dumps({"row": row, "value": value}).encode()
                await producer.send(Message("SparkChanges", body), key=str(row))

    asyncio.run(ship())
    reading(
        spark, cluster, "SparkChanges", bodyFormat="json", bodySchema="row int, value int"
    ).createOrReplaceTempView("changes")
    rows = spark.sql(
        "select row, value from (select body.row, body.value, row_number() over (partition by "
        "body.row order by queue_offset desc) as place from changes) where place = 1 and value is "
        "not null"
    ).collect()
    assert {row.row: row.value for row in rows} == table
