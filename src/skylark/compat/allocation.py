"""Allocation strategies under their Java names."""

from __future__ import annotations

from typing import Protocol

from ..client.allocation import AllocationStrategy as _Strategy
from ..client.allocation import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    Sticky,
)
from .messages import MessageQueue


class AllocateMessageQueueAveragely(Averagely):
    """Neighbouring queues, as many for each member as can be."""


class AllocateMessageQueueAveragelyByCircle(AveragelyByCircle):
    """Queues dealt out one by one."""


class AllocateMessageQueueConsistentHash(ConsistentHash):
    """The member whose point follows the queue's on a ring."""


class AllocateMessageQueueSticky(Sticky):
    """Even shares that change little; Java has no such strategy."""


class AllocateMessageQueueByConfig(ByConfig):
    """The queues that setMessageQueueList names."""

    def __init__(self) -> None:
        super().__init__(())

    def setMessageQueueList(self, queues: list[MessageQueue]) -> None:
        """Which queues are ours."""
        self._queues = [queue.to_model() for queue in queues]


class AllocateMessageQueueByMachineRoom(ByMachineRoom):
    """Queues of brokers in the rooms that setConsumeridcs names."""

    def __init__(self) -> None:
        super().__init__(())

    def setConsumeridcs(self, rooms: set[str]) -> None:
        """Which rooms are ours."""
        self._rooms = frozenset(rooms)


class MachineRoomResolver(Protocol):
    """Says where brokers and consumers stand."""

    def brokerDeployIn(self, messageQueue: MessageQueue) -> str:
        """The room of a queue's broker."""
        ...

    def consumerDeployIn(self, clientID: str) -> str:
        """The room of a member."""
        ...


class AllocateMachineRoomNearby(MachineRoomNearby):
    """Another strategy inside each room."""

    def __init__(self, strategy: _Strategy, resolver: MachineRoomResolver) -> None:
        super().__init__(
            strategy,
            room_of_queue=lambda queue: resolver.brokerDeployIn(MessageQueue.of(queue)),
            room_of_client=resolver.consumerDeployIn,
        )
