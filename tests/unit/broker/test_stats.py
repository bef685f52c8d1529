"""Counters by topic and group: over a minute, an hour and a day, then gone."""

from __future__ import annotations

import pytest
from broker_world import BrokerWorld

from skylark.broker import stats as stats_module
from skylark.broker.observer import Observer
from skylark.broker.processors.admin.stats import runtime_text, size_text
from skylark.broker.stats import SAMPLE_MS, Both, BrokerStats
from skylark.protocol.bodies import BrokerStatsDataBody, KVTable
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.testing.stores import HandClock

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def _stats() -> tuple[BrokerStats, HandClock]:
    clock = HandClock()
    return BrokerStats(clock, cluster="DefaultCluster"), clock


def _pass(stats: BrokerStats, clock: HandClock, span_ms: int) -> None:
    for _ in range(span_ms // SAMPLE_MS):
        clock.advance_ms(SAMPLE_MS)
        stats.sample()


def _view(stats: BrokerStats, name: str, key: str) -> BrokerStatsDataBody:
    found = stats.view(name, key)
    assert found is not None
    return found


def test_a_batch_counts_at_once_and_its_rate_is_over_a_step_at_least() -> None:
    stats, clock = _stats()
    stats.stored("T", 5, 500)
    clock.advance_ms(1)
    nums, sizes = _view(stats, "TOPIC_PUT_NUMS", "T"), _view(stats, "TOPIC_PUT_SIZE", "T")
    assert (nums.minute.sum, nums.minute.tps, nums.minute.average) == (5, 0.5, 5.0)
    assert (nums.hour.sum, nums.day.sum) == (5, 5)
    assert (sizes.minute.sum, sizes.minute.average) == (500, 500.0)


def test_a_minute_an_hour_and_a_day_forget_what_is_older() -> None:
    stats, clock = _stats()
    stats.stored("T", 60, 600)
    _pass(stats, clock, MINUTE_MS)
    view = _view(stats, "TOPIC_PUT_NUMS", "T")
    assert (view.minute.sum, view.minute.tps) == (60, 1.0)
    _pass(stats, clock, MINUTE_MS)
    view = _view(stats, "TOPIC_PUT_NUMS", "T")
    assert (view.minute.sum, view.hour.sum, view.day.sum) == (0, 60, 60)
    _pass(stats, clock, 2 * HOUR_MS)
    view = _view(stats, "TOPIC_PUT_NUMS", "T")
    assert (view.minute.sum, view.hour.sum, view.day.sum) == (0, 0, 60)
    stats.stored("T", 1, 10)
    _pass(stats, clock, DAY_MS - HOUR_MS)
    assert _view(stats, "TOPIC_PUT_NUMS", "T").day.sum == 1


def test_a_steady_flow_has_a_steady_rate_in_every_window() -> None:
    stats, clock = _stats()
    for _ in range(2 * HOUR_MS // SAMPLE_MS):
        stats.stored("T", 20, 200)
        clock.advance_ms(SAMPLE_MS)
        stats.sample()
    view = _view(stats, "TOPIC_PUT_NUMS", "T")
    assert (view.minute.tps, view.hour.tps, view.day.tps) == (2.0, 2.0, 2.0)
    assert (view.minute.sum, view.hour.sum) == (120, 7200)


def test_after_a_long_silence_a_rate_is_over_the_window_and_no_longer() -> None:
    stats, clock = _stats()
    stats.stored("T", 1, 1)
    _pass(stats, clock, 5 * HOUR_MS)
    stats.stored("T", 60, 60)
    view = _view(stats, "TOPIC_PUT_NUMS", "T")
    assert (view.minute.sum, view.minute.tps) == (60, 1.0)
    assert (view.hour.sum, view.hour.tps) == (60, 60 / 3_600)
    assert view.day.sum == 61


def test_many_counters_are_sampled_a_part_at_a_time_while_others_come_and_go() -> None:
    stats, clock = _stats()
    for number in range(2_000):
        stats.stored(f"T{number}", 1, 1)
    clock.advance_ms(SAMPLE_MS)
    parts = 0
    for _ in stats.sampling():
        parts += 1
        stats.forget_topic(f"T{parts}")
        stats.stored(f"new-{parts}", 1, 1)
    assert parts == 4
    assert stats.counter_count == 2_000


def test_groups_send_backs_and_the_broker_have_their_own_counters() -> None:
    stats, _ = _stats()
    stats.stored("T", 3, 30)
    stats.delivered("g", "T", 0, 2, 20)
    stats.sent_back("g", "T", is_dead=False)
    assert _view(stats, "GROUP_GET_NUMS", "T@g").minute.sum == 2
    assert _view(stats, "GROUP_GET_SIZE", "T@g").minute.sum == 20
    assert _view(stats, "SNDBCK_PUT_NUMS", "T@g").minute.sum == 1
    assert _view(stats, "BROKER_PUT_NUMS", "DefaultCluster").minute.sum == 3
    assert _view(stats, "BROKER_GET_NUMS", "DefaultCluster").minute.sum == 2
    assert stats.get_rate("g", "T") == 0.2
    assert stats.get_rate("g", "other") == 0.0
    for name, key in (
        ("TOPIC_PUT_NUMS", "other"), ("GROUP_GET_NUMS", "T"), ("BROKER_PUT_NUMS", "other"),
        ("nonsense", "T"), ("nonsense", "DefaultCluster"), ("", ""),
    ):  # fmt: skip
        assert stats.view(name, key) is None


def test_counters_go_with_their_topic_or_group_and_after_a_day_of_silence() -> None:
    stats, clock = _stats()
    for number in range(1_000):
        stats.stored(f"T{number}", 1, 1)
        stats.delivered(f"g{number}", "T0", 0, 1, 1)
        stats.sent_back(f"g{number}", f"T{number}", is_dead=True)
    assert stats.counter_count == 3_000
    stats.forget_topic("T1")
    assert stats.counter_count == 2_998
    stats.forget_group("g2")
    assert stats.counter_count == 2_996
    stats.stored("kept", 1, 1)
    for _ in range(27):
        clock.advance_ms(HOUR_MS)
        stats.stored("kept", 1, 1)
        stats.sample()
    assert stats.counter_count == 1


def test_there_is_a_limit_to_how_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "COUNTERS_MAX", 10)
    stats, _ = _stats()
    for number in range(100):
        stats.stored(f"T{number}", 1, 1)
    assert stats.counter_count == 10
    assert stats.runtime_items()["msgPutTotalTodayNow"] == "100"


def test_rates_are_given_for_ten_seconds_a_minute_and_ten_minutes() -> None:
    stats, clock = _stats()
    stats.stored("T", 60, 60)
    assert stats.runtime_items()["putTps"] == "6.0 6.0 6.0"
    _pass(stats, clock, MINUTE_MS)
    stats.delivered("g", "T", 0, 30, 30)
    stats.missed("g", "T", 0)
    items = stats.runtime_items()
    assert items["putTps"] == "0.0 1.0 1.0"
    assert items["getTransferedTps"].split()[0] == "3.0"
    assert items["getTotalTps"].split()[0] == "0.2"
    _pass(stats, clock, 10 * MINUTE_MS)
    assert stats.runtime_items()["putTps"] == "0.0 0.0 0.0"


def test_the_totals_of_the_morning_are_those_of_the_first_look_at_a_new_day() -> None:
    stats, clock = _stats()
    stats.stored("T", 7, 7)
    clock.advance_ms(DAY_MS)
    stats.sample()
    stats.stored("T", 5, 5)
    items = stats.runtime_items()
    assert items["msgPutTotalYesterdayMorning"] == "0"
    assert items["msgPutTotalTodayMorning"] == "7"
    assert items["msgPutTotalTodayNow"] == "12"
    clock.advance_ms(DAY_MS)
    items = stats.runtime_items()
    assert items["msgPutTotalYesterdayMorning"] == "7"
    assert items["msgPutTotalTodayMorning"] == "12"


def test_a_second_observer_hears_everything() -> None:
    heard: list[str] = []

    class Listener(Observer):
        def __getattribute__(self, name: str) -> object:
            heard.append(name)
            return super().__getattribute__(name)

    stats, _ = _stats()
    both = Both(stats, Listener())
    both.stored("T", 1, 1)
    both.refused("OVERLOAD")
    both.delivered("g", "T", 0, 1, 1)
    both.missed("g", "T", 0)
    both.sent_back("g", "T", is_dead=True)
    assert heard == ["stored", "refused", "delivered", "missed", "sent_back"]
    assert stats.runtime_items()["putMessageFailedTimes"] == "1"


def test_what_is_sent_and_pulled_is_counted_and_can_be_asked_for(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(3):
                await client.send(body=b"x" * number)
            await client.pull()
            for name, key, total in (
                ("TOPIC_PUT_NUMS", "TopicTest", 3),
                ("GROUP_GET_NUMS", "TopicTest@group", 3),
            ):
                answer = await client.call(
                    RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}
                )
                assert BrokerStatsDataBody.from_json(answer.body).minute.sum == total
            answer = await client.call(
                RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "x", "statsKey": "y" * 9_999}
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "not exist" in (answer.remark or "")
            await world.clock.sleep_ms(MINUTE_MS + 2 * SAMPLE_MS)
            answer = await client.call(
                RequestCode.VIEW_BROKER_STATS_DATA,
                {"statsName": "TOPIC_PUT_NUMS", "statsKey": "TopicTest"},
            )
            view = BrokerStatsDataBody.from_json(answer.body)
            assert (view.minute.sum, view.hour.sum) == (0, 3)

    world.run(main)


# mqadmin's brokerStatus, clusterList, exportMetrics and the dashboard read these.
RUNTIME_KEYS = """EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity bootTimestamp
    brokerVersion
    brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset
    consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps
    getMessageEntireTimeMax getMissTps getTotalTps getTransferedTps msgGetTotalTodayMorning
    msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
    msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
    pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99 putLatency999
    putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
    putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity
    sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize
    startAcceptSendRequestTimeStamp"""


@pytest.mark.parametrize(
    ("passed_ms", "text"),
    [
        (0, "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"),
        (90_061_999, "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"),
        (-5, "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"),
    ],
)
def test_how_long_it_runs_is_told_in_days_to_seconds(passed_ms: int, text: str) -> None:
    assert runtime_text(passed_ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (252 << 30, "252.0 GiB"),
        (2**62, "4096.0 PiB"),
    ],
)
def test_a_size_has_a_unit_that_fits(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_the_runtime_info_has_every_key_and_names_no_directory(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            empty = KVTable.from_json((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
            assert empty.table["earliestMessageTimeStamp"] == "-1"
            await client.send(properties={"DELAY": "3"})
            await client.send(body=b"x" * 10_000)
            await world.clock.sleep_ms(61_000)
            answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = KVTable.from_json(answer.body).table
            assert table.keys() >= set(RUNTIME_KEYS.split())
            assert table["scheduleMessageOffset_3"] == "1,1"
            assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 1 seconds ]"
            # A delayed message is stored twice, and counted twice.
            assert table["putMessageTimesTotal"] == "3"
            assert int(table["putMessageSizeTotal"]) > 10_000
            assert int(table["commitLogMaxOffset"]) > 10_000
            assert b"/store" not in bytes(answer.body)

    world.run(main)


def test_the_runtime_info_shows_the_services_of_the_store_at_work(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send(properties={"DELAY": "1"})
            behind = KVTable.from_json(
                (await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body
            )
            assert int(behind.table["remainHowManyDataToFlush"].split()[0]) > 0
            await world.clock.sleep_ms(30_000)
            after = KVTable.from_json((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
            assert after.table["dispatchBehindBytes"] == "0"
            assert int(after.table["remainHowManyDataToFlush"].split()[0]) == 0
            assert after.table["scheduleMessageOffset_1"] == "1,1"
            assert float(after.table["commitLogDiskRatio"]) >= 0.0

    world.run(main)
