"""Typed headers and bodies against bytes recorded from RocketMQ 4.9.8.

Java writes maps in the order of their hashes and we write them sorted, so texts are compared by the
characters they are made of and by their meaning.
"""

import json
import pathlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from skylark.protocol import fastjson
from skylark.protocol.bodies import (
    Body,
    BrokerConsumeStatsBody,
    BrokerStatsDataBody,
    CheckClientConfigBody,
    ClusterInfoBody,
    ConsumeMessageDirectlyResult,
    ConsumerConnectionBody,
    ConsumerList,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStatsBody,
    CorrectionOffsetBody,
    DataVersionBody,
    DelayOffsetTable,
    GroupList,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnectionBody,
    ProducerTableBody,
    QueryConsumeQueueBody,
    QueryConsumeTimeSpanBody,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionGroupConfigBody,
    SubscriptionGroupTable,
    TopicConfigTable,
    TopicList,
    TopicRouteBody,
    TopicStatsBody,
    body_crc32,
    format_properties,
    parse_properties,
    wants_standard_json,
)
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.frame import FrameDecoder, FrameLimits
from skylark.protocol.headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    GetRouteInfoRequest,
    RegisterBrokerRequest,
)

CAPTURED = pathlib.Path(__file__).parents[2] / "golden" / "captured"

# Fields that any request may carry, beside those of its own header.
COMMON_FIELDS = {"ReqT", "AccessKey", "Signature", "SecurityToken", "OnsChannel"}

REQUEST_BODIES: dict[Code, type[Body]] = {
    Code.HEART_BEAT: HeartbeatData,
    Code.CHECK_CLIENT_CONFIG: CheckClientConfigBody,
    Code.LOCK_BATCH_MQ: LockBatchRequestBody,
    Code.UNLOCK_BATCH_MQ: LockBatchRequestBody,
    Code.QUERY_DATA_VERSION: DataVersionBody,
    Code.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfigBody,
}
RESPONSE_BODIES: dict[Code, type[Body]] = {
    Code.REGISTER_BROKER: KVTable,
    Code.QUERY_DATA_VERSION: DataVersionBody,
    Code.GET_BROKER_CLUSTER_INFO: ClusterInfoBody,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    Code.GET_TOPICS_BY_CLUSTER: TopicList,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList,
    Code.GET_UNIT_TOPIC_LIST: TopicList,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: TopicList,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: TopicList,
    Code.GET_KVLIST_BY_NAMESPACE: KVTable,
    Code.GET_BROKER_RUNTIME_INFO: KVTable,
    Code.GET_ALL_TOPIC_CONFIG: TopicConfigTable,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable,
    Code.GET_ALL_CONSUMER_OFFSET: ConsumerOffsetTable,
    Code.GET_ALL_DELAY_OFFSET: DelayOffsetTable,
    Code.GET_CONSUMER_LIST_BY_GROUP: ConsumerList,
    Code.LOCK_BATCH_MQ: LockBatchResponseBody,
    Code.GET_TOPIC_STATS_INFO: TopicStatsBody,
    Code.GET_CONSUME_STATS: ConsumeStatsBody,
    Code.GET_BROKER_CONSUME_STATS: BrokerConsumeStatsBody,
    Code.GET_CONSUMER_CONNECTION_LIST: ConsumerConnectionBody,
    Code.GET_PRODUCER_CONNECTION_LIST: ProducerConnectionBody,
    Code.GET_ALL_PRODUCER_INFO: ProducerTableBody,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetBody,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatusBody,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatusBody,
    Code.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfo,
    Code.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectlyResult,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: GroupList,
    Code.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpanBody,
    Code.QUERY_CORRECTION_OFFSET: CorrectionOffsetBody,
    Code.QUERY_CONSUME_QUEUE: QueryConsumeQueueBody,
    Code.VIEW_BROKER_STATS_DATA: BrokerStatsDataBody,
}
PROPERTIES_REQUESTS = {Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG}
PROPERTIES_RESPONSES = {Code.GET_BROKER_CONFIG, Code.GET_NAMESRV_CONFIG}
# Messages, whose form is another story.
RECORD_REQUESTS = {
    *(Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE),
    *(Code.SEND_REPLY_MESSAGE_V2, Code.PUSH_REPLY_MESSAGE_TO_CLIENT, Code.CHECK_TRANSACTION_STATE),
    Code.CONSUME_MESSAGE_DIRECTLY,
}
RECORD_RESPONSES = {Code.PULL_MESSAGE, Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID}
OK = {
    *(ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY),
    *(ResponseCode.PULL_OFFSET_MOVED, ResponseCode.FLUSH_DISK_TIMEOUT),
    *(ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT),
}


@dataclass(frozen=True)
class Exchange:
    """One recorded request and its answer, if one was seen."""

    step: str
    code: Code
    request: Command
    answer: Command | None


def decoded(frame: str) -> Command:
    decoder = FrameDecoder(FrameLimits(frame_bytes_max=1 << 24))
    (command,) = decoder.feed(bytes.fromhex(frame))
    return command


def exchanges() -> Iterator[Exchange]:
    for path in sorted(CAPTURED.glob("*.json")):
        for item in json.loads(path.read_text())["exchanges"]:
            request = decoded(item["request"])
            answer = decoded(item["answer"]) if item.get("answer") else None
            yield Exchange(path.stem, Code(request.code), request, answer)


