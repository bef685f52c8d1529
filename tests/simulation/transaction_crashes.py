"""Transactions while the broker dies again and again, on virtual time; and what must hold after it.

A run has one broker and two processes of one producer group. Each transaction decides in a table
that outlives everything; a check looks there. The broker is killed, or its power cut, at moments
that the seed chooses: during a half send, an end, a check, a recovery. In the end:

    decided to commit     the message is there exactly once
    decided otherwise     it is not, and never was
    half messages         none is left, and none was ever in a topic that consumers read
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from skylark import Message, StoredMessage
from skylark.client import Client, Producer
from skylark.errors import SkylarkError
from skylark.model.topic import TRANS_CHECK_MAX_TIME_TOPIC
from skylark.testing import MemoryBroker

TOPIC = "Transfers"
GROUP = "transfers"
TRANSACTIONS = 12


class RolledBack(Exception):
    """The application changed its mind."""


@dataclass
class Story:
    """What a run did, and what was wrong with it."""

    crashes: int = 0
    checks: int = 0
    decisions: dict[str, bool] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Run:
    """One seed's run."""

    def __init__(self, seed: int, *, crashes: int, power_cuts: bool, **settings: Any) -> None:
        self._rng = random.Random(seed)
        self._crashes = crashes
        self._power_cuts = power_cuts
        self.story = Story()
        self._mq = MemoryBroker(
            seed,
            transaction_time_out=1_000,
            transaction_check_interval=2_000,
            transaction_check_max=1_000,
            stop_grace_ms=0,
            **settings,
        )

    def run(self) -> Story:
        with self._mq:
            self._mq.run(self._play)
        return self.story

    async def _check(self, half: StoredMessage) -> bool:
        self.story.checks += 1
        # Whoever has not decided by now never will: its process would have had to come first.
        return self.story.decisions.setdefault(half.keys[0], False)

    async def _play(self) -> None:
        crasher = asyncio.create_task(self._crash())
        async with (
            self._mq.connect() as one,
            self._mq.connect() as two,
            one.producer(GROUP, check=self._check, send_msg_timeout_ms=500) as first,
            two.producer(GROUP, check=self._check, send_msg_timeout_ms=500) as second,
        ):
            for number in range(TRANSACTIONS):
                producer = self._rng.choice((first, second))
                await self._transact(producer, f"t{number}")
                self._look()
            await crasher
            await self._settle(one)
        self._judge()

    async def _transact(self, producer: Producer, key: str) -> None:
        fate = self._rng.choice(["commit", "rollback", "left, commits", "left, rolls back"])
        decisions = self.story.decisions
        try:
            async with producer.transaction() as transaction:
                await transaction.send(Message(TOPIC, key.encode(), keys=[key]))
                if self._rng.random() < 0.3:
                    await self._mq.clock.advance(ms=self._rng.uniform(0, 3))
                is_commit = "commit" in fate
                if decisions.setdefault(key, is_commit) != is_commit:
                    raise RolledBack
                if "left" in fate:
                    await transaction.leave()
                elif not is_commit:
                    raise RolledBack
        except RolledBack:
            return
        except SkylarkError as error:
            if decisions.setdefault(key, False):
                # Decided, and refused: only if somebody said otherwise in between.
                self.story.problems.append(f"{key}: the commit was refused: {error}")

    async def _crash(self) -> None:
        rng, mq = self._rng, self._mq
        for _ in range(self._crashes):
            # Most of a transaction's life is a millisecond; a check comes seconds later.
            await mq.clock.advance(ms=rng.choice([rng.uniform(0, 4), rng.uniform(900, 1_100)]))
            if self._power_cuts and rng.random() < 0.5:
                mq.faults.cut_power()
            else:
                mq.faults.kill()
            self.story.crashes += 1
            await mq.clock.advance(ms=rng.uniform(0, 5))
            mq.faults.start()
            if rng.random() < 0.8:
                await mq.wait_ready()
                self._look()

    async def _settle(self, client: Client) -> None:
        await self._mq.wait_ready()
        for _ in range(60):
            await self._mq.clock.advance(seconds=5)
            if self._mq.pending_transactions == 0:
                break
        self.story.problems += [
            f"{self._mq.pending_transactions} half messages are never over"
        ] * bool(self._mq.pending_transactions)

    def _look(self) -> None:
        if self._mq.is_serving:
            for message in self._mq.messages(TOPIC):
                key = message.body.decode()
                if self.story.decisions.get(key) is not True:
                    self.story.problems.append(f"{key} is seen, and was not committed")

    def _judge(self) -> None:
        self._look()
        counts = Counter(message.body.decode() for message in self._mq.messages(TOPIC))
        for key, is_commit in self.story.decisions.items():
            if counts[key] != int(is_commit):
                self.story.problems.append(
                    f"{key} was {'committed' if is_commit else 'rolled back'}, "
                    f"and is there {counts[key]} times"
                )
        aside = self._mq.messages(TRANS_CHECK_MAX_TIME_TOPIC)
        if aside:
            self.story.problems.append(f"{len(aside)} half messages were given up")
