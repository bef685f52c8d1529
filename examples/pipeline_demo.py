"""Topics as tables, in half a minute: a stream over live traffic, an archive, SQL on both.

    python examples/pipeline_demo.py

A shop sends orders and keeps an account of them, with which every result is compared. `skylark up`
runs as a process of its own on free ports, with its files in a temporary directory; Spark runs
here, on two cores. Needs the extra `spark`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import skylark
from skylark import Message
from skylark.errors import SkylarkError
from skylark.spark import archive, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "OrderTopic"
READY = "skylark is up: name server "
CITIES = ("Berlin", "Lagos", "Lima", "Shanghai")
EARLY, AT_ONCE, LATE = 1_000, 100, 500  # Orders: before the stream, ten times a second, at the end.
CHANGES = 3  # So often the table is seen to change while orders come.
PATIENCE_S = 120


class Failed(Exception):
    """Something that the demo promises did not happen."""


class Shop:
    """Sends orders, and keeps an account of those that are stored."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._rng = random.Random(1)
        self._closes = threading.Event()
        self.sold = 0
        self.orders = dict.fromkeys(CITIES, 0)
        self.cents = dict.fromkeys(CITIES, 0)

    async def sell(self, count: int) -> None:
        """Send so many orders at once."""
        async with skylark.connect(self._name_server) as mq, mq.producer("shop") as producer:
            await self._send(producer, count)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Send orders all the time, in the background, until the block ends."""
        with ThreadPoolExecutor(1) as pool:
            selling = pool.submit(asyncio.run, self._sell_until_closing())
            try:
                yield
            finally:
                self._closes.set()
            selling.result()

    async def _sell_until_closing(self) -> None:
        async with skylark.connect(self._name_server) as mq, mq.producer("shop") as producer:
            while not self._closes.is_set():
                await self._send(producer, AT_ONCE)
                await asyncio.sleep(0.1)

    async def _send(self, producer: skylark.Producer, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.sold, self.sold + count):
                city, cents = self._rng.choice(CITIES), number % 97 * 10
                body = json.dumps({"city": city, "cents": cents}).encode()
                message = Message(TOPIC, body, tag="Paid", keys=[f"o-{number}"])
                group.create_task(producer.send(message))
                self.orders[city] += 1
                self.cents[city] += cents
        self.sold += count


def require_same(found: DataFrame, shop: Shop) -> None:
    """Show a table of the orders by city, which has to be what the shop has noted."""
    rows = [tuple(row) for row in found.select("city", "orders", "cents").orderBy("city").collect()]
    for city, orders, cents in rows:
        print(f"   {orders:>6,} orders from {city:<8} of {cents / 100:>9,.2f} in all")
    wanted = [(city, shop.orders[city], shop.cents[city]) for city in CITIES]
    if rows != wanted:
        raise Failed(f"the shop has noted {wanted}")
    print("   just what the shop has noted: none is missing, none is there twice")


def count_while_they_come(spark: SparkSession, shop: Shop, name_server: str, folder: Path) -> None:
    """A stream keeps a table up to date while orders are sent."""
    orders = (
        spark.readStream.format("skylark")
        .option("namesrv", name_server)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("group", "dashboard")
        .option("bodyFormat", "json")
        .option("bodySchema", "city string, cents long")
        .load()
    )
    query = (
        orders.selectExpr("body.city", "body.cents")
        .groupBy("city")
        .agg({"*": "count", "cents": "sum"})
        .withColumnsRenamed({"count(1)": "orders", "sum(cents)": "cents"})
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("by_city")
        .option("checkpointLocation", str(folder))
        .start()
    )
    counted = 0

    def wait_for_more() -> int:
        deadline = time.monotonic() + PATIENCE_S
        while (now := sum(row.orders for row in spark.table("by_city").collect())) == counted:
            if not query.isActive or time.monotonic() > deadline:
                raise Failed(f"{counted:,} of {shop.sold:,} orders: {query.exception() or 'stuck'}")
            time.sleep(0.3)
        return now

    with shop.open():
        for _ in range(CHANGES):
            counted = wait_for_more()
            print(f"   {counted:>6,} orders counted, and more come")
    while counted < shop.sold:
        counted = wait_for_more()
    print(f"   {counted:>6,} orders counted, and that is all: the shop has closed")
    query.stop()
    require_same(spark.table("by_city"), shop)


def ask_archive_and_log(spark: SparkSession, shop: Shop, name_server: str, lake: Path) -> None:
    """What was sent before the archive is in its files, what was sent after it in the log."""
    print("4. The topic is archived as Parquet; then more orders come.")
    archive.archive(spark, lake, [TOPIC], namesrv=name_server, once=True).awaitTermination()
    (kept,) = archive.status(lake)
    print(f"   {kept['rows']:>6,} orders are in the archive, Parquet files: {kept['files']}")
    if kept["rows"] != shop.sold:
        raise Failed(f"{kept['rows']:,} orders are archived, {shop.sold:,} were sent")
    asyncio.run(shop.sell(LATE))
    print(f"   {LATE:>6,} orders are in the log alone")
    print("5. SQL asks both, as one table.")
    text = """
        with orders as (
            select keys, from_json(cast(body as string), 'city string, cents long') as body
            from OrderTopic
        )
        select body.city, count(distinct keys) as orders, sum(body.cents) as cents
        from orders group by body.city"""
    require_same(archive.sql(spark, text, [TOPIC], namesrv=name_server, root=lake), shop)


def run(directory: Path, name_server: str) -> None:
    """Everything that needs servers."""
    shop = Shop(name_server)
    asyncio.run(shop.sell(EARLY))
    print(f"2. A shop has sent {EARLY:,} orders to {TOPIC}; Spark starts.")
    spark = session("pipeline demo", java_log=directory / "java.log")
    spark.sparkContext.setLogLevel("OFF")
    print("3. A stream counts orders by city, while the shop sends more.")
    count_while_they_come(spark, shop, name_server, directory / "dashboard")
    ask_archive_and_log(spark, shop, name_server, directory / "lake")
    spark.stop()


def main() -> None:
    """From start to end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="skylark-demo-") as name:
        print("1. A name server and a broker start.")
        flags = ["--data", f"{name}/store", "--namesrv-port", "0", "--broker-port", "0"]
        flags += ["--no-console", "--set", f"mappedFileSizeCommitLog={64 << 20}"]
        server = subprocess.Popen(  # noqa: S603, our own command
            [sys.executable, "-m", "skylark.cli", "up", *flags], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline().strip()
            if not line.startswith(READY):
                raise Failed(f"the servers did not start: {line or 'they say why above'}")
            print(f"   {line.rpartition(', data')[0]}")
            run(Path(name), line.removeprefix(READY).partition(",")[0])
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
    print(f"Done in {time.monotonic() - began:.1f} s.")


if __name__ == "__main__":
    try:
        main()
    except (Failed, SkylarkError) as error:
        raise SystemExit(f"the demo failed: {error}") from None
