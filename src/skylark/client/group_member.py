"""GroupMember: who a consumer is in its group, and what it wants there.

Brokers take the subscription with the highest version for that of the group, so versions only grow.
"""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import ClassVar

from ..clock import Clock
from ..errors import ClientClosed, NoRoute, TransportError
from ..model.group import ConsumeType, Subscription
from ..model.queue import MessageQueue
from ..model.topic import is_retry_topic
from ..protocol.bodies import ConsumerData
from .consumer_config import ConsumerConfig
from .session import Session
from .start_point import StartPoint
from .subscriptions import TAG, Expression, make_subscription

logger = logging.getLogger(__name__)

SessionSource = Callable[[str], Awaitable[Session]]


class State(Enum):
    """Where a client is in its life: RocketMQ's names."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    START_FAILED = "START_FAILED"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


class GroupMember(ABC):
    """A member of a consumer group, and its subscriptions."""

    consume_type: ClassVar[ConsumeType]

    config: ConsumerConfig
    name: str  # The group, as the application knows it.
    state: State
    _session: Session
    _clock: Clock
    _group: str
    _retry_topic: str
    _start_point: StartPoint
    _expressions: dict[str, Expression]
    _subscriptions: dict[str, Subscription]
    _version: int

    def _require_running(self) -> None:
        if self.state is not State.RUNNING:
            raise ClientClosed(
                f"the consumer of {self.name!r} is not running ({self.state.value})",
                hint="use it inside `async with`, or start it",
            )

    @property
    def group(self) -> str:
        """The group, as brokers know it."""
        return self._group

    @property
    def clock(self) -> Clock:
        """The clock of its session."""
        return self._clock

    @property
    def client_id(self) -> str:
        """How brokers know this member."""
        return self._session.client_id

    def _named(self, places: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Queues as the application names them."""
        unwrap = self._session.unwrap
        return frozenset(
            MessageQueue(unwrap(place.topic), place.broker_name, place.queue_id) for place in places
        )

    # Subscriptions.

    def _subscribe_all(self) -> None:
        version = self._next_version()
        wanted = {self._session.wrap(name): given for name, given in self._expressions.items()}
        if not self.config.is_broadcasting and self._wants_retries():
            wanted[self._retry_topic] = None
        before = self._subscriptions
        self._subscriptions = {}
        for topic, given in wanted.items():
            fresh = make_subscription(topic, given, version)
            known = before.get(topic)
            is_same = known is not None and known.expression == fresh.expression
            self._subscriptions[topic] = known if known is not None and is_same else fresh

    def _wants_retries(self) -> bool:
        return True

    def _next_version(self) -> int:
        self._version = max(self._clock.now_ms(), self._version + 1)
        return self._version

    def _bump_versions(self) -> None:
        # Brokers take the subscription with the highest version for that of the group.
        version = self._next_version()
        self._subscriptions = {
            topic: replace(one, version=version) for topic, one in self._subscriptions.items()
        }
        self._session.want_heartbeat()

    def subscription_of(self, topic: str) -> Subscription | None:
        """What is wanted of a topic; for pullers."""
        return self._subscriptions.get(topic)

    async def _learn_routes(self) -> None:
        for topic in self._subscriptions:
            if is_retry_topic(topic):
                continue  # It comes into being with our first heartbeat.
            try:
                await self._session.route(topic)
            except (NoRoute, TransportError) as error:
                logger.warning("group=%s topic=%s not found yet: %s", self._group, topic, error)

    async def _check_filters(self) -> None:
        for subscription in self._subscriptions.values():
            if subscription.expression_type == TAG:
                continue
            route = self._session.routes.known(subscription.topic)
            for data in route.brokers if route is not None else ():
                address = data.any_address()
                if address is not None:
                    broker = self._session.broker(address)
                    await broker.check_client_config(
                        self._session.client_id, self._group, subscription
                    )

    def heartbeat_data(self) -> ConsumerData:
        """What the group wants, for a heartbeat."""
        return ConsumerData(
            self._group,
            self.consume_type,
            self.config.message_model,
            self._start_point.where,
            tuple(self._subscriptions.values()),
        )
