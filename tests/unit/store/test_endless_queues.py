"""A queue is practically endless: its offsets have 64 bits."""

from __future__ import annotations

from skylark.protocol.record import decode_records, encode_record, pack_host
from skylark.store import MessageStore, PutMessage
from skylark.store.config import StoreConfig
from skylark.testing.clock import SimClock
from skylark.testing.files import SimFiles
from skylark.testing.loop import SimLoop

HOST = pack_host("10.0.0.1", 10911)
START = 2**32 + 7
FILE_BYTES = 64 << 10


def test_a_queue_goes_on_beyond_two_to_the_32() -> None:
    loop = SimLoop()
    clock = SimClock(loop)
    files = SimFiles(now_ms=clock.now_ms)
    config = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=2_000,
        max_message_size=4_096,
        max_hash_slot_num=64,
        max_index_num=512,
        disk_max_used_space_ratio=100,
        disk_space_clean_forcibly_ratio=100,
        disk_space_warning_level_ratio=100,
    )
    # A log as a very old store has it: what was before is long deleted.
    record = encode_record(
        topic="T", body=b"old", properties=b"", queue_id=0, queue_offset=START,
        physical_offset=0, born_at_ms=1, stored_at_ms=2, born_host=HOST, store_host=HOST,
    )  # fmt: skip
    files.make_directory("/store/commitlog")
    name = "/store/commitlog/" + "0" * 20
    files.replace(name, record + bytes(FILE_BYTES - len(record)))
    with MessageStore.open(config, files, clock) as store:
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (START, START + 1)
        put = PutMessage("T", 0, b"new", b"", 3, HOST, HOST)
        (result,) = store.put([put])
        assert result.queue_offset == START + 1
        store.dispatch()
        found = store.get("T", 0, START, 32)
        messages = decode_records(found.body)
        assert [(one.queue_offset, one.body) for one in messages] == [
            (START, b"old"),
            (START + 1, b"new"),
        ]
    loop.close()
