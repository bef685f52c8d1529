"""Heartbeats: clients come, stay, ask who else is there, and leave."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...errors import BrokerError, InvalidBody, InvalidExpression
from ...filter import parse_tags
from ...model.names import check_group_name, check_topic_name
from ...protocol.bodies import CheckClientConfigBody, ConsumerList, HeartbeatData
from ...protocol.codes import ResponseCode
from ...protocol.exchange import AnyRequest, Peer, Request, Response
from ...protocol.headers import heartbeat as headers
from .. import retry
from ..clients import GROUPS_OF_CLIENT_MAX, Clients
from ..config import LiveConfig
from ..filters import FilterTable, is_by_tags
from ..groups import GroupTable
from ..topics import TopicTable

logger = logging.getLogger(__name__)

CLIENT_ID_CHARS_MAX = 1_024


class HeartbeatProcessor:
    """Keeps the table of clients."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        topics: TopicTable,
        groups: GroupTable,
        clients: Clients,
        filters: FilterTable,
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._filters = filters
        # Told of every client id, for the broker's dialling of itself.
        self.on_client: Callable[[str], None] = lambda client_id: None

    def heartbeat(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve HEART_BEAT."""
        data = HeartbeatData.from_json(request.body)
        if not 0 < len(data.client_id) <= CLIENT_ID_CHARS_MAX:
            raise InvalidBody(
                f"clientID has {len(data.client_id)} characters; 1 to {CLIENT_ID_CHARS_MAX} fit"
            )
        if max(len(data.producer_groups), len(data.consumers)) > GROUPS_OF_CLIENT_MAX:
            raise InvalidBody(f"a client may be in {GROUPS_OF_CLIENT_MAX} groups, not more")
        self.on_client(data.client_id)
        for name in data.producer_groups:
            check_group_name(name)
        for consumer in data.consumers:
            check_group_name(consumer.group_name)
            for subscription in consumer.subscriptions:
                check_topic_name(subscription.topic)
        refusal: BrokerError | None = None
        for consumer in data.consumers:
            try:
                group = self._groups.require(consumer.group_name)
            except BrokerError as error:
                refusal = error
                continue
            retry.retry_topic_of(self._topics, group, unit_mode=consumer.unit_mode)
            self._clients.register_consumer(
                consumer, data.client_id, peer, language=request.language, version=request.version
            )
            members = self._clients.consumer_group(consumer.group_name)
            if members is not None:
                self._filters.register(members.name, members.subscriptions.values())
        for name in data.producer_groups:
            self._clients.register_producer(
                name, data.client_id, peer, language=request.language, version=request.version
            )
        if refusal is not None:
            raise refusal
        return Response()

    def unregister(self, request: Request[headers.UnregisterClientRequest], peer: Peer) -> Response:
        """Serve UNREGISTER_CLIENT."""
        header = request.header
        if header.producer_group:
            self._clients.unregister_producer(header.producer_group, header.client_id, peer)
        if header.consumer_group:
            self._clients.unregister_consumer(header.consumer_group, header.client_id, peer)
        return Response()

    def list_consumers(
        self, request: Request[headers.GetConsumerListByGroupRequest], peer: Peer
    ) -> Response:
        """Serve GET_CONSUMER_LIST_BY_GROUP."""
        name = request.header.consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            return Response(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name[:255]}")
        return Response(body=ConsumerList(group.client_ids).to_json())

    def check_config(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve CHECK_CLIENT_CONFIG."""
        if not request.body:
            return Response()
        subscription = CheckClientConfigBody.from_json(request.body).subscription
        try:
            if is_by_tags(subscription.expression_type):
                parse_tags(subscription.expression)
            else:
                self._filters.check(subscription.expression, subscription.expression_type)
        except InvalidExpression as error:
            return Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        return Response()
