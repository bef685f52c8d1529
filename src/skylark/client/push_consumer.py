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
import contextvars
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from ..errors import ClientError, ConfigError
from ..model.group import ConsumeType
from ..model.message import Property, StoredMessage
from ..model.queue import MessageQueue
from ..protocol.bodies import ConsumeMessageDirectlyResult, ConsumeResult
from .consume_hooks import ConsumeContext, ConsumeHook
from .consume_trace import ConsumeTrace
from .consumer_config import ConsumerConfig
from .group_consumer import GroupConsumer, SessionSource, State
from .lines import Batch, ConcurrentLine, LineClosed, OrderlyLine
from .process_queue import ProcessQueue
from .producer import Producer, ProducerConfig
from .received import ReceivedMessage
from .returns import Returns
from .session import Session
from .start_point import ConsumeFrom
from .subscriptions import Subscriptions
from .trace import INNER_GROUP, TraceWriter
from .verdicts import DONE, SUSPEND_MS_MAX, SUSPEND_MS_MIN, Fate, Signal, Verdict, verdict_of

logger = logging.getLogger(__name__)

THREAD_BATCHES_MAX: Final = 32
YIELD_EVERY: Final = 64  # Batches after which other tasks get their turn, if handlers never wait.
TIMEOUT_DELAY_LEVEL: Final = 3
WATCH_EVERY_MS_MAX: Final = 60_000

