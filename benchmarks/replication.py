"""A master with a slave, and three members of a Raft group, beside Apache's.

    .venv/bin/python benchmarks/replication.py [--repetitions N] [--seconds S]
                                               [--only skylark|apache] [--json]

    what                  how
    send ROLE             16 connections, 16 sends each under way, 1 KiB, ASYNC_FLUSH, one slave
    p50, p99 ROLE         one connection, one send at a time
    catch-up              a slave with an empty store joins; from its first byte until it is level
    raft                  the same sends to the leader of three (Apache: DLedger)
    failover              the leader is killed; until another one has taken a send

Members share this machine, so rates are those of all together. Apache's DLedger answers when a
majority has a message in memory, ours when a majority has it on the disk. Contenders take turns
within each repetition, each on fresh stores; what counts are ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "interop")]

from our_broker import OurBroker  # noqa: E402
from peers import ApacheBroker, OurNameServer, Peers, free_ports, wait_until  # noqa: E402
from wire import Probe, loads_lenient  # noqa: E402

from broker import WARM_UP_SENDS, send_frames  # noqa: E402
from loadgen import LoadGenerator  # noqa: E402

ROLES = ("ASYNC_MASTER", "SYNC_MASTER")
SAMPLES = 1_000
CATCH_UP_BYTES = 256 << 20
_APACHE_JAVA = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=512m")
_SIZES = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxIndexNum": "20000000",
    "maxHashSlotNum": "5000000",
    "brokerIP2": "127.0.0.1",
}

Member = OurBroker | ApacheBroker
Pair = tuple[Member, Member]


def member(
    kind: str, peers: Peers | None, folder: Path, server: str, settings: Mapping[str, str]
) -> OurBroker | ApacheBroker:
    """A broker of the group, not started."""
    values = {**_SIZES, **settings}
    if kind == "apache":
        assert peers is not None
        return ApacheBroker(
            peers,
            folder,
            name="broker-a",
            name_servers=[server],
            broker_id=int(values.pop("brokerId")),
            settings=values,
            java_options=_APACHE_JAVA,
        )
    return OurBroker(folder, name="broker-a", name_servers=[server], settings=values)


@contextmanager
def pair(kind: str, peers: Peers | None, folder: Path, role: str) -> Iterator[Pair]:
    """A master and a slave that follows it."""
    with OurNameServer(folder / "namesrv") as server:
        master = member(
            kind, peers, folder / "master", server.address, {"brokerRole": role, "brokerId": "0"}
        )
        slave = member(
            kind, peers, folder / "slave", server.address, {"brokerRole": "SLAVE", "brokerId": "1"}
        )
        with master, slave:
            wait_until(
                lambda: send_one(master.port) == 0, timeout_s=60, what="a slave", every_s=0.2
            )
            yield master, slave


@contextmanager
def group(kind: str, peers: Peers | None, folder: Path) -> Iterator[list[Member]]:
    """Three members that choose their master."""
    with OurNameServer(folder / "namesrv") as server, ExitStack() as stack:
        ports = free_ports(3)
        everybody = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        members = [
            member(
                kind,
                peers,
                folder / f"n{number}",
                server.address,
                {
                    "brokerId": "0",
                    "enableDLegerCommitLog": "true",
                    "dLegerGroup": "broker-a",
                    "dLegerPeers": everybody,
                    "dLegerSelfId": f"n{number}",
                },
            )
            for number in range(3)
        ]
        # A member is ready when there is a leader, so all at once. Processes go with the threads
        # that have started them, so these stay.
        pool = stack.enter_context(ThreadPoolExecutor())
        for one in members:
            stack.callback(one.kill)
        list(pool.map(lambda one: one.start(), members))
        yield members


def leader_of(members: Sequence[Member]) -> Member:
    """The first of the members that takes a send."""

    def found() -> Member | None:
        for one in members:
            try:
                if one.running and send_one(one.port) == 0:
                    return one
            except (OSError, ValueError):
                continue  # It is dead, or about to be.
        return None

    return wait_until(found, timeout_s=60, what="a leader", every_s=0.02)


def measure_group(
    members: Sequence[Member], sends: LoadGenerator, warm_up: int, seconds: float
) -> dict[str, float]:
    """Rates and latency of a group, and how long it is without a leader."""
    leader = leader_of(members)
    warm = 0
    while warm < warm_up:
        warm += sends.run(leader.port, connections=16, depth=16, seconds=1.0).answers
    load = sends.run(leader.port, connections=16, depth=16, seconds=seconds)
    rows = {"send raft, per s": load.answers / load.seconds}
    times = sorted(ask_in_turn(leader.port, send_frames(1024)[:SAMPLES])[0])
    for label, place in (("p50", 0.5), ("p99", 0.99)):
        rows[f"{label} raft, ms"] = times[int(len(times) * place)] * 1e3
    began = time.perf_counter()
    leader.kill()
    leader_of([one for one in members if one is not leader])
    rows["failover, s"] = time.perf_counter() - began
    return rows


def send_one(port: int) -> int:
    """Send one message; return the code of its answer."""
    return ask_in_turn(port, send_frames(64)[:1])[1]


def ask_in_turn(port: int, frames: Sequence[bytes]) -> tuple[list[float], int]:
    """Send requests one at a time; return how long each took, and the last answer's code."""
    times, header = [], b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = connection.makefile("rb")
        for frame in frames:
            began = time.perf_counter()
            connection.sendall(frame)
            size = int.from_bytes(reader.read(4), "big")
            header = reader.read(size)
            times.append(time.perf_counter() - began)
    found = json.loads(header[4 : 4 + int.from_bytes(header[1:4], "big")])
    return times, int(found["code"])


