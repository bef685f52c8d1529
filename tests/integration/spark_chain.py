"""Chains under kills: topic to topic and topic to archive, while drivers, workers and brokers die.

Two brokers, a driver that runs both jobs and compacts, and rows that keep coming. Each kill is at
a named step (spark_faults.py) or at a moment by chance. In the end faults stop, the jobs catch up,
and what the source holds is compared with what the sink and the archive hold: the log of the
source is the truth, so a producer may send as carelessly as it likes.

    python tests/integration/spark_chain.py --kills 50 --rows 10000 --seed 1

prints counts and findings as one line of JSON; exit status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType
from spark_faults import IN_DRIVER, IN_QUERIES, IN_TASKS
from spark_servers import Servers

from skylark.errors import ConfigError, TransportError
from skylark.spark import source
from skylark.spark.catalogue import Catalogue
from skylark.spark.cluster import Cluster
from skylark.spark.offsets import Offsets
from skylark.spark.options import Access, read_options, write_options
from skylark.spark.sink import Sender
from skylark.spark.source import SkylarkReader

HERE = Path(__file__).resolve().parent
SOURCE, SINK = "ChainFrom", "ChainTo"
ROWS_MAX = 60  # A micro-batch.
STEP_S = 150.0  # Within which a process comes to a step, on a machine that is busy.
DRAIN_S = 180.0
DRIVER_READY_S = 180.0
RANDOMLY = "at random"
_OUR_ERRORS = re.compile(r"\bskylark\.[a-z_.]+\.[A-Z]\w+: ")  # With its module, as in a traceback.

_COLUMNS = StructType()
for _name, _kind in (
    ("broker", StringType()), ("queue_id", IntegerType()), ("queue_offset", LongType()),
    ("body", BinaryType()),
):  # fmt: skip
    _COLUMNS = _COLUMNS.add(_name, _kind)


class Kill(NamedTuple):
    """Who dies, and at which step."""

    victim: str
    step: str


class Place(NamedTuple):
    """A message where it lies."""

    broker: str
    queue_id: int
    offset: int
    body: bytes


def plan(seed: int, count: int, drivers: int) -> list[Kill]:
    """Kills at every step in turn, victims changing from seed to seed, and as many by chance."""
    rng = random.Random(seed)
    brokers = ("broker-a", "broker-b")
    anywhere = [*IN_TASKS, *IN_QUERIES]
    found: list[Kill] = []
    for number in range(count - drivers):
        if number % 3 == 2:
            found.append(Kill(rng.choice(("worker", *brokers)), RANDOMLY))
            continue
        where = (number + seed) % len(anywhere)
        turn = (number // len(anywhere) + seed) % 3
        found.append(Kill(("worker", *brokers)[turn], anywhere[where]))
    steps = [*IN_DRIVER, "decide", "decided", "commit", "staged", "plan", RANDOMLY]
    # Kills of drivers are dear: a few, at all steps from seed to seed, spread over the run.
    for number in range(drivers):
        where = (seed * drivers + number) % len(steps)
        found.insert((number * count) // drivers + 2, Kill("driver", steps[where]))
    return found


class Driver:
    """The process of spark_driver.py."""

    def __init__(self, servers: Servers, folder: Path, rows_max: int) -> None:
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "spark_driver.py"), servers.address, SOURCE, SINK,
             str(rows_max)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env={**os.environ, "SPARK_FAULTS": str(folder)},
            start_new_session=True,
        )  # fmt: skip

    def _tell(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def go(self) -> None:
        """Begin, once it is ready."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == b"ready\n", f"the driver did not start: {line!r}"
        self._tell()

    @property
    def has_died(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def stop(self) -> int:
        """Let it end its queries; the exit code."""
        self._tell()
        return self._process.wait(DRIVER_READY_S)

    def close(self) -> int:
        """Wait for its end, or bring it about; nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # With the JVM and all its workers.
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return code


class Chain:
    """One run."""

    def __init__(self, home: Path, seed: int, *, rows_max: int = ROWS_MAX) -> None:
        self.folder = home / "faults"
        for name in ("set", "kills"):
            (self.folder / name).mkdir(parents=True)
        self.servers = Servers(home / "servers")
        (self.folder / "brokers").symlink_to(home / "servers")
        self._rng = random.Random(seed)
        self._rows_max = rows_max
        self._driver: Driver | None = None
        self._standby: Driver | None = None
        self._sent = 0
        self.missed: list[Kill] = []  # Steps to which nobody came.
        self.gave_up: list[str] = []  # Why drivers have ended themselves.

    def run(self, kills: list[Kill], rows: int, *, rows_with_rival: int = 0) -> dict[str, Any]:
        """Run with these kills and about so many rows; counts and findings.

        And then, with so many more, beside a second driver that has the same checkpoints.
        """
        started = time.monotonic()
        with self.servers:
            while not self._sent:
                self._send(self._rows_max)
            # Standing by saves the seconds that a JVM takes to start.
            self._standby = self._new_driver()
            try:
                self._next_driver()
                for number, kill in enumerate(kills):
                    self._send((number + 1) * rows // len(kills) - self._sent)
                    is_last = not any(one.victim == "driver" for one in kills[number + 1 :])
                    self._carry_out(kill, needs_another=rows_with_rival > 0 or not is_last)
                while self._sent < rows:
                    self._send(rows - self._sent)
                findings = self._drain()
                outcome = {**self._counts(), "rows": self._sent}
                findings += self._given_up()
                if rows_with_rival:
                    outcome["failures_with_rival"] = self._compete(rows_with_rival)
                    findings += self._drain()
                assert self._driver is not None
                if self._driver.stop() != 0:
                    findings.append("the last driver did not end well")
                findings += self._compare()
            finally:
                for driver in (self._driver, self._standby):
                    if driver is not None:
                        driver.close()
        outcome["seconds"] = round(time.monotonic() - started, 1)
        return {**outcome, "findings": findings}

    def _compete(self, rows: int) -> list[str]:
        """Send so many rows at least, until two drivers have got in each other's way; how."""
        before, end = len(self._failures()), self._sent + rows
        rival, self._standby = self._standby or self._new_driver(), None
        try:
            rival.go()
            while self._sent < end or len(self._failures()) == before:
                assert self._sent < end + 20 * rows, "they do not get in each other's way"
                self._send(20)
                time.sleep(0.2)
        finally:
            rival.close()
        return self._failures()[before:]

    # Drivers.

    def _new_driver(self) -> Driver:
        return Driver(self.servers, self.folder, self._rows_max)

    def _next_driver(self, *, needs_another: bool = True) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver, self._standby = self._standby or self._new_driver(), None
        self._driver.go()
        if needs_another:
            self._standby = self._new_driver()

    # Kills.

    def _carry_out(self, kill: Kill, *, needs_another: bool) -> None:
        if kill.step == RANDOMLY:
            time.sleep(self._rng.uniform(0.0, 0.6))
            self._kill_now(kill.victim)
        else:
            fault = self.folder / "set" / kill.step
            draft = self.folder / f"set-{kill.step}"
            draft.write_text(kill.victim)
            draft.rename(fault)
            if not self._wait(lambda: not fault.exists(), STEP_S, keep_sending=True):
                fault.unlink(missing_ok=True)
                self.missed.append(kill)
                return
        if kill.victim == "driver":
            assert self._driver is not None
            assert self._wait(lambda: self._driver.has_died, STEP_S)  # type: ignore[union-attr]
            self._next_driver(needs_another=needs_another)

    def _kill_now(self, victim: str) -> None:
        jvm = _number(self.folder / "jvm")
        if victim == "worker":
            workers = _python_workers(jvm)
            if not workers:
                self.missed.append(Kill(victim, RANDOMLY))
                return
            pids = [self._rng.choice(workers)]
        elif victim == "driver":
            pids = [jvm, _number(self.folder / "driver")]
        else:
            pids = [_number(self.folder / "brokers" / victim / "pid")]
        (self.folder / "kills" / f"now-{time.monotonic_ns()}").write_text(
            f"{victim} {RANDOMLY.replace(' ', '-')} {pids[0]}"
        )
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait(
        self, condition: Callable[[], bool], limit_s: float, *, keep_sending: bool = False
    ) -> bool:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
            assert self._driver is not None
            # Who takes a fault moves its file first: a driver that was to die meets the condition.
            if self._driver.has_died and not condition():
                self.gave_up += self._failures()[-1:]
                self._next_driver(needs_another=False)
            if keep_sending and self._rng.random() < 0.05:
                self._send(8)  # A step comes with rows only.
        return True

    def _counts(self) -> dict[str, Any]:
        victims: Counter[str] = Counter()
        steps: Counter[str] = Counter()
        for note in (self.folder / "kills").iterdir():
            victim, where, pid = note.read_text().split()
            if _is_alive(int(pid)):
                continue
            victims[victim.split("-")[0]] += 1
            steps[where] += 1
        failures = self._failures()
        return {
            "kills": sum(victims.values()),
            **{f"kills_of_{victim}s": count for victim, count in sorted(victims.items())},
            **{f"kills at {where}": count for where, count in sorted(steps.items())},
            "query_restarts": len(failures),
            "gave_up": [one[:2000] for one in self.gave_up],
            "failures": failures,
            "steps_not_reached": len(self.missed),
        }

    def _failures(self) -> list[str]:
        noted = self.folder / "failures"
        return noted.read_text().splitlines() if noted.exists() else []

    def _given_up(self) -> list[str]:
        """Queries that an error of ours has ended: who is killed leaves none, brokers come back."""
        return [f"a query gave up: {one}" for one in self._failures() if _OUR_ERRORS.search(one)]

    # Rows.

    def _send(self, count: int) -> None:
        if count <= 0:
            return
        options = write_options(
            {"namesrv": self.servers.address, "topic": SOURCE, "batchBytes": "4k"}, is_stream=False
        )
        bodies = [b"row %d" % number for number in range(self._sent, self._sent + count)]
        cluster = Cluster(options.access)
        try:
            queues = len(cluster.writable_queues(SOURCE))
            rows = {"body": bodies, "queue_id": [self._rng.randrange(queues) for _ in bodies]}
            sender = Sender(options, cluster)
            sender.send(pa.record_batch(rows))
            sender.flush()
            self._sent += count
        except (ConfigError, TransportError):
            # No broker is there. What was sent may be sent again: the log is what counts.
            self.servers.wait_serving()
        finally:
            cluster.close()

    def _drain(self) -> list[str]:
        """Wait until both jobs have caught up; what they have not."""
        self.servers.wait_serving()
        lake = Catalogue(self.folder / "lake")
        cluster = Cluster(Access(self.servers.address))
        try:

            def caught_up() -> bool:
                sent, copied = (ends(cluster, topic) for topic in (SOURCE, SINK))
                wanted = {queue: end for queue, end in sent.items() if end > 0}
                if not sent or sum(copied.values()) < sum(sent.values()):
                    return False
                return all(lake.ends().get(queue) == end for queue, end in wanted.items())

            if self._wait(caught_up, DRAIN_S):
                return []
            last = self._failures()[-1:] or ["none"]
            self._note_threads()
            return [f"the jobs do not catch up; the last failure: {last[0][:1500]}"]
        finally:
            cluster.close()

    def _note_threads(self) -> None:
        """What the driver's Java does, for whoever keeps the folder."""
        jstack = shutil.which("jstack")
        if jstack is None:
            return
        with (self.folder / "threads").open("wb") as file:
            subprocess.run(
                [jstack, str(_number(self.folder / "jvm"))],
                stdout=file, stderr=subprocess.STDOUT, timeout=60, check=False,
            )  # fmt: skip

    def _compare(self) -> list[str]:
        sent = read_topic(self.servers.address, SOURCE)
        copied = read_topic(self.servers.address, SINK)
        wanted, found = Counter(row.body for row in sent), Counter(row.body for row in copied)
        findings = [
            *_differences("topic", wanted, found),
            *_differences("archive", Counter(sent), Counter(read_archive(self.folder / "lake"))),
        ]
        places = [(row.broker, row.queue_id, row.offset) for row in sent]
        assert len(set(places)) == len(places) >= self._sent
        cluster = Cluster(Access(self.servers.address))
        try:  # What is read is also what the brokers say that there is.
            assert len(sent) == sum(ends(cluster, SOURCE).values())
            assert len(copied) == sum(ends(cluster, SINK).values())
        finally:
            cluster.close()
        return findings


def _differences(where: str, wanted: Counter[Any], found: Counter[Any]) -> list[str]:
    missing, doubled = wanted - found, found - wanted
    return [
        f"{where}: {sum(rows.values())} {word}, such as {min(rows)!r}"
        for word, rows in (("missing", missing), ("doubled", doubled))
        if rows
    ]


def ends(cluster: Cluster, topic: str) -> Offsets:
    """Where the queues of a topic end; nothing while there is no such topic."""
    try:
        return {queue: cluster.max_offset(queue) for queue in cluster.queues([topic])}
    except ConfigError:
        return {}


def read_topic(namesrv: str, topic: str) -> list[Place]:
    """Everything in a topic, by the code that Spark's tasks run, without Spark."""
    reader = SkylarkReader(
        read_options({"namesrv": namesrv, "topic": topic}, is_stream=False), _COLUMNS
    )
    try:
        return [
            Place(row["broker"], row["queue_id"], row["queue_offset"], row["body"])
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
    finally:
        for cluster in source._clusters.values():  # A worker would keep them for its next task.
            cluster.close()
        source._clusters.clear()


def read_archive(root: Path) -> list[Place]:
    """Everything in the files that the catalogue names."""
    catalogue = Catalogue(root)
    found = []
    for entry in catalogue.entries():
        for file in entry.files:
            table = parquet.ParquetFile(root / file.path).read(
                columns=["broker", "queue_id", "queue_offset", "body"]
            )
            assert table.num_rows == file.rows
            found += [
                Place(row["broker"], row["queue_id"], row["queue_offset"], row["body"])
                for row in table.to_pylist()
            ]
    return found


def _number(path: Path) -> int:
    return int(path.read_text())


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _python_workers(jvm: int) -> list[int]:
    """Python processes that work for a JVM, all but those that only fork others."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                head, _, tail = (entry / "stat").read_text().rpartition(")")
                # Java also starts chmod and the like, each by way of a helper.
                if "(python" in head or int(entry.name) == jvm:
                    parents[int(entry.name)] = int(tail.split()[1])
    below = {pid for pid, parent in parents.items() if parent == jvm}
    workers = {pid for pid, parent in parents.items() if parent in below}
    return sorted(workers | {pid for pid in below if pid not in parents.values()})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--drivers", type=int, help="how many of them kill the driver")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", action="store_true", help="keep what is on the disk, as with findings"
    )
    arguments = parser.parse_args()
    drivers = arguments.kills // 7 if arguments.drivers is None else arguments.drivers
    home = Path(tempfile.mkdtemp(prefix="chain-"))
    rows_max = max(ROWS_MAX, arguments.rows // max(1, arguments.kills))
    chain = Chain(home, arguments.seed, rows_max=rows_max)
    is_clean = False
    try:
        outcome = chain.run(plan(arguments.seed, arguments.kills, drivers), arguments.rows)
        is_clean = not outcome["findings"]
    finally:
        if arguments.keep or not is_clean:
            print(f"kept: {home}", file=sys.stderr)
        else:
            shutil.rmtree(home, ignore_errors=True)
    failures = outcome.pop("failures")
    if not is_clean:
        print(*failures[-20:], sep="\n", file=sys.stderr)
    print(json.dumps(outcome))
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
