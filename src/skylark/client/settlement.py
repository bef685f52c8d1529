"""Settlement: what becomes of messages once their handler has spoken (verdicts.py).

    fate             concurrent                              orderly
    done             finished                                finished, with all that was held
    retry, suspend   given back; where no broker takes it,   the queue waits, then the same again;
                     tried again here after a while          after the last try given up
    dead             given back as a dead letter             given back as a dead letter
    broadcasting     never repeated                          repeated here, never given back

A queue that has gone to another member is not touched: its messages come again there.
"""

from __future__ import annotations

import asyncio
import logging

from .consumer_config import ConsumerConfig
from .lines import ConcurrentLine, OrderlyLine
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .returns import Returns
from .verdicts import SUSPEND_MS_MAX, SUSPEND_MS_MIN, Fate, Verdict

logger = logging.getLogger(__name__)


class Settlement:
    """Settles the batches of one consumer."""

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        line: ConcurrentLine | OrderlyLine,
        returns: Returns,
    ) -> None:
        self._group = group
        self._config = config
        self._line = line
        self._returns = returns
        self._giving_back: dict[ReceivedMessage, asyncio.Future[bool]] = {}

    async def settle(
        self, queue: ProcessQueue, messages: list[ReceivedMessage], verdict: Verdict
    ) -> None:
        """Do what a verdict says."""
        if queue.is_dropped:
            return  # Another member has the queue, and will get these.
        if isinstance(self._line, OrderlyLine):
            await self._settle_orderly(self._line, queue, messages, verdict)
        else:
            await self._settle_concurrent(self._line, queue, messages, verdict)

    async def give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have a message delivered again, at level -1 never again; False if nobody took it.

        One that takes too long may be given back by the watch while its handler fails at last: it
        goes back once, and both hear how that went.
        """
        under_way = self._giving_back.get(message)
        if under_way is not None:
            return await asyncio.shield(under_way)
        outcome = self._giving_back[message] = asyncio.get_running_loop().create_future()
        is_back = False
        try:
            is_back = await self._returns.give_back(
                message,
                delay_level=delay_level,
                reconsume_times_max=self._config.reconsume_times_max,
            )
        finally:
            del self._giving_back[message]
            outcome.set_result(is_back)
        return is_back

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
        failed = messages[verdict.acked :]
        if self._config.is_broadcasting:
            for message in failed:
                logger.warning(
                    "group=%s message=%s failed and is not repeated: broadcasting has no retries",
                    *(self._group, message.message_id),
                )
            line.finish(queue, failed)
            return
        kept = []
        for message in failed:
            if queue.is_dropped:
                return
            if not queue.is_open(message):
                continue  # It took too long, and has been given back already.
            if await self.give_back(message, verdict.delay_level):
                line.finish(queue, [message])
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept and not queue.is_dropped:
            line.again(queue, kept, self._config.retry_here_ms)

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
        pause_ms = self._config.suspend_ms if verdict.pause_ms is None else verdict.pause_ms
        pause_ms = min(max(pause_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
        if fate is Fate.ROLL_BACK:
            queue.roll_back_taken()
            line.release(queue, pause_ms)
            return
        queue.finish_taken(messages[: verdict.acked])
        kept = []
        for message in messages[verdict.acked :]:
            is_over = message.reconsume_times >= self._config.reconsume_times_max
            if (fate is Fate.DEAD or is_over) and await self._give_up(message):
                queue.finish_taken([message])
            else:
                message.reconsume_times += 1
                self._mention(message)
                kept.append(message)
        if queue.is_dropped:
            return
        queue.give_back(kept)
        line.release(queue, pause_ms if kept else 0)

    def _mention(self, message: ReceivedMessage) -> None:
        times = message.reconsume_times
        if times >= 10 and str(times).strip("0") == "1":  # 10, 100, 1000 …
            logger.warning(
                "group=%s message=%s queue=%s has failed %d times and blocks its queue; "
                "max_reconsume_times or ToDlq would let the queue go on",
                *(self._group, message.message_id, message.queue, times),
            )

    async def _give_up(self, message: ReceivedMessage) -> bool:
        if self._config.is_broadcasting:
            logger.warning("group=%s message=%s given up", self._group, message.message_id)
            return True
        return await self.give_back(message, -1)
