"""A simulated Raft group under the recording workload: its history is clean.

Here locks and committed offsets outlive every fault, and appends and reads are linearizable, so the
judge excuses nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest
from broker_group_world import LEASE_MS, NAME_SERVER, BrokerGroupWorld
from proof_world import SHAPE

from skylark.client.connect import connect
from skylark.protocol.record import decode_records
from skylark.prove.history import INVOKE, OK, Recorder
from skylark.prove.payload import id_of
from skylark.prove.verdict import Verdict, judge
from skylark.prove.workload import ORDERED_TOPIC, TOPIC, Workload
from skylark.testing import SimNode

QUEUES = 2
RULES = {"lease_ms": LEASE_MS}


class Proof:
    """One run: clients work, the leader is hurt, all is mended and read."""

    def __init__(self, seed: int, hurt: str) -> None:
        self.hurt = hurt
        self.world = BrokerGroupWorld(seed)
        self.recorder = Recorder(self.world.clock)
        for name, value in RULES.items():
            self.recorder.rule(name, value)

    def judged(self) -> Verdict:
        with self.world as world:
            world.run(self._main)
        return judge(self.recorder.history)

    async def _main(self, world: BrokerGroupWorld) -> None:
        await world.wait_leader()
        rng = random.Random(world.rng.random())
        async with connect(
            NAME_SERVER,
            network=world.app,
            clock=world.clock,
            rng=rng,
            env={},
            client_ip="10.0.9.9",
            poll_name_server_interval_ms=1_000,
            persist_consumer_offset_interval_ms=500,
        ) as client:
            shape = dataclasses.replace(SHAPE, queues=QUEUES)
            workload = Workload(client, self.recorder, world.clock, rng, shape)
            await workload.prepare()
            running = asyncio.create_task(workload.run())
            await world.clock.sleep_ms(1_000)
            await self._strike(world)
            await world.clock.sleep_ms(1_500)
            workload.stop()
            await running
            await world.wait_level()
            await workload.drain()
            await world.wait_level()
            for node in world.nodes:
                self._read(node, workload)

    async def _strike(self, world: BrokerGroupWorld) -> None:
        leader = await world.wait_leader()
        hurt = world.nodes if self.hurt == "all-power-cut" else [leader]
        names = ",".join(f"group-a.{node.name[1:]}" for node in hurt)
        self.recorder.note("fault", INVOKE, topic=self.hurt, node=names)
        for node in hurt:
            node.crash(reset=self.hurt == "kill")
        await world.clock.sleep_ms(300)
        for node in hurt:
            node.start()
        await world.wait_leader()
        self.recorder.note("fault", OK, topic=self.hurt, node=names)

    def _read(self, node: SimNode, workload: Workload) -> None:
        name, store = f"group-a.{node.name[1:]}", self.world.store(node)
        self.recorder.note("replica", OK, node=name)
        for topic in (TOPIC, ORDERED_TOPIC):
            for queue_id in range(QUEUES):
                offset, number = 0, workload.number("group-a", queue_id)
                while (page := store.get(topic, queue_id, offset, 32)).message_count:
                    for record in decode_records(page.body):
                        spot = {"topic": topic, "q": number, "off": record.queue_offset}
                        self.recorder.note("replica", OK, id=id_of(record.body), node=name, **spot)
                    offset = page.next_offset


@pytest.mark.parametrize("hurt", ["kill", "all-power-cut"])
def test_a_group_keeps_everything_that_it_promises(hurt: str) -> None:
    verdict = Proof(3, hurt).judged()
    assert [(one.kind, one.count, one.example) for one in verdict.anomalies] == []
    assert verdict.figures.acknowledged > 50
