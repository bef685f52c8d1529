"""AnsweringMember: what brokers, and operators through them, ask of a consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from ..model.message import StoredMessage
from ..model.queue import MessageQueue
from ..protocol.bodies import ConsumeMessageDirectlyResult, ConsumeResult, ConsumerRunningInfo
from .queue_sharer import QueueSharer

logger = logging.getLogger(__name__)

CLIENT_VERSION: Final = "V4_9_8"  # What RocketMQ calls the version number of our commands.


class AnsweringMember(QueueSharer):
    """A member that tells what it is doing, and starts over where an operator says."""

    _started_at_ms: int

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator sets the group to other offsets.

        What is in hand is forgotten, however its handlers end; the queues start over.
        """
        async with self._rebalancing:
            mine = {
                place: offset
                for place, offset in offsets.items()
                if place.topic == topic and place in self._queues and offset >= 0
            }
            for place in mine:
                logger.info("group=%s queue=%s reset to %d", self._group, place, mine[place])
                self._discard(self._queues[place])
            await self._offsets.reset(mine)
        await self._rebalance()

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far it has come in a topic by its own account."""
        return {
            place: queue.commit_offset
            for place, queue in self._queues.items()
            if place.topic == topic
        }

    def running_info(self, *, jstack: bool) -> ConsumerRunningInfo:
        """What it is doing."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self._session.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(self.config.concurrency),
                "PROP_CONSUMEORDERLY": "true" if self.config.orderly else "false",
                "PROP_CONSUME_TYPE": self.consume_type.value,
                "PROP_CLIENT_VERSION": CLIENT_VERSION,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at_ms),
            },
            subscriptions=tuple(self._subscriptions.values()),
            queues={
                place: queue.info(now_ms=now_ms, monotonic_ms=monotonic_ms)
                for place, queue in self._queues.items()
            },
            statuses={
                topic: self.stats.status(topic, monotonic_ms) for topic in self._subscriptions
            },
            jstack=self._stacks() if jstack else None,
        )

    def _stacks(self) -> str:
        return "\n".join(sorted(map(repr, asyncio.all_tasks())))

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Consume one message now; without a handler nobody can."""
        return ConsumeMessageDirectlyResult(
            ConsumeResult.CR_THROW_EXCEPTION,
            order=self.config.orderly,
            remark="this consumer has no handler: its application asks for messages itself",
        )
