"""GroupConsumer: what push and lite pull consumers have in common, a place in a group.

It keeps the group's subscriptions, asks who else is there, takes its share of the queues and lets
go of what is not its any more, pulls what it has, and commits how far it has come.

    every              what
    20 s, on notice    rebalance: at the start, when members or routes change, after resume
    5 s, at the end    commit offsets
    20 s (orderly)     refresh the locks of all queues, one request for each broker
    10 s               read the statistics

How a queue changes hands: the old owner stops pulling, lets the handlers that run finish for a
moment, commits and drops the queue; a new owner waits that moment before it asks where to begin.
Queues that stay are not touched.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from ..clock import Clock
from ..errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    NoRoute,
    TransportError,
)
from ..model.group import ConsumeType, Subscription
from ..model.message import StoredMessage
from ..model.names import check_group_name
from ..model.queue import MessageQueue
from ..model.route import TopicRoute
from ..model.topic import is_retry_topic, retry_topic
from ..net.tasks import TaskScope
from ..protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
)
from .config import DEFAULT_INSTANCE_NAME
from .consumer_config import ConsumerConfig
from .consumer_offsets import ConsumerOffsets, LocalOffsets, RemoteOffsets
from .consumer_stats import SAMPLE_EVERY_MS, ConsumerStats
from .process_queue import ProcessQueue
from .puller import Puller
from .queue_locks import QueueLocks
from .rebalance import Members, SubscriptionConflicts, share_of
from .received import ReceivedMessage
from .session import Session
from .start_point import ConsumeFrom, StartPoint, first_offset_since
from .subscriptions import (
    SQL92,
    Expression,
    Subscriptions,
    check_subscriptions,
    make_subscription,
)

logger = logging.getLogger(__name__)

LOCK_REFRESH_MS: Final = 20_000
AGAIN_MS: Final = 1_000  # When something could not be done in a rebalance.
LOCK_AGAIN_MS: Final = 200
LET_GO_MS: Final = 1_000  # How long an orderly handler may hold up a rebalance.
DRAIN_POLL_MS: Final = 5
# A broker may serve a pull that takes our progress along after a commit that was sent later. So a
# last commit keeps this distance from the last pull.
COMMIT_DISTANCE_MS: Final = 20

CLIENT_VERSION: Final = "V4_9_8"  # What RocketMQ calls the version number of our commands.

SessionSource = Callable[[str], Awaitable[Session]]
QueueListener = Callable[[str, frozenset[MessageQueue], frozenset[MessageQueue]], None]
"""Hears a topic, all its queues, and those of them that are ours, whenever either changes."""


class State(Enum):
    """Where a client is in its life: RocketMQ's names."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    START_FAILED = "START_FAILED"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


