"""Typed headers: names and types on the wire, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest

from skylark.errors import InvalidHeader, LocalProtocolError
from skylark.protocol.codes import RequestCode
from skylark.protocol.header import I32, I64, Header, camel_case, header, wire
from skylark.protocol.header_json import decode_header_json
from skylark.protocol.headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    CheckTransactionStateRequest,
    EndTransactionRequest,
    GetBrokerConsumeStatsRequest,
    GetRouteInfoRequest,
    PullMessageRequest,
    PullMessageResponse,
    PutKVConfigRequest,
    QueryMessageRequest,
    RegisterBrokerRequest,
    ResetOffsetRequest,
    SendMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
    UnregisterClientRequest,
)


@header
class Sample(Header):
    """One field of every kind."""

    CODE: ClassVar[RequestCode] = RequestCode.GET_KV_CONFIG

    name: str
    queue_id: I32
    commit_offset: I64
    is_force: bool
    remark: str | None = None
    max_num: I32 | None = None
    unit_mode: bool = False
    client: str | None = wire("clientID", default=None)


FULL = {
    "name": "n",
    "queueId": "-3",
    "commitOffset": "9223372036854775807",
    "isForce": "true",
    "remark": "",
    "maxNum": "0",
    "unitMode": "false",
    "clientID": "c",
}


def test_wire_names_are_camel_case_unless_told_otherwise() -> None:
    assert Sample.from_fields(FULL).to_fields() == FULL
    assert camel_case("default_topic_queue_nums") == "defaultTopicQueueNums"
    assert camel_case("body_crc32") == "bodyCrc32"
    assert camel_case("topic") == "topic"


def test_absent_fields_take_their_defaults_and_none_is_not_written() -> None:
    sample = Sample.from_fields(
        {"name": "n", "queueId": "1", "commitOffset": "2", "isForce": "false"}
    )
    assert (sample.remark, sample.max_num, sample.unit_mode, sample.client) == (
        None,
        None,
        False,
        None,
    )
    assert sample.to_fields() == {
        "name": "n",
        "queueId": "1",
        "commitOffset": "2",
        "isForce": "false",
        "unitMode": "false",
    }


def test_unknown_fields_are_ignored() -> None:
    extras = {"ReqT": "0", "OnsChannel": "", "Signature": "x", "ns": "n", "lo": "false"}
    assert Sample.from_fields({**FULL, **extras}) == Sample.from_fields(FULL)


@pytest.mark.parametrize("field", ["name", "queueId", "commitOffset", "isForce"])
def test_a_missing_mandatory_field_is_named(field: str) -> None:
    fields = {key: value for key, value in FULL.items() if key != field}
    with pytest.raises(InvalidHeader) as caught:
        Sample.from_fields(fields)
    assert (caught.value.header, caught.value.field) == ("Sample", field)
    assert caught.value.problem == "is missing"


@pytest.mark.parametrize(
    "text",
    ["x", "1.0", "1e3", " 1", "1 ", "1_0", "0x10", "--1", "+-1", "٣", "1\n", "NaN", "9" * 5000],
)
def test_text_that_is_not_an_integer_is_refused(text: str) -> None:
    with pytest.raises(InvalidHeader, match="is not an integer"):
        Sample.from_fields({**FULL, "queueId": text})


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", "9223372036854775807"])
def test_an_int_beyond_32_bits_is_refused(text: str) -> None:
    with pytest.raises(InvalidHeader, match="does not fit 32 bits"):
        Sample.from_fields({**FULL, "queueId": text})


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "9" * 20])
def test_a_long_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(InvalidHeader, match="does not fit 64 bits"):
        Sample.from_fields({**FULL, "commitOffset": text})


def test_the_extremes_of_int_and_long_are_read_and_written() -> None:
    for low, high in (("-2147483648", "-9223372036854775808"), ("2147483647", "+5")):
        sample = Sample.from_fields({**FULL, "queueId": low, "commitOffset": high})
        assert (sample.queue_id, sample.commit_offset) == (int(low), int(high))


def test_an_empty_number_counts_as_absent() -> None:
    assert Sample.from_fields({**FULL, "maxNum": ""}).max_num is None
    with pytest.raises(InvalidHeader, match="'queueId' is missing"):
        Sample.from_fields({**FULL, "queueId": ""})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("True", True), ("1", False), ("", False)]
)
def test_only_the_word_true_is_true(text: str, value: bool) -> None:
    assert Sample.from_fields({**FULL, "isForce": text}).is_force is value


def test_a_number_that_does_not_fit_is_our_own_mistake() -> None:
    sample = dataclasses.replace(Sample.from_fields(FULL), queue_id=1 << 31)
    with pytest.raises(LocalProtocolError, match="does not fit 32 bits"):
        sample.to_fields()


def test_headers_are_frozen_and_have_no_room_for_other_members() -> None:
    sample = Sample.from_fields(FULL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del sample.name
    assert not hasattr(sample, "__dict__")


def test_headers_compare_hash_and_show_themselves_by_their_members() -> None:
    sample, same = Sample.from_fields(FULL), Sample.from_fields(FULL)
    other = dataclasses.replace(sample, queue_id=4)
    assert sample == same
    assert hash(sample) == hash(same)
    assert sample != other
    assert sample != FULL
    assert repr(PutKVConfigRequest(namespace="n", key="k", value="v")) == (
        "PutKVConfigRequest(namespace='n', key='k', value='v')"
    )


def test_a_header_made_without_a_mandatory_member_or_with_an_unknown_one_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="PutKVConfigRequest needs 'value'"):
        PutKVConfigRequest(namespace="n", key="k")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="PutKVConfigRequest has no 'colour'"):
        PutKVConfigRequest(namespace="n", key="k", value="v", colour="red")  # type: ignore[call-arg]


def test_a_field_that_has_no_form_on_the_wire_is_refused_when_the_class_is_made() -> None:
    class Wrong(Header):
        number: float

    class Incomplete(Header):
        text: str | None

    with pytest.raises(AssertionError, match="has no form on the wire"):
        header(Wrong)
    with pytest.raises(AssertionError, match="needs a default"):
        header(Incomplete)


def test_every_request_code_has_its_line_in_the_table() -> None:
    assert set(REQUEST_HEADERS) == set(RequestCode)
    assert set(RESPONSE_HEADERS) <= set(RequestCode)


def test_a_header_that_names_its_code_is_found_under_it() -> None:
    headers = {kind for kind in REQUEST_HEADERS.values() if kind is not None}
    for kind in headers:
        code = getattr(kind, "CODE", None)
        users = [code for code, user in REQUEST_HEADERS.items() if user is kind]
        if code is None:
            assert len(users) > 1, f"{kind.__name__} is used once and should name its code"
        else:
            assert users == [code]


def test_requests_without_a_header_are_those_that_the_protocol_has() -> None:
    assert {code.value for code, kind in REQUEST_HEADERS.items() if kind is None} == {
        # Everything is in the body, or there is nothing to say.
        *(21, 25, 26, 28, 34, 41, 42, 43, 45, 46, 52, 54, 106, 200, 201, 206),
        *(304, 305, 306, 311, 312, 313, 316, 318, 319, 328, 329, 400, 200151, 810501, 810503),
        # Names without a meaning in 4.9.8.
        *(13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 301, 302),
    }


def test_keys_keep_the_spelling_of_the_protocol() -> None:
    """Names that differ between requests, or that no rule would give."""
    expected = {
        UnregisterClientRequest: {"clientID", "producerGroup", "consumerGroup"},
        ResetOffsetRequest: {"topic", "group", "timestamp", "isForce"},
        GetBrokerConsumeStatsRequest: {"isOrder"},
        QueryMessageRequest: {
            *("topic", "key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY")
        },
        RegisterBrokerRequest: {
            *("brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId"),
            *("compressed", "bodyCrc32"),
            "leaderTerm",  # Ours, of the leader of a Raft group.
        },
        EndTransactionRequest: {
            *("producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback"),
            *("fromTransactionCheck", "msgId", "transactionId", "bname"),
        },
        CheckTransactionStateRequest: {
            *("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId"),
            *("offsetMsgId", "bname"),
        },
        SendMessageRequestV2: set("abcdefghijklmn"),
        SendMessageResponse: {
            *("msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON")
        },
        PullMessageRequest: {
            *("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"),
            *("commitOffset", "suspendTimeoutMillis", "subscription", "subVersion"),
            *("expressionType", "bname", "maxMsgBytes", "requestSource", "proxyFrowardClientId"),
        },
        PullMessageResponse: {
            *("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"),
            *("offsetDelta", "topicSysFlag", "groupSysFlag", "forbiddenType"),
        },
    }
    for kind, names in expected.items():
        assert set(filled(kind).to_fields()) == names, kind.__name__


def filled(kind: type[Header]) -> Header:
    """Return a header whose every field is set."""
    values = {"str": "x", "bool": True}
    members = {
        field.name: values.get(str(field.type).split(" ")[0], 1)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    }
    return kind(**members)


@pytest.mark.parametrize(
    "kind",
    sorted(
        {*filter(None, REQUEST_HEADERS.values()), *RESPONSE_HEADERS.values()},
        key=lambda kind: kind.__name__,
    ),
    ids=lambda kind: kind.__name__,
)
def test_every_header_reads_what_it_writes(kind: type[Header]) -> None:
    value = filled(kind)
    assert kind.from_fields(value.to_fields()) == value
    assert all(type(text) is str for text in value.to_fields().values())


CAPTURED_SEND = {
    "a": "pg1",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "2",
    "f": "0",
    "g": "1794726790296",
    "h": "0",
    "i": "a\x011\x02KEYS\x01key1\x02UNIQ_KEY\x01<id>\x02WAIT\x01true\x02TAGS\x01TagA",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}


def test_the_worked_send_is_read_and_written_exactly() -> None:
    request = SendMessageRequestV2.from_fields(CAPTURED_SEND)
    assert request.topic == "TopicTest"
    assert request.queue_id == 2
    assert request.born_timestamp == 1794726790296
    assert request.batch is False
    assert request.max_reconsume_times is None
    assert request.to_fields() == CAPTURED_SEND


def test_the_two_versions_of_a_send_convert_into_each_other() -> None:
    second = SendMessageRequestV2.from_fields(CAPTURED_SEND)
    first = second.to_v1()
    assert isinstance(first, SendMessageRequest)
    assert first.to_fields() == {
        "producerGroup": "pg1",
        "topic": "TopicTest",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "2",
        "sysFlag": "0",
        "bornTimestamp": "1794726790296",
        "flag": "0",
        "properties": CAPTURED_SEND["i"],
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        "bname": "broker-a",
    }
    assert first.to_v2() == second
    assert SendMessageRequestV2.from_v1(first) == second


def test_the_worked_send_answer_is_read_and_written_exactly() -> None:
    fields = {
        "queueId": "2",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "msgId": "7F000001000051AF0000000000000000",
        "queueOffset": "0",
    }
    answer = SendMessageResponse.from_fields(fields)
    assert (answer.queue_id, answer.queue_offset, answer.trace_on) == (2, 0, True)
    assert answer.to_fields() == fields


def test_the_worked_route_request_is_read_and_written_exactly() -> None:
    request = GetRouteInfoRequest.from_fields({"topic": "T"})
    assert (request.topic, request.accept_standard_json_only) == ("T", None)
    assert request.to_fields() == {"topic": "T"}


def test_a_send_of_the_cpp_client_is_read_with_all_its_extras() -> None:
    """Numbers have become text by now, and signature fields come along even when empty."""
    request = SendMessageRequestV2.from_fields(
        {**CAPTURED_SEND, "m": "true", "Signature": "", "AccessKey": "", "OnsChannel": "ALIYUN"}
    )
    assert request.batch is True


def test_a_frame_header_of_the_cpp_client_becomes_a_typed_one() -> None:
    """Numbers where Java has text, an empty signature, a newline at the end."""
    command = decode_header_json(
        b'{"code":310,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"","a":"pg",'
        b'"b":"T","c":"TBW102","d":4,"e":2,"f":0,"g":1794726790296,"h":0,'
        b'"i":"TAGS\\u0001TagA\\u0002","j":0,"k":"false","m":"true"},"flag":0,"language":"CPP",'
        b'"opaque":8,"remark":"","version":333}\n'
    )
    request = SendMessageRequestV2.from_fields(command.fields)
    assert (request.default_topic_queue_nums, request.queue_id) == (4, 2)
    assert request.born_timestamp == 1794726790296
    assert request.batch is True
    assert request.properties == "TAGS\x01TagA\x02"


def test_an_ordinary_send_of_the_go_client_is_read() -> None:
    """It uses the long names, and sets a retry limit where there is nothing to retry."""
    request = SendMessageRequest.from_fields(
        {
            "producerGroup": "pg",
            "topic": "T",
            "queueId": "3",
            "sysFlag": "0",
            "bornTimestamp": "1794726790296",
            "flag": "0",
            "properties": "UNIQ_KEY\x01id\x02",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "maxReconsumeTimes": "0",
            "batch": "false",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
        }
    )
    assert (request.max_reconsume_times, request.batch, request.broker_name) == (0, False, None)


def test_a_value_with_any_character_survives() -> None:
    request = PutKVConfigRequest(namespace="n", key="", value='标签\x00\x01"\\ ')
    assert PutKVConfigRequest.from_fields(request.to_fields()) == request
