"""Members and brokers come, go, die and come back under load, from one seed: what must hold.

    nothing lost        every message whose send was acknowledged is handled to its end
    order               in orderly mode a message is begun only after all before it in its queue
                        were handled to their end at least once
    alone               in orderly mode no two live members are in a queue at once
    one owner           when all is calm again, every queue has exactly one
    never back          what a broker has committed does not go back while it lives, and not by more
                        than the interval of its saves when it dies
    nothing skipped     a committed offset has everything before it handled, or given back

SKYLARK_CHAOS_SEEDS=300 runs more seeds than the few that are run every time.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import pytest
from group_world import TOPIC, GroupWorld, Member

from skylark.broker.locks import QueueLocks as BrokerLocks
from skylark.broker.offsets import ConsumerOffsets
from skylark.client.process_queue import ProcessQueue
from skylark.client.queue_keeper import QueueKeeper
from skylark.client.received import ReceivedMessage
from skylark.client.verdicts import RetryLater, Suspend
from skylark.errors import ClientError
from skylark.model.message import Message
from skylark.testing.transport import LinkConfig

SEEDS = int(os.environ.get("SKYLARK_CHAOS_SEEDS", "8"))
FIRST = int(os.environ.get("SKYLARK_CHAOS_FIRST", "0"))
SAVE_MS = 5_000 + 600
WIRE = LinkConfig(delay_ms=0.5, jitter_ms=1, spike_chance=0.001, split_chance=0, merge_chance=0)
MEMBER_FAULTS = {"join": 5, "stop": 3, "kill": 3, "cut power": 1, "reset": 2}
BROKER_FAULTS = {"stop broker": 2, "kill broker": 3, "cut broker": 1}


class Chaos:
    """One run, and what was seen of it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"chaos/{seed}")
        self.orderly = seed % 2 == 1
        self.queues = rng.choice((2, 4, 8))
        brokers = 2 if seed % 3 == 0 else 1
        self.world = GroupWorld(seed, brokers=brokers, queues=self.queues, link=WIRE, shuffle=True)
        self.acknowledged: set[bytes] = set()
        self.died_ms: dict[str, int] = {}
        self.committed: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self.deaths: dict[str, int] = {}  # Broker → when it last died without saving.
        self.saved: dict[tuple[str, int], int] = {}  # What must have been saved, at its deaths.
        self.births: dict[str, int] = {}
        self.problems: list[str] = []
        self.is_over = False

    # What the members do.

    async def decide(self, message: ReceivedMessage, member: Member) -> None:
        await member.node.clock.sleep_ms(self.rng.choice((0, 0, 5, 20, 150)))
        if self.rng.random() < 0.03:
            raise Suspend(0.2) if self.orderly else RetryLater(1)

    def join(self) -> None:
        self.world.join(
            orderly=self.orderly, decide=self.decide, concurrency=self.rng.choice((2, 8))
        )

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.world.members if member.node.is_running]

    # What happens.

    async def scenario(self) -> None:
        world, rng = self.world, self.rng
        for _ in range(2):
            self.join()
        async with world.connect() as mq, mq.producer("makers") as producer:
            background: list[Coroutine[Any, Any, None]] = [self._send(producer), self._watch()]
            tasks = [asyncio.ensure_future(one) for one in background]
            faults = [*MEMBER_FAULTS.items(), *BROKER_FAULTS.items()]
            for _ in range(12):
                await world.sleep(rng.uniform(0.2, 6))
                (fault,) = rng.choices([name for name, _ in faults], [often for _, often in faults])
                await self._inject(fault)
            for name in world.broker_names:
                if not world.cluster.nodes[name].is_running:
                    world.start(name)
                await world.serving(name)
            self.is_over = True
            await tasks[0]
        if not self.alive:
            self.join()
        # A member whose machine lost power is missed after two minutes.
        await world.until(self._is_done, seconds=300, step=0.2)
        await world.sleep(7)
        # Who waits at a broker that lost power without a word may take long to notice.
        await world.until(world.is_shared, seconds=30, step=0.2)
        tasks[1].cancel()

    def _is_done(self) -> bool:
        return self.acknowledged <= self.world.bodies() and self.world.is_shared()

    async def _send(self, producer: Any) -> None:
        number = 0
        while not self.is_over:
            body = b"%d" % number
            number += 1
            try:
                await producer.send(Message(TOPIC, body), timeout_ms=1_000)
                self.acknowledged.add(body)
            except ClientError:
                await self.world.sleep(0.2)
            await self.world.sleep(self.rng.expovariate(12))

    async def _inject(self, fault: str) -> None:
        world, rng = self.world, self.rng
        if fault in BROKER_FAULTS:
            name = rng.choice(world.broker_names)
            if not world.is_serving(name):
                return
            self._look()
            if fault == "stop broker":
                await world.stop(name)
            else:
                self._note_saved(name)
                self.deaths[name] = world.now_ms
                world.kill(name, reset=fault == "kill broker")
            await world.sleep(rng.choice((0.05, 1, 4)))
            world.start(name)
            self.births[name] = world.now_ms
            return
        if fault == "join" or len(self.alive) < 2:
            if len(self.alive) < 6:
                self.join()
            return
        member = rng.choice(self.alive)
        if fault == "stop":
            await member.stop()
        elif fault == "reset":
            world.cluster.network.reset(member.node.address)
        else:
            member.kill(reset=fault == "kill")
        if not member.node.is_running:
            self.died_ms[member.name] = world.now_ms

    # What is seen from outside.

    async def _watch(self) -> None:
        while True:
            self._look()
            await self.world.sleep(0.1)

    def _look(self) -> None:
        world = self.world
        for name in world.broker_names:
            if not world.is_serving(name):
                continue
            for queue_id in range(self.queues):
                now = world.committed(queue_id, name)
                seen = self.committed[name, queue_id]
                if seen and now < seen[-1][1]:
                    self._judge_step_back(name, queue_id, now, seen)
                if not seen or now != seen[-1][1]:
                    seen.append((world.now_ms, now))

    def _judge_step_back(
        self, name: str, queue_id: int, now: int, seen: list[tuple[int, int]]
    ) -> None:
        died_ms = self.deaths.get(name)
        if died_ms is None or died_ms < seen[-1][0]:
            self.problems.append(f"{name}/{queue_id} went back from {seen[-1]} to {now}")
            return
        saved = self.saved.get((name, queue_id), 0)
        if now < saved:
            self.problems.append(f"{name}/{queue_id} lost more than a save: {saved} to {now}")

    def _note_saved(self, name: str) -> None:
        born_ms, now_ms = self.births.get(name, 0), self.world.now_ms
        for queue_id in range(self.queues):
            of_this_life = [
                offset
                for at_ms, offset in self.committed[name, queue_id]
                if born_ms <= at_ms <= now_ms - SAVE_MS
            ]
            before = self.saved.get((name, queue_id), 0)
            self.saved[name, queue_id] = max([before, *of_this_life])

    # What must hold.

    def judge(self) -> None:
        calls = [call for call in self.world.handled if call.queue.topic == TOPIC]
        if self.orderly:
            self._judge_order(calls)
            self._judge_alone(calls)
            self._judge_skipped(calls)
        assert self.problems == []
        assert self.acknowledged <= self.world.bodies()
        assert len(self.acknowledged) > 50

    def _judge_order(self, calls: list[Any]) -> None:
        ends: dict[Any, dict[int, int]] = defaultdict(dict)
        begun: dict[Any, set[int]] = defaultdict(set)
        events = sorted(
            [(call.begun_ms, 1, number) for number, call in enumerate(calls)]
            + [
                (call.ended_ms, 0, number)
                for number, call in enumerate(calls)
                if call.ended_ms is not None
            ]
        )
        for at_ms, is_begin, number in events:
            call = calls[number]
            if not is_begin:
                ends[call.queue].setdefault(call.offset, at_ms)
                continue
            if call.offset in begun[call.queue]:
                continue
            begun[call.queue].add(call.offset)
            missing = [one for one in range(call.offset) if one not in ends[call.queue]]
            # A handler that ends and the next that begins may share a millisecond.
            late = [
                one
                for one in missing
                if not any(
                    other.queue == call.queue and other.offset == one and other.ended_ms == at_ms
                    for other in calls
                )
            ]
            if late:
                self.problems.append(
                    f"{call.queue.broker_name}/{call.queue.queue_id}@{call.offset} was begun by "
                    f"{call.member} at {at_ms} before {late[:5]}"
                )

    def _judge_alone(self, calls: list[Any]) -> None:
        by_queue = defaultdict(list)
        for call in calls:
            end_ms = call.ended_ms
            if end_ms is None:
                end_ms = call.failed_ms
            if end_ms is None:
                end_ms = self.died_ms.get(call.member, call.begun_ms)
            by_queue[call.queue].append((call.begun_ms, end_ms, call))
        for queue, spans in by_queue.items():
            spans.sort(key=lambda span: (span[0], span[1]))
            last = None
            for begun_ms, end_ms, call in spans:
                if last is not None and begun_ms < last[0] and call.member != last[1].member:
                    self.problems.append(
                        f"{queue.broker_name}/{queue.queue_id}: {call.member}@{call.offset} at "
                        f"{begun_ms} beside {last[1].member}@{last[1].offset} until {last[0]}"
                    )
                if last is None or end_ms > last[0]:
                    last = (end_ms, call)

    def _judge_skipped(self, calls: list[Any]) -> None:
        done = defaultdict(set)
        for call in calls:
            if call.ended_ms is not None:
                done[call.queue.broker_name, call.queue.queue_id].add(call.offset)
        for place, seen in self.committed.items():
            missing = set(range(seen[-1][1])) - done[place]
            if missing:
                self.problems.append(f"{place} committed {seen[-1]} without {sorted(missing)[:5]}")


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_group_keeps_its_promises(seed: int) -> None:
    chaos = Chaos(seed)
    with chaos.world as world:
        world.run(chaos.scenario, seconds=900)
        chaos.judge()


