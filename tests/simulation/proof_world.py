"""A simulated group under the recording workload; its history is judged as a live one would be."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

from replica_world import ReplicaWorld

from skylark.client.connect import connect
from skylark.protocol.record import decode_records
from skylark.prove.history import INVOKE, OK, Recorder
from skylark.prove.payload import id_of
from skylark.prove.verdict import Verdict, judge
from skylark.prove.workload import ORDERED_TOPIC, TOPIC, Shape, Workload
from skylark.testing import SimNode

QUEUES = 2
SHAPE = Shape(
    queues=QUEUES, senders=2, ordered=1, members=1, lockers=2, gap_ms=20, body_bytes_max=300
)
RULES = {"forget_ms": 6_000, "locks_kept": 0, "vanish_disk": 1}
Strike = Callable[["ProofWorld"], Awaitable[None]]


class ProofWorld(ReplicaWorld):
    """A master and its replicas; see replica_world.py."""

    def __init__(self, seed: int, *, rules: dict[str, int] | None = None, **given: Any) -> None:
        super().__init__(seed, **given)
        self.recorder = Recorder(self.cluster.clock)
        for name, value in {**RULES, **(rules or {})}.items():
            self.recorder.rule(name, value)
        self.workload: Workload | None = None

    def begin(self, kind: str, node: SimNode) -> Callable[[], None]:
        """Note the beginning of a fault; the answer notes its end."""
        name = f"broker-a.{self.cluster_id(node)}"
        self.recorder.note("fault", INVOKE, topic=kind, node=name)
        return lambda: self.recorder.note("fault", OK, topic=kind, node=name)

    def cluster_id(self, node: SimNode) -> int:
        return 0 if node.name == "m" else int(node.name[1:])

    async def work(self, strike: Strike, *, for_ms: int, shape: Shape) -> None:
        """Let all clients work, strike in the middle, wait, drain, read the replicas."""
        await (self.wait_following() if self.replicas else self.wait_serving())
        rng = random.Random(self.rng.random())
        async with connect(
            "10.0.9.1:9876",
            network=self.app,
            clock=self.cluster.clock,
            rng=rng,
            env={},
            client_ip="10.0.9.9",
            poll_name_server_interval_ms=1_000,
            persist_consumer_offset_interval_ms=500,
        ) as client:
            workload = Workload(client, self.recorder, self.cluster.clock, rng, shape)
            await workload.prepare()
            running = asyncio.create_task(workload.run())
            await self.cluster.clock.sleep_ms(for_ms // 2)
            await strike(self)
            await self.cluster.clock.sleep_ms(for_ms // 2)
            workload.stop()
            await running
            await workload.drain()
            if self.replicas:
                with contextlib.suppress(AssertionError):  # Then the judge says so.
                    await self.wait_level(10_000)
            for node in (self.master, *self.replicas):
                self.read_replica(node, workload)

    def read_replica(self, node: SimNode, workload: Workload) -> None:
        name, store = f"broker-a.{self.cluster_id(node)}", self.store(node)
        note = self.recorder.note
        note("replica", OK, node=name)
        for topic in (TOPIC, ORDERED_TOPIC):
            for queue_id in range(QUEUES):
                offset, number = 0, workload.number("broker-a", queue_id)
                while (page := store.get(topic, queue_id, offset, 32)).message_count:
                    for record in decode_records(page.body):
                        spot = {"topic": topic, "q": number, "off": record.queue_offset}
                        note("replica", OK, id=id_of(record.body), node=name, **spot)
                    offset = page.next_offset


async def nothing(world: ProofWorld) -> None:
    """No fault at all."""


def proven(
    seed: int,
    strike: Strike = nothing,
    *,
    for_ms: int = 4_000,
    shape: Shape = SHAPE,
    **given: Any,
) -> Verdict:
    """Run, record and judge."""
    with ProofWorld(seed, **given) as world:
        world.run(lambda one: one.work(strike, for_ms=for_ms, shape=shape))
        return judge(world.recorder.history)
