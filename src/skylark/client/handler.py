"""Handler: the application's function that gets the messages, of whichever kind it is.

It may be a coroutine function, or a function that may block and then runs in a thread; it takes
one message, or a list of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from .received import ReceivedMessage
from .verdicts import DONE, Signal, Verdict

Said = Verdict | None
MessageHandler = Callable[[ReceivedMessage], Awaitable[Said] | Said]
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[Said] | Said]
Call = Callable[[Any], Awaitable[object]]


class Handler:
    """A function of the application, and the threads it runs in where it may block."""

    def __init__(
        self, function: MessageHandler | BatchHandler, *, takes_list: bool, name: str
    ) -> None:
        self.function = cast(Callable[[Any], Any], function)
        self.takes_list = takes_list
        self.is_coroutine = _is_coroutine_function(self.function)
        self.threads: ThreadPoolExecutor | None = None
        self.call: Call = self.function if self.is_coroutine else self._call_in_thread
        self._name = name

    def open(self, thread_count: int) -> None:
        """Get ready; threads start when they are needed."""
        if not self.is_coroutine:
            self.threads = ThreadPoolExecutor(
                thread_count, thread_name_prefix=f"skylark-{self._name}"
            )

    def close(self) -> None:
        """Start nothing more; what runs in a thread cannot be stopped and is not waited for."""
        if self.threads is not None:
            self.threads.shutdown(wait=False, cancel_futures=True)
            self.threads = None

    def argument(self, messages: list[ReceivedMessage]) -> ReceivedMessage | list[ReceivedMessage]:
        """What the function takes of a batch."""
        return messages if self.takes_list else messages[0]

    async def _call_in_thread(self, argument: ReceivedMessage | list[ReceivedMessage]) -> object:
        return await self.run_in_thread(self.function, argument)

    async def run_in_thread(self, function: Callable[[Any], Any], argument: object) -> Any:
        """Run something where the application's function runs."""
        # It sees the context of whoever started the consumer, as a coroutine would.
        run = functools.partial(contextvars.copy_context().run, function, argument)
        return await asyncio.get_running_loop().run_in_executor(self.threads, run)


def verdict_said(said: object) -> Verdict:
    """What the return value of a handler stands for: unless it is a verdict, that it is done.

    A signal that was returned and not raised means the same: nobody makes one for nothing.
    """
    if isinstance(said, Signal):
        return said.verdict
    return said if isinstance(said, Verdict) else DONE


def is_own_cancellation() -> bool:
    """Whether a CancelledError in hand is meant for this task, and not one out of a handler."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
