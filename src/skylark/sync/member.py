"""Member: what producers and consumers for threads have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from ..client.facade import Client
from ..errors import ClientClosed
from .fork import Forkable
from .runtime import Runtime

_T = TypeVar("_T")


class _Started(Protocol):
    """What producers and consumers have in common."""

    async def start(self) -> None:
        """Begin."""
        ...

    async def close(self) -> None:
        """End."""
        ...


_M = TypeVar("_M", bound=_Started)


class Member(Forkable, Generic[_M]):
    """A producer or consumer of this process, made anew after a fork."""

    def __init__(
        self, runtime: Callable[[], Runtime], what: str, make: Callable[[Client], _M]
    ) -> None:
        super().__init__()
        self._runtime = runtime  # The one of this process.
        self._what = what
        self._make = make
        self._opened: tuple[Runtime, _M] | None = None
        self._is_open = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin; what was closed may be started again."""
        self._is_open = True
        self._current()

    def close(self) -> None:
        """Wait for what is under way, then leave; safe to call again."""
        with self._lock:
            self._is_open = False
            opened, self._opened = self._opened, None
        if opened is not None and opened[0].pid == os.getpid() and opened[0].is_running:
            opened[0].call(opened[1].close())

    def _current(self) -> tuple[Runtime, _M]:
        """The member of this process, made and started if there is none yet."""
        with self._lock:
            if not self._is_open:
                raise ClientClosed(f"{self._what} is not open", hint="use it inside its `with`")
            runtime = self._runtime()
            if self._opened is None or self._opened[0] is not runtime:
                made = runtime.tell(lambda: self._make(runtime.client))
                runtime.call(made.start())
                self._opened = (runtime, made)
            return self._opened

    def _do(self, action: Callable[[_M], Coroutine[Any, Any, _T]]) -> _T:
        """Have the member do something, and wait for it."""
        runtime, member = self._current()
        return runtime.call(action(member))

    def _tell(self, action: Callable[[_M], _T]) -> _T:
        """Have something done to the member by its own thread, that does not wait."""
        runtime, member = self._current()
        return runtime.tell(lambda: action(member))

    def _forget(self) -> None:
        self._opened = None
