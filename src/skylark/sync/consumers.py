"""Consumers for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from ..client.group_consumer import GroupConsumer
from ..client.lite_pull_consumer import POLL_TIMEOUT_MS
from ..client.lite_pull_consumer import LitePullConsumer as _LitePullConsumer
from ..client.pull_consumer import PullConsumer as _PullConsumer
from ..client.pull_consumer import PullResult
from ..client.push_consumer import PushConsumer as _PushConsumer
from ..client.received import ReceivedMessage
from ..client.subscriptions import Expression
from ..client.verdicts import RetryLater, ToDlq, Verdict
from ..model.queue import MessageQueue
from .member import Member
from .runtime import Runtime

_C = TypeVar("_C", bound=GroupConsumer)


class _Consumer(Member[_C]):
    """What all consumers have in common."""

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member has now."""
        return self._tell(lambda consumer: consumer.assignment)

    def subscribe(self, topic: str, expression: Expression = None) -> None:
        """Want a topic, or want something else of it."""
        self._do(lambda consumer: consumer.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no more."""
        self._do(lambda consumer: consumer.unsubscribe(topic))

    def suspend(self) -> None:
        """Stop taking messages for a while."""
        self._tell(lambda consumer: consumer.suspend())

    def resume(self) -> None:
        """Take messages again."""
        self._tell(lambda consumer: consumer.resume())

    def rewind(self, topic: str, at_ms: int) -> dict[MessageQueue, int]:
        """Set this member's queues of a topic to a time; return where each stands then."""
        return self._do(lambda consumer: consumer.rewind(topic, at_ms))


class PushConsumer(_Consumer[_PushConsumer]):
    """Hands messages to a handler, or to whoever iterates; use mq.consumer to make one.

    Asking for the next message commits the one before. Several threads may iterate.
    """

    def __iter__(self) -> Iterator[ReceivedMessage]:
        runtime, consumer = self._current()
        messages = consumer.__aiter__()

        async def take() -> ReceivedMessage | None:
            try:
                return await messages.__anext__()
            except StopAsyncIteration:
                return None

        while (message := runtime.call(take())) is not None:
            message.settled_by(_FromThread(runtime, consumer))
            yield message

    def wait_closed(self) -> None:
        """Wait until the consumer has ended, however that comes."""
        self._do(lambda consumer: consumer.wait_closed())

    def retry(
        self,
        message: ReceivedMessage,
        delay: timedelta | float | None = None,
        *,
        level: int | None = None,
    ) -> None:
        """A message failed: have it delivered again later."""
        verdict = RetryLater(delay, level=level).verdict
        self._do(lambda consumer: consumer.settle(message, verdict))

    def dead_letter(self, message: ReceivedMessage) -> None:
        """A message can never succeed: move it to the group's dead letters."""
        verdict = ToDlq().verdict
        self._do(lambda consumer: consumer.settle(message, verdict))


class _FromThread:
    """Carries word of a message from the thread that handled it to its consumer."""

    def __init__(self, runtime: Runtime, consumer: _PushConsumer) -> None:
        self._runtime = runtime
        self._consumer = consumer

    def acknowledge(self, message: ReceivedMessage) -> None:
        """It is done."""
        self._runtime.tell(lambda: self._consumer.acknowledge(message))

    async def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """It shall come again, or never."""
        await self._consumer.settle(message, verdict)


class LitePullConsumer(_Consumer[_LitePullConsumer]):
    """Polls for messages; use mq.lite_pull_consumer to make one."""

    def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Wait for messages of one queue; what the poll before returned counts as done now."""
        return self._do(lambda consumer: consumer.poll(timeout_ms, count_max=count_max))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whatever the rest of the group does."""
        self._do(lambda consumer: consumer.assign(queues))

    def position(self, queue: MessageQueue) -> int:
        """The offset that the next poll of a queue begins with."""
        return self._tell(lambda consumer: consumer.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading a queue elsewhere."""
        self._do(lambda consumer: consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go back to the first message that can still be read."""
        self._do(lambda consumer: consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip everything that is there."""
        self._do(lambda consumer: consumer.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, at: datetime | int | str) -> None:
        """Go on with what was stored at a time or later."""
        self._do(lambda consumer: consumer.seek_to_time(queue, at))

    def offset_for_time(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset of what was stored at a time or later."""
        return self._do(lambda consumer: consumer.offset_for_time(queue, at))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing of these queues for a while."""
        self._tell(lambda consumer: consumer.pause(queues))

    def resume_queues(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        self._tell(lambda consumer: consumer.resume_queues(queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was polled, or these offsets."""
        self._do(lambda consumer: consumer.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """How far the group has come in a queue, as the broker knows it."""
        return self._do(lambda consumer: consumer.committed(queue))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read."""
        return self._do(lambda consumer: consumer.fetch_queues(topic))


class PullConsumer(_Consumer[_PullConsumer]):
    """Reads queues offset by offset; use mq.pull_consumer to make one."""

    def pull(
        self,
        queue: MessageQueue,
        expression: Expression = None,
        *,
        offset: int,
        count_max: int = 32,
    ) -> PullResult:
        """Read messages of a queue; an empty result at once where there are none."""
        return self._do(
            lambda consumer: consumer.pull(queue, expression, offset=offset, count_max=count_max)
        )

    def pull_or_wait(
        self,
        queue: MessageQueue,
        expression: Expression = None,
        *,
        offset: int,
        count_max: int = 32,
    ) -> PullResult:
        """Read messages of a queue; where there are none, wait for them at the broker."""
        return self._do(
            lambda consumer: consumer.pull_or_wait(
                queue, expression, offset=offset, count_max=count_max
            )
        )

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read."""
        return self._do(lambda consumer: consumer.fetch_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that can still be read."""
        return self._do(lambda consumer: consumer.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._do(lambda consumer: consumer.max_offset(queue))

    def search_offset(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset whose message was stored nearest to a time."""
        return self._do(lambda consumer: consumer.search_offset(queue, at))

    def fetch_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """How far the group has come in a queue."""
        return self._do(lambda consumer: consumer.fetch_offset(queue, from_store=from_store))

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Note how far the group has come, to be committed with the next round."""
        self._do(lambda consumer: consumer.update_offset(queue, offset))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit how far the group has come, now."""
        self._do(lambda consumer: consumer.commit(queue, offset))

    def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have a message delivered to the group again later."""
        self._do(lambda consumer: consumer.send_back(message, delay_level))
