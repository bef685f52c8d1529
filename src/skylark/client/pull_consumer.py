"""PullConsumer: the application reads queues itself, offset by offset.

    async with mq.pull_consumer("audit") as consumer:
        for queue in await consumer.fetch_queues("Orders"):
            result = await consumer.pull(queue, offset=0)

Nothing is read ahead and nothing is committed unless asked for. Topics named at its making are
registered: the consumer then takes its place in the group, and `assignment` and queue listeners
tell which queues are its share.

PullSchedule (pull_schedule.py) calls a function for each queue of that share again and again, and
thus gives push-like comfort with the application in control of every pull.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..errors import BrokerError, ClientError, NoRoute
from ..model.group import ConsumeType
from ..model.message import Property, StoredMessage
from ..model.queue import MessageQueue
from ..model.topic import is_retry_topic
from ..protocol import headers
from ..protocol.codes import ResponseCode
from ..protocol.headers import PullSysFlag
from ..protocol.message_id import read_message_id
from ..remote import PullStatus, RemoteBroker
from .consumer_config import ConsumerConfig
from .group_consumer import GroupConsumer, SessionSource
from .process_queue import ProcessQueue
from .received import ReceivedMessage
from .returns import Returns
from .session import Session
from .start_point import first_offset_since, time_ms
from .subscriptions import TAG, Expression, make_subscription, tag_check

logger = logging.getLogger(__name__)

SUSPEND_MS: Final = 20_000  # How long the broker may hold a pull that waits.
SUSPENDED_TIMEOUT_MS: Final = 30_000
PULL_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull found, and where to go on."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_begin_offset: int
    min_offset: int
    max_offset: int


class PullConsumer(GroupConsumer):
    """Reads queues on demand; an async context manager."""

    consume_type = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self,
        session: Session | SessionSource,
        group: str,
        topics: Iterable[str] = (),
        *,
        config: ConsumerConfig | None = None,
    ) -> None:
        """Check what is given; raises InvalidName or ConfigError."""
        super().__init__(
            session, group, dict.fromkeys(topics), config or ConsumerConfig(concurrency=1)
        )
        self._updates: dict[MessageQueue, int] = {}
        self._broker_ids: dict[MessageQueue, int] = {}

    # Reading.

    async def pull(
        self,
        queue: MessageQueue,
        expression: Expression = None,
        *,
        offset: int,
        count_max: int = 32,
        timeout_ms: int = PULL_TIMEOUT_MS,
    ) -> PullResult:
        """Read messages of a queue; an empty result at once where there are none.

        Raises NoRoute, TransportError or BrokerError.
        """
        return await self._pull(queue, expression, offset, count_max, 0, timeout_ms)

    async def pull_or_wait(
        self,
        queue: MessageQueue,
        expression: Expression = None,
        *,
        offset: int,
        count_max: int = 32,
        suspend_ms: int = SUSPEND_MS,
        timeout_ms: int = SUSPENDED_TIMEOUT_MS,
    ) -> PullResult:
        """Read messages of a queue; where there are none, wait for them at the broker."""
        return await self._pull(queue, expression, offset, count_max, suspend_ms, timeout_ms)

    async def _pull(
        self,
        queue: MessageQueue,
        expression: Expression,
        offset: int,
        count_max: int,
        suspend_ms: int,
        timeout_ms: int,
    ) -> PullResult:
        self._require_running()
        if offset < 0 or count_max < 1:
            raise ClientError(
                f"pull of {count_max} messages from offset {offset}",
                hint="ask for at least one, from 0 or more",
            )
        place = await self._known_place(queue)
        subscription = make_subscription(place.topic, expression, 0)
        address = self._session.read_address(place.broker_name, self._broker_ids.get(place, 0))
        flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if suspend_ms else 0)
        answer = await self._session.broker(address or self._address_of(place)).pull(
            headers.PullMessageRequest(
                consumer_group=self._group,
                topic=place.topic,
                queue_id=place.queue_id,
                queue_offset=offset,
                max_msg_nums=count_max,
                sys_flag=int(flags),
                commit_offset=0,
                suspend_timeout_millis=suspend_ms,
                subscription=subscription.expression,
                sub_version=0,
                expression_type=subscription.expression_type,
                broker_name=place.broker_name,
            ),
            timeout_ms=timeout_ms,
        )
        self._broker_ids[place] = answer.suggest_broker_id
        has_tag = tag_check(subscription) if subscription.expression_type == TAG else None
        messages = [
            ReceivedMessage(
                record, place, self._topic_of(record), answer.min_offset, answer.max_offset
            )
            for record in answer.messages()
            if has_tag is None or has_tag(record)
        ]
        status = answer.status
        if status is PullStatus.FOUND and not messages:
            status = PullStatus.NO_MATCHED_MSG
        return PullResult(
            status, messages, answer.next_begin_offset, answer.min_offset, answer.max_offset
        )

    def _topic_of(self, record: StoredMessage) -> str:
        topic = record.topic
        if is_retry_topic(topic):
            topic = record.properties.get(Property.RETRY_TOPIC) or topic
        return self._session.unwrap(topic)

    # Queues and offsets.

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that may be read; raises NoRoute."""
        queues = await self._session.read_queues(self._session.wrap(topic))
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that can still be read."""
        broker, place = await self._broker_of(queue)
        return await broker.get_min_offset(place)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        broker, place = await self._broker_of(queue)
        return await broker.get_max_offset(place)

    async def search_offset(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset of the message stored nearest to a time, as brokers answer it."""
        broker, place = await self._broker_of(queue)
        return await broker.search_offset(place, time_ms(at))

    async def offset_since(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset of the first message stored at a time or later, to the millisecond."""
        broker, place = await self._broker_of(queue)
        return await first_offset_since(broker, self._group, place, time_ms(at))

    async def earliest_time(self, queue: MessageQueue) -> int | None:
        """When the first message was stored that is still there."""
        broker, place = await self._broker_of(queue)
        return await broker.get_earliest_store_time(place)

    async def fetch_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """How far the group has come: by our own account, or as committed."""
        place = await self._known_place(queue)
        if not from_store and place in self._updates:
            return self._updates[place]
        return await self._offsets.read(place)

    async def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Note how far we have come; it is committed within five seconds and at the end."""
        self._updates[await self._known_place(queue)] = offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit how far we have come, and wait for the broker."""
        place = await self._known_place(queue)
        self._updates[place] = offset
        await self._offsets.commit({place: offset})

    # Single messages.

    async def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have the group's push consumers get a message again later; raises ClientError."""
        is_taken = await Returns(self._session, self._group).give_back(
            message,
            delay_level=delay_level,
            reconsume_times_max=self.config.reconsume_times_max,
        )
        if not is_taken:
            raise ClientError(
                f"no broker took {message.message_id} back", hint="look at the log, try again later"
            )

    async def view_message(self, topic: str, message_id: str) -> ReceivedMessage:
        """The message with an id of either kind; raises BrokerError where there is none."""
        reading = read_message_id(message_id)
        for message in await self.query(topic, message_id, unique=True, count_max=1):
            return message
        if reading.offset_id is None:
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, f"no message has id {message_id}")
        broker = await self._session.broker_of_cluster(str(reading.offset_id.host))
        record = await broker.view_message(reading.offset_id.physical_offset)
        place = MessageQueue(record.topic, "", record.queue_id)
        return ReceivedMessage(record, place, self._topic_of(record))

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        """The messages of a topic that have a key, newest first; `unique` asks by producer's id."""
        self._require_running()
        wrapped = self._session.wrap(topic)
        route = await self._session.route(wrapped)
        found: list[ReceivedMessage] = []
        for data in route.brokers:
            address = data.any_address()
            if address is None:
                continue
            answer = await self._session.broker(address).query_message(
                wrapped,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=unique,
            )
            for record in answer.messages:
                # Different keys may share a hash.
                if record.unique_id == key if unique else key in record.keys:
                    place = MessageQueue(record.topic, data.broker_name, record.queue_id)
                    found.append(ReceivedMessage(record, place, self._topic_of(record)))
        found.sort(key=lambda message: message.stored_at_ms, reverse=True)
        return found[:count_max]

    # What the base asks. Queues of our share are only counted, never pulled.

    def _start_pulling(self, queue: ProcessQueue) -> None:
        queue.is_flow_limited = True

    async def _start_offset(self, place: MessageQueue) -> int:
        return 0

    def _progress(self) -> dict[MessageQueue, int]:
        return dict(self._updates)

    def _wants_retries(self) -> bool:
        return False

    def messages_arrived(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Nothing is pulled, so nothing arrives."""
        raise AssertionError("a pull consumer has no pullers")

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        return ()

    async def _drain(self) -> None:
        return

    async def _known_place(self, queue: MessageQueue) -> MessageQueue:
        self._require_running()
        place = MessageQueue(self._session.wrap(queue.topic), queue.broker_name, queue.queue_id)
        if self._session.broker_data(place.broker_name) is None:
            await self._session.route(place.topic)
            if self._session.broker_data(place.broker_name) is None:
                raise NoRoute(
                    f"no broker is called {place.broker_name!r}",
                    hint="take queues from fetch_queues",
                )
        return place

    async def _broker_of(self, queue: MessageQueue) -> tuple[RemoteBroker, MessageQueue]:
        place = await self._known_place(queue)
        return self._session.broker(self._address_of(place)), place
