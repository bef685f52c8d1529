"""Programs that meet errors of a real disk; test_disk_errors.py runs them.

real_disk_errors.py full PLACE     fill a small file system, free it again
real_disk_errors.py flush PLACE    write with SYNC_FLUSH until a flush fails, or it is enough
real_disk_errors.py check PLACE    are the acknowledged messages (JSON on stdin) there?
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from killed_writer import config_of, message_of

from skylark.clock import SystemClock
from skylark.errors import StoreClosed
from skylark.store import FlushDiskType, MessageStore, OsFiles, PutStatus
from skylark.store.flusher import Flusher
from skylark.store.retention import Retention


def fill(place: str) -> dict[str, int]:
    """Put until there is no room, free some, and go on."""
    config = config_of(os.path.join(place, "store"), FlushDiskType.SYNC_FLUSH)
    taken: list[int] = []
    with MessageStore.open(config, OsFiles(), SystemClock()) as store:
        retention = Retention(store, SystemClock())

        def put_some(first: int, count: int) -> int:
            refused = 0
            for number in range(first, first + count):
                result = store.put([message_of(number % 8, number)])[0]
                if result.status is PutStatus.PUT_OK:
                    taken.append(result.physical_offset)
                else:
                    refused += 1
            store.flush()
            return refused

        put_some(0, 200)
        ballast = os.path.join(place, "ballast")
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        refused = put_some(200, 2000)
        readable = sum(store.get_by_physical_offset(at) is not None for at in taken)
        assert readable == len(taken), "reads do not go on"
        os.unlink(ballast)
        retention.look()
        before = len(taken)
        put_some(2200, 100)
    with MessageStore.open(config, OsFiles(), SystemClock()) as store:
        lost = sum(store.get_by_physical_offset(at) is None for at in taken)
    return {"refused": refused, "taken_again": len(taken) - before, "lost": lost}


async def flush(place: str) -> dict[str, object]:
    """Four producers with SYNC_FLUSH."""
    config = config_of(place, FlushDiskType.SYNC_FLUSH)
    store = MessageStore.open(config, OsFiles(), SystemClock())
    acked: list[tuple[int, int]] = []
    after: list[int] = []

    async def produce(producer: int) -> None:
        for number in range(200):
            result = store.put([message_of(producer, number)])[0]
            if result.status is not PutStatus.PUT_OK:
                return
            try:
                await flusher.wait_flushed(result.end)
            except StoreClosed:
                return
            acked.append((result.physical_offset, result.size_bytes))
            if store.failure is not None:
                after.append(result.physical_offset)

    flusher = Flusher(store, SystemClock())
    async with flusher.running():
        await asyncio.gather(*(produce(producer) for producer in range(4)))
    failure = store.failure
    statuses = {store.put([message_of(0, 999)])[0].status.name for _ in range(3)}
    store.close()
    return {
        "failure": None if failure is None else str(failure),
        "acked": acked,
        "acked_after_failure": len(after),
        "puts_after_failure": sorted(statuses),
    }


def check(place: str) -> dict[str, int]:
    acked = json.load(sys.stdin)
    config = config_of(place, FlushDiskType.SYNC_FLUSH)
    with MessageStore.open(config, OsFiles(), SystemClock()) as store:
        return {"lost": sum(store.get_by_physical_offset(at, size) is None for at, size in acked)}


def main() -> None:
    logging.disable(logging.CRITICAL)
    what, place = sys.argv[1:]
    outcome = {
        "full": lambda: fill(place),
        "flush": lambda: asyncio.run(flush(place)),
        "check": lambda: check(place),
    }[what]()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
