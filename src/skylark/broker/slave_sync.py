"""SlaveSync: what a replica copies beside the log, every ten seconds.

    code   table                 taken over
    21     topics                whole, when the master's version is another one
    201    subscription groups   whole, when the master's version is another one
    43     consumer offsets      whole, but for commits made here that the master has yet to hear of
    45     delay offsets         whole

All else is in the log, or built from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..clock import Clock
from ..errors import BrokerError, InvalidBody, StoreError, TransportError
from ..remote import RemoteBroker
from .delay import DelayService
from .groups import GroupTable
from .offsets import ConsumerOffsets
from .topics import TopicTable

logger = logging.getLogger(__name__)

FIRST_MS = 3_000
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
    ) -> None:
        self._master = master
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._interval_ms = interval_ms
        self._is_failing = False
        self.synced_total = 0
        offsets.follow()

    async def run(self) -> None:
        """Copy for ever."""
        await self._clock.sleep_ms(min(FIRST_MS, self._interval_ms()))
        while True:
            await self.sync()
            await self._clock.sleep_ms(self._interval_ms())

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
