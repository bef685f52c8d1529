"""A name server and a broker that do what a script says, on a simulated network and clock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from skylark.client.config import ClientConfig
from skylark.client.session import Session
from skylark.errors import BrokerError
from skylark.model.group import Subscription
from skylark.model.queue import MessageQueue
from skylark.model.route import BrokerData, QueueData, TopicRoute
from skylark.net import Handler, Listener, NetConfig, Switchboard
from skylark.protocol import headers
from skylark.protocol.bodies import (
    ConsumerConnectionBody,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    TopicRouteBody,
)
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.properties import encode_properties, parse_properties
from skylark.protocol.record import encode_record, pack_host
from skylark.testing import LinkConfig, SimClock, SimLoop, SimNetwork

NAME_SERVER, BROKER = "10.0.0.1:9876", "10.0.0.2:10911"
BROKER_NAME = "broker-a"
BORN_HOST = pack_host("10.0.0.9", 1)
STORE_HOST = pack_host("10.0.0.2", 10911)
WIRE = LinkConfig(delay_ms=0.2, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)


class FakeBroker:
    """Queues as lists of records, members as peers; refuses what `refusals` names."""

    def __init__(self, world: World, topics: dict[str, int]) -> None:
        self.world = world
        self.topics = dict(topics)
        self.queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, Peer]] = {}  # Group → client id → connection.
        self.heartbeats: list[HeartbeatData] = []
        self.subscriptions: dict[str, dict[str, Subscription]] = {}
        self.locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self.sent_back: list[headers.ConsumerSendMsgBackRequest] = []
        self.commits: list[tuple[str, str, int, int]] = []
        self.pulls: list[headers.PullMessageRequest] = []
        self.unregistered: list[tuple[str, str]] = []
        self.refusals: dict[int, tuple[int, str]] = {}
        self.asked = Counter[int]()
        self.min_offsets: dict[tuple[str, int], int] = {}
        self.notices = True
        self.zero_for_new_groups = False
        self._arrived = asyncio.Event()
        self._physical = 0

    def put(
        self,
        topic: str,
        queue_id: int = 0,
        body: bytes = b"",
        *,
        tag: str | None = None,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        **properties: Any,
    ) -> int:
        """Store a message; return its offset."""
        queue = self.queues.setdefault((topic, queue_id), [])
        if tag is not None:
            properties["TAGS"] = tag
        properties.setdefault("UNIQ_KEY", f"{self._physical:032X}")
        queue.append(
            {
                "topic": topic,
                "queue_id": queue_id,
                "body": body,
                "properties": encode_properties(properties),
                "queue_offset": len(queue),
                "physical_offset": self._physical,
                "reconsume_times": reconsume_times,
                "sys_flag": sys_flag,
                "stored_at_ms": self.world.clock.now_ms(),
                "born_at_ms": self.world.clock.now_ms(),
            }
        )
        self._physical += 100
        self._arrived.set()
        self._arrived = asyncio.Event()
        return len(queue) - 1

    def handlers(self) -> dict[int, Handler]:
        return {
            code: Handler(header, self._asked(code, handle))
            for code, (header, handle) in {
                Code.GET_ROUTEINFO_BY_TOPIC: (headers.GetRouteInfoRequest, self._route),
                Code.HEART_BEAT: (None, self._heartbeat),
                Code.UNREGISTER_CLIENT: (headers.UnregisterClientRequest, self._unregister),
                Code.GET_CONSUMER_LIST_BY_GROUP: (
                    headers.GetConsumerListByGroupRequest,
                    self._members,
                ),
                Code.GET_CONSUMER_CONNECTION_LIST: (
                    headers.GetConsumerConnectionListRequest,
                    self._connections,
                ),
                Code.QUERY_CONSUMER_OFFSET: (headers.QueryConsumerOffsetRequest, self._offset),
                Code.UPDATE_CONSUMER_OFFSET: (headers.UpdateConsumerOffsetRequest, self._commit),
                Code.GET_MAX_OFFSET: (headers.GetMaxOffsetRequest, self._max_offset),
                Code.GET_MIN_OFFSET: (headers.GetMinOffsetRequest, self._min_offset),
                Code.SEARCH_OFFSET_BY_TIMESTAMP: (headers.SearchOffsetRequest, self._search),
                Code.PULL_MESSAGE: (headers.PullMessageRequest, self._pull),
                Code.CONSUMER_SEND_MSG_BACK: (
                    headers.ConsumerSendMsgBackRequest,
                    self._send_back,
                ),
                Code.SEND_MESSAGE_V2: (headers.SendMessageRequestV2, self._send),
                Code.LOCK_BATCH_MQ: (None, self._lock),
                Code.UNLOCK_BATCH_MQ: (None, self._unlock),
            }.items()
        }

    def _asked(self, code: int, handle: Callable[..., Any]) -> Callable[[AnyRequest, Peer], Any]:
        def refuse_or_handle(request: AnyRequest, peer: Peer) -> Any:
            self.asked[code] += 1
            if code in self.refusals:
                raise BrokerError(*self.refusals[code])
            return handle(request, peer)

        return refuse_or_handle

    def disconnected(self, peer: Peer) -> None:
        for group, members in self.members.items():
            gone = [client_id for client_id, other in members.items() if other is peer]
            for client_id in gone:
                del members[client_id]
            if gone:
                self._notify(group)

    # Requests.

    def _route(self, request: AnyRequest, peer: Peer) -> Response:
        topic = request.header.topic
        if topic not in self.topics:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"no route of {topic}")
        count = self.topics[topic]
        route = TopicRoute(
            brokers=(BrokerData("c", BROKER_NAME, {0: BROKER}),),
            queues=(QueueData(BROKER_NAME, count, count, 6),),
        )
        return Response(body=TopicRouteBody(route).to_json())

    def _heartbeat(self, request: AnyRequest, peer: Peer) -> Response:
        beat = HeartbeatData.from_json(request.body)
        self.heartbeats.append(beat)
        for consumer in beat.consumers:
            group = consumer.group_name
            self.topics.setdefault(f"%RETRY%{group}", 1)
            stored = self.subscriptions.setdefault(group, {})
            for one in consumer.subscriptions:
                if one.topic not in stored or stored[one.topic].version < one.version:
                    stored[one.topic] = one
            members = self.members.setdefault(group, {})
            is_new = members.get(beat.client_id) is not peer
            members[beat.client_id] = peer
            if is_new:
                self._notify(group)
        return Response()

    def _notify(self, group: str) -> None:
        if self.notices:
            for peer in self.members.get(group, {}).values():
                self.tell(peer, Code.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def tell(self, peer: Peer, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a client a oneway request."""
        if not peer.is_closed:
            peer.notify(Command.request(code, fields, body, oneway=True))

    def _unregister(self, request: AnyRequest, peer: Peer) -> Response:
        header = request.header
        if header.consumer_group:
            self.unregistered.append((header.client_id, header.consumer_group))
            self.members.get(header.consumer_group, {}).pop(header.client_id, None)
            self._notify(header.consumer_group)
        return Response()

    def _members(self, request: AnyRequest, peer: Peer) -> Response:
        members = self.members.get(request.header.consumer_group)
        if not members:
            return Response(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return Response(body=ConsumerList(tuple(members)).to_json())

    def _connections(self, request: AnyRequest, peer: Peer) -> Response:
        stored = self.subscriptions.get(request.header.consumer_group, {})
        return Response(body=ConsumerConnectionBody(subscriptions=stored).to_json())

    def _offset(self, request: AnyRequest, peer: Peer) -> Response:
        header = request.header
        key = (header.consumer_group, header.topic, header.queue_id)
        offset = self.offsets.get(key)
        if offset is None and self.zero_for_new_groups:
            offset = 0
        if offset is None:
            return Response(ResponseCode.QUERY_NOT_FOUND, "not found")
        return Response(header=headers.QueryConsumerOffsetResponse(offset=offset))

    def _commit(self, request: AnyRequest, peer: Peer) -> Response:
        header = request.header
        self._keep(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return Response()

    def _keep(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.commits.append((group, topic, queue_id, offset))
        self.offsets[group, topic, queue_id] = offset

    def _max_offset(self, request: AnyRequest, peer: Peer) -> Response:
        queue = self.queues.get((request.header.topic, request.header.queue_id), [])
        return Response(header=headers.GetMaxOffsetResponse(offset=len(queue)))

    def _min_offset(self, request: AnyRequest, peer: Peer) -> Response:
        key = (request.header.topic, request.header.queue_id)
        return Response(header=headers.GetMinOffsetResponse(offset=self.min_offsets.get(key, 0)))

    def _search(self, request: AnyRequest, peer: Peer) -> Response:
        queue = self.queues.get((request.header.topic, request.header.queue_id), [])
        at_ms = request.header.timestamp
        near = min(queue, key=lambda one: abs(one["stored_at_ms"] - at_ms), default=None)
        offset = near["queue_offset"] if near else 0
        return Response(header=headers.SearchOffsetResponse(offset=offset))

    def _pull(self, request: AnyRequest, peer: Peer) -> Coroutine[Any, Any, Response]:
        header = request.header
        self.pulls.append(header)
        if header.sys_flag & 1:
            self._keep(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return self._find(header)

    async def _find(self, header: headers.PullMessageRequest) -> Response:
        deadline_ms = self.world.clock.monotonic_ms() + header.suspend_timeout_millis
        while True:
            queue = self.queues.get((header.topic, header.queue_id), [])
            low = self.min_offsets.get((header.topic, header.queue_id), 0)
            if not low <= header.queue_offset <= len(queue):
                moved = low if header.queue_offset < low else len(queue)
                return self._answer(ResponseCode.PULL_OFFSET_MOVED, moved, low, len(queue))
            found = queue[header.queue_offset : header.queue_offset + header.max_msg_nums]
            if found:
                records = [
                    encode_record(born_host=BORN_HOST, store_host=STORE_HOST, **one)
                    for one in found
                ]
                answer = self._answer(
                    ResponseCode.SUCCESS, header.queue_offset + len(found), low, len(queue)
                )
                answer.body = b"".join(records)
                return answer
            left_ms = deadline_ms - self.world.clock.monotonic_ms()
            if not header.sys_flag & 2 or left_ms <= 0:
                return self._answer(
                    ResponseCode.PULL_NOT_FOUND, header.queue_offset, low, len(queue)
                )
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._arrived.wait()
            except TimeoutError:
                continue

    @staticmethod
    def _answer(code: ResponseCode, next_offset: int, low: int, high: int) -> Response:
        return Response(
            code,
            header=headers.PullMessageResponse(
                suggest_which_broker_id=0,
                next_begin_offset=next_offset,
                min_offset=low,
                max_offset=high,
            ),
        )

    def _send_back(self, request: AnyRequest, peer: Peer) -> Response:
        header = request.header
        self.sent_back.append(header)
        for (topic, _), queue in list(self.queues.items()):
            for one in queue:
                if one["physical_offset"] == header.offset:
                    properties = parse_properties(one["properties"])
                    properties.setdefault("RETRY_TOPIC", topic)
                    times = one["reconsume_times"]
                    limit = header.max_reconsume_times
                    is_dead = header.delay_level < 0 or (limit is not None and times >= limit)
                    target = f"%DLQ%{header.group}" if is_dead else f"%RETRY%{header.group}"
                    self.put(
                        target,
                        0,
                        one["body"],
                        reconsume_times=times + 1,
                        sys_flag=one["sys_flag"],
                        **properties,
                    )
                    return Response()
        return Response(ResponseCode.SYSTEM_ERROR, "no message there")

    def _send(self, request: AnyRequest, peer: Peer) -> Response:
        header = request.header
        properties: dict[str, Any] = {**parse_properties(header.properties or "")}
        offset = self.put(
            header.topic,
            header.queue_id,
            bytes(request.body),
            reconsume_times=header.reconsume_times or 0,
            **properties,
        )
        return Response(
            header=headers.SendMessageResponse(
                msg_id="0" * 32, queue_id=header.queue_id, queue_offset=offset
            )
        )

    def _lock(self, request: AnyRequest, peer: Peer) -> Response:
        body = LockBatchRequestBody.from_json(request.body)
        now_ms = self.world.clock.monotonic_ms()
        held = []
        for queue in body.queues:
            key = (body.consumer_group, queue)
            owner, until_ms = self.locks.get(key, (body.client_id, 0))
            if owner == body.client_id or until_ms <= now_ms:
                self.locks[key] = (body.client_id, now_ms + 60_000)
                held.append(queue)
        return Response(body=LockBatchResponseBody(tuple(held)).to_json())

    def _unlock(self, request: AnyRequest, peer: Peer) -> Response:
        body = LockBatchRequestBody.from_json(request.body)
        for queue in body.queues:
            if self.locks.get((body.consumer_group, queue), ("", 0))[0] == body.client_id:
                del self.locks[body.consumer_group, queue]
        return Response()


class World:
    """One name server, one broker, and as many clients as a test wants."""

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(1), config=WIRE)
        self.clock = SimClock(self.loop)
        self.broker = FakeBroker(self, topics if topics is not None else {"Orders": 4})
        self._clients = 0

    def session(self, **settings: Any) -> Session:
        """A session on a machine of its own."""
        self._clients += 1
        host = self.network.host(f"10.0.1.{self._clients}")
        return Session(
            ClientConfig(
                namesrv_addr=NAME_SERVER,
                **{
                    "client_ip": host.address,
                    "instance_name": f"c{self._clients}",
                    **settings,
                },
            ),
            network=host,
            clock=self.clock,
            rng=random.Random(self._clients),
            env={},
        )

    def run(self, main: Callable[[], Coroutine[Any, Any, None]], *, seconds: int = 3600) -> None:
        """Serve, and run the test in virtual time."""

        async def serve() -> None:
            board = Switchboard(self.broker.handlers(), on_disconnect=self.broker.disconnected)
            hosts = [self.network.host(one.split(":")[0]) for one in (NAME_SERVER, BROKER)]
            async with (
                Listener(NetConfig(listen_port=9876), board, hosts[0]),
                Listener(NetConfig(listen_port=10911), board, hosts[1]),
                asyncio.timeout(seconds),
            ):
                await main()

        self.loop.run(serve())

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep_ms(int(seconds * 1000))

    async def until(self, condition: Callable[[], object], *, seconds: float = 60) -> None:
        """Wait for something in virtual time."""
        deadline_ms = self.clock.monotonic_ms() + seconds * 1000
        while not condition():
            assert self.clock.monotonic_ms() < deadline_ms, f"not within {seconds} s"
            await self.clock.sleep_ms(5)
