"""Progress: what Spark reports about a query, as the state of a sink."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigError
from ..offsets import Offsets, from_json
from .state import SinkState


class Watched:
    """A query of Spark's, followed from micro-batch to micro-batch."""

    def __init__(self, name: str, query: Any, state: SinkState) -> None:
        self.name = name
        self.query = query
        self.state = state
        self._looked_at: str | None = None  # The time of the last report that was taken in.
        self.stop_after = -1  # The last micro-batch that was done when a stop was asked for.

    def observe(self) -> bool:
        """Take in what is new; whether there was anything."""
        last = self.query.lastProgress
        if last is None or last["timestamp"] == self._looked_at:
            return False
        self._looked_at = last["timestamp"]
        # The last one may be of a look for data that found none, after several micro-batches.
        news = [one for one in self.query.recentProgress if self._is_new(one)]
        for one in news:
            self.state.rows += int(one["numInputRows"])
            self.state.batch = int(one["batchId"])
            self.state.batch_ms = int(one["durationMs"].get("triggerExecution", 0))
            self.state.rows_per_s = float(one["processedRowsPerSecond"] or 0.0)
        return self._show_lag(last) or bool(news)

    def _is_new(self, progress: Any) -> bool:
        """Whether it is of a micro-batch that has been done, and not counted yet."""
        is_done = "addBatch" in progress["durationMs"]  # Otherwise Spark has looked for data only.
        return is_done and (self.state.batch is None or int(progress["batchId"]) > self.state.batch)

    def _show_lag(self, progress: Any) -> bool:
        lag, topics = lag_of(progress["sources"])
        is_new = lag is not None and lag != self.state.lag
        if lag is not None:
            self.state.lag, self.state.topics = lag, topics
        return is_new

    @property
    def is_between(self) -> bool:
        """Whether a stop now would interrupt nothing that was under way when it was asked for."""
        if not self.query.status["isTriggerActive"]:
            return True
        last = self.query.lastProgress
        if last is None:
            return False
        return "addBatch" in last["durationMs"] and int(last["batchId"]) > self.stop_after


def lag_of(sources: Iterable[Mapping[str, Any]]) -> tuple[int | None, list[str]]:
    """Messages not read yet, over all topics of a query; None where no source is a topic."""
    lag: int | None = None
    topics: set[str] = set()
    for source in sources:
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        if end is None or latest is None:
            continue
        topics |= {queue.topic for queue in latest}
        lag = (lag or 0) + sum(max(0, at - end.get(queue, 0)) for queue, at in latest.items())
    return lag, sorted(topics)


def _offsets(given: Any) -> Offsets | None:
    """Offsets of ours; None for those of another source."""
    try:
        return from_json(json.loads(given) if isinstance(given, str) else given)
    except (ConfigError, ValueError, TypeError):
        return None
