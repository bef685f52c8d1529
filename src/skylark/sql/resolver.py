"""Resolver: a process that sends nothing, and answers for a producer group from the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ..client.facade import Client
from ..client.producer import Producer
from ..clock import Clock, SystemClock
from ..errors import BrokerError, ClientError, TransportError
from ..model.message import StoredMessage
from .check import DatabaseCheck

logger = logging.getLogger(__name__)

CLEAN_INTERVAL_MS: Final = 3_600_000
LOOK_INTERVAL_MS: Final = 10_000


class Resolver:
    """Joins producer groups at every broker of the cluster, so that they have someone to ask."""

    def __init__(
        self,
        client: Client,
        check: DatabaseCheck,
        groups: Iterable[str],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._check = check
        self._groups = tuple(dict.fromkeys(groups))
        self._clock = SystemClock() if clock is None else clock
        self.committed_total = 0
        self.rolled_back_total = 0

    async def run(self) -> None:
        """Answer for ever."""
        await self._check.prepare()
        producers: list[Producer] = []
        try:
            for group in self._groups:
                producer = self._client.producer(group, check=self._answer)
                await producer.start()
                producers.append(producer)
            clean_at_ms = self._clock.monotonic_ms()
            while True:
                await self.find_brokers()
                if self._clock.monotonic_ms() >= clean_at_ms:
                    clean_at_ms = self._clock.monotonic_ms() + CLEAN_INTERVAL_MS
                    count = await self._check.clean()
                    logger.info("%d old markers deleted", count)
                await self._clock.sleep_ms(LOOK_INTERVAL_MS)
        finally:
            await asyncio.gather(*(producer.close() for producer in producers))

    async def find_brokers(self) -> None:
        """Learn of every broker: one that sends nothing has no other reason to know it."""
        session = self._client.session
        try:
            info = await session.name_servers.get_cluster_info()
            for cluster in info.clusters:
                # Every broker has a topic of its cluster's name.
                await session.route(cluster)
        except (TransportError, BrokerError, ClientError) as error:
            logger.warning("brokers not found, tried again: %s", error)

    async def _answer(self, half: StoredMessage) -> bool | None:
        answer = await self._check(half)
        if answer is not None:
            logger.info(
                "half message %s of %s: %s", half.unique_id, half.topic,
                "commit" if answer else "rollback",
            )  # fmt: skip
            self.committed_total += int(answer)
            self.rolled_back_total += int(not answer)
        return answer
