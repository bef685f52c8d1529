"""Workers: take batches from the line, call the handler, and see to what it says.

There are as many as handlers may run at a time. A handler that is cancelled from inside, by what
it waits for, has failed like any other; only the end of the consumer ends a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from ..clock import Clock
from .consume_hooks import ConsumeHooks
from .consumer_config import ConsumerConfig
from .handler import Handler, is_own_cancellation, verdict_said
from .lines import Batch, ConcurrentLine, LineClosed, OrderlyLine
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .settlement import Settlement
from .verdicts import DONE, Signal, Verdict, verdict_of

logger = logging.getLogger(__name__)

THREAD_BATCHES_MAX: Final = 32
YIELD_EVERY: Final = 64  # Batches after which other tasks get their turn, if handlers never wait.


class Pace:
    """Spreads messages out: each takes its slot, and none is dropped."""

    def __init__(self, clock: Clock, rate: float | None) -> None:
        self._clock = clock
        self._rate = rate  # Messages per second; None for no limit.
        self._next_slot_ms = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether anything ever waits."""
        return self._rate is not None

    async def wait_turn(self, count: int) -> None:
        """Wait until so many messages may be handled."""
        if self._rate is None:
            return
        now_ms = self._clock.monotonic_ms()
        slot_ms = max(self._next_slot_ms, now_ms)
        self._next_slot_ms = slot_ms + count * 1000 / self._rate
        if slot_ms > now_ms:
            await self._clock.sleep_ms(int(slot_ms - now_ms))


class Workers:
    """The work of one consumer with a handler."""

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        clock: Clock,
        *,
        handler: Handler,
        line: ConcurrentLine | OrderlyLine,
        settlement: Settlement,
        hooks: ConsumeHooks,
        closing: asyncio.Event,
    ) -> None:
        self._group = group
        self._config = config
        self._clock = clock
        self._handler = handler
        self._line = line
        self._settlement = settlement
        self._hooks = hooks
        self._closing = closing
        self._pace = Pace(clock, config.rate_max)

    def work(self) -> Coroutine[Any, Any, None]:
        """What one worker does, until the line is closed."""
        line, is_plain = self._line, not self._pace.is_limited and not self._hooks
        if self._handler.threads is not None and isinstance(line, ConcurrentLine) and is_plain:
            return self._work_in_thread(line)
        return self._work()

    async def _work(self) -> None:
        line, clock = self._line, self._clock
        call, takes_list = self._handler.call, self._handler.takes_list
        is_limited = self._pace.is_limited
        is_plain = not self._config.orderly and not is_limited
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
                if is_limited:
                    await self._pace.wait_turn(len(messages))
                    started_ms = clock.monotonic_ms()
                for message in messages:
                    message.started_at_ms = started_ms
                if is_plain and not self._hooks:
                    # The usual case, in few steps: it happens for every message.
                    try:
                        said = await call(messages if takes_list else messages[0])
                    except Exception as error:
                        verdict = self._verdict_of(error, queue, messages)
                    except asyncio.CancelledError as error:
                        if is_own_cancellation():
                            raise
                        verdict = self._verdict_of(error, queue, messages)
                    else:
                        verdict = DONE if said is None else verdict_said(said)
                else:
                    verdict = await self._handle(queue, messages)
                now_ms = clock.monotonic_ms()
                count(queue, len(messages), verdict, now_ms - started_ms)
                if verdict is DONE and is_plain:
                    if not queue.is_dropped:
                        queue.finish(messages)
                else:
                    await self._settlement.settle(queue, messages, verdict)
            finally:
                line.back(queue, now_ms)
            turns += 1
            if turns % YIELD_EVERY == 0:
                await clock.sleep_ms(0)
                now_ms = clock.monotonic_ms()

    async def _handle(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> Verdict:
        """Call the handler, watched by hooks; whatever it raises becomes a verdict."""
        context = self._hooks.before(queue.queue, messages)
        started_ms = self._clock.monotonic_ms()
        error: BaseException | None = None
        try:
            verdict = verdict_said(await self._handler.call(self._handler.argument(messages)))
        except Exception as raised:
            error = None if isinstance(raised, Signal) else raised
            verdict = self._verdict_of(raised, queue, messages)
        except asyncio.CancelledError as raised:
            if is_own_cancellation():
                raise
            error = raised
            verdict = self._verdict_of(raised, queue, messages)
        self._hooks.after(context, verdict, error, self._clock.monotonic_ms() - started_ms)
        return verdict

    def _verdict_of(
        self, error: BaseException, queue: ProcessQueue, messages: list[ReceivedMessage]
    ) -> Verdict:
        if not isinstance(error, Signal):
            logger.error(
                "group=%s message=%s queue=%s the handler failed",
                *(self._group, messages[0].message_id, queue),
                exc_info=error,
            )
        return verdict_of(error)

    # In threads.

    async def _work_in_thread(self, line: ConcurrentLine) -> None:
        """Hand batches to a thread, several in one go while more wait than there are workers.

        Going to a thread and back costs more than most handlers do.
        """
        clock = self._clock
        while True:
            try:
                batch = line.take()
                if batch is None:
                    await line.wait()
                    continue
            except LineClosed:
                return
            batches = [batch]
            share = min(THREAD_BATCHES_MAX, line.ready_count // self._config.concurrency)
            while len(batches) < share and (batch := line.take()) is not None:
                batches.append(batch)
            try:
                verdicts = await self._handler.run_in_thread(self._run_batches, batches)
                for (queue, messages), (verdict, cost_ms) in zip(batches, verdicts, strict=True):
                    if verdict is None:
                        continue  # The queue left while the batch waited its turn.
                    count(queue, len(messages), verdict, cost_ms)
                    if verdict is DONE:
                        line.finish(queue, messages)
                    else:
                        await self._settlement.settle(queue, messages, verdict)
            finally:
                for queue, _ in batches:
                    line.back(queue, clock.monotonic_ms())

    def _run_batches(self, batches: list[Batch]) -> list[tuple[Verdict | None, int]]:
        """Call the handler, in a thread; nothing of the consumer's own is changed here."""
        handler, clock = self._handler, self._clock
        verdicts: list[tuple[Verdict | None, int]] = []
        for queue, messages in batches:
            if queue.is_leaving or queue.is_dropped or self._closing.is_set():
                verdicts.append((None, 0))
                continue
            started_ms = clock.monotonic_ms()
            for message in messages:
                message.started_at_ms = started_ms
            try:
                verdict = verdict_said(handler.function(handler.argument(messages)))
            except (Exception, asyncio.CancelledError) as error:
                verdict = self._verdict_of(error, queue, messages)
            verdicts.append((verdict, clock.monotonic_ms() - started_ms))
        return verdicts


def count(queue: ProcessQueue, message_count: int, verdict: Verdict, cost_ms: int) -> None:
    """Add a batch to the figures of its topic."""
    figures = queue.figures
    figures.batches += 1
    figures.handled_ms += cost_ms
    if verdict is DONE or verdict.fate.is_success:
        figures.succeeded += message_count
    else:
        acked = min(verdict.acked, message_count)
        figures.succeeded += acked
        figures.failed += message_count - acked
