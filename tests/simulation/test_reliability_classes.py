"""ST-44: six faults, two ways to flush, three ways to replicate; what was acknowledged is audited.

fault            what is left of the master          who serves afterwards
stop             everything                          the master
kill             everything written                  the master
os crash         of what was not synced, a part      the master
power loss       what was synced                     the master
machine dead     nothing                             the replica, made master by hand
disk dead        an empty disk                       the master, which asks its replica

what may be lost of what was answered SEND_OK
                                 alone                async replica             sync replica
stop, kill                       nothing              nothing                   nothing
os crash, power: SYNC_FLUSH      nothing              nothing                   nothing
os crash, power: ASYNC_FLUSH     the last moments     what neither had          nothing
machine or disk dead             everything           what was on its way       nothing
"""

from __future__ import annotations

import asyncio

import pytest
from replica_world import PORT, ReplicaWorld, cancelled

from skylark.remote import RemoteBroker
from skylark.testing import SimNode

FAULTS = ("stop", "kill", "os crash", "power loss", "machine dead", "disk dead")
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
COPIES = ("alone", "async", "sync")
FLUSH_INTERVAL_MS = 500


def may_lose(fault: str, flush: str, copies: str) -> str:
    """Nothing, a suffix of the last moments, or everything."""
    if copies == "sync" or fault in ("stop", "kill"):
        return "nothing"
    if fault in ("machine dead", "disk dead"):
        return "everything" if copies == "alone" else "a suffix"
    return "nothing" if flush == "SYNC_FLUSH" else "a suffix"


async def strike(world: ReplicaWorld, fault: str) -> SimNode:
    """Let it happen, and bring back what can be; return who serves now."""
    master = world.master
    if fault == "stop":
        await master.stop()
    elif fault == "kill":
        master.crash(reset=True)
    else:
        if fault == "power loss":
            # The kindest disk keeps pages that nobody synced; this one keeps none.
            assert master.files is not None
            master._disk_rng = NoLuck()  # type: ignore[assignment]
        master.crash()
    if fault == "disk dead":
        world.lose_disk(master)
    if fault == "machine dead":
        if not world.replicas:
            world.lose_disk(master)  # The machine that replaces it has nothing.
        else:
            (replica,) = world.replicas
            await replica.stop()
            world.master, world.replicas = replica, []
            world.ids = {replica.name: 0}
            replica.start()
            await world.wait_serving(replica)
            return replica
    master.start()
    await world.wait_serving(master)
    return master


class NoLuck:
    """Chance that keeps nothing of what was not synced."""

    def random(self) -> float:
        return 0.0

    def randrange(self, *_: int) -> int:
        return 0

    def randint(self, low: int, _: int) -> int:
        return low

    def choice(self, options: list[object]) -> object:
        return options[0]


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("fault", FAULTS)
def test_acknowledged_messages_survive_what_their_configuration_promises(
    fault: str, flush: str, copies: str
) -> None:
    sent_at: dict[bytes, int] = {}

    async def scenario(world: ReplicaWorld) -> None:
        await (world.wait_following() if copies != "alone" else world.wait_serving())
        clock = world.cluster.clock
        async with world.sender() as broker:

            async def send() -> None:
                while True:
                    before = len(world.acked)
                    await world.send(broker)
                    if len(world.acked) > before:
                        sent_at[list(world.acked)[-1]] = clock.monotonic_ms()
                    await clock.sleep_ms(10)

            senders = [asyncio.create_task(send()) for _ in range(2)]
            await clock.sleep_ms(1_700)
            struck_ms = clock.monotonic_ms()
            for sender in senders:
                await cancelled(sender)
            serving = await strike(world, fault)
            held = world.held(world.store(serving))
            acked = list(world.acked)
            lost = [body for body in acked if held.get(body) != world.acked[body]]
            allowed = may_lose(fault, flush, copies)
            assert len(acked) > 60
            if allowed == "nothing":
                assert lost == []
            elif allowed == "everything":
                assert len(lost) == len(acked)
            else:
                # A suffix, queue by queue, and no older than a flush interval and a moment.
                for queue_id in (0, 1):
                    mine = [body for body in acked if world.acked[body][0] == queue_id]
                    gone = [body for body in mine if body in lost]
                    assert gone == mine[len(mine) - len(gone) :]
                span_ms = FLUSH_INTERVAL_MS + 200
                assert all(struck_ms - sent_at[body] <= span_ms for body in lost)
                if copies == "async":
                    assert len(lost) <= len(acked) // 20
            # And service goes on.
            address = f"{serving.address}:{PORT}"
            async with asyncio.timeout(60):
                while await world.send(RemoteBroker(broker._channels, address)) not in (
                    "SEND_OK", "SLAVE_NOT_AVAILABLE",
                ):  # fmt: skip
                    await clock.sleep_ms(200)

    role = "SYNC_MASTER" if copies == "sync" else "ASYNC_MASTER"
    with ReplicaWorld(
        44,
        role=role,
        replicas=0 if copies == "alone" else 1,
        flush_disk_type=flush,
        flush_commit_log_least_pages=0,
    ) as world:
        world.run(scenario)
