"""Timers: messages that wait for a moment of their own, and messages that repeat.

The codes are ours; RocketMQ 5 can cancel (TIMER_DEL_UNIQKEY, RECALL_MESSAGE), and no more.
"""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import I32, I64, Header, header


@header
class ListTimersRequest(Header):
    """Show what waits, in the order of delivery, behind a time and a queue offset."""

    CODE: ClassVar[RequestCode] = RequestCode.LIST_TIMERS

    count_max: I32 = 100
    after_ms: I64 = 0
    after_offset: I64 = -1
    topic: str | None = None
    repeats: bool = False  # Only what repeats; then all of it.


@header
class CancelTimerRequest(Header):
    """Deliver a message never; by unique key, key, offset id, or the id of what repeats."""

    CODE: ClassVar[RequestCode] = RequestCode.CANCEL_TIMER

    id: str
    topic: str | None = None


@header
class FireTimerRequest(Header):
    """Deliver a message now; named as in CancelTimerRequest."""

    CODE: ClassVar[RequestCode] = RequestCode.FIRE_TIMER

    id: str
    topic: str | None = None


@header
class AddRepeatRequest(Header):
    """Send the message in the body again and again, by a rule of model.recurrence."""

    CODE: ClassVar[RequestCode] = RequestCode.ADD_REPEAT

    topic: str
    rule: str
    zone: str = "UTC"
    id: str | None = None
    queue_id: I32 = -1
    properties: str | None = None
    first_ms: I64 | None = None  # The first time; else the rule's next one.


@header
class TimerResponse(Header):
    """How many messages it was about; for what repeats its id and its next time."""

    count: I32 = 0
    id: str | None = None
    due_ms: I64 | None = None
