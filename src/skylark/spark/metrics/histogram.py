"""Histogram: durations as counts in buckets that grow, so that percentiles can be added up.

The percentile of an hour cannot be had from those of its minutes, but counts can be added. A bucket
is 2 % wider than the one before: a percentile that is read from it is off by 1 % at most, whatever
the span. Counts, sums and the largest value are kept beside it and are exact.

    bucket   durations in milliseconds
    -1       0, and what clocks that disagree make negative
    n        above 1.02 ** (n - 1), up to 1.02 ** n
"""

from __future__ import annotations

import math
from collections.abc import Mapping

GROWTH = 1.02
ZERO_BUCKET = -1


def bucket_of(value_ms: int) -> int:
    """The bucket that a duration falls into."""
    return ZERO_BUCKET if value_ms <= 0 else math.ceil(math.log(value_ms) / math.log(GROWTH))


def bucket_sql(column: str) -> str:
    """The same as an expression of Spark's."""
    return (
        f"case when {column} <= 0 then {ZERO_BUCKET} "
        f"else cast(ceil(ln({column}) / ln({GROWTH}D)) as int) end"
    )


def value_of(bucket: int) -> float:
    """The duration that is nearest to all of a bucket."""
    return 0.0 if bucket == ZERO_BUCKET else 2 * GROWTH**bucket / (GROWTH + 1)


def quantile(counts: Mapping[int, int], fraction: float) -> float:
    """The duration that this fraction of all does not exceed; 0 where there are none."""
    total = sum(counts.values())
    rank = max(1, math.ceil(fraction * total))
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= rank:
            return value_of(bucket)
    return 0.0
