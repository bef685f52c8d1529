"""What operators do with consumer groups."""

from __future__ import annotations

from typing import Final

from ..errors import BrokerError
from ..model.group import SubscriptionGroupConfig, is_system_group
from ..model.names import check_group_name
from ..model.queue import MessageQueue
from ..model.route import BrokerData
from ..model.topic import dlq_topic, retry_topic
from ..remote import RemoteBroker
from .asking import each
from .figures import GroupFigures, GroupSummary, OffsetChange, QueueLag
from .members import CONSUMER_NOT_ONLINE, MemberActions
from .reach import any_address, master_address
from .topics import TopicActions

SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
NEWEST: Final = -1  # In place of a time: the end of every queue.


class GroupActions(MemberActions, TopicActions):
    """The part of AdminClient that is about groups and their progress."""

    async def groups(self, *, with_system: bool = False) -> list[GroupSummary]:
        """All groups, by name, whether online or not."""
        brokers = await self.brokers()

        async def ask(data: BrokerData) -> dict[str, tuple[int, float]]:
            body = await self._remote(any_address(data)).get_all_consume_stats()
            return {
                name: (
                    sum(
                        at.broker_offset - at.consumer_offset
                        for one in stats
                        for at in one.offsets.values()
                    ),
                    sum(one.consume_tps for one in stats),
                )
                for one_group in body.groups
                for name, stats in one_group.items()
            }

        lags: dict[str, int] = {}
        rates: dict[str, float] = {}
        for answer in await each(ask, brokers):
            for name, (lag, rate) in answer.items():
                lags[name] = lags.get(name, 0) + lag
                rates[name] = rates.get(name, 0.0) + rate

        async def summary(name: str) -> GroupSummary:
            found = await self._connections(name, brokers)
            return GroupSummary(
                name=name,
                members=0 if found is None else len(found.members),
                consume_type=None if found is None else found.consume_type,
                message_model=None if found is None else found.message_model,
                tps=rates[name],
                lag=lags[name],
            )

        return await each(
            summary, sorted(name for name in lags if with_system or not is_system_group(name))
        )

    async def group(self, name: str) -> GroupFigures:
        """All about one group; raises BrokerError where no broker has heard of it."""
        check_group_name(name)
        brokers = await self.brokers()

        async def ask(data: BrokerData) -> tuple[str, SubscriptionGroupConfig | None]:
            table = await self._remote(any_address(data)).get_groups()
            return data.broker_name, table.groups.get(name)

        settings = {broker: known for broker, known in await each(ask, brokers) if known}
        found = await self._connections(name, brokers)
        queues, tps = await self._progress(name, None, brokers)
        if not settings and found is None and not queues:
            raise BrokerError(
                SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no broker knows a group {name!r}; `skylark group list` shows all",
            )
        return GroupFigures(
            name=name,
            settings=settings,
            members=() if found is None else found.members,
            subscriptions={} if found is None else found.subscriptions,
            consume_type=None if found is None else found.consume_type,
            message_model=None if found is None else found.message_model,
            consume_from=None if found is None else found.consume_from,
            tps=tps,
            queues=tuple(queues),
            mismatches=() if found is None else await self._mismatches(name, found, brokers),
        )

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """How far a group is in every queue that it reads, in one topic or in all."""
        check_group_name(group)
        queues, _ = await self._progress(group, topic, await self.brokers())
        return queues

    async def put_group(
        self,
        settings: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Make a group or change it."""
        check_group_name(settings.group_name)
        for address in await self._masters(cluster, broker):
            await self._remote(address).put_group(settings)

    async def delete_group(self, name: str, *, with_offsets: bool = True) -> None:
        """Delete a group everywhere, with its retry and dead letter topics."""
        check_group_name(name)
        for address in await self._masters(None, None):
            await self._remote(address).delete_group(name, remove_offset=with_offsets)
        for topic in (retry_topic(name), dlq_topic(name)):
            await self.delete_topic(topic)

    async def rewind(
        self, group: str, topic: str, at_ms: int, *, force: bool = True
    ) -> list[OffsetChange]:
        """Set a group to a time, or with NEWEST to the end; without force, never forward.

        Members that are online are told by the broker; without any the offsets are set from here.
        """
        check_group_name(group)
        route = await self._route(topic)
        before = {
            (queue.broker, queue.queue_id): queue.consumer_offset
            for queue in await self.lag(group, topic)
        }
        changes: list[OffsetChange] = []
        for data in route.brokers:
            remote = self._remote(master_address(data))
            try:
                targets = await remote.reset_offset(topic, group, at_ms, force=force)
            except BrokerError as error:
                if error.code != CONSUMER_NOT_ONLINE:
                    raise
                targets = await self._rewind_offline(remote, group, topic, at_ms, force=force)
            for queue, offset in sorted(targets.items(), key=lambda item: item[0]):
                was = before.get((queue.broker_name, queue.queue_id))
                changes.append(OffsetChange(topic, queue.broker_name, queue.queue_id, was, offset))
        return changes

    @staticmethod
    async def _rewind_offline(
        remote: RemoteBroker, group: str, topic: str, at_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        stats = await remote.get_consume_stats(group, topic=topic)
        targets = {}
        for queue, at in stats.offsets.items():
            if at_ms == NEWEST:
                target = await remote.get_max_offset(queue)
            else:
                target = await remote.search_offset(queue, at_ms)
            if not force:
                target = min(target, at.consumer_offset)
            await remote.update_consumer_offset(group, queue, target, reset=True)
            targets[queue] = target
        return targets

    async def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Let one group stand where another does."""
        for address in await self._masters(None, None):
            await self._remote(address).clone_group_offset(source, target, topic=topic)
