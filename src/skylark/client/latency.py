"""LatencyTable: which brokers a producer leaves alone for a while, because they were slow.

    4.9.8   latency from ms    50   100      550     1000      2000      3000     15000
            pause for ms        0     0   30,000   60,000   120,000   180,000   600,000
            after a failure                                                        30,000

    5.x     latency from ms    50   100      550     1800      3000      5000     15000
            pause for ms        0     0    2,000    5,000     6,000    10,000    30,000
            after a failure                                                        10,000

A pause is advice: when every broker is paused, one of the better half is used all the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from ..clock import Clock
from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPolicy:
    """How long to leave a broker alone, by how long its last answer took."""

    latency_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    pause_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
    failure_pause_ms: int = 30_000

    def __post_init__(self) -> None:
        if not self.latency_ms or len(self.latency_ms) != len(self.pause_ms):
            raise ConfigError("latency_ms and pause_ms need equally many values, at least one")
        if list(self.latency_ms) != sorted(set(self.latency_ms)):
            raise ConfigError("latency_ms must rise from value to value")
        if min(self.pause_ms) < 0 or self.failure_pause_ms < 0:
            raise ConfigError("a pause may not be negative; use 0 for none")

    def pause_for(self, latency_ms: int) -> int:
        """How long to pause a broker after an answer that took so long."""
        for floor_ms, pause_ms in zip(
            reversed(self.latency_ms), reversed(self.pause_ms), strict=True
        ):
            if latency_ms >= floor_ms:
                return pause_ms
        return 0


POLICY_4_9: Final = LatencyPolicy()
POLICY_5: Final = LatencyPolicy(
    latency_ms=(50, 100, 550, 1_800, 3_000, 5_000, 15_000),
    pause_ms=(0, 0, 2_000, 5_000, 6_000, 10_000, 30_000),
    failure_pause_ms=10_000,
)
POLICIES: Final = {"4.9": POLICY_4_9, "5.x": POLICY_5}


@dataclass(slots=True)
class _Entry:
    latency_ms: int
    resume_at_ms: int


class LatencyTable:
    """The last latency of each broker name, and until when it is paused."""

    def __init__(self, policy: LatencyPolicy, clock: Clock, rng: random.Random) -> None:
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._entries: dict[str, _Entry] = {}
        self._turn = rng.randrange(1 << 16)

    def update(self, broker_name: str, latency_ms: int, *, failed: bool = False) -> None:
        """Note how long a send to a broker took, or that it failed."""
        policy = self._policy
        pause_ms = policy.failure_pause_ms if failed else policy.pause_for(latency_ms)
        resume_at_ms = self._clock.monotonic_ms() + pause_ms
        self._entries[broker_name] = _Entry(latency_ms, resume_at_ms)

    def is_available(self, broker_name: str) -> bool:
        """Whether a broker is not paused."""
        entry = self._entries.get(broker_name)
        return entry is None or self._clock.monotonic_ms() >= entry.resume_at_ms

    def pick_one_at_least(self) -> str | None:
        """A broker out of the better half of those that were ever noted; None if none was."""
        names = list(self._entries)
        if not names:
            return None
        self._rng.shuffle(names)
        names.sort(key=self._badness)
        half = len(names) // 2
        if half == 0:
            return names[0]
        self._turn += 1
        return names[self._turn % half]

    def remove(self, broker_name: str) -> None:
        """Forget a broker that is not there any more."""
        self._entries.pop(broker_name, None)

    def _badness(self, broker_name: str) -> tuple[bool, int, int]:
        entry = self._entries[broker_name]
        return not self.is_available(broker_name), entry.latency_ms, entry.resume_at_ms
