"""Filtered pulls: a tag and an SQL92 expression that match 1 %, and what a hostile predicate costs.

    .venv/bin/python benchmarks/filters.py [--repetitions N] [--seconds S] [--only skylark|apache]
                                           [--messages N] [--no-hostile] [--json]

Both brokers hold the same messages of 1 KiB; every hundredth has the tag Rare and the property
n=1. A pull asks for 32 and brings its filter with it. The figure is messages looked at per second:
pulls per second times the messages that each passes over.

    tag       TAGS = Rare, by the hash in the queue
    sql       n = 1, by the record's properties
    sql long  the same behind ten conditions that are not true
    hostile   p99 of single sends while a predicate that loops, or an expression of a thousand parts
              that matches nothing, is pulled again and again, beside the p99 without; taking turns;
              our broker only
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from peers import Peers  # noqa: E402
from wire import Probe  # noqa: E402

from broker import OPAQUE, contender, cpu_seconds  # noqa: E402
from loadgen import LoadGenerator  # noqa: E402
from skylark import Message, PythonFilter, SqlFilter, connect  # noqa: E402
from skylark.errors import BrokerError  # noqa: E402
from skylark.protocol.command import Command  # noqa: E402
from skylark.protocol.frame import encode_frames  # noqa: E402
from skylark.remote import RemoteBroker  # noqa: E402
from skylark.testing import DiskBroker  # noqa: E402

TOPIC = "FilterBench"
QUEUES = 4
LONG = " OR ".join(f"m{number} = 'no'" for number in range(10)) + " OR n = 1"
FILTERS = {"tag": ("Rare", "TAG"), "sql": ("n = 1", "SQL92"), "sql long": (LONG, "SQL92")}
SETTINGS = {"enablePropertyFilter": "true"}


def send_frames() -> list[bytes]:
    """Sends, one of a hundred for each queue with what the filters look for."""
    frames = []
    for number in range(100 * QUEUES):
        is_rare = number // QUEUES == 50
        properties = "\x02".join(
            f"{name}\x01{value}"
            for name, value in (
                ("n", "1" if is_rare else "2"),
                ("UNIQ_KEY", f"C0A80203ABCD{number:020X}"),
                ("WAIT", "true"),
                ("TAGS", "Rare" if is_rare else "Common"),
            )
        )
        fields = {
            "a": "bench", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES),
            "f": "0", "g": "1794726790296", "h": "0", "i": properties, "j": "0", "k": "false",
            "m": "false", "n": "broker-a",
        }  # fmt: skip
        frames.append(encode_frames([Command(310, OPAQUE, 0, fields, b"x" * 1024, language=0)]))
    return frames


def pull_fields(expression: str, kind: str, queue_id: int, offset: int) -> dict[str, str]:
    """One pull that brings its filter with it."""
    return {
        "consumerGroup": "bench", "topic": TOPIC, "queueId": str(queue_id),
        "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "15000", "subscription": expression, "subVersion": "0",
        "expressionType": kind,
    }  # fmt: skip


def looked_at(port: int, expression: str, kind: str) -> int:
    """How many messages one pull passes over; both brokers look at several hundred."""
    with Probe(f"127.0.0.1:{port}") as probe:
        answer = probe.call(11, pull_fields(expression, kind, 0, 0))
    assert answer.code == 0, answer
    return int(answer.fields["nextBeginOffset"])


def measure(port: int, pid: int, folder: Path, count: int, seconds: float) -> dict[str, float]:
    """Messages looked at per second, and CPU seconds per million of them."""
    rows: dict[str, float] = {}
    for name, (expression, kind) in FILTERS.items():
        step = looked_at(port, expression, kind)
        frames = [
            encode_frames(
                [Command(11, OPAQUE, 0, pull_fields(expression, kind, q, at), language=0)]
            )
            for q in range(QUEUES)
            for at in range(0, max(1, count // QUEUES - 1_000), step)
        ]
        place = folder / name.replace(" ", "-")
        place.mkdir()
        generator = LoadGenerator(frames, place)
        generator.run(port, connections=4, depth=1, seconds=1.0)
        before = cpu_seconds(pid)
        load = generator.run(port, connections=4, depth=1, seconds=seconds)
        cpu = cpu_seconds(pid) - before
        rows[f"{name}: pulls/s"] = load.answers / load.seconds
        rows[f"{name}: messages looked at/s"] = load.answers * step / load.seconds
        rows[f"{name}: CPU s per million"] = cpu / (load.answers * step) * 1e6
    return rows


async def _p99_ms(
    address: str, seconds: float, hostile_filter: PythonFilter | SqlFilter | None
) -> float:
    times = []
    async with connect(address) as mq, mq.producer("measured") as producer:
        stop = asyncio.Event()

        async def hostile() -> None:
            async with mq.pull_consumer("hostile") as consumer:
                queues = await consumer.fetch_queues("Victim")
                while not stop.is_set():
                    with contextlib.suppress(BrokerError):  # Refused, where it has just failed.
                        await consumer.pull(queues[0], hostile_filter, offset=0)
                    await asyncio.sleep(0.02)

        for _ in range(80):
            await producer.send(Message("Victim", b"x" * 1024, properties={"a": "1"}))
        task = None if hostile_filter is None else asyncio.ensure_future(hostile())
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            await producer.send(Message("Measured", b"x" * 1024))
            times.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(0.001)
        stop.set()
        if task is not None:
            await task
    return statistics.quantiles(times, n=100)[98]


def hostile_predicate(folder: Path, seconds: float) -> dict[str, float]:
    """p99 of sends with and without a looping predicate, in one run, taking turns."""
    keys = {"filter_server_access_key": "admin", "filter_server_secret_key": "secret"}
    costly = " OR ".join(["a = 99"] * 330)
    kinds = {"without": None, "predicate": PythonFilter("loops"), "expression": SqlFilter(costly)}
    found: dict[str, list[float]] = {}
    settings = {"filter_server_nums": 1, "enable_property_filter": True, **keys}
    with DiskBroker(folder, **settings) as broker:

        async def upload() -> None:
            async with connect(broker.address) as mq:
                route = (await mq.fetch_queues("TBW102"))[0]
                address = mq.session.master_address(route.broker_name)
                assert address is not None
                remote: RemoteBroker = mq.session.broker(address)
                source = b"def matches(m):\n    while True: pass\n"
                await remote.upload_predicate(
                    "loops", 1, source, access_key="admin", secret_key="secret"
                )

        asyncio.run(upload())
        for _ in range(5):
            for name, wanted in kinds.items():
                figure = asyncio.run(_p99_ms(broker.address, seconds, wanted))
                found.setdefault(f"hostile: send p99 ms, {name}", []).append(figure)
    return {name: statistics.median(values) for name, values in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--only", choices=("skylark", "apache"))
    parser.add_argument("--no-hostile", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    kinds = [arguments.only] if arguments.only else ["skylark", "apache"]
    peers = Peers.fetch() if "apache" in kinds else None
    found: dict[str, dict[str, list[float]]] = {}
    for repetition in range(arguments.repetitions):
        for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                sends = LoadGenerator(send_frames(), folder)
                with contender(kind, peers, folder, SETTINGS, False) as (process, port):
                    stored = 0
                    while stored < arguments.messages:
                        # One connection and one send at a time keep the rare ones spread.
                        stored += sends.run(port, connections=1, depth=1, seconds=1.0).answers
                    rows = measure(port, process.pid, folder, stored, arguments.seconds)
            for row, value in rows.items():
                found.setdefault(kind, {}).setdefault(row, []).append(value)
    if not arguments.no_hostile and "skylark" in kinds and sys.platform.startswith("linux"):
        with tempfile.TemporaryDirectory() as name:
            for row, value in hostile_predicate(Path(name), arguments.seconds).items():
                found["skylark"].setdefault(row, []).append(value)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)
    for kind, table in found.items():
        for row, values in table.items():
            value = statistics.median(values)
            if arguments.json:
                print(json.dumps({"who": kind, "what": row, "value": value}))
            else:
                print(f"{kind:8} {row:36} {value:14,.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
