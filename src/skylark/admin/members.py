"""Who is online in a group, and how far the group has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..errors import BrokerError, InvalidBody, TransportError
from ..model.group import Subscription
from ..model.route import BrokerData
from ..model.topic import is_retry_topic
from .asking import each
from .figures import GroupMember, QueueLag
from .reach import Reach, any_address

CONSUMER_NOT_ONLINE: Final = 206


class Connected:
    """Who is online in a group, and what they want together."""

    def __init__(
        self,
        *,
        members: tuple[GroupMember, ...],
        wanted: Mapping[str, Subscription],
        consume_type: str,
        message_model: str,
        consume_from: str,
    ) -> None:
        self.members = members
        self.wanted = wanted
        self.subscriptions = {topic: item.expression for topic, item in wanted.items()}
        self.consume_type = consume_type
        self.message_model = message_model
        self.consume_from = consume_from


class MemberActions(Reach):
    """What the parts about groups and about messages ask."""

    async def _connections(self, group: str, brokers: Iterable[BrokerData]) -> Connected | None:
        """Who is online in a group: all members of all brokers, each once."""

        async def ask(data: BrokerData) -> Connected | None:
            try:
                body = await self._remote(any_address(data)).get_consumer_connections(group)
            except BrokerError as error:
                if error.code != CONSUMER_NOT_ONLINE:
                    raise
                return None
            return Connected(
                members=tuple(
                    GroupMember(one.client_id, one.client_addr, one.language, one.version)
                    for one in body.connections
                ),
                wanted=body.subscriptions,
                consume_type=body.consume_type.value,
                message_model=body.message_model.value,
                consume_from=body.consume_from_where.value,
            )

        found = [answer for answer in await each(ask, brokers) if answer is not None]
        if not found:
            return None
        members = {member.client_id: member for one in found for member in one.members}
        found[0].members = tuple(members.values())
        return found[0]

    async def _progress(
        self, group: str, topic: str | None, brokers: Iterable[BrokerData]
    ) -> tuple[list[QueueLag], float]:
        async def ask(data: BrokerData) -> tuple[list[QueueLag], float]:
            body = await self._remote(any_address(data)).get_consume_stats(group, topic=topic)
            lags = [
                QueueLag(
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    at.broker_offset,
                    at.consumer_offset,
                    at.last_timestamp or None,
                )
                for queue, at in body.offsets.items()
            ]
            return lags, body.consume_tps

        answers = await each(ask, brokers)
        lags = [lag for found, _ in answers for lag in found]
        lags.sort(key=lambda lag: (lag.topic, lag.broker, lag.queue_id))
        return lags, sum(tps for _, tps in answers)

    async def _mismatches(
        self, group: str, found: Connected, brokers: Iterable[BrokerData]
    ) -> tuple[str, ...]:
        """Which members subscribe differently from the first, by their own account."""
        address = next(iter(any_address(data) for data in brokers))

        async def ask(member: GroupMember) -> tuple[str, dict[str, object]] | None:
            try:
                info = await self._remote(address).get_consumer_running_info(
                    group, member.client_id
                )
            except (BrokerError, TransportError, InvalidBody):
                return None  # Not every client answers, and one may be leaving.
            return member.client_id, {
                item.topic: frozenset(item.tags) or item.expression.strip()
                for item in info.subscriptions
                if not is_retry_topic(item.topic)
            }

        if len(found.members) < 2:
            return ()
        answers = [answer for answer in await each(ask, found.members) if answer is not None]
        sentences = []
        for client_id, wanted in answers[1:]:
            first_id, first = answers[0]
            for topic in sorted(first.keys() | wanted.keys()):
                if first.get(topic) != wanted.get(topic):
                    sentences.append(
                        f"topic {topic}: {first_id} and {client_id} subscribe differently; "
                        "messages may be missed, give all members the same"
                    )
        return tuple(sentences)
