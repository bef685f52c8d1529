"""Asking many servers at once, but not all at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

AT_ONCE: Final = 32  # Questions under way at a time.

_T = TypeVar("_T")
_R = TypeVar("_R")


async def each(ask: Callable[[_T], Awaitable[_R]], items: Iterable[_T]) -> list[_R]:
    """Ask about all items, a number of them at a time; answers are in their order."""
    waiting = list(items)
    answers: list[_R] = []
    for at in range(0, len(waiting), AT_ONCE):
        answers += await asyncio.gather(*(ask(item) for item in waiting[at : at + AT_ONCE]))
    return answers
