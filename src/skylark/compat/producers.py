"""DefaultMQProducer and what belongs to it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from ..client.hooks import CommunicationMode as CommunicationMode
from ..client.queue_choice import QueueSelector
from ..client.receipts import SendReceipt
from ..errors import SkylarkError
from ..model.message import Message as _Message
from ..model.queue import MessageQueue as _MessageQueue
from ..protocol.hashes import java_string_hash
from ..sync import Producer as _Producer
from .clients import Instance, MQAdmin
from .errors import java_exception, translated
from .hooks import RPCHook
from .messages import Message, MessageExt, MessageQueue, SendResult


class SendCallback(ABC):
    """Hears how an asynchronous send ended; called in a thread of its own."""

    @abstractmethod
    def onSuccess(self, sendResult: SendResult) -> None:
        """A broker has stored the message."""

    @abstractmethod
    def onException(self, e: Exception) -> None:
        """No broker confirmed it."""


class MessageQueueSelector(ABC):
    """Chooses the queue of a message; a function of the same shape does as well."""

    @abstractmethod
    def select(self, mqs: list[MessageQueue], msg: Message, arg: Any) -> MessageQueue:
        """One of the queues."""


class SelectMessageQueueByHash(MessageQueueSelector):
    """By the hash of the argument's text."""

    def select(self, mqs: list[MessageQueue], msg: Message, arg: Any) -> MessageQueue:
        return mqs[abs(java_string_hash(str(arg))) % len(mqs)]


class SelectMessageQueueByRandom(MessageQueueSelector):
    """Any queue."""

    def select(self, mqs: list[MessageQueue], msg: Message, arg: Any) -> MessageQueue:
        return random.choice(mqs)