def end_of(broker: OurBroker | ApacheBroker) -> int:
    """Where its log ends."""
    with Probe(broker.address) as probe:
        return int(loads_lenient(probe.call(28).body)["table"]["commitLogMaxOffset"])


def catch_up(master: OurBroker | ApacheBroker, slave: OurBroker | ApacheBroker) -> float:
    """Let the slave begin anew; return the megabytes per second at which it came level."""
    slave.kill()
    shutil.rmtree(slave.home / "store")
    end = end_of(master)
    slave.start()
    first: tuple[float, int] | None = None
    while True:
        now, at = time.perf_counter(), end_of(slave)
        if at > 0 and first is None:
            first = now, at
        if at >= end:
            assert first is not None
            return (end - first[1]) / max(0.01, now - first[0]) / 1e6
        time.sleep(0.02)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=("skylark", "apache"))
    parser.add_argument("--raft-only", action="store_true", help="leave master and slave out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    kinds = [arguments.only] if arguments.only else ["skylark", "apache"]
    peers = Peers.fetch() if "apache" in kinds else None
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for repetition in range(arguments.repetitions):
        for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
            rows = found[kind]
            for role in () if arguments.raft_only else ROLES:
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    sends = LoadGenerator(send_frames(1024), folder)
                    with pair(kind, peers, folder, role) as (master, slave):
                        warm = 0
                        while warm < WARM_UP_SENDS[kind] // 4:
                            load = sends.run(master.port, connections=16, depth=16, seconds=1.0)
                            warm += load.answers
                        load = sends.run(
                            master.port, connections=16, depth=16, seconds=arguments.seconds
                        )
                        rate = load.answers / load.seconds
                        rows.setdefault(f"send {role}, per s", []).append(rate)
                        times = sorted(ask_in_turn(master.port, send_frames(1024)[:SAMPLES])[0])
                        for label, place in (("p50", 0.5), ("p99", 0.99)):
                            ms = times[int(len(times) * place)] * 1e3
                            rows.setdefault(f"{label} {role}, ms", []).append(ms)
                        if role == "ASYNC_MASTER":
                            while end_of(master) < CATCH_UP_BYTES:
                                sends.run(master.port, connections=16, depth=16, seconds=1.0)
                            rows.setdefault("catch-up, MB/s", []).append(catch_up(master, slave))
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                sends = LoadGenerator(send_frames(1024), folder)
                with group(kind, peers, folder) as members:
                    warm_up = WARM_UP_SENDS[kind] // 4
                    new = measure_group(members, sends, warm_up, arguments.seconds)
                    for row, value in new.items():
                        rows.setdefault(row, []).append(value)
    for kind, rows in found.items():
        for row, values in rows.items():
            value = statistics.median(values)
            if arguments.json:
                print(json.dumps({"who": kind, "what": row, "value": value}))
            else:
                print(f"{kind:8} {row:26} {value:12,.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
