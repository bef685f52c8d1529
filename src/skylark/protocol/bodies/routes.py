"""Routes and clusters.

    {"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b","cluster":"c"}],
     "filterServerTable":{},"orderTopicConf":"b:4",
     "queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}

A route has two dialects. Broker ids stand bare for clients below 4.9.4: the Go client up to 2.1.1
reads a quoted id as 0, and so takes a replica for the master. From 4.9.4 on, or when the client
asks for standard JSON, they are quoted and other scripts escaped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from ...model.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from .. import fastjson
from ..fastjson import Json
from .body import Body
from .members import Members, text_of

STANDARD_JSON_VERSION_MIN = 401  # V4_9_4


def wants_standard_json(version: int, accept_standard_json_only: bool | None) -> bool:
    """Return which dialect of a route a client of that version can read."""
    return version >= STANDARD_JSON_VERSION_MIN or bool(accept_standard_json_only)


@dataclass(frozen=True, slots=True)
class TopicRouteBody(Body):
    """A topic's route, the answer to GET_ROUTEINFO_BY_TOPIC."""

    route: TopicRoute = field(default_factory=TopicRoute)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        servers = members.object_or_empty("filterServerTable")
        return cls(
            TopicRoute(
                brokers=tuple(_broker_of(broker) for broker in members.objects("brokerDatas")),
                queues=tuple(_queue_data_of(queue) for queue in members.objects("queueDatas")),
                order_conf=members.text_or_none("orderTopicConf"),
                filter_servers={name: servers.texts(name) for name in servers.members},
            )
        )

    def to_members(self) -> dict[str, Any]:
        route = self.route
        return {
            "brokerDatas": [_broker_members(broker) for broker in route.brokers],
            "filterServerTable": route.filter_servers,
            "orderTopicConf": route.order_conf,
            "queueDatas": [_queue_data_members(queue) for queue in route.queues],
        }

    def to_json(self, *, pretty: bool = False, standard: bool = False) -> bytes:
        """Write the route, in standard JSON or in the dialect that old clients need."""
        return fastjson.dumps(
            self.to_members(), quoted_keys=standard, ascii_only=standard, pretty=pretty
        )


@dataclass(frozen=True, slots=True)
class ClusterInfoBody(Body):
    """All clusters and brokers, the answer to GET_BROKER_CLUSTER_INFO."""

    cluster: ClusterInfo = field(default_factory=ClusterInfo)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        clusters = members.object_or_empty("clusterAddrTable")
        return cls(
            ClusterInfo(
                brokers=members.map_of("brokerAddrTable", _broker_of_value),
                clusters={name: clusters.texts(name) for name in clusters.members},
            )
        )

    def to_members(self) -> dict[str, Any]:
        return {
            "brokerAddrTable": {
                name: _broker_members(broker) for name, broker in self.cluster.brokers.items()
            },
            "clusterAddrTable": self.cluster.clusters,
        }


def _broker_of_value(value: Json, where: str) -> BrokerData:
    return _broker_of(Members.of(value, where))


def _broker_of(members: Members) -> BrokerData:
    return BrokerData(
        cluster=members.text("cluster", ""),
        broker_name=members.text("brokerName"),
        addresses=members.integer_map_of("brokerAddrs", text_of, bits=64),
    )


def _broker_members(broker: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": broker.addresses,
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
    }


def _queue_data_of(members: Members) -> QueueData:
    return QueueData(
        broker_name=members.text("brokerName"),
        read_queue_nums=members.i32("readQueueNums"),
        write_queue_nums=members.i32("writeQueueNums"),
        perm=members.i32("perm"),
        topic_sys_flag=members.i32("topicSysFlag", 0),
    )


def _queue_data_members(queue: QueueData) -> dict[str, Any]:
    return {
        "brokerName": queue.broker_name,
        "perm": queue.perm,
        "readQueueNums": queue.read_queue_nums,
        "topicSysFlag": queue.topic_sys_flag,
        "writeQueueNums": queue.write_queue_nums,
    }
