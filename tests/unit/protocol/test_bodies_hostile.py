"""Typed bodies against input that lies: one named error, nothing else."""

import struct
import time
import zlib

import pytest

from skylark.errors import InvalidBody
from skylark.model import DataVersion, TopicConfig
from skylark.protocol.bodies import (
    Body,
    ConsumerOffsetTable,
    ConsumeStatsBody,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    RegisterBrokerBody,
    ResetOffsetBody,
    TopicConfigTable,
    TopicRouteBody,
    body_crc32,
    topic_and_group_of,
    topic_at_group,
)
from skylark.protocol.bodies.registration import INFLATED_SIZE_MAX


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (HeartbeatData, "{}", "HeartbeatData.clientID is missing"),
        (HeartbeatData, '{"clientID":null}', "HeartbeatData.clientID is missing"),
        (HeartbeatData, '{"clientID":[]}', "HeartbeatData.clientID should be text, not an array"),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":{}}',
            "should be an array, not an object",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":[1]}',
            r"consumerDataSet\[0\] should be an object, not 1",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","producerDataSet":[{}]}',
            r"producerDataSet\[0\].groupName is missing",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":2}]}',
            r"consumerDataSet\[0\].messageModel should be one of BROADCASTING, CLUSTERING, not 2",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"X"}]}',
            "messageModel should be one of",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":true}]}',
            "consumeType should be one of",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
            '[{"topic":"T","subVersion":"soon"}]}]}',
            "subVersion should be an integer, not text",
        ),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
            '[{"topic":"T","codeSet":[2147483648]}]}]}',
            r"codeSet\[0\] does not fit 32 bits",
        ),
        (
            LockBatchRequestBody,
            '{"clientId":"c","consumerGroup":"g","mqSet":[{}]}',
            "topic is missing",
        ),
        (
            TopicConfigTable,
            '{"topicConfigTable":{"T":{"topicName":"T","perm":6.5}}}',
            "perm should be an integer",
        ),
        (
            TopicConfigTable,
            '{"topicConfigTable":{"T":{"topicName":"T","perm":4294967296}}}',
            "perm does not fit 32 bits",
        ),
        (
            TopicConfigTable,
            '{"topicConfigTable":{"T":{"topicName":"T","order":2}}}',
            "order should be a bool",
        ),
        (
            TopicConfigTable,
            '{"topicConfigTable":{"T":{"perm":6}}}',
            "topicConfigTable.T.topicName is missing",
        ),
        (TopicConfigTable, '{"topicConfigTable":[]}', "should be an object, not an array"),
        (
            TopicConfigTable,
            '{"topicConfigTable":"x"}',
            "topicConfigTable should be an object, not text",
        ),
        (
            TopicRouteBody,
            '{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"y"}}]}',
            "brokerAddrs key should be an integer",
        ),
        (TopicRouteBody, '{"queueDatas":[{"brokerName":"b"}]}', "readQueueNums is missing"),
        (ResetOffsetBody, '{"offsetTable":{"x":1}}', "unexpected 'x'"),
        (ResetOffsetBody, '{"offsetTable":{{"topic":"T"}:1}}', "brokerName is missing"),
        (
            ResetOffsetBody,
            '{"offsetTable":[{"topic":"T","brokerName":"b","queueId":0}]}',
            "offset is missing",
        ),
        (ConsumerOffsetTable, '{"offsetTable":{"T@g":{0:"x"}}}', "should be an integer, not text"),
        (ConsumerOffsetTable, '{"offsetTable":{"T@g":5}}', "should be an object, not 5"),
        (ConsumeStatsBody, '{"consumeTps":"fast"}', "consumeTps should be a number, not text"),
        (KVTable, '{"table":{"k":{}}}', "table.k should be text, not an object"),
    ],
)
def test_a_member_of_the_wrong_kind_is_named(kind: type[Body], text: str, problem: str) -> None:
    with pytest.raises(InvalidBody, match=problem):
        kind.from_json(text.encode())


def test_numbers_as_text_and_text_as_numbers_are_taken() -> None:
    table = TopicConfigTable.from_json(
        b'{"dataVersion":{"counter":"3","timestamp":5.0},"topicConfigTable":{"T":{"topicName":7,'
        b'"perm":"6","readQueueNums":"","writeQueueNums":4,"order":"TRUE","topicFilterType":1}}}'
    )
    assert table.data_version == DataVersion(timestamp=5, counter=3)
    topic = table.topics["T"]
    assert (topic.name, topic.perm, topic.read_queue_nums, topic.order) == ("7", 6, 16, True)
    assert topic.filter_type.name == "MULTI_TAG"
    assert KVTable.from_json(b'{"table":{"a":1,"b":true,"c":1.5,"d":null}}').table == {
        "a": "1",
        "b": "true",
        "c": "1.5",
    }


@pytest.mark.parametrize("depth", [65, 10**5])
def test_a_deep_body_is_refused(depth: int) -> None:
    with pytest.raises(InvalidBody, match="nested deeper"):
        HeartbeatData.from_json(b'{"clientID":' + b"[" * depth)


def test_a_body_beyond_the_callers_size_is_refused() -> None:
    with pytest.raises(InvalidBody, match="longer than 10 bytes"):
        KVTable.from_json(b'{"table":{}}', size_max=10)


