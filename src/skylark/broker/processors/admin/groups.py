"""What operators do with groups and ask about their members."""

from __future__ import annotations

import logging

from ....model.names import check_group_name
from ....protocol.bodies import (
    ClientConnection,
    ConsumerConnectionBody,
    ProducerConnectionBody,
    ProducerInfo,
    ProducerTableBody,
    SubscriptionGroupConfigBody,
)
from ....protocol.codes import Language, ResponseCode
from ....protocol.exchange import AnyRequest, Peer, Request, Response
from ....protocol.headers import admin_groups as headers
from ...clients import Member
from ...parts import Parts

logger = logging.getLogger(__name__)


class GroupAdmin:
    """Makes, shows and deletes groups, and shows who is in them."""

    def __init__(self, parts: Parts) -> None:
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._stats = parts.stats
        self._clock = parts.clock
        self._state = None if parts.raft is None else parts.raft.state
        # In a Raft group it is deleted at all members at once.

    def put(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        group = SubscriptionGroupConfigBody.from_json(request.body).config
        self._groups.put(group)
        logger.info("group=%s set by peer=%s", group.group_name, peer.address)
        return Response()

    def delete(
        self, request: Request[headers.DeleteSubscriptionGroupRequest], peer: Peer
    ) -> Response:
        """Serve DELETE_SUBSCRIPTIONGROUP; a group that is not there is as good as deleted."""
        header = request.header
        check_group_name(header.group_name)
        if self._state is not None:
            self._state.delete_group(header.group_name, with_offsets=bool(header.remove_offset))
            self._stats.forget_group(header.group_name)
            logger.info("group=%s deleted by peer=%s", header.group_name, peer.address)
            return Response()
        was_there = self._groups.delete(header.group_name)
        if header.remove_offset:
            self._offsets.forget_group(header.group_name)
        self._stats.forget_group(header.group_name)
        if was_there:
            logger.info("group=%s deleted by peer=%s", header.group_name, peer.address)
        return Response()

    def all(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return Response(body=self._groups.body().to_json())

    def one(
        self, request: Request[headers.GetSubscriptionGroupConfigRequest], peer: Peer
    ) -> Response:
        """Serve GET_SUBSCRIPTIONGROUP_CONFIG."""
        name = request.header.group
        group = self._groups.get(name)
        if group is None:
            return Response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker: {name[:255]}"
            )
        return Response(body=SubscriptionGroupConfigBody(group).to_json())

    def consumers(
        self, request: Request[headers.GetConsumerConnectionListRequest], peer: Peer
    ) -> Response:
        """Serve GET_CONSUMER_CONNECTION_LIST."""
        name = request.header.consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            return Response(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:255]}] not online"
            )
        body = ConsumerConnectionBody(
            connections=tuple(map(_connection, group.members.values())),
            subscriptions=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return Response(body=body.to_json())

    def producers(
        self, request: Request[headers.GetProducerConnectionListRequest], peer: Peer
    ) -> Response:
        """Serve GET_PRODUCER_CONNECTION_LIST."""
        name = request.header.producer_group
        members = self._clients.producers_of(name)
        if not members:
            return Response(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:255]}] not exist"
            )
        return Response(body=ProducerConnectionBody(tuple(map(_connection, members))).to_json())

    def all_producers(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_ALL_PRODUCER_INFO."""
        now_ms, since_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        groups = {
            name: tuple(
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=f"/{member.peer.address}",
                    language=language_name(member.language),
                    version=member.version,
                    last_update_timestamp=now_ms - (since_ms - member.last_seen_ms),
                )
                for member in members
            )
            for name, members in self._clients.producer_groups().items()
        }
        return Response(body=ProducerTableBody(groups).to_json())


def _connection(member: Member) -> ClientConnection:
    return ClientConnection(
        client_id=member.client_id,
        client_addr=member.peer.address,
        language=language_name(member.language),
        version=member.version,
    )


def language_name(code: int) -> str:
    """A client's language as tools print it."""
    try:
        return Language(code).name
    except ValueError:
        return Language.OTHER.name
