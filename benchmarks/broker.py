"""Our broker beside Apache's: sends and pulls per second, and broker CPU per million.

    .venv/bin/python benchmarks/broker.py [--repetitions N] [--seconds S] [--only skylark|apache]
                                          [--flush ASYNC_FLUSH|SYNC_FLUSH] [--pure]

Contenders take turns within each repetition, each on a fresh store, and the figures that count are
the ratios within a repetition. The generator is loadgen.c: frames encoded before, as the Java
client writes them (SEND_MESSAGE_V2, JSON header, five properties), every answer checked. Apache's
broker runs with G1 and 1 GiB of heap and gets 300,000 sends before anything is measured.

    sends     16x1: 16 connections, one send under way on each; 16x64: 64 on each
    pulls     16 connections, 32 messages each, from a backlog that fits in memory
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from our_broker import OurBroker  # noqa: E402
from peers import (  # noqa: E402
    ApacheBroker,
    OurNameServer,
    Peers,
    Process,
)

from loadgen import LoadGenerator  # noqa: E402
from skylark.protocol.command import Command  # noqa: E402
from skylark.protocol.frame import encode_frames  # noqa: E402

TOPIC = "BenchmarkTest"
QUEUES = 8
FRAMES = 4_096
OPAQUE = 100_000_000
# The JVM compiles what runs hot, so its broker needs more of it.
WARM_UP_SENDS = {"skylark": 20_000, "apache": 300_000}
_APACHE_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")
_TICKS = os.sysconf("SC_CLK_TCK")


def send_frames(size: int) -> list[bytes]:
    """Sends as Java writes them, each with another unique key."""
    frames = []
    for number in range(FRAMES):
        properties = "\x02".join(
            f"{name}\x01{value}"
            for name, value in (
                ("KEYS", f"key-{number}"),
                ("UNIQ_KEY", f"C0A80203ABCD{number + 0xABCDEF0123456789:020X}"),
                ("WAIT", "true"),
                ("TAGS", "TagA"),
            )
        )
        fields = {
            "a": "bench",
            "b": TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(number % QUEUES),
            "f": "0",
            "g": "1794726790296",
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
            "n": "broker-a",
        }
        command = Command(310, OPAQUE, 0, fields, b"x" * size, language=0)
        frames.append(encode_frames([command]))
    return frames


def pull_frames(messages: int) -> list[bytes]:
    """Pulls of 32 messages, spread over the backlog."""
    per_queue = messages // QUEUES
    frames = []
    for number in range(min(FRAMES, max(1, per_queue // 32) * QUEUES)):
        fields = {
            "consumerGroup": "bench",
            "topic": TOPIC,
            "queueId": str(number % QUEUES),
            "queueOffset": str(number // QUEUES * 32 % max(1, per_queue - 32)),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        frames.append(encode_frames([Command(11, OPAQUE, 0, fields, language=0)]))
    return frames


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


@dataclass
class Figure:
    """One measurement."""

    per_second: float
    cpu_per_million: float


@contextmanager
def contender(
    kind: str, peers: Peers | None, folder: Path, settings: Mapping[str, str], pure: bool
) -> Iterator[tuple[Process, int]]:
    """A running broker, and its port."""
    with OurNameServer(folder / "namesrv") as name_server:
        broker: OurBroker | ApacheBroker
        common = {
            "mappedFileSizeCommitLog": str(1 << 30),
            "mappedFileSizeConsumeQueue": "6000000",
            "maxIndexNum": "20000000",
            "maxHashSlotNum": "5000000",
            **settings,
        }
        if kind == "apache":
            assert peers is not None
            broker = ApacheBroker(
                peers,
                folder / kind,
                name="broker-a",
                name_servers=[name_server.address],
                settings=common,
                java_options=_APACHE_JAVA,
            )
        else:
            broker = OurBroker(
                folder / kind,
                name="broker-a",
                name_servers=[name_server.address],
                settings=common,
                environment={"SKYLARK_PURE": "1"} if pure else {},
            )
        with broker:
            yield broker, broker.port


def measure(
    generator: LoadGenerator, process: Process, port: int, *, connections: int, depth: int,
    seconds: float,
) -> tuple[Figure, int]:  # fmt: skip
    before = cpu_seconds(process.pid)
    load = generator.run(port, connections=connections, depth=depth, seconds=seconds)
    cpu = cpu_seconds(process.pid) - before
    return Figure(load.answers / load.seconds, cpu / load.answers * 1e6), load.answers


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=("skylark", "apache"))
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--pure", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    kinds = [arguments.only] if arguments.only else ["skylark", "apache"]
    peers = Peers.fetch() if "apache" in kinds else None
    found: dict[str, dict[str, list[Figure]]] = {kind: {} for kind in kinds}
    for repetition in range(arguments.repetitions):
        for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                sends = LoadGenerator(send_frames(arguments.size), folder)
                settings = {"flushDiskType": arguments.flush}
                with contender(kind, peers, folder, settings, arguments.pure) as (process, port):
                    stored = 0
                    while stored < WARM_UP_SENDS[kind]:
                        stored += sends.run(port, connections=16, depth=16, seconds=1.0).answers
                    for depth in (1, 64):
                        figure, count = measure(
                            sends, process, port, connections=16, depth=depth,
                            seconds=arguments.seconds,
                        )  # fmt: skip
                        stored += count
                        found[kind].setdefault(f"send 16x{depth}", []).append(figure)
                    pull_folder = folder / "pull"
                    pull_folder.mkdir()
                    pulls = LoadGenerator(pull_frames(min(stored, 200_000)), pull_folder)
                    figure, _ = measure(
                        pulls, process, port, connections=16, depth=1, seconds=arguments.seconds
                    )
                    figure = Figure(figure.per_second * 32, figure.cpu_per_million / 32)
                    found[kind].setdefault("pull 16x1", []).append(figure)
    for kind, rows in found.items():
        for row, figures in rows.items():
            rate = statistics.median(figure.per_second for figure in figures)
            cpu = statistics.median(figure.cpu_per_million for figure in figures)
            if arguments.json:
                print(json.dumps({"who": kind, "what": row, "per_second": rate, "cpu": cpu}))
            else:
                print(f"{kind:8} {row:12} {rate:10,.0f}/s  {cpu:6.2f} CPU s per million")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
