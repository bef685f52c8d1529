"""Retries, dead letters and delays, over days of virtual time."""

from __future__ import annotations

import random

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.broker.processors.sendback import SendBackProcessor
from skylark.model.group import SubscriptionGroupConfig
from skylark.model.message import StoredMessage
from skylark.protocol.bodies import DelayOffsetTable
from skylark.protocol.codes import RequestCode

# Nothing to flush for hours: looking for it twice a second would take most of the test's time.
CALM = {"flush_interval_commit_log": 600_000, "flush_interval_consume_queue": 600_000}
LADDER_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
DELAY_FILE = "/store/config/delayOffset.json"
assert SendBackProcessor


async def _send_back(client: Client, message: StoredMessage, **changes: object) -> int:
    fields = {
        "offset": message.physical_offset, "group": "g", "delayLevel": 0,
        "originMsgId": message.offset_id, "originTopic": message.topic, "unitMode": False,
        "maxReconsumeTimes": 16, **changes,
    }  # fmt: skip
    return (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code


async def _next(client: Client, topic: str, offset: int) -> StoredMessage:
    answer = await client.pull(topic, group="g", offset=offset, suspend_ms=30_000)
    while answer.code != 0:
        answer = await client.pull(topic, group="g", offset=offset, suspend_ms=30_000)
    return records(answer)[0]


def test_a_message_climbs_the_whole_ladder_and_ends_as_a_dead_letter(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**CALM) as client:
            await client.send("T", b"poison", properties={"TAGS": "A", "KEYS": "k"})
            first = message = await _next(client, "T", 0)
            for step, delay_s in enumerate(LADDER_S):
                failed_ms = world.clock.now_ms()
                assert await _send_back(client, message) == 0
                message = await _next(client, "%RETRY%g", step)
                late_ms = world.clock.now_ms() - failed_ms - delay_s * 1_000
                assert 0 <= late_ms <= 20, (step, late_ms)
                assert message.stored_at_ms >= failed_ms + delay_s * 1_000
                assert message.reconsume_times == step + 1
                assert message.body == b"poison"
                assert message.properties["RETRY_TOPIC"] == "T"
                assert message.properties["ORIGIN_MESSAGE_ID"] == first.offset_id
                assert message.properties["DELAY"] == str(step + 3)
                assert message.properties["REAL_TOPIC"] == "%RETRY%g"
                assert message.properties["TAGS"] == "A"
            assert await _send_back(client, message) == 0
            dead = await _next(client, "%DLQ%g", 0)
            assert dead.reconsume_times == 17
            assert dead.properties["RETRY_TOPIC"] == "T"
            assert (await client.pull("%RETRY%g", group="g", offset=16)).code == 19

    world.run(main)


def test_beyond_the_ladder_tries_are_two_hours_apart_up_to_the_number_asked_for(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(**CALM) as client:
            await client.send("T", b"poison", reconsume_times=18)
            message = await _next(client, "T", 0)
            for step in range(2):
                failed_ms = world.clock.now_ms()
                assert await _send_back(client, message, maxReconsumeTimes=20) == 0
                message = await _next(client, "%RETRY%g", step)
                assert 0 <= world.clock.now_ms() - failed_ms - 7_200_000 <= 20
                assert message.reconsume_times == 19 + step
            assert await _send_back(client, message, maxReconsumeTimes=20) == 0
            assert (await _next(client, "%DLQ%g", 0)).body == b"poison"

    world.run(main)


@pytest.mark.parametrize(
    ("changes", "topic", "seconds"),
    [
        ({"delayLevel": -1}, "%DLQ%g", 0),
        ({"delayLevel": 1}, "%RETRY%g", 1),
        ({"delayLevel": 99}, "%RETRY%g", 7_200),
        ({"maxReconsumeTimes": 0}, "%DLQ%g", 0),
        ({"delayLevel": 2, "maxReconsumeTimes": None}, "%RETRY%g", 5),
    ],
)
def test_where_and_when_a_message_comes_back(
    world: BrokerWorld, changes: dict[str, object], topic: str, seconds: int
) -> None:
    async def main() -> None:
        async with world.serving(**CALM) as client:
            await client.send("T")
            message = await _next(client, "T", 0)
            begun = world.clock.now_ms()
            assert await _send_back(client, message, **changes) == 0
            await _next(client, topic, 0)
            assert 0 <= world.clock.now_ms() - begun - seconds * 1_000 <= 50

    world.run(main)


def test_a_group_without_retry_queues_is_done_with_its_failures(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            message = await _next(client, "T", 0)
            world.parts.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
            end = world.parts.store.log.appended
            assert await _send_back(client, message) == 0
            assert world.parts.store.log.appended == end

    world.run(main)


@pytest.mark.parametrize("offset", [-1, 1, 10**12, 2**62])
def test_a_message_that_is_not_there_cannot_be_given_back(world: BrokerWorld, offset: int) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            message = await _next(client, "T", 0)
            assert await _send_back(client, message, offset=offset) == 1
            assert await _send_back(client, message, group="a b") == 1

    world.run(main)


def test_a_delayed_message_is_never_early_and_keeps_its_properties(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            begun = world.clock.now_ms()
            for level in (3, 1, 2):
                properties = {"DELAY": str(level), "TAGS": f"L{level}", "WAIT": "true"}
                answer = await client.send("T", b"%d" % level, queue_id=2, properties=properties)
                assert answer.fields["queueId"] == "2"
            assert (await client.pull("T", queue_id=2)).code == 19
            for place, (level, delay_ms) in enumerate(((1, 1_000), (2, 5_000), (3, 10_000))):
                answer = await client.pull("T", queue_id=2, offset=place, suspend_ms=20_000)
                (message,) = records(answer)
                assert message.body == b"%d" % level
                assert message.tag == f"L{level}"
                assert 0 <= message.stored_at_ms - begun - delay_ms <= 20
            assert world.parts.delay.delivered_total == 3

    world.run(main)


def test_a_level_beyond_the_last_is_the_last(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(message_delay_level="1s 3s") as client:
            for text in ("19", str(2**31), "9" * 40):
                await client.send("T", text.encode(), properties={"DELAY": text})
            await world.clock.sleep_ms(2_900)
            assert (await client.pull("T")).code == 19
            await world.clock.sleep_ms(200)
            assert len(records(await client.pull("T"))) == 3
            for text in ("0", "-1"):
                await client.send("Now", properties={"DELAY": text})
            assert len(records(await client.pull("Now"))) == 2

    world.run(main)


def test_delivery_goes_on_where_it_was_after_a_restart(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"soon", properties={"DELAY": "1"})
            await client.send("T", b"later", properties={"DELAY": "4"})
            await world.clock.sleep_ms(5_000)
        saved = DelayOffsetTable.from_json(world.files.read(DELAY_FILE))
        assert dict(saved.offsets) == {1: 1}
        await world.clock.sleep_ms(60_000)
        async with world.serving() as client:
            await world.clock.sleep_ms(100)
            assert [m.body for m in records(await client.pull("T"))] == [b"soon", b"later"]

    world.run(main)


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b'{"offsetTable":{3:999999999}}', b'{"offsetTable":{3:-7}}']
)
def test_a_wrong_or_missing_progress_file_loses_nothing(
    world: BrokerWorld, content: bytes | None
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"waiting", properties={"DELAY": "3"})
        if content is not None:
            world.files.replace(DELAY_FILE, b'{"offsetTable":{}}')
            world.files.replace(DELAY_FILE, content)
        async with world.serving() as client:
            await world.clock.sleep_ms(11_000)
            found = await client.pull("T")
            assert [m.body for m in records(found)] == [b"waiting"]
            await client.send("T", b"next", properties={"DELAY": "3"})
            await world.clock.sleep_ms(10_100)
            found = await client.pull("T", offset=1)
            assert [m.body for m in records(found)] == [b"next"]

    world.run(main)


def test_progress_is_saved_only_when_the_copies_are_on_the_disk(world: BrokerWorld) -> None:
    """Else a power cut would take the copy back, and nobody would deliver it again."""

    async def main() -> None:
        async with world.serving(flush_interval_commit_log=3_600_000) as client:
            await client.send("T", b"precious", properties={"DELAY": "1"})
            world.parts.store.flush()
            await world.clock.sleep_ms(25_000)
            for seed in range(20):
                after = world.files.crash(random.Random(seed))
                text = after.read(DELAY_FILE) if after.exists(DELAY_FILE) else b"{}"
                if DelayOffsetTable.from_json(text).offsets.get(1) == 1:
                    log = after.read("/store/commitlog/00000000000000000000")
                    assert log.count(b"precious") == 2

    world.run(main)


def test_a_delivery_that_fails_is_tried_again_and_arrives_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"stubborn", properties={"DELAY": "1"})
            world.parts.store.is_disk_full = True
            await world.clock.sleep_ms(3_000)
            world.parts.store.is_disk_full = False
            await world.clock.sleep_ms(500)
            assert [m.body for m in records(await client.pull("T"))] == [b"stubborn"]

    world.run(main)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000, -86_400_000])
def test_a_jump_of_the_wall_clock_neither_loses_nor_holds_back(
    world: BrokerWorld, jump_ms: int
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T", b"x", properties={"DELAY": "3"})
            await world.clock.sleep_ms(2_000)
            world.clock.jump_ms(jump_ms)
            # It is seen within 5 s, and from then on waits its level's delay, not the hour.
            await world.clock.sleep_ms(15_100)
            assert len(records(await client.pull("T"))) == 1

    world.run(main)


def test_many_messages_of_one_level_arrive_in_order(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(mapped_file_size_commit_log=256 << 10) as client:
            for number in range(200):
                await client.send("T", b"%d" % number, properties={"DELAY": "1"})
            await world.clock.sleep_ms(2_000)
            found: list[int] = []
            while len(found) < 200:
                found += [int(m.body) for m in records(await client.pull("T", offset=len(found)))]
            assert found == list(range(200))

    world.run(main)