class DefaultMQProducer(MQAdmin):
    """Sends messages."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "producerGroup": "DEFAULT_PRODUCER",
        "createTopicKey": "TBW102",
        "defaultTopicQueueNums": 4,
        "sendMsgTimeout": 3_000,
        "compressMsgBodyOverHowmuch": 4_096,
        "maxMessageSize": 4 * 1024 * 1024,
        "retryTimesWhenSendFailed": 2,
        "retryTimesWhenSendAsyncFailed": 2,
        "retryAnotherBrokerWhenNotStoreOK": False,
        "sendLatencyFaultEnable": False,
        "enableMsgTrace": False,
        "customizedTraceTopic": None,
    }
    _kind = "Producer"

    def __init__(
        self,
        producerGroup: str | RPCHook | None = None,
        rpcHook: RPCHook | bool | None = None,
        enableMsgTrace: bool | str | None = False,
        customizedTraceTopic: str | None = None,
    ) -> None:
        """As in Java: (), (group), (hook), (group, hook), and each with trace and its topic."""
        if isinstance(producerGroup, RPCHook):
            producerGroup, rpcHook = None, producerGroup
        if isinstance(rpcHook, bool):  # (group, trace, topic)
            if enableMsgTrace:
                customizedTraceTopic = str(enableMsgTrace)
            rpcHook, enableMsgTrace = None, rpcHook
        super().__init__(rpcHook)
        if producerGroup is not None:
            self._values["producerGroup"] = producerGroup
        self._values["enableMsgTrace"] = bool(enableMsgTrace)
        self._values["customizedTraceTopic"] = customizedTraceTopic

    def _begin(self, instance: Instance) -> None:
        values = self._values
        settings = {
            "create_topic_key": values["createTopicKey"],
            "default_topic_queue_nums": values["defaultTopicQueueNums"],
            "send_msg_timeout_ms": values["sendMsgTimeout"],
            "compress_msg_body_over_howmuch": values["compressMsgBodyOverHowmuch"],
            "max_message_size": values["maxMessageSize"],
            "retry_times_when_send_failed": values["retryTimesWhenSendFailed"],
            "retry_times_when_send_async_failed": values["retryTimesWhenSendAsyncFailed"],
            "retry_another_broker_when_not_store_ok": values["retryAnotherBrokerWhenNotStoreOK"],
            "send_latency_fault_enable": values["sendLatencyFaultEnable"],
            "enable_msg_trace": values["enableMsgTrace"],
        }
        if values["customizedTraceTopic"]:
            settings["trace_topic"] = values["customizedTraceTopic"]
        self._producer: _Producer = self._made(instance, values["producerGroup"], settings)
        self._producer.start()
        self._callbacks = ThreadPoolExecutor(
            values["clientCallbackExecutorThreads"], thread_name_prefix="skylark-callback"
        )

    def _made(self, instance: Instance, group: str, settings: dict[str, Any]) -> _Producer:
        return instance.client.producer(group, **settings)

    def _end(self, instance: Instance) -> None:
        self._producer.close()
        self._callbacks.shutdown()

    @translated
    def send(self, msg: Message | Sequence[Message], *rest: Any) -> SendResult | None:
        """Send as Java's overloads do; with a callback nothing is returned.

        send(msg), send(msg, timeout), send(msg, callback), send(msg, callback, timeout)
        send(msg, mq …), send(msg, selector, arg …), send([msgs …] …): the same after these
        """
        self._require_running()
        where, callback, timeout_ms = self._read(rest, msg)
        if not isinstance(msg, Message):
            receipts = self._producer.send_batch(
                [one.to_model() for one in msg], queue=where.get("queue"), timeout_ms=timeout_ms
            )
            return SendResult(receipts[0], [receipt.message_id for receipt in receipts])
        if callback is None:
            receipt = self._producer.send(msg.to_model(), timeout_ms=timeout_ms, **where)
            msg.getProperties()["UNIQ_KEY"] = receipt.message_id
            return SendResult(receipt)
        listener = _Callback(callback, self._callbacks)
        self._producer.send_async(msg.to_model(), listener, timeout_ms=timeout_ms, **where)
        return None

    @translated
    def sendOneway(self, msg: Message, *rest: Any) -> None:
        """Send and forget: sendOneway(msg), (msg, mq), (msg, selector, arg)."""
        self._require_running()
        where, _, _ = self._read(rest, msg)
        self._producer.send_oneway(msg.to_model(), **where)

    @translated
    def request(self, msg: Message, *rest: Any) -> MessageExt:
        """Send a message and wait for its reply: request(msg, timeout), (msg, mq, timeout) …"""
        self._require_running()
        where, _, timeout_ms = self._read(rest, msg)
        return MessageExt.of(self._producer.request(msg.to_model(), timeout_ms=timeout_ms, **where))

    @translated
    def fetchPublishMessageQueues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be sent to."""
        self._require_running()
        return [MessageQueue.of(queue) for queue in self._producer.fetch_queues(topic)]

    @translated
    def createTopic(self, key: str, newTopic: str, queueNum: int) -> None:
        """Create a topic wherever another one is."""
        client = self._require_running().client
        client.create_topic(newTopic, queue_count=queueNum, like=key)

    @translated
    def viewMessage(self, topic: str, msgId: str) -> MessageExt:
        """The message with an id of either kind."""
        return MessageExt.of(self._require_running().client.view_message(msgId, topic))

    @translated
    def queryMessage(
        self, topic: str, key: str, maxNum: int, begin: int, end: int
    ) -> list[MessageExt]:
        """The messages of a topic with a key."""
        found = self._require_running().client.query_messages(
            topic, key, count_max=maxNum, begin_ms=begin, end_ms=end
        )
        return [MessageExt.of(record) for record in found]

    @staticmethod
    def _read(
        rest: tuple[Any, ...], msg: Message | Sequence[Message]
    ) -> tuple[dict[str, Any], SendCallback | None, int | None]:
        where: dict[str, Any] = {}
        callback: SendCallback | None = None
        timeout_ms: int | None = None
        left = list(rest)
        while left:
            given = left.pop(0)
            if isinstance(given, MessageQueue):
                where["queue"] = given.to_model()
            elif isinstance(given, SendCallback) or hasattr(given, "onSuccess"):
                callback = given
            elif isinstance(given, MessageQueueSelector) or callable(given):
                if not left:
                    raise TypeError("a selector needs its argument: send(msg, selector, arg)")
                assert isinstance(msg, Message)
                where["selector"] = _selector(given, msg)
                where["argument"] = left.pop(0)
            elif isinstance(given, int) and not isinstance(given, bool) and not left:
                timeout_ms = given
            elif given is not None:
                raise TypeError(f"send does not take {given!r} here; see its docstring")
        return where, callback, timeout_ms


def _selector(given: Any, msg: Message) -> QueueSelector:
    choose: Callable[..., MessageQueue] = (
        given.select if isinstance(given, MessageQueueSelector) else given
    )

    def select(queues: Sequence[_MessageQueue], message: _Message, argument: Any) -> _MessageQueue:
        return choose([MessageQueue.of(queue) for queue in queues], msg, argument).to_model()

    return select


class _Callback:
    """Takes word to Java's callback, off the client's thread, which must not wait."""

    def __init__(self, callback: SendCallback, threads: ThreadPoolExecutor) -> None:
        self._callback = callback
        self._threads = threads

    def on_success(self, receipt: SendReceipt) -> None:
        self._threads.submit(self._callback.onSuccess, SendResult(receipt))

    def on_exception(self, error: Exception) -> None:
        told = java_exception(error) if isinstance(error, SkylarkError) else error
        self._threads.submit(self._callback.onException, told)
