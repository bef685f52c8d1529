"""The run: a cluster of processes, clients that record, faults from a seed, and the verdict.

begin    name server, brokers, topics, clients
strike   every kind of fault once, in an order from the seed, and then more until time is over;
         after each one the cluster must take messages again
end      nothing is broken any more; replicas catch up, groups get what is theirs, every queue is
         read from 0 by a new group, brokers stop, and the files of each replica are read
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..client.connect import connect
from ..client.facade import Client
from ..clock import SystemClock
from ..errors import SkylarkError
from .disks import Disk
from .fabric import Fabric
from .faults import LASTING, Breaker, disk_for
from .history import Recorder
from .nodes import NameServer, Node, NodeDied, NodePlan
from .promises import Facts, rules
from .replica_files import note_replicas
from .shim import Shim
from .verdict import Verdict, judge
from .workload import ORDERED_TOPIC, TOPIC, Shape, Workload

BACK_S: Final = 40.0  # Whatever was broken: so long after it was mended, messages are taken.
LEVEL_S: Final = 40.0
_MIB: Final = 1 << 20
# Files are small, so that they roll and fit on small disks; a run has few messages.
SMALL: Final = {
    "mappedFileSizeCommitLog": str(4 * _MIB),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "diskSpaceAmpleBytes": str(16 * _MIB),
    "cleanFileForciblyEnable": "false",  # What a full disk makes it delete would count as lost.
    "stopGraceMs": "0",
}
_QUEUES: Final = 4

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """What is to be proven, how, and for how long."""

    facts: Facts
    nodes: Sequence[NodePlan]
    kinds: Sequence[str]
    seconds: int
    seed: int


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    verdict: Verdict
    tried: dict[str, int] = field(default_factory=dict)
    how: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    back_ms: list[int] = field(default_factory=list)  # After each fault, until an acknowledgement.

    @property
    def is_clean(self) -> bool:
        """Whether everything that was promised held."""
        return self.verdict.is_clean and not self.problems


class Run:
    """One run in one directory."""

    def __init__(
        self, plan: ProofPlan, fabric: Fabric, root: Path, progress: Progress, keep: bool
    ) -> None:
        self._plan = plan
        self._fabric = fabric
        self._root = root
        self._progress = progress
        self._rng = random.Random(plan.seed)
        self._clock = SystemClock()
        self._out = (root / "history.jsonl").open("w") if keep else None
        self.recorder = Recorder(self._clock, self._out)
        self._nodes: list[Node] = []
        self._tried: dict[str, int] = {}
        self._problems: list[str] = []
        self._back_ms: list[int] = []

    async def main(self) -> Outcome:
        """Run, and judge; raises what keeps a cluster from starting."""
        task = asyncio.current_task()
        assert task is not None
        # Whoever asks us to stop wants our processes to stop as well.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        name_server = NameServer(self._fabric, self._root)
        try:
            await self._fabric.open([node.name for node in self._plan.nodes])
            await name_server.start()
            await self._start_nodes(name_server)
            how = await self._work(name_server)
            await self._read_files()
        finally:
            for node in self._nodes:
                node.close()
            name_server.close()
            await self._fabric.close()
            if self._out is not None:
                self._out.close()
        self._progress("judging")
        verdict = judge(self.recorder.history)
        return Outcome(verdict, self._tried, how, self._problems, self._back_ms)

    async def _start_nodes(self, name_server: NameServer) -> None:
        kind = disk_for(self._plan.kinds)
        shim = await self._shim()
        size = (160 + 2 * self._plan.seconds) * _MIB
        for plan in self._plan.nodes:
            root = self._root / plan.name
            disk: Disk = await asyncio.to_thread(kind, root, size)
            node = Node(plan, self._fabric, disk, root, shim)
            self._nodes.append(node)
            await self._fabric.expose(plan.name, node.ports)
        peers = ";".join(
            f"n{number}-{self._fabric.address(node.name)}:{node.ports[2]}"
            for number, node in enumerate(self._nodes)
        )
        for number, node in enumerate(self._nodes):
            raft = {"dLegerPeers": peers, "dLegerSelfId": f"n{number}"}
            is_raft = self._plan.facts.kind == "raft"
            node.configure({**SMALL, **(raft if is_raft else {})}, name_server.address)
            node.start()
        for node in self._nodes:
            await node.wait_serving()

    async def _shim(self) -> Shim | None:
        if not {"clock", "fsync-error"} & set(self._plan.kinds):
            return None
        shim = Shim(self._root)
        await asyncio.to_thread(shim.build)
        return shim

    async def _work(self, name_server: NameServer) -> dict[str, list[str]]:
        plan = self._plan
        for name, value in rules(plan.facts).items():
            self.recorder.rule(name, value)
        async with connect(
            name_server.own_address,
            env={},
            poll_name_server_interval_ms=1_000,
            heartbeat_broker_interval_ms=2_000,
            persist_consumer_offset_interval_ms=1_000,
        ) as client:
            shape = Shape(queues=_QUEUES)
            workload = Workload(client, self.recorder, self._clock, self._rng_for("clients"), shape)
            await workload.prepare()
            breaker = Breaker(self._nodes, self._fabric, self.recorder, self._rng_for("faults"))
            running = asyncio.create_task(workload.run())
            try:
                await self._strike(client, workload, breaker, running)
                await self._level(client)
                workload.stop()
                self._progress("waiting for groups")
                await running
                self._progress("reading every queue")
                await workload.drain()
                await self._level(client)
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
                    await running
            self._workload = workload
        return {kind: sorted(ways) for kind, ways in breaker.how.items()}

    def _rng_for(self, name: str) -> random.Random:
        return random.Random(f"{self._plan.seed} {name}")

    # Faults.

    async def _strike(
        self,
        client: Client,
        workload: Workload,
        breaker: Breaker,
        running: asyncio.Task[None],
    ) -> None:
        rng = self._rng_for("order")
        kinds = list(self._plan.kinds)
        rng.shuffle(kinds)
        await self._wait_back(workload, "the start")
        end = time.monotonic() + self._plan.seconds
        last = end + 2 * self._plan.seconds  # A slow machine still tries each kind once.
        waiting = list(kinds)
        while kinds and not running.done():
            if time.monotonic() > (last if waiting else end):
                break
            kind = waiting.pop(0) if waiting else rng.choice(kinds)
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            if kind in LASTING and not await self._level(client):
                return
            node = self._target(client, rng)
            self._progress(f"{kind} {node.name}")
            try:
                await breaker.strike(kind, node)
            except (NodeDied, TimeoutError) as error:
                self._problems.append(f"after {kind} of {node.name}: {error}")
                return
            self._tried[kind] = self._tried.get(kind, 0) + 1
            if not await self._wait_back(workload, f"{kind} of {node.name}"):
                return
            for one in self._nodes:
                if not one.is_running:
                    self._problems.append(f"after {kind}: {one.name} is gone: {one.last_words()}")
                    return
        if not kinds:
            await asyncio.sleep(max(0.0, end - time.monotonic()))

    def _target(self, client: Client, rng: random.Random) -> Node:
        """The master or leader more often than others: it has the most to lose."""
        masters = {
            client.session.master_address(group) for group in {n.plan.group for n in self._nodes}
        }
        leading = [node for node in self._nodes if node.address in masters]
        return rng.choice(leading if leading and rng.random() < 0.6 else self._nodes)

    async def _wait_back(self, workload: Workload, after: str) -> bool:
        """Until something is acknowledged again; notes a problem where that takes too long."""
        began, count = time.monotonic(), len(workload.acked)
        while len(workload.acked) <= count:
            if time.monotonic() - began > BACK_S:
                self._problems.append(f"no message was taken for {BACK_S:.0f} s after {after}")
                return False
            await asyncio.sleep(0.01)
        self._back_ms.append(round((time.monotonic() - began) * 1000))
        return True

    async def _level(self, client: Client) -> bool:
        """Until every node of a broker has what the furthest has now; else that is a problem."""
        self._progress("waiting for replicas")
        deadline = time.monotonic() + LEVEL_S
        goals: dict[str, int] = {}
        behind: list[str] = []
        while time.monotonic() < deadline:
            ends = {node.name: await self._end_of(client, node) for node in self._nodes}
            if not goals:
                for node in self._nodes:
                    group = node.plan.group
                    goals[group] = max(goals.get(group, 0), ends[node.name])
            behind = [n.name for n in self._nodes if ends[n.name] < goals[n.plan.group]]
            if not behind:
                return True
            await asyncio.sleep(0.1)
        text = f"{', '.join(behind)} did not catch up within {LEVEL_S:.0f} s"
        if text not in self._problems:
            self._problems.append(text)
        return False

    async def _end_of(self, client: Client, node: Node) -> int:
        with contextlib.suppress(SkylarkError, ValueError, KeyError):
            table = await client.session.broker(node.address).get_runtime_info(timeout_ms=2_000)
            return int(table["commitLogMaxOffset"])
        return -1

    # The end.

    async def _read_files(self) -> None:
        self._progress("stopping brokers, reading their files")
        # A leader that stops hands over; the others first would only elect in vain.
        for node in self._nodes:
            if not node.is_running:
                continue
            code = await node.terminate()
            if code != 0:
                self._problems.append(f"{node.name} ended with {code} when asked to stop")
        groups: dict[str, dict[str, Path]] = {}
        for node in self._nodes:
            groups.setdefault(node.plan.group, {})[node.name] = node.store
        for group, stores in groups.items():
            numbers = {q: self._workload.number(group, q) for q in range(_QUEUES)}
            topics = frozenset((TOPIC, ORDERED_TOPIC))
            await asyncio.to_thread(note_replicas, self.recorder, stores, numbers, topics)


def prove(
    plan: ProofPlan,
    fabric: Fabric,
    root: Path,
    *,
    progress: Progress = lambda text: None,
    keep: bool = False,
) -> Outcome:
    """Run a plan in an empty directory; raises KeyboardInterrupt when asked to stop."""
    try:
        return asyncio.run(Run(plan, fabric, root, progress, keep).main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
