"""Tables in config/: they can be read, and their offsets lie within their queues."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...errors import InvalidBody, SkylarkError
from ...protocol.bodies import (
    Body,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from ..append import SCHEDULE_TOPIC
from ..config import StoreConfig
from ..files import OsFiles
from .report import CheckReport, Finding

EndOf = Callable[[str, int], int | None]
"""Topic and queue -> the offset after the last message; None where there is no queue."""


def check_tables(config: StoreConfig, report: CheckReport, end_of: EndOf) -> None:
    directory = os.path.join(config.store_path_root_dir, "config")
    kinds: dict[str, type[Body]] = {
        "topics.json": TopicConfigTable,
        "subscriptionGroup.json": SubscriptionGroupTable,
        "consumerOffset.json": ConsumerOffsetTable,
        "delayOffset.json": DelayOffsetTable,
    }
    for name, kind in kinds.items():
        path = os.path.join(directory, name)
        table = read_table(path, kind)
        if isinstance(table, Finding):
            report.findings.append(table)
        elif isinstance(table, ConsumerOffsetTable):
            for key, offsets in table.offsets.items():
                topic = key.partition("@")[0]
                for queue_id, offset in offsets.items():
                    _check_offset(
                        path, f"{key} queue {queue_id}", topic, queue_id, offset, report, end_of
                    )
        elif isinstance(table, DelayOffsetTable):
            for level, offset in table.offsets.items():
                _check_offset(
                    path, f"delay level {level}", SCHEDULE_TOPIC, level - 1, offset, report, end_of
                )


def _check_offset(
    path: str,
    name: str,
    topic: str,
    queue_id: int,
    offset: int,
    report: CheckReport,
    end_of: EndOf,
) -> None:
    end = end_of(topic, queue_id)
    if end is None and offset == 0:
        return
    if not 0 <= offset <= (end or 0):
        report.findings.append(
            Finding(
                path,
                0,
                f"{name} is at {offset}, its queue ends at {end or 0}",
                "start a skylark broker on it: it sets such offsets to the end of their queue",
            )
        )


def read_table(path: str, kind: type[Body]) -> Body | Finding | None:
    """A table, or what is wrong with it; None where there is no file."""
    for candidate in (path, f"{path}.bak"):
        if os.path.exists(candidate):
            break
    else:
        return None
    try:
        return kind.from_json(OsFiles().read(candidate), size_max=256 << 20)
    except (InvalidBody, SkylarkError) as error:
        return Finding(candidate, 0, f"cannot be read: {error}", f"restore it, or use {path}.bak")
