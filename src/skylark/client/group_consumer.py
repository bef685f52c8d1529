"""GroupConsumer: what push and lite pull consumers have in common, a place in a group.

It keeps the group's subscriptions, asks who else is there, takes its share of the queues and lets
go of what is not its any more, pulls what it has, and commits how far it has come.

    every              what
    20 s, on notice    rebalance: at the start, when members or routes change, after resume
    5 s, at the end    commit offsets
    20 s (orderly)     refresh the locks of all queues, one request for each broker
    10 s               read the statistics

Each layer adds one idea, and this one a life, from the start to the last commit:

    GroupMember        who it is, what it subscribes to
    QueueHolder        takes queues, pulls and commits them, lets them go
    QueueKeeper        keeps its right to them: locks, and what brokers have to confirm
    QueueSharer        which queues are its share: rebalance
    AnsweringMember    what brokers and operators ask of it
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

from ..errors import ClientError
from ..model.names import check_group_name
from ..model.queue import MessageQueue
from ..model.topic import retry_topic
from ..net.tasks import TaskScope
from .answering_member import AnsweringMember
from .consumer_config import ConsumerConfig
from .consumer_stats import SAMPLE_EVERY_MS, ConsumerStats
from .group_member import SessionSource as SessionSource
from .group_member import State as State
from .handler import is_own_cancellation
from .queue_locks import QueueLocks
from .queue_sharer import QueueListener as QueueListener
from .rebalance import Members, SubscriptionConflicts
from .session import Session
from .start_point import ConsumeFrom, StartPoint, first_offset_since
from .subscriptions import Expression, Subscriptions, check_subscriptions


class GroupConsumer(AnsweringMember):
    """A member of a consumer group; an async context manager."""

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
        self._queues = {}
        self._pullers = {}
        self._subscriptions = {}
        self._listeners = []
        self._heard = {}
        self._ending = {}
        self._again = None
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
        if self.state is State.START_FAILED:
            raise ClientError(
                f"consumer of {self.name!r} has been created before, and failed",
                hint="see to why its start failed, then make another",
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
        self._clock = session.clock
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
        self._hurrying = asyncio.Event()
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
        """Let running handlers finish, commit, and leave the group; harmless a second time.

        Cancelled, it waits for no handler any more, commits what they have done, and leaves.
        """
        if self.state is State.SHUTDOWN_ALREADY:
            await asyncio.wait((self._running,))  # Somebody else closes it, and hears how it goes.
        if self.state is not State.RUNNING:
            return
        self.state = State.SHUTDOWN_ALREADY
        self._closing.set()
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            if not is_own_cancellation():
                return  # The session ended it.
            self._hurrying.set()
            await asyncio.wait((self._running,))
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
        self._stop_trying()
        for queue in self._queues.values():
            self._stop_pulling(queue)
        await self._keep_distance(self._queues.values())
        await self._offsets.commit(self._progress())
        for queue in self._queues.values():
            queue.drop()
            queue.wake_puller()
        if self.config.orderly:
            await self._locks.unlock_all()
        for place in self._queues:
            self._offsets.forget(place)
        self._queues.clear()
        self._ending.clear()
        self._heard.clear()
        await self._session.leave_consumer(self)

    async def _keep_stats(self) -> None:
        while True:
            self.stats.sample(self._clock.monotonic_ms())
            await self._clock.sleep_ms(SAMPLE_EVERY_MS)

    @abstractmethod
    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What else runs as long as the consumer does."""

    @abstractmethod
    async def _drain(self) -> None:
        """Wait for what is being handled, for a limited time, and hand out nothing more."""

    # What it is and has.

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now, those of the retry topic included."""
        return self._named(self._queues)

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
