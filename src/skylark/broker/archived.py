"""Archived: retention waits for the group that copies the log elsewhere.

A group whose committed offsets say how far an archive has come is named by retentionWaitsForGroup.
What it has not read yet is spared when it expires, in the topics in which it has begun to read.
"""

from __future__ import annotations

from ..store import MessageStore
from .config import LiveConfig
from .offsets import ConsumerOffsets


class Archived:
    """Knows what is not archived yet."""

    def __init__(self, live: LiveConfig, offsets: ConsumerOffsets, store: MessageStore) -> None:
        self._live = live
        self._offsets = offsets
        self._store = store

    def undelivered_from(self) -> int | None:
        """The physical offset of the first message that the group has still to read."""
        group = self._live.current.retention_waits_for_group
        if not group:
            return None
        found = []
        for topic in self._offsets.topics_of(group):
            for queue_id, offset in self._offsets.of(topic, group).items():
                queue = self._store.queues.get(topic, queue_id)
                if queue is None or offset >= queue.max_offset:
                    continue
                entry = queue.entry(max(offset, queue.min_offset))
                if entry is not None:
                    found.append(entry.physical_offset)
        return min(found, default=None)
