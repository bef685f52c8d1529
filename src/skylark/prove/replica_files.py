"""What the files of a replica hold, read without its broker."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..protocol.record import decode_record
from ..store.tools import detect_config
from ..store.tools.log_reader import LogReader
from .history import OK, Recorder
from .payload import id_of

_PIECE = 1 << 20


class Held(NamedTuple):
    """One message in a log."""

    topic: str
    queue_id: int
    queue_offset: int
    id: int


def open_log(root: Path) -> LogReader:
    """The log of a store; raises StoreUnreadable."""
    log = LogReader.of(detect_config(str(root)))
    log.load()
    return log


def messages_of(log: LogReader, topics: frozenset[str]) -> Iterator[Held]:
    """The sound records of some topics, in the order of the log; log.end is then its end."""
    for window in log.windows(log.start):
        position = 0
        while position < len(window.buffer):
            record = decode_record(window.buffer, position, check_crc=False)
            position += record.size_bytes
            if record.topic in topics:
                body = bytes(record.body)
                yield Held(record.topic, record.queue_id, record.queue_offset, id_of(body))


def checksum(log: LogReader, begin: int, end: int) -> int:
    """The CRC32 of a part of a log."""
    found = 0
    while begin < end:
        piece = log.read(begin, min(_PIECE, end - begin))
        if not piece:
            break
        found = zlib.crc32(piece, found)
        begin += len(piece)
    return found


def note_replicas(
    recorder: Recorder, stores: dict[str, Path], numbers: dict[int, int], topics: frozenset[str]
) -> None:
    """Put into the history what each node of one broker has; numbers are those of its queues."""
    logs: dict[str, LogReader] = {}
    for node, root in stores.items():
        log = logs[node] = open_log(root)
        recorder.note("replica", OK, node=node)
        for held in messages_of(log, topics):
            recorder.note(
                "replica",
                OK,
                topic=held.topic,
                q=numbers.get(held.queue_id, held.queue_id),
                off=held.queue_offset,
                id=held.id,
                node=node,
            )
    begin = max(log.start for log in logs.values())
    end = min(log.end for log in logs.values())
    for node, log in logs.items():
        recorder.note("log", OK, off=end, id=checksum(log, begin, end), node=node)
