"""Typed bodies: every example of the protocol's description, read and written byte for byte."""

import pkgutil
from importlib import import_module

import pytest

from skylark.errors import InvalidBody
from skylark.model import (
    BrokerData,
    ClusterInfo,
    ConsumeFromWhere,
    ConsumeType,
    DataVersion,
    MessageModel,
    MessageQueue,
    QueueData,
    Subscription,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRoute,
)
from skylark.protocol import bodies
from skylark.protocol.bodies import (
    Body,
    BrokerConsumeStatsBody,
    BrokerStatsDataBody,
    BrokerStatsItem,
    CheckClientConfigBody,
    ClientConnection,
    ClusterInfoBody,
    ConsumeMessageDirectlyResult,
    ConsumeOffset,
    ConsumeQueueData,
    ConsumerConnectionBody,
    ConsumerData,
    ConsumeResult,
    ConsumerFilterData,
    ConsumerFilterTable,
    ConsumerList,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStatsBody,
    ConsumeStatus,
    CorrectionOffsetBody,
    DataVersionBody,
    DelayOffsetTable,
    GroupList,
    HalfMessage,
    HalfMessageList,
    HeartbeatData,
    KVConfigTable,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    OffsetMovedEvent,
    PredicateTableBody,
    PredicateVersion,
    ProcessQueueInfo,
    ProducerConnectionBody,
    ProducerInfo,
    ProducerTableBody,
    QueryConsumeQueueBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionGroupConfigBody,
    SubscriptionGroupTable,
    TopicConfigBody,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicRouteBody,
    TopicStatsBody,
    WaitingList,
    WaitingMessage,
    wants_standard_json,
)

MQ = MessageQueue(topic="T", broker_name="b", queue_id=0)
MQ_TEXT = '{"brokerName":"b","queueId":0,"topic":"T"}'
WAITING = WaitingMessage(
    topic="T",
    queue_id=1,
    due_ms=9,
    stored_at_ms=8,
    queue_offset=3,
    offset_id="7F",
    unique_id="U",
    keys="k",
    tag="A",
    size_bytes=200,
    repeat_id="r",
    rule="every 1000",
    zone="UTC",
    repeat_count=2,
)
WAITING_TEXT = (
    '{"dueMs":9,"keys":"k","msgId":"U","offsetMsgId":"7F","queueId":1,"queueOffset":3,'
    '"repeatCount":2,"repeatId":"r","rule":"every 1000","storeSize":200,"storeTimestamp":8,'
    '"tag":"A","topic":"T","zone":"UTC"}'
)
TOPIC_TEXT = (
    '{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T",'
    '"topicSysFlag":0,"writeQueueNums":8}'
)
TABLE_TEXT = (
    f'{{"dataVersion":{{"counter":0,"timestamp":5}},"topicConfigTable":{{"T":{TOPIC_TEXT}}}}}'
)
TABLE = TopicConfigTable({"T": TopicConfig("T", 8, 8, 6)}, DataVersion(timestamp=5, counter=0))
TAGS = Subscription(
    topic="TopicTest",
    expression="TagA || TagC",
    tags=("TagA", "TagC"),
    codes=(2598919, 2598921),
    version=1794726814129,
)
TAGS_TEXT = (
    '{"classFilterMode":false,"codeSet":[2598919,2598921],"expressionType":"TAG",'
    '"subString":"TagA || TagC","subVersion":1794726814129,"tagsSet":["TagA","TagC"],'
    '"topic":"TopicTest"}'
)
ALL_TEXT = (
    '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
    '"subVersion":1794726814139,"tagsSet":[],"topic":"%RETRY%cg1"}'
)
GROUP_TEXT = (
    '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"groupName":"g","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    '"whichBrokerWhenConsumeSlowly":1}'
)
STATS = ConsumeStatsBody({MQ: ConsumeOffset(3, 2, 1001)}, 0.5)
STATS_TEXT = (
    f'{{"consumeTps":0.5,"offsetTable":{{{MQ_TEXT}:'
    '{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1001}}}'
)
CONNECTION = ClientConnection("cid", "ip:port", "JAVA", 409)
CONNECTION_TEXT = '{"clientAddr":"ip:port","clientId":"cid","language":"JAVA","version":409}'

