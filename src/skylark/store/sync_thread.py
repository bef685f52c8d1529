"""SyncThread: a thread that does nothing but fdatasync, and never asks for the GIL while it does.

A sync that runs as a Python function has to get the GIL before it starts and again when it ends,
from a loop that is busy with the next batch: up to five milliseconds each time, when the disk needs
a tenth of one. The compiled twin waits on an eventfd, syncs and writes to another eventfd that the
loop watches, all without the interpreter. The pure one here specifies it with an ordinary thread.

    loop                             thread
    submit(descriptors)   ──────▶    fdatasync each, in order, until one fails
    on_done(errno, which) ◀──────    0 and -1, or the error and the descriptor that met it

One order is under way at a time. Nobody else may close the descriptors until it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

# More than a flush of the log ever has: the file it appends to, and those it has just filled.
DESCRIPTORS_MAX = 64


def _sync_all(descriptors: Sequence[int]) -> tuple[int, int]:
    for descriptor in descriptors:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            return error.errno or -1, descriptor
    return 0, -1


class PureSyncThread:
    """Syncs descriptors beside the loop that it was made on."""

    def __init__(self, on_done: Callable[[int, int], None]) -> None:
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._is_busy = False

    def submit(self, descriptors: Sequence[int]) -> None:
        """Sync these; on_done is called on the loop when they are, or one has failed."""
        assert not self._is_busy
        assert 0 < len(descriptors) <= DESCRIPTORS_MAX
        self._is_busy = True
        order = self._loop.run_in_executor(self._executor, _sync_all, tuple(descriptors))
        order.add_done_callback(self._done)

    def _done(self, order: asyncio.Future[tuple[int, int]]) -> None:
        if not order.cancelled():
            self._is_busy = False
            self._on_done(*order.result())

    def close(self) -> None:
        """Wait for the sync under way, if any, and end the thread; on_done is not called again."""
        self._on_done = lambda _errno, _descriptor: None
        self._executor.shutdown()


SyncThread = PureSyncThread
if os.environ.get("SKYLARK_PURE") != "1":
    with contextlib.suppress(ImportError):
        from ._sync_thread import SyncThread as SyncThread
