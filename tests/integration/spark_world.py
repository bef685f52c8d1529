"""What the Spark tests share: a cluster that can be killed and started again, and one session."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from broker_ports import free_port

import skylark
from skylark.model.message import Message
from skylark.spark import java_environment, python_environment
from skylark.spark.sessions import DEFAULTS

# Spark's own Python leaves sockets to the collector; none of that is ours.
SPARKS_WARNINGS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SETTINGS = {
    **DEFAULTS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A short life: the quick compiler and the plain collector start sooner.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def start_spark(
    warehouse: Path, master: str = "local[2,3]", settings: Mapping[str, str] | None = None
) -> Any:
    """A session as a user makes it: nobody registers our format."""
    os.environ.update(java_environment(os.environ))
    os.environ.update(python_environment({}, master=master))
    # The JVM outlives a session, and its workers import the faults by name: with the first already.
    here, more = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    if here not in more.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{more}" if more else here
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("tests").master(master)
    builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Cluster:
    """`skylark up` as a process of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._ports = free_port(), free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """The name server's."""
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """Start it and wait until it serves."""
        namesrv, broker = self._ports
        self._process = subprocess.Popen(
            [sys.executable, "-m", "skylark.cli", "up", "--data", str(self.data), "--no-console",
             "--namesrv-port", str(namesrv), "--broker-port", str(broker), "--log-dir", "-",
             "--set", "mappedFileSizeCommitLog=16777216", "--set", "diskSpaceAmpleBytes=1048576",
             "--set", "maxIndexNum=20000", "--set", "maxHashSlotNum=5000",
             "--set", "enablePropertyFilter=true"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "HOME": str(self.data)},
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("skylark is up"), line

    def kill(self) -> None:
        """As kill -9 does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> int:
        """As an operator does; its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages, those of one topic in order."""

        async def main() -> None:
            async with skylark.connect(self.address) as mq, mq.producer("tests") as producer:
                for message in messages:
                    await producer.send(message)

        asyncio.run(main())

    def send_to_queue(self, topic: str, queue_id: int, bodies: Sequence[bytes]) -> None:
        """Send bodies to one queue, in order."""

        async def main() -> None:
            async with skylark.connect(self.address) as mq, mq.producer("tests") as producer:
                queues = await producer.fetch_queues(topic)
                (queue,) = [one for one in queues if one.queue_id == queue_id]
                for body in bodies:
                    await producer.send(Message(topic, body), queue=queue)

        asyncio.run(main())

    def consume(self, topic: str, count: int, group: str) -> list[Any]:
        """What a consumer of ours gets: all messages of a topic, from the first."""

        async def main() -> list[Any]:
            found: list[Any] = []
            async with (
                skylark.connect(self.address) as mq,
                mq.consumer(group, {topic: "*"}, consume_from="first") as consumer,
            ):
                async with asyncio.timeout(60):
                    async for message in consumer:
                        found.append(message)
                        if len(found) == count:
                            break
            return found

        return asyncio.run(main())

    def cli(self, *words: str) -> str:
        """What one of our commands prints."""
        done = subprocess.run(
            [sys.executable, "-m", "skylark.cli", *words],
            env={**os.environ, "NAMESRV_ADDR": self.address},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout
