"""Name servers and brokers in memory, for sinks: they come and go, and take what they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skylark.errors import BrokerError, TransportError
from skylark.model.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from skylark.protocol.batch import BESIDE_BODY_BYTES_MAX, decode_batch
from skylark.protocol.bodies import ClusterInfoBody, TopicRouteBody
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.frame import encode_frames
from skylark.spark.cluster import TEMPLATE_TOPIC, Cluster
from skylark.spark.offsets import QueueKey
from skylark.spark.options import Access

_SINGLE = RequestCode.SEND_MESSAGE_V2


class World:
    """What all connections see."""

    def __init__(self, brokers: str = "ab", *, body_bytes_max: int = 4 << 20) -> None:
        self.there = set(brokers)
        self.replicas: set[str] = set()  # Brokers that have one, which stays while they are away.
        self.topics: dict[str, dict[str, int]] = {"T": dict.fromkeys(brokers, 2)}
        self.template_queues = 0  # 0: brokers make no topics by themselves.
        self.body_bytes_max = body_bytes_max
        self.settings: dict[str, dict[str, str]] = {"ns1:1": {}, "ns2:1": {}}
        self.away: set[str] = set()  # Name servers.
        self.requests: list[Command] = []
        self.rows: list[tuple[QueueKey, bytes]] = []

    def route(self, topic: str) -> TopicRoute | None:
        """What a name server says of a topic."""
        counts = self.topics.get(topic, {})
        if topic == TEMPLATE_TOPIC and self.template_queues:
            counts = dict.fromkeys(self.there, self.template_queues)
        queues = tuple(
            QueueData(name, count, count, 7)
            for name, count in sorted(counts.items())
            if name in self.there
        )
        return TopicRoute(tuple(self.brokers().values()), queues) if queues else None

    def brokers(self) -> dict[str, BrokerData]:
        """Who is registered."""
        found = {}
        for name in sorted(self.there | self.replicas):
            addresses = {0: f"{name}:1"} if name in self.there else {}
            if name in self.replicas:
                addresses[1] = f"{name}-replica:1"
            found[name] = BrokerData("cluster", name, addresses)
        return found

    def answer(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Any:
        """What one server says."""
        name = address.partition(":")[0]
        if address in self.settings:
            if address in self.away:
                raise TransportError(address, "is away")
            return self._setting(address, code, fields)
        if name not in self.there:
            raise TransportError(address, "is away")
        command = Command.request(code, fields, bytes(body))
        self.requests.append(command)
        staged = code == RequestCode.STAGE_ROWS
        if len(body) > self.body_bytes_max + staged * BESIDE_BODY_BYTES_MAX or (
            staged and any(len(entry.body) > self.body_bytes_max for entry in decode_batch(body))
        ):
            remark = f"the body has {len(body)} bytes, {self.body_bytes_max} are allowed"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, remark, address)
        topic, queue_id = (
            (fields["topic"], fields["queueId"]) if staged else (fields["b"], fields["e"])
        )
        if self.template_queues:
            self.topics.setdefault(topic, {}).setdefault(name, self.template_queues)
        queue = QueueKey(topic, name, int(queue_id))
        if code == _SINGLE:
            self.rows.append((queue, bytes(body)))
        else:
            self.rows += [(queue, entry.body) for entry in decode_batch(body)]
        return command.reply(ResponseCode.SUCCESS)

    def _setting(self, address: str, code: int, fields: dict[str, str]) -> Command:
        command = Command.request(code, fields)
        if code == RequestCode.PUT_KV_CONFIG:
            self.settings[address][fields["key"]] = fields["value"]
            return command.reply(ResponseCode.SUCCESS)
        if fields["key"] not in self.settings[address]:
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "no such key", address)
        return command.reply(
            ResponseCode.SUCCESS, None, {"value": self.settings[address][fields["key"]]}
        )


class WorldWire:
    """A connection into it; answers are made when they are asked for."""

    def __init__(self, world: World, address: str) -> None:
        self._world = world
        self.address = address
        self._asked: list[tuple[int, dict[str, str], bytes]] = []

    def close(self) -> None:
        pass

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        found: Command = self._world.answer(self.address, code, fields, body)
        return found

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        encode_frames([Command.request(code, fields, body)])  # Raises what does not fit.
        self._asked.append((code, fields, body))

    def answer(self) -> Command:
        code, fields, body = self._asked.pop(0)
        try:
            return self.call(code, fields, body)
        except BrokerError as error:
            return Command.request(code, fields).reply(error.code, error.remark)


class WorldCluster(Cluster):
    """What a task knows of it."""

    def __init__(self, world: World, *, retry_ms: int = 10_000) -> None:
        super().__init__(Access(";".join(world.settings), retry_ms=retry_ms))
        self.world = world

    def wire(self, address: str) -> Any:
        return self._wires.setdefault(address, WorldWire(self.world, address))  # type: ignore[arg-type]

    def _ask_name_servers(self, code: int, fields: dict[str, str]) -> bytes:
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return ClusterInfoBody(ClusterInfo(self.world.brokers())).to_json()
        route = self.world.route(fields["topic"])
        if route is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no route", "ns1:1")
        return TopicRouteBody(route).to_json()


def queues(text: str, topic: str = "T") -> list[QueueKey]:
    """From `a0 a1 b0`."""
    return [QueueKey(topic, word[0], int(word[1:])) for word in text.split()]


def named(found: Iterable[QueueKey]) -> str:
    """And back."""
    return " ".join(f"{queue.broker}{queue.queue_id}" for queue in found)
