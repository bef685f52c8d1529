"""QueueKeeper: keeps its right to the queues in its hands, and notices when it has lost it.

Locks of orderly consumers are refreshed, and one that is refused stops its queue at once. A broker
that was out of reach may have begun anew, or given a queue to somebody else: until it has confirmed
what we hold of it, nothing is committed, and in order nothing is handed out.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Final

from ..errors import BrokerError, InvalidBody, NoRoute, TransportError
from .process_queue import ProcessQueue
from .queue_holder import QueueHolder

logger = logging.getLogger(__name__)

LOCK_REFRESH_MS: Final = 20_000


class QueueKeeper(QueueHolder):
    """A member that keeps what it holds."""

    async def _keep_locks(self) -> None:
        while True:
            await self._clock.sleep_ms(LOCK_REFRESH_MS)
            answers = await self._locks.lock({**self._queues, **self._ending})
            for place, at_ms in answers.items():
                queue = self._queues.get(place)
                if queue is not None:
                    self._note_lock(queue, at_ms)

    def _note_lock(self, queue: ProcessQueue, at_ms: int | None) -> None:
        queue.locked_at_ms = at_ms
        if at_ms is None:
            # Somebody else has it. Nothing more goes out until the broker says that it is ours.
            logger.warning("group=%s queue=%s its lock is lost", self._group, queue)
            queue.is_doubtful = True
            queue.wake_puller()

    # Doubts.

    def broker_lost(self, address: str) -> None:
        """A connection to a broker has ended: what it knew of us has to be confirmed."""
        for queue in self._queues.values():
            if self._session.master_address(queue.queue.broker_name) == address:
                queue.is_doubtful = True
                queue.locked_at_ms = None
                queue.wake_puller()

    async def confirm(self, queue: ProcessQueue) -> bool:
        """Ask the broker whether what we hold of a queue still counts; False if it cannot say.

        A broker that has another message where we got our last one, or whose queue ends before it,
        has lost the end of its queue, even where it has grown to the same offsets again. One that
        can show us nothing there, because it is behind or has deleted it, has begun anew if it
        knows nothing of what we committed. One that is further on than we are has had another
        owner meanwhile. Where it is not as it was, we begin anew as well.
        """
        place = queue.queue
        try:
            committed = await self._offsets.read(place)
            has_last = await self._has_last(queue)
        except (NoRoute, TransportError, BrokerError, InvalidBody) as error:
            logger.debug("queue=%s cannot be confirmed yet: %s", queue, error)
            return False
        if queue.is_dropped:
            return True
        is_same = has_last
        if is_same is None:
            is_same = self._offsets.is_confirmed_by(place, committed)
        # Whoever polls may go where it likes; its place says nothing of other owners.
        was_elsewhere = not self._is_lite and (committed or 0) > queue.commit_offset
        if was_elsewhere or not is_same:
            logger.warning(
                "group=%s queue=%s is at %d, and its broker has %s: it begins anew",
                *(self._group, queue, queue.commit_offset, committed),
            )
            self._offsets.forget(place)
            self._discard(queue)
            self._begin_soon()
            return True
        if self.config.orderly and not self.config.is_broadcasting:
            answers = await self._locks.lock([place])
            if answers.get(place) is None or queue.is_dropped:
                return queue.is_dropped
            queue.locked_at_ms = answers[place]
        self._offsets.forget(place)  # A crash may have taken some of it: it is said again.
        queue.is_doubtful = False
        return True

    async def _has_last(self, queue: ProcessQueue) -> bool | None:
        """Whether the last message that we got is still in its place; None where that is open."""
        if queue.last is None:
            return None
        offset, message_id = queue.last
        address = self._address_of(queue.queue)
        broker = self._session.broker(address)
        answer = await broker.peek(group=self._group, queue=queue.queue, offset=offset, count_max=1)
        for found in answer.messages():
            if found.queue_offset == offset:
                return (found.unique_id or found.offset_id) == message_id
        # A replica may be behind; a master that ends before it has lost it.
        is_master = address == self._session.master_address(queue.queue.broker_name)
        return False if is_master and answer.max_offset <= offset else None

    @abstractmethod
    def _begin_soon(self) -> None:
        """Take again what is ours and not in our hands."""
