"""Topics as tables, in a minute: a stream over live traffic, an archive, and SQL across both.

    python examples/pipeline_demo.py

`skylark up` runs as a process of its own on free ports, with its files in a temporary directory;
Spark runs here, on two cores. Needs the extra `spark`.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import skylark
from skylark import Message
from skylark.spark import archive, session

TOPIC = "OrderTopic"
READY = "skylark is up: name server "
ORDERS = 3_000
CITIES = ("Shanghai", "Berlin", "Lagos", "Lima")


async def send_orders(name_server: str, first: int, count: int) -> None:
    """Orders as a shop would send them."""
    rng = random.Random(first)
    async with skylark.connect(name_server) as mq, mq.producer("shop") as producer:
        for start in range(first, first + count, 500):
            async with asyncio.TaskGroup() as group:
                for number in range(start, min(start + 500, first + count)):
                    order = {"id": number, "city": rng.choice(CITIES), "cents": number % 97 * 10}
                    body = json.dumps(order).encode()
                    message = Message(TOPIC, body, tag="Paid", keys=[f"o-{number}"])
                    group.create_task(producer.send(message))


def run(directory: Path, name_server: str) -> None:
    """The three things."""
    print(f"1. {ORDERS:,} orders are sent")
    asyncio.run(send_orders(name_server, 0, ORDERS))

    print("2. a stream reads them and keeps a table up to date")
    spark = session("pipeline demo", java_log=directory / "java.log")
    spark.sparkContext.setLogLevel("OFF")
    orders = (
        spark.readStream.format("skylark")
        .option("namesrv", name_server)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("group", "dashboard")
        .option("bodyFormat", "json")
        .option("bodySchema", "id long, city string, cents long")
        .load()
    )
    query = (
        orders.groupBy("body.city")
        .agg({"*": "count", "body.cents": "sum"})
        .withColumnsRenamed({"count(1)": "orders", "sum(body.cents AS cents)": "cents"})
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("by_city")
        .option("checkpointLocation", str(directory / "dashboard"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    table = spark.sql("select * from by_city order by city")
    table.show()
    counted = sum(row["orders"] for row in table.collect())
    if counted != ORDERS:
        raise SystemExit(f"{counted} orders were counted, {ORDERS} were sent")

    print("3. the topic is archived as Parquet; then more orders come")
    lake = directory / "lake"
    archive.archive(spark, lake, [TOPIC], namesrv=name_server, once=True).awaitTermination()
    for row in archive.status(lake):
        print(f"   {row['topic']}: {row['rows']:,} messages, Parquet files: {row['files']}")
    asyncio.run(send_orders(name_server, ORDERS, 500))

    print("4. SQL over archive and live log, as one table")
    text = "select count(*) as messages, count(distinct keys) as orders from OrderTopic"
    found = archive.sql(spark, text, [TOPIC], namesrv=name_server, root=lake)
    found.show()
    row = found.first()
    spark.stop()
    if row is None or tuple(row) != (ORDERS + 500, ORDERS + 500):
        raise SystemExit(f"{row} is not what was sent")
    print(f"   {ORDERS + 500:,} orders, none missing and none twice")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        flags = ["--data", f"{name}/store", "--namesrv-port", "0", "--broker-port", "0"]
        flags += ["--no-console", "--set", f"mappedFileSizeCommitLog={64 << 20}"]
        server = subprocess.Popen(  # noqa: S603, our own command
            [sys.executable, "-m", "skylark.cli", "up", *flags], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline().strip()
            if not line.startswith(READY):
                raise SystemExit(f"the servers did not start: {line or 'they say why above'}")
            run(Path(name), line.removeprefix(READY).partition(",")[0])
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


if __name__ == "__main__":
    main()
