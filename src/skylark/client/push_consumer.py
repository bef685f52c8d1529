"""PushConsumer: messages come to the application, by a handler or by iteration.

    async with mq.consumer("billing", {"Orders": "Paid || Refund"}, handle) as consumer:
        await consumer.wait_closed()

    async with mq.consumer("billing", {"Orders": "Paid || Refund"}) as consumer:
        async for message in consumer:
            ...

A handler is a coroutine function, or a function that may block and then runs in a thread; at most
`concurrency` run at a time. Returning means done; what raising means is told in verdicts.py.

An iteration commits a message when it asks for the next one. Leaving the loop leaves the last
message uncommitted, and it comes again: call `message.ack()` before a break, or handle it in
`async with message`, which commits at the end of the block and has the message delivered again
after an error. Several tasks may iterate over one consumer; each message goes to one of them.

Delivery is at least once. A message may come again after a crash, or when its queue changes hands
while its handler still runs; handlers should bear that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Final

from ..errors import ClientError, ConfigError
from ..model.group import ConsumeType
from ..model.message import Property, StoredMessage
from ..model.queue import MessageQueue
from ..protocol.bodies import ConsumeMessageDirectlyResult, ConsumeResult
from .consume_hooks import ConsumeHook, ConsumeHooks
from .consume_trace import ConsumeTrace
from .consumer_config import ConsumerConfig
from .group_consumer import GroupConsumer, SessionSource, State
from .handler import BatchHandler as BatchHandler
from .handler import Handler, is_own_cancellation, verdict_said
from .handler import MessageHandler as MessageHandler
from .handler_watch import HandlerWatch
from .iteration import HandedOut, Iteration
from .lines import ConcurrentLine, OrderlyLine
from .process_queue import ProcessQueue
from .producer import Producer, ProducerConfig
from .received import ReceivedMessage
from .returns import Returns
from .session import Session
from .settlement import Settlement
from .start_point import ConsumeFrom
from .subscriptions import Subscriptions
from .trace import INNER_GROUP, TraceWriter
from .verdicts import Fate, Signal, Verdict
from .workers import Workers

logger = logging.getLogger(__name__)

_RESULTS: Final = {
    Fate.DONE: ConsumeResult.CR_SUCCESS,
    Fate.HOLD: ConsumeResult.CR_SUCCESS,
    Fate.RETRY: ConsumeResult.CR_LATER,
    Fate.SUSPEND: ConsumeResult.CR_LATER,
    Fate.DEAD: ConsumeResult.CR_LATER,
    Fate.COMMIT: ConsumeResult.CR_COMMIT,
    Fate.ROLL_BACK: ConsumeResult.CR_ROLLBACK,
}


class PushConsumer(GroupConsumer):
    """A member of a group to whom messages come."""

    consume_type = ConsumeType.CONSUME_PASSIVELY

    def __init__(
        self,
        session: Session | SessionSource,
        group: str,
        subscriptions: Subscriptions,
        handler: MessageHandler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        config: ConsumerConfig | None = None,
        consume_from: ConsumeFrom = "last",
        hooks: Iterable[ConsumeHook] = (),
    ) -> None:
        """Check what is given; raises InvalidName or ConfigError."""
        super().__init__(
            session, group, subscriptions, config or ConsumerConfig(), consume_from=consume_from
        )
        if handler is not None and batch_handler is not None:
            raise ConfigError("give a handler or a batch_handler, not both")
        if batch_handler is None and self.config.consume_batch_size > 1:
            raise ConfigError("consume_batch_size needs a batch_handler, which takes a list")
        self._handler: Handler | None = None
        if batch_handler is not None:
            self._handler = Handler(batch_handler, takes_list=True, name=group)
        elif handler is not None:
            self._handler = Handler(handler, takes_list=False, name=group)
        self._hooks = list(hooks)
        self._tracer: TraceWriter | None = None
        self._trace_producer: Producer | None = None

    def add_hook(self, hook: ConsumeHook) -> None:
        """Watch every call of the handler; to be added before the start."""
        self._hooks.append(hook)

    async def wait_closed(self) -> None:
        """Wait until the consumer is closed; what ends it badly is raised here."""
        self._require_running()
        await asyncio.shield(self._running)

    # Life.

    async def _start(self, session: Session) -> None:
        config = self.config
        self._line: ConcurrentLine | OrderlyLine
        if config.orderly:
            self._line = OrderlyLine(config.consume_batch_size, may_hand_out=self._may_hand_out)
        else:
            self._line = ConcurrentLine(config.consume_batch_size)
        group = session.wrap(self.name)
        self._settlement = Settlement(group, config, self._line, Returns(session, group))
        self._handed_out = HandedOut(
            session.clock, self._line, self._settlement, rate_max=config.rate_max
        )
        if config.enable_msg_trace:
            self._start_tracing(session)
        self._workers: list[asyncio.Task[None]] = []
        try:
            if self._handler is not None:
                self._handler.open(config.concurrency)
            await super()._start(session)
        except BaseException:
            self._end_threads()
            raise

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        if self._handler is None:
            return
        config, clock = self.config, self._clock
        workers = Workers(
            self._group,
            config,
            clock,
            handler=self._handler,
            line=self._line,
            settlement=self._settlement,
            hooks=ConsumeHooks(
                self._hooks,
                self._group,
                namespace=self._session.namespace,
                timeout_ms=config.consume_timeout_ms,
            ),
            closing=self._closing,
        )
        for _ in range(config.concurrency):
            self._workers.append(self._tasks.spawn(workers.work()))
        yield HandlerWatch(self._group, config, clock, self._queues, self._settlement).run()
        if self._tracer is not None:
            yield self._tracer.run()

    async def _drain(self) -> None:
        self._line.close()
        if self._workers:
            begun_ms = self._clock.monotonic_ms()
            await self._wait_for_workers()
            for task in self._workers:
                if task.done():
                    continue
                logger.warning(
                    "group=%s a handler did not end in %d ms; its messages come again",
                    *(self._group, self._clock.monotonic_ms() - begun_ms),
                )
                task.cancel()
        self._end_threads()

    async def _wait_for_workers(self) -> None:
        all_done = asyncio.gather(*self._workers, return_exceptions=True)
        hurrying = asyncio.ensure_future(self._hurrying.wait())
        try:
            await asyncio.wait(
                (all_done, hurrying),
                timeout=self.config.close_timeout_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            hurrying.cancel()

    def _start_tracing(self, session: Session) -> None:
        number = session.rng.randrange(1 << 16)
        group = f"{INNER_GROUP}-{self.name}-CONSUME-{number}"
        self._trace_producer = Producer(session, ProducerConfig(group=group))
        send = self._trace_producer.send
        self._tracer = TraceWriter(self.config.trace_topic, send, session.clock)
        self._hooks = [hook for hook in self._hooks if not isinstance(hook, ConsumeTrace)]
        self._hooks.append(ConsumeTrace(self._tracer, session.clock, session.rng))

    async def _run(self, ready: asyncio.Future[None]) -> None:
        if self._trace_producer is not None:
            await self._trace_producer.start()
        await super()._run(ready)

    async def _leave(self) -> None:
        self._line.close()
        if self._tracer is not None and self._trace_producer is not None:
            await self._tracer.flush()
            await self._trace_producer.close()
        await super()._leave()
        self._handed_out.clear()

    def _end_threads(self) -> None:
        if self._handler is not None:
            self._handler.close()

    # Messages arrive.

    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages have been added to a queue."""
        self._line.add(queue, messages)

    def _may_hand_out(self, queue: ProcessQueue) -> bool:
        return self.config.is_broadcasting or queue.is_lock_valid(self._clock.monotonic_ms())

    def _queue_stays(self, queue: ProcessQueue) -> None:
        self._line.resume(queue)

    # Iterating.

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        self._require_running()
        if self._handler is not None:
            raise ClientError(
                "this consumer has a handler, which gets all messages",
                hint="iterate over a consumer without one",
            )
        return Iteration(self._handed_out)

    async def take(self) -> ReceivedMessage:
        """Wait for the next message, for whoever does not like loops; raises LineClosed.

        It stays uncommitted until it is acknowledged.
        """
        return await self._handed_out.take()

    def acknowledge(self, message: ReceivedMessage) -> None:
        """A message that was taken is done; a second time is harmless."""
        self._handed_out.acknowledge(message)

    async def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """A message that was taken shall come again, or never."""
        await self._handed_out.settle(message, verdict)

    # What operators ask.

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Consume one message now, because an operator wants to see how that goes."""
        handler = self._handler
        if handler is None or self.state is not State.RUNNING:
            return await super().consume_directly(message, broker_name)
        place = MessageQueue(message.topic, broker_name or "", message.queue_id)
        topic = message.properties.get(Property.RETRY_TOPIC) or message.topic
        received = ReceivedMessage(message, place, self._session.unwrap(topic))
        started_ms = self._clock.monotonic_ms()
        remark: str | None = None
        try:
            verdict = verdict_said(await handler.call(handler.argument([received])))
            result = _RESULTS[verdict.fate]
        except Signal as signal:
            result = _RESULTS[signal.verdict.fate]
            remark = str(signal)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_own_cancellation():
                raise
            result = ConsumeResult.CR_THROW_EXCEPTION
            remark = f"{type(error).__name__}: {error}"
        return ConsumeMessageDirectlyResult(
            result,
            order=self.config.orderly,
            remark=remark,
            spent_time_millis=self._clock.monotonic_ms() - started_ms,
        )
