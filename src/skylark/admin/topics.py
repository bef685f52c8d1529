"""What operators do with topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..model.names import check_topic_name
from ..model.route import BrokerData
from ..model.topic import TopicConfig, is_system_topic
from .asking import each
from .figures import QueueFigures, TopicFigures, TopicKind, TopicPlace, TopicSummary
from .reach import Reach, any_address, master_address

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"


class TopicActions(Reach):
    """The part of AdminClient that is about topics."""

    async def topics(self, *, with_system: bool = False) -> list[TopicSummary]:
        """All topics, by name; those of the system only if asked for."""
        tables = await self._tables()
        system = {name for names, _, _ in tables for name in names}
        places: dict[str, list[TopicPlace]] = {}
        for _, data, topics in tables:
            for topic in topics.values():
                place = TopicPlace(
                    data.broker_name,
                    data.cluster,
                    topic.read_queue_nums,
                    topic.write_queue_nums,
                    topic.perm,
                )
                places.setdefault(topic.name, []).append(place)
        found = [
            TopicSummary(
                name,
                TopicKind.of(name, is_system=name in system or is_system_topic(name)),
                tuple(places[name]),
            )
            for name in sorted(places)
        ]
        return [topic for topic in found if with_system or topic.kind is TopicKind.NORMAL]

    async def _tables(
        self,
    ) -> list[tuple[tuple[str, ...], BrokerData, Mapping[str, TopicConfig]]]:
        async def ask(
            data: BrokerData,
        ) -> tuple[tuple[str, ...], BrokerData, Mapping[str, TopicConfig]]:
            remote = self._remote(any_address(data))
            return await remote.get_system_topics(), data, (await remote.get_topics()).topics

        return await each(ask, await self.brokers())

    async def topic(self, name: str) -> TopicFigures:
        """All about one topic; raises NoRoute where there is none."""
        route = await self._route(name)

        async def ask(data: BrokerData) -> tuple[list[QueueFigures], tuple[str, ...]]:
            remote = self._remote(any_address(data))
            stats = await remote.get_topic_stats(name)
            queues = [
                QueueFigures(
                    queue.broker_name,
                    queue.queue_id,
                    at.min_offset,
                    at.max_offset,
                    at.last_update_timestamp or None,
                )
                for queue, at in sorted(stats.offsets.items(), key=lambda item: item[0])
            ]
            return queues, await remote.get_groups_of_topic(name)

        answers = await each(ask, route.brokers)
        clusters = {data.broker_name: data.cluster for data in route.brokers}
        return TopicFigures(
            name=name,
            kind=TopicKind.of(name, is_system=is_system_topic(name)),
            places=tuple(
                TopicPlace(
                    queues.broker_name,
                    clusters.get(queues.broker_name, ""),
                    queues.read_queue_nums,
                    queues.write_queue_nums,
                    queues.perm,
                )
                for queues in route.queues
            ),
            queues=tuple(queue for queues, _ in answers for queue in queues),
            groups=tuple(sorted({group for _, groups in answers for group in groups})),
            order_conf=route.order_conf,
        )

    async def create_topic(
        self,
        name: str,
        *,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = 6,
        order: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a topic or change it; returns the addresses of the brokers that have it now."""
        check_topic_name(name)
        brokers = await self.brokers(cluster=cluster, broker=broker)
        addresses = [master_address(data) for data in brokers]
        config = TopicConfig(name, read_queues, write_queues, perm, order=order)
        for address in addresses:
            await self._remote(address).put_topic(config)
        if order:
            value = ";".join(f"{data.broker_name}:{write_queues}" for data in brokers)
            for server in self._name_servers.each():
                await server.put_kv(ORDER_TOPIC_CONFIG, name, value)
        return addresses

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic on every broker, or on those of one cluster, and its routes."""
        check_topic_name(name)
        for address in await self._masters(cluster, None):
            await self._remote(address).delete_topic(name)
        for server in self._name_servers.each():
            await server.delete_topic(name, cluster=cluster)
