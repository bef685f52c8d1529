"""LitePullConsumer: the application asks for messages when it wants them.

    async with mq.lite_pull_consumer("reports", {"Orders": "*"}) as consumer:
        while True:
            for message in await consumer.poll():
                ...

Messages are read ahead in the background, so `poll` mostly returns at once. It is used in one of
two ways: subscribed, where members of the group share the queues, or assigned to certain queues
(no subscriptions, then `assign`), where nobody else is asked.

What one poll returned counts as done when the next poll begins, or at `commit`. With auto_commit,
progress goes to the broker every five seconds; without, only at `commit`. Leaving without a last
`commit` has the last batch come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..errors import ClientError, ConfigError
from ..model.group import ConsumeType
from ..model.queue import MessageQueue
from ..model.route import TopicRoute
from .consumer_config import ConsumerConfig
from .group_consumer import GroupConsumer, SessionSource, State
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .session import Session
from .start_point import ConsumeFrom, first_offset_since, time_ms
from .subscriptions import Subscriptions, make_subscription

logger = logging.getLogger(__name__)

POLL_TIMEOUT_MS: Final = 5_000

TopicListener = Callable[[str, frozenset[MessageQueue]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig(ConsumerConfig):
    """Settings of a lite pull consumer; defaults are those of RocketMQ 4.9.8."""

    pull_batch_size: int = 10
    pull_suspend_ms: int = 20_000
    pull_threshold_for_all: int = 10_000  # Messages in hand, over all queues.
    auto_commit: bool = True

    def __post_init__(self) -> None:
        # super() without arguments does not work in a dataclass with slots.
        ConsumerConfig.__post_init__(self)
        if self.pull_threshold_for_all < 1:
            raise ConfigError("pull_threshold_for_all is a number of messages above zero")
        if self.orderly:
            raise ConfigError("a lite pull consumer reads each queue in order; orderly is for push")


class LitePullConsumer(GroupConsumer):
    """A member of a group, or a reader of certain queues, that polls."""

    consume_type = ConsumeType.CONSUME_ACTIVELY
    config: LitePullConfig
    _is_lite = True

    def __init__(
        self,
        session: Session | SessionSource,
        group: str,
        subscriptions: Subscriptions | None = None,
        *,
        config: LitePullConfig | None = None,
        consume_from: ConsumeFrom = "last",
    ) -> None:
        """Check what is given; raises InvalidName or ConfigError."""
        super().__init__(
            session,
            group,
            subscriptions if subscriptions is not None else {},
            config or LitePullConfig(),
            consume_from=consume_from,
        )
        self._assigned: set[MessageQueue] | None = None  # As the application names them.
        self._paused: set[MessageQueue] = set()
        self._topic_listeners: dict[str, list[TopicListener]] = {}
        self._arrived = deque[tuple[ProcessQueue, list[ReceivedMessage]]]()
        self._handed: list[tuple[ProcessQueue, list[ReceivedMessage]]] = []
        self._waiting: asyncio.Future[None] | None = None
        self._in_hand = 0

    # Polling.

    async def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Wait for messages of one queue; an empty list when none come in time.

        What the poll before returned counts as done now.
        """
        self._require_running()
        self._finish_handed()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            batch = self._next_batch(count_max)
            if batch is not None:
                self._handed.append(batch)
                return batch[1]
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return []
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._waiting
            except TimeoutError:
                return []
            finally:
                self._waiting = None

    def _next_batch(
        self, count_max: int | None
    ) -> tuple[ProcessQueue, list[ReceivedMessage]] | None:
        for _ in range(len(self._arrived)):
            queue, messages = self._arrived.popleft()
            if queue.is_dropped:
                continue
            if queue.is_paused:
                self._arrived.append((queue, messages))
                continue
            if count_max is not None and len(messages) > count_max:
                self._arrived.appendleft((queue, messages[count_max:]))
                messages = messages[:count_max]
            return queue, messages
        return None

    def _finish_handed(self) -> None:
        for queue, messages in self._handed:
            if not queue.is_dropped:
                queue.finish(messages)
            self._in_hand -= len(messages)
        if self._handed and self._in_hand < self.config.pull_threshold_for_all:
            for queue in self._queues.values():
                queue.wake_puller()
        self._handed = []

    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages have been added to a queue."""
        self._in_hand += len(messages)
        self._arrived.append((queue, messages))
        self._wake()

    def exceeded(self, queue: ProcessQueue) -> str | None:
        """Why pulling a queue should wait."""
        if self._in_hand >= self.config.pull_threshold_for_all:
            return f"{self._in_hand} messages in hand over all queues"
        return super().exceeded(queue)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _queue_left(self, queue: ProcessQueue) -> None:
        kept = deque[tuple[ProcessQueue, list[ReceivedMessage]]]()
        for owner, messages in self._arrived:
            if owner is queue:
                self._in_hand -= len(messages)
            else:
                kept.append((owner, messages))
        self._arrived = kept

    # Assigned instead of subscribed.

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; raises ClientError for a consumer with subscriptions."""
        if self._expressions:
            raise ClientError(
                "this consumer subscribes to topics", hint="assign queues to one that does not"
            )
        self._assigned = set(queues)
        if self.state is State.RUNNING:
            self._subscribe_all()
            await self._learn_routes()
            await self._rebalance()

    def _subscribe_all(self) -> None:
        super()._subscribe_all()
        if self._assigned is None:
            return
        version = self._next_version()
        for queue in sorted(self._assigned):
            topic = self._session.wrap(queue.topic)
            if topic not in self._subscriptions:
                self._subscriptions[topic] = make_subscription(topic, None, version)

    def _wants_retries(self) -> bool:
        return False

    async def _share_out(self) -> bool:
        if self._assigned is None:
            return await super()._share_out()
        wanted = {self._place(queue) for queue in self._assigned}
        await self._let_go([self._queues[one] for one in self._queues.keys() - wanted])
        began = True
        for place in sorted(wanted - self._queues.keys()):
            began = await self._begin(place, 0) and began
        return began

    def _must_wait_for_handover(self) -> bool:
        return self._assigned is None and super()._must_wait_for_handover()

    # Where it stands.

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message that a poll will return."""
        held = self._held(queue)
        for owner, messages in self._arrived:
            if owner is held:
                return messages[0].queue_offset
        return held.next_offset

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; raises ClientError where the queue has no such place."""
        held = self._held(queue)
        broker = self._session.broker(self._address_of(held.queue))
        low, high = await asyncio.gather(
            broker.get_min_offset(held.queue), broker.get_max_offset(held.queue)
        )
        if not low <= offset <= high:
            raise ClientError(
                f"offset {offset} is not in {queue}", hint=f"choose one of {low} to {high}"
            )
        self._move(held.queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that is still there."""
        held = self._held(queue)
        broker = self._session.broker(self._address_of(held.queue))
        self._move(held.queue, await broker.get_min_offset(held.queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        held = self._held(queue)
        broker = self._session.broker(self._address_of(held.queue))
        self._move(held.queue, await broker.get_max_offset(held.queue))

    async def seek_to_time(self, queue: MessageQueue, at: datetime | int | str) -> None:
        """Go on at the first message that was stored at a time or later."""
        self._move(self._held(queue).queue, await self.offset_for_time(queue, at))

    def _move(self, place: MessageQueue, offset: int) -> None:
        held = self._queues.get(place)
        if held is None:
            raise ClientError(f"{place} has left us meanwhile", hint="look at the assignment")
        for batch in [one for one in self._handed if one[0] is held]:
            self._handed.remove(batch)
            self._in_hand -= len(batch[1])
        self._discard(held)
        fresh = ProcessQueue(place, offset, now_ms=self._clock.monotonic_ms(), figures=held.figures)
        fresh.is_paused = held.is_paused
        self._queues[place] = fresh
        self._start_pulling(fresh)

    async def offset_for_time(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset of the first message that was stored at a time or later."""
        place = self._place(queue)
        broker = self._session.broker(self._address_of(place))
        return await first_offset_since(broker, self._group, place, time_ms(at))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing more of these queues until they are resumed."""
        for queue in queues:
            place = self._place(queue)
            self._paused.add(place)
            if place in self._queues:
                self._queues[place].is_paused = True

    def resume_queues(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues."""
        for queue in queues:
            place = self._place(queue)
            self._paused.discard(place)
            if place in self._queues:
                self._queues[place].is_paused = False
                self._queues[place].wake_puller()
        self._wake()

    def _queue_taken(self, queue: ProcessQueue) -> None:
        queue.is_paused = queue.is_paused or queue.queue in self._paused

    # Committing.

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what polls have returned so far, or these offsets; waits for the broker."""
        self._require_running()
        if offsets is not None:
            await self._offsets.commit({self._place(one): at for one, at in offsets.items()})
            return
        self._finish_handed()
        await self._offsets.commit(super()._progress())

    async def committed(self, queue: MessageQueue) -> int | None:
        """How far the group has committed in a queue; None if it never did."""
        return await self._offsets.read(self._place(queue))

    def _progress(self) -> dict[MessageQueue, int]:
        return super()._progress() if self.config.auto_commit else {}

    # Queues and topics.

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that may be read; raises NoRoute."""
        queues = await self._session.read_queues(self._session.wrap(topic))
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    def add_topic_listener(self, topic: str, listener: TopicListener) -> None:
        """Tell someone whenever a topic has other queues than before."""
        self._topic_listeners.setdefault(topic, []).append(listener)

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A topic has other queues or brokers than before."""
        super().route_changed(topic, route)
        name = self._session.unwrap(topic)
        queues = frozenset(
            MessageQueue(name, data.broker_name, queue_id)
            for data in route.queues
            if data.is_readable
            for queue_id in range(data.read_queue_nums)
        )
        for listener in self._topic_listeners.get(name, ()):
            try:
                listener(name, queues)
            except Exception:
                logger.exception("group=%s topic=%s a topic listener failed", self._group, name)

    # What the base asks.

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        return ()

    async def _drain(self) -> None:
        self._wake()

    def _place(self, queue: MessageQueue) -> MessageQueue:
        return MessageQueue(self._session.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def _held(self, queue: MessageQueue) -> ProcessQueue:
        self._require_running()
        held = self._queues.get(self._place(queue))
        if held is None:
            raise ClientError(
                f"{queue} is not assigned to this consumer", hint="look at its assignment"
            )
        return held
