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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ..errors import (
    BrokerBusy,
    BrokerError,
    CallTimeout,
    ClientClosed,
    ClientError,
    ConfigError,
    ConnectFailed,
    InvalidMessage,
    NoRoute,
    RequestTimedOut,
    SendFailed,
    SkylarkError,
    TransportError,
)
from ..model.message import CompressionType, Message, Property, StoredMessage
from ..model.names import check_group_name
from ..model.queue import MessageQueue
from ..model.topic import AUTO_CREATE_TOPIC, TRACE_TOPIC
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..protocol.compression import COMPRESS_FROM_BYTES
from ..protocol.headers import CheckTransactionStateRequest
from ..remote import SendStatus
from ..remote.broker import SEND_STATUS_BY_CODE
from .batching import Batcher, Pile
from .hints import hint_for
from .hooks import CommunicationMode, ForbiddenHook, SendContext, SendHook
from .latency import POLICY_4_9, LatencyPolicy, LatencyTable
from .outgoing import (
    MESSAGE_BYTES_MAX,
    Outgoing,
    check_topic,
    entry_of,
    is_batchable,
    join_batch,
    prepare,
    prepare_batch,
    properties_text,
)
from .pipelining import PipelinedLink
from .queue_choice import PublishInfo, QueueSelector, hash_position
from .receipts import SendReceipt
from .request_reply import reply_to, request_properties
from .routes import TOPICS_MAX
from .session import Session
from .trace import INNER_GROUP, TraceWriter

logger = logging.getLogger(__name__)

RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
ASYNC_SENDS_MAX: Final = 65_535  # Beyond it, send_async refuses: its caller does not wait.
SETTLE_INTERVAL_MS: Final = 1_000  # How often a topic that has been created is asked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of one producer; the names are RocketMQ's, the defaults 4.9.8's."""

    group: str
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = 4
    send_msg_timeout_ms: int = 3_000
    compress_msg_body_over_howmuch: int = COMPRESS_FROM_BYTES
    compression: CompressionType = CompressionType.ZLIB
    max_message_size: int = MESSAGE_BYTES_MAX
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_async_on_same_broker: bool = False
    retry_another_broker_when_not_store_ok: bool = False
    retry_system_busy: bool = False
    busy_backoff_ms: int = 100  # Doubled at each further refusal.
    send_latency_fault_enable: bool = False
    latency_policy: LatencyPolicy = POLICY_4_9
    linger_ms: float | None = None  # None sends each message alone; 0 joins those of one moment.
    batch_bytes_max: int = 128 * 1024
    buffer_bytes_max: int = 32 * 1024 * 1024
    enable_msg_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        check_group_name(self.group)
        if self.group == DEFAULT_GROUP:
            raise ConfigError(f"a producer group may not be called {DEFAULT_GROUP}; name it")
        for name in ("send_msg_timeout_ms", "default_topic_queue_nums", "max_message_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is too small; use 1 or more")
        for name in ("retry_times_when_send_failed", "retry_times_when_send_async_failed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} may not be negative; use 0 for no retry")
        if self.linger_ms is not None and self.linger_ms < 0:
            raise ConfigError("linger_ms may not be negative; use None to send messages singly")
        if self.batch_bytes_max < 1 or self.buffer_bytes_max < self.batch_bytes_max:
            raise ConfigError("buffer_bytes_max must be at least batch_bytes_max, and that 1")


_SEND_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
_Hot = tuple[PipelinedLink, Command, asyncio.Future[Command], int, MessageQueue, str]


class SendCallback(Protocol):
    """Told how a send_async ended; exactly one of the two is called, once."""

    def on_success(self, receipt: SendReceipt) -> None:
        """A broker has stored the message."""
        ...

    def on_exception(self, error: Exception) -> None:
        """No broker confirmed it."""
        ...


