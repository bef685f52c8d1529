"""Client: what `skylark.connect` gives, the way to producers, consumers and single questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import BrokerError, ClientClosed, NoRoute
from ..model.message import StoredMessage
from ..model.queue import MessageQueue
from ..model.topic import TopicConfig
from ..protocol.codes import ResponseCode
from ..protocol.message_id import read_message_id
from .hooks import ForbiddenHook, SendHook
from .producer import Producer, ProducerConfig
from .session import Session

if TYPE_CHECKING:
    from .consume_hooks import ConsumeHook
    from .lite_pull_consumer import LitePullConsumer
    from .pull_consumer import PullConsumer
    from .push_consumer import BatchHandler, MessageHandler, PushConsumer
    from .start_point import ConsumeFrom
    from .subscriptions import Subscriptions
    from .transactional_producer import TransactionalProducer
    from .transactions import Check, TransactionListener


class Client:
    """One client of a cluster; an async context manager.

    All its producers and consumers share connections. A second consumer of a group gets a session
    of its own, because to a broker one client id is one member of a group.
    """

    def __init__(self, make_session: Callable[[int], Session]) -> None:
        self._make_session = make_session  # By number, since no two may have the same client id.
        self._parts = AsyncExitStack()
        self._sessions: list[Session] = []
        self._session_count = 1

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as parts:
            self._sessions = [await parts.enter_async_context(self._make_session(1))]
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sessions = []
        await self._parts.__aexit__(kind, error, traceback)

    @property
    def session(self) -> Session:
        """The session that everything shares but second consumers of a group."""
        if not self._sessions:
            raise ClientClosed(
                "the client is not open", hint="use it inside `async with skylark.connect(...)`"
            )
        return self._sessions[0]

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self.session.client_id

    async def session_for_consumer(self, group: str) -> Session:
        """A session that is no member of a group yet, opened if there is none."""
        wrapped = self.session.wrap(group)
        for session in self._sessions:
            if not session.has_consumer(wrapped):
                return session
        self._session_count += 1
        made = self._make_session(self._session_count)
        session = await self._parts.enter_async_context(made)
        self._sessions.append(session)
        return session

    def producer(
        self,
        group: str,
        *,
        send_hooks: Iterable[SendHook] = (),
        forbidden_hooks: Iterable[ForbiddenHook] = (),
        check: Check | None = None,
        **settings: Any,
    ) -> Producer:
        """Make a producer; settings are those of ProducerConfig.

        The check says how a transaction of the group ended whose process is gone.
        """
        return Producer(
            self.session,
            ProducerConfig(group=group, **settings),
            send_hooks=send_hooks,
            forbidden_hooks=forbidden_hooks,
            check=check,
        )

    def transactional_producer(
        self, group: str, listener: TransactionListener, **settings: Any
    ) -> TransactionalProducer:
        """Make a producer whose listener runs and checks local transactions."""
        from .transactional_producer import TransactionalProducer

        return TransactionalProducer(
            self.session, ProducerConfig(group=group, **settings), listener
        )

    def consumer(
        self,
        group: str,
        subscriptions: Subscriptions,
        handler: MessageHandler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        consume_from: ConsumeFrom = "last",
        hooks: Iterable[ConsumeHook] = (),
        **settings: Any,
    ) -> PushConsumer:
        """Make a consumer with a handler, or to iterate over; settings are ConsumerConfig's."""
        from .consumer_config import ConsumerConfig
        from .push_consumer import PushConsumer

        return PushConsumer(
            self.session_for_consumer,
            group,
            subscriptions,
            handler,
            batch_handler=batch_handler,
            config=ConsumerConfig(**settings),
            consume_from=consume_from,
            hooks=hooks,
        )

    def lite_pull_consumer(
        self,
        group: str,
        subscriptions: Subscriptions | None = None,
        *,
        consume_from: ConsumeFrom = "last",
        **settings: Any,
    ) -> LitePullConsumer:
        """Make a consumer that polls; without subscriptions, assign queues to it."""
        from .lite_pull_consumer import LitePullConfig, LitePullConsumer

        return LitePullConsumer(
            self.session_for_consumer,
            group,
            subscriptions,
            config=LitePullConfig(**settings),
            consume_from=consume_from,
        )

    def pull_consumer(
        self, group: str, topics: Iterable[str] = (), **settings: Any
    ) -> PullConsumer:
        """Make a consumer that reads queues offset by offset; topics are those it registers."""
        from .consumer_config import ConsumerConfig
        from .pull_consumer import PullConsumer

        return PullConsumer(
            self.session_for_consumer, group, topics, config=ConsumerConfig(**settings)
        )

    # Single questions.

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read; raises NoRoute."""
        session = self.session
        queues = await session.read_queues(session.wrap(topic))
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    async def view_message(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """The message with an id of either kind; one given by a producer needs its topic too."""
        reading = read_message_id(message_id)
        if reading.offset_id is not None and (reading.is_rather_offset_id or topic is None):
            try:
                broker = await self.session.broker_of_cluster(str(reading.offset_id.host))
                return await broker.view_message(reading.offset_id.physical_offset)
            except (BrokerError, NoRoute):
                if topic is None:
                    raise
        if topic is not None:
            found = await self.query_messages(topic, message_id.strip(), unique=True)
            if found:
                return found[0]
        raise BrokerError(ResponseCode.NO_MESSAGE, f"no message has the id {message_id[:64]}")

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique: bool = False,
    ) -> list[StoredMessage]:
        """The messages of a topic with a key, or with a producer's id, the oldest first."""
        session = self.session
        wrapped = session.wrap(topic)
        route = await session.route(wrapped)
        found: list[StoredMessage] = []
        failure: BrokerError | None = None
        for data in route.brokers:
            address = data.any_address()
            if address is None:
                continue
            try:
                answer = await session.broker(address).query_message(
                    wrapped,
                    key,
                    count_max=count_max,
                    begin_ms=begin_ms,
                    end_ms=end_ms,
                    unique=unique,
                )
            except BrokerError as error:
                failure = error
                continue
            found += (message for message in answer.messages if _has_key(message, key, unique))
        if not found and failure is not None:
            raise failure
        found.sort(key=lambda message: message.stored_at_ms)
        return found[:count_max]

    async def search_offset(self, queue: MessageQueue, at_ms: int) -> int:
        """The offset whose message was stored nearest to a time."""
        address, wrapped = await self._place(queue)
        return await self.session.broker(address).search_offset(wrapped, at_ms)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset of a queue that can still be read."""
        address, wrapped = await self._place(queue)
        return await self.session.broker(address).get_min_offset(wrapped)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of a queue will get."""
        address, wrapped = await self._place(queue)
        return await self.session.broker(address).get_max_offset(wrapped)

    async def create_topic(self, topic: str, *, queue_count: int = 8, like: str = "TBW102") -> None:
        """Create a topic on the master of every broker that serves another one."""
        session = self.session
        route = await session.route(like)
        masters = [data.master_address for data in route.brokers if data.master_address]
        if not masters:
            raise NoRoute(f"no master serves topic {like!r}", hint="start a broker")
        wrapped = session.wrap(topic)
        config = TopicConfig(wrapped, read_queue_nums=queue_count, write_queue_nums=queue_count)
        for address in masters:
            await session.broker(address).put_topic(config)

    async def _place(self, queue: MessageQueue) -> tuple[str, MessageQueue]:
        session = self.session
        topic = session.wrap(queue.topic)
        address = session.master_address(queue.broker_name)
        if address is None:
            await session.route(topic)
            address = session.read_address(queue.broker_name)
        if address is None:
            raise NoRoute(
                f"The broker[{queue.broker_name}] not exist",
                hint="check the queue's broker name, and that the broker runs",
                broker=queue.broker_name,
            )
        return address, MessageQueue(topic, queue.broker_name, queue.queue_id)


def _has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    # The index knows hashes only; other keys may have the same.
    return message.unique_id == key if unique else key in message.keys
