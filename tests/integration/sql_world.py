"""Messages together with rows, over any database: the steps at which a producer is killed."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sql_producer import ORDERS
from sqlalchemy import create_engine, select

import skylark.sync
from skylark.sql import marker_table

HERE = pathlib.Path(__file__).parent
GROUP = "shop"
# After which step the producer dies, and whether the message must then be seen.
STEPS = {"half": False, "rows": False, "marker": False, "commit": True, "end": True}
OTHERS = {"raise": False, "none": True}
PATIENCE_MS = 500


class SqlWorld:
    """A broker, a database, producers that die, and a resolver."""

    def __init__(self, address: str, url: str, async_url: str) -> None:
        self.address = address
        self.urls = {"sync": url, "async": async_url}
        self.engine = create_engine(url)
        ORDERS.metadata.drop_all(self.engine)
        ORDERS.metadata.create_all(self.engine)
        self.markers = marker_table(ORDERS.metadata)
        ORDERS.metadata.create_all(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    def start(self, topic: str, key: str, step: str, kind: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable, HERE / "sql_producer.py", self.address, self.urls[kind], GROUP,
                topic, key, step, kind,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def produce(self, topic: str, key: str, step: str, kind: str) -> str:
        """Run one producer to its end; returns what it said last."""
        said, _ = self.start(topic, key, step, kind).communicate(timeout=60)
        return said.strip().splitlines()[-1]

    @contextmanager
    def resolver(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The resolver as the command line starts it."""
        process = subprocess.Popen(
            [
                sys.executable, "-m", "skylark.cli", "transaction", "resolver", "-n", self.address,
                "--database", self.urls["sync"], "--group", GROUP,
                "--patience", f"{PATIENCE_MS}ms", *options,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)

    def orders(self) -> set[str]:
        with self.engine.connect() as connection:
            return {row[0] for row in connection.execute(select(ORDERS.c.id))}

    def rows(self) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(self.markers)))

    def seen(self, topic: str) -> Counter[str]:
        found: Counter[str] = Counter()
        with skylark.sync.connect(self.address) as mq, mq.pull_consumer("reader") as reader:
            for queue in mq.fetch_queues(topic):
                if mq.max_offset(queue):
                    pulled = reader.pull(queue, offset=0)
                    found.update(message.body.decode() for message in pulled.messages)
        return found

    def wait_over(self, broker: Any, timeout_s: float = 60) -> None:
        """Wait until no half message is left."""
        deadline = time.monotonic() + timeout_s
        while len(broker.pending()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert broker.pending() == []

    def let_go(self, process: subprocess.Popen[str]) -> str:
        """Let a producer go on that waits; returns what it says then."""
        said, _ = process.communicate("\n", timeout=60)
        return said.strip()

    def judge(self, topic: str, expected: dict[str, bool]) -> None:
        """Each row has its message, once, and no message is without its row."""
        there = {key for key, is_there in expected.items() if is_there}
        assert {key for key in self.orders() if key in expected} == there
        assert self.seen(topic) == Counter(dict.fromkeys(there, 1))


class PendingAt:
    """Asks a broker what is not over."""

    def __init__(self, address: str) -> None:
        self.address = address

    def pending(self) -> list[str]:
        import asyncio

        from skylark.admin import connect

        async def ask() -> list[str]:
            async with connect(self.address) as admin:
                return [row.transaction_id or "" for row in await admin.transactions()]

        return asyncio.run(ask())
