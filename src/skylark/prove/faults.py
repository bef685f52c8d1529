"""Faults: what a run can break, which of it can be broken here, and how it is done.

kill            SIGKILL, started again        power-cut       ext4 shut down, as if unplugged
stop            SIGSTOP, SIGCONT              all-power-cut   the same on all machines at once
partition       one node, halves, ring,       disk-lost       killed, and started on an empty disk
                bridge, one way               disk-full       no room for a while
delay           a slow network                fsync-error     syncs fail; then it is started again
clock           the wall clock jumps

One at a time, and each is over before the next: promises are about one machine. Before a machine
loses something for good, its replicas have caught up.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from .disks import Disk, LoopDisk, MemoryDisk, missing_for
from .fabric import OUTSIDE, Cut, Fabric
from .history import INVOKE, OK, Recorder
from .nodes import Node
from .shim import Shim

KINDS: Final = {
    "kill": "a process is killed and started again",
    "stop": "a process stands still",
    "partition": "some machines do not hear others",
    "delay": "the network is slow",
    "clock": "a wall clock jumps",
    "fsync-error": "a disk fails to sync",
    "disk-full": "a disk is full",
    "power-cut": "a machine loses power",
    "disk-lost": "a machine comes back with an empty disk",
    "all-power-cut": "all machines lose power at once",
}
# A machine loses something in these; the others must have it before.
LASTING: Final = frozenset({"power-cut", "disk-lost", "all-power-cut", "fsync-error"})
SHAPES: Final = ("one node", "halves", "ring", "bridge", "hears nothing", "says nothing")
_JUMPS_MS: Final = (-86_400_000, -3_600_000, 3_600_000, 86_400_000)


def disk_for(kinds: Sequence[str]) -> type[Disk]:
    """The kind of disk that these faults need and this machine has."""
    if any(kind.endswith("power-cut") for kind in kinds) and missing_for(LoopDisk) is None:
        return LoopDisk
    if "disk-full" in kinds and missing_for(MemoryDisk) is None:
        return MemoryDisk
    return Disk


def missing(kind: str, fabric: str) -> str | None:
    """Why a fault cannot be tried on this machine, or None."""
    if kind in ("clock", "fsync-error"):
        return Shim.missing()
    if kind in ("power-cut", "all-power-cut"):
        return missing_for(LoopDisk)
    if kind == "disk-full" and missing_for(MemoryDisk) is not None:
        return missing_for(LoopDisk)
    if kind == "delay" and fabric == "namespaces" and shutil.which("tc") is None:
        return "tc is not installed"
    return None


def cuts_of(shape: str, nodes: Sequence[str], rng: random.Random) -> set[Cut]:
    """Who does not reach whom; whoever is outside may be on either side."""
    order = rng.sample(list(nodes), len(nodes))
    everyone = [*order, OUTSIDE]
    if shape in ("hears nothing", "says nothing"):
        others = [name for name in everyone if name != order[0]]
        if shape == "hears nothing":
            return {(other, order[0]) for other in others}
        return {(order[0], other) for other in others}
    if shape == "ring":
        # Each sees its two neighbours; those outside see all.
        count = len(order)
        far = {
            (one, other)
            for at, one in enumerate(order)
            for to, other in enumerate(order)
            if 1 < (to - at) % count < count - 1
        }
        return far or both_ways([order[0]], order[1:])
    if shape == "bridge" and len(order) > 2:
        middle = len(order) // 2
        return both_ways(order[:middle], order[middle + 1 :])
    if shape == "halves" and len(order) > 1:
        left = order[: len(order) // 2]
        right = [name for name in order if name not in left]
        (left if rng.random() < 0.5 else right).append(OUTSIDE)
        return both_ways(left, right)
    return both_ways(order[:1], everyone[1:])


def both_ways(left: Sequence[str], right: Sequence[str]) -> set[Cut]:
    """Nothing passes between two sides."""
    return {pair for a in left for b in right for pair in ((a, b), (b, a))}


class Breaker:
    """Breaks things, mends them, and notes both."""

    def __init__(
        self, nodes: Sequence[Node], fabric: Fabric, recorder: Recorder, rng: random.Random
    ) -> None:
        self._nodes = list(nodes)
        self._fabric = fabric
        self._recorder = recorder
        self._rng = rng
        self.how: dict[str, set[str]] = {}  # Kind → in which ways it was done.
        self._ways: dict[str, Callable[[Node], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "partition": self._partition,
            "delay": self._delay,
            "clock": self._clock,
            "fsync-error": self._fsync_error,
            "disk-full": self._disk_full,
            "power-cut": self._power_cut,
            "disk-lost": self._disk_lost,
            "all-power-cut": self._all_power_cut,
        }

    async def strike(self, kind: str, node: Node) -> None:
        """Let one thing happen to a node, or to all; returns when it is over."""
        who = ",".join(one.name for one in self._nodes) if kind.startswith("all-") else node.name
        self._recorder.note("fault", INVOKE, topic=kind, node=who)
        try:
            await self._ways[kind](node)
        finally:
            self._recorder.note("fault", OK, topic=kind, node=who)

    async def _lasts(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(least_s, most_s))

    async def _restart(self, *nodes: Node) -> None:
        for node in nodes:
            node.start()
        for node in nodes:
            await node.wait_serving()

    async def _kill(self, node: Node) -> None:
        await node.kill()
        await self._lasts(0.1, 1.5)
        await self._restart(node)

    async def _stop(self, node: Node) -> None:
        node.signal(signal.SIGSTOP)
        try:
            await self._lasts(0.5, 4)
        finally:
            node.signal(signal.SIGCONT)

    async def _partition(self, node: Node) -> None:
        shape = self._rng.choice(SHAPES)
        self.how.setdefault("partition", set()).add(shape)
        self._fabric.cut(cuts_of(shape, [one.name for one in self._nodes], self._rng))
        try:
            await self._lasts(1, 4)
        finally:
            self._fabric.cut(())

    async def _delay(self, node: Node) -> None:
        self.how.setdefault("delay", set()).add(self._fabric.slow([node.name]))
        try:
            await self._lasts(1, 4)
        finally:
            self._fabric.slow(())

    async def _clock(self, node: Node) -> None:
        assert node.shim is not None
        jump_ms = self._rng.choice(_JUMPS_MS)
        self.how.setdefault("clock", set()).add(f"{jump_ms / 3_600_000:+.0f} h")
        node.shim.jump(jump_ms)
        try:
            await self._lasts(1, 3)
        finally:
            node.shim.jump(0)

    async def _fsync_error(self, node: Node) -> None:
        """An operator's way out of it is to start the broker again, as the log says."""
        assert node.shim is not None
        node.shim.fail_syncs(True)
        try:
            await self._lasts(1, 2)
        finally:
            node.shim.fail_syncs(False)
        self._recorder.note("fault", INVOKE, topic="kill", node=node.name)
        await node.kill()
        await self._restart(node)
        self._recorder.note("fault", OK, topic="kill", node=node.name)

    async def _disk_full(self, node: Node) -> None:
        await asyncio.to_thread(node.disk.fill)
        try:
            await self._lasts(2, 4)
        finally:
            node.disk.free()

    async def _power_cut(self, node: Node) -> None:
        await self._cut_power(node)

    async def _all_power_cut(self, node: Node) -> None:
        await self._cut_power(*self._nodes)

    async def _cut_power(self, *nodes: Node) -> None:
        for node in nodes:  # At one moment, as far as they can tell.
            node.signal(signal.SIGSTOP)
        for node in nodes:
            node.disk.cut_power()
        for node in nodes:
            await node.kill()
        await self._lasts(0.1, 1)
        for node in nodes:
            await asyncio.to_thread(node.disk.power_on)
        await self._restart(*nodes)

    async def _disk_lost(self, node: Node) -> None:
        await node.kill()
        await asyncio.to_thread(node.disk.wipe)
        await self._lasts(0.1, 1)
        await self._restart(node)
