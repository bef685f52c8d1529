"""Rows of the checklist on Java's names that no other test shows, without a broker."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from skylark import compat
from skylark.broker.config import BrokerConfig
from skylark.compat.clients import ClientConfig
from skylark.config import settings_of
from skylark.config.rocketmq_keys import INERT
from skylark.errors import SkylarkError


class Watch(compat.RPCHook):
    def doBeforeRequest(self, remoteAddr: str, request: compat.RemotingCommand) -> None: ...

    def doAfterResponse(
        self, remoteAddr: str, request: compat.RemotingCommand, response: compat.RemotingCommand
    ) -> None: ...


def test_all_clients_have_the_common_settings_with_getters_and_setters() -> None:
    clients = (
        compat.DefaultMQProducer("g"),
        compat.DefaultMQPushConsumer("g"),
        compat.DefaultMQPullConsumer("g"),
        compat.DefaultLitePullConsumer("g"),
    )
    for client in clients:
        assert isinstance(client, ClientConfig)
        for name, default in ClientConfig.SETTINGS.items():
            word = name[0].upper() + name[1:]
            assert getattr(client, f"get{word}")() == default
            getattr(client, f"set{word}")("changed")
            assert getattr(client, f"get{word}")() == "changed"


def test_the_callback_threads_are_as_many_as_the_machine_has_cores() -> None:
    producer = compat.DefaultMQProducer("g")
    assert producer.getClientCallbackExecutorThreads() == (os.cpu_count() or 1)


def test_a_client_is_known_by_its_address_and_instance_name() -> None:
    producer = compat.DefaultMQProducer("g")
    producer.setClientIP("10.0.0.7")
    assert producer.buildMQClientId() == "10.0.0.7@DEFAULT"
    producer.setInstanceName("billing")
    producer.setUnitName("u1")
    assert producer.buildMQClientId() == "10.0.0.7@billing@u1"


def test_clients_are_made_with_a_hook_in_all_of_java_s_ways() -> None:
    hook = Watch()
    for client in (
        compat.DefaultMQProducer("g", hook),
        compat.DefaultMQPushConsumer("g", hook),
        compat.DefaultMQPullConsumer("g", hook),
        compat.DefaultLitePullConsumer("g", hook),
    ):
        assert client.getRpcHook() is hook
    assert compat.DefaultMQProducer(hook).getRpcHook() is hook
    assert compat.DefaultMQPushConsumer(hook).getConsumerGroup() == "DEFAULT_CONSUMER"
    strategy = compat.AllocateMessageQueueAveragelyByCircle()
    assert (
        compat.DefaultMQPushConsumer("g", None, strategy).getAllocateMessageQueueStrategy()
        is strategy
    )
    traced = compat.DefaultMQProducer("g", True, "Traces")
    assert (traced.isEnableMsgTrace(), traced.getCustomizedTraceTopic()) == (True, "Traces")
    both = compat.DefaultMQProducer("g", hook, True, "Traces")
    assert (both.getRpcHook(), both.isEnableMsgTrace(), both.getCustomizedTraceTopic()) == (
        hook, True, "Traces",
    )  # fmt: skip


def test_an_account_given_by_hook_signs_what_its_client_sends() -> None:
    credentials = compat.SessionCredentials("RocketMQ", "12345678", "token")
    producer = compat.DefaultMQProducer("g", compat.AclClientRPCHook(credentials))
    options = producer._connect_options()
    assert (options["access_key"], options["secret_key"], options["security_token"]) == (
        "RocketMQ", "12345678", "token",
    )  # fmt: skip
    assert "12345678" not in repr(credentials)
    plain = compat.DefaultMQProducer("g")._connect_options()
    assert (plain["access_key"], plain["secret_key"]) == (None, None)


def test_clients_with_the_same_hook_share_their_connections_and_others_do_not() -> None:
    hook = Watch()

    def key(client: compat.DefaultMQProducer) -> object:
        return tuple(sorted(client._connect_options().items(), key=lambda item: item[0]))

    assert key(compat.DefaultMQProducer("a", hook)) == key(compat.DefaultMQProducer("b", hook))
    assert key(compat.DefaultMQProducer("a", hook)) != key(compat.DefaultMQProducer("b", Watch()))
    hash(key(compat.DefaultMQProducer("a", hook)))


def test_what_a_push_consumer_is_told_can_be_read_back() -> None:
    push = compat.DefaultMQPushConsumer("g")
    assert push.getSubscription() == {}
    assert push.getMessageListener() is None
    assert push.getOffsetStore() is None

    def listen(msgs: object, context: object) -> None: ...

    push.setMessageListener(listen)
    assert push.getMessageListener() is listen
    push.subscribe("A", "x || y")
    push.subscribe("B", compat.MessageSelector.bySql("a > 5"))
    push.subscribe("C")
    assert push.getSubscription() == {"A": "x || y", "B": "a > 5", "C": "*"}
    push.setSubscription({"D": "*"})
    assert push.getSubscription() == {"D": "*"}
    for name, value in (
        ("ConsumeTimestamp", "20261115120000"),
        ("MaxReconsumeTimes", 3),
        ("ConsumeThreadMin", 4),
        ("ConsumeThreadMax", 8),
        ("PullBatchSize", 16),
        ("ConsumeMessageBatchMaxSize", 5),
        ("MessageModel", compat.MessageModel.BROADCASTING),
        ("ConsumeFromWhere", compat.ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
    ):
        getattr(push, f"set{name}")(value)
        assert getattr(push, f"get{name}")() == value


def test_a_pull_consumer_has_java_s_settings() -> None:
    pull = compat.DefaultMQPullConsumer("g")
    assert pull.getMessageModel() is compat.MessageModel.CLUSTERING
    assert pull.getAllocateMessageQueueStrategy().name == "AVG"
    assert (pull.getMessageQueueListener(), pull.getOffsetStore()) == (None, None)
    assert list(pull.getRegisterTopics()) == []
    pull.setRegisterTopics({"A", "B"})
    assert pull.getRegisterTopics() == {"A", "B"}


def test_an_offset_store_of_one_s_own_is_refused_rather_than_ignored() -> None:
    push = compat.DefaultMQPushConsumer("g")
    push.setNamesrvAddr("127.0.0.1:1")
    push.setOffsetStore(object())
    with pytest.raises(compat.MQClientException, match="offsetStore"):
        push.start()


def test_the_exceptions_have_java_s_names_and_are_of_one_tree() -> None:
    for name in (
        "MQClientException",
        "RemotingException",
        "MQBrokerException",
        "InterruptedException",
    ):
        kind = getattr(compat, name)
        assert kind.__name__ == name
        assert issubclass(kind, Exception)
    for kind in (
        compat.MQClientException,
        compat.RemotingException,
        compat.MQBrokerException,
    ):
        assert issubclass(kind, SkylarkError)


def test_a_batch_of_modes_and_places_has_java_s_names() -> None:
    assert [mode.name for mode in compat.CommunicationMode] == ["SYNC", "ASYNC", "ONEWAY"]
    assert {mode.name for mode in compat.MessageModel} == {"BROADCASTING", "CLUSTERING"}
    assert {
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    } <= {where.name for where in compat.ConsumeFromWhere}  # fmt: skip
    assert [status.name for status in compat.ConsumeConcurrentlyStatus] == [
        "CONSUME_SUCCESS", "RECONSUME_LATER",
    ]  # fmt: skip
    assert {"SUCCESS", "SUSPEND_CURRENT_QUEUE_A_MOMENT"} <= {
        status.name for status in compat.ConsumeOrderlyStatus
    }
    queue = compat.MessageQueue("tp_demo", "broker-a", 3)
    assert (queue.getTopic(), queue.getBrokerName(), queue.getQueueId()) == (
        "tp_demo", "broker-a", 3,
    )  # fmt: skip


def test_a_listener_is_told_its_queue_and_may_say_when_to_come_again() -> None:
    queue = compat.MessageQueue("T", "b", 2)
    concurrently = compat.ConsumeConcurrentlyContext(queue)
    assert concurrently.getMessageQueue() == queue
    assert concurrently.getDelayLevelWhenNextConsume() == 0
    orderly = compat.ConsumeOrderlyContext(queue)
    assert orderly.getMessageQueue() == queue
    assert orderly.isAutoCommit() is True
    assert orderly.getSuspendCurrentQueueTimeMillis() == -1


def test_a_message_that_was_sent_can_be_sent_again() -> None:
    message = compat.Message("T", "Tag", b"x")
    message.getProperties()["UNIQ_KEY"] = "A" * 32  # As a send leaves it behind.
    model = message.to_model()
    assert (model.tag, model.properties) == ("Tag", {})


def test_the_page_on_memory_names_every_flag_of_the_jvm_that_the_seeds_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "memory.md").read_text()
    for flag in (
        "Xms", "Xmx", "Xmn", "256m", "MetaspaceSize", "PermSize", "UseG1GC", "G1HeapRegionSize=16m",
        "G1ReservePercent=25", "InitiatingHeapOccupancyPercent=30", "SoftRefLRUPolicyMSPerMB=0",
        "UseConcMarkSweepGC", "UseLargePages", "UseBiasedLocking", "OmitStackTraceInFastThrow",
        "NumberOfGCLogFiles=5", "GCLogFileSize=30m",
    ):  # fmt: skip
        assert flag in page, flag
    keys = {known.key for known in settings_of(BrokerConfig).values()} | set(INERT)
    for key in re.findall(r"`([a-z]+[A-Z]\w+)`", page):
        assert key in keys, key
