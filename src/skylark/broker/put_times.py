"""PutTimes: how long sends waited before they were answered.

Most are answered in the turn of the loop in which they are read. They are not timed, and count as
0 ms; those that wait for the disk or a replica are. A percentile is that of the last one to two
minutes, as the upper bound of its step; the shares and the longest time are since the start.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# The steps that operators' tools print, and their upper bounds.
_SHOWN: Final = (
    ("<=0ms", 0), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200),
    ("200~500ms", 500), ("500ms~1s", 1_000), ("1~2s", 2_000), ("2~3s", 3_000), ("3~4s", 4_000),
    ("4~5s", 5_000), ("5~10s", 10_000), ("10s~", 2**63),
)  # fmt: skip
# Finer ones for percentiles: a tenth apart, and every millisecond up to ten.
_FINE: Final[tuple[int, ...]] = (
    *range(1, 11), 12, 14, 16, 18, 20, 22, 25, 28, 32, 36, 40, 45, 50, 56, 63, 71, 79, 89, 100, 112,
    126, 141, 158, 178, 200, 224, 251, 282, 316, 355, 398, 447, 501, 562, 631, 708, 794, 891, 1_000,
    1_259, 1_585, 1_995, 2_512, 3_162, 3_981, 5_012, 6_310, 7_943, 10_000, 20_000, 30_000, 2**63,
)  # fmt: skip
GENERATION_MS: Final = 60_000


class _Generation:
    """The waits of one stretch of time."""

    def __init__(self, stored: int, began_ms: int) -> None:
        self.stored_before = stored
        self.began_ms = began_ms
        self.counts = [0] * len(_FINE)


class PutTimes:
    """Told of those that waited, and asked with the number of all that were stored."""

    def __init__(self, now_ms: int) -> None:
        self._shown = [0] * len(_SHOWN)
        self._longest_ms = 0
        self._before: _Generation | None = None
        self._now = _Generation(0, now_ms)

    @property
    def longest_ms(self) -> int:
        """The longest wait since the start."""
        return self._longest_ms

    def waited(self, count: int, waited_ms: int) -> None:
        """Sends were answered after a wait."""
        waited_ms = max(1, waited_ms)
        self._longest_ms = max(self._longest_ms, waited_ms)
        self._shown[bisect_left(_SHOWN, waited_ms, key=lambda step: step[1])] += count
        self._now.counts[bisect_left(_FINE, waited_ms)] += count

    def turn(self, stored: int, now_ms: int) -> None:
        """Begin a new stretch of time once the present one is long enough."""
        if now_ms - self._now.began_ms >= GENERATION_MS:
            self._before, self._now = self._now, _Generation(stored, now_ms)

    def shares(self, stored: int) -> str:
        """How many took how long, as tools print it."""
        at_once = max(0, stored - sum(self._shown))
        counts = [self._shown[0] + at_once, *self._shown[1:]]
        return " ".join(
            f"[{name}]:{count}" for (name, _), count in zip(_SHOWN, counts, strict=True)
        )

    def percentile_ms(self, share: float, stored: int) -> int:
        """The time within which this share of the recent sends was answered."""
        first = self._before or self._now
        counts = [sum(pair) for pair in zip(first.counts, self._now.counts, strict=True)]
        if first is self._now:
            counts = self._now.counts
        waited = sum(counts)
        total = max(stored - first.stored_before, waited)
        left: float = total * share - (total - waited)  # What was answered at once comes first.
        if left <= 0:
            return 0
        for bound, count in zip(_FINE, counts, strict=True):
            left -= count
            if left <= 0:
                return min(bound, self._longest_ms)
        return self._longest_ms
