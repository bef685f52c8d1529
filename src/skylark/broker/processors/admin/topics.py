"""What operators do with topics."""

from __future__ import annotations

import logging

from ....errors import BrokerError
from ....model.names import check_topic_name
from ....model.queue import MessageQueue
from ....model.topic import UNSENDABLE_TOPICS, TopicConfig, TopicFilterType
from ....protocol.bodies import GroupList, TopicConfigBody, TopicList, TopicOffset, TopicStatsBody
from ....protocol.codes import ResponseCode
from ....protocol.exchange import AnyRequest, Peer, Request, Response
from ....protocol.headers import admin_topics as headers
from ...parts import Parts

logger = logging.getLogger(__name__)


class TopicAdmin:
    """Makes, shows and deletes topics."""

    def __init__(self, parts: Parts) -> None:
        self._topics = parts.topics
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._identity = parts.identity
        self._store = parts.store
        self._stats = parts.stats
        self._announce = parts.announce
        self._state = None if parts.raft is None else parts.raft.state
        # In a Raft group a topic is deleted at all members at once.

    async def put(self, request: Request[headers.CreateTopicRequest], peer: Peer) -> Response:
        """Serve UPDATE_AND_CREATE_TOPIC; who asks for the route next will find the topic there."""
        header = request.header
        self._require_operators_own(header.topic)
        try:
            filter_type = TopicFilterType(header.topic_filter_type)
        except ValueError:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType {header.topic_filter_type[:32]!r}; "
                f"use {' or '.join(TopicFilterType)}",
            ) from None
        known = self._topics.get(header.topic)
        topic = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            filter_type,
            header.topic_sys_flag or 0,
            # Whether a topic is ordered is the name servers' to say.
            order=known is not None and known.order,
        )
        self._topics.put(topic)
        logger.info(
            "topic=%s read=%d write=%d perm=%d set by peer=%s",
            header.topic, header.read_queue_nums, header.write_queue_nums, header.perm,
            peer.address,
        )  # fmt: skip
        await self._announce((topic,))
        return Response()

    def delete(self, request: Request[headers.DeleteTopicRequest], peer: Peer) -> Response:
        """Serve DELETE_TOPIC_IN_BROKER; a topic that is not there is as good as deleted."""
        topic = request.header.topic
        self._require_operators_own(topic)
        if self._state is not None:
            self._state.delete_topic(topic)
            self._stats.forget_topic(topic)
            logger.info("topic=%s deleted by peer=%s", topic, peer.address)
            return Response()
        was_there = self._topics.delete(topic)
        dropped = self._store.drop_topic(topic)
        # A topic of this name that is made later begins at 0, for every group.
        self._offsets.forget_topic(topic)
        self._stats.forget_topic(topic)
        if was_there or dropped:
            logger.info("topic=%s deleted with %d queues by peer=%s", topic, dropped, peer.address)
        return Response()

    def _require_operators_own(self, topic: str) -> None:
        check_topic_name(topic)
        if self._topics.is_system(topic):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{topic}] is conflict with system topic.",
            )

    def all(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_ALL_TOPIC_CONFIG."""
        return Response(body=self._topics.body().to_json())

    def one(self, request: Request[headers.GetTopicConfigRequest], peer: Peer) -> Response:
        """Serve GET_TOPIC_CONFIG."""
        name = request.header.topic
        topic = self._topics.get(name)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker: {name[:127]}")
        return Response(body=TopicConfigBody(topic).to_json())

    def system(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return Response(body=TopicList(tuple(sorted(self._topics.system_topics))).to_json())

    def stats(self, request: Request[headers.GetTopicStatsInfoRequest], peer: Peer) -> Response:
        """Serve GET_TOPIC_STATS_INFO."""
        name = request.header.topic
        topic = self._topics.get(name)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist")
        offsets = {}
        for queue_id in range(topic.write_queue_nums):
            last = self._store.max_offset(name, queue_id)
            stored_at_ms = self._store.stored_at_ms(name, queue_id, last - 1) if last else 0
            offsets[MessageQueue(name, self._identity.name, queue_id)] = TopicOffset(
                min_offset=self._store.min_offset(name, queue_id),
                max_offset=last,
                last_update_timestamp=stored_at_ms,
            )
        return Response(body=TopicStatsBody(offsets).to_json())

    def consumed_by(
        self, request: Request[headers.QueryTopicConsumeByWhoRequest], peer: Peer
    ) -> Response:
        """Serve QUERY_TOPIC_CONSUME_BY_WHO: groups that want a topic, or once read it."""
        topic = request.header.topic
        online = {g.name for g in self._clients.consumer_groups() if topic in g.subscriptions}
        groups = online | self._offsets.groups_of(topic)
        return Response(body=GroupList(tuple(sorted(groups))).to_json())

    def clean_unused(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve CLEAN_UNUSED_TOPIC: drop the queues of topics that the table does not have.

        Those of the broker's own hold what is still to be done, whether it names them or not.
        """
        kept = self._topics.topics.keys() | UNSENDABLE_TOPICS
        unused = {topic for topic, _ in self._store.queues.names} - kept
        for topic in sorted(unused):
            queues = self._store.drop_topic(topic)
            logger.info("topic=%s unused, %d queues dropped", topic, queues)
        return Response()
