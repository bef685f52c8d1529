"""The tests of replication are tested: each bug planted here must be found by the test named.

Most of them are RocketMQ's own, by the numbers of the reference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import test_reliability_classes as classes
import test_replication as plain
import test_replication_faults as faults
from replica_world import ReplicaWorld

from skylark.broker import app as broker_app
from skylark.broker import replication as broker_replication
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.processors.pull import PullProcessor
from skylark.broker.replication import Replication
from skylark.replication import Follower, Master, Replica
from skylark.store.commit_log import CommitLog

Plant = Callable[[pytest.MonkeyPatch], None]


def believe_anybody(patch: pytest.MonkeyPatch) -> None:
    def reported(self: Master, follower: Follower, offset: int, now_ms: int) -> None:
        follower.asked = follower.reported = follower.sent = max(0, offset)

    patch.setattr(Master, "reported", reported)
    patch.setattr(Follower, "confirmed", property(lambda self: self.reported))


def truncate_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def set_end(self: CommitLog, end: int, *, flushed: int) -> None:
        self.flushed, self._committed = flushed, end
        self._write_into(self.mapped.at(end), end)

    patch.setattr(CommitLog, "set_end", set_end)


def compare_lengths_only(patch: pytest.MonkeyPatch) -> None:
    async def agreement(store: Any, broker: Any, extent: tuple[int, int]) -> int:
        return int(store.log.appended)

    patch.setattr(broker_replication, "ask_for_agreement", agreement)


def answer_without_the_replica(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "sync_quorum", property(lambda self: None))


def never_ask_replicas(patch: pytest.MonkeyPatch) -> None:
    async def run(self: Any) -> None:
        return None

    patch.setattr(broker_app.Refill, "run", run)


def overwrite_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerOffsets, "merge_forward", lambda self, body: 0)
    patch.setattr(ConsumerOffsets, "follow", lambda self: None)


def correct_offsets_on_a_replica(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PullProcessor, "_is_the_masters_to_say", lambda self, found: False)


def confirm_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "confirmable", property(lambda self: self.appended))


def both_machines_lose_power() -> None:
    """SYNC_FLUSH and SYNC_MASTER: the master's disk is lost with the power of its replica."""

    async def scenario(world: ReplicaWorld) -> None:
        await world.wait_following()
        async with world.sender() as broker:
            sending = asyncio.create_task(world.send_for_ever(broker, gap_ms=5))
            await world.cluster.clock.sleep_ms(2_000)
            (replica,) = world.replicas
            replica._disk_rng = classes.NoLuck()  # type: ignore[assignment]
            world.master.crash()
            replica.crash()
            await faults.cancelled(sending)
            world.ids = {replica.name: 0}
            world.master, world.replicas = replica, []
            replica.start()
            await world.wait_serving(replica)
            world.check_nothing_lost(replica)
            assert world.acked

    for seed in range(3):
        with ReplicaWorld(seed, flush_disk_type="SYNC_FLUSH", disk_latency_ms=20) as world:
            world.run(scenario)


BUGS: list[tuple[str, Plant, Callable[[], object]]] = [
    (
        "acknowledgements are taken from anybody (H1)",
        believe_anybody,
        lambda: faults.test_stray_bytes_never_stand_for_a_copy(faults.encode_report(2**62), ""),
    ),
    (
        "truncated in memory only (H2)",
        truncate_in_memory_only,
        faults.test_what_is_given_up_stays_so_after_a_power_cut,
    ),
    (
        "only lengths are compared (H3)",
        compare_lengths_only,
        faults.test_equally_long_histories_are_told_apart_and_the_replicas_is_given_up_durably,
    ),
    (
        "answered without the replica",
        answer_without_the_replica,
        lambda: faults.test_a_replica_takes_over_by_hand_when_the_master_is_lost(0),
    ),
    (
        "a master does not ask its replicas at the start",
        never_ask_replicas,
        lambda: faults.test_a_power_cut_of_the_master_loses_nothing_that_its_replica_has(0),
    ),
    (
        "the replica's offsets are overwritten (O1)",
        overwrite_offsets,
        plain.test_offsets_committed_at_the_replica_survive_the_masters_return,
    ),
    (
        "a replica corrects offsets (O2)",
        correct_offsets_on_a_replica,
        plain.test_a_pull_beyond_what_a_lagging_replica_has_waits_and_is_not_corrected,
    ),
    (
        "a replica confirms before its disk has it",
        confirm_before_the_disk,
        both_machines_lose_power,
    ),
]


@pytest.mark.parametrize(("plant", "test"), [bug[1:] for bug in BUGS], ids=[b[0] for b in BUGS])
def test_a_planted_bug_is_found(
    plant: Plant, test: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test()


def test_the_test_that_stands_here_passes_without_a_bug() -> None:
    both_machines_lose_power()
