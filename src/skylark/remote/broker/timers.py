"""Calls about messages that wait for a moment of their own, and messages that repeat."""

from __future__ import annotations

from ...protocol import headers
from ...protocol.bodies import WaitingList
from ...protocol.codes import RequestCode
from .caller import ADMIN_TIMEOUT_MS, BrokerCaller


class TimerCalls(BrokerCaller):
    """Lists, cancels, fires and repeats; codes of ours, which Apache's brokers do not know."""

    async def list_timers(
        self,
        *,
        count_max: int = 100,
        after: tuple[int, int] = (0, -1),
        topic: str | None = None,
        repeats: bool = False,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> WaitingList:
        """What waits, in the order of delivery, behind a time and a queue offset."""
        header = headers.ListTimersRequest(
            count_max=count_max,
            after_ms=after[0],
            after_offset=after[1],
            topic=topic,
            repeats=repeats,
        )
        answer = await self._call(RequestCode.LIST_TIMERS, header, timeout_ms=timeout_ms)
        return WaitingList.from_json(answer.body)

    async def cancel_timer(
        self, timer_id: str, *, topic: str | None = None, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> int:
        """Deliver a message never; returns how many it was. BrokerError 22 where there is none."""
        header = headers.CancelTimerRequest(id=timer_id, topic=topic)
        answer = await self._call(RequestCode.CANCEL_TIMER, header, timeout_ms=timeout_ms)
        return headers.TimerResponse.from_fields(answer.fields).count

    async def fire_timer(
        self, timer_id: str, *, topic: str | None = None, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> int:
        """Deliver a message now; returns how many it was. BrokerError 22 where there is none."""
        header = headers.FireTimerRequest(id=timer_id, topic=topic)
        answer = await self._call(RequestCode.FIRE_TIMER, header, timeout_ms=timeout_ms)
        return headers.TimerResponse.from_fields(answer.fields).count

    async def repeat(
        self,
        topic: str,
        body: bytes,
        *,
        rule: str,
        zone: str = "UTC",
        repeat_id: str | None = None,
        properties: str = "",
        first_ms: int | None = None,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> tuple[str, int]:
        """Send a message again and again; returns its id and its first time."""
        header = headers.AddRepeatRequest(
            topic=topic,
            rule=rule,
            zone=zone,
            id=repeat_id,
            properties=properties or None,
            first_ms=first_ms,
        )
        answer = await self._call(RequestCode.ADD_REPEAT, header, body, timeout_ms=timeout_ms)
        added = headers.TimerResponse.from_fields(answer.fields)
        return added.id or "", added.due_ms or 0
