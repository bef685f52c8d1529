"""Offsets of many queues: as JSON, as admission for a micro-batch, as splits for tasks.

Pure: what the brokers say comes in as numbers. An offset is the next one to read, so a range is
[from, to). Spark compares offsets as text, hence the one canonical order: by topic, broker, queue.

    {"v":1,"q":{"OrderTopic":{"broker-a":{"0":1200,"1":1187}}}}

    b   where the micro-batch begins that ends here, where that is not the end before it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ConfigError, SkylarkError

_VERSION = 1
TASKS_MAX = 100_000  # Of one job: more are a driver's death.


class DataLoss(SkylarkError):
    """Messages that should have been read are no longer there."""


class QueueKey(NamedTuple):
    """One queue of a cluster."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


Offsets = dict[QueueKey, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one queue, from an offset up to another, exclusive."""

    queue: QueueKey
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets there are in it."""
        return self.end - self.start


def to_json(offsets: Mapping[QueueKey, int]) -> dict[str, Any]:
    """Offsets in their canonical form."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return {"v": _VERSION, "q": found}


def begun_at(end: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """The end of a micro-batch that says as well where it begins.

    Spark writes down the ends alone. It asks for the beginning of a stream again after a crash, and
    what a new queue began with may have been removed by then.
    """
    return {**end, "b": start["q"]}


def begin_in(end: dict[str, Any]) -> dict[str, Any] | None:
    """Where a micro-batch begins, if its end says so."""
    return {"v": end.get("v"), "q": end["b"]} if "b" in end else None


def from_json(value: Any) -> Offsets:
    """Read offsets that to_json has made; raises ConfigError for a checkpoint of something else."""
    try:
        if value["v"] != _VERSION:
            raise ValueError(value["v"])
        found: Offsets = {}
        for topic, brokers in value["q"].items():
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    found[QueueKey(topic, broker, int(queue_id))] = int(offset)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            "the checkpoint holds offsets of another source or version; start with a new "
            f"checkpointLocation: {error!r}"
        ) from error
    return found


def admit(start: Offsets, available: Offsets, messages_max: int | None) -> Offsets:
    """How far one micro-batch goes: everything, or each queue its share of what is allowed.

    A queue with data moves on by at least one message, so that a busy one starves nobody; where
    fewer are allowed than there are such queues, they take turns.
    """
    behind = {queue: max(0, end - start.get(queue, end)) for queue, end in available.items()}
    total = sum(behind.values())
    ends = {**start, **{q: max(e, start.get(q, e)) for q, e in available.items()}}
    if messages_max is None or total <= messages_max:
        return ends
    busy = {queue: behind[queue] for queue in sorted(behind) if behind[queue]}
    if messages_max < len(busy):
        # What was read so far goes up by as many each time, and so says whose turn it is.
        turn = sum(start[queue] for queue in busy) % len(busy)
        order = [*busy][turn:] + [*busy][:turn]
        shares = dict.fromkeys(order[:messages_max], 1)
    else:
        shares = _shares(busy, messages_max)
    return {**ends, **{queue: start[queue] + shares.get(queue, 0) for queue in busy}}


def _shares(busy: Mapping[QueueKey, int], messages_max: int) -> dict[QueueKey, int]:
    """What each of some queues gets of what is allowed: by what waits in it, and at least one."""
    found = {}
    left, waiting = messages_max, sum(busy.values())
    for queue in sorted(busy, key=lambda queue: (busy[queue], queue)):
        count = busy[queue]
        found[queue] = min(count, max(1, left * count // waiting))
        left -= found[queue]
        waiting -= count
    return found


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two offsets; queues in which nothing does are left out."""
    found = []
    for queue in sorted(end):
        first = start.get(queue, 0)
        if end[queue] > first:
            found.append(Range(queue, first, end[queue]))
    return found


def split(
    wanted: Sequence[Range],
    *,
    bytes_per_message: float,
    split_bytes: int,
    partitions_min: int,
) -> list[list[Range]]:
    """Pack ranges into tasks of about one size: long ones are cut, short ones put together.

    Every message is in exactly one task, and within a task a queue's messages stay in order.
    """
    total = sum(one.count for one in wanted)
    if total == 0:
        return []
    by_bytes = math.ceil(total * max(1.0, bytes_per_message) / split_bytes)
    tasks = min(total, max(1, by_bytes, partitions_min), TASKS_MAX)
    found: list[list[Range]] = []
    current: list[Range] = []
    taken = 0
    for one in wanted:
        at = one.start
        while at < one.end:
            # Task number n ends at message total * (n + 1) / tasks: rounding never adds up.
            room = total * (len(found) + 1) // tasks - taken
            count = min(room, one.end - at)
            current.append(Range(one.queue, at, at + count))
            at += count
            taken += count
            if count == room:
                found.append(current)
                current = []
    assert not current
    assert taken == total
    return found


def lost(start: Offsets, first: Offsets) -> list[Range]:
    """Ranges that were to be read and lie before what the brokers still have."""
    return [
        Range(queue, offset, first[queue])
        for queue, offset in sorted(start.items())
        if queue in first and offset < first[queue]
    ]


def within(option: str, given: Offsets, last: Offsets, *, strict: bool) -> Offsets:
    """Offsets that a user gave, none of them behind the end of its queue; raises ConfigError."""
    for queue, offset in sorted(given.items()):
        if strict and offset > last[queue]:
            raise ConfigError(
                f"option {option}: {offset} lies behind the end of {queue}; up to {last[queue]} is "
                "allowed, -1 for latest, -2 for earliest. With failOnDataLoss=false it is read "
                "to its end"
            )
    return {queue: min(offset, last[queue]) for queue, offset in given.items()}


def describe_loss(ranges_lost: Iterable[Range]) -> str:
    """What is missing, in words."""
    parts = [f"{one.queue} {one.start} to {one.end}" for one in ranges_lost]
    shown = ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")
    return (
        f"messages are gone that were not read yet, removed by retention: {shown}. Set "
        "failOnDataLoss=false to go on with what is there"
    )
