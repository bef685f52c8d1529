"""Destinations: where a producer may send its topics, and which queue is next.

A topic that nobody has created yet borrows the route of the template topic: the broker that gets
its first message creates it there. Its own route takes over once it is worth having.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ..errors import BrokerError, InvalidMessage, NoRoute, SkylarkError, TransportError
from ..model.message import Message
from ..model.queue import MessageQueue
from ..protocol.codes import ResponseCode
from .latency import LatencyTable
from .producer_config import ProducerConfig
from .queue_choice import PublishInfo, QueueSelector, hash_position
from .routes import TOPICS_MAX
from .session import Session

logger = logging.getLogger(__name__)

SETTLE_INTERVAL_MS: Final = 1_000  # How often a topic that has been created is asked for.


class Destinations:
    """The queues of the topics that one producer sends to."""

    def __init__(
        self, session: Session, config: ProducerConfig, latency: LatencyTable | None
    ) -> None:
        self.infos: dict[str, PublishInfo] = {}
        self._session = session
        self._config = config
        self._clock = session.clock
        self._latency = latency
        self._settled_ms: dict[str, int] = {}

    async def find(self, topic: str) -> PublishInfo:
        """Where a topic may be sent to; raises NoRoute."""
        info = self.infos.get(topic)
        route = self._session.routes.known(topic)
        if info is not None and (info.route is route or (route is None and info.is_borrowed)):
            if info.queues:
                return info
            # Known to have no writable queue: perhaps that has changed.
            await self._session.routes.refresh(topic)
        return await self._find_topic(topic)

    async def _find_topic(self, topic: str) -> PublishInfo:
        session = self._session
        info: PublishInfo | None = None
        cause: SkylarkError | None = None
        try:
            info = PublishInfo(topic, await session.routes.get(topic), session.rng)
        except BrokerError as error:
            cause = error
        except TransportError as error:
            raise NoRoute(
                f"no name server can say who serves topic {topic!r}: {error.problem}",
                hint="start one, or check namesrv_addr",
            ) from error
        if info is None or (not info.queues and not info.route.queues):
            info = await self._borrow_route(topic)
        if info is None or not info.queues:
            raise NoRoute(
                f"No route info of this topic: {topic}",
                hint=(
                    "create the topic, or let brokers create topics (autoCreateTopicEnable)"
                    if info is None
                    else "no broker with a master lets it be written to: look at perm and brokers"
                ),
                code=ResponseCode.TOPIC_NOT_EXIST,
            ) from cause
        if len(self.infos) >= TOPICS_MAX:
            self.infos.clear()  # All can be found again; nobody sends to so many at once.
            self._settled_ms.clear()
        self.infos[topic] = info
        return info

    async def _borrow_route(self, topic: str) -> PublishInfo | None:
        """Send a new topic where the template topic is; the broker then creates it."""
        try:
            route = await self._session.routes.get(self._config.create_topic_key)
        except (BrokerError, TransportError) as error:
            logger.info("topic=%s cannot be created: %s", topic, error)
            return None
        count_max = self._config.default_topic_queue_nums
        return PublishInfo(topic, route, self._session.rng, queue_count_max=count_max)

    def note_stored(self, info: PublishInfo, queue: MessageQueue) -> None:
        """A topic was created by sending to it; learn its own route when that is worth having.

        Not before every broker has had a message: its own route names only those that have it,
        and would keep the topic on the first of them for ever.
        """
        info.unreached.discard(queue.broker_name)
        now_ms = self._clock.monotonic_ms()
        last_ms = self._settled_ms.setdefault(info.topic, now_ms)
        waited_ms = now_ms - last_ms
        interval_ms = self._session.config.poll_name_server_interval_ms
        if info.unreached:
            is_due = waited_ms >= interval_ms
        else:
            is_due = waited_ms >= SETTLE_INTERVAL_MS
        if is_due:
            self._settled_ms[info.topic] = now_ms
            self._session.spawn(self._learn_route(info.topic))

    async def _learn_route(self, topic: str) -> None:
        try:
            await self._session.routes.get(topic)
        except (BrokerError, TransportError) as error:
            logger.info("topic=%s not known to name servers yet: %s", topic, error)

    def next_queue(self, info: PublishInfo, avoid: str | None) -> MessageQueue:
        if self._latency is not None:
            return info.next_available(self._latency)
        return info.next(avoid=avoid)

    def address_of(self, info: PublishInfo, queue: MessageQueue) -> str:
        address = info.addresses.get(queue.broker_name)
        if address is None:
            address = self._session.master_address(queue.broker_name)
        if address is None:
            raise NoRoute(
                f"The broker[{queue.broker_name}] not exist",
                hint="its master may be down: choose another queue, or wait for it",
                broker=queue.broker_name,
            )
        return self._session.send_address(address)


def wanted_queue(
    info: PublishInfo,
    message: Message,
    queue: MessageQueue | None,
    key: str | None,
    selector: QueueSelector | None,
    argument: Any,
) -> MessageQueue:
    """The queue that the caller wants."""
    if sum(choice is not None for choice in (queue, key, selector)) > 1:
        raise InvalidMessage(
            "more than one of queue, key and selector is given", hint="give one of them"
        )
    if queue is not None:
        if queue.topic not in (message.topic, info.topic):
            raise InvalidMessage(
                f"message's topic not equal mq's topic: {message.topic!r}, {queue.topic!r}",
                hint="send to a queue of the message's own topic",
            )
        return MessageQueue(info.topic, queue.broker_name, queue.queue_id)
    if key is not None:
        return info.queues[hash_position(key, len(info.queues))]
    assert selector is not None
    offered = info.queues
    if info.topic != message.topic:
        offered = tuple(
            MessageQueue(message.topic, item.broker_name, item.queue_id) for item in offered
        )
    chosen = selector(offered, message, argument)
    if not isinstance(chosen, MessageQueue):
        raise InvalidMessage(
            f"the selector returned {type(chosen).__name__}", hint="return one of the queues"
        )
    return MessageQueue(info.topic, chosen.broker_name, chosen.queue_id)
