"""Byte for byte what RocketMQ 4.9.8 writes.

The expected bytes were dumped from a store that 4.9.8 wrote (file sizes 1024, 100 and 216; see
docs/formats). The same messages, put here at the same times, must give the same files.
"""

import pytest

from skylark.protocol.record import pack_host
from skylark.store import MessageStore, PutMessage, StoreConfig
from skylark.store.consume_queue_ext import ConsumeQueueExt, ExtUnit
from skylark.store.mapped_file import RegionCache
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock

BORN_MS = 1_700_000_000_000
FIRST_MS = 0x1A1DE095E61
LAST_MS = 0x1A1DE095EA5

CONFIG = StoreConfig(
    store_path_root_dir="/store",
    mapped_file_size_commit_log=1024,
    mapped_file_size_consume_queue=100,
    max_hash_slot_num=4,
    max_index_num=8,
)
HOST = pack_host("127.0.0.1", 10911)
BORN_V4 = pack_host("127.0.0.1", 54321)
BORN_V6 = pack_host("2001:db8::1", 54321)
# Only the hash of the original key is in the dump (the key is abridged): this one has the same.
UNIQUE_KEY = b"UNIQ_KEY\x017F0000010000000000005CBBD9850000"


def at(time_ms, topic, queue_id, body, properties, born_host=BORN_V4):
    return time_ms, PutMessage(topic, queue_id, body, properties, BORN_MS, born_host, HOST)


def sized(size, properties, topic=b"TopicTest"):
    """A body that makes the record have a size."""
    return b"b" * (size - 91 - len(topic) - len(properties))


DELAYED = b"DELAY\x013\x02REAL_TOPIC\x01TopicTest\x02REAL_QID\x011"
MESSAGES = [
    at(FIRST_MS, "TopicTest", 1, b"hello", b"KEYS\x01k1\x02" + UNIQUE_KEY + b"\x02TAGS\x01TagA"),
    at(0x1A1DE095E84, "TopicTest", 1, b"world!", b"KEYS\x01k1 k2\x02TAGS\x01TagB", BORN_V6),
    at(
        1_794_726_518_407,
        "SCHEDULE_TOPIC_XXXX",
        2,
        sized(0xA4, DELAYED, b"SCHEDULE_TOPIC_XXXX"),
        DELAYED,
    ),
    at(0x1A1DE095E90, "TopicTest", 1, sized(0x90, b"TAGS\x01TagA"), b"TAGS\x01TagA"),
    at(0x1A1DE095E90, "TopicTest", 1, sized(0x90, b"TAGS\x01TagA"), b"TAGS\x01TagA"),
    *(
        at(
            time_ms,
            "TopicTest",
            queue_id,
            sized(0xB8, b"KEYS\x01" + key + b"\x02TAGS\x01TagA"),
            b"KEYS\x01" + key + b"\x02TAGS\x01TagA",
        )
        for key, queue_id, time_ms in (
            (b"k0", 1, 0x1A1DE095E99),
            (b"k1", 1, 0x1A1DE095EA0),
            (b"k2", 0, LAST_MS),
        )
    ),
]


@pytest.fixture(scope="module")
def files():
    disk, clock = SimFiles(), HandClock()
    with MessageStore.open(CONFIG, disk, clock) as store:
        for time_ms, message in MESSAGES:
            clock._now_ms = time_ms
            (result,) = store.put([message])
            assert result.status == 0
    return disk


def test_the_first_record(files):
    record = files.read("/store/commitlog/00000000000000000000")[:164]
    assert record == bytes.fromhex(
        "000000a4 daa320a7 3610a686 00000001 00000000 0000000000000000 0000000000000000 00000000"
        "0000018bcfe56800 7f000001 0000d431 000001a1de095e61 7f000001 00002a9f"
        "00000000 0000000000000000 00000005 68656c6c6f 09 546f70696354657374 003b"
    ) + (b"KEYS\x01k1\x02" + UNIQUE_KEY + b"\x02TAGS\x01TagA")


def test_a_record_with_an_ipv6_born_host(files):
    record = files.read("/store/commitlog/00000000000000000000")[164 : 164 + 138]
    assert record == bytes.fromhex(
        "0000008a daa320a7 718498e8 00000001 00000000 0000000000000001 00000000000000a4 00000010"
        "0000018bcfe56800 20010db8000000000000000000000001 0000d431"
        "000001a1de095e84 7f000001 00002a9f 00000000 0000000000000000"
        "00000006 776f726c6421 09 546f70696354657374"
        "0014 4b455953016b31206b32 02 544147530154616742"
    )


