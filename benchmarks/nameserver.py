"""Our name server beside Apache's: start, memory, route queries per second and per CPU second.

    .venv/bin/python benchmarks/nameserver.py [--repetitions N] [--seconds S] [--pure]

Every repetition starts each contender anew, in rotating order, so that what else the machine does
falls on all of them alike; the figures that count are the ratios within a repetition. Apache's name
server runs with the options of its own start script ("as shipped") and with a small heap, which is
the harder opponent for memory and start. Each contender answers the same number of questions before
a rate is taken, which Apache's compiler needs.

    start       from the spawn of the process to its first answer to GET_ROUTEINFO_BY_TOPIC, in
                seconds and in CPU seconds, which a busy machine does not stretch
    memory      resident and anonymous, after 2 brokers with 1,000 topics each and 10,000 queries
    queries/s   16 connections, each with 1 or 16 queries under way, answers checked
    per CPU s   the same queries by the CPU time of all threads of the server
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from peers import ApacheNameServer, NameServer, OurNameServer, Peers  # noqa: E402
from wire import Frame, NoAnswer, Probe  # noqa: E402

from loadgen import LoadGenerator  # noqa: E402

BROKERS = 2
TOPICS = 1000
CONNECTIONS = 16
QUERIES_BEFORE_MEMORY = 10_000
WARM_UP_ANSWERS = 300_000
WARM_UP_MAX_S = 60.0
DEPTHS = (1, 16)

# The options of Apache's runserver.sh for a Java of today, less its log of collections.
_AS_SHIPPED = (
    "-server",
    "-Xms4g",
    "-Xmx4g",
    "-Xmn2g",
    "-XX:MetaspaceSize=128m",
    "-XX:MaxMetaspaceSize=320m",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
)
_SMALL_HEAP = ("-server", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC")

OURS = "skylark"
PURE = "skylark, pure"
APACHE = "Apache, as shipped"
APACHE_SMALL = "Apache, small heap"

# What the issue asks for, as a bound on ours / Apache's; `most` or `least`.
AIMS = {
    "start_s": ("most", 0.1),
    "resident_mib": ("most", 0.1),
    "anonymous_mib": ("most", 0.1),
    "per_cpu_s_depth_1": ("least", 1.0),
    "per_cpu_s_depth_16": ("least", 1.0),
}
_TITLES = {
    "start_s": "start to first answer, s",
    "start_cpu_s": "start to first answer, CPU s",
    "resident_mib": "resident memory, MiB",
    "anonymous_mib": "anonymous memory, MiB",
    "per_s_depth_1": "queries/s, 16 x 1",
    "per_cpu_s_depth_1": "queries per CPU s, 16 x 1",
    "per_s_depth_16": "queries/s, 16 x 16",
    "per_cpu_s_depth_16": "queries per CPU s, 16 x 16",
}

Figures = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """A name server that can be made anew for each repetition."""

    name: str
    make: Callable[[Path], NameServer]


def contenders(peers: Peers, *, pure: bool) -> list[Contender]:
    """Return who runs."""
    # An installed package has its byte code beside it; one that may not write any compiles all of
    # it at every start, which is no figure of the server's.
    compiled_once = {"PYTHONDONTWRITEBYTECODE": ""}
    chosen = [
        Contender(OURS, lambda home: OurNameServer(home, environment=compiled_once)),
        Contender(APACHE, lambda home: ApacheNameServer(peers, home, java_options=_AS_SHIPPED)),
        Contender(
            APACHE_SMALL, lambda home: ApacheNameServer(peers, home, java_options=_SMALL_HEAP)
        ),
    ]
    if pure:
        environment = {**compiled_once, "SKYLARK_PURE": "1"}
        chosen.insert(1, Contender(PURE, lambda home: OurNameServer(home, environment=environment)))
    return chosen


def topic_name(number: int) -> str:
    """The number-th topic."""
    return f"BenchmarkTopic-{number:04d}"


def route_question(topic: str) -> bytes:
    """A route question as a 4.9.8 client asks it, with room for the generator's opaque."""
    return Frame(code=105, fields={"topic": topic}, opaque=100_000_000).encode()


def start(server: NameServer) -> float:
    """Start a server and return the seconds until its first answer."""
    server.wait_ready = lambda: None  # type: ignore[method-assign]  # It polls too slowly for this.
    begin = time.perf_counter()
    server.start()
    while True:
        try:
            with Probe(server.address, timeout_s=10) as probe:
                probe.call(105, {"topic": topic_name(0)}, timeout_s=10)
                return time.perf_counter() - begin
        except (OSError, NoAnswer):
            if not server.running:
                raise RuntimeError(f"{server.name} ended at start:\n{server.tail()}") from None
            time.sleep(0.001)


