"""A name server and brokers, each a process of its own, for Spark jobs that outlive their brokers.

A keeper starts a broker again whenever one dies, as a service manager does, so whoever wants to
see a broker die only has to kill it: by its number, which is in a file while it runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from broker_ports import free_port

from skylark.errors import SkylarkError
from skylark.spark.cluster import Cluster
from skylark.spark.options import Access

SETTINGS = {
    "mappedFileSizeCommitLog": "16777216",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "diskSpaceAmpleBytes": "1048576",
    "listenHost": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "advertisedAddressCheck": "false",
    "stopGraceMs": "0",
    "defaultTopicQueueNums": "2",
}
_START_S = 60.0


class Server:
    """A command of ours as a process."""

    def __init__(self, name: str, home: Path, *words: str) -> None:
        self.name = name
        self._home = home
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skylark.cli", *self._words, "--log-dir", "-"],
                stdout=log, stderr=log, env={**os.environ, "HOME": str(self._home)},
            )  # fmt: skip
        self.pid_file.write_text(str(self._process.pid))

    @property
    def pid_file(self) -> Path:
        """Where the number of the process is."""
        return self._home / "pid"

    def has_died(self) -> bool:
        """Whether it was killed, and not started since."""
        return self._process is not None and self._process.poll() == -signal.SIGKILL

    def end(self, number: int) -> int | None:
        """Send a signal and wait; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        return process.wait(30)


class Servers:
    """A name server and brokers, kept running."""

    def __init__(
        self,
        home: Path,
        brokers: int = 2,
        *,
        replicas: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.home = home
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._name_server = Server(
            "namesrv", home / "namesrv", "namesrv", "-p", str(port), "--host", "127.0.0.1"
        )
        self.brokers = [
            self._broker(f"broker-{'abcdefgh'[number]}", settings) for number in range(brokers)
        ]
        if replicas:
            self.brokers += [self._replica(broker.name, settings) for broker in self.brokers]
        self.away: set[str] = set()  # Brokers that are not started again for now.
        self.deaths = 0  # Brokers that were killed and are started again.
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def _broker(self, name: str, settings: Mapping[str, str]) -> Server:
        settings = {"brokerName": name, **settings}
        values = {
            **SETTINGS,
            "listenPort": str(free_port()),
            "storePathRootDir": str(self.home / name / "store"),
            **settings,
        }
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        return Server(name, self.home / name, "broker", "-n", self.address, *words)

    def _replica(self, master: str, settings: Mapping[str, str]) -> Server:
        own = {"brokerName": master, "brokerId": "1", "brokerRole": "SLAVE"}
        return self._broker(f"{master}-replica", {**settings, **own})

    def __enter__(self) -> Self:
        self._name_server.start()
        for broker in self.brokers:
            broker.start()
        self.wait_serving()
        self._keeper.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._keeper.join()
        for server in [*self.brokers, self._name_server]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.end(signal.SIGTERM)
            server.end(signal.SIGKILL)

    def wait_serving(self) -> None:
        """Wait until every broker is registered and answers."""
        deadline = time.monotonic() + _START_S
        wanted = self._wanted()
        while True:
            if wanted <= self.registered():
                return
            assert time.monotonic() < deadline, f"{wanted} do not all serve"
            time.sleep(0.05)

    def _wanted(self) -> set[str]:
        return {broker.name for broker in self.brokers if broker.name not in self.away}

    def registered(self) -> set[str]:
        """Masters and replicas that the name server knows."""
        cluster = Cluster(Access(self.address, retry_ms=0))
        try:
            return {
                name if number == 0 else f"{name}-replica"
                for name, data in cluster.brokers().items()
                for number in data.addresses
            }
        except SkylarkError:
            return set()
        finally:
            cluster.close()

    def kill(self, name: str) -> None:
        """Kill a broker for good: nobody starts it again."""
        self.away.add(name)
        (broker,) = [one for one in self.brokers if one.name == name]
        broker.end(signal.SIGKILL)

    def _keep(self) -> None:
        while not self._over.wait(0.05):
            for broker in self.brokers:
                if broker.name not in self.away and broker.has_died():
                    self.deaths += 1
                    broker.start()


class RaftServers(Servers):
    """A name server and one Raft group of three, whose members are n0, n1 and n2."""

    GROUP = "group-a"

    def __init__(self, home: Path) -> None:
        super().__init__(home, 0)
        peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(3))
        self._ports = [free_port() for _ in range(3)]
        shared = {
            "brokerName": self.GROUP,
            "enableDLegerCommitLog": "true",
            "dLegerPeers": peers,
            "haClusterKey": "of this test",
        }
        self.brokers = [
            self._broker(
                f"n{number}", {**shared, "dLegerSelfId": f"n{number}", "listenPort": str(port)}
            )
            for number, port in enumerate(self._ports)
        ]

    def _wanted(self) -> set[str]:
        return {self.GROUP}  # Once it has a leader.

    def kill_leader(self) -> str:
        """Kill the member that leads, which is started again as any other; its name."""
        cluster = Cluster(Access(self.address))
        try:
            address = cluster.brokers()[self.GROUP].addresses[0]
        finally:
            cluster.close()
        leader = self.brokers[self._ports.index(int(address.rpartition(":")[2]))]
        os.kill(int(leader.pid_file.read_text()), signal.SIGKILL)
        return leader.name
