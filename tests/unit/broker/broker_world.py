"""A broker on a simulated machine, a disk in memory and virtual time, and clients that call it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from skylark.broker.app import Broker
from skylark.broker.config import BrokerConfig
from skylark.broker.observer import Observer
from skylark.broker.parts import Parts
from skylark.model.message import StoredMessage
from skylark.net import Channels, Handler, Switchboard
from skylark.protocol.bodies import ConsumerData, HeartbeatData
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.headers import SendMessageRequestV2
from skylark.protocol.properties import format_properties
from skylark.protocol.record import decode_records
from skylark.testing import LinkConfig, SimClock, SimHost, SimLoop, SimNetwork
from skylark.testing.files import SimFiles

WIRE = LinkConfig(delay_ms=0.1, jitter_ms=0, spike_chance=0, split_chance=0, merge_chance=0)
PORT = 10911
SMALL = {
    "mapped_file_size_commit_log": 64 << 10,
    "mapped_file_size_consume_queue": 2_000,
    "mapped_file_size_timer_log": 32 << 10,
    "max_hash_slot_num": 64,
    "max_index_num": 512,
    "max_message_size": 16 << 10,
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "store_path_root_dir": "/store",
    "broker_name": "broker-a",
}


class Client:
    """One connection to the broker, and what came over it unasked."""

    def __init__(
        self,
        world: BrokerWorld,
        client_id: str = "client-1",
        handlers: Mapping[int, Handler] | None = None,
    ) -> None:
        self.client_id = client_id
        self.address = world.address
        self._world = world
        self.told: list[AnyRequest] = []
        self.reply_code = 0
        board = Switchboard(
            {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Handler(None, self._take),
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Handler(None, self._take),
                **(handlers or {}),
            }
        )
        self.channels = Channels(world.client, world.clock, random.Random(3), switchboard=board)

    def _take(self, request: AnyRequest, peer: Peer) -> Response:
        self.told.append(request)
        return Response(self.reply_code)

    async def call(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 60_000,
        version: int = 409,
    ) -> Command:
        texts = {k: _text(v) for k, v in (fields or {}).items() if v is not None}
        command = Command.request(code, texts, body)
        command.version = version
        return await self.channels.call(self.address, command, timeout_ms)

    async def oneway(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> None:
        texts = {k: _text(v) for k, v in fields.items() if v is not None}
        await self.channels.send_oneway(
            self.address, Command.request(code, texts, body, oneway=True)
        )

    async def send(
        self,
        topic: str = "TopicTest",
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        version: int = 409,
        **changes: object,
    ) -> Command:
        fields = send_fields(topic, queue_id=queue_id, properties=properties, **changes)
        return await self.call(code, fields, body, version=version)

    async def pull(
        self,
        topic: str = "TopicTest",
        *,
        group: str = "group",
        queue_id: int = 0,
        offset: int = 0,
        count: int = 32,
        tags: str | None = "*",
        suspend_ms: int = 0,
        **changes: object,
    ) -> Command:
        """Pull with the subscription in the request, or by heartbeat where tags is None."""
        fields: dict[str, object] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": count,
            "sysFlag": (4 if tags is not None else 0) | (2 if suspend_ms else 0),
            "commitOffset": 0,
            "suspendTimeoutMillis": suspend_ms,
            "subscription": tags,
            "subVersion": 0,
            "expressionType": "TAG",
            **changes,
        }
        return await self.call(RequestCode.PULL_MESSAGE, fields)

    async def heartbeat(self, *consumers: ConsumerData, producers: tuple[str, ...] = ()) -> Command:
        data = HeartbeatData(self.client_id, producers, consumers)
        return await self.call(RequestCode.HEART_BEAT, body=data.to_json())


def send_fields(
    topic: str,
    *,
    queue_id: int = 0,
    properties: Mapping[str, str] | None = None,
    **changes: object,
) -> dict[str, str]:
    values: dict[str, Any] = {
        "producer_group": "producers",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_timestamp": 1_794_726_790_296,
        "flag": 0,
        "properties": format_properties(properties or {}),
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
        **changes,
    }
    return SendMessageRequestV2(**values).to_fields()


def records(answer: Command) -> list[StoredMessage]:
    """The messages of a pull that found some."""
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return decode_records(answer.body)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, int) else str(value)


class BrokerWorld:
    """One machine with a broker, one with clients."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(1), config=WIRE)
        self.server: SimHost = self.network.host("10.0.0.1")
        self.client: SimHost = self.network.host("10.0.0.2")
        self.clock = SimClock(self.loop)
        self.files = SimFiles(now_ms=self.clock.now_ms)
        self.broker: Broker | None = None
        self.workers: Any = None  # For predicates.

    @property
    def address(self) -> str:
        return f"{self.server.address}:{PORT}"

    @contextlib.asynccontextmanager
    async def running(
        self, observer: Observer | None = None, **settings: Any
    ) -> AsyncIterator[Broker]:
        config = BrokerConfig(**{**SMALL, "listen_port": PORT, **settings})
        broker = Broker(
            config,
            clock=self.clock,
            network=self.server,
            files=self.files,
            rng=random.Random(2),
            host_ip=self.server.address,
            observer=observer,
            workers=self.workers,
        )
        async with broker:
            self.broker = broker
            yield broker

    @property
    def parts(self) -> Parts:
        """What the running broker is made of."""
        assert self.broker is not None
        assert self.broker.parts is not None
        return self.broker.parts

    @contextlib.asynccontextmanager
    async def connected(
        self, client_id: str = "client-1", handlers: Mapping[int, Handler] | None = None
    ) -> AsyncIterator[Client]:
        client = Client(self, client_id, handlers)
        async with client.channels:
            yield client

    @contextlib.asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[Client]:
        """A broker and one client of it."""
        async with self.running(**settings), self.connected() as client:
            yield client

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run(main())
