"""Client: one client of a cluster, for threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Self

from ..client.connect import connect as _connect
from ..client.facade import Client as _Client
from ..client.push_consumer import MessageHandler
from ..client.subscriptions import Subscriptions
from ..client.transactions import TransactionListener
from ..errors import ClientClosed
from ..model.message import StoredMessage
from ..model.queue import MessageQueue
from .consumers import LitePullConsumer, PullConsumer, PushConsumer
from .fork import Forkable
from .producers import Producer, TransactionalProducer
from .runtime import Runtime
from .threads import ThreadedListener, in_thread, is_coroutine_function


class Client(Forkable):
    """One client of a cluster, for threads; a context manager."""

    def __init__(self, make_client: Callable[[], _Client]) -> None:
        super().__init__()
        self._make_client = make_client
        self._runtime: Runtime | None = None
        self._is_open = False

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
        if settings.get("check") is not None and not is_coroutine_function(settings["check"]):
            settings["check"] = in_thread(settings["check"])
        return Producer(self._current, what, lambda client: client.producer(group, **settings))

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
        threads = ThreadedListener(listener, check_threads)
        return TransactionalProducer(
            self._current,
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
            self._current,
            f"consumer of {group!r}",
            lambda client: client.consumer(group, subscriptions, handler, **settings),
        )

    def lite_pull_consumer(
        self, group: str, subscriptions: Subscriptions | None = None, **settings: Any
    ) -> LitePullConsumer:
        """Make a consumer that polls; takes what Client.lite_pull_consumer takes."""
        return LitePullConsumer(
            self._current,
            f"consumer of {group!r}",
            lambda client: client.lite_pull_consumer(group, subscriptions, **settings),
        )

    def pull_consumer(
        self, group: str, topics: Iterable[str] = (), **settings: Any
    ) -> PullConsumer:
        """Make a consumer that reads queues offset by offset."""
        kept = tuple(topics)
        return PullConsumer(
            self._current,
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

    def _current(self) -> Runtime:
        """The runtime of this process, made if there is none yet."""
        with self._lock:
            if not self._is_open:
                raise ClientClosed(
                    "the client is not open", hint="use it inside `with skylark.sync.connect(...)`"
                )
            if self._runtime is None or self._runtime.pid != os.getpid():
                self._runtime = Runtime(self._make_client)
            return self._runtime

    def _forget(self) -> None:
        self._runtime = None


def connect(namesrv_addr: str | None = None, **options: Any) -> Client:
    """Return a client for the cluster of some name servers: `with connect(...) as mq`.

    Takes what skylark.connect takes.
    """
    _connect(namesrv_addr, **options)  # Wrong settings are refused here, not on another thread.
    return Client(lambda: _connect(namesrv_addr, **options))
