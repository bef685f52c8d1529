"""find_agreement(): up to where two logs are one.

The HA stream says only how long logs are, and two histories may well be equally long. So before a
replica follows, it asks the master for single records by their place, which every broker answers
(VIEW_MESSAGE_BY_ID), and compares them with its own, byte for byte. A record holds its own place,
its store time and its queue offset: where one record is the same, everything before it is.

    our last record is there            the logs are one up to its end
    it is not                           files, then records of one file, are searched by halves
    none of ours is there               LogsDiffer: the logs have nothing in common

A generator, so that it neither knows nor waits for how the question travels: it yields a physical
offset, is sent the master's record there, or None, and returns where agreement ends.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator

from ..errors import SkylarkError
from ..protocol.record import BLANK_MAGIC, MAGIC
from ..store.commit_log import CommitLog

_HEAD = struct.Struct(">iI")

Probes = Generator[int, bytes | None, int]


class LogsDiffer(SkylarkError):
    """Nothing that one log holds is in the other."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def find_agreement(log: CommitLog, *, since: int = 0) -> Probes:
    """Find the physical offset up to which a log is the same as the one that is asked.

    The other log may have begun later than ours; `since` is where.
    """
    if not log.mapped.files:
        return log.appended
    starts = record_starts(log, len(log.mapped.files) - 1)
    number = len(log.mapped.files) - 1
    while not starts and number > 0:
        number -= 1
        starts = record_starts(log, number)
    if not starts:
        return log.appended
    if (yield from _agrees(log, starts[-1])):
        return _end_of(log, starts[-1])
    number = yield from _last_agreeing_file(log, number, since)
    starts = record_starts(log, number)
    # The first agrees, or _last_agreeing_file had raised.
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if (yield from _agrees(log, starts[middle])):
            low = middle
        else:
            high = middle - 1
    return _end_of(log, starts[low])


def _end_of(log: CommitLog, offset: int) -> int:
    # A blank record behind it is not counted: the other log may have gone on there instead.
    record = log.record(offset)
    assert record is not None
    return offset + len(record)


def _last_agreeing_file(
    log: CommitLog, number: int, since: int
) -> Generator[int, bytes | None, int]:
    files = log.mapped.files
    low, high = 0, number
    while low < high and files[low].start < since:
        low += 1
    if not (yield from _agrees(log, files[low].start)):
        raise LogsDiffer(
            f"not even the record at {files[low].start} is the same there as in our log, which "
            f"goes from {log.start} to {log.appended}"
        )
    while low < high:
        middle = (low + high + 1) // 2
        if (yield from _agrees(log, files[middle].start)):
            low = middle
        else:
            high = middle - 1
    return low


def _agrees(log: CommitLog, offset: int) -> Generator[int, bytes | None, bool]:
    ours = log.record(offset)
    theirs = yield offset
    return ours is not None and theirs is not None and bytes(ours) == theirs


def record_starts(log: CommitLog, number: int) -> array[int]:
    """Where the records of a file begin, as physical offsets; blank ones do not count."""
    file = log.mapped.files[number]
    end = min(file.end, log.appended)
    starts = array("q")
    at = file.start
    buffer = file.buffer
    while at + _HEAD.size <= end:
        size, magic = _HEAD.unpack_from(buffer, at - file.start)
        if magic == BLANK_MAGIC or magic != MAGIC or size <= 0:
            break
        starts.append(at)
        at += size
    return starts
