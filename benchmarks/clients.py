"""Our broker beside Apache's under the official Java client, and under our own Python client.

    .venv/bin/python benchmarks/clients.py [--repetitions N] [--seconds S] [--only skylark|apache]
                                           [--flush ASYNC_FLUSH|SYNC_FLUSH] [--json]

Contenders take turns within each repetition, each on a fresh store; a figure is the median over the
repetitions, with the range behind it, and `ratio` is the median of the ratios within one. The
generators share the two cores with the broker, so rates are bounded by both; CPU is the broker's
alone.

    start       from exec to the first answered request, as shipped (Apache: its own JVM options
                for a small machine, 1 GiB of heap)
    java CxT    T threads over C connections, each with one synchronous send under way
    at 2000/s   the same client on a fixed schedule; latency counts from when a send was due
    consume     the official push consumer through a backlog
    python      our producer with 64 sends under way, and our push consumer, on uvloop; then with so
                many handlers at a time, each of which waits 2 ms: the curve of parallelism
    memory      after all that: anonymous, and resident with the mapped files
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from java_programs import JavaSession  # noqa: E402
from our_broker import OurBroker  # noqa: E402
from peers import ApacheBroker, OurNameServer, Peers, Process  # noqa: E402
from wire import Probe  # noqa: E402

import skylark  # noqa: E402
from broker import _APACHE_JAVA, cpu_seconds  # noqa: E402
from skylark import Client, Message  # noqa: E402

TOPIC = "BenchmarkTest"
SHAPES = ((1, 1), (16, 16), (64, 64), (1, 64))
SIZES = (128, 1024)
PYTHON_SENDS = 100_000
HANDLERS = (1, 8, 64, 512, 4_096)
SMALLER_IS_BETTER = ("start", "p50", "p99", "CPU", "memory")

Figures = dict[str, float]


class Generator(JavaSession):
    """The official Java client as load; see `java/Load.java` for its commands."""

    def __init__(self, peers: Peers, home: Path, name_server: str) -> None:
        super().__init__(peers, "Load", home=home)
        self._name_server = name_server

    def run(self, command: str, *words: object) -> dict[str, float]:
        """Run one command; what it measured."""
        lines = self.ask(command, self._name_server, *map(str, words), timeout_s=180)
        found: dict[str, float] = json.loads(lines[-1])
        if "error" in found or found.get("failed"):
            raise SystemExit(f"{command} {words}: {found}")
        return found


def memory_mib(pid: int) -> tuple[float, float]:
    """Anonymous and resident memory of a process."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


def make_broker(
    kind: str, peers: Peers, folder: Path, name_server: str, flush: str
) -> OurBroker | ApacheBroker:
    settings = {
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": str(1 << 30),
        "mappedFileSizeConsumeQueue": "6000000",
        "maxIndexNum": "20000000",
        "maxHashSlotNum": "5000000",
        "defaultTopicQueueNums": "8",
    }
    if kind == "skylark":
        return OurBroker(folder, name="broker-a", name_servers=[name_server], settings=settings)
    return ApacheBroker(
        peers, folder, name="broker-a", name_servers=[name_server], settings=settings,
        java_options=_APACHE_JAVA,
    )  # fmt: skip


def start(broker: OurBroker | ApacheBroker) -> float:
    """Start it; the seconds until it answers a request."""
    begin = time.perf_counter()
    broker.start()
    while True:
        try:
            with Probe(f"127.0.0.1:{broker.port}") as probe:
                # A topic list is answered as soon as the broker serves.
                if probe.call(21).code == 0:
                    return time.perf_counter() - begin
        except OSError:
            if time.perf_counter() - begin > 60:
                raise
        time.sleep(0.005)


def measured(found: Figures, name: str, process: Process, count: float, before: float) -> None:
    found[f"{name}, CPU s/M"] = (cpu_seconds(process.pid) - before) / count * 1e6


