"""A group grows to eight members and dies down to one under load: who waits, and for how long.

Time is virtual, so that the limits are exact. A message every 4 ms goes round the queues; the pause
of a queue is the longest time between two messages handled out of it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from group_world import CALM, TOPIC, GroupWorld, Member

from skylark.client.allocation import Averagely, Sticky
from skylark.client.received import ReceivedMessage
from skylark.model.message import Message
from skylark.model.queue import MessageQueue
from skylark.testing.transport import LinkConfig

MEMBERS = 8
SHARED_WITHIN_MS = 1_000
PAUSE_UNMOVED_MS = 2_000
ROUGH = LinkConfig()  # Delays with spikes, frames split and merged.


class Watch:
    """Every change of the group, and what it cost."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self.shared_in_ms: list[int] = []
        self.unmoved_pause_ms = 0
        self.moved_pause_ms = 0

    def owners(self) -> dict[MessageQueue, Member]:
        return {queue: one for one in self.world.members for queue in one.queues()}

    async def change(self, change: Any) -> None:
        """Change the group, wait until it is shared again, and look at every queue."""
        world = self.world
        before = self.owners()
        begun = max(0, len(world.handled) - 3 * MEMBERS)
        done = change()
        if asyncio.iscoroutine(done):
            await done
        self.shared_in_ms.append(await world.until(world.is_shared, seconds=30))
        await world.sleep(0.5)  # Pauses that have begun come to their end.
        after = self.owners()
        times: dict[MessageQueue, list[int]] = defaultdict(list)
        for call in world.handled[begun:]:
            times[call.queue].append(call.begun_ms)
        for queue, owner in after.items():
            pause_ms = max((b - a for a, b in pairwise(times[queue])), default=10**9)
            if before.get(queue) is owner:
                self.unmoved_pause_ms = max(self.unmoved_pause_ms, pause_ms)
            else:
                self.moved_pause_ms = max(self.moved_pause_ms, pause_ms)


@pytest.mark.parametrize(
    ("strategy", "orderly", "link"),
    [
        (Averagely, False, CALM),
        (Averagely, False, ROUGH),
        (Sticky, False, ROUGH),
        (Averagely, True, CALM),
    ],
    ids=["averagely-calm", "averagely-rough", "sticky-rough", "orderly-calm"],
)
def test_members_come_and_are_killed_and_nothing_stands_still(
    strategy: Any, orderly: bool, link: LinkConfig
) -> None:
    with GroupWorld(7, queues=MEMBERS, link=link) as world:
        watch = Watch(world)
        sent: list[bytes] = []
        stopped = asyncio.Event()

        async def handle(message: ReceivedMessage, member: Member) -> None:
            await world.sleep(0.002)

        async def produce(producer: Any) -> None:
            queues = await producer.fetch_queues(TOPIC)
            while not stopped.is_set():
                body = b"%d" % len(sent)
                sent.append(body)
                await producer.send(Message(TOPIC, body), queue=queues[len(sent) % len(queues)])
                await world.sleep(0.004)

        def join() -> None:
            world.join(strategy=strategy(), orderly=orderly, decide=handle)

        async def scenario() -> None:
            async with world.connect() as mq, mq.producer("makers") as producer:
                sending = asyncio.ensure_future(produce(producer))
                join()
                await world.until(world.is_shared)
                await world.sleep(0.5)
                for _ in range(MEMBERS - 1):
                    await watch.change(join)
                alive = list(world.members)
                for number in range(MEMBERS - 1):
                    gone = alive.pop(world.rng.randrange(len(alive)))
                    # A dead process is heard of by its connections, one that stops says so; but
                    # the locks of one that did not say so last a minute, lest it is still alive.
                    dies = number % 2 == 1 and not orderly
                    await watch.change(gone.kill if dies else gone.stop)
                stopped.set()
                await sending
                await world.until(lambda: world.bodies() >= set(sent), seconds=30)

        world.run(scenario)
        print(
            f"{strategy.__name__}: shared in {sorted(watch.shared_in_ms)} ms, pauses: "
            f"{watch.unmoved_pause_ms} ms not moved, {watch.moved_pause_ms} ms moved, "
            f"{len(sent)} sent, {len(world.handled)} handled"
        )
        assert max(watch.shared_in_ms) < SHARED_WITHIN_MS
        assert watch.unmoved_pause_ms <= PAUSE_UNMOVED_MS
        if orderly:
            _assert_one_at_a_time(world)


def _assert_one_at_a_time(world: GroupWorld) -> None:
    calls = defaultdict(list)
    for call in world.handled:
        calls[call.queue].append(call)
    for of_queue in calls.values():
        for one, following in pairwise(of_queue):
            assert one.ended_ms is None or one.ended_ms <= following.begun_ms
