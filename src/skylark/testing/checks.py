"""Checks: what a simulated run is asked again and again.

eventually     it comes true in time
always         it stays true
Outages        how long at most was each thing not as it should be?
check_replay   does the same run give the same trace?
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from itertools import zip_longest

from .trace import Trace


async def eventually(
    condition: Callable[[], bool], *, within_ms: int, every_ms: int = 50, what: str = ""
) -> int:
    """Wait until a condition holds and return after how many milliseconds; raise if it is late."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        if loop.time() - began >= within_ms / 1000:
            raise AssertionError(f"not within {within_ms} ms: {what or _name(condition)}")
        await asyncio.sleep(every_ms / 1000)
    return round((loop.time() - began) * 1000)


async def always(
    condition: Callable[[], bool], *, for_ms: int, every_ms: int = 50, what: str = ""
) -> None:
    """Look at a condition for a while; raise once it does not hold."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < for_ms / 1000:
        if not condition():
            after_ms = round((loop.time() - began) * 1000)
            raise AssertionError(f"not any more after {after_ms} ms: {what or _name(condition)}")
        await asyncio.sleep(every_ms / 1000)


def _name(condition: Callable[[], bool]) -> str:
    code = getattr(condition, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(condition)


class Outages:
    """Keeps, for each thing observed, since when it has been out and how long it ever was."""

    def __init__(self) -> None:
        self._since_ms: dict[Hashable, float] = {}
        self._longest_ms: dict[Hashable, float] = {}

    def observe(self, key: Hashable, ok: bool, now_ms: float) -> None:
        """Note how a thing is now."""
        since_ms = self._since_ms.setdefault(key, now_ms) if not ok else self._since_ms.get(key)
        if since_ms is not None:
            self._longest_ms[key] = max(self._longest_ms.get(key, 0), now_ms - since_ms)
            if ok:
                del self._since_ms[key]

    def excuse(self, key: Hashable) -> None:
        """Forget a thing's current outage: for the time being it has a right to be out."""
        self._since_ms.pop(key, None)

    @property
    def worst_ms(self) -> float:
        """The longest outage of all."""
        return max(self._longest_ms.values(), default=0)

    def check(self, limit_ms: float) -> None:
        """Raise if anything was ever out for longer than this."""
        over = {key: ms for key, ms in self._longest_ms.items() if ms > limit_ms}
        if over:
            worst = sorted(over.items(), key=lambda item: (-item[1], str(item[0])))[:5]
            listed = ", ".join(f"{key} for {ms:.0f} ms" for key, ms in worst)
            raise AssertionError(f"{len(over)} out for longer than {limit_ms} ms: {listed}")


def check_replay(run: Callable[[], Trace]) -> Trace:
    """Run twice and raise, with the first difference, unless both runs leave the same trace."""
    first, second = run(), run()
    if first.digest() != second.digest():
        pairs = zip_longest(first.text().splitlines(), second.text().splitlines())
        for number, (left, right) in enumerate(pairs, 1):
            if left != right:
                raise AssertionError(f"line {number} differs:\n  {left}\n  {right}")
        raise AssertionError("the traces differ in what they no longer keep; raise Trace(keep=…)")
    return first
