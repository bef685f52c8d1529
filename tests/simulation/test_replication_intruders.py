"""Peers at the replication port that have something else than they should (issue's "Bad input").

What comes from strangers is in test_replication_faults.py; here are brokers of the group whose log
is damaged, gone, or another one's.
"""

from __future__ import annotations

import random

import pytest
from replica_world import PORT, ReplicaWorld
from test_replication_faults import Stranger

from skylark.remote import RemoteBroker
from skylark.testing.checks import eventually


@pytest.mark.parametrize("key", ["", "secret"])
def test_a_replica_that_lost_its_disk_confirms_nothing_that_it_does_not_have(key: str) -> None:
    """It comes back empty under its old name: what it had confirmed before counts no more."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        async with world.sender() as broker:
            for _ in range(40):
                assert await world.send(broker, size=300) == "SEND_OK"
            world.cluster.network.slow(["s1"], 40)  # So that copying takes a while.
            replica.crash()
            world.lose_disk(replica)
            replica.start()
            await world.wait_serving(replica)
            before = world.store(world.master).log.appended
            assert world.store(replica).log.appended < before // 2, "it lost nothing"
            confirmed = 0
            while confirmed < 20:
                if await world.send(broker, size=300) == "SEND_OK":
                    # Confirmed means: there, with all that came before it, now.
                    world.check_nothing_lost(replica)
                    confirmed += 1
                await world.cluster.clock.sleep_ms(20)
            world.master.crash()
            world.lose_disk(world.master)
            world.check_nothing_lost(replica)

    with ReplicaWorld(50, flush_disk_type="ASYNC_FLUSH", ha_cluster_key=key) as world:
        world.run(scenario)


def test_damage_in_the_masters_log_stops_a_replica_and_is_said() -> None:
    """Minority damage is never copied: the replica keeps what is sound, and confirms no more."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (replica,) = world.replicas
        async with world.sender() as broker:
            for _ in range(5):
                await world.send(broker, size=300)
            await world.wait_level()
            sound = world.store(replica).log.appended
            await replica.stop()
            for _ in range(5):
                await world.send(broker, size=300)
            log = world.store(world.master).log
            found = log.buffer_at(sound)
            assert found is not None
            buffer, at = found
            buffer[at + 120] ^= 0x10  # In the body of the first message that is not copied yet.
            replica.start()
            await world.wait_serving(replica)
            await eventually(
                lambda: world.parts(replica).replication.problem != "", within_ms=20_000
            )
            assert await world.send(broker, size=300) != "SEND_OK"
            await world.cluster.clock.sleep_ms(10_000)
            assert world.store(replica).log.appended == sound
            problem = world.parts(replica).replication.problem
            assert str(sound) in problem, problem

    with ReplicaWorld(51, flush_disk_type="SYNC_FLUSH") as world:
        world.run(scenario)


@pytest.mark.parametrize("key", ["", "secret"])
def test_the_store_of_another_cluster_is_neither_copied_over_nor_confirmed(key: str) -> None:
    """A machine of another cluster is started with this group's name: both logs stay."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        (other,) = world.replicas
        # The other machine was a master elsewhere, with messages of its own.
        await other.stop()
        world.lose_disk(other)
        world.ids = {"m": 0, "s1": 0}
        settings = world.settings
        world.settings = {**settings, "broker_name": "foreign", "namesrv_addr": ""}
        other.start()
        await world.wait_serving(other)
        async with world.sender() as broker:
            foreign = RemoteBroker(broker._channels, f"{other.address}:{PORT}")
            for _ in range(12):
                await world.send(foreign, size=500)
            await other.stop()
            world.ids, world.settings = {"m": 0, "s1": 1}, settings
            world.acked.clear()
            for _ in range(3):
                await world.send(broker, size=500)
            other.start()
            await world.wait_serving(other)
            before = world.store(other).log.appended
            await eventually(lambda: world.parts(other).replication.problem != "", within_ms=20_000)
            assert await world.send(broker, size=500) != "SEND_OK"
            assert world.store(other).log.appended == before

    with ReplicaWorld(52, flush_disk_type="SYNC_FLUSH", ha_cluster_key=key) as world:
        world.run(scenario)


@pytest.mark.parametrize("key", ["", "secret"])
def test_random_bytes_at_the_port_release_no_acknowledgement(key: str) -> None:
    """S19: whatever a hundred strangers say, in whatever pieces."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_serving(world.master)
        rng = random.Random(7)
        async with world.sender() as broker:
            await world.send(broker)
            for number in range(100):
                stranger = Stranger()
                transport = await world.app.connect(
                    lambda stranger=stranger: stranger,  # type: ignore[misc]
                    world.master.address,
                    PORT + 1,
                )
                for _ in range(rng.randrange(1, 4)):
                    transport.write(_noise(rng, number))
                    await world.cluster.clock.sleep_ms(rng.randrange(5))
            assert await world.send(broker) in ("SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
            await world.cluster.clock.sleep_ms(30_000)
            assert world.parts(world.master).replication.master.followers == []
            assert await world.send(broker) == "SLAVE_NOT_AVAILABLE"

    with ReplicaWorld(53, replicas=0, ha_cluster_key=key) as world:
        world.run(scenario)


def _noise(rng: random.Random, number: int) -> bytes:
    """Anything, numbers that could be offsets, or the beginning of a greeting and anything."""
    noise = rng.randbytes(rng.randrange(1, 120))
    if number % 3 == 1:
        return rng.randrange(5_000).to_bytes(8, "big") * rng.randrange(1, 4)
    return b"SKYHA\x00\x00\x01" + noise if number % 3 == 2 else noise
