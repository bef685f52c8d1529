"""SlaveSync: what a replica copies beside the log, every ten seconds.

    code   table                 taken over
    21     topics                whole, when the master's version is another one
    201    subscription groups   whole, when the master's version is another one
    43     consumer offsets      whole, but for commits made here that the master has yet to hear of
    45     delay offsets         whole

All else is in the log, or built from it. A copy is made at once when the replica begins to follow,
and when messages arrive of a topic that it does not know: without its topic, a message that is safe
here could not be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ..clock import Clock
from ..errors import BrokerError, InvalidBody, StoreError, TransportError
from ..remote import RemoteBroker
from .delay import DelayService
from .groups import GroupTable
from .offsets import ConsumerOffsets
from .topics import TopicTable

logger = logging.getLogger(__name__)

LOOK_MS = 500
CALL_TIMEOUT_MS = 3_000


class SlaveSync:
    """Keeps the tables of a replica as its master's."""

    def __init__(
        self,
        master: Callable[[], RemoteBroker | None],
        clock: Clock,
        *,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        delay: DelayService,
        interval_ms: Callable[[], int],
        is_following: Callable[[], bool],
        known_queues: Callable[[], AbstractSet[tuple[str, int]]],
    ) -> None:
        self._master = master
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._interval_ms = interval_ms
        self._is_following = is_following
        self._known_queues = known_queues
        self._was_following = False
        self._queue_count = 0
        self._is_failing = False
        self.synced_total = 0
        offsets.follow()

    async def run(self) -> None:
        """Copy for ever."""
        due_ms = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(min(LOOK_MS, self._interval_ms()))
            if self._has_news() or self._clock.monotonic_ms() >= due_ms:
                await self.sync()
                due_ms = self._clock.monotonic_ms() + self._interval_ms()

    def _has_news(self) -> bool:
        """Whether the tables may lack something that is needed now."""
        before, self._was_following = self._was_following, self._is_following()
        if self._was_following and not before:
            return True
        queues = self._known_queues()
        if len(queues) == self._queue_count:
            return False
        self._queue_count = len(queues)
        return any(self._topics.get(topic) is None for topic, _ in queues)

    async def sync(self) -> bool:
        """Copy once; False where it did not work, which the next time will."""
        master = self._master()
        if master is None:
            return False
        try:
            topics = await master.get_topics(timeout_ms=CALL_TIMEOUT_MS)
            if self._topics.take_over(topics):
                logger.info("master=%s %d topics copied", master.address, len(topics.topics))
            self._offsets.take_over(
                await master.get_all_consumer_offsets(timeout_ms=CALL_TIMEOUT_MS)
            )
            self._delay.take_over(await master.get_all_delay_offsets(timeout_ms=CALL_TIMEOUT_MS))
            groups = await master.get_groups(timeout_ms=CALL_TIMEOUT_MS)
            if self._groups.take_over(groups):
                logger.info("master=%s %d groups copied", master.address, len(groups.groups))
            await self._delay.save()
        except (TransportError, BrokerError, InvalidBody, StoreError) as error:
            if not self._is_failing:
                logger.warning("master=%s tables not copied: %s", master.address, error)
            self._is_failing = True
            return False
        self._is_failing = False
        self.synced_total += 1
        return True
