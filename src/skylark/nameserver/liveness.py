"""Liveness: drops brokers that have gone quiet.

A broker registers every 30 seconds; a connection that stays open proves nothing, because a process
that hangs keeps its sockets. Durations are monotonic: a wall clock that is set right must not empty
the routes of a whole cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..clock import Clock
from .config import NameServerConfig
from .route_table import Owner, RouteTable

logger = logging.getLogger(__name__)

FIRST_SCAN_MS = 5_000


class Liveness:
    """Looks at the table again and again."""

    def __init__(
        self,
        table: RouteTable,
        clock: Clock,
        config: NameServerConfig,
        close: Callable[[Owner], None],
    ) -> None:
        self._table = table
        self._clock = clock
        self._expiry_ms = config.broker_expiry_ms
        self._interval_ms = config.broker_scan_interval_ms
        self._close = close

    async def run(self) -> None:
        """Scan until cancelled."""
        wait_ms = min(FIRST_SCAN_MS, self._interval_ms)
        due_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            await self._clock.sleep_ms(wait_ms)
            late_ms = self._clock.monotonic_ms() - due_ms
            if late_ms > self._interval_ms:
                # We stood still: a stopped process, a machine without breath. What brokers sent
                # meanwhile still waits in the sockets, so their silence was ours.
                logger.warning("this process stood still for %d ms", late_ms)
                self._table.forgive(late_ms, now_ms=self._clock.monotonic_ms())
            self.scan()
            wait_ms = self._interval_ms
            due_ms = self._clock.monotonic_ms() + wait_ms

    def scan(self) -> None:
        """Drop what has expired, and close the connections that stood for nothing else."""
        gone, silent = self._table.expire(
            now_ms=self._clock.monotonic_ms(), expiry_ms=self._expiry_ms
        )
        for registration in gone:
            broker = registration.broker
            logger.warning(
                "broker=%s id=%d address=%s expired: silent for more than %d ms",
                broker.name,
                broker.id,
                broker.address,
                self._expiry_ms,
            )
        for owner in silent:
            self._close(owner)
