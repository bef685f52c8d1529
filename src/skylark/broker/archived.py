"""Archived: retention waits for the group that copies the log elsewhere.

A group whose committed offsets say how far an archive has come is named by retentionWaitsForGroup;
retention.wait_for_archive names that of `skylark pipeline archive`. What it has not read yet is
spared when it expires, in the topics in which it has begun to read: in all their queues, also those
that were added since. Such a queue stays when all its messages have expired: it would begin anew at
0, and the archive take it for another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model.group import ARCHIVE_GROUP
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
        """The physical offset of the first message that such a group has still to read."""
        found = [offset for group in self._groups() for offset in self._unread_by(group)]
        return min(found, default=None)

    def topics(self) -> set[str]:
        """Those that such a group has begun to read."""
        return {topic for group in self._groups() for topic in self._offsets.topics_of(group)}

    def _groups(self) -> set[str]:
        config = self._live.current
        groups = {config.retention_waits_for_group} - {""}
        if config.retention_wait_for_archive:
            groups.add(ARCHIVE_GROUP)
        return groups

    def _unread_by(self, group: str) -> Iterator[int]:
        topics = self._offsets.topics_of(group)
        for topic, queue_id in [name for name in self._store.queues.names if name[0] in topics]:
            queue = self._store.queues.get(topic, queue_id)
            offset = self._offsets.get(topic, group, queue_id) or 0
            if queue is None or offset >= queue.max_offset:
                continue
            entry = queue.entry(max(offset, queue.min_offset))
            if entry is not None:
                yield entry.physical_offset
