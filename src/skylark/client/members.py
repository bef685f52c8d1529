"""Members: the producers and consumers of one session, by their groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..model.message import StoredMessage
from ..model.queue import MessageQueue
from ..model.route import TopicRoute
from ..protocol import headers
from ..protocol.bodies import ConsumeMessageDirectlyResult, ConsumerData, ConsumerRunningInfo


class ProducerMember(Protocol):
    """What a session asks of a producer."""

    @property
    def group(self) -> str:
        """Its group, as brokers know it."""
        ...

    async def check_transaction(
        self, header: headers.CheckTransactionStateRequest, half: StoredMessage, address: str
    ) -> bool:
        """A broker asks how a half message of this group shall end; False if that is unknown."""
        ...


class ConsumerMember(Protocol):
    """What a session asks of a consumer."""

    @property
    def group(self) -> str:
        """Its group, as brokers know it."""
        ...

    def heartbeat_data(self) -> ConsumerData:
        """What the group wants, for a heartbeat."""
        ...

    def members_changed(self) -> None:
        """The group has other members than before: share the queues out again."""
        ...

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A topic has other queues or brokers than before."""
        ...

    def broker_lost(self, address: str) -> None:
        """A connection to a broker has ended: it may have forgotten what it knew of us."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator sets the group to other offsets."""
        ...

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far it has come in a topic by its own account."""
        ...

    def running_info(self, *, jstack: bool) -> ConsumerRunningInfo:
        """What it is doing."""
        ...

    async def consume_directly(
        self, message: StoredMessage, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Consume one message now, because an operator wants to see how that goes."""
        ...

    async def close(self) -> None:
        """Finish, commit and leave, because the session ends; harmless a second time."""
        ...


class Members:
    """Who is here; groups as brokers know them."""

    def __init__(self) -> None:
        self.producers: dict[str, list[ProducerMember]] = {}
        self.consumers: dict[str, ConsumerMember] = {}

    def __bool__(self) -> bool:
        return bool(self.producers or self.consumers)

    def add_producer(self, member: ProducerMember) -> None:
        """A producer has come; a group may have several here."""
        self.producers.setdefault(member.group, []).append(member)

    def remove_producer(self, member: ProducerMember) -> bool:
        """A producer goes; whether it was the last of its group."""
        members = self.producers.get(member.group, [])
        if member not in members:
            return False
        members.remove(member)
        if members:
            return False
        del self.producers[member.group]
        return True

    def remove_consumer(self, member: ConsumerMember) -> bool:
        """A consumer goes; False if it was not here."""
        if self.consumers.get(member.group) is not member:
            return False
        del self.consumers[member.group]
        return True
