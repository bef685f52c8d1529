"""QueueHolder: takes queues, pulls them, commits how far it has come, and lets them go.

How a queue changes hands: the old owner stops pulling, lets the handlers that run finish for a
moment, commits and drops the queue; a new owner waits that moment before it asks where to begin.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

from ..errors import BrokerError, NoRoute, TransportError
from ..model.queue import MessageQueue
from ..net.tasks import TaskScope
from .config import DEFAULT_INSTANCE_NAME
from .consumer_offsets import ConsumerOffsets, LocalOffsets, RemoteOffsets
from .consumer_stats import ConsumerStats
from .group_member import GroupMember
from .process_queue import ProcessQueue
from .puller import Puller
from .queue_locks import QueueLocks
from .received import ReceivedMessage

logger = logging.getLogger(__name__)

LOCK_AGAIN_MS: Final = 200
LET_GO_MS: Final = 1_000  # How long an orderly handler may hold up a rebalance.
DRAIN_POLL_MS: Final = 5
# A broker may serve a pull that takes our progress along after a commit that was sent later. So a
# last commit keeps this distance from the last pull.
COMMIT_DISTANCE_MS: Final = 20


class QueueHolder(GroupMember):
    """A member with queues in its hands."""

    _is_lite: ClassVar[bool] = False

    stats: ConsumerStats
    _queues: dict[MessageQueue, ProcessQueue]
    _pullers: dict[ProcessQueue, asyncio.Task[None]]
    _is_suspended: bool
    _offsets: ConsumerOffsets
    _locks: QueueLocks
    _closing: asyncio.Event
    _hurrying: asyncio.Event  # Whoever closes it does not want to wait for handlers.
    _tasks: TaskScope
    _ending: dict[MessageQueue, ProcessQueue]  # Discarded, and a handler still runs.
    _again_ms: int  # How soon to try again what could not be done in a rebalance.

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
            if not queue.is_dropped and not queue.is_doubtful
        }

    async def _keep_committed(self) -> None:
        while True:
            await self._clock.sleep_ms(self._session.config.persist_consumer_offset_interval_ms)
            await self._offsets.commit(self._progress())

    # Taking.

    async def _take(self, places: list[MessageQueue]) -> bool:
        """Begin with new queues; False if some of them could not be taken now."""
        locked: dict[MessageQueue, int]
        if self.config.orderly and not self.config.is_broadcasting:
            answers = await self._locks.lock(place for place in places if self._is_idle(place))
            locked = {place: at_ms for place, at_ms in answers.items() if at_ms is not None}
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

    def _is_idle(self, place: MessageQueue) -> bool:
        """Whether no handler is left of a time before, which would run beside a new one."""
        before = self._ending.get(place)
        if before is None or before.running_count:
            return before is None
        del self._ending[place]
        return True

    @abstractmethod
    def _must_wait_for_handover(self) -> bool:
        """Whether another member may still hold what is to be ours."""

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

    def _queue_taken(self, queue: ProcessQueue) -> None:
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

    # Letting go.

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
        progress = {
            queue.queue: queue.commit_offset
            for queue in gone
            if not queue.is_dropped and not queue.is_doubtful
        }
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
        if queue.running_count and self.config.orderly:
            self._ending[queue.queue] = queue
        self._stop_pulling(queue)
        queue.drop()
        queue.wake_puller()
        self._queues.pop(queue.queue, None)
        self._queue_left(queue)

    def _queue_left(self, queue: ProcessQueue) -> None:
        """A queue is not ours any more."""

    def _queue_stays(self, queue: ProcessQueue) -> None:
        """A queue that was about to leave stays."""

    # Pulling.

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

    # What pullers ask.

    @abstractmethod
    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages have been added to a queue."""

    @abstractmethod
    def offset_moved(self, queue: ProcessQueue, offset: int) -> None:
        """A queue no longer has what we asked for; it starts over where the broker says."""

    @abstractmethod
    def broker_in_trouble(self, address: str) -> None:
        """A broker is gone."""

    @abstractmethod
    async def confirm(self, queue: ProcessQueue) -> bool:
        """Ask the broker whether what we hold of a queue still counts; False if it cannot say."""

    def commit_noted(self, queue: MessageQueue, offset: int) -> None:
        """A pull has taken our progress along."""
        self._offsets.noted(queue, offset)

    def exceeded(self, queue: ProcessQueue) -> str | None:
        """Why pulling a queue should wait."""
        return queue.exceeded(self._limits)
