"""ConsumerOffsets: how far each group has come in each queue.

A committed offset goes forward. A smaller one is taken only where it is meant:

    the group has no member that consumes by push   an operator sets it, or a pull consumer seeks;
                                                    not in the first minute after a restart, when
                                                    members may not have come back yet
    the request says that it is a reset             an operator's, or a member's own
    a reset of that queue is under way              the value that was asked for

and one beyond the end of its queue is not taken at all: whoever has read what is not there has read
it in another life of the queue, before a disk was lost or the topic was made anew. RocketMQ takes
any number from anyone, and so a late commit of a former owner, or one before a crash, makes a group
skip or repeat messages.

The table is saved every few seconds and at the end. What a crash loses is at most that interval.

In a Raft group commits are gathered for a moment and go through the ledger together. A question is
answered with what the group has agreed on, and so no answer is ever taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from ..clock import Clock
from ..errors import InvalidBody
from ..model.queue import QueueOffset
from ..protocol.bodies import ConsumerOffsetTable, topic_and_group_of, topic_at_group
from .ledger import Change, Ledger
from .saved_table import SavedTable, SmallFiles

logger = logging.getLogger(__name__)

RESET_PATIENCE_MS = 60_000  # Java's push consumer takes some 10 s to follow a reset.
RETURN_PATIENCE_MS = 60_000  # Members that live through a restart send a heartbeat every 30 s.


class CommitOutcome(Enum):
    """What became of a commit."""

    TAKEN = "taken"
    KEPT = "kept"  # It was not forward, and the offset is what it was.
    BEYOND = "beyond the end"  # Nothing is stored there, and the offset is what it was.


class _Reset(NamedTuple):
    offset: int
    until_ms: int


class ConsumerOffsets:
    """Topic and group → queue → next offset."""

    def __init__(
        self,
        path: str,
        files: SmallFiles,
        clock: Clock,
        *,
        max_offset: Callable[[str, int], int],
    ) -> None:
        self._clock = clock
        self._max_offset = max_offset
        self._saved = SavedTable(path, files, ConsumerOffsetTable)
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._resets: dict[tuple[str, str, int], _Reset] = {}
        self._is_changed = False
        self._loaded: frozenset[tuple[str, str]] = frozenset()
        self._loaded_at_ms = 0
        # A replica's: what clients committed here, until the master has heard of it.
        self._own: dict[tuple[str, str, int], int] | None = None
        # In a Raft group: where changes are written down first.
        self.ledger: Ledger | None = None
        # What is further on than the table: still to be written, or written and on its way back.
        self._ahead: dict[tuple[str, str, int], int] = {}
        self._unwritten: dict[tuple[str, str, int], int] = {}

    def load(self) -> None:
        """Read the file; offsets beyond the end of their queue are cut. Raises StoreError."""
        body = self._saved.load()
        if body is None:
            return
        for key, offsets in body.offsets.items():
            try:
                topic, group = topic_and_group_of(key)
            except InvalidBody as error:
                logger.warning("file=%s: %s, passed over", self._saved.path, error)
                continue
            kept = {}
            for queue_id, offset in offsets.items():
                # After a power cut the log may end before what was committed. New messages get
                # those offsets again, and the group must not skip them.
                end = self._max_offset(topic, queue_id) if self.ledger is None else offset
                if offset > end:
                    logger.warning(
                        "topic=%s group=%s queue=%d offset %d is beyond the end, now %d",
                        topic, group, queue_id, offset, end,
                    )  # fmt: skip
                    self._is_changed = True
                kept[queue_id] = max(0, min(offset, end))
            if kept:
                self._table[topic, group] = kept
        self._loaded = frozenset(self._table)
        self._loaded_at_ms = self._clock.monotonic_ms()

    # Questions.

    def get(self, topic: str, group: str, queue_id: int) -> QueueOffset | None:
        """The next offset that the group will read, or None where it never committed."""
        offset = self._table.get((topic, group), {}).get(queue_id)
        return None if offset is None else QueueOffset(offset)

    def of(self, topic: str, group: str) -> Mapping[int, int]:
        """The offsets of a group in a topic, by queue."""
        return self._table.get((topic, group), {})

    def is_settling(self, topic: str, group: str) -> bool:
        """Whether members of a group from before a restart may not have come back yet."""
        age_ms = self._clock.monotonic_ms() - self._loaded_at_ms
        return age_ms < RETURN_PATIENCE_MS and (topic, group) in self._loaded

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every topic and group that has offsets."""
        return iter(list(self._table))

    def topics_of(self, group: str) -> set[str]:
        """The topics in which a group has offsets."""
        return {topic for topic, other in self._table if other == group}

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have offsets in a topic."""
        return {group for other, group in self._table if other == topic}

    def body(self) -> ConsumerOffsetTable:
        """The table as it is answered and saved."""
        return ConsumerOffsetTable(
            {topic_at_group(topic, group): dict(qs) for (topic, group), qs in self._table.items()}
        )

    # Changes.

    def commit(
        self, topic: str, group: str, queue_id: int, offset: int, *, may_go_back: bool
    ) -> CommitOutcome:
        """Take note of a group's progress."""
        key = (topic, group, queue_id)
        reset = self._resets.get(key) if self._resets else None
        if reset is not None:
            if offset != reset.offset and self._clock.monotonic_ms() < reset.until_ms:
                return CommitOutcome.KEPT  # A member that has not heard of the reset yet.
            del self._resets[key]
            may_go_back = may_go_back or offset == reset.offset
        queues = self._table.get((topic, group))
        before = None if queues is None else queues.get(queue_id)
        if self._ahead:
            before = self._ahead.get(key, before)
        if before is not None and offset <= before and not (may_go_back and offset < before):
            return CommitOutcome.TAKEN if offset == before else CommitOutcome.KEPT
        if offset > self._max_offset(topic, queue_id):
            return CommitOutcome.BEYOND
        if self.ledger is not None:
            self._ahead[key] = self._unwritten[key] = offset
            return CommitOutcome.TAKEN
        if queues is None:
            queues = self._table[topic, group] = {}
        queues[queue_id] = offset
        self._is_changed = True
        if self._own is not None:
            self._own[key] = offset
        return CommitOutcome.TAKEN

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set an offset by an operator's will; members that are online have yet to follow."""
        offset = max(0, min(offset, self._max_offset(topic, queue_id)))
        if self.ledger is not None:
            key = (topic, group, queue_id)
            table = ConsumerOffsetTable({topic_at_group(topic, group): {queue_id: offset}})
            self.ledger.write(Change.RESET, {"table": table.to_members()})
            self._unwritten.pop(key, None)
            self._ahead[key] = offset
        else:
            self._table.setdefault((topic, group), {})[queue_id] = offset
            self._is_changed = True
        self._expect(topic, group, queue_id, offset)

    def _expect(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Take no other commit for a while: members have yet to hear of a reset."""
        self._resets[topic, group, queue_id] = _Reset(
            offset, self._clock.monotonic_ms() + RESET_PATIENCE_MS
        )

    # Copies.

    def follow(self) -> None:
        """Be the table of a replica: remember what is committed here and not at the master."""
        self._own = {}

    def take_over(self, body: ConsumerOffsetTable) -> None:
        """Become what the master has, but for what clients committed here while it was away.

        RocketMQ's replica forgets those, and its groups consume again what they had done.
        """
        own = self._own if self._own is not None else {}
        before = self._table
        self._table = {}
        for key, offsets in body.offsets.items():
            try:
                topic, group = topic_and_group_of(key)
            except InvalidBody as error:
                logger.warning("%s, passed over", error)
                continue
            self._table[topic, group] = {q: max(0, offset) for q, offset in offsets.items()}
        for (topic, group, queue_id), offset in list(own.items()):
            queues = self._table.setdefault((topic, group), {})
            if queues.get(queue_id, -1) >= offset:
                del own[topic, group, queue_id]
            else:
                queues[queue_id] = offset
        self._is_changed = self._is_changed or self._table != before

    def merge_forward(self, body: ConsumerOffsetTable) -> int:
        """Take from a replica what is further on than here; return how many offsets moved."""
        moved = 0
        for key, offsets in body.offsets.items():
            try:
                topic, group = topic_and_group_of(key)
            except InvalidBody as error:
                logger.warning("%s, passed over", error)
                continue
            for queue_id, offset in offsets.items():
                offset = min(offset, self._max_offset(topic, queue_id))
                queues = self._table.setdefault((topic, group), {})
                if offset > queues.get(queue_id, -1):
                    queues[queue_id] = offset
                    self._is_changed = True
                    moved += 1
        return moved

    def cut_to_ends(self) -> None:
        """Take back what is beyond the end of its queue, after the log was cut."""
        for (topic, _), queues in self._table.items():
            for queue_id, offset in queues.items():
                end = self._max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    self._is_changed = True

    def clone(self, topic: str, group: str, target: str) -> None:
        """Give a group the offsets of another."""
        offsets = self._table.get((topic, group))
        if offsets and self.ledger is not None:
            for queue_id, offset in offsets.items():
                key = (topic, target, queue_id)
                self._ahead[key] = self._unwritten[key] = offset
        elif offsets:
            self._table[topic, target] = dict(offsets)
            self._is_changed = True

    def forget_group(self, group: str) -> None:
        """Drop all offsets of a group."""
        self._forget(lambda topic, other: other == group)

    def forget_topic(self, topic: str) -> None:
        """Drop all offsets in a topic."""
        self._forget(lambda other, group: other == topic)

    def _forget(self, is_meant: Callable[[str, str], bool]) -> None:
        gone = [key for key in self._table if is_meant(*key)]
        for key in gone:
            del self._table[key]
            self._is_changed = True
        for table in (self._resets, self._ahead, self._unwritten):
            for topic, group, queue_id in list(table):
                if is_meant(topic, group):
                    del table[topic, group, queue_id]

    # In a Raft group.

    @property
    def has_unwritten(self) -> bool:
        """Whether commits wait to be written down."""
        return bool(self._unwritten)

    def write_gathered(self, count_max: int) -> None:
        """Write down the commits of the last moment, together; raises BrokerError."""
        assert self.ledger is not None
        while self._unwritten:
            some = list(self._unwritten.items())[:count_max]
            table: dict[str, dict[int, int]] = {}
            for (topic, group, queue_id), offset in some:
                table.setdefault(topic_at_group(topic, group), {})[queue_id] = offset
            self.ledger.write(Change.OFFSETS, {"table": ConsumerOffsetTable(table).to_members()})
            for key, _ in some:
                del self._unwritten[key]

    def apply(self, body: ConsumerOffsetTable, *, is_reset: bool = False) -> None:
        """Become what the group has agreed on."""
        for (topic, group), offsets in _by_place(body):
            self._table.setdefault((topic, group), {}).update(offsets)
            for queue_id, offset in offsets.items():
                if self._ahead.get((topic, group, queue_id)) == offset:
                    del self._ahead[topic, group, queue_id]
                if is_reset:
                    self._expect(topic, group, queue_id, offset)
        self._is_changed = True

    def restore(self, body: ConsumerOffsetTable) -> None:
        """Become what a snapshot says."""
        self._table = {place: dict(offsets) for place, offsets in _by_place(body)}
        self._is_changed = True

    def begin_leading(self) -> None:
        """Members of groups have yet to find out that this broker leads now."""
        self._loaded = frozenset(self._table)
        self._loaded_at_ms = self._clock.monotonic_ms()

    def forget_written(self) -> None:
        """Somebody else leads: whether what was written will ever count is not ours to know."""
        self._ahead.clear()
        self._unwritten.clear()

    # The file.

    def take_changed(self) -> bytes | None:
        """What save() would write, and from here on nothing is changed; None if nothing is."""
        if not self._is_changed:
            return None
        self._is_changed = False
        return self._saved.encode(self.body())

    def save_again(self) -> None:
        """What take_changed() gave last has not been written."""
        self._is_changed = True

    def write(self, content: bytes) -> None:
        """Replace the file by what take_changed() gave; may run on another thread."""
        try:
            self._saved.write(content)
        except BaseException:
            self._is_changed = True
            raise

    def save(self) -> None:
        """Save what changed since the last time; durable when this returns."""
        content = self.take_changed()
        if content is not None:
            self.write(content)


def _by_place(body: ConsumerOffsetTable) -> Iterator[tuple[tuple[str, str], dict[int, int]]]:
    """The offsets of a table by topic and group; keys that are neither are passed over."""
    for key, offsets in body.offsets.items():
        try:
            place = topic_and_group_of(key)
        except InvalidBody as error:
            logger.warning("%s, passed over", error)
            continue
        yield place, {queue_id: max(0, offset) for queue_id, offset in offsets.items()}
