"""Waiting for a query of Spark's that goes on until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import SkylarkError

if TYPE_CHECKING:
    from .pipeline_signals import Stop

_POLL_S = 0.5


def finish(
    query: Any, stop: Stop, explained: Callable[[Exception], Exception] | None = None
) -> None:
    """Wait for the end of a query, or end it; what it failed with becomes one of our errors."""
    from ..spark.pipelines.causes import as_error

    try:
        # A wait without an end would not let Python see that a signal has come.
        while not query.awaitTermination(_POLL_S):
            if stop.is_asked:
                query.stop()
                return
    except Exception as error:
        known = (explained or as_error)(error)
        if isinstance(known, SkylarkError):
            raise known from error
        raise
