"""DataVersion: how a holder of a copied table learns that its copy is old."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class DataVersion:
    """When a table last changed and how often; two versions are the same if both numbers are."""

    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> Self:
        """Return the version after one more change."""
        return type(self)(timestamp=now_ms, counter=self.counter + 1)
