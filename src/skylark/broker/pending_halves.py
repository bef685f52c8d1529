"""PendingHalves: the half messages that are not over, and when to look at each of them.

Those that wait for the ordinary time-out are in order by themselves and cost a place in a queue;
all others are in a heap. One that has ended stays in either until its time comes, and is passed
over then.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from .half_messages import Half, TransactionId


class PendingHalves:
    """By queue offset, and in that order; by transaction; by when they are due."""

    def __init__(self, on_earlier: Callable[[], None]) -> None:
        """The callback is told when something is due before all that was known."""
        self._on_earlier = on_earlier
        self._by_offset: dict[int, Half] = {}
        self._by_id: dict[TransactionId, list[int]] = {}
        self._fresh: deque[tuple[int, int]] = deque()  # (due, queue offset)
        self._later: list[tuple[int, int]] = []
        # Group → halves that nobody could be asked about; a dict of None, to keep their order.
        self._unheard: dict[str, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._by_offset)

    def __iter__(self) -> Iterator[Half]:
        """The oldest first."""
        return iter(self._by_offset.values())

    def __contains__(self, queue_offset: int) -> bool:
        return queue_offset in self._by_offset

    def __getitem__(self, queue_offset: int) -> Half:
        return self._by_offset[queue_offset]

    def get(self, queue_offset: int) -> Half | None:
        """The half at a queue offset, if it is not over."""
        return self._by_offset.get(queue_offset)

    def of(self, id: TransactionId) -> list[Half]:
        """The halves of a transaction, the oldest first."""
        return [self._by_offset[offset] for offset in self._by_id.get(id, ())]

    def siblings(self, half: Half) -> list[Half]:
        """The other halves of the same transaction."""
        return [other for other in self.of(half.id) if other.queue_offset != half.queue_offset]

    @property
    def first(self) -> Half | None:
        """The oldest."""
        return next(iter(self), None)

    # Changes.

    def clear(self) -> None:
        """Forget all."""
        for table in (self._by_offset, self._by_id, self._fresh, self._later, self._unheard):
            table.clear()

    def add(self, half: Half, due_ms: int, *, is_ordinary: bool) -> None:
        """Take a new half; an ordinary one is due after those before it."""
        self._by_offset[half.queue_offset] = half
        others = self._by_id.get(half.id)
        if others is None:
            self._by_id[half.id] = [half.queue_offset]
        else:
            others.append(half.queue_offset)
        fresh = self._fresh
        if is_ordinary and (not fresh or fresh[-1][0] <= due_ms):
            if not fresh:
                self._on_earlier()
            fresh.append((due_ms, half.queue_offset))
        else:
            self.look_later(half.queue_offset, due_ms)

    def remove(self, half: Half) -> None:
        """It is over."""
        del self._by_offset[half.queue_offset]
        others = self._by_id[half.id]
        if len(others) == 1:
            del self._by_id[half.id]
        else:
            others.remove(half.queue_offset)
        unheard = self._unheard.get(half.id.group)
        if unheard is not None:
            unheard.pop(half.queue_offset, None)
            if not unheard:
                del self._unheard[half.id.group]

    # When.

    def look_later(self, queue_offset: int, due_ms: int) -> None:
        """Look at a half again at a time."""
        if not self._later or due_ms < self._later[0][0]:
            self._on_earlier()
        heapq.heappush(self._later, (due_ms, queue_offset))

    def take_due(self, now_ms: int, count_max: int) -> list[int]:
        """The queue offsets of what is due, each once."""
        due: dict[int, None] = {}
        while len(due) < count_max:
            if self._fresh and self._fresh[0][0] <= now_ms:
                queue_offset = self._fresh.popleft()[1]
            elif self._later and self._later[0][0] <= now_ms:
                queue_offset = heapq.heappop(self._later)[1]
            else:
                break
            if queue_offset in self._by_offset:
                due[queue_offset] = None
        return list(due)

    def next_due_ms(self) -> int | None:
        """When to look again; None while there is nothing to look at."""
        return min((queue[0][0] for queue in (self._fresh, self._later) if queue), default=None)

    def note_unheard(self, half: Half) -> None:
        """Nobody could be asked about it."""
        self._unheard.setdefault(half.id.group, {})[half.queue_offset] = None

    def unheard(self) -> dict[str, int]:
        """How many halves of each group nobody could be asked about."""
        return {group: len(offsets) for group, offsets in self._unheard.items()}

    def somebody_came(self, group: str, now_ms: int) -> None:
        """There is somebody who can be asked: what could not be before is due now."""
        for queue_offset in self._unheard.pop(group, ()):
            self.look_later(queue_offset, now_ms)
            self._on_earlier()
