"""A Raft group with real stores and links under drawn faults, and by hand."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from raft_group_world import GroupWorld

from skylark.errors import ConfigError, SkylarkError
from skylark.replication.raft_group import RaftConfig, RaftGroup
from skylark.testing.faults import FaultPlan, inject
from skylark.testing.transport import LinkConfig

SEEDS = int(os.environ.get("SKYLARK_SEEDS", "300")) // 25
FAULTS_MS = 40_000
WEIGHTS = {
    "partition": 3, "one_way": 2, "isolate": 3, "crash": 5, "kill": 3, "restart": 2, "pause": 2,
    "reset_storm": 2, "slow": 1, "bridge": 1, "clock_jump": 1,
}  # fmt: skip


def run(seed: int, size: int = 3, **options: Any) -> GroupWorld:
    """Trouble, among it a power cut of all, a lost disk, retention; then all must be well again."""
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
    world.starts = sorted(store.log.start for store in world.stores.values())


async def _watch(world: GroupWorld) -> None:
    rng = world.cluster.rng("retention")
    while True:
        await world.cluster.clock.sleep_ms(100)
        world.look()
        if world.cluster.seed % 2 and rng.random() < 0.1 and world.running():
            world.expire(rng.choice(sorted(world.running())))


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


# By hand.


def calm(scenario: Any, seed: int = 1, size: int = 3, **options: Any) -> GroupWorld:
    with GroupWorld(seed, size, **options) as world:
        world.run(scenario)
    return world


async def some_time(world: GroupWorld, duration_ms: int) -> None:
    end_ms = world.cluster.clock.monotonic_ms() + duration_ms
    while world.cluster.clock.monotonic_ms() < end_ms:
        await world.cluster.clock.sleep_ms(50)
        world.look()


def test_a_killed_leader_is_replaced_and_comes_back() -> None:
    async def scenario(world: GroupWorld) -> None:
        clock = world.cluster.clock
        for _ in range(4):
            leader = world.nodes[await world.wait_serving()]
            await some_time(world, 1_000)
            leader.crash(reset=True)
            died_ms = clock.monotonic_ms()
            assert await world.wait_serving() != leader.name
            assert clock.monotonic_ms() - died_ms < 4_000
            leader.start()
        await world.wait_level()
        world.check_nothing_lost()

    assert len(calm(scenario).acked) > 100


def test_all_lose_power_at_once_under_load() -> None:
    async def scenario(world: GroupWorld) -> None:
        for _ in range(3):
            await world.wait_serving()
            await some_time(world, 1_500)
            for node in world.nodes.values():
                node.crash()
            for node in world.nodes.values():
                node.start()
        await world.wait_serving()
        await world.wait_level()
        world.check_nothing_lost()

    assert len(calm(scenario, disk_latency_ms=20).acked) > 100


def test_who_waits_at_a_leader_that_is_cut_off_is_told_that_it_failed() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        await some_time(world, 500)
        before = world.refused
        world.cluster.network.isolate([leader])
        await some_time(world, 4_000)
        group = world.groups[leader]
        assert not group.is_serving
        assert not group.is_leader
        assert world.refused > before, "nobody was told"
        assert not group.quorum.is_replicated(0), "it speaks for the group no longer"
        assert await group.quorum.replicated(0) is False
        world.cluster.network.heal()
        await world.wait_level()
        world.check_nothing_lost()

    calm(scenario)


def test_what_was_never_agreed_is_cut_and_kept_aside() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        world.cluster.network.isolate([leader])
        await some_time(world, 3_000)
        world.cluster.network.heal()
        await world.wait_level()
        world.check_nothing_lost()
        files = world.nodes[leader].files
        assert files is not None
        names = [name for name in files.list_names("/store/diverged") if "." not in name]
        assert names
        start, size = map(int, names[0].split("-"))
        assert len(files.read(f"/store/diverged/{names[0]}")) == size
        assert start > 0

    calm(scenario)


def test_leadership_is_handed_over_in_order() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        await some_time(world, 500)
        began_ms = world.cluster.clock.monotonic_ms()
        assert await world.nodes[leader].call(lambda _: world.groups[leader].transfer(3_000))
        assert world.cluster.clock.monotonic_ms() - began_ms < 500, "it waited for a time-out"
        assert world.groups[leader].leader_id not in (None, leader)
        assert await world.wait_serving() != leader
        await world.wait_level()
        world.check_nothing_lost()

    calm(scenario)


def test_an_empty_disk_is_filled_and_its_member_votes_again() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        await some_time(world, 2_000)
        name = next(name for name in world.nodes if name != leader)
        node = world.nodes[name]
        node.crash()
        world.lose_disk(node)
        node.start()
        await some_time(world, 300)
        assert not world.groups[name].raft.may_vote or world.groups[name].log.last > 0
        await world.wait_level()
        world.check_nothing_lost()
        views = {view.id: view for view in world.groups[leader].members()}
        assert views[name].is_voter
        assert views[name].position == world.groups[leader].committed

    calm(scenario)


def test_a_log_that_is_gone_while_its_state_is_there_is_a_lost_disk() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        await some_time(world, 1_000)
        # A second term, so that the state says how long the log was.
        await world.nodes[leader].call(lambda _: world.groups[leader].transfer(3_000))
        leader = await world.wait_serving()
        await some_time(world, 1_000)
        name = next(name for name in world.nodes if name != leader)
        node = world.nodes[name]
        await node.stop()
        before = node.files
        world.lose_disk(node)
        assert before is not None
        assert node.files is not None
        node.files.make_directory("/store/config")
        for path in before.all_paths():
            if path.startswith("/store/config/") and path.endswith(".json"):
                node.files.replace(path, before.read(path))
        node.start()
        was_without_vote = False
        for _ in range(200):
            await world.cluster.clock.sleep_ms(10)
            group = world.running().get(name)
            was_without_vote |= group is not None and not group.raft.may_vote
        assert was_without_vote
        await world.wait_level()
        world.check_nothing_lost()

    calm(scenario)


def test_two_empty_disks_of_three_elect_nobody() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        await some_time(world, 1_000)
        for name, node in world.nodes.items():
            node.crash()
            if name != leader:
                world.lose_disk(node)
            node.start()
        await some_time(world, 30_000)
        assert world.server is None
        assert world.groups[leader].log.last >= len(world.agreed) > 0

    calm(scenario)


def test_a_store_without_a_group_becomes_one_with_empty_others() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.wait_serving()
        await some_time(world, 1_000)
        await world.wait_level()
        for node in world.nodes.values():
            await node.stop()
        plain = world.nodes["n1"]
        for name, node in world.nodes.items():
            if node is not plain:
                world.lose_disk(node)
            elif node.files is not None:
                node.files.remove("/store/config/raftMember.json")
                node.files.remove("/store/config/raftTerms.json")
            assert name
        for node in world.nodes.values():
            node.start()
        assert await world.wait_serving() == "n1"
        await some_time(world, 1_000)
        await world.wait_level()
        world.check_nothing_lost()

    calm(scenario)


def test_a_member_with_a_failing_disk_is_replaced_and_does_not_lead_again() -> None:
    """R3."""

    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        files = world.nodes[leader].files
        assert files is not None
        files.fail("sync", "*/commitlog/*")
        assert await other_server(world, leader)
        await some_time(world, 20_000)
        assert world.server != leader
        assert world.groups[leader].problem
        assert not world.groups[leader].is_leader
        world.look()

    calm(scenario)


def test_a_leader_whose_disk_is_full_lets_another_one_lead() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        world.stores[leader].is_disk_full = True
        assert await other_server(world, leader)
        await some_time(world, 5_000)
        name = world.server
        assert name not in (None, leader)
        assert name is not None
        world.nodes[name].crash()
        await some_time(world, 5_000)
        assert world.server not in (name, leader), "it must not lead without room"
        world.stores[leader].is_disk_full = False
        world.nodes[name].start()
        await world.wait_serving()
        await world.wait_level()
        world.check_nothing_lost()

    calm(scenario)


def test_a_member_that_cannot_save_its_vote_for_want_of_room_comes_back_with_room() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        other, third = sorted(name for name in world.nodes if name != leader)
        files = world.nodes[other].files
        assert files is not None
        files.fail("write", "*raftMember.json*", error=errno.ENOSPC, times=None)
        world.nodes[leader].crash()
        await some_time(world, 10_000)
        assert world.server is None, "a vote counts that is on no disk"
        assert "space" in world.groups[other].problem
        files.heal()
        assert await world.wait_serving() in (other, third)
        assert world.groups[other].problem == ""
        world.nodes[leader].start()
        await world.wait_level()
        world.check_nothing_lost()

    calm(scenario)


def test_an_error_of_the_body_comes_out_as_it_went_in() -> None:
    class Fails(RaftGroup):
        @asynccontextmanager
        async def running(self) -> AsyncIterator[RaftGroup]:
            with pytest.raises(KeyError, match="mine"):
                async with super().running():
                    raise KeyError("mine")
            async with super().running():
                yield self

    async def scenario(world: GroupWorld) -> None:
        await world.wait_serving()

    calm(scenario, make=Fails)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"self_id": "n7"}, "dLegerSelfId: 'n7' is not among the ids of dLegerPeers"),
        ({"group": ""}, "dLegerGroup"),
        ({"peers": {"n0": ("h", 1), "n;1": ("h", 2)}}, "'n;1' is not an id"),
        ({"peers": {"n0": ("h", 1), "n1": ("h", 1)}}, "two members have the same address"),
        ({"heartbeat_ms": 1_000}, "three of them to an election"),
    ],
)
def test_a_wrong_set_up_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    config: dict[str, Any] = {
        "group": "g", "self_id": "n0", "peers": {"n0": ("h", 1), "n1": ("h", 2)}, **change
    }  # fmt: skip
    with pytest.raises(ConfigError, match=why):
        RaftConfig(**config)


async def other_server(world: GroupWorld, name: str) -> bool:
    for _ in range(600):
        if world.server not in (None, name):
            return True
        await world.cluster.clock.sleep_ms(50)
    return False


def test_an_empty_member_begins_where_retention_has_left_the_log() -> None:
    async def scenario(world: GroupWorld) -> None:
        leader = await world.wait_serving()
        await some_time(world, 2_500)
        await world.wait_level()
        log = world.stores[leader].log
        assert len(log.mapped.files) > 3
        log.detach_first().remove()
        log.detach_first().remove()
        name = next(name for name in world.nodes if name != leader)
        node = world.nodes[name]
        node.crash()
        world.lose_disk(node)
        node.start()
        await some_time(world, 500)
        await world.wait_level()
        assert world.stores[name].log.start == log.start > 0
        world.look()
        node.crash()
        node.start()
        await some_time(world, 500)
        await world.wait_level()
        world.look()

    calm(scenario)


def test_with_a_cluster_key_it_works_as_well() -> None:
    assert len(run(2, key=b"secret").acked) > 50