@contextmanager
def registered(server: NameServer) -> Iterator[None]:
    """Register the brokers and keep their connections open."""
    table = {
        topic_name(number): {
            "order": False,
            "perm": 6,
            "readQueueNums": 8,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic_name(number),
            "topicSysFlag": 0,
            "writeQueueNums": 8,
        }
        for number in range(TOPICS)
    }
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
    probes = []
    try:
        for number in range(BROKERS):
            probe = Probe(server.address)
            probes.append(probe)
            fields = {
                "brokerName": f"broker-{number}",
                "clusterName": "benchmark",
                "brokerAddr": f"127.0.0.1:{11_000 + 10 * number}",
                "haServerAddr": f"127.0.0.1:{11_001 + 10 * number}",
                "brokerId": "0",
                "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            }
            answer = probe.call(103, fields, body, timeout_s=30)
            assert answer.code == 0, answer
        yield
    finally:
        for probe in probes:
            probe.close()


def query_one_by_one(server: NameServer, count: int) -> None:
    """Ask for routes over one connection and look at every answer."""
    with Probe(server.address) as probe:
        for number in range(count):
            answer = probe.call(105, {"topic": topic_name(number % TOPICS)})
            assert answer.code == 0, answer
            assert answer.body.count(b'"readQueueNums":8') == BROKERS, answer


def memory_mib(pid: int) -> Figures:
    """Resident and anonymous memory of a process."""
    kib = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, value, *_ = line.split()
        kib[key] = int(value)
    return {"resident_mib": kib["Rss:"] / 1024, "anonymous_mib": kib["Anonymous:"] / 1024}


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, those that ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loaded_modules(pid: int) -> list[str]:
    """The compiled modules of ours, and the event loop, that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    found = re.findall(r"/(skylark/\S+?|uvloop/\S+?)\.(?:cpython|abi3)\S*\.so", maps)
    return sorted(set(found))


def measure(server: NameServer, generator: LoadGenerator, seconds: float) -> Figures:
    """Take all figures of one contender in one repetition."""
    figures = {"start_s": start(server), "start_cpu_s": cpu_seconds(server.pid)}
    with registered(server):
        query_one_by_one(server, QUERIES_BEFORE_MEMORY)
        figures |= memory_mib(server.pid)
        warm_up(server, generator)
        for depth in DEPTHS:
            before = cpu_seconds(server.pid)
            load = generator.run(server.port, connections=CONNECTIONS, depth=depth, seconds=seconds)
            used = cpu_seconds(server.pid) - before
            figures[f"per_s_depth_{depth}"] = load.answers / load.seconds
            figures[f"per_cpu_s_depth_{depth}"] = load.answers / used
    return figures


def warm_up(server: NameServer, generator: LoadGenerator) -> None:
    """Ask until enough was answered; a slow generator may give up earlier."""
    answers = 0
    deadline = time.monotonic() + WARM_UP_MAX_S
    while answers < WARM_UP_ANSWERS and time.monotonic() < deadline:
        answers += generator.run(
            server.port, connections=CONNECTIONS, depth=16, seconds=1.0
        ).answers


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{number(statistics.median(values))} [{number(min(values))} .. {number(max(values))}]"


def number(value: float) -> str:
    """Four figures or so."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def ratios(results: dict[str, list[Figures]], key: str, opponent: str) -> list[float]:
    """Ours by the opponent's, pair by pair."""
    pairs = zip(results[OURS], results[opponent], strict=True)
    return [ours[key] / theirs[key] for ours, theirs in pairs]


def report(results: dict[str, list[Figures]]) -> list[dict[str, object]]:
    """Print the table; return the verdicts."""
    verdicts: list[dict[str, object]] = []
    for key, title in _TITLES.items():
        print(f"\n{title}")
        for name, runs in results.items():
            print(f"  {name:<20} {spread([run[key] for run in runs])}")
        for opponent in (APACHE, APACHE_SMALL):
            paired = ratios(results, key, opponent)
            line = f"  ratio to {opponent:<20} {spread(paired)}"
            if key in AIMS:
                sense, bound = AIMS[key]
                middle = statistics.median(paired)
                met = middle <= bound if sense == "most" else middle >= bound
                line += f"   aim at {sense} {bound:g}: {'met' if met else 'MISSED'}"
                verdicts.append({"figure": key, "opponent": opponent, "ratio": middle, "met": met})
            print(line)
    return verdicts


def machine(generator: LoadGenerator, modules: list[str]) -> dict[str, object]:
    """Facts about where this ran; nothing that names the host."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "java": java.stderr.splitlines()[0],
        "generator": generator.kind,
        "compiled_modules_loaded": modules,
        "load_average_at_start": os.getloadavg()[0],
    }


def main() -> None:
    """Run the benchmark, print the table, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measured run")
    parser.add_argument("--pure", action="store_true", help="ours without compiled modules as well")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()

    running = contenders(Peers.fetch(), pure=options.pure)
    results: dict[str, list[Figures]] = {contender.name: [] for contender in running}
    modules: list[str] = []
    with tempfile.TemporaryDirectory(prefix="skylark-bench-") as folder:
        generator = LoadGenerator(
            [route_question(topic_name(number)) for number in range(TOPICS)], Path(folder)
        )
        facts = machine(generator, modules)
        for repetition in range(options.repetitions):
            turn = repetition % len(running)
            for contender in running[turn:] + running[:turn]:
                home = Path(folder) / f"{repetition}-{contender.name}"
                server = contender.make(home)
                try:
                    figures = measure(server, generator, options.seconds)
                    if contender.name == OURS:
                        modules[:] = loaded_modules(server.pid)
                finally:
                    server.kill()
                results[contender.name].append(figures)
                print(
                    f"{repetition + 1}/{options.repetitions} {contender.name}: "
                    + ", ".join(f"{key} {number(value)}" for key, value in figures.items()),
                    flush=True,
                )
    implementation = "compiled: " + ", ".join(modules) if modules else "pure Python"
    print(f"\nours ran {implementation}; load generator in {generator.kind}")
    print(f"median [range] of {options.repetitions} repetitions, interleaved")
    verdicts = report(results)
    options.results.mkdir(parents=True, exist_ok=True)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    file = options.results / f"nameserver-{today}.json"
    document = {
        "date": today,
        "machine": facts,
        "settings": {"repetitions": options.repetitions, "seconds": options.seconds},
        "results": results,
        "verdicts": verdicts,
    }
    file.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten to {os.path.relpath(file)}")


if __name__ == "__main__":
    main()
