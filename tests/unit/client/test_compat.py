"""skylark.compat: the names and the habits of RocketMQ's Java client, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

import skylark.compat as compat
from skylark.client.consumer_config import ConsumerConfig
from skylark.client.receipts import SendReceipt
from skylark.client.received import ReceivedMessage
from skylark.client.verdicts import Fate, Verdict
from skylark.compat.errors import java_exception, translated
from skylark.errors import (
    BrokerError,
    CallTimeout,
    LocalProtocolError,
    NoRoute,
    RequestTimedOut,
    SendFailed,
)
from skylark.model.queue import MessageQueue as ModelQueue
from skylark.protocol.record import decode_record, encode_record, pack_host
from skylark.remote import SendStatus as ModelStatus

CHECKLIST_NAMES = [
    "Message",
    "MessageExt",
    "MessageQueue",
    "SendResult",
    "SendStatus",
    "SendCallback",
    "CommunicationMode",
    "DefaultMQProducer",
    "DefaultMQPushConsumer",
    "DefaultMQPullConsumer",
    "DefaultLitePullConsumer",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "ConsumeConcurrentlyContext",
    "ConsumeOrderlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeOrderlyStatus",
    "MessageSelector",
    "ConsumeFromWhere",
    "MessageModel",
    "MessageQueueSelector",
    "PullResult",
    "PullStatus",
    "MQPullConsumerScheduleService",
    "MessageQueueListener",
    "MQClientException",
    "MQBrokerException",
    "RemotingException",
    "InterruptedException",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMachineRoomNearby",
]


@pytest.mark.parametrize("name", CHECKLIST_NAMES)
def test_every_name_that_the_samples_use_is_there(name: str) -> None:
    assert getattr(compat, name).__name__ == name
    assert name in dir(compat)
    assert name in compat.__all__


def test_the_table_of_names_is_the_one_that_type_checkers_see() -> None:
    source = Path(compat.__file__).read_text()
    for name in compat.__all__:
        assert f"import {name} as {name}" in source or f"    {name} as {name}," in source


def test_messages_are_made_in_all_of_java_s_ways() -> None:
    plain = compat.Message("T", b"body")
    assert (plain.getTopic(), plain.getBody(), plain.getTags(), plain.getKeys()) == (
        *("T", b"body"),
        *(None, None),
    )
    assert (plain.getFlag(), plain.getDelayTimeLevel(), plain.isWaitStoreMsgOK()) == (0, 0, True)
    full = compat.Message("T", "Tag", "k1 k2", 7, b"body", False)
    full.putUserProperty("colour", "blue")
    full.setDelayTimeLevel(3)
    model = full.to_model()
    assert (model.topic, model.tag, model.keys, model.flag) == ("T", "Tag", ("k1", "k2"), 7)
    assert (model.delay_level, model.wait_stored) == (3, False)
    assert model.properties == {"colour": "blue"}
    assert compat.Message("T", "Tag", b"b").to_model().tag == "Tag"
    assert compat.Message("T", "Tag", "key", b"b").to_model().keys == ("key",)
    empty = compat.Message()
    empty.setTopic("T")
    empty.setBody(b"x")
    empty.setTags("A")
    empty.setKeys(["a", "b"])
    assert empty.to_model().keys == ("a", "b")
    with pytest.raises(TypeError, match="5 arguments"):
        compat.Message("T", "Tag", "key", b"b", 1)  # type: ignore[call-overload]
    with pytest.raises(LocalProtocolError, match="reserved"):
        plain.putUserProperty("TAGS", "no")


def received(topic: str = "T", **fields: object) -> ReceivedMessage:
    record = decode_record(
        encode_record(
            topic=topic,
            body=b"body",
            properties=b"TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01" + b"AB" * 16 + b"\x02n\x011\x02",
            born_host=pack_host("10.0.0.9", 1),
            store_host=pack_host("10.0.0.2", 10911),
            queue_id=3,
            queue_offset=17,
            physical_offset=4711,
            reconsume_times=2,
            born_at_ms=1,
            stored_at_ms=2,
        )
    )
    return ReceivedMessage(record, ModelQueue(topic, "broker-a", 3), "Orders", 5, 99)


def test_a_received_message_has_java_s_getters() -> None:
    message = compat.MessageExt(received())
    assert message.getTopic() == "Orders"
    assert message.getBody() == b"body"
    assert message.getMsgId() == "AB" * 16
    assert message.getOffsetMsgId() == "0A00000200002A9F0000000000001267"
    assert (message.getQueueId(), message.getQueueOffset()) == (3, 17)
    assert (message.getReconsumeTimes(), message.getCommitLogOffset()) == (2, 4711)
    assert (message.getTags(), message.getKeys(), message.getUserProperty("n")) == ("A", "k", "1")
    assert message.getProperty(compat.MessageConst.PROPERTY_MAX_OFFSET) == "99"
    assert message.getProperty(compat.MessageConst.PROPERTY_MIN_OFFSET) == "5"
    assert (message.getBornTimestamp(), message.getStoreTimestamp()) == (1, 2)
    assert message.getStoreHost() == "10.0.0.2:10911"
    assert "queueOffset=17" in str(message)
    assert "body=b'body'" in str(message)


def test_a_backlog_is_skipped_as_the_samples_do() -> None:
    message = compat.MessageExt(received())
    behind = int(message.getProperty("MAX_OFFSET") or 0) - message.getQueueOffset()
    assert behind == 82


def test_queues_are_equal_hashable_and_sorted() -> None:
    one, two = compat.MessageQueue("T", "b", 1), compat.MessageQueue("T", "b", 2)
    assert one == compat.MessageQueue("T", "b", 1) != two
    assert len({one, two, compat.MessageQueue("T", "b", 1)}) == 2
    assert sorted([two, one]) == [one, two]
    assert str(one) == "MessageQueue [topic=T, brokerName=b, queueId=1]"
    one.setQueueId(2)
    assert one == two


def test_a_send_result_says_where_the_message_went() -> None:
    queue = ModelQueue("T", "b", 1)
    result = compat.SendResult(SendReceipt(ModelStatus.FLUSH_DISK_TIMEOUT, "id", "off", queue, 5))
    assert result.getSendStatus() is compat.SendStatus.FLUSH_DISK_TIMEOUT
    assert (result.getMsgId(), result.getOffsetMsgId(), result.getQueueOffset()) == ("id", "off", 5)
    assert str(result) == (
        "SendResult [sendStatus=FLUSH_DISK_TIMEOUT, msgId=id, offsetMsgId=off, messageQueue="
        "MessageQueue [topic=T, brokerName=b, queueId=1], queueOffset=5]"
    )


def test_defaults_are_those_of_java() -> None:
    push = compat.DefaultMQPushConsumer()
    assert push.getConsumerGroup() == "DEFAULT_CONSUMER"
    assert push.getMessageModel() is compat.MessageModel.CLUSTERING
    assert push.getConsumeFromWhere() is compat.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert len(push.getConsumeTimestamp()) == 14
    assert push.getAllocateMessageQueueStrategy().name == "AVG"
    assert (push.getConsumeThreadMin(), push.getConsumeThreadMax()) == (20, 20)
    assert push.getConsumeConcurrentlyMaxSpan() == 2000
    assert (push.getPullThresholdForQueue(), push.getPullInterval()) == (1000, 0)
    assert (push.getConsumeMessageBatchMaxSize(), push.getPullBatchSize()) == (1, 32)
    assert (push.getInstanceName(), push.getNamesrvAddr()) == ("DEFAULT", None)
    assert push.getPollNameServerInterval() == push.getHeartbeatBrokerInterval() == 30_000
    assert push.getPersistConsumerOffsetInterval() == 5_000
    pull = compat.DefaultMQPullConsumer("g")
    assert pull.getConsumerGroup() == "g"
    assert pull.getBrokerSuspendMaxTimeMillis() == 20_000
    assert pull.getConsumerTimeoutMillisWhenSuspend() == 30_000
    assert pull.getConsumerPullTimeoutMillis() == 10_000
    producer = compat.DefaultMQProducer()
    assert producer.getProducerGroup() == "DEFAULT_PRODUCER"
    assert (producer.getCreateTopicKey(), producer.getDefaultTopicQueueNums()) == ("TBW102", 4)
    assert (producer.getSendMsgTimeout(), producer.getMaxMessageSize()) == (3000, 4 << 20)
    assert producer.getCompressMsgBodyOverHowmuch() == 4096
    assert producer.getRetryTimesWhenSendFailed() == 2
    assert producer.isRetryAnotherBrokerWhenNotStoreOK() is False
    defaults = ConsumerConfig()
    assert (defaults.concurrency, defaults.pull_batch_size, defaults.consume_batch_size) == (
        *(20, 32),
        1,
    )


def test_settings_are_set_and_unknown_ones_refused() -> None:
    push = compat.DefaultMQPushConsumer("g")
    push.setConsumeThreadMax(64)
    assert push.getConsumeThreadMax() == 64
    assert "setConsumeThreadMax" in dir(push)
    with pytest.raises(AttributeError, match="setConsumeTreadMax"):
        push.setConsumeTreadMax(1)


@pytest.mark.parametrize(
    ("status", "level", "ack_index", "expected"),
    [
        ("CONSUME_SUCCESS", 0, None, Verdict()),
        ("RECONSUME_LATER", 0, None, Verdict(Fate.RETRY)),
        ("RECONSUME_LATER", 4, None, Verdict(Fate.RETRY, delay_level=4)),
        ("RECONSUME_LATER", -1, None, Verdict(Fate.DEAD, delay_level=-1)),
        (None, 0, None, Verdict(Fate.RETRY)),
        ("CONSUME_SUCCESS", 0, 1, Verdict(Fate.RETRY, acked=2)),
        ("CONSUME_SUCCESS", 0, -1, Verdict(Fate.RETRY, acked=0)),
        ("CONSUME_SUCCESS", 0, 9, Verdict()),
    ],
)
def test_concurrent_statuses_mean_what_they_mean_in_java(
    status: str | None, level: int, ack_index: int | None, expected: Verdict
) -> None:
    context = compat.ConsumeConcurrentlyContext(compat.MessageQueue("T", "b", 0))
    context.setDelayLevelWhenNextConsume(level)
    if ack_index is not None:
        context.setAckIndex(ack_index)
    given = None if status is None else compat.ConsumeConcurrentlyStatus[status]
    assert context.verdict(given, 4) == expected


@pytest.mark.parametrize(
    ("status", "auto_commit", "expected"),
    [
        ("SUCCESS", True, Verdict()),
        ("SUCCESS", False, Verdict(Fate.HOLD)),
        ("COMMIT", False, Verdict(Fate.COMMIT)),
        ("ROLLBACK", False, Verdict(Fate.ROLL_BACK, pause_ms=50)),
        ("SUSPEND_CURRENT_QUEUE_A_MOMENT", True, Verdict(Fate.SUSPEND, pause_ms=50)),
        (None, True, Verdict(Fate.SUSPEND, pause_ms=50)),
    ],
)
def test_orderly_statuses_mean_what_they_mean_in_java(
    status: str | None, auto_commit: bool, expected: Verdict
) -> None:
    context = compat.ConsumeOrderlyContext(compat.MessageQueue("T", "b", 0))
    context.setAutoCommit(auto_commit)
    context.setSuspendCurrentQueueTimeMillis(50)
    given = None if status is None else compat.ConsumeOrderlyStatus[status]
    assert context.verdict(given) == expected


def test_our_errors_become_java_s_with_code_and_cause() -> None:
    broker = java_exception(BrokerError(17, "no topic", "10.0.0.2:10911"))
    assert isinstance(broker, compat.MQBrokerException)
    assert (broker.getResponseCode(), broker.getErrorMessage()) == (17, "no topic")
    assert broker.getBrokerAddr() == "10.0.0.2:10911"
    assert isinstance(java_exception(CallTimeout("x:1", 5)), compat.RemotingException)
    assert isinstance(java_exception(NoRoute("no", hint="yes")), compat.MQClientException)
    timed_out = java_exception(RequestTimedOut("no", hint="yes"))
    assert isinstance(timed_out, compat.RequestTimeoutException)
    refused = java_exception(SendFailed("no", hint="yes", code=2, broker="broker-a"))
    assert isinstance(refused, compat.MQBrokerException)

    @translated
    def fails() -> None:
        raise NoRoute("no", hint="yes", code=17)

    with pytest.raises(compat.MQClientException) as caught:
        fails()
    assert caught.value.getResponseCode() == 17
    assert isinstance(caught.value.__cause__, NoRoute)


def test_using_a_client_that_was_not_started_says_so() -> None:
    producer = compat.DefaultMQProducer("g")
    with pytest.raises(compat.MQClientException, match="service state not OK, CREATE_JUST"):
        producer.send(compat.Message("T", b"x"))
    push = compat.DefaultMQPushConsumer("g")
    push.setNamesrvAddr("127.0.0.1:1")
    with pytest.raises(compat.MQClientException, match="messageListener is null"):
        push.start()
    with pytest.raises(compat.MQClientException, match="has been created before, and failed"):
        push.start()
    push.shutdown()


def test_selectors_choose_as_java_s_do() -> None:
    queues = [compat.MessageQueue("T", "b", number) for number in range(4)]
    message = compat.Message("T", b"x")
    chosen = compat.SelectMessageQueueByHash().select(queues, message, "order-1")
    assert chosen is queues[abs(-1207109506) % 4]
    assert compat.SelectMessageQueueByRandom().select(queues, message, None) in queues


def test_selectors_of_messages_say_their_kind() -> None:
    sql = compat.MessageSelector.bySql("a > 5")
    assert (sql.getExpression(), sql.getExpressionType()) == ("a > 5", "SQL92")
    tags = compat.MessageSelector.byTag("A || B")
    assert (tags.getExpression(), tags.getExpressionType()) == ("A || B", "TAG")
    assert compat.MixAll.getRetryTopic("g") == "%RETRY%g"
    assert compat.MixAll.getDLQTopic("g") == "%DLQ%g"


def test_strategies_take_java_s_arguments() -> None:
    config = compat.AllocateMessageQueueByConfig()
    config.setMessageQueueList([compat.MessageQueue("T", "b", 1)])
    assert config.allocate("g", "c", [], []) == [ModelQueue("T", "b", 1)]
    room = compat.AllocateMessageQueueByMachineRoom()
    room.setConsumeridcs({"r1"})
    queues = [ModelQueue("T", "r1@b", 0), ModelQueue("T", "r2@b", 0)]
    assert room.allocate("g", "c", queues, ["c"]) == queues[:1]

    class Resolver:
        def brokerDeployIn(self, messageQueue: compat.MessageQueue) -> str:
            return messageQueue.getBrokerName()[:2]

        def consumerDeployIn(self, clientID: str) -> str:
            return clientID[:2]

    nearby = compat.AllocateMachineRoomNearby(compat.AllocateMessageQueueAveragely(), Resolver())
    assert nearby.allocate("g", "r1-x", queues, ["r1-x", "r2-x"]) == queues[:1]
