"""A table of SQLite, followed by a table in a lake, change by change.

    skylark up
    python examples/pipelines/cdc/cdc_demo.py

Needs the extra `spark`. The shipper is made to forget where it was, so that every change comes
twice, old ones after new ones; the table is equal to its source all the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

import change_log

from skylark.spark.changes import ChangeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "CustomerChanges"
CITIES = ("Shanghai", "Berlin", "Lagos", "Lima")


def change_some(database: sqlite3.Connection, rng: random.Random, count: int) -> None:
    """New customers, some who move, some who leave."""
    for _ in range(count):
        known = [row[0] for row in database.execute("select id from customers")]
        chance = rng.random()
        if chance < 0.5 or not known:
            name = f"customer {rng.randrange(1_000_000)}"
            row = (name, rng.choice(CITIES))
            database.execute("insert into customers (name, city) values (?, ?)", row)
        elif chance < 0.85:
            row = (rng.choice(CITIES), rng.choice(known))
            database.execute("update customers set city = ? where id = ?", row)
        else:
            database.execute("delete from customers where id = ?", (rng.choice(known),))
        database.commit()


def follow(table: ChangeTable, spark: SparkSession, address: str) -> None:
    """Apply what is there now."""
    query = table.follow(spark, TOPIC, namesrv=address, group="customer-lake", once=True)
    query.awaitTermination()


def run(
    spark: SparkSession,
    address: str,
    folder: Path,
    *,
    seed: int = 7,
    catch_up: Callable[[ChangeTable, SparkSession, str], None] = follow,
) -> None:
    """Follow a table through two rounds of changes."""
    database = change_log.create(str(folder / "shop.db"))
    table = ChangeTable(folder / "customers", key="id", columns=change_log.COLUMNS)
    rng = random.Random(seed)
    for _ in range(2):
        change_some(database, rng, 150)
        shipped = asyncio.run(change_log.ship(database, address, TOPIC))
        catch_up(table, spark, address)
        ours = sorted(tuple(row) for row in table.read(spark).collect())
        theirs = sorted(database.execute("select id, name, city from customers"))
        print(f"{shipped} changes shipped: {len(theirs)} customers there, {len(ours)} here")
        if ours != theirs:
            raise SystemExit("the tables differ")
        database.execute("update shipped set seq = 0")  # As a shipper from an old backup does.
        database.commit()
    database.close()
    print("both tables are the same, though every change came twice")


def main() -> None:
    from skylark.spark import session

    address = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    spark = session("cdc demo")
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as name:
        run(spark, address, Path(name))
    spark.stop()


if __name__ == "__main__":
    main()