FILTER = ConsumerFilterData(
    topic="T",
    group="g",
    expression="a > 1",
    expression_type="SQL92",
    born_ms=1794726902817,
    client_version=1794726902859,
    bit_count=112,
    positions=(109, 15, 3),
)
FILTER_TEXT = (
    '{"bloomFilterData":{"bitNum":112,"bitPos":[109,15,3]},"bornTime":1794726902817,'
    '"clientVersion":1794726902859,"consumerGroup":"g","dead":false,"deadTime":0,'
    '"expression":"a > 1","expressionType":"SQL92","topic":"T"}'
)
PREDICATE = PredicateVersion(name="large", version=2, source="x", uploaded_ms=5)
PREDICATE_TEXT = '{"name":"large","source":"x","uploadedTime":5,"version":2}'
HALF = HalfMessage("pg", "T", 1, "U1", "AB", 7, 900, "Paid", "k1", 5, 10, 11, 2)
HALF_TEXT = (
    '{"bodySize":5,"bornTimestamp":10,"checkTimes":2,"commitLogOffset":900,'
    '"firstStoreTimestamp":11,"keys":"k1","offsetMsgId":"AB","producerGroup":"pg","queueId":1,'
    '"tags":"Paid","topic":"T","tranStateTableOffset":7,"transactionId":"U1"}'
)

