"""Topics as DataFrames, beside Spark's own Kafka source and sink, Parquet and the rate source.

    .venv/bin/python benchmarks/spark.py [--rows N] [--bytes B] [--repetitions R] [--memory-gb G]
                                         [--only skylark|kafka|parquet|rate] [--json]

    what          how
    read few      as the next one, of a thousand rows: what a job costs whatever it reads
    read 4        key columns and the body of all rows into Spark's noop sink
    read all      every column, with the map of properties (Kafka: with headers)
    stream        the same four columns, Trigger.AvailableNow
    write         the rows of a Parquet table, at least once
    write once    the same, exactly once; Kafka's sink cannot
    archive       topic to Parquet by topic and hour, exactly once
    floor         the time a micro-batch takes that has one row, in one task, median
    memory        anonymous memory of the largest Python worker while one gigabyte is read, and then
                  G of them, 10 if not said, 0 for none: what a worker holds must not grow with what
                  it reads

All contenders have the same rows, of random bytes so that nothing can be compressed, in four queues
or partitions, and share one session of two cores with their brokers. They take turns within each
repetition. CPU is that of Spark, its workers and the broker together; what counts are ratios
within one run, and for `read 4` also those beyond `read few`: what a job costs by itself, and waits
for, is no part of what a row costs. Per core is what CPU says: a contender that waits leaves cores
idle. `read 4` minus the Parquet scan is what the way from the broker costs; the scan of `read all`
is of the same columns, with the map of properties. For each it is said who spends the CPU time, and
so what dominates: Spark's JVM, its Python workers, or the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from our_broker import OurBroker  # noqa: E402
from peers import OurNameServer, run_tool  # noqa: E402

from kafka_peer import KafkaBroker, fetch_connector  # noqa: E402

QUEUES = 4
FLOOR_BATCHES = 30
FEW = 1_000  # Rows.
CONTENDERS = ("skylark", "files", "kafka", "parquet", "rate")
_TICKS = os.sysconf("SC_CLK_TCK")
_FOUR = "queue_id int, queue_offset bigint, body binary, store_time timestamp"


class Cpu(NamedTuple):
    """CPU seconds, by who spent them."""

    jvm: float
    python: float
    broker: float

    @property
    def total(self) -> float:
        return sum(self)

    def since(self, before: Cpu) -> Cpu:
        return Cpu(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass
class Row:
    """One measurement of one contender."""

    what: str
    who: str
    seconds: list[float]
    cpu: list[Cpu]
    rows: int

    @property
    def rate(self) -> float:
        return self.rows / statistics.median(self.seconds)

    def rate_beyond(self, other: Row) -> float:
        """Rows a second of those that this one has more, in the time that it takes more."""
        more_s = statistics.median(self.seconds) - statistics.median(other.seconds)
        return (self.rows - other.rows) / max(more_s, 1e-3)

    @property
    def cpu_per_million(self) -> float:
        return statistics.median(one.total for one in self.cpu) / self.rows * 1e6

    @property
    def shares(self) -> str:
        """Who spends the CPU time, the most first."""
        parts = {name: sum(getattr(one, name) for one in self.cpu) for name in Cpu._fields}
        whole = sum(value for value in parts.values() if value > 0) or 1.0
        ordered = sorted(parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {value / whole:.0%}" for name, value in ordered if value > 0)


def children_of(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = task.read_text().split()
        except OSError:
            continue
        for child in found:
            yield from children_of(int(child))


def cpu_of(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of all below it, those that have ended with them."""
    own = below = 0
    for one in children_of(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if one == pid:
            own += sum(map(int, fields[11:13]))
            below += sum(map(int, fields[13:15]))
        else:
            below += sum(map(int, fields[11:15]))
    return own / _TICKS, below / _TICKS


def largest_below(pid: int) -> int:
    """Anonymous memory of the largest Python process below a process, in bytes."""
    largest = 0
    for one in children_of(pid):
        try:
            if one == pid or "java" in os.readlink(f"/proc/{one}/exe"):
                continue
            status = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                largest = max(largest, int(line.split()[1]) << 10)
    return largest


class World:
    """The session, the brokers, the rows."""

    def __init__(self, stack: ExitStack, folder: Path, options: argparse.Namespace) -> None:
        from skylark.spark import session

        self.folder = folder
        self.rows: int = options.rows
        self.bytes: int = options.bytes
        self.has_kafka = options.only in (None, "kafka")
        settings = {"spark.driver.memory": "3g", "spark.driver.host": "127.0.0.1"}
        if self.has_kafka:
            settings["spark.jars"] = ",".join(map(str, fetch_connector()))
        server = stack.enter_context(OurNameServer(folder / "namesrv"))
        self.namesrv = server.address
        self.broker = stack.enter_context(
            OurBroker(
                folder / "broker",
                name="broker-a",
                name_servers=[server.address],
                settings={
                    "mappedFileSizeCommitLog": str(1 << 30),
                    "mappedFileSizeConsumeQueue": "6000000",
                    "maxIndexNum": "20000000",
                    "maxHashSlotNum": "5000000",
                    "flushDiskType": "ASYNC_FLUSH",
                },
            )
        )
        self.kafka = None
        if self.has_kafka:
            self.kafka = stack.enter_context(KafkaBroker(folder / "kafka", partitions=QUEUES))
        self.spark: Any = session("benchmark", settings=settings)
        stack.callback(self.spark.stop)
        self.spark.sparkContext.setLogLevel("OFF")
        self.jvm = int(self.spark._jvm.java.lang.ProcessHandle.current().pid())
        self.parquet = str(folder / "rows.parquet")
        self.parquet_few = str(folder / "few.parquet")
        self.parquet_all = str(folder / "messages.parquet")

    def make_topic(self, topic: str) -> None:
        run_tool(
            str(Path(sys.executable).parent / "skylark"), "topic", "create", topic,
            "--namesrv", self.namesrv, "--read", str(QUEUES), "--write", str(QUEUES),
        )  # fmt: skip

    def fill(self) -> None:
        """The rows, as a Parquet table, and in the topic that is read by each."""
        size = self.bytes

        def bodies(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                count = batch.num_rows
                data = pa.py_buffer(os.urandom(count * size))
                body = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(size), count, [None, data]
                ).cast(pa.binary())
                number = batch.column(0)
                keys = number.cast(pa.string())
                queue = pa.array([n % QUEUES for n in number.to_pylist()], pa.int32())
                time_us = pa.array([0] * count, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
                yield pa.RecordBatch.from_arrays(
                    [queue, number, body, time_us, keys],
                    names=["queue_id", "queue_offset", "body", "store_time", "keys"],
                )

        made = self.spark.range(0, self.rows, 1, QUEUES).mapInArrow(bodies, f"{_FOUR}, keys string")
        made.write.parquet(self.parquet)
        few = self.spark.read.parquet(self.parquet).limit(FEW)
        few.repartition(QUEUES).write.parquet(self.parquet_few)
        for topic, table in (("rows", self.parquet), ("few", self.parquet_few)):
            self.make_topic(topic)
            self.write("skylark", topic, table=table)
            if self.kafka is not None:
                self.write("kafka", topic, table=table)
        self.source("skylark").load().write.parquet(self.parquet_all)

    # What is measured.

    def source(
        self, who: str, topic: str = "rows", *, is_stream: bool = False, assign: str | None = None
    ) -> Any:
        reader = self.spark.readStream if is_stream else self.spark.read
        if who in ("skylark", "files"):
            found = reader.format("skylark").option("namesrv", self.namesrv).option("topic", topic)
            if who == "files":
                found = found.option("storePath", str(self.folder / "broker" / "store"))
                found = found.option("readFrom", "files")
            return found.option("startingOffsets", "earliest")
        if who == "kafka":
            assert self.kafka is not None
            return (
                reader.format("kafka")
                .option("kafka.bootstrap.servers", self.kafka.address)
                .option("assign" if assign else "subscribe", assign or topic)
                .option("startingOffsets", "earliest")
            )
        return reader.format("parquet")

    def read_few(self, who: str) -> None:
        self.read_four(who, "few", self.parquet_few)

    def read_four(self, who: str, topic: str = "rows", table: str | None = None) -> None:
        if who == "parquet":
            frame = self.spark.read.parquet(table or self.parquet).drop("keys")
        elif who == "kafka":
            frame = self.source(who, topic).load()
            frame = frame.select("partition", "offset", "value", "timestamp")
        else:
            frame = self.source(who, topic).schema(_FOUR).load()
        frame.write.format("noop").mode("overwrite").save()

    def read_all(self, who: str) -> None:
        if who == "parquet":
            frame = self.spark.read.parquet(self.parquet_all)
        elif who == "kafka":
            frame = self.source(who).option("includeHeaders", "true").load()
        else:
            frame = self.source(who).load()
        frame.write.format("noop").mode("overwrite").save()

    def stream(self, who: str) -> None:
        if who == "rate":
            frame = (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", self.rows)
                .option("numPartitions", QUEUES)
                .load()
            )
        elif who == "parquet":
            frame = self.spark.readStream.schema(_FOUR).parquet(self.parquet)
        elif who == "kafka":
            frame = self.source(who, is_stream=True).load()
            frame = frame.select("partition", "offset", "value", "timestamp")
        else:
            frame = self.source(who, is_stream=True).schema(_FOUR).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = query.trigger(once=True) if who == "rate" else query.trigger(availableNow=True)
            query.start().awaitTermination()

    def write(
        self, who: str, topic: str, guarantee: str = "at_least_once", *, table: str | None = None
    ) -> None:
        rows = self.spark.read.parquet(table or self.parquet)
        if who == "parquet":
            rows.write.mode("overwrite").parquet(str(self.folder / "copy.parquet"))
        elif who == "kafka":
            assert self.kafka is not None
            rows.selectExpr("keys as key", "body as value").write.format("kafka").option(
                "kafka.bootstrap.servers", self.kafka.address
            ).option("topic", topic).save()
        else:
            rows.select("body", "keys").write.format("skylark").option(
                "namesrv", self.namesrv
            ).option("topic", topic).option("deliveryGuarantee", guarantee).mode("append").save()

    def archive(self, who: str) -> None:
        from skylark.spark.archive import archive

        root = self.folder / "archive"
        shutil.rmtree(root, ignore_errors=True)
        query = archive(
            self.spark, root, ["rows"], namesrv=self.namesrv, once=True,
            group=f"archive-{time.monotonic_ns()}",
        )  # fmt: skip
        query.awaitTermination()

    def cpu(self, who: str) -> Cpu:
        """What has been spent for a contender so far."""
        brokers = {"skylark": self.broker, "files": self.broker, "kafka": self.kafka}
        broker = brokers.get(who)
        return Cpu(*cpu_of(self.jvm), 0.0 if broker is None else sum(cpu_of(broker.pid)))

    def floor(self, who: str) -> float:
        """Milliseconds of a micro-batch with one row, from its trigger to its end."""
        if who == "rate":
            frame = (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", 1)
                .option("numPartitions", 1)
                .load()
            )
        elif who == "kafka":
            # Of several partitions it takes a row each, however few are allowed.
            frame = self.source(who, is_stream=True, assign='{"rows": [0]}')
            frame = frame.option("maxOffsetsPerTrigger", 1).load()
        else:
            frame = self.source(who, is_stream=True).option("maxMessagesPerTrigger", 1).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            )
            wanted = FLOOR_BATCHES + 10
            while query.lastProgress is None or query.lastProgress["batchId"] < wanted:
                if not query.isActive:
                    raise RuntimeError(f"the stream of {who} ended: {query.exception()}")
                time.sleep(0.05)
            done = query.recentProgress[10:]
            query.stop()
            if any(one["numInputRows"] != 1 for one in done):
                raise RuntimeError(f"{who}: a micro-batch had {done[0]['numInputRows']} rows")
            times = [one["durationMs"]["triggerExecution"] for one in done]
        return statistics.median(times)

    def fill_large(self, topic: str, gigabytes: int) -> None:
        """A topic with so many gigabytes of rows."""
        self.make_topic(topic)
        for _ in range(max(1, (gigabytes << 30) // (self.rows * self.bytes))):
            self.write("skylark", topic)

    def memory(self, topic: str) -> tuple[float, float]:
        """Read a topic; return seconds, and the most megabytes that a worker had meanwhile."""
        most, is_done = 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not is_done.wait(0.1):
                most = max(most, largest_below(self.jvm))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        self.spark.read.format("skylark").option("namesrv", self.namesrv).option(
            "topic", topic
        ).schema(_FOUR).load().write.format("noop").mode("overwrite").save()
        took = time.perf_counter() - began
        is_done.set()
        watcher.join()
        return took, most / (1 << 20)


def measure(
    world: World, what: str, run: Callable[[str], None], who: Sequence[str], repetitions: int
) -> list[Row]:
    """Let contenders take turns; the first turn of each warms up and does not count."""
    count = FEW if what == "read few" else world.rows
    rows = [Row(what, one, [], [], count) for one in who]
    for turn in range(repetitions + 1):
        for row in rows:
            cpu, began = world.cpu(row.who), time.perf_counter()
            run(row.who)
            if turn:
                row.seconds.append(time.perf_counter() - began)
                row.cpu.append(world.cpu(row.who).since(cpu))
    for row in rows:
        print(
            f"{what:<12}{row.who:<10}{row.rate / 1000:>9.1f} k rows/s"
            f"  [{min(row.seconds):.2f}-{max(row.seconds):.2f} s]"
            f"{row.cpu_per_million:>9.2f} CPU s/M: {row.shares}",
            flush=True,
        )
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--bytes", type=int, default=1_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory-gb", type=int, default=10)
    parser.add_argument("--only", choices=CONTENDERS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def chosen(*names: str) -> list[str]:
        return [name for name in names if options.only in (None, name)]

    results: list[Row] = []
    floors: dict[str, float] = {}
    memory: dict[int, dict[str, float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-bench-")))
        world = World(stack, folder, options)
        world.fill()
        writes = {"number": 0}

        def into_new_topic(guarantee: str) -> Callable[[str], None]:
            def run(who: str) -> None:
                world.write(who, topics[who, guarantee], guarantee)

            for who in ("skylark", "kafka", "parquet"):
                writes["number"] += 1
                topics[who, guarantee] = f"write-{writes['number']}"
                if who == "skylark":
                    world.make_topic(topics[who, guarantee])
            return run

        topics: dict[tuple[str, str], str] = {}
        plan: list[tuple[str, Callable[[str], None], list[str]]] = [
            ("read few", world.read_few, chosen("skylark", "files", "kafka", "parquet")),
            ("read 4", world.read_four, chosen("skylark", "files", "kafka", "parquet")),
            ("read all", world.read_all, chosen("skylark", "files", "kafka", "parquet")),
            ("stream", world.stream, chosen("skylark", "files", "kafka", "parquet", "rate")),
            ("write", into_new_topic("at_least_once"), chosen("skylark", "kafka", "parquet")),
            ("write once", into_new_topic("exactly_once"), chosen("skylark")),
            ("archive", world.archive, chosen("skylark")),
        ]
        for what, run, who in plan:
            if who:
                results += measure(world, what, run, who, options.repetitions)
        for who_ in chosen("skylark", "kafka", "rate"):
            floors[who_] = world.floor(who_)
            print(f"floor       {who_:<10}{floors[who_]:>9.0f} ms", flush=True)
        if options.memory_gb and options.only in (None, "skylark"):
            for gigabytes in sorted({1, options.memory_gb}):
                world.fill_large(f"large-{gigabytes}", gigabytes)
                took, most = world.memory(f"large-{gigabytes}")
                memory[gigabytes] = {"seconds": took, "largest_worker_mib": most}
                size = f"{gigabytes} GB"
                print(f"memory      {size} read in {took:.1f} s, largest worker {most:.0f} MiB")
    _print_ratios(results)
    if options.json:
        rows = [{**vars(r), "rate": r.rate, "cpu_per_million": r.cpu_per_million} for r in results]
        print(json.dumps({"rows": rows, "floor_ms": floors, "memory": memory}))
    return 0


def _print_ratios(results: Sequence[Row]) -> None:
    found = {(row.what, row.who): row for row in results}
    for (what, who), row in found.items():
        if who not in ("skylark", "files"):
            continue
        for peer in ("kafka", "parquet"):
            other = found.get((what, peer))
            if other is None or what == "read few":
                continue
            beyond = ""
            if what == "read 4":
                few, others = (found["read few", one] for one in (who, peer))
                times = row.rate_beyond(few) / other.rate_beyond(others)
                beyond = f", rows/s beyond those of read few {times:.2f} x"
            print(
                f"{what}: {who} / {peer}: rows/s {row.rate / other.rate:.2f} x{beyond}, "
                f"CPU {row.cpu_per_million / other.cpu_per_million:.2f} x"
            )


if __name__ == "__main__":
    raise SystemExit(main())
