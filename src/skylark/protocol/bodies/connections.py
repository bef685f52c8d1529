"""Who is connected: consumers of a group, producers of a group, all producers of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...model.group import ConsumeFromWhere, ConsumeType, MessageModel, Subscription
from .body import Body
from .members import Members
from .subscriptions import subscription_members, subscription_of


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    """One client: its id, its address, the language it is written in and its version."""

    client_id: str
    client_addr: str
    language: str
    version: int

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            client_id=members.text("clientId", ""),
            client_addr=members.text("clientAddr", ""),
            language=members.text("language", "OTHER"),
            version=members.i32("version", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ConsumerConnectionBody(Body):
    """A group's members and what they want, the answer to GET_CONSUMER_CONNECTION_LIST."""

    connections: tuple[ClientConnection, ...] = ()
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            connections=_connections_of(members),
            subscriptions=members.map_of("subscriptionTable", subscription_of),
            consume_type=members.enum("consumeType", ConsumeType, ConsumeType.CONSUME_PASSIVELY),
            message_model=members.enum("messageModel", MessageModel, MessageModel.CLUSTERING),
            consume_from_where=members.enum(
                "consumeFromWhere", ConsumeFromWhere, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            ),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "connectionSet": [connection.to_members() for connection in self.connections],
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": {
                topic: subscription_members(subscription)
                for topic, subscription in self.subscriptions.items()
            },
        }


@dataclass(frozen=True, slots=True)
class ProducerConnectionBody(Body):
    """The producers of a group, the answer to GET_PRODUCER_CONNECTION_LIST."""

    connections: tuple[ClientConnection, ...] = ()

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(_connections_of(members))

    def to_members(self) -> dict[str, Any]:
        return {"connectionSet": [connection.to_members() for connection in self.connections]}


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body):
    """One producer; the address starts with a slash, as Java prints addresses."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp: int

    @classmethod
    def from_members(cls, members: Members) -> Self:
        return cls(
            client_id=members.text("clientId", ""),
            remote_ip=members.text("remoteIP", ""),
            language=members.text("language", "OTHER"),
            version=members.i32("version", 0),
            last_update_timestamp=members.i64("lastUpdateTimestamp", 0),
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ProducerTableBody(Body):
    """All producers of a broker by group, the answer to GET_ALL_PRODUCER_INFO."""

    groups: Mapping[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        data = members.object_or_empty("data")
        return cls(
            {
                group: tuple(ProducerInfo.from_members(item) for item in data.objects(group))
                for group in data.members
            }
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "data": {
                group: [producer.to_members() for producer in producers]
                for group, producers in self.groups.items()
            }
        }


def _connections_of(members: Members) -> tuple[ClientConnection, ...]:
    return tuple(ClientConnection.from_members(item) for item in members.objects("connectionSet"))
