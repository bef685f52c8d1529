"""Blocking functions of users, run where they may block."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from ..client.transactions import CheckAnswer, TransactionListener
from ..model.message import Message, StoredMessage

_T = TypeVar("_T")


def in_thread(function: Callable[..., _T]) -> Callable[..., Coroutine[Any, Any, _T]]:
    """A blocking function as a coroutine function that does not block the client."""

    async def run(*arguments: Any) -> _T:
        return await asyncio.to_thread(function, *arguments)

    return run


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it, or the object that it is, gives a coroutine."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


class ThreadedListener(TransactionListener):
    """A listener whose methods block, each call in a thread."""

    def __init__(
        self, listener: TransactionListener, check_threads: Executor | None = None
    ) -> None:
        self._listener = listener
        self._check_threads = check_threads

    async def execute(self, message: Message, argument: Any, transaction_id: str) -> CheckAnswer:
        run: Any = in_thread(self._listener.execute)
        answer: CheckAnswer = await run(message, argument, transaction_id)
        return answer

    async def check(self, half: StoredMessage) -> CheckAnswer:
        loop, check = asyncio.get_running_loop(), self._listener.check
        answer: Any = await loop.run_in_executor(self._check_threads, check, half)
        found: CheckAnswer = answer
        return found
