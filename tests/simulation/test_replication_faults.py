"""Master and replicas under drawn faults, lost disks and histories that part."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
from collections.abc import Mapping

import pytest
from replica_world import NAME_SERVER, PORT, ReplicaWorld, cancelled

from skylark.remote import RemoteBroker, RemoteNameServer
from skylark.replication.stream import encode_report
from skylark.testing.checks import eventually
from skylark.testing.faults import WEIGHTS, FaultPlan, inject
from skylark.testing.transport import LinkConfig

ROUGH = LinkConfig(loss=0.01, spike_chance=0.01, split_chance=0.3, merge_chance=0.3)
# What a broker's own machine may do, and the network; a disk that is lost is a test of its own.
KINDS = {kind: weight for kind, weight in WEIGHTS.items() if kind not in ("ring", "bridge")}
SEEDS = range(int(os.environ.get("SKYLARK_SEEDS", "12")))


async def judged(world: ReplicaWorld, plan: FaultPlan) -> None:
    """Send while things break; then everything must come back, and nothing be lost."""
    await world.wait_following()
    async with world.sender() as broker:
        sending = asyncio.create_task(world.send_for_ever(broker, gap_ms=60))

        async def look() -> None:
            while True:
                await world.cluster.clock.sleep_ms(500)
                world.check_prefix()

        looking = asyncio.create_task(look())
        try:
            await inject(world.cluster, plan)
        finally:
            await cancelled(sending)
        for node in (world.master, *world.replicas):
            if not node.is_running:
                node.start()
        # Faults are over: in 60 virtual seconds all follow, all have the same, and sends are safe.
        await world.wait_following(90_000)
        await eventually(lambda: not looking.done(), within_ms=1)
        await sends_again(world, broker)
        await world.wait_level()
        looking.cancel()
        await asyncio.wait((looking,))
        if not looking.cancelled() and looking.exception() is not None:
            raise looking.exception()  # type: ignore[misc]
    world.check_prefix()
    for node in (world.master, *world.replicas):
        world.check_nothing_lost(node)


async def sends_again(world: ReplicaWorld, broker: RemoteBroker) -> None:
    """Until a send is acknowledged; a connection to a machine that lost its power is no good."""
    async with asyncio.timeout(60):
        while await world.send(broker) != "SEND_OK":
            await world.cluster.clock.sleep_ms(500)


def run_seed(seed: int) -> int:
    """One minute of drawn faults; return how many sends were acknowledged."""
    key = "secret" if seed % 2 else ""
    with ReplicaWorld(
        seed, replicas=1 + seed % 2, link=ROUGH, flush_disk_type="SYNC_FLUSH", ha_cluster_key=key
    ) as world:
        plan = FaultPlan.draw(
            world.cluster.rng("plan"),
            ["m", *(node.name for node in world.replicas)],
            start_ms=5_000,
            end_ms=65_000,
            gap_ms=6_000,
            duration_ms=(500, 8_000),
            weights=KINDS,
        )

        async def scenario(world: ReplicaWorld) -> None:
            await judged(world, plan)

        world.run(scenario)
        return len(world.acked)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_and_logs_stay_one(seed: int) -> None:
    assert run_seed(seed) > 0


@pytest.mark.parametrize("seed", range(8))
def test_sync_master_with_async_flush_survives_power_cuts_of_the_master(seed: int) -> None:
    """The recommended pair: one machine at a time loses its power, the network misbehaves too."""
    kinds = {"crash": 6, "reset_storm": 6, "partition": 3, "one_way": 2, "slow": 2, "pause": 2}
    with ReplicaWorld(seed, link=ROUGH, flush_disk_type="ASYNC_FLUSH") as world:
        rng = world.cluster.rng("plan")
        drawn = FaultPlan.draw(
            rng, ["m", "s1"], start_ms=5_000, end_ms=65_000, gap_ms=5_000,
            duration_ms=(500, 8_000), weights=kinds,
        )  # fmt: skip
        faults = (
            dataclasses.replace(fault, nodes=("m",)) if fault.kind == "crash" else fault
            for fault in drawn
        )
        plan = FaultPlan(tuple(faults))

        async def scenario(world: ReplicaWorld) -> None:
            await judged(world, plan)

        world.run(scenario)
        assert world.acked


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> str:
        with ReplicaWorld(77, link=ROUGH) as world:
            plan = FaultPlan.draw(
                world.cluster.rng("plan"), ["m", "s1"], start_ms=5_000, end_ms=30_000, gap_ms=5_000
            )

            async def scenario(world: ReplicaWorld) -> None:
                await judged(world, plan)

            world.run(scenario)
            return hashlib.sha256(world.cluster.trace.text().encode()).hexdigest()

    assert run() == run()


# A machine is lost.


@pytest.mark.parametrize("seed", range(4))
def test_a_master_that_lost_its_disk_gets_everything_back_from_its_replica(seed: int) -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            for _ in range(3):
                sending = asyncio.create_task(world.send_for_ever(broker, gap_ms=20))
                await world.cluster.clock.sleep_ms(3_000 + world.rng.randrange(2_000))
                world.master.crash()
                await cancelled(sending)
                world.lose_disk(world.master)
                world.master.start()
                await world.wait_following()
                world.check_nothing_lost(world.master)
                await sends_again(world, broker)
        await world.wait_level()
        world.check_prefix()
        assert len(world.acked) > 100

    key = "secret" if seed % 2 else ""
    with ReplicaWorld(seed, flush_disk_type="ASYNC_FLUSH", ha_cluster_key=key) as world:
        world.run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_takes_over_by_hand_when_the_master_is_lost(seed: int) -> None:
    """HA-08: stop, change its role, start; it has all that was acknowledged, and goes on."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            world.cluster.network.slow(["s1"], 30)  # So that an early answer is a wrong one.
            sending = asyncio.create_task(world.send_for_ever(broker, gap_ms=10))
            await world.cluster.clock.sleep_ms(4_000)
            world.master.crash()
            await cancelled(sending)
            world.cluster.network.slow(["s1"], 0)
            old, (new,) = world.master, world.replicas
            await new.stop()
            world.master, world.replicas = new, [old]
            world.ids = {new.name: 0, old.name: 1}
            new.start()
            await world.wait_serving(new)
            world.check_nothing_lost(new)
            promoted = RemoteBroker(broker._channels, f"{new.address}:{PORT}")
            await world.send(promoted)
            # The old master comes back as a replica: what it alone had is given up, and kept.
            old.start()
            await world.wait_following()
            assert await world.send(promoted) == "SEND_OK"
        await world.wait_level()
        world.check_prefix()
        for node in (old, new):
            world.check_nothing_lost(node)

    key = "secret" if seed % 2 else ""
    with ReplicaWorld(seed, flush_disk_type="ASYNC_FLUSH", ha_cluster_key=key) as world:
        world.run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_of_the_master_loses_nothing_that_its_replica_has(seed: int) -> None:
    """ASYNC_FLUSH: the disk lags behind, and the replica gives back what it lost."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            for _ in range(4):
                sending = asyncio.create_task(world.send_for_ever(broker, gap_ms=10))
                await world.cluster.clock.sleep_ms(1_000 + world.rng.randrange(3_000))
                world.master.crash()
                await cancelled(sending)
                await world.cluster.clock.sleep_ms(world.rng.randrange(5_000))
                world.master.start()
                await world.wait_following()
                world.check_nothing_lost(world.master)
        await world.wait_level()
        world.check_prefix()
        world.check_nothing_lost(world.replicas[0])

    with ReplicaWorld(seed, flush_disk_type="ASYNC_FLUSH") as world:
        world.run(scenario)


# Histories that part.


def test_equally_long_histories_are_told_apart_and_the_replicas_is_given_up_durably() -> None:
    """H2: lengths say nothing; after the cut a power failure must not bring the tail back."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            for _ in range(5):
                await world.send(broker, size=300)
            await world.wait_level()
            await world.master.stop()
            # The replica is made master for a while and takes other messages of the same size.
            (other,) = world.replicas
            await other.stop()
            world.ids = {"m": 1, "s1": 0}
            world.role = "ASYNC_MASTER"
            other.start()
            await world.wait_serving(other)
            promoted = RemoteBroker(broker._channels, f"{other.address}:{PORT}")
            for _ in range(3):
                await world.send(promoted, size=300)
            await other.stop()
            # The old master goes on as if nothing had happened: now there are two histories.
            world.ids = {"m": 0, "s1": 1}
            world.master.start()
            await world.wait_serving(world.master)
            world.acked.clear()
            for _ in range(3):
                await world.send(broker, size=300)
            assert world.store(world.master).log.appended > 0
            end = world.store(world.master).log.appended
            other.start()
            await world.wait_following()
            await world.wait_level()
            world.check_prefix()
            assert world.store(other).log.appended == end
            assert any(name for name in other.files.list_names("/store/diverged"))  # type: ignore[union-attr]
            other.crash()
            other.start()
            await world.wait_following()
            await world.wait_level()
            world.check_prefix()
            world.check_nothing_lost(other)

    with ReplicaWorld(
        30, flush_disk_type="SYNC_FLUSH", ha_recover_from_slave=False, role="ASYNC_MASTER"
    ) as world:
        world.run(scenario)


