"""Sampling: what the driver asks the brokers itself, once a step: topics, and the lag of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...admin import AdminClient, QueueLag, connect
from ...admin.figures import TopicKind
from ..options import Access
from .rows import MINUTE_MS, Metric, Row

_BEGINNING = "-initial"  # Groups under which streams keep where they began; nobody reads by them.


@dataclass(frozen=True, slots=True)
class Sample:
    """A cluster at one moment."""

    topics: tuple[str, ...]
    dead_letter_topics: tuple[str, ...]
    has_trace: bool
    lags: tuple[Row, ...]


def sample(access: Access, *, trace_topic: str, now_ms: int) -> Sample:
    """Ask a cluster; raises TransportError where it is not there."""
    account = {"access_key": access.access_key, "secret_key": access.secret_key}

    async def main() -> Sample:
        async with connect(access.namesrv, **account) as admin:
            topics = await admin.topics(with_system=True)
            lags = await _lags(admin)
        kinds = {topic.name: topic.kind for topic in topics}
        return Sample(
            tuple(name for name, kind in kinds.items() if kind is TopicKind.NORMAL),
            tuple(name for name, kind in kinds.items() if kind is TopicKind.DEAD_LETTER),
            trace_topic in kinds,
            tuple(lag_rows(lags, now_ms)),
        )

    # On a thread of its own: a notebook has a loop that runs already.
    with ThreadPoolExecutor(1, "metrics-sample") as thread:
        return thread.submit(lambda: asyncio.run(main())).result()


async def _lags(admin: AdminClient) -> dict[str, list[QueueLag]]:
    names = [group.name for group in await admin.groups()]
    return {name: await admin.lag(name) for name in names if not name.endswith(_BEGINNING)}


def lag_rows(lags: dict[str, list[QueueLag]], now_ms: int) -> Iterable[Row]:
    """How far each group is behind in each topic, in messages and in time."""
    for group, queues in lags.items():
        by_topic: dict[str, tuple[int, int]] = {}
        for queue in queues:
            behind, oldest = by_topic.get(queue.topic, (0, 0))
            lag = max(0, queue.lag)
            if lag and queue.consumed_at_ms is not None:
                oldest = max(oldest, now_ms - queue.consumed_at_ms)
            by_topic[queue.topic] = (behind + lag, oldest)
        for topic, (behind, oldest) in by_topic.items():
            yield Row(
                minute_ms=now_ms // MINUTE_MS * MINUTE_MS, metric=Metric.LAG, topic=topic,
                group=group, count=behind, max=oldest, at_ms=now_ms,
            )  # fmt: skip
