"""Which queue a message goes to: in turn, by key, or by the application's own rule.

In turn means a counter with a random start, modulo the number of writable queues; a retry skips
the broker that has just failed. With a LatencyTable, brokers that were slow are skipped as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ..model.message import Message
from ..model.queue import MessageQueue
from ..model.route import TopicRoute
from ..protocol.hashes import java_string_hash
from .latency import LatencyTable

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""Chooses one of a topic's queues for a message; the last argument is the caller's own."""


class PublishInfo:
    """A topic's writable queues, with the addresses of their brokers, and whose turn it is."""

    __slots__ = (
        "_turn",
        "addresses",
        "headers",
        "is_borrowed",
        "queues",
        "route",
        "topic",
        "unreached",
        "write_counts",
    )

    def __init__(
        self,
        topic: str,
        route: TopicRoute,
        rng: random.Random,
        *,
        queue_count_max: int | None = None,
    ) -> None:
        """Read a route; with queue_count_max it is that of another topic, to be copied."""
        self.topic = topic
        self.route = route
        self.is_borrowed = queue_count_max is not None
        self.write_counts = _write_counts(route, queue_count_max)
        self.unreached = set(self.write_counts)  # Brokers that have not created a borrowed topic.
        self.addresses = {
            data.broker_name: data.master_address
            for data in route.brokers
            if data.master_address is not None
        }
        self.queues: tuple[MessageQueue, ...] = tuple(
            MessageQueue(topic, broker_name, queue_id)
            for broker_name, count in self.write_counts.items()
            for queue_id in range(count)
        )
        self.headers: dict[MessageQueue, dict[str, str]] = {}  # Kept for the producer's next send.
        self._turn = rng.randrange(1 << 31)

    @property
    def turn(self) -> int:
        """The counter that chooses the next queue (RocketMQ's sendWhichQueue)."""
        return self._turn

    def __repr__(self) -> str:
        return (
            f"PublishInfo(topic={self.topic!r}, queues={len(self.queues)}, turn={self._turn}, "
            f"brokers={sorted(self.addresses)}, is_borrowed={self.is_borrowed})"
        )

    def next(self, *, avoid: str | None = None) -> MessageQueue:
        """The queue whose turn it is, of another broker than the one to avoid if there is one."""
        queues = self.queues
        turn = self._turn
        if avoid is not None:
            for step in range(len(queues)):
                queue = queues[(turn + step) % len(queues)]
                if queue.broker_name != avoid:
                    self._turn = turn + step + 1
                    return queue
        self._turn = turn + 1
        return queues[turn % len(queues)]

    def give_back(self) -> None:
        """The last turn was not used after all."""
        self._turn -= 1

    def next_available(self, table: LatencyTable) -> MessageQueue:
        """The queue whose turn it is among brokers that are not paused, or the least bad one."""
        queues = self.queues
        turn = self._turn
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if table.is_available(queue.broker_name):
                self._turn = turn + step + 1
                return queue
        chosen = table.pick_one_at_least()
        if chosen is not None:
            count = self.write_counts.get(chosen, 0)
            if count:
                self._turn = turn + 1
                return MessageQueue(self.topic, chosen, turn % count)
            table.remove(chosen)
        return self.next()


def _write_counts(route: TopicRoute, queue_count_max: int | None) -> dict[str, int]:
    """How many queues each broker with a master offers to producers, sorted by broker name."""
    masters = {data.broker_name for data in route.brokers if data.master_address is not None}
    if route.order_conf and queue_count_max is None:
        # An ordered topic keeps its queues, whichever brokers are there at the moment.
        counts = {}
        for part in route.order_conf.split(";"):
            broker_name, colon, number = part.strip().rpartition(":")
            if colon and number.isascii() and number.isdigit():
                counts[broker_name] = int(number)
        return counts
    counts = {}
    for data in sorted(route.queues, key=lambda data: data.broker_name):
        if data.is_writable and data.broker_name in masters:
            count = data.write_queue_nums
            if queue_count_max is not None:
                count = min(queue_count_max, data.read_queue_nums)
            counts[data.broker_name] = count
    return counts


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """One queue for each key, as Java's SelectMessageQueueByHash chooses it for a string."""
    return queues[hash_position(key if isinstance(key, str) else str(key), len(queues))]


def select_by_random(rng: random.Random) -> QueueSelector:
    """Return a selector that takes any queue."""

    def select(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        return queues[rng.randrange(len(queues))]

    return select


def hash_position(key: str, count: int) -> int:
    """The place of a key among so many queues; Java's remainder has the sign of the dividend."""
    return abs(java_string_hash(key)) % count
