"""Sends: where they go, what is stored, what is refused and with which code."""

from __future__ import annotations

import asyncio
import random

import pytest
from broker_world import BrokerWorld, Client, records, send_fields

from skylark.broker import fast_path
from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.properties import parse_properties
from skylark.store import EntriesResult, MessageStore, PutEntries


def test_a_message_is_stored_as_it_was_sent_and_can_be_pulled(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            sent = await client.send(
                body=b"body", queue_id=2, flag=7, properties={"TAGS": "A", "WAIT": "true", "k": "v"}
            )
            assert sent.code == ResponseCode.SUCCESS
            assert sent.fields["queueId"] == "2"
            assert sent.fields["queueOffset"] == "0"
            assert sent.fields["MSG_REGION"] == "DefaultRegion"
            assert sent.fields["TRACE_ON"] == "true"
            (found,) = records(await client.pull(queue_id=2))
            assert (found.body, found.flag, found.queue_id) == (b"body", 7, 2)
            assert found.offset_id == sent.fields["msgId"]
            assert dict(found.properties) == {"TAGS": "A", "k": "v", "CLUSTER": "DefaultCluster"}
            assert found.born_host.ip == world.client.address
            assert str(found.store_host) == world.address

    world.run(main)


@pytest.mark.parametrize("kind", ["plain", "delayed", "batch", "v1"])
def test_every_kind_of_send_is_answered_with_the_same_fields(world: BrokerWorld, kind: str) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(2):
                if kind == "v1":
                    fields = {
                        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102",
                        "defaultTopicQueueNums": 4, "queueId": 1, "sysFlag": 0,
                        "bornTimestamp": 5, "flag": 0, "properties": "k\x01v",
                    }  # fmt: skip
                    answer = await client.call(RequestCode.SEND_MESSAGE, fields, b"x")
                elif kind == "batch":
                    body = encode_batch([BatchEntry(b"x"), BatchEntry(b"y")])
                    answer = await client.send("T", body, queue_id=1, batch=True)
                else:
                    properties = {"DELAY": "3"} if kind == "delayed" else {}
                    answer = await client.send("T", queue_id=1, properties=properties)
                assert answer.code == 0, answer.remark
                assert list(answer.fields) == [
                    "msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON",
                ]  # fmt: skip
                assert answer.fields["queueId"] == "1"
                expected = number * 2 if kind == "batch" else number
                assert answer.fields["queueOffset"] == str(expected)

    world.run(main)


def test_a_batch_is_stored_as_single_messages_with_the_request_properties(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            body = encode_batch([BatchEntry(b"one", b"TAGS\x01A", 1), BatchEntry(b"two", b"", 2)])
            answer = await client.send("T", body, properties={"WAIT": "true", "x": "y"}, batch=True)
            ids = answer.fields["msgId"].split(",")
            found = records(await client.pull("T"))
            assert [message.body for message in found] == [b"one", b"two"]
            assert [message.flag for message in found] == [1, 2]
            assert [message.offset_id for message in found] == ids
            assert dict(found[0].properties) == {"TAGS": "A", "x": "y", "CLUSTER": "DefaultCluster"}
            assert dict(found[1].properties) == {"x": "y", "CLUSTER": "DefaultCluster"}

    world.run(main)


_OF_A_BATCH = [
    BatchEntry(b"one", b"TAGS\x01A\x02KEYS\x01k1 k2\x02WAIT\x01true", 1),
    BatchEntry(b"", b"", -1),
    BatchEntry(b"three" * 100, b"a\x01b\x01c\x02"),
]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_batch_is_stored_the_same_by_the_short_way_and_by_the_long(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """The second batch of a queue goes the short way, if nobody keeps it from that."""
    taken: list[bool] = []
    put_entries = MessageStore.put_entries

    def watched(self: MessageStore, batch: PutEntries) -> EntriesResult | None:
        result = put_entries(self, batch)
        taken.append(result is not None)
        return result

    monkeypatch.setattr(MessageStore, "put_entries", watched)

    async def main() -> None:
        async with world.serving(flush_disk_type=flush) as client:
            body = encode_batch(_OF_A_BATCH)
            answers = [
                await client.send("T", body, properties={"x": "y", "WAIT": "true"}, batch=True)
                for _ in range(2)
            ]
            monkeypatch.setattr(fast_path, "plain_entries", lambda entries: False)
            answers.append(
                await client.send("T", body, properties={"x": "y", "WAIT": "true"}, batch=True)
            )
            assert taken == [False, True]  # The queue was not there yet; then it was.
            found = records(await client.pull("T"))
            ids = [message.offset_id for message in found]
            assert [answer.code for answer in answers] == [0, 0, 0]
            assert [answer.fields["msgId"] for answer in answers] == [
                ",".join(ids[at : at + 3]) for at in (0, 3, 6)
            ]
            assert [answer.fields["queueOffset"] for answer in answers] == ["0", "3", "6"]
            alike = [
                (m.body, m.flag, m.sys_flag, dict(m.properties), m.born_at_ms, m.size_bytes)
                for m in found
            ]
            assert alike[:3] == alike[3:6] == alike[6:]
            assert [m.queue_offset for m in found] == list(range(9))
            if flush == "SYNC_FLUSH":
                assert world.parts.store.log.flushed == world.parts.store.log.appended

    world.run(main)


def test_a_batch_by_the_short_way_is_counted(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            counted: list[tuple[str, int, int]] = []
            observer = world.parts.observer
            monkeypatch.setattr(observer, "stored", lambda *told: counted.append(told))
            for _ in range(2):
                await client.send("T", encode_batch(_OF_A_BATCH), batch=True)
            found = records(await client.pull("T"))
            sizes = sum(message.size_bytes for message in found[3:])
            assert counted == [("T", 3, sizes), ("T", 3, sizes)]

    world.run(main)


def test_a_batch_with_a_time_in_one_entry_still_goes_two_ways(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"so that the queue is there")
            due = world.clock.now_ms() + 60_000
            timed = BatchEntry(b"later", f"TIMER_DELIVER_MS\x01{due}".encode())
            answer = await client.send("T", encode_batch([BatchEntry(b"now"), timed]), batch=True)
            assert answer.code == 0
            bodies = [message.body for message in records(await client.pull("T"))]
            assert bodies == [b"so that the queue is there", b"now"]

    world.run(main)


def test_a_batch_that_does_not_fit_goes_to_the_next_file_whole(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            body = encode_batch([BatchEntry(bytes(5_000))] * 3)
            file_bytes = world.parts.store.config.mapped_file_size_commit_log
            files: list[set[int]] = []
            for _ in range(12):
                answer = await client.send("T", body, batch=True)
                assert answer.code == 0
                ids = answer.fields["msgId"].split(",")
                files.append({int(one[16:], 16) // file_bytes for one in ids})
            assert files == [{number // 4} for number in range(12)]

    world.run(main)


def test_the_answer_to_a_batch_of_thousands_names_them_all(world: BrokerWorld) -> None:
    """In its header, which is then larger than a request's may be."""

    async def main() -> None:
        async with world.serving(
            mapped_file_size_commit_log=1 << 20, max_message_size=1 << 18
        ) as client:
            body = encode_batch([BatchEntry(b"%d" % number) for number in range(3_000)])
            for _ in range(2):
                answer = await client.send("T", body, batch=True)
                assert len(set(answer.fields["msgId"].split(","))) == 3_000

    world.run(main)


def test_the_batch_flag_decides_and_not_the_request_code(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            batch = encode_batch([BatchEntry(b"one")])
            await client.send("T", batch, code=RequestCode.SEND_BATCH_MESSAGE, batch=False)
            await client.send("T", batch, code=RequestCode.SEND_MESSAGE_V2, batch=True)
            bodies = [message.body for message in records(await client.pull("T"))]
            assert bodies == [batch, b"one"]

    world.run(main)


def test_a_new_topic_gets_the_smaller_number_of_queues(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(default_topic_queue_nums=8) as client:
            await client.send("Four")
            await client.send("Eight", default_topic_queue_nums=99)
            topics = world.parts.topics.topics
            assert (topics["Four"].write_queue_nums, topics["Eight"].write_queue_nums) == (4, 8)
            assert topics["Four"].perm == 6

    world.run(main)


REFUSALS = {
    "unknown template": ({"topic": "New", "default_topic": "Nothing"}, {}, 17),
    "queue beyond the topic": ({"queue_id": 99}, {}, 1),
    "bad name": ({"topic": "../etc"}, {}, 1),
    "name with a newline": ({"topic": "a\nb"}, {}, 1),
    "name of 128 characters": ({"topic": "x" * 128}, {}, 1),
    "empty name": ({"topic": ""}, {}, 1),
    "the broker's own topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, {}, 16),
    "half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, {}, 16),
    "body too large": ({"body": bytes((16 << 10) + 1)}, {}, 13),
    "65 keys": ({}, {"KEYS": " ".join(map(str, range(65)))}, 13),
    "delay level that is no number": ({}, {"DELAY": "abc"}, 13),
    "transaction without a group": ({}, {"TRAN_MSG": "true"}, 13),
    "transaction bits": ({"sys_flag": 4}, {}, 13),
    "rolled back": ({"sys_flag": 12}, {}, 13),
    "a time that is no number": ({}, {"TIMER_DELIVER_MS": "tomorrow"}, 13),
    "a time that is negative": ({}, {"TIMER_DELAY_MS": "-5000"}, 13),
    "a time beyond a year": ({}, {"TIMER_DELAY_SEC": str(367 * 86_400)}, 13),
    "a time beyond all numbers": ({}, {"TIMER_DELIVER_MS": "9" * 40}, 13),
    "retry topic of an illegal group": ({"topic": "%RETRY%a b"}, {}, 1),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_send_that_cannot_be_stored_is_refused_and_leaves_nothing(
    world: BrokerWorld, case: str
) -> None:
    changes, properties, code = REFUSALS[case]

    async def main() -> None:
        async with world.serving() as client:
            assert (await client.send("Known")).code == 0
            store = world.parts.store
            end = store.log.appended
            answer = await client.send(**{"topic": "Known", "properties": properties, **changes})
            assert answer.code == code, answer.remark
            assert answer.remark
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert store.log.appended == end

    world.run(main)


def test_properties_without_a_separator_or_too_long_are_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for text in ("nonsense", "a\x01b\x02rest", "k\x01" + "v" * 32_767):
                fields = {**send_fields("T"), "i": text}
                answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, text[:20]

    world.run(main)


def test_a_header_field_that_is_missing_or_no_number_is_named(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            whole = send_fields("T")
            missing = {key: value for key, value in whole.items() if key != "e"}
            answer = await client.call(RequestCode.SEND_MESSAGE_V2, missing, b"x")
            assert (answer.code, "'e'" in (answer.remark or "")) == (1, True)
            answer = await client.call(RequestCode.SEND_MESSAGE_V2, {**whole, "e": "one"}, b"x")
            assert (answer.code, "'e'" in (answer.remark or "")) == (1, True)

    world.run(main)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00\x16",
        encode_batch([BatchEntry(b"x")])[:-1],
        encode_batch([BatchEntry(b"x")]) + b"\x00",
        b"\x7f\xff\xff\xff" + encode_batch([BatchEntry(b"x")])[4:],
    ],
)
def test_a_lying_batch_is_refused_whole(world: BrokerWorld, body: bytes) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await client.send("T", body, batch=True)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert (await client.pull("T")).code == ResponseCode.PULL_NOT_FOUND

    world.run(main)


def test_a_batch_may_neither_be_delayed_nor_go_to_a_retry_topic(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            body = encode_batch([BatchEntry(b"x", b"DELAY\x013")])
            plain = encode_batch([BatchEntry(b"x")])
            assert (await client.send("T", body, batch=True)).code == 13
            assert (await client.send("T", plain, batch=True, properties={"DELAY": "1"})).code == 13
            assert (await client.send("%RETRY%g", plain, batch=True)).code == 13

    world.run(main)


# Names that end like those which delay a message or make it a half, and values that look so.
NEARLY_ODD = (
    b"FLIGHT_DELAY\x0145\x02k\x01v",
    b"MY_TRAN_MSG\x01true",
    b"k\x01a\x01DELAY\x013",
    b"EGG_TIMER_MS\x015\x02k\x01a\x01b",
)


@pytest.mark.parametrize("properties", NEARLY_ODD)
def test_a_message_of_a_batch_is_delayed_only_by_the_very_property(
    world: BrokerWorld, properties: bytes
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for _ in range(2):  # The second batch of a queue might go the short way.
                body = encode_batch([BatchEntry(b"plain"), BatchEntry(b"odd", properties)])
                answer = await client.send("T", body, batch=True)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            found = records(await client.pull("T"))
            assert [message.body for message in found] == [b"plain", b"odd"] * 2
            expected = {**parse_properties(properties), "CLUSTER": "DefaultCluster"}
            assert dict(found[3].properties) == expected

    world.run(main)


@pytest.mark.parametrize(
    "properties",
    [b"DELAY\x013", b"k\x01v\x02DELAY\x013\x02x\x01y", b"MY_DELAY\x011\x02TRAN_MSG\x01true\x02"],
)
def test_a_message_of_a_batch_with_the_very_property_is_refused(
    world: BrokerWorld, properties: bytes
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            body = encode_batch([BatchEntry(b"plain"), BatchEntry(b"odd", properties)])
            answer = await client.send("T", body, batch=True)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "neither delayed nor transactional" in (answer.remark or "")
            assert (await client.pull("T")).code == ResponseCode.PULL_NOT_FOUND

    world.run(main)


@pytest.mark.parametrize("name", ["WAIT", "AWAIT"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_send_does_not_wait_for_the_disk_only_if_its_own_wait_says_so(
    world: BrokerWorld, name: str, batch: bool
) -> None:
    async def main() -> None:
        async with world.serving(flush_disk_type="SYNC_FLUSH") as client:
            log = world.parts.store.log
            body = encode_batch([BatchEntry(b"x")]) if batch else b"x"
            await client.send("T")
            async with world.parts.flusher.paused():
                sent = asyncio.ensure_future(
                    client.send("T", body, properties={name: "false"}, batch=batch)
                )
                await world.clock.sleep_ms(100)
                assert log.flushed < log.appended
                assert sent.done() is (name == "WAIT")
            assert (await sent).code == ResponseCode.SUCCESS

    world.run(main)


@pytest.mark.parametrize("own", ["", "DELAY\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"])
def test_a_separator_in_a_value_is_its_senders(world: BrokerWorld, own: str) -> None:
    # Clients of other languages send it; RocketMQ reads what follows the first as the value.
    async def main() -> None:
        async with world.serving() as client:
            for topic in ("New", "New", "Other"):
                fields = send_fields(topic) | {"i": f"{own}k\x01a\x01b"}
                answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            await world.clock.sleep_ms(11_000)
            if not own.startswith("TRAN"):
                found = records(await client.pull("New"))
                assert [message.properties["k"] for message in found] == ["a\x01b"] * 2

    world.run(main)


def test_a_negative_queue_lets_the_broker_choose(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            chosen = {(await client.send("T", queue_id=-1)).fields["queueId"] for _ in range(40)}
            assert chosen == {"0", "1", "2", "3"}

    world.run(main)


def test_sends_of_one_write_keep_their_order_whatever_kind_they_are(world: BrokerWorld) -> None:
    """Plain ones take the fast path, others do not; a queue must not show the difference."""

    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"first")
            batch = encode_batch([BatchEntry(b"b1"), BatchEntry(b"b2")])
            for body, changes in (
                (b"p1", {}),
                (batch, {"batch": True}),
                (b"p2", {}),
                (b"p3", {"properties": {"CLUSTER": "mine"}}),
                (b"p4", {}),
            ):
                await client.oneway(310, send_fields("T", **changes), body)
            await client.send("T", b"last")
            bodies = [message.body for message in records(await client.pull("T"))]
            assert bodies == [b"first", b"p1", b"b1", b"b2", b"p2", b"p3", b"p4", b"last"]

    world.run(main)


def test_with_sync_flush_nothing_is_answered_or_visible_before_the_disk_has_it(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(flush_disk_type="SYNC_FLUSH") as client:
            sent = await client.send(body=b"safe")
            assert sent.code == ResponseCode.SUCCESS
            store = world.parts.store
            assert store.log.flushed == store.log.appended
            survivors = world.files.crash(random.Random(1))
            assert survivors.exists("/store/commitlog")
            assert [m.body for m in records(await client.pull())] == [b"safe"]

    world.run(main)


def test_a_failed_flush_is_never_answered_with_success_and_ends_all_writes(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(flush_disk_type="SYNC_FLUSH") as client:
            assert (await client.send(body=b"before")).code == 0
            world.files.fail("sync", "*/commitlog/*")
            answer = await client.send(body=b"lost?")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            answer = await client.send(body=b"after")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "no more writes" in (answer.remark or "")
            # Reads go on, and show only what is safe.
            assert [m.body for m in records(await client.pull())] == [b"before"]
            world.files.heal()
            assert world.broker is not None
            assert world.broker.has_failed

    world.run(main)


def test_a_full_disk_refuses_sends_and_says_so(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send()
            world.parts.store.is_disk_full = True
            answer = await client.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "disk is full" in (answer.remark or "")

    world.run(main)


async def _tries(client: Client, times: int, asked: int | None, version: int = 409) -> str:
    """Where a message lands that a consumer re-sends to its retry topic."""
    answer = await client.send(
        "%RETRY%g", reconsume_times=times, max_reconsume_times=asked, version=version
    )
    assert answer.code == 0, answer.remark
    dead = await client.pull("%DLQ%g", group="TOOLS_CONSUMER")
    return "dead" if dead.code == 0 else "retry"


@pytest.mark.parametrize(
    ("times", "asked", "version", "where"),
    [
        (15, None, 409, "retry"),
        (16, None, 409, "dead"),
        (3, 3, 409, "dead"),
        (3, 4, 409, "retry"),
        (3, 3, 120, "retry"),
    ],
)
def test_a_message_re_sent_too_often_goes_to_the_dead_letters(
    world: BrokerWorld, times: int, asked: int | None, version: int, where: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            assert await _tries(client, times, asked, version) == where

    world.run(main)


def test_sends_are_refused_before_the_time_that_the_operator_set(world: BrokerWorld) -> None:
    async def main() -> None:
        later = world.clock.now_ms() + 60_000
        async with world.serving(start_accept_send_request_time_stamp=later) as client:
            assert (await client.send()).code == ResponseCode.SYSTEM_ERROR
            await world.clock.sleep_ms(61_000)
            assert (await client.send()).code == ResponseCode.SUCCESS

    world.run(main)


def test_without_auto_creation_an_unknown_topic_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(auto_create_topic_enable=False) as client:
            answer = await client.send("Unknown")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert "updateTopic" in (answer.remark or "")

    world.run(main)


def test_turning_auto_creation_off_makes_the_old_template_useless(world: BrokerWorld) -> None:
    async def first() -> None:
        async with world.serving() as client:
            assert (await client.send("Made")).code == 0

    async def second() -> None:
        async with world.serving(auto_create_topic_enable=False) as client:
            assert (await client.send("Made")).code == 0
            assert (await client.send("Unknown")).code == ResponseCode.TOPIC_NOT_EXIST

    async def main() -> None:
        await first()
        await second()

    world.run(main)
