"""Rebalance: who else is in the group, and which queues are ours by that.

The members of a group are asked from every broker that has one of its topics, and those lists are
joined: a broker that has just started knows only the members that have come back to it so far.
Where there is only that one broker, members that were there before its trouble keep their places
for a few seconds more. Without that, whoever comes back first would take all queues, and hand most
of them over again a moment later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..errors import BrokerError, ConnectFailed, ConnectionLost, InvalidBody, TransportError
from ..model.group import Subscription
from ..model.queue import MessageQueue
from .allocation import AllocationStrategy, allocate_sorted
from .session import Session
from .subscriptions import differs

logger = logging.getLogger(__name__)

GRACE_MS: Final = 5_000


class Members:
    """Who is in the group, as far as brokers say."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._known: frozenset[str] = frozenset()
        self._trouble_ms: dict[str, int] = {}  # Address → when it was last gone.
        self._silent: set[str] = set()  # Addresses of which that has been said.
        self.in_grace = False  # Whether the last answer may have been short.

    @property
    def known(self) -> frozenset[str]:
        """Who was there when last asked."""
        return self._known

    def trouble(self, address: str) -> None:
        """A broker was gone: when it is back, its list may be short for a while."""
        self._trouble_ms[address] = self._session.clock.monotonic_ms()

    def _is_settled(self, address: str) -> bool:
        trouble_ms = self._trouble_ms.get(address)
        return trouble_ms is None or (self._session.clock.monotonic_ms() - trouble_ms >= GRACE_MS)

    async def ask(self, addresses: Sequence[str]) -> frozenset[str] | None:
        """Ask all of these brokers; None if none of them could say."""
        answers = await asyncio.gather(*(self._ask(address) for address in addresses))
        found = {
            address: answer
            for address, answer in zip(addresses, answers, strict=True)
            if answer is not None
        }
        if not found:
            return None
        members = frozenset[str]().union(*found.values())
        self.in_grace = not any(map(self._is_settled, found)) and not self._known <= members
        if self.in_grace:
            members |= self._known
        self._known = members
        return members

    async def _ask(self, address: str) -> frozenset[str] | None:
        try:
            timeout_ms = self._session.config.api_timeout_ms
            broker = self._session.broker(address)
            found = frozenset(await broker.get_consumer_ids(self._group, timeout_ms=timeout_ms))
            self._silent.discard(address)
            return found
        except BrokerError as error:
            # A group without members is told as an error: our heartbeat has not come there yet.
            logger.debug("group=%s broker=%s has no members: %s", self._group, address, error)
            return frozenset()
        except (TransportError, InvalidBody) as error:
            level = logging.DEBUG if address in self._silent else logging.WARNING
            self._silent.add(address)
            logger.log(
                level,
                "group=%s broker=%s get consumer id list failed: %s",
                *(self._group, address, error),
            )
            if isinstance(error, ConnectFailed | ConnectionLost):
                self.trouble(address)  # One that is only slow has forgotten nobody.
            return None


class SubscriptionConflicts:
    """Finds out whether members of a group want different things, by asking a broker.

    A broker keeps one subscription for a group and topic, that of the member who changed last. If
    it is not ours, somebody's messages are filtered by the wrong expression.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.found: dict[str, str] = {}  # Topic → what the broker has for the group.

    async def look(self, addresses: Sequence[str], own: Mapping[str, Subscription]) -> None:
        """Ask one broker, and warn of what is new."""
        if not addresses:
            return
        broker = self._session.broker(self._session.rng.choice(addresses))
        try:
            timeout_ms = self._session.config.api_timeout_ms
            there = await broker.get_consumer_connections(self._group, timeout_ms=timeout_ms)
        except (TransportError, BrokerError, InvalidBody) as error:
            logger.debug("group=%s subscriptions not compared: %s", self._group, error)
            return
        others = there.subscriptions
        found = {topic: other.expression for topic, other in others.items() if topic not in own}
        for topic, mine in own.items():
            other = others.get(topic)
            if other is None:
                found[topic] = "not subscribed"
            elif differs(mine, other):
                found[topic] = other.expression
        for topic, expression in found.items():
            if self.found.get(topic) != expression:
                logger.warning(
                    "group=%s topic=%s members subscribe differently: here %r, at the broker %r; "
                    "messages get lost until all members of the group subscribe to the same",
                    self._group,
                    topic,
                    own[topic].expression if topic in own else "not subscribed",
                    expression,
                )
        self.found = found


def share_of(
    strategy: AllocationStrategy,
    group: str,
    client_id: str,
    queues_by_topic: Mapping[str, Iterable[MessageQueue]],
    client_ids: Iterable[str],
) -> dict[str, set[MessageQueue]]:
    """Which queues of each topic are ours."""
    ids = frozenset(client_ids)
    return {
        topic: set(allocate_sorted(strategy, group, client_id, queues, ids))
        for topic, queues in queues_by_topic.items()
    }