EXAMPLES: list[tuple[Body, str]] = [
    (
        TopicRouteBody(
            TopicRoute(
                brokers=(BrokerData("c", "b", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),),
                queues=(QueueData("b", 4, 4, 6, 0),),
                order_conf="b:4",
            )
        ),
        '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b",'
        '"cluster":"c"}],"filterServerTable":{},"orderTopicConf":"b:4","queueDatas":[{"brokerName":'
        '"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        ClusterInfoBody(
            ClusterInfo(
                {"b": BrokerData("c", "b", {0: "1.1.1.1:10911", 1: "1.1.1.2:10911"})},
                {"c": ("b",)},
            )
        ),
        '{"brokerAddrTable":{"b":{"brokerAddrs":{0:"1.1.1.1:10911",1:"1.1.1.2:10911"},'
        '"brokerName":"b","cluster":"c"}},"clusterAddrTable":{"c":["b"]}}',
    ),
    (
        TopicConfigBody(TopicConfig("T", 8, 4, 6)),
        '{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":4}',
    ),
    (TopicList(("T",)), '{"topicList":["T"]}'),
    (
        TopicList(("DefaultCluster", "broker-a"), "ip:port"),
        '{"brokerAddr":"ip:port","topicList":["DefaultCluster","broker-a"]}',
    ),
    (KVTable({"k": "v"}), '{"table":{"k":"v"}}'),
    (
        KVConfigTable({"ORDER_TOPIC_CONFIG": {"T": "broker-a:4;broker-b:4"}}),
        '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}',
    ),
    (
        RegisterBrokerBody(TABLE),
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{TABLE_TEXT}}}',
    ),
    (TABLE, TABLE_TEXT),
    (DataVersionBody(DataVersion(timestamp=5, counter=0)), '{"counter":0,"timestamp":5}'),
    (
        HeartbeatData(
            client_id="192.0.2.2@9588#1182041011970",
            producer_groups=("CLIENT_INNER_PRODUCER",),
            consumers=(
                ConsumerData(
                    group_name="cg1",
                    consume_type=ConsumeType.CONSUME_PASSIVELY,
                    message_model=MessageModel.CLUSTERING,
                    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                    subscriptions=(TAGS, Subscription(topic="%RETRY%cg1", version=1794726814139)),
                ),
            ),
        ),
        '{"clientID":"192.0.2.2@9588#1182041011970","consumerDataSet":[{"consumeFromWhere":'
        '"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"cg1",'
        f'"messageModel":"CLUSTERING","subscriptionDataSet":[{TAGS_TEXT},{ALL_TEXT}],'
        '"unitMode":false}],"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}',
    ),
    (
        CheckClientConfigBody("c", "g", TAGS),
        f'{{"clientId":"c","group":"g","subscriptionData":{TAGS_TEXT}}}',
    ),
    (ConsumerList(("cid", "cid2")), '{"consumerIdList":["cid","cid2"]}'),
    (
        LockBatchRequestBody("192.0.2.2@inst1", "cg", (MessageQueue("TopicTest", "broker-a", 3),)),
        '{"clientId":"192.0.2.2@inst1","consumerGroup":"cg","mqSet":[{"brokerName":"broker-a",'
        '"queueId":3,"topic":"TopicTest"}]}',
    ),
    (
        LockBatchResponseBody((MessageQueue("TopicTest", "broker-a", 3),)),
        '{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}]}',
    ),
    (ResetOffsetBody({MQ: 9}), f'{{"offsetTable":{{{MQ_TEXT}:9}}}}'),
    (
        ConsumerStatusBody(queues={MQ: 8}),
        f'{{"consumerTable":{{}},"messageQueueTable":{{{MQ_TEXT}:8}}}}',
    ),
    (
        ConsumerStatusBody(consumers={"cid": {MQ: 8}}),
        f'{{"consumerTable":{{"cid":{{{MQ_TEXT}:8}}}},"messageQueueTable":{{}}}}',
    ),
    (
        ConsumeMessageDirectlyResult(ConsumeResult.CR_SUCCESS, spent_time_millis=20),
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":20}',
    ),
    (
        ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            subscriptions=(TAGS,),
            queues={MQ: ProcessQueueInfo()},
            statuses={"T": ConsumeStatus()},
        ),
        f'{{"mqTable":{{{MQ_TEXT}:{{"cachedMsgCount":0,"cachedMsgMaxOffset":0,'
        '"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,'
        '"lastConsumeTimestamp":0,"lastLockTimestamp":0,"lastPullTimestamp":0,"locked":false,'
        '"transactionMsgCount":0,"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,'
        '"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},'
        '"statusTable":{"T":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,'
        f'"consumeRT":0.0,"pullRT":0.0,"pullTPS":0.0}}}},"subscriptionSet":[{TAGS_TEXT}]}}',
    ),
    (
        OffsetMovedEvent("g", MQ, offset_request=1, offset_new=2),
        f'{{"consumerGroup":"g","messageQueue":{MQ_TEXT},"offsetNew":2,"offsetRequest":1}}',
    ),
    (SubscriptionGroupConfigBody(SubscriptionGroupConfig(group_name="g")), GROUP_TEXT),
    (
        SubscriptionGroupTable(
            {"g": SubscriptionGroupConfig(group_name="g")}, DataVersion(timestamp=9, counter=1)
        ),
        '{"dataVersion":{"counter":1,"timestamp":9},"subscriptionGroupTable":{"g":'
        f"{GROUP_TEXT}}}}}",
    ),
    (
        TopicStatsBody({MQ: TopicOffset(0, 3, 1001)}),
        f'{{"offsetTable":{{{MQ_TEXT}:{{"lastUpdateTimestamp":1001,"maxOffset":3,"minOffset":0}}}}}}',
    ),
    (STATS, STATS_TEXT),
    (
        BrokerConsumeStatsBody("ip:port", ({"g": (STATS,)},), 1),
        f'{{"brokerAddr":"ip:port","consumeStatsList":[{{"g":[{STATS_TEXT}]}}],"totalDiff":1}}',
    ),
    (
        ConsumerConnectionBody((CONNECTION,), {"TopicTest": TAGS}),
        f'{{"connectionSet":[{CONNECTION_TEXT}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":'
        f'{{"TopicTest":{TAGS_TEXT}}}}}',
    ),
    (ProducerConnectionBody((CONNECTION,)), f'{{"connectionSet":[{CONNECTION_TEXT}]}}'),
    (
        ProducerTableBody({"pg": (ProducerInfo("cid", "/ip:port", "JAVA", 409, 1000),)}),
        '{"data":{"pg":[{"clientId":"cid","language":"JAVA","lastUpdateTimestamp":1000,'
        '"remoteIP":"/ip:port","version":409}]}}',
    ),
    (GroupList(("g",)), '{"groupList":["g"]}'),
    (
        QueryConsumeTimeSpanBody(
            (
                QueueTimeSpan(
                    queue=MQ,
                    min_timestamp=1,
                    max_timestamp=2,
                    consume_timestamp=2,
                    delay_time=0,
                    min_timestamp_text="1970-01-01#00:00:00:001",
                    max_timestamp_text="1970-01-01#00:00:00:002",
                    consume_timestamp_text="1970-01-01#00:00:00:002",
                ),
            )
        ),
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":2,"consumeTimeStampStr":'
        '"1970-01-01#00:00:00:002","delayTime":0,"maxTimeStamp":2,"maxTimeStampStr":'
        f'"1970-01-01#00:00:00:002","messageQueue":{MQ_TEXT},"minTimeStamp":1,'
        '"minTimeStampStr":"1970-01-01#00:00:00:001"}]}',
    ),
    (CorrectionOffsetBody({0: 5}), '{"correctionOffsets":{0:5}}'),
    (
        BrokerStatsDataBody(minute=BrokerStatsItem(60, 1.0, 0.5)),
        '{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        '"statsMinute":{"avgpt":0.5,"sum":60,"tps":1.0}}',
    ),
    (
        QueryConsumeQueueBody(0, 7, (ConsumeQueueData(217, 229, 2598919),), filter_data="text"),
        '{"filterData":"text","maxQueueIndex":7,"minQueueIndex":0,"queueData":[{"eval":false,'
        '"physicOffset":217,"physicSize":229,"tagsCode":2598919}]}',
    ),
    (ConsumerOffsetTable({"T@g": {0: 5, 1: 6}}), '{"offsetTable":{"T@g":{0:5,1:6}}}'),
    (DelayOffsetTable({1: 1, 3: 1}), '{"offsetTable":{1:1,3:1}}'),
    (WAITING, WAITING_TEXT),
    (WaitingList((WAITING,), 7), f'{{"messages":[{WAITING_TEXT}],"total":7}}'),
    (
        ConsumerFilterTable((FILTER,)),
        f'{{"filterDataByTopic":{{"T":{{"groupFilterData":{{"g":{FILTER_TEXT}}},"topic":"T"}}}}}}',
    ),
    (FILTER, FILTER_TEXT),
    (PREDICATE, PREDICATE_TEXT),
    (PredicateTableBody((PREDICATE,)), f'{{"predicates":[{PREDICATE_TEXT}]}}'),
    (HALF, HALF_TEXT),
    (
        HalfMessageList(1, 2, 3, 4, 5, (HALF,)),
        f'{{"checks":5,"committed":2,"givenUp":4,"messages":[{HALF_TEXT}],"pending":1,'
        '"rolledBack":3}',
    ),
]