class GroupConsumer(ABC):
    """A member of a consumer group; an async context manager."""

    consume_type: ClassVar[ConsumeType]
    _is_lite: ClassVar[bool] = False

    def __init__(
        self,
        session: Session | SessionSource,
        group: str,
        subscriptions: Subscriptions,
        config: ConsumerConfig,
        *,
        consume_from: ConsumeFrom = "last",
    ) -> None:
        """Check what is given; raises InvalidName or ConfigError."""
        check_group_name(group)
        self.config = config
        self.name = group  # As the application knows it.
        self.state = State.CREATE_JUST
        self.stats = ConsumerStats(0)
        self._source = session
        self._expressions = check_subscriptions(subscriptions)
        self._consume_from = consume_from
        StartPoint.of(consume_from, now_ms=2**40)  # So that a mistake shows here.
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._pullers: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._listeners: list[QueueListener] = []
        self._heard: dict[str, tuple[frozenset[MessageQueue], frozenset[MessageQueue]]] = {}
        self._is_suspended = False

    # Life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group and take a share of its queues; raises SkylarkError."""
        if self.state is State.RUNNING:
            raise ClientError(
                f"consumer of {self.name!r} was started before", hint="close it first"
            )
        session = self._source if isinstance(self._source, Session) else None
        try:
            if session is None:
                assert not isinstance(self._source, Session)
                session = await self._source(self.name)
            await self._start(session)
        except BaseException:
            self.state = State.START_FAILED
            raise
        self.state = State.RUNNING

    async def _start(self, session: Session) -> None:
        self._session = session
        self._clock: Clock = session.clock
        self._group = session.wrap(self.name)
        self._retry_topic = retry_topic(self._group)
        self._start_point = StartPoint.of(self._consume_from, now_ms=self._clock.now_ms())
        self._started_at_ms = self._clock.now_ms()
        self._version = 0
        self.stats = ConsumerStats(self._clock.monotonic_ms())
        self._subscribe_all()
        self._members = Members(session, self._group)
        self._locks = QueueLocks(session, self._group)
        self._conflicts = SubscriptionConflicts(session, self._group)
        self._offsets = self._make_offsets()
        self._rebalance_due = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._closing = asyncio.Event()
        session.join_consumer(self)
        try:
            await self._offsets.load()
            await self._learn_routes()
            await self._check_filters()
            await session.heartbeat()
            ready = asyncio.get_running_loop().create_future()
            self._running = session.spawn(self._run(ready))
            try:
                await asyncio.wait((ready, self._running), return_when=asyncio.FIRST_COMPLETED)
                if self._running.done():
                    self._running.result()
            except BaseException:
                self._running.cancel()
                raise
        except BaseException:
            await session.leave_consumer(self)
            raise

    async def close(self) -> None:
        """Let running handlers finish, commit, and leave the group; harmless a second time."""
        if self.state is not State.RUNNING:
            return
        self.state = State.SHUTDOWN_ALREADY
        self._closing.set()
        try:
            await self._running
        except asyncio.CancelledError:
            if not self._running.cancelled():
                raise

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with TaskScope() as tasks:
                self._tasks = tasks
                await self._rebalance()
                background = [
                    tasks.spawn(self._keep_rebalanced()),
                    tasks.spawn(self._keep_committed()),
                    tasks.spawn(self._keep_stats()),
                    *map(tasks.spawn, self._background()),
                ]
                if self.config.orderly and not self.config.is_broadcasting:
                    background.append(tasks.spawn(self._keep_locks()))
                if not ready.done():
                    ready.set_result(None)
                await self._closing.wait()
                async with self._rebalancing:  # A queue half handed over would lose its commit.
                    background[0].cancel()
                for queue in self._queues.values():
                    self._stop_pulling(queue)
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """Commit, unlock, unregister: in this order, so that nobody starts before our commit."""
        for queue in self._queues.values():
            self._stop_pulling(queue)
        await self._keep_distance(self._queues.values())
        await self._offsets.commit(self._progress())
        for queue in self._queues.values():
            queue.drop()
            queue.wake_puller()
        if self.config.orderly:
            await self._locks.unlock(self._queues, oneway=False)
        for place in self._queues:
            self._offsets.forget(place)
        self._queues.clear()
        self._heard.clear()
        await self._session.leave_consumer(self)

    @abstractmethod
    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What else runs as long as the consumer does."""

    @abstractmethod
    async def _drain(self) -> None:
        """Wait for what is being handled, for a limited time, and hand out nothing more."""

    def _require_running(self) -> None:
        if self.state is not State.RUNNING:
            raise ClientClosed(
                f"the consumer of {self.name!r} is not running ({self.state.value})",
                hint="use it inside `async with`, or start it",
            )

    # What it is and has.

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

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now, those of the retry topic included."""
        return self._named(self._queues)

    def _named(self, places: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Queues as the application names them."""
        unwrap = self._session.unwrap
        return frozenset(
            MessageQueue(unwrap(place.topic), place.broker_name, place.queue_id) for place in places
        )

    @property
    def subscription_conflicts(self) -> Mapping[str, str]:
        """Topics for which the broker has another subscription of this group, and which."""
        return dict(self._conflicts.found) if self.state is not State.CREATE_JUST else {}

    def add_queue_listener(self, listener: QueueListener) -> None:
        """Tell someone whenever the queues of a topic, or our share of them, change."""
        self._listeners.append(listener)

    async def subscribe(self, topic: str, expression: Expression = None) -> None:
        """Add a topic, or change what is wanted of it."""
        self._expressions |= check_subscriptions({topic: expression})
        if self.state is State.RUNNING:
            self._subscribe_all()
            await self._learn_routes()
            await self._check_filters()
            await self._session.heartbeat()
            self.members_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._expressions.pop(topic, None)
        if self.state is State.RUNNING:
            self._subscribe_all()
            await self._session.heartbeat()
            await self._rebalance()

    def suspend(self) -> None:
        """Stop pulling; what is in hand is still handled."""
        self._is_suspended = True
        for queue in self._queues.values():
            queue.is_paused = True

    def resume(self) -> None:
        """Go on pulling."""
        self._is_suspended = False
        for queue in self._queues.values():
            queue.is_paused = False
            queue.wake_puller()
        if self.state is State.RUNNING:
            self.members_changed()

    async def rewind(self, topic: str, at_ms: int) -> dict[MessageQueue, int]:
        """Set our queues of a topic back (or forward) to a time, to the first message since then.

        Returns where each of them goes on. Other members rewind theirs; an operator rewinds all.
        """
        self._require_running()
        offsets = {}
        for place in list(self._queues):
            if place.topic == self._session.wrap(topic):
                broker = self._session.broker(self._address_of(place))
                offsets[place] = await first_offset_since(broker, self._group, place, at_ms)
        await self.reset_offsets(self._session.wrap(topic), offsets)
        return offsets

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
            if subscription.expression_type != SQL92:
                continue
            route = self._session.routes.known(subscription.topic)
            for data in route.brokers if route is not None else ():
                address = data.any_address()
                if address is not None:
                    broker = self._session.broker(address)
                    await broker.check_client_config(
                        self._session.client_id, self._group, subscription
                    )

    # What the session asks of a member.

    def heartbeat_data(self) -> ConsumerData:
        """What the group wants, for a heartbeat."""
        return ConsumerData(
            self._group,
            self.consume_type,
            self.config.message_model,
            self._start_point.where,
            tuple(self._subscriptions.values()),
        )

    def members_changed(self) -> None:
        """The group has other members than before."""
        self._rebalance_due.set()

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A topic has other queues or brokers than before."""
        if topic in self._subscriptions:
            self._rebalance_due.set()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator sets the group to other offsets.

        What is in hand is forgotten, however its handlers end; the queues start over.
        """
        async with self._rebalancing:
            mine = {
                place: offset
                for place, offset in offsets.items()
                if place.topic == topic and place in self._queues and offset >= 0
            }
            for place in mine:
                logger.info("group=%s queue=%s reset to %d", self._group, place, mine[place])
                self._discard(self._queues[place])
            await self._offsets.commit(mine)
        await self._rebalance()

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far it has come in a topic by its own account."""
        return {
            place: queue.commit_offset
            for place, queue in self._queues.items()
            if place.topic == topic
        }

    def running_info(self, *, jstack: bool) -> ConsumerRunningInfo:
        """What it is doing."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self._session.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(self.config.concurrency),
                "PROP_CONSUMEORDERLY": "true" if self.config.orderly else "false",
                "PROP_CONSUME_TYPE": self.consume_type.value,
                "PROP_CLIENT_VERSION": CLIENT_VERSION,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at_ms),
            },
            subscriptions=tuple(self._subscriptions.values()),
            queues={
                place: queue.info(now_ms=now_ms, monotonic_ms=monotonic_ms)
                for place, queue in self._queues.items()
            },
            statuses={
                topic: self.stats.status(topic, monotonic_ms) for topic in self._subscriptions
            },
            jstack=self._stacks() if jstack else None,
        )

    def _stacks(self) -> str:
        return "\n".join(sorted(map(repr, asyncio.all_tasks())))

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Consume one message now; without a handler nobody can."""
        return ConsumeMessageDirectlyResult(
            ConsumeResult.CR_THROW_EXCEPTION,
            order=self.config.orderly,
            remark="this consumer has no handler: its application asks for messages itself",
        )

    # What pullers ask.

    @abstractmethod
    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages have been added to a queue."""

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
            await self._offsets.commit({place: offset})
        await self._rebalance()

    def broker_in_trouble(self, address: str) -> None:
        """A broker is gone."""
        self._members.trouble(address)

    def commit_noted(self, queue: MessageQueue, offset: int) -> None:
        """A pull has taken our progress along."""
        self._offsets.noted(queue, offset)

    def exceeded(self, queue: ProcessQueue) -> str | None:
        """Why pulling a queue should wait."""
        return queue.exceeded(self._limits)

    # Offsets.

    def _make_offsets(self) -> ConsumerOffsets:
        self._limits = self.config.limits
        if not self.config.is_broadcasting:
            return RemoteOffsets(self._session, self._group)
        # Its progress must be found again after a restart, so no process id may be in its name.
        name = self._session.config.instance_name
        client = f"{self._session.client_ip}@{name}"
        if name == DEFAULT_INSTANCE_NAME:
            logger.debug("group=%s broadcasting offsets are kept as client %s", self._group, client)
        return LocalOffsets(Path(self.config.offsets_folder), client, self._group)

    def _progress(self) -> dict[MessageQueue, int]:
        return {
            place: queue.commit_offset
            for place, queue in self._queues.items()
            if not queue.is_dropped
        }

    async def _keep_committed(self) -> None:
        while True:
            await self._clock.sleep_ms(self._session.config.persist_consumer_offset_interval_ms)
            await self._offsets.commit(self._progress())

    async def _keep_stats(self) -> None:
        while True:
            self.stats.sample(self._clock.monotonic_ms())
            await self._clock.sleep_ms(SAMPLE_EVERY_MS)

    # Rebalance.

    async def _keep_rebalanced(self) -> None:
        pause_ms = self._pause_ms
        while True:
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._rebalance_due.wait()
            except TimeoutError:
                pass  # Time for the one that nobody asked for.
            await self._rebalance()
            pause_ms = self._pause_ms

    async def _rebalance(self) -> None:
        async with self._rebalancing:
            self._rebalance_due.clear()
            is_settled = await self._share_out()
            self._pause_ms = self.config.rebalance_interval_ms
            if not is_settled:
                self._pause_ms = min(self._pause_ms, self._again_ms)

    async def _share_out(self) -> bool:
        """Take what is ours and let go of what is not; False if something is left to do soon."""
        self._again_ms = AGAIN_MS
        topics, is_complete = await self._read_queues()
        if not topics:
            await self._let_go_unsubscribed()
            return is_complete
        if self.config.is_broadcasting:
            wanted = {topic: set(queues) for topic, queues in topics.items()}
        else:
            members = await self._members.ask(self._broker_addresses())
            if members is None:
                return False
            if self._session.client_id not in members:
                # Others cannot see us yet, and a share by their lists would not be ours.
                await self._session.heartbeat()
                self._again_ms = LOCK_AGAIN_MS
                return False
            is_complete = is_complete and not self._members.in_grace
            wanted = share_of(
                self.config.strategy, self._group, self._session.client_id, topics, members
            )
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
        let_go = await self._let_go(leaving)
        new = [
            place
            for places in wanted.values()
            for place in sorted(places)
            if place not in self._queues
        ]
        taken = await self._take(new) if new else True
        if leaving or new:
            self._bump_versions()
            logger.info(
                "group=%s rebalanced result changed. allocateMessageQueueStrategyName=%s "
                "members=%d queues=%d new=%d left=%d",
                *(self._group, self.config.strategy.name, len(self._members.known)),
                *(len(self._queues), len(new), len(leaving)),
            )
            if not self.config.is_broadcasting:
                await self._conflicts.look(self._broker_addresses(), self._subscriptions)
        self._tell_listeners(topics)
        return is_complete and let_go and taken

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

    def _bump_versions(self) -> None:
        # Brokers take the subscription with the highest version for that of the group.
        version = self._next_version()
        self._subscriptions = {
            topic: replace(one, version=version) for topic, one in self._subscriptions.items()
        }
        self._session.want_heartbeat()

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

    # Letting go.

    async def _let_go_unsubscribed(self) -> None:
        gone = [queue for queue in self._queues.values() if self._is_unwanted(queue.queue)]
        await self._let_go(gone)

    def _is_unwanted(self, place: MessageQueue) -> bool:
        return place.topic not in self._subscriptions

    async def _let_go(self, leaving: list[ProcessQueue]) -> bool:
        """Hand queues over; False if an orderly handler still holds one."""
        if not leaving:
            return True
        for queue in leaving:
            queue.is_leaving = True
            self._stop_pulling(queue)
        patience_ms = LET_GO_MS if self.config.orderly else self.config.handover_ms // 2
        await self._wait_idle(leaving, patience_ms)
        await self._keep_distance(leaving)
        gone = leaving
        if self.config.orderly and not self.config.is_broadcasting:
            # The lock stays with a handler that still runs; the queue goes at the next round.
            gone = [queue for queue in leaving if not queue.running_count]
        progress = {queue.queue: queue.commit_offset for queue in gone if not queue.is_dropped}
        for queue in gone:
            queue.drop()
            queue.wake_puller()
            self._queues.pop(queue.queue, None)
            self._queue_left(queue)
        await self._offsets.commit(progress)
        for queue in gone:
            self._offsets.forget(queue.queue)
        if self.config.orderly and not self.config.is_broadcasting:
            await self._locks.unlock([queue.queue for queue in gone], oneway=True)
        return len(gone) == len(leaving)

    async def _wait_idle(self, queues: Iterable[ProcessQueue], patience_ms: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + patience_ms
        while any(queue.running_count for queue in queues):
            if self._clock.monotonic_ms() >= deadline_ms:
                return
            await self._clock.sleep_ms(DRAIN_POLL_MS)

    async def _keep_distance(self, queues: Iterable[ProcessQueue]) -> None:
        last_ms = max((queue.pulled_at_ms for queue in queues), default=0)
        wait_ms = last_ms + COMMIT_DISTANCE_MS - self._clock.monotonic_ms()
        if wait_ms > 0 and not self.config.is_broadcasting:
            await self._clock.sleep_ms(wait_ms)

    def _discard(self, queue: ProcessQueue) -> None:
        """Forget a queue and what was in hand of it; nothing of it is committed."""
        self._stop_pulling(queue)
        queue.drop()
        queue.wake_puller()
        self._queues.pop(queue.queue, None)
        self._queue_left(queue)

    def _queue_left(self, queue: ProcessQueue) -> None:  # noqa: B027
        """A queue is not ours any more."""

    def _queue_stays(self, queue: ProcessQueue) -> None:  # noqa: B027
        """A queue that was about to leave stays."""

    # Taking.

    async def _take(self, places: list[MessageQueue]) -> bool:
        """Begin with new queues; False if some of them could not be taken now."""
        if self.config.orderly and not self.config.is_broadcasting:
            locked = await self._locks.lock(places)
            if len(locked) < len(places):
                self._again_ms = LOCK_AGAIN_MS
        else:
            locked = dict.fromkeys(places, self._clock.monotonic_ms())
            if self._must_wait_for_handover():
                await self._clock.sleep_ms(self.config.handover_ms)
        started = await asyncio.gather(
            *(self._begin(place, at_ms) for place, at_ms in locked.items())
        )
        if self.config.orderly and not self.config.is_broadcasting:
            # A lock without a queue would keep others out until it expires.
            await self._locks.unlock(
                [place for place in locked if place not in self._queues], oneway=True
            )
        return len(locked) == len(places) and all(started)

    def _must_wait_for_handover(self) -> bool:
        if self.config.is_broadcasting:
            return False
        return len(self._members.known) > 1 and not self._members.only_left

    async def _begin(self, place: MessageQueue, locked_at_ms: int) -> bool:
        try:
            offset = await self._start_offset(place)
        except (NoRoute, TransportError, BrokerError) as error:
            logger.warning("group=%s queue=%s cannot begin yet: %s", self._group, place, error)
            return False
        if self._closing.is_set():
            return True
        queue = ProcessQueue(
            place,
            offset,
            now_ms=self._clock.monotonic_ms(),
            figures=self.stats.of(place.topic),
        )
        if self.config.orderly:
            queue.locked_at_ms = locked_at_ms
        queue.is_paused = self._is_suspended
        self._queues[place] = queue
        self._queue_taken(queue)
        self._start_pulling(queue)
        return True

    def _queue_taken(self, queue: ProcessQueue) -> None:  # noqa: B027
        """A queue is ours now."""

    async def _start_offset(self, place: MessageQueue) -> int:
        committed = await self._offsets.read(place)
        if committed is not None:
            return committed
        return await self._start_point.offset_in(
            place, self._session.broker(self._address_of(place))
        )

    def _address_of(self, place: MessageQueue) -> str:
        address = self._session.read_address(place.broker_name)
        if address is None:
            raise NoRoute(
                f"no address of broker {place.broker_name!r} is known",
                hint="wait for it to register again",
            )
        return address

    def _start_pulling(self, queue: ProcessQueue) -> None:
        config = self.config
        puller = Puller(
            self._session,
            self._group,
            queue,
            self,
            batch_size=config.pull_batch_size,
            interval_ms=config.pull_interval_ms,
            retry_ms=config.pull_retry_ms,
            suspend_ms=config.pull_suspend_ms,
            timeout_ms=config.pull_timeout_ms,
            commits=not config.is_broadcasting and not self._is_lite,
            lite=self._is_lite,
        )
        task = self._tasks.spawn(puller.run())
        self._pullers[queue] = task
        task.add_done_callback(lambda _: self._pullers.pop(queue, None))

    def _stop_pulling(self, queue: ProcessQueue) -> None:
        task = self._pullers.pop(queue, None)
        if task is not None:
            task.cancel()

    # Locks.

    async def _keep_locks(self) -> None:
        while True:
            await self._clock.sleep_ms(LOCK_REFRESH_MS)
            held = await self._locks.lock(self._queues)
            for place, at_ms in held.items():
                queue = self._queues.get(place)
                if queue is not None:
                    queue.locked_at_ms = at_ms
