"""Seam: where the archive of a topic ends, and its live log takes over.

Pure: how far the archive reaches and what the brokers have come in as numbers.

    archive      [0 ............... a)
    live log               [first ....... end)
    read live                       [a .. end)

    # first <= a: retention waits for the archive, so nothing lies between the two.
    # a <= end: the archive was made of this very log.

Both move while a query is planned. The archive is looked at first, so it can only have grown since,
and retention with it: then `first` is beyond `a`, and a second look at the archive has the rest. A
queue that the archive does not have begins at its first message, if a second look agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from .offsets import DataLoss, Offsets, QueueKey, Range

LOOKS_MAX = 20

T = TypeVar("T")


class Extent(NamedTuple):
    """What a broker has of a queue: from the first offset up to the end, exclusive."""

    first: int
    end: int


class Gap(DataLoss):
    """Messages that are neither in the archive nor in the live log."""


def cut(archived: Offsets, live: Mapping[QueueKey, Extent]) -> list[Range]:
    """What is to be read from the live log, for every queue that it has; raises DataLoss."""
    found = []
    for queue, extent in sorted(live.items()):
        start = archived.get(queue, extent.first)
        if extent.first > start:
            raise Gap(
                f"{queue}: {start} to {extent.first} are neither in the archive nor in the live "
                "log; `sql --no-live`, or table(…, live=False), reads what is archived, and "
                "brokers with retention.wait_for_archive=true wait for the next one"
            )
        if extent.end < start:
            raise DataLoss(
                f"{queue} ends at {extent.end}, and its archive reaches to {start}: it is a "
                "replica that has fallen behind, or another topic of that name, which needs an "
                "archive of its own"
            )
        found.append(Range(queue, start, extent.end))
    return found


def plan(
    look: Callable[[], tuple[T, Offsets]], extents: Callable[[], Mapping[QueueKey, Extent]]
) -> tuple[T, list[Range]]:
    """One look at the archive, and what the live log has beyond it; raises DataLoss.

    Where retention may have passed the end of that look, the archive is looked at again: either it
    has gone on, and that look counts, or what is missing was missing before.
    """
    snapshot, archived = look()
    for _ in range(LOOKS_MAX):
        live = extents()
        passed = [q for q, extent in live.items() if extent.first > archived.get(q, 0)]
        if passed:
            later, reached = look()
            if any(reached.get(queue) != archived.get(queue) for queue in passed):
                snapshot, archived = later, reached
                continue
        return snapshot, cut(archived, live)
    raise DataLoss("the archive grows faster than it can be read; try again")


def additions(
    archived: Offsets, begins: Offsets, ends: Offsets, there: Collection[QueueKey]
) -> Offsets:
    """How far the archive goes with a micro-batch, in the queues that go on; raises DataLoss.

    The micro-batch goes from some offsets, which the batch before it was to reach, to others. The
    archive may have come less far, if a driver died and its topic was left out for a while: what is
    added begins where the archive ends. Topics of which nothing is there go on no more: they were
    deleted, or are not asked for.
    """
    topics = {queue.topic for queue in there}
    found: Offsets = {}
    for queue, end in sorted(ends.items()):
        if queue.topic not in topics:
            continue
        reached, begin = archived.get(queue), begins.get(queue, 0)
        if reached is None and begin > 0:
            raise DataLoss(
                f"{queue}: the archive does not have it, and its checkpoint goes on at {begin}: a "
                "part of its catalogue is gone, or the checkpoint is of another archive"
            )
        if end < begin:
            raise DataLoss(
                f"{queue} is archived up to {begin} and ends at {end}: it has lost messages, or is "
                "another one of that name, which needs an archive of its own"
            )
        if queue not in there:
            raise DataLoss(f"{queue} is archived up to {begin} and is not there any more")
        if reached is None or end > reached:
            found[queue] = end
    return found
