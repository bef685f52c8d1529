"""LinkOwner: what a listener and a set of channels have in common, the care for their links."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from .link import Link
from .tasks import TaskScope

# How long closed links may take to go before they are cut, when their owner ends.
GOODBYE_MS_MAX: Final = 1_000


class LinkOwner:
    """Keeps links and their tasks, and leaves none of them behind."""

    def __init__(self) -> None:
        self._tasks = TaskScope()
        self._links: dict[Link, None] = {}  # In order of arrival: iteration must not depend on ids.
        self._orphans: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._is_ending = False
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def links(self) -> list[Link]:
        """The connections that are up, oldest first."""
        return list(self._links)

    # What a link asks of its owner.

    def link_lost(self, link: Link) -> None:
        self._links.pop(link, None)
        if not self._links and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        try:
            return self._tasks.spawn(coroutine)
        except RuntimeError:  # The group has failed or is finished.
            coroutine.close()
            return None

    def adopt(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)

    def fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for link in self.links:
            link.cut()
        # The task group interrupts whoever is inside our block; without one, leaving it raises.
        self.spawn(_raise(error))

    # Ending.

    async def _end(self) -> None:
        """Close all links, end all requests, and wait until they are gone."""
        self._is_ending = True
        for link in self.links:
            if self._failure is None and link.is_idle:
                link.close()
            else:
                link.cut()
            link.cancel_requests()
        for task in self._orphans:
            task.cancel()
        try:
            async with asyncio.timeout(GOODBYE_MS_MAX / 1000):
                await self._wait_gone()
        except TimeoutError:
            for link in self.links:
                link.cut()
            await self._wait_gone()

    async def _wait_gone(self) -> None:
        if self._links:
            self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone


async def _raise(error: Exception) -> None:
    raise error
