"""MessageQueue and the kinds of offset.

An offset is a number, and two kinds of it must never meet: where a record lies in the commit log,
and which place a message has in its queue. They are distinct types, so that mypy keeps them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte position in the commit log, counted from the first byte ever written."""

QueueOffset = NewType("QueueOffset", int)
"""The place of a message in its queue; the first one has 0."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker.

    Every client sorts queues before it shares them out, so the order of the fields is part of the
    protocol: topic, then broker name, then queue id.
    """

    topic: str
    broker_name: str
    queue_id: int
