"""QueueLocks: the right of an orderly consumer to a queue, as brokers give it.

broker       a lock lives 60 s after the last request for it
consumer     asks again every 20 s, and hands out nothing after 30 s without an answer; so it
             has stopped long before another member can get the lock
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ..errors import BrokerError, InvalidBody, SkylarkError, TransportError
from ..model.queue import MessageQueue
from .session import Session

logger = logging.getLogger(__name__)


class QueueLocks:
    """Asks brokers for locks, one request for each broker."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._ours: set[MessageQueue] = set()  # Asked for and not refused: we may hold these.

    async def lock(self, places: Iterable[MessageQueue]) -> dict[MessageQueue, int | None]:
        """Lock queues; return since when at the least we hold each (monotonic).

        None where the broker refuses, because somebody else has it; one whose broker does not
        answer is left out.
        """
        answers = await asyncio.gather(
            *(self._lock_at(name, wanted) for name, wanted in _by_broker(places).items())
        )
        return {place: at_ms for answer in answers for place, at_ms in answer.items()}

    async def _lock_at(
        self, name: str, places: list[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        address = self._session.master_address(name)
        if address is None:
            return {}
        self._ours.update(places)
        # Before the request: our idea of the lease must not outlive the broker's.
        at_ms = self._session.clock.monotonic_ms()
        try:
            held = await self._session.broker(address).lock_queues(
                self._session.client_id, self._group, places
            )
        except (TransportError, BrokerError, InvalidBody) as error:
            logger.warning("group=%s broker=%s lock failed: %s", self._group, name, error)
            return {}
        for place in places:
            if place not in held:
                self._ours.discard(place)
                logger.info(
                    "doRebalance, %s, add a new mq failed, %s, because lock failed",
                    self._group,
                    place,
                )
        return {place: at_ms if place in held else None for place in places}

    async def unlock_all(self) -> None:
        """Give back whatever may be ours, also what a start that was given up asked for."""
        await self.unlock(list(self._ours), oneway=False)

    async def unlock(self, places: Iterable[MessageQueue], *, oneway: bool) -> None:
        """Give locks back; what does not get through expires."""
        for name, held in _by_broker(places).items():
            self._ours.difference_update(held)
            address = self._session.master_address(name)
            if address is None:
                continue
            try:
                await self._session.broker(address).unlock_queues(
                    self._session.client_id, self._group, held, oneway=oneway
                )
            except SkylarkError as error:
                logger.info("group=%s broker=%s unlock failed: %s", self._group, name, error)


def _by_broker(places: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for place in places:
        found.setdefault(place.broker_name, []).append(place)
    return found
