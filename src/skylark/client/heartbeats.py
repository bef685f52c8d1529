"""Heartbeats: brokers hear who is here and what it wants, every 30 s and soon after a change.

Producers are told to masters, consumers to replicas too. A broker that does not get its heartbeat
is tried again every 2 s, so one that comes back hears from us in that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from ..clock import Clock
from ..errors import BrokerError, TransportError
from ..model.route import MASTER_ID, BrokerData
from ..protocol.bodies import HeartbeatData
from ..remote import RemoteBroker
from .client_identity import ClientIdentity
from .config import ClientConfig
from .members import Members

logger = logging.getLogger(__name__)

RETRY_MS: Final = 2_000  # While a broker is out of reach.
SETTLE_MS: Final = 20  # Changes that come together share a heartbeat.


class Heartbeats:
    """Sends the heartbeats of one session."""

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        identity: ClientIdentity,
        members: Members,
        *,
        brokers: Callable[[], Iterable[BrokerData]],
        remote: Callable[[str], RemoteBroker],
    ) -> None:
        self._config = config
        self._clock = clock
        self._identity = identity
        self._members = members
        self._brokers = brokers
        self._remote = remote
        self._due = asyncio.Event()
        self._unheard: dict[str, object] = {}  # Why a broker did not get the last one.
        self.versions: dict[str, int] = {}  # What brokers said of themselves, by address.

    def want(self) -> None:
        """Something changed that brokers should know soon."""
        self._due.set()

    async def send(self) -> bool:
        """Send one to every broker that should have one; False if one did not get it."""
        addresses = self.addresses()
        if not addresses:
            return True
        body = HeartbeatData(
            self._identity.client_id,
            tuple(self._members.producers),
            tuple(member.heartbeat_data() for member in self._members.consumers.values()),
        )
        reached = await asyncio.gather(*(self._beat(address, body) for address in addresses))
        return all(reached)

    def addresses(self) -> list[str]:
        """The brokers that hear from us: masters, and replicas too if there are consumers."""
        if not self._members:
            return []
        return [
            address
            for data in self._brokers()
            for broker_id, address in data.addresses.items()
            if broker_id == MASTER_ID or self._members.consumers
        ]

    async def run(self) -> None:
        """Send them for ever; cancel to stop."""
        while True:
            self._due.clear()
            reached_all = await self.send()
            pause_ms = self._config.heartbeat_broker_interval_ms
            if not reached_all:
                pause_ms = min(pause_ms, RETRY_MS)
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._due.wait()
            except TimeoutError:
                continue
            await self._clock.sleep_ms(SETTLE_MS)

    async def _beat(self, address: str, body: HeartbeatData) -> bool:
        try:
            timeout_ms = self._config.api_timeout_ms
            self.versions[address] = await self._remote(address).heartbeat(
                body, timeout_ms=timeout_ms
            )
        except (TransportError, BrokerError) as error:
            # A refusal is for people to see to; either is worth one line, not one at every try.
            what = (type(error), getattr(error, "code", None))
            level = logging.WARNING if isinstance(error, BrokerError) else logging.INFO
            level = logging.DEBUG if self._unheard.get(address) == what else level
            logger.log(level, "broker=%s heartbeat failed: %s", address, error)
            self._unheard[address] = what
            return False
        self._unheard.pop(address, None)
        return True
