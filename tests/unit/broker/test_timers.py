"""Any delivery time: a broker on virtual time, its timers, and what goes wrong with them."""

from __future__ import annotations

import contextlib
import datetime
import random
import zoneinfo
from collections.abc import AsyncIterator, Sequence

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.broker.deferral import TIMER_QUEUE
from skylark.broker.timers import TimerService
from skylark.model.message import StoredMessage
from skylark.model.topic import TIMER_TOPIC
from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.bodies import TopicStatsBody, WaitingList
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.record import decode_records
from skylark.store import MessageStore, PutMessage, PutResult, PutStatus
from skylark.testing.files import SimFiles

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
# Nobody looks around in vain while hours pass.
QUIET = {
    "flush_disk_type": "SYNC_FLUSH",
    "flush_interval_consume_queue": 60_000,
    "clean_resource_interval": 60_000,
}


def delivered(world: BrokerWorld, topic: str = "T", queues: int = 4) -> list[StoredMessage]:
    """All messages of a topic, in the order in which they were stored."""
    store = world.parts.store
    found = []
    for queue_id in range(queues):
        offset = store.min_offset(topic, queue_id)
        while (page := store.get(topic, queue_id, offset, 32)).message_count:
            found += decode_records(page.body)
            offset = page.next_offset
    return sorted(found, key=lambda message: message.physical_offset)


def bodies(world: BrokerWorld, topic: str = "T") -> list[bytes]:
    return [message.body for message in delivered(world, topic)]


async def waiting(client: Client, **fields: object) -> WaitingList:
    answer = await client.call(RequestCode.LIST_TIMERS, fields)
    assert answer.code == 0, answer.remark
    return WaitingList.from_json(answer.body)


