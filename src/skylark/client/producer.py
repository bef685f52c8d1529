"""Producer: sends messages, as RocketMQ 4.9.8's does.

    call                         queue                          tries
    send                         in turn                        1 + 2, another broker each time,
                                                                within one time-out for all
    send(queue= | key= |         the given one, by hash, by     1: another queue would break what
         selector=)              the application's rule         the caller asked for
    send_async                   in turn                        1 + 2, after network errors only
    send_oneway                  any of the above               1, and no word of its fate
    send_batch                   in turn, or the given one      as send

A try is repeated after a network error, and after the codes SYSTEM_ERROR, SERVICE_NOT_AVAILABLE,
NO_PERMISSION, TOPIC_NOT_EXIST, NO_BUYER_ID and NOT_IN_CURRENT_UNIT. SYSTEM_BUSY is flow control: it
goes to the caller, unless retry_system_busy is set. With linger_ms, messages that are sent at about
the same time travel together (batching.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from ..errors import (
    BrokerError,
    ClientClosed,
    InvalidMessage,
    RequestTimedOut,
    TransportError,
)
from ..model.message import Message, StoredMessage
from ..model.names import check_group_name
from ..model.queue import MessageQueue
from ..protocol.headers import CheckTransactionStateRequest
from .async_sends import AsyncSends
from .async_sends import SendCallback as SendCallback
from .batching import Batcher, Pile
from .delivery import Delivery
from .destinations import Destinations, wanted_queue
from .express import Express
from .hooks import CommunicationMode, ForbiddenHook, SendHook
from .latency import LatencyTable
from .outgoing import (
    MESSAGE_BYTES_MAX,
    is_batchable,
)
from .packing import Packer
from .producer_config import ProducerConfig as ProducerConfig
from .queue_choice import PublishInfo, QueueSelector
from .receipts import SendReceipt
from .request_reply import reply_to, request_properties
from .send_hooks import SendHooks
from .send_requests import SendRequests, receipt_of
from .session import Session
from .trace import INNER_GROUP, TraceWriter
from .transactions import Check, Transaction, Transactions

logger = logging.getLogger(__name__)


class Producer:
    """Sends messages; an async context manager. Use mq.producer(group) to make one."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        *,
        send_hooks: Iterable[SendHook] = (),
        forbidden_hooks: Iterable[ForbiddenHook] = (),
        check: Check | None = None,
    ) -> None:
        self.config = config
        self._session = session
        self._clock = session.clock
        self._group = session.wrap(config.group)
        check_group_name(self._group)
        self._latency: LatencyTable | None = None
        if config.send_latency_fault_enable:
            self._latency = LatencyTable(config.latency_policy, session.clock, session.rng)
        self._hooks = SendHooks(session, config.group, send_hooks, forbidden_hooks)
        self._destinations = Destinations(session, config, self._latency)
        self._requests = SendRequests(self._group, config, session.clock)
        self._delivery = Delivery(
            session, config, self._destinations, self._requests, self._hooks, self._latency
        )
        self._express = Express(session, config, self._destinations, self._requests, self._hooks)
        self._packer = Packer(session, config)
        self._transactions = Transactions(
            session,
            self._group,
            config,
            packer=self._packer,
            delivery=self._delivery,
            destinations=self._destinations,
            check=check,
        )
        self._async_sends = AsyncSends()
        self._batcher: Batcher | None = None
        self._tracer: TraceWriter | None = None
        self._trace_task: asyncio.Task[None] | None = None
        self._is_open = False

    # Opening and closing.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the session; a producer that was closed may be started again."""
        if self._is_open:
            return
        self._session.join_producer(self)
        if self.config.linger_ms is not None:
            self._batcher = Batcher(
                self._send_pile,
                self._session.spawn,
                linger_ms=self.config.linger_ms,
                batch_bytes_max=min(self.config.batch_bytes_max, self.config.max_message_size),
                buffer_bytes_max=self.config.buffer_bytes_max,
            )
        if self.config.enable_msg_trace:
            self._start_tracing()
        self._is_open = True

    async def close(self) -> None:
        """Wait for what is under way, then leave; safe to call again."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._batcher is not None:
                await self._batcher.flush()
            await self._async_sends.wait()
            if self._tracer is not None:
                await self._stop_tracing(self._tracer)
        finally:
            if self._batcher is not None:
                self._batcher.abandon()
                self._batcher = None
            self._async_sends.cancel()
            await self._session.leave_producer(self)

    @property
    def group(self) -> str:
        """Its group, as brokers know it."""
        return self._group

    @property
    def latency_table(self) -> LatencyTable | None:
        """Which brokers were slow; None unless send_latency_fault_enable is set."""
        return self._latency

    def add_send_hook(self, hook: SendHook) -> None:
        """Let a hook see each try to send."""
        self._hooks.send.append(hook)

    def add_forbidden_hook(self, hook: ForbiddenHook) -> None:
        """Let a hook refuse messages."""
        self._hooks.forbidden.append(hook)

    # Sending.

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message and wait until a broker has stored it; raises ClientError.

        Messages with the same key go to the same queue, in the order in which they were stored.
        """
        is_free = queue is None and key is None and selector is None
        batcher = self._batcher
        if batcher is not None and timeout_ms is None and is_batchable(message):
            if is_free and batcher.has_room:
                return await self._pile_up(batcher, message, None)
            return await self._send_batched(batcher, message, queue, key, selector, argument)
        self._require_open()
        budget_ms = self.config.send_msg_timeout_ms if timeout_ms is None else timeout_ms
        if is_free:
            hot = self._express.begin(message, budget_ms)
            if hot is None:
                outgoing = self._packer.one(message, self._session.wrap(message.topic))
                return (await self._delivery.deliver(outgoing, budget_ms))[0]
            link, command, answer, began_ms, chosen, message_id = hot
            opaque = command.opaque
            try:
                return receipt_of(await answer, message, message_id, chosen, link.address)
            except (TransportError, BrokerError) as error:
                failure = error
            finally:
                link.finish(opaque)
            topic = self._session.wrap(message.topic)
            outgoing = self._packer.one(message, topic, message_id=message_id)
            failed = (began_ms, chosen, failure)
            return (await self._delivery.deliver(outgoing, budget_ms, failed=failed))[0]
        topic = self._session.wrap(message.topic)
        outgoing = self._packer.one(message, topic)
        info = await self._destinations.find(topic)
        chosen = wanted_queue(info, message, queue, key, selector, argument)
        return (await self._delivery.deliver_to(outgoing, info, chosen, budget_ms))[0]

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Task[SendReceipt]:
        """Begin to send a message; the callback, and whoever awaits the task, hear how it ended."""
        self._require_open()
        send = partial(self._send_later, message, queue, key, selector, argument, timeout_ms)
        return self._async_sends.begin(send, callback)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        """Hand a message to the network and forget it; it may be lost without a word."""
        self._require_open()
        topic = self._session.wrap(message.topic)
        outgoing = self._packer.one(message, topic)
        info = await self._destinations.find(topic)
        if queue is None and key is None and selector is None:
            chosen = self._destinations.next_queue(info, None)
        else:
            chosen = wanted_queue(info, message, queue, key, selector, argument)
        address = self._destinations.address_of(info, chosen)
        context = self._hooks.before(outgoing, chosen, address, CommunicationMode.ONEWAY)
        command = self._requests.command(outgoing, chosen, oneway=True)
        try:
            await self._session.channels.send_oneway(address, command)
        except TransportError as error:
            logger.info("topic=%s oneway message lost: %s", topic, error)
            self._session.doubt_route(topic)
        if context is not None:
            self._hooks.after(context, 0, (), None)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> tuple[SendReceipt, ...]:
        """Send messages of one topic in one request; one receipt for each, in order."""
        self._require_open()
        batch = tuple(messages)
        if not batch:
            raise InvalidMessage("a batch without messages", hint="give at least one")
        topic = self._session.wrap(batch[0].topic)
        outgoing = self._packer.batch(batch, topic)
        budget_ms = self._budget_ms(timeout_ms)
        if queue is None and key is None:
            return await self._delivery.deliver(outgoing, budget_ms)
        info = await self._destinations.find(topic)
        chosen = wanted_queue(info, batch[0], queue, key, None, None)
        return await self._delivery.deliver_to(outgoing, info, chosen, budget_ms)

    async def flush(self) -> None:
        """Send what waits to be batched, and wait until all that is under way has ended."""
        if self._batcher is not None:
            await self._batcher.flush()
        await self._async_sends.wait()

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be sent to; raises NoRoute."""
        self._require_open()
        info = await self._destinations.find(self._session.wrap(topic))
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in info.queues]

    async def publish_info(self, topic: str) -> PublishInfo:
        """What is known of where a topic may be sent to, and whose turn it is; raises NoRoute."""
        self._require_open()
        return await self._destinations.find(self._session.wrap(topic))

    def transaction(self, *, id: str | None = None) -> Transaction:
        """Messages that are seen if the block succeeds, and never if it raises.

        async with producer.transaction() as transaction:
            await transaction.send(message)
        """
        self._require_open()
        return Transaction(self._transactions, id=id)

    # Request and reply.

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_ms: int | None = None,
    ) -> StoredMessage:
        """Send a message and wait for the reply that a consumer of it sends."""
        self._require_open()
        budget_ms = self._budget_ms(timeout_ms)
        began_ms = self._clock.monotonic_ms()
        topic = self._session.wrap(message.topic)
        if topic not in self._destinations.infos:
            # The broker pushes the reply over the connection that the heartbeat made known.
            await self._destinations.find(topic)
            await self._session.heartbeat()
        correlation_id, answer = self._session.replies.expect()
        try:
            marks = request_properties(correlation_id, self._session.client_id, budget_ms)
            outgoing = self._packer.request(message, topic, marks)
            if queue is None and key is None and selector is None:
                await self._delivery.deliver(outgoing, budget_ms)
            else:
                info = await self._destinations.find(topic)
                chosen = wanted_queue(info, message, queue, key, selector, argument)
                await self._delivery.deliver_to(outgoing, info, chosen, budget_ms)
            rest_ms = budget_ms - (self._clock.monotonic_ms() - began_ms)
            try:
                async with asyncio.timeout(max(0, rest_ms) / 1000):
                    return await answer
            except TimeoutError:
                raise RequestTimedOut(
                    f"send request message to <{message.topic}> OK, but wait reply message"
                    f" timeout, {budget_ms} ms",
                    hint="check that a consumer replies, or give it more time",
                ) from None
        finally:
            self._session.replies.forget(correlation_id)

    async def reply(
        self, request: StoredMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Answer a request message; the broker that stored it hands this to the requester."""
        self._require_open()
        message, marks = reply_to(request, body)
        outgoing = self._packer.reply(message, marks)
        budget_ms = self._budget_ms(timeout_ms)
        return (await self._delivery.deliver(outgoing, budget_ms, is_reply=True))[0]

    # What the session asks.

    async def check_transaction(
        self, header: CheckTransactionStateRequest, half: StoredMessage, address: str
    ) -> bool:
        """Answer a broker's question about a half message; False where it is not known here."""
        return await self._transactions.check(header, half, address)

    # Batching, callbacks, traces.

    async def _send_batched(
        self,
        batcher: Batcher,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        selector: QueueSelector | None,
        argument: Any,
    ) -> SendReceipt:
        self._require_open()
        if not batcher.has_room:
            await batcher.wait_room()
        if queue is not None or key is not None or selector is not None:
            info = await self._destinations.find(self._session.wrap(message.topic))
            queue = wanted_queue(info, message, queue, key, selector, argument)
        return await self._pile_up(batcher, message, queue)

    def _pile_up(
        self, batcher: Batcher, message: Message, queue: MessageQueue | None
    ) -> asyncio.Future[SendReceipt]:
        self._require_open()
        topic = self._session.wrap(message.topic)
        message_id, entry = self._packer.entry(message, topic)
        return batcher.add(message, message_id, entry, topic=topic, queue=queue)

    async def _send_pile(self, pile: Pile, queue: MessageQueue | None) -> tuple[SendReceipt, ...]:
        outgoing = self._packer.pile(pile)
        budget_ms = self.config.send_msg_timeout_ms
        if queue is None:
            return await self._delivery.deliver(outgoing, budget_ms)
        info = await self._destinations.find(pile.topic)
        return await self._delivery.deliver_to(outgoing, info, queue, budget_ms)

    async def _send_later(
        self,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        selector: QueueSelector | None,
        argument: Any,
        timeout_ms: int | None,
    ) -> SendReceipt:
        is_free = queue is None and key is None and selector is None
        if is_free and self._batcher is None:
            outgoing = self._packer.one(message, self._session.wrap(message.topic))
            mode = CommunicationMode.ASYNC
            return (await self._delivery.deliver(outgoing, self._budget_ms(timeout_ms), mode))[0]
        return await self.send(
            message,
            queue=queue,
            key=key,
            selector=selector,
            argument=argument,
            timeout_ms=timeout_ms,
        )

    def _start_tracing(self) -> None:
        group = f"{INNER_GROUP}-{self.config.group}-PRODUCE-{self._session.rng.randrange(1 << 16)}"
        inner = Producer(
            self._session, ProducerConfig(group=group, max_message_size=MESSAGE_BYTES_MAX)
        )
        inner._is_open = True  # It has no group to keep alive: nobody asks it anything.
        writer = self._tracer = TraceWriter(self.config.trace_topic, inner.send, self._clock)
        self._hooks.send.append(writer)
        self._transactions.tracer = writer
        self._trace_task = self._session.spawn(writer.run())

    async def _stop_tracing(self, writer: TraceWriter) -> None:
        self._hooks.send.remove(writer)
        self._transactions.tracer = None
        if self._trace_task is not None:
            self._trace_task.cancel()
        await writer.flush()
        self._tracer = None

    def _budget_ms(self, timeout_ms: int | None) -> int:
        return self.config.send_msg_timeout_ms if timeout_ms is None else timeout_ms

    def _require_open(self) -> None:
        if not self._is_open:
            raise ClientClosed(
                f"producer {self.config.group!r} is not open",
                hint="use it inside `async with mq.producer(...)`",
            )
