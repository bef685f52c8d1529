"""A process that writes to a store without end, and says what it has acknowledged.

    python store_writer.py ROOT FLUSH        FLUSH is ASYNC_FLUSH or SYNC_FLUSH

One line for each message after it is acknowledged: topic, queue, queue offset, physical offset,
end. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from skylark.clock import SystemClock
from skylark.protocol.properties import encode_properties
from skylark.protocol.record import pack_host
from skylark.store import FlushDiskType, MessageStore, OsFiles, PutMessage, PutStatus, StoreConfig
from skylark.store.flusher import Flusher

HOSTS = (pack_host("127.0.0.1", 10911), pack_host("2001:db8::1", 10911))
FILE_BYTES = 64 << 10


def config_of(root: str, flush: FlushDiskType) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=4_000,
        max_hash_slot_num=97,
        max_index_num=500,
        flush_disk_type=flush,
        flush_interval_commit_log=50,
        flush_consume_queue_thorough_interval=200,
    )


def body_of(number: int) -> bytes:
    return (b"%d;" % number) * (1 + number * 7919 % 60)


def message_of(number: int) -> PutMessage:
    return PutMessage(
        f"Topic{number % 3}",
        number // 3 % 4,
        body_of(number),
        encode_properties({"KEYS": f"key-{number}", "TAGS": f"Tag{number % 3}"}),
        1_700_000_000_000 + number,
        HOSTS[number % 7 == 0],
        HOSTS[0],
        sys_flag=0x10 if number % 7 == 0 else 0,
    )


async def write(root: str, flush: FlushDiskType) -> None:
    clock = SystemClock()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    with MessageStore.open(config_of(root, flush), OsFiles(), clock) as store:
        store.mark_open()
        flusher = Flusher(store, clock)
        async with flusher.running():
            number = 0
            while not ended.is_set():
                messages = [message_of(number + extra) for extra in range(1 + number % 8)]
                results = store.put(messages)
                assert all(result.status is PutStatus.PUT_OK for result in results)
                if flush is FlushDiskType.SYNC_FLUSH:
                    assert await flusher.wait_flushed(results[-1].end)
                await asyncio.sleep(0.005)  # So that the store does not outgrow the test.
                for message, result in zip(messages, results, strict=True):
                    print(
                        message.topic, message.queue_id, result.queue_offset,
                        result.physical_offset, result.end, number,
                    )  # fmt: skip
                    number += 1
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], FlushDiskType(sys.argv[2])))