Said = Verdict | None
MessageHandler = Callable[[ReceivedMessage], Awaitable[Said] | Said]
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[Said] | Said]
_Call = Callable[[Any], Awaitable[Said]]  # Takes a message or a list, as the handler does.

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
        self._handler = handler
        self._batch_handler = batch_handler
        self._hooks = list(hooks)
        self._threads: ThreadPoolExecutor | None = None
        self._out: dict[ReceivedMessage, ProcessQueue] = {}  # With those who iterate.
        self._next_slot_ms = 0.0
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
        batch_size = config.consume_batch_size if self._batch_handler is not None else 1
        if config.orderly:
            self._line = OrderlyLine(batch_size, may_hand_out=self._may_hand_out)
        else:
            self._line = ConcurrentLine(batch_size)
        self._call = self._make_call()
        if config.enable_msg_trace:
            self._start_tracing(session)
        self._workers: list[asyncio.Task[None]] = []
        self._returns = Returns(session, session.wrap(self.name))
        try:
            await super()._start(session)
        except BaseException:
            self._end_threads()
            raise

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        call, line, threads = self._call, self._line, self._threads
        if call is None:
            return
        for _ in range(self.config.concurrency):
            is_plain = self.config.rate_max is None and not self._hooks
            if threads is not None and isinstance(line, ConcurrentLine) and is_plain:
                work = self._work_in_thread(line, threads)
            else:
                work = self._work(call)
            self._workers.append(self._tasks.spawn(work))
        yield self._watch_handlers()
        if self._tracer is not None:
            yield self._tracer.run()

    async def _drain(self) -> None:
        self._line.close()
        if self._workers:
            _, running = await asyncio.wait(
                self._workers, timeout=self.config.close_timeout_ms / 1000
            )
            for task in running:
                logger.warning(
                    "group=%s a handler did not end in %d ms; its messages come again",
                    *(self._group, self.config.close_timeout_ms),
                )
                task.cancel()
        self._end_threads()

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
        self._out.clear()

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    # Messages arrive.

    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages have been added to a queue."""
        self._line.add(queue, messages)

    def _may_hand_out(self, queue: ProcessQueue) -> bool:
        return self.config.is_broadcasting or queue.is_lock_valid(self._clock.monotonic_ms())

    def _queue_stays(self, queue: ProcessQueue) -> None:
        if isinstance(self._line, OrderlyLine):
            self._line.offer(queue)
        else:
            # What had not been handed out was thrown away when it was about to leave.
            waiting = [one for one in queue.open_messages() if one.started_at_ms is None]
            self._line.add(queue, waiting)

    # Handlers.

    def _make_call(self) -> _Call | None:
        if self._handler is None and self._batch_handler is None:
            return None
        function = self._function
        if _is_coroutine_function(function):
            return cast(_Call, function)
        self._threads = ThreadPoolExecutor(
            self.config.concurrency, thread_name_prefix=f"skylark-{self.name}"
        )

        async def call_in_thread(argument: ReceivedMessage | list[ReceivedMessage]) -> Said:
            # The handler sees the context of whoever started the consumer, as a coroutine would.
            run = functools.partial(contextvars.copy_context().run, function, argument)
            return cast(Said, await asyncio.get_running_loop().run_in_executor(self._threads, run))

        return call_in_thread

    @property
    def _function(self) -> Callable[[Any], Any]:
        return cast(Callable[[Any], Any], self._handler or self._batch_handler)

    async def _work_in_thread(self, line: ConcurrentLine, threads: ThreadPoolExecutor) -> None:
        """Hand batches to a thread, several in one go while more wait than there are workers.

        Going to a thread and back costs more than most handlers do.
        """
        loop, clock = asyncio.get_running_loop(), self._clock
        while True:
            try:
                batch = line.take()
                if batch is None:
                    await line.wait()
                    continue
            except LineClosed:
                return
            batches = [batch]
            share = min(THREAD_BATCHES_MAX, line.ready_count // self.config.concurrency)
            while len(batches) < share and (batch := line.take()) is not None:
                batches.append(batch)
            try:
                run = functools.partial(contextvars.copy_context().run, self._run_batches, batches)
                verdicts = await loop.run_in_executor(threads, run)
                for (queue, messages), (verdict, cost_ms) in zip(batches, verdicts, strict=True):
                    if verdict is None:
                        continue  # The queue left while the batch waited its turn.
                    self._count(queue, len(messages), verdict, cost_ms)
                    if verdict is DONE:
                        line.finish(queue, messages)
                    else:
                        await self._settle(queue, messages, verdict)
            finally:
                for queue, _ in batches:
                    line.back(queue, clock.monotonic_ms())

    def _run_batches(self, batches: list[Batch]) -> list[tuple[Verdict | None, int]]:
        """Call the handler, in a thread; nothing of the consumer's own is changed here."""
        function, clock = self._function, self._clock
        takes_list = self._batch_handler is not None
        verdicts: list[tuple[Verdict | None, int]] = []
        for queue, messages in batches:
            if queue.is_leaving or queue.is_dropped or self._closing.is_set():
                verdicts.append((None, 0))
                continue
            started_ms = clock.monotonic_ms()
            for message in messages:
                message.started_at_ms = started_ms
            try:
                said = function(messages if takes_list else messages[0])
                verdict = DONE if said is None or said == DONE else cast(Verdict, said)
            except Exception as error:
                verdict = self._verdict_of(error, queue, messages)
            verdicts.append((verdict, clock.monotonic_ms() - started_ms))
        return verdicts

    async def _work(self, call: _Call) -> None:
        line, clock = self._line, self._clock
        takes_list = self._batch_handler is not None
        is_plain = not self.config.orderly and self.config.rate_max is None
        turns = 0
        now_ms = clock.monotonic_ms()
        while True:
            try:
                batch = line.take()
                if batch is None:
                    await line.wait()
                    now_ms = clock.monotonic_ms()
                    continue
            except LineClosed:
                return
            queue, messages = batch
            started_ms = now_ms
            try:
                if self.config.rate_max is not None:
                    await self._pace(len(messages), self.config.rate_max)
                    started_ms = clock.monotonic_ms()
                for message in messages:
                    message.started_at_ms = started_ms
                if is_plain and not self._hooks:
                    # The usual case, in few steps: it happens for every message.
                    try:
                        said = await call(messages if takes_list else messages[0])
                    except Exception as error:
                        verdict = self._verdict_of(error, queue, messages)
                    else:
                        verdict = DONE if said is None else said
                else:
                    verdict = await self._handle(call, queue, messages)
                now_ms = clock.monotonic_ms()
                self._count(queue, len(messages), verdict, now_ms - started_ms)
                if verdict is DONE and is_plain:
                    if not queue.is_dropped:
                        queue.finish(messages)
                else:
                    await self._settle(queue, messages, verdict)
            finally:
                line.back(queue, now_ms)
            turns += 1
            if turns % YIELD_EVERY == 0:
                await clock.sleep_ms(0)
                now_ms = clock.monotonic_ms()

    async def _handle(
        self, call: _Call, queue: ProcessQueue, messages: list[ReceivedMessage]
    ) -> Verdict:
        """Call the handler, watched by hooks; whatever it raises becomes a verdict."""
        context = self._before(queue.queue, messages)
        started_ms = self._clock.monotonic_ms()
        error: Exception | None = None
        try:
            said = await call(messages if self._batch_handler is not None else messages[0])
            verdict = DONE if said is None else said
        except Exception as raised:
            error = None if isinstance(raised, Signal) else raised
            verdict = self._verdict_of(raised, queue, messages)
        self._after(context, verdict, error, self._clock.monotonic_ms() - started_ms)
        return verdict

    def _verdict_of(
        self, error: Exception, queue: ProcessQueue, messages: list[ReceivedMessage]
    ) -> Verdict:
        if not isinstance(error, Signal):
            logger.error(
                "group=%s message=%s queue=%s the handler failed",
                *(self._group, messages[0].message_id, queue),
                exc_info=error,
            )
        return verdict_of(error)

    def _count(self, queue: ProcessQueue, count: int, verdict: Verdict, cost_ms: int) -> None:
        figures = queue.figures
        figures.batches += 1
        figures.handled_ms += cost_ms
        if verdict is DONE or verdict.fate.is_success:
            figures.succeeded += count
        else:
            acked = min(verdict.acked, count)
            figures.succeeded += acked
            figures.failed += count - acked

    async def _pace(self, count: int, rate: float) -> None:
        """Spread messages out: each takes its slot, and none is dropped."""
        now_ms = self._clock.monotonic_ms()
        slot_ms = max(self._next_slot_ms, now_ms)
        self._next_slot_ms = slot_ms + count * 1000 / rate
        if slot_ms > now_ms:
            await self._clock.sleep_ms(int(slot_ms - now_ms))

    # What becomes of messages.

    async def _settle(
        self, queue: ProcessQueue, messages: list[ReceivedMessage], verdict: Verdict
    ) -> None:
        if queue.is_dropped:
            return  # Another member has the queue, and will get these.
        if isinstance(self._line, OrderlyLine):
            await self._settle_orderly(self._line, queue, messages, verdict)
        else:
            await self._settle_concurrent(self._line, queue, messages, verdict)

    async def _settle_concurrent(
        self,
        line: ConcurrentLine,
        queue: ProcessQueue,
        messages: list[ReceivedMessage],
        verdict: Verdict,
    ) -> None:
        if verdict.fate.is_success:
            line.finish(queue, messages)
            return
        line.finish(queue, messages[: verdict.acked])
        # One that took too long has been given back already.
        failed = [message for message in messages[verdict.acked :] if queue.is_open(message)]
        if self.config.is_broadcasting:
            for message in failed:
                logger.warning(
                    "group=%s message=%s failed and is not repeated: broadcasting has no retries",
                    *(self._group, message.message_id),
                )
            line.finish(queue, failed)
            return
        kept = []
        for message in failed:
            if await self._give_back(message, verdict.delay_level):
                line.finish(queue, [message])
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept and not queue.is_dropped:
            line.again(queue, kept, self.config.retry_here_ms)

    async def _settle_orderly(
        self,
        line: OrderlyLine,
        queue: ProcessQueue,
        messages: list[ReceivedMessage],
        verdict: Verdict,
    ) -> None:
        fate = verdict.fate
        if fate is Fate.HOLD:
            line.release(queue)
            return
        if fate.is_success:
            line.finish(queue, messages)
            line.release(queue)
            return
        pause_ms = self.config.suspend_ms if verdict.pause_ms is None else verdict.pause_ms
        pause_ms = min(max(pause_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
        if fate is Fate.ROLL_BACK:
            queue.roll_back_taken()
            line.release(queue, pause_ms)
            return
        queue.finish_taken(messages[: verdict.acked])
        kept = []
        for message in messages[verdict.acked :]:
            is_over = message.reconsume_times >= self.config.reconsume_times_max
            if (fate is Fate.DEAD or is_over) and await self._give_up(message):
                queue.finish_taken([message])
            else:
                message.reconsume_times += 1
                kept.append(message)
        if queue.is_dropped:
            return
        queue.give_back(kept)
        line.release(queue, pause_ms if kept else 0)

    async def _give_up(self, message: ReceivedMessage) -> bool:
        if self.config.is_broadcasting:
            logger.warning("group=%s message=%s given up", self._group, message.message_id)
            return True
        return await self._give_back(message, -1)

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        return await self._returns.give_back(
            message,
            delay_level=delay_level,
            reconsume_times_max=self.config.reconsume_times_max,
        )

    async def _watch_handlers(self) -> None:
        """Send back what takes too long, so that it does not hold up the commits for ever."""
        limit_ms = None if self.config.orderly else self.config.consume_timeout_ms
        every_ms = min(limit_ms or WATCH_EVERY_MS_MAX, WATCH_EVERY_MS_MAX)
        mentioned: set[ReceivedMessage] = set()
        while True:
            await self._clock.sleep_ms(min(every_ms, self.config.slow_handler_ms))
            now_ms = self._clock.monotonic_ms()
            slow = [
                (queue, message, now_ms - message.started_at_ms)
                for queue in self._queues.values()
                for message in queue.open_messages()
                if message.started_at_ms is not None
                and now_ms - message.started_at_ms >= self.config.slow_handler_ms
            ]
            mentioned &= {message for _, message, _ in slow}
            for queue, message, took_ms in slow:
                if message not in mentioned:
                    mentioned.add(message)
                    logger.warning(
                        "group=%s message=%s queue=%s its handler runs for %d ms",
                        *(self._group, message.message_id, queue, took_ms),
                    )
                if limit_ms is not None and took_ms >= limit_ms and not self.config.is_broadcasting:
                    logger.warning(
                        "group=%s message=%s given back after %d ms in its handler",
                        *(self._group, message.message_id, took_ms),
                    )
                    is_back = await self._give_back(message, TIMEOUT_DELAY_LEVEL)
                    if is_back and not queue.is_dropped:
                        queue.finish([message])

    # Hooks.

    def _before(self, place: MessageQueue, messages: list[ReceivedMessage]) -> ConsumeContext:
        context = ConsumeContext(
            group=self._group,
            messages=messages,
            queue=place,
            namespace=self._session.namespace,
        )
        for hook in self._hooks:
            try:
                hook.before_consume(context)
            except Exception:
                logger.exception("group=%s a hook failed before the handler", self._group)
        return context

    def _after(
        self, context: ConsumeContext, verdict: Verdict, error: Exception | None, cost_ms: int
    ) -> None:
        context.verdict, context.error, context.cost_ms = verdict, error, cost_ms
        limit_ms = self.config.consume_timeout_ms
        context.is_timeout = limit_ms is not None and cost_ms >= limit_ms
        for hook in self._hooks:
            try:
                hook.after_consume(context)
            except Exception:
                logger.exception("group=%s a hook failed after the handler", self._group)

    # Iterating.

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        self._require_running()
        if self._call is not None:
            raise ClientError(
                "this consumer has a handler, which gets all messages",
                hint="iterate over a consumer without one",
            )
        return _Iteration(self)

    async def take(self) -> ReceivedMessage:
        """Wait for the next message, for whoever does not like loops; raises LineClosed.

        It stays uncommitted until it is acknowledged.
        """
        while (batch := self._line.take()) is None:
            await self._line.wait()
        queue, (message,) = batch
        if self.config.rate_max is not None:
            await self._pace(1, self.config.rate_max)
        message.started_at_ms = self._clock.monotonic_ms()
        message.settled_by(self)
        self._out[message] = queue
        return message

    def acknowledge(self, message: ReceivedMessage) -> None:
        """A message is done; a second time is harmless."""
        queue = self._out.pop(message, None)
        if queue is None:
            return
        line = self._line
        line.finish(queue, (message,))
        now_ms = self._clock.monotonic_ms()
        self._count(queue, 1, DONE, now_ms - (message.started_at_ms or now_ms))
        line.back(queue, now_ms)
        if isinstance(line, OrderlyLine) and not queue.is_dropped:
            line.release(queue)

    async def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """A message shall come again, or never."""
        queue = self._out.pop(message, None)
        if queue is None:
            return
        now_ms = self._clock.monotonic_ms()
        try:
            self._count(queue, 1, verdict, now_ms - (message.started_at_ms or now_ms))
            await self._settle(queue, [message], verdict)
        finally:
            self._line.back(queue, now_ms)

    # What operators ask.

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Consume one message now, because an operator wants to see how that goes."""
        if self._call is None or self.state is not State.RUNNING:
            return await super().consume_directly(message, broker_name)
        place = MessageQueue(message.topic, broker_name or "", message.queue_id)
        topic = message.properties.get(Property.RETRY_TOPIC) or message.topic
        received = ReceivedMessage(message, place, self._session.unwrap(topic))
        started_ms = self._clock.monotonic_ms()
        remark: str | None = None
        try:
            said = await self._call([received] if self._batch_handler is not None else received)
            result = _RESULTS[(said or DONE).fate]
        except Signal as signal:
            result = _RESULTS[signal.verdict.fate]
            remark = str(signal)
        except Exception as error:
            result = ConsumeResult.CR_THROW_EXCEPTION
            remark = f"{type(error).__name__}: {error}"
        return ConsumeMessageDirectlyResult(
            result,
            order=self.config.orderly,
            remark=remark,
            spent_time_millis=self._clock.monotonic_ms() - started_ms,
        )


class _Iteration:
    """One loop over a consumer: asking for the next message commits the one before."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._current: ReceivedMessage | None = None
        self._turns = 0

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._current is not None:
            self._consumer.acknowledge(self._current)
            self._current = None
        self._turns += 1
        if self._turns % YIELD_EVERY == 0:
            await self._consumer.clock.sleep_ms(0)
        try:
            self._current = await self._consumer.take()
        except LineClosed:
            raise StopAsyncIteration from None
        return self._current


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
