"""A standalone Spark cluster from the pip package: a master and workers, each its own process.

pip's Spark has no start scripts for it, but everything that they start:

    spark-class org.apache.spark.deploy.master.Master --host H --port P
    spark-class org.apache.spark.deploy.worker.Worker spark://H:P
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark
from broker_ports import free_port

from skylark.spark import java_environment

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_START_S = 120.0
_HOST = "127.0.0.1"


class Standalone:
    """One master and some workers of one core each."""

    def __init__(self, home: Path, workers: int = 2) -> None:
        self._home = home
        self._count = workers
        self._port = free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """What `--master` is given."""
        return f"spark://{_HOST}:{self._port}"

    def __enter__(self) -> Standalone:
        self._home.mkdir(parents=True, exist_ok=True)
        self._master = self._start(
            "master", f"{_DEPLOY}.master.Master",
            "--host", _HOST, "--port", str(self._port), "--webui-port", "0",
        )  # fmt: skip
        try:
            self._wait("master", "New state: ALIVE")
            for number in range(self._count):
                words = ["--host", _HOST, "--port", "0", "--webui-port", "0", "--cores", "1"]
                words += ["--memory", "1g", "--work-dir", str(self._home / f"work-{number}")]
                self.workers.append(
                    self._start(f"worker-{number}", f"{_DEPLOY}.worker.Worker", *words, self.url)
                )
            for number in range(self._count):
                self._wait(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        for process in [*self.workers, self._master]:
            if process is not None:
                _kill_with_children(process)

    def kill_worker(self, number: int) -> int:
        """A machine is gone: the worker, its executors and their Python; how many processes."""
        return _kill_with_children(self.workers[number])

    def executors(self, number: int) -> int:
        """How many executors a worker has started."""
        text = self._log(f"worker-{number}").read_text(errors="replace")
        return len(re.findall("Asked to launch executor", text))

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **java_environment(os.environ),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_NO_DAEMONIZE": "1",
        }
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                [str(_SPARK_CLASS), *words], stdout=log, stderr=log, env=environment
            )

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def _wait(self, name: str, line: str) -> None:
        deadline = time.monotonic() + _START_S
        while line not in self._log(name).read_text(errors="replace"):
            assert time.monotonic() < deadline, self._log(name).read_text(errors="replace")
            time.sleep(0.1)


def _kill_with_children(process: subprocess.Popen[bytes]) -> int:
    pids = [process.pid, *_below(process.pid)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return len(pids)


def _below(root: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found