ALL = list(exchanges())


def meaning(value: Any) -> Any:
    """A value whose object keys are compared by what they say, not by how."""
    if isinstance(value, dict):
        return {
            str(meaning(fastjson.loads(key))) if key.startswith("{") else key: meaning(member)
            for key, member in value.items()
        }
    return [meaning(item) for item in value] if isinstance(value, list) else value


def assert_same_json(ours: bytes, theirs: bytes) -> None:
    assert sorted(ours) == sorted(theirs)
    assert meaning(fastjson.loads(ours)) == meaning(fastjson.loads(theirs))


def by_code(items: list[Exchange]) -> Any:
    codes = sorted({item.code for item in items})
    assert codes
    return pytest.mark.parametrize(
        "items",
        [[item for item in items if item.code is code] for code in codes],
        ids=[code.name for code in codes],
    )


def test_the_recordings_are_there() -> None:
    assert len(ALL) > 300
    assert len({item.code for item in ALL}) > 50


@by_code(ALL)
def test_every_recorded_request_header_is_read_and_written_exactly(items: list[Exchange]) -> None:
    for item in items:
        kind = REQUEST_HEADERS[item.code]
        own = {k: v for k, v in item.request.fields.items() if k not in COMMON_FIELDS}
        if kind is None:
            assert not own, item.step
        else:
            written = kind.from_fields(item.request.fields).to_fields()
            assert {key: written.get(key) for key in own} == own, item.step
            # Beyond what was sent there are only defaults that Java leaves to the reader.
            assert set(written.values()) - set(own.values()) <= {"false", "0"}, item.step


@by_code([item for item in ALL if item.answer and item.answer.fields])
def test_every_recorded_answer_header_is_read_and_written_exactly(items: list[Exchange]) -> None:
    for item in items:
        assert item.answer is not None
        if item.answer.code in OK:
            written = RESPONSE_HEADERS[item.code].from_fields(item.answer.fields).to_fields()
            assert written == item.answer.fields, item.step


@by_code([item for item in ALL if item.code in REQUEST_BODIES])
def test_every_recorded_request_body_is_read_and_written_exactly(items: list[Exchange]) -> None:
    for item in items:
        theirs = bytes(item.request.body)
        assert_same_json(REQUEST_BODIES[item.code].from_json(theirs).to_json(), theirs)


@by_code([item for item in ALL if item.code in RESPONSE_BODIES])
def test_every_recorded_answer_body_is_read_and_written_exactly(items: list[Exchange]) -> None:
    for item in items:
        if item.answer is not None and item.answer.body:
            theirs = bytes(item.answer.body)
            assert_same_json(RESPONSE_BODIES[item.code].from_json(theirs).to_json(), theirs)


def test_every_recorded_route_is_written_in_the_dialect_that_was_asked_for() -> None:
    seen = set()
    for item in ALL:
        if item.code is Code.GET_ROUTEINFO_BY_TOPIC and item.answer is not None:
            if not item.answer.body:
                continue
            header = GetRouteInfoRequest.from_fields(item.request.fields)
            standard = wants_standard_json(item.request.version, header.accept_standard_json_only)
            theirs = bytes(item.answer.body)
            body = TopicRouteBody.from_json(theirs)
            assert_same_json(body.to_json(standard=standard), theirs)
            seen.add((standard, item.request.version, header.accept_standard_json_only))
    assert {standard for standard, _, _ in seen} == {True, False}


def test_every_recorded_registration_is_read_and_written_in_its_form() -> None:
    forms = set()
    for item in ALL:
        if item.code is Code.REGISTER_BROKER:
            theirs = bytes(item.request.body)
            header = RegisterBrokerRequest.from_fields(item.request.fields)
            assert header.body_crc32 == body_crc32(theirs)
            body = RegisterBrokerBody.decode(
                theirs, compressed=header.compressed, version=item.request.version
            )
            assert body.table.topics
            if header.compressed:
                ours = zlib.decompress(body.to_compressed())
                assert sorted(ours) == sorted(zlib.decompress(theirs))
            else:
                assert_same_json(body.to_json(), theirs)
            forms.add(header.compressed)
    assert forms == {False, True}


def test_every_recorded_configuration_is_read_and_written_line_by_line() -> None:
    count = 0
    for item in ALL:
        texts = []
        if item.code in PROPERTIES_REQUESTS:
            texts.append(bytes(item.request.body))
        if item.code in PROPERTIES_RESPONSES and item.answer is not None:
            texts.append(bytes(item.answer.body))
        for text in filter(None, texts):
            properties = parse_properties(text)
            lines = [line.partition("=") for line in text.decode().splitlines()]
            assert properties == {key: value for key, _, value in lines}
            assert sorted(format_properties(properties).splitlines()) == sorted(text.splitlines())
            count += 1
    assert count > 3


def test_no_recorded_body_is_left_unread() -> None:
    for item in ALL:
        if item.request.body:
            known = {*REQUEST_BODIES, *RECORD_REQUESTS, *PROPERTIES_REQUESTS, Code.REGISTER_BROKER}
            assert item.code in known, item.code
        if item.answer is not None and item.answer.body:
            known = {*RESPONSE_BODIES, *RECORD_RESPONSES, *PROPERTIES_RESPONSES}
            assert item.code in {*known, Code.GET_ROUTEINFO_BY_TOPIC}, item.code
