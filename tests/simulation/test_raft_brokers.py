"""Three whole brokers in a Raft group through failovers: nothing acknowledged is ever lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_group_world import BrokerGroupWorld

from skylark.broker import durability
from skylark.broker.locks import QueueLocks
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.state_log import StateLog
from skylark.testing.checks import eventually

SEEDS = (0, 1, 2)
ROUNDS = 6


async def _hurt(world: BrokerGroupWorld, kind: str) -> None:
    """Let something happen to the leader, and be over after a while."""
    leader = world.leader() or world.rng.choice(world.nodes)
    lasts_ms = world.rng.randrange(1_500, 4_000)
    world.cluster.note(kind, leader.name)
    if kind == "kill":
        leader.crash(reset=True)
        await world.clock.sleep_ms(lasts_ms)
        leader.start()
    elif kind == "power cut":
        leader.crash()
        await world.clock.sleep_ms(lasts_ms)
        leader.start()
    elif kind == "stop":
        await leader.stop()
        await world.clock.sleep_ms(lasts_ms)
        leader.start()
    elif kind == "pause":
        leader.pause()
        await world.clock.sleep_ms(lasts_ms)
        leader.resume()
    elif kind == "isolate":
        others = [node.address for node in world.nodes if node is not leader]
        cut = world.cluster.network.partition([leader.address], others)
        await world.clock.sleep_ms(lasts_ms)
        cut.heal()
    elif kind == "all power":
        for node in world.nodes:
            node.crash()
        await world.clock.sleep_ms(500)
        for node in world.nodes:
            node.start()
    else:
        assert kind == "new disk"
        leader.crash()
        world.lose_disk(leader)
        await world.clock.sleep_ms(lasts_ms)
        leader.start()
        await world.wait_readmitted(leader)  # Two lost disks are too many for three machines.


def run_failovers(seed: int) -> int:
    """A leader that is hurt in one way after another, under traffic, and the judge at the end.

    Returns how many messages were acknowledged.
    """

    async def scenario(world: BrokerGroupWorld) -> None:
        await world.wait_leader()
        kinds = ["kill", "power cut", "stop", "pause", "isolate", "all power", "new disk"]
        world.rng.shuffle(kinds)
        async with world.traffic():
            await world.clock.sleep_ms(2_000)
            for kind in kinds[:ROUNDS]:
                await _hurt(world, kind)
                world.look()
                await world.wait_leader()
                await world.clock.sleep_ms(world.rng.randrange(1_000, 3_000))
            before = len(world.acked)
            await world.clock.sleep_ms(3_000)
            assert len(world.acked) > before, "writes go on"
        await world.wait_level()
        world.judge()
        assert len(world.acked) > 200
        assert len(world.made | world.deleted) > 5
        assert world.told > 0
        assert max(world.outages, default=0) < 10_000, world.outages

    with BrokerGroupWorld(seed) as world:
        world.run(scenario)
        return len(world.acked)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_and_all_members_agree_through_failovers(seed: int) -> None:
    run_failovers(seed)


def _plant_early_answers(patch: pytest.MonkeyPatch) -> None:
    async def settled(self: StateLog) -> None:
        """Answer before the group has agreed."""

    patch.setattr(StateLog, "settled", settled)


def _plant_forgotten_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueLocks, "begin_leading", lambda self: self._locks.clear())


def _plant_success_for_what_is_lost(patch: pytest.MonkeyPatch) -> None:
    def replicated(self: durability._Wait, done: object) -> None:
        if self._leave is not None:
            self._finish(None)

    patch.setattr(durability._Wait, "_replicated", replicated)


def _plant_offsets_told_too_early(patch: pytest.MonkeyPatch) -> None:
    get = ConsumerOffsets.get
    patch.setattr(
        ConsumerOffsets,
        "get",
        lambda self, *place: self._ahead.get(place, get(self, *place)),
    )


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_plant_early_answers, "told"),
        (_plant_forgotten_owners, "own"),
        (_plant_success_for_what_is_lost, "lost at"),
        (_plant_offsets_told_too_early, "told"),
    ],
)
def test_the_judge_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=words):
        run_failovers(0)


def test_the_route_names_the_new_leader_at_once_and_the_old_one_as_a_follower() -> None:
    async def scenario(world: BrokerGroupWorld) -> None:
        first = await world.wait_leader()
        async with world.channels("routes") as channels:

            async def wait_master(address: str) -> int:
                began_ms = world.clock.monotonic_ms()
                while True:
                    broker = await world.master(channels)
                    if broker is not None and broker.address.startswith(address):
                        return world.clock.monotonic_ms() - began_ms
                    await world.clock.sleep_ms(10)

            await wait_master(first.address)
            await world.clock.sleep_ms(1_000)
            raft = world.parts(first).raft
            assert raft is not None
            await first.call(lambda _: raft.transfer())
            second = await world.wait_leader()
            assert second is not first
            assert await wait_master(second.address) < 500
            assert world.parts(first).identity.broker_id == int(first.name[1:]) + 1

    with BrokerGroupWorld(100) as world:
        world.run(scenario)


def test_a_member_with_a_new_disk_learns_all_tables_though_their_first_records_are_deleted() -> (
    None
):
    async def scenario(world: BrokerGroupWorld) -> None:
        leader = await world.wait_leader()
        async with world.traffic():
            await world.clock.sleep_ms(6_000)
        await world.wait_level()
        for node in world.nodes:
            assert node.files is not None
            logs = [path for path in node.files.all_paths() if "/commitlog/" in path]
            for path in sorted(logs)[:-1]:
                node.files.set_modified_ms(path, 0)
            world.parts(node).retention.clean_soon()
        await eventually(
            lambda: all(world.store(node).log.start > 0 for node in world.nodes),
            within_ms=60_000,
            what="old files are deleted",
        )
        victim = next(node for node in world.nodes if node is not leader)
        victim.crash()
        world.lose_disk(victim)
        victim.start()
        await world.wait_readmitted(victim)
        await world.wait_level()
        assert world.store(victim).log.start > 0
        parts = world.parts(victim)
        assert world.made <= parts.topics.topics.keys()
        assert parts.topics.body() == world.parts(leader).topics.body()
        assert parts.groups.body() == world.parts(leader).groups.body()
        assert parts.offsets.body() == world.parts(leader).offsets.body()

    with BrokerGroupWorld(200, file_reserved_time=1) as world:
        world.run(scenario)


def test_the_preferred_member_leads_once_it_has_everything() -> None:
    async def scenario(world: BrokerGroupWorld) -> None:
        await world.wait_leader()

        def leads() -> bool:
            leader = world.leader()
            return leader is not None and leader.name == "n2"

        await eventually(leads, within_ms=20_000, what="n2 leads")
        world.nodes[2].crash()
        await world.clock.sleep_ms(5_000)
        assert world.leader() is not None
        world.nodes[2].start()
        await eventually(leads, within_ms=20_000, what="n2 leads again")

    with BrokerGroupWorld(300, preferred_leader_id="n2") as world:
        world.run(scenario)