def test_what_is_given_up_stays_so_after_a_power_cut() -> None:
    """H2: RocketMQ moves a pointer, and the tail is still there for the next recovery to find."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (other,) = world.replicas
        async with world.sender() as broker:
            for _ in range(5):
                await world.send(broker, size=300)
            await world.wait_level()
            await world.master.stop()
            await other.stop()
            world.ids = {"m": 1, "s1": 0}
            other.start()
            await world.wait_serving(other)
            promoted = RemoteBroker(broker._channels, f"{other.address}:{PORT}")
            for _ in range(8):
                await world.send(promoted, size=300)
            await other.stop()
            world.ids = {"m": 0, "s1": 1}
            world.master.start()
            await world.wait_serving(world.master)
            await world.send(broker, size=300)  # A shorter history than the other.
            end = world.store(world.master).log.appended
            other.start()
            await world.wait_following()
            await world.wait_level()
            world.master.pause()
            other.crash()
            other.start()
            await world.wait_serving(other)
            assert world.store(other).log.appended == end
            assert len(world.held(world.store(other))) == 6

    with ReplicaWorld(
        32, flush_disk_type="SYNC_FLUSH", ha_recover_from_slave=False, role="ASYNC_MASTER"
    ) as world:
        world.run(scenario)


def test_a_log_that_has_nothing_in_common_is_refused_with_a_reason() -> None:
    """A master that came up empty must not make its replica throw everything away."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        async with world.sender() as broker:
            for _ in range(30):
                await world.send(broker)
            await world.wait_level()
            held = world.store(replica).log.appended
            world.master.crash()
            world.lose_disk(world.master)
            world.master.start()
            await world.wait_serving(world.master)
            for _ in range(5):
                assert await world.send(broker) != "SEND_OK"
            await eventually(
                lambda: (
                    "where our log begins" in world.parts(replica).replication.problem
                    or "is the same there" in world.parts(replica).replication.problem
                ),
                within_ms=10_000,
            )
            assert world.store(replica).log.appended == held

    with ReplicaWorld(31, ha_recover_from_slave=False) as world:
        world.run(scenario)