INFLATED = bytes.fromhex(
    "0000001b 7b22636f756e746572223a302c2274696d657374616d70223a357d 00000001"
    "00000012 542038203820362053494e474c455f544147 00000002 5b5d"
)
REGISTRATION = RegisterBrokerBody(
    TopicConfigTable({"T": TopicConfig("T", 8, 8, 6)}, DataVersion(timestamp=5, counter=0))
)


def test_the_worked_compressed_registration_is_read_and_written_exactly() -> None:
    assert zlib.decompress(REGISTRATION.to_compressed()) == INFLATED
    assert RegisterBrokerBody.from_compressed(zlib.compress(INFLATED, 9)) == REGISTRATION
    assert REGISTRATION.to_compressed()[:2] == b"\x78\xda"  # A zlib stream of level 9.


def test_the_header_says_which_form_a_registration_has() -> None:
    decode = RegisterBrokerBody.decode
    assert decode(REGISTRATION.to_json(), compressed=False, version=37) == REGISTRATION
    assert decode(REGISTRATION.to_compressed(), compressed=True, version=409) == REGISTRATION
    assert decode(REGISTRATION.table.to_json(), compressed=False, version=36) == REGISTRATION
    assert decode(b"", compressed=False, version=409) == RegisterBrokerBody()
    assert RegisterBrokerBody().table.data_version == DataVersion(0, 0)


def test_filter_servers_travel_in_every_form() -> None:
    body = RegisterBrokerBody(REGISTRATION.table, ("a:1", "b:2"))
    assert RegisterBrokerBody.from_json(body.to_json()) == body
    assert RegisterBrokerBody.from_compressed(body.to_compressed()) == body


def test_the_checksum_of_a_body_never_has_its_top_bit_set() -> None:
    assert body_crc32(b"hi") == 0x58932AAC
    assert all(0 <= body_crc32(bytes([byte])) < 1 << 31 for byte in range(256))


@pytest.mark.parametrize("cut", range(len(INFLATED)))
def test_a_compressed_registration_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(InvalidBody):
        RegisterBrokerBody.from_compressed(zlib.compress(INFLATED[:cut]))


@pytest.mark.parametrize("cut", range(1, len(zlib.compress(INFLATED))))
def test_a_zlib_stream_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(InvalidBody):
        RegisterBrokerBody.from_compressed(zlib.compress(INFLATED)[:cut])


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (INFLATED + b"x", "1 bytes after its end"),
        (struct.pack(">i", -1), "length -1"),
        (struct.pack(">i", 2**31 - 1), "beyond the end"),
        (INFLATED[:31] + struct.pack(">i", 2**31 - 1) + INFLATED[35:], "beyond the end"),
        (INFLATED[:31] + struct.pack(">i", -1) + INFLATED[35:], "length -1"),
        (INFLATED.replace(b"SINGLE_TAG", b"SINGLE TAG"), "6 words instead of 5"),
        (INFLATED.replace(b"SINGLE_TAG", b"SINGLE_BAG"), "topicFilterType should be one of"),
        (INFLATED.replace(b"T 8 8 6", b"T x 8 6"), "readQueueNums should be an integer"),
        (INFLATED.replace(b"T 8 8 6", b"\xff 8 8 6"), "not UTF-8"),
        (INFLATED.replace(b'{"', b"}}"), "unexpected"),
        (INFLATED.replace(b"[]", b"{}"), "filterServerList should be an array"),
    ],
)
def test_a_compressed_registration_that_lies_is_refused(plain: bytes, problem: str) -> None:
    with pytest.raises(InvalidBody, match=problem):
        RegisterBrokerBody.from_compressed(zlib.compress(plain))


def test_what_is_not_a_zlib_stream_is_refused() -> None:
    for data in (b"x", b'{"filterServerList":[]}', b"\x00" * 100):
        with pytest.raises(InvalidBody, match="zlib"):
            RegisterBrokerBody.from_compressed(data)
    with pytest.raises(InvalidBody, match="bytes after the zlib stream"):
        RegisterBrokerBody.from_compressed(zlib.compress(INFLATED) + b"x")


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = zlib.compress(bytes(128 * 1024 * 1024), 9)
    assert len(bomb) < 140_000
    started = time.perf_counter()
    with pytest.raises(InvalidBody, match=f"more than {INFLATED_SIZE_MAX} bytes"):
        RegisterBrokerBody.from_compressed(bomb)
    with pytest.raises(InvalidBody, match="inflates to more than"):
        RegisterBrokerBody.from_compressed(zlib.compress(bytes(1024 * 1024), 9))
    assert time.perf_counter() - started < 2


def test_ten_thousand_topics_register_in_the_compressed_form() -> None:
    topics = {name: TopicConfig(name) for name in (f"topic-{number}" for number in range(10_000))}
    body = RegisterBrokerBody(TopicConfigTable(topics))
    assert RegisterBrokerBody.from_compressed(body.to_compressed()) == body


def test_the_key_of_an_offset_table_names_topic_and_group() -> None:
    assert topic_and_group_of("%RETRY%g@g") == ("%RETRY%g", "g")
    assert topic_at_group("T", "g") == "T@g"
    for key in ("", "T", "@", "T@", "@g", "a@b@c"):
        with pytest.raises(InvalidBody, match="is not topic@group"):
            topic_and_group_of(key)
