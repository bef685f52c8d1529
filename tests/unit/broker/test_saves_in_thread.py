"""What a stopping broker saves last must not be overtaken by a save that is under way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from skylark.errors import StoreFull
from skylark.net.tasks import to_the_end


def test_a_save_that_is_cancelled_ends_before_whoever_cancelled_goes_on() -> None:
    written: list[bytes] = []
    begun, may_end = threading.Event(), threading.Event()

    def write(content: bytes) -> None:
        begun.set()
        assert may_end.wait(10)
        written.append(content)

    async def main() -> None:
        saving = asyncio.ensure_future(to_the_end(write, b"before"))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        saving.cancel()
        await asyncio.sleep(0.01)
        assert not saving.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        written.append(b"last")

    asyncio.run(main())
    assert written == [b"before", b"last"]


def test_what_goes_wrong_in_the_thread_is_raised() -> None:
    def write(content: bytes) -> None:
        raise StoreFull("no space")

    async def main() -> None:
        with pytest.raises(StoreFull, match="no space"):
            await to_the_end(write, b"")

    asyncio.run(main())