# Strangers at the port.


class Stranger(asyncio.Protocol):
    """Somebody who sends bytes and listens."""

    def __init__(self) -> None:
        self.got = b""
        self.is_closed = False

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True


@pytest.mark.parametrize("key", ["", "secret"])
@pytest.mark.parametrize(
    "data",
    [
        encode_report(2**62),
        encode_report(-1),
        encode_report(0),
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"SKYHA\x00" + b"\x00" * 100,
        b"SKYHA\x00\x00\x01" + b"\x00" * 24 + b"\xff\xff",
    ],
)
def test_stray_bytes_never_stand_for_a_copy(data: bytes, key: str) -> None:
    """H1, S19: any client of the port is a replica to RocketMQ, whatever it says."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_serving(world.master)
        async with world.sender() as broker:
            await world.send(broker)
            end = world.store(world.master).log.appended
            strangers = []
            for one in (data, encode_report(end) if data == encode_report(0) else data):
                stranger = Stranger()
                transport = await world.app.connect(
                    lambda stranger=stranger: stranger,  # type: ignore[misc]
                    world.master.address,
                    PORT + 1,
                )
                transport.write(one * 2)
                strangers.append(stranger)
            await world.cluster.clock.sleep_ms(500)
            assert await world.send(broker) in ("SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
            await world.cluster.clock.sleep_ms(6_000)
            assert await world.send(broker) == "SLAVE_NOT_AVAILABLE"
            assert all(stranger.is_closed for stranger in strangers)
            if key:
                assert not any(stranger.got for stranger in strangers), "the log was shown"

    with ReplicaWorld(40, replicas=0, ha_cluster_key=key) as world:
        world.run(scenario)


def test_a_replica_with_another_key_is_refused_and_says_why() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_serving()
        async with world.sender() as broker:
            assert await world.send(broker) == "SLAVE_NOT_AVAILABLE"
        await eventually(
            lambda: "cluster key" in world.parts(world.replicas[0]).replication.problem,
            within_ms=15_000,
        )
        assert world.store(world.replicas[0]).log.appended == 0

    with ReplicaWorld(41) as world:
        plain = world.config
        world.config = lambda name: plain(name).replace(ha_cluster_key=f"of {name}")  # type: ignore[method-assign]
        world.run(scenario)


@pytest.mark.parametrize("who", ["m", "s1"])
def test_a_key_on_one_side_only_is_said_before_anything_is_sent(who: str) -> None:
    """RocketMQ's master would take a greeting for an acknowledgement."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_serving()
        (replica,) = world.replicas
        await eventually(
            lambda: "haClusterKey" in world.parts(replica).replication.problem, within_ms=15_000
        )
        assert world.parts(world.master).replication.master.followers == []
        assert world.parts(world.master).replication.figures()["haFollowerCount"] == "0"

    with ReplicaWorld(43) as world:
        plain = world.config
        world.config = lambda name: plain(name).replace(  # type: ignore[method-assign]
            ha_cluster_key="secret" if name == who else ""
        )
        world.run(scenario)


