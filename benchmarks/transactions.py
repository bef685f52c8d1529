"""Transactional sends beside Apache's broker: the official TransactionMQProducer, commits only.

    .venv/bin/python benchmarks/transactions.py [--repetitions N] [--count N] [--threads N]
                                                [--only skylark|apache] [--json]

One transaction is a half message of 1 KiB and its END_TRANSACTION. Contenders take turns within
each repetition, each on a fresh store; the figures that count are the ratios within a repetition.
Each gets a warm-up load first, since the JVMs of producer and broker compile what runs hot. Every
message must be there when the last END is out, and no transaction may be left over.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from java_programs import JavaProgram  # noqa: E402
from peers import Peers, wait_until  # noqa: E402

import skylark.sync  # noqa: E402
from broker import Figure, contender, cpu_seconds  # noqa: E402

TOPIC = "BenchmarkTest"
WARM_UP = 20_000


def load(peers: Peers, folder: Path, address: str, count: int, threads: int) -> float:
    """Send so many transactions from one Java process; return the seconds it took."""
    with JavaProgram(
        peers, "TransactionPeer", "load", address, TOPIC, "bench", str(count), str(threads),
        home=folder,
    ) as producer:  # fmt: skip
        line = producer.wait_for_line("sent ", 600)
    sent, failed, ms = map(int, re.findall(r"\d+", line))
    if failed or sent != count:
        raise RuntimeError(f"not every transaction went through: {line}")
    return ms / 1000


def wait_visible(address: str, count: int) -> None:
    """Wait until so many messages are there for consumers."""

    def are_there() -> bool:
        with skylark.sync.connect(address) as mq:
            return sum(map(mq.max_offset, mq.fetch_queues(TOPIC))) == count

    wait_until(are_there, timeout_s=60, what=f"{count} messages")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--only", choices=("skylark", "apache"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    kinds = [arguments.only] if arguments.only else ["skylark", "apache"]
    peers = Peers.fetch()
    found: dict[str, list[Figure]] = {kind: [] for kind in kinds}
    for repetition in range(arguments.repetitions):
        for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                with contender(kind, peers, folder, {}, False) as (process, port):
                    address = next(
                        line.split("=", 1)[1]
                        for line in (folder / kind / "broker.conf").read_text().splitlines()
                        if line.startswith("namesrvAddr=")
                    )
                    assert port
                    load(peers, folder / "java", address, WARM_UP, arguments.threads)
                    before = cpu_seconds(process.pid)
                    count = arguments.count
                    seconds = load(peers, folder / "java", address, count, arguments.threads)
                    wait_visible(address, WARM_UP + count)
                    cpu = cpu_seconds(process.pid) - before
                    found[kind].append(Figure(count / seconds, cpu / count * 1e6))
    for kind, figures in found.items():
        rate = statistics.median(figure.per_second for figure in figures)
        cpu = statistics.median(figure.cpu_per_million for figure in figures)
        if arguments.json:
            row = {"who": kind, "what": "transactions", "per_second": rate, "cpu": cpu}
            print(json.dumps(row))
        else:
            print(f"{kind:8} transactions {rate:10,.0f}/s  {cpu:6.2f} CPU s per million")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
