"""FaultPlan: what goes wrong, when and for how long; drawn, printed, replayed, minimised.

Every fault carries its own end, so any subset of a plan is a plan, and after the last one nothing
is broken any more: the run can then ask whether everything comes back.

    line    <at ms> <duration ms> <kind> <nodes> <other nodes> <amount>
    e.g.    12500 8000 partition ns-a,broker-1 broker-2,client-7 0
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .cluster import SimCluster, SimNode

# How often each kind is drawn, relative to the others.
WEIGHTS: Mapping[str, int] = {
    "partition": 4,  # nodes | others see nothing of each other
    "one_way": 3,  # nothing gets from nodes to others
    "isolate": 4,  # nodes see nobody
    "ring": 1,  # each of nodes sees its two neighbours only
    "bridge": 1,  # nodes | others are cut, the rest sees both
    "crash": 4,  # power cut, and on again at the end
    "kill": 3,  # kill -9, and started again at the end
    "restart": 2,  # stopped in order, and started again at the end
    "pause": 4,  # SIGSTOP, SIGCONT
    "clock_jump": 3,  # wall clock off by amount ms, and back at the end
    "reset_storm": 2,  # all connections of nodes are reset, once
    "slow": 3,  # amount ms on top of every delay from and to nodes
}
_JUMPS_MS = (1_000, 60_000, 3_600_000, 86_400_000)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong for a while."""

    at_ms: int
    duration_ms: int
    kind: str
    nodes: tuple[str, ...]
    others: tuple[str, ...] = ()
    amount: int = 0

    def __post_init__(self) -> None:
        if self.kind not in WEIGHTS:
            raise ValueError(f"no fault {self.kind!r}; there are {', '.join(WEIGHTS)}")

    def __str__(self) -> str:
        nodes, others = ",".join(self.nodes) or "-", ",".join(self.others) or "-"
        return f"{self.at_ms} {self.duration_ms} {self.kind} {nodes} {others} {self.amount}"

    @classmethod
    def parse(cls, line: str) -> Fault:
        """Read what str() wrote."""
        try:
            at_ms, duration_ms, kind, nodes, others, amount = line.split()
            return cls(
                int(at_ms), int(duration_ms), kind, _names(nodes), _names(others), int(amount)
            )
        except ValueError as error:
            raise ValueError(f"not a fault: {line!r} ({error})") from error


