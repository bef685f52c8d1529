"""Delayed sends per second beside Apache's broker, and how late timers are.

    .venv/bin/python benchmarks/timer.py [--repetitions N] [--seconds S] [--only skylark|apache]
                                         [--no-lateness] [--json]

    level     sends with DELAY=3, ten seconds: both brokers have them. What was sent before becomes
              due while more is sent, so the figure has deliveries in it
    timer     the same with TIMER_DELAY_SEC=10: ours alone, RocketMQ 4.9.8 has no such thing
    lateness  1,000 timers a second become due, on real clocks: how late each was stored

Contenders take turns within each repetition, each on a fresh store; the figures that count are the
ratios within a repetition. The generator is loadgen.c, as in benchmarks/broker.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from peers import Peers  # noqa: E402

from broker import (  # noqa: E402
    FRAMES,
    OPAQUE,
    QUEUES,
    TOPIC,
    WARM_UP_SENDS,
    Figure,
    contender,
    measure,
)
from loadgen import LoadGenerator  # noqa: E402
from skylark.protocol.command import Command  # noqa: E402
from skylark.protocol.frame import encode_frames  # noqa: E402

LATENESS = HERE.parent / "tests" / "integration" / "killed_timers.py"
KINDS = {"level": "DELAY\x013", "timer": "TIMER_DELAY_SEC\x0110"}


def frames(delay: str, size: int) -> list[bytes]:
    """Delayed sends as Java writes them, each with another unique key."""
    found = []
    for number in range(FRAMES):
        properties = (
            f"UNIQ_KEY\x01C0A80203ABCD{number + 0xABCDEF0123456789:020X}\x02WAIT\x01true\x02"
            f"TAGS\x01TagA\x02{delay}"
        )
        fields = {
            "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES),
            "f": "0", "g": "1794726790296", "h": "0", "i": properties, "j": "0", "k": "false",
            "m": "false", "n": "broker-a",
        }  # fmt: skip
        found.append(encode_frames([Command(310, OPAQUE, 0, fields, b"x" * size, language=0)]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--only", choices=("skylark", "apache"))
    parser.add_argument("--no-lateness", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    kinds = [arguments.only] if arguments.only else ["skylark", "apache"]
    peers = Peers.fetch() if "apache" in kinds else None
    found: dict[tuple[str, str], list[Figure]] = {}
    for repetition in range(arguments.repetitions):
        for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
            for what in KINDS if kind == "skylark" else ("level",):
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    sends = LoadGenerator(frames(KINDS[what], arguments.size), folder)
                    with contender(kind, peers, folder, {}, False) as (process, port):
                        stored = 0
                        while stored < WARM_UP_SENDS[kind] // 3:
                            stored += sends.run(port, connections=16, depth=16, seconds=1.0).answers
                        figure, _ = measure(
                            sends, process, port, connections=16, depth=16,
                            seconds=arguments.seconds,
                        )  # fmt: skip
                        found.setdefault((kind, what), []).append(figure)
    for (kind, what), figures in found.items():
        rate = statistics.median(figure.per_second for figure in figures)
        cpu = statistics.median(figure.cpu_per_million for figure in figures)
        if arguments.json:
            print(json.dumps({"who": kind, "what": what, "per_second": rate, "cpu": cpu}))
        else:
            print(f"{kind:8} {what:6} 16x16 {rate:10,.0f}/s  {cpu:6.2f} CPU s per million")
    if not arguments.no_lateness and arguments.only != "apache":
        command = [sys.executable, str(LATENESS), "--rate", "1000", "--seconds", "10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        late = json.loads(done.stdout)
        if arguments.json:
            print(json.dumps({"who": "skylark", "what": "lateness", **late}))
        else:
            print(
                f"skylark  late at 1,000/s: p50 {late['late_p50_ms']} ms, p99 "
                f"{late['late_p99_ms']} ms, at most {late['late_max_ms']} ms; "
                f"{late['lost']} lost, {late['early']} early of {late['acked']}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
