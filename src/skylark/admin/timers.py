"""What operators do with messages that wait, and with messages that repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..errors import BrokerError, ClientError
from ..model.message import Message
from ..model.recurrence import parse_recurrence
from ..remote import RemoteBroker
from .reach import Reach

QUERY_NOT_FOUND: Final = 22
NOT_SUPPORTED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTimer:
    """A message that is not delivered yet, and where it waits."""

    broker: str
    topic: str
    queue_id: int
    due_ms: int
    stored_at_ms: int
    id: str  # What cancel_timer and fire_timer take.
    offset_id: str
    keys: tuple[str, ...] = ()
    tag: str | None = None
    size_bytes: int = 0
    rule: str | None = None
    zone: str | None = None
    repeat_count: int = 0


@dataclass(frozen=True, slots=True)
class AddedRepeat:
    """A message that repeats from now on."""

    broker: str
    id: str
    due_ms: int


class TimerActions(Reach):
    """The part of AdminClient that is about timers."""

    async def timers(
        self,
        *,
        topic: str | None = None,
        count_max: int = 100,
        repeats: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> tuple[list[WaitingTimer], int]:
        """What waits, soonest first, and how much there is in all; brokers of Apache are left out.

        With repeats: only what repeats.
        """
        found: list[WaitingTimer] = []
        total = 0
        for data in await self.brokers(cluster=cluster, broker=broker):
            if data.master_address is None:
                continue
            remote = self._remote(data.master_address)
            try:
                answer = await remote.list_timers(count_max=count_max, topic=topic, repeats=repeats)
            except BrokerError as error:
                if error.code == NOT_SUPPORTED:
                    continue
                raise
            total += answer.total
            found += [
                WaitingTimer(
                    broker=data.broker_name,
                    topic=item.topic,
                    queue_id=item.queue_id,
                    due_ms=item.due_ms,
                    stored_at_ms=item.stored_at_ms,
                    id=item.repeat_id or item.unique_id or item.offset_id,
                    offset_id=item.offset_id,
                    keys=tuple((item.keys or "").split()),
                    tag=item.tag,
                    size_bytes=item.size_bytes,
                    rule=item.rule,
                    zone=item.zone,
                    repeat_count=item.repeat_count,
                )
                for item in answer.messages
            ]
        found.sort(key=lambda timer: (timer.due_ms, timer.broker))
        return found[:count_max], total

    async def cancel_timer(
        self, timer_id: str, *, topic: str | None = None, broker: str | None = None
    ) -> int:
        """Deliver what has an id or key never; returns how many messages. Raises ClientError."""
        count = 0
        for remote in await self._masters_of(broker):
            try:
                count += await remote.cancel_timer(timer_id, topic=topic)
            except BrokerError as error:
                _require_not_found(error)
        return _some(count, timer_id)

    async def fire_timer(
        self, timer_id: str, *, topic: str | None = None, broker: str | None = None
    ) -> int:
        """Deliver what has an id or key now; returns how many messages. Raises ClientError."""
        count = 0
        for remote in await self._masters_of(broker):
            try:
                count += await remote.fire_timer(timer_id, topic=topic)
            except BrokerError as error:
                _require_not_found(error)
        return _some(count, timer_id)

    async def _masters_of(self, broker: str | None) -> Iterable[RemoteBroker]:
        found = await self.brokers(broker=broker)
        return [self._remote(d.master_address) for d in found if d.master_address is not None]

    async def repeat_message(
        self,
        message: Message,
        *,
        rule: str,
        zone: str = "UTC",
        repeat_id: str | None = None,
        first_ms: int | None = None,
        broker: str | None = None,
    ) -> AddedRepeat:
        """Send a message again and again from one broker; raises ConfigError, BrokerError."""
        parse_recurrence(rule, zone)
        candidates = [d for d in await self.brokers(broker=broker) if d.master_address is not None]
        properties = message.all_properties()
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        refusal: BrokerError | None = None
        for data in candidates:
            assert data.master_address is not None
            try:
                added, due_ms = await self._remote(data.master_address).repeat(
                    message.topic,
                    message.body,
                    rule=rule,
                    zone=zone,
                    repeat_id=repeat_id,
                    properties=text,
                    first_ms=first_ms,
                )
            except BrokerError as error:
                if error.code not in (17, NOT_SUPPORTED):  # The topic may be on another broker.
                    raise
                refusal = error
                continue
            return AddedRepeat(data.broker_name, added, due_ms)
        assert refusal is not None
        raise refusal


def _require_not_found(error: BrokerError) -> None:
    if error.code not in (QUERY_NOT_FOUND, NOT_SUPPORTED):
        raise error


def _some(count: int, timer_id: str) -> int:
    if count == 0:
        raise ClientError(
            f"nothing that waits has the id {timer_id[:64]!r}: it was delivered, or never was",
            hint="`skylark schedule list` shows what waits",
            code=QUERY_NOT_FOUND,
        )
    return count
