"""Ledger: where the tables of a Raft group write down a change before it counts.

A table that has a ledger does not change by itself. It writes down what it is to become; the record
goes through the group's log, and comes back to the table of every member, the writer's included,
when the group has agreed on it. Until then the writer remembers what it has written, so that it
does not write it twice, and answers as if it were not there.

    without a ledger    table changed → saved → answered
    with a ledger       record written → agreed → table changed at each member → answered

See state_log.py for what becomes of a record, docs/formats/raft-state.md for what it looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol


class Change(StrEnum):
    """What a record changes."""

    TOPICS = "topics"
    GROUPS = "groups"
    OFFSETS = "offsets"
    RESET = "reset"
    DELAY = "delay"
    LOCKS = "locks"
    SNAPSHOT = "snapshot"


class Ledger(Protocol):
    """What a table asks of it."""

    @property
    def is_open(self) -> bool:
        """Whether this broker leads, and may write."""
        ...

    def write(self, change: Change, value: Mapping[str, Any]) -> None:
        """Write a change down; raises BrokerError where that is not possible."""
        ...
