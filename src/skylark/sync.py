"""The client without await: same names, from any thread, and across a fork.

    with skylark.sync.connect("127.0.0.1:9876") as mq:
        with mq.producer("orders") as producer:
            receipt = producer.send(Message("OrderTopic", b"..."))

All work is done by one thread of its own with a private event loop; the caller's thread waits for
it. Callbacks run on that thread and must not block.

    after fork, in the child     what it held from the parent is left alone: the parent still uses
                                 it. The first call in the child connects anew, with a client id
                                 of its own. So a producer made before a server forks its workers
                                 works in each of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from .client.connect import connect as _connect
from .client.facade import Client as _Client
from .client.producer import Producer as _Producer
from .client.producer import SendCallback
from .client.queue_choice import QueueSelector
from .client.receipts import SendReceipt
from .errors import ClientClosed
from .model.message import Message, StoredMessage
from .model.queue import MessageQueue

_T = TypeVar("_T")

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
        _clients.add(self)

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
        return Producer(self, group, settings)

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


class Producer:
    """Sends messages from any thread; a context manager. Use mq.producer(group) to make one."""

    def __init__(self, client: Client, group: str, settings: dict[str, Any]) -> None:
        self._client = client
        self._group = group
        self._settings = settings
        self._opened: tuple[_Runtime, _Producer] | None = None
        self._is_open = False
        self._lock = threading.Lock()
        _clients.add(self)

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
        """Begin; a producer that was closed may be started again."""
        self._is_open = True
        self._current()

    def close(self) -> None:
        """Wait for what is under way, then leave; safe to call again."""
        with self._lock:
            self._is_open = False
            opened, self._opened = self._opened, None
        if opened is not None and opened[0].pid == os.getpid():
            opened[0].call(opened[1].close())

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

    def _current(self) -> tuple[_Runtime, _Producer]:
        """The producer of this process, made and started if there is none yet."""
        with self._lock:
            if not self._is_open:
                raise ClientClosed(
                    f"producer {self._group!r} is not open",
                    hint="use it inside `with mq.producer(...)`",
                )
            runtime = self._client._current()
            if self._opened is None or self._opened[0] is not runtime:
                made = runtime.client.producer(self._group, **self._settings)
                runtime.call(made.start())
                self._opened = (runtime, made)
            return self._opened

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._opened = None


def connect(namesrv_addr: str | None = None, **options: Any) -> Client:
    """Return a client for the cluster of some name servers: `with connect(...) as mq`.

    Takes what skylark.connect takes.
    """
    _connect(namesrv_addr, **options)  # Wrong settings are refused here, not on another thread.
    return Client(lambda: _connect(namesrv_addr, **options))


_clients: weakref.WeakSet[Client | Producer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
