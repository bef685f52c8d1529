"""Runtime: the thread that does the work of one client in one process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ..client.facade import Client
from ..errors import ClientClosed

_T = TypeVar("_T")

STOP_TIMEOUT_S: Final = 30.0


class Runtime:
    """A thread, its event loop, and an open client on it."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self.pid = os.getpid()
        self.client = make_client()
        self._loop = _new_loop()
        self._stop = asyncio.Event()
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="skylark-sync", daemon=True)
        self._thread.start()
        self._opened.result()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the loop and wait for it."""
        return self.begin(coroutine).result()

    def begin(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run something on the loop."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a callback may not wait for the client: it runs on its thread")
        if not self._thread.is_alive():
            coroutine.close()
            raise ClientClosed("the client has ended", hint="connect again")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def tell(self, action: Callable[[], _T]) -> _T:
        """Run a function on the loop and wait for it."""

        async def run() -> _T:
            return action()

        return self.call(run())

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Close the client and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._keep_open())
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                raise
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.close()

    async def _keep_open(self) -> None:
        # One task enters and leaves, as task groups demand, however many threads call meanwhile.
        async with self.client:
            self._opened.set_result(None)
            await self._stop.wait()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
