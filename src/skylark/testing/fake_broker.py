"""FakeBroker and FakeNameServer: servers small enough to read, that fail when told to.

For tests of clients. They keep what they are sent in lists, answer from scripts, and know nothing
of disks, consumers or time. `broker.script` says what happens to the next sends, one entry each:

    a number                answer with this code
    Step.SILENCE            take the request and never answer
    Step.DROP               take the request and cut the connection
    Step.STORE_AND_DROP     store the message, then cut the connection
    Delay(ms)               answer that much later
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Self

from ..clock import Clock
from ..model.message import HostAddress, OffsetId
from ..model.route import BrokerData, QueueData, TopicRoute
from ..model.topic import AUTO_CREATE_TOPIC, TopicConfig
from ..net import Handler, Listener, NetConfig, Network, Switchboard
from ..protocol import headers
from ..protocol.batch import decode_batch
from ..protocol.bodies import HeartbeatData, TopicRouteBody
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.exchange import AnyRequest, Peer, Request, Response
from ..protocol.properties import parse_properties

TEMPLATE = TopicConfig(AUTO_CREATE_TOPIC, 8, 8, perm=7)


class Step(Enum):
    """What happens to one send, instead of an answer."""

    SILENCE = auto()
    DROP = auto()
    STORE_AND_DROP = auto()


@dataclass(frozen=True)
class Delay:
    """The answer comes later."""

    delay_ms: int


@dataclass(frozen=True)
class StoredSend:
    """One message that was stored."""

    code: int
    header: headers.SendMessageRequestV2
    queue_offset: int
    body: bytes
    properties: dict[str, str]


@dataclass
class FakeBroker:
    """A master that takes messages; an async context manager."""

    network: Network
    clock: Clock
    host: str
    port: int = 10911
    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    script: deque[int | Step | Delay] = field(default_factory=deque)
    stored: list[StoredSend] = field(default_factory=list)
    requests: Counter[int] = field(default_factory=Counter)
    heartbeats: list[HeartbeatData] = field(default_factory=list)
    unregistered: list[headers.UnregisterClientRequest] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)  # By client id.
    seen: list[AnyRequest] = field(default_factory=list)
    region: str = "DefaultRegion"
    trace_on: bool = True
    _next: Counter[tuple[str, int]] = field(default_factory=Counter)
    _listener: Listener | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        send = Handler(headers.SendMessageRequestV2, self._answer)
        handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE_V2: send,
            RequestCode.SEND_BATCH_MESSAGE: send,
            RequestCode.SEND_REPLY_MESSAGE_V2: send,
            RequestCode.HEART_BEAT: Handler(None, self._heartbeat),
            RequestCode.UNREGISTER_CLIENT: Handler(
                headers.UnregisterClientRequest, self._unregister
            ),
        }
        config = NetConfig(listen_host=self.host, listen_port=self.port)
        self._listener = Listener(config, Switchboard(handlers), self.network)
        await self._listener.__aenter__()
        self.port = self._listener.address[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        await self._listener.__aexit__(kind, error, traceback)

    def kill(self) -> None:
        """End at once, without a word to anybody; its port is free for a successor."""
        _kill(self._listener)

    def messages(self, topic: str) -> list[bytes]:
        """The bodies that were stored for a topic, in order."""
        return [stored.body for stored in self.stored if stored.header.topic == topic]

    async def _answer(
        self, request: Request[headers.SendMessageRequestV2], peer: Peer
    ) -> Response | None:
        self.requests[request.code] += 1
        self.seen.append(request)
        step = self.script.popleft() if self.script else 0
        if step is Step.SILENCE:
            return None
        if step in (Step.DROP, Step.STORE_AND_DROP):
            if step is Step.STORE_AND_DROP:
                self._store(request)
            peer.close()
            return None
        if isinstance(step, Delay):
            await self.clock.sleep_ms(step.delay_ms)
            step = 0
        assert isinstance(step, int)
        marks = headers.SendMessageResponse(region=self.region, trace_on=self.trace_on)
        stored_codes = (0, 10, 11, 12)
        if step not in stored_codes:
            return Response(step, f"[SCRIPTED] code {step}", marks)
        if request.header.topic not in self.topics and not self._create(request.header):
            return Response(ResponseCode.TOPIC_NOT_EXIST, "no such topic", marks)
        ids, queue_offset = self._store(request)
        found = headers.SendMessageResponse(
            msg_id=",".join(ids),
            queue_id=request.header.queue_id,
            queue_offset=queue_offset,
            region=self.region,
            trace_on=self.trace_on,
        )
        return Response(step, None, found)

    def _create(self, header: headers.SendMessageRequestV2) -> bool:
        template = self.topics.get(header.default_topic)
        if template is None or not template.is_inherited:
            return False
        count = min(header.default_topic_queue_nums, template.write_queue_nums)
        self.topics[header.topic] = TopicConfig(header.topic, count, count)
        return True

    def _store(self, request: Request[headers.SendMessageRequestV2]) -> tuple[list[str], int]:
        header = request.header
        place = (header.topic, header.queue_id)
        first = self._next[place]
        if header.batch:
            parts = [
                (entry.body, parse_properties(entry.properties))
                for entry in decode_batch(request.body)
            ]
        else:
            parts = [(bytes(request.body), parse_properties(header.properties or ""))]
        ids = []
        for body, properties in parts:
            ids.append(str(OffsetId(HostAddress(self.host, self.port), len(self.stored) * 100)))
            offset = self._next[place]
            self._next[place] += 1
            self.stored.append(StoredSend(request.code, header, offset, body, properties))
        return ids, first

    def _heartbeat(self, request: AnyRequest, peer: Peer) -> Response:
        beat = HeartbeatData.from_json(request.body)
        self.heartbeats.append(beat)
        self.peers[beat.client_id] = peer
        return Response()

    def _unregister(
        self, request: Request[headers.UnregisterClientRequest], peer: Peer
    ) -> Response:
        self.unregistered.append(request.header)
        return Response()


@dataclass
class FakeNameServer:
    """Says where topics are, out of the brokers' own tables; an async context manager."""

    network: Network
    host: str
    port: int = 9876
    brokers: list[FakeBroker] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)  # Broker names that it does not know (any more).
    requests: Counter[int] = field(default_factory=Counter)
    _listener: Listener | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        handlers: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: Handler(headers.GetRouteInfoRequest, self._route)
        }
        config = NetConfig(listen_host=self.host, listen_port=self.port)
        self._listener = Listener(config, Switchboard(handlers), self.network)
        await self._listener.__aenter__()
        self.port = self._listener.address[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        await self._listener.__aexit__(kind, error, traceback)

    def kill(self) -> None:
        """End at once, without a word to anybody; its port is free for a successor."""
        _kill(self._listener)

    def _route(self, request: Request[headers.GetRouteInfoRequest], peer: Peer) -> Response:
        self.requests[request.code] += 1
        topic = request.header.topic
        serving = [
            broker
            for broker in self.brokers
            if topic in broker.topics and broker.name not in self.hidden
        ]
        if not serving:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info: {topic}")
        route = TopicRoute(
            tuple(BrokerData(one.cluster, one.name, {0: one.address}) for one in serving),
            tuple(_queue_data(one, one.topics[topic]) for one in serving),
        )
        return Response(body=TopicRouteBody(route).to_json(standard=True))


def _kill(listener: Listener | None) -> None:
    assert listener is not None
    assert listener._server is not None
    listener._server.close()
    for link in listener.links:
        link.cut()
        link.cancel_requests()


def _queue_data(broker: FakeBroker, topic: TopicConfig) -> QueueData:
    return QueueData(broker.name, topic.read_queue_nums, topic.write_queue_nums, topic.perm)


def with_template(topics: Iterable[TopicConfig] = ()) -> dict[str, TopicConfig]:
    """Return a broker's topics, with the one in whose image others are created."""
    return {topic.name: topic for topic in (TEMPLATE, *topics)}