def java_figures(generator: Generator, process: Process, seconds: float, found: Figures) -> None:
    generator.run("send", TOPIC, 16, 16, 1024, 15)  # Both JVMs compile what runs hot.
    sent = 0.0
    for size in SIZES:
        for connections, threads in SHAPES:
            before = cpu_seconds(process.pid)
            load = generator.run("send", TOPIC, connections, threads, size, seconds)
            name = f"java {connections}x{threads} {size} B"
            found[f"{name}, sends/s"] = load["sent"] / load["seconds"]
            measured(found, name, process, load["sent"], before)
            sent += load["sent"]
    load = generator.run("send", TOPIC, 16, 16, 1024, max(seconds, 5), 2000)
    found["java at 2000/s, p50 us"] = load["p50_us"]
    found["java at 2000/s, p99 us"] = load["p99_us"]
    before = cpu_seconds(process.pid)
    count = int(min(sent, 200_000) * 0.9)
    load = generator.run("consume", TOPIC, f"load-{time.time_ns()}", count)
    found["java consume, messages/s"] = load["consumed"] / load["seconds"]
    measured(found, "java consume", process, load["consumed"], before)


async def python_figures(name_server: str, process: Process, found: Figures) -> None:
    topic = "PythonBenchmark"
    body = b"x" * 1024
    async with skylark.connect(name_server) as mq:
        async with mq.producer("python-load") as producer:
            await producer.send(Message(topic, body))
            left = PYTHON_SENDS

            async def send() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await producer.send(Message(topic, body, tag="TagA"))

            before, begin = cpu_seconds(process.pid), time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(send())
            found["python 64 under way, sends/s"] = PYTHON_SENDS / (time.perf_counter() - begin)
            measured(found, "python 64 under way", process, PYTHON_SENDS, before)
        count = 0
        begin = last = 0.0
        async with mq.consumer("python-load", {topic: "*"}, consume_from="first") as consumer:
            async for _ in consumer:
                count += 1
                if count == 1:
                    begin = time.perf_counter()
                if count >= PYTHON_SENDS:
                    last = time.perf_counter()
                    break
        found["python consume, messages/s"] = (count - 1) / (last - begin)
        for handlers in HANDLERS:
            found[f"python consume, {handlers} handlers"] = await _handled(mq, topic, handlers)


async def _handled(mq: Client, topic: str, handlers: int) -> float:
    """Messages per second where each takes a handler two milliseconds of waiting."""
    count = 0

    async def handle(_: object) -> None:
        nonlocal count
        await asyncio.sleep(0.002)
        count += 1

    group = f"handlers-{handlers}"
    async with mq.consumer(group, {topic: "*"}, handle, consume_from="first", concurrency=handlers):
        while not count:
            await asyncio.sleep(0.01)
        before, begin = count, time.perf_counter()
        await asyncio.sleep(2)
        return (count - before) / (time.perf_counter() - begin)


def one_run(kind: str, peers: Peers, folder: Path, flush: str, seconds: float) -> Figures:
    """Everything, once, on a fresh broker."""
    found: Figures = {}
    with OurNameServer(folder / "namesrv") as name_server:
        broker = make_broker(kind, peers, folder / kind, name_server.address, flush)
        found["start, s"] = start(broker)
        try:
            broker.wait_ready()
            with Generator(peers, folder / "load", name_server.address) as generator:
                java_figures(generator, broker, seconds, found)
            import uvloop

            uvloop.run(python_figures(name_server.address, broker, found))
            anonymous, resident = memory_mib(broker.pid)
            found["memory anonymous, MiB"] = anonymous
            found["memory resident, MiB"] = resident
        finally:
            broker.stop()
    return found


def spread(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    middle = statistics.median(values)
    digits = 3 if middle < 10 else 1 if middle < 1000 else 0
    return f"{middle:,.{digits}f} [{low:,.{digits}f}-{high:,.{digits}f}]"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", choices=("skylark", "apache"))
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    kinds = [arguments.only] if arguments.only else ["skylark", "apache"]
    peers = Peers.fetch()
    runs: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    for repetition in range(arguments.repetitions):
        for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
            with tempfile.TemporaryDirectory() as name:
                runs[kind].append(
                    one_run(kind, peers, Path(name), arguments.flush, arguments.seconds)
                )
            print(f"{kind} {repetition + 1} of {arguments.repetitions} done", file=sys.stderr)
    if arguments.json:
        print(json.dumps(runs))
        return 0
    print(f"{arguments.flush}, {arguments.repetitions} repetitions, median [range]")
    for figure in runs[kinds[0]][0]:
        cells = [spread([run[figure] for run in runs[kind]]) for kind in kinds]
        line = f"{figure:32}" + "".join(f"{cell:>34}" for cell in cells)
        if len(kinds) == 2:
            pairs = zip(runs["skylark"], runs["apache"], strict=True)
            line += f"   ratio {statistics.median(o[figure] / a[figure] for o, a in pairs):.2f}"
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