def test_the_blank_record_at_the_end_of_a_file(files):
    assert files.read("/store/commitlog/00000000000000000000")[938:] == (
        bytes.fromhex("00000056 cbd43194") + bytes(78)
    )
    assert files.list_names("/store/commitlog") == [
        "00000000000000000000",
        "00000000000000001024",
    ]


def test_the_consume_queue(files):
    assert files.read("/store/consumequeue/TopicTest/1/00000000000000000000") == bytes.fromhex(
        "0000000000000000 000000a4 000000000027a807"
        "00000000000000a4 0000008a 000000000027a808"
        "00000000000001d2 00000090 000000000027a807"
        "0000000000000262 00000090 000000000027a807"
        "00000000000002f2 000000b8 000000000027a807"
    )
    assert files.read("/store/consumequeue/TopicTest/1/00000000000000000100") == (
        bytes.fromhex("0000000000000400 000000b8 000000000027a807") + bytes(80)
    )


def test_a_delayed_message_has_its_delivery_time_in_the_queue(files):
    assert files.read("/store/consumequeue/SCHEDULE_TOPIC_XXXX/2/00000000000000000000")[:20] == (
        bytes.fromhex("000000000000012e 000000a4 000001a1de098597")
    )


def test_the_index_file(files):
    (name,) = files.list_names("/store/index")
    assert len(name) == 17
    assert files.read(f"/store/index/{name}") == bytes.fromhex(
        "000001a1de095e61 000001a1de095ea5 0000000000000000 00000000000004b8 00000004 00000008"
        "00000006 00000007 00000001 00000005"
        "0000000000000000000000000000000000000000"
        "228a81ae 0000000000000000 00000000 00000000"
        "0029e6a8 0000000000000000 00000000 00000000"
        "0029e6a8 00000000000000a4 00000000 00000002"
        "0029e6a9 00000000000000a4 00000000 00000000"
        "0029e6a7 00000000000002f2 00000000 00000000"
        "0029e6a8 0000000000000400 00000000 00000003"
        "0029e6a9 00000000000004b8 00000000 00000004"
    )


def test_the_checkpoint_head(files):
    content = files.read("/store/checkpoint")
    assert len(content) == 4096
    log_ms, queues_ms, index_ms = (int.from_bytes(content[i : i + 8], "big") for i in (0, 8, 16))
    assert (log_ms, queues_ms, index_ms) == (LAST_MS, LAST_MS, LAST_MS)
    assert content[24:512] == bytes(488), "what RocketMQ 5 keeps there stays zero"


def test_lock_and_abort_files(files):
    assert files.read("/store/lock") == b"lock"
    assert not files.exists("/store/abort")


def test_a_queue_that_begins_late_is_filled_up():
    """Four entries a file, the first message has offset 5."""
    from skylark.store.append import put_entry
    from skylark.store.consume_queue import ConsumeQueue

    disk = SimFiles()
    disk.make_directory("/q")
    queue = ConsumeQueue(disk, RegionCache(8), "/q", "TopicTest", 1, 80)
    queue.make_room(5)
    put_entry(queue.cursor, 0x400, 0xB8, 2598919, [])
    assert disk.list_names("/q/TopicTest/1") == ["00000000000000000080"]
    assert disk.read("/q/TopicTest/1/00000000000000000080") == (
        bytes.fromhex(
            "0000000000000000 7fffffff 0000000000000000 0000000000000400 000000b8 000000000027a807"
        )
        + bytes(40)
    )
    assert (queue.min_offset, queue.max_offset) == (5, 6)


def test_an_ext_unit_and_its_address():
    disk = SimFiles()
    disk.make_directory("/e")
    ext = ConsumeQueueExt(disk, RegionCache(8), "/e", "TopicTest", 1, 4096)
    bitmap = bytearray(14)
    for bit in (3, 15, 109):
        bitmap[bit // 8] |= 1 << bit % 8
    address = ext.put(ExtUnit(2598919, 0x1A1DE0F47EF, bytes(bitmap)))
    assert address is not None
    assert address & (2**64 - 1) == 0x8000000000000000
    assert disk.read("/e/TopicTest/1/00000000000000000000")[:34] == bytes.fromhex(
        "0022 000000000027a807 000001a1de0f47ef 000e 0880000000000000000000000020"
    )