@pytest.mark.parametrize(
    ("body", "text"), EXAMPLES, ids=[type(body).__name__ for body, _ in EXAMPLES]
)
def test_an_example_is_read_and_written_exactly(body: Body, text: str) -> None:
    assert body.to_json() == text.encode()
    assert type(body).from_json(text.encode()) == body
    assert type(body).from_json(memoryview(text.encode() + b"\n")) == body
    assert type(body).from_json(body.to_json(pretty=True)) == body


def test_every_body_has_its_example() -> None:
    parts = {ConsumerData, ClientConnection, ProducerInfo, BrokerStatsItem}
    parts |= {ConsumeQueueData, ProcessQueueInfo, ConsumeStatus}
    shown = {type(body) for body, _ in EXAMPLES}
    public = {getattr(bodies, name) for name in dir(bodies) if name[0].isupper()}
    kinds = {kind for kind in public if isinstance(kind, type) and issubclass(kind, Body)}
    assert shown | parts == kinds - {Body}


def test_the_front_door_has_every_body_of_the_rooms_behind_it() -> None:
    for module in pkgutil.iter_modules(bodies.__path__):
        room = import_module(f"skylark.protocol.bodies.{module.name}")
        for name, kind in vars(room).items():
            is_body = isinstance(kind, type) and issubclass(kind, Body)
            if is_body and kind.__module__ == room.__name__:
                assert getattr(bodies, name) is kind


def test_a_new_client_gets_its_route_in_standard_json() -> None:
    body = EXAMPLES[0][0]
    assert isinstance(body, TopicRouteBody)
    assert body.to_json(standard=True) == (
        EXAMPLES[0][1].replace("{0:", '{"0":').replace(",1:", ',"1":').encode()
    )
    assert TopicRouteBody.from_json(body.to_json(standard=True)) == body


def test_only_standard_json_escapes_other_scripts() -> None:
    body = TopicRouteBody(TopicRoute(brokers=(BrokerData("集群", "b"),)))
    assert "集群".encode() in body.to_json()
    assert b"\\u96c6\\u7fa4" in body.to_json(standard=True)


@pytest.mark.parametrize(
    ("version", "flag", "standard"),
    [
        (317, None, False),
        (400, None, False),
        (401, None, True),
        (409, False, True),
        (317, True, True),
    ],
)
def test_the_dialect_of_a_route_follows_version_and_wish(
    version: int, flag: bool | None, standard: bool
) -> None:
    assert wants_standard_json(version, flag) is standard