@pytest.mark.parametrize("bug", ["no fence", "early commit", "locks for all"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge can say no: each of these breaks a promise under some seed."""
    seeds: tuple[int, ...]
    if bug == "no fence":
        # A member that was cut off goes on where it was, and after a restart may go back.
        async def confirm(self: QueueKeeper, queue: ProcessQueue) -> bool:
            queue.is_doubtful = False
            queue.locked_at_ms = self._clock.monotonic_ms()
            return True

        monkeypatch.setattr(QueueKeeper, "confirm", confirm)
        monkeypatch.setattr(ConsumerOffsets, "is_settling", lambda self, topic, group: False)
        seeds = (1, 3, 11, 13, 17, 31)
    elif bug == "early commit":
        # What was handed out counts as done.
        offset = property(lambda self: self.next_offset)
        monkeypatch.setattr(ProcessQueue, "commit_offset", offset)
        seeds = (0, 1, 2, 3, 4, 5)
    else:
        # The broker gives a lock to everybody who asks.
        def grant(self: BrokerLocks, group: str, client_id: str, queues: Any) -> tuple[Any, ...]:
            return tuple(queues)

        monkeypatch.setattr(BrokerLocks, "lock", grant)
        seeds = (1, 3, 5, 7, 9, 11)
    for seed in seeds:
        chaos = Chaos(seed)
        try:
            with chaos.world as world:
                world.run(chaos.scenario, seconds=900)
                chaos.judge()
        except AssertionError:
            return
    pytest.fail("no seed has noticed it")
