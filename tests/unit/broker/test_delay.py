"""The 18 delay levels, row by row of the seeds, and what can go wrong with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from broker_world import BrokerWorld, records

from skylark.model.message import StoredMessage
from skylark.model.topic import SCHEDULE_TOPIC
from skylark.protocol.bodies import DelayOffsetTable, KVTable, TopicStatsBody
from skylark.protocol.codes import RequestCode
from skylark.protocol.record import decode_records
from skylark.store import PutMessage, PutResult, PutStatus
from skylark.testing.files import SimFiles

DELAY_FILE = "/store/config/delayOffset.json"
LEVELS_S = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
QUIET = {
    "flush_disk_type": "SYNC_FLUSH",
    "flush_interval_consume_queue": 60_000,
    "clean_resource_interval": 60_000,
}


def delivered(world: BrokerWorld, topic: str = "T") -> list[StoredMessage]:
    """All messages of a topic, in the order in which they were stored."""
    store = world.parts.store
    found = []
    for queue_id in range(4):
        offset = store.min_offset(topic, queue_id)
        while (page := store.get(topic, queue_id, offset, 32)).message_count:
            found += decode_records(page.body)
            offset = page.next_offset
    return sorted(found, key=lambda message: message.physical_offset)


def bodies(world: BrokerWorld) -> list[bytes]:
    return [message.body for message in delivered(world)]


def _again(world: BrokerWorld, files: SimFiles, now_ms: int) -> BrokerWorld:
    again = BrokerWorld()
    again.files = files
    again.clock.jump_ms(now_ms - again.clock.now_ms())
    return again


def test_every_level_fires_at_its_time_to_the_millisecond(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(**QUIET) as client:
            for level in range(1, 19):
                await client.send("T", b"%d" % level, properties={"DELAY": str(level)})
            await world.clock.sleep_ms(7_200_500)
            store = world.parts.store
            found = {int(message.body): message.stored_at_ms for message in delivered(world)}
            for level, delay_s in enumerate(LEVELS_S, 1):
                sent_ms = store.stored_at_ms(SCHEDULE_TOPIC, level - 1, 0)
                assert 0 <= found[level] - sent_ms - delay_s * 1_000 <= 2, level

    world.run(main)


def test_levels_0_to_19_go_where_they_belong(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for level in range(20):
                await client.send("T", b"%d" % level, properties={"DELAY": str(level)})
            assert bodies(world) == [b"0"]
            answer = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": SCHEDULE_TOPIC})
            stats = TopicStatsBody.from_json(answer.body).offsets
            counts = {queue.queue_id: offset.max_offset for queue, offset in stats.items()}
            assert counts == {**dict.fromkeys(range(17), 1), 17: 2}
            answer = await client.send("T", properties={"DELAY": "20"})
            assert world.parts.store.max_offset(SCHEDULE_TOPIC, 17) == 3

    world.run(main)


def test_a_consumer_sees_the_message_as_it_was_sent_and_no_level(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            properties = {"DELAY": "1", "TAGS": "A", "KEYS": "k", "color": "red", "UNIQ_KEY": "U"}
            await client.send("T", b"x", queue_id=3, properties=properties, flag=7)
            (stored,) = decode_records(world.parts.store.get(SCHEDULE_TOPIC, 0, 0, 1).body)
            assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("T", "3")
            await world.clock.sleep_ms(1_100)
            (message,) = records(await client.pull("T", queue_id=3))
            assert (message.topic, message.queue_id, message.flag) == ("T", 3, 7)
            assert message.delay_level == 0
            assert message.properties.items() >= {
                ("TAGS", "A"), ("KEYS", "k"), ("color", "red"), ("UNIQ_KEY", "U"),
            }  # fmt: skip
            assert message.born_at_ms == stored.born_at_ms
            assert message.store_host == stored.store_host

    world.run(main)


def test_a_delayed_message_counts_as_two_puts(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for _ in range(3):
                await client.send("T", properties={"DELAY": "1"})
            await world.clock.sleep_ms(1_500)
            answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert KVTable.from_json(answer.body).table["putMessageTimesTotal"] == "6"

    world.run(main)


def test_messages_of_a_level_come_in_the_order_in_which_they_were_sent(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(200):
                await client.send("T", b"%d" % number, properties={"DELAY": "2"})
            await world.clock.sleep_ms(6_000)
            assert bodies(world) == [b"%d" % number for number in range(200)]

    world.run(main)


def test_what_became_due_while_the_broker_was_down_comes_at_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for level in (1, 2, 3, 4):
                await client.send("T", b"%d" % level, properties={"DELAY": str(level)})
        await world.clock.sleep_ms(3_600_000)
        async with world.serving():
            await world.clock.sleep_ms(20)
            assert bodies(world) == [b"1", b"2", b"3", b"4"]

    world.run(main)


def test_running_twice_delivers_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            second = asyncio.ensure_future(world.parts.delay.run())
            for number in range(20):
                await client.send("T", b"%d" % number, properties={"DELAY": "1"})
            await world.clock.sleep_ms(3_000)
            second.cancel()
            assert len(bodies(world)) == 20

    world.run(main)


def test_the_table_is_apaches_in_both_directions(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(3):
                await client.send("T", b"%d" % number, properties={"DELAY": "3"})
            await client.send("T", b"one", properties={"DELAY": "1"})
            await world.clock.sleep_ms(9_000)
            answer = await client.call(RequestCode.GET_ALL_DELAY_OFFSET)
            assert answer.body == b'{"offsetTable":{1:1}}'
        assert b"".join(world.files.read(DELAY_FILE).split()) == b'{"offsetTable":{1:1}}'
        # As Apache writes it: keys without quotes, tabs and line ends.
        world.files.replace(DELAY_FILE, b'{\n\t"offsetTable":{1:1,3:2\n\t}\n}')
        async with world.serving():
            assert world.parts.delay.offsets[3] == 2
            await world.clock.sleep_ms(3_000)
            assert bodies(world) == [b"one", b"2"]

    world.run(main)


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 40, b"[]", b'{"offsetTable":{"a":"b"}}'])
def test_a_table_that_is_damaged_with_its_backup_keeps_nobody_from_starting(
    world: BrokerWorld, content: bytes
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(8):
                properties = {"DELAY": "2", "UNIQ_KEY": f"U{number}"}
                await client.send("T", b"%d" % number, properties=properties)
                await world.clock.sleep_ms(1_000)
            await world.clock.sleep_ms(500)
            assert 0 < len(bodies(world)) < 8
        for _ in range(2):
            world.files.replace(DELAY_FILE, content)
        async with world.serving() as client:
            await world.clock.sleep_ms(6_000)
            # What was delivered is found in the log, and not delivered again.
            assert bodies(world) == [b"%d" % number for number in range(8)]
            await client.send("T", b"next", properties={"DELAY": "2"})
            await world.clock.sleep_ms(5_100)
            assert bodies(world)[-1] == b"next"

    world.run(main)


@pytest.mark.parametrize("failing", range(5))
def test_the_delivery_that_fails_is_made_up_for_and_no_other_is_repeated(
    world: BrokerWorld, failing: int
) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(5):
                await client.send("T", b"%d" % number, properties={"DELAY": "1"})
                await world.clock.sleep_ms(10)
            store, real, calls = world.parts.store, world.parts.store.put_group, 0

            def put_group(messages: Sequence[PutMessage]) -> list[PutResult]:
                nonlocal calls
                calls += 1
                if failing < calls <= failing + 4:
                    return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(messages)
                return real(messages)

            store.put_group = put_group  # type: ignore[method-assign]
            await world.clock.sleep_ms(3_000)
            assert calls >= 5
            assert bodies(world) == [b"0", b"1", b"2", b"3", b"4"]

    world.run(main)


def test_deliveries_that_are_too_large_together_go_one_by_one(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(12):
                body = b"%02d" % number + bytes(12_000)
                await client.send("T", body, properties={"DELAY": "1"})
            await world.clock.sleep_ms(1_500)
            assert [body[:2] for body in bodies(world)] == [b"%02d" % n for n in range(12)]

    world.run(main)


def test_deliveries_do_not_wait_for_the_table_to_be_saved(world: BrokerWorld) -> None:
    async def main() -> None:
        settings = {"flush_delay_offset_interval": 300, "flush_interval_commit_log": 900}
        async with world.serving(**settings) as client:
            for _ in range(150):
                await client.send("T", properties={"DELAY": "1"})
                await world.clock.sleep_ms(20)
            await world.clock.sleep_ms(1_200)
            store = world.parts.store
            late = [
                message.stored_at_ms - store.stored_at_ms(SCHEDULE_TOPIC, 0, place) - 1_000
                for place, message in enumerate(delivered(world))
            ]
            assert len(late) == 150
            assert min(late) >= 0
            assert max(late) <= 5

    world.run(main)


def test_a_kill_at_any_moment_delivers_every_message_once(world: BrokerWorld) -> None:
    copies: list[tuple[int, SimFiles]] = []
    settings = {"flush_delay_offset_interval": 250}

    async def main() -> None:
        async with world.serving(**settings) as client:
            for number in range(20):
                properties = {"DELAY": str(number % 2 + 1), "UNIQ_KEY": f"U{number}"}
                await client.send("T", b"%d" % number, properties=properties)
                await world.clock.sleep_ms(35)
            for _ in range(12):
                await world.clock.sleep_ms(431)
                copies.append((world.clock.now_ms(), world.files.copy()))

    world.run(main)
    for now_ms, disk in copies:
        again = _again(world, disk, now_ms)

        async def after(again: BrokerWorld = again) -> None:
            async with again.serving(**settings):
                await again.clock.sleep_ms(6_000)
                assert sorted(map(int, bodies(again))) == list(range(20))

        again.loop.run(after())
        again.loop.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_power_cut_at_any_write_loses_none_and_makes_none_early(
    world: BrokerWorld, flush: str
) -> None:
    settings = {
        "flush_disk_type": flush, "flush_delay_offset_interval": 200, "max_index_num": 32,
        "mapped_file_size_commit_log": 16 << 10, "max_message_size": 1_000,
        "flush_interval_commit_log": 100, "max_hash_slot_num": 8, "message_delay_level": "1s 2s",
    }  # fmt: skip
    world.files.start_recording()
    sent: list[tuple[int, bytes, int]] = []
    times: list[tuple[int, int]] = []  # (length of the trace, wall time)

    async def main() -> None:
        async with world.serving(**settings) as client:
            world.files.on_change = lambda _: times.append(
                (len(world.files.trace), world.clock.now_ms())
            )
            for number in range(24):
                body = b"%d" % number
                properties = {"DELAY": str(number % 2 + 1), "UNIQ_KEY": f"U{number}"}
                await client.send("T", body, properties=properties)
                world.files.observe()
                sent.append((len(world.files.trace), body, world.parts.store.log.appended))
                await world.clock.sleep_ms(60)
            await world.clock.sleep_ms(2_500)

    world.run(main)
    trace = list(world.files.trace)
    rng = random.Random(flush)
    for point in sorted(rng.sample(range(60, len(trace)), 40)):
        states = list(SimFiles.replay(trace[:point]).crash_states(subsets=1, seed=point))
        at_ms = max((at for length, at in times if length <= point), default=times[0][1])
        for _, disk in rng.sample(states, min(2, len(states))):
            again = _again(world, disk, at_ms)
            found: list[StoredMessage] = []
            ends: list[int] = []
            waiting: dict[bytes, StoredMessage] = {}

            async def after(
                again: BrokerWorld = again,
                found: list[StoredMessage] = found,
                ends: list[int] = ends,
                waiting: dict[bytes, StoredMessage] = waiting,
            ) -> None:
                async with again.serving(**settings):
                    ends.append(again.parts.store.recovery.log_end)
                    await again.clock.sleep_ms(2_100)
                    found.extend(delivered(again))
                    for queue_id in (0, 1):
                        page = again.parts.store.get(SCHEDULE_TOPIC, queue_id, 0, 32)
                        waiting.update({m.body: m for m in decode_records(page.body)})

            again.loop.run(after())
            again.loop.close()
            got = {message.body for message in found}
            for length, body, end in sent:
                if end <= ends[0]:
                    assert body in got, (point, body)
                elif flush == "SYNC_FLUSH":
                    assert length > point, f"{body!r} was acknowledged and is gone"
            for message in found:
                delay_ms = 1_000 * (int(message.body) % 2 + 1)
                stored_ms = waiting[message.body].stored_at_ms
                assert message.stored_at_ms >= stored_ms + delay_ms, "early"


def test_a_replica_takes_over_where_its_master_was(world: BrokerWorld) -> None:
    """Its table is older than the master's: what was delivered since is found in the log."""
    disks: list[SimFiles] = []

    async def main() -> None:
        async with world.serving() as client:
            for number in range(10):
                properties = {"DELAY": "2", "UNIQ_KEY": f"U{number}"}
                await client.send("T", b"%d" % number, properties=properties)
                await world.clock.sleep_ms(1_000)
            assert 4 < len(bodies(world)) < 8
            disks.append(world.files.copy())

    world.run(main)
    (disk,) = disks
    disk.replace(DELAY_FILE, DelayOffsetTable({2: 1}).to_json())
    again = _again(world, disk, world.clock.now_ms())

    async def after() -> None:
        async with again.serving():
            await again.clock.sleep_ms(6_000)
            assert bodies(again) == [b"%d" % number for number in range(10)]

    again.loop.run(after())
    again.loop.close()


def test_an_expired_file_with_a_delayed_message_in_it_is_kept(world: BrokerWorld) -> None:
    settings = {
        **QUIET, "mapped_file_size_commit_log": 4_096, "file_reserved_time": 0,
        "delete_when": ";".join(map(str, range(24))), "max_message_size": 2_000,
    }  # fmt: skip
    world.files._now_ms = world.clock.now_ms

    async def main() -> None:
        async with world.serving(**settings) as client:
            await client.send("T", b"kept", properties={"DELAY": "16"})
            for _ in range(20):
                await client.send("Noise", bytes(1_500))
            await world.clock.sleep_ms(1_500_000)
            assert world.parts.store.log.start == 0
            await world.clock.sleep_ms(900_000)
            assert bodies(world) == [b"kept"] or world.parts.store.log.start > 0
            assert world.parts.delay.delivered_total == 1
            assert world.parts.store.log.start > 0  # Delivered, it holds the file no longer.

    world.run(main)
