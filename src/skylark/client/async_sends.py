"""AsyncSends: the sends that nobody waits for yet, and who hears how they ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ..errors import ClientError, SkylarkError
from .receipts import SendReceipt

logger = logging.getLogger(__name__)

ASYNC_SENDS_MAX: Final = 65_535  # Beyond it, send_async refuses: its caller does not wait.


class SendCallback(Protocol):
    """Told how a send_async ended; exactly one of the two is called, once."""

    def on_success(self, receipt: SendReceipt) -> None:
        """A broker has stored the message."""
        ...

    def on_exception(self, error: Exception) -> None:
        """No broker confirmed it."""
        ...


class AsyncSends:
    """The sends of one producer that are under way on their own."""

    def __init__(self) -> None:
        self._pending: set[asyncio.Task[SendReceipt]] = set()

    def begin(
        self, send: Callable[[], Awaitable[SendReceipt]], callback: SendCallback | None
    ) -> asyncio.Task[SendReceipt]:
        """Begin a send; raises ClientError where too many are under way."""
        if len(self._pending) >= ASYNC_SENDS_MAX:
            raise ClientError(
                f"{ASYNC_SENDS_MAX} messages are under way already", hint="await some of them first"
            )
        task = asyncio.get_running_loop().create_task(self._run(send, callback))
        self._pending.add(task)
        task.add_done_callback(self._done)
        return task

    async def wait(self) -> None:
        """Wait until all that are under way have ended."""
        if self._pending:
            await asyncio.wait(self._pending)

    def cancel(self) -> None:
        """Give up what is still under way."""
        for task in self._pending:
            task.cancel()

    async def _run(
        self, send: Callable[[], Awaitable[SendReceipt]], callback: SendCallback | None
    ) -> SendReceipt:
        try:
            receipt = await send()
        except SkylarkError as error:
            if callback is not None:
                callback.on_exception(error)
            raise
        if callback is not None:
            callback.on_success(receipt)
        return receipt

    def _done(self, task: asyncio.Task[SendReceipt]) -> None:
        self._pending.discard(task)
        if task.cancelled():
            return
        error = task.exception()  # Taken: a caller with a callback need not await the task too.
        if error is not None and not isinstance(error, SkylarkError):
            logger.error("a send_async ended with a surprise", exc_info=error)