class Producer:
    """Sends messages; an async context manager. Use mq.producer(group) to make one."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        *,
        send_hooks: Iterable[SendHook] = (),
        forbidden_hooks: Iterable[ForbiddenHook] = (),
    ) -> None:
        self.config = config
        self._session = session
        self._clock = session.clock
        self._group = session.wrap(config.group)
        check_group_name(self._group)
        self._publish: dict[str, PublishInfo] = {}
        self._settled_ms: dict[str, int] = {}
        self._latency: LatencyTable | None = None
        if config.send_latency_fault_enable:
            self._latency = LatencyTable(config.latency_policy, session.clock, session.rng)
        self._send_hooks: list[SendHook] = list(send_hooks)
        self._forbidden_hooks: list[ForbiddenHook] = list(forbidden_hooks)
        self._extra: dict[str, str] | None = None
        if session.namespace:
            self._extra = {Property.INSTANCE_ID: session.namespace}
        # Larger bodies are checked or compressed; names and marks of a namespace need work too.
        self._hot_bytes_max = 0
        if not session.namespace and not session.config.vip_channel_enabled:
            self._hot_bytes_max = min(
                config.compress_msg_body_over_howmuch, config.max_message_size + 1
            )
        self._batcher: Batcher | None = None
        self._tracer: TraceWriter | None = None
        self._trace_task: asyncio.Task[None] | None = None
        self._pending: set[asyncio.Task[SendReceipt]] = set()
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
            if self._pending:
                await asyncio.wait(self._pending)
            if self._tracer is not None:
                await self._stop_tracing(self._tracer)
        finally:
            if self._batcher is not None:
                self._batcher.abandon()
                self._batcher = None
            for task in self._pending:
                task.cancel()
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
        self._send_hooks.append(hook)

    def add_forbidden_hook(self, hook: ForbiddenHook) -> None:
        """Let a hook refuse messages."""
        self._forbidden_hooks.append(hook)

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
            hot = self._begin_hot(message, budget_ms)
            if hot is None:
                outgoing = self._prepare(message, self._session.wrap(message.topic))
                return (await self._deliver(outgoing, budget_ms, CommunicationMode.SYNC))[0]
            link, command, answer, began_ms, chosen, message_id = hot
            opaque = command.opaque
            try:
                return self._receipt(await answer, message, message_id, chosen, link.address)
            except (TransportError, BrokerError) as error:
                failure = error
            finally:
                link.finish(opaque)
            topic = self._session.wrap(message.topic)
            outgoing = self._prepare(message, topic, message_id=message_id)
            failed = (began_ms, chosen, failure)
            mode = CommunicationMode.SYNC
            return (await self._deliver(outgoing, budget_ms, mode, failed=failed))[0]
        topic = self._session.wrap(message.topic)
        outgoing = self._prepare(message, topic)
        info = await self._publish_info(topic)
        chosen = self._choose(info, message, queue, key, selector, argument)
        return (await self._deliver_to(outgoing, info, chosen, budget_ms))[0]

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
        if len(self._pending) >= ASYNC_SENDS_MAX:
            raise ClientError(
                f"{ASYNC_SENDS_MAX} messages are under way already", hint="await some of them first"
            )
        coroutine = self._send_async(message, callback, queue, key, selector, argument, timeout_ms)
        task = asyncio.get_running_loop().create_task(coroutine)
        self._pending.add(task)
        task.add_done_callback(self._async_done)
        return task

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
        outgoing = self._prepare(message, topic)
        info = await self._publish_info(topic)
        if queue is None and key is None and selector is None:
            chosen = self._next_queue(info, None)
        else:
            chosen = self._choose(info, message, queue, key, selector, argument)
        address = self._address_of(info, chosen)
        context = self._before(outgoing, chosen, address, CommunicationMode.ONEWAY)
        command = self._command(outgoing, chosen, oneway=True)
        try:
            await self._session.channels.send_oneway(address, command)
        except TransportError as error:
            logger.info("topic=%s oneway message lost: %s", topic, error)
            self._session.doubt_route(topic)
        if context is not None:
            self._after(context, 0, (), None)

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
        outgoing = prepare_batch(
            batch,
            topic=topic,
            message_ids=[self._session.unique_ids.next() for _ in batch],
            message_bytes_max=self.config.max_message_size,
            extra_properties=self._extra,
        )
        budget_ms = self.config.send_msg_timeout_ms if timeout_ms is None else timeout_ms
        if queue is None and key is None:
            return await self._deliver(outgoing, budget_ms, CommunicationMode.SYNC)
        info = await self._publish_info(topic)
        chosen = self._choose(info, batch[0], queue, key, None, None)
        return await self._deliver_to(outgoing, info, chosen, budget_ms)

    async def flush(self) -> None:
        """Send what waits to be batched, and wait until all that is under way has ended."""
        if self._batcher is not None:
            await self._batcher.flush()
        if self._pending:
            await asyncio.wait(self._pending)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be sent to; raises NoRoute."""
        self._require_open()
        info = await self._publish_info(self._session.wrap(topic))
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in info.queues]

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
        budget_ms = self.config.send_msg_timeout_ms if timeout_ms is None else timeout_ms
        began_ms = self._clock.monotonic_ms()
        topic = self._session.wrap(message.topic)
        if topic not in self._publish:
            # The broker pushes the reply over the connection that the heartbeat made known.
            await self._publish_info(topic)
            await self._session.heartbeat()
        correlation_id, answer = self._session.replies.expect()
        try:
            marks = request_properties(correlation_id, self._session.client_id, budget_ms)
            outgoing = self._prepare(message, topic, {**(self._extra or {}), **marks})
            if queue is None and key is None and selector is None:
                await self._deliver(outgoing, budget_ms, CommunicationMode.SYNC)
            else:
                info = await self._publish_info(topic)
                chosen = self._choose(info, message, queue, key, selector, argument)
                await self._deliver_to(outgoing, info, chosen, budget_ms)
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
        outgoing = self._prepare(message, message.topic, marks)
        budget_ms = self.config.send_msg_timeout_ms if timeout_ms is None else timeout_ms
        mode = CommunicationMode.SYNC
        return (await self._deliver(outgoing, budget_ms, mode, is_reply=True))[0]

    # What the session asks.

    async def check_transaction(
        self, header: CheckTransactionStateRequest, half: StoredMessage, address: str
    ) -> None:
        """This kind of producer sends no half messages; another of its group may answer."""
        logger.warning(
            "group=%s asked about a half message of %s by %s, which it did not send",
            self._group,
            half.topic,
            address,
        )

    # One message, all its tries.

    async def _deliver(
        self,
        outgoing: Outgoing,
        budget_ms: int,
        mode: CommunicationMode,
        *,
        is_reply: bool = False,
        failed: tuple[int, MessageQueue, TransportError | BrokerError] | None = None,
    ) -> tuple[SendReceipt, ...]:
        """Try until a broker has stored it; the first try may have failed already, at a time."""
        config = self.config
        clock = self._clock
        topic = outgoing.topic
        began_ms = clock.monotonic_ms() if failed is None else failed[0]
        is_sync = mode is CommunicationMode.SYNC
        tries_max = 1 + (
            config.retry_times_when_send_failed
            if is_sync
            else config.retry_times_when_send_async_failed
        )
        tried: list[str] = []
        last_error: SkylarkError | None = None
        receipts: tuple[SendReceipt, ...] = ()
        avoid: str | None = None
        is_ambiguous = False
        refusals = 0
        while len(tried) < tries_max:
            info = await self._publish_info(topic)
            queue = self._next_queue(info, avoid) if failed is None else failed[1]
            rest_ms = budget_ms - (clock.monotonic_ms() - began_ms)
            if rest_ms <= 0 and failed is None:
                break
            if avoid is not None and config.retry_async_on_same_broker and not is_sync:
                count = info.write_counts.get(avoid, 0)
                if count:
                    queue = MessageQueue(topic, avoid, queue.queue_id % count)
            avoid = queue.broker_name
            tried.append(queue.broker_name)
            try:
                if failed is not None:
                    failure, failed = failed[2], None
                    raise failure
                receipts = await self._try(outgoing, info, queue, rest_ms, mode, is_reply=is_reply)
            except TransportError as error:
                last_error = error
                is_ambiguous = is_ambiguous or not isinstance(error, ConnectFailed)
                self._session.doubt_route(topic)
                continue
            except BrokerError as error:
                last_error = error
                if is_sync and error.code in RETRY_CODES:
                    if error.code == ResponseCode.TOPIC_NOT_EXIST:
                        self._session.doubt_route(topic)
                    continue
                if config.retry_system_busy and error.code in BUSY_CODES:
                    pause_ms = config.busy_backoff_ms << refusals
                    refusals += 1
                    await clock.sleep_ms(min(pause_ms, max(0, rest_ms)))
                    continue
                if receipts:
                    break
                raise self._refused(error, queue, tried, is_ambiguous) from error
            if info.is_borrowed:
                self._settle_topic(info, queue)
            if (
                receipts[0].status is SendStatus.SEND_OK
                or not is_sync
                or not config.retry_another_broker_when_not_store_ok
            ):
                return receipts
        if receipts:
            return receipts  # Stored, and not as safe as asked for: still the best we have.
        cost_ms = clock.monotonic_ms() - began_ms
        raise self._failed(outgoing, tried, cost_ms, last_error, is_ambiguous) from last_error

    async def _deliver_to(
        self, outgoing: Outgoing, info: PublishInfo, queue: MessageQueue, budget_ms: int
    ) -> tuple[SendReceipt, ...]:
        """One try, to the queue that the caller wants."""
        began_ms = self._clock.monotonic_ms()
        tried = [queue.broker_name]
        try:
            mode = CommunicationMode.SYNC
            receipts = await self._try(outgoing, info, queue, budget_ms, mode)
        except BrokerError as error:
            raise self._refused(error, queue, tried, False) from error
        except TransportError as error:
            self._session.doubt_route(outgoing.topic)
            cost_ms = self._clock.monotonic_ms() - began_ms
            is_ambiguous = not isinstance(error, ConnectFailed)
            raise self._failed(outgoing, tried, cost_ms, error, is_ambiguous) from error
        if info.is_borrowed:
            self._settle_topic(info, queue)
        return receipts

    async def _try(
        self,
        outgoing: Outgoing,
        info: PublishInfo,
        queue: MessageQueue,
        timeout_ms: int,
        mode: CommunicationMode,
        *,
        is_reply: bool = False,
    ) -> tuple[SendReceipt, ...]:
        address = self._address_of(info, queue)
        context = self._before(outgoing, queue, address, mode)
        command = self._command(outgoing, queue, is_reply=is_reply)
        latency = self._latency
        if context is None and latency is None:
            answer = await self._session.channels.call(address, command, timeout_ms)
            return self._receipts(outgoing, queue, answer, address)
        began_ms = self._clock.monotonic_ms()
        receipts: tuple[SendReceipt, ...] = ()
        failure: Exception | None = None
        try:
            answer = await self._session.channels.call(address, command, timeout_ms)
            receipts = self._receipts(outgoing, queue, answer, address)
            return receipts
        except SkylarkError as error:
            failure = error
            raise
        finally:
            cost_ms = self._clock.monotonic_ms() - began_ms
            if latency is not None:
                latency.update(queue.broker_name, cost_ms, failed=failure is not None)
            if context is not None:
                self._after(context, cost_ms, receipts, failure)

    def _command(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        *,
        oneway: bool = False,
        is_reply: bool = False,
    ) -> Command:
        if is_reply:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        elif outgoing.is_batch:
            code = RequestCode.SEND_BATCH_MESSAGE
        else:
            code = RequestCode.SEND_MESSAGE_V2
        fields = self._fields(outgoing.topic, queue)
        fields["f"] = str(outgoing.sys_flag)
        fields["g"] = str(self._clock.now_ms())
        fields["h"] = str(outgoing.flag)
        fields["i"] = outgoing.properties
        if outgoing.is_batch:
            fields["m"] = "true"
        return Command(int(code), 0, 2 if oneway else 0, fields, outgoing.body)

    def _fields(self, topic: str, queue: MessageQueue) -> dict[str, str]:
        """The send header as SendMessageRequestV2 writes it, but for what each message adds."""
        return {
            "a": self._group,
            "b": topic,
            "c": self.config.create_topic_key,
            "d": str(self.config.default_topic_queue_nums),
            "e": str(queue.queue_id),
            "f": "0",
            "g": "0",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }

    def _receipts(
        self, outgoing: Outgoing, queue: MessageQueue, answer: Command, address: str
    ) -> tuple[SendReceipt, ...]:
        message_ids = outgoing.message_ids
        first = self._receipt(answer, outgoing.messages[0], message_ids[0], queue, address)
        if not outgoing.is_batch:
            return (first,)
        status, _, joined_ids, queue, queue_offset, transaction_id, region, trace_on = first
        offset_ids = joined_ids.split(",")
        if len(offset_ids) != len(message_ids):
            offset_ids = [joined_ids] * len(message_ids)
        return tuple(
            SendReceipt(
                status,
                message_id,
                offset_id,
                queue,
                queue_offset + step,
                transaction_id,
                region,
                trace_on,
            )
            for step, (message_id, offset_id) in enumerate(
                zip(message_ids, offset_ids, strict=True)
            )
        )

    def _receipt(
        self, answer: Command, message: Message, message_id: str, queue: MessageQueue, address: str
    ) -> SendReceipt:
        """What an answer says of a message, or of the first of a batch; raises BrokerError."""
        status = SEND_STATUS_BY_CODE.get(answer.code)
        if status is None:
            raise BrokerError(answer.code, answer.remark, address)
        fields = answer.fields
        try:
            queue_id, queue_offset = int(fields["queueId"]), int(fields["queueOffset"])
        except (KeyError, ValueError):
            problem = "it says the message is stored, and not where"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, problem, address) from None
        topic = message.topic
        if queue.queue_id != queue_id or queue.topic != topic:
            # The queue as the application names it; the broker may have picked another one.
            queue = MessageQueue(topic, queue.broker_name, queue_id)
        return SendReceipt(
            status,
            message_id,
            fields.get("msgId", ""),
            queue,
            queue_offset,
            fields.get("transactionId"),
            fields.get("MSG_REGION"),
            fields.get("TRACE_ON") == "true",
        )

    def _begin_hot(self, message: Message, budget_ms: int) -> _Hot | None:
        """Begin the first try of an ordinary message at once; None if anything is in its way.

        What _deliver would do, without its detours: most messages go this way, and all others,
        and all further tries, the long one.
        """
        topic = message.topic
        info = self._publish.get(topic)
        if (
            info is None
            or info.is_borrowed
            or info.route is not self._session.routes.known(topic)
            or not 0 < len(message.body) < self._hot_bytes_max
            or self._send_hooks
            or self._forbidden_hooks
            or self._latency is not None
        ):
            return None
        check_topic(topic)
        queue = info.next()
        link = self._session.channels.ready_link(info.addresses.get(queue.broker_name, ""))
        if link is None:
            info.give_back()
            return None
        message_id = self._session.unique_ids.next()
        fields = info.headers.get(queue)
        if fields is None:
            fields = info.headers[queue] = self._fields(topic, queue)
        fields = fields.copy()
        fields["g"] = str(self._clock.now_ms())
        if message.flag:
            fields["h"] = str(message.flag)
        fields["i"] = properties_text(message, message_id)
        command = Command(_SEND_CODE, 0, 0, fields, message.body)
        began_ms = self._clock.monotonic_ms()
        answer = link.submit(command, budget_ms)
        return link, command, answer, began_ms, queue, message_id

    # Choosing.

    async def _publish_info(self, topic: str) -> PublishInfo:
        """Where a topic may be sent to; raises NoRoute."""
        info = self._publish.get(topic)
        route = self._session.routes.known(topic)
        if info is not None and (info.route is route or (route is None and info.is_borrowed)):
            if info.queues:
                return info
            # Known to have no writable queue: perhaps that has changed.
            await self._session.routes.refresh(topic)
        return await self._find_topic(topic)

    async def _find_topic(self, topic: str) -> PublishInfo:
        session = self._session
        info: PublishInfo | None = None
        cause: SkylarkError | None = None
        try:
            info = PublishInfo(topic, await session.routes.get(topic), session.rng)
        except BrokerError as error:
            cause = error
        except TransportError as error:
            raise NoRoute(
                f"no name server can say who serves topic {topic!r}: {error.problem}",
                hint="start one, or check namesrv_addr",
            ) from error
        if info is None or (not info.queues and not info.route.queues):
            info = await self._borrow_route(topic)
        if info is None or not info.queues:
            raise NoRoute(
                f"No route info of this topic: {topic}",
                hint=(
                    "create the topic, or let brokers create topics (autoCreateTopicEnable)"
                    if info is None
                    else "no broker with a master lets it be written to: look at perm and brokers"
                ),
                code=ResponseCode.TOPIC_NOT_EXIST,
            ) from cause
        if len(self._publish) >= TOPICS_MAX:
            self._publish.clear()  # All can be found again; nobody sends to so many at once.
            self._settled_ms.clear()
        self._publish[topic] = info
        return info

    async def _borrow_route(self, topic: str) -> PublishInfo | None:
        """Send a new topic where the template topic is; the broker then creates it."""
        try:
            route = await self._session.routes.get(self.config.create_topic_key)
        except (BrokerError, TransportError) as error:
            logger.info("topic=%s cannot be created: %s", topic, error)
            return None
        count_max = self.config.default_topic_queue_nums
        return PublishInfo(topic, route, self._session.rng, queue_count_max=count_max)

    def _settle_topic(self, info: PublishInfo, queue: MessageQueue) -> None:
        """A topic was created by sending to it; learn its own route when that is worth having.

        Not before every broker has had a message: its own route names only those that have it,
        and would keep the topic on the first of them for ever.
        """
        info.unreached.discard(queue.broker_name)
        now_ms = self._clock.monotonic_ms()
        last_ms = self._settled_ms.setdefault(info.topic, now_ms)
        waited_ms = now_ms - last_ms
        interval_ms = self._session.config.poll_name_server_interval_ms
        if info.unreached:
            is_due = waited_ms >= interval_ms
        else:
            is_due = waited_ms >= SETTLE_INTERVAL_MS
        if is_due:
            self._settled_ms[info.topic] = now_ms
            self._session.spawn(self._learn_route(info.topic))

    async def _learn_route(self, topic: str) -> None:
        try:
            await self._session.routes.get(topic)
        except (BrokerError, TransportError) as error:
            logger.info("topic=%s not known to name servers yet: %s", topic, error)

    def _next_queue(self, info: PublishInfo, avoid: str | None) -> MessageQueue:
        if self._latency is not None:
            return info.next_available(self._latency)
        return info.next(avoid=avoid)

    def _choose(
        self,
        info: PublishInfo,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        selector: QueueSelector | None,
        argument: Any,
    ) -> MessageQueue:
        """The queue that the caller wants."""
        if sum(choice is not None for choice in (queue, key, selector)) > 1:
            raise InvalidMessage(
                "more than one of queue, key and selector is given", hint="give one of them"
            )
        if queue is not None:
            if queue.topic not in (message.topic, info.topic):
                raise InvalidMessage(
                    f"message's topic not equal mq's topic: {message.topic!r}, {queue.topic!r}",
                    hint="send to a queue of the message's own topic",
                )
            return MessageQueue(info.topic, queue.broker_name, queue.queue_id)
        if key is not None:
            return info.queues[hash_position(key, len(info.queues))]
        assert selector is not None
        offered = info.queues
        if info.topic != message.topic:
            offered = tuple(
                MessageQueue(message.topic, item.broker_name, item.queue_id) for item in offered
            )
        chosen = selector(offered, message, argument)
        if not isinstance(chosen, MessageQueue):
            raise InvalidMessage(
                f"the selector returned {type(chosen).__name__}", hint="return one of the queues"
            )
        return MessageQueue(info.topic, chosen.broker_name, chosen.queue_id)

    def _address_of(self, info: PublishInfo, queue: MessageQueue) -> str:
        address = info.addresses.get(queue.broker_name)
        if address is None:
            address = self._session.master_address(queue.broker_name)
        if address is None:
            raise NoRoute(
                f"The broker[{queue.broker_name}] not exist",
                hint="its master may be down: choose another queue, or wait for it",
                broker=queue.broker_name,
            )
        return self._session.send_address(address)

    # Batching, callbacks, hooks, traces.

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
            info = await self._publish_info(self._session.wrap(message.topic))
            queue = self._choose(info, message, queue, key, selector, argument)
        return await self._pile_up(batcher, message, queue)

    def _pile_up(
        self, batcher: Batcher, message: Message, queue: MessageQueue | None
    ) -> asyncio.Future[SendReceipt]:
        self._require_open()
        topic = self._session.wrap(message.topic)
        message_id = self._session.unique_ids.next()
        entry = entry_of(message, topic, message_id, self.config.max_message_size, self._extra)
        return batcher.add(message, message_id, entry, topic=topic, queue=queue)

    async def _send_pile(self, pile: Pile, queue: MessageQueue | None) -> tuple[SendReceipt, ...]:
        limit = self.config.max_message_size
        if len(pile.messages) == 1:
            outgoing = self._prepare(pile.messages[0], pile.topic, message_id=pile.message_ids[0])
        else:
            outgoing = join_batch(pile.messages, pile.topic, pile.message_ids, pile.entries, limit)
        budget_ms = self.config.send_msg_timeout_ms
        if queue is None:
            return await self._deliver(outgoing, budget_ms, CommunicationMode.SYNC)
        info = await self._publish_info(pile.topic)
        return await self._deliver_to(outgoing, info, queue, budget_ms)

    async def _send_async(
        self,
        message: Message,
        callback: SendCallback | None,
        queue: MessageQueue | None,
        key: str | None,
        selector: QueueSelector | None,
        argument: Any,
        timeout_ms: int | None,
    ) -> SendReceipt:
        try:
            if self._batcher is not None or not (
                queue is None and key is None and selector is None
            ):
                receipt = await self.send(
                    message,
                    queue=queue,
                    key=key,
                    selector=selector,
                    argument=argument,
                    timeout_ms=timeout_ms,
                )
            else:
                outgoing = self._prepare(message, self._session.wrap(message.topic))
                budget_ms = self.config.send_msg_timeout_ms if timeout_ms is None else timeout_ms
                receipt = (await self._deliver(outgoing, budget_ms, CommunicationMode.ASYNC))[0]
        except SkylarkError as error:
            if callback is not None:
                callback.on_exception(error)
            raise
        if callback is not None:
            callback.on_success(receipt)
        return receipt

    def _async_done(self, task: asyncio.Task[SendReceipt]) -> None:
        self._pending.discard(task)
        if task.cancelled():
            return
        error = task.exception()  # Taken: a caller with a callback need not await the task too.
        if error is not None and not isinstance(error, SkylarkError):
            logger.error("a send_async ended with a surprise", exc_info=error)

    def _before(
        self, outgoing: Outgoing, queue: MessageQueue, address: str, mode: CommunicationMode
    ) -> SendContext | None:
        if not self._send_hooks and not self._forbidden_hooks:
            return None
        context = SendContext(
            group=self.config.group,
            messages=outgoing.messages,
            message_ids=outgoing.message_ids,
            queue=queue,
            broker_address=address,
            mode=mode,
            message_type=outgoing.message_type,
            namespace=self._session.namespace,
            born_at_ms=self._clock.now_ms(),
        )
        for forbidden in self._forbidden_hooks:
            forbidden.check_forbidden(context)
        for hook in self._send_hooks:
            hook.before_send(context)
        return context

    def _after(
        self,
        context: SendContext,
        cost_ms: int,
        receipts: tuple[SendReceipt, ...],
        error: Exception | None,
    ) -> None:
        context.cost_ms = cost_ms
        context.receipts = receipts
        context.error = error
        for hook in self._send_hooks:
            try:
                hook.after_send(context)
            except Exception:
                logger.exception("topic=%s a hook failed after a send", context.queue.topic)

    def _start_tracing(self) -> None:
        group = f"{INNER_GROUP}-{self.config.group}-PRODUCE-{self._session.rng.randrange(1 << 16)}"
        inner = Producer(
            self._session, ProducerConfig(group=group, max_message_size=MESSAGE_BYTES_MAX)
        )
        inner._is_open = True  # It has no group to keep alive: nobody asks it anything.
        writer = self._tracer = TraceWriter(self.config.trace_topic, inner.send, self._clock)
        self._send_hooks.append(writer)
        self._trace_task = self._session.spawn(writer.run())

    async def _stop_tracing(self, writer: TraceWriter) -> None:
        self._send_hooks.remove(writer)
        if self._trace_task is not None:
            self._trace_task.cancel()
        await writer.flush()
        self._tracer = None

    # Preparing, and saying what went wrong.

    def _prepare(
        self,
        message: Message,
        topic: str,
        extra: Mapping[str, str] | None = None,
        *,
        message_id: str | None = None,
    ) -> Outgoing:
        config = self.config
        return prepare(
            message,
            topic=topic,
            message_id=message_id or self._session.unique_ids.next(),
            message_bytes_max=config.max_message_size,
            compress_from_bytes=config.compress_msg_body_over_howmuch,
            compression=config.compression,
            extra_properties=extra if extra is not None else self._extra,
        )

    def _require_open(self) -> None:
        if not self._is_open:
            raise ClientClosed(
                f"producer {self.config.group!r} is not open",
                hint="use it inside `async with mq.producer(...)`",
            )

    def _refused(
        self, error: BrokerError, queue: MessageQueue, tried: Sequence[str], is_ambiguous: bool
    ) -> SendFailed:
        kind = BrokerBusy if error.code in BUSY_CODES else SendFailed
        return kind(
            f"broker {queue.broker_name} ({error.address}) refused a message for topic"
            f" {queue.topic!r} with code {error.code}: {error.remark or 'no remark'}",
            hint=hint_for(error.code),
            code=error.code,
            broker=queue.broker_name,
            brokers_tried=tuple(tried),
            is_ambiguous=is_ambiguous,
        )

    def _failed(
        self,
        outgoing: Outgoing,
        tried: Sequence[str],
        cost_ms: int,
        last_error: SkylarkError | None,
        is_ambiguous: bool,
    ) -> SendFailed:
        code = last_error.code if isinstance(last_error, BrokerError) else None
        if isinstance(last_error, TransportError):
            hint = (
                "it may be stored all the same: send it again only if that is harmless"
                if is_ambiguous
                else "start the broker or check the network, then send again"
            )
            if isinstance(last_error, CallTimeout):
                hint += "; raise send_msg_timeout_ms if brokers are slow"
        else:
            hint = hint_for(code)
        return SendFailed(
            f"Send [{len(tried)}] times, still failed, cost [{cost_ms}]ms, Topic: {outgoing.topic},"
            f" BrokersSent: [{', '.join(tried)}], last: {last_error or 'no time was left'}",
            hint=hint,
            code=code,
            broker=tried[-1] if tried else None,
            brokers_tried=tuple(tried),
            is_ambiguous=is_ambiguous,
        )
