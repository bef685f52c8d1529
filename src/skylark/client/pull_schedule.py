"""PullSchedule: RocketMQ's MQPullConsumerScheduleService, a task for every queue of a share."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from ..errors import SkylarkError
from ..model.queue import MessageQueue
from ..net.tasks import TaskScope
from .pull_consumer import PullConsumer

logger = logging.getLogger(__name__)

SCHEDULE_DELAY_MS: Final = 200


@dataclass(slots=True)
class PullTurn:
    """What a scheduled pull gets, and how it says when it wants to be called next."""

    consumer: PullConsumer
    next_delay_ms: int = SCHEDULE_DELAY_MS


PullTask = Callable[[MessageQueue, PullTurn], Awaitable[None] | None]


class PullSchedule:
    """Calls a task for every queue of a consumer's share, each queue on its own."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._tasks: dict[str, PullTask] = {}
        self._running: dict[MessageQueue, asyncio.Task[None]] = {}
        self._scope = TaskScope()

    def register(self, topic: str, task: PullTask) -> None:
        """Call a task for the queues of a topic that the consumer has registered."""
        self._tasks[topic] = task

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._consumer.add_queue_listener(self._queues_changed)
        for queue in self._consumer.assignment:
            self._begin(queue)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._running.values():
            task.cancel()
        self._tasks.clear()
        await self._scope.__aexit__(kind, error, traceback)

    def _queues_changed(
        self, topic: str, queues: frozenset[MessageQueue], mine: frozenset[MessageQueue]
    ) -> None:
        for queue in [one for one in self._running if one.topic == topic and one not in mine]:
            self._running.pop(queue).cancel()
        for queue in sorted(mine):
            self._begin(queue)

    def _begin(self, queue: MessageQueue) -> None:
        task = self._tasks.get(queue.topic)
        if task is not None and queue not in self._running:
            self._running[queue] = self._scope.spawn(self._repeat(queue, task))

    async def _repeat(self, queue: MessageQueue, task: PullTask) -> None:
        while True:
            turn = PullTurn(self._consumer)
            try:
                outcome = task(queue, turn)
                if inspect.isawaitable(outcome):
                    await outcome
            except SkylarkError as error:
                logger.warning("queue=%s a scheduled pull failed: %s", queue, error)
            except Exception:
                logger.exception("queue=%s a scheduled pull failed", queue)
            await self._consumer.clock.sleep_ms(turn.next_delay_ms)