@contextlib.asynccontextmanager
async def refusing(world: BrokerWorld, topic: str) -> AsyncIterator[list[int]]:
    """Let the store take nothing for a topic; yields how often that was tried."""
    store = world.parts.store
    tried: list[int] = []
    real = store.put_group

    def put_group(messages: Sequence[PutMessage]) -> list[PutResult]:
        if any(message.topic == topic for message in messages):
            tried.append(len(messages))
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(messages)
        return real(messages)

    store.put_group = put_group  # type: ignore[method-assign]
    try:
        yield tried
    finally:
        store.put_group = real  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("name", "value", "delay_ms"),
    [
        ("TIMER_DELAY_MS", "1234", 1_234),
        ("TIMER_DELAY_SEC", "7", 7_000),
        ("TIMER_DELIVER_MS", None, 4_061_007),
        ("TIMER_DELAY_MS", "1", 1),
        ("TIMER_DELAY_SEC", str(366 * 86_400), 366 * DAY_MS),
    ],
)
def test_a_message_is_delivered_at_the_time_it_names(
    world: BrokerWorld, name: str, value: str | None, delay_ms: int
) -> None:
    async def main() -> None:
        async with world.serving(**QUIET) as client:
            sent_ms = world.clock.now_ms()
            text = str(sent_ms + delay_ms) if value is None else value
            properties = {name: text, "TAGS": "TagA", "KEYS": "k1", "UNIQ_KEY": "U1"}
            answer = await client.send("T", b"later", queue_id=2, properties=properties)
            assert answer.code == 0
            assert answer.fields["queueId"] == "2"
            if delay_ms > DAY_MS:  # The store's own tests let the year pass.
                assert (await waiting(client)).messages[0].due_ms == sent_ms + delay_ms
                return
            await world.clock.sleep_ms(delay_ms - 2)
            assert bodies(world) == []
            await world.clock.sleep_ms(20)
            (message,) = delivered(world)
            assert 0 <= message.stored_at_ms - (sent_ms + delay_ms) <= 5
            assert (message.topic, message.queue_id, message.tag) == ("T", 2, "TagA")
            assert message.properties["TIMER_OUT_MS"] == str(sent_ms + delay_ms)
            assert not message.properties.keys() & {"REAL_TOPIC", "REAL_QID", "TIMER_REPLACES"}
            assert message.unique_id == "U1"
            assert world.parts.timers.pending_count == 0

    world.run(main)


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ({"TIMER_DELIVER_MS": "soon"}, "is not a number"),
        ({"TIMER_DELAY_MS": "-1"}, "is negative"),
        ({"TIMER_DELAY_SEC": "1.5"}, "is not a number"),
        ({"TIMER_DELAY_SEC": str(367 * 86_400)}, "too far ahead"),
        ({"TIMER_DELIVER_MS": "16725225600000"}, "too far ahead"),  # The year 2500.
        ({"TIMER_DELIVER_MS": "9" * 400}, "too far ahead"),
        ({"TIMER_DELAY_MS": "٣"}, "is not a number"),
    ],
)
def test_a_time_that_cannot_be_kept_is_refused_with_the_reason(
    world: BrokerWorld, properties: dict[str, str], remark: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                body = b"x"
                batch = code == RequestCode.SEND_BATCH_MESSAGE
                if batch:
                    text = "\x02".join(f"{k}\x01{v}" for k, v in properties.items())
                    body = encode_batch([BatchEntry(b"x", text.encode())])
                answer = await client.send(
                    "T", body, properties={} if batch else properties, code=code, batch=batch
                )
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert remark in (answer.remark or "")
            assert world.parts.store.max_offset(TIMER_TOPIC, TIMER_QUEUE) == 0
            assert bodies(world) == []

    world.run(main)


def test_a_time_in_the_past_is_delivered_at_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for text in ("0", "-0", "1", str(world.clock.now_ms())):
                answer = await client.send("T", properties={"TIMER_DELIVER_MS": text})
                assert answer.code == 0
            await client.send("T", properties={"TIMER_DELAY_MS": "0"})
            assert len(bodies(world)) == 5
            assert world.parts.store.max_offset(TIMER_TOPIC, TIMER_QUEUE) == 0

    world.run(main)


def test_a_delay_level_wins_over_a_time_as_in_rocketmq_5(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            properties = {"DELAY": "1", "TIMER_DELAY_SEC": "60"}
            await client.send("T", properties=properties)
            await world.clock.sleep_ms(1_100)
            (message,) = delivered(world)
            assert "TIMER_DELAY_SEC" not in message.properties

    world.run(main)


def test_every_way_to_send_takes_a_time(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            timer = {"TIMER_DELAY_SEC": "5"}
            await client.send("T", b"v2", properties=timer)
            header = {
                "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102",
                "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1,
                "flag": 0, "properties": "TIMER_DELAY_SEC\x015\x02",
            }  # fmt: skip
            assert (await client.call(RequestCode.SEND_MESSAGE, header, b"v1")).code == 0
            batch = encode_batch(
                [
                    BatchEntry(b"batch now", b""),
                    BatchEntry(b"batch later", b"TIMER_DELAY_SEC\x015"),
                ]
            )
            code = RequestCode.SEND_BATCH_MESSAGE
            assert (await client.send("T", batch, code=code, batch=True)).code == 0
            assert bodies(world) == [b"batch now"]
            await world.clock.sleep_ms(5_100)
            assert sorted(bodies(world)) == [b"batch later", b"batch now", b"v1", b"v2"]

    world.run(main)


def test_nobody_writes_to_the_timers_own_topic_or_forges_its_properties(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await client.send(TIMER_TOPIC, b"x")
            assert answer.code == ResponseCode.NO_PERMISSION
            await client.send("T", b"victim", properties={"TIMER_DELAY_SEC": "5"})
            forged = {
                "TIMER_DELAY_SEC": "6", "TIMER_REPLACES": "0", "REPEAT_ID": "r",
                "REPEAT_RULE": "every 1000", "REAL_TOPIC": TIMER_TOPIC,
            }  # fmt: skip
            await client.send("T", b"forged", properties=forged)
            await world.clock.sleep_ms(60_000)
            assert bodies(world) == [b"victim", b"forged"]

    world.run(main)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_timers_survive_restarts_and_fire_once(world: BrokerWorld, flush: str) -> None:
    settings = {**QUIET, "flush_disk_type": flush, "mapped_file_size_timer_log": 1_024}
    rng = random.Random(11)
    due: dict[bytes, int] = {}
    got: dict[bytes, int] = {}

    async def main() -> None:
        for turn in range(6):
            async with world.serving(**settings) as client:
                for number in range(20):
                    body = b"%d-%d" % (turn, number)
                    delay_ms = rng.choice((50, 900, 5_000, 40_000, 200_000, 2 * HOUR_MS))
                    due[body] = world.clock.now_ms() + delay_ms
                    await client.send("T", body, properties={"TIMER_DELAY_MS": str(delay_ms)})
                await world.clock.sleep_ms(rng.choice((10, 1_000, 20_000, 300_000)))
        async with world.serving(**settings):
            await world.clock.sleep_ms(2 * HOUR_MS + 1_000)
            for message in delivered(world):
                assert message.body not in got, "twice"
                got[message.body] = message.stored_at_ms
        assert got.keys() == due.keys()
        for body, at_ms in got.items():
            assert at_ms >= due[body], "early"

    world.run(main)


def test_a_start_with_the_wheel_lost_delivers_what_is_left_and_nothing_twice(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(30):
                ms = str(1_000 + number * 500)
                await client.send("T", b"%d" % number, properties={"TIMER_DELAY_MS": ms})
            await world.clock.sleep_ms(8_250)
            assert len(bodies(world)) == 15
        for name in ("state", "state.bak"):
            world.files.remove(f"/store/timer/{name}")
        async with world.serving():
            await world.clock.sleep_ms(30_000)
            assert bodies(world) == [b"%d" % number for number in range(30)]

    world.run(main)


def test_a_delivery_that_fails_is_tried_again_and_neither_lost_nor_doubled(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for topic in ("T", "Other"):
                properties = {"TIMER_DELAY_SEC": "1"}
                await client.send(topic, topic.encode(), properties=properties)
            async with refusing(world, "T") as tried:
                await world.clock.sleep_ms(3_000)
                assert len(tried) > 5
                assert bodies(world) == []
            await world.clock.sleep_ms(200)
            assert bodies(world) == [b"T"]
            assert bodies(world, "Other") == [b"Other"]

    world.run(main)


def test_what_can_never_be_stored_holds_up_nobody(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"x" * 9_000, properties={"TIMER_DELAY_SEC": "10"})
            await client.send("T", b"small", properties={"TIMER_DELAY_SEC": "10"})
            await client.send("T", b"next", properties={"TIMER_DELAY_SEC": "12"})
        async with world.serving(max_message_size=8_000):
            await world.clock.sleep_ms(15_000)
            assert bodies(world) == [b"small", b"next"]
        async with world.serving():  # The limit is lifted: it was kept all the time.
            await world.clock.sleep_ms(120_000)
            assert len(bodies(world)) == 3

    world.run(main)


def test_cancelled_messages_never_come_and_are_cancelled_for_good(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            ids = {}
            for name in ("a", "b", "c", "d"):
                properties = {"TIMER_DELAY_SEC": "60", "UNIQ_KEY": f"U-{name}", "KEYS": f"k-{name}"}
                answer = await client.send("T", name.encode(), properties=properties)
                ids[name] = answer.fields["msgId"]
            for text in ("U-a", "k-b", ids["c"]):
                answer = await client.call(RequestCode.CANCEL_TIMER, {"id": text})
                assert (answer.code, answer.fields["count"]) == (0, "1"), text
            for text in ("U-a", "nobody", "F" * 32, "x" * 1_000):
                answer = await client.call(RequestCode.CANCEL_TIMER, {"id": text})
                assert answer.code == ResponseCode.QUERY_NOT_FOUND
        async with world.serving() as client:
            assert [m.unique_id for m in (await waiting(client)).messages] == ["U-d"]
            await world.clock.sleep_ms(70_000)
            assert bodies(world) == [b"d"]

    world.run(main)


def test_a_message_with_timer_del_uniqkey_cancels_as_in_rocketmq_5(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            at = str(world.clock.now_ms() + 60_000)
            for topic, key in (("T", "U-1"), ("T", "U-2"), ("Other", "U-3")):
                properties = {"TIMER_DELIVER_MS": at, "UNIQ_KEY": key}
                await client.send(topic, key.encode(), properties=properties)
            for key in ("U-1", "T+U-2", "U-3", "U-4"):
                properties = {"TIMER_DELIVER_MS": at, "TIMER_DEL_UNIQKEY": key, "UNIQ_KEY": "X"}
                answer = await client.send("T", b"cancel", properties=properties)
                assert answer.code == 0
        async with world.serving():
            await world.clock.sleep_ms(70_000)
            assert bodies(world) == []  # Nor are the wishes themselves delivered.
            assert bodies(world, "Other") == [b"U-3"]  # Another topic's timers are not T's.

    world.run(main)


def test_a_message_can_be_fired_now_and_comes_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            properties = {"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "U-1"}
            await client.send("T", b"now", properties=properties)
            answer = await client.call(RequestCode.FIRE_TIMER, {"id": "U-1"})
            assert answer.code == 0
            assert bodies(world) == [b"now"]
            answer = await client.call(RequestCode.FIRE_TIMER, {"id": "U-1"})
            assert answer.code == ResponseCode.QUERY_NOT_FOUND
            await world.clock.sleep_ms(70_000)
        async with world.serving():
            await world.clock.sleep_ms(70_000)
            assert bodies(world) == [b"now"]

    world.run(main)


def test_what_waits_is_listed_in_pages_by_time_and_topic(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in (5, 3, 9, 1, 7):
                properties = {
                    "TIMER_DELAY_SEC": str(number * 3_000), "TAGS": "A", "UNIQ_KEY": f"U{number}",
                }  # fmt: skip
                await client.send("T" if number != 9 else "Other", b"x", properties=properties)
            first = await waiting(client, countMax=2)
            assert first.total == 5
            assert [m.unique_id for m in first.messages] == ["U1", "U3"]
            last = first.messages[-1]
            rest = await waiting(client, afterMs=last.due_ms, afterOffset=last.queue_offset)
            assert [m.unique_id for m in rest.messages] == ["U5", "U7", "U9"]
            assert {m.tag for m in rest.messages} == {"A"}
            (other,) = (await waiting(client, topic="Other")).messages
            assert (other.topic, other.unique_id) == ("Other", "U9")

    world.run(main)


def test_what_waits_long_is_written_again_before_its_file_expires(world: BrokerWorld) -> None:
    settings = {
        **QUIET, "mapped_file_size_commit_log": 4_096, "file_reserved_time": 2,
        "delete_when": ";".join(map(str, range(24))), "max_message_size": 2_000,
    }  # fmt: skip
    world.files._now_ms = world.clock.now_ms

    async def main() -> None:
        async with world.serving(**settings) as client:
            properties = {"TIMER_DELAY_SEC": str(6 * 3_600), "UNIQ_KEY": "U-1", "KEYS": "k"}
            answer = await client.send("T", b"patient", properties=properties)
            first_id = answer.fields["msgId"]
            for _ in range(11):
                for _ in range(8):
                    await client.send("Noise", b"n" * 1_000)
                await world.clock.sleep_ms(HOUR_MS // 2)
            store = world.parts.store
            assert store.log.start > 4_096, "nothing expired: the test shows nothing"
            (shown,) = (await waiting(client)).messages
            assert int(shown.offset_id[-16:], 16) >= store.log.start
            assert shown.offset_id != first_id
            assert (await client.call(RequestCode.CANCEL_TIMER, {"id": "nobody"})).code == 22
            assert world.parts.timers.find("U-1") == world.parts.timers.find("k")
        async with world.serving(**settings):
            await world.clock.sleep_ms(HOUR_MS)
            assert bodies(world) == [b"patient"]
            (message,) = delivered(world)
            assert "TIMER_ROLL_TIMES" not in message.properties
            assert world.parts.timers.lost_total == 0

    world.run(main)


def test_a_file_with_a_timer_in_it_is_kept_when_it_expires(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"early", properties={"TIMER_DELAY_SEC": "50"})
            first = world.parts.store.log.appended
            await client.send("T", b"later", properties={"TIMER_DELAY_SEC": "5000"})
            timers = world.parts.timers
            assert timers.undelivered_from() == 0
            await world.clock.sleep_ms(60_000)
            assert timers.undelivered_from() == first
            await world.clock.sleep_ms(5_000_000)  # As long as it says, and more.
            assert timers.undelivered_from() is None

    world.run(main)


def test_operators_cannot_clean_the_timers_queues_away(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"kept", properties={"TIMER_DELAY_SEC": "50"})
            await client.call(RequestCode.CLEAN_UNUSED_TOPIC)
            await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
            answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TIMER_TOPIC})
            assert answer.code != 0
            await world.clock.sleep_ms(60_000)
            assert bodies(world) == [b"kept"]

    world.run(main)


def test_the_wall_clock_may_jump(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"day", properties={"TIMER_DELAY_SEC": "86400"})
            await world.clock.sleep_ms(1_000)
            world.clock.jump_ms(DAY_MS)
            await world.clock.sleep_ms(6_000)  # It is noticed within 5 s.
            assert bodies(world) == [b"day"]
            world.clock.jump_ms(-DAY_MS)
            due = world.clock.now_ms() + 10_000
            await client.send("T", b"again", properties={"TIMER_DELAY_MS": "10000"})
            await world.clock.sleep_ms(20_000)
            assert bodies(world) == [b"day", b"again"]
            assert due <= delivered(world)[1].stored_at_ms <= due + 100

    world.run(main)


def test_no_timer_waits_for_the_wheel_to_be_saved(world: BrokerWorld) -> None:
    late: list[int] = []

    async def main() -> None:
        settings = {"timer_flush_interval_ms": 700, "flush_interval_commit_log": 500}
        async with world.serving(**settings) as client:
            start = world.clock.now_ms()
            for number in range(200):
                at = str(start + 1_000 + number * 25)
                await client.send("T", b"x", properties={"TIMER_DELIVER_MS": at})
            await world.clock.sleep_ms(7_000)
            for message in delivered(world):
                late.append(message.stored_at_ms - int(message.properties["TIMER_OUT_MS"]))
        assert len(late) == 200
        assert min(late) >= 0
        assert max(late) <= 10

    world.run(main)


# What repeats.


async def repeat(
    client: Client, rule: str, body: bytes = b"tick", **fields: object
) -> dict[str, str]:
    answer = await client.call(RequestCode.ADD_REPEAT, {"topic": "T", "rule": rule, **fields}, body)
    assert answer.code == 0, answer.remark
    return dict(answer.fields)


def test_a_message_repeats_by_an_interval_once_each_time(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"first")
            start = world.clock.now_ms()
            added = await repeat(client, "every 60000", properties="TAGS\x01Tick\x02color\x01red")
            await world.clock.sleep_ms(10 * 60_000 + 500)
            ticks = delivered(world)[1:]
            assert [t.stored_at_ms - start for t in ticks] == [
                pytest.approx(60_000 * n, abs=5) for n in range(1, 11)
            ]
            assert len({t.unique_id for t in ticks}) == 10
            assert {t.tag for t in ticks} == {"Tick"}
            assert {t.properties["color"] for t in ticks} == {"red"}
            (shown,) = (await waiting(client, repeats=True)).messages
            assert (shown.repeat_id, shown.rule, shown.repeat_count) == (
                added["id"], "every 60000", 10,
            )  # fmt: skip
            assert (await client.call(RequestCode.CANCEL_TIMER, {"id": added["id"]})).code == 0
            await world.clock.sleep_ms(HOUR_MS)
            assert len(delivered(world)) == 11
            assert (await waiting(client, repeats=True)).messages == ()

    world.run(main)


def test_a_message_repeats_by_cron_in_a_time_zone(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**QUIET) as client:
            await client.send("T", b"first")
            rule = "cron 30,45 1 * * MON-FRI"
            await repeat(client, rule, zone="Europe/Berlin", id="weekdays")
            await world.clock.sleep_ms(2 * HOUR_MS)
            zone = zoneinfo.ZoneInfo("Europe/Berlin")
            times = [
                datetime.datetime.fromtimestamp(m.stored_at_ms / 1000, zone)
                for m in delivered(world)[1:]
            ]
            # 2026 begins on a Thursday, at one o'clock in Berlin by UTC.
            assert [f"{t:%a %H:%M}" for t in times] == ["Thu 01:30", "Thu 01:45"]
            (shown,) = (await waiting(client, repeats=True)).messages
            due = datetime.datetime.fromtimestamp(shown.due_ms / 1000, zone)
            assert f"{due:%a %H:%M}" == "Fri 01:30"

    world.run(main)


def test_what_repeats_goes_on_after_a_restart_without_making_up_for_what_was_missed(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"first")
            await repeat(client, "every 10000", id="r")
            await world.clock.sleep_ms(35_000)
            assert len(delivered(world)) == 4
        await world.clock.sleep_ms(60_000)
        async with world.serving() as client:
            await world.clock.sleep_ms(200)
            assert len(delivered(world)) == 5  # Once for all that was missed.
            await world.clock.sleep_ms(30_000)
            assert len(delivered(world)) == 8
            unique = [m.unique_id for m in delivered(world)[1:]]
            assert unique == [f"r-{n}" for n in range(7)]
            answer = await client.call(RequestCode.FIRE_TIMER, {"id": "r"})
            assert answer.code == 0
            assert len(delivered(world)) == 9
            await world.clock.sleep_ms(10_000)
            assert len(delivered(world)) == 10

    world.run(main)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"rule": "every 5"}, 13, "between 100 ms and 366 days"),
        ({"rule": "every never"}, 13, "not a number"),
        ({"rule": "cron * * *"}, 13, "3 fields"),
        ({"rule": "cron 61 * * * *"}, 13, "minute"),
        ({"rule": "cron 0 0 30 2 *"}, 13, "never comes"),
        ({"rule": "cron 0 0 * * *", "zone": "Mars/Olympus"}, 13, "time zone"),
        ({"rule": "cron 0 0 * * *", "zone": "../../etc/passwd"}, 13, "time zone"),
        ({"rule": "sometimes"}, 13, "every or cron"),
        ({"rule": "every 1000", "topic": "Nowhere"}, 17, "not exist"),
        ({"rule": "every 1000", "topic": "SCHEDULE_TOPIC_XXXX"}, 16, "broker alone"),
        ({"rule": "every 1000", "id": "a b"}, 13, "letters, digits"),
        ({"rule": "every 1000", "id": "taken"}, 13, "cancel it"),
        ({"rule": "every 1000", "queueId": 99}, 13, "does not exist"),
        ({"rule": "every 1000", "firstMs": 2**60}, 13, "too far ahead"),
        ({"rule": "every 1000", "properties": "DELAY\x013"}, 13, "DELAY"),
    ],
)
def test_a_repetition_that_cannot_be_is_refused_with_the_reason(
    world: BrokerWorld, fields: dict[str, object], code: int, remark: str
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"first")
            await repeat(client, "every 3600000", id="taken")
            answer = await client.call(RequestCode.ADD_REPEAT, {"topic": "T", **fields}, b"x")
            assert answer.code == code, answer.remark
            assert remark in (answer.remark or "")
            assert world.parts.timers.pending_count == 1

    world.run(main)


# Crashes.


def _restarted(world: BrokerWorld, files: object) -> BrokerWorld:
    again = BrokerWorld()
    again.files = files  # type: ignore[assignment]
    again.clock.jump_ms(world.clock.now_ms() - again.clock.now_ms())
    return again


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_power_cut_at_any_write_loses_no_timer_and_makes_none_early(
    world: BrokerWorld, flush: str
) -> None:
    """Every write of the disk in turn is the last one; what was flushed is delivered, in time."""
    settings = {
        "flush_disk_type": flush, "timer_flush_interval_ms": 90,
        "mapped_file_size_timer_log": 1024, "mapped_file_size_commit_log": 16 << 10,
        "max_message_size": 1_000,
        "flush_interval_commit_log": 100, "max_hash_slot_num": 8, "max_index_num": 32,
    }  # fmt: skip
    world.files.start_recording()
    sent: list[tuple[int, bytes, int, int]] = []  # (length of the trace, body, due, log end)
    times: list[tuple[int, int]] = []  # (length of the trace, wall time)

    async def main() -> None:
        async with world.serving(**settings) as client:
            world.files.on_change = lambda _: times.append(
                (len(world.files.trace), world.clock.now_ms())
            )
            for number in range(24):
                delay_ms = 100 + number * 37 % 900
                body = b"%d" % number
                await client.send("T", body, properties={"TIMER_DELAY_MS": str(delay_ms)})
                due = world.clock.now_ms() + delay_ms
                end = world.parts.store.log.appended
                world.files.observe()
                sent.append((len(world.files.trace), body, due, end))
                await world.clock.sleep_ms(40)
            await world.clock.sleep_ms(1_500)

    world.run(main)
    trace = list(world.files.trace)
    rng = random.Random(flush)
    checked = 0
    points = sorted(rng.sample(range(40, len(trace)), 40))
    for point in points:
        states = list(type(world.files).replay(trace[:point]).crash_states(subsets=1, seed=point))
        at_ms = max((at for length, at in times if length <= point), default=times[0][1])
        for _, disk in rng.sample(states, min(2, len(states))):
            again = _restarted(world, disk)
            again.clock.jump_ms(at_ms - again.clock.now_ms())
            found: list[StoredMessage] = []
            flushed: list[int] = []

            async def after(
                again: BrokerWorld = again,
                found: list[StoredMessage] = found,
                flushed: list[int] = flushed,
            ) -> None:
                async with again.serving(**settings):
                    flushed.append(again.parts.store.recovery.log_end)
                    await again.clock.sleep_ms(1_200)
                    found.extend(delivered(again))

            again.loop.run(after())
            again.loop.close()
            got = {message.body for message in found}
            for length, body, _, end in sent:
                if end <= flushed[0]:
                    assert body in got, (point, body)
                elif flush == "SYNC_FLUSH":
                    assert length > point, f"{body!r} was acknowledged and is gone"
            for message in found:
                assert message.stored_at_ms >= int(message.properties["TIMER_OUT_MS"]), "early"
            checked += 1
    assert checked >= 60


def test_a_timer_counts_as_done_only_when_its_delivery_is_on_the_disk(world: BrokerWorld) -> None:
    """Else a power cut would take the copy back, and nobody would deliver it again."""
    settings = {
        "transient_store_pool_enable": True, "flush_interval_commit_log": HOUR_MS,
        "commit_interval_commit_log": HOUR_MS, "timer_flush_interval_ms": 100,
    }  # fmt: skip
    disks: list[SimFiles] = []

    async def main() -> None:
        async with world.serving(**settings) as client:
            await client.send("T", b"precious", properties={"TIMER_DELAY_MS": "1000"})
            world.parts.store.flush()
            await world.clock.sleep_ms(600)
            assert world.files.exists("/store/timer/state")
            await world.clock.sleep_ms(1_000)
            assert world.parts.timers.delivered_total == 1
            disks.extend(world.files.crash(random.Random(seed)) for seed in range(5))

    world.run(main)
    for disk in disks:
        again = _restarted(world, disk)

        async def after(again: BrokerWorld = again) -> None:
            async with again.serving():
                await again.clock.sleep_ms(100)
                assert bodies(again) == [b"precious"]

        again.loop.run(after())
        again.loop.close()


def test_a_kill_at_any_moment_delivers_every_timer_once(world: BrokerWorld) -> None:
    """The page cache survives a kill, so the log knows what was delivered: nothing comes twice."""
    settings = {"timer_flush_interval_ms": 300, "mapped_file_size_timer_log": 1_024}
    copies = []

    async def main() -> None:
        async with world.serving(**settings) as client:
            for number in range(20):
                ms = str(200 + number * 50)
                await client.send("T", b"%d" % number, properties={"TIMER_DELAY_MS": ms})
            for _ in range(12):
                await world.clock.sleep_ms(97)
                copies.append((world.clock.now_ms(), world.files.copy()))

    world.run(main)
    for now_ms, disk in copies:
        again = _restarted(world, disk)
        again.clock.jump_ms(now_ms - again.clock.now_ms())

        async def after(again: BrokerWorld = again) -> None:
            async with again.serving(**settings):
                await again.clock.sleep_ms(2_000)
                assert sorted(map(int, bodies(again))) == list(range(20))

        again.loop.run(after())
        again.loop.close()


def test_topic_status_is_not_troubled_by_timers(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"x", properties={"TIMER_DELAY_SEC": "1"})
            await world.clock.sleep_ms(1_500)
            answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
            stats = TopicStatsBody.from_json(answer.body)
            assert sum(offset.max_offset for offset in stats.offsets.values()) == 1
            assert records(await client.pull("T"))[0].body == b"x"

    world.run(main)


def test_services_share_no_state_with_the_store_they_left(world: BrokerWorld) -> None:
    """A second service on the same store takes up the saved state, as a new master would."""

    async def main() -> None:
        async with world.serving() as client:
            for number in range(5):
                await client.send("T", b"%d" % number, properties={"TIMER_DELAY_SEC": "60"})
            await world.clock.sleep_ms(11_000)
            parts = world.parts
            assert isinstance(parts.store, MessageStore)
            other = TimerService(
                parts.live, parts.identity, store=parts.store, arrivals=parts.arrivals,
                flusher=parts.flusher, clock=parts.clock, files=world.files,
                observer=parts.observer,
            )  # fmt: skip
            other.load()
            assert other.pending_count == 5

    world.run(main)


# Roles.


def _arrive(world: BrokerWorld, body: bytes, delay_ms: int) -> None:
    """Let a timer into the log, as it comes to a replica: not by a send."""
    host = world.parts.identity.store_host
    now_ms = world.clock.now_ms()
    properties = f"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{now_ms + delay_ms}"
    world.parts.store.is_replica = False
    (result,) = world.parts.store.put(
        [PutMessage(TIMER_TOPIC, TIMER_QUEUE, body, properties.encode(), now_ms, host, host)]
    )
    world.parts.store.is_replica = True
    assert result.status is PutStatus.PUT_OK


def test_a_replica_knows_what_waits_and_delivers_nothing_until_it_is_master(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving():
            store = world.parts.store
            store.is_replica = True
            for number in range(6):
                _arrive(world, b"%d" % number, 1_000 + 500 * number)
            await world.clock.sleep_ms(2_100)
            assert world.parts.timers.pending_count == 6
            assert bodies(world) == []
            store.is_replica = False
            world.parts.timers.wake()
            await world.clock.sleep_ms(50)
            assert bodies(world) == [b"0", b"1", b"2"]
            await world.clock.sleep_ms(2_000)
            assert bodies(world) == [b"%d" % number for number in range(6)]

    world.run(main)


def test_a_replica_whose_log_is_cut_back_forgets_what_was_cut(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving():
            store, timers = world.parts.store, world.parts.timers
            store.is_replica = True
            for number in range(4):
                _arrive(world, b"%d" % number, 9_000)
            await world.clock.sleep_ms(10)
            assert timers.pending_count == 4
            queue = store.queues.get(TIMER_TOPIC, TIMER_QUEUE)
            assert queue is not None
            entry = queue.entry(2)
            assert entry is not None
            store.truncate(entry.physical_offset)
            _arrive(world, b"other", 9_000)
            await world.clock.sleep_ms(10)
            assert timers.pending_count == 3
            store.is_replica = False
            timers.wake()
            await world.clock.sleep_ms(10_000)
            assert bodies(world) == [b"0", b"1", b"other"]

    world.run(main)
