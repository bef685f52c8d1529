"""What lies in a store, row by row: records, consume queue entries, index entries.

Rows are plain dictionaries, so that a table and JSON lines show the same. Nothing is written, and a
broker may be at work on the store.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator, Mapping

from ...errors import InvalidRecord, StoreDamaged, StoreUnreadable
from ...model.message import Property, StoredMessage
from ...protocol.hashes import key_hash
from ...protocol.properties import split_keys
from ...protocol.record import decode_record
from ..append import ENTRY_BYTES, FILLER_SIZE, INDEX_HEADER_BYTES
from ..config import StoreConfig
from .layout import QueueFiles, index_header, index_paths, queues_of
from .log_reader import LogReader, read_at

Row = Mapping[str, object]

_INDEX_ENTRY = struct.Struct(">iqii")


def dump_records(
    config: StoreConfig,
    *,
    start: int | None = None,
    end: int | None = None,
    topic: str | None = None,
    queue_id: int | None = None,
    key: str | None = None,
    with_body: bool = False,
) -> Iterator[Row]:
    """Records of the log that begin in a range of physical offsets, in the order of the log.

    StoreDamaged where the log is damaged in that range; what came before has been given out.
    """
    log = LogReader.of(config)
    log.load()
    if not log.files:
        return
    end = log.limit if end is None else end
    at = log.start if start is None else max(start, log.start)
    at = _record_begin(log, at)
    for window in log.windows(at, check_crc=False):
        position = 0
        while position < len(window.buffer):
            message = decode_record(window.buffer, position, check_crc=False)
            physical_offset = window.start + position
            position += message.size_bytes
            if physical_offset >= end:
                return
            if start is not None and physical_offset < start:
                continue
            if _is_wanted(message, topic, queue_id, key):
                yield record_row(message, with_body=with_body)
    if log.problem and log.end < end:
        path, place = log.place_of(log.end)
        raise StoreDamaged(
            path,
            place,
            log.problem,
            f"run: skylark store check {config.store_path_root_dir}",
        )


def _record_begin(log: LogReader, offset: int) -> int:
    """The last place not after an offset from which records can be walked."""
    if log.record(offset) is not None or log.is_blank(offset):
        return offset
    file = log.at(offset)
    return log.start if file is None else file.start


def _is_wanted(
    message: StoredMessage, topic: str | None, queue_id: int | None, key: str | None
) -> bool:
    if topic is not None and message.topic != topic:
        return False
    if queue_id is not None and message.queue_id != queue_id:
        return False
    if key is None:
        return True
    keys = split_keys(message.properties.get(Property.KEYS))
    return key in keys or key == message.properties.get(Property.UNIQ_KEY)


def record_row(message: StoredMessage, *, with_body: bool = False) -> dict[str, object]:
    """What a record says."""
    properties = dict(message.properties)
    row: dict[str, object] = {
        "physical_offset": message.physical_offset,
        "size": message.size_bytes,
        "topic": message.topic,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "stored_at_ms": message.stored_at_ms,
        "born_at_ms": message.born_at_ms,
        "born_host": str(message.born_host),
        "store_host": str(message.store_host),
        "tag": properties.get(Property.TAGS),
        "keys": list(split_keys(properties.get(Property.KEYS))),
        "unique_key": properties.get(Property.UNIQ_KEY),
        "sys_flag": int(message.sys_flag),
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "body_size": len(message.body),
        "properties": properties,
    }
    if with_body:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def dump_queue(
    config: StoreConfig,
    topic: str,
    queue_id: int,
    *,
    start: int | None = None,
    end: int | None = None,
) -> Iterator[Row]:
    """Entries of one consume queue in a range of queue offsets."""
    root = config.store_path_root_dir
    if (topic, queue_id) not in queues_of(root):
        queues = [str(number) for name, number in queues_of(root) if name == topic]
        hint = f"it has queue {', '.join(queues)}" if queues else "there is no such topic"
        raise StoreUnreadable(
            os.path.join(root, "consumequeue", topic, str(queue_id)), f"does not exist; {hint}"
        )
    files = QueueFiles(root, topic, queue_id, config.consume_queue_file_bytes)
    first = files.start if start is None else max(files.start, start * ENTRY_BYTES)
    for position, (physical_offset, size, code) in files.entries(first):
        offset = position // ENTRY_BYTES
        if (end is not None and offset >= end) or (physical_offset, size, code) == (0, 0, 0):
            return
        yield {
            "topic": topic,
            "queue": queue_id,
            "queue_offset": offset,
            "physical_offset": physical_offset,
            "size": size,
            "tag_code": code,
            "is_filler": size == FILLER_SIZE,
        }


def dump_index(
    config: StoreConfig, *, topic: str | None = None, key: str | None = None
) -> Iterator[Row]:
    """Entries of the index, oldest first; with topic and key those that may be for that key."""
    wanted = None if topic is None or key is None else key_hash(topic, key)
    entries_at = INDEX_HEADER_BYTES + 4 * config.max_hash_slot_num
    for path in index_paths(config.store_path_root_dir):
        header = index_header(path)
        count = min(max(header.index_count, 1), config.max_index_num)
        step = 50_000
        for first in range(1, count, step):
            size = (min(first + step, count) - first) * ENTRY_BYTES
            content = read_at(path, entries_at + first * ENTRY_BYTES, size)
            try:
                entries = list(_INDEX_ENTRY.iter_unpack(content))
            except struct.error:
                raise StoreDamaged(
                    path, len(content), "is cut off", "run: skylark store rebuild"
                ) from None
            for number, (hash_value, physical_offset, seconds, previous) in enumerate(
                entries, first
            ):
                if wanted is None or hash_value == wanted:
                    yield {
                        "file": os.path.basename(path),
                        "entry": number,
                        "key_hash": hash_value,
                        "slot": hash_value % config.max_hash_slot_num,
                        "physical_offset": physical_offset,
                        # The first entry's seconds count from the end of the file before.
                        "stored_at_ms": header.begin_ms + (seconds * 1000 if number > 1 else 0),
                        "previous": previous,
                    }


def record_at(config: StoreConfig, physical_offset: int) -> StoredMessage | None:
    """The message at a physical offset, if one begins there."""
    log = LogReader.of(config)
    log.load()
    record = log.record(physical_offset)
    if record is None:
        return None
    try:
        return decode_record(record)
    except InvalidRecord:
        return None
