"""QueueSharer: finds out who else is in the group, and keeps this member at its share.

Queues that stay are not touched by a rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..errors import NoRoute, TransportError
from ..model.queue import MessageQueue
from ..model.route import TopicRoute
from ..model.topic import is_retry_topic
from .group_member import State
from .process_queue import ProcessQueue
from .queue_holder import LOCK_AGAIN_MS
from .queue_keeper import QueueKeeper
from .rebalance import Members, SubscriptionConflicts, share_of

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 1_000  # When something could not be done in a rebalance.

QueueListener = Callable[[str, frozenset[MessageQueue], frozenset[MessageQueue]], None]
"""Hears a topic, all its queues, and those of them that are ours, whenever either changes."""


class QueueSharer(QueueKeeper):
    """A member that shares the queues of its topics with the others."""

    _members: Members
    _conflicts: SubscriptionConflicts
    _rebalance_due: asyncio.Event
    _rebalancing: asyncio.Lock
    _again: asyncio.TimerHandle | None  # When what could not be done is tried again.
    _listeners: list[QueueListener]
    _heard: dict[str, tuple[frozenset[MessageQueue], frozenset[MessageQueue]]]

    def members_changed(self) -> None:
        """The group has other members than before."""
        self._rebalance_due.set()

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A topic has other queues or brokers than before."""
        if topic in self._subscriptions:
            self._rebalance_due.set()

    # Rebalance.

    async def _keep_rebalanced(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.config.rebalance_interval_ms / 1000):
                    await self._rebalance_due.wait()
            except TimeoutError:
                pass  # Time for the one that nobody asked for.
            await self._rebalance()

    async def _rebalance(self) -> None:
        async with self._rebalancing:
            self._rebalance_due.clear()
            self._stop_trying()
            if not await self._share_out():
                self._again = asyncio.get_running_loop().call_later(
                    self._again_ms / 1000, self._rebalance_due.set
                )

    def _stop_trying(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    async def _share_out(self) -> bool:
        """Take what is ours and let go of what is not; False if something is left to do soon."""
        self._again_ms = AGAIN_MS
        topics, is_complete = await self._read_queues()
        if not topics:
            await self._let_go_unsubscribed()
            return is_complete
        wanted = await self._our_share(topics)
        if wanted is None:
            return False
        if not self.config.is_broadcasting and self._members.in_grace:
            is_complete = False
        leaving = self._not_ours(wanted)
        let_go = await self._let_go(leaving)
        new = [
            place
            for places in wanted.values()
            for place in sorted(places)
            if place not in self._queues
        ]
        taken = await self._take(new) if new else True
        if leaving or new:
            await self._share_changed(new_count=len(new), left_count=len(leaving))
        self._tell_listeners(topics)
        return is_complete and let_go and taken

    async def _our_share(
        self, topics: Mapping[str, Iterable[MessageQueue]]
    ) -> dict[str, set[MessageQueue]] | None:
        """The queues that should be ours, by topic; None where that cannot be said now."""
        if self.config.is_broadcasting:
            return {topic: set(queues) for topic, queues in topics.items()}
        members = await self._members.ask(self._broker_addresses())
        if members is None:
            return None
        client_id = self._session.client_id
        if client_id not in members:
            # Others cannot see us yet, and a share by their lists would not be ours.
            await self._session.heartbeat()
            self._again_ms = LOCK_AGAIN_MS
            return None
        return share_of(self.config.strategy, self._group, client_id, topics, members)

    def _not_ours(self, wanted: Mapping[str, set[MessageQueue]]) -> list[ProcessQueue]:
        """Those of our queues that should go; one that was about to, and should not, stays."""
        now_ms = self._clock.monotonic_ms()
        leaving = []
        for place, queue in self._queues.items():
            kept = wanted.get(place.topic)
            if place.topic not in self._subscriptions or (kept is not None and place not in kept):
                leaving.append(queue)
            elif queue.is_pull_expired(now_ms) and not queue.is_flow_limited:
                logger.error("group=%s queue=%s is not pulled any more", self._group, place)
                leaving.append(queue)
            elif queue.is_leaving:
                queue.is_leaving = False  # It came back before it had gone.
                self._start_pulling(queue)
                self._queue_stays(queue)
        return leaving

    async def _share_changed(self, *, new_count: int, left_count: int) -> None:
        self._bump_versions()
        logger.info(
            "group=%s rebalanced result changed. allocateMessageQueueStrategyName=%s "
            "members=%d queues=%d new=%d left=%d",
            *(self._group, self.config.strategy.name, len(self._members.known)),
            *(len(self._queues), new_count, left_count),
        )
        if not self.config.is_broadcasting:
            await self._conflicts.look(self._broker_addresses(), self._subscriptions)

    async def _read_queues(self) -> tuple[dict[str, list[MessageQueue]], bool]:
        topics: dict[str, list[MessageQueue]] = {}
        is_complete = True
        for topic in self._subscriptions:
            try:
                topics[topic] = await self._session.read_queues(topic)
            except (NoRoute, TransportError) as error:
                level = logging.DEBUG if is_retry_topic(topic) else logging.INFO
                logger.log(
                    level,
                    "doRebalance, %s, but the topic[%s] not exist. %s",
                    *(self._group, topic, error),
                )
                is_complete = False
        return topics, is_complete

    def _broker_addresses(self) -> list[str]:
        addresses: dict[str, None] = {}
        for topic in self._subscriptions:
            route = self._session.routes.known(topic)
            for data in route.brokers if route is not None else ():
                address = data.any_address()
                if address is not None:
                    addresses[address] = None
        return list(addresses)

    async def _let_go_unsubscribed(self) -> None:
        subscribed = self._subscriptions
        gone = [queue for place, queue in self._queues.items() if place.topic not in subscribed]
        await self._let_go(gone)

    def _must_wait_for_handover(self) -> bool:
        if self.config.is_broadcasting:
            return False
        # Also when members only left: those who stay pass queues among them as well.
        return len(self._members.known) > 1

    # What pullers ask.

    def broker_in_trouble(self, address: str) -> None:
        """A broker is gone."""
        self._members.trouble(address)

    def broker_lost(self, address: str) -> None:
        """A connection to a broker has ended."""
        self._members.trouble(address)
        super().broker_lost(address)

    def _begin_soon(self) -> None:
        self._rebalance_due.set()

    def offset_moved(self, queue: ProcessQueue, offset: int) -> None:
        """A queue no longer has what we asked for; it starts over where the broker says."""
        logger.warning(
            "group=%s queue=%s has no offset %d, going on at %d",
            *(self._group, queue, queue.next_offset, offset),
        )
        # At once: another pull would take the old offset along, and set the commit back to it.
        self._discard(queue)
        self._tasks.spawn(self._begin_again(queue.queue, offset))

    async def _begin_again(self, place: MessageQueue, offset: int) -> None:
        async with self._rebalancing:
            is_kept = await self._offsets.commit({place: offset})
        if not is_kept:
            # It would begin where it was, and be sent away again at once.
            await self._clock.sleep_ms(self.config.pull_retry_ms)
        await self._rebalance()

    # What others may know.

    def _tell_listeners(self, topics: Mapping[str, Iterable[MessageQueue]]) -> None:
        for topic, queues in topics.items():
            mine = self._named(place for place in self._queues if place.topic == topic)
            now = (self._named(queues), mine)
            if self._heard.get(topic) == now:
                continue
            self._heard[topic] = now
            for listener in self._listeners:
                try:
                    listener(self._session.unwrap(topic), *now)
                except Exception:
                    logger.exception(
                        "group=%s topic=%s a queue listener failed", self._group, topic
                    )

    def add_queue_listener(self, listener: QueueListener) -> None:
        """Tell someone whenever the queues of a topic, or our share of them, change."""
        self._listeners.append(listener)

    @property
    def subscription_conflicts(self) -> Mapping[str, str]:
        """Topics for which the broker has another subscription of this group, and which."""
        return dict(self._conflicts.found) if self.state is not State.CREATE_JUST else {}
