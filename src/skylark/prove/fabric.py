"""Fabric: the network between proven nodes, which can be cut in any direction, and slowed down.

namespaces   each node in a network namespace of its own, on a bridge in the run's own one; a cut
             sends a node's frames for another to an address that nobody has, so that they vanish
             without a word, in one direction at a time
proxies      all on loopback; each node's ports are reached through proxies of the run (proxies.py)

The run enters a network and a mount namespace of its own first, so that nothing outside sees any
of this, and all of it is gone with the last process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

OUTSIDE: Final = "outside"  # Name server and clients.
_NEW_MOUNTS, _NEW_NET = 0x00020000, 0x40000000
_NET: Final = "10.77.0"
_NOBODY: Final = "02:77:00:00:00:ff"
_SLOW_MS: Final = 150
_NETEM: Final = ("netem", "delay", f"{_SLOW_MS}ms", "50ms")
_NARROW: Final = ("tbf", "rate", "512kbit", "burst", "4kb", "latency", "400ms")

Cut = tuple[str, str]  # From, to.


class Fabric(Protocol):
    """What a run needs of a network."""

    name: str
    base_port: int  # The name server's; brokers count from there.

    async def open(self, nodes: Sequence[str]) -> None:
        """Make it; nodes are known by these names from now on."""
        ...

    def bound(self, node: str) -> str:
        """The address that a node listens on."""
        ...

    def address(self, node: str) -> str:
        """The address that others reach it by."""
        ...

    async def expose(self, node: str, ports: Iterable[int]) -> None:
        """Let others reach these ports of a node."""
        ...

    def command(self, node: str, words: Sequence[str]) -> list[str]:
        """The command that runs another one at a node."""
        ...

    def started(self, node: str, pid: int) -> None:
        """A node's process has begun."""
        ...

    def cut(self, cuts: Iterable[Cut]) -> None:
        """Let nothing pass from one to the other; all that was cut before passes again."""
        ...

    def slow(self, nodes: Iterable[str]) -> str:
        """Slow down these nodes and no others; says how."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


def missing_for_namespaces() -> str | None:
    """Why network namespaces cannot be had here, or None."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "nsenter", "unshare", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = "ip link add prove0 type bridge && ip link add prove1 type veth peer name prove2"
    done = subprocess.run(["unshare", "-n", "sh", "-c", probe], capture_output=True, check=False)
    if done.returncode != 0:
        return done.stderr.decode(errors="replace").strip() or "unshare failed"
    return None


def leave_the_world(*, network: bool) -> None:
    """Enter namespaces of our own: mounts, and if asked the network; raises OSError.

    Only the calling thread and what it starts are in them, so this comes before any other thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS | (_NEW_NET if network else 0)) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)
    if network:
        _ip("link", "set", "lo", "up")


class Namespaces:
    """A bridge with a namespace for each node."""

    name = "namespaces"
    base_port = 9_876

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers: dict[str, int] = {OUTSIDE: 1}
        self._cuts: set[Cut] = set()
        self._slowed: set[str] = set()
        self._queue: tuple[str, ...] = _NETEM

    async def open(self, nodes: Sequence[str]) -> None:
        _ip("link", "add", "prove0", "type", "bridge")
        _ip("link", "set", "prove0", "address", _mac(1), "up")
        _ip("addr", "add", f"{_NET}.1/24", "dev", "prove0")
        for number, node in enumerate(nodes, 10):
            self._numbers[node] = number
            holder = self._holders[node] = _new_namespace()
            peer = ("type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            _ip("link", "add", f"prove{number}", *peer)
            _ip("link", "set", f"prove{number}", "master", "prove0", "up")
            self._at(node, "ip", "link", "set", "lo", "up")
            self._at(node, "ip", "link", "set", "eth0", "address", _mac(number), "up")
            self._at(node, "ip", "addr", "add", f"{_NET}.{number}/24", "dev", "eth0")
        for source in self._numbers:
            for target in self._numbers:
                if source != target:
                    self._point(source, target, _mac(self._numbers[target]))

    def bound(self, node: str) -> str:
        return self.address(node)

    def address(self, node: str) -> str:
        return f"{_NET}.{self._numbers[node]}"

    async def expose(self, node: str, ports: Iterable[int]) -> None:
        """All are reachable as they are."""

    def command(self, node: str, words: Sequence[str]) -> list[str]:
        if node == OUTSIDE:
            return list(words)
        return ["nsenter", "-t", str(self._holders[node].pid), "-n", "--", *words]

    def started(self, node: str, pid: int) -> None:
        """A process is known by its namespace."""

    def cut(self, cuts: Iterable[Cut]) -> None:
        wanted = set(cuts)
        for source, target in self._cuts - wanted:
            self._point(source, target, _mac(self._numbers[target]))
        for source, target in wanted - self._cuts:
            self._point(source, target, _NOBODY)
        self._cuts = wanted

    def slow(self, nodes: Iterable[str]) -> str:
        wanted = set(nodes)
        for node in self._slowed - wanted:
            self._at(node, "tc", "qdisc", "del", "dev", "eth0", "root")
        for node in wanted - self._slowed:
            try:
                self._at(node, "tc", "qdisc", "add", "dev", "eth0", "root", *self._queue)
            except subprocess.CalledProcessError:
                if self._queue == _NARROW:
                    raise
                self._queue = _NARROW  # A kernel without netem.
                self._at(node, "tc", "qdisc", "add", "dev", "eth0", "root", *self._queue)
        self._slowed = wanted
        return f"{_SLOW_MS} ms" if self._queue == _NETEM else "512 kbit/s (no netem here)"

    async def close(self) -> None:
        for holder in self._holders.values():
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait(10)

    def _point(self, source: str, target: str, mac: str) -> None:
        device = "prove0" if source == OUTSIDE else "eth0"
        words = ("neigh", "replace", self.address(target), "lladdr", mac, "dev", device)
        self._at(source, "ip", *words, "nud", "permanent")

    def _at(self, node: str, *words: str) -> None:
        subprocess.run(self.command(node, words), check=True, capture_output=True)


def _new_namespace() -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own."""
    # It reads from a pipe of ours: however we end, it ends as well.
    holder = subprocess.Popen(
        ["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    ours = os.readlink("/proc/self/ns/net")
    for _ in range(2_000):
        if os.readlink(f"/proc/{holder.pid}/ns/net") != ours:
            return holder
        time.sleep(0.005)
    raise AssertionError("unshare made no namespace")


def _mac(number: int) -> str:
    return f"02:77:00:00:00:{number:02x}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
