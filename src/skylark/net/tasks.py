"""TaskScope: a TaskGroup whose errors come out as they went in.

TaskGroup wraps whatever ends it, the body's own exception included, in an ExceptionGroup. A
caller who writes `async with Channels(...)` expects its own errors back, and one failed task to be
one error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class TaskScope:
    """Owns tasks; leaving it waits for them, and the first that fails ends them all."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            if group.exceptions[0] is not error:
                raise group.exceptions[0] from None
            # The body's own error: returning lets it go on as it was raised.

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something under this scope."""
        return self._group.create_task(coroutine)


async def to_the_end(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function on a thread; cancelled, wait for its end all the same.

    Who cancels and then does the same again must not meet the thread that is still at it.
    """
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            await asyncio.wait((work,))
        raise
