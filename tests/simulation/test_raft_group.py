"""A Raft group with real stores and links under drawn faults, and by hand."""

from __future__ import annotations

import os
from typing import Any

import pytest
from raft_group_world import GroupWorld

from skylark.errors import SkylarkError
from skylark.testing.faults import FaultPlan, inject
from skylark.testing.transport import LinkConfig

SEEDS = int(os.environ.get("SKYLARK_SEEDS", "300")) // 25
FAULTS_MS = 40_000
WEIGHTS = {
    "partition": 3, "one_way": 2, "isolate": 3, "crash": 5, "kill": 3, "restart": 2, "pause": 2,
    "reset_storm": 2, "slow": 1, "bridge": 1, "clock_jump": 1,
}  # fmt: skip


def run(seed: int, size: int = 3, **options: Any) -> GroupWorld:
    """Trouble, among it a power cut of all and a lost disk; then all must be well again."""
    link = LinkConfig(delay_ms=1, jitter_ms=3, spike_chance=0.002)
    with GroupWorld(seed, size, link=link, disk_latency_ms=1 + seed % 7, **options) as world:
        world.run(_life)
    return world


async def _life(world: GroupWorld) -> None:
    clock, rng = world.cluster.clock, world.cluster.rng("plan")
    plan = FaultPlan.draw(
        rng, list(world.nodes), start_ms=2_000, end_ms=FAULTS_MS, gap_ms=2_500,
        duration_ms=(100, 5_000), weights=WEIGHTS,
    )  # fmt: skip
    watching = world.spawn(_watch(world))
    first, second = FaultPlan(plan.faults[: len(plan) // 2]), plan.faults[len(plan) // 2 :]
    await inject(world.cluster, first)
    if world.cluster.seed % 3 == 0:
        for node in world.nodes.values():
            node.crash()
        for node in world.nodes.values():
            node.start()
    elif world.cluster.seed % 3 == 1:
        await world.wait_level()
        node = world.nodes[rng.choice(list(world.nodes))]
        node.crash()
        world.lose_disk(node)
        node.start()
    await inject(world.cluster, FaultPlan(second))
    world.cluster.network.heal()
    healed_ms, before = clock.monotonic_ms(), len(world.acked)
    await world.wait_serving(30_000)
    while len(world.acked) <= before + 5:
        await clock.sleep_ms(50)
        assert clock.monotonic_ms() - healed_ms < 30_000, "no agreement within 30 s"
    await world.wait_level(30_000)
    watching.cancel()
    world.check_nothing_lost()


async def _watch(world: GroupWorld) -> None:
    while True:
        await world.cluster.clock.sleep_ms(100)
        world.look()


@pytest.mark.parametrize("part", range(4))
def test_nothing_agreed_is_lost_and_the_group_comes_back(part: int) -> None:
    acked = 0
    for seed in range(part, SEEDS, 4):
        try:
            acked += len(run(seed, 5 if seed % 6 == 5 else 3).acked)
        except (AssertionError, SkylarkError) as error:
            error.add_note(f"seed {seed}")
            raise
    assert acked > 50 * (SEEDS // 4)
