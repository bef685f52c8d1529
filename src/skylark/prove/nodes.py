"""Node: one broker of a proven cluster, as a process on a disk and in a network of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .disks import Disk
from .fabric import OUTSIDE, Fabric
from .shim import Shim, ShimState

SERVING_S: Final = 60.0
_STOPPING_S: Final = 30.0
HA_STEP: Final = 1
RAFT_STEP: Final = 30
BROKER_STEP: Final = 1_035  # 10911, as usual, where the name server has 9876.


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a node is: broker-a.1 is the second of broker-a."""

    name: str
    group: str
    settings: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None  # The user's; the node gets a copy, which it may write to.


class NodeDied(Exception):
    """A process ended that nobody had ended."""


class Node:
    """One process, which may be ended and begun again."""

    def __init__(
        self, plan: NodePlan, fabric: Fabric, disk: Disk, root: Path, shim: Shim | None
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.disk = disk
        self.store = disk.place / "store"
        self.port = fabric.base_port + BROKER_STEP
        self._fabric = fabric
        self._log_path = root / "broker.log"
        self._shim = shim
        self.shim = ShimState(root / "shim.state") if shim is not None else None
        self._process: subprocess.Popen[bytes] | None = None
        self._settings: dict[str, str] = {}
        self._file: Path | None = None
        if plan.file is not None:
            self._file = root / f"broker{plan.file.suffix}"
            shutil.copyfile(plan.file, self._file)

    @property
    def address(self) -> str:
        """Where others find it."""
        return f"{self._fabric.address(self.name)}:{self.port}"

    @property
    def ports(self) -> tuple[int, int, int]:
        """What others connect to: clients, replicas, members of a Raft group."""
        return self.port, self.port + HA_STEP, self.port + RAFT_STEP

    def configure(self, settings: Mapping[str, str], name_server: str) -> None:
        """Set what the run decides; it wins over the plan."""
        own = {
            "listenHost": self._fabric.bound(self.name),
            "listenPort": str(self.port),
            "brokerIP1": self._fabric.address(self.name),
            "brokerIP2": self._fabric.address(self.name),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": "",
            "namesrvAddr": name_server,
            "advertisedAddressCheck": "false",
        }
        self._settings = {**self.plan.settings, **settings, **own}

    def start(self) -> None:
        """Begin."""
        words = [sys.executable, "-m", "skylark.cli", "broker", "--log-dir", "-"]
        words += [] if self._file is None else ["-c", str(self._file)]
        for key, value in self._settings.items():
            words += ["--set", f"{key}={value}"] if value else []
        self._process = start_process(
            self._fabric.command(self.name, words),
            self._log_path,
            self._shim.environment(self.shim) if self._shim and self.shim else {},
        )
        self._fabric.started(self.name, self._process.pid)

    async def wait_serving(self) -> None:
        """Until it takes connections; raises NodeDied or TimeoutError."""
        await wait_listening(self._fabric.bound(self.name), self.port, self.require_alive)

    def require_alive(self) -> None:
        """Raise NodeDied with the end of its log, if it is gone."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise NodeDied(f"{self.name} ended by itself with {code}: {self.last_words()}")

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        """The last line of its log."""
        return last_words(self._log_path)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        await self._wait()

    async def terminate(self) -> int:
        """Ask it to stop; returns its exit code."""
        self.signal(signal.SIGTERM)
        return await self._wait()

    async def _wait(self) -> int:
        process = self._process
        if process is None:
            return 0
        code = await asyncio.to_thread(process.wait, _STOPPING_S)
        self._process = None
        return code

    def close(self) -> None:
        """End it whatever it does, and give its disk back."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.disk.close()


class NameServer:
    """The name server of a run, beside its clients."""

    def __init__(self, fabric: Fabric, root: Path) -> None:
        self._fabric = fabric
        self._root = root
        self.port = fabric.base_port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where brokers find it."""
        return f"{self._fabric.address(OUTSIDE)}:{self.port}"

    @property
    def own_address(self) -> str:
        """Where our clients find it, past any fault."""
        return f"{self._fabric.bound(OUTSIDE)}:{self.port}"

    async def start(self) -> None:
        """Begin, and wait until it serves."""
        host = self._fabric.bound(OUTSIDE)
        words = [sys.executable, "-m", "skylark.cli", "namesrv", "-p", str(self.port)]
        for key, value in (
            ("listenHost", host),
            ("kvConfigPath", str(self._root / "kvConfig.json")),
            ("configStorePath", str(self._root / "namesrv.properties")),
        ):
            words += ["--set", f"{key}={value}"]
        log = self._root / "namesrv.log"
        self._process = start_process([*words, "--log-dir", "-"], log, {})
        await wait_listening(host, self.port, self._require_alive)
        await self._fabric.expose(OUTSIDE, [self.port])

    def _require_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            said = last_words(self._root / "namesrv.log")
            raise NodeDied(f"the name server ended with {self._process.returncode}: {said}")

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def start_process(
    words: list[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command of ours with its words going to a file; it does not outlive us."""
    setpriv = shutil.which("setpriv")
    guard = [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SKYLARK_")}
    with log.open("ab") as out:
        return subprocess.Popen(
            [*guard, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**plain, "HOME": str(log.parent), **environment},
        )


def last_words(log: Path) -> str:
    """The last line of a log."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"
    return "it said nothing"


async def wait_listening(host: str, port: int, check: Callable[[], None]) -> None:
    """Until something takes connections there."""
    deadline = time.monotonic() + SERVING_S
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing serves at {host}:{port} in {SERVING_S} s") from None
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
