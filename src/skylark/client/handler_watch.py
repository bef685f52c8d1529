"""HandlerWatch: notices handlers that take too long.

slow_handler_ms       mentioned in the log, once for each message
consume_timeout_ms    given back, so that it does not hold up the commits for ever; concurrent
                      consumers only, since in order nothing may overtake it
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ..clock import Clock
from ..model.queue import MessageQueue
from .consumer_config import ConsumerConfig
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .settlement import Settlement

logger = logging.getLogger(__name__)

TIMEOUT_DELAY_LEVEL: Final = 3
LOOK_EVERY_MS_MAX: Final = 60_000


class HandlerWatch:
    """Looks at everything in hand, now and then."""

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        clock: Clock,
        queues: Mapping[MessageQueue, ProcessQueue],
        settlement: Settlement,
    ) -> None:
        self._group = group
        self._config = config
        self._clock = clock
        self._queues = queues
        self._settlement = settlement
        may_give_back = not config.orderly and not config.is_broadcasting
        self._limit_ms = config.consume_timeout_ms if may_give_back else None
        self._mentioned: set[ReceivedMessage] = set()

    async def run(self) -> None:
        """Look for ever; cancel to stop."""
        limit_ms = self._limit_ms or LOOK_EVERY_MS_MAX
        every_ms = min(limit_ms, LOOK_EVERY_MS_MAX, self._config.slow_handler_ms)
        while True:
            await self._clock.sleep_ms(every_ms)
            slow = list(self._slow(self._clock.monotonic_ms()))
            self._mentioned &= {message for _, message, _ in slow}
            for queue, message, took_ms in slow:
                self._mention(queue, message, took_ms)
                if self._limit_ms is not None and took_ms >= self._limit_ms:
                    await self._give_back(queue, message, took_ms)

    def _slow(self, now_ms: int) -> Iterable[tuple[ProcessQueue, ReceivedMessage, int]]:
        for queue in self._queues.values():
            for message in queue.open_messages():
                started_ms = message.started_at_ms
                if started_ms is not None and now_ms - started_ms >= self._config.slow_handler_ms:
                    yield queue, message, now_ms - started_ms

    def _mention(self, queue: ProcessQueue, message: ReceivedMessage, took_ms: int) -> None:
        if message not in self._mentioned:
            self._mentioned.add(message)
            logger.warning(
                "group=%s message=%s queue=%s its handler runs for %d ms",
                *(self._group, message.message_id, queue, took_ms),
            )

    async def _give_back(self, queue: ProcessQueue, message: ReceivedMessage, took_ms: int) -> None:
        # Giving back the one before took a while: this one may be done by now, or the queue gone.
        if queue.is_dropped or not queue.is_open(message):
            return
        logger.warning(
            "group=%s message=%s given back after %d ms in its handler",
            *(self._group, message.message_id, took_ms),
        )
        is_back = await self._settlement.give_back(message, TIMEOUT_DELAY_LEVEL)
        if is_back and not queue.is_dropped:
            queue.finish([message])
