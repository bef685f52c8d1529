"""Producers for threads, and their transactions."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from ..client.producer import Producer as _Producer
from ..client.producer import SendCallback
from ..client.queue_choice import QueueSelector
from ..client.receipts import SendReceipt
from ..client.transactional_producer import TransactionalProducer as _TransactionalProducer
from ..client.transactional_producer import TransactionReceipt
from ..client.transactions import Transaction as _Transaction
from ..client.transactions import TransactionListener, TransactionState
from ..model.message import Message, StoredMessage
from ..model.queue import MessageQueue
from .member import Member
from .runtime import Runtime
from .threads import ThreadedListener


class Transaction:
    """Messages that are seen if the block succeeds, and never if it raises."""

    def __init__(self, runtime: Runtime, transaction: _Transaction) -> None:
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


class Producer(Member[_Producer]):
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
        threads = None if listener is None else ThreadedListener(listener)
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
