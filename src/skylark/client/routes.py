"""RouteCache: what a client knows of the topics it uses.

A topic is asked for when it is first used, and again every 30 seconds. What was known last stays
in use while name servers are gone, do not answer, or have just started and know nothing yet: a
total outage of the name servers stops no traffic on known topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from ..clock import Clock
from ..errors import BrokerError, InvalidBody, TransportError
from ..model.route import TopicRoute
from ..net.tasks import TaskScope
from ..remote import NameServers

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_MS = 30_000
TOPICS_MAX = 100_000

OnChange = Callable[[str, TopicRoute], None]


class RouteCache:
    """Routes by topic, kept fresh while running."""

    def __init__(
        self,
        name_servers: NameServers,
        clock: Clock,
        *,
        refresh_interval_ms: int = REFRESH_INTERVAL_MS,
        on_change: OnChange = lambda topic, route: None,
    ) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self._refresh_interval_ms = refresh_interval_ms
        self._on_change = on_change
        self._routes: dict[str, TopicRoute] = {}
        self._fresh_ms: dict[str, int] = {}  # When a name server last confirmed it; monotonic.
        self._asking: dict[str, asyncio.Lock] = {}

    @property
    def topics(self) -> list[str]:
        """The topics that are kept, in the order of first use."""
        return list(self._routes)

    def by_age(self) -> list[TopicRoute]:
        """All routes, the one that was confirmed last at the end."""
        return [
            self._routes[topic] for topic in sorted(self._routes, key=self._fresh_ms.__getitem__)
        ]

    def known(self, topic: str) -> TopicRoute | None:
        """What is known now, without asking anyone."""
        return self._routes.get(topic)

    def age_ms(self, topic: str) -> int | None:
        """How long ago a name server confirmed the route."""
        fresh_ms = self._fresh_ms.get(topic)
        return None if fresh_ms is None else self._clock.monotonic_ms() - fresh_ms

    async def get(self, topic: str) -> TopicRoute:
        """The route of a topic, asked for if it is not known.

        Raises BrokerError where nobody serves it, TransportError where nobody can say.
        """
        route = self._routes.get(topic)
        if route is not None:
            return route
        # One question serves all who wait; if the one who asks gives up, the next one asks.
        lock = self._asking.setdefault(topic, asyncio.Lock())
        try:
            async with lock:
                route = self._routes.get(topic)
                if route is None:
                    route = await self._name_servers.find_route(topic)
                    self._keep(topic, route)
                return route
        finally:
            if not lock.locked():
                self._asking.pop(topic, None)

    async def refresh(self, topic: str) -> bool:
        """Ask again for one topic; False if what was known has to do."""
        try:
            route = await self._name_servers.get_route(topic)
        except (TransportError, BrokerError, InvalidBody) as error:
            # A topic that is "not there" may only be unknown to a name server that has just
            # started. Brokers refuse what is really gone.
            logger.info("topic=%s route not refreshed: %s", topic, error)
            return False
        self._keep(topic, route)
        return True

    async def refresh_all(self) -> None:
        """Ask again for every topic in use."""
        for topic in self.topics:
            await self.refresh(topic)

    def forget(self, topic: str) -> None:
        """Stop keeping a topic."""
        self._routes.pop(topic, None)
        self._fresh_ms.pop(topic, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Refresh in the background while in the block."""
        async with TaskScope() as scope:
            task = scope.spawn(self._refresh_for_ever())
            try:
                yield self
            finally:
                task.cancel()

    async def _refresh_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(self._refresh_interval_ms)
            await self.refresh_all()

    def _keep(self, topic: str, route: TopicRoute) -> None:
        before = self._routes.get(topic)
        if before is None and len(self._routes) >= TOPICS_MAX:
            self.forget(next(iter(self._routes)))
        self._routes[topic] = route
        self._fresh_ms[topic] = self._clock.monotonic_ms()
        if route != before:
            self._on_change(topic, route)
