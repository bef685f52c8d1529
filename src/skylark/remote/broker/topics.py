"""Calls about topics, as operators see them."""

from __future__ import annotations

from ...model.topic import AUTO_CREATE_TOPIC, TopicConfig
from ...protocol import headers
from ...protocol.bodies import GroupList, TopicConfigTable, TopicList, TopicStatsBody
from ...protocol.codes import RequestCode
from .caller import ADMIN_TIMEOUT_MS, BrokerCaller


class TopicCalls(BrokerCaller):
    """Looks after topics."""

    async def put_topic(self, config: TopicConfig, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Create a topic, or change one."""
        header = headers.CreateTopicRequest(
            topic=config.name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.filter_type.value,
            topic_sys_flag=config.sys_flag,
            order=config.order,
        )
        await self._call(RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=timeout_ms)

    async def delete_topic(self, topic: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete a topic."""
        header = headers.DeleteTopicRequest(topic=topic)
        await self._call(RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_ms=timeout_ms)

    async def get_topics(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> TopicConfigTable:
        """All topics with their settings."""
        answer = await self._call(RequestCode.GET_ALL_TOPIC_CONFIG, timeout_ms=timeout_ms)
        return TopicConfigTable.from_json(answer.body)

    async def get_topic_stats(
        self, topic: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> TopicStatsBody:
        """Where a topic's queues begin and end."""
        header = headers.GetTopicStatsInfoRequest(topic=topic)
        answer = await self._call(RequestCode.GET_TOPIC_STATS_INFO, header, timeout_ms=timeout_ms)
        return TopicStatsBody.from_json(answer.body)

    async def get_system_topics(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> tuple[str, ...]:
        """The topics that belong to the system."""
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        return TopicList.from_json((await self._call(code, timeout_ms=timeout_ms)).body).topics

    async def get_groups_of_topic(
        self, topic: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> tuple[str, ...]:
        """The groups that consume a topic, online or with committed offsets."""
        header = headers.QueryTopicConsumeByWhoRequest(topic=topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        answer = await self._call(code, header, timeout_ms=timeout_ms)
        return GroupList.from_json(answer.body).groups
