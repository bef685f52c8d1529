"""DefaultMQPushConsumer, DefaultMQPullConsumer, DefaultLitePullConsumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ..client.facade import Client as _AsyncClient
from ..client.group_consumer import GroupConsumer
from ..client.lite_pull_consumer import LitePullConsumer
from ..client.pull_consumer import PullConsumer
from ..client.pull_schedule import PullSchedule, PullTurn
from ..client.push_consumer import PushConsumer
from ..client.received import ReceivedMessage
from ..client.subscriptions import Expression
from ..client.verdicts import Verdict
from ..model.queue import MessageQueue as _MessageQueue
from .allocation import AllocateMessageQueueAveragely
from .clients import Instance, MQAdmin
from .errors import MQClientException, translated
from .hooks import RPCHook
from .listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageQueueListener,
)
from .messages import (
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    PullResult,
)

_HALF_AN_HOUR_S = 30 * 60

ConcurrentFunction = Callable[
    [list[MessageExt], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None
]


def _half_an_hour_ago() -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() - _HALF_AN_HOUR_S))


def _expression(given: str | MessageSelector | None) -> Expression:
    return given.expression if isinstance(given, MessageSelector) else given


class _Consumer(MQAdmin):
    """What the three have in common."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "consumerGroup": "DEFAULT_CONSUMER",
        "messageModel": MessageModel.CLUSTERING,
        "consumeFromWhere": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        "consumeTimestamp": None,
        "allocateMessageQueueStrategy": None,
        "offsetStore": None,
        "maxReconsumeTimes": -1,
    }

    def __init__(
        self,
        consumerGroup: str | RPCHook | None = None,
        rpcHook: RPCHook | None = None,
        allocateMessageQueueStrategy: Any = None,
    ) -> None:
        """As in Java: (), (group), (hook), (group, hook), (group, hook, strategy)."""
        if isinstance(consumerGroup, RPCHook):
            consumerGroup, rpcHook = None, consumerGroup
        super().__init__(rpcHook)
        if consumerGroup is not None:
            self._values["consumerGroup"] = consumerGroup
        self._values["consumeTimestamp"] = _half_an_hour_ago()
        self._values["allocateMessageQueueStrategy"] = (
            allocateMessageQueueStrategy or AllocateMessageQueueAveragely()
        )
        self._subscriptions: dict[str, Expression] = {}
        self._queue_listeners: list[MessageQueueListener] = []
        self._consumer: GroupConsumer | None = None

    def _common(self) -> dict[str, Any]:
        values = self._values
        times = values["maxReconsumeTimes"]
        return {
            "message_model": values["messageModel"],
            "strategy": values["allocateMessageQueueStrategy"],
            "max_reconsume_times": None if times < 0 else times,
        }

    def _consume_from(self) -> Any:
        where = self._values["consumeFromWhere"]
        if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return self._values["consumeTimestamp"]
        return where

    def _make(self, client: _AsyncClient) -> GroupConsumer:
        raise NotImplementedError

    def _begin(self, instance: Instance) -> None:
        if self._values["offsetStore"] is not None:
            raise MQClientException(
                "an offsetStore of one's own is not supported: leave it out, and offsets are kept "
                "by the broker, or in a local file when broadcasting"
            )

        async def begin(client: _AsyncClient) -> GroupConsumer:
            made = self._make(client)
            for listener in (*self._queue_listeners, self._values.get("messageQueueListener")):
                if listener is None:
                    continue
                made.add_queue_listener(_queue_listener(listener))
            await made.start()
            return made

        self._consumer = instance.run(begin)

    def _end(self, instance: Instance) -> None:
        consumer = self._consumer
        assert consumer is not None

        async def end(client: _AsyncClient) -> None:
            await consumer.close()

        instance.run(end)

    def getSubscription(self) -> dict[str, str]:
        """What is consumed: topics, and the expression of each."""
        return {
            topic: "*" if given is None else str(getattr(given, "expression", given))
            for topic, given in self._subscriptions.items()
        }

    def setSubscription(self, subscription: Mapping[str, str]) -> None:
        """Consume these topics, and no others; before start()."""
        self._subscriptions = dict(subscription)

    @translated
    def subscribe(self, topic: str, subExpression: str | MessageSelector | None = "*") -> None:
        """Consume a topic: all of it, by tags, or by a selector."""
        expression = _expression(subExpression)
        self._subscriptions[topic] = expression
        consumer = self._consumer
        if consumer is not None:

            async def subscribe(client: _AsyncClient) -> None:
                await consumer.subscribe(topic, expression)

            self._require_running().run(subscribe)

    @translated
    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._subscriptions.pop(topic, None)
        consumer = self._consumer
        if consumer is not None:

            async def unsubscribe(client: _AsyncClient) -> None:
                await consumer.unsubscribe(topic)

            self._require_running().run(unsubscribe)

    def registerMessageQueueListener(self, topic: str, listener: MessageQueueListener) -> None:
        """Hear of changes of a topic's queues; before start()."""
        self._subscriptions.setdefault(topic, None)
        self._queue_listeners.append(listener)

    @translated
    def fetchSubscribeMessageQueues(self, topic: str) -> set[MessageQueue]:
        """All queues of a topic that may be read."""
        found = self._require_running().client.fetch_queues(topic)
        return {MessageQueue.of(queue) for queue in found}

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

    @translated
    def maxOffset(self, mq: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._require_running().client.max_offset(mq.to_model())

    @translated
    def minOffset(self, mq: MessageQueue) -> int:
        """The first offset that can still be read."""
        return self._require_running().client.min_offset(mq.to_model())

    @translated
    def searchOffset(self, mq: MessageQueue, timestamp: int) -> int:
        """The offset of the message stored nearest to a time."""
        return self._require_running().client.search_offset(mq.to_model(), timestamp)


def _queue_listener(
    listener: MessageQueueListener,
) -> Callable[[str, frozenset[_MessageQueue], frozenset[_MessageQueue]], None]:
    def tell(topic: str, every: frozenset[_MessageQueue], mine: frozenset[_MessageQueue]) -> None:
        listener.messageQueueChanged(topic, _coated(every), _coated(mine))

    return tell


def _coated(queues: Iterable[_MessageQueue]) -> list[MessageQueue]:
    return [MessageQueue.of(queue) for queue in sorted(queues)]


class DefaultMQPushConsumer(_Consumer):
    """Hands messages to a listener, in threads."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "consumeThreadMin": 20,
        "consumeThreadMax": 20,
        "consumeConcurrentlyMaxSpan": 2_000,
        "pullThresholdForQueue": 1_000,
        "pullThresholdSizeForQueue": 100,  # MiB.
        "pullInterval": 0,
        "pullBatchSize": 32,
        "consumeMessageBatchMaxSize": 1,
        "suspendCurrentQueueTimeMillis": 1_000,
        "consumeTimeout": 15,  # Minutes.
        "awaitTerminationMillisWhenShutdown": 30_000,
        "messageListener": None,
    }
    _kind = "PushConsumer"

    def registerMessageListener(
        self, listener: MessageListenerConcurrently | MessageListenerOrderly | ConcurrentFunction
    ) -> None:
        """Say who gets the messages; a plain function is taken for a concurrent listener."""
        self._values["messageListener"] = listener

    def suspend(self) -> None:
        """Stop pulling; what is in hand is still handled."""
        self._control(PushConsumer.suspend)

    def resume(self) -> None:
        """Go on pulling."""
        self._control(PushConsumer.resume)

    def _control(self, what: Callable[[PushConsumer], None]) -> None:
        consumer = self._consumer
        assert isinstance(consumer, PushConsumer)

        async def act(client: _AsyncClient) -> None:
            what(consumer)

        self._require_running().run(act)

    def _make(self, client: _AsyncClient) -> PushConsumer:
        values = self._values
        listener = values["messageListener"]
        if listener is None:
            raise MQClientException("messageListener is null: call registerMessageListener first")
        if not self._subscriptions:
            raise MQClientException("subscription is null: call subscribe first")
        is_orderly = isinstance(listener, MessageListenerOrderly)
        return client.consumer(
            values["consumerGroup"],
            self._subscriptions,
            batch_handler=_orderly(listener) if is_orderly else _concurrent(listener),
            consume_from=self._consume_from(),
            orderly=is_orderly,
            concurrency=max(values["consumeThreadMin"], values["consumeThreadMax"]),
            consume_concurrently_max_span=values["consumeConcurrentlyMaxSpan"],
            pull_threshold_for_queue=values["pullThresholdForQueue"],
            pull_threshold_bytes_for_queue=values["pullThresholdSizeForQueue"] << 20,
            pull_interval_ms=values["pullInterval"],
            pull_batch_size=values["pullBatchSize"],
            consume_batch_size=values["consumeMessageBatchMaxSize"],
            suspend_ms=values["suspendCurrentQueueTimeMillis"],
            consume_timeout_ms=values["consumeTimeout"] * 60_000,
            close_timeout_ms=values["awaitTerminationMillisWhenShutdown"],
            **self._common(),
        )


def _concurrent(
    listener: MessageListenerConcurrently | ConcurrentFunction,
) -> Callable[[list[ReceivedMessage]], Verdict]:
    consume: ConcurrentFunction = (
        listener.consumeMessage if isinstance(listener, MessageListenerConcurrently) else listener
    )

    def handle(messages: list[ReceivedMessage]) -> Verdict:
        context = ConsumeConcurrentlyContext(MessageQueue.of(messages[0].queue))
        status = consume([MessageExt(message) for message in messages], context)
        return context.verdict(status, len(messages))

    return handle


def _orderly(listener: MessageListenerOrderly) -> Callable[[list[ReceivedMessage]], Verdict]:
    def handle(messages: list[ReceivedMessage]) -> Verdict:
        context = ConsumeOrderlyContext(MessageQueue.of(messages[0].queue))
        status: ConsumeOrderlyStatus | None = listener.consumeMessage(
            [MessageExt(message) for message in messages], context
        )
        return context.verdict(status)

    return handle


class DefaultLitePullConsumer(_Consumer):
    """Polls messages that are read ahead."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "autoCommit": True,
        "pullBatchSize": 10,
        "pullThresholdForAll": 10_000,
        "pullThresholdForQueue": 1_000,
        "pullThresholdSizeForQueue": 100,
        "consumeMaxSpan": 2_000,
        "pollTimeoutMillis": 5_000,
        "brokerSuspendMaxTimeMillis": 20_000,
        "consumerTimeoutMillisWhenSuspend": 30_000,
    }
    _kind = "LitePullConsumer"

    def __init__(
        self, consumerGroup: str | RPCHook | None = None, rpcHook: RPCHook | None = None
    ) -> None:
        super().__init__(consumerGroup, rpcHook)
        self._assigned: list[_MessageQueue] | None = None

    def _make(self, client: _AsyncClient) -> LitePullConsumer:
        values = self._values
        return client.lite_pull_consumer(
            values["consumerGroup"],
            self._subscriptions,
            consume_from=self._consume_from(),
            auto_commit=values["autoCommit"],
            pull_batch_size=values["pullBatchSize"],
            pull_threshold_for_all=values["pullThresholdForAll"],
            pull_threshold_for_queue=values["pullThresholdForQueue"],
            pull_threshold_bytes_for_queue=values["pullThresholdSizeForQueue"] << 20,
            consume_concurrently_max_span=values["consumeMaxSpan"],
            pull_suspend_ms=values["brokerSuspendMaxTimeMillis"],
            pull_timeout_ms=values["consumerTimeoutMillisWhenSuspend"],
            **self._common(),
        )

    def _begin(self, instance: Instance) -> None:
        super()._begin(instance)
        if self._assigned is not None:
            queues, consumer = self._assigned, self._lite
            instance.run(lambda client: consumer.assign(queues))

    @property
    def _lite(self) -> LitePullConsumer:
        if not isinstance(self._consumer, LitePullConsumer):
            raise MQClientException("the LitePullConsumer is not running: call start() first")
        return self._consumer

    def isRunning(self) -> bool:
        return self._consumer is not None and self.getServiceState().value == "RUNNING"

    @translated
    def poll(self, timeout: int | None = None) -> list[MessageExt]:
        """Wait for messages, as long as pollTimeoutMillis says if no time is given."""
        wait_ms = self._values["pollTimeoutMillis"] if timeout is None else timeout
        found = self._require_running().run(lambda client: self._lite.poll(wait_ms))
        return [MessageExt(message) for message in found]

    @translated
    def assign(self, messageQueues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues."""
        queues = [queue.to_model() for queue in messageQueues]
        self._assigned = queues
        if self._consumer is not None:
            self._require_running().run(lambda client: self._lite.assign(queues))

    @translated
    def seek(self, mq: MessageQueue, offset: int) -> None:
        """Go on at an offset."""
        self._require_running().run(lambda client: self._lite.seek(mq.to_model(), offset))

    @translated
    def seekToBegin(self, mq: MessageQueue) -> None:
        """Go on at the first message that is still there."""
        self._require_running().run(lambda client: self._lite.seek_to_begin(mq.to_model()))

    @translated
    def seekToEnd(self, mq: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        self._require_running().run(lambda client: self._lite.seek_to_end(mq.to_model()))

    @translated
    def offsetForTimestamp(self, mq: MessageQueue, timestamp: int) -> int:
        """The offset of the first message stored at a time or later."""
        place = mq.to_model()
        return self._require_running().run(
            lambda client: self._lite.offset_for_time(place, timestamp)
        )

    @translated
    def commitSync(self) -> None:
        """Commit what polls have returned so far."""
        self._require_running().run(lambda client: self._lite.commit())

    @translated
    def committed(self, mq: MessageQueue) -> int:
        """How far the group has committed in a queue; -1 if it never did."""
        found = self._require_running().run(lambda client: self._lite.committed(mq.to_model()))
        return -1 if found is None else found

    @translated
    def pause(self, messageQueues: Iterable[MessageQueue]) -> None:
        """Return nothing more of these queues."""
        queues = [queue.to_model() for queue in messageQueues]

        async def pause(client: _AsyncClient) -> None:
            self._lite.pause(queues)

        self._require_running().run(pause)

    @translated
    def resume(self, messageQueues: Iterable[MessageQueue]) -> None:
        """Go on with these queues."""
        queues = [queue.to_model() for queue in messageQueues]

        async def resume(client: _AsyncClient) -> None:
            self._lite.resume_queues(queues)

        self._require_running().run(resume)

    def assignment(self) -> set[MessageQueue]:
        """The queues that are ours now."""
        return {MessageQueue.of(queue) for queue in self._lite.assignment}

    @translated
    def fetchMessageQueues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that may be read."""
        return sorted(self.fetchSubscribeMessageQueues(topic))


class DefaultMQPullConsumer(_Consumer):
    """Reads queues offset by offset."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "brokerSuspendMaxTimeMillis": 20_000,
        "consumerTimeoutMillisWhenSuspend": 30_000,
        "consumerPullTimeoutMillis": 10_000,
        "messageQueueListener": None,
        "registerTopics": (),
        "maxReconsumeTimes": 16,
    }
    _kind = "PullConsumer"

    def _make(self, client: _AsyncClient) -> PullConsumer:
        topics = {*self._values["registerTopics"], *self._subscriptions}
        return client.pull_consumer(self._values["consumerGroup"], sorted(topics), **self._common())

    @property
    def _puller(self) -> PullConsumer:
        if not isinstance(self._consumer, PullConsumer):
            raise MQClientException("the PullConsumer is not running: call start() first")
        return self._consumer

    @translated
    def pull(
        self,
        mq: MessageQueue,
        subExpression: str | MessageSelector | None,
        offset: int,
        maxNums: int,
        timeout: int | None = None,
    ) -> PullResult:
        """Read messages of a queue; at once, with none where there are none."""
        wait_ms = self._values["consumerPullTimeoutMillis"] if timeout is None else timeout
        found = self._require_running().run(
            lambda client: self._puller.pull(
                mq.to_model(),
                _expression(subExpression),
                offset=offset,
                count_max=maxNums,
                timeout_ms=wait_ms,
            )
        )
        return PullResult(found)

    @translated
    def pullBlockIfNotFound(
        self,
        mq: MessageQueue,
        subExpression: str | MessageSelector | None,
        offset: int,
        maxNums: int,
    ) -> PullResult:
        """Read messages of a queue; wait for them where there are none."""
        values = self._values
        found = self._require_running().run(
            lambda client: self._puller.pull_or_wait(
                mq.to_model(),
                _expression(subExpression),
                offset=offset,
                count_max=maxNums,
                suspend_ms=values["brokerSuspendMaxTimeMillis"],
                timeout_ms=values["consumerTimeoutMillisWhenSuspend"],
            )
        )
        return PullResult(found)

    @translated
    def updateConsumeOffset(self, mq: MessageQueue, offset: int) -> None:
        """Note how far we have come."""
        self._require_running().run(
            lambda client: self._puller.update_offset(mq.to_model(), offset)
        )

    @translated
    def fetchConsumeOffset(self, mq: MessageQueue, fromStore: bool) -> int:
        """How far we have come; -1 if nobody knows."""
        found = self._require_running().run(
            lambda client: self._puller.fetch_offset(mq.to_model(), from_store=fromStore)
        )
        return -1 if found is None else found

    @translated
    def fetchMessageQueuesInBalance(self, topic: str) -> set[MessageQueue]:
        """Our share of a registered topic's queues."""
        self._require_running()
        mine = self._puller.assignment
        return {MessageQueue.of(queue) for queue in mine if queue.topic == topic}

    @translated
    def earliestMsgStoreTime(self, mq: MessageQueue) -> int:
        """When the first message was stored that is still there; -1 without messages."""
        found = self._require_running().run(
            lambda client: self._puller.earliest_time(mq.to_model())
        )
        return -1 if found is None else found

    @translated
    def sendMessageBack(self, msg: MessageExt, delayLevel: int, brokerName: str = "") -> None:
        """Have the group's push consumers get a message again later."""
        self._require_running().run(lambda client: self._puller.send_back(msg.received, delayLevel))


class PullTaskContext:
    """What a scheduled pull gets."""

    def __init__(self, consumer: DefaultMQPullConsumer) -> None:
        self._consumer = consumer
        self._delay_ms = 200

    def getPullConsumer(self) -> DefaultMQPullConsumer:
        return self._consumer

    def getPullNextDelayTimeMillis(self) -> int:
        return self._delay_ms

    def setPullNextDelayTimeMillis(self, delay_ms: int) -> None:
        """When the task wants to be called next."""
        self._delay_ms = delay_ms


PullTask = Callable[[MessageQueue, PullTaskContext], None]


class MQPullConsumerScheduleService:
    """Calls a task for every queue of our share, again and again."""

    def __init__(self, consumerGroup: str) -> None:
        self._consumer = DefaultMQPullConsumer(consumerGroup)
        self._tasks: dict[str, PullTask] = {}
        self._schedule: PullSchedule | None = None

    def getDefaultMQPullConsumer(self) -> DefaultMQPullConsumer:
        return self._consumer

    def setMessageModel(self, model: MessageModel) -> None:
        self._consumer.setMessageModel(model)

    def registerPullTaskCallback(self, topic: str, callback: Any) -> None:
        """Call `callback.doPullTask(mq, context)`, or the function itself, for a topic's queues."""
        self._tasks[topic] = getattr(callback, "doPullTask", callback)
        topics = self._consumer.getRegisterTopics()
        self._consumer.setRegisterTopics({*topics, topic})

    @translated
    def start(self) -> None:
        """Begin."""
        self._consumer.start()
        schedule = self._schedule = PullSchedule(self._consumer._puller)
        for topic, task in self._tasks.items():
            schedule.register(topic, self._in_thread(task))
        self._consumer._running_instance.run(lambda client: schedule.__aenter__())

    @translated
    def shutdown(self) -> None:
        """End."""
        schedule, self._schedule = self._schedule, None
        if schedule is not None:
            self._consumer._running_instance.run(
                lambda client: schedule.__aexit__(None, None, None)
            )
        self._consumer.shutdown()

    def _in_thread(self, task: PullTask) -> Callable[[_MessageQueue, PullTurn], Any]:
        async def call(queue: _MessageQueue, turn: PullTurn) -> None:
            context = PullTaskContext(self._consumer)
            await asyncio.to_thread(task, MessageQueue.of(queue), context)
            turn.next_delay_ms = context.getPullNextDelayTimeMillis()

        return call
