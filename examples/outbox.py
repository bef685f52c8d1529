"""Lose nothing when no broker can be reached: keep it in a table, and send it later.

    python examples/outbox.py

The client does not do this by itself, and for three reasons: it has no database of its own, and one
that is broken would take the program with it; it is stateless, so that it can be replaced at any
time; and only the application knows what may be sent late, and what is better not sent at all.
"""

import asyncio
import os
import sqlite3

import skylark
from skylark import Message
from skylark.errors import SkylarkError

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class Outbox:
    """Messages that could not be sent yet."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute("create table if not exists outbox (id integer primary key, body blob)")

    def __len__(self) -> int:
        return int(self._database.execute("select count(*) from outbox").fetchone()[0])

    def add(self, body: bytes) -> None:
        with self._database:
            self._database.execute("insert into outbox (body) values (?)", (body,))

    async def drain(self, producer: skylark.Producer, topic: str) -> int:
        """Send what is there, oldest first; a row goes only when its message is stored."""
        sent = 0
        for number, body in self._database.execute("select id, body from outbox order by id"):
            try:
                await producer.send(Message(topic, body))
            except SkylarkError:
                break  # Next time; the rest stays in order.
            with self._database:
                self._database.execute("delete from outbox where id = ?", (number,))
            sent += 1
        return sent


async def place_order(producer: skylark.Producer, outbox: Outbox, body: bytes) -> None:
    """Send an order, or keep it: the customer is served in any case."""
    try:
        await producer.send(Message("OutboxTopic", body), timeout_ms=500)
    except SkylarkError as error:
        print(f"kept for later: {type(error).__name__}")
        outbox.add(body)


async def main() -> None:
    outbox = Outbox(sqlite3.connect(":memory:"))
    nobody = "127.0.0.1:1"
    async with skylark.connect(nobody) as mq, mq.producer("shop") as producer:
        for number in range(3):
            await place_order(producer, outbox, b"order %d" % number)
    print(f"{len(outbox)} in the outbox")
    async with skylark.connect(ADDRESS) as mq, mq.producer("shop") as producer:
        print(f"{await outbox.drain(producer, 'OutboxTopic')} sent, {len(outbox)} left")


if __name__ == "__main__":
    asyncio.run(main())