def test_the_cpp_client_gets_its_offsets_as_a_list() -> None:
    text = b'{"offsetTable":[{"brokerName":"b","offset":9,"queueId":0,"topic":"T"}]}'
    assert ResetOffsetBody({MQ: 9}).to_list_json() == text
    assert ResetOffsetBody.from_json(text) == ResetOffsetBody({MQ: 9})


def test_a_topic_table_is_written_for_a_config_file_as_java_writes_it() -> None:
    assert TABLE.to_json(pretty=True).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"timestamp":5\n\t},\n\t"topicConfigTable":{\n'
        '\t\t"T":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":8,\n'
        '\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"T",\n\t\t\t"topicSysFlag":0,\n'
        '\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
    )


def test_config_files_of_newer_versions_are_read() -> None:
    table = TopicConfigTable.from_json(
        b'{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":7},"topicConfigTable":'
        b'{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":'
        b'"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":8}}}'
    )
    assert table.topics == TABLE.topics
    assert table.data_version == DataVersion(timestamp=7, counter=4)
    groups = SubscriptionGroupTable.from_json(
        b'{"subscriptionGroupTable":{"g":{"groupName":"g","attributes":{},'
        b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"consumeTimeoutMinute":15}}}'
    )
    assert groups.groups == {"g": SubscriptionGroupConfig(group_name="g")}


def test_offsets_are_found_by_queue_whichever_way_the_key_is_spelled() -> None:
    spellings = [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:9}}',
        b'{"offsetTable":{{"topic":"T","queueId":"0",brokerName:\'b\'}:"9"}}',
        rb'{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":9}}',
    ]
    for text in spellings:
        assert ResetOffsetBody.from_json(text).offsets == {MQ: 9}


def test_the_go_client_spells_dropped_right() -> None:
    info = ConsumerRunningInfo.from_json(f'{{"mqTable":{{{MQ_TEXT}:{{"dropped":true}}}}}}'.encode())
    assert info.queues[MQ].dropped is True


def test_the_go_client_sends_the_ordinal_of_a_result() -> None:
    result = ConsumeMessageDirectlyResult.from_json(b'{"consumeResult":4,"remark":"no"}')
    assert result.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert result.remark == "no"


def test_a_heartbeat_of_the_cpp_client_is_read() -> None:
    """Ordinals for enums, the version as text, empty sets left out, a newline at the end."""
    heartbeat = HeartbeatData.from_json(
        b'{"clientID":"10.0.0.1@1","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"cg","messageModel":1,"subscriptionDataSet":[{"classFilterMode":false,'
        b'"subString":"*","subVersion":"1794726814139","topic":"T"}]}]}\n'
    )
    assert heartbeat == HeartbeatData(
        client_id="10.0.0.1@1",
        consumers=(
            ConsumerData(
                group_name="cg",
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                subscriptions=(Subscription(topic="T", version=1794726814139),),
            ),
        ),
    )


def test_a_heartbeat_of_a_5_x_client_is_read() -> None:
    heartbeat = HeartbeatData.from_json(
        b'{"clientID":"c","consumerDataSet":[],"heartbeatFingerprint":-7,"producerDataSet":'
        b'[{"groupName":"pg"}],"withoutSub":false}'
    )
    assert heartbeat == HeartbeatData("c", ("pg",), (), -7, False)


def test_a_route_of_a_5_x_name_server_is_read() -> None:
    text = EXAMPLES[0][1].replace(
        '"cluster":"c"', '"cluster":"c","enableActingMaster":false,"zoneName":"z"'
    )
    text = text[:-1] + ',"topicQueueMappingByBroker":{"b":{"x":[1]}}}'
    assert TopicRouteBody.from_json(text.encode()) == EXAMPLES[0][0]


def test_objects_that_java_wrote_once_are_put_in_every_place() -> None:
    text = (
        f'{{"connectionSet":[],"subscriptionTable":{{"A":{TAGS_TEXT},'
        '"B":{"$ref":"$.subscriptionTable.A"}}}'
    )
    body = ConsumerConnectionBody.from_json(text.encode())
    assert body.subscriptions == {"A": TAGS, "B": TAGS}


def test_a_body_that_is_empty_or_no_object_is_refused() -> None:
    for data in (b"", b"null", b"[]", b"1", b'"x"'):
        with pytest.raises(InvalidBody, match=r"should be an object|end of text"):
            TopicList.from_json(data)
