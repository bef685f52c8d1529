"""Listeners: subclass one, or hand a function of the same shape to registerMessageListener."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Final

from ..client.verdicts import Fate, Verdict
from .messages import MessageExt, MessageQueue

ALL_ACKNOWLEDGED: Final = 2**31 - 1


class ConsumeConcurrentlyStatus(Enum):
    """What a concurrent listener returns."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What an orderly listener returns."""

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ConsumeConcurrentlyContext:
    """Where the messages are from, and how a retry should be."""

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._delay_level = 0
        self._ack_index = ALL_ACKNOWLEDGED

    def getMessageQueue(self) -> MessageQueue:
        return self._queue

    def getDelayLevelWhenNextConsume(self) -> int:
        return self._delay_level

    def setDelayLevelWhenNextConsume(self, level: int) -> None:
        """-1 for the dead letters, 0 for the broker's own delay, else one of its levels."""
        self._delay_level = level

    def getAckIndex(self) -> int:
        return self._ack_index

    def setAckIndex(self, index: int) -> None:
        """The last message of the list that is done; those after it come again."""
        self._ack_index = index

    def verdict(self, status: ConsumeConcurrentlyStatus | None, count: int) -> Verdict:
        """What a status stands for; None, which a listener forgot to return, is a retry."""
        fate = Fate.DEAD if self._delay_level < 0 else Fate.RETRY
        if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
            return Verdict(fate, delay_level=self._delay_level)
        done = min(self._ack_index + 1, count)
        if done >= count:
            return Verdict()
        return Verdict(fate, delay_level=self._delay_level, acked=max(done, 0))


class ConsumeOrderlyContext:
    """Where the messages are from, and how to go on after them."""

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._auto_commit = True
        self._suspend_ms = -1

    def getMessageQueue(self) -> MessageQueue:
        return self._queue

    def isAutoCommit(self) -> bool:
        return self._auto_commit

    def setAutoCommit(self, auto_commit: bool) -> None:
        """Without it, SUCCESS commits nothing; COMMIT and ROLLBACK say what shall happen."""
        self._auto_commit = auto_commit

    def getSuspendCurrentQueueTimeMillis(self) -> int:
        return self._suspend_ms

    def setSuspendCurrentQueueTimeMillis(self, duration_ms: int) -> None:
        """How long the queue waits; -1 for what the consumer is configured to."""
        self._suspend_ms = duration_ms

    def verdict(self, status: ConsumeOrderlyStatus | None) -> Verdict:
        """What a status stands for; None suspends the queue."""
        pause_ms = None if self._suspend_ms < 0 else self._suspend_ms
        if status is ConsumeOrderlyStatus.SUCCESS:
            return Verdict(Fate.DONE if self._auto_commit else Fate.HOLD)
        if status is ConsumeOrderlyStatus.COMMIT:
            return Verdict(Fate.COMMIT)
        if status is ConsumeOrderlyStatus.ROLLBACK and not self._auto_commit:
            return Verdict(Fate.ROLL_BACK, pause_ms=pause_ms)
        return Verdict(Fate.SUSPEND, pause_ms=pause_ms)


class MessageListenerConcurrently(ABC):
    """Gets messages of all queues, many lists at a time."""

    @abstractmethod
    def consumeMessage(
        self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        """Handle messages. Returning None and raising mean RECONSUME_LATER."""


class MessageListenerOrderly(ABC):
    """Gets messages of a queue in order, one list at a time."""

    @abstractmethod
    def consumeMessage(
        self, msgs: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        """Handle messages. Returning None and raising mean SUSPEND_CURRENT_QUEUE_A_MOMENT."""


class MessageQueueListener(ABC):
    """Hears of changes of a topic's queues."""

    @abstractmethod
    def messageQueueChanged(
        self, topic: str, mqAll: Sequence[MessageQueue], mqDivided: Sequence[MessageQueue]
    ) -> None:
        """A topic has other queues, or we have another share of them."""