def _names(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults in the order of their beginning."""

    faults: tuple[Fault, ...] = ()

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __len__(self) -> int:
        return len(self.faults)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read what str() wrote."""
        return cls(tuple(Fault.parse(line) for line in text.splitlines() if line.strip()))

    @classmethod
    def draw(
        cls,
        rng: random.Random,
        nodes: Sequence[str],
        *,
        start_ms: int,
        end_ms: int,
        gap_ms: int = 30_000,
        duration_ms: tuple[int, int] = (500, 60_000),
        weights: Mapping[str, int] = WEIGHTS,
    ) -> FaultPlan:
        """Draw faults over a span, one every gap_ms on average, all of them over at its end."""
        kinds = list(weights)
        faults = []
        at_ms = start_ms + int(rng.expovariate(1 / gap_ms))
        while at_ms < end_ms:
            kind = rng.choices(kinds, [weights[kind] for kind in kinds])[0]
            lasts_ms = min(rng.randint(*duration_ms), end_ms - at_ms)
            faults.append(_draw_fault(rng, kind, nodes, at_ms, lasts_ms))
            at_ms += 1 + int(rng.expovariate(1 / gap_ms))
        return cls(tuple(faults))

    @property
    def end_ms(self) -> int:
        """When the last fault is over."""
        return max((fault.at_ms + fault.duration_ms for fault in self.faults), default=0)


def _draw_fault(
    rng: random.Random, kind: str, nodes: Sequence[str], at_ms: int, duration_ms: int
) -> Fault:
    order = rng.sample(list(nodes), len(nodes))
    some = max(1, min(len(order) - 1, rng.randint(1, max(1, len(order) // 2))))
    chosen: Iterable[str] = order[:1]
    others: Iterable[str] = ()
    amount = 0
    if kind in ("partition", "one_way"):
        chosen, others = order[:some], order[some:]
    elif kind == "ring":
        chosen = order
    elif kind == "bridge":
        chosen, others = order[:some], order[some + 1 :]
    elif kind in ("isolate", "reset_storm", "slow"):
        chosen = order[: rng.randint(1, some)]
    if kind == "clock_jump":
        amount = rng.choice(_JUMPS_MS) * rng.choice((-1, 1))
    elif kind == "slow":
        amount = rng.randint(50, 3000)
    return Fault(at_ms, duration_ms, kind, tuple(chosen), tuple(others), amount)


async def inject(cluster: SimCluster, plan: FaultPlan) -> None:
    """Do what a plan says, each fault at its time, and return when the last one is over.

    A fault that finds its node in the hands of another one (a pause of a node that is down) is
    skipped. Cancelled, it takes back what it has done so far.
    """
    async with asyncio.TaskGroup() as group:
        for fault in plan:
            group.create_task(_apply(cluster, fault), name=str(fault))


async def _apply(cluster: SimCluster, fault: Fault) -> None:
    clock = cluster.clock
    await clock.sleep_ms(fault.at_ms - clock.monotonic_ms())
    cluster.note("fault", fault)
    end = await _begin(cluster, fault)
    if end is not None:
        try:
            await clock.sleep_ms(fault.duration_ms)
        finally:
            cluster.note("fault-end", fault)
            end()


async def _begin(cluster: SimCluster, fault: Fault) -> Callable[[], object] | None:
    """Break something; return how to mend it, or None where there is nothing to mend."""
    network = cluster.network
    kind = fault.kind
    if kind in ("partition", "one_way"):
        return network.partition(fault.nodes, fault.others, one_way=kind == "one_way").heal
    if kind == "isolate":
        return network.isolate(fault.nodes).heal
    if kind == "ring":
        return network.ring(fault.nodes).heal
    if kind == "bridge":
        return network.bridge(fault.nodes, fault.others).heal
    if kind == "slow":
        network.slow(fault.nodes, fault.amount)
        return lambda: network.slow(fault.nodes, 0)
    if kind == "reset_storm":
        network.reset(fault.nodes)
        return None
    node = cluster.nodes[fault.nodes[0]]
    if kind == "clock_jump":
        node.clock.jump_ms(fault.amount)
        return lambda: node.clock.jump_ms(-fault.amount)
    if not node.is_running or node.is_paused:
        return None
    if kind == "pause":
        node.pause()
        return _undo(node, node.resume)
    mend = _undo(node, lambda: None if node.is_running else node.start())
    if kind == "restart":
        try:
            await node.stop()
        except asyncio.CancelledError:
            mend()
            raise
    else:
        node.crash(reset=kind == "kill")
    return mend


def _undo(node: SimNode, undo: Callable[[], object]) -> Callable[[], object]:
    """Mend only the process that was broken, not one that somebody has started since."""
    starts = node.starts
    return lambda: undo() if node.starts == starts else None


def minimise(plan: FaultPlan, fails: Callable[[FaultPlan], bool]) -> FaultPlan:
    """Drop faults, many at a time and then one by one, as long as the run still fails."""
    if not fails(plan):
        raise ValueError("the plan does not fail, so there is nothing to minimise")
    faults = list(plan.faults)
    step = max(1, len(faults) // 2)
    while True:
        before = len(faults)
        at = 0
        while at < len(faults):
            fewer = faults[:at] + faults[at + step :]
            if fails(FaultPlan(tuple(fewer))):
                faults = fewer
            else:
                at += step
        if step == 1 and len(faults) == before:
            return FaultPlan(tuple(faults))
        step = max(1, step // 2)
