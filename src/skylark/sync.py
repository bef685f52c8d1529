"""The client without await: same names, from any thread, and across a fork.

    with skylark.sync.connect("127.0.0.1:9876") as mq:
        with mq.producer("orders") as producer:
            receipt = producer.send(Message("OrderTopic", b"..."))
        with mq.consumer("billing", {"OrderTopic": "Paid || Refund"}) as consumer:
            for message in consumer:
                ...

All work is done by one thread of its own with a private event loop; the caller's thread waits for
it. Callbacks run on that thread and must not block; handlers of consumers have their own threads.

    after fork, in the child     what it held from the parent is left alone: the parent still uses
                                 it. The first call in the child connects anew, with a client id
                                 of its own. So a producer made before a server forks its workers
                                 works in each of them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from .client.connect import connect as _connect
from .client.facade import Client as _Client
from .client.group_consumer import GroupConsumer as _GroupConsumer
from .client.lite_pull_consumer import POLL_TIMEOUT_MS
from .client.lite_pull_consumer import LitePullConsumer as _LitePullConsumer
from .client.producer import Producer as _Producer
from .client.producer import SendCallback
from .client.pull_consumer import PullConsumer as _PullConsumer
from .client.pull_consumer import PullResult
from .client.push_consumer import MessageHandler
from .client.push_consumer import PushConsumer as _PushConsumer
from .client.queue_choice import QueueSelector
from .client.receipts import SendReceipt
from .client.received import ReceivedMessage
from .client.subscriptions import Expression, Subscriptions
from .client.transactional_producer import TransactionalProducer as _TransactionalProducer
from .client.transactional_producer import TransactionReceipt
from .client.transactions import CheckAnswer, TransactionListener, TransactionState
from .client.transactions import Transaction as _Transaction
from .client.verdicts import RetryLater, ToDlq, Verdict
from .errors import ClientClosed
from .model.message import Message, StoredMessage
from .model.queue import MessageQueue

_T = TypeVar("_T")
_C = TypeVar("_C", bound=_GroupConsumer)

STOP_TIMEOUT_S: Final = 30.0


class _Runtime:
    """A thread, its event loop, and an open client on it."""

    def __init__(self, make_client: Callable[[], _Client]) -> None:
        self.pid = os.getpid()
        self.client = make_client()
        self._loop = _new_loop()
        self._stop = asyncio.Event()
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="skylark-sync", daemon=True)
        self._thread.start()
        self._opened.result()

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the loop and wait for it."""
        return self.begin(coroutine).result()

    def begin(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run something on the loop."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a callback may not wait for the client: it runs on its thread")
        if not self._thread.is_alive():
            coroutine.close()
            raise ClientClosed("the client has ended", hint="connect again")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def tell(self, action: Callable[[], _T]) -> _T:
        """Run a function on the loop and wait for it."""

        async def run() -> _T:
            return action()

        return self.call(run())

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Close the client and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._keep_open())
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                raise
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.close()

    async def _keep_open(self) -> None:
        # One task enters and leaves, as task groups demand, however many threads call meanwhile.
        async with self.client:
            self._opened.set_result(None)
            await self._stop.wait()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Client:
    """One client of a cluster, for threads; a context manager."""

    def __init__(self, make_client: Callable[[], _Client]) -> None:
        self._make_client = make_client
        self._runtime: _Runtime | None = None
        self._is_open = False
        self._lock = threading.Lock()
        _forked.add(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect; a client that was closed may be opened again."""
        self._is_open = True
        self._current()

    def close(self) -> None:
        """Close everything that was made by this client; safe to call again."""
        with self._lock:
            self._is_open = False
            runtime, self._runtime = self._runtime, None
        if runtime is not None and runtime.pid == os.getpid():
            runtime.stop()

    @property
    def client_id(self) -> str:
        """How brokers know this client; another one in each process."""
        return self._current().client.client_id

    def producer(self, group: str, **settings: Any) -> Producer:
        """Make a producer; settings are those of ProducerConfig."""
        what = f"producer {group!r}"
        if settings.get("check") is not None and not _is_coroutine_function(settings["check"]):
            settings["check"] = in_thread(settings["check"])
        return Producer(self, what, lambda client: client.producer(group, **settings))

    def transactional_producer(
        self,
        group: str,
        listener: TransactionListener,
        *,
        check_threads: Executor | None = None,
        **settings: Any,
    ) -> TransactionalProducer:
        """Make a producer whose listener, in threads, runs and checks local transactions.

        Checks run in the executor where one is given; it is the caller's to end.
        """
        threads = _ThreadedListener(listener, check_threads)
        return TransactionalProducer(
            self,
            f"producer {group!r}",
            lambda client: client.transactional_producer(group, threads, **settings),
        )

    def consumer(
        self,
        group: str,
        subscriptions: Subscriptions,
        handler: MessageHandler | None = None,
        **settings: Any,
    ) -> PushConsumer:
        """Make a consumer with a handler, or to iterate over; takes what Client.consumer takes."""
        return PushConsumer(
            self,
            f"consumer of {group!r}",
            lambda client: client.consumer(group, subscriptions, handler, **settings),
        )

    def lite_pull_consumer(
        self, group: str, subscriptions: Subscriptions | None = None, **settings: Any
    ) -> LitePullConsumer:
        """Make a consumer that polls; takes what Client.lite_pull_consumer takes."""
        return LitePullConsumer(
            self,
            f"consumer of {group!r}",
            lambda client: client.lite_pull_consumer(group, subscriptions, **settings),
        )

    def pull_consumer(
        self, group: str, topics: Iterable[str] = (), **settings: Any
    ) -> PullConsumer:
        """Make a consumer that reads queues offset by offset."""
        kept = tuple(topics)
        return PullConsumer(
            self,
            f"consumer of {group!r}",
            lambda client: client.pull_consumer(group, kept, **settings),
        )

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read; raises NoRoute."""
        runtime = self._current()
        return runtime.call(runtime.client.fetch_queues(topic))

    def view_message(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """The message with an id of either kind; one given by a producer needs its topic too."""
        runtime = self._current()
        return runtime.call(runtime.client.view_message(message_id, topic))

    def query_messages(
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
        runtime = self._current()
        return runtime.call(
            runtime.client.query_messages(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms, unique=unique
            )
        )

    def search_offset(self, queue: MessageQueue, at_ms: int) -> int:
        """The offset whose message was stored nearest to a time."""
        runtime = self._current()
        return runtime.call(runtime.client.search_offset(queue, at_ms))

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset of a queue that can still be read."""
        runtime = self._current()
        return runtime.call(runtime.client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of a queue will get."""
        runtime = self._current()
        return runtime.call(runtime.client.max_offset(queue))

    def create_topic(self, topic: str, *, queue_count: int = 8, like: str = "TBW102") -> None:
        """Create a topic on the master of every broker that serves another one."""
        runtime = self._current()
        runtime.call(runtime.client.create_topic(topic, queue_count=queue_count, like=like))

    def _current(self) -> _Runtime:
        """The runtime of this process, made if there is none yet."""
        with self._lock:
            if not self._is_open:
                raise ClientClosed(
                    "the client is not open", hint="use it inside `with skylark.sync.connect(...)`"
                )
            if self._runtime is None or self._runtime.pid != os.getpid():
                self._runtime = _Runtime(self._make_client)
            return self._runtime

    def _after_fork(self) -> None:
        # Another thread may have held the lock in the parent; it is not there to let go of it.
        self._lock = threading.Lock()
        self._runtime = None


class _Started(Protocol):
    """What producers and consumers have in common."""

    async def start(self) -> None:
        """Begin."""
        ...

    async def close(self) -> None:
        """End."""
        ...


_M = TypeVar("_M", bound=_Started)


class _Member(Generic[_M]):
    """A producer or consumer of this process, made anew after a fork."""

    def __init__(self, client: Client, what: str, make: Callable[[_Client], _M]) -> None:
        self._client = client
        self._what = what
        self._make = make
        self._opened: tuple[_Runtime, _M] | None = None
        self._is_open = False
        self._lock = threading.Lock()
        _forked.add(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin; what was closed may be started again."""
        self._is_open = True
        self._current()

    def close(self) -> None:
        """Wait for what is under way, then leave; safe to call again."""
        with self._lock:
            self._is_open = False
            opened, self._opened = self._opened, None
        if opened is not None and opened[0].pid == os.getpid() and opened[0].is_running:
            opened[0].call(opened[1].close())

    def _current(self) -> tuple[_Runtime, _M]:
        """The member of this process, made and started if there is none yet."""
        with self._lock:
            if not self._is_open:
                raise ClientClosed(f"{self._what} is not open", hint="use it inside its `with`")
            runtime = self._client._current()
            if self._opened is None or self._opened[0] is not runtime:
                made = runtime.tell(lambda: self._make(runtime.client))
                runtime.call(made.start())
                self._opened = (runtime, made)
            return self._opened

    def _do(self, action: Callable[[_M], Coroutine[Any, Any, _T]]) -> _T:
        """Have the member do something, and wait for it."""
        runtime, member = self._current()
        return runtime.call(action(member))

    def _tell(self, action: Callable[[_M], _T]) -> _T:
        """Have something done to the member by its own thread, that does not wait."""
        runtime, member = self._current()
        return runtime.tell(lambda: action(member))

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._opened = None


def in_thread(function: Callable[..., _T]) -> Callable[..., Coroutine[Any, Any, _T]]:
    """A blocking function as a coroutine function that does not block the client."""

    async def run(*arguments: Any) -> _T:
        return await asyncio.to_thread(function, *arguments)

    return run


def _is_coroutine_function(function: Any) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


class _ThreadedListener(TransactionListener):
    """A listener whose methods block, each call in a thread."""

    def __init__(
        self, listener: TransactionListener, check_threads: Executor | None = None
    ) -> None:
        self._listener = listener
        self._check_threads = check_threads

    async def execute(self, message: Message, argument: Any, transaction_id: str) -> CheckAnswer:
        run: Any = in_thread(self._listener.execute)
        answer: CheckAnswer = await run(message, argument, transaction_id)
        return answer

    async def check(self, half: StoredMessage) -> CheckAnswer:
        loop, check = asyncio.get_running_loop(), self._listener.check
        answer: Any = await loop.run_in_executor(self._check_threads, check, half)
        found: CheckAnswer = answer
        return found


class Transaction:
    """Messages that are seen if the block succeeds, and never if it raises."""

    def __init__(self, runtime: _Runtime, transaction: _Transaction) -> None:
        self._runtime = runtime
        self._transaction = transaction

    def __enter__(self) -> Self:
        self._runtime.call(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runtime.call(self._transaction.__aexit__(kind, error, traceback))

    @property
    def id(self) -> str:
        """Its id, which every message of it carries."""
        return self._transaction.id

    @property
    def state(self) -> TransactionState:
        """How it ended."""
        return self._transaction.state

    @property
    def is_confirmed(self) -> bool:
        """Whether every broker knows how it ended."""
        return self._transaction.is_confirmed

    @property
    def receipts(self) -> tuple[SendReceipt, ...]:
        """Of the half messages."""
        return self._transaction.receipts

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message that nobody sees before the commit; raises ClientError."""
        return self._runtime.call(
            self._transaction.send(message, queue=queue, key=key, timeout_ms=timeout_ms)
        )

    def commit(self) -> None:
        """Let the messages be seen."""
        self._runtime.call(self._transaction.commit())

    def rollback(self) -> None:
        """Let the messages never be seen."""
        self._runtime.call(self._transaction.rollback())

    def leave(self) -> None:
        """Leave the end to the checks."""
        self._runtime.call(self._transaction.leave())


class Producer(_Member[_Producer]):
    """Sends messages from any thread; a context manager. Use mq.producer(group) to make one."""

    def transaction(self, *, id: str | None = None) -> Transaction:
        """Messages that are seen if the block succeeds, and never if it raises."""
        runtime, producer = self._current()
        return Transaction(runtime, runtime.tell(lambda: producer.transaction(id=id)))

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message and wait until a broker has stored it; raises ClientError."""
        runtime, producer = self._current()
        return runtime.call(
            producer.send(
                message,
                queue=queue,
                key=key,
                selector=selector,
                argument=argument,
                timeout_ms=timeout_ms,
            )
        )

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
    ) -> Future[SendReceipt]:
        """Begin to send a message; callback and future hear how it ended."""
        runtime, producer = self._current()

        async def begin() -> SendReceipt:
            return await producer.send_async(
                message,
                callback,
                queue=queue,
                key=key,
                selector=selector,
                argument=argument,
                timeout_ms=timeout_ms,
            )

        return runtime.begin(begin())

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        """Hand a message to the network and forget it; it may be lost without a word."""
        runtime, producer = self._current()
        runtime.call(
            producer.send_oneway(
                message, queue=queue, key=key, selector=selector, argument=argument
            )
        )

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> tuple[SendReceipt, ...]:
        """Send messages of one topic in one request; one receipt for each, in order."""
        runtime, producer = self._current()
        return runtime.call(
            producer.send_batch(messages, queue=queue, key=key, timeout_ms=timeout_ms)
        )

    def request(
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
        runtime, producer = self._current()
        return runtime.call(
            producer.request(
                message,
                queue=queue,
                key=key,
                selector=selector,
                argument=argument,
                timeout_ms=timeout_ms,
            )
        )

    def reply(
        self, request: StoredMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Answer a request message."""
        runtime, producer = self._current()
        return runtime.call(producer.reply(request, body, timeout_ms=timeout_ms))

    def flush(self) -> None:
        """Wait until all that is under way has ended."""
        runtime, producer = self._current()
        runtime.call(producer.flush())

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be sent to; raises NoRoute."""
        runtime, producer = self._current()
        return runtime.call(producer.fetch_queues(topic))


class TransactionalProducer(Producer):
    """Half message, local transaction and end in one call, from any thread."""

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        listener: TransactionListener | None = None,
        timeout_ms: int | None = None,
        strips_delay: bool = False,
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, and end the message as that ended."""
        threads = None if listener is None else _ThreadedListener(listener)
        runtime, producer = self._current()
        assert isinstance(producer, _TransactionalProducer)
        return runtime.call(
            producer.send_in_transaction(
                message,
                argument,
                listener=threads,
                timeout_ms=timeout_ms,
                strips_delay=strips_delay,
            )
        )


class _Consumer(_Member[_C]):
    """What all consumers have in common."""

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member has now."""
        return self._tell(lambda consumer: consumer.assignment)

    def subscribe(self, topic: str, expression: Expression = None) -> None:
        """Want a topic, or want something else of it."""
        self._do(lambda consumer: consumer.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no more."""
        self._do(lambda consumer: consumer.unsubscribe(topic))

    def suspend(self) -> None:
        """Stop taking messages for a while."""
        self._tell(lambda consumer: consumer.suspend())

    def resume(self) -> None:
        """Take messages again."""
        self._tell(lambda consumer: consumer.resume())

    def rewind(self, topic: str, at_ms: int) -> dict[MessageQueue, int]:
        """Set this member's queues of a topic to a time; return where each stands then."""
        return self._do(lambda consumer: consumer.rewind(topic, at_ms))


class PushConsumer(_Consumer[_PushConsumer]):
    """Hands messages to a handler, or to whoever iterates; use mq.consumer to make one.

    Asking for the next message commits the one before. Several threads may iterate.
    """

    def __iter__(self) -> Iterator[ReceivedMessage]:
        runtime, consumer = self._current()
        messages = consumer.__aiter__()

        async def take() -> ReceivedMessage | None:
            try:
                return await messages.__anext__()
            except StopAsyncIteration:
                return None

        while (message := runtime.call(take())) is not None:
            message.settled_by(_FromThread(runtime, consumer))
            yield message

    def wait_closed(self) -> None:
        """Wait until the consumer has ended, however that comes."""
        self._do(lambda consumer: consumer.wait_closed())

    def retry(
        self,
        message: ReceivedMessage,
        delay: timedelta | float | None = None,
        *,
        level: int | None = None,
    ) -> None:
        """A message failed: have it delivered again later."""
        verdict = RetryLater(delay, level=level).verdict
        self._do(lambda consumer: consumer.settle(message, verdict))

    def dead_letter(self, message: ReceivedMessage) -> None:
        """A message can never succeed: move it to the group's dead letters."""
        verdict = ToDlq().verdict
        self._do(lambda consumer: consumer.settle(message, verdict))


class _FromThread:
    """Carries word of a message from the thread that handled it to its consumer."""

    def __init__(self, runtime: _Runtime, consumer: _PushConsumer) -> None:
        self._runtime = runtime
        self._consumer = consumer

    def acknowledge(self, message: ReceivedMessage) -> None:
        """It is done."""
        self._runtime.tell(lambda: self._consumer.acknowledge(message))

    async def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """It shall come again, or never."""
        await self._consumer.settle(message, verdict)


class LitePullConsumer(_Consumer[_LitePullConsumer]):
    """Polls for messages; use mq.lite_pull_consumer to make one."""

    def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Wait for messages of one queue; what the poll before returned counts as done now."""
        return self._do(lambda consumer: consumer.poll(timeout_ms, count_max=count_max))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whatever the rest of the group does."""
        self._do(lambda consumer: consumer.assign(queues))

    def position(self, queue: MessageQueue) -> int:
        """The offset that the next poll of a queue begins with."""
        return self._tell(lambda consumer: consumer.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading a queue elsewhere."""
        self._do(lambda consumer: consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go back to the first message that can still be read."""
        self._do(lambda consumer: consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip everything that is there."""
        self._do(lambda consumer: consumer.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, at: datetime | int | str) -> None:
        """Go on with what was stored at a time or later."""
        self._do(lambda consumer: consumer.seek_to_time(queue, at))

    def offset_for_time(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset of what was stored at a time or later."""
        return self._do(lambda consumer: consumer.offset_for_time(queue, at))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing of these queues for a while."""
        self._tell(lambda consumer: consumer.pause(queues))

    def resume_queues(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        self._tell(lambda consumer: consumer.resume_queues(queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was polled, or these offsets."""
        self._do(lambda consumer: consumer.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """How far the group has come in a queue, as the broker knows it."""
        return self._do(lambda consumer: consumer.committed(queue))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read."""
        return self._do(lambda consumer: consumer.fetch_queues(topic))


class PullConsumer(_Consumer[_PullConsumer]):
    """Reads queues offset by offset; use mq.pull_consumer to make one."""

    def pull(
        self,
        queue: MessageQueue,
        expression: Expression = None,
        *,
        offset: int,
        count_max: int = 32,
    ) -> PullResult:
        """Read messages of a queue; an empty result at once where there are none."""
        return self._do(
            lambda consumer: consumer.pull(queue, expression, offset=offset, count_max=count_max)
        )

    def pull_or_wait(
        self,
        queue: MessageQueue,
        expression: Expression = None,
        *,
        offset: int,
        count_max: int = 32,
    ) -> PullResult:
        """Read messages of a queue; where there are none, wait for them at the broker."""
        return self._do(
            lambda consumer: consumer.pull_or_wait(
                queue, expression, offset=offset, count_max=count_max
            )
        )

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read."""
        return self._do(lambda consumer: consumer.fetch_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that can still be read."""
        return self._do(lambda consumer: consumer.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._do(lambda consumer: consumer.max_offset(queue))

    def search_offset(self, queue: MessageQueue, at: datetime | int | str) -> int:
        """The offset whose message was stored nearest to a time."""
        return self._do(lambda consumer: consumer.search_offset(queue, at))

    def fetch_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """How far the group has come in a queue."""
        return self._do(lambda consumer: consumer.fetch_offset(queue, from_store=from_store))

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Note how far the group has come, to be committed with the next round."""
        self._do(lambda consumer: consumer.update_offset(queue, offset))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit how far the group has come, now."""
        self._do(lambda consumer: consumer.commit(queue, offset))

    def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have a message delivered to the group again later."""
        self._do(lambda consumer: consumer.send_back(message, delay_level))


def connect(namesrv_addr: str | None = None, **options: Any) -> Client:
    """Return a client for the cluster of some name servers: `with connect(...) as mq`.

    Takes what skylark.connect takes.
    """
    _connect(namesrv_addr, **options)  # Wrong settings are refused here, not on another thread.
    return Client(lambda: _connect(namesrv_addr, **options))


_forked: weakref.WeakSet[Client | _Member[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for holder in list(_forked):
        holder._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
