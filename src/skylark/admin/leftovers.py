"""What a broker holds for somebody: unread, delayed, timed and half messages, dead letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import BrokerError
from ..model.group import MessageModel, is_system_group
from ..model.topic import is_dlq_topic
from ..remote import RemoteBroker
from .asking import each
from .topology import BrokerGroup

_NOT_SUPPORTED: Final = 3
_CONSUMER_NOT_ONLINE: Final = 206
_LEVEL_KEY: Final = "scheduleMessageOffset_"


@dataclass(frozen=True, slots=True)
class Unread:
    """What one group has not read of one topic."""

    group: str
    topic: str
    messages: int
    members: int  # How many are online.


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """What a broker still has for somebody."""

    broker: str
    unread: tuple[Unread, ...] = ()
    delayed: int = 0  # Messages of delay levels.
    timers: int = 0  # Messages with a time of their own.
    repeats: int = 0  # Of these timers: messages that come again and again until cancelled.
    half_messages: int = 0
    quiet_ms: int = 0  # For how long nothing was written.
    settle_ms: int = 0
    dead_letters: int = 0  # They stay; resend those that matter.
    notes: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """How many are left for somebody."""
        pending = self.delayed + self.timers + self.half_messages
        return pending + sum(item.messages for item in self.unread)

    @property
    def is_done(self) -> bool:
        """Whether the broker may be stopped."""
        return self.messages == 0 and self.quiet_ms >= self.settle_ms


async def what_is_left(
    group: BrokerGroup, master: RemoteBroker, ignored: Collection[str]
) -> tuple[int, DrainProgress]:
    """How much has been written to a broker in all, and what it holds for somebody."""
    runtime = await master.get_runtime_info()
    return int(runtime.get("msgPutTotalTodayNow", "0")), DrainProgress(
        broker=group.name,
        unread=tuple(await _unread(group, master, ignored)),
        delayed=_delayed(runtime),
        timers=await _timers(master),
        repeats=await _timers(master, repeats=True),
        half_messages=await _half_messages(master),
        dead_letters=await _dead_letters(group, master),
    )


async def _unread(
    group: BrokerGroup, master: RemoteBroker, ignored: Collection[str]
) -> list[Unread]:
    """What groups have not read: those that have read something here, and those online."""
    left: dict[tuple[str, str], int] = {}
    for entry in (await master.get_all_consume_stats()).groups:
        for name, stats in entry.items():
            for one in stats:
                for queue, at in one.offsets.items():
                    key = (name, queue.topic)
                    behind = max(0, at.broker_offset - at.consumer_offset)
                    left[key] = left.get(key, 0) + behind
    names = sorted((await master.get_groups()).groups)
    online: dict[str, int] = {}

    async def look(name: str) -> None:
        try:
            found = await master.get_consumer_connections(name)
        except BrokerError as error:
            if error.code != _CONSUMER_NOT_ONLINE:
                raise
            return
        online[name] = len(found.connections)
        if found.message_model is MessageModel.BROADCASTING:
            return  # Its members keep their own offsets.
        for topic in found.subscriptions:
            if topic in group.topics and (name, topic) not in left:
                # It has committed nothing yet; what it begins with, it alone knows.
                stats = await master.get_topic_stats(topic)
                left[name, topic] = sum(
                    at.max_offset - at.min_offset for at in stats.offsets.values()
                )

    await each(look, [name for name in names if not is_system_group(name)])
    return [
        Unread(name, topic, messages, online.get(name, 0))
        for (name, topic), messages in sorted(left.items())
        if messages and name not in ignored and not is_system_group(name)
    ]


def _delayed(runtime: Mapping[str, str]) -> int:
    waiting = 0
    for key, value in runtime.items():
        if key.startswith(_LEVEL_KEY):
            at, _, end = value.partition(",")
            waiting += max(0, int(end) - int(at))
    return waiting


async def _timers(master: RemoteBroker, *, repeats: bool = False) -> int:
    try:
        return (await master.list_timers(count_max=1, repeats=repeats)).total
    except BrokerError as error:
        if error.code == _NOT_SUPPORTED:
            return 0  # RocketMQ 4.x has none.
        raise


async def _half_messages(master: RemoteBroker) -> int:
    try:
        return (await master.list_transactions(group=None, count_max=1)).pending
    except BrokerError as error:
        if error.code == _NOT_SUPPORTED:
            return 0  # RocketMQ's brokers do not say; the runbook tells where to look.
        raise


async def _dead_letters(group: BrokerGroup, master: RemoteBroker) -> int:
    async def count(topic: str) -> int:
        stats = await master.get_topic_stats(topic)
        return sum(at.max_offset - at.min_offset for at in stats.offsets.values())

    return sum(await each(count, [topic for topic in group.topics if is_dlq_topic(topic)]))