def test_a_replaced_master_is_told_by_its_replica_and_takes_no_more_writes() -> None:
    """Fencing by epochs: the old master comes back and still believes to be one."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            assert await world.send(broker) == "SEND_OK"
            # The replica has seen a newer master meanwhile.
            (replica,) = world.replicas
            epochs = world.parts(replica).replication.epochs
            epochs.begin(mark=99, start=0)
            world.cluster.network.reset(["s1"])
            await eventually(
                lambda: world.parts(world.master).flow.replaced_by > 0, within_ms=15_000
            )
            assert await world.send(broker) == "BrokerError"
            assert "has been replaced" in world.parts(replica).replication.problem

    with ReplicaWorld(42, ha_cluster_key="secret") as world:
        world.run(scenario)


# The name server's view.


def test_a_role_change_is_seen_at_once_and_a_late_leave_does_not_undo_it() -> None:
    """N1: the old master stands still, the replica takes over; then the old one says goodbye."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        old, (new,) = world.master, world.replicas
        async with world.sender() as broker:
            server = RemoteNameServer(broker._channels, NAME_SERVER)

            async def members() -> Mapping[int, str]:
                return (await server.get_cluster_info()).brokers["broker-a"].addresses

            assert await members() == {0: f"{old.address}:{PORT}", 1: f"{new.address}:{PORT}"}
            old.pause()
            await new.stop()
            world.ids = {new.name: 0}
            world.master, world.replicas = new, []
            new.start()
            await world.wait_serving(new)
            assert (await members())[0] == f"{new.address}:{PORT}"
            old.resume()
            await old.stop()
            for _ in range(20):
                assert await members() == {0: f"{new.address}:{PORT}"}
                await world.cluster.clock.sleep_ms(500)

    with ReplicaWorld(50, ha_recover_from_slave=False) as world:
        world.run(scenario)


def test_a_replica_finds_a_master_that_comes_later_within_seconds() -> None:
    async def scenario(world: ReplicaWorld) -> None:
        world.master.crash(reset=True)
        await world.wait_serving(*world.replicas)
        await world.cluster.clock.sleep_ms(20_000)
        world.master.start()
        began_ms = world.cluster.clock.monotonic_ms()
        await world.wait_following()
        # Not one heartbeat to the name server later, but as soon as it asks again.
        assert world.cluster.clock.monotonic_ms() - began_ms < 10_000

    with ReplicaWorld(51) as world:
        world.run(scenario)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 86_400_000, 24 * 365 * 86_400_000])
def test_jumps_of_the_wall_clock_do_not_disturb_replication(jump_ms: int) -> None:
    """I24, N3: time-outs and registrations go by the monotonic clock."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            for node in (world.master, world.replicas[0]):
                node.clock.jump_ms(jump_ms)
                assert await world.send(broker) == "SEND_OK"
                await world.cluster.clock.sleep_ms(40_000)
                assert world.parts(world.replicas[0]).replication.is_following
                assert await world.send(broker) == "SEND_OK"
                await node.restart()
                await world.wait_following()
                node.clock.jump_ms(-jump_ms)
                await world.cluster.clock.sleep_ms(40_000)
                server = RemoteNameServer(broker._channels, NAME_SERVER)
                members = (await server.get_cluster_info()).brokers["broker-a"].addresses
                assert sorted(members) == [0, 1]
                await sends_again(world, broker)
        await world.wait_level()
        world.check_prefix()

    with ReplicaWorld(52) as world:
        world.run(scenario)
