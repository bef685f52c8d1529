"""Consumer statistics: how fast topics are pulled and handled, over the last minute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from ..protocol.bodies import ConsumeStatus

SAMPLE_EVERY_MS: Final = 10_000
_SAMPLES_MAX: Final = 7  # Seven readings bound six intervals: one minute.


@dataclass(slots=True)
class TopicFigures:
    """What was counted for one topic since the start."""

    at_ms: int = 0
    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    handled_ms: int = 0
    batches: int = 0
    succeeded: int = 0
    failed: int = 0


class ConsumerStats:
    """Counters by topic, and rates out of them."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._now: dict[str, TopicFigures] = {}
        self._samples: dict[str, deque[TopicFigures]] = {}

    def of(self, topic: str) -> TopicFigures:
        """The counters of a topic, to be counted up."""
        figures = self._now.get(topic)
        if figures is None:
            figures = self._now[topic] = TopicFigures()
            start = TopicFigures(at_ms=self._started_ms)
            self._samples[topic] = deque([start], maxlen=_SAMPLES_MAX)
        return figures

    def sample(self, now_ms: int) -> None:
        """Keep a reading; called every ten seconds."""
        for topic, figures in self._now.items():
            self._samples[topic].append(replace(figures, at_ms=now_ms))

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """Rates over the last minute, and what failed since the first reading kept."""
        now = replace(self.of(topic), at_ms=now_ms)
        before = self._samples[topic][0]
        seconds = max(now.at_ms - before.at_ms, 1) / 1000
        pulls, batches = now.pulls - before.pulls, now.batches - before.batches
        return ConsumeStatus(
            pull_rt=(now.pull_ms - before.pull_ms) / pulls if pulls else 0.0,
            pull_tps=(now.pulled - before.pulled) / seconds,
            consume_rt=(now.handled_ms - before.handled_ms) / batches if batches else 0.0,
            consume_ok_tps=(now.succeeded - before.succeeded) / seconds,
            consume_failed_tps=(now.failed - before.failed) / seconds,
            consume_failed_msgs=now.failed - before.failed,
        )

    @property
    def topics(self) -> list[str]:
        """The topics that were seen."""
        return list(self._now)
